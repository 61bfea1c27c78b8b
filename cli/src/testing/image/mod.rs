//! Disk images as distributions have them: partitions, a boot loader, a kernel with its initrd, and a small system that asks who
//! logs in. They are made once, of Debian's packages, by a guest of Gnomon's own: nothing on this machine needs to be root, or to know of
//! partitions and file systems.

use crate::guest::debian::{Files, LEAN, Package, Software, Suite, Wanted};
use crate::guest::initramfs::Archive;
use crate::guest::modules::{self, Needs};
use crate::host::place::{self, IoError, cache, prune};
use crate::host::size::Size;
use crate::host::words::quoted;
use crate::host::words::sha256;
use crate::machine::disk::{DiskSpec, Format};
use crate::system::errand;
use crate::vm::file::VmFile;
use cpio::newc::ModeFileType;
use miette::miette;
use serde::Deserialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The script of the guest that makes an image.
const SCRIPT: &str = include_str!("make.sh");
/// The first process of an image's initrd.
const INIT: &str = include_str!("init.sh");
/// The applets that the script uses.
const APPLETS: [&str; 9] = ["cat", "findfs", "insmod", "mount", "sh", "sleep", "switch_root", "umount", "echo"];
/// The disk's size. Its file is sparse.
const SIZE: Size = Size(192 << 20);
/// RAM of the guest, which has all that goes onto the disk in it, twice.
const MEMORY: Size = Size(512 << 20);
/// The time for which an unused image is kept.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The tools that make one: packages, and programs in them.
const TOOLS: [(&str, &str); 3] =
    [("fdisk", "usr/sbin/sfdisk"), ("mtools", "usr/bin/mtools"), ("e2fsprogs", "usr/sbin/mke2fs")];

/// The boot loader of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loader {
    /// GRUB, started by EFI, as in Debian's own images.
    Grub,
    /// systemd's, likewise.
    SystemdBoot,
    /// U-Boot itself, by what `extlinux.conf` says.
    Extlinux,
}

impl Loader {
    const fn name(self) -> &'static str {
        match self {
            Self::Grub => "grub",
            Self::SystemdBoot => "systemd-boot",
            Self::Extlinux => "extlinux",
        }
    }

    /// The package that it comes in, and its file there.
    const fn package(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Grub => Some(("grub-efi-riscv64-unsigned", "usr/lib/grub/riscv64-efi/monolithic/grubriscv64.efi")),
            Self::SystemdBoot => Some(("systemd-boot-efi", "usr/lib/systemd/boot/efi/systemd-bootriscv64.efi")),
            Self::Extlinux => None,
        }
    }
}

/// The parts of an image.
struct Parts {
    kernel: Package,
    busybox: Package,
    drivers: Vec<(String, Vec<u8>)>,
    /// Tools and the boot loader.
    files: Vec<Files>,
}

impl Parts {
    fn provide(loader: Loader) -> miette::Result<Self> {
        // First of all: they may come with another version of the kernel.
        let drivers = modules::provide(Needs { disks: true, ..Needs::NONE })?;
        let tool = |(package, path)| Files::provide(Suite::Trixie, package, Wanted::Program(path));
        let mut files = TOOLS.into_iter().map(tool).collect::<Result<Vec<_>, _>>()?;
        if let Some((package, path)) = loader.package() {
            files.push(Files::provide(Suite::Trixie, package, Wanted::Data(&[path]))?);
        }
        Ok(Self { kernel: Software::Kernel.provide()?, busybox: Software::Busybox.provide()?, drivers, files })
    }

    /// The commands, with what they refer to.
    fn script(&self, loader: Loader) -> String {
        let release = self.kernel.name.trim_start_matches("linux-image-");
        let values =
            [("loader", loader.name()), ("release", release), ("append", &format!("console=ttyS0 quiet {LEAN}"))];
        let values: String = values.iter().map(|(name, value)| format!("{name}={}\n", quoted(value))).collect();
        values + SCRIPT
    }

    /// A digest of all that an image follows from.
    fn digest(&self, loader: Loader) -> String {
        let packages = [&self.kernel, &self.busybox].map(|package| (&package.name, &package.version));
        let packages = packages.into_iter().chain(self.files.iter().map(|files| (&files.name, &files.version)));
        let packages: Vec<_> = packages.map(|(name, version)| format!("{name} {version}")).collect();
        sha256([&self.script(loader), INIT, &SIZE.to_string(), &packages.join("\n")].join("\0").as_bytes())
    }

    fn initrd(&self) -> miette::Result<Vec<u8>> {
        let busybox = fs::read(&self.busybox.file).map_err(IoError::at("read", &self.busybox.file))?;
        let failed = |error| miette!("cannot make the initrd: {error}");
        let mut archive = Archive::default();
        let mut add = |path: &str, kind, mode, data: &[u8]| archive.add(path, kind, mode, data).map_err(failed);
        for dir in ["bin", "dev", "lib", "lib/modules", "proc", "root", "sys"] {
            add(dir, ModeFileType::Directory, 0o755, &[])?;
        }
        add("init", ModeFileType::Regular, 0o755, INIT.as_bytes())?;
        add("bin/busybox", ModeFileType::Regular, 0o755, &busybox)?;
        for applet in APPLETS {
            add(&format!("bin/{applet}"), ModeFileType::Symlink, 0o777, b"busybox")?;
        }
        let names: Vec<_> = self.drivers.iter().map(|(path, _)| path.as_str()).collect();
        add("modules", ModeFileType::Regular, 0o644, names.join("\n").as_bytes())?;
        for (path, driver) in &self.drivers {
            add(path, ModeFileType::Regular, 0o644, driver)?;
        }
        Ok(archive.finish()?)
    }

    /// Makes an image in a file that is there, and empty. The directory is for what the guest is given beside.
    fn make(&self, loader: Loader, image: &Path, scratch: &Path) -> miette::Result<()> {
        let initrd = scratch.join("initrd.img");
        fs::write(&initrd, self.initrd()?).map_err(IoError::at("write", &initrd))?;
        let file = File::options().write(true).open(image).and_then(|file| file.set_len(SIZE.0));
        file.map_err(IoError::at("enlarge", image))?;
        let mut add = vec![self.kernel.file.clone(), initrd];
        for (_, file) in self.files.iter().flat_map(|files| &files.files) {
            // They share libraries, by name.
            if !add.iter().any(|other| other.file_name() == file.file_name()) {
                add.push(file.clone());
            }
        }
        let vm = VmFile {
            name: Some("image".into()),
            memory: Some(MEMORY),
            add: Some(add),
            disks: Some(vec![DiskSpec { file: image.into(), format: Some(Format::Raw), ..DiskSpec::default() }]),
            ..VmFile::default()
        };
        match errand::run(vm, self.script(loader), |_| ())? {
            None => Ok(()),
            Some(said) => Err(miette!("cannot make an image with {}; the last that was said: {said}", loader.name())),
        }
    }
}

/// An image with that loader as a read-only disk: all runs share it.
pub(super) fn disk(loader: Loader) -> miette::Result<DiskSpec> {
    Ok(DiskSpec { file: provide(loader)?, format: Some(Format::Raw), ..DiskSpec::default() })
}

/// Provides it: from the cache, else it is made, which takes some seconds.
fn provide(loader: Loader) -> miette::Result<PathBuf> {
    let dir = cache("images")?;
    let parts = Parts::provide(loader)?;
    let path = dir.join(format!("{}-{}.img", loader.name(), &parts.digest(loader)[..16]));
    let lock = dir.join("lock");
    let lock = File::create(&lock).map_err(IoError::at("create", &lock))?;
    place::lock(&lock, "it makes an image for the tests").map_err(IoError::at("lock", &dir))?;
    if path.is_file() {
        let touch = || File::options().append(true).open(&path)?.set_modified(SystemTime::now());
        touch().map_err(IoError::at("touch", &path))?;
    } else {
        let scratch = tempfile::tempdir_in(&dir).map_err(IoError::at("make a directory in", &dir))?;
        let image = tempfile::NamedTempFile::new_in(scratch.path()).map_err(IoError::at("create a file in", &dir))?;
        parts.make(loader, image.path(), scratch.path())?;
        image.persist(&path).map_err(|error| IoError::at("write", &path)(error.error))?;
    }
    prune(&dir, KEPT);
    Ok(path)
}
