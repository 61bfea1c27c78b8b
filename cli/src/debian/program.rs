//! Linux programs from Debian packages, with the libraries that they are linked to, and nothing else
//! of what the packages depend on.

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

/// A program and its libraries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Program {
    /// The package's name, which is the program's, too.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The program and its libraries: the path in the guest, and the file.
    pub files: Vec<(String, PathBuf)>,
}

impl Program {
    /// Provides the program that is called like its package: from the cache, else from the Debian
    /// archive.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn provide(name: &str) -> Result<Self, DebianError> {
        if let Some(program) = Self::cached(name)? {
            return Ok(program);
        }
        let _lock = CacheLock::take()?;
        // Somebody else may have fetched it while we waited.
        match Self::cached(name)? {
            Some(program) => Ok(program),
            None => Self::fetch(name),
        }
    }

    fn cached(name: &str) -> Result<Option<Self>, IoError> {
        let Ok(text) = fs::read_to_string(record_of(name)?) else { return Ok(None) };
        // An unreadable record is as good as none: the package is fetched again.
        let Ok(program) = serde_json::from_str::<Self>(&text) else { return Ok(None) };
        let program = program.located(&cache("guest")?);
        Ok(program.files.iter().all(|(_, file)| file.is_file()).then_some(program))
    }

    /// With files under `dir`, to which they were relative.
    fn located(mut self, dir: &Path) -> Self {
        self.files.iter_mut().for_each(|(_, file)| *file = dir.join(&file));
        self
    }

    fn fetch(name: &str) -> Result<Self, DebianError> {
        let mut packages = Packages { apt: Apt::open()?, debs: BTreeMap::new() };
        let version = packages.apt.version(name)?;
        let relative = PathBuf::from(format!("{name}_{version}").replace([':', '/'], "_"));
        let dir = cache("guest")?.join(&relative);
        fs::create_dir_all(&dir).map_err(IoError::at("create", &dir))?;
        let result = Self::collect(name, &mut packages, &dir);
        // What they held and is wanted is in the cache now.
        for (deb, _) in packages.debs.values() {
            fs::remove_file(deb).map_err(IoError::at("remove", deb))?;
        }
        let files = result?.into_iter().map(|(path, file)| (path, relative.join(file))).collect();
        let program = Self { name: name.to_owned(), version, files };
        write_whole(&record_of(name)?, &serde_json::to_vec_pretty(&program).unwrap_or_default())?;
        Ok(program.located(&cache("guest")?))
    }

    /// Follows the program's needs from package to package; returns paths in the guest and names in `dir`.
    fn collect(name: &str, packages: &mut Packages, dir: &Path) -> Result<Vec<(String, String)>, DebianError> {
        packages.take(name, &format!("usr/bin/{name}"), name, dir)?;
        let mut files = vec![(format!("bin/{name}"), name.to_owned())];
        // What still has to be looked at: a file and its package.
        let mut open = vec![(name.to_owned(), name.to_owned())];
        while let Some((package, file)) = open.pop() {
            let path = dir.join(&file);
            let bytes = fs::read(&path).map_err(IoError::at("read", &path))?;
            let needed = needed(&bytes).map_err(|message| DebError::Damaged { path, message })?;
            for library in needed {
                let in_guest = format!("lib/{library}");
                if files.iter().any(|(path, _)| *path == in_guest) {
                    continue;
                }
                let from = packages.library(&package, &library, dir)?;
                files.push((in_guest, library.clone()));
                open.push((from, library));
            }
        }
        Ok(files)
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
