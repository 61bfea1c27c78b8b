//! The place of an installation: files are put there whole or not at all, and removed. Files that no installation has made stay.

use super::record::{Record, RecordError, fingerprint_at};
use super::tree::{BUILDS, Entry, Tree, directories};
use crate::host::place::{IoError, identity, lock};
use miette::Diagnostic;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The mode of a directory.
const DIRECTORY: u32 = 0o755;
/// Most files that an error names.
const NAMED: usize = 5;

/// A directory with an installation, or for one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    base: PathBuf,
}

/// An installation that is not possible.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum PlaceError {
    /// Files that no installation has made are in the way, or files that were changed since.
    #[error("these files are not of an installation of Gnomon, or were changed since, so nothing is installed: {}", named(.0))]
    #[diagnostic(help(
        "move them away, or choose another directory: --prefix DIR. A package's are removed by: apt-get remove gnomon"
    ))]
    Foreign(Vec<PathBuf>),
    /// Something cannot be written.
    #[error("{0}; nothing was changed")]
    #[diagnostic(help(
        "install as a user who may write there, or choose another directory, such as: --prefix ~/.local"
    ))]
    Write(IoError),
    /// Something cannot be read or removed.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
    /// The record of the earlier installation.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Record(#[from] RecordError),
    /// There is nothing to remove.
    #[error("there is no installation in {}: {} is missing", .0.display(), Record::path(.0).display())]
    #[diagnostic(help("name the directory: --prefix DIR. If a Debian package was installed: apt-get remove gnomon"))]
    Absent(PathBuf),
}

fn named(files: &[PathBuf]) -> String {
    let more = if files.len() > NAMED { format!(", and {} more", files.len() - NAMED) } else { String::new() };
    files.iter().take(NAMED).map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ") + &more
}

/// Files that were left, since they had been changed.
pub type Left = Vec<PathBuf>;

impl Place {
    /// The place with that prefix.
    #[must_use]
    pub const fn new(base: PathBuf) -> Self {
        Self { base }
    }

    /// Returns the prefix of an installed build's directory.
    #[must_use]
    pub fn of_build(dir: &Path) -> Option<Self> {
        let base = dir.ancestors().nth(Path::new(BUILDS).components().count() + 1)?;
        Some(Self::new(base.to_owned()))
    }

    /// Returns the prefix.
    #[must_use]
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Installs a tree in the place of an earlier installation, if there is one.
    ///
    /// # Errors
    /// [`PlaceError`]. The earlier installation is as it was then.
    pub fn put(&self, tree: &Tree) -> Result<Left, PlaceError> {
        self.check_ancestors(tree)?;
        let outer = self.make_base().map_err(PlaceError::Write)?;
        let result = self.lock().map_err(PlaceError::Write).and_then(|_lock| self.put_locked(tree, &outer));
        if result.is_err() {
            // Only those that are empty go.
            outer.iter().rev().for_each(|dir| _ = fs::remove_dir(dir));
        }
        result
    }

    fn put_locked(&self, tree: &Tree, outer: &[PathBuf]) -> Result<Left, PlaceError> {
        let old = Record::read(&self.base)?;
        let mut known = old.clone().unwrap_or_default();
        self.remove_unfinished(&mut known)?;
        self.check(tree, &known)?;
        let mut new = Record::of(tree);
        new.directories.extend(Record::missing_directories(&self.base, tree));
        new.directories.extend(outer.iter().filter_map(|dir| Some(dir.strip_prefix(&self.base).ok()?.to_owned())));
        new.directories.retain(|dir| !dir.as_os_str().is_empty());
        let mut both = new.clone();
        both.add(&known);
        both.unfinished = tree.keys().map(|path| unfinished(path)).collect();
        both.write(&self.base).map_err(PlaceError::Write)?;
        let written = self.write(tree, &new.directories).map_err(PlaceError::Write);
        if let Err(why) = written {
            self.remove_made(&both.unfinished, &new.directories);
            // The record that was there could be written before.
            let _ = match &old {
                Some(old) => old.write(&self.base),
                None => {
                    fs::remove_file(Record::path(&self.base)).map_err(IoError::at("remove", Record::path(&self.base)))
                }
            };
            return Err(why);
        }
        self.name(tree)?;
        new.directories.extend(known.directories.iter().cloned());
        let outdated = known.files.keys().filter(|path| !tree.contains_key(*path));
        let (mut left, mut kept) = (Vec::new(), Record::default());
        for path in outdated {
            if !self.remove_file(path, &known)? {
                left.push(self.base.join(path));
                kept.files.insert(path.clone(), known.files[path].clone());
            }
        }
        self.remove_directories(&mut new.directories);
        new.add(&kept);
        new.write(&self.base)?;
        Ok(left)
    }

    /// Removes an installation.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn remove(&self) -> Result<Left, PlaceError> {
        if !Record::path(&self.base).exists() {
            return Err(PlaceError::Absent(self.base.clone()));
        }
        let _lock = self.lock()?;
        let Some(mut known) = Record::read(&self.base)? else { return Err(PlaceError::Absent(self.base.clone())) };
        self.remove_unfinished(&mut known)?;
        let mut left = Vec::new();
        for path in known.files.keys() {
            if !self.remove_file(path, &known)? {
                left.push(self.base.join(path));
            }
        }
        let record = Record::path(&self.base);
        fs::remove_file(&record).map_err(IoError::at("remove", &record))?;
        self.remove_directories(&mut known.directories);
        Ok(left)
    }

    /// Makes the directory with the record; returns those that were missing, each after the one that it is in.
    fn make_base(&self) -> Result<Vec<PathBuf>, IoError> {
        let dir = self.base.join(BUILDS);
        let mut missing: Vec<_> = dir.ancestors().take_while(|dir| !dir.exists()).map(Path::to_owned).collect();
        missing.reverse();
        for (number, dir) in missing.iter().enumerate() {
            make_directory(dir).inspect_err(|_| {
                missing[..number].iter().rev().for_each(|dir| _ = fs::remove_dir(dir));
            })?;
        }
        Ok(missing)
    }

    /// Keeps other installations away from the place.
    fn lock(&self) -> Result<File, IoError> {
        let dir = self.base.join(BUILDS);
        loop {
            let file = File::open(&dir).map_err(IoError::at("read", &dir))?;
            lock(&file, "it installs").map_err(IoError::at("lock", &dir))?;
            // The one that was waited for may have removed it.
            let own = file.metadata().map(|file| (file.dev(), file.ino())).map_err(IoError::at("read", &dir))?;
            if identity(&dir) == Some(own) {
                return Ok(file);
            }
        }
    }

    /// Checks that no directory of the tree has a file in its place.
    fn check_ancestors(&self, tree: &Tree) -> Result<(), PlaceError> {
        let dirs = directories(tree).into_iter().map(|dir| self.base.join(dir));
        let dirs: Vec<_> = self.base.ancestors().map(Path::to_owned).chain(dirs).collect();
        let foreign: Vec<_> = dirs.into_iter().filter(|dir| dir.symlink_metadata().is_ok() && !dir.is_dir()).collect();
        if foreign.is_empty() { Ok(()) } else { Err(PlaceError::Foreign(foreign)) }
    }

    /// Checks that each file of the tree is missing, or is a known one.
    fn check(&self, tree: &Tree, known: &Record) -> Result<(), PlaceError> {
        let mut foreign = Vec::new();
        for path in tree.keys() {
            let at = self.base.join(path);
            let there = fingerprint_at(&at)?;
            let has_name_free = fingerprint_at(&self.base.join(unfinished(path)))?.is_none();
            if there.is_some_and(|there| !known.has(path, &there)) || !has_name_free {
                foreign.push(at);
            }
        }
        if foreign.is_empty() { Ok(()) } else { Err(PlaceError::Foreign(foreign)) }
    }

    /// Writes all files beside the names that they will have.
    fn write(&self, tree: &Tree, directories: &BTreeSet<PathBuf>) -> Result<(), IoError> {
        for dir in directories.iter().map(|dir| self.base.join(dir)).filter(|dir| !dir.is_dir()) {
            make_directory(&dir)?;
        }
        for (path, entry) in tree {
            let path = self.base.join(unfinished(path));
            write(&path, entry).map_err(IoError::at("write", &path))?;
        }
        Ok(())
    }

    /// Gives the files their names, those that lead to others last.
    fn name(&self, tree: &Tree) -> Result<(), IoError> {
        let (links, files): (Vec<_>, Vec<_>) = tree.iter().partition(|(_, entry)| matches!(entry, Entry::Link(_)));
        for (path, _) in files.into_iter().chain(links) {
            let to = self.base.join(path);
            fs::rename(self.base.join(unfinished(path)), &to).map_err(IoError::at("write", &to))?;
        }
        Ok(())
    }

    /// Removes what an installation that was interrupted has left.
    fn remove_unfinished(&self, known: &mut Record) -> Result<(), IoError> {
        for path in std::mem::take(&mut known.unfinished) {
            remove(&self.base.join(path))?;
        }
        Ok(())
    }

    /// Undoes [`Place::write`].
    fn remove_made(&self, files: &BTreeSet<PathBuf>, directories: &BTreeSet<PathBuf>) {
        // Whatever stays is in the record.
        files.iter().for_each(|path| _ = fs::remove_file(self.base.join(path)));
        directories
            .iter()
            .rev()
            .filter(|dir| **dir != Path::new(BUILDS))
            .for_each(|dir| _ = fs::remove_dir(self.base.join(dir)));
    }

    /// Removes a file of an installation; returns false if it has been changed and stays.
    fn remove_file(&self, path: &Path, known: &Record) -> Result<bool, IoError> {
        let at = self.base.join(path);
        match fingerprint_at(&at)? {
            None => Ok(true),
            Some(there) if known.has(path, &there) => remove(&at).map(|()| true),
            Some(_) => Ok(false),
        }
    }

    /// Removes those directories that are empty.
    fn remove_directories(&self, directories: &mut BTreeSet<PathBuf>) {
        let all: Vec<_> = directories.iter().rev().cloned().collect();
        for dir in all {
            if fs::remove_dir(self.base.join(&dir)).is_ok() || !self.base.join(&dir).exists() {
                directories.remove(&dir);
            }
        }
    }
}

/// The name of a file while it is written.
fn unfinished(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.gnomon-new"))
}

fn make_directory(dir: &Path) -> Result<(), IoError> {
    match fs::create_dir(dir) {
        // By another installation, meanwhile.
        Err(why) if why.kind() == ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made.and_then(|()| fs::set_permissions(dir, Permissions::from_mode(DIRECTORY))),
    }
    .map_err(IoError::at("create", dir))
}

/// Writes a new file, and has the disk keep it.
fn write(path: &Path, entry: &Entry) -> std::io::Result<()> {
    if let Entry::Link(to) = entry {
        return symlink(to, path);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(entry.bytes())?;
    file.set_permissions(Permissions::from_mode(entry.mode()))?;
    file.sync_all()
}

fn remove(path: &Path) -> Result<(), IoError> {
    match fs::remove_file(path) {
        Err(why) if why.kind() != ErrorKind::NotFound => Err(IoError::at("remove", path)(why)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
