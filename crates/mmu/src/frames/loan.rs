//! Frames that are lent to a device of the host's, which reads them while their owner may lose them.
//!
//! What the device reads stays what it was if nobody else has the frame meanwhile: it may be unmapped, and even freed, but not be handed
//! out anew. So each 2 MiB of RAM counts the loans in it, and what is freed there while there are some is *late*:
//!
//! ```text
//!                 hold                                  free: the frame is late
//!   no loan ─────────────► loans: 1, 2, ... ──────────────────────────────────────► loans, late frames
//!      ▲    ◄─────────────                                                            │ the last loan ends:
//!      │     the last ends                                                            ▼ on the list
//!      └──────────── settled: they are free ◄──── settling ◄──── settle_late ──── late frames
//! ```
//!
//! - A late frame is nobody's, and charged to the host.
//! - Where there is one, nothing more is lent, so that loans that follow each other do not keep it for ever.
//! - It comes free by [`Frames::settle_late`], 2 MiB at a time, since the last loan may end in a hart that has no time for more.
//! - There is no lock, as elsewhere in the store. Whoever takes 2 MiB from the list settles them.

use super::block::Block;
use super::owner::{Owner, Use};
use super::tags::BLOCK_ORDER;
use super::{Frames, Shared};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use rv::{Addr, Hpa, PAGE_SHIFT};

/// log2 of the bytes of a block.
const BLOCK_SHIFT: u32 = PAGE_SHIFT + BLOCK_ORDER as u32;

/// Host RAM that lies together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it is.
    pub start: Addr<Hpa>,
    /// How much it is, in bytes.
    pub bytes: usize,
}

/// RAM that is lent, piece by piece, until this is dropped.
pub struct Loan {
    shared: Arc<Shared>,
    pieces: Vec<Piece>,
    bytes: usize,
    /// The places of the blocks that are held for it.
    held: Vec<u32>,
    /// The number of the one that is lent of last, held or none of ours.
    last: u64,
    most: usize,
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.pieces).finish()
    }
}

impl Loan {
    /// Lends so many bytes more, one at least, from `start` on. Returns false, and lends nothing, if there are as many pieces as there
    /// may be, or this RAM cannot be lent now.
    ///
    /// Whoever has the frames does not free them before this has returned. What is not RAM that is handed out by the frame is never
    /// freed, and may be lent, too.
    #[must_use]
    pub fn add(&mut self, start: Addr<Hpa>, bytes: usize) -> bool {
        let follows = self.pieces.last().is_some_and(|last| last.start.wrapping_add(last.bytes as u64) == start);
        if !follows && self.pieces.len() == self.most {
            return false;
        }
        let [first, last] = [start.raw(), start.raw() + bytes as u64 - 1].map(|at| at >> BLOCK_SHIFT);
        if (first != self.last || last != self.last) && !self.hold(first, last) {
            return false;
        }
        match self.pieces.last_mut() {
            Some(last) if follows => last.bytes += bytes,
            _ => self.pieces.push(Piece { start, bytes }),
        }
        self.bytes += bytes;
        true
    }

    /// Holds all of those blocks, or none.
    #[inline(never)]
    fn hold(&mut self, first: u64, last: u64) -> bool {
        let held = self.held.len();
        for number in (first..=last).filter(|number| *number != self.last) {
            let Some(place) = self.shared.store.known_place_of(number) else { continue };
            if !self.shared.store.block_at(place).hold() {
                self.held.drain(held..).for_each(|place| let_go(&self.shared, place));
                return false;
            }
            self.held.push(place as u32);
        }
        self.last = last;
        true
    }

    /// What is lent, in the order in which it was added. What follows the piece before it is one with that.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// How much that is.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lends no more than so many bytes of it.
    pub fn cut(&mut self, bytes: usize) {
        while self.bytes > bytes
            && let Some(last) = self.pieces.last_mut()
        {
            let less = last.bytes.min(self.bytes - bytes);
            last.bytes -= less;
            self.bytes -= less;
            if last.bytes == 0 {
                self.pieces.pop();
            }
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.held.drain(..).for_each(|place| let_go(&self.shared, place));
    }
}

/// A loan in those 2 MiB ends.
fn let_go(shared: &Shared, place: u32) {
    let store = &shared.store;
    if store.block_at(place as usize).let_go() {
        store.put_late(place as usize);
    }
}

impl Frames {
    /// A loan of nothing yet, of `most` pieces at most.
    #[must_use]
    pub fn lend(&self, most: usize) -> Loan {
        Loan { shared: Arc::clone(&self.shared), pieces: Vec::new(), bytes: 0, held: Vec::new(), last: u64::MAX, most }
    }

    /// Whether there are frames that [`Frames::settle_late`] makes free.
    #[must_use]
    pub fn has_late(&self) -> bool {
        self.shared.store.late_count() != 0
    }

    /// Frees the frames of 2 MiB that were freed while they were lent, and are not any more. A portion: some 20,000 instructions.
    /// Returns false if there are none.
    pub fn settle_late(&self) -> bool {
        let Shared { store, ledger, .. } = &*self.shared;
        store.settle_late(self.hart, |pages| ledger.discharge(Owner::Host, Use::Other, pages))
    }

    /// Frees a run, or a part of it that lies in `block`, where RAM is lent: not before it is lent no more.
    pub(super) fn free_late(&self, block: &Block, part: core::ops::Range<usize>) {
        let Shared { store, ledger, .. } = &*self.shared;
        ledger.charge_beyond(Owner::Host, Use::Other, part.len() as u64);
        if block.put_off(part) {
            store.put_late(store.place_of(block.number));
        }
    }
}
