//! The lane is proved: the machine code that stands in the built hypervisor, for every trap, every address, every register, and
//! everything that shadow tables may hold. It is executed with terms in place of values, and z3 is asked at each load, store,
//! branch and end (`lane_proof/prover.rs`).
//!
//! What is assumed is what the engine promises (docs/lane.md, `lane_proof/memory.rs`). What tables hold may be anything else, and
//! may change from one load to the next.

#[path = "lane_proof/ends.rs"]
mod ends;
#[path = "lane/image.rs"]
mod image;
#[path = "lane/insn.rs"]
mod insn;
#[path = "lane_proof/memory.rs"]
mod memory;
#[path = "lane_proof/prover.rs"]
mod prover;
#[path = "lane_proof/roots.rs"]
mod roots;
#[path = "lane_proof/solver.rs"]
mod solver;

use image::{Block, Image, VIRTUAL_TO_MACHINE, WAYS};
use insn::{How, Op, decode};
use prover::Prover;
use solver::Solver;
use std::collections::BTreeSet;
use std::ops::Range;

/// Pairs of registers that a fence may name, one in the lower five bits.
const PAIRS: Range<u64> = 0..1024;
/// Each register in either place, beside some other, and beside itself: the use of one does not depend on the other,
/// except for its source.
fn pairs() -> impl Iterator<Item = u64> {
    (0..32).flat_map(|n| [n | 7 << 5, 7 | n << 5, n | n << 5])
}

#[test]
fn the_lane_stays_within_its_tables_and_does_what_is_said_of_it() {
    let image = Image::read();
    let blocks = image.blocks();
    // One for all: what has been answered of one way is not asked again of the next.
    let mut solver = Solver::new();
    for way in &WAYS {
        let of_way = blocks.iter().filter(|block| block.way.tag == way.tag);
        for (number, block) in of_way.enumerate() {
            let mut prover = Prover::new(&image, block, &mut solver);
            let front = if number == 0 { prover.front(PAIRS) } else { prover.front(pairs()) };
            let proved = front.and_then(|()| prover.writes(0..32)).and_then(|()| prover.reads(0..32));
            let proved = proved.and_then(|()| prover.walks());
            proved.unwrap_or_else(|what| panic!("{}: {what}", block.table()));
            let executed = prover.executed.len();
            assert!(executed > 300, "only {executed} instructions");
        }
        println!("{}: {} questions so far", way.tag, solver.asked());
    }
}

/// A part of a block's way.
#[derive(Clone, Copy)]
enum Part {
    Front,
    Write,
    Read,
    Walk,
}

/// Planted faults are found: each instruction is left out, and loads, stores and indices go elsewhere.
#[test]
fn a_planted_fault_is_found() {
    let mut image = Image::read();
    let mut solver = Solver::new();
    let [invalidates, syncs] = [false, true].map(|syncs| Block { way: VIRTUAL_TO_MACHINE, levels: 3, zba: 1, syncs });
    let way = invalidates.way;
    // Of the front what stands before its jump tables; of the walks the longer one, and all that is behind it.
    let vector = image.at(way.vector)..image.at(way.full);
    let walk = image.at(&invalidates.symbol("all"))..image.at(&invalidates.symbol("bail"));
    let walk_and_more = image.at(&syncs.symbol("all"))..u64::MAX;
    let write = image.at("lane_write_vs_m")..image.at("lane_roots_vs_hs");
    let read = image.at("lane_reads_vs_m")..image.at("lane_reads_vs_hs");
    for (blocks, part, looked_at) in [
        (vec![invalidates], Part::Front, vector),
        // They share it, and each needs some of it.
        (vec![syncs, invalidates], Part::Write, write),
        (vec![syncs], Part::Read, read),
        (vec![invalidates], Part::Walk, walk),
        (vec![syncs], Part::Walk, walk_and_more),
    ] {
        let mut prove_one = |image: &Image, block: &Block| {
            let mut prover = Prover::new(image, block, &mut solver);
            let proved = match part {
                Part::Front => {
                    let front = prover.front(pairs().step_by(5));
                    let writes = front.and_then(|()| prover.writes([0, 7, 10, 30].into_iter()));
                    writes.and_then(|()| prover.reads([0, 7, 10, 30].into_iter()))
                }
                Part::Write => prover.writes([7].into_iter()),
                Part::Read => prover.reads([0, 7, 10, 30].into_iter()),
                Part::Walk => prover.walks(),
            };
            proved.map(|()| prover.executed)
        };
        let mut prove = |image: &Image| {
            let each: Result<Vec<_>, _> = blocks.iter().map(|block| prove_one(image, block)).collect();
            each.map(|each| each.into_iter().flatten().collect::<BTreeSet<u64>>())
        };
        let executed = prove(&image).expect("the lane is right");
        let looked_at: Vec<u64> = executed.into_iter().filter(|at| looked_at.contains(at)).collect();
        assert!(looked_at.len() > 15, "{} instructions", looked_at.len());
        for at in looked_at {
            let (op, _) = decode(at, |at| image.half(at)).expect("it was executed");
            let (insn, bytes) = image.insn(at);
            let mut is_found = |what: &str, planted: u32| {
                image.set_insn(at, (planted, bytes));
                let result = prove(&image);
                image.set_insn(at, (insn, bytes));
                assert!(result.is_err(), "{what} at {at:#x} is not found");
            };
            is_found("what is left out", if bytes == 4 { 0x13 } else { 1 });
            match op {
                _ if bytes != 4 => {}
                // Eight bytes further, or less far; and much more.
                Op::Store { .. } => {
                    is_found("another store", insn ^ 1 << 10);
                    is_found("a store out of bounds", insn ^ 1 << 30);
                }
                Op::Load { .. } => is_found("another load", insn ^ 1 << 23),
                // One bit more of an index.
                Op::Immediate { how: How::Right, .. } => is_found("an index out of bounds", insn - (1 << 20)),
                // Other accesses may come later, or earlier.
                Op::Swap { order, .. } => {
                    for bit in [(order.acquires, 26), (order.releases, 25)]
                        .into_iter()
                        .filter_map(|(is, bit)| is.then_some(bit))
                    {
                        is_found("an exchange that orders less", insn ^ 1 << bit);
                    }
                }
                _ => {}
            }
        }
    }
    println!("{} questions", solver.asked());
}
