//! Frames on loan to a device of the host, which reads them while their owner may lose them.
//!
//! The device reads valid data as long as the frame gets no other owner: the frame may be unmapped, and even freed, but
//! not be allocated again. So the tag of each frame counts its loans, and a frame that is freed while it is on loan is
//! *late*:
//!
//! ```text
//!                  lend                          free
//!     owned    ───────────► owned, with n loans ──────► late, n loans
//!        ▲     ◄───────────         ▲                       │
//!        │         end              │ end               end │ of the last one
//!        └── alloc ── free ◄────────┼───────────────────────┘
//! ```
//!
//! Each arrow is one atomic step, for one frame. A late frame has no owner, and is charged to the host; there are no
//! more late frames than frames on loan.

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
    /// The address of its first byte.
    pub start: Addr<Hpa>,
    /// Its size in bytes: 1 or more.
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
    /// An empty loan, of `most` pieces at most.
    pub(super) const fn of(shared: Arc<Shared>, hart: usize, most: usize) -> Self {
        Self { shared, hart, pieces: Vec::new(), bytes: 0, most, added: 0 }
    }

    /// Lends `bytes` bytes more, one at least, from `start` on. Returns false, and lends nothing, if the loan has as
    /// many pieces as it may have, or a frame has as many loans as can be counted.
    ///
    /// The owner of the frames does not free them before this has returned. RAM that is not allocated by the frame is
    /// never freed, and may be lent, too.
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

    /// Returns the number of additions: of pieces before adjacent ones were merged.
    #[must_use]
    pub const fn added(&self) -> usize {
        self.added
    }

    /// Returns the pieces on loan, in the order in which they were added. A piece that directly follows the one before
    /// it is merged with it.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the number of bytes on loan.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Shortens the loan to `bytes` bytes at most.
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
    /// Counts a loan of each of those frames, or of none. Returns whether it could.
    fn lend(&self, frames: Range<u64>) -> bool {
        by_block(frames.clone()).all(|(first, pages)| {
            let Some(block) = self.store.block_of(first) else { return true };
            let could = block.lend(within(first, pages));
            could.map_err(|lent| self.end_loans(0, frames.start..first + lent as u64)).is_ok()
        })
    }

    /// Ends a loan of each of those frames.
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

    /// Reverts [`Shared::is_to_be_late`]: the frame is not late, or has been given.
    fn is_late_no_more(&self) {
        self.ledger.discharge(Owner::Host, Use::Other, 1);
        self.late.fetch_sub(1, SeqCst);
    }

    /// Frees frames of which some are on loan; those become free when their last loan ends. The caller has discharged
    /// all of them from their owner's account.
    pub(super) fn free_lent(&self, hart: usize, first: u64, pages: u64) {
        /// Frames that have their bits in one word.
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
