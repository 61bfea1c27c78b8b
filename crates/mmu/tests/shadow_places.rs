//! A guest's table of level 1 at two places of one root, in `steered`: what is linked below it translates at both, so fences at both count.

use crate::engine::{self, HOST, Hardware, RAM, REGION};
use mmu::shadow::{Answer, Config, GuestFence, Host, MARK, Root, Sabotage, Shadow, Upkeep, Views};
use mmu::table::{State, is_poison};
use mmu::{AdPolicy, AddressSpace, Frames, Object, Prot, Ready, Unresolved, with_ready};
use oracle::Machine;
use rv::format::SV39;
use rv::{Access, Addr, Asid, FenceLog, Gva, Hpa, Lane, LaneSync, Level, Pfn, PhysMem, Pte, Request};

/// Guest pages: the root, the table of level 1 that is at 0 and 1 there, tables of level 0, and what leaves lead to.
const ROOT: u64 = 0;
const MIDDLE: u64 = 1;
const TABLES: [u64; 3] = [2, 3, 4];
const BEFORE: u64 = 10;
const AFTER: u64 = 11;

struct World {
    mem: Machine,
    frames: Frames,
    space: AddressSpace,
    shadow: Shadow,
    views: Views,
    log: FenceLog,
    root: Root,
}

fn pointer(page: u64) -> u64 {
    (RAM.raw() + page) << 10 | 1
}

fn leaf(page: u64) -> u64 {
    (RAM.raw() + page) << 10 | 0xc7
}

/// By the indices of its entries.
fn gva(indices: [u64; 3]) -> Addr<Gva> {
    Addr::new(indices.into_iter().fold(0, |gva, index| gva << 9 | index) << 12)
}

impl World {
    fn new(sabotage: Option<Sabotage>) -> Self {
        let mut mem = Machine::with_ram(HOST, 2048);
        let mut frames = Frames::new();
        frames.add(HOST, 2048);
        let mut space = engine::space(&[(Prot::RWX, Object::Anonymous)], &frames, &mut mem);
        let config =
            Config { upkeep: Upkeep::Steered, ad: AdPolicy::Svade, globals: true, pages: 128, first_serial: 1 };
        let mut shadow = engine::shadow(config, REGION, &frames, &mut mem);
        if let Some(sabotage) = sabotage {
            shadow.sabotage(sabotage);
        }
        shadow.begin_lane(RAM.add(REGION), &frames, &mut mem);
        let (mut views, log) = (Views::default(), FenceLog::new(0));
        let mut root = None;
        let what = (&SV39, ROOT, Asid(0));
        engine::attach(&mut shadow, &mut root, what, (&mut views, &log), (&mut space, &frames), &mut mem);
        let root = root.expect("it is loaded");
        let mut world = Self { mem, frames, space, shadow, views, log, root };
        for page in (ROOT..5).chain([BEFORE, AFTER]) {
            let gpa = RAM.add(page).base();
            world.operate(|shadow, _, host| shadow.resolve(gpa, Access::Store, host)).expect("RAM");
        }
        [0, 1].into_iter().for_each(|index| world.store(ROOT, index, pointer(MIDDLE)));
        world
    }

    /// An operation of the engine's.
    fn operate<R>(
        &mut self,
        mut operation: impl FnMut(&mut Shadow, Root, &mut Host<'_, Machine, Hardware>) -> Result<R, Unresolved>,
    ) -> R {
        let Self { mem, frames, space, shadow, root, .. } = self;
        let result = with_ready(frames, mem, |ready, mem| {
            shadow.alone(mem, |shadow, mem| {
                operation(shadow, *root, &mut Host::new(space, (frames, ready), mem, &mut Hardware))
            })
        });
        result.expect("frames")
    }

    /// Where a page of the guest's is.
    fn there(&self, page: u64) -> Pfn<Hpa> {
        self.space.translate(RAM.add(page).base(), &self.mem).expect("it is mapped").hpa.pfn()
    }

    /// The guest stores to a table.
    fn store(&mut self, page: u64, index: u64, value: u64) {
        let at = self.there(page).at(8 * index);
        self.mem.write_u64(at, value);
    }

    /// The guest fences an address, which goes the full path.
    fn fence(&mut self, gva: Addr<Gva>) {
        let fence = GuestFence { range: Some((gva, 1)), asid: None };
        let Self { mem, frames, space, shadow, views, log, root } = self;
        shadow.alone(mem, |shadow, mem| {
            let (mut ready, mut hw) = (Ready::Nothing, Hardware);
            let mut host = Host::new(space, (frames, &mut ready), mem, &mut hw);
            shadow.fence(&fence, *root, views, log, &mut host);
        });
    }

    /// The lane has fenced an address whose entry says the right thing.
    fn lane_fence(&mut self, gva: Addr<Gva>) {
        let gate = Addr::new(self.shadow.lane_inputs().expect("it has memory").gate);
        let (at, guest) = self.entry(gva).expect("marked pointers lead there");
        let line = Addr::new(self.mem.read_u64(gate));
        self.mem.write_u64(line, at.raw() + Lane::POINTER_FLAGS);
        self.mem.write_u64(line.wrapping_add(8), guest);
        self.mem.write_u64(gate, line.raw() + LaneSync::LINE_BYTES);
    }

    /// The entry of level 0 that marked pointers lead to, and the guest's behind it.
    fn entry(&self, gva: Addr<Gva>) -> Option<(Addr<Hpa>, u64)> {
        let mut table = self.root.table;
        for level in [Level::GIGA, Level::MEGA] {
            let pte = Pte(self.mem.read_u64(table.at(8 * SV39.index(gva, level) as u64)));
            if is_poison(pte) || !pte.flags().contains(MARK) {
                return None;
            }
            table = pte.pfn();
        }
        let offset = 8 * SV39.index(gva, Level::PAGE) as u64;
        let guests = self.mem.read_u64(Addr::new(table.base().raw().wrapping_add_signed(LaneSync::GUEST_AT)));
        Some((table.at(offset), self.mem.read_u64(Addr::new(guests + offset))))
    }

    /// The guest gets to an address.
    fn access(&mut self, gva: Addr<Gva>) {
        for _ in 0..10 {
            let request = Request::supervisor(Access::Load);
            match self.operate(|shadow, root, host| shadow.fault(&root, gva, &request, host)) {
                Answer::Filled { .. } => return,
                Answer::Retry => {}
                other => panic!("{gva}: {other:?}"),
            }
        }
        panic!("PROGRESS: {gva}");
    }

    /// Whether hardware finds what was there before.
    fn is_stale(&self, gva: Addr<Gva>) -> bool {
        let pte = self.entry(gva).map(|(at, _)| Pte(self.mem.read_u64(at)));
        pte.is_some_and(|pte| State::of(pte) == State::Leaf && pte.pfn() == self.there(BEFORE))
    }

    fn end(self) {
        self.shadow.destroy().for_each(|run| self.frames.free(run));
    }
}

/// A table is linked again below the one at two places, for the one place; and there was a fence at the other. Says whether what
/// the table said before that can be used there.
fn linked_again(sabotage: Option<Sabotage>) -> bool {
    let mut world = World::new(sabotage);
    let [one, other, third] = TABLES;
    world.store(MIDDLE, 0, pointer(one));
    world.store(one, 1, leaf(BEFORE));
    world.store(MIDDLE, 2, pointer(other));
    [0, 1, 3].into_iter().for_each(|index| world.store(other, index, leaf(BEFORE)));
    world.store(third, 2, leaf(BEFORE));
    world.access(gva([0, 2, 1]));
    world.access(gva([1, 0, 1]));
    // A third table comes in place of the other for a while.
    world.store(MIDDLE, 2, pointer(third));
    world.access(gva([0, 2, 2]));
    world.store(other, 0, leaf(AFTER));
    world.store(MIDDLE, 2, pointer(other));
    world.fence(gva([1, 2, 0]));
    world.access(gva([0, 2, 3]));
    let is_stale = world.is_stale(gva([1, 2, 0]));
    world.end();
    is_stale
}

/// The lane fences an address in a table that was linked for the other place only. Says whether what another table said before that
/// can be used there, when it comes in place of the first.
fn fenced_by_the_lane(sabotage: Option<Sabotage>) -> bool {
    let mut world = World::new(sabotage);
    let [one, other, _] = TABLES;
    [0, 1].into_iter().for_each(|index| world.store(one, index, leaf(BEFORE)));
    [0, 2, 3].into_iter().for_each(|index| world.store(other, index, leaf(BEFORE)));
    world.store(MIDDLE, 0, pointer(other));
    world.access(gva([1, 0, 3]));
    world.store(MIDDLE, 0, pointer(one));
    world.access(gva([0, 0, 1]));
    world.store(other, 0, leaf(AFTER));
    world.lane_fence(gva([1, 0, 0]));
    world.store(MIDDLE, 0, pointer(other));
    world.access(gva([1, 0, 2]));
    let is_stale = world.is_stale(gva([1, 0, 0]));
    world.end();
    is_stale
}

#[test]
fn a_fence_at_one_place_counts_for_what_is_linked_for_the_other() {
    assert!(!linked_again(None), "TLB-LIKE");
    assert!(linked_again(Some(Sabotage::ForgetsPlaces)), "the mutant is not caught");
}

#[test]
fn a_fence_of_the_lanes_counts_for_both_places() {
    assert!(!fenced_by_the_lane(None), "TLB-LIKE");
    assert!(fenced_by_the_lane(Some(Sabotage::ForgetsPlaces)), "the mutant is not caught");
}
