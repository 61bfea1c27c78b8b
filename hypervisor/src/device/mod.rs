//! The devices of a guest's board, as state machines without hardware.

pub mod plic;
pub mod uart;

pub use plic::Plic;
pub use uart::Uart;
