//! The address space: its regions, its table, and what a resolution says.

use super::edit;
use super::policy::{Policy, Residence};
use super::region::{Region, RegionError, Regions};
use crate::frames::{AllocError, Frames, Owner, Run, Use};
use crate::mapper::{Change, Mappers};
use crate::stale::Stale;
use crate::table;
use crate::two_stage::Stage;
use crate::walk::{AdPolicy, Ram, Slot, descend};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use rv::{Addr, Caps, Entry, Fence, FenceScope, Format, Gpa, Hpa, Leaf, Level, Pfn, PhysMem, Pte, PteFlags, Space};

/// The order of the run behind a leaf.
pub(super) const fn order(level: Level) -> u8 {
    9 * level.number()
}

/// A page of the swap device, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SwapSlot(pub u64);

/// Counters of an address space. All only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Anonymous 4 KiB pages given.
    pub anonymous_4k: u64,
    /// Anonymous 2 MiB pages given.
    pub anonymous_2m: u64,
    /// Faults and copies that could have been served with 2 MiB, had there been a run or the budget.
    pub mega_denied: u64,
    /// Image pages mapped with 4 KiB leaves.
    pub image_4k: u64,
    /// Image pages mapped with 2 MiB leaves.
    pub image_2m: u64,
    /// Image pages copied because the guest stored to them, or its hardware might.
    pub copies: u64,
    /// Image copies of 2 MiB at once, made for the same reasons as `copies`.
    pub copies_2m: u64,
    /// Tables of 4 KiB leaves that one of 2 MiB replaced.
    pub promoted: u64,
    /// 2 MiB leaves broken into 4 KiB ones.
    pub splits: u64,
    /// Tables of 2 MiB leaves that one of 1 GiB replaced.
    pub joined_1g: u64,
    /// 1 GiB leaves broken into 2 MiB ones.
    pub splits_1g: u64,
    /// Faults that found the access allowed already.
    pub spurious: u64,
    /// Faults that the region's protection forbids.
    pub denied: u64,
    /// Tables added, the root not counted.
    pub tables: u64,
    /// Leaves made idle, to see whether the guest uses them.
    pub rested: u64,
    /// Of those, the ones that it did use.
    pub revived: u64,
    /// Pages that went to the swap device.
    pub swapped_out: u64,
    /// Pages that came back from there.
    pub swapped_in: u64,
    /// Of those that went, the ones of which the device had a copy still.
    pub clean: u64,
    /// Pages seen to be written by withholding W.
    pub dirtied: u64,
    /// Pages taken back because they held zeroes.
    pub zero_pages: u64,
}

impl core::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.anonymous_4k += other.anonymous_4k;
        self.anonymous_2m += other.anonymous_2m;
        self.mega_denied += other.mega_denied;
        self.image_4k += other.image_4k;
        self.image_2m += other.image_2m;
        self.copies += other.copies;
        self.copies_2m += other.copies_2m;
        self.promoted += other.promoted;
        self.splits += other.splits;
        self.joined_1g += other.joined_1g;
        self.splits_1g += other.splits_1g;
        self.spurious += other.spurious;
        self.denied += other.denied;
        self.tables += other.tables;
        self.rested += other.rested;
        self.revived += other.revived;
        self.swapped_out += other.swapped_out;
        self.swapped_in += other.swapped_in;
        self.zero_pages += other.zero_pages;
        self.clean += other.clean;
        self.dirtied += other.dirtied;
    }
}

/// The way in which a fault was resolved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum How {
    /// The table allowed the access already: another hart was faster, or this hart's TLB remembers
    /// an older entry. A fence of that page on this hart makes sure of the latter.
    Spurious,
    /// The entry was invalid, and now maps zeroed memory or an image.
    Filled,
    /// The guest gets its own copy of an image page, or of the 2 MiB around it, as the fence says. Until [`Publish`],
    /// nothing is mapped there: a hart that saw the copy while another still read the image would break the coherence
    /// of memory. The copy was written by this hart as data, so every hart that may execute it owes a `fence.i`, too.
    Copied,
}

/// The answer to a guest's access.
#[must_use = "a resolved fault may owe a fence"]
#[derive(Debug)]
pub enum Resolved<In: Space = Gpa> {
    /// Let the guest try again.
    Mapped {
        /// The address that the access goes to.
        hpa: Addr<Hpa>,
        /// The way in which it was resolved.
        how: How,
        /// The translations that must be fenced before it is in force. None for an entry that was invalid: a hart that
        /// remembers it as such faults, and that is [`How::Spurious`].
        stale: Stale<In>,
        /// With [`How::Copied`]: what to do once the fence is done, before anything else is resolved.
        publish: Option<Box<Publish>>,
    },
    /// No region there: a device to emulate, or nothing.
    Hole,
}

/// An entry whose time comes after a fence.
#[must_use = "the page stays unmapped, and its frame is lost, until this is published"]
#[derive(PartialEq, Eq, Debug)]
pub struct Publish {
    pub(super) at: Addr<Hpa>,
    pub(super) leaf: Pte,
    pub(super) level: Level,
    /// Pages that the guest could write to until the fence, and where they are copied to.
    pub(super) taken: Vec<Taken>,
}

/// A page whose contents are copied.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Taken {
    pub from: Pfn<Hpa>,
    pub to: Pfn<Hpa>,
}

impl Publish {
    /// Copies what the guest could write to until the fence.
    fn take_over(&mut self, mem: &mut impl PhysMem) {
        self.taken.drain(..).for_each(|Taken { from, to }| mem.copy_frames(from, to, 1));
    }

    /// Returns the level of the leaf.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// Fences once more if the guest could write to what is copied until now, then makes the copy visible.
    // Most faults have nothing to be published.
    #[cold]
    #[inline(never)]
    pub(crate) fn fence_and_publish<In: Space>(mut self, hw: &mut impl Fence<In>, mem: &mut impl PhysMem) {
        if !self.taken.is_empty() {
            self.take_over(mem);
            // Code may be in it, and a fence orders for instructions what was stored before it alone.
            hw.fence(FenceScope::Everything);
        }
        self.publish(mem);
    }

    /// Makes the copy visible. To be called after [`Stale::fence`], with the address space not used in
    /// between; [`AddressSpace::settle`] does both.
    ///
    /// # Panics
    /// If something is mapped there meanwhile.
    pub fn publish(mut self, mem: &mut impl PhysMem) {
        self.take_over(mem);
        let debt = edit::compare_exchange(self.at, Pte::INVALID, self.leaf, mem);
        // What was there before is fenced.
        let _ = debt.expect("nothing is mapped there until it is published").paid();
    }
}

/// The reason why an access cannot be resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResolveError<In: Space = Gpa> {
    /// The region's protection forbids it: the guest is to blame.
    Denied,
    /// There is no frame for it. Nothing has changed.
    OutOfFrames(AllocError),
    /// The page is on the swap device, and has to be brought in first ([`AddressSpace::bring_in`]).
    Out {
        /// The page.
        page: Pfn<In>,
        /// Its slot on the swap device.
        slot: SwapSlot,
    },
    /// The page is an image's, and not in memory: it has to be brought in first ([`crate::frames::Originals::restore`]).
    OriginalOut {
        /// The page.
        page: Pfn<In>,
        /// The original's home.
        home: Pfn<Hpa>,
    },
}

impl<In: Space> From<AllocError> for ResolveError<In> {
    fn from(error: AllocError) -> Self {
        ResolveError::OutOfFrames(error)
    }
}

/// The translation of an address by the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// The host address that it leads to.
    pub hpa: Addr<Hpa>,
    /// The leaf's flags, without V.
    pub flags: PteFlags,
    /// The leaf's level.
    pub level: Level,
}

/// Counters of first touches that harts resolve concurrently.
#[derive(Default, Debug)]
pub(super) struct FillerCounts {
    pub(super) anonymous_4k: AtomicU64,
    pub(super) anonymous_2m: AtomicU64,
    pub(super) mega_denied: AtomicU64,
    pub(super) spurious: AtomicU64,
    pub(super) tables: AtomicU64,
}

impl FillerCounts {
    fn counters(&self) -> Counters {
        let Self { anonymous_4k, anonymous_2m, mega_denied, spurious, tables } = self;
        Counters {
            anonymous_4k: anonymous_4k.load(Relaxed),
            anonymous_2m: anonymous_2m.load(Relaxed),
            mega_denied: mega_denied.load(Relaxed),
            spurious: spurious.load(Relaxed),
            tables: tables.load(Relaxed),
            ..Counters::default()
        }
    }
}

/// A VM's guest physical memory.
///
/// Dropping one leaks its frames; end it with [`AddressSpace::destroy`].
#[must_use = "dropping an address space leaks its frames"]
pub struct AddressSpace<In: Space = Gpa> {
    pub(super) format: &'static Format,
    pub(super) owner: Owner,
    pub(super) policy: Policy,
    pub(super) root: Run,
    pub(super) regions: Regions<In>,
    pub(crate) mappers: Mappers<In>,
    pub(super) counters: Counters,
    pub(super) counts: FillerCounts,
    /// Pages of the swap device whose contents are no longer needed.
    pub(super) forgone: Vec<SwapSlot>,
    /// Pages in memory, by number, of which the swap device has a copy: their leaves lack W, or D if that is the hardware's.
    pub(super) copies: BTreeMap<u64, SwapSlot>,
    /// The first page of 2 MiB that are being copied ([`super::promote`]), as long as nothing but stores happens to them.
    pub(super) moving: Option<Pfn<In>>,
    /// The first pages of 2 MiB of which some have moved to where a guest's addresses want them ([`super::relocate`]): they stay apart.
    pub(super) apart: BTreeSet<u64>,
    /// Set while the dirty log is on ([`super::dirty`]).
    pub(super) is_logged: bool,
    /// Pages, by number, that are an image's again since they were collected.
    pub(super) reverted: BTreeSet<u64>,
}

impl<In: Space> AddressSpace<In> {
    /// An address space without regions. Its tables are charged to `owner`.
    ///
    /// # Errors
    /// If there are no frames for the root.
    ///
    /// # Panics
    /// If `format` is not a G-stage format.
    pub fn new(
        format: &'static Format,
        owner: Owner,
        policy: Policy,
        frames: &Frames,
        mem: &mut impl PhysMem,
    ) -> Result<Self, AllocError> {
        assert!(format.is_g_stage(), "{} is not a G-stage format", format.name);
        // norm:hgatp-ppn_op: the root is 16 KiB, aligned to its size; a run of order 2 is.
        let root = frames.alloc(owner, Use::Table, format.root_extra_bits)?;
        mem.zero_frames(root.first(), root.pages());
        Ok(Self {
            format,
            owner,
            policy,
            root,
            regions: Regions::new(),
            mappers: Mappers::new(),
            counters: Counters::default(),
            counts: FillerCounts::default(),
            forgone: Vec::new(),
            copies: BTreeMap::new(),
            moving: None,
            apart: BTreeSet::new(),
            is_logged: false,
            reverted: BTreeSet::new(),
        })
    }

    /// Adds a region, in O(log n), and tells all mappers. Nothing is mapped by it.
    ///
    /// # Errors
    /// If it does not fit, or something is mapped there still; nothing has changed then.
    pub fn add_region(&mut self, region: Region<In>, mem: &impl PhysMem) -> Result<(), RegionError<In>> {
        let end = Pfn::new(1 << (self.format.input_bits() - rv::PAGE_SHIFT));
        self.regions.check(&region, end)?;
        if let Some(page) = self.first_kept(region.start.raw()..region.end(), mem) {
            return Err(RegionError::Mapped(page));
        }
        self.regions.add(region);
        self.mappers.region(&region, Change::Comes);
        Ok(())
    }

    /// Removes the region that begins at `start`, in O(log n), and tells all mappers: its pages are a hole from now on. What is mapped there
    /// stays so until it is given back ([`crate::Edits::give_back`]). `None` if no region begins there.
    pub fn remove_region(&mut self, start: Pfn<In>) -> Option<Region<In>> {
        let region = self.regions.remove(start)?;
        self.mappers.region(&region, Change::Goes);
        Some(region)
    }

    /// The first page of these whose entry is not 0.
    fn first_kept(&self, pages: Range<u64>, mem: &impl PhysMem) -> Option<Pfn<In>> {
        let mut page = Pfn::new(pages.start);
        while page.raw() < pages.end {
            let slot = self.slot(page.base(), mem)?;
            if slot.pte.0 != 0 {
                return Some(page);
            }
            page = page.align_down(slot.level.pages()).add(slot.level.pages());
        }
        None
    }

    /// The regions, by address.
    pub fn regions(&self) -> impl Iterator<Item = &Region<In>> + Clone {
        self.regions.iter()
    }

    /// The generation of the list of regions: it counts each that comes or goes.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.regions.generation
    }

    /// The region that holds `page`.
    #[must_use]
    pub fn region_of(&self, page: Pfn<In>) -> Option<&Region<In>> {
        self.regions.get(page)
    }

    /// The first page of the root table, for `hgatp`.
    #[must_use]
    pub const fn root(&self) -> Pfn<Hpa> {
        self.root.first()
    }

    /// The table, for walks as hardware makes them.
    #[must_use]
    pub fn stage(&self) -> Stage<Hpa> {
        Stage { format: self.format, root: self.root(), caps: Caps::default(), ad: AdPolicy::Svade }
    }

    /// The table's format.
    #[must_use]
    pub const fn format(&self) -> &'static Format {
        self.format
    }

    /// Returns the owner that its tables and frames are charged to.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns whether its memory stays.
    #[must_use]
    pub fn is_wired(&self) -> bool {
        self.policy.residence == Residence::Wired
    }

    /// Returns whether [`AddressSpace::take_forgone`] has something to return.
    #[inline(always)]
    #[must_use]
    pub const fn has_forgone(&self) -> bool {
        !self.forgone.is_empty()
    }

    /// The pages of the swap device that are free again since the last time: what was on them is gone.
    #[must_use = "they cannot be used until they are given back"]
    pub fn take_forgone(&mut self) -> Vec<SwapSlot> {
        core::mem::take(&mut self.forgone)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters += self.counts.counters();
        counters
    }

    /// Returns the translation of `gpa` that the table has now. Changes nothing, fills nothing.
    #[must_use]
    pub fn translate(&self, gpa: Addr<In>, mem: &impl PhysMem) -> Option<Translation> {
        if !self.format.fits(gpa) {
            return None;
        }
        // The tables are ours: whatever is valid in them is a pointer or a leaf. Shadow paging asks at every fault.
        let (mut table, mut level) = (self.root(), self.format.root_level());
        loop {
            let pte = Pte(mem.read_u64(table.at(8 * self.format.index(gpa, level) as u64)));
            let flags = pte.flags();
            if !flags.contains(PteFlags::V) {
                return None;
            }
            if flags.intersects(PteFlags::R | PteFlags::X) {
                let hpa = pte.pfn().at(gpa.raw() & (level.bytes() - 1));
                return Some(Translation { hpa, flags: flags.difference(PteFlags::V), level });
            }
            (table, level) = (pte.pfn(), level.down().expect("a pointer is above level 0"));
        }
    }

    /// The entry that decides about `gpa`, or `None` if the format cannot translate it.
    pub(super) fn slot(&self, gpa: Addr<In>, mem: &impl PhysMem) -> Option<Slot<Hpa>> {
        let slot = descend(self.format, self.root(), gpa, Caps::default(), &mut Ram(mem)).ok()?;
        // No other code writes these tables, so anything else in them is a bug of ours.
        assert!(matches!(slot.entry, Entry::Invalid | Entry::Leaf(_)), "{gpa}: {:?} in a G-stage table", slot.pte);
        Some(slot)
    }

    /// Fills a fresh table with 4 KiB leaves that say what the 2 MiB `leaf` said, except the entries that `other`
    /// replaces.
    pub(super) fn write_split(
        split: &Run,
        leaf: &Leaf<Hpa>,
        mem: &mut impl PhysMem,
        other: impl Fn(u64) -> Option<Pte>,
    ) {
        for index in 0..Level::MEGA.pages() {
            let same = Entry::Leaf(Leaf { pfn: leaf.pfn.add(index), ..*leaf }).encode();
            table::write_unlinked(split.first().at(8 * index), other(index).unwrap_or(same), mem);
        }
    }
}

/// Returns the address that `gpa` has by `leaf`.
pub(super) fn arrival<In: Space>(leaf: &Leaf<Hpa>, level: Level, gpa: Addr<In>) -> Addr<Hpa> {
    leaf.pfn.at(gpa.raw() & (level.bytes() - 1))
}

/// Returns the range that an entry of `level` around `gpa` translates.
pub(super) const fn around<In: Space>(gpa: Addr<In>, level: Level) -> FenceScope<In> {
    FenceScope::Range { start: gpa.align_down(level.bytes()), bytes: level.bytes() }
}

/// An invalid entry became valid, or was valid already: nothing is stale.
pub(super) const fn filled<In: Space>(hpa: Addr<Hpa>, how: How) -> Resolved<In> {
    Resolved::Mapped { hpa, how, stale: Stale::none(), publish: None }
}
