//! Frames that are lent to a device of the host's, which reads them while their owner may lose them.
//!
//! What the device reads stays what it was if nobody else has the frame meanwhile: it may be unmapped, and even freed, but not be handed
//! out anew. So the tag of each frame counts its loans, and one that is freed while there are some is *late*:
//!
//! ```text
//!                  lend                          free
//!   somebody's ───────────► somebody's, n loans ──────► late, n loans
//!        ▲     ◄───────────         ▲                       │
//!        │         end              │ end               end │ of the last one
//!        └── alloc ── free ◄────────┼───────────────────────┘
//! ```
//!
//! Each arrow is one atomic step, for one frame. A late frame is nobody's, and charged to the host: those are no more than are lent.

use super::owner::{Owner, Use};
use super::shared::Shared;
use super::store::{by_block, within};
use super::tags::BLOCK;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;
use rv::{Addr, Hpa, PAGE_SHIFT};

/// Host RAM that lies together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it is.
    pub start: Addr<Hpa>,
    /// How much it is, in bytes: 1 or more.
    pub bytes: usize,
}

impl Piece {
    /// The numbers of the frames that it is in.
    const fn frames(&self) -> Range<u64> {
        let start = self.start.raw();
        start >> PAGE_SHIFT..((start + self.bytes as u64 - 1) >> PAGE_SHIFT) + 1
    }
}

/// RAM that is lent, piece by piece, until this is dropped.
pub struct Loan {
    shared: Arc<Shared>,
    hart: usize,
    /// Each counts once in the frames that it is in.
    pieces: Vec<Piece>,
    bytes: usize,
    most: usize,
    added: usize,
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.pieces).finish()
    }
}

impl Loan {
    /// One of nothing yet, of `most` pieces at most.
    pub(super) const fn of(shared: Arc<Shared>, hart: usize, most: usize) -> Self {
        Self { shared, hart, pieces: Vec::new(), bytes: 0, most, added: 0 }
    }

    /// Lends so many bytes more, one at least, from `start` on. Returns false, and lends nothing, if there are as many pieces as there
    /// may be, or a frame is lent as often as can be counted.
    ///
    /// Whoever has the frames does not free them before this has returned. What is not RAM that is handed out by the frame is never
    /// freed, and may be lent, too.
    #[must_use]
    #[inline]
    pub fn add(&mut self, start: Addr<Hpa>, bytes: usize) -> bool {
        let piece = Piece { start, bytes };
        let mut frames = piece.frames();
        if let Some(last) = self.pieces.last_mut()
            && last.start.wrapping_add(last.bytes as u64) == start
        {
            frames.start = frames.start.max(last.frames().end);
            if !self.shared.lend(frames) {
                return false;
            }
            last.bytes += bytes;
        } else if self.pieces.len() == self.most || !self.shared.lend(frames) {
            return false;
        } else {
            self.pieces.push(piece);
        }
        self.bytes += bytes;
        self.added += 1;
        true
    }

    /// How often something was added: pieces before those that follow each other were one.
    #[must_use]
    pub const fn added(&self) -> usize {
        self.added
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
            let (less, before) = (last.bytes.min(self.bytes - bytes), last.frames());
            last.bytes -= less;
            self.bytes -= less;
            let left = if last.bytes == 0 { before.start } else { last.frames().end };
            if last.bytes == 0 {
                self.pieces.pop();
            }
            self.shared.end_loans(self.hart, left..before.end);
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.pieces.iter().for_each(|piece| self.shared.end_loans(self.hart, piece.frames()));
    }
}

impl Shared {
    /// Counts a loan of each of those frames, or of none. Says whether it could.
    fn lend(&self, frames: Range<u64>) -> bool {
        by_block(frames.clone()).all(|(first, pages)| {
            let Some(block) = self.store.block_of(first) else { return true };
            let could = block.lend(within(first, pages));
            could.map_err(|lent| self.end_loans(0, frames.start..first + lent as u64)).is_ok()
        })
    }

    /// A loan of each of those frames ends.
    fn end_loans(&self, hart: usize, frames: Range<u64>) {
        for (first, pages) in by_block(frames) {
            let Some(block) = self.store.block_of(first) else { continue };
            for frame in first..first + pages {
                if block.end_loan((frame % BLOCK) as usize) {
                    self.store.give(hart, core::slice::from_ref(block), frame, 1);
                    self.is_late_no_more();
                }
            }
        }
    }

    /// A frame is about to be late: it is the host's from before it is, since its loan may end at any time then.
    fn is_to_be_late(&self) {
        self.late.fetch_add(1, SeqCst);
        self.ledger.charge_beyond(Owner::Host, Use::Other, 1);
    }

    /// It is not, or has been given.
    fn is_late_no_more(&self) {
        self.ledger.discharge(Owner::Host, Use::Other, 1);
        self.late.fetch_sub(1, SeqCst);
    }

    /// Frees frames, of which some are lent: those come free when they are not any more. They are nobody's account's.
    pub(super) fn free_lent(&self, hart: usize, first: u64, pages: u64) {
        /// As many have their bits in one word.
        const CHUNK: u64 = 64;
        let chunk = pages.min(CHUNK);
        for first in (first..first + pages).step_by(chunk as usize) {
            let block = &self.store.blocks_of(first, 1)[0];
            let mut bits = 0;
            for n in 0..chunk {
                let place = (first % BLOCK + n) as usize;
                let is_free = block.free_unless_lent(place) || {
                    self.is_to_be_late();
                    let is_free = block.free_or_late(place);
                    if is_free {
                        self.is_late_no_more();
                    }
                    is_free
                };
                bits |= u64::from(is_free) << n;
            }
            self.store.give_some(hart, block, first, bits);
        }
    }
}
