//! Linux programs from Debian packages, with the libraries that they are linked to, and nothing else
//! of what the packages depend on; and plain files of packages, such as headers.

use super::apt::Suite;
use super::packages::Packages;
use super::{DebianError, cached, record_of};
use crate::guest::deb::DebError;
use crate::host::place::{CacheLock, IoError, cache, write_whole};
use object::read::elf::FileHeader;
use object::{Endianness, elf};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Files of packages: a program with its libraries, or plain files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Files {
    /// The package's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The wanted files: the path in the guest, and the file.
    pub files: Vec<(String, PathBuf)>,
}

/// The wanted part of a package.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted<'a> {
    /// The program at this path in the package. In the guest it is in `/bin`, its libraries in `/lib`.
    Program(&'a str),
    /// All files whose paths start with one of these. In the guest they are where they are in the package.
    Data(&'a [&'a str]),
    /// All files whose paths start with one of these, in an archive of sources. The package is a metapackage: the archive is in the one that
    /// it depends on, whose name has a version at the end, such as `linux-source-6.12`.
    Sources(&'a [&'a str]),
}

impl Files {
    /// Provides the program that is called like its package, for guests.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn program(name: &str) -> Result<Self, DebianError> {
        Self::provide(Suite::Trixie, name, Wanted::Program(&format!("usr/bin/{name}")))
    }

    /// Provides what is wanted of a package, with libraries of the same suite: from the cache, else from the
    /// Debian archive.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn provide(suite: Suite, package: &str, wanted: Wanted<'_>) -> Result<Self, DebianError> {
        let called = wanted.called(package);
        if let Some(files) = Self::cached(suite, &called)? {
            return Ok(files);
        }
        let _lock = CacheLock::take()?;
        // Another run may have fetched it while this one waited.
        match Self::cached(suite, &called)? {
            Some(files) => Ok(files),
            None => Self::fetch(suite, package, wanted, &called),
        }
    }

    fn cached(suite: Suite, called: &str) -> Result<Option<Self>, IoError> {
        let Some(found) = cached::<Self>(suite, called)? else { return Ok(None) };
        let found = found.located(&cache("guest")?);
        Ok(found.files.iter().all(|(_, file)| file.is_file()).then_some(found))
    }

    /// With files under `dir`, to which they were relative.
    fn located(mut self, dir: &Path) -> Self {
        self.files.iter_mut().for_each(|(_, file)| *file = dir.join(&file));
        self
    }

    fn fetch(suite: Suite, package: &str, wanted: Wanted<'_>, called: &str) -> Result<Self, DebianError> {
        let mut packages = Packages::of(suite)?;
        let version = packages.apt.version(package)?;
        let relative = PathBuf::from(format!("{called}_{version}{}", suite.suffix()).replace([':', '/'], "_"));
        let dir = cache("guest")?.join(&relative);
        fs::create_dir_all(&dir).map_err(IoError::at("create", &dir))?;
        let result = match wanted {
            Wanted::Program(path) => program(&mut packages, package, path, &dir),
            Wanted::Data(paths) => packages.take_under(package, paths, &dir),
            Wanted::Sources(paths) => packages.take_sources(package, paths, &dir),
        };
        packages.discard()?;
        let files = result?.into_iter().map(|(path, file)| (path, relative.join(file))).collect();
        let found = Self { name: package.to_owned(), version, files };
        write_whole(&record_of(suite, called)?, &serde_json::to_vec_pretty(&found).unwrap_or_default())?;
        Ok(found.located(&cache("guest")?))
    }
}

impl Wanted<'_> {
    /// Its name in the cache: like the package, and the program if that has another name. Files of one
    /// package that are wanted for different things are kept apart by where they start.
    fn called(self, package: &str) -> String {
        match self {
            Self::Program(path) => match path.rsplit('/').next().unwrap_or(path) {
                name if name == package => package.to_owned(),
                name => format!("{package}.{name}"),
            },
            Self::Data(paths) | Self::Sources(paths) => format!("{package}.{}", paths.join(",").replace('/', "-")),
        }
    }
}

/// Takes a program, follows its needs from package to package, and takes the libraries; returns paths in the guest
/// and names in `dir`.
fn program(
    packages: &mut Packages,
    package: &str,
    path: &str,
    dir: &Path,
) -> Result<Vec<(String, String)>, DebianError> {
    let name = path.rsplit('/').next().unwrap_or(path);
    packages.take(package, path, name, dir)?;
    let mut files = vec![(format!("bin/{name}"), name.to_owned())];
    // What still has to be looked at: a file and its package.
    let mut open = vec![(package.to_owned(), name.to_owned())];
    while let Some((package, file)) = open.pop() {
        let path = dir.join(&file);
        let bytes = fs::read(&path).map_err(IoError::at("read", &path))?;
        let links = Links::read(&bytes).map_err(|message| DebError::Damaged { path, message })?;
        for library in links.needed {
            let in_guest = format!("lib/{library}");
            if files.iter().any(|(path, _)| *path == in_guest) {
                continue;
            }
            let from = packages.library(&package, (&library, &links.folders), dir)?;
            files.push((in_guest, library.clone()));
            open.push((from, library));
        }
    }
    Ok(files)
}

/// The libraries that an ELF file is linked to.
#[derive(PartialEq, Eq, Debug)]
struct Links {
    /// The libraries that it needs, by their names (DT_NEEDED).
    needed: Vec<String>,
    /// Folders that are looked into first, as paths in a package (DT_RUNPATH). In the guest all libraries are in `/lib`, which the
    /// loader comes to where there is no such folder.
    folders: Vec<String>,
}

impl Links {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let text = |error: object::Error| error.to_string();
        let header = elf::FileHeader64::<Endianness>::parse(bytes).map_err(text)?;
        let endian = header.endian().map_err(text)?;
        let dynamic = header.sections(endian, bytes).and_then(|sections| sections.dynamic_table(endian, bytes));
        let dynamic = dynamic.map_err(text)?;
        let strings = |tag| {
            let entries = dynamic.iter().filter(move |entry| entry.tag == tag);
            let name = |entry| dynamic.string(entry).map(|name| String::from_utf8_lossy(name).into_owned());
            entries.map(name).collect::<Result<Vec<_>, _>>().map_err(text)
        };
        let folders = strings(elf::DT_RUNPATH)?.iter().flat_map(|list| folders(list)).collect();
        Ok(Self { needed: strings(elf::DT_NEEDED)?, folders })
    }
}

/// The folders that a list for the loader names from the root on, as paths in a package.
fn folders(list: &str) -> impl Iterator<Item = String> {
    list.split(':').filter_map(|folder| folder.strip_prefix('/')).map(str::to_owned)
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
        assert!(Links::read(b"nonsense").is_err());
        assert!(Links::read(&[]).is_err());
    }

    #[test]
    fn the_libraries_of_this_program_are_found() {
        let own = fs::read(std::env::current_exe().expect("a program")).expect("readable");
        let links = Links::read(&own).expect("an ELF file");
        assert!(links.needed.iter().any(|library| library.starts_with("libc.so")), "{links:?}");
    }

    #[test]
    fn folders_are_those_of_packages() {
        let found: Vec<_> = folders("/usr/lib/riscv64-linux-gnu/ceph:$ORIGIN/../lib:/opt").collect();
        assert_eq!(found, ["usr/lib/riscv64-linux-gnu/ceph", "opt"]);
    }
}
