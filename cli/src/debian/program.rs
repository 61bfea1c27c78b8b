//! Linux programs from Debian packages, with the libraries that they are linked to, and nothing else
//! of what the packages depend on; and plain files of packages, such as headers.

use super::apt::Apt;
use super::{DebianError, record_of};
use crate::deb::{self, DebError};
use crate::place::{CacheLock, IoError, cache, write_whole};
use object::read::elf::FileHeader;
use object::{Endianness, elf};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};

/// Where Debian keeps libraries for this architecture.
const LIBRARIES: &str = "usr/lib/riscv64-linux-gnu";

/// Files of packages: a program with its libraries, or plain files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Files {
    /// The package's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What was wanted: the path in the guest, and the file.
    pub files: Vec<(String, PathBuf)>,
}

/// What is wanted of a package.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted<'a> {
    /// The program at this path in the package. In the guest it is in `/bin`, its libraries in `/lib`.
    Program(&'a str),
    /// All files whose paths start with one of these. In the guest they are where they are in the package.
    Data(&'a [&'a str]),
}

impl Files {
    /// Provides the program that is called like its package.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn program(name: &str) -> Result<Self, DebianError> {
        Self::provide(name, Wanted::Program(&format!("usr/bin/{name}")))
    }

    /// Provides what is wanted of a package: from the cache, else from the Debian archive.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn provide(package: &str, wanted: Wanted<'_>) -> Result<Self, DebianError> {
        let record = record_of(&wanted.called(package))?;
        if let Some(files) = Self::cached(&record)? {
            return Ok(files);
        }
        let _lock = CacheLock::take()?;
        // Somebody else may have fetched it while we waited.
        match Self::cached(&record)? {
            Some(files) => Ok(files),
            None => Self::fetch(package, wanted, &record),
        }
    }

    fn cached(record: &Path) -> Result<Option<Self>, IoError> {
        let Ok(text) = fs::read_to_string(record) else { return Ok(None) };
        // An unreadable record is as good as none: the package is fetched again.
        let Ok(found) = serde_json::from_str::<Self>(&text) else { return Ok(None) };
        let found = found.located(&cache("guest")?);
        Ok(found.files.iter().all(|(_, file)| file.is_file()).then_some(found))
    }

    /// With files under `dir`, to which they were relative.
    fn located(mut self, dir: &Path) -> Self {
        self.files.iter_mut().for_each(|(_, file)| *file = dir.join(&file));
        self
    }

    fn fetch(package: &str, wanted: Wanted<'_>, record: &Path) -> Result<Self, DebianError> {
        let mut packages = Packages { apt: Apt::open()?, debs: BTreeMap::new() };
        let version = packages.apt.version(package)?;
        let relative = PathBuf::from(format!("{}_{version}", wanted.called(package)).replace([':', '/'], "_"));
        let dir = cache("guest")?.join(&relative);
        fs::create_dir_all(&dir).map_err(IoError::at("create", &dir))?;
        let result = match wanted {
            Wanted::Program(path) => packages.program(package, path, &dir),
            Wanted::Data(paths) => packages.data(package, paths, &dir),
        };
        // What they held and is wanted is in the cache now.
        for (deb, _) in packages.debs.values() {
            fs::remove_file(deb).map_err(IoError::at("remove", deb))?;
        }
        let files = result?.into_iter().map(|(path, file)| (path, relative.join(file))).collect();
        let found = Self { name: package.to_owned(), version, files };
        write_whole(record, &serde_json::to_vec_pretty(&found).unwrap_or_default())?;
        Ok(found.located(&cache("guest")?))
    }
}

impl Wanted<'_> {
    /// What the cache calls it: like the package, and the program if that has another name. Files of one
    /// package that are wanted for different things are kept apart by where they start.
    fn called(self, package: &str) -> String {
        match self {
            Self::Program(path) => match path.rsplit('/').next().unwrap_or(path) {
                name if name == package => package.to_owned(),
                name => format!("{package}.{name}"),
            },
            Self::Data(paths) => format!("{package}.{}", paths.join(",").replace('/', "-")),
        }
    }
}

/// Packages that were downloaded, by name: each one's file, and the paths in it.
struct Packages {
    apt: Apt,
    debs: BTreeMap<String, (PathBuf, Vec<String>)>,
}

impl Packages {
    fn fetch(&mut self, package: &str) -> Result<&(PathBuf, Vec<String>), DebianError> {
        match self.debs.entry(package.to_owned()) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let version = self.apt.version(package)?;
                let deb = self.apt.download(package, &version)?;
                let paths = deb::list(&deb)?;
                Ok(entry.insert((deb, paths)))
            }
        }
    }

    /// Takes a program, follows its needs from package to package, and takes the libraries; returns paths
    /// in the guest and names in `dir`.
    fn program(&mut self, package: &str, path: &str, dir: &Path) -> Result<Vec<(String, String)>, DebianError> {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.take(package, path, name, dir)?;
        let mut files = vec![(format!("bin/{name}"), name.to_owned())];
        // What still has to be looked at: a file and its package.
        let mut open = vec![(package.to_owned(), name.to_owned())];
        while let Some((package, file)) = open.pop() {
            let path = dir.join(&file);
            let bytes = fs::read(&path).map_err(IoError::at("read", &path))?;
            let needed = needed(&bytes).map_err(|message| DebError::Damaged { path, message })?;
            for library in needed {
                let in_guest = format!("lib/{library}");
                if files.iter().any(|(path, _)| *path == in_guest) {
                    continue;
                }
                let from = self.library(&package, &library, dir)?;
                files.push((in_guest, library.clone()));
                open.push((from, library));
            }
        }
        Ok(files)
    }

    /// Takes all files whose paths start with one of `paths`; returns paths in the guest and in `dir`, which
    /// are the same.
    fn data(&mut self, package: &str, paths: &[&str], dir: &Path) -> Result<Vec<(String, String)>, DebianError> {
        let (deb, _) = self.fetch(package)?;
        Ok(deb::extract_under(deb, paths, dir)?.into_iter().map(|path| (path.clone(), path)).collect())
    }

    /// Takes the file whose path starts with `path` out of the package.
    fn take(&mut self, package: &str, path: &str, kept_as: &str, dir: &Path) -> Result<(), DebianError> {
        let (deb, _) = self.fetch(package)?;
        Ok(deb::extract(deb, &BTreeMap::from([(path, kept_as)]), dir)?)
    }

    /// Takes a library out of the package's dependency that has it; returns that one's name. Debian's
    /// tools see to it that a package depends on those of all libraries that its programs need; else the
    /// library is its own.
    fn library(&mut self, package: &str, library: &str, dir: &Path) -> Result<String, DebianError> {
        // A link by that name points to the file with the whole version.
        let path = format!("{LIBRARIES}/{library}");
        let mut candidates = self.apt.dependencies(package)?;
        // Those first that are here already, then those whose name resembles the library's: of the rest,
        // few are downloaded in vain.
        let stem = library.split(".so").next().unwrap_or(library).to_lowercase();
        candidates.sort_by_key(|name| (!self.debs.contains_key(name), !name.starts_with(&stem)));
        candidates.insert(0, package.to_owned());
        for candidate in candidates {
            let (_, paths) = self.fetch(&candidate)?;
            if paths.iter().any(|found| found.starts_with(&path)) {
                self.take(&candidate, &path, library, dir)?;
                return Ok(candidate);
            }
        }
        Err(DebError::Missing { path: package.into(), pattern: path }.into())
    }
}

/// The libraries that an ELF file needs, by their names (DT_NEEDED).
fn needed(bytes: &[u8]) -> Result<Vec<String>, String> {
    let text = |error: object::Error| error.to_string();
    let header = elf::FileHeader64::<Endianness>::parse(bytes).map_err(text)?;
    let endian = header.endian().map_err(text)?;
    let dynamic = header.sections(endian, bytes).and_then(|sections| sections.dynamic_table(endian, bytes));
    let dynamic = dynamic.map_err(text)?;
    let is_needed = |entry: &object::read::elf::Dynamic| entry.tag == elf::DT_NEEDED;
    let name = |entry| dynamic.string(entry).map(|name| String::from_utf8_lossy(name).into_owned());
    dynamic.iter().filter(is_needed).map(name).collect::<Result<_, _>>().map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_has_another_name_in_the_cache() {
        assert_eq!(Wanted::Program("usr/bin/stress-ng").called("stress-ng"), "stress-ng");
        assert_eq!(Wanted::Program("usr/bin/hackbench").called("rt-tests"), "rt-tests.hackbench");
        assert_eq!(Wanted::Data(&["usr/include/a", "b/"]).called("c"), "c.usr-include-a,b-");
    }

    #[test]
    fn what_is_no_program_is_damaged() {
        assert!(needed(b"nonsense").is_err());
        assert!(needed(&[]).is_err());
    }

    #[test]
    fn the_libraries_of_this_program_are_found() {
        let own = fs::read(std::env::current_exe().expect("a program")).expect("readable");
        let needed = needed(&own).expect("an ELF file");
        assert!(needed.iter().any(|library| library.starts_with("libc.so")), "{needed:?}");
    }
}
