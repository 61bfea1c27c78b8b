//! Pages that are used again and again, beside many that are used once in a while.

use super::rig::{Done, PAGES, Rig, USED, vm};
use abi::bundle::MmuMode;

/// Pages of a hot set.
const HOT: u64 = 100;

/// Returns the number of pages of the hot set that were read from the device, for a guest that streams through its
/// memory and touches one of them after each page.
fn reads(mmu: MmuMode) -> u64 {
    let mut rig = Rig::new(400, Some(2 * PAGES), vec![vm("vm", mmu)]);
    rig.exits_per_turn = 50;
    assert_eq!(rig.fill(0, 0..USED), Done::Yes);
    let (mut reads, mut dice) = (0, 1_u64);
    for page in (0..6).flat_map(|_| HOT..USED) {
        assert_eq!(rig.load(0, [page]), Done::Yes);
        let before = rig.count("swap.reads");
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        assert_eq!(rig.load(0, [(dice >> 33) % HOT]), Done::Yes);
        reads += rig.count("swap.reads") - before;
    }
    rig.end();
    reads
}

/// Checks the number of reads. If a sweep spares nothing ([`mmu::AddressSpace::spare`]), they are 541 and 694.
#[test]
fn what_is_used_all_the_time_outlasts_what_streams_by() {
    for (mmu, most) in [(MmuMode::TwoStage, 250), (MmuMode::Lazy, 300)] {
        let reads = reads(mmu);
        assert!(reads <= most, "{mmu:?}: {reads}");
    }
}
