//! The lane is proved: the machine code that stands in the built hypervisor, for every trap, every address, every register, and
//! everything that shadow tables may hold. It is executed with terms in place of values, and z3 is asked at each load, store,
//! branch and end (`lane_proof/prover.rs`).
//!
//! What is assumed is what the engine promises (docs/lane.md): the lane's inputs are those of [`rv::Lane`], and an entry
//! above level 0 that has the mark leads to a shadow page one level lower. What tables hold may be anything else, and may change
//! from one load to the next.

#[path = "lane/image.rs"]
mod image;
#[path = "lane/insn.rs"]
mod insn;
#[path = "lane_proof/prover.rs"]
mod prover;
#[path = "lane_proof/solver.rs"]
mod solver;

use image::{Image, WAYS};
use insn::{How, Op, decode};
use prover::Prover;
use std::ops::Range;
use std::thread;

/// Pairs of registers that a fence may name, one in the lower five bits.
const PAIRS: Range<u64> = 0..1024;
/// Each register in either place, beside some other, and beside itself: what is done with one does not depend on the other, but
/// for where it comes from.
fn pairs() -> impl Iterator<Item = u64> {
    (0..32).flat_map(|n| [n | 7 << 5, 7 | n << 5, n | n << 5])
}

const FORMATS: [(u64, u64); 6] = [(3, 0), (3, 1), (4, 0), (4, 1), (5, 0), (5, 1)];

#[test]
fn the_lane_stays_within_its_tables_and_does_what_is_said_of_it() {
    let image = Image::read();
    thread::scope(|scope| {
        for way in &WAYS {
            let image = &image;
            scope.spawn(move || {
                for format in FORMATS {
                    let mut prover = Prover::new(image, way, format);
                    let front = if format == FORMATS[0] { prover.front(PAIRS) } else { prover.front(pairs()) };
                    let proved = front.and_then(|()| prover.walks());
                    proved.unwrap_or_else(|what| panic!("{}: {what}", way.tag));
                    let executed = prover.executed.len();
                    assert!(executed > 300, "only {executed} instructions");
                }
            });
        }
    });
}

/// What is planted is found: each instruction is left out, and loads, stores and indices go elsewhere.
#[test]
fn a_planted_fault_is_found() {
    let mut image = Image::read();
    let (way, format) = (&WAYS[0], (3, 1));
    let walks = image.at("lane_all_vs_m_39_1")..image.at("lane_bail_vs_m_39_1");
    let prove = |image: &Image, in_walk| {
        let mut prover = Prover::new(image, way, format);
        let proved = if in_walk { prover.walks() } else { prover.front(pairs().step_by(5)) };
        proved.map(|()| prover.executed)
    };
    for in_walk in [false, true] {
        let executed = prove(&image, in_walk).expect("the lane is right");
        // The longer walk, and of the front what stands before its jump tables.
        let vector = image.at(way.vector)..image.at(way.full);
        let looked_at: Vec<u64> =
            executed.into_iter().filter(|at| if in_walk { walks.contains(at) } else { vector.contains(at) }).collect();
        assert!(looked_at.len() > 20, "{} instructions", looked_at.len());
        for at in looked_at {
            let (op, _) = decode(at, |at| image.half(at)).expect("it was executed");
            let (insn, bytes) = image.insn(at);
            let mut is_found = |what: &str, planted: u32| {
                image.set_insn(at, (planted, bytes));
                let result = prove(&image, in_walk);
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
                _ => {}
            }
        }
    }
}
