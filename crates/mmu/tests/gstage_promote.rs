//! Promotion: 4 KiB leaves that fill 2 MiB become one leaf, while the guest goes on; beside the fence model, and with what must not
//! be forgotten forgotten.

use crate::rig::world::{Mutant, World};
#[allow(dead_code)]
use mmu::{
    Ad, AddressSpace, Frames, How, Images, Object, Owner, Policy, Promoted, Prot, Region, Residence, Resolved,
    Superpages,
};
use oracle::{FenceModel, Machine};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use rv::format::SV39X4;
use rv::{Access, Addr, Fence, FenceScope, Gpa, Hpa, Level, Pfn, PhysMem, PteFlags};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::catch_unwind;

const VM: Owner = Owner::Vm(0);
const RAM: Pfn<Hpa> = Pfn::new(0x8_0000);
const PAGES: u64 = 4096;

/// Memory and harts, for the engine to have both.
pub struct Mem<'a>(pub &'a RefCell<World>);

impl PhysMem for Mem<'_> {
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        self.0.borrow().read_u64(at)
    }
    fn write_u64(&mut self, at: Addr<Hpa>, value: u64) {
        self.0.borrow_mut().write_u64(at, value);
    }
    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64 {
        self.0.borrow_mut().exchange_u64(at, value)
    }
    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        self.0.borrow_mut().compare_exchange_u64(at, old, new)
    }
    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        self.0.borrow_mut().zero_frames(first, pages);
    }
    fn copy_frames(&mut self, from: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64) {
        self.0.borrow_mut().copy_frames(from, to, pages);
    }
    fn read_bytes(&self, at: Addr<Hpa>, into: &mut [u8]) {
        self.0.borrow().read_bytes(at, into);
    }
    fn write_bytes(&mut self, at: Addr<Hpa>, from: &[u8]) {
        self.0.borrow_mut().write_bytes(at, from);
    }
}

/// A hart that has not heard of a fence yet may still write.
pub struct Harts<'a> {
    pub world: &'a RefCell<World>,
    pub late: Option<(Addr<Hpa>, u64)>,
}

impl Fence<Gpa> for Harts<'_> {
    fn fence(&mut self, scope: FenceScope<Gpa>) {
        if let Some((at, word)) = self.late.take() {
            self.world.borrow_mut().model.machine.write_u64(at, word);
        }
        self.world.borrow_mut().fence(scope);
    }
}

struct Vm {
    frames: Frames,
    world: RefCell<World>,
    space: AddressSpace,
    /// The first word of each page, where it is not 0.
    words: BTreeMap<u64, u64>,
    rng: TestRng,
}

/// A VM of 2 MiB twice.
fn vm(seed: u8, mutant: Mutant, ad: Ad) -> Vm {
    let mut frames = Frames::new();
    frames.add(RAM, PAGES);
    let model = FenceModel::new(Machine::with_ram(RAM, PAGES), 2);
    let mut world = World::new(model, mutant);
    let policy = Policy { superpages: Superpages::Mega, images: Images::Shared, residence: Residence::Pageable, ad };
    let mut space = AddressSpace::new(&SV39X4, VM, policy, &frames, &mut world).expect("frames");
    world.model.watch(&SV39X4, space.root());
    let region = Region { start: Pfn::new(0), pages: 1024, prot: Prot::RWX, object: Object::Anonymous };
    space.add_region(region, &world).expect("it is the only one");
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    Vm { frames, world: RefCell::new(world), space, words: BTreeMap::new(), rng }
}

impl Vm {
    fn pick(&mut self, below: u64) -> u64 {
        self.rng.next_u64() % below
    }

    /// Makes the access possible.
    fn touch(&mut self, page: u64, access: Access) -> How {
        let Self { frames, world, space, .. } = self;
        match space.resolve(Pfn::new(page).base(), access, frames, &mut Mem(world)) {
            Ok(Resolved::Mapped { how, stale, publish, .. }) => {
                space.settle(stale, publish, &mut Harts { world, late: None }, &mut Mem(world)).release(frames);
                how
            }
            other => panic!("{other:?}"),
        }
    }

    /// A store, with a fault where there has to be one.
    fn store(&mut self, page: u64, word: u64) {
        self.touch(page, Access::Store);
        let there = self.space.translate(Pfn::new(page).base(), &Mem(&self.world)).expect("mapped");
        self.world.borrow_mut().model.machine.write_u64(there.hpa, word);
        self.words.insert(page, word);
    }

    /// Fills 2 MiB by 4 KiB; every eighth page in another order, so that its frames do not follow one another.
    fn fill(&mut self, is_shuffled: bool) {
        let limit = self.frames.usage(VM).total() + 515;
        self.frames.set_limit(VM, limit - 4);
        let order = |n: u64| if is_shuffled { n ^ 8 } else { n };
        for n in 0..512 {
            if n == 500 {
                self.frames.set_limit(VM, limit);
            }
            self.store(order(n), n + 1);
        }
        self.frames.set_limit(VM, u64::MAX);
        assert_eq!(self.level(0), Level::PAGE);
    }

    fn level(&self, page: u64) -> Level {
        self.space.translate(Pfn::new(page).base(), &Mem(&self.world)).expect("mapped").level
    }

    /// All pages hold what they should.
    fn check(&mut self) {
        self.world.borrow().model.verdict().expect("no fence rule is broken");
        for page in 0..512 {
            self.touch(page, Access::Load);
            let there = self.space.translate(Pfn::new(page).base(), &Mem(&self.world)).expect("mapped");
            let word = Mem(&self.world).read_u64(there.hpa);
            assert_eq!(word, self.words.get(&page).copied().unwrap_or(0), "contents of {page}");
        }
    }

    /// Does other things that may happen between two portions.
    fn meanwhile(&mut self, is_rough: bool) {
        self.world.borrow_mut().model.enter_guest(0);
        self.world.borrow_mut().model.enter_guest(1);
        for _ in 0..self.pick(6) {
            let (page, word) = (self.pick(512), 1000 + self.pick(1 << 40));
            self.store(page, word);
        }
        if !is_rough || self.pick(8) != 0 {
            return;
        }
        let page = self.pick(512);
        let is_rest = self.pick(2) == 0;
        let Self { frames, world, space, words, .. } = self;
        let stale = if is_rest {
            space.rest(Pfn::new(page), &mut Mem(world))
        } else {
            words.remove(&page);
            space.unmap(Pfn::new(page), 1, frames, &mut Mem(world)).expect("a frame")
        };
        space.tell(stale, &mut Mem(world)).flush(&mut Harts { world, late: None }, frames);
        self.touch(page, Access::Load);
    }

    fn promote(&mut self, is_rough: bool) -> Option<Promoted> {
        let frames = &self.frames;
        let mut promotion = self.space.begin_promotion(Pfn::new(7), || frames.take_ahead(9), &Mem(&self.world))?;
        loop {
            self.meanwhile(is_rough);
            // Some hart may write to this page until the next fence.
            let (page, word) = (self.pick(512), 1000 + self.pick(1 << 40));
            let Self { frames, world, space, words, .. } = self;
            let there = space.translate(Pfn::new(page).base(), &Mem(world));
            let late = there.filter(|there| there.flags.contains(PteFlags::W)).map(|there| (there.hpa, word));
            let mut harts = Harts { world, late };
            let (mut ready, mut mem) = (mmu::Ready::Nothing, Mem(world));
            let host = &mut mmu::shadow::Host::new(space, (frames, &mut ready), &mut mem, &mut harts);
            let done = mmu::Edits { shadow: None::<&mut mmu::shadow::Shadow>, nested: None, collapsed: None, host }
                .promote(&mut promotion);
            if late.is_some() && harts.late.is_none() {
                words.insert(page, word);
            }
            if done != Promoted::More {
                promotion.discard(frames);
                return Some(done);
            }
        }
    }
}

/// Whole lives. Says how often one leaf came of it, and how often not.
fn lives(seeds: core::ops::Range<u8>, mutant: Mutant, ad: Ad) -> [u32; 2] {
    let mut count = [0; 2];
    for seed in seeds {
        let mut vm = vm(seed, mutant, ad);
        let (is_shuffled, is_rough) = (vm.pick(4) != 0, vm.pick(2) == 0);
        vm.fill(is_shuffled);
        let before = vm.frames.usage(VM);
        let done = vm.promote(is_rough);
        vm.check();
        match done {
            Some(Promoted::Whole) => {
                assert_eq!(vm.level(0), Level::MEGA);
                let after = vm.frames.usage(VM);
                assert_eq!((after.guest, after.table), (before.guest, before.table - 1), "what it pays for");
                count[0] += 1;
            }
            Some(Promoted::Not) => count[1] += 1,
            other => panic!("{other:?}"),
        }
        assert_eq!(vm.frames.free_count() + vm.frames.usage(VM).total(), PAGES, "no frame is lost");
    }
    count
}

#[test]
fn small_pages_become_a_large_one_while_the_guest_goes_on() {
    for ad in [Ad::AsNeeded, Ad::Faults] {
        let [whole, not] = lives(0..60, Mutant::None, ad);
        assert!(whole >= 20 && not >= 5, "{whole} times, and {not} times not");
    }
}

#[test]
fn what_must_not_be_forgotten_is_missed() {
    for (mutant, check) in [
        (Mutant::DropsFences, "fence rule"),
        (Mutant::FencesOneHart, "fence rule"),
        (Mutant::ForgetsToCopy, "contents of"),
        (Mutant::ForgetsToTakeOver, "contents of"),
        (Mutant::TakesOverEarly, "contents of"),
    ] {
        let caught = (0..60).find_map(|seed| catch_unwind(|| lives(seed..seed + 1, mutant, Ad::AsNeeded)).err());
        let caught = caught.unwrap_or_else(|| panic!("{mutant:?} was not caught"));
        let text = caught.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains(check), "{mutant:?} was caught by chance: {text}");
    }
}

#[test]
fn frames_that_follow_one_another_stay() {
    let mut vm = vm(1, Mutant::None, Ad::AsNeeded);
    vm.store(3, 9);
    assert_eq!(vm.level(3), Level::MEGA);
    let frame = vm.space.translate(Pfn::new(0).base(), &Mem(&vm.world)).expect("mapped").hpa;
    let Vm { frames, world, space, .. } = &mut vm;
    let stale = space.rest(Pfn::new(0), &mut Mem(world));
    space.tell(stale, &mut Mem(world)).flush(&mut Harts { world, late: None }, frames);
    let table = frames.take_ahead(0).expect("a frame");
    space.split_idle(Pfn::new(0), table, frames, &mut Mem(world));
    // What is idle stays apart.
    assert_eq!(space.begin_promotion(Pfn::new(0), || None, &Mem(world)), None);
    (0..512).for_each(|page| _ = vm.touch(page, Access::Load));
    assert_eq!((vm.level(0), vm.space.may_have_small()), (Level::PAGE, true));
    assert_eq!(vm.promote(false), Some(Promoted::Whole));
    let there = vm.space.translate(Pfn::new(0).base(), &Mem(&vm.world)).expect("mapped");
    assert_eq!((there.hpa, there.level), (frame, Level::MEGA));
    vm.check();
}
