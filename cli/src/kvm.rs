//! Linux KVM as a subject: a machine that runs Debian's newest kernel, which runs a guest by its KVM module
//! and Debian's QEMU. What Gnomon is measured against.
//!
//! Everything that the host needs lies in its initramfs, so that a run repeats exactly under
//! [`Clock::Instructions`]. The guest has one vCPU, and its UART is the machine's.

use crate::debian::{DebianError, HostKernel, Package, Program, Software, Suite};
use crate::initramfs::{Archive, InitramfsError};
use crate::place::IoError;
use crate::qemu::{Boot, Clock, HExtension, MachineSpec};
use crate::size::{MIB, Size};
use cpio::newc::ModeFileType;
use miette::Diagnostic;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The host's first process.
const INIT: &str = include_str!("kvm/init.sh");

/// The VMM: the package, and the program in it.
const VMM: (&str, &str) = ("qemu-system-riscv", "qemu-system-riscv64");

/// RAM of the host beside that of the guest and twice the initramfs, which is there packed and unpacked while the
/// host boots: its kernel, the VMM, and room in which huge pages are found.
const HOST_RAM: u64 = 384 * MIB;

/// The host's command line. Self-tests, keys, and timing of what the guest never uses cost three quarters of the
/// instructions of a boot; so does memory that is kept for devices cost some of those.
const APPEND: &str = "console=ttyS0 earlycon=sbi quiet panic=-1 norandmaps cma=0 cryptomgr.notests \
     initcall_blacklist=jent_mod_init,load_system_certificate_list,init_kprobe_trace,\
     check_unaligned_access_all_cpus,bpf_tcp_ca_kfunc_init,bpf_dummy_struct_ops_init";

/// Whether the host may use transparent huge pages for the guest's RAM.
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

/// Why there is no such machine.
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
    vmm: Program,
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
}

impl KvmHost {
    /// Provides the software: from the cache, else from the Debian archive.
    ///
    /// # Errors
    /// [`KvmError::Debian`].
    pub fn provide() -> Result<Self, KvmError> {
        Ok(Self {
            kernel: HostKernel::provide()?,
            vmm: Program::provide_from(Suite::Sid, VMM.0, VMM.1)?,
            busybox: Software::Busybox.provide()?,
        })
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

    /// The machine with a guest on it: one hart, counted time, no meter. The file is its initramfs, and has to
    /// live as long as the machine.
    ///
    /// # Errors
    /// [`KvmError`] if the guest cannot be read, or the initramfs not be written.
    pub fn machine(&self, guest: &KvmGuest, thp: Thp) -> Result<(MachineSpec, NamedTempFile), KvmError> {
        let archive = self.archive(guest, thp)?;
        let mut initrd = NamedTempFile::new().map_err(IoError::at("create", std::env::temp_dir()))?;
        initrd.write_all(&archive).map_err(IoError::at("write", initrd.path()))?;
        let spec = MachineSpec {
            boot: Boot::Bare {
                kernel: self.kernel.image.clone(),
                initrd: Some(initrd.path().to_owned()),
                append: APPEND.into(),
            },
            harts: 1,
            h: HExtension::Present,
            memory: memory(guest.memory, archive.len() as u64),
            clock: Clock::Instructions,
            meter: None,
            extra: Vec::new(),
        };
        Ok((spec, initrd))
    }

    fn archive(&self, guest: &KvmGuest, thp: Thp) -> Result<Vec<u8>, KvmError> {
        let read = |path: &Path| std::fs::read(path).map_err(IoError::at("read", path));
        let mut files = vec![
            ("init".to_owned(), INIT.as_bytes().to_vec()),
            ("bin/busybox".to_owned(), read(&self.busybox.file)?),
            ("lib/kvm.ko.xz".to_owned(), read(&self.kernel.module)?),
            ("kvm/thp".to_owned(), thp.name().into()),
            ("kvm/memory".to_owned(), format!("{}K", guest.memory.0 >> 10).into_bytes()),
            ("kvm/append".to_owned(), guest.append.clone().into_bytes()),
            ("kvm/kernel".to_owned(), read(&guest.kernel)?),
        ];
        if let Some(initrd) = &guest.initrd {
            files.push(("kvm/initrd".to_owned(), read(initrd)?));
        }
        for (path, file) in &self.vmm.files {
            files.push((path.clone(), read(file)?));
        }
        let mut archive = Archive::default();
        let mut add =
            |path: &str, kind, mode, data: &[u8]| archive.add(path, kind, mode, data).map_err(InitramfsError::from);
        for dir in ["bin", "dev", "kvm", "lib", "proc", "sys", "tmp"] {
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
