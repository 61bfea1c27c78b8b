//! The host side of Gnomon: builds the hypervisor, fetches Debian's guest software, packs virtual
//! machines into a bundle, runs the whole in QEMU, tests it, and measures it.
//!
//! The folders, from bottom to top. None uses one above it (`cli/tests/imports.rs`):
//!
//! 1. [`host`]: this computer: where files are, processors, jobs, progress, the user's terminal, and the compiler.
//! 2. [`guest`]: the default guest's software: Debian packages, kernel modules, the initramfs.
//! 3. [`machine`]: QEMU's machine: its devices, its command line, its process and output, and the meter.
//! 4. [`vm`]: a VM: its file, its settings with all defaults, the kernel it boots, its part of a bundle, and snapshots.
//! 5. [`control`]: the control channel: how other commands find a run and send requests to it.
//! 6. [`mod@run`]: one run: its preparation, the machine, the consoles, and the report at the end.
//! 7. [`api`]: requests about runs and VMs, one method for each, for commands and for other programs.
//! 8. [`system`]: Debian systems for VMs to work in, installed by a guest of Gnomon's own.
//! 9. [`subject`]: what tests and benchmarks compare: variants of Gnomon, the bare machine, Linux KVM, and workloads under Linux.
//! 10. [`mod@bench`]: benchmarks and their reports.
//! 11. [`testing`]: the tests of `gnomon test`.
//! 12. [`install`]: installations of the command.
//! 13. [`command`]: the command line.
//!
//! A run goes through these modules in order: [`command`] reads the command line, [`vm::file`] and [`vm::spec`] settle what
//! each VM is, [`guest`] provides the default guest, [`system`] a Debian to work in, [`vm::restore`] VMs that continue from a
//! snapshot, [`vm::payload`] reads kernels, [`vm::layout`] places them in guest RAM, [`vm::pack`] makes the bundle,
//! [`host::parts`] provides the hypervisor, [`machine::qemu`] composes the machine, and [`machine::process`] runs it;
//! [`machine::stream`] and [`run::console`] take its output apart. [`mod@run`] holds it all together. Meanwhile other commands
//! reach the run by [`control`].
#![forbid(unsafe_code)]
// Lines for people go through `tty::say`, which escapes what would mean something to their terminal.
#![deny(clippy::print_stderr)]
// `println!` panics where its output is lost.
#![deny(clippy::print_stdout)]

pub mod api;
pub mod bench;
pub mod command;
pub mod control;
pub mod guest;
pub mod host;
pub mod install;
pub mod machine;
pub mod run;
pub mod subject;
pub mod system;
pub mod testing;
pub mod vm;
