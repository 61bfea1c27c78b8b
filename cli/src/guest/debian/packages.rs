//! Debian packages that something is taken out of.

use super::DebianError;
use super::apt::{Apt, Suite};
use crate::guest::deb::{self, DebError, Listed};
use crate::host::place::IoError;
use crate::host::progress::Step;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of Debian's libraries for this architecture.
const LIBRARIES: &str = "usr/lib/riscv64-linux-gnu";

/// Packages of one suite that were downloaded, by name: each one's file, and what is in it.
pub(super) struct Packages {
    pub(super) apt: Apt,
    debs: BTreeMap<String, (PathBuf, Vec<Listed>)>,
}

impl Packages {
    /// None yet.
    pub(super) fn of(suite: Suite) -> Result<Self, DebianError> {
        Ok(Self { apt: Apt::open(suite)?, debs: BTreeMap::new() })
    }

    /// Removes the downloads: what they held and is wanted is in the cache now.
    pub(super) fn discard(self) -> Result<(), IoError> {
        self.debs.values().try_for_each(|(deb, _)| fs::remove_file(deb).map_err(IoError::at("remove", deb)))
    }

    fn fetch(&mut self, package: &str) -> Result<&(PathBuf, Vec<Listed>), DebianError> {
        match self.debs.entry(package.to_owned()) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let deb = self.apt.download(package, None)?;
                let listed = deb::list(&deb)?;
                Ok(entry.insert((deb, listed)))
            }
        }
    }

    /// Takes the file whose path starts with `path` out of the package.
    pub(super) fn take(&mut self, package: &str, path: &str, kept_as: &str, dir: &Path) -> Result<(), DebianError> {
        let (deb, _) = self.fetch(package)?;
        Ok(deb::extract(deb, &BTreeMap::from([(path, kept_as)]), dir)?)
    }

    /// Takes all files whose paths start with one of `paths`; returns paths in the guest and in `dir`, which
    /// are the same.
    pub(super) fn take_under(
        &mut self,
        package: &str,
        paths: &[&str],
        dir: &Path,
    ) -> Result<Vec<(String, String)>, DebianError> {
        let (deb, _) = self.fetch(package)?;
        Ok(deb::extract_under(deb, paths, dir)?.into_iter().map(|path| (path.clone(), path)).collect())
    }

    /// Takes files as [`Packages::take_under`] does, out of the archive of sources that the metapackage stands for.
    pub(super) fn take_sources(
        &mut self,
        metapackage: &str,
        paths: &[&str],
        dir: &Path,
    ) -> Result<Vec<(String, String)>, DebianError> {
        let package = self.apt.dependency(metapackage, &format!("{metapackage}-"))?;
        let (deb, _) = self.fetch(&package)?;
        let _step = Step::spinner(&format!("unpacking {package}"));
        Ok(deb::extract_sources(deb, paths, dir)?.into_iter().map(|path| (path.clone(), path)).collect())
    }

    /// Takes the file whose path ends with `end` out of that of the packages that has it.
    pub(super) fn take_from_any(
        &mut self,
        packages: &[String],
        end: &str,
        kept_as: &str,
        dir: &Path,
    ) -> Result<(), DebianError> {
        for package in packages {
            let (_, listed) = self.fetch(package)?;
            let found = listed.iter().find(|file| file.target.is_none() && file.path.ends_with(end));
            if let Some(path) = found.map(|file| file.path.clone()) {
                return self.take(package, &path, kept_as, dir);
            }
        }
        Err(DebError::Missing { path: packages.join(", ").into(), pattern: format!("*{end}") }.into())
    }

    /// Takes a library out of the package's dependency that has it; returns that one's name. Debian's
    /// tools see to it that a package depends on those of all libraries that its programs need; else the
    /// library is its own. It is looked for in these folders, too, where some have libraries that only they use.
    pub(super) fn library(
        &mut self,
        package: &str,
        (library, folders): (&str, &[String]),
        dir: &Path,
    ) -> Result<String, DebianError> {
        let folders = folders.iter().map(String::as_str).chain([LIBRARIES]);
        let paths: Vec<_> = folders.map(|folder| format!("{folder}/{library}")).collect();
        let mut candidates = self.apt.dependencies(package)?;
        // Those first that are here already, then those whose name resembles the library's: of the rest,
        // few are downloaded in vain.
        let stem = library.split(".so").next().unwrap_or(library).to_lowercase();
        candidates.sort_by_key(|name| (!self.debs.contains_key(name), !name.starts_with(&stem)));
        candidates.insert(0, package.to_owned());
        for candidate in candidates {
            let (_, listed) = self.fetch(&candidate)?;
            if let Some(file) = paths.iter().find_map(|path| file_of(listed, path)) {
                self.take(&candidate, &file, library, dir)?;
                return Ok(candidate);
            }
        }
        Err(DebError::Missing { path: package.into(), pattern: paths.join(", ") }.into())
    }
}

/// The path of the regular file that a library's path leads to: by its own name there is mostly a link to
/// a file beside it, with the whole version in its name.
fn file_of(listed: &[Listed], path: &str) -> Option<String> {
    let found = listed.iter().find(|file| file.path == path)?;
    let Some(target) = &found.target else { return Some(found.path.clone()) };
    let beside = Path::new(path).with_file_name(target);
    listed.iter().find(|file| file.target.is_none() && Path::new(&file.path) == beside).map(|file| file.path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_behind_links() {
        let listed = [("lib/libelf-0.1.so", None), ("lib/libelf.so.1", Some("libelf-0.1.so")), ("lib/ld.so", None)];
        let listed = listed.map(|(path, target)| Listed { path: path.into(), target: target.map(str::to_owned) });
        assert_eq!(file_of(&listed, "lib/libelf.so.1").as_deref(), Some("lib/libelf-0.1.so"));
        assert_eq!(file_of(&listed, "lib/ld.so").as_deref(), Some("lib/ld.so"));
        assert_eq!(file_of(&listed, "lib/libelf.so"), None);
        assert_eq!(file_of(&listed[1..], "lib/libelf.so.1"), None);
    }
}
