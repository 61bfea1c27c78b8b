//! Figure 7 of *Lazy Shadow Paging under the RISC-V Architecture* runs four programs of SPEC CPU2006. That is
//! not free software; these do the same kind of work:
//!
//! | SPEC | here |
//! |---|---|
//! | 403.gcc | `cc1 -O2` of Debian's GCC 14 on a C library in one file (of stb) |
//! | 429.mcf | the network simplex algorithm, `programs/src/simplex.rs` |
//! | 433.milc | `programs/src/lattice.rs`, in integers |
//! | 473.astar | `programs/src/grid.rs` |

use super::compiler;
use super::image::{HugePages, Image, Scale, Workload};
use crate::host::size::{MIB, Size};

/// Builds it.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn fig7(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let mut image = Image::new("fig7", pages)?;
    compiler::add(&mut image)?;
    let library = match scale {
        Scale::Quick => "rect_pack",
        Scale::Full => "image_write",
    };
    image.file("root/cc1.c", compiler::source(library));
    image.marked("cc1", 1, "run", &compiler::cc1("-O2", "cc1"));
    image.checksum("cc1", "cc1.s");

    image.own(&["simplex", "lattice", "astar"])?;
    let (nodes, arcs, steps) = match scale {
        Scale::Quick => (131_072, 524_288, 8_000),
        Scale::Full => (262_144, 1_048_576, 40_000),
    };
    let label = image.prepared(["simplex, preparing", "simplex"], 1, "run");
    image.line(&format!("simplex {nodes} {arcs} {steps} {label}"));

    let (time, hops) = match scale {
        Scale::Quick => (8, 5),
        Scale::Full => (32, 6),
    };
    let label = image.prepared(["lattice, preparing", "lattice"], 1, "run");
    image.line(&format!("lattice 16 {time} {hops} {label}"));

    let (width, searches) = match scale {
        Scale::Quick => (1536, 1),
        Scale::Full => (2560, 1),
    };
    let label = image.prepared(["astar, preparing", "astar"], 1, "run");
    image.line(&format!("astar {width} {searches} {label}"));
    image.finish(Size(match scale {
        Scale::Quick => 512 * MIB,
        Scale::Full => 768 * MIB,
    }))
}
