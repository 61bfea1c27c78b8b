//! BOUNDED: what is done for all VMs that share an image's page is bounded for all of them together.

use super::rig::{Done, PAGES, Rig, Touch, USED, vm, vm_with_image};
use abi::bundle::{GUEST_RAM_BASE, MmuMode};
use abi::record::EndReason;
use hypervisor::vm::Departure;
use rv::PAGE_BYTES;

/// VMs that share it.
const SHARERS: usize = 8;
/// The page of the image that all leaves of a guest lead to, and where its tables are.
const PAGE: u64 = 5;
const ROOT: u64 = 40;
const MIDDLE: u64 = 41;
const LEAVES: u64 = 42;
/// Tables of leaves: more leaves than one operation of the engine drops.
const TABLES: u64 = 3;
/// Frames of a host that is short of memory for one VM beside them.
const SHORT: u64 = 700;
/// Most accesses to memory in one look: those of a portion of the sweep, and those to the leaves that it may drop.
const MOST: u64 = 18_000;

fn gpa(page: u64) -> u64 {
    GUEST_RAM_BASE + page * PAGE_BYTES
}

/// Makes a guest that has so many leaves to one page of an image as its tables have entries.
fn spread(rig: &mut Rig, n: usize) {
    let entry = |page: u64, flags: u64| gpa(page) >> 12 << 10 | flags;
    rig.poke(n, gpa(ROOT), entry(MIDDLE, 1));
    for table in 0..TABLES {
        rig.poke(n, gpa(MIDDLE) + 8 * table, entry(LEAVES + table, 1));
        (0..512).for_each(|index| rig.poke(n, gpa(LEAVES + table) + 8 * index, entry(PAGE, 0xc3)));
    }
    let satp = 8 << 60 | gpa(ROOT) >> 12;
    (0..512 * TABLES).for_each(|page| rig.load_virtual(n, satp, page * PAGE_BYTES));
}

#[test]
fn a_page_with_many_leaves_in_many_vms_goes_in_portions() {
    let mut vms: Vec<_> = (0..SHARERS).map(|n| vm_with_image(&format!("vm{n}"), MmuMode::Lazy, (0, 0, 32))).collect();
    vms.iter_mut().for_each(|vm| vm.superpages = false);
    let mut rig = Rig::new(
        2300,
        Some(4 * PAGES),
        [vms, vec![vm("hog", MmuMode::TwoStage), vm("hog2", MmuMode::TwoStage)]].concat(),
    );
    (0..SHARERS).for_each(|n| spread(&mut rig, n));
    rig.longest_look = 0;
    for _ in 0..4 {
        for hog in [SHARERS, SHARERS + 1] {
            assert_eq!(rig.fill(hog, 0..USED), Done::Yes);
        }
    }
    assert!(rig.count("swap.image_drops") > 0);
    assert!(rig.longest_look <= MOST, "{} accesses in one look", rig.longest_look);
    rig.end();
}

#[test]
fn pages_that_come_back_together_cost_each_vm_one_shootdown() {
    let vms = (0..SHARERS).map(|n| vm_with_image(&format!("vm{n}"), MmuMode::TwoStage, (0, 0, 512)));
    let mut rig = Rig::new(SHORT, Some(4 * PAGES), vms.chain([vm("hog", MmuMode::TwoStage)]).collect());
    for _ in 0..2 {
        assert_eq!(rig.fill(SHARERS, 0..USED), Done::Yes);
    }
    assert!(rig.images_in_memory() < 100, "{}", rig.images_in_memory());
    rig.depart(SHARERS, Departure::End(EndReason::Poweroff));
    rig.until("the hog is gone", |rig| rig.g.vms.all().count() == SHARERS && rig.disk().in_flight() == 0);
    {
        let mut disk = rig.disk().get();
        (disk.depth, disk.delay, disk.is_held) = (16, 0, true);
    }
    // With those behind it.
    rig.guests[0].wants = Some(Touch { page: 100, store: None });
    while rig.step(0) != Done::Waits {}
    let (read, fences) = (rig.disk().in_flight() as u64, rig.g.harts[0].counters.fences.get());
    assert!(read > 4, "{read} are read at once");
    rig.disk().get().is_held = false;
    assert!(rig.g.pager.poll(&rig.g, &mut rig.hart));
    assert_eq!((rig.disk().in_flight(), rig.g.harts[0].counters.fences.get() - fences), (0, SHARERS as u64));
    assert_eq!(rig.load(0, 100..100 + read), Done::Yes);
    rig.end();
}
