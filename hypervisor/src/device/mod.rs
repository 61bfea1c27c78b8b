//! The devices of a guest's board, as state machines without hardware.
//!
//! A device is a file here that implements [`Device`] and makes the devices of its kind ([`offer::Kind`]), and a line in [`KINDS`]. The
//! interrupt controller and the UART are apart: interrupt lines of all devices lead to the former, and console input comes to the latter.

pub mod board;
pub mod devices;
mod interface;
mod kinds;
pub mod offer;
pub mod plic;
pub mod rtc;
#[cfg(test)]
mod twins;
pub mod uart;
pub mod virtio;

pub use devices::{Board, Devices, Target};
pub use interface::{Answer, Device, GuestMemory, Outside, Place, Unreached, Unsaved, Wild};
pub use kinds::KINDS;
pub use plic::Plic;
pub use rtc::Rtc;
pub use uart::Uart;
