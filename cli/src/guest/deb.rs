//! Takes files out of Debian packages.

use crate::host::place::{IoError, write_whole};
use miette::Diagnostic;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// More memory than it takes to unpack an archive of sources, in KiB.
const XZ_KIB: u32 = 1 << 18;

/// The reason why a package could not be unpacked.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum DebError {
    /// `dpkg-deb` cannot be started.
    #[error("cannot run dpkg-deb: {0}")]
    #[diagnostic(help("install the package dpkg"))]
    NoDpkg(std::io::Error),
    /// The package is damaged.
    #[error("cannot unpack {path}: {message}")]
    #[diagnostic(help("remove that file, or the whole directory .cache, and start again to download it anew"))]
    Damaged {
        /// The package.
        path: PathBuf,
        /// The reader's error.
        message: String,
    },
    /// The package lacks an expected file.
    #[error("the package {path} has no file like {pattern}")]
    #[diagnostic(help("this version of Gnomon does not know the package's layout; please report it"))]
    Missing {
        /// The package.
        path: PathBuf,
        /// The pattern that was searched for.
        pattern: String,
    },
    /// A file could not be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
}

/// Something in a package.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its path, without a leading `./`.
    pub path: String,
    /// The target, if it is a symbolic link; `None` for a regular file.
    pub target: Option<String>,
}

/// The regular files and symbolic links in the package.
///
/// # Errors
/// [`DebError`].
pub fn list(deb: &Path) -> Result<Vec<Listed>, DebError> {
    let damaged = |message: String| DebError::Damaged { path: deb.to_owned(), message };
    let mut child = files_of(deb)?;
    let found = child.stdout.take().map_or_else(|| Ok(Vec::new()), listed);
    let status = child.wait().map_err(DebError::NoDpkg)?;
    match found {
        Ok(_) if !status.success() => Err(damaged(format!("dpkg-deb: {status}"))),
        found => found.map_err(|error| damaged(error.to_string())),
    }
}

fn listed(archive: impl Read) -> std::io::Result<Vec<Listed>> {
    let mut listed = Vec::new();
    for entry in tar::Archive::new(archive).entries()? {
        let entry = entry?;
        let kind = entry.header().entry_type();
        if kind.is_file() || kind.is_symlink() {
            let target = entry.link_name_bytes().filter(|_| kind.is_symlink());
            let target = target.map(|target| String::from_utf8_lossy(&target).into_owned());
            listed.push(Listed { path: path_of(&entry), target });
        }
    }
    Ok(listed)
}

/// Starts dpkg-deb, which writes the package's files as a tar archive.
fn files_of(deb: &Path) -> Result<Child, DebError> {
    let mut command = Command::new("dpkg-deb");
    command.arg("--fsys-tarfile").arg(deb).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().map_err(DebError::NoDpkg)
}

fn path_of(entry: &tar::Entry<'_, impl Read>) -> String {
    String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned()
}

/// Takes the files whose path (without a leading `./`) starts with a key of `wanted` out of the
/// package and writes each under the key's name into `dir`.
///
/// # Errors
/// [`DebError`]; in particular if one of `wanted` is not there.
pub fn extract(deb: &Path, wanted: &BTreeMap<&str, &str>, dir: &Path) -> Result<(), DebError> {
    match extract_some(deb, wanted, dir)?.into_iter().next() {
        Some(pattern) => Err(DebError::Missing { path: deb.to_owned(), pattern }),
        None => Ok(()),
    }
}

/// Does what [`extract`] does with those files that are there; returns the keys of those that are not.
///
/// # Errors
/// [`DebError`].
pub fn extract_some(deb: &Path, wanted: &BTreeMap<&str, &str>, dir: &Path) -> Result<Vec<String>, DebError> {
    let damaged = |message: String| DebError::Damaged { path: deb.to_owned(), message };
    let mut child = files_of(deb)?;
    let mut missing = wanted.clone();
    let result = match child.stdout.take() {
        Some(output) => take_files(output, &mut missing, dir),
        None => Err(Taking::Archive("no output".into())),
    };
    // Everything is found early in the archive; the rest of it is not wanted.
    let _ = child.kill();
    let _ = child.wait();
    match result {
        Err(Taking::Archive(message)) => Err(damaged(message)),
        Err(Taking::Io(error)) => Err(error.into()),
        Ok(()) => Ok(missing.into_keys().map(str::to_owned).collect()),
    }
}

/// Takes all files whose paths (without a leading `./`) start with one of `paths` out of the package and
/// writes them into `dir` under their own paths, which it returns, sorted.
///
/// # Errors
/// [`DebError`]; in particular if there are none for one of `paths`.
pub fn extract_under(deb: &Path, paths: &[&str], dir: &Path) -> Result<Vec<String>, DebError> {
    let damaged = |message: String| DebError::Damaged { path: deb.to_owned(), message };
    let mut child = files_of(deb)?;
    let result = match child.stdout.take() {
        Some(output) => take_folders(output, Folder::Root, paths, dir),
        None => Err(Taking::Archive("no output".into())),
    };
    let status = child.wait().map_err(DebError::NoDpkg)?;
    match result {
        Err(Taking::Archive(message)) => Err(damaged(message)),
        Err(Taking::Io(error)) => Err(error.into()),
        Ok(_) if !status.success() => Err(damaged(format!("dpkg-deb: {status}"))),
        Ok(found) => all_found(deb, paths, found),
    }
}

/// Takes files out of the archive `usr/src/NAME.tar.xz` in the package, as [`extract_under`] takes them out of the package itself. Their paths
/// start below the one folder that the archive has.
///
/// # Errors
/// [`DebError`]; in particular if there are none for one of `paths`.
pub fn extract_sources(deb: &Path, paths: &[&str], dir: &Path) -> Result<Vec<String>, DebError> {
    let mut child = files_of(deb)?;
    let result = match child.stdout.take() {
        Some(output) => take_sources(output, paths, dir),
        None => Err(Taking::Archive("no output".into())),
    };
    // The archive of sources is all that is wanted.
    let _ = child.kill();
    let _ = child.wait();
    match result {
        Err(Taking::Archive(message)) => Err(DebError::Damaged { path: deb.to_owned(), message }),
        Err(Taking::Io(error)) => Err(error.into()),
        Ok(found) => all_found(deb, paths, found),
    }
}

/// Returns the files, or an error if there are none for one of the paths.
fn all_found(deb: &Path, paths: &[&str], found: Vec<String>) -> Result<Vec<String>, DebError> {
    match paths.iter().find(|path| !found.iter().any(|found| found.starts_with(**path))) {
        Some(pattern) => Err(DebError::Missing { path: deb.to_owned(), pattern: (*pattern).to_owned() }),
        None => Ok(found),
    }
}

/// Appends the package's files, or those that are wanted by their paths (without a leading `./`), to an archive: as they are, with
/// their owners and rights.
///
/// # Errors
/// [`DebError`]; [`DebError::Damaged`] as well if the archive cannot be written.
pub fn append_to(
    archive: &mut tar::Builder<impl std::io::Write>,
    deb: &Path,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<(), DebError> {
    let damaged = |message: String| DebError::Damaged { path: deb.to_owned(), message };
    let mut child = files_of(deb)?;
    let copied = child.stdout.take().map_or(Ok(()), |output| copy_files(archive, output, is_wanted));
    let status = child.wait().map_err(DebError::NoDpkg)?;
    match copied {
        Ok(()) if !status.success() => Err(damaged(format!("dpkg-deb: {status}"))),
        copied => copied.map_err(|error| damaged(error.to_string())),
    }
}

fn copy_files(
    to: &mut tar::Builder<impl std::io::Write>,
    from: impl Read,
    is_wanted: impl Fn(&str) -> bool,
) -> std::io::Result<()> {
    let mut from = tar::Archive::new(from);
    // Entries that say a long name of the next one, and wait for whether that is wanted.
    let mut names: Vec<(tar::Header, Vec<u8>)> = Vec::new();
    let mut long_name = None;
    for entry in from.entries()?.raw(true) {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if kind.is_gnu_longname() || kind.is_gnu_longlink() {
            let mut said = Vec::new();
            entry.read_to_end(&mut said)?;
            if kind.is_gnu_longname() {
                long_name = Some(String::from_utf8_lossy(&said).trim_end_matches('\0').to_owned());
            }
            names.push((entry.header().clone(), said));
            continue;
        }
        let name = long_name.take().unwrap_or_else(|| path_of(&entry));
        let before = std::mem::take(&mut names);
        if is_wanted(name.trim_start_matches("./")) {
            for (header, said) in before {
                to.append(&header, said.as_slice())?;
            }
            to.append(&entry.header().clone(), &mut entry)?;
        }
    }
    Ok(())
}

/// Writes the package again, with the same parts, none of which is compressed: what reads it need not unpack much.
///
/// # Errors
/// [`DebError`].
pub fn write_plain(deb: &Path, to: &Path) -> Result<(), DebError> {
    let damaged = |message: String| DebError::Damaged { path: deb.to_owned(), message };
    let part = |option: &str| {
        let output = Command::new("dpkg-deb").arg(option).arg(deb).stdin(Stdio::null()).output();
        let output = output.map_err(DebError::NoDpkg)?;
        let message = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(output.stdout) } else { Err(damaged(message())) }
    };
    let (control, data) = (part("--ctrl-tarfile")?, part("--fsys-tarfile")?);
    let mut archive = ar::Builder::new(Vec::new());
    for (name, bytes) in [("debian-binary", b"2.0\n".as_slice()), ("control.tar", &control), ("data.tar", &data)] {
        let header = ar::Header::new(name.into(), bytes.len() as u64);
        archive.append(&header, bytes).map_err(|error| damaged(error.to_string()))?;
    }
    let plain = archive.into_inner().map_err(|error| damaged(error.to_string()))?;
    Ok(std::fs::write(to, plain).map_err(IoError::at("write", to))?)
}

enum Taking {
    Archive(String),
    Io(IoError),
}

fn take_files(archive: impl Read, missing: &mut BTreeMap<&str, &str>, dir: &Path) -> Result<(), Taking> {
    let broken = |error: std::io::Error| Taking::Archive(error.to_string());
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries().map_err(broken)? {
        if missing.is_empty() {
            break;
        }
        let mut entry = entry.map_err(broken)?;
        let path = path_of(&entry);
        let Some((key, name)) = missing
            .iter()
            .find(|(key, _)| path.starts_with(**key) && entry.header().entry_type().is_file())
            .map(|(key, name)| (*key, *name))
        else {
            continue;
        };
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(broken)?;
        write_whole(&dir.join(name), &bytes).map_err(Taking::Io)?;
        missing.remove(key);
    }
    Ok(())
}

fn take_sources(package: impl Read, paths: &[&str], dir: &Path) -> Result<Vec<String>, Taking> {
    let broken = |error: std::io::Error| Taking::Archive(error.to_string());
    let mut package = tar::Archive::new(package);
    for entry in package.entries().map_err(broken)? {
        let entry = entry.map_err(broken)?;
        let path = path_of(&entry);
        if path.starts_with("usr/src/") && path.ends_with(".tar.xz") {
            let sources = lzma_rust2::XzReader::new_mem_limit(entry, false, XZ_KIB);
            return take_folders(sources, Folder::Below, paths, dir);
        }
    }
    Err(Taking::Archive("it has no archive of sources".into()))
}

/// The place where the paths of an archive's files start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Folder {
    /// The root.
    Root,
    /// The folder below the root in which everything is.
    Below,
}

fn take_folders(archive: impl Read, folder: Folder, paths: &[&str], dir: &Path) -> Result<Vec<String>, Taking> {
    let broken = |error: std::io::Error| Taking::Archive(error.to_string());
    let mut archive = tar::Archive::new(archive);
    let mut found = Vec::new();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let mut path = path_of(&entry);
        if folder == Folder::Below {
            path = path.split_once('/').map_or_else(String::new, |(_, path)| path.to_owned());
        }
        let is_within = !path.starts_with('/') && !path.split('/').any(|part| part == "..");
        if !is_within || !entry.header().entry_type().is_file() || !paths.iter().any(|wanted| path.starts_with(wanted))
        {
            continue;
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(broken)?;
        let file = dir.join(&path);
        let folder = file.parent().unwrap_or(dir);
        std::fs::create_dir_all(folder).map_err(|error| Taking::Io(IoError::at("create", folder)(error)))?;
        write_whole(&file, &bytes).map_err(Taking::Io)?;
        found.push(path);
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_package_is_damaged() {
        let dir = tempfile::tempdir().expect("a directory");
        let deb = dir.path().join("x.deb");
        std::fs::write(&deb, b"nonsense").expect("a file");
        let wanted = BTreeMap::from([("boot/vmlinux-", "vmlinux")]);
        let error = extract(&deb, &wanted, dir.path()).expect_err("no package");
        assert!(error.to_string().contains("x.deb"), "{error}");
        assert!(list(&deb).is_err());
    }

    #[test]
    fn links_are_listed_with_their_targets() {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        archive.append_link(&mut header, "./lib/libelf.so.1", "libelf-0.1.so").expect("in memory");
        let link = Listed { path: "lib/libelf.so.1".into(), target: Some("libelf-0.1.so".into()) };
        assert_eq!(listed(&*archive.into_inner().expect("whole")).expect("an archive"), [link]);
    }

    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, data) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, path, data.as_bytes()).expect("in memory");
        }
        archive.into_inner().expect("whole")
    }

    #[test]
    fn files_are_copied_as_they_are() {
        let long = format!("usr/lib/{}", "x".repeat(120));
        let mut from = tar::Builder::new(Vec::new());
        for (path, owner, data) in [("./usr/bin/su", 7, "program"), ("./etc/x", 0, ""), (long.as_str(), 0, "deep")] {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mode(0o4755);
            header.set_uid(owner);
            from.append_data(&mut header, path, data.as_bytes()).expect("in memory");
        }
        let from = from.into_inner().expect("whole");
        let mut to = tar::Builder::new(Vec::new());
        copy_files(&mut to, &*from, |path| path.starts_with("usr/")).expect("copied");
        let to = to.into_inner().expect("whole");
        let mut archive = tar::Archive::new(&*to);
        let found = archive.entries().expect("an archive").map(|entry| {
            let mut entry = entry.expect("an entry");
            let mut data = String::new();
            entry.read_to_string(&mut data).expect("text");
            let header = entry.header();
            (path_of(&entry), header.uid().expect("one"), header.mode().expect("one"), data)
        });
        let expected = [("usr/bin/su".to_owned(), 7, 0o4755, "program".to_owned()), (long, 0, 0o4755, "deep".into())];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn folders_keep_their_paths() {
        let archive = archive(&[("./inc/b/y.h", "y"), ("./inc/a.h", "a"), ("./include/z.h", "z"), ("./x", "x")]);
        let dir = tempfile::tempdir().expect("a directory");
        let found = take_folders(&*archive, Folder::Root, &["inc/"], dir.path());
        assert_eq!(found.ok(), Some(vec!["inc/a.h".to_owned(), "inc/b/y.h".to_owned()]));
        assert_eq!(std::fs::read(dir.path().join("inc/b/y.h")).expect("taken"), b"y");
        assert!(!dir.path().join("include").exists());
    }

    /// A tar archive with `linux-7/inc/a.h`, `linux-7/inc/b/y.h` and `linux-7/x`, packed by xz.
    const SOURCES: &[u8] =
        b"\xfd\x37\x7a\x58\x5a\x00\x00\x01\x69\x22\xde\x36\x02\x00\x21\x01\x1c\x00\x00\x00\x10\xcf\x58\xcc\xe0\
          \x27\xff\x00\x85\x5d\x00\x36\x1a\x4a\x20\x75\x9a\xd7\x67\xcf\xd4\xd8\xca\xf1\xf5\x87\xc1\x07\xbb\x15\
          \x9c\x00\xf8\xaa\x4e\x19\xd3\x1c\x0d\x0a\xb9\xf3\x9e\xee\x01\x2e\x00\x39\x39\x7e\xba\x82\xaa\x5a\x5d\
          \x65\x80\x37\xf2\x23\x06\x53\x49\xb1\x7b\x45\x69\x90\x14\x92\x71\x64\x8b\x44\x64\xe1\x7d\x88\x11\x47\
          \x64\x8f\x1e\xd9\x68\x71\x06\x0a\x35\x93\x80\x96\xed\xbd\xdf\xae\x4d\xf4\x88\xf6\xff\x2c\x3a\xd2\xc0\
          \x40\x30\x37\xd9\x1d\xb0\x0d\xf6\x53\xb8\xf3\x16\x4e\x40\x12\xf4\x0c\xc1\x04\x97\xe0\xdb\x56\x38\xa4\
          \xf6\xb9\x70\x9e\xd9\xb4\x71\x76\x99\x35\xd7\x00\x8e\x00\x00\x00\x00\x00\x1b\x74\xaa\x84\x00\x01\x9d\
          \x01\x80\x50\x00\x00\x7b\x60\x28\xde\x3e\x30\x0d\x8b\x02\x00\x00\x00\x00\x01\x59\x5a";

    #[test]
    fn sources_are_in_an_archive_within() {
        let package = |name: &str| {
            let mut archive = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(SOURCES.len() as u64);
            archive.append_data(&mut header, name, SOURCES).expect("in memory");
            archive.into_inner().expect("whole")
        };
        let dir = tempfile::tempdir().expect("a directory");
        let found = take_sources(&*package("./usr/src/linux-source-7.tar.xz"), &["inc/"], dir.path());
        assert_eq!(found.ok(), Some(vec!["inc/a.h".to_owned(), "inc/b/y.h".to_owned()]));
        assert_eq!(std::fs::read(dir.path().join("inc/b/y.h")).expect("taken"), b"y");
        assert!(matches!(take_sources(&*package("./usr/src/x"), &["inc/"], dir.path()), Err(Taking::Archive(_))));
        let error = all_found(dir.path(), &["inc/", "none/"], vec!["inc/a.h".into()]).expect_err("one is missing");
        assert!(error.to_string().contains("none/"), "{error}");
    }

    #[test]
    fn files_that_are_there_are_taken_and_others_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = archive(&[("./boot/vmlinux-6", "kernel"), ("./lib/a.ko.xz", "a")]);
        let mut package = ar::Builder::new(Vec::new());
        for (name, bytes) in
            [("debian-binary", b"2.0\n".as_slice()), ("control.tar", &archive(&[])), ("data.tar", &data)]
        {
            package.append(&ar::Header::new(name.into(), bytes.len() as u64), bytes).expect("in memory");
        }
        let deb = dir.path().join("x.deb");
        std::fs::write(&deb, package.into_inner().expect("whole")).expect("a file");
        let wanted = BTreeMap::from([("boot/vmlinux-", "vmlinux"), ("lib/a.ko.xz", "a"), ("lib/b.ko.xz", "b")]);
        assert_eq!(extract_some(&deb, &wanted, dir.path()).expect("a package"), ["lib/b.ko.xz"]);
        assert_eq!(std::fs::read(dir.path().join("vmlinux")).expect("taken"), b"kernel");
        assert_eq!(std::fs::read(dir.path().join("a")).expect("taken"), b"a");
        assert!(extract(&deb, &wanted, dir.path()).expect_err("one is missing").to_string().contains("lib/b.ko.xz"));
    }

    #[test]
    fn files_are_found_by_prefix() {
        let archive = archive(&[("./boot/config-6", "c"), ("./boot/vmlinux-6", "kernel"), ("./x", "x")]);
        let dir = tempfile::tempdir().expect("a directory");
        let mut missing = BTreeMap::from([("boot/vmlinux-", "vmlinux"), ("usr/bin/y", "y")]);
        assert!(take_files(&*archive, &mut missing, dir.path()).is_ok());
        assert_eq!(missing.keys().copied().collect::<Vec<_>>(), ["usr/bin/y"]);
        assert_eq!(std::fs::read(dir.path().join("vmlinux")).expect("taken"), b"kernel");
    }
}
