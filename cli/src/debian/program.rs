//! Linux programs from Debian packages, with the libraries that they are linked to, and nothing else
//! of what the packages depend on.

use super::apt::Suite;
use super::packages::Packages;
use super::{DebianError, cached, record_of};
use crate::deb::DebError;
use crate::place::{CacheLock, IoError, cache, write_whole};
use object::read::elf::FileHeader;
use object::{Endianness, elf};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// A program and its libraries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Program {
    /// The package's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The program and its libraries: the path in the guest, and the file.
    pub files: Vec<(String, PathBuf)>,
}

impl Program {
    /// Provides the program that is called like its package, for guests: from the cache, else from the
    /// Debian archive.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn provide(name: &str) -> Result<Self, DebianError> {
        Self::provide_from(Suite::Trixie, name, name)
    }

    /// Provides a program of a package, with libraries of the same suite.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn provide_from(suite: Suite, package: &str, program: &str) -> Result<Self, DebianError> {
        if let Some(program) = Self::cached(suite, package)? {
            return Ok(program);
        }
        let _lock = CacheLock::take()?;
        // Somebody else may have fetched it while we waited.
        match Self::cached(suite, package)? {
            Some(program) => Ok(program),
            None => Self::fetch(suite, package, program),
        }
    }

    fn cached(suite: Suite, package: &str) -> Result<Option<Self>, IoError> {
        let Some(program) = cached::<Self>(suite, package)? else { return Ok(None) };
        let program = program.located(&cache("guest")?);
        Ok(program.files.iter().all(|(_, file)| file.is_file()).then_some(program))
    }

    /// With files under `dir`, to which they were relative.
    fn located(mut self, dir: &Path) -> Self {
        self.files.iter_mut().for_each(|(_, file)| *file = dir.join(&file));
        self
    }

    fn fetch(suite: Suite, package: &str, program: &str) -> Result<Self, DebianError> {
        let mut packages = Packages::of(suite)?;
        let version = packages.apt.version(package)?;
        let relative = PathBuf::from(format!("{package}_{version}{}", suite.suffix()).replace([':', '/'], "_"));
        let dir = cache("guest")?.join(&relative);
        fs::create_dir_all(&dir).map_err(IoError::at("create", &dir))?;
        let result = Self::collect(package, program, &mut packages, &dir);
        packages.discard()?;
        let files = result?.into_iter().map(|(path, file)| (path, relative.join(file))).collect();
        let found = Self { name: package.to_owned(), version, files };
        write_whole(&record_of(suite, package)?, &serde_json::to_vec_pretty(&found).unwrap_or_default())?;
        Ok(found.located(&cache("guest")?))
    }

    /// Follows the program's needs from package to package; returns paths in the guest and names in `dir`.
    fn collect(
        package: &str,
        program: &str,
        packages: &mut Packages,
        dir: &Path,
    ) -> Result<Vec<(String, String)>, DebianError> {
        packages.take(package, &format!("usr/bin/{program}"), program, dir)?;
        let mut files = vec![(format!("bin/{program}"), program.to_owned())];
        // What still has to be looked at: a file and its package.
        let mut open = vec![(package.to_owned(), program.to_owned())];
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
