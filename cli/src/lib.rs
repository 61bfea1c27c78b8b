//! The host side of Gnomon: builds the hypervisor, fetches Debian's guest software, packs virtual
//! machines into a bundle, and runs the whole in QEMU.
//!
//! A run goes through these modules in order: [`command`] reads the command line, [`vmfile`] and
//! [`spec`] settle what each VM is, [`debian`], [`modules`], [`added`] and [`initramfs`] provide the default guest,
//! [`root`] and [`system`] a Debian to work in (by an [`errand`] of a guest's), [`restore`] VMs that go on from a snapshot, [`payload`] reads kernels, [`layout`] places them in guest RAM, [`pack`] makes the bundle,
//! [`build`] compiles the hypervisor, [`qemu`] composes the machine, [`swap`] provides what it pages to, [`disk`] the VMs' disks, [`net`] their network, [`mod@meter`] has it counted, [`machine`] runs it,
//! [`stream`] and [`console`] take its output apart, and [`run`] holds it all together.
//! Meanwhile other commands reach it by [`control`].
#![forbid(unsafe_code)]

pub mod added;
pub mod bare;
pub mod bench;
pub mod build;
pub mod command;
pub mod console;
pub mod control;
pub mod deb;
pub mod debian;
pub mod disk;
pub mod errand;
pub mod initramfs;
pub mod kvm;
pub mod layout;
pub mod machine;
pub mod meter;
pub mod modules;
pub mod net;
pub mod pack;
pub mod payload;
pub mod place;
pub mod pool;
pub mod port;
pub mod processors;
pub mod progress;
pub mod qemu;
pub mod restore;
pub mod root;
pub mod run;
pub mod share;
pub mod size;
pub mod spec;
pub mod stream;
pub mod swap;
pub mod system;
pub mod testing;
pub mod tty;
pub mod turns;
pub mod variant;
pub mod vmfile;
pub mod words;
