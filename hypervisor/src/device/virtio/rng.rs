//! A source of random bytes (chapter 5.4), which are the host's ([`crate::backend::entropy`]).
//!
//! Each buffer that the driver offers comes back with up to one piece of them. The next is looked at when the one before has come back, so a
//! guest has no more work done for it than the host's device has pieces.

use super::backend::{Backend, Progress};
use super::portion::{self, Budget, STEP, Stop, next_chain};
use super::queue::{Chain, Queue, Trouble};
use super::queues::Queues;
use super::transport::Mmio;
use crate::backend::User;
use crate::backend::entropy::{Piece, Place};
use crate::device::interface::Device;
use crate::device::interface::{Outside, Unsaved, Wild};
use crate::device::offer::Offer;
use abi::bundle::VmConfig;
use abi::snapshot::device::OwnState;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The most that a portion may cost, in bytes that are copied.
const PORTION: usize = 64 << 10;

/// The GPA and the PLIC source of the source, behind all shares.
const AT: (u64, u32) = (0x1000_e000, 16);

/// Makes the source of random bytes of a VM, if it has one.
pub fn make(config: &VmConfig, offer: &Offer) -> Vec<Box<dyn Device>> {
    let source = offer.entropy.as_ref().filter(|_| config.rng);
    let rng = source.map(|source| Mmio::new(AT.0, AT.1, Rng::new(Place::at(source))));
    rng.into_iter().map(|rng| Box::new(rng) as _).collect()
}

/// The device's counts. All only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Random bytes that the guest was given.
    pub bytes: u64,
    /// Buffers that came back empty, since there is no room in them, or no memory.
    pub refused: u64,
}

impl Counts {
    /// Returns every count with its name, as `docs/counters.md` lists them.
    pub(super) const fn each(&self) -> [(&'static str, u64); 2] {
        [("rng.bytes", self.bytes), ("rng.refused", self.refused)]
    }
}

/// The device.
#[derive(Debug)]
pub struct Rng {
    place: Place,
    /// The chain for the next piece, and that piece if it has come.
    filling: Option<(Chain, Option<Piece>)>,
    counts: Counts,
}

impl Rng {
    /// Makes a device whose bytes come from that source.
    #[must_use]
    pub fn new(place: Place) -> Self {
        Self { place, filling: None, counts: Counts::default() }
    }

    /// Returns the source of the random bytes.
    #[must_use]
    pub const fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the device's counts.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Does one step of the work.
    fn step(&mut self, queue: &mut Queue, outside: &mut dyn Outside, budget: &mut Budget) -> Result<(), Stop> {
        let Some((chain, piece)) = &mut self.filling else {
            if let Some(chain) = next_chain(queue, outside, budget)? {
                if chain.room(true) != 0 {
                    self.place.ask();
                }
                self.filling = Some((chain, None));
            }
            return budget.pay(STEP);
        };
        budget.pay(STEP)?;
        let room = chain.room(true);
        let mut written = 0;
        if room != 0 {
            if piece.is_none() {
                *piece = self.place.take();
            }
            let Some(piece) = piece else { return Err(Stop::Idle) };
            let bytes = piece.bytes();
            let bytes = &bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
            if chain.tell(0, bytes, outside)? {
                written = bytes.len() as u32;
            }
        }
        queue.give(chain, written, outside)?;
        self.counts.bytes += u64::from(written);
        self.counts.refused += u64::from(written == 0);
        self.filling = None;
        Ok(())
    }
}

impl Backend for Rng {
    const ID: u32 = 4;
    const GOES_ON: bool = true;
    const COUNTERS: [&'static str; 2] = ["rng.notifications", "rng.malformed"];

    fn queues(&self) -> usize {
        1
    }

    fn notified(&mut self, at: usize, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        let Some(queue) = queues.ready(at) else { return Ok(Progress::Idle) };
        portion::go_on(PORTION, |budget| self.step(queue, outside, budget))
    }

    fn stop(&mut self, _: usize) {
        self.reset();
    }

    fn reset(&mut self) {
        self.place.forget();
        self.filling = None;
    }

    fn attach(&mut self, user: User) {
        self.place.set_user(user);
    }

    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.counts.each().into_iter().for_each(|(name, count)| report(name, count));
    }

    fn save(&self) -> Result<OwnState, Unsaved> {
        Ok(OwnState::Nothing)
    }

    /// Returns the number of chains to begin anew. The bytes that have come for one are dropped: the guest has not seen
    /// them, and elsewhere there are other bytes.
    fn begun(&self, _: usize) -> u16 {
        self.filling.is_some().into()
    }

    fn restore(&mut self, own: &OwnState, _: bool) -> Result<(), Wild> {
        if *own == OwnState::Nothing { Ok(()) } else { Err(Wild::OTHER) }
    }
}

#[cfg(test)]
mod tests;
