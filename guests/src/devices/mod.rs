//! Devices, and what their drivers have in common.

pub mod balloon;
pub mod console;
pub mod virtio;
