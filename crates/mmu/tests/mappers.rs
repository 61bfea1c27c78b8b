//! The property that holds for all mappers after an edit (TOLD), checked on random edits of address spaces of several kinds of input addresses, whose regions come and
//! go. `gstage_random.rs` and `shadow_random.rs` check the same where an engine edits as well.

use crate::keeper::{Deaf, Keeper};
use mmu::gstage::{Comes, Filled, Region, Sight, SwapSlot};
use mmu::{
    Ad, AddressSpace, Frames, Images, Object, Owner, Policy, Prot, Ready, RegionError, Residence, ResolveError,
    Resolved, Superpages, Use,
};
use oracle::Machine;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use rv::format::SV39X4;
use rv::{Access, Fence, FenceScope, Gpa, Hpa, L2Gpa, Level, Pfn, Space};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

const VM: Owner = Owner::Vm(0);
const RAM: Pfn<Hpa> = Pfn::new(0x8_0000);
const FRAMES: u64 = 8192;
const IMAGE: Pfn<Hpa> = Pfn::new(RAM.raw() + FRAMES);
const IMAGE_PAGES: u64 = 1024;
/// Pages of a region: 2 MiB hold parts of several.
const PIECE: u64 = 200;
const PIECES: u64 = 12;

struct NoTlb;

impl<In: Space> Fence<In> for NoTlb {
    fn fence(&mut self, _: FenceScope<In>) {}
}

struct World<In: Space> {
    frames: Frames,
    mem: Machine,
    space: AddressSpace<In>,
    keeper: Keeper,
    rng: TestRng,
    out: BTreeMap<u64, SwapSlot>,
    next: u64,
}

impl<In: Space> World<In> {
    fn new(seed: u8, ad: Ad, deaf: Deaf) -> Self {
        let mut frames = Frames::new();
        frames.add(RAM, FRAMES);
        frames.add_images(std::slice::from_ref(&(IMAGE.raw()..IMAGE.raw() + IMAGE_PAGES)));
        let mut mem = Machine::with_ram(RAM, FRAMES + IMAGE_PAGES);
        let superpages = if seed.is_multiple_of(3) { Superpages::Never } else { Superpages::Mega };
        let policy = Policy { superpages, images: Images::Shared, residence: Residence::Pageable, ad };
        let mut space = AddressSpace::new(&SV39X4, VM, policy, &frames, &mut mem).unwrap();
        let keeper = Keeper::join(&mut space, deaf);
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        Self { frames, mem, space, keeper, rng, out: BTreeMap::new(), next: 0 }
    }

    fn pick(&mut self, below: u64) -> u64 {
        self.rng.next_u64() % below
    }

    fn page(&mut self) -> Pfn<In> {
        match self.pick(2) {
            0 => Pfn::new(self.pick(PIECE * PIECES)),
            // Often one of a few, so that much happens to the same.
            _ => Pfn::new(self.pick(12) * (PIECE + 3)),
        }
    }

    fn settle(&mut self, stale: mmu::Stale<In>) {
        self.space.settle(stale, None, &mut NoTlb, &mut self.mem).release(&self.frames);
    }

    fn unmap(&mut self, start: Pfn<In>, pages: u64) {
        let stale = self.space.unmap(start, pages, &self.frames, &mut self.mem).expect("frames");
        self.settle(stale);
        self.out.retain(|page, _| !(start.raw()..start.raw() + pages).contains(page));
    }

    fn touch(&mut self) {
        let (page, access) = (self.page(), [Access::Load, Access::Store, Access::Fetch][self.pick(3) as usize]);
        match self.space.resolve(page.base(), access, &self.frames, &mut self.mem) {
            Ok(Resolved::Mapped { stale, publish, .. }) => {
                self.space.settle(stale, publish, &mut NoTlb, &mut self.mem).release(&self.frames);
            }
            Ok(Resolved::Hole) => assert_eq!(self.space.region_of(page), None),
            Err(ResolveError::Out { page, slot }) => {
                assert_eq!(self.out.remove(&page.raw()), Some(slot), "{page:?} is out there");
                let frame = self.frames.alloc(VM, Use::Guest, 0).expect("frames");
                let comes = [Comes::Wanted, Comes::Ahead, Comes::Unwritten][self.pick(3) as usize];
                let stale = self.space.bring_in(page, slot, (frame, comes), &mut self.mem).expect("it is out");
                self.settle(stale);
            }
            Err(error) => assert_eq!(error, ResolveError::Denied),
        }
    }

    fn fill(&mut self) {
        let page = self.page();
        let filled = self.space.fill(page.base(), Access::Store, &mut Ready::Never, &self.frames, &mut self.mem);
        if let Ok(Filled::Mapped { .. }) = filled {
            assert!(self.space.region_of(page).is_some_and(|region| region.prot.contains(Prot::W)));
        }
    }

    /// A region comes where none is, or goes with all that is mapped there.
    fn change_regions(&mut self) {
        let piece = self.pick(PIECES);
        let (start, generation) = (Pfn::new(piece * PIECE), self.space.generation());
        if let Some(region) = self.space.remove_region(start) {
            let is_used = (0..PIECE).any(|n| self.space.look(start.add(n), &self.mem).0 != Sight::Nothing)
                || self.out.range(start.raw()..start.raw() + PIECE).next().is_some();
            if is_used {
                let again = self.space.add_region(region, &self.mem);
                assert!(matches!(again, Err(RegionError::Mapped(_))), "{again:?}");
            }
            self.unmap(start, region.pages);
        } else {
            let object = match self.pick(3) {
                0 => Object::Image { first: IMAGE.add(self.pick(IMAGE_PAGES - PIECE)) },
                _ => Object::Anonymous,
            };
            let prot = [Prot::RWX, Prot::RWX, Prot::R, Prot::R | Prot::X][self.pick(4) as usize];
            let region = Region { start, pages: PIECE, prot, object };
            self.space.add_region(region, &self.mem).expect("nothing is there");
        }
        assert_eq!(self.space.generation(), generation + 1);
    }

    /// A page becomes idle, and may go, with or without contents.
    fn rest(&mut self) {
        let page = self.page();
        if let Sight::Mapped(_) = self.space.look(page, &self.mem).0 {
            let stale = self.space.rest(page, &mut self.mem);
            self.settle(stale);
        }
        let is_idle = self.space.look(page, &self.mem).0 == Sight::Idle(Level::PAGE);
        if is_idle && self.pick(2) == 0 {
            let slot = SwapSlot(self.next);
            self.next += 1;
            let frame = self.space.take_out(page, Some(slot), &mut self.mem);
            self.frames.free(frame);
            self.out.insert(page.raw(), slot);
        }
    }

    fn step(&mut self) {
        match self.pick(24) {
            0..=10 => self.touch(),
            11..=13 => self.fill(),
            14..=17 => self.rest(),
            18..=20 => {
                let (page, pages) = (self.page(), 1 + self.pick(600));
                self.unmap(page, pages);
            }
            _ => self.change_regions(),
        }
        let kept = [(); 4].map(|()| self.page().raw());
        self.keeper.check_and_keep(kept, &self.space, &self.mem);
    }

    fn end(self) {
        let mut remains = self.space.destroy(&mut NoTlb);
        while remains.release(1000, &self.frames, &self.mem, |_| {}) {}
        assert_eq!(self.frames.usage(VM).total(), 0, "frames are lost");
    }
}

fn life<In: Space>(seed: u8, ad: Ad, deaf: Deaf) {
    let mut world = World::<In>::new(seed, ad, deaf);
    (0..PIECES / 2).for_each(|_| world.change_regions());
    (0..300).for_each(|_| world.step());
    world.end();
}

#[test]
fn after_an_edit_no_mapper_knows_what_was_before() {
    for seed in 0..30 {
        let ad = [Ad::AsNeeded, Ad::Faults, Ad::Hardware][usize::from(seed) % 3];
        life::<Gpa>(seed, ad, Deaf::No);
        life::<L2Gpa>(seed, ad, Deaf::No);
    }
}

#[test]
fn a_mapper_that_does_not_hear_is_caught() {
    for deaf in [Deaf::ToChanges, Deaf::ToWrites, Deaf::ToRegions] {
        let caught =
            (0..30).find_map(|seed| catch_unwind(AssertUnwindSafe(|| life::<Gpa>(seed, Ad::Faults, deaf))).err());
        let caught = caught.unwrap_or_else(|| panic!("{deaf:?} was not caught"));
        let text = caught.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains("TOLD"), "{deaf:?} was caught by chance: {text}");
    }
}
