//! KVM's own selftests: programs of Linux's sources, which Debian has in a package. They are built once, in a guest of Gnomon's own, and kept
//! in the cache.

use super::shared::run_dir;
use crate::guest::debian::{Files, Suite, Wanted};
use crate::host::place::{CacheLock, IoError, cache, write_whole};
use crate::host::progress::Step;
use crate::host::size::{MIB, Size};
use crate::host::words::sha256;
use crate::machine::share::ShareSpec;
use crate::system::errand;
use crate::vm::file::VmFile;
use miette::miette;
use std::fs;
use std::path::{Path, PathBuf};

/// The guest's script.
const SCRIPT: &str = include_str!("selftests/build.sh");
/// The metapackage of the sources. They are of the kernel in [`crate::guest::debian::HostKernel::newest`].
const SOURCES: &str = "linux-source";
/// Folders and files of the sources that the programs are built from.
const FOLDERS: [&str; 6] = [
    "tools/arch/riscv/include/",
    "tools/include/",
    "tools/lib/rbtree.c",
    "tools/testing/selftests/kselftest",
    "tools/testing/selftests/kvm/",
    "tools/testing/selftests/rseq/",
];
/// The compiler's package and folder of libraries.
const GCC: (&str, &str) = ("libgcc-14-dev", "usr/lib/gcc/riscv64-linux-gnu/14");
/// All that are built: those of this architecture that are done within a minute in a guest of some 100 MiB. Left out are those that are about the speed
/// of a host, or skipped on each.
const PROGRAMS: [&str; 14] = [
    "arch_timer",
    "coalesced_io_test",
    "demand_paging_test",
    "dirty_log_test",
    "ebreak_test",
    "get-reg-list",
    "guest_print_test",
    "kvm_binary_stats_test",
    "kvm_create_max_vcpus",
    "kvm_page_table_test",
    "memslot_modification_stress_test",
    "sbi_pmu_test",
    "set_memory_region_test",
    "steal_time",
];
/// RAM of the guest.
const MEMORY: Size = Size(1024 * MIB);

/// Provides programs of these names, statically linked: from the cache, else all are built, which takes minutes and a large download.
///
/// # Errors
/// If a package cannot be had, or a program not be built; or if there is no such program.
pub(super) fn provide(names: &[String]) -> miette::Result<Vec<PathBuf>> {
    if let Some(unknown) = names.iter().find(|name| !PROGRAMS.contains(&name.as_str())) {
        return Err(miette!("there is no selftest `{unknown}`"));
    }
    let sources = Files::provide(Suite::Sid, SOURCES, Wanted::Sources(&FOLDERS))?;
    let recipe = sha256(format!("{SCRIPT}{PROGRAMS:?}").as_bytes());
    let dir = cache("guest")?.join(format!("kvm-selftests_{}-{}", sources.version, &recipe[..16]));
    let are_there = || PROGRAMS.iter().all(|name| dir.join(name).is_file());
    if !are_there() {
        let tools = tools()?;
        let _lock = CacheLock::take()?;
        // Another run may have built them while this one waited.
        if !are_there() {
            let built = build([sources].iter().chain(&tools))?;
            fs::create_dir_all(&dir).map_err(IoError::at("create", &dir))?;
            for name in PROGRAMS {
                write_whole(&dir.join(name), &read(&built.path().join(name))?)?;
            }
        }
    }
    Ok(names.iter().map(|name| dir.join(name)).collect())
}

/// The compiler, the assembler and the linker, and what they are given beside the sources.
fn tools() -> miette::Result<Vec<Files>> {
    let (package, folder) = GCC;
    let in_gcc =
        ["include/", "crtbeginT.o", "crtend.o", "libgcc.a", "libgcc_eh.a"].map(|name| format!("{folder}/{name}"));
    let in_libc = ["crt1.o", "crti.o", "crtn.o", "libc.a"].map(|name| format!("usr/lib/riscv64-linux-gnu/{name}"));
    let in_libc: Vec<_> = in_libc.iter().map(String::as_str).chain(["usr/include/"]).collect();
    let headers = ["usr/include/linux/", "usr/include/asm-generic/", "usr/lib/linux/uapi/riscv/"];
    let binutils = |tool| {
        let path = format!("usr/bin/riscv64-linux-gnu-{tool}");
        Files::provide(Suite::Trixie, "binutils-riscv64-linux-gnu", Wanted::Program(&path))
    };
    let cc1 = "usr/libexec/gcc/riscv64-linux-gnu/14/cc1";
    Ok(vec![
        Files::provide(Suite::Trixie, "cpp-14-riscv64-linux-gnu", Wanted::Program(cc1))?,
        binutils("as")?,
        binutils("ld.bfd")?,
        Files::provide(Suite::Trixie, package, Wanted::Data(&in_gcc.each_ref().map(String::as_str)))?,
        Files::provide(Suite::Trixie, "libc6-dev", Wanted::Data(&in_libc))?,
        Files::provide(Suite::Sid, "linux-libc-dev", Wanted::Data(&headers))?,
    ])
}

/// Builds all of them; returns the folder that they are in.
fn build<'a>(from: impl Iterator<Item = &'a Files>) -> miette::Result<tempfile::TempDir> {
    let (scratch, built) = (run_dir()?, run_dir()?);
    let tree = scratch.path().join("build");
    for (path, file) in from.flat_map(|files| &files.files) {
        let copy = tree.join(path);
        let folder = copy.parent().unwrap_or(&tree);
        fs::create_dir_all(folder).map_err(IoError::at("create", folder))?;
        fs::copy(file, &copy).map_err(IoError::at("write", &copy))?;
    }
    let vm = VmFile {
        name: Some("selftests".into()),
        memory: Some(MEMORY),
        vcpus: Some(2),
        add: Some(vec![tree]),
        shares: Some(vec![ShareSpec { dir: built.path().into(), readonly: false, name: Some("share".into()) }]),
        ..VmFile::default()
    };
    let step = Step::spinner("building KVM's selftests, once: it takes some minutes");
    let commands = format!("programs='{}'\n{SCRIPT}", PROGRAMS.join(" "));
    match errand::run(vm, commands, |line| step.note(line))? {
        None => Ok(built),
        Some(said) => Err(miette!("KVM's selftests could not be built; the last output was: {said}")),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, IoError> {
    fs::read(path).map_err(IoError::at("read", path))
}
