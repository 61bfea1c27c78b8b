//! A host with a tebibyte of RAM and 64 harts, by what is known of its frames: the frames themselves are not there. The tags are in
//! memory of which the host of this test gives what is touched, so that it can be seen what is.
#![cfg(target_os = "linux")]

use mmu::frames::{AllocError, Frames, MEGA_ORDER, Owner, Run, Tags, Use};
use rv::Pfn;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU32;
use zerocopy::FromZeros;

const VM: Owner = Owner::Vm(5);
const HARTS: usize = 64;
/// In frames.
const GIB: u64 = 1 << 18;
const TIB: u64 = 1 << 28;
/// RAM as a large board has it: a part below the devices, the rest far above, and a hole for the bundle in the first.
const RAM: [(u64, u64); 3] = [(0x8_0456, GIB - 0x456), (0x8_0001 + GIB, GIB), (1 << 30, TIB - 2 * GIB)];

/// Bytes of memory that this process has touched.
fn touched() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux says what a process has");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number of pages") * 4096
}

fn frames() -> (Vec<Frames>, u64) {
    let need: u64 = RAM.iter().map(|(first, pages)| Frames::tags_for(Pfn::new(*first), *pages)).sum();
    assert!(need * size_of::<Tags>() as u64 * 100 < TIB * 4096, "1 % of RAM");
    let words: &'static [AtomicU32] = AtomicU32::new_vec_zeroed(need as usize * 512).expect("it is not touched").leak();
    let mut tags = words.as_chunks().0.iter();
    let before = touched();
    let mut frames = Frames::new();
    for (first, pages) in RAM {
        frames.add_with(Pfn::new(first), pages, &mut tags);
    }
    assert_eq!(frames.total_count(), RAM.iter().map(|(_, pages)| pages).sum::<u64>());
    let frames = frames.share(HARTS);
    (frames, touched() - before)
}

/// One test, since others would touch memory meanwhile.
#[test]
fn a_tebibyte() {
    let (harts, at_start) = frames();
    assert!(at_start < 64 << 20, "the start touches {at_start} bytes");
    let total = harts[0].total_count();

    // Each hart begins in a part of its own.
    let ones: Vec<Run> = harts.iter().map(|hart| hart.alloc(VM, Use::Guest, 0).unwrap()).collect();
    let parts: BTreeSet<u64> = ones.iter().map(|run| run.first().raw() / (TIB / HARTS as u64)).collect();
    assert!(parts.len() >= HARTS - 2, "{parts:?}");
    let megas: Vec<Run> = harts.iter().map(|hart| hart.alloc(VM, Use::Table, MEGA_ORDER).unwrap()).collect();
    assert!(megas.iter().all(|run| run.first().is_aligned(512)));
    assert_eq!((harts[7].usage(VM).guest, harts[9].usage(VM).table), (64, 64 * 512));
    assert_eq!(harts[1].owner_of(megas[3].first().add(511)), Some((VM, Use::Table)));
    assert!(touched() < (96 << 20) + at_start, "of the tags only those of what was taken");

    // The largest runs, until none is left.
    let huge: Vec<Run> = std::iter::from_fn(|| harts[33].alloc(VM, Use::Image, 18).ok()).collect();
    assert!((500..1024).contains(&huge.len()), "{} runs of a GiB", huge.len());
    huge.into_iter().for_each(|run| harts[2].free(run));

    // The far end, and both ends of the hole.
    let all: Vec<Run> = std::iter::from_fn(|| harts[0].alloc(Owner::Host, Use::Other, MEGA_ORDER).ok()).collect();
    let (lowest, highest) = all.iter().fold((u64::MAX, 0), |(low, high), run| {
        (low.min(run.first().raw()), high.max(run.first().raw() + run.pages()))
    });
    // The first whole block is hart 0's.
    assert_eq!((lowest, highest), (0x8_0800, (1 << 30) + TIB - 2 * GIB));
    assert!(harts[63].alloc(VM, Use::Guest, MEGA_ORDER).is_err());
    // What is left is in pieces of blocks, and any hart finds it, wherever its search begins.
    let left = harts[0].free_count();
    let rest: Vec<Run> = (0..left).map(|n| harts[n as usize % HARTS].alloc(VM, Use::Guest, 0).unwrap()).collect();
    assert_eq!((harts[0].free_count(), harts[5].alloc(VM, Use::Guest, 0)), (0, Err(AllocError::OutOfMemory)));
    for (n, run) in rest.into_iter().chain(all).chain(ones).chain(megas).enumerate() {
        harts[n % HARTS].free(run);
    }
    assert_eq!((harts[0].free_count(), harts[0].usage(VM).total()), (total, 0));
}
