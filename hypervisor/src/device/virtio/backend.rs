//! What a virtio device is to its transport.

use super::queue::{Queue, Trouble};
use crate::device::interface::{Outside, Unsaved, Wild};
use abi::snapshot::device::OwnState;
use core::fmt::Debug;

/// How far the work for a notification has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The queue is empty, and the driver will notify again.
    Idle,
    /// A portion is done, and there may be more.
    More,
}

/// What a driver reads of a configuration that has these bytes: `width` of them, and 0 where there are none.
pub(super) fn read_bytes(config: &[u8], offset: u64, width: u8) -> u32 {
    let at = usize::try_from(offset).unwrap_or(usize::MAX).min(config.len());
    let bytes = config[at..].iter().take(width.into());
    bytes.rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// A device, behind whatever transport.
pub trait Backend: Debug + Send {
    /// Its device ID (chapter 5).
    const ID: u32;
    /// How many queues it has.
    const QUEUES: usize;
    /// Whether it goes on by itself with what a notification began, when something outside has happened: then it is given a
    /// [moment](crate::device::Device::moment), and does a portion as for a notification.
    const GOES_ON: bool = false;

    /// The features that it offers, beside those of queues and transport.
    fn features(&self) -> u64;
    /// Reads `width` bytes (1, 2 or 4, at a multiple of that) of its configuration; 0 where there is none.
    fn read_config(&self, offset: u64, width: u8) -> u32;
    /// Writes them, where the driver may.
    fn write_config(&mut self, offset: u64, width: u8, value: u32);
    /// Does a portion of what the driver has put into queue number `at`: some 100,000 instructions at most (BOUNDED). Buffers go
    /// back to the driver when the device has done with them.
    ///
    /// # Errors
    /// [`Trouble`]. If something is wrong with the ring, nothing more is taken from any queue. If its memory is not there yet, this is
    /// called again and goes on.
    fn notified(&mut self, at: usize, queue: &mut Queue, outside: &mut dyn Outside) -> Result<Progress, Trouble>;
    /// The driver resets the device: what was begun is dropped.
    fn reset(&mut self);
    /// What it needs to go on elsewhere, beside transport and queues.
    ///
    /// # Errors
    /// [`Unsaved`]: as long as it has taken chains that it can neither give back nor begin anew.
    fn save(&self) -> Result<OwnState, Unsaved>;
    /// How many chains of a queue, those that were taken last, are begun and not given back. Where the device goes on elsewhere, it
    /// begins them anew.
    fn begun(&self, at: usize) -> u16;
    /// Goes on from there, just reset. `is_live`: the driver has set it up.
    ///
    /// # Errors
    /// [`Wild`].
    fn restore(&mut self, own: &OwnState, is_live: bool) -> Result<(), Wild>;
}
