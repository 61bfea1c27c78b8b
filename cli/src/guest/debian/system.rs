//! All packages of a Debian system, downloaded, with the package lists that they were found by.

use super::apt::{self, Apt, Suite};
use super::modules::{KernelPackage, Modules};
use super::{DebianError, Package, Software};
use crate::host::place::{CacheLock, IoError};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// apt's pattern for essential packages.
const ESSENTIAL: &str = "?essential";

/// A package of the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SystemPackage {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Set if the package is essential for Debian, or a dependency of an essential one.
    pub is_essential: bool,
    /// The downloaded file.
    pub deb: PathBuf,
}

/// A system's packages, and where they come from. The files are there as long as this lives.
#[derive(Debug)]
pub struct System {
    /// The packages, by name.
    pub packages: Vec<SystemPackage>,
    /// The kernel that guests have by default.
    pub kernel: Package,
    /// The kernel's package file.
    pub kernel_deb: PathBuf,
    /// The package lists, as apt keeps them.
    pub lists: Vec<PathBuf>,
    /// The address of the mirror that all comes from.
    pub mirror: String,
    /// The suite's name on the mirror.
    pub suite: &'static str,
    /// Proxies that the mirror is reached by, as lines of apt's configuration.
    pub proxies: String,
    _dir: TempDir,
}

impl System {
    /// Fetches what is essential, and what is wanted beside it, with all that they depend on. Some modules of the kernel's, each by
    /// its name and its path in the kernel's sources, are kept in the cache. What is downloaded
    /// goes to `dir`, in the cache as well.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn fetch(wanted: &[&str], modules: &[(&str, &str)], dir: TempDir) -> Result<Self, DebianError> {
        let _lock = CacheLock::take()?;
        let from = KernelPackage::fetch(Software::Kernel.cached()?)?;
        Modules::keep(&from, modules)?;
        let KernelPackage { kernel, deb } = from;
        let kernel_deb = dir.path().join("kernel");
        fs::rename(&deb, &kernel_deb).map_err(IoError::at("move", &deb))?;
        let apt = Apt::open(Suite::Trixie)?;
        let all = [&[ESSENTIAL], wanted].concat();
        let essential: BTreeSet<_> = apt.plan(&[ESSENTIAL])?.into_iter().map(|(name, _)| name).collect();
        let debs = apt.download_all(&all, dir.path())?;
        let mut packages = Vec::new();
        for (name, version) in apt.plan(&all)? {
            let deb = debs.iter().find(|deb| is_of(deb, &name)).ok_or_else(|| apt.absent(&name))?;
            let is_essential = essential.contains(&name);
            packages.push(SystemPackage { name, version, is_essential, deb: deb.clone() });
        }
        packages.sort_by(|one, other| one.name.cmp(&other.name));
        let lists = apt.lists()?;
        let (mirror, suite) = apt.source();
        Ok(Self {
            packages,
            kernel,
            kernel_deb,
            lists,
            mirror: mirror.to_owned(),
            suite,
            proxies: apt::proxies(),
            _dir: dir,
        })
    }
}

/// Returns whether a file belongs to a package, by its name `NAME_VERSION_ARCHITECTURE.deb`.
fn is_of(deb: &Path, package: &str) -> bool {
    let name = deb.file_name().unwrap_or_default().to_string_lossy();
    name.split_once('_').is_some_and(|(name, _)| name == package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_those_of_their_packages() {
        let deb = Path::new("/cache/libc6_2.41-12+deb13u5_riscv64.deb");
        assert!(is_of(deb, "libc6"));
        assert!(!is_of(deb, "libc") && !is_of(Path::new("/cache/libc6"), "libc6"));
    }
}
