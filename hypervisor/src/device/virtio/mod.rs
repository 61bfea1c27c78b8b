//! Virtio devices ("Virtual I/O Device (VIRTIO) Version 1.2"), modern ones only, on its MMIO transport.
//!
//! | file | what |
//! |---|---|
//! | `queue` | the device's side of a split virtqueue: what the driver offers is copied once, then checked |
//! | `queues` | those of a device, as the driver sets them up |
//! | `backend` | what a device is to its transport |
//! | `transport` | the registers: features, status, queues, interrupts, configuration |
//! | `balloon` | the memory balloon |
//! | `block` | a disk |
//! | `console` | a console, and ports |
//! | `net` | a network card |
//! | `rng` | a source of random bytes |
//! | `share` | a folder of the host's |
//! | `gather` | whether a disk's requests, or what a card sends, are looked after one by one or several at once |
//! | `chain`, `portion`, `pace` | what devices have in common: a chain's buffers, work in portions, how much of it where another guest runs |
//! | `wire` | what drivers and devices say to each other |
//!
//! Nothing here believes a guest. What is wrong with a ring ends in DEVICE_NEEDS_RESET: the driver is told, the VM goes
//! on. What is wrong with a buffer is that buffer's affair: it is handed back, and counted.
//!
//! A notification is answered at once, by the vCPU that makes it; what takes longer than an exit may is done in
//! portions, between which the vCPU makes the same store again ([`Answer::Again`](super::Answer::Again)). So a device
//! takes only its guest's time, and no work is left for a guest that has gone. What a disk waits for is the host's: its
//! interrupt goes on with that, in portions as well. What a network card is to give its guest comes from others: who
//! sends it looks after that.

mod backend;
pub mod balloon;
pub mod block;
mod chain;
pub mod console;
#[cfg(test)]
mod driver;
mod gather;
pub mod net;
mod pace;
mod portion;
pub mod queue;
mod queues;
pub mod rng;
pub mod share;
mod transport;
pub mod wire;

pub use backend::{Backend, Progress};
pub use balloon::Balloon;
pub use block::Block;
pub use console::Console;
pub use net::Net;
pub use queue::{Buffer, Chain, Malformed, Queue, Trouble};
pub use queues::Queues;
pub use rng::Rng;
pub use share::Share;
pub use transport::Mmio;
