//! Linux KVM as a subject: a machine that runs Debian's newest kernel, which runs a guest by its KVM module
//! and Debian's QEMU. What Gnomon is measured against.
//!
//! Everything that the host needs lies in its initramfs, so that a run repeats exactly under
//! [`Clock::Instructions`]. The guest's UART is the machine's. See docs/kvm.md.

use crate::guest::debian::{DebianError, Files, HostKernel, LEAN, Package, Software, Suite, Wanted};
use crate::guest::initramfs::{Archive, InitramfsError};
use crate::host::place::{IoError, Unnamed};
use crate::host::sandbox;
use crate::host::size::{MIB, Size};
use crate::machine::board::{Clock, HExtension};
use crate::machine::disk::Disk;
use crate::machine::net::Network;
use crate::machine::qemu::{Boot, MachineSpec};
use crate::vm::file::{Initrd, Kernel, VmFile};
use cpio::newc::ModeFileType;
use miette::{Diagnostic, miette};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The host's first process.
const INIT: &str = include_str!("kvm/init.sh");

/// The script that the VMM runs when it has created the guest's network interface.
const BRIDGE: &str = include_str!("kvm/bridge.sh");

/// The VMM: the package, and the program in it.
const VMM: (&str, &str) = ("qemu-system-riscv", "qemu-system-riscv64");

/// The folder of the initramfs with the drivers of the host's disk and network card, if it has such devices.
const DRIVERS: &str = "lib/drivers/";

/// RAM of the host beside that of the guest and twice the initramfs, which is there packed and unpacked while the
/// host boots: its kernel, the VMM, and room in which huge pages are found.
const HOST_RAM: u64 = 384 * MIB;

/// The host's command line, beside [`LEAN`]. Memory that is kept for devices would not be the guest's.
const APPEND: &str = "console=ttyS0 earlycon=sbi quiet panic=-1 norandmaps cma=0";

/// The harts. KVM's G-stage has as many levels as they can: without Sv48 three, as Gnomon's, and as the papers'. With
/// Sscofpmf KVM has counters for its guests: without them, Linux in a guest of QEMU's leaves `scounteren` at what QEMU resets it to,
/// 0, and programs there are killed when they read the time.
const CPU: [&str; 2] = ["-cpu", "rv64,sv48=off,sscofpmf=on"];

/// The host's use of transparent huge pages for the guest's RAM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Thp {
    /// Wherever there is one, and it makes some if there is none.
    Always,
    /// Not at all.
    Never,
}

impl Thp {
    /// The name, as in `/sys/kernel/mm/transparent_hugepage`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// A kernel with KVM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub enum KvmKernel {
    /// Debian's newest.
    Newest,
    /// The one that guests boot. Its host has no devices for guests.
    OfGuests,
}

/// The reason why there is no such machine.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum KvmError {
    /// Software could not be provided.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Debian(#[from] DebianError),
    /// The initramfs could not be made.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Initramfs(#[from] InitramfsError),
    /// A file could not be read or written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
}

/// The host's software.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvmHost {
    kernel: HostKernel,
    vmm: Files,
    busybox: Package,
}

/// A guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KvmGuest {
    /// The kernel: a Linux Image, or an ELF file.
    pub kernel: PathBuf,
    /// The initrd.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line. The UART is `ttyS0`.
    pub append: String,
    /// RAM.
    pub memory: Size,
    /// vCPUs, all on the one hart.
    pub vcpus: u32,
    /// A disk: the host's, which its VMM passes on.
    pub disk: Option<Disk>,
    /// A network: the host's, whose card its VMM bridges to the guest's.
    pub net: Option<Network>,
}

impl KvmGuest {
    /// Returns whether the guest has a device that it may wait for.
    const fn has_devices(&self) -> bool {
        self.disk.is_some() || self.net.is_some()
    }
}

impl KvmHost {
    /// Provides the software: from the cache, else from the Debian archive.
    ///
    /// # Errors
    /// [`KvmError::Debian`].
    pub fn provide(kernel: KvmKernel) -> Result<Self, KvmError> {
        let kernel = match kernel {
            KvmKernel::Newest => HostKernel::newest()?,
            KvmKernel::OfGuests => HostKernel::of_guests()?,
        };
        Ok(Self {
            kernel,
            vmm: Files::provide(Suite::Sid, VMM.0, Wanted::Program(&format!("usr/bin/{}", VMM.1)))?,
            busybox: Software::Busybox.provide()?,
        })
    }

    /// The host's kernel: Debian's newest, which may be a guest's, too.
    #[must_use]
    pub fn kernel(&self) -> &Path {
        &self.kernel.image
    }

    /// Packages and their versions.
    #[must_use]
    pub fn versions(&self) -> Vec<String> {
        let all = [
            (&self.kernel.name, &self.kernel.version),
            (&self.vmm.name, &self.vmm.version),
            (&self.busybox.name, &self.busybox.version),
        ];
        all.map(|(name, version)| format!("{name} {version}")).to_vec()
    }

    /// All files that the host consists of.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let others = std::iter::once(&self.busybox.file).chain(self.vmm.files.iter().map(|(_, file)| file));
        self.kernel.files().chain(others.map(PathBuf::as_path))
    }

    /// The machine with a guest on it: one hart, counted time, no meter. The file is its initramfs, and has to
    /// live as long as the machine.
    ///
    /// # Errors
    /// [`KvmError`] if the guest cannot be read, or the initramfs not be written.
    pub fn machine(&self, guest: &KvmGuest, thp: Thp) -> Result<(MachineSpec, Unnamed), KvmError> {
        let archive = self.archive(guest, thp)?;
        let mut initrd = Unnamed::new()?;
        initrd.as_file_mut().write_all(&archive).map_err(IoError::at("write", initrd.path()))?;
        let spec = MachineSpec {
            boot: Boot::Bare {
                kernel: self.kernel.image.clone(),
                initrd: Some(initrd.path().to_owned()),
                append: format!("{APPEND} {LEAN}"),
            },
            harts: 1,
            h: HExtension::Present,
            memory: memory(guest.memory, archive.len() as u64),
            clock: Clock::counted(guest.has_devices()),
            meter: None,
            swap: None,
            disks: guest.disk.iter().cloned().collect(),
            shares: Vec::new(),
            sandbox: sandbox::is_possible(),
            rng: false,
            net: guest.net.clone(),
            control: None,
            extra: CPU.map(Into::into).to_vec(),
            files: Vec::new(),
        };
        Ok((spec, initrd))
    }

    /// The host as a VM of Gnomon's, which is a hypervisor: its boot and its memory. The guest has no devices of the machine's. The file has to live
    /// as long as the VM is prepared.
    ///
    /// # Errors
    /// As for [`KvmHost::machine`].
    pub fn vm(&self, guest: &KvmGuest) -> miette::Result<(VmFile, Unnamed)> {
        let (machine, file) = self.machine(guest, Thp::Never)?;
        let Boot::Bare { kernel, initrd, append } = machine.boot else {
            return Err(miette!("the host of KVM boots by itself"));
        };
        let vm = VmFile {
            memory: Some(machine.memory),
            kernel: Some(Kernel::File(kernel)),
            initrd: initrd.map(Initrd::File),
            append: Some(append),
            nested: Some(true),
            ..VmFile::default()
        };
        Ok((vm, file))
    }

    fn archive(&self, guest: &KvmGuest, thp: Thp) -> Result<Vec<u8>, KvmError> {
        let read = |path: &Path| std::fs::read(path).map_err(IoError::at("read", path));
        let mut files = vec![
            ("init".to_owned(), INIT.as_bytes().to_vec()),
            ("bin/busybox".to_owned(), read(&self.busybox.file)?),
            ("lib/kvm.ko.xz".to_owned(), read(&self.kernel.module)?),
            ("kvm/thp".to_owned(), thp.name().into()),
            ("kvm/memory".to_owned(), format!("{}K", guest.memory.0 >> 10).into_bytes()),
            ("kvm/vcpus".to_owned(), guest.vcpus.to_string().into_bytes()),
            ("kvm/append".to_owned(), guest.append.clone().into_bytes()),
            ("kvm/kernel".to_owned(), read(&guest.kernel)?),
            ("kvm/bridge".to_owned(), BRIDGE.as_bytes().to_vec()),
        ];
        if let Some(initrd) = &guest.initrd {
            files.push(("kvm/initrd".to_owned(), read(initrd)?));
        }
        if guest.has_devices() {
            let mut order = String::new();
            for file in &self.kernel.drivers {
                let path = format!("{DRIVERS}{}", file.file_name().unwrap_or_default().to_string_lossy());
                order += &format!("/{path}\n");
                files.push((path, read(file)?));
            }
            files.push(("kvm/drivers".to_owned(), order.into_bytes()));
        }
        for (path, file) in &self.vmm.files {
            files.push((path.clone(), read(file)?));
        }
        let mut archive = Archive::default();
        let mut add =
            |path: &str, kind, mode, data: &[u8]| archive.add(path, kind, mode, data).map_err(InitramfsError::from);
        for dir in ["bin", "dev", "kvm", "lib", "lib/drivers", "proc", "sys", "tmp"] {
            add(dir, ModeFileType::Directory, 0o755, &[])?;
        }
        for (path, content) in &files {
            add(path, ModeFileType::Regular, 0o755, content)?;
        }
        Ok(archive.finish()?)
    }
}

/// The host's RAM for a guest's and an initramfs.
fn memory(guest: Size, archive_bytes: u64) -> Size {
    let sum = guest.0.saturating_add(archive_bytes.saturating_mul(2)).saturating_add(HOST_RAM);
    Size(sum.checked_next_multiple_of(64 * MIB).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::initramfs::tests::entries;
    use crate::machine::disk::Use;

    /// A host and a guest of files that hold their own names.
    fn fakes(dir: &Path) -> (KvmHost, KvmGuest) {
        let file = |name: &str| {
            let path = dir.join(name);
            std::fs::write(&path, name).expect("a file");
            path
        };
        let text = |text: &str| text.to_owned();
        let drivers = vec![file("virtio_mmio.ko.xz"), file("virtio_blk.ko.xz")];
        let (image, module) = (file("vmlinuz"), file("kvm.ko.xz"));
        let kernel = HostKernel { name: text("linux-7"), version: text("7"), image, module, drivers };
        let files = vec![(format!("bin/{}", VMM.1), file("vmm")), (text("lib/libc.so.6"), file("libc"))];
        let vmm = Files { name: text(VMM.0), version: text("11"), files };
        let busybox = Package { name: text("busybox-static"), version: text("1"), file: file("busybox") };
        let (memory, append) = (Size(256 * MIB), text("a  'b' \"$c\""));
        let guest = KvmGuest {
            kernel: file("guest"),
            initrd: Some(file("initrd")),
            append,
            memory,
            vcpus: 2,
            disk: None,
            net: None,
        };
        (KvmHost { kernel, vmm, busybox }, guest)
    }

    #[test]
    fn the_initramfs_holds_what_its_script_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let (host, guest) = fakes(dir.path());
        let disk = Some(Disk::raw("disk".into(), Use::Write));
        let guest = KvmGuest { disk, ..guest };
        let files = entries(&host.archive(&guest, Thp::Never).expect("an archive"));
        let find = |path: &str| files.iter().find(|file| file.0 == path).map(|file| file.2.as_slice());
        let words = INIT.split(|c: char| !c.is_ascii_alphanumeric() && !"/._".contains(c));
        for path in words.filter(|word| word.starts_with("/kvm/") || word.starts_with("/lib/")) {
            assert!(find(&path[1..]).is_some(), "{path}");
        }
        assert!(INIT.contains(VMM.1));
        let drivers = std::str::from_utf8(find("kvm/drivers").expect("a list")).expect("text");
        assert_eq!(drivers, "/lib/drivers/virtio_mmio.ko.xz\n/lib/drivers/virtio_blk.ko.xz\n");
        assert!(drivers.lines().all(|driver| find(&driver[1..]).is_some()));
        assert_eq!(find("kvm/append"), Some(guest.append.as_bytes()));
        assert_eq!(find("kvm/thp"), Some(&b"never"[..]));
        assert_eq!(find("kvm/memory"), Some(&b"262144K"[..]));
        assert_eq!(find("kvm/vcpus"), Some(&b"2"[..]));
        assert_eq!(find("lib/libc.so.6"), Some(&b"libc"[..]));
        let without = KvmGuest { initrd: None, disk: None, ..guest };
        let files = entries(&host.archive(&without, Thp::Always).expect("an archive"));
        assert!(files.iter().all(|(path, ..)| path != "kvm/initrd" && !path.contains("virtio")));
    }

    #[test]
    fn the_machine_has_h_and_room() {
        let dir = tempfile::tempdir().expect("a directory");
        let (host, guest) = fakes(dir.path());
        let (machine, _initramfs) = host.machine(&guest, Thp::Always).expect("a machine");
        assert_eq!(
            (machine.h, machine.clock, machine.memory),
            (HExtension::Present, Clock::Instructions, Size(704 * MIB))
        );
        let disk = Disk::raw("disk".into(), Use::Write);
        let (machine, _initramfs) =
            host.machine(&KvmGuest { disk: Some(disk.clone()), ..guest }, Thp::Always).expect("a machine");
        assert_eq!((machine.clock, machine.disks), (Clock::InstructionsAndWaits, vec![disk]));
        assert_eq!(memory(Size(u64::MAX), 1), Size(u64::MAX));
        assert_eq!(host.versions(), ["linux-7 7", "qemu-system-riscv 11", "busybox-static 1"]);
    }

    #[test]
    fn a_guest_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let (host, guest) = fakes(dir.path());
        let absent = KvmGuest { kernel: dir.path().join("absent"), ..guest };
        assert!(host.machine(&absent, Thp::Always).unwrap_err().to_string().contains("absent"));
    }
}
