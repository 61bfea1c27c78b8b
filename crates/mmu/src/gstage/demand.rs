//! Demand: a guest touches memory, and the table learns about it.
//!
//! Each resolution first takes every frame that it will need ([`Supplies`]); if one is missing, all
//! are given back and nothing has changed. From the first store on, nothing can fail.
//!
//! Where one leaf of 2 MiB may map what is there, it does ([`super::mega`]): also where an image ends and other memory begins, and
//! where some pages of an image are mapped by 4 KiB leaves already.

use super::edit;
use super::kept::Kept;
use super::mega::{NoMega, Small};
use super::policy::{Images, OWNED, Policy, Superpages};
use super::ready::{Content, Ready, Supplies, Unresolved, with_ready};
use super::region::{Object, Prot, Region};
use super::space::{AddressSpace, How, Publish, ResolveError, Resolved, Taken, around, arrival, filled};
use crate::frames::{Frames, Run};
use crate::stale::Stale;
use crate::table;
use crate::walk::Slot;
use alloc::boxed::Box;
use alloc::vec::Vec;
use rv::{Access, Addr, Entry, Hpa, Leaf, Level, Pfn, PhysMem, Pte, PteFlags, Space};

impl<In: Space> AddressSpace<In> {
    /// Makes `access` to `gpa` possible, if a region allows it: the answer to a guest-page fault.
    ///
    /// An anonymous page is zeroed, an image page mapped read-only, or copied if the access is a store. Where the
    /// policy and the host's memory allow it, 2 MiB at once.
    ///
    /// # Errors
    /// The cause: the guest's access, or the memory that is missing. Nothing has changed then, and no frame is lost.
    pub fn resolve(
        &mut self,
        gpa: Addr<In>,
        access: Access,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved<In>, ResolveError<In>> {
        with_ready(frames, mem, |ready, mem| self.resolve_with(gpa, access, ready, frames, mem))
    }

    /// Like [`AddressSpace::resolve`], but the caller prepares 2 MiB of content outside its locks and passes it in
    /// `ready`. The caller discards what is left of `ready` in the end.
    ///
    /// # Errors
    /// As for [`AddressSpace::resolve`]; or that 2 MiB are to be made ready first.
    pub fn resolve_with(
        &mut self,
        gpa: Addr<In>,
        access: Access,
        ready: &mut Ready,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved<In>, Unresolved<ResolveError<In>>> {
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
            (Entry::Leaf(leaf), _) if leaf.flags.contains(OWNED) => Ok(self.dirty(gpa, (&slot, &leaf), frames, mem)),
            // The region allows stores and the leaf does not: an image page not yet copied.
            (Entry::Leaf(leaf), _) => self.copy_mapped(gpa, &region, (&slot, &leaf), ready, frames, mem),
            _ if slot.pte.0 != 0 => self.bring_back((gpa, access), &slot, mem),
            (_, object) => {
                if self.may_be_mega(access, &region, &slot)
                    && let Some((content, small)) = self.mega_at(gpa, access, &slot, mem)
                {
                    match self.mega(content, &slot, ready, frames) {
                        Ok(supplies) => {
                            let how = (content, small);
                            return Ok(self.commit_mega((gpa, access), &region, &slot, how, supplies, mem));
                        }
                        Err(NoMega::Wanted(content)) => return Err(Unresolved::Wants(content)),
                        Err(NoMega::Denied) => {}
                    }
                }
                match object {
                    Object::Anonymous => self.fill_anonymous((gpa, access), &region, &slot, frames, mem),
                    Object::Image { first } => {
                        let home = first.add(gpa.pfn().raw() - region.start.raw());
                        // Before frames are taken: where they are short, it has to come first.
                        let Some(image) = frames.originals().find(home) else {
                            // 2 MiB could not be copied without this original: later attempts may succeed.
                            if *ready == Ready::Denied {
                                *ready = Ready::Nothing;
                            }
                            return Err(ResolveError::OriginalOut { page: gpa.pfn(), home }.into());
                        };
                        if self.is_copied_by(access) {
                            self.copy_unmapped(gpa, &region, (image, &slot), frames, mem)
                        } else {
                            self.map_image(gpa, &region, image, &slot, frames, mem)
                        }
                    }
                }
            }
        }
    }

    /// Returns whether a page of an image that is not mapped is copied at such an access.
    fn is_copied_by(&self, access: Access) -> bool {
        access == Access::Store || self.policy.images == Images::Private
    }

    /// The entry is invalid, but keeps a page.
    #[cold]
    #[inline(never)]
    fn bring_back(
        &mut self,
        (gpa, access): (Addr<In>, Access),
        slot: &Slot<Hpa>,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved<In>, Unresolved<ResolveError<In>>> {
        match Kept::of(slot.pte, slot.level) {
            Kept::Idle(leaf) => Ok(self.revive((gpa, access), (slot, &leaf), mem)),
            Kept::Out(there) => Err(ResolveError::Out { page: gpa.pfn(), slot: there }.into()),
            Kept::Nothing => unreachable!("it is not 0"),
        }
    }

    /// Returns whether 2 MiB may be mapped where nothing is: a first check, with which most faults of 4 KiB end.
    #[inline(always)]
    fn may_be_mega(&self, access: Access, region: &Region<In>, slot: &Slot<Hpa>) -> bool {
        let in_place_of_small = || region.object != Object::Anonymous && self.is_copied_by(access);
        self.policy.superpages != Superpages::Never && (slot.level >= Level::MEGA || in_place_of_small())
    }

    /// Returns the content for 2 MiB of the VM's own around `gpa`, where nothing is mapped, and the 4 KiB leaves that
    /// they are to replace. Pages that are only read of an image that fills them stay the image's.
    #[inline(never)]
    fn mega_at(
        &self,
        gpa: Addr<In>,
        access: Access,
        slot: &Slot<Hpa>,
        mem: &impl PhysMem,
    ) -> Option<(Content, Option<Small>)> {
        let (_, content) = self.mega_around(gpa.pfn())?;
        if content.image().is_some() && !self.is_copied_by(access) {
            return None;
        }
        let small = if slot.level < Level::MEGA { Some(self.small(gpa.pfn(), mem)?) } else { None };
        Some((content, small))
    }

    /// Maps 2 MiB that are ready.
    #[inline(never)]
    fn commit_mega(
        &mut self,
        (gpa, access): (Addr<In>, Access),
        region: &Region<In>,
        slot: &Slot<Hpa>,
        (content, small): (Content, Option<Small>),
        supplies: Supplies,
        mem: &mut impl PhysMem,
    ) -> Resolved<In> {
        match small {
            Some(small) => self.copy_small(gpa, region, small, supplies, mem),
            None if content == Content::ZERO => {
                self.counters.anonymous_2m += 1;
                self.commit_anonymous((gpa, access), region.prot, Level::MEGA, slot, supplies, mem)
            }
            None => {
                // Nothing was mapped; the fence is for instructions: code may be in the copy.
                let stale = Stale::of(around(gpa, Level::MEGA));
                self.commit_copy(gpa, region, slot, (Level::MEGA, supplies), stale, mem)
            }
        }
    }

    /// A copy of 2 MiB comes in the place of 4 KiB leaves.
    fn copy_small(
        &mut self,
        gpa: Addr<In>,
        region: &Region<In>,
        small: Small,
        Supplies { data, .. }: Supplies,
        mem: &mut impl PhysMem,
    ) -> Resolved<In> {
        let copy = data.expect("taken ahead").into_entry();
        let at = small.at;
        let (stale, taken) = self.replace(small, copy, mem);
        self.copied(gpa, region, (copy, Level::MEGA), stale, (at, taken))
    }

    fn fill_anonymous(
        &mut self,
        (gpa, access): (Addr<In>, Access),
        region: &Region<In>,
        slot: &Slot<Hpa>,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved<In>, Unresolved<ResolveError<In>>> {
        let supplies = Supplies::take(frames, self.owner, below(slot, Level::PAGE), Some(0))?;
        if let Some(page) = &supplies.data {
            mem.zero_frames(page.first(), 1);
        }
        self.counters.anonymous_4k += 1;
        Ok(self.commit_anonymous((gpa, access), region.prot, Level::PAGE, slot, supplies, mem))
    }

    /// Maps frames that are ready.
    fn commit_anonymous(
        &mut self,
        (gpa, access): (Addr<In>, Access),
        prot: Prot,
        level: Level,
        slot: &Slot<Hpa>,
        supplies: Supplies,
        mem: &mut impl PhysMem,
    ) -> Resolved<In> {
        let Supplies { tables, data } = supplies;
        let pfn = data.expect("taken with the tables").into_entry();
        let leaf = self.policy.first_leaf(pfn, (prot, access), self.is_logged);
        self.link(gpa, slot, tables, leaf, mem);
        filled(pfn.at(gpa.raw() & (level.bytes() - 1)), How::Filled)
    }

    fn map_image(
        &mut self,
        gpa: Addr<In>,
        region: &Region<In>,
        image: Pfn<Hpa>,
        slot: &Slot<Hpa>,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved<In>, Unresolved<ResolveError<In>>> {
        // A 2 MiB leaf needs the image's frames as aligned as the guest's pages, and all of them at home.
        let mega = if slot.level < Level::MEGA { None } else { self.mega_around(gpa.pfn()) }
            .and_then(|(_, content)| content.image())
            .filter(|pfn| {
                pfn.is_aligned(Level::MEGA.pages()) && frames.originals().find_run(*pfn, Level::MEGA.pages())
            });
        let (level, pfn) = mega.map_or((Level::PAGE, image), |pfn| (Level::MEGA, pfn));
        let supplies = Supplies::take(frames, self.owner, below(slot, level), None)?;
        // OWNERSHIP: never writable, whatever the region says; a store makes a copy.
        let leaf = Policy::leaf(pfn, region.prot.difference(Prot::W), PteFlags::empty());
        self.link(gpa, slot, supplies.tables, leaf, mem);
        if level == Level::MEGA {
            self.counters.image_2m += 1
        } else {
            self.counters.image_4k += 1
        }
        Ok(filled(image.at(gpa.page_offset()), How::Filled))
    }

    /// The first touch of an image page is a store, and a copy of 2 MiB is not to be had.
    fn copy_unmapped(
        &mut self,
        gpa: Addr<In>,
        region: &Region<In>,
        (image, slot): (Pfn<Hpa>, &Slot<Hpa>),
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved<In>, Unresolved<ResolveError<In>>> {
        let supplies = Supplies::take(frames, self.owner, below(slot, Level::PAGE), Some(0))?;
        if let Some(page) = &supplies.data {
            mem.copy_frames(image, page.first(), 1);
        }
        // Nothing was mapped; the fence is for instructions: code may be in the copy.
        let stale = Stale::of(around(gpa, Level::PAGE));
        Ok(self.commit_copy(gpa, region, slot, (Level::PAGE, supplies), stale, mem))
    }

    /// Tables are linked down to the one for a leaf of `level` that will map a copy. Its entry stays invalid for now.
    /// `stale` is what must be fenced before that changes.
    fn commit_copy(
        &mut self,
        gpa: Addr<In>,
        region: &Region<In>,
        slot: &Slot<Hpa>,
        (level, Supplies { tables, data }): (Level, Supplies),
        stale: Stale<In>,
        mem: &mut impl PhysMem,
    ) -> Resolved<In> {
        let copy = data.expect("taken with the tables").into_entry();
        let at = match tables.last() {
            Some(lowest) => lowest.first().at(8 * self.format.index(gpa, level) as u64),
            None => slot.at,
        };
        if !tables.is_empty() {
            self.link(gpa, slot, tables, Pte::INVALID, mem);
        }
        self.copied(gpa, region, (copy, level), stale, (at, Vec::new()))
    }

    /// Returns what remains to be done about a copy: the fence, then the entry.
    fn copied(
        &mut self,
        gpa: Addr<In>,
        region: &Region<In>,
        (copy, level): (Pfn<Hpa>, Level),
        stale: Stale<In>,
        (at, taken): (Addr<Hpa>, Vec<Taken>),
    ) -> Resolved<In> {
        if level == Level::MEGA {
            self.counters.copies_2m += 1;
        } else {
            self.counters.copies += 1;
        }
        let publish = Publish { at, leaf: Policy::leaf(copy, region.prot, OWNED), level, taken };
        Resolved::Mapped {
            hpa: copy.at(gpa.raw() & (level.bytes() - 1)),
            how: How::Copied,
            stale,
            publish: Some(Box::new(publish)),
        }
    }

    /// A store to an image page that is mapped. The 2 MiB around it are copied whole if they may be, whether one leaf maps them or
    /// smaller ones do.
    fn copy_mapped(
        &mut self,
        gpa: Addr<In>,
        region: &Region<In>,
        (slot, leaf): (&Slot<Hpa>, &Leaf<Hpa>),
        ready: &mut Ready,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Resolved<In>, Unresolved<ResolveError<In>>> {
        assert!(!leaf.flags.contains(OWNED), "{gpa}: the VM's own page is read-only in a writable region");
        let image = arrival(leaf, slot.level, gpa).pfn();
        let split = slot.level == Level::MEGA;
        let small = if split { None } else { self.mega_for_small(gpa.pfn(), mem) };
        let content = match &small {
            Some((content, _)) => Some(*content),
            None if split => self.mega_around(gpa.pfn()).map(|(_, content)| content),
            None => None,
        };
        match content.map_or(Err(NoMega::Denied), |content| self.mega(content, slot, ready, frames)) {
            Ok(supplies) => {
                if let Some((_, small)) = small {
                    return Ok(self.copy_small(gpa, region, small, supplies, mem));
                }
                let mut stale = Stale::none();
                let (_, debt) = edit::exchange(slot.at, Pte::INVALID, mem);
                stale.owe(debt, around(gpa, Level::MEGA));
                return Ok(self.commit_copy(gpa, region, slot, (Level::MEGA, supplies), stale, mem));
            }
            Err(NoMega::Wanted(content)) => return Err(Unresolved::Wants(content)),
            Err(NoMega::Denied) => {}
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
        let (_, debt) = edit::exchange(slot.at, entry, mem);
        // Only what was copied has another translation: a 2 MiB leaf that a TLB may still hold agrees with the
        // table that replaces it about the other 511 pages. A fence by address removes a superpage that covers it.
        stale.owe(debt, around(gpa, Level::PAGE));
        Ok(self.copied(gpa, region, (copy, Level::PAGE), stale, (at, Vec::new())))
    }

    /// Puts `leaf` below the invalid entry in `slot`, with `tables` between them (the highest first).
    /// The write of `slot`'s entry comes last and publishes all.
    fn link(&mut self, gpa: Addr<In>, slot: &Slot<Hpa>, tables: Vec<Run>, leaf: Pte, mem: &mut impl PhysMem) {
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
        edit::fill(slot.at, top, mem);
    }
}

/// Tables needed between an entry and a leaf of `level` below it.
fn below(slot: &Slot<Hpa>, level: Level) -> u8 {
    slot.level.number() - level.number()
}
