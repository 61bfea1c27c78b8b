//! Virtio devices ("Virtual I/O Device (VIRTIO) Version 1.2"), modern ones only, on its MMIO transport.
//!
//! | file | what |
//! |---|---|
//! | `queue` | the device's side of a split virtqueue: what the driver offers is copied once, then checked |
//! | `queues` | those of a device, as the driver sets them up |
//! | `backend` | the interface between a device and its transport |
//! | `transport` | the registers: features, status, queues, interrupts, configuration |
//! | `balloon` | the memory balloon |
//! | `block` | a disk |
//! | `console` | a console, and ports |
//! | `key` | a power key |
//! | `net` | a network card |
//! | `rng` | a source of random bytes |
//! | `share` | a folder of the host's |
//! | `gather` | the choice between serving a disk's requests, or a card's frames, one by one or several at once |
//! | `chain`, `portion`, `pace` | the common parts of devices: a chain's buffers, work in portions, its pace where another guest runs |
//! | `wire` | the formats that drivers and devices share |
//!
//! Nothing here believes a guest. A malformed ring ends in DEVICE_NEEDS_RESET: the driver is told, the VM goes on. A
//! malformed buffer is handed back, and counted.
//!
//! A notification is answered at once, by the vCPU that makes it. Work that takes longer than an exit may is done in
//! portions, between which the vCPU makes the same store again ([`Answer::Again`](super::Answer::Again)). So a device
//! takes only its guest's time, and no work is left for a guest that has gone. A disk waits for the host's device: its
//! interrupt continues the requests, in portions as well. A network card's incoming frames come from others: the sender
//! delivers them.

mod backend;
pub mod balloon;
pub mod block;
mod chain;
pub mod console;
#[cfg(test)]
mod driver;
mod gather;
pub mod key;
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
pub use key::PowerKey;
pub use net::Net;
pub use queue::{Buffer, Chain, Malformed, Queue, Trouble};
pub use queues::Queues;
pub use rng::Rng;
pub use share::Share;
pub use transport::Mmio;
