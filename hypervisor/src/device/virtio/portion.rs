//! Work in portions: what a device does at once, and why it stops.

use super::backend::Progress;
use super::queue::{Chain, Queue, Trouble};
use crate::device::interface::Outside;
use alloc::vec::Vec;
use mmu::frames::Loan;
use rv::PAGE_BYTES;

/// The cost of each step, in bytes that are copied for as much: to take a request, to begin one, to handle its end, to
/// give it back.
pub(super) const STEP: usize = 4 << 10;

/// The least cost of an access to guest memory, however few bytes it is about: some 390 instructions.
const ACCESS: usize = 5 << 8;
/// The cost of a buffer in a chain: some 20 instructions.
const BUFFER: usize = 1 << 6;
/// The cost of lending a piece of guest memory: some 200 instructions.
const LENT: usize = 5 << 7;

/// The cost of counting a frame as lent: some 20 instructions. Twice as much if the frame becomes free at the end of
/// the loan.
const FRAME: usize = 1 << 6;
/// The cost of faulting a page in: some 2,500 instructions.
const FAULT: usize = 1 << 13;

/// Returns the most frames that pieces can be in: each may begin and end within one.
const fn frames(bytes: usize, pieces: usize) -> usize {
    bytes / PAGE_BYTES as usize + 2 * pieces
}

/// The reason why a device stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// There is nothing to be done until the driver or the host's device says something.
    Idle,
    /// The portion is done.
    Spent,
    /// Something is wrong with the ring, or it is not there yet.
    Trouble(Trouble),
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Stop::Trouble(trouble)
    }
}

/// The rest of a portion, in bytes that are copied: 64 of them take some 20 instructions.
pub(super) struct Budget(usize);

impl Budget {
    /// Makes the budget of a portion.
    pub(super) const fn new(portion: usize) -> Self {
        Self(portion)
    }

    /// Returns the rest.
    pub(super) const fn left(&self) -> usize {
        self.0
    }

    /// Checks that something is left.
    pub(super) fn check(&self) -> Result<(), Stop> {
        if self.0 == 0 { Err(Stop::Spent) } else { Ok(()) }
    }

    /// Pays, if anything is left.
    pub(super) fn pay(&mut self, cost: usize) -> Result<(), Stop> {
        self.check()?;
        self.spend(cost);
        Ok(())
    }

    /// Pays, whatever is left.
    fn spend(&mut self, cost: usize) {
        self.0 = self.0.saturating_sub(cost);
    }

    /// Pays for a copy. If words are not aligned on both sides, each is made of two.
    pub(super) fn pay_for_copy(&mut self, bytes: usize, is_aligned: bool) -> Result<(), Stop> {
        let cost = if is_aligned { bytes } else { 3 * bytes };
        self.pay(cost.max(ACCESS))
    }

    /// Pays for a chain that was taken, beside what that costs in any case.
    pub(super) fn pay_for_chain(&mut self, chain: &Chain) {
        self.spend(ACCESS * chain.descriptors.saturating_sub(1) + BUFFER * chain.buffers.len());
    }

    /// Pays for RAM that was lent, for which so many pages were faulted in. It has looked for each piece, whatever is one with the one before.
    pub(super) fn pay_for_loan(&mut self, loan: &Loan, faults: usize) {
        self.spend(LENT * loan.added() + frames(loan.bytes(), loan.added()) * FRAME + FAULT * faults);
    }

    /// Pays for the end of such a loan, of so many bytes in so many pieces.
    pub(super) fn pay_for_end(&mut self, (bytes, pieces): (usize, usize)) {
        self.spend(frames(bytes, pieces) * 2 * FRAME);
    }
}

/// Takes the next chain of a queue, and pays for it beside a step. `None`: there was none, but is by now; where there is none still, the
/// driver is asked to notify, and nothing is to be done until then.
pub(super) fn next_chain(
    queue: &mut Queue,
    outside: &mut dyn Outside,
    budget: &mut Budget,
) -> Result<Option<Chain>, Stop> {
    let mut chain = Chain::default();
    Ok(next_chain_into(&mut chain, queue, outside, budget)?.then_some(chain))
}

/// Like [`next_chain`], into an existing chain, which has room for buffers. Returns whether there was one.
pub(super) fn next_chain_into(
    chain: &mut Chain,
    queue: &mut Queue,
    outside: &mut dyn Outside,
    budget: &mut Budget,
) -> Result<bool, Stop> {
    match queue.take_into(chain, outside)? {
        true => {
            budget.pay_for_chain(chain);
            Ok(true)
        }
        false if queue.await_more(outside)? => Ok(false),
        false => Err(Stop::Idle),
    }
}

/// Makes steps until one stops, or so much is spent.
pub(super) fn go_on(portion: usize, step: impl FnMut(&mut Budget) -> Result<(), Stop>) -> Result<Progress, Trouble> {
    go_on_with(&mut Budget::new(portion), step)
}

/// Makes steps until one stops, or the rest of a portion is spent.
pub(super) fn go_on_with(
    budget: &mut Budget,
    mut step: impl FnMut(&mut Budget) -> Result<(), Stop>,
) -> Result<Progress, Trouble> {
    loop {
        match step(budget) {
            Ok(()) => {}
            Err(Stop::Idle) => return Ok(Progress::Idle),
            Err(Stop::Spent) => return Ok(Progress::More),
            Err(Stop::Trouble(trouble)) => return Err(trouble),
        }
    }
}

/// Returns the first free place of a list, which may grow to `most`.
pub(super) fn free_place<T>(list: &mut Vec<Option<T>>, most: usize) -> Option<usize> {
    let free = list.iter().position(Option::is_none);
    free.or_else(|| {
        let at = list.len();
        (at < most).then(|| {
            list.push(None);
            at
        })
    })
}
