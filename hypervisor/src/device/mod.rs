//! The devices of a guest's board, as state machines without hardware.
//!
//! A device is a file here that implements [`Device`], and a line in [`crate::device::board::devices`]. The interrupt controller
//! is apart: it is what the others' lines lead to.

pub mod board;
mod interface;
pub mod offer;
pub mod plic;
pub mod rtc;
#[cfg(test)]
mod twins;
pub mod uart;
pub mod virtio;

pub use interface::{Answer, Device, GuestMemory, Outside, Place, Unreached, Unsaved, Wild};
pub use plic::Plic;
pub use rtc::Rtc;
pub use uart::Uart;
