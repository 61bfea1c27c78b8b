//! VMs that start over while others have all memory: they wait until some is taken back, and end only if none can be.

use super::rig::{Done, PAGES, Rig, USED, vm};
use abi::bundle::{MmuMode, VmConfig};
use abi::record::EndReason;
use hypervisor::vm::Departure;
use mmu::frames::Run;

/// Starts a VM over, and takes all of its memory at once when it is given back. Returns that memory.
fn starts_over_without_memory(rig: &mut Rig) -> Vec<Run> {
    assert_eq!(rig.fill(0, 0..200), Done::Yes);
    assert_eq!(rig.fill(1, 0..USED), Done::Yes);
    rig.depart(0, Departure::Reboot);
    rig.until("it has no memory", |rig| rig.said.contains("starts over"));
    rig.take_all()
}

#[test]
fn a_vm_that_starts_over_waits_for_memory_of_others() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut rig = Rig::new(1300, Some(2 * PAGES), vec![vm("vm", mmu), vm("other", MmuMode::TwoStage)]);
        let taken = starts_over_without_memory(&mut rig);
        assert!(taken.len() > 100 && rig.g.frames().at_hand() == 0);
        let (writes, waits) = (rig.count("swap.writes"), rig.count("swap.waits"));
        rig.restarted(0);
        assert!(rig.count("swap.writes") > writes && rig.count("swap.waits") > waits, "{:?}", rig.g.pager.each());
        assert_eq!((rig.fill(0, 0..300), rig.load(0, 0..300)), (Done::Yes, Done::Yes));
        assert_eq!(rig.load(1, 0..USED), Done::Yes);
        taken.into_iter().for_each(|run| rig.g.frames().free(run));
        rig.end();
    }
}

#[test]
fn one_that_waits_for_nothing_ends_and_no_other() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut rig = Rig::new(1300, None, vec![vm("vm", mmu), vm("other", MmuMode::TwoStage)]);
        let taken = starts_over_without_memory(&mut rig);
        rig.until("it is over", |rig| rig.g.vms.all().count() == 1);
        assert_eq!(rig.load(1, 0..USED), Done::Yes);
        taken.into_iter().for_each(|run| rig.g.frames().free(run));
        let said = rig.end();
        let reason = if mmu == MmuMode::TwoStage { "its tables" } else { "its shadow tables" };
        let message = format!("vm could not be started: no memory for {reason}: the host is out of memory");
        assert!(said.contains(&message) && said.contains("other powered off"), "{said}");
    }
}

/// Its end is asked for while it waits: it ends for that.
#[test]
fn one_that_waits_can_be_ended() {
    let mut rig = Rig::new(1300, Some(2 * PAGES), vec![vm("vm", MmuMode::TwoStage), vm("other", MmuMode::Lazy)]);
    let taken = starts_over_without_memory(&mut rig);
    rig.disk().get().is_held = true;
    (0..50).for_each(|_| rig.turn());
    assert!(rig.g.vms.all().count() == 2, "it waits");
    rig.depart(0, Departure::End(EndReason::SystemFailure));
    rig.until("it is over", |rig| rig.g.vms.all().count() == 1);
    rig.disk().get().is_held = false;
    taken.into_iter().for_each(|run| rig.g.frames().free(run));
    let said = rig.end();
    assert!(said.contains("vm powered off after a system failure"), "{said}");
}

/// Starts a VM over, and leaves the free memory in pieces. The frames between are returned.
fn starts_over_in_pieces(mmu: MmuMode, other: VmConfig) -> (Rig, Vec<Run>) {
    let mut rig = Rig::new(1600, Some(2 * PAGES), vec![vm("vm", mmu), other]);
    starts_over_without_memory(&mut rig).into_iter().for_each(|run| rig.g.frames().free(run));
    let mut between = Vec::new();
    rig.break_up(&mut between);
    assert!(rig.g.frames().at_hand() > 200, "plenty is free");
    (rig, between)
}

#[test]
fn a_vm_waits_for_frames_side_by_side() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let (mut rig, taken) = starts_over_in_pieces(mmu, vm("other", MmuMode::TwoStage));
        rig.restarted(0);
        assert_eq!((rig.fill(0, 0..100), rig.load(0, 0..100)), (Done::Yes, Done::Yes));
        assert_eq!(rig.load(1, 0..USED), Done::Yes);
        taken.into_iter().for_each(|run| rig.g.frames().free(run));
        rig.end();
    }
}

/// Nothing can be taken from the other.
#[test]
fn where_no_frames_come_side_by_side_it_ends_and_no_other() {
    let other = VmConfig { wired: true, ..vm("other", MmuMode::TwoStage) };
    let (mut rig, taken) = starts_over_in_pieces(MmuMode::TwoStage, other);
    rig.until("it is over", |rig| rig.g.vms.all().count() == 1);
    assert_eq!(rig.load(1, 0..USED), Done::Yes);
    taken.into_iter().for_each(|run| rig.g.frames().free(run));
    let said = rig.end();
    let message = "vm could not be started: no memory for its tables: what is free is in pieces";
    assert!(said.contains(message) && said.contains("other powered off"), "{said}");
}

/// Memory that comes free is in pieces at once, and the other VM touches its memory all the time.
#[test]
fn a_vm_does_not_wait_for_ever_for_frames_side_by_side() {
    let (mut rig, between) = starts_over_in_pieces(MmuMode::TwoStage, vm("other", MmuMode::TwoStage));
    rig.between = Some(between);
    let mut pages = (0..USED).cycle();
    while rig.g.vms.all().count() == 2 {
        assert!(rig.count("swap.portions") < 5000, "{:?}", rig.g.pager.each());
        assert_eq!(rig.load(1, pages.by_ref().take(40)), Done::Yes);
        rig.turn();
    }
    rig.between.take().unwrap().into_iter().for_each(|run| rig.g.frames().free(run));
    assert!(rig.end().contains("what is free is in pieces"));
}
