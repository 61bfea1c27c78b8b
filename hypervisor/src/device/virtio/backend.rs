//! The interface between a virtio device and its transport.

use super::queue::{Trouble, USUAL};
use super::queues::Queues;
use crate::backend::User;
use crate::device::interface::{Outside, Unsaved, Wild};
use abi::snapshot::device::OwnState;
use core::fmt::Debug;

/// The state of the work for a notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The queue is empty, and the driver will notify again.
    Idle,
    /// A portion is done, and there may be more.
    More,
}

/// Returns `width` bytes of a configuration, as a driver reads them: 0 where the configuration has none.
pub(super) fn read_bytes(config: &[u8], offset: u64, width: u8) -> u32 {
    let at = usize::try_from(offset).unwrap_or(usize::MAX).min(config.len());
    let bytes = config[at..].iter().take(width.into());
    bytes.rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// A device, behind whatever transport.
pub trait Backend: Debug + Send + 'static {
    /// Its device ID (chapter 5).
    const ID: u32;
    /// Set if the device continues the work that a notification began when something outside has happened: then it is
    /// given a [moment](crate::device::Device::moment), and does a portion as for a notification.
    const GOES_ON: bool = false;
    /// Most entries of a queue: a power of two, [`super::queue::MOST`] at most.
    const MOST_ENTRIES: usize = USUAL;
    /// The names of two counters: notifications, and rings that were malformed.
    const COUNTERS: [&'static str; 2];

    /// Returns the number of queues, 1 or more. It never changes.
    fn queues(&self) -> usize;
    /// Returns the features that it offers, beside those of queues and transport: none.
    fn features(&self) -> u64 {
        0
    }
    /// Reads `width` bytes (1, 2 or 4, at a multiple of that) of its configuration; 0 where there is none.
    fn read_config(&self, _offset: u64, _width: u8) -> u32 {
        0
    }
    /// Writes them, where the driver may.
    fn write_config(&mut self, _offset: u64, _width: u8, _value: u32) {}
    /// Does a portion of what the driver has put into queue number `at`, which is ready: some 100,000 instructions at most (BOUNDED).
    /// Buffers go back to the driver when the device has done with them, by whichever queue they came.
    ///
    /// # Errors
    /// [`Trouble`]. If something is wrong with the ring, nothing more is taken from any queue. If its memory is not there yet, this is
    /// called again and goes on.
    fn notified(&mut self, at: usize, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble>;
    /// Does a portion for the queues that are ready, when something outside has happened, or some time has passed. Each
    /// has its own, if the device does not say otherwise.
    ///
    /// # Errors
    /// As above.
    fn moment(&mut self, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        let mut all = Ok(Progress::Idle);
        for at in 0..self.queues() {
            if queues.ready(at).is_none() {
                continue;
            }
            match self.notified(at, queues, outside) {
                Ok(Progress::Idle) => {}
                malformed @ Err(Trouble::Malformed(_)) => return malformed,
                more => all = more,
            }
        }
        all
    }
    /// Stops a queue, as the driver asks: its memory is no more, nor are the buffers that came by it. Work that was
    /// begun for it is dropped.
    fn stop(&mut self, at: usize);
    /// Resets the device, as the driver asks: work that was begun is dropped.
    fn reset(&mut self);
    /// Returns whether no access to memory is left on behalf of a queue that was stopped, or of a driver that has reset
    /// the device. Until then the driver does not see the queue as stopped, or the device as reset.
    fn is_still(&mut self) -> bool {
        true
    }
    /// See [`Device::attach`](crate::device::Device::attach).
    fn attach(&mut self, _user: User) {}
    /// Reports its own counters, as [`Device::counters`](crate::device::Device::counters).
    fn counters(&self, report: &mut dyn FnMut(&'static str, u64));
    /// Returns the state that the device needs to go on elsewhere, beside transport and queues.
    ///
    /// # Errors
    /// [`Unsaved`]: as long as it has taken chains that it can neither give back nor begin anew.
    fn save(&self) -> Result<OwnState, Unsaved>;
    /// Returns the number of chains of a queue, those that were taken last, that are begun and not given back. If the
    /// device goes on elsewhere, it begins them anew.
    fn begun(&self, at: usize) -> u16;
    /// Restores the device from a saved state. It has just been reset. `is_live`: the driver has set it up.
    ///
    /// # Errors
    /// [`Wild`].
    fn restore(&mut self, own: &OwnState, is_live: bool) -> Result<(), Wild>;
}
