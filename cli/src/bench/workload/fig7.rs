//! Figure 7 of *Lazy Shadow Paging under the RISC-V Architecture* runs four programs of SPEC CPU2006. That is
//! not free software; these do the same kind of work:
//!
//! | SPEC | here |
//! |---|---|
//! | 403.gcc | `cc1 -O2` of Debian's GCC 14 on single-file C libraries (stb) |
//! | 429.mcf | the network simplex algorithm, `programs/src/simplex.rs` |
//! | 433.milc | `programs/src/lattice.rs`, in integers |
//! | 473.astar | `programs/src/grid.rs` |

use super::{HugePages, Image, Scale, Wanted, Workload};
use crate::size::{MIB, Size};

/// The compiler proper.
pub const CC1: (&str, &str) = ("cpp-14-riscv64-linux-gnu", "usr/libexec/gcc/riscv64-linux-gnu/14/cc1");
/// Its options, but for files.
pub const CC1_OPTIONS: &str = "-quiet -O2 -march=rv64gc -mabi=lp64d -nostdinc -isystem /usr/lib/gcc/riscv64-linux-gnu/14/include \
     -isystem /usr/include/riscv64-linux-gnu -isystem /usr/include -isystem /usr/lib/linux/uapi/riscv";

/// Builds it.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn fig7(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let mut image = Image::new("fig7", pages)?;
    compiler(&mut image)?;
    let library = match scale {
        Scale::Quick => "ds",
        Scale::Full => "truetype",
    };
    image.file("root/cc1.c", source(library));
    image.marked("cc1", 1, "run", &format!("cc1 {CC1_OPTIONS} cc1.c -o cc1.s"));
    image.checksum("cc1", "cc1.s");

    image.own(&["simplex", "lattice", "astar"])?;
    let (nodes, arcs, steps) = match scale {
        Scale::Quick => (131_072, 524_288, 20_000),
        Scale::Full => (262_144, 1_048_576, 300_000),
    };
    let label = image.region("simplex", 1, "run");
    image.line(&format!("simplex {nodes} {arcs} {steps} {label}"));

    let (time, hops) = match scale {
        Scale::Quick => (8, 10),
        Scale::Full => (32, 50),
    };
    let label = image.region("lattice", 1, "run");
    image.line(&format!("lattice 16 {time} {hops} {label}"));

    let (width, searches) = match scale {
        Scale::Quick => (2048, 1),
        Scale::Full => (4096, 3),
    };
    let label = image.region("astar", 1, "run");
    image.line(&format!("astar {width} {searches} {label}"));
    image.finish(Size(match scale {
        Scale::Quick => 512 * MIB,
        Scale::Full => 768 * MIB,
    }))
}

/// Adds the compiler, and the headers and sources that it is given.
fn compiler(image: &mut Image) -> miette::Result<()> {
    image.debian(CC1.0, Wanted::Program(CC1.1))?;
    image.debian("libgcc-14-dev", Wanted::Data(&["usr/lib/gcc/riscv64-linux-gnu/14/include/"]))?;
    image.debian("libc6-dev", Wanted::Data(&["usr/include/"]))?;
    let kernel = [
        "usr/include/linux/limits.h",
        "usr/include/linux/errno.h",
        "usr/include/asm-generic/",
        "usr/lib/linux/uapi/riscv/",
    ];
    image.debian("linux-libc-dev", Wanted::Data(&kernel))?;
    image.debian("libstb-dev", Wanted::Data(&["usr/include/stb/"]))
}

/// A C file that is all of one of the stb libraries.
fn source(name: &str) -> String {
    let what = name.to_uppercase();
    format!("#define STB_{what}_IMPLEMENTATION\n#include \"stb/stb_{name}.h\"\n")
}
