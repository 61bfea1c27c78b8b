//! The host's side of devices: disks, shares, random bytes, the network switch, the console, and the line of the control channel.

pub mod channel;
pub mod console;
pub mod disks;
pub mod entropy;
pub mod network;
pub mod port;
pub mod shares;
