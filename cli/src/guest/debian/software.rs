//! Single files of packages (Debian's kernel, busybox, U-Boot), and the cache's records of packages.

use super::apt::{Apt, AptError, Suite};
use crate::guest::deb::{self, DebError};
use crate::guest::drivers::{Needs, module_paths};
use crate::host::place::{CacheLock, IoError, cache, write_whole};
use crate::host::progress::Step;
use miette::Diagnostic;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// Software that a guest may need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Software {
    /// Debian's kernel.
    Kernel,
    /// A static busybox.
    Busybox,
    /// U-Boot for S mode on the `virt` board.
    UBoot,
}

/// A package, unpacked as far as it is needed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Package {
    /// The package's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The file that was wanted from it.
    pub file: PathBuf,
}

/// The reason why software could not be provided.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum DebianError {
    /// apt could not fetch it.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Apt(#[from] AptError),
    /// The package could not be unpacked.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Deb(#[from] DebError),
    /// The cache could not be used.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
}

/// The path of the cache's record of a package.
pub(super) fn record_of(suite: Suite, package: &str) -> Result<PathBuf, IoError> {
    Ok(cache("guest")?.join(format!("{package}{}.json", suite.suffix())))
}

/// Reads the cache's record of a package.
pub(super) fn cached<Record: DeserializeOwned>(suite: Suite, package: &str) -> Result<Option<Record>, IoError> {
    let Ok(text) = fs::read_to_string(record_of(suite, package)?) else { return Ok(None) };
    // An unreadable record is as good as none: the package is fetched again.
    Ok(serde_json::from_str(&text).ok())
}

/// Words of a command line by which Debian's kernel leaves out tests and probes of itself that are half of a boot.
pub const LEAN: &str = "cryptomgr.notests initcall_blacklist=jent_mod_init,load_system_certificate_list,init_kprobe_trace,\
    check_unaligned_access_all_cpus,bpf_tcp_ca_kfunc_init,bpf_dummy_struct_ops_init";

impl Software {
    /// The package as Debian calls it; a metapackage stands for what it depends on.
    pub(super) const fn package(self) -> &'static str {
        match self {
            Self::Kernel => "linux-image-riscv64",
            Self::Busybox => "busybox-static",
            Self::UBoot => "u-boot-qemu",
        }
    }

    /// The start of the wanted file's path, and the name it is kept under.
    const fn wanted(self) -> (&'static str, &'static str) {
        match self {
            Self::Kernel => ("boot/vmlinux-", "vmlinux"),
            Self::Busybox => ("usr/bin/busybox", "busybox"),
            Self::UBoot => ("usr/lib/u-boot/qemu-riscv64_smode/uboot.elf", "uboot.elf"),
        }
    }

    /// Provides it: from the cache, else from the Debian archive.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn provide(self) -> Result<Package, DebianError> {
        if let Some(package) = self.cached()? {
            return Ok(package);
        }
        let _lock = CacheLock::take()?;
        // Another run may have fetched it while this one waited.
        match self.cached()? {
            Some(package) => Ok(package),
            None => self.fetch(),
        }
    }

    /// Returns the cached package, if its file is there.
    pub(super) fn cached(self) -> Result<Option<Package>, IoError> {
        let Some(mut package) = cached::<Package>(Suite::Trixie, self.package())? else { return Ok(None) };
        package.file = cache("guest")?.join(package.file);
        Ok(package.file.is_file().then_some(package))
    }

    fn fetch(self) -> Result<Package, DebianError> {
        let apt = Apt::open(Suite::Trixie)?;
        let name = match self {
            Self::Kernel => apt.dependency(self.package(), "linux-image-")?,
            Self::Busybox | Self::UBoot => self.package().to_owned(),
        };
        let version = apt.version(&name)?;
        let deb = apt.download(&name, Some(&version))?;
        let package = self.unpack(name, version, &deb)?;
        // What it held is in the cache now.
        fs::remove_file(&deb).map_err(IoError::at("remove", &deb))?;
        Ok(package)
    }

    /// Takes what is wanted out of a package, and keeps it. With a kernel come its drivers, as far as it has them: a later start that
    /// needs them needs no network.
    pub(super) fn unpack(self, name: String, version: String, deb: &Path) -> Result<Package, DebianError> {
        let (path, kept_as) = self.wanted();
        let relative = Path::new(&format!("{name}_{version}").replace([':', '/'], "_")).to_owned();
        let dir = cache("guest")?.join(&relative);
        fs::create_dir_all(&dir).map_err(IoError::at("create", &dir))?;
        {
            let _step = Step::spinner(&format!("unpacking {name} {version}"));
            let drivers = if self == Self::Kernel { module_paths(&name, &Needs::ALL.drivers()) } else { Vec::new() };
            let drivers = drivers.iter().map(|(path, kept_as)| (path.as_str(), kept_as.as_str()));
            let wanted = std::iter::once((path, kept_as)).chain(drivers).collect();
            if deb::extract_some(deb, &wanted, &dir)?.iter().any(|missing| missing == path) {
                Err(DebError::Missing { path: deb.to_owned(), pattern: path.into() })?;
            }
        }
        let mut package = Package { name, version, file: relative.join(kept_as) };
        let record = serde_json::to_vec_pretty(&package).unwrap_or_default();
        write_whole(&record_of(Suite::Trixie, self.package())?, &record)?;
        package.file = dir.join(kept_as);
        Ok(package)
    }
}
