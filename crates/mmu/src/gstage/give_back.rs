//! The return of memory by a guest: its pages become untouched again, a portion at a time (BOUNDED), with one fence for
//! each portion.

use super::policy::OWNED;
use super::space::AddressSpace;
use crate::frames::Frames;
use crate::stale::Stale;
use rv::format::ENTRIES;
use rv::{Gpa, Hpa, Level, Pfn, PhysMem, Space};

/// Pages of guest memory that follow one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span<In: Space = Gpa> {
    /// The first one.
    pub start: Pfn<In>,
    /// The number of pages.
    pub pages: u64,
}

/// The result of a portion.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Returned {
    /// The number of pages that are dealt with, from the first one of the first span on, whether they were mapped or
    /// not.
    pub passed: u64,
    /// Frames of guest memory that are free now.
    pub freed: u64,
    /// Pages that were left to the guest: to take them, 2 MiB were to be split, and there was no frame for the table.
    pub kept: u64,
}

impl Returned {
    /// The result for a VM without memory: all pages are dealt with, and none is freed.
    #[must_use]
    pub fn nothing_of<In: Space>(spans: &[Span<In>]) -> Self {
        Self { passed: spans.iter().map(|span| span.pages).sum(), ..Self::default() }
    }
}

/// Pages that are taken in one go.
pub(crate) struct Piece<In: Space> {
    /// The pages that go.
    pub span: Span<In>,
    /// The number of pages that are dealt with once the piece is taken: all of `span`, or 0 if its table goes later,
    /// with the last of its leaves.
    passes: u64,
    /// Set if a table goes, too.
    has_table: bool,
}

/// Goes through spans, in pieces.
pub(crate) struct GiveBack<'a, In: Space> {
    spans: &'a [Span<In>],
    /// Pages of the first of them that are dealt with.
    done: u64,
    returned: Returned,
    stale: Stale<In>,
    /// The steps that may still be done. They are checked between two pieces, so the last one may exceed them.
    steps: u32,
}

/// Steps of a portion, some 12 instructions each.
const STEPS: u32 = 2400;
/// To look for the next piece.
const LOOK: u32 = 12;
/// To count the leaves of a table.
const COUNT: u32 = 300;
/// To take a run of frames.
const TAKE: u32 = 40;
/// To free so many frames, each on its own where some of them are lent.
const FREED: u32 = 8;
/// To split 2 MiB.
const SPLIT: u32 = 900;
/// Runs of frames in one piece at most: 32 take some 20,000 instructions.
const MOST_RUNS: u64 = 32;

impl<'a, In: Space> GiveBack<'a, In> {
    /// A new portion of the work for `spans`.
    pub fn new(spans: &'a [Span<In>]) -> Self {
        Self { spans, done: 0, returned: Returned::default(), stale: Stale::none(), steps: STEPS }
    }

    /// Takes steps from those that may still be done in this portion.
    pub const fn spend(&mut self, steps: u32) {
        self.steps = self.steps.saturating_sub(steps);
    }

    fn pass(&mut self, pages: u64) {
        self.done += pages;
        self.returned.passed += pages;
    }

    /// The next piece; `None` if the portion is over.
    pub fn next(&mut self, space: &AddressSpace<In>, mem: &impl PhysMem) -> Option<Piece<In>> {
        while self.steps != 0 {
            let (span, others) = self.spans.split_first()?;
            if self.done == span.pages {
                (self.spans, self.done) = (others, 0);
                continue;
            }
            self.spend(LOOK);
            let (page, left) = (span.start.add(self.done), span.pages - self.done);
            match self.look(space, page, left, mem) {
                Ok(piece) => return Some(piece),
                Err(nothing) => self.pass(nothing),
            }
        }
        None
    }

    /// The piece that `page` begins, with `left` pages in its span; or so many pages of nothing.
    fn look(
        &mut self,
        space: &AddressSpace<In>,
        page: Pfn<In>,
        left: u64,
        mem: &impl PhysMem,
    ) -> Result<Piece<In>, u64> {
        // Beyond what the format can translate, nothing is.
        let slot = space.slot(page.base(), mem).ok_or(left)?;
        let mut level = slot.level;
        if level > Level::MEGA && slot.pte.flags().contains(OWNED) {
            // It will be broken into such.
            level = Level::MEGA;
        }
        let index = page.raw() % level.pages();
        let there = left.min(level.pages() - index);
        let simple = |pages| Piece { span: Span { start: page, pages }, passes: pages, has_table: false };
        let mega = Level::MEGA.pages();
        if slot.level > Level::PAGE {
            // Nothing, or an image's own frames, which the guest would find there again.
            if !slot.pte.flags().contains(OWNED) && (slot.pte.0 == 0 || space.region_of(page).is_some()) {
                return Err(there);
            }
            // As a whole, or split.
            return Ok(simple(if there == mega { mega } else { there.min(MOST_RUNS) }));
        }
        let index = page.raw() % mega;
        let there = left.min(mega - index);
        if there < mega {
            return Ok(simple(there.min(MOST_RUNS)));
        }
        // All that a table leads to: with the last of its leaves it goes, so that 2 MiB can be there again.
        self.spend(COUNT);
        let table = slot.at.pfn();
        let end = leaves(table, mem).nth(MOST_RUNS as usize);
        Ok(match end {
            Some(end) => Piece { span: Span { start: page, pages: end }, passes: 0, has_table: false },
            None => Piece { span: Span { start: page, pages: mega }, passes: mega, has_table: true },
        })
    }

    /// Takes a piece. No shadow table leads there any more, but TLBs may.
    pub fn take(&mut self, piece: &Piece<In>, space: &mut AddressSpace<In>, frames: &Frames, mem: &mut impl PhysMem) {
        let splits = space.counters.splits + space.counters.splits_1g;
        match space.unmap(piece.span.start, piece.span.pages, frames, mem) {
            Ok(stale) => {
                let frames = stale.retired().iter().map(|run| run.pages()).sum::<u64>();
                self.returned.freed += frames - u64::from(piece.has_table);
                let cost = TAKE * stale.retired().len() as u32
                    + frames as u32 / FREED
                    + SPLIT * (space.counters.splits + space.counters.splits_1g - splits) as u32;
                self.spend(cost);
                self.stale = core::mem::replace(&mut self.stale, Stale::none()).join(stale);
            }
            Err(_) => self.returned.kept += piece.span.pages,
        }
        self.pass(piece.passes);
    }

    /// Ends the portion. The result holds once the [`Stale`] is fenced.
    pub fn finish(self) -> (Returned, Stale<In>) {
        (self.returned, self.stale)
    }
}

/// The indices of the entries in a table of 4 KiB leaves that are not 0.
fn leaves(table: Pfn<Hpa>, mem: &impl PhysMem) -> impl Iterator<Item = u64> {
    (0..ENTRIES as u64).filter(move |index| mem.read_u64(table.at(8 * index)) != 0)
}
