//! Modules of the kernel that guests have by default.

use super::{DebianError, Package, Software, apt};
use crate::guest::deb::{self, DebError};
use crate::guest::drivers::{Needs, module_file, module_paths};
use crate::host::place::{CacheLock, IoError};
use crate::host::progress::Step;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules of one kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Modules {
    /// The kernel, from the same package.
    pub kernel: Package,
    /// The modules' files, in the order that was asked for: ELF files, compressed by xz.
    pub files: Vec<PathBuf>,
}

impl Modules {
    /// Provides the kernel and some modules of the same package, each by its name and its path in the kernel's sources: from the
    /// cache, else from the Debian archive. If that has another version by now, the kernel is fetched with them.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn provide(wanted: &[(&str, &str)]) -> Result<Self, DebianError> {
        let modules = Self::beside(Software::Kernel.provide()?, wanted);
        if modules.are_there() {
            return Ok(modules);
        }
        let _lock = CacheLock::take()?;
        // Another run may have fetched them while this one waited.
        let modules = Self::beside(Software::Kernel.cached()?.unwrap_or(modules.kernel), wanted);
        if modules.are_there() {
            return Ok(modules);
        }
        let KernelPackage { kernel, deb } = KernelPackage::fetch(Some(modules.kernel))?;
        let modules = Self::beside(kernel, wanted);
        modules.take(&deb, wanted)?;
        fs::remove_file(&deb).map_err(IoError::at("remove", &deb))?;
        Ok(modules)
    }

    fn beside(kernel: Package, wanted: &[(&str, &str)]) -> Self {
        let dir = dir_of(&kernel);
        let files = wanted.iter().map(|(name, _)| dir.join(module_file(name))).collect();
        Self { kernel, files }
    }

    fn are_there(&self) -> bool {
        self.files.iter().all(|file| file.is_file())
    }

    /// Takes those out of a package that the cache has not, for [`Modules::provide`] to find.
    pub(super) fn keep(from: &KernelPackage, wanted: &[(&str, &str)]) -> Result<(), DebianError> {
        let modules = Self::beside(from.kernel.clone(), wanted);
        if modules.are_there() { Ok(()) } else { modules.take(&from.deb, wanted) }
    }

    /// Takes them out of the package, and with them all drivers that a VM may need: what has needed the network once does not need it
    /// again.
    fn take(&self, package: &Path, wanted: &[(&str, &str)]) -> Result<(), DebianError> {
        let Package { name, version, .. } = &self.kernel;
        let _step = Step::spinner(&format!("unpacking modules of {name} {version}"));
        let all = [wanted, &Needs::ALL.drivers()].concat();
        let paths = module_paths(name, &all);
        let paths: BTreeMap<_, _> = paths.iter().map(|(path, name)| (path.as_str(), name.as_str())).collect();
        let missing = deb::extract_some(package, &paths, &dir_of(&self.kernel))?;
        match module_paths(name, wanted).into_iter().find(|(path, _)| missing.contains(path)) {
            Some((pattern, _)) => Err(DebError::Missing { path: package.to_owned(), pattern }.into()),
            None => Ok(()),
        }
    }
}

/// The kernel, and its whole package.
pub(super) struct KernelPackage {
    pub(super) kernel: Package,
    /// The file, which the caller removes.
    pub(super) deb: PathBuf,
}

impl KernelPackage {
    /// Fetches the package, and takes the kernel out of it unless that is `had`. The cache has to be locked.
    pub(super) fn fetch(had: Option<Package>) -> Result<Self, DebianError> {
        let apt = apt::Apt::open(apt::Suite::Trixie)?;
        let name = apt.dependency(Software::Kernel.package(), "linux-image-")?;
        let version = apt.version(&name)?;
        let deb = apt.download(&name, Some(&version))?;
        let kernel = match had.filter(|had| (&had.name, &had.version) == (&name, &version)) {
            Some(had) => had,
            None => Software::Kernel.unpack(name, version, &deb)?,
        };
        Ok(Self { kernel, deb })
    }
}

fn dir_of(kernel: &Package) -> PathBuf {
    kernel.file.parent().unwrap_or(Path::new(".")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A kernel's package with such modules, in a directory.
    fn package(dir: &Path, modules: &[(&str, &str)]) -> PathBuf {
        let tree = dir.join("tree");
        for (path, _) in module_paths(NAME, modules) {
            let file = tree.join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
            fs::write(file, "a module").expect("a file");
        }
        fs::create_dir_all(tree.join("DEBIAN")).expect("a folder");
        let control = format!("Package: {NAME}\nVersion: 1\nArchitecture: all\nMaintainer: none\nDescription: none\n");
        fs::write(tree.join("DEBIAN/control"), control).expect("a file");
        let deb = dir.join("kernel.deb");
        let built = Command::new("dpkg-deb").arg("--build").arg(&tree).arg(&deb).output().expect("dpkg-deb");
        assert!(built.status.success(), "{built:?}");
        deb
    }

    const NAME: &str = "linux-image-6.0-riscv64";

    #[test]
    fn one_driver_brings_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let all = Needs::ALL.drivers();
        let deb = package(dir.path(), &all);
        let kernel = || Package { name: NAME.into(), version: "1".into(), file: dir.path().join("kept/vmlinux") };
        fs::create_dir(dir.path().join("kept")).expect("a folder");
        let one = &all[..1];
        Modules::beside(kernel(), one).take(&deb, one).expect("taken");
        assert!(Modules::beside(kernel(), &all).are_there());
        // What is wanted beside the drivers has to be in the package; a driver that it lacks may be in the kernel itself.
        let other = [("kvm", "arch/riscv/kvm")];
        let error = Modules::beside(kernel(), &other).take(&deb, &other).expect_err("it is not there");
        assert!(error.to_string().contains("kvm.ko"), "{error}");
        let few = dir.path().join("few");
        fs::create_dir(&few).expect("a folder");
        Modules::beside(kernel(), one).take(&package(&few, one), one).expect("the others are not asked for");
    }
}
