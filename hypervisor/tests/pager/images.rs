//! Images' pages that go and come back, shared by VMs.

use super::rig::{Done, IMAGE_PAGES, PAGES, Rig, USED, vm, vm_with_image};
use abi::bundle::{MmuMode, VmConfig};
use hypervisor::vm::Departure;
use rv::PAGE_BYTES;

/// A host with enough for the images, but not beside a VM that wants all of its memory.
const SHORT: u64 = 700;
/// All of the image, where one leaf of 2 MiB may map it.
const WHOLE: (u64, u64, u64) = (0, 0, IMAGE_PAGES);
/// A part of it, elsewhere.
const PART: (u64, u64, u64) = (7, 3, 300);

fn sharers() -> Vec<VmConfig> {
    vec![
        vm_with_image("two-stage", MmuMode::TwoStage, WHOLE),
        vm_with_image("lazy", MmuMode::Lazy, PART),
        vm_with_image("shadow", MmuMode::Shadow, WHOLE),
        vm("hog", MmuMode::TwoStage),
    ]
}

/// Makes a hog take all memory, so that only memory in use stays.
fn press(rig: &mut Rig, hog: usize) {
    for _ in 0..2 {
        assert_eq!(rig.fill(hog, 0..USED), Done::Yes);
    }
}

/// Returns the pages of the image that are in a VM's memory.
fn pages((at, _, pages): (u64, u64, u64)) -> std::ops::Range<u64> {
    at..at + pages
}

#[test]
fn they_go_and_come_back_for_all_that_share_them() {
    let mut rig = Rig::new(SHORT, Some(4 * PAGES), sharers());
    let all = rig.images_in_memory();
    assert_eq!(all, IMAGE_PAGES + 2);
    for _ in 0..3 {
        for (n, layout) in [(0, WHOLE), (1, PART), (2, WHOLE)] {
            assert_eq!(rig.load(n, pages(layout)), Done::Yes);
        }
        press(&mut rig, 3);
        assert!(rig.images_in_memory() < all / 2, "{} are left of {all}", rig.images_in_memory());
    }
    let (drops, reads, kept) = (rig.count("swap.image_drops"), rig.count("swap.image_reads"), rig.count("swap.images"));
    assert!(drops > 2 * IMAGE_PAGES && reads > IMAGE_PAGES && kept <= all, "{drops} {reads} {kept}");
    // Each has been written once, however often it has gone.
    assert!(kept > IMAGE_PAGES / 2);
    rig.check_slots();
    rig.end();
}

#[test]
fn those_that_are_used_all_the_time_stay() {
    let mut rig = Rig::new(SHORT, Some(4 * PAGES), sharers());
    for page in (0..USED).chain(0..USED) {
        assert_eq!(rig.load(1, [7, 8, 9]), Done::Yes);
        assert_eq!(rig.fill(3, [page]), Done::Yes);
    }
    let reads = rig.count("swap.image_reads");
    let drops = rig.count("swap.image_drops");
    assert!(drops > IMAGE_PAGES / 2 && reads < 30, "{drops} {reads}");
    rig.end();
}

#[test]
fn a_copy_is_made_of_what_has_gone() {
    for mmu in [MmuMode::TwoStage, MmuMode::Unsync] {
        for superpages in [true, false] {
            let mut config = vm_with_image("vm", mmu, WHOLE);
            config.superpages = superpages;
            let mut rig = Rig::new(SHORT - 300, Some(4 * PAGES), vec![config, vm("hog", MmuMode::TwoStage)]);
            press(&mut rig, 1);
            assert!(rig.images_in_memory() < 100);
            let every_third = (0..IMAGE_PAGES).step_by(3);
            assert_eq!(rig.fill(0, every_third), Done::Yes);
            assert_eq!(rig.load(0, 0..IMAGE_PAGES), Done::Yes);
            rig.end();
        }
    }
}

#[test]
fn a_vm_that_starts_over_finds_its_image() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut rig =
            Rig::new(SHORT, Some(4 * PAGES), vec![vm_with_image("vm", mmu, WHOLE), vm("hog", MmuMode::TwoStage)]);
        assert_eq!(rig.fill(0, (0..IMAGE_PAGES).step_by(2)), Done::Yes);
        press(&mut rig, 1);
        rig.depart(0, Departure::Reboot);
        rig.restarted(0);
        press(&mut rig, 1);
        assert_eq!(rig.load(0, 0..IMAGE_PAGES), Done::Yes);
        assert!(rig.count("swap.image_reads") > IMAGE_PAGES / 2);
        rig.check_slots();
        rig.end();
    }
}

#[test]
fn what_cannot_be_read_ends_who_needs_it_and_no_other() {
    let mut rig = Rig::new(SHORT, Some(4 * PAGES), sharers());
    press(&mut rig, 3);
    rig.until("nothing is on its way", |rig| rig.disk().in_flight() == 0);
    // The device gives nothing back of what it has.
    rig.disk().get().bad_reads = (0..4 * PAGES).collect();
    assert_eq!(rig.touch(1, 100, None), Done::Over);
    rig.disk().get().bad_reads.clear();
    for n in [0, 2] {
        assert_eq!(rig.load(n, pages(WHOLE)), Done::Yes);
    }
    assert_eq!(rig.load(3, 0..USED), Done::Yes);
    let said = rig.end();
    assert!(said.contains("lazy was stopped: the swap device does not give back its page at GPA 0x80064000"), "{said}");
    assert_eq!(said.matches("was stopped").count(), 1, "{said}");
}

#[test]
fn where_the_device_is_full_or_fails_they_stay() {
    let mut rig = Rig::new(SHORT, Some(20), sharers());
    assert_eq!(rig.fill(3, 0..USED), Done::Over);
    assert!(rig.images_in_memory() >= IMAGE_PAGES - 20);
    assert_eq!(rig.load(0, pages(WHOLE)), Done::Yes);
    rig.end();
    let mut rig = Rig::new(SHORT, Some(4 * PAGES), sharers());
    rig.disk().get().bad_writes = (0..4 * PAGES).collect();
    assert_eq!(rig.fill(3, 0..USED), Done::Over);
    assert_eq!((rig.images_in_memory(), rig.count("swap.images")), (IMAGE_PAGES + 2, 0));
    assert_eq!(rig.load(0, pages(WHOLE)), Done::Yes);
    rig.end();
}

#[test]
fn those_of_wired_memory_stay() {
    let mut wired = vm_with_image("wired", MmuMode::TwoStage, PART);
    wired.wired = true;
    let mut rig = Rig::new(
        2300,
        Some(4 * PAGES),
        vec![wired, vm_with_image("other", MmuMode::Lazy, WHOLE), {
            let mut hog = vm("hog", MmuMode::TwoStage);
            hog.reserve_bytes = PAGE_BYTES;
            hog
        }],
    );
    for n in [1, 2, 1, 2] {
        assert_eq!(rig.fill(n, IMAGE_PAGES..USED), Done::Yes);
        assert_eq!(rig.fill(2, 0..USED), Done::Yes);
    }
    let waits = rig.guests[0].waits;
    assert_eq!(rig.load(0, pages(PART)), Done::Yes);
    assert_eq!(rig.guests[0].waits, waits, "it waits for nothing");
    assert!(rig.images_in_memory() >= 300 && rig.images_in_memory() < IMAGE_PAGES, "{}", rig.images_in_memory());
    rig.end();
}
