//! Character devices.

use super::{IN, Kind, OUT, Ready, Status, Stream};
use crate::errno::{Errno, Result};
use crate::{random, terminal};
use alloc::sync::Arc;
use core::task::Waker;

/// Returns the number of a device.
#[must_use]
pub const fn number(major: u64, minor: u64) -> u64 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Devices without a state: their names in `/dev`, and numbers.
pub const SIMPLE: [(&str, u64); 5] = [
    ("null", number(1, 3)),
    ("zero", number(1, 5)),
    ("full", number(1, 7)),
    ("random", number(1, 8)),
    ("urandom", number(1, 9)),
];
/// The terminal of the process's session.
pub const TTY: u64 = number(5, 0);
/// The VM's terminal.
pub const CONSOLE: u64 = number(5, 1);

/// A device of [`SIMPLE`].
#[derive(Debug)]
struct Simple(u64);

/// Opens the device of a number.
///
/// # Errors
/// `ENXIO` if there is none.
pub fn open(device: u64) -> Result<Arc<dyn Stream>> {
    match device {
        TTY | CONSOLE => Ok(terminal::terminal()),
        device if SIMPLE.iter().any(|(_, known)| *known == device) => Ok(Arc::new(Simple(device))),
        _ => Err(Errno::NXIO),
    }
}

impl Simple {
    fn minor(&self) -> u64 {
        self.0 & 0xff
    }
}

impl Stream for Simple {
    fn read(&self, to: &mut [u8]) -> Result<usize> {
        match self.minor() {
            3 => return Ok(0),
            5 | 7 => to.fill(0),
            _ => random::fill(to),
        }
        Ok(to.len())
    }

    fn write(&self, from: &[u8]) -> Result<usize> {
        if self.minor() == 7 && !from.is_empty() { Err(Errno::NOSPC) } else { Ok(from.len()) }
    }

    fn ready(&self, _waker: Option<&Waker>) -> Ready {
        IN | OUT
    }

    fn status(&self) -> Status {
        Status { device: self.0, ..Status::plain((0, self.0), Kind::Device, 0o666) }
    }
}
