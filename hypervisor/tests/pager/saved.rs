//! Snapshots of VMs whose memory is on the swap device, in part.

use super::SHORT;
use super::rig::{Done, PAGES, Rig, USED, vm, vm_with_image};
use crate::snapshot::ask;
use abi::bundle::MmuMode;
use abi::control::save::{Save, Saving};
use abi::control::{Answer, Request};
use std::collections::BTreeMap;

/// From this page on there are no images.
const NEW: u64 = 600;

/// Asks for something of a VM's snapshot.
fn save(rig: &mut Rig, wish: Save) -> Answer {
    ask(&rig.g, &mut rig.hart, &Request::Save(0, wish))
}

fn begin(rig: &mut Rig) -> Saving {
    assert_eq!(save(rig, Save::Begin), Answer::Later, "its vCPU is on a hart");
    rig.leave(0);
    match save(rig, Save::Begin) {
        Answer::Saving(saving) => saving,
        other => panic!("{other:?}"),
    }
}

/// Returns all pages that are given out, and the number of times that some were to be waited for.
fn pages(rig: &mut Rig, saving: &Saving, mut waiting: impl FnMut(&mut Rig)) -> (BTreeMap<u64, Vec<u8>>, u64) {
    let (mut found, mut waits, mut from) = (BTreeMap::new(), 0, 0);
    while from < saving.pages {
        match save(rig, Save::Pages { id: saving.id, from }) {
            Answer::Pages(some) => {
                assert!(some.next > from, "it comes to an end");
                found.extend(some.first.into_iter().zip(some.bytes.0.chunks(4096).map(<[u8]>::to_vec)));
                from = some.next;
            }
            Answer::Later => {
                waits += 1;
                assert!(waits < 50_000, "page {from} never comes: {:?}", rig.g.pager.each());
                waiting(rig);
                rig.turn();
            }
            other => panic!("{other:?}"),
        }
    }
    (found, waits)
}

#[test]
fn what_is_on_the_device_is_in_the_snapshot() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        // Untouched pages of images, copied ones, and new memory.
        let mut rig = Rig::new(
            SHORT,
            Some(2 * PAGES),
            vec![vm_with_image("saved", mmu, (64, 0, 300)), vm("other", MmuMode::TwoStage)],
        );
        assert_eq!(rig.fill(0, (150..USED).filter(|page| page % 16 != 0)), Done::Yes);
        assert_eq!(rig.fill(1, 0..USED), Done::Yes);
        let out = (0..USED).filter(|page| rig.is_out(0, *page).is_some()).count();
        assert!(out > 300, "only {out} pages are out");
        let saving = begin(&mut rig);
        assert_eq!(saving.pages, PAGES);
        let reads = rig.count("swap.reads");
        // The device is slow.
        rig.disk().get().is_held = true;
        let (found, waits) = pages(&mut rig, &saving, |rig| {
            let state = &mut rig.disk().get();
            state.is_held = !state.is_held;
        });
        rig.disk().get().is_held = false;
        assert!(waits > 10 && rig.count("swap.reads") > reads, "{waits}");
        for page in 0..USED {
            let word = |at: usize| {
                let bytes = found.get(&page).map_or([0; 8], |page| page[at..at + 8].try_into().expect("eight bytes"));
                u64::from_le_bytes(bytes)
            };
            let expected = rig.expected(0, page);
            assert_eq!((word(0), word(4088)), (expected, expected), "{mmu:?}, page {page}");
            // Of new memory all else is zero.
            let is_zero = |page: &Vec<u8>| page[8..4088].iter().all(|byte| *byte == 0);
            assert!(page < NEW || found.get(&page).is_none_or(is_zero), "{mmu:?}, page {page}");
        }
        // The other VM's memory goes out for that, and comes back; and so does this one's.
        assert_eq!(save(&mut rig, Save::End(saving.id)), Answer::Done);
        rig.turn();
        for n in [1, 0] {
            assert_eq!(rig.load(n, 0..USED), Done::Yes);
        }
        rig.check_slots();
        rig.end();
    }
}

#[test]
fn a_page_that_the_device_does_not_give_back_is_no_snapshot() {
    let mut rig =
        Rig::new(SHORT, Some(2 * PAGES), vec![vm("saved", MmuMode::TwoStage), vm("other", MmuMode::TwoStage)]);
    for n in [0, 1] {
        assert_eq!(rig.fill(n, 0..USED), Done::Yes);
    }
    let slot = (0..USED).find_map(|page| rig.is_out(0, page)).expect("some are out");
    let saving = begin(&mut rig);
    rig.disk().get().bad_reads.insert(slot);
    let mut from = 0;
    let said = loop {
        match save(&mut rig, Save::Pages { id: saving.id, from }) {
            Answer::Pages(some) => from = some.next,
            Answer::Later => rig.turn(),
            Answer::Refused(why) => break why,
            other => panic!("{other:?}"),
        }
        assert!(from < saving.pages, "it is left out");
    };
    assert!(!said.is_empty());
    assert_eq!(rig.load(1, 0..USED), Done::Yes);
    let printed = rig.end();
    assert!(
        printed.contains("the swap device does not give back its page") || said.contains("swap"),
        "{said} {printed}"
    );
}
