//! Guests that are behind the G-stage and steered by turns: looks at them, and their writes of `satp`.

use crate::fake::{self, Event, World, shadow_world};
use abi::bundle::{GUEST_RAM_BASE, MmuMode};
use hypervisor::exit::watch;
use hypervisor::vm::outcome::{Brief, Outcome};
use hypervisor::vm::vcpu::{Concern, Tables};
use mmu::adapt::Choice;
use rv::{Addr, Exception, Exit};

const VIRTUAL: u64 = Exception::VirtualInstruction as u64;
/// The guest's root: the first page of RAM. Its entry 2 is a gigapage over RAM.
const ROOT: u64 = GUEST_RAM_BASE >> 12;
const SV39: u64 = 8 << 60;
const SATP: u64 = SV39 | 5 << 44 | ROOT;
/// `csrw satp, a0`.
const WRITE_SATP: u64 = 0x180 << 20 | 10 << 15 | 1 << 12 | 0x73;
/// Ticks of 100 microseconds.
const INTERVAL: u64 = 1000;
/// Between two looks for stuck guests.
const SECOND: u64 = 10_000_000;

/// Makes a guest that is behind the G-stage, with paging on, and RAM mapped one to one. It is looked at each 100
/// microseconds.
fn nested(settings: &[&str]) -> World {
    let mut w = shadow_world(MmuMode::Adaptive, 1);
    settings.iter().chain(&["adapt-look=100"]).for_each(|set| w.g.tunables.set(set).expect("a tunable"));
    let vm = w.run.vm.clone();
    let entry: u64 = ROOT << 10 | 0xcf;
    fake::write(&w.g, &vm, Addr::new(GUEST_RAM_BASE + 16), &entry.to_le_bytes(), &mut w.hart).expect("there is RAM");
    w.hart.vsatp = SATP;
    let now = w.hart.time;
    w.run.watch.load(now, SECOND, 1);
    w.run.watch.again(Concern::Root, now + INTERVAL);
    w.hart.events.clear();
    w
}

/// Lets time pass until the next look, and has it made. Returns whether the vCPU continues behind the G-stage.
fn look(w: &mut World) -> bool {
    w.hart.time = w.hart.time.max(w.run.watch.due());
    let now = w.hart.time;
    assert_eq!(watch::look(&w.g, &mut w.run, (now, SECOND), &mut w.hart), None);
    assert!(w.run.vm.translation.may_enter(&w.run), "{:?}", w.hart.events);
    w.run.tables == Tables::TwoStage
}

#[test]
fn a_vcpu_has_the_whole_interval_for_itself_however_long_a_change_takes() {
    let mut w = nested(&["adapt-at-random=on"]);
    w.hart.load_ticks = 3 * INTERVAL;
    let mut was = true;
    let mut changes = 0;
    for _ in 0..64 {
        let is_nested = look(&mut w);
        changes += u32::from(was != is_nested);
        was = is_nested;
        let (due, now) = (w.run.watch.due(), w.hart.time);
        assert!(due >= now + INTERVAL, "nested: {is_nested}; the next look is due at {due}, and it is {now}");
    }
    assert!((16..=48).contains(&changes), "{changes}");
}

#[test]
fn a_trial_is_judged_by_what_came_after_its_beginning() {
    let mut w = nested(&[]);
    // The way there takes as long as a hundred looks, and so would hide what all that follows costs.
    w.hart.load_ticks = 100 * INTERVAL;
    assert!(look(&mut w), "it is not known for long");
    assert!((0..8).any(|_| !look(&mut w)), "it is not tried");
    w.hart.load_ticks = 0;
    // 18 of 100 microseconds.
    (0..20).for_each(|_| w.run.shared.counters.exits_page_fault.bump());
    assert!(look(&mut w), "18 % are more than 2");
}

#[test]
fn what_a_root_has_mapped_while_it_was_nested_is_half_as_old_as_that_without_its_youth() {
    const MS: u64 = 10 * INTERVAL;
    for (age, before, due) in [(1, 0, 100), (300, 0, 100), (400, 50, 50), (2000, 850, 5)] {
        let mut w = nested(&[]);
        assert!(look(&mut w), "it has just been found");
        let since = w.hart.time;
        w.hart.time = since + age * MS;
        assert!(!look(&mut w), "it is tried");
        let (looks, now) = (w.run.looks, w.hart.time);
        assert_eq!((now - since, looks.before, looks.due - now), (age * MS, before * MS, due * MS), "{age} ms");
        assert!(w.run.watch.is_for(Concern::Pages, now + due.min(20) * MS), "{age} ms");
    }
}

#[test]
fn a_steered_guest_stays_so_on_roots_that_are_and_takes_others_nested() {
    let mut w = nested(&[]);
    assert!((0..8).any(|_| !look(&mut w)), "it is not tried");
    w.hart.events.clear();
    let (other, unknown) = (SV39 | 7 << 44 | ROOT, SV39 | 6 << 44 | ROOT);
    w.run.adapts.as_deref_mut().expect("an adaptive vCPU").chooser.force(other, Choice::Steered);
    for (satp, is_nested) in [(other, false), (SATP, false), (unknown, true)] {
        w.run.context.x[10] = satp;
        assert_eq!(w.exit(VIRTUAL, WRITE_SATP, 0, 0), Outcome::Resume);
        assert_eq!(w.run.tables == Tables::TwoStage, is_nested, "{satp:#x}");
    }
    assert!(w.hart.events.contains(&Event::TwoStage) && w.hart.vsatp == unknown);
    // Only the next look sees that the guest goes back.
    w.hart.vsatp = SATP;
    assert!(!look(&mut w), "it is known to cost little");
}

/// Makes the lane do so many fences of a steered guest's pages, and one more come to Gnomon. Returns a check that the
/// cost of the root is looked at in just so many ticks.
fn fences(w: &mut World, many: u64) -> impl Fn(u64) -> bool + use<> {
    /// `sfence.vma a0, zero`.
    const FENCE: u64 = 0x1200_0073 | 10 << 15;
    w.run.context.x[10] = GUEST_RAM_BASE;
    (0..many).for_each(|_| w.run.context.lane.log.push(Addr::new(GUEST_RAM_BASE)));
    assert_eq!(w.brief(Exit { cause: VIRTUAL, tval: FENCE, tval2: 0, tinst: 0 }), Brief::NO, "of no table of level 0");
    assert_eq!(w.exit(VIRTUAL, FENCE, 0, 0), Outcome::Resume);
    let (watch, now) = (w.run.watch, w.hart.time);
    move |ticks| watch.is_for(Concern::Root, now + ticks) && !watch.is_for(Concern::Root, now + ticks - 1)
}

/// Like [`look`], for a look that is about the root's cost.
fn look_at_root(w: &mut World) -> bool {
    while !w.run.watch.is_for(Concern::Root, w.run.watch.due()) {
        look(w);
    }
    look(w)
}

/// Makes a guest that is steered, in a root that was found to cost little, and is looked at every 50 milliseconds.
fn steered() -> World {
    let mut w = nested(&[]);
    assert!((0..8).any(|_| !look(&mut w)), "it is not tried");
    w.g.tunables.set("adapt-look=50000").expect("a tunable");
    assert!(!look(&mut w), "it costs nothing");
    w
}

#[test]
fn a_steered_guest_that_begins_to_fence_much_is_looked_at_soon_and_is_nested_then() {
    let mut w = steered();
    // It does nothing for a long time.
    w.hart.time += 300_000;
    assert!(!fences(&mut w, 100)(500_000));
    assert!(fences(&mut w, 100)(500_000), "what follows is measured");
    w.hart.time += 2000;
    assert!(fences(&mut w, 100)(498_000));
    assert!(fences(&mut w, 100)(0), "as much again");
    w.hart.time += 10;
    assert!(!fences(&mut w, 1000)(0), "the look is due already");
    assert!(look_at_root(&mut w), "30 of 200 microseconds");
}

#[test]
fn a_steered_guest_that_has_fenced_far_too_much_since_the_last_look_is_looked_at_at_once() {
    let mut w = steered();
    w.hart.time += 3000;
    assert!(fences(&mut w, 200)(0), "30 of 300 microseconds");
    assert!(look_at_root(&mut w));
}

#[test]
fn a_steered_guest_that_fences_as_much_in_more_time_stays_so() {
    let mut w = steered();
    for _ in 0..5 {
        w.hart.time += 5000;
        assert!(fences(&mut w, 200)(500_000), "30 of 500 microseconds");
        w.hart.time += 200_000;
        assert!(fences(&mut w, 200)(0));
        assert!(!look_at_root(&mut w), "30 microseconds of 20 milliseconds");
    }
}
