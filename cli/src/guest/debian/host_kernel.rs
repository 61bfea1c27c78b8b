//! Debian's kernels with their KVM module, and drivers of devices: the host of Linux's guests.

use super::packages::Packages;
use super::{DebianError, Modules, Suite, cached, record_of};
use crate::host::place::{CacheLock, IoError, cache, write_whole};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// The metapackage.
const PACKAGE: &str = "linux-image-riscv64";
const SUITE: Suite = Suite::Sid;
/// The ends of the wanted files' paths, and the names they are kept under.
const IMAGE: (&str, &str) = ("/vmlinuz", "vmlinuz");
const MODULE: (&str, &str) = ("/kvm/kvm.ko.xz", "kvm.ko.xz");
/// In the order in which they are loaded: what all devices need, the disk's, the network card's, and those of a bridge from there to a
/// program.
const DRIVERS: [(&str, &str); 9] = [
    ("/drivers/virtio/virtio_mmio.ko.xz", "virtio_mmio.ko.xz"),
    ("/drivers/block/virtio_blk.ko.xz", "virtio_blk.ko.xz"),
    ("/net/core/failover.ko.xz", "failover.ko.xz"),
    ("/drivers/net/net_failover.ko.xz", "net_failover.ko.xz"),
    ("/drivers/net/virtio_net.ko.xz", "virtio_net.ko.xz"),
    ("/net/llc/llc.ko.xz", "llc.ko.xz"),
    ("/net/802/stp.ko.xz", "stp.ko.xz"),
    ("/net/bridge/bridge.ko.xz", "bridge.ko.xz"),
    ("/drivers/net/tun.ko.xz", "tun.ko.xz"),
];

/// A kernel that is a host to others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostKernel {
    /// The package's name, which has the kernel's release in it.
    pub name: String,
    /// The package's version.
    pub version: String,
    /// The kernel: a Linux Image.
    pub image: PathBuf,
    /// Its KVM module, compressed by xz. It needs no other module.
    pub module: PathBuf,
    /// The modules by which it has a disk and a network, in the order in which they are loaded.
    #[serde(default)]
    pub drivers: Vec<PathBuf>,
}

impl HostKernel {
    /// Provides the newest: from the cache, else from the Debian archive.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn newest() -> Result<Self, DebianError> {
        if let Some(kernel) = Self::cached()? {
            return Ok(kernel);
        }
        let _lock = CacheLock::take()?;
        // Another run may have fetched it while this one waited.
        match Self::cached()? {
            Some(kernel) => Ok(kernel),
            None => Self::fetch(),
        }
    }

    /// Provides the kernel that guests boot, without drivers: from the cache, else from the Debian archive.
    ///
    /// # Errors
    /// [`DebianError`].
    pub fn of_guests() -> Result<Self, DebianError> {
        let Modules { kernel, files } = Modules::provide(&[("kvm", "arch/riscv/kvm")])?;
        let [module] = <[PathBuf; 1]>::try_from(files).unwrap_or_default();
        Ok(Self { name: kernel.name, version: kernel.version, image: kernel.file, module, drivers: vec![] })
    }

    fn cached() -> Result<Option<Self>, IoError> {
        let Some(kernel) = cached::<Self>(SUITE, PACKAGE)? else { return Ok(None) };
        let kernel = kernel.located(&cache("guest")?);
        let is_there = kernel.drivers.len() == DRIVERS.len() && kernel.files().all(Path::is_file);
        Ok(is_there.then_some(kernel))
    }

    /// With files under `dir`, to which they were relative.
    fn located(self, dir: &Path) -> Self {
        let drivers = self.drivers.iter().map(|file| dir.join(file)).collect();
        Self { image: dir.join(self.image), module: dir.join(self.module), drivers, ..self }
    }

    /// All its files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.image, &self.module].into_iter().chain(&self.drivers).map(PathBuf::as_path)
    }

    fn fetch() -> Result<Self, DebianError> {
        let mut packages = Packages::of(SUITE)?;
        let name = packages.apt.dependency(PACKAGE, "linux-image-")?;
        let version = packages.apt.version(&name)?;
        let relative = PathBuf::from(format!("{name}_{version}{}", SUITE.suffix()).replace([':', '/'], "_"));
        let dir = cache("guest")?.join(&relative);
        fs::create_dir_all(&dir).map_err(IoError::at("create", &dir))?;
        // The image's package has them, or depends on those that do; of those only its own parts count,
        // which end like it.
        let release = name.trim_start_matches("linux-image-");
        let mut parts = packages.apt.dependencies(&name)?;
        parts.retain(|part| part.ends_with(release));
        parts.insert(0, name.clone());
        let mut take = |(end, kept_as)| packages.take_from_any(&parts, end, kept_as, &dir);
        let result = [IMAGE, MODULE].into_iter().chain(DRIVERS).try_for_each(&mut take);
        packages.discard()?;
        result?;
        let drivers = DRIVERS.map(|(_, kept_as)| relative.join(kept_as)).to_vec();
        let kernel = Self { name, version, image: relative.join(IMAGE.1), module: relative.join(MODULE.1), drivers };
        write_whole(&record_of(SUITE, PACKAGE)?, &serde_json::to_vec_pretty(&kernel).unwrap_or_default())?;
        Ok(kernel.located(&cache("guest")?))
    }
}
