//! The default guest's software: Debian packages, kernel modules, the initramfs.

pub mod added;
pub mod agent;
pub mod deb;
pub mod debian;
pub mod drivers;
pub mod initramfs;
pub mod modules;
pub mod program;
