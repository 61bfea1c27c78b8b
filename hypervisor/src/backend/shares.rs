//! Folders of the host that guests reach, by [ports](crate::backend::port) of devices that speak the protocol 9P. A
//! message and room for the answer to it lie in units that follow each other.

use crate::backend::port;
use crate::backend::port::{HostDevice, Request};
pub use crate::backend::port::{NotBegun, Token, UNIT_BYTES, UNITS, Units};
use alloc::boxed::Box;

/// The longest message, in bytes: what `msize` is at most.
pub const MOST_MESSAGE: usize = 128 << 10;
/// Most messages in flight.
pub const MOST_FLYING: usize = 32;

/// A message for the host's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The units of the message, from their first byte on.
    pub units: Units,
    /// Its length, in bytes.
    pub message: usize,
    /// Room for the answer, in bytes, from [`Asked::answer_at`] on.
    pub room: usize,
}

impl Asked {
    /// Returns the offset of the answer in the units.
    #[must_use]
    pub const fn answer_at(&self) -> usize {
        self.message.next_multiple_of(8)
    }

    /// Returns the bytes of units that it needs.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.answer_at() + self.room
    }
}

impl Request for Asked {
    fn units(&self) -> Units {
        self.units
    }
}

/// A device of the host's. The result of a message is the length of the answer that it claims, in bytes.
pub type HostShare = dyn HostDevice<Asked = Asked, Outcome = usize>;

/// A share, with what is under way.
pub type Port = port::Port<HostShare>;

impl Port {
    /// Makes a port for a share, without a user.
    #[must_use]
    pub fn new(device: Box<HostShare>) -> Self {
        Self::of(device, MOST_FLYING)
    }

    /// Takes units for so many bytes, fewer than all, if there are as many that follow each other.
    pub fn take(&mut self, bytes: usize) -> Option<Units> {
        self.take_exactly(bytes.div_ceil(UNIT_BYTES).clamp(1, UNITS - 1))
    }

    /// Handles the device's interrupt.
    pub fn attend(&mut self) {
        self.acknowledge();
        self.collect();
    }
}

/// The shares of the host's that guests have, by their number.
pub type Shares = port::Ports<HostShare>;

impl Shares {
    /// Makes the shares, each with its number.
    #[must_use]
    pub fn new(shares: impl IntoIterator<Item = (u32, Box<HostShare>)>) -> Self {
        Self::of(shares.into_iter().map(|(number, device)| (number, Port::new(device))))
    }
}
