//! The dirty log: whatever happens to a VM's memory while its pages are copied elsewhere, the copy is right in the end.

use crate::gstage_promote::{Harts, Mem};
use crate::rig::world::{Mutant, World};
use mmu::gstage::{Comes, Sight, SwapSlot};
use mmu::shadow::{Host, Shadow};
use mmu::{
    Ad, AddressSpace, Collected, Edits, Frames, Images, Object, Owner, Policy, Prot, Ready, Region, Residence,
    ResolveError, Resolved, Stale, Superpages, Use,
};
use oracle::{FenceModel, Machine};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use rv::format::SV39X4;
use rv::{Access, Addr, Gpa, Hpa, Level, Pfn, PhysMem, Pte, PteFlags};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;

const VM: Owner = Owner::Vm(0);
const RAM: Pfn<Hpa> = Pfn::new(0x8_0000);
const PAGES: u64 = 7168;
/// Frames of the image, and the guest pages that show it. Neither end is one of 2 MiB.
const IMAGE: u64 = 1024;
const SHOWN: std::ops::Range<u64> = 1024..1700;
const END: u64 = 2100;

/// The part of the protocol that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lapse {
    Nothing,
    /// The receiver does not hear of pages of zeroes.
    Zeroes,
    /// The last round is left out.
    LastRound,
    /// A page that was collected is not sent if it changed before.
    Resent,
    /// The log was never begun: stores to 2 MiB, and to pages that go out, show in part.
    Log,
}

struct Vm {
    frames: Frames,
    world: RefCell<World>,
    space: AddressSpace,
    /// The first word of each page, for the guest.
    words: BTreeMap<u64, u64>,
    /// First words at the receiver.
    copy: BTreeMap<u64, u64>,
    /// Pages that were collected and are still to be sent.
    pending: BTreeSet<u64>,
    at: u64,
    is_first: bool,
    out: BTreeMap<u64, SwapSlot>,
    device: BTreeMap<SwapSlot, u64>,
    slots: u64,
    rng: TestRng,
    ad: Ad,
    lapse: Lapse,
    /// Runs that were collected as changed, pages split by a store, pages that came in changed.
    seen: [u64; 3],
}

fn vm(seed: u8, ad: Ad, lapse: Lapse) -> Vm {
    let mut frames = Frames::new();
    frames.add(RAM.add(IMAGE), PAGES - IMAGE);
    frames.add_images(std::slice::from_ref(&(RAM.raw()..RAM.raw() + IMAGE)));
    let mut machine = Machine::with_ram(RAM, PAGES);
    let mut words = BTreeMap::new();
    for page in SHOWN {
        machine.write_u64(RAM.add(page - SHOWN.start).base(), 7_000_000 + page);
        words.insert(page, 7_000_000 + page);
    }
    let mut world = World::new(FenceModel::new(machine, 2), Mutant::None);
    let policy = Policy { superpages: Superpages::Mega, images: Images::Shared, residence: Residence::Pageable, ad };
    let mut space = AddressSpace::new(&SV39X4, VM, policy, &frames, &mut world).expect("frames");
    world.model.watch(&SV39X4, space.root());
    let regions =
        [(0, 1024, Object::Anonymous), (1024, 1700, Object::Image { first: RAM }), (1700, END, Object::Anonymous)];
    for (start, end, object) in regions {
        let region = Region { start: Pfn::new(start), pages: end - start, prot: Prot::RWX, object };
        space.add_region(region, &world).expect("they do not overlap");
    }
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let (out, device) = (BTreeMap::new(), BTreeMap::new());
    let (copy, pending) = (BTreeMap::new(), BTreeSet::new());
    let world = RefCell::new(world);
    let (at, slots, seen) = (0, 0, [0; 3]);
    Vm { frames, world, space, words, copy, pending, at, is_first: true, out, device, slots, rng, ad, lapse, seen }
}

impl Vm {
    fn pick(&mut self, below: u64) -> u64 {
        self.rng.next_u64() % below
    }

    /// A page: mostly one of few, so that the same ones are met again.
    fn page(&mut self) -> u64 {
        let base = [3, 510, 1020, 1500, 1698, 2090][self.pick(6) as usize];
        if self.pick(4) == 0 { self.pick(END) } else { base + self.pick(8) }
    }

    fn settle(&mut self, stale: Stale<Gpa>) {
        let Self { frames, world, space, .. } = self;
        space.tell(stale, &mut Mem(world)).flush(&mut Harts { world, late: None }, frames);
    }

    /// Makes the access possible. Returns its address.
    fn touch(&mut self, page: u64, access: Access) -> Addr<Hpa> {
        let splits = self.space.counters().splits;
        for _ in 0..3 {
            let Self { frames, world, space, .. } = self;
            match space.resolve(Pfn::new(page).base(), access, frames, &mut Mem(world)) {
                Ok(Resolved::Mapped { hpa, stale, publish, .. }) => {
                    space.settle(stale, publish, &mut Harts { world, late: None }, &mut Mem(world)).release(frames);
                    self.seen[1] += self.space.counters().splits - splits;
                    return hpa;
                }
                Err(ResolveError::Out { .. }) => self.bring_in(page),
                other => panic!("{other:?}"),
            }
        }
        panic!("{page} does not come back")
    }

    /// The leaf that maps a page, and where it is, if hardware may store there without a fault.
    fn writable(&self, page: u64) -> Option<(Addr<Hpa>, Pte, Level)> {
        let (mut table, mut level) = (self.space.root(), SV39X4.root_level());
        loop {
            let at = table.at(8 * SV39X4.index(Pfn::<Gpa>::new(page).base(), level) as u64);
            let pte = Pte(Mem(&self.world).read_u64(at));
            if !pte.is_pointer() {
                return pte.flags().contains(PteFlags::V | PteFlags::W).then_some((at, pte, level));
            }
            (table, level) = (pte.pfn(), level.down().expect("a pointer is above level 0"));
        }
    }

    fn store(&mut self, page: u64, word: u64) {
        let hpa = match self.writable(page) {
            // No fault: hardware sets D, if that is its own.
            Some((at, pte, level)) if self.ad == Ad::Hardware => {
                self.world.borrow_mut().model.machine.write_u64(at, pte.0 | PteFlags::D.bits());
                pte.pfn::<Hpa>().add(page % level.pages()).base()
            }
            Some((_, pte, level)) => pte.pfn::<Hpa>().add(page % level.pages()).base(),
            None => self.touch(page, Access::Store),
        };
        self.world.borrow_mut().model.machine.write_u64(hpa, word);
        self.words.insert(page, word);
    }

    fn rest(&mut self, page: u64) {
        if let (Sight::Mapped(_), _) = self.space.look(Pfn::new(page), &Mem(&self.world)) {
            let stale = self.space.rest(Pfn::new(page), &mut Mem(&self.world));
            self.settle(stale);
        }
    }

    fn take_out(&mut self, page: u64) {
        let (sight, _) = self.space.look(Pfn::new(page), &Mem(&self.world));
        let Sight::Idle(level) = sight else { return };
        if level == Level::MEGA {
            let table = self.frames.take_ahead(0).expect("a frame");
            self.space.split_idle(Pfn::new(page), table, &self.frames, &mut Mem(&self.world));
        }
        if let Some(run) = self.space.take_out_clean(Pfn::new(page), &mut Mem(&self.world)) {
            let slot = self.space.is_out(Pfn::new(page), &Mem(&self.world)).expect("it went");
            self.out.insert(page, slot);
            self.world.borrow_mut().model.free(run.first());
            return self.frames.free(run);
        }
        self.slots += 1;
        let slot = SwapSlot(self.slots);
        let run = self.space.take_out(Pfn::new(page), Some(slot), &mut Mem(&self.world));
        let word = Mem(&self.world).read_u64(run.first().base());
        assert_eq!(word, self.words.get(&page).copied().unwrap_or(0), "contents of {page}, which goes");
        self.device.insert(slot, word);
        self.out.insert(page, slot);
        self.world.borrow_mut().model.free(run.first());
        self.frames.free(run);
    }

    fn bring_in(&mut self, page: u64) {
        let Some(slot) = self.out.remove(&page) else { return };
        let run = self.frames.alloc(VM, Use::Guest, 0).expect("a frame");
        Mem(&self.world).zero_frames(run.first(), 1);
        Mem(&self.world).write_u64(run.first().base(), self.device[&slot]);
        let comes = if self.pick(2) == 0 { Comes::Wanted } else { Comes::Ahead };
        let copies = self.space.copy_count();
        let stale = self.space.bring_in(Pfn::new(page), slot, (run, comes), &mut Mem(&self.world)).expect("it is out");
        self.seen[2] += u64::from(self.space.copy_count() == copies);
        self.settle(stale);
    }

    fn unmap(&mut self, page: u64, pages: u64) {
        let stale = self.space.unmap(Pfn::new(page), pages, &self.frames, &mut Mem(&self.world)).expect("a frame");
        self.settle(stale);
        for page in page..(page + pages).min(END) {
            self.out.remove(&page);
            match SHOWN.contains(&page) {
                true => self.words.insert(page, 7_000_000 + page),
                false => self.words.remove(&page),
            };
        }
    }

    /// Collects a portion; after the last page begins anew.
    fn collect(&mut self) -> bool {
        let most = 1 + self.pick(4) as usize;
        let splits = self.space.counters().splits;
        let Self { frames, world, space, .. } = self;
        let (mut ready, mut mem, mut harts) = (Ready::Nothing, Mem(world), Harts { world, late: None });
        let host = &mut Host::new(space, (frames, &mut ready), &mut mem, &mut harts);
        let mut edits = Edits { shadow: None::<&mut Shadow>, nested: None, collapsed: None, host };
        let Collected { next, changed, zero } = edits.collect((Pfn::new(self.at), Pfn::new(END)), self.is_first, most);
        self.seen[0] += changed.len() as u64;
        self.seen[1] += space.counters().splits - splits;
        assert!(changed.iter().chain(&zero).all(|run| run.end <= END && !run.is_empty()));
        self.pending.extend(changed.into_iter().flatten());
        for page in zero.into_iter().flatten() {
            self.pending.remove(&page);
            if self.lapse != Lapse::Zeroes {
                self.copy.remove(&page);
            }
        }
        self.at = next.raw();
        let is_over = self.at == END;
        if is_over {
            (self.at, self.is_first) = (0, false);
        }
        is_over
    }

    /// Sends a page that was collected before, as it is now.
    fn send(&mut self, page: u64) {
        if self.lapse == Lapse::Resent && self.copy.contains_key(&page) && self.pick(2) == 0 {
            return;
        }
        self.copy.remove(&page);
        if let Some(word) = self.words.get(&page) {
            self.copy.insert(page, *word);
        }
    }

    fn send_some(&mut self, most: u64) {
        for _ in 0..self.pick(most) {
            if let Some(page) = self.pending.pop_first() {
                self.send(page);
            }
        }
    }

    fn step(&mut self) {
        let page = self.page();
        match self.pick(20) {
            0..=6 => {
                let word = 1 + self.pick(1 << 40);
                self.store(page, word);
            }
            7 | 8 => _ = self.touch(page, Access::Load),
            9 | 10 => self.rest(page),
            11 | 12 => self.take_out(page),
            13 => self.bring_in(page),
            14 => {
                let pages = 1 + self.pick(3);
                self.unmap(page, pages);
            }
            15 => {
                let frames = &self.frames;
                let begun = self.space.begin_promotion(Pfn::new(page), || frames.take_ahead(9), &Mem(&self.world));
                if let Some(promotion) = begun {
                    assert!(self.lapse == Lapse::Log, "no promotion while the log is on");
                    promotion.discard(frames);
                }
            }
            16 | 17 => self.send_some(40),
            _ => _ = self.collect(),
        }
        if self.pick(3) == 0 {
            let hart = self.pick(2) as usize;
            self.world.borrow_mut().model.enter_guest(hart);
        }
    }

    /// A life with a migration in it. Returns what was seen.
    fn live(mut self) -> [u64; 3] {
        for _ in 0..60 {
            self.at = END;
            self.is_first = true;
            self.step();
        }
        (self.at, self.is_first) = (0, true);
        (self.copy, self.pending) = <_>::default();
        if self.lapse != Lapse::Log {
            self.space.begin_log();
        }
        for _ in 0..1500 {
            self.step();
        }
        // The guest stands still. The round that has begun is finished, and another one done.
        while self.lapse != Lapse::LastRound && !self.collect() {}
        while self.lapse != Lapse::LastRound && !self.collect() {}
        while let Some(page) = self.pending.pop_first() {
            self.send(page);
        }
        let (copy, words) = (&self.copy, &self.words);
        let wrong: Vec<u64> = (0..END).filter(|page| copy.get(page) != words.get(page)).take(4).collect();
        assert!(wrong.is_empty(), "the copy of {wrong:?} is wrong");
        self.space.end_log();
        for page in 0..END {
            let at = self.touch(page, if page % 2 == 0 { Access::Load } else { Access::Store });
            let word = Mem(&self.world).read_u64(at);
            assert_eq!(word, self.words.get(&page).copied().unwrap_or(0), "contents of {page} afterwards");
        }
        self.world.borrow().model.verdict().expect("no fence rule is broken");
        self.space.destroy(&mut Harts { world: &self.world, late: None }).release(
            u32::MAX,
            &self.frames,
            &Mem(&self.world),
            |_| {},
        );
        self.seen
    }
}

fn lives(ad: Ad, lapse: Lapse) -> [u64; 3] {
    (0..12)
        .map(|seed| vm(seed, ad, lapse).live())
        .fold([0; 3], |sum, seen| std::array::from_fn(|at| sum[at] + seen[at]))
}

#[test]
fn a_copy_by_the_dirty_log_is_right_in_the_end() {
    for ad in [Ad::AsNeeded, Ad::Faults, Ad::Hardware] {
        let seen = lives(ad, Lapse::Nothing);
        assert!(seen.iter().all(|count| *count >= 5), "{ad:?}: {seen:?}");
    }
}

#[test]
fn a_copy_without_a_part_of_it_is_wrong() {
    for lapse in [Lapse::Zeroes, Lapse::LastRound, Lapse::Resent, Lapse::Log] {
        let caught = catch_unwind(|| lives(Ad::AsNeeded, lapse)).expect_err(&format!("{lapse:?}"));
        let text = caught.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(text.contains("the copy"), "{lapse:?}: {text}");
    }
}

#[test]
fn a_leaf_that_came_meanwhile_is_collected_whole() {
    let mut vm = vm(0, Ad::AsNeeded, Lapse::Nothing);
    vm.space.begin_log();
    while !vm.collect() {}
    vm.pending.clear();
    // Of 2 MiB of the image some pages are looked at, then a store to one of these copies all of them.
    vm.touch(1024, Access::Load);
    vm.at = 1100;
    vm.store(1030, 5);
    assert_eq!(vm.space.translate(Pfn::new(1030).base(), &Mem(&vm.world)).expect("mapped").level, Level::MEGA);
    while !vm.collect() {}
    assert!(vm.pending.contains(&1030) && vm.pending.contains(&1535));
    vm.space.destroy(&mut Harts { world: &vm.world, late: None }).release(
        u32::MAX,
        &vm.frames,
        &Mem(&vm.world),
        |_| {},
    );
}
