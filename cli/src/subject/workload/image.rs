//! Workloads, and how their initramfs is built.

use super::services::Service;
use crate::guest::debian::{Files, Software, Suite, Wanted};
use crate::guest::initramfs;
use crate::guest::modules::{self, Needs};
use crate::host::build;
use crate::host::place::{IoError, cache, prune, write_whole};
use crate::host::size::Size;
use crate::host::words::sha256;
use serde::Serialize;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The time for which an unused initramfs is kept.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The figure that the script prints last.
pub const DONE: &str = "done";

/// Added to the label of a region by programs that prepare for it: as in `programs/src/linux.rs`.
const PREPARING: u64 = 100;

/// The amount of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// The least that shows the effect.
    Quick,
    /// The most that is worth waiting for.
    Full,
}

/// The guest's use of transparent huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugePages {
    /// Wherever they fit.
    Always,
    /// Not at all.
    Never,
}

impl Scale {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }
}

/// A part of a run that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Region {
    /// The label at both of its markers.
    pub label: u64,
    /// Its name.
    pub name: &'static str,
    /// The number of operations in the region. If it is more than 1, the cost of each operation is what counts.
    pub operations: u64,
    /// The name of one operation.
    pub unit: &'static str,
}

/// A workload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Workload {
    /// The name.
    pub name: &'static str,
    /// The measured regions, in this order.
    pub regions: Vec<Region>,
    /// The initramfs: a file in the cache, named after its content.
    pub initrd: PathBuf,
    /// RAM that a guest needs for it.
    pub memory: Size,
    /// Debian's packages in it: name and version.
    pub versions: Vec<String>,
    /// The devices that it needs.
    pub devices: Devices,
}

/// Devices that a guest may wait for.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Devices {
    /// The size of its disk in bytes, if it has one. The disk is all zeroes when the guest starts.
    pub disk_bytes: Option<u64>,
    /// The services on its network, if it has one.
    pub services: Vec<Service>,
    /// Set if it has a share, tagged [`SHARE`], which is empty when the guest starts.
    pub has_share: bool,
}

/// The tag of a guest's share.
pub const SHARE: &str = "share";

impl Devices {
    /// Returns whether there is any device.
    #[must_use]
    pub const fn are_there(&self) -> bool {
        self.disk_bytes.is_some() || !self.services.is_empty() || self.has_share
    }
}

/// A workload in the making.
pub(super) struct Image {
    name: &'static str,
    script: String,
    regions: Vec<Region>,
    files: Vec<(String, Vec<u8>)>,
    versions: Vec<String>,
    devices: Devices,
}

impl Image {
    /// Of busybox and `mark`, so far.
    pub(super) fn new(name: &'static str, pages: HugePages) -> miette::Result<Self> {
        let setting = match pages {
            HugePages::Always => "always",
            HugePages::Never => "never",
        };
        // The kernel's threads have work left over from the boot, some 200 million instructions: they get the
        // hart for it, so that it is not in the first region. On an idle machine, time passes at once.
        // The vkernel has no such setting.
        let set = format!("[ ! -d /sys/kernel/mm ] || echo {setting} >/sys/kernel/mm/transparent_hugepage/enabled");
        let script = format!("set -e\n{set}\nsleep 2\n");
        let mut image = Self {
            name,
            script,
            regions: Vec::new(),
            files: Vec::new(),
            versions: Vec::new(),
            devices: Devices::default(),
        };
        image.own(&["mark"])?;
        Ok(image)
    }

    /// Adds programs of our own.
    pub(super) fn own(&mut self, names: &[&str]) -> miette::Result<()> {
        let built = build::programs()?;
        for name in names {
            let path = built.get(*name).ok_or_else(|| miette::miette!("there is no program `{name}`"))?;
            self.files.push((format!("bin/{name}"), read(path)?));
        }
        Ok(())
    }

    /// Adds what is wanted of a Debian package.
    pub(super) fn debian(&mut self, package: &str, wanted: Wanted<'_>) -> miette::Result<()> {
        let found = Files::provide(Suite::Trixie, package, wanted)?;
        self.version(&found.name, &found.version);
        for (path, file) in found.files {
            // Programs have libraries in common.
            if !self.files.iter().any(|(there, _)| *there == path) {
                self.files.push((path, read(&file)?));
            }
        }
        Ok(())
    }

    /// Adds a disk that is so large, and its drivers.
    pub(super) fn disk(&mut self, size: Size) -> miette::Result<()> {
        self.files.extend(modules::provide(Needs { disks: true, ..Needs::NONE })?);
        self.devices.disk_bytes = Some(size.0);
        Ok(())
    }

    /// Adds a network with such services, and its drivers.
    pub(super) fn net(&mut self, services: Vec<Service>) -> miette::Result<()> {
        self.files.extend(modules::provide(Needs { net: true, ..Needs::NONE })?);
        self.devices.services = services;
        self.line("ifconfig lo up\nifconfig eth0 10.0.2.15 netmask 255.255.255.0 up");
        Ok(())
    }

    /// Adds a share, which the initramfs mounts at its tag in `/mnt`, and its drivers.
    pub(super) fn share(&mut self) -> miette::Result<()> {
        self.files.extend(modules::provide(Needs { shares: true, ..Needs::NONE })?);
        self.devices.has_share = true;
        Ok(())
    }

    pub(super) fn version(&mut self, name: &str, version: &str) {
        let version = format!("{name} {version}");
        if !self.versions.contains(&version) {
            self.versions.push(version);
        }
    }

    pub(super) fn file(&mut self, path: &str, content: String) {
        self.files.push((path.into(), content.into_bytes()));
    }

    /// Returns the size of all files so far.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, content)| content.len() as u64).sum()
    }

    /// Adds a line to the script.
    pub(super) fn line(&mut self, line: &str) {
        self.script.push_str(line);
        self.script.push('\n');
    }

    /// Announces a region; returns its label.
    pub(super) fn region(&mut self, name: &'static str, operations: u64, unit: &'static str) -> u64 {
        let label = self.regions.len() as u64 + 1;
        self.regions.push(Region { label, name, operations, unit });
        label
    }

    /// Announces a region that a program prepares for, which is a region, too; returns its label.
    pub(super) fn prepared(&mut self, names: [&'static str; 2], operations: u64, unit: &'static str) -> u64 {
        let label = self.regions.len() as u64 + 1;
        let [preparing, name] = names;
        self.regions.push(Region { label: PREPARING + label, name: preparing, operations: 1, unit: "run" });
        self.regions.push(Region { label, name, operations, unit });
        label
    }

    /// Adds lines to the script that are a region of their own.
    pub(super) fn marked(&mut self, name: &'static str, operations: u64, unit: &'static str, lines: &str) {
        let label = self.region(name, operations, unit);
        let _ = write!(self.script, "mark begin {label}\n{lines}\nmark end {label}\n");
    }

    /// Adds a figure: the checksum of a file that was made.
    pub(super) fn checksum(&mut self, name: &str, file: &str) {
        self.line(&format!("echo gnomon-figure: {name} $((0x$(md5sum <{file} | cut -c1-15)))"));
    }

    /// Puts it into the cache.
    pub(super) fn finish(mut self, memory: Size) -> miette::Result<Workload> {
        self.line(&format!("echo gnomon-figure: {DONE} 1"));
        let busybox = Software::Busybox.provide()?;
        self.version(&busybox.name, &busybox.version);
        let files: Vec<_> = self.files.iter().map(|(path, bytes)| (path.as_str(), bytes.as_slice())).collect();
        let archive = initramfs::build_with(&read(&busybox.file)?, Some(&self.script), &files)?;
        let initrd = kept(self.name, &archive)?;
        let Self { name, regions, versions, devices, .. } = self;
        Ok(Workload { name, regions, initrd, memory, versions, devices })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, IoError> {
    fs::read(path).map_err(IoError::at("read", path))
}

/// Keeps an initramfs in the cache, under a name that says what is in it, and lets go of old ones.
fn kept(name: &str, archive: &[u8]) -> Result<PathBuf, IoError> {
    let dir = cache("workloads")?;
    let path = dir.join(format!("{name}-{}.cpio", &sha256(archive)[..16]));
    let is_there = fs::metadata(&path).is_ok_and(|file| file.len() == archive.len() as u64);
    if is_there {
        let touch = || File::options().append(true).open(&path)?.set_modified(SystemTime::now());
        touch().map_err(IoError::at("touch", &path))?;
    } else {
        write_whole(&path, archive)?;
    }
    prune(&dir, KEPT);
    Ok(path)
}
