//! Demand: a guest touches memory, and the table learns about it.
//!
//! Each resolution first takes every frame that it will need ([`Supplies`]); if one is missing, all
//! are given back and nothing has changed. From the first store on, nothing can fail.
//!
//! To clear or copy 2 MiB takes long. So a resolution that wants that says so ([`Unresolved::Wants`]) and has changed
//! nothing; the caller makes them ready without any lock, a portion at a time ([`Ready::prepare`]), and tries again with what
//! is [`Ready`].

use super::kept::Kept;
use super::region::{Object, Prot, Region};
use super::space::{
    Ad, AddressSpace, How, Images, OWNED, Publish, ResolveError, Resolved, Superpages, around, arrival, filled,
};
use crate::frames::{Ahead, AllocError, Frames, MEGA_ORDER, Owner, Run, Use};
use crate::stale::Stale;
use crate::table;
use crate::walk::Slot;
use alloc::vec::Vec;
use rv::{Access, Addr, Entry, Gpa, Hpa, Leaf, Level, Pfn, PhysMem, Pte, PteFlags};

/// Frames taken before an edit begins.
struct Supplies {
    tables: Vec<Run>,
    data: Option<Run>,
}

impl Supplies {
    /// Takes `tables` frames for tables and, if wanted, a run of 2^order frames of guest memory.
    fn take(frames: &Frames, owner: Owner, tables: u8, order: Option<u8>) -> Result<Self, AllocError> {
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
    fn with(frames: &Frames, owner: Owner, tables: u8, data: Ahead) -> Result<Self, AllocError> {
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

/// What 2 MiB of guest memory are to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Zeroes.
    Zero,
    /// What the frames from this one on hold: a part of an image.
    Copy(Pfn<Hpa>),
}

/// What has been made ready for a resolution.
#[must_use = "dropping it leaks its frames"]
#[derive(PartialEq, Eq, Debug)]
pub enum Ready {
    /// Nothing yet.
    Nothing,
    /// 2 MiB.
    Mega {
        /// The frames.
        run: Ahead,
        /// What they are to hold.
        content: Content,
        /// How many of them do, from the first on.
        filled: u64,
    },
    /// Nothing, because there are no 2 MiB in one piece.
    Denied,
}

/// Frames that are copied at a time: some 80,000 instructions. What follows in the same exit may take as many (BOUNDED).
const COPIED_AT_ONCE: u64 = 64;

impl Ready {
    /// Goes on to make 2 MiB ready that are to hold `content`: a portion, for which no lock should be held. Says whether they
    /// are ready now, or cannot be.
    #[cold]
    #[inline(never)]
    fn prepare(&mut self, wanted: Content, frames: &Frames, mem: &mut impl PhysMem) -> bool {
        let (run, filled) = match core::mem::replace(self, Ready::Denied) {
            Ready::Mega { run, content, filled } if content == wanted => (run, filled),
            other => {
                other.discard(frames);
                match frames.take_ahead(MEGA_ORDER) {
                    Some(run) => (run, 0),
                    None => return true,
                }
            }
        };
        let to = run.first().add(filled);
        let left = run.pages() - filled;
        let done = match wanted {
            Content::Zero => {
                let pages = left.min(mem.zeroed_at_once());
                mem.zero_frames(to, pages);
                pages
            }
            Content::Copy(from) => {
                let pages = left.min(COPIED_AT_ONCE);
                mem.copy_frames(from.add(filled), to, pages);
                pages
            }
        };
        *self = Ready::Mega { run, content: wanted, filled: filled + done };
        done == left
    }

    /// Whether nothing more can be done to have 2 MiB of that ready.
    fn is_all_for(&self, wanted: Content) -> bool {
        match self {
            Ready::Mega { run, content, filled } => *content == wanted && *filled == run.pages(),
            Ready::Denied => true,
            Ready::Nothing => false,
        }
    }

    /// Gives back what was not needed after all.
    pub fn discard(self, frames: &Frames) {
        if let Ready::Mega { run, .. } = self {
            frames.put_back(run);
        }
    }
}

/// Why nothing is resolved yet. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unresolved<E = ResolveError> {
    /// It cannot be.
    For(E),
    /// 2 MiB are to be made ready first.
    Wants(Content),
}

impl<E: Into<ResolveError>> From<E> for Unresolved {
    fn from(error: E) -> Self {
        Unresolved::For(error.into())
    }
}

impl<E> Unresolved<E> {
    /// The same with another error.
    pub fn map<F>(self, error: impl FnOnce(E) -> F) -> Unresolved<F> {
        match self {
            Unresolved::For(e) => Unresolved::For(error(e)),
            Unresolved::Wants(content) => Unresolved::Wants(content),
        }
    }
}

/// Attempts something. Where it wants 2 MiB made ready, a portion of them is, after the attempt: whatever locks that takes, it
/// has given them back. With the last portion it is attempted anew; before, what is done is left in `ready`, and the result is
/// `None`: the caller comes back with it, and has looked after interrupts in between. What is not used stays there: it is
/// given back by [`Ready::discard`].
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
            Err(Unresolved::For(error)) => return Err(error),
            Ok(value) => return Ok(Some(value)),
        }
    }
}

/// The same, all portions one after another.
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

/// What a resolution gets instead of 2 MiB.
enum NoMega {
    /// They are still to be made ready.
    Wanted(Content),
    /// There are none: 4 KiB will have to do.
    Denied,
}

impl AddressSpace {
    /// Makes `access` to `gpa` possible, if a region allows it: the answer to a guest-page fault.
    ///
    /// An anonymous page is zeroed, an image page mapped read-only, or copied if the access is a
    /// store. Where the policy and the host's memory allow it, 2 MiB at once.
    ///
    /// # Errors
    /// Who is to blame. Nothing has changed then, and no frame is lost.
    pub fn resolve(
        &mut self,
        gpa: Addr<Gpa>,
        access: Access,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved, ResolveError> {
        with_ready(frames, mem, |ready, mem| self.resolve_with(gpa, access, ready, frames, mem))
    }

    /// The same for callers that make 2 MiB ready without their locks. What is left of `ready` in the end is to be
    /// discarded.
    ///
    /// # Errors
    /// As for [`AddressSpace::resolve`]; or that 2 MiB are to be made ready first.
    pub fn resolve_with(
        &mut self,
        gpa: Addr<Gpa>,
        access: Access,
        ready: &mut Ready,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved, Unresolved> {
        let Some(&region) = self.region_of(gpa.pfn()) else { return Ok(Resolved::Hole) };
        if !region.prot.allows(access) {
            self.counters.denied += 1;
            return Err(ResolveError::Denied.into());
        }
        // Regions fit the format, so there is a slot.
        let Some(slot) = self.slot(gpa, mem) else { return Ok(Resolved::Hole) };
        match (slot.entry, region.object) {
            (Entry::Leaf(leaf), _) if access != Access::Store || leaf.flags.contains(PteFlags::W | PteFlags::D) => {
                self.counters.spurious += 1;
                let hpa = arrival(&leaf, slot.level, gpa);
                Ok(filled(hpa, How::Spurious))
            }
            (Entry::Leaf(leaf), _) if leaf.flags.contains(OWNED) => Ok(self.dirty(gpa, (&slot, &leaf), mem)),
            // The region allows stores and the leaf does not: an image page not yet copied.
            (Entry::Leaf(leaf), _) => self.copy_mapped(gpa, &region, (&slot, &leaf), ready, frames, mem),
            _ if slot.pte.0 != 0 => self.bring_back((gpa, access), &slot, mem),
            (_, Object::Anonymous) => self.fill_anonymous((gpa, access), &region, &slot, ready, frames, mem),
            (_, Object::Image { first }) => {
                let image = first.add(gpa.pfn().raw() - region.start.raw());
                if access == Access::Store || self.policy.images == Images::Private {
                    self.copy_unmapped(gpa, &region, (image, &slot), ready, frames, mem)
                } else {
                    self.map_image(gpa, &region, image, &slot, frames, mem)
                }
            }
        }
    }

    /// The entry is invalid, but keeps a page.
    #[cold]
    #[inline(never)]
    fn bring_back(
        &mut self,
        (gpa, access): (Addr<Gpa>, Access),
        slot: &Slot<Hpa>,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved, Unresolved> {
        match Kept::of(slot.pte, slot.level) {
            Kept::Idle(leaf) => Ok(self.revive((gpa, access), (slot, &leaf), mem)),
            Kept::Out(there) => Err(ResolveError::Out { page: gpa.pfn(), slot: there }.into()),
            Kept::Nothing => unreachable!("it is not 0"),
        }
    }

    /// What a store would want made ready to copy 2 MiB of an image that one leaf maps, which is of `level`; unless it is.
    pub(crate) fn wants_first(&self, gpa: Addr<Gpa>, level: Level, ready: &Ready) -> Option<Content> {
        let region = self.region_of(gpa.pfn())?;
        let Object::Image { first } = region.object else { return None };
        let page = self.mega_allowed(gpa.pfn(), region, level)?;
        let wanted = Content::Copy(first.add(page.raw() - region.start.raw()));
        (!ready.is_all_for(wanted)).then_some(wanted)
    }

    fn fill_anonymous(
        &mut self,
        (gpa, access): (Addr<Gpa>, Access),
        region: &Region,
        slot: &Slot<Hpa>,
        ready: &mut Ready,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved, Unresolved> {
        if self.mega_allowed(gpa.pfn(), region, slot.level).is_some() {
            match self.mega(Content::Zero, slot, ready, frames) {
                Ok(supplies) => {
                    self.counters.anonymous_2m += 1;
                    return Ok(self.commit_anonymous((gpa, access), region.prot, Level::MEGA, slot, supplies, mem));
                }
                Err(NoMega::Wanted(content)) => return Err(Unresolved::Wants(content)),
                Err(NoMega::Denied) => {}
            }
        }
        let supplies = Supplies::take(frames, self.owner, below(slot, Level::PAGE), Some(0))?;
        if let Some(page) = &supplies.data {
            mem.zero_frames(page.first(), 1);
        }
        self.counters.anonymous_4k += 1;
        Ok(self.commit_anonymous((gpa, access), region.prot, Level::PAGE, slot, supplies, mem))
    }

    /// What a leaf of 2 MiB takes, if they are ready.
    fn mega(
        &mut self,
        wanted: Content,
        slot: &Slot<Hpa>,
        ready: &mut Ready,
        frames: &Frames,
    ) -> Result<Supplies, NoMega> {
        let supplies = match core::mem::replace(ready, Ready::Nothing) {
            Ready::Mega { run, content, filled } if content == wanted && filled == run.pages() => {
                Supplies::with(frames, self.owner, below(slot, Level::MEGA), run).ok()
            }
            Ready::Denied => {
                *ready = Ready::Denied;
                None
            }
            other => {
                // Not yet, or not this: somebody else was here meanwhile.
                *ready = other;
                return Err(NoMega::Wanted(wanted));
            }
        };
        self.counters.mega_denied += u64::from(supplies.is_none());
        supplies.ok_or(NoMega::Denied)
    }

    /// Maps frames that are ready.
    fn commit_anonymous(
        &mut self,
        (gpa, access): (Addr<Gpa>, Access),
        prot: Prot,
        level: Level,
        slot: &Slot<Hpa>,
        supplies: Supplies,
        mem: &mut impl PhysMem,
    ) -> Resolved {
        let Supplies { tables, data } = supplies;
        let pfn = data.expect("taken with the tables").into_entry();
        let is_clean = self.policy.ad != Ad::AsNeeded && access != Access::Store && self.sees_writes();
        let leaf = if is_clean { self.clean_leaf(pfn, prot) } else { Self::leaf(pfn, prot, OWNED) };
        self.link(gpa, slot, tables, leaf, mem);
        filled(pfn.at(gpa.raw() & (level.bytes() - 1)), How::Filled)
    }

    fn map_image(
        &mut self,
        gpa: Addr<Gpa>,
        region: &Region,
        image: Pfn<Hpa>,
        slot: &Slot<Hpa>,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved, Unresolved> {
        // A 2 MiB leaf needs the image's frames as aligned as the guest's pages.
        let mega = self
            .mega_allowed(gpa.pfn(), region, slot.level)
            .map(|page| Pfn::new(image.raw() - (gpa.pfn().raw() - page.raw())))
            .filter(|pfn: &Pfn<Hpa>| pfn.is_aligned(Level::MEGA.pages()));
        let (level, pfn) = mega.map_or((Level::PAGE, image), |pfn| (Level::MEGA, pfn));
        let supplies = Supplies::take(frames, self.owner, below(slot, level), None)?;
        // OWNERSHIP: never writable, whatever the region says; a store makes a copy.
        let leaf = Self::leaf(pfn, region.prot.difference(Prot::W), PteFlags::empty());
        self.link(gpa, slot, supplies.tables, leaf, mem);
        if level == Level::MEGA {
            self.counters.image_2m += 1
        } else {
            self.counters.image_4k += 1
        }
        Ok(filled(image.at(gpa.page_offset()), How::Filled))
    }

    /// The first touch of an image page is a store. Where nothing of the 2 MiB around it is mapped, all of them
    /// are copied if they may be.
    fn copy_unmapped(
        &mut self,
        gpa: Addr<Gpa>,
        region: &Region,
        (image, slot): (Pfn<Hpa>, &Slot<Hpa>),
        ready: &mut Ready,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved, Unresolved> {
        let supplies = match self.mega_of_image(gpa, region, image, slot, ready, frames) {
            Ok(mega) => (Level::MEGA, mega),
            Err(NoMega::Wanted(content)) => return Err(Unresolved::Wants(content)),
            Err(NoMega::Denied) => {
                let supplies = Supplies::take(frames, self.owner, below(slot, Level::PAGE), Some(0))?;
                if let Some(page) = &supplies.data {
                    mem.copy_frames(image, page.first(), 1);
                }
                (Level::PAGE, supplies)
            }
        };
        // Nothing was mapped; the fence is for instructions: code may be in the copy.
        let stale = Stale::of(around(gpa, supplies.0));
        Ok(self.commit_copy(gpa, region, slot, supplies, stale, mem))
    }

    /// What a copy of the 2 MiB around `gpa` takes, whose page is `image`, if there may be one.
    fn mega_of_image(
        &mut self,
        gpa: Addr<Gpa>,
        region: &Region,
        image: Pfn<Hpa>,
        slot: &Slot<Hpa>,
        ready: &mut Ready,
        frames: &Frames,
    ) -> Result<Supplies, NoMega> {
        let page = self.mega_allowed(gpa.pfn(), region, slot.level).ok_or(NoMega::Denied)?;
        let first = Pfn::new(image.raw() - (gpa.pfn().raw() - page.raw()));
        self.mega(Content::Copy(first), slot, ready, frames)
    }

    /// Tables are linked down to the one for a leaf of `level` that will map a copy. Its entry stays invalid for now.
    /// `stale` is what must be fenced before that changes.
    fn commit_copy(
        &mut self,
        gpa: Addr<Gpa>,
        region: &Region,
        slot: &Slot<Hpa>,
        (level, Supplies { tables, data }): (Level, Supplies),
        stale: Stale<Gpa>,
        mem: &mut impl PhysMem,
    ) -> Resolved {
        let copy = data.expect("taken with the tables").into_entry();
        let at = match tables.last() {
            Some(lowest) => lowest.first().at(8 * self.format.index(gpa, level) as u64),
            None => slot.at,
        };
        if !tables.is_empty() {
            self.link(gpa, slot, tables, Pte::INVALID, mem);
        }
        self.copied(gpa, region, (copy, level), stale, at)
    }

    /// What is left to do about a copy: the fence, then the entry.
    fn copied(
        &mut self,
        gpa: Addr<Gpa>,
        region: &Region,
        (copy, level): (Pfn<Hpa>, Level),
        stale: Stale<Gpa>,
        at: Addr<Hpa>,
    ) -> Resolved {
        if level == Level::MEGA {
            self.counters.copies_2m += 1;
        } else {
            self.counters.copies += 1;
        }
        let publish = Some(Publish { at, leaf: Self::leaf(copy, region.prot, OWNED) });
        Resolved::Mapped { hpa: copy.at(gpa.raw() & (level.bytes() - 1)), how: How::Copied, stale, publish }
    }

    /// A store to an image page that is mapped. A 2 MiB leaf is copied whole if it may be: one that were broken for a
    /// page would never be whole again.
    fn copy_mapped(
        &mut self,
        gpa: Addr<Gpa>,
        region: &Region,
        (slot, leaf): (&Slot<Hpa>, &Leaf<Hpa>),
        ready: &mut Ready,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved, Unresolved> {
        assert!(!leaf.flags.contains(OWNED), "{gpa}: the VM's own page is read-only in a writable region");
        let image = arrival(leaf, slot.level, gpa).pfn();
        let split = slot.level == Level::MEGA;
        if split {
            match self.mega_of_image(gpa, region, image, slot, ready, frames) {
                Ok(supplies) => {
                    let mut stale = Stale::none();
                    let (_, debt) = table::exchange(slot.at, Pte::INVALID, mem);
                    stale.owe(debt, around(gpa, Level::MEGA));
                    return Ok(self.commit_copy(gpa, region, slot, (Level::MEGA, supplies), stale, mem));
                }
                Err(NoMega::Wanted(content)) => return Err(Unresolved::Wants(content)),
                Err(NoMega::Denied) => {}
            }
        }
        let Supplies { mut tables, data } = Supplies::take(frames, self.owner, u8::from(split), Some(0))?;
        let copy = data.expect("taken with the tables").into_entry();
        mem.copy_frames(image, copy, 1);
        let (mut entry, mut at) = (Pte::INVALID, slot.at);
        if let Some(split) = tables.pop() {
            let ours = self.format.index(gpa, Level::PAGE) as u64;
            Self::write_split(&split, leaf, mem, |index| (index == ours).then_some(Pte::INVALID));
            at = split.first().at(8 * ours);
            entry = Entry::Table(split.into_entry()).encode();
            self.counters.splits += 1;
            self.counters.tables += 1;
        }
        let mut stale = Stale::none();
        let (_, debt) = table::exchange(slot.at, entry, mem);
        // Only what was copied has another translation: a 2 MiB leaf that a TLB may still hold agrees with the
        // table that replaces it about the other 511 pages. A fence by address removes a superpage that covers it.
        stale.owe(debt, around(gpa, Level::PAGE));
        Ok(self.copied(gpa, region, (copy, Level::PAGE), stale, at))
    }

    /// The 2 MiB around `page`, if one leaf may map them: by policy, region, and what is there.
    fn mega_allowed(&self, page: Pfn<Gpa>, region: &Region, level: Level) -> Option<Pfn<Gpa>> {
        let allowed = self.policy.superpages == Superpages::Mega && level >= Level::MEGA;
        region.mega_around(page).filter(|_| allowed)
    }

    /// Puts `leaf` below the invalid entry in `slot`, with `tables` between them (the highest first).
    /// The write of `slot`'s entry comes last and publishes all.
    fn link(&mut self, gpa: Addr<Gpa>, slot: &Slot<Hpa>, tables: Vec<Run>, leaf: Pte, mem: &mut impl PhysMem) {
        self.counters.tables += tables.len() as u64;
        let top = tables.first().map_or(leaf, |table| Entry::Table(table.first()).encode());
        let mut level = slot.level;
        let mut tables = tables.into_iter().map(Run::into_entry).peekable();
        while let Some(next) = tables.next() {
            level = level.down().expect("one table for each level below the slot's");
            let entry = tables.peek().map_or(leaf, |below| Entry::Table(*below).encode());
            mem.zero_frames(next, 1);
            table::write_unlinked(next.at(8 * self.format.index(gpa, level) as u64), entry, mem);
        }
        table::fill(slot.at, top, mem);
    }
}

/// Tables needed between an entry and a leaf of `level` below it.
fn below(slot: &Slot<Hpa>, level: Level) -> u8 {
    slot.level.number() - level.number()
}
