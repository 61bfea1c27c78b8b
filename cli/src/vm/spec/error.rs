//! Errors in the description of VMs.

use crate::host::size::Size;
use crate::machine::net::NetError;
use crate::machine::port::PortError;
use crate::vm::file::LEAST_MEMORY;
use abi::bundle::{MAX_VCPUS, MAX_VMS, MmuMode};
use miette::Diagnostic;

/// A description that no VM can be made from.
#[derive(Clone, PartialEq, Debug, thiserror::Error, Diagnostic)]
pub enum SpecError {
    /// The name has other characters than it may.
    #[error("`{0}` cannot be the name of a VM")]
    #[diagnostic(help("use 1 to 32 letters, digits, `-`, `_` and `.`: set `name` in the VM file or give --name"))]
    Name(String),
    /// Two VMs have the same name.
    #[error("two VMs are called `{0}`")]
    #[diagnostic(help("give each VM file its own `name`"))]
    Duplicate(String),
    /// The VM waits for one that does not come before it.
    #[error("VM `{vm}` starts after `{after}`, but no VM before it has that name")]
    #[diagnostic(help("give the VM files in the order in which they start, and check the `name` in each"))]
    After {
        /// The VM.
        vm: String,
        /// The requested value.
        after: String,
    },
    /// One name was given for several VMs.
    #[error("--name was given with {0} VM files")]
    #[diagnostic(help("--name is for a single VM; set `name` in each VM file instead"))]
    NameForMany(usize),
    /// Its kernel is to run programs in a way that the mode does not have.
    #[error("VM `{vm}` has vmspace = {way}, which mmu = {mode} does not have")]
    #[diagnostic(help(
        "nested takes mmu = two-stage; soft takes lazy, unsync, shadow or steered; direct is in every mode"
    ))]
    Vmspace {
        /// The VM.
        vm: String,
        /// The way.
        way: &'static str,
        /// The mode.
        mode: MmuMode,
    },
    /// Tables for guests of a VM that is offered no hypervisor extension.
    #[error("VM `{0}` has `l2`, and is to run no guests of its own")]
    #[diagnostic(help(
        "leave `l2` out, or let it be a hypervisor: set `nested = true` in the VM file or give --nested"
    ))]
    NoHypervisor(String),
    /// A VM is promised an extension that not every mode offers, and is to be portable.
    #[error("VM `{vm}` is portable, and is promised an extension that not every mode offers: {key}")]
    #[diagnostic(help("leave out one of the two: `cpu` (--cpu), or `{key}` (--{key})"))]
    NotPortable {
        /// The VM.
        vm: String,
        /// The extension's key.
        key: &'static str,
    },
    /// More VMs than a bundle can hold.
    #[error("{0} VMs are too many: the limit is {MAX_VMS}")]
    #[diagnostic(help("give fewer VM files"))]
    TooMany(usize),
    /// A number of vCPUs that no VM can have.
    #[error("VM `{vm}` cannot have {vcpus} vCPUs")]
    #[diagnostic(help("choose 1 to {MAX_VCPUS}: set `vcpus` in the VM file or give --vcpus"))]
    Vcpus {
        /// The VM.
        vm: String,
        /// The requested value.
        vcpus: u32,
    },
    /// Too little RAM, or not whole pages.
    #[error("VM `{vm}` cannot have {} of memory", memory.exact())]
    #[diagnostic(help(
        "choose a multiple of 4 KiB, at least {LEAST_MEMORY}: set `memory` in the VM file or give --memory"
    ))]
    Memory {
        /// The VM.
        vm: String,
        /// The requested value.
        memory: Size,
    },
    /// The settings of resident memory do not fit together.
    #[error("VM `{vm}`: {why}")]
    #[diagnostic(help(
        "use multiples of 4 KiB, `reserve` at most `limit`, `limit` at most `memory` and at least {LEAST_MEMORY}: see docs/vm-file.md"
    ))]
    Residence {
        /// The VM.
        vm: String,
        /// The reason.
        why: &'static str,
    },
    /// Too little memory for shadow tables, or not whole pages.
    #[error("VM `{vm}` cannot have {} for shadow tables", shadow.exact())]
    #[diagnostic(help("choose a multiple of 4 KiB, at least {least}: set `shadow` in the VM file"))]
    Shadow {
        /// The VM.
        vm: String,
        /// The requested value.
        shadow: Size,
        /// The minimum.
        least: Size,
    },
    /// More for the balloon than it may take, or not whole pages.
    #[error("the balloon of VM `{vm}` cannot take {balloon} of its {memory}")]
    #[diagnostic(help(
        "choose a multiple of 4 KiB, and at most seven eighths of its memory: set `balloon` in the VM file or give --balloon"
    ))]
    Balloon {
        /// The VM.
        vm: String,
        /// The requested value.
        balloon: Size,
        /// The VM's memory.
        memory: Size,
    },
    /// HS mode is what is missing.
    #[error("Gnomon cannot sit in HS mode on harts without the H extension")]
    #[diagnostic(help("leave out --seat payload: without H, Gnomon is the machine's firmware"))]
    PayloadWithoutH,
    /// Two-stage tables are what is missing.
    #[error("VM `{0}` uses mmu `{1}`, which needs the H extension, and these harts do not have it")]
    #[diagnostic(help(
        "choose `shadow`, `unsync`, `lazy` or `steered`: set `mmu` in the VM file or give --mmu; or leave out --no-h"
    ))]
    ModeWithoutH(String, MmuMode),
    /// There is nothing to add files to.
    #[error("VM `{0}` does not use Gnomon's initramfs, so no files can be added")]
    #[diagnostic(help("leave out `initrd`, and boot a Linux kernel; or put the files into your own initrd"))]
    Add(String),
    /// The kernel was built without a driver for the SBI console: Debian's is, others may say so.
    #[error("VM `{0}` uses console `hvc0`, and its kernel has no driver for it")]
    #[diagnostic(help("leave out `console`, or use a kernel with CONFIG_HVC_RISCV_SBI"))]
    NoSbiConsole(String),
    /// The kernel was built without a driver for the virtio console, or has it only as a module that is not loaded.
    #[error("VM `{0}` uses console `virtio`, and its kernel has no built-in driver for it")]
    #[diagnostic(help(
        "leave out `console`, or use a kernel with CONFIG_VIRTIO_MMIO=y and CONFIG_VIRTIO_CONSOLE=y, or an `initrd` that loads both"
    ))]
    NoVirtioConsole(String),
    /// There is nothing random where time counts instructions.
    #[error("VM `{0}` has a source of random bytes, but with --icount each run must be the same")]
    #[diagnostic(help("leave out one of the two: --rng (`rng` in the VM file), or --icount"))]
    NoEntropy(String),
    /// Its guest has no agent.
    #[error("VM `{0}` has `shell`, and Gnomon cannot put its agent into this guest")]
    #[diagnostic(help(
        "leave out `shell` or --shell; or boot Debian's kernel with Gnomon's own initrd, or a Debian `root`, and not a snapshot"
    ))]
    Shell(String),
    /// Its ports cannot be.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Port(#[from] PortError),
    /// Its network cannot be.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Net(#[from] NetError),
    /// A whole system cannot be its root.
    #[error("VM `{vm}` cannot have a Debian as its root: {why}")]
    #[diagnostic(help("{remedy}"))]
    Root {
        /// The VM.
        vm: String,
        /// The reason.
        why: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A system on a disk cannot be booted so.
    #[error("VM `{vm}` cannot boot from a disk: {why}")]
    #[diagnostic(help("{remedy}"))]
    Disk {
        /// The VM.
        vm: String,
        /// The reason.
        why: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// The vkernel cannot run what the VM is to run, or another kernel is given what is for the vkernel.
    #[error("VM `{vm}` cannot be: {why}")]
    #[diagnostic(help("{remedy}"))]
    Vkernel {
        /// The VM.
        vm: String,
        /// The reason.
        why: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// `--exec` cannot work with this VM.
    #[error("--exec cannot be used with VM `{vm}`: {why}")]
    #[diagnostic(help(
        "--exec runs commands in the shell of Gnomon's own initramfs: leave out `initrd`, and boot a Linux kernel"
    ))]
    Exec {
        /// The VM.
        vm: String,
        /// The reason.
        why: &'static str,
    },
}
