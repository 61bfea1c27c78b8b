//! The tools of a guest that is a hypervisor: a G-stage for its own guest, and the ways to enter it.

pub mod nacl;
pub mod stage;
