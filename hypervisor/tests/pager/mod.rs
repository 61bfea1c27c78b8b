//! Paging: VMs that have more memory together than the host, on a swap device that a test holds in its hand.

mod bounded;
mod calls;
mod disk;
mod hot;
mod images;
mod random;
mod rig;
mod saved;
mod starts;

use abi::bundle::{MmuMode, VmConfig};
use abi::record::EndReason;
use hypervisor::vm::Departure;
use mmu::frames::{Owner, Use};
use rig::{Done, KERNEL, PAGES, Rig, Touch, USED, vm};
use rv::PAGE_BYTES;
use std::iter;

/// Frames of a host that is short of memory for two VMs.
const SHORT: u64 = 1300;

fn two() -> Vec<VmConfig> {
    vec![vm("two-stage", MmuMode::TwoStage), vm("lazy", MmuMode::Lazy)]
}

#[test]
fn two_vms_have_more_than_the_host() {
    let mut rig = Rig::new(SHORT, Some(2 * PAGES), two());
    for n in [0, 1] {
        assert_eq!(rig.fill(n, 0..USED), Done::Yes);
    }
    for n in [0, 1, 0] {
        assert_eq!(rig.load(n, (0..USED).rev()), Done::Yes);
    }
    assert!(rig.count("swap.reads") > PAGES && rig.count("swap.writes") > PAGES, "{:?}", rig.g.pager.each());
    assert!(rig.disk().get().most > 1, "requests overlap");
    assert_eq!(rig.count("swap.errors"), 0);
    rig.check_slots();
    rig.end();
}

#[test]
fn a_page_on_its_way_out_comes_back_at_once() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut rig = Rig::new(SHORT, Some(PAGES), vec![vm("vm", mmu), vm("other", MmuMode::TwoStage)]);
        begin_to_write(&mut rig);
        let page = rig.leaving(0).expect("a page is on its way out");
        let (waits, reads) = (rig.guests[0].waits, rig.count("swap.reads"));
        assert_eq!(rig.touch(0, page, Some(77)), Done::Yes);
        assert_eq!((rig.guests[0].waits, rig.count("swap.reads")), (waits, reads), "no vCPU waits for it");
        assert_eq!((rig.count("swap.rescues"), rig.is_out(0, page)), (1, None));
        rig.disk().get().is_held = false;
        rig.check_slots();
        assert_eq!(rig.load(0, 0..700), Done::Yes);
        rig.end();
    }
}

#[test]
fn what_cannot_be_read_ends_its_owner_and_no_other() {
    let mut rig = Rig::new(SHORT, Some(2 * PAGES), two());
    for n in [0, 1] {
        assert_eq!(rig.fill(n, 0..USED), Done::Yes);
    }
    let (page, slot) = (0..USED).find_map(|page| Some((page, rig.is_out(0, page)?))).expect("some are out");
    rig.disk().get().bad_reads.insert(slot);
    assert_eq!(rig.touch(0, page, None), Done::Over);
    assert_eq!(rig.load(1, 0..USED), Done::Yes);
    assert_eq!(rig.count("swap.errors"), 1);
    let said = rig.end();
    assert!(said.contains("two-stage was stopped: the swap device does not give back its page at"), "{said}");
}

#[test]
fn what_cannot_be_written_stays_and_that_page_of_the_device_is_tried_again_with_pauses() {
    let mut rig = Rig::new(SHORT, Some(2 * PAGES), two());
    rig.disk().get().bad_writes = (0..600).step_by(7).collect();
    for n in [0, 1, 0, 1] {
        assert_eq!(rig.fill(n, 0..USED), Done::Yes);
    }
    for n in [0, 1] {
        assert_eq!(rig.load(n, 0..USED), Done::Yes);
    }
    // A turn is a second. The first pauses are shorter than 16 of them.
    let (seconds, errors) = (rig.hart.time / 10_000_000, rig.count("swap.errors"));
    {
        let state = rig.disk().get();
        let tried: Vec<u64> = state.bad_writes.iter().filter_map(|slot| state.writes.get(slot)).copied().collect();
        assert!(tried.len() > 10 && tried.iter().all(|count| *count <= 5 + seconds / 16), "{seconds} s, {tried:?}");
        assert_eq!(tried.iter().sum::<u64>(), errors);
    }
    rig.check_slots();
    rig.end();
}

#[test]
fn a_device_that_was_given_up_is_written_when_it_works_again() {
    // Few more than are needed.
    const ALL: std::ops::Range<u64> = 0..850;
    let mut rig = Rig::new(SHORT, Some(ALL.end), two());
    rig.disk().get().bad_writes = ALL.collect();
    assert_eq!(rig.fill(0, 0..USED), Done::Yes);
    // Memory gets short, but there is some yet.
    let mut page = 0;
    while rig.count("swap.refused") < 8 {
        assert_eq!(rig.fill(1, [page]), Done::Yes);
        page += 1;
    }
    let before = rig.disk().get().writes.values().sum::<u64>();
    for _ in 0..100 {
        assert_eq!(rig.load(1, [page - 1]), Done::Yes);
        rig.g.pager.look(rig.g.frames(), &mut rig.hart);
        rig.turn();
    }
    // Each try ends with its first failure, when as many as the device takes at a time have begun.
    let tried = rig.disk().get().writes.values().sum::<u64>() - before;
    let depth = rig.disk().get().depth as u64;
    assert!((5..=10 * depth).contains(&tried), "{tried} writes in 100 s");
    rig.disk().get().bad_writes.clear();
    for _ in 0..17 {
        rig.g.pager.look(rig.g.frames(), &mut rig.hart);
        rig.turn();
    }
    for n in [1, 0] {
        assert_eq!(rig.fill(n, 0..USED), Done::Yes);
    }
    rig.check_slots();
    let said = rig.end();
    assert_eq!(said.matches("the swap device fails").count(), 1, "{said}");
    assert_eq!(said.matches("the swap device takes pages again").count(), 1, "{said}");
}

#[test]
fn when_the_device_is_full_who_needs_memory_ends_and_the_others_go_on() {
    let mut rig = Rig::new(SHORT, Some(100), two());
    assert_eq!(rig.fill(0, 0..USED), Done::Yes);
    assert_eq!(rig.fill(1, 0..USED), Done::Over);
    assert_eq!(rig.load(0, 0..USED), Done::Yes);
    let said = rig.end();
    assert!(said.contains("lazy was stopped: no memory for the guest"), "{said}");
    assert!(said.contains("two-stage powered off"), "{said}");
}

#[test]
fn what_is_reserved_is_never_taken() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut reserved = vm("reserved", mmu);
        reserved.reserve_bytes = 600 * PAGE_BYTES;
        let mut rig = Rig::new(SHORT, Some(2 * PAGES), vec![reserved, vm("hog", MmuMode::TwoStage)]);
        assert_eq!(rig.fill(0, 0..USED), Done::Yes);
        for page in (0..USED).chain(0..USED) {
            assert_eq!(rig.fill(1, [page]), Done::Yes);
            let has = rig.usage(0).guest;
            assert!(has >= 600, "{has} frames are left of 600 that are reserved");
        }
        assert!(rig.usage(0).guest < 700, "the rest has gone: {:?}", rig.usage(0));
        assert_eq!(rig.load(0, 0..USED), Done::Yes);
        rig.end();
    }
}

#[test]
fn memory_that_is_reserved_is_got_even_when_nothing_can_go() {
    let mut reserved = vm("reserved", MmuMode::TwoStage);
    reserved.reserve_bytes = USED * PAGE_BYTES;
    let mut rig = Rig::new(SHORT, None, vec![reserved, vm("hog", MmuMode::TwoStage)]);
    // Beside that, the first one has the 2 MiB around its kernel already.
    assert_eq!(rig.fill(1, 0..400), Done::Yes);
    assert_eq!(rig.fill(0, 0..USED), Done::Yes);
    rig.until("the hog is over", |rig| rig.g.vms.all().count() == 1);
    assert_eq!(rig.load(0, 0..USED), Done::Yes);
    let said = rig.end();
    assert!(said.contains("hog was stopped: its memory is needed for what is reserved for reserved"), "{said}");
}

#[test]
fn nobody_ends_for_lack_of_memory_that_a_disk_is_about_to_have_read() {
    let mut reserved = vm("reserved", MmuMode::TwoStage);
    reserved.reserve_bytes = USED * PAGE_BYTES;
    let mut rig = Rig::new(SHORT, None, vec![reserved, vm("other", MmuMode::TwoStage)]);
    // The other one has lent it all to its disk, and given it back.
    let (late, mut loan) = (rig.take_all(), rig.g.frames().lend(usize::MAX));
    for frame in late {
        assert!(loan.add(frame.first().base(), PAGE_BYTES as usize));
        rig.g.frames().free(frame);
    }
    // What holds zeroes can go, and is had first.
    let (mut pages, mut in_vain) = ((0..USED).rev(), 0);
    while in_vain < 1000 {
        if rig.guests[0].wants.is_none() {
            rig.guests[0].wants = Some(Touch { page: pages.next().expect("there is too little"), store: Some(1) });
            in_vain = 0;
        }
        in_vain += 1;
        assert!(rig.step(0) != Done::Over && rig.runs(1), "{:?} {}", rig.usage(0), rig.said);
        rig.turn();
    }
    drop(loan);
    assert_eq!(rig.fill(0, 0..USED), Done::Yes);
    assert!(!rig.end().contains("was stopped"));
}

#[test]
fn wired_memory_stays() {
    let mut wired = vm("wired", MmuMode::TwoStage);
    wired.wired = true;
    let mut rig = Rig::new(SHORT, Some(2 * PAGES), vec![wired, vm("hog", MmuMode::Lazy)]);
    assert_eq!(rig.fill(0, 0..USED), Done::Yes);
    assert_eq!(rig.fill(1, 0..USED), Done::Yes);
    assert!((0..USED).all(|page| rig.is_out(0, page).is_none()));
    let waits = rig.guests[0].waits;
    assert_eq!(rig.load(0, 0..USED), Done::Yes);
    assert_eq!(rig.guests[0].waits, waits);
    rig.end();
}

/// [`Rig::check`] looks at limits at each turn.
#[test]
fn a_vm_has_no_more_than_its_limit() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy, MmuMode::Shadow, MmuMode::Steered] {
        let mut limited = vm("limited", mmu);
        limited.limit_bytes = Some(400 * PAGE_BYTES);
        let mut rig = Rig::new(3000, Some(2 * PAGES), vec![limited, vm("other", MmuMode::TwoStage)]);
        assert_eq!(rig.fill(1, 0..USED), Done::Yes);
        assert_eq!(rig.fill(0, 0..USED), Done::Yes);
        assert_eq!(rig.load(0, 0..USED), Done::Yes);
        assert!((0..USED).all(|page| rig.is_out(1, page).is_none()), "the other has all it wants");
        rig.end();
    }
}

/// Makes the vCPU of VM 0 wait for a page, which the device has begun to read.
fn begin_to_read(rig: &mut Rig) {
    for n in [1, 0, 1] {
        assert_eq!(rig.fill(n, 0..USED), Done::Yes);
    }
    rig.until("nothing is on its way", |rig| rig.disk().in_flight() == 0);
    rig.disk().get().is_held = true;
    let page = (0..USED).find(|page| rig.is_out(0, *page).is_some()).expect("some are out");
    rig.guests[0].wants = Some(Touch { page, store: None });
    while rig.step(0) != Done::Waits {}
    assert!(rig.disk().in_flight() >= 1, "with those behind it");
}

/// Makes the device begin to write as many of VM 0's pages as it takes at a time.
fn begin_to_write(rig: &mut Rig) {
    rig.disk().get().is_held = true;
    assert_eq!(rig.fill(0, 0..700), Done::Yes);
    let mut pages = 0..USED;
    while rig.disk().in_flight() < 4 {
        assert_eq!(rig.fill(1, pages.next()), Done::Yes);
        rig.turn();
    }
}

#[test]
fn a_vm_ends_while_the_device_has_frames_of_its() {
    let end = Departure::End(EndReason::Poweroff);
    for (mmu, departure) in
        [(MmuMode::TwoStage, end.clone()), (MmuMode::Lazy, end), (MmuMode::TwoStage, Departure::Reboot)]
    {
        for begin in [begin_to_read, begin_to_write] {
            // The device finishes so many turns after the VM has lost its memory: before, while, or after that is given back.
            for turns in [0, 1, 2, 3, 200] {
                let mut rig = Rig::new(SHORT, Some(2 * PAGES), vec![vm("vm", mmu), vm("other", MmuMode::TwoStage)]);
                begin(&mut rig);
                let number = rig.guests[0].vm.handle.number;
                rig.depart(0, departure.clone());
                (0..turns).for_each(|_| rig.turn());
                assert!(rig.g.vms.all().any(|vm| vm.handle.number == number), "not before the device is done");
                rig.disk().get().is_held = false;
                if departure == Departure::Reboot {
                    rig.until("it starts over", |rig| rig.said.contains("vm starts over"));
                    rig.restarted(0);
                    assert_eq!(rig.load(0, 0..USED), Done::Yes);
                } else {
                    rig.until("it is gone", |rig| rig.g.vms.all().count() == 1);
                }
                assert_eq!(rig.load(1, 0..USED), Done::Yes);
                rig.end();
            }
        }
    }
}

#[test]
fn without_a_device_pages_of_zeroes_go() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut rig = Rig::new(SHORT, None, vec![vm("zero", mmu), vm("full", MmuMode::TwoStage)]);
        // All of them are touched, and some stored to.
        assert_eq!(rig.load(0, 0..USED), Done::Yes);
        assert_eq!(rig.fill(0, 0..50), Done::Yes);
        assert_eq!(rig.fill(1, 0..900), Done::Yes);
        let counters = rig.g.stats().vms[0].counters.clone();
        assert!(counters["gstage.zero_pages"] > 400 && counters["gstage.swapped_out"] == 0, "{counters:?}");
        assert_eq!(rig.load(0, 0..USED), Done::Yes);
        // When no pages of zeroes are left, a VM that needs more memory ends.
        assert_eq!(rig.fill(1, 900..USED), Done::Yes);
        assert_eq!(rig.fill(0, 50..USED), Done::Over);
        assert_eq!(rig.load(1, 0..USED), Done::Yes);
        rig.end();
    }
}

#[test]
fn a_page_of_the_kernel_that_is_cleared_stays_cleared() {
    for swap in [None, Some(2 * PAGES)] {
        let mut rig = Rig::new(SHORT, swap, two());
        for n in [0, 1] {
            assert_eq!(rig.touch(n, KERNEL, Some(0)), Done::Yes);
            assert_eq!(rig.load(n, 0..USED), Done::Yes);
        }
        assert_eq!(rig.fill(0, (0..USED).filter(|page| *page != KERNEL)), Done::Yes);
        for n in [0, 1] {
            assert_eq!(rig.load(n, [KERNEL, KERNEL + 1]), Done::Yes);
        }
        rig.end();
    }
}

#[test]
fn who_is_at_its_limit_ends_alone() {
    let mut limited = vm("limited", MmuMode::TwoStage);
    limited.limit_bytes = Some(200 * PAGE_BYTES);
    let mut rig = Rig::new(SHORT, None, vec![limited, vm("one", MmuMode::TwoStage), vm("two", MmuMode::TwoStage)]);
    rig.exits_per_turn = 1000;
    assert_eq!(rig.load(1, 0..USED), Done::Yes);
    assert_eq!(rig.fill(0, 0..USED), Done::Over);
    rig.until("it is gone", |rig| rig.g.vms.all().count() == 2);
    // That nothing could be taken from that one says nothing about the others, which have zeroes.
    assert_eq!(rig.fill(2, 0..600), Done::Yes);
    rig.end();
}

#[test]
fn who_is_at_its_limit_makes_nobody_else_end() {
    let mut limited = vm("limited", MmuMode::TwoStage);
    limited.limit_bytes = Some(200 * PAGE_BYTES);
    let mut rig = Rig::new(SHORT, None, vec![limited, vm("one", MmuMode::TwoStage), vm("two", MmuMode::TwoStage)]);
    rig.exits_per_turn = 1000;
    assert_eq!(rig.load(1, 0..USED), Done::Yes);
    let has_all = |rig: &Rig| rig.usage(0).guest == 200;
    (0..USED).take_while(|page| !has_all(&rig) && rig.fill(0, [*page]) == Done::Yes).for_each(drop);
    // The limited one waits, and the other is short of memory before that one has found that there is none for it.
    rig.guests[0].wants = Some(Touch { page: USED - 1, store: Some(1) });
    _ = rig.step(0);
    assert_eq!(rig.fill(2, 0..600), Done::Yes);
    while !rig.is_over(0) {
        _ = rig.step(0);
        rig.turn();
    }
    assert_eq!(rig.load(2, 0..600), Done::Yes);
    rig.end();
}

/// Makes guest 1 have pages that came by 4 KiB, because memory was short; guest 0, which had the memory, is about to
/// end.
fn with_small_pages(mmu: MmuMode) -> Rig {
    let mut rig = Rig::new(3940, None, vec![vm("hog", mmu), vm("small", mmu), vm("other", mmu), vm("late", mmu)]);
    assert_eq!((rig.fill(0, 0..USED), rig.fill(2, 0..USED)), (Done::Yes, Done::Yes));
    // All memory that comes whole holds something, so that the sweep finds nothing.
    assert_eq!((rig.fill(1, 0..USED), rig.fill(3, 512..USED)), (Done::Yes, Done::Yes));
    rig
}

/// Small pages are whole again when there is enough memory.
#[test]
fn small_pages_become_large_when_memory_is_there_again() {
    for mmu in [MmuMode::TwoStage, MmuMode::Unsync, MmuMode::Lazy] {
        let mut rig = with_small_pages(mmu);
        let count = |rig: &Rig, name| rig.g.report(&rig.guests[1].vm).count(name).expect("a counter");
        assert!(count(&rig, "gstage.anonymous_4k") >= 512, "they came by 4 KiB");
        rig.depart(0, Departure::End(EndReason::Poweroff));
        rig.until("one page of 2 MiB", |rig| count(rig, "gstage.promoted") == 1);
        assert_eq!(rig.load(1, 0..USED), Done::Yes);
        rig.end();
    }
}

/// The frames for that are given back when memory is short, though no hart is idle that would go on with it.
#[test]
fn a_promotion_that_is_begun_keeps_no_frames_that_are_needed() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut rig = with_small_pages(mmu);
        rig.depart(0, Departure::End(EndReason::Poweroff));
        let is_begun = |rig: &Rig| rig.g.frames().free_count() - rig.g.frames().at_hand() == 512;
        rig.until("one is begun", is_begun);
        rig.is_busy = true;
        // The host takes all that is free.
        let frames = rig.g.frames();
        let mut taken: Vec<_> = iter::from_fn(|| frames.alloc(Owner::Host, Use::Other, 0).ok()).collect();
        assert!(is_begun(&rig) && rig.g.frames().at_hand() == 0);
        assert_eq!(rig.fill(3, 0..300), Done::Yes);
        assert!(!is_begun(&rig));
        taken.drain(..).for_each(|run| rig.g.frames().free(run));
        rig.end();
    }
}
