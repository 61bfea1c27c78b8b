//! VM files: one virtual machine described in TOML. See `docs/vm-file.md`.

use crate::guest::program;
use crate::host::place;
use crate::host::size::{MIB, Size};
use crate::host::words::quoted_path;
use crate::host::written::explain;
use crate::machine::disk::DiskSpec;
use crate::machine::net::{self, Forward};
use crate::machine::share::ShareSpec;
use crate::vm::mode;
use crate::vm::root::Root;
use abi::bundle::{L2Tables, MmuMode};
use abi::mac::Mac;
use abi::vmspace::Way;
use miette::Diagnostic;
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most bytes of a VM file.
const MOST_BYTES: u64 = 1 << 20;
/// The least RAM a VM can have.
pub const LEAST_MEMORY: Size = Size(8 * MIB);

/// A VM as described by a VM file, or by the options of the command line. An absent key keeps its
/// default.
#[derive(Clone, Default, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmFile {
    /// The VM's name.
    pub name: Option<String>,
    /// The VM that has to end before this one starts.
    pub after: Option<String>,
    /// RAM.
    pub memory: Option<Size>,
    /// The most of it that is in memory at a time.
    pub limit: Option<Size>,
    /// RAM that is never paged out.
    pub reserve: Option<Size>,
    /// Gives the VM all of its RAM at the start, for as long as it lives.
    pub wired: Option<bool>,
    /// Number of vCPUs.
    pub vcpus: Option<u32>,
    /// The kernel to boot.
    pub kernel: Option<Kernel>,
    /// The first program of the vkernel, and its arguments.
    pub init: Option<Vec<String>>,
    /// The initial RAM disk.
    pub initrd: Option<Initrd>,
    /// A whole system as its root.
    pub root: Option<Root>,
    /// Files and directories that go into Gnomon's own initramfs.
    pub add: Option<Vec<PathBuf>>,
    /// Added to the kernel's command line.
    pub append: Option<String>,
    /// The console that Linux uses.
    pub console: Option<Console>,
    /// The mode of memory virtualization.
    #[serde(deserialize_with = "mode::read")]
    pub mmu: Option<MmuMode>,
    /// Lets the fast lane serve fences by address and switches of the address space.
    pub lane: Option<bool>,
    /// The extensions that the guest is told of.
    pub cpu: Option<Cpu>,
    /// Allows Svvptc to be advertised.
    pub svvptc: Option<bool>,
    /// Promises hardware updates of A and D bits.
    pub svadu: Option<bool>,
    /// Gives the VM the H extension, so that it may be a hypervisor.
    pub nested: Option<bool>,
    /// The tables by which its own guests run.
    pub l2: Option<L2Tables>,
    /// The way in which its kernel runs programs, if it uses the address-space calls.
    pub vmspace: Option<Way>,
    /// Bound of the memory for shadow tables.
    pub shadow: Option<Size>,
    /// Allows 2 MiB mappings.
    pub superpages: Option<bool>,
    /// Gives the VM whole GiB before it starts.
    pub gigapages: Option<bool>,
    /// The memory balloon.
    pub balloon: Option<Balloon>,
    /// Its disks.
    pub disks: Option<Vec<DiskSpec>>,
    /// Folders of the host that it reaches.
    pub shares: Option<Vec<ShareSpec>>,
    /// Adds a network card.
    pub net: Option<bool>,
    /// The network card's address.
    #[serde(deserialize_with = "net::mac")]
    pub mac: Option<Mac>,
    /// Adds a source of random bytes.
    pub rng: Option<bool>,
    /// Adds a power key.
    pub powerkey: Option<bool>,
    /// Lets `gnomon shell` and `gnomon cp` reach it.
    pub shell: Option<bool>,
    /// Names of ports by which programs of the host's speak with it.
    pub ports: Option<Vec<String>>,
    /// Ports of the host's network that lead to it.
    pub forward: Option<Vec<Forward>>,
    /// The snapshot that it is restored from.
    pub restore: Option<PathBuf>,
}

/// The memory balloon of a VM: `true`, `false`, or the size that goes into it at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged, expecting = "a balloon is true, false, or a size such as \"256M\"")]
pub enum Balloon {
    /// A balloon that is empty at the start, or none.
    Is(bool),
    /// A balloon that takes this size at the start.
    Takes(Size),
}

impl Balloon {
    /// The balloon's size at the start, if there is a balloon.
    #[must_use]
    pub fn target(self) -> Option<Size> {
        match self {
            Self::Is(is_there) => is_there.then_some(Size(0)),
            Self::Takes(size) => Some(size),
        }
    }
}

impl std::str::FromStr for Balloon {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(Self::Is(true)),
            "off" => Ok(Self::Is(false)),
            _ => text.parse().map(Self::Takes).map_err(|_| "use on, off, or a size such as 256M".into()),
        }
    }
}

/// The kernel to boot.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(from = "PathBuf")]
pub enum Kernel {
    /// Debian's kernel for riscv64.
    Debian,
    /// Gnomon's own small kernel, which runs Linux programs.
    Vkernel,
    /// Debian's U-Boot for S mode.
    UBoot,
    /// The system on its disks, by a boot loader that U-Boot starts.
    Disk,
    /// A file: a Linux Image, an ELF file or a raw binary.
    File(PathBuf),
}

impl From<PathBuf> for Kernel {
    fn from(path: PathBuf) -> Self {
        match path.to_str() {
            Some("debian") => Self::Debian,
            Some("vkernel") => Self::Vkernel,
            Some("u-boot") => Self::UBoot,
            Some("disk") => Self::Disk,
            _ => Self::File(path),
        }
    }
}

/// The initial RAM disk.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(from = "PathBuf")]
pub enum Initrd {
    /// Gnomon's own, made of Debian's busybox.
    Busybox,
    /// None.
    None,
    /// A file.
    File(PathBuf),
}

impl From<PathBuf> for Initrd {
    fn from(path: PathBuf) -> Self {
        match path.to_str() {
            Some("busybox") => Self::Busybox,
            Some("none") => Self::None,
            _ => Self::File(path),
        }
    }
}

/// The console that Linux uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, clap::ValueEnum)]
pub enum Console {
    /// The emulated 16550 UART.
    #[serde(rename = "ttyS0")]
    #[value(name = "ttyS0")]
    Uart,
    /// A virtio console: `hvc0`, too.
    #[serde(rename = "virtio")]
    #[value(name = "virtio")]
    Virtio,
    /// The SBI debug console.
    #[serde(rename = "hvc0")]
    #[value(name = "hvc0")]
    Sbi,
    /// Nothing is put on the command line: `append` is all of it.
    #[serde(rename = "none")]
    #[value(name = "none")]
    None,
}

/// The extensions that a guest is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Cpu {
    /// All that the mode and the harts offer.
    Host,
    /// Those that every mode offers.
    Portable,
}

/// A VM file that cannot be used.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum VmFileError {
    /// The file cannot be read.
    #[error("cannot read the VM file {path}: {source}")]
    #[diagnostic(help("give the path of a VM file, such as examples/linux.toml"))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file is not a text.
    #[error("{path} is not a VM file, which is a text in TOML: it is {what}")]
    #[diagnostic(help("{}", if option.is_empty() {
        "give the path of a VM file, such as examples/linux.toml".to_owned()
    } else {
        format!("give it by its option: {option} {}", quoted_path(path))
    }))]
    NoText {
        /// The file.
        path: PathBuf,
        /// The kind of the file.
        what: &'static str,
        /// The option that takes such a file; empty if there is none.
        option: &'static str,
    },
    /// The file is not a VM description.
    #[error("the VM file {path} is not valid: {message}")]
    #[diagnostic(help("correct that line; docs/vm-file.md lists the keys and their values"))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The parser's error, with its line.
        message: String,
    },
}

/// Reads a file up to [`MOST_BYTES`] and one more.
fn start_of(path: &Path) -> std::io::Result<Vec<u8>> {
    place::announce(path, place::End::Writer);
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the text of a file; otherwise, what the file is, and the option that takes such a file.
fn text_of(bytes: Vec<u8>) -> Result<String, (&'static str, &'static str)> {
    const KERNELS: [&[u8]; 5] = [b"\x7fELF", b"MZ", b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"];
    let has = |at: usize, magic: &[u8]| bytes.get(at..).is_some_and(|rest| rest.starts_with(magic));
    let is_kernel = KERNELS.iter().any(|magic| has(0, magic)) || has(0x30, b"RISCV\0\0\0") || has(0x38, b"RSC\x05");
    let what = if has(0, &abi::snapshot::file::MAGIC) {
        ("a snapshot", "--restore")
    } else if has(0, b"QFI\xfb") || has(0x1fe, b"\x55\xaa") || has(0x438, b"\x53\xef") {
        ("the image of a disk", "--disk")
    } else if has(0, b"070701") {
        ("an initrd", "--initrd")
    } else if is_kernel {
        ("a kernel or another program", "--kernel")
    } else if bytes.len() as u64 > MOST_BYTES {
        ("too large for one", "")
    } else {
        ("something else", "")
    };
    let is_short = bytes.len() as u64 <= MOST_BYTES;
    String::from_utf8(bytes).ok().filter(|text| is_short && !text.contains('\0')).ok_or(what)
}

impl VmFile {
    /// Reads a VM file. Paths in it are relative to the file; a VM without a name is called as
    /// the file is.
    ///
    /// # Errors
    /// [`VmFileError`], with the line in question.
    pub fn read(path: &Path) -> Result<Self, VmFileError> {
        let bytes = start_of(path).map_err(|source| VmFileError::Unreadable { path: path.to_owned(), source })?;
        let text =
            text_of(bytes).map_err(|(what, option)| VmFileError::NoText { path: path.to_owned(), what, option })?;
        let mut vm = Self::parse(&text).map_err(|message| VmFileError::Invalid { path: path.to_owned(), message })?;
        let dir = path.parent().unwrap_or(Path::new("."));
        if let Some(Kernel::File(file)) = &mut vm.kernel {
            *file = dir.join(&*file);
        }
        if let Some(Initrd::File(file)) = &mut vm.initrd {
            *file = dir.join(&*file);
        }
        if let Some(program) = vm.init.as_mut().and_then(|words| words.first_mut()) {
            let beside = dir.join(&*program);
            // Debian's busybox need not be a file.
            if program != program::BUSYBOX || beside.exists() {
                *program = beside.to_string_lossy().into_owned();
            }
        }
        vm.root.iter_mut().filter_map(|root| root.file.as_mut()).for_each(|file| *file = dir.join(&*file));
        vm.add.iter_mut().flatten().for_each(|file| *file = dir.join(&*file));
        vm.disks.iter_mut().flatten().for_each(|disk| disk.place_in(dir));
        vm.restore.iter_mut().for_each(|file| *file = dir.join(&*file));
        vm.shares.iter_mut().flatten().for_each(|share| share.dir = dir.join(&share.dir));
        if vm.name.is_none() {
            vm.name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        }
        Ok(vm)
    }

    /// Parses the text of a VM file, and keeps paths unchanged.
    ///
    /// # Errors
    /// The parser's error, with its line.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| explain(&error))
    }

    /// Returns whether the VM boots a whole system, to be worked in.
    #[must_use]
    pub fn has_system(&self) -> bool {
        self.root.is_some() || self.kernel == Some(Kernel::Disk)
    }

    /// This, with everything that `over` says in place of what stood here.
    #[must_use]
    pub fn overridden_by(self, over: &Self) -> Self {
        let over = over.clone();
        Self {
            name: over.name.or(self.name),
            after: over.after.or(self.after),
            memory: over.memory.or(self.memory),
            limit: over.limit.or(self.limit),
            reserve: over.reserve.or(self.reserve),
            wired: over.wired.or(self.wired),
            vcpus: over.vcpus.or(self.vcpus),
            kernel: over.kernel.or(self.kernel),
            init: over.init.or(self.init),
            initrd: over.initrd.or(self.initrd),
            root: over.root.or(self.root),
            add: over.add.or(self.add),
            append: over.append.or(self.append),
            console: over.console.or(self.console),
            mmu: over.mmu.or(self.mmu),
            lane: over.lane.or(self.lane),
            cpu: over.cpu.or(self.cpu),
            svvptc: over.svvptc.or(self.svvptc),
            svadu: over.svadu.or(self.svadu),
            nested: over.nested.or(self.nested),
            l2: over.l2.or(self.l2),
            vmspace: over.vmspace.or(self.vmspace),
            shadow: over.shadow.or(self.shadow),
            superpages: over.superpages.or(self.superpages),
            gigapages: over.gigapages.or(self.gigapages),
            balloon: over.balloon.or(self.balloon),
            disks: over.disks.or(self.disks),
            shares: over.shares.or(self.shares),
            net: over.net.or(self.net),
            mac: over.mac.or(self.mac),
            rng: over.rng.or(self.rng),
            powerkey: over.powerkey.or(self.powerkey),
            shell: over.shell.or(self.shell),
            ports: over.ports.or(self.ports),
            forward: over.forward.or(self.forward),
            restore: over.restore.or(self.restore),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<VmFile, VmFileError> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("box.toml");
        std::fs::write(&path, text).expect("a file");
        VmFile::read(&path)
    }

    #[test]
    fn a_whole_file() {
        let vm = read(
            "name = 'a'\nafter = 'b'\nmemory = '1G'\nvcpus = 4\nkernel = '/k'\ninitrd = 'sub/i'\nadd = ['f', '/g']\nappend = 'x'\n\
             console = 'hvc0'\nmmu = 'lazy'\nlane = false\ncpu = 'host'\nsvvptc = false\nsvadu = true\nnested = true\nl2 = 'collapsed'\nvmspace = 'soft'\nshadow = '8M'\n\
             superpages = false\ngigapages = true\nballoon = '64M'\n",
        )
        .expect("valid");
        assert_eq!((vm.name.as_deref(), vm.after.as_deref()), (Some("a"), Some("b")));
        assert_eq!(vm.memory, Some(Size(1 << 30)));
        assert_eq!(vm.kernel, Some(Kernel::File("/k".into())));
        assert!(matches!(vm.initrd, Some(Initrd::File(path)) if path.ends_with("sub/i") && path.is_absolute()));
        let added = vm.add.expect("what is added");
        assert!(added[0].ends_with("f") && added[0].is_absolute() && added[1] == Path::new("/g"), "{added:?}");
        assert_eq!((vm.console, vm.superpages, vm.gigapages), (Some(Console::Sbi), Some(false), Some(true)));
        assert_eq!((vm.mmu, vm.shadow), (Some(MmuMode::Lazy), Some(Size(8 << 20))));
        assert_eq!(vm.cpu, Some(Cpu::Host));
        assert_eq!((vm.lane, vm.svvptc, vm.svadu, vm.nested), (Some(false), Some(false), Some(true), Some(true)));
        assert_eq!((vm.l2, vm.vmspace), (Some(L2Tables::Collapsed), Some(Way::Soft)));
        assert_eq!(vm.balloon, Some(Balloon::Takes(Size(64 << 20))));
    }

    #[test]
    fn a_balloon_is_there_or_takes_something() {
        let target = |text: &str| VmFile::parse(text).map(|vm| vm.balloon.and_then(Balloon::target));
        assert_eq!(target(""), Ok(None));
        assert_eq!(target("balloon = false"), Ok(None));
        assert_eq!(target("balloon = true"), Ok(Some(Size(0))));
        assert_eq!(target("balloon = '8M'"), Ok(Some(Size(8 << 20))));
        assert!(target("balloon = 8").expect_err("no size").contains("true, false, or a size"));
        assert_eq!("on".parse(), Ok(Balloon::Is(true)));
        assert_eq!("8M".parse(), Ok(Balloon::Takes(Size(8 << 20))));
        assert!("yes".parse::<Balloon>().is_err());
    }

    #[test]
    fn disks_are_files_or_tables() {
        let text = "disks = ['a', { file = 'b', readonly = true, size = '1G' }, { file = '/c', format = 'qcow2' }]";
        let disks = read(text).expect("valid").disks.expect("disks");
        assert!(disks[0].file.ends_with("a") && disks[0].file.is_absolute() && !disks[0].readonly);
        assert!(disks[1].readonly && disks[1].size == Some(Size(1 << 30)));
        assert_eq!(
            (disks[2].file.as_path(), disks[2].format),
            (Path::new("/c"), Some(crate::machine::disk::Format::Qcow2))
        );
        assert!(read("disks = [{ file = 'b', readonyl = true }]").is_err());
    }

    #[test]
    fn an_empty_file_is_named_after_itself() {
        assert_eq!(read("").expect("valid"), VmFile { name: Some("box".into()), ..VmFile::default() });
    }

    #[test]
    fn errors_name_the_line() {
        let typo = "unknown key `read_only`: did you mean `readonly`?";
        for (text, names) in [
            ("memroy = '1G'", "unknown key `memroy`: did you mean `memory`?"),
            ("disks = [{ file = 'a', read_only = true }]", typo),
            ("disks = [{ file = 'a', backing = { fle = 'b' } }]", "did you mean `file`?"),
            ("disks = [{}]", "the key `file` is missing"),
            ("shares = [{ dir = 'a', read_only = true }]", typo),
            ("root = { system = 'debian', fil = 'b' }", "did you mean `file`?"),
            ("vcpus = 'two'", "this is the text \"two\", and has to be a whole number"),
            ("kernel = 5", "has to be a path in quotes"),
            ("disks = [5]", "has to be the path of a file, or a table"),
            ("console = 'hvc'", "did you mean `hvc0`?"),
            ("vcpus = 'two'", "line 1"),
            ("memory = '5X'", "5X"),
            ("a", "line 1"),
        ] {
            let message = read(text).expect_err("invalid").to_string();
            assert!(message.contains(names) && message.contains("box.toml"), "{message}");
        }
    }

    #[test]
    fn files_of_other_kinds_are_named() {
        let at = |offset: usize, magic: &[u8]| [vec![0; offset], magic.to_vec(), vec![0; 64]].concat();
        for (bytes, what, option) in [
            (at(0, b"\x7fELF\xff"), "a kernel", "--kernel"),
            (at(0x30, b"RISCV\0\0\0"), "a kernel", "--kernel"),
            (at(0, b"\x1f\x8b"), "a kernel", "--kernel"),
            (at(0, b"GNOMSNAP"), "a snapshot", "--restore"),
            (at(0, b"QFI\xfb"), "a disk", "--disk"),
            (at(0x438, b"\x53\xef"), "a disk", "--disk"),
            (at(0, b"070701"), "an initrd", "--initrd"),
            (vec![0xff; 9], "something else", "examples/linux.toml"),
            (vec![b'#'; 2 << 20], "too large", "examples/linux.toml"),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("file");
            std::fs::write(&path, bytes).expect("a file");
            let error = miette::Report::from(VmFile::read(&path).expect_err("it is none"));
            let help = error.help().expect("a remedy").to_string();
            assert!(error.to_string().contains(what) && help.contains(option), "{error}: {help}");
        }
    }

    #[test]
    fn options_win() {
        let file = VmFile { vcpus: Some(1), append: Some("a".into()), ..VmFile::default() };
        let over = VmFile { vcpus: Some(2), ..VmFile::default() };
        let both = file.overridden_by(&over);
        assert_eq!((both.vcpus, both.append.as_deref()), (Some(2), Some("a")));
    }
}
