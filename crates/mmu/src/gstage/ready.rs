//! Frames and 2 MiB of content that are taken and made ready before an edit begins.
//!
//! To clear or copy 2 MiB takes long. So a resolution that wants that returns [`Unresolved::Wants`] and has changed
//! nothing; the caller makes them ready without any lock, a portion at a time ([`Ready::prepare`]), and tries again
//! with its [`Ready`]. If idle harts have made 2 MiB of zeroes ([`Frames::make_zeroed`]), they are taken.

use super::space::ResolveError;
use crate::frames::{Ahead, AllocError, Frames, MEGA_ORDER, Owner, Run, Use};
use alloc::vec::Vec;
use rv::{Hpa, Level, Pfn, PhysMem, Space};

/// Frames taken before an edit begins.
pub(super) struct Supplies {
    pub tables: Vec<Run>,
    pub data: Option<Run>,
}

impl Supplies {
    /// Takes `tables` frames for tables and, if wanted, a run of 2^order frames of guest memory.
    pub fn take(frames: &Frames, owner: Owner, tables: u8, order: Option<u8>) -> Result<Self, AllocError> {
        let mut taken = Supplies { tables: Vec::new(), data: None };
        match taken.try_take(frames, owner, tables, order) {
            Ok(()) => Ok(taken),
            Err(error) => {
                taken.tables.into_iter().chain(taken.data).for_each(|run| frames.free(run));
                Err(error)
            }
        }
    }

    fn try_take(&mut self, frames: &Frames, owner: Owner, tables: u8, order: Option<u8>) -> Result<(), AllocError> {
        for _ in 0..tables {
            self.tables.push(frames.alloc(owner, Use::Table, 0)?);
        }
        if let Some(order) = order {
            self.data = Some(frames.alloc(owner, Use::Guest, order)?);
        }
        Ok(())
    }

    /// Takes `tables` frames for tables, and `data` for guest memory.
    pub fn with(frames: &Frames, owner: Owner, tables: u8, data: Ahead) -> Result<Self, AllocError> {
        match Self::take(frames, owner, tables, None) {
            Ok(taken) => match frames.claim(data, owner, Use::Guest) {
                Ok(run) => Ok(Supplies { data: Some(run), ..taken }),
                Err(error) => {
                    taken.tables.into_iter().for_each(|run| frames.free(run));
                    Err(error)
                }
            },
            Err(error) => {
                frames.put_back(data);
                Err(error)
            }
        }
    }
}

/// The content for 2 MiB of guest memory: zeroes, copies of images, or parts of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content([Part; MOST_PARTS]);

/// Parts that 2 MiB may have: some image, what is between, another one, and the rest.
const MOST_PARTS: usize = 4;

/// A part: the page behind its last one, counted from the start of the 2 MiB, and above those bits the home of the original that its
/// first page is a copy of; none if it holds zeroes. One word, because results of faults have it with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part(u64);

impl Part {
    const END_BITS: u32 = 10;
    const NONE: Part = Part(0);

    const fn new(end: u64, from: Option<Pfn<Hpa>>) -> Self {
        let from = match from {
            Some(from) => from.raw(),
            None => 0,
        };
        Part(from << Self::END_BITS | end)
    }

    const fn end(self) -> u64 {
        self.0 & ((1 << Self::END_BITS) - 1)
    }

    const fn from(self) -> Option<Pfn<Hpa>> {
        match self.0 >> Self::END_BITS {
            0 => None,
            frame => Some(Pfn::new(frame)),
        }
    }
}

impl Content {
    /// Nothing yet: parts are to be added until they are 2 MiB.
    pub(super) const EMPTY: Self = Content([Part::NONE; MOST_PARTS]);

    /// Zeroes.
    pub const ZERO: Self = Self::copy_of(None);

    /// One part: a copy of an image, by the home of its first page, or zeroes.
    #[must_use]
    pub const fn copy_of(from: Option<Pfn<Hpa>>) -> Self {
        let mut parts = Self::EMPTY.0;
        parts[0] = Part::new(Level::MEGA.pages(), from);
        Content(parts)
    }

    /// Adds a part up to page `end`: zeroes, or a copy of the originals from home `from` on. `None` if that would be
    /// too many parts.
    pub(super) fn with(mut self, end: u64, from: Option<Pfn<Hpa>>) -> Option<Self> {
        let known = self.0.iter().take_while(|part| part.end() != 0).count();
        match known.checked_sub(1).map(|last| &mut self.0[last]) {
            Some(last) if last.from().is_none() && from.is_none() => *last = Part::new(end, None),
            _ => *self.0.get_mut(known)? = Part::new(end, from),
        }
        Some(self)
    }

    /// The pages from number `at` on that are alike, and the home of what the first one of them is a copy of.
    fn part_at(&self, at: u64) -> (u64, Option<Pfn<Hpa>>) {
        let mut start = 0;
        for part in self.0 {
            if at < part.end() {
                return (part.end() - at, part.from().map(|from| from.add(at - start)));
            }
            start = part.end();
        }
        (Level::MEGA.pages() - at, None)
    }

    /// Returns whether a part of it is a copy of an image.
    pub(super) fn has_image(&self) -> bool {
        self.0.iter().any(|part| part.from().is_some())
    }

    /// The image whose copy all of it is, by the home of its first page.
    pub(super) fn image(&self) -> Option<Pfn<Hpa>> {
        self.0[0].from().filter(|_| self.0[0].end() == Level::MEGA.pages())
    }
}

/// The memory that has been made ready for a resolution.
#[must_use = "dropping it leaks its frames"]
#[derive(PartialEq, Eq, Debug)]
pub enum Ready {
    /// Nothing yet.
    Nothing,
    /// 2 MiB.
    Mega {
        /// The frames.
        run: Ahead,
        /// The content that they are to hold.
        content: Content,
        /// The number of frames that hold it already, from the first on.
        filled: u64,
        /// The originals' epoch when that was begun: no lock is held meanwhile.
        epoch: u64,
    },
    /// Nothing, because there are no 2 MiB in one piece: for a while.
    Denied,
    /// Nothing, and nothing is to be: for accesses that cannot wait for portions. It stays so.
    Never,
}

/// Frames that are copied at a time: some 80,000 instructions. What follows in the same exit may take as many (BOUNDED).
pub(super) const COPIED_AT_ONCE: u64 = 64;

impl Ready {
    /// Begins to make zeroes ready in `run`, which must be 2 MiB.
    pub const fn zeroes_in(run: Ahead) -> Self {
        // No image takes part, so no epoch matters.
        Ready::Mega { run, content: Content::ZERO, filled: 0, epoch: 0 }
    }

    /// Does a portion of making 2 MiB of content `wanted` ready, for which no lock should be held. Returns whether they
    /// are ready now, or cannot be.
    #[cold]
    #[inline(never)]
    fn prepare(&mut self, wanted: Content, frames: &Frames, mem: &mut impl PhysMem) -> bool {
        let originals = frames.originals();
        let (run, filled, epoch) = match core::mem::replace(self, Ready::Denied) {
            Ready::Mega { run, content, filled, epoch } if content == wanted => (run, filled, epoch),
            other => {
                other.discard(frames);
                if wanted == Content::ZERO
                    && let Some(run) = frames.take_zeroed()
                {
                    let filled = run.pages();
                    *self = Ready::Mega { run, content: wanted, filled, epoch: 0 };
                    return true;
                }
                match frames.take_ahead(MEGA_ORDER) {
                    Some(run) => (run, 0, originals.epoch()),
                    None => return true,
                }
            }
        };
        let to = run.first().add(filled);
        let left = run.pages() - filled;
        let (alike, from) = wanted.part_at(filled);
        let done = match from {
            None => {
                let pages = alike.min(mem.zeroed_at_once());
                mem.zero_frames(to, pages);
                pages
            }
            Some(from) => {
                let pages = alike.min(COPIED_AT_ONCE);
                if !originals.copy(from, to, pages, mem) {
                    // Memory is short: those that are needed come one by one.
                    frames.put_back(run);
                    return true;
                }
                pages
            }
        };
        *self = Ready::Mega { run, content: wanted, filled: filled + done, epoch };
        done == left
    }

    /// Returns whether nothing more can be done to have 2 MiB of that content ready.
    pub(super) fn is_all_for(&self, wanted: Content) -> bool {
        match self {
            Ready::Mega { run, content, filled, .. } => *content == wanted && *filled == run.pages(),
            Ready::Denied | Ready::Never => true,
            Ready::Nothing => false,
        }
    }

    /// Returns whether pages come by 4 KiB.
    pub(super) fn is_denied(&self) -> bool {
        matches!(self, Ready::Denied | Ready::Never)
    }

    /// Gives back what was not needed after all.
    pub fn discard(self, frames: &Frames) {
        if let Ready::Mega { run, .. } = self {
            frames.put_back(run);
        }
    }
}

/// The reason why nothing is resolved yet. The guest sees no change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unresolved<E = ResolveError> {
    /// The resolution has failed.
    For(E),
    /// 2 MiB are to be made ready first.
    Wants(Content),
    /// The resolution takes long, and a part of it is done: the next attempt goes on with it.
    Later,
}

impl<E: Into<ResolveError<In>>, In: Space> From<E> for Unresolved<ResolveError<In>> {
    fn from(error: E) -> Self {
        Unresolved::For(error.into())
    }
}

impl<E> Unresolved<E> {
    /// Maps the error.
    pub fn map<F>(self, error: impl FnOnce(E) -> F) -> Unresolved<F> {
        match self {
            Unresolved::For(e) => Unresolved::For(error(e)),
            Unresolved::Wants(content) => Unresolved::Wants(content),
            Unresolved::Later => Unresolved::Later,
        }
    }
}

/// Runs `attempt`. If it wants 2 MiB made ready, a portion of them is, after the attempt has released its locks. After
/// the last portion it is attempted anew. Before that, and if the attempt itself has done a part, the result is `None`:
/// the work so far is left in `ready`, and the caller calls again with it after it has serviced interrupts. What is
/// not used stays in `ready`, and is given back by [`Ready::discard`].
///
/// # Errors
/// The attempt's.
pub fn in_portions<T, E, M: PhysMem>(
    frames: &Frames,
    mem: &mut M,
    ready: &mut Ready,
    mut attempt: impl FnMut(&mut Ready, &mut M) -> Result<T, Unresolved<E>>,
) -> Result<Option<T>, E> {
    loop {
        match attempt(ready, mem) {
            Err(Unresolved::Wants(content)) => {
                if !ready.prepare(content, frames, mem) {
                    return Ok(None);
                }
            }
            Err(Unresolved::Later) => return Ok(None),
            Err(Unresolved::For(error)) => return Err(error),
            Ok(value) => return Ok(Some(value)),
        }
    }
}

/// Like [`in_portions`], but does all portions one after another.
///
/// # Errors
/// The attempt's.
pub fn with_ready<T, E, M: PhysMem>(
    frames: &Frames,
    mem: &mut M,
    mut attempt: impl FnMut(&mut Ready, &mut M) -> Result<T, Unresolved<E>>,
) -> Result<T, E> {
    let mut ready = Ready::Nothing;
    let result = loop {
        match in_portions(frames, mem, &mut ready, &mut attempt) {
            Ok(None) => {}
            Ok(Some(value)) => break Ok(value),
            Err(error) => break Err(error),
        }
    };
    ready.discard(frames);
    result
}
