//! A VM's memory under test: the engine, the oracle's machine and fence model, and a flat model of
//! what the guest should find. After every step, everything that must hold is checked.
//!
//! The engine reaches memory and fences through [`World`].

mod faulting;
mod originals;
mod owing;
mod paging;
pub mod world;

use paging::Paged;
pub use world::Mutant;
use world::World;

use crate::keeper::{Deaf, Keeper};
use mmu::frames::Neglect;
use mmu::gstage::{Remain, SwapSlot};
use mmu::{
    AddressSpace, AllocError, Counters, Frames, How, Images, Object, Owner, Policy, Prot, Region, Residence,
    ResolveError, Resolved, Run, Stale, Superpages, Use,
};
use oracle::{Ad, Context, FenceModel, Machine, Mapping, Table, interpret};
use proptest::prelude::*;
use rv::format::{SV39X4, SV48X4, SV57X4};
use rv::{Access, Addr, FenceScope, Format, Gpa, Hpa, Pfn, PhysMem};
use std::collections::{BTreeMap, BTreeSet};

/// One step of a scenario.
#[derive(Clone, Debug)]
pub enum Op {
    /// The guest touches a page: a region's, if it is less than 8, or one near its end.
    Touch(u8, u16, Access),
    /// Pages of a region become untouched.
    Unmap(u8, u16, u16),
    /// The fences owed so far happen.
    Flush,
    /// A hart enters the guest (after the fences owed).
    Enter(u8),
    /// A hart leaves it for another VM.
    Detach(u8),
    /// The VM may have this many frames more than now.
    Limit(u16),
    /// The host takes all free memory but this many frames.
    Hog(u16),
    /// There is no limit, and the host gives back what it took.
    Relax,
    /// An original of the image goes.
    LetOriginalGo(u16),
    /// The host looks at some entries, and makes idle what the guest could use.
    Sweep(u16, u8),
    /// Idle 2 MiB become idle pages.
    Split(u16),
    /// An idle page goes (when the fences owed have happened): to the swap device if that is preferred, or if it must.
    TakeOut(u16, bool),
    /// The swap device has written what it was given.
    WrittenOut,
    /// A page that is out comes in unasked.
    BringIn(u16),
    /// The guest touches a page that is idle or out.
    ComeBack(u16, Access),
}

/// A VM's configuration.
#[derive(Clone, Debug)]
pub struct Setup {
    pub format: &'static Format,
    pub superpages: Superpages,
    /// Gap before it, length, protection, image frame (or anonymous).
    pub regions: Vec<(u16, u16, Prot, Option<u16>)>,
    /// Set if all lies where the root's extra index bits count.
    pub high: bool,
    pub residence: Residence,
    pub harts: u8,
}

const IMAGE_PAGES: u64 = 2048;
const RAM_PAGES: u64 = 5120;
const RAM: Pfn<Hpa> = Pfn::new(0x8_0000);
const VM: Owner = Owner::Vm(1);

pub fn setups() -> impl Strategy<Value = Setup> {
    let prot = prop_oneof![
        12 => Just(Prot::RWX),
        1 => Just(Prot::R),
        1 => Just(Prot::X),
        2 => Just(Prot::R | Prot::X),
        1 => Just(Prot::R | Prot::W),
    ];
    // Half the images are congruent with their regions (gap and frame multiples of 512 pages).
    let gap = prop_oneof![2 => Just(0u16), 1 => Just(512), 1 => 0..700u16];
    let image =
        prop_oneof![3 => Just(None), 2 => Just(Some(0u16)), 1 => Just(Some(512)), 1 => (0..700u16).prop_map(Some)];
    let region = (gap, prop_oneof![1 => 1..40u16, 3 => 512..1300u16], prot, image);
    (
        prop_oneof![3 => Just(&SV39X4), 1 => Just(&SV48X4), 1 => Just(&SV57X4)],
        prop_oneof![1 => Just(Superpages::Never), 3 => Just(Superpages::Mega)],
        prop::collection::vec(region, 1..4),
        any::<bool>(),
        prop_oneof![9 => Just(Residence::Pageable), 1 => Just(Residence::Wired)],
        2..5u8,
    )
        .prop_map(|(format, superpages, regions, high, residence, harts)| Setup {
            format,
            superpages,
            regions,
            high,
            residence,
            harts,
        })
}

pub fn ops(count: usize) -> impl Strategy<Value = Vec<Op>> {
    let access = prop_oneof![
        1 => Just(Access::Load),
        3 => Just(Access::Store),
        1 => Just(Access::Fetch),
        1 => Just(Access::LoadExec),
    ];
    let op = prop_oneof![
        16 => (0..9u8, any::<u16>(), access.clone()).prop_map(|(r, p, a)| Op::Touch(r, p, a)),
        3 => (0..8u8, any::<u16>(), prop_oneof![1..4u16, 1..700u16, Just(u16::MAX)]).prop_map(|(r, p, n)| Op::Unmap(r, p, n)),
        3 => Just(Op::Flush),
        4 => (0..4u8).prop_map(Op::Enter),
        1 => (0..4u8).prop_map(Op::Detach),
        1 => (0..6u16).prop_map(Op::Limit),
        1 => prop_oneof![0..6u16, 500..600u16].prop_map(Op::Hog),
        1 => Just(Op::Relax),
        5 => (any::<u16>(), 1..4u8).prop_map(|(n, entries)| Op::Sweep(n, entries)),
        1 => any::<u16>().prop_map(Op::LetOriginalGo),
        1 => any::<u16>().prop_map(Op::Split),
        4 => (any::<u16>(), any::<bool>()).prop_map(|(n, prefers)| Op::TakeOut(n, prefers)),
        1 => Just(Op::WrittenOut),
        1 => any::<u16>().prop_map(Op::BringIn),
        4 => (any::<u16>(), access).prop_map(|(n, a)| Op::ComeBack(n, a)),
    ];
    prop::collection::vec(op, 1..count)
}

type Map = BTreeMap<u64, Mapping>;

/// The page's first and last word, which stand for its contents.
type Contents = [u64; 2];

pub struct Rig {
    frames: Frames,
    world: World,
    space: AddressSpace,
    keeper: Keeper,
    setup: Setup,
    regions: Vec<Region>,
    image: Pfn<Hpa>,
    hogged: Vec<Run>,
    owed: Stale<Gpa>,
    /// The contents that the guest wrote.
    written: BTreeMap<u64, Contents>,
    writes: u64,
    paged: Paged,
}

fn image_contents(frame_of_image: u64) -> Contents {
    [0x1111_0000_0000 + frame_of_image, 0x2222_0000_0000 + frame_of_image]
}

impl Rig {
    pub fn new(setup: Setup, mutant: Mutant) -> Rig {
        let mut frames = Frames::new();
        frames.add(RAM.add(IMAGE_PAGES), RAM_PAGES - IMAGE_PAGES);
        frames.add_images(std::slice::from_ref(&(RAM.raw()..RAM.raw() + IMAGE_PAGES)));
        match mutant {
            Mutant::ForgetsUseOfOriginals => frames.originals().neglect(Neglect::ForgetsUse),
            Mutant::BringsOriginalsHome => frames.originals().neglect(Neglect::ComesHome),
            _ => {}
        }
        let mut machine = Machine::with_ram(RAM, RAM_PAGES);
        let image = RAM;
        for i in 0..IMAGE_PAGES {
            let [head, tail] = image_contents(i);
            machine.write_u64(image.add(i).base(), head);
            machine.write_u64(image.add(i).at(4088), tail);
        }
        let model = FenceModel::new(machine, usize::from(setup.harts));
        let mut world = World::new(model, mutant);
        let policy = Policy {
            superpages: setup.superpages,
            images: Images::Shared,
            residence: setup.residence,
            ad: mmu::Ad::AsNeeded,
        };
        let mut space = AddressSpace::new(setup.format, VM, policy, &frames, &mut world).expect("room for the root");
        world.let_go();
        world.model.watch(setup.format, space.root());
        // Where the root's index has its extra bits set: the upper half of what the format translates.
        let mut page = if setup.high { 1 << (setup.format.input_bits() - 13) } else { 0 };
        for &(gap, pages, prot, shift) in &setup.regions {
            let start = Pfn::new(page + u64::from(gap));
            let object = shift.map_or(Object::Anonymous, |s| Object::Image { first: image.add(u64::from(s)) });
            let region = Region { start, pages: u64::from(pages), prot, object };
            space.add_region(region, &world).expect("regions are laid out one after another");
            page = start.raw() + u64::from(pages);
        }
        let regions = space.regions().copied().collect();
        let keeper = Keeper::join(&mut space, Deaf::No);
        Rig {
            frames,
            world,
            space,
            keeper,
            setup,
            regions,
            image,
            hogged: vec![],
            owed: Stale::none(),
            written: BTreeMap::new(),
            writes: 0,
            paged: Paged::default(),
        }
    }

    /// Performs all steps, then ends the VM, checking everything after each. Yields what happened.
    pub fn run(mut self, ops: &[Op]) -> Counters {
        for op in ops {
            self.step(op);
            self.world.model.verdict().expect("no fence rule is broken");
        }
        self.end()
    }

    fn region(&self, selector: u8) -> Region {
        self.regions[usize::from(selector) % self.regions.len()]
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Touch(selector, offset, access) => {
                let region = self.region(selector);
                let page = match selector {
                    8 => region.start.raw() + region.pages + u64::from(offset % 3) - 1,
                    _ => region.start.raw() + u64::from(offset) % region.pages,
                };
                self.touch(page, access);
            }
            Op::Unmap(selector, offset, pages) => {
                let region = self.region(selector);
                let start =
                    (region.start.raw() + u64::from(offset) % region.pages).saturating_sub(u64::from(offset % 2) * 200);
                self.unmap(start, u64::from(pages));
            }
            Op::Flush => self.flush(),
            Op::Enter(hart) => {
                self.flush();
                self.world.model.enter_guest(usize::from(hart % self.setup.harts));
            }
            Op::Detach(hart) => self.world.model.detach(usize::from(hart % self.setup.harts)),
            Op::Limit(more) => {
                let limit = self.frames.usage(VM).total() + u64::from(more);
                self.frames.set_limit(VM, limit);
            }
            Op::Hog(left) => {
                while self.frames.free_count() > u64::from(left) {
                    let spare = self.frames.free_count() - u64::from(left);
                    let order = spare.ilog2().min(9) as u8;
                    let taken = (0..=order).rev().find_map(|o| self.frames.alloc(Owner::Host, Use::Other, o).ok());
                    self.hogged.push(taken.expect("a single frame at least is free"));
                }
            }
            Op::Relax => {
                self.frames.set_limit(VM, u64::MAX);
                self.hogged.drain(..).for_each(|run| self.frames.free(run));
            }
            Op::Sweep(from, entries) => self.sweep(from, entries),
            Op::LetOriginalGo(n) => self.let_original_go(n),
            Op::Split(n) => self.split_one(n),
            Op::TakeOut(n, prefers_device) => self.take_out(n, prefers_device),
            Op::WrittenOut => self.written_out(),
            Op::BringIn(n) => {
                let out: Vec<u64> = self.paged.out.keys().copied().collect();
                if !out.is_empty() {
                    self.bring_in(out[usize::from(n) % out.len()]);
                }
            }
            Op::ComeBack(n, access) => self.come_back(n, access),
        }
    }

    fn map(&self) -> Map {
        /// The bit of a warm page, which a sweep remembers and the flat model does not.
        const WARM: u64 = 1 << 9;
        let mut map = interpret(&self.world.model.machine, self.space.root(), self.setup.format);
        map.values_mut().for_each(|mapping| mapping.flags &= !WARM);
        map
    }

    /// Returns the contents that the guest should find in a page.
    fn contents(&self, page: u64) -> Contents {
        let region = self.regions.iter().find(|r| (r.start.raw()..r.start.raw() + r.pages).contains(&page));
        let region = region.expect("only pages of regions are looked at");
        match (self.written.get(&page), region.object) {
            (Some(written), _) => *written,
            (None, Object::Anonymous) => [0, 0],
            (None, Object::Image { first }) => {
                image_contents(first.raw() - self.image.raw() + page - region.start.raw())
            }
        }
    }

    fn found(&self, frame: u64) -> Contents {
        let words = self.world.model.machine.frame(Pfn::new(frame));
        [words[0], words[511]]
    }

    fn owned(&self) -> BTreeSet<u64> {
        let vm = |frame: &u64| self.frames.owner_of(Pfn::new(*frame)).is_some_and(|(owner, _)| owner == VM);
        (RAM.raw()..RAM.raw() + RAM_PAGES).filter(vm).collect()
    }

    fn touch(&mut self, page: u64, access: Access) {
        let gpa = Pfn::<Gpa>::new(page).at(if self.writes.is_multiple_of(2) { 0 } else { 4088 });
        let (before, owned) = (self.map(), self.owned());
        let usage = self.frames.usage(VM);
        let budget = (self.frames.limit(VM).saturating_sub(usage.total())).min(self.frames.free_count());
        let mut resolved = self.resolve(gpa, access);
        if let Ok(Resolved::Mapped { how: How::Copied, stale, publish, .. }) = &mut resolved {
            // The copy is invisible as long as a hart may still see the image.
            assert!(!self.map().contains_key(&page), "published before the fence");
            assert!(!stale.is_none(), "a copy without a fence");
            let pages = publish.as_ref().expect("a copy to publish").level().pages();
            if let Some(FenceScope::Range { bytes, .. }) = stale.scope() {
                assert_eq!(bytes, pages * 4096);
            }
            assert!((page & !(pages - 1)..).take(pages as usize).all(|page| !self.map().contains_key(&page)));
            let owed = std::mem::replace(stale, Stale::none());
            self.write_late(page & !(pages - 1)..(page & !(pages - 1)) + pages, &before);
            self.settle(owed);
            publish.take().expect("a copy to publish").publish(&mut self.world);
        }
        self.world.let_go();
        let after = self.map();
        // Except pages whose contents a copy of 2 MiB has taken over, after its fence.
        let is_mega = matches!(&resolved, Ok(Resolved::Mapped { how: How::Copied, .. })) && after[&page].level == 1;
        assert!(is_mega || owned.is_subset(&self.owned()), "resolving frees nothing");
        let region = self.space.region_of(gpa.pfn()).copied();
        let needed = match access {
            Access::Load => Prot::R,
            Access::Store => Prot::W,
            Access::Fetch | Access::LoadExec => Prot::X,
        };
        match resolved {
            Err(ResolveError::Out { page: at, slot }) => {
                assert_eq!(at.raw(), page);
                assert_eq!(self.paged.out.get(&page).map(|(slot, _)| *slot), Some(slot), "{gpa} is out");
                assert_eq!((&before, usage), (&after, self.frames.usage(VM)), "what is out changes nothing");
                if self.bring_in(page) {
                    self.touch(page, access);
                }
                return;
            }
            Err(ResolveError::OriginalOut { page: at, home }) => {
                assert_eq!(at.raw(), page);
                assert_eq!((&before, usage), (&after, self.frames.usage(VM)), "what is out changes nothing");
                if self.bring_original(page, home) {
                    self.touch(page, access);
                }
                return;
            }
            Ok(Resolved::Hole) => {
                assert!(region.is_none(), "{gpa} is in {region:?}");
                assert_eq!(before, after);
            }
            Err(ResolveError::Denied) => {
                assert!(region.is_some_and(|r| !r.prot.contains(needed)));
                assert_eq!((&before, usage), (&after, self.frames.usage(VM)));
            }
            Err(ResolveError::OutOfFrames(error)) => {
                assert_eq!((&before, usage), (&after, self.frames.usage(VM)), "a failure changes nothing");
                assert!(!self.paged.idle.contains_key(&page), "what is idle is there");
                assert!(budget < u64::from(self.setup.format.levels), "{error:?} with {budget} frames to spare");
                // Whichever runs out first; the VM's own limit, if both do.
                let blames_vm = matches!(error, AllocError::OverLimit { owner: VM, .. });
                let to_limit = self.frames.limit(VM).saturating_sub(usage.total());
                assert_eq!(blames_vm, to_limit <= self.frames.free_count(), "{error:?}");
            }
            Ok(Resolved::Mapped { hpa, how, stale, publish }) => {
                let region = region.expect("a hole maps nothing");
                assert!(region.prot.contains(needed), "{access:?} of {region:?}");
                self.check_growth(page, how, &before, &after);
                assert!(!self.paged.out.contains_key(&page), "{gpa} is out, and was found");
                self.woken(&after);
                assert!(stale.is_none() && publish.is_none());
                let leaf = after[&page];
                assert_eq!((leaf.page, gpa.page_offset()), (hpa.pfn().raw(), hpa.page_offset()));
                let translation = self.space.translate(gpa, &self.world).expect("mapped");
                assert_eq!((translation.hpa, translation.level.number()), (hpa, leaf.level));
                self.check_hardware(gpa, access, hpa);
                assert_eq!(self.found(leaf.page), self.contents(page), "contents of {gpa} after {how:?}");
                if access == Access::Store {
                    let mut contents = self.contents(page);
                    self.writes += 1;
                    contents[usize::from(gpa.page_offset() != 0)] = self.writes;
                    self.world.model.machine.write_u64(hpa, self.writes);
                    self.written.insert(page, contents);
                }
                self.owe(stale);
            }
        }
        self.check_ownership(&after);
    }

    /// `after` is `before` with one page, or the 2 MiB around it, or one page's copy, and nothing else.
    fn check_growth(&self, page: u64, how: How, before: &Map, after: &Map) {
        let same = |a: &Mapping, b: &Mapping| (a.page, a.flags) == (b.page, b.flags);
        let mega = page & !511..(page & !511) + 512;
        let copied = match how {
            How::Copied if after[&page].level == 1 => {
                assert_eq!(self.setup.superpages, Superpages::Mega);
                assert!(self.is_alike(mega.clone()), "2 MiB of several protections");
                mega.clone()
            }
            How::Copied => page..page + 1,
            How::Filled | How::Spurious => 0..0,
        };
        assert!(before.iter().all(|(p, m)| copied.contains(p) || same(m, &after[p])), "another page changed");
        let new: Vec<u64> = after.keys().filter(|p| !before.contains_key(p)).copied().collect();
        let expected = match how {
            How::Spurious => vec![],
            How::Copied => copied.filter(|page| !before.contains_key(page)).collect(),
            How::Filled if after[&page].level == 1 => {
                assert_eq!(self.setup.superpages, Superpages::Mega);
                assert!(self.is_alike(mega.clone()), "2 MiB of several protections");
                mega.collect()
            }
            How::Filled => vec![page],
        };
        assert_eq!(new, expected, "{how:?}");
        if how == How::Spurious {
            assert_eq!(before, after);
        }
    }

    /// A hart that has not heard yet that they go writes to a page of the guest's own.
    fn write_late(&mut self, pages: std::ops::Range<u64>, before: &Map) {
        let Some((page, mapping)) = before.range(pages).find(|(_, mapping)| mapping.is_writable()) else { return };
        let mut contents = self.contents(*page);
        self.writes += 1;
        contents[0] = self.writes;
        self.world.model.machine.write_u64(Pfn::new(mapping.page).base(), self.writes);
        self.written.insert(*page, contents);
    }

    /// Returns whether regions of one protection cover the pages.
    fn is_alike(&self, mut pages: std::ops::Range<u64>) -> bool {
        let prot = |page| self.space.region_of(Pfn::new(page)).map(|region| region.prot);
        let first = prot(pages.start);
        first.is_some() && pages.all(|page| prot(page) == first)
    }

    /// Real hardware would let the access through, and write nothing.
    fn check_hardware(&self, gpa: Addr<Gpa>, access: Access, hpa: Addr<Hpa>) {
        struct Frozen<'a>(&'a Machine);
        impl oracle::Words for Frozen<'_> {
            fn load(&mut self, at: u64) -> Option<u64> {
                self.0.peek(at)
            }
            fn store(&mut self, at: u64, _: u64) {
                panic!("hardware writes an entry at {at:#x}");
            }
        }
        let levels = u32::from(self.setup.format.levels);
        let root = self.space.root().base().raw();
        let g = Some(Table { levels, root, ad: Ad::Fault, svnapot: false, svpbmt: false });
        let ctx = Context { vs: None, g, access, user: false, sum: false, vs_mxr: false, hs_mxr: false };
        let machine = &self.world.model.machine;
        assert_eq!(oracle::translate(&mut Frozen(machine), &ctx, gpa.raw()), Ok(hpa.raw()), "{access:?}");
    }

    /// OWNERSHIP, and that the books are right.
    fn check_ownership(&self, map: &Map) {
        let mut reached = BTreeSet::new();
        for (page, mapping) in map {
            let frame = Pfn::new(mapping.page);
            match self.frames.owner_of(frame) {
                Some((VM, Use::Guest)) => assert!(reached.insert(mapping.page), "{frame:?} is mapped twice"),
                Some((Owner::Host, Use::Image)) => assert!(!mapping.is_writable(), "{page:#x}: an image is writable"),
                other => panic!("{page:#x} reaches {frame:?}, owned by {other:?}"),
            }
        }
        let waiting = |for_| {
            let runs = self.owed.retired().iter();
            let of_use = runs.filter(|run| self.frames.owner_of(run.first()) == Some((VM, for_)));
            of_use.map(Run::pages).sum::<u64>()
        };
        for (page, Mapping { page: frame, .. }) in &self.paged.idle {
            let owner = self.frames.owner_of(Pfn::new(*frame));
            assert_eq!(owner, Some((VM, Use::Guest)), "{page:#x} is idle, and its frame {frame:#x} is the VM's");
            assert!(reached.insert(*frame), "{frame:#x} is idle, and mapped, too");
        }
        let kept = reached.len() as u64 + self.paged.frames_of_device();
        let usage = self.frames.usage(VM);
        let tables = self.world.model.table_count() as u64;
        assert_eq!(usage.guest, kept + waiting(Use::Guest), "the VM pays for what it has");
        assert_eq!(usage.table, tables + waiting(Use::Table), "the VM pays for its tables");
        assert_eq!(usage.total(), usage.guest + usage.table);
        let hogged: u64 = self.hogged.iter().map(Run::pages).sum();
        // What is hogged is the host's as well, for something else.
        let images = self.frames.usage(Owner::Host).image;
        assert_eq!(usage.total() + hogged + images + self.frames.free_count(), RAM_PAGES, "no frame is lost");
    }

    fn unmap(&mut self, start: u64, pages: u64) {
        let (mut before, owned, usage) = (self.map(), self.owned(), self.frames.usage(VM));
        // Idle 2 MiB that are cut are mapped first.
        let idle = self.paged.idle.clone();
        let unmapped = self.unmap_blindly(start, pages);
        self.world.let_go();
        let after = self.map();
        self.woken(&after);
        before.extend(idle.into_iter().filter(|(page, was)| {
            // Cut by a border within it: a range that ends where it begins leaves it idle.
            let is_cut =
                was.level == 1 && [start, start + pages].iter().any(|&at| at & 511 != 0 && at & !511 == page & !511);
            let is_mapped = after.contains_key(page);
            assert!(is_cut || !is_mapped, "{page:#x} was idle, and is mapped now");
            is_cut
        }));
        assert!(owned.is_subset(&self.owned()), "unmapping frees nothing before the fence");
        match unmapped {
            Err(_) => assert_eq!((&before, usage), (&after, self.frames.usage(VM)), "a failure changes nothing"),
            Ok(stale) => {
                let range = start..start + pages;
                let count = before.len();
                before.retain(|page, _| !range.contains(page));
                let is_same = count == before.len() && stale.retired().is_empty();
                assert_eq!(stale.is_none(), is_same, "a fence is owed for what is gone");
                // Levels may differ: leaves were split.
                let flat = |map: &Map| map.iter().map(|(p, m)| (*p, m.page, m.flags)).collect::<Vec<_>>();
                assert_eq!(flat(&before), flat(&after), "exactly the range is gone");
                self.written.retain(|page, _| !range.contains(page));
                self.forgone(&range);
                self.owe(stale);
            }
        }
        self.check_ownership(&after);
    }

    /// All contents are right, and the end of the VM gives everything back.
    fn end(mut self) -> Counters {
        self.flush();
        for (page, mapping) in self.map() {
            assert_eq!(self.found(mapping.page), self.contents(page), "contents of page {page:#x} at the end");
        }
        self.check_paged();
        self.written_out();
        self.step(&Op::Relax);
        (0..usize::from(self.setup.harts)).for_each(|hart| self.world.model.detach(hart));
        self.check_originals();
        let Rig { frames, mut world, space, paged, .. } = self;
        let counters = space.counters();
        let mut remains = space.destroy(&mut world);
        let mut slots: BTreeSet<SwapSlot> = paged.out.values().map(|(slot, _)| *slot).collect();
        // In portions, some of which are too small for anything.
        while !remains.is_empty() {
            let mut steps = 100;
            while let Some(remain) = remains.take(&mut steps, &world) {
                match remain {
                    Remain::Run(run) => {
                        (0..run.pages()).for_each(|i| world.model.free(run.first().add(i)));
                        frames.free(run);
                    }
                    Remain::Slot(slot) => assert!(slots.remove(&slot), "{slot:?} is given back, and nothing was there"),
                }
            }
        }
        assert!(slots.is_empty(), "at the end {slots:?} are not given back");
        world.model.verdict().expect("no fence rule is broken at the end");
        assert_eq!(frames.usage(VM).total(), 0);
        assert_eq!(frames.free_count() + frames.usage(Owner::Host).image, RAM_PAGES);
        counters
    }
}
