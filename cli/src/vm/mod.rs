//! A VM: its file, its settings with all defaults, the kernel it boots, its part of a bundle, and snapshots.

pub mod file;
pub mod layout;
pub mod mode;
pub mod pack;
pub mod payload;
pub mod restore;
pub mod root;
pub mod spec;
