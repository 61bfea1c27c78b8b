//! Pages that hardware cannot use, but that are not gone: the entry is invalid and keeps what is needed to bring them back.
//!
//! ```text
//!            touch              rest                take_out
//!  untouched ─────► mapped  ◄─────────►  idle  ─────────────►  out ──► bring_in: mapped, or idle if it
//!      ▲                      touch        │                           comes ahead (another frame)
//!      └───────────────────────────────────┘ take_out of a page that holds zeroes
//! ```
//!
//! | entry | V | what it keeps |
//! |---|---|---|
//! | untouched | 0 | nothing: all bits are 0 |
//! | mapped | 1 | a leaf, and whether it is warm: used again after it had been idle |
//! | idle | 0 | the leaf without V: the frame is still the VM's; and how often a sweep is still to spare it |
//! | out | 0 | the number of a page of the swap device, and its mark |
//!
//! An idle page is how Gnomon learns whether a guest uses a page that hardware sets no A bit for: V stands in for A
//! (*Nested Paging in bhyve*, section on A/D emulation). The next access is a fault that the entry alone answers.

use super::edit;
use super::policy::{Ad, OWNED, Policy};
use super::region::Object;
use super::space::{AddressSpace, How, Resolved, SwapSlot, Translation, around, arrival, filled, order};
use crate::frames::{Ahead, Frames, Run, Use};
use crate::stale::Stale;
use crate::walk::Slot;
use core::ops::Range;
use rv::{Access, Addr, Caps, Entry, Hpa, Leaf, Level, Pfn, PhysMem, Pte, PteFlags, Space};

/// The circumstances in which a page comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comes {
    /// The guest has asked for it.
    Wanted,
    /// The page is brought in ahead of that: idle, so that its use shows.
    Ahead,
    /// The page has never gone: the device has no copy that is of use.
    Unwritten,
}

/// The mark of an entry whose page is out: the software bit that [`OWNED`] is not.
const OUT: PteFlags = PteFlags::RSW1;
/// The mark of one whose page has changed since it was collected ([`super::dirty`]).
pub(super) const OUT_CHANGED: PteFlags = PteFlags::D;

/// The content of an invalid entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// Nothing: it is untouched.
    Nothing,
    /// A page of the VM's, still in memory.
    Idle(Leaf<Hpa>),
    /// A page on the swap device.
    Out(SwapSlot),
}

impl Kept {
    /// Returns what `pte` of `level` keeps; nothing if it is valid.
    #[inline(always)]
    pub fn of(pte: Pte, level: Level) -> Self {
        if pte.0 == 0 || pte.flags().contains(PteFlags::V) { Kept::Nothing } else { Self::decode(pte, level) }
    }

    #[cold]
    #[inline(never)]
    fn decode(pte: Pte, level: Level) -> Self {
        let flags = pte.flags();
        if flags.contains(OUT) {
            return Kept::Out(SwapSlot(pte.pfn::<Hpa>().raw()));
        }
        match Pte(pte.0 & !(SPARED_MASK | UNASKED) | PteFlags::V.bits())
            .decode::<Hpa>(level, Caps { svnapot: false, svpbmt: false })
        {
            Entry::Leaf(leaf) if flags.contains(OWNED) => Kept::Idle(leaf),
            _ => panic!("an invalid entry that is never made in a G-stage table"),
        }
    }
}

/// The mark of a leaf that is *warm*: its page was used again after it had been idle. In an invalid entry that bit is [`OUT`].
const WARM: PteFlags = PteFlags::RSW1;
/// The number of times that a sweep spares an idle page that was warm, beyond those for which it spares all pages: so a
/// page that is used again and again outlasts many that are used once. (FreeBSD's `act_count`, as far as a bit of the
/// leaf can tell.)
const SPARED: u64 = 2;
/// The position of an idle entry's count of the times that it is still to be spared: bits that are reserved in a leaf.
const SPARED_SHIFT: u32 = 54;
const SPARED_MASK: u64 = 3 << SPARED_SHIFT;
/// The mark of an idle entry whose page was brought in before any access to it: its first use does not make it warm.
const UNASKED: u64 = 1 << 56;

/// The position of an entry's page number.
const PPN_SHIFT: u32 = 10;

/// The entry of a leaf that is idle.
const fn idle(leaf: Pte) -> Pte {
    let spared = if leaf.flags().contains(WARM) { SPARED } else { 0 };
    Pte(leaf.0 & !PteFlags::V.union(WARM).bits() | spared << SPARED_SHIFT)
}

/// The entry of a page that is out.
const fn out(SwapSlot(number): SwapSlot) -> Pte {
    Pte(number << PPN_SHIFT | OUT.bits())
}

/// The finding of the search for unused pages at a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    /// Nothing that could go: no memory, a shared image, a page that is out, wired memory.
    Nothing,
    /// A page, or 2 MiB, that the guest may use without a fault.
    Mapped(Level),
    /// One that it has not used since [`AddressSpace::rest`].
    Idle(Level),
}

impl<In: Space> AddressSpace<In> {
    /// Returns what can be taken at `page`, and the first page behind it that has an entry of its own.
    #[must_use]
    pub fn look(&self, page: Pfn<In>, mem: &impl PhysMem) -> (Sight, Pfn<In>) {
        let Some(slot) = self.slot(page.base(), mem) else { return (Sight::Nothing, page.add(1)) };
        let next = page.align_down(slot.level.pages()).add(slot.level.pages());
        let sight = match (slot.entry, Kept::of(slot.pte, slot.level)) {
            _ if self.is_wired() => Sight::Nothing,
            (Entry::Leaf(leaf), _) if leaf.flags.contains(OWNED) => Sight::Mapped(slot.level),
            (_, Kept::Idle(_)) => Sight::Idle(slot.level),
            _ => Sight::Nothing,
        };
        (sight, next)
    }

    /// The page of the swap device that `page` is on, if it is out.
    #[must_use]
    pub fn is_out(&self, page: Pfn<In>, mem: &impl PhysMem) -> Option<SwapSlot> {
        let slot = self.slot(page.base(), mem)?;
        match Kept::of(slot.pte, slot.level) {
            Kept::Out(there) => Some(there),
            _ => None,
        }
    }

    /// Returns the place of `gpa` in memory, whether the guest would get there without a fault or not. Changes nothing.
    #[must_use]
    pub fn resident(&self, gpa: Addr<In>, mem: &impl PhysMem) -> Option<Translation> {
        self.translate(gpa, mem).or_else(|| {
            let slot = if self.format.fits(gpa) { self.slot(gpa, mem)? } else { return None };
            match Kept::of(slot.pte, slot.level) {
                Kept::Idle(Leaf { pfn, flags, .. }) => {
                    Some(Translation { hpa: pfn.at(gpa.raw() & (slot.level.bytes() - 1)), flags, level: slot.level })
                }
                _ => None,
            }
        })
    }

    /// Makes the mapped page, or 2 MiB, that [`AddressSpace::look`] has found at `page` idle. An image's own page is
    /// untouched again instead ([`AddressSpace::look_for_original`]). The change is in force once the result is fenced.
    ///
    /// # Panics
    /// If it is not mapped.
    pub fn rest(&mut self, page: Pfn<In>, mem: &mut impl PhysMem) -> Stale<In> {
        let Some(slot @ Slot { entry: Entry::Leaf(leaf), .. }) = self.slot(page.base(), mem) else {
            panic!("{page:?} is not mapped")
        };
        self.disturb(&(page.raw()..page.raw() + 1));
        let mut stale = Stale::none();
        // Hardware may set D until then.
        let (now, debt) = edit::exchange(slot.at, Pte::INVALID, mem);
        stale.owe(debt, around(page.base(), slot.level));
        if !leaf.flags.contains(OWNED) {
            return stale;
        }
        // First its A is cleared. If it is still clear the next time, the page has not been used.
        let has_been_used = self.policy.ad == Ad::Hardware && now.flags().contains(PteFlags::A);
        let next = if has_been_used { Pte(now.0 & !PteFlags::A.bits()) } else { idle(now) };
        edit::fill(slot.at, next, mem);
        self.counters.rested += 1;
        stale
    }

    /// Returns whether a sweep is to spare the idle page at `page` this time, because it was used often; if so, counts
    /// it as spared.
    pub fn spare(&mut self, page: Pfn<In>, mem: &mut impl PhysMem) -> bool {
        let Some(slot) = self.slot(page.base(), mem) else { return false };
        let is_idle = matches!(Kept::of(slot.pte, slot.level), Kept::Idle(_));
        if !is_idle || slot.pte.0 & SPARED_MASK == 0 {
            return false;
        }
        edit::fill(slot.at, Pte(slot.pte.0 - (1 << SPARED_SHIFT)), mem);
        true
    }

    fn idle_slot(&self, page: Pfn<In>, level: Level, mem: &impl PhysMem) -> (Slot<Hpa>, Leaf<Hpa>) {
        if let Some(slot) = self.slot(page.base(), mem)
            && slot.level == level
            && let Kept::Idle(leaf) = Kept::of(slot.pte, level)
        {
            return (slot, leaf);
        }
        panic!("{page:?} is not an idle page of level {level:?}")
    }

    /// Breaks idle 2 MiB around `page` into idle pages of 4 KiB. `table` was taken ahead of need: when memory has run out there
    /// would be none. The VM gets it even if it has all that it may have, since it is about to have less.
    ///
    /// # Panics
    /// If there are no idle 2 MiB.
    pub fn split_idle(&mut self, page: Pfn<In>, table: Ahead, frames: &Frames, mem: &mut impl PhysMem) {
        let (slot, leaf) = self.idle_slot(page, Level::MEGA, mem);
        let split = frames.claim_beyond(table, self.owner, Use::Table);
        let page_of = |index| Entry::Leaf(Leaf { pfn: leaf.pfn.add(index), ..leaf }).encode();
        Self::write_split(&split, &leaf, mem, |index| Some(idle(page_of(index))));
        edit::fill(slot.at, Entry::Table(split.into_entry()).encode(), mem);
        self.counters.splits += 1;
        self.counters.tables += 1;
    }

    /// Returns whether a page is zeroes until it is first touched: not if it is an image's.
    #[must_use]
    pub fn begins_as_zeroes(&self, page: Pfn<In>) -> bool {
        self.region_of(page).is_some_and(|region| region.object == Object::Anonymous)
    }

    /// Takes the idle 4 KiB at `page` out of memory: to the swap device, or nowhere, if they hold zeroes and [began
    /// so](AddressSpace::begins_as_zeroes): then the page is untouched again. The frame is the VM's until it is freed;
    /// the guest cannot reach it, since the result of [`AddressSpace::rest`] is fenced.
    ///
    /// # Panics
    /// If the page is not idle; or would be an image's again.
    #[must_use = "the frame is to be freed when its contents are where they should be"]
    pub fn take_out(&mut self, page: Pfn<In>, to: Option<SwapSlot>, mem: &mut impl PhysMem) -> Run {
        let (slot, leaf) = self.idle_slot(page, Level::PAGE, mem);
        assert!(
            to.is_some() || self.begins_as_zeroes(page),
            "{page:?} is zeroes now, and an image's if it is untouched"
        );
        let mut entry = to.map_or(Pte::INVALID, out);
        if to.is_some() && self.is_logged() && leaf.flags.contains(self.mark()) {
            entry.0 |= OUT_CHANGED.bits();
        }
        edit::fill(slot.at, entry, mem);
        match to {
            Some(_) => self.counters.swapped_out += 1,
            None => self.counters.zero_pages += 1,
        }
        self.forgo_copy(page);
        Run::from_entry(leaf.pfn, 0)
    }

    /// Like [`AddressSpace::take_out`], to the copy of the page that the swap device still has, so that nothing has to
    /// be written. The frame is to be freed. `None` if there is no current copy: then the page stays.
    ///
    /// # Panics
    /// If the page is not idle.
    pub fn take_out_clean(&mut self, page: Pfn<In>, mem: &mut impl PhysMem) -> Option<Run> {
        let (slot, leaf) = self.idle_slot(page, Level::PAGE, mem);
        let copy = self.copies.remove(&page.raw())?;
        if leaf.flags.contains(PteFlags::D) {
            // Only where D is the hardware's: otherwise a write is a fault, which gives up the copy.
            self.forgone.push(copy);
            return None;
        }
        edit::fill(slot.at, out(copy), mem);
        self.counters.swapped_out += 1;
        self.counters.clean += 1;
        Some(Run::from_entry(leaf.pfn, 0))
    }

    /// Returns the number of pages in memory of which the swap device has a copy.
    #[must_use]
    pub fn copy_count(&self) -> u64 {
        self.copies.len() as u64
    }

    /// Returns whether the swap device has copies of some of the 2 MiB from `first` on, which are in memory.
    pub(super) fn has_copies(&self, first: Pfn<In>) -> bool {
        let pages = first.raw()..first.raw() + Level::MEGA.pages();
        !self.copies.is_empty() && self.copies.range(pages).next().is_some()
    }

    /// Gives up copies of pages in memory beyond so many: they take memory of the host's own.
    /// The highest go: a sweep comes to the others first, and has no use for a copy that was given up before.
    pub fn keep_copies(&mut self, most: u64) {
        while self.copy_count() > most
            && let Some((_, slot)) = self.copies.pop_last()
        {
            self.forgone.push(slot);
        }
    }

    /// Gives up a copy that the swap device has of some page that is in memory: its place is needed.
    pub fn give_up_copy(&mut self) -> Option<SwapSlot> {
        self.copies.pop_first().map(|(_, slot)| slot)
    }

    /// Gives up the swap device's copy of the page, which is out of date.
    fn forgo_copy(&mut self, page: Pfn<In>) {
        if !self.copies.is_empty() {
            self.forgone.extend(self.copies.remove(&page.raw()));
        }
    }

    /// Gives up the swap device's copies of the pages of a range, which are out of date.
    pub(super) fn forgo_copies(&mut self, range: &Range<u64>) {
        while let Some((page, _)) = self.copies.range(range.clone()).next() {
            self.forgo_copy(Pfn::new(*page));
        }
    }

    /// The frame of the idle 4 KiB at `page`.
    ///
    /// # Panics
    /// If the page is not idle.
    #[must_use]
    pub fn frame_of_idle(&self, page: Pfn<In>, mem: &impl PhysMem) -> Pfn<Hpa> {
        self.idle_slot(page, Level::PAGE, mem).1.pfn
    }

    /// Brings a page back that is out: `frame` holds its contents, and is the VM's. What is fenced is for instructions: code may
    /// be in it that harts have never been told of.
    ///
    /// The copy that the device has is kept, or the slot is forgone ([`AddressSpace::take_forgone`]).
    ///
    /// # Errors
    /// The frame, if the page is not out there any more.
    pub fn bring_in(
        &mut self,
        page: Pfn<In>,
        from: SwapSlot,
        (frame, comes): (Run, Comes),
        mem: &mut impl PhysMem,
    ) -> Result<Stale<In>, Run> {
        if self.is_out(page, mem) != Some(from) {
            return Err(frame);
        }
        let (Some(slot), Some(region)) = (self.slot(page.base(), mem), self.region_of(page)) else { return Err(frame) };
        // One that has changed since it was collected has to have W, which one of which the device has a copy has not.
        let has_changed = self.is_logged() && slot.pte.flags().contains(OUT_CHANGED);
        let is_copied = comes != Comes::Unwritten && self.policy.sees_writes() && !has_changed;
        let frame = frame.into_entry();
        let leaf = if is_copied {
            self.policy.clean_leaf(frame, region.prot)
        } else {
            Policy::leaf(frame, region.prot, OWNED)
        };
        edit::fill(slot.at, if comes == Comes::Ahead { Pte(idle(leaf).0 | UNASKED) } else { leaf }, mem);
        if is_copied {
            self.copies.insert(page.raw(), from);
        } else if comes != Comes::Unwritten {
            self.forgone.push(from);
        }
        self.counters.swapped_in += u64::from(comes != Comes::Unwritten);
        Ok(Stale::of(around(page.base(), Level::PAGE)))
    }

    /// The guest writes to a page that lacks W so that this shows.
    #[cold]
    #[inline(never)]
    pub(super) fn dirty(
        &mut self,
        gpa: Addr<In>,
        (slot, leaf): (&Slot<Hpa>, &Leaf<Hpa>),
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Resolved<In> {
        if self.is_logged() && slot.level > Level::PAGE {
            return self.dirty_part(gpa, (slot, leaf), frames, mem);
        }
        self.dirty_whole(gpa, (slot, leaf), mem);
        filled(arrival(leaf, slot.level, gpa), How::Spurious)
    }

    /// Lets the guest write to all that the leaf maps.
    pub(super) fn dirty_whole(
        &mut self,
        gpa: Addr<In>,
        (slot, leaf): (&Slot<Hpa>, &Leaf<Hpa>),
        mem: &mut impl PhysMem,
    ) {
        let flags = leaf.flags | PteFlags::W | PteFlags::D;
        let (_, debt) = edit::exchange(slot.at, Entry::Leaf(Leaf { flags, ..*leaf }).encode(), mem);
        // It allows more than before: a hart that remembers less faults, and finds that.
        let _ = debt.waive();
        self.forgo_copy(gpa.pfn());
        self.mappers.dirtied(gpa.pfn());
        self.counters.dirtied += u64::from(!leaf.flags.contains(PteFlags::W));
    }

    /// The guest touches an idle page: it is mapped again, in the same frame.
    #[cold]
    pub(super) fn revive(
        &mut self,
        (gpa, access): (Addr<In>, Access),
        (slot, leaf): (&Slot<Hpa>, &Leaf<Hpa>),
        mem: &mut impl PhysMem,
    ) -> Resolved<In> {
        let mut flags = leaf.flags | PteFlags::A;
        flags.set(WARM, slot.pte.0 & UNASKED == 0);
        if access == Access::Store {
            // The caller may store without another fault: Gnomon does.
            self.counters.dirtied += u64::from(!flags.contains(PteFlags::W));
            flags |= PteFlags::W | PteFlags::D;
            self.forgo_copy(gpa.pfn());
            self.mappers.dirtied(gpa.pfn());
        }
        edit::fill(slot.at, Entry::Leaf(Leaf { flags, ..*leaf }).encode(), mem);
        self.counters.revived += 1;
        filled(arrival(leaf, slot.level, gpa), How::Filled)
    }
}

/// The frames of an idle leaf of `level`.
pub(super) const fn run_of(leaf: &Leaf<Hpa>, level: Level) -> Run {
    Run::from_entry(leaf.pfn, order(level))
}
