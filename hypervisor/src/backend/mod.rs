//! The host's side of devices: disks, shares, random bytes, the network switch, the console, and the line of the control channel.

use crate::slots::Handle;

pub mod channel;
pub mod console;
pub mod disks;
pub mod entropy;
pub mod network;
pub mod port;
pub mod shares;

/// The user of a host's device: it is told when there is work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User {
    /// The VM.
    pub vm: Handle,
    /// The number of its device.
    pub device: usize,
}
