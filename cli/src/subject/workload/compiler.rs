//! Debian's C compiler as a workload: alone, and in a build.

use super::image::{HugePages, Image, Scale, Workload};
use super::kernel::{add_pipe, add_processes};
use crate::guest::debian::Wanted;
use crate::host::size::{MIB, Size};

/// The compiler proper.
const CC1: (&str, &str) = ("cpp-14-riscv64-linux-gnu", "usr/libexec/gcc/riscv64-linux-gnu/14/cc1");
/// The compiler's options, without its files.
const CC1_OPTIONS: &str = "-quiet -march=rv64gc -mabi=lp64d -nostdinc -isystem /usr/lib/gcc/riscv64-linux-gnu/14/include \
     -isystem /usr/include/riscv64-linux-gnu -isystem /usr/include -isystem /usr/lib/linux/uapi/riscv";

/// A command that compiles `NAME.c` to `NAME.s`.
pub fn cc1(optimize: &str, name: &str) -> String {
    format!("cc1 {CC1_OPTIONS} {optimize} {name}.c -o {name}.s")
}

/// Adds the compiler, and the headers and libraries' sources that it is given.
pub fn add(image: &mut Image) -> miette::Result<()> {
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
pub fn source(name: &str) -> String {
    let what = name.to_uppercase();
    format!("#define STB_{what}_IMPLEMENTATION\n#include \"stb/stb_{name}.h\"\n")
}

/// Libraries of stb's that are built.
const LIBRARIES: [&str; 4] = ["perlin", "rect_pack", "dxt", "ds"];

/// Pages of 4 KiB that are touched in [`nested`].
const TOUCHED: u64 = 64 * MIB / 4096;
/// The region in which [`nested`] touches them.
pub const TOUCH: &str = "new page";

/// Bytes that Linux may have used for a time before, besides the initramfs.
const USED: u64 = 24 * MIB;

/// A build like [`build`], after stores to 64 MiB of new memory, one for each page. The memory is not used again, so the build has new memory.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn nested(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let mut image = Image::new("nested", pages)?;
    image.own(&["micro"])?;
    add_tools(&mut image)?;
    let label = image.region(TOUCH, TOUCHED, "fault");
    // The memory of the initramfs's archive is what Linux allocates next: that is not new to a hypervisor.
    let before = (image.bytes() + USED) / 4096;
    image.line(&format!("micro hold {TOUCHED} {label} {before}"));
    build_in(image, scale)
}

/// A build, as Table 2 of *Nested Paging in bhyve* has one: several C files are compiled and assembled, each by
/// processes of its own, and linked.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn build(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let mut image = Image::new("build", pages)?;
    add_tools(&mut image)?;
    build_in(image, scale)
}

/// The services of a kernel for programs, and a build by `make -j4`, as *A virtual kernel in DragonFly BSD* has one: compiler, assembler and
/// linker are Debian's.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn vkernel(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let (trips, optimize) = match scale {
        Scale::Quick => (2_000, "-O0"),
        Scale::Full => (20_000, "-O2"),
    };
    let mut image = Image::new("vkernel", pages)?;
    add_processes(&mut image, 1)?;
    add_pipe(&mut image, trips);
    add_tools(&mut image)?;
    image.debian("make", Wanted::Program("usr/bin/make"))?;
    add_sources(&mut image);
    let compile = cc1(optimize, "$*");
    let rules = format!(
        "all.o: {}\n\triscv64-linux-gnu-ld.bfd -r $^ -o $@\n%.o: %.c\n\t{compile}\n\triscv64-linux-gnu-as $*.s -o $@\n",
        objects()
    );
    image.file("root/Makefile", rules);
    image.marked("build", 1, "run", "make -s -j4");
    image.checksum("build", "all.o");
    image.finish(Size(512 * MIB))
}

/// Adds the compiler, the assembler and the linker.
fn add_tools(image: &mut Image) -> miette::Result<()> {
    add(image)?;
    for tool in ["as", "ld.bfd"] {
        image.debian("binutils-riscv64-linux-gnu", Wanted::Program(&format!("usr/bin/riscv64-linux-gnu-{tool}")))?;
    }
    Ok(())
}

/// Adds what is compiled.
fn add_sources(image: &mut Image) {
    for library in LIBRARIES {
        image.file(&format!("root/{library}.c"), source(library));
    }
}

/// The object files, in the order of linking.
fn objects() -> String {
    LIBRARIES.map(|library| format!("{library}.o")).join(" ")
}

fn build_in(mut image: Image, scale: Scale) -> miette::Result<Workload> {
    let optimize = match scale {
        Scale::Quick => "-O0",
        Scale::Full => "-O2",
    };
    add_sources(&mut image);
    let compile = cc1(optimize, "$name");
    let lines = format!(
        "for name in {names}; do\n{compile}\nriscv64-linux-gnu-as $name.s -o $name.o\ndone\n\
         riscv64-linux-gnu-ld.bfd -r {objects} -o all.o",
        names = LIBRARIES.join(" "),
        objects = objects(),
    );
    image.marked("build", 1, "run", &lines);
    image.checksum("build", "all.o");
    image.finish(Size(512 * MIB))
}
