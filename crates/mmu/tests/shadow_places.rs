//! A guest's table of level 1 at two places of one root, in `steered`: what is linked below it translates at both, so fences at both count.

use crate::engine::steered::{Steered, gva, leaf, pointer};
use ::lane::{Lane, LaneSync};
use mmu::shadow::{Answer, GuestFence, Sabotage};
use mmu::table::State;
use rv::format::SV39;
use rv::{Addr, Asid, Gva, Hpa, PAGE_BYTES, PhysMem};

/// Guest pages: the root, the table of level 1 that is at 0 and 1 there, tables of level 0, and what leaves lead to.
const ROOT: u64 = 0;
const MIDDLE: u64 = 1;
const TABLES: [u64; 3] = [2, 3, 4];
const BEFORE: u64 = 10;
const AFTER: u64 = 11;

fn world(sabotage: Option<Sabotage>) -> Steered {
    let mut world = Steered::new((ROOT..5).chain([BEFORE, AFTER]), sabotage);
    world.load((&SV39, ROOT, Asid(0)));
    [0, 1].into_iter().for_each(|index| world.store(ROOT, index, pointer(MIDDLE)));
    world
}

/// The lane has fenced an address whose entry says the right thing.
fn lane_fence(Steered { mem, shadow, .. }: &mut Steered, at: Addr<Hpa>) {
    let gate = Addr::new(shadow.lane_inputs().expect("it has memory").gate);
    let table = at.align_down(PAGE_BYTES);
    let guests = mem.read_u64(Addr::new(table.raw().wrapping_add_signed(LaneSync::GUEST_AT)));
    let guest = mem.read_u64(Addr::new(guests + at.page_offset()));
    let line = Addr::new(mem.read_u64(gate));
    mem.write_u64(line, at.raw() + Lane::POINTER_FLAGS);
    mem.write_u64(line.wrapping_add(8), guest);
    mem.write_u64(gate, line.raw() + LaneSync::LINE_BYTES);
}

/// The guest gets to an address.
fn access(world: &mut Steered, gva: Addr<Gva>) {
    let answer = world.access(gva);
    assert!(matches!(answer, Answer::Filled { .. }), "{gva}: {answer:?}");
}

/// Returns whether hardware finds the page that was there before.
fn is_stale(world: &Steered, gva: Addr<Gva>) -> bool {
    world.entry(gva).is_some_and(|pte| State::of(pte) == State::Leaf && pte.pfn() == world.there(BEFORE))
}

/// Links a table again below the one at two places, for the one place, after a fence at the other. Returns whether the
/// table's entry from before the fence can be used there.
fn linked_again(sabotage: Option<Sabotage>) -> bool {
    let mut world = world(sabotage);
    let [one, other, third] = TABLES;
    world.store(MIDDLE, 0, pointer(one));
    world.store(one, 1, leaf(BEFORE));
    world.store(MIDDLE, 2, pointer(other));
    [0, 1, 3].into_iter().for_each(|index| world.store(other, index, leaf(BEFORE)));
    world.store(third, 2, leaf(BEFORE));
    access(&mut world, gva([0, 2, 1]));
    access(&mut world, gva([1, 0, 1]));
    // A third table comes in place of the other for a while.
    world.store(MIDDLE, 2, pointer(third));
    access(&mut world, gva([0, 2, 2]));
    world.store(other, 0, leaf(AFTER));
    world.store(MIDDLE, 2, pointer(other));
    world.fence(GuestFence { range: Some((gva([1, 2, 0]), 1)), asid: None });
    access(&mut world, gva([0, 2, 3]));
    let is_stale = is_stale(&world, gva([1, 2, 0]));
    world.end();
    is_stale
}

/// Fences an address by the lane in a table that was linked for the other place only. Returns whether an entry of
/// another table from before that can be used there, when that table comes in place of the first.
fn fenced_by_the_lane(sabotage: Option<Sabotage>) -> bool {
    let mut world = world(sabotage);
    let [one, other, _] = TABLES;
    [0, 1].into_iter().for_each(|index| world.store(one, index, leaf(BEFORE)));
    [0, 2, 3].into_iter().for_each(|index| world.store(other, index, leaf(BEFORE)));
    world.store(MIDDLE, 0, pointer(other));
    access(&mut world, gva([1, 0, 3]));
    world.store(MIDDLE, 0, pointer(one));
    access(&mut world, gva([0, 0, 1]));
    world.store(other, 0, leaf(AFTER));
    let fenced = world.entry_at(gva([1, 0, 0])).expect("marked pointers lead there");
    lane_fence(&mut world, fenced);
    world.store(MIDDLE, 0, pointer(other));
    access(&mut world, gva([1, 0, 2]));
    let is_stale = is_stale(&world, gva([1, 0, 0]));
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
