//! Workloads that are about memory or the kernel, and nearly all our own.

use super::image::{HugePages, Image, Scale, Workload};
use super::services::Service;
use crate::guest::debian::Wanted;
use crate::host::size::{MIB, Size};
use crate::machine::net::GATEWAY;
use std::fmt::Write;

/// Random updates of a table (Table 3 of *Nested Paging in bhyve*). The quick table is 128 MiB, the full one
/// 512 MiB. Updates are looked at twice: from the first one on, and when what the host does for a table that stays has been done.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn gups(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let (table, updates, more, memory) = match scale {
        Scale::Quick => (128 * MIB, 4_000_000, 16_000_000, 256 * MIB),
        Scale::Full => (512 * MIB, 8_000_000, 56_000_000, 1024 * MIB),
    };
    let mut image = Image::new("gups", pages)?;
    image.own(&["gups"])?;
    let label = image.prepared(["gups, preparing", "gups"], updates, "update");
    let later = image.region("gups, later", updates, "update");
    image.line(&format!("gups {} {updates} {label} {more} {later}", table / 8));
    image.finish(Size(memory))
}

/// The services of the kernel for programs: a null system call, minor faults, fork, exec.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn processes(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let many = match scale {
        Scale::Quick => 1,
        Scale::Full => 4,
    };
    let mut image = Image::new("processes", pages)?;
    add_processes(&mut image, many)?;
    image.finish(Size(512 * MIB))
}

/// Adds services of the kernel for programs, each so many times its usual count.
pub(super) fn add_processes(image: &mut Image, many: u64) -> miette::Result<()> {
    image.own(&["micro", "nothing"])?;
    let things = [
        ("null call", "call", 100_000, "call"),
        ("new page", "touch", 8_192, "fault"),
        ("unmapped page", "refault", 8_192, "fault"),
        ("fork, exit", "fork", 200, "process"),
        ("fork, exec, exit", "exec", 200, "process"),
    ];
    for (name, what, count, unit) in things {
        let label = image.region(name, many * count, unit);
        image.line(&format!("micro {what} {} {label}", many * count));
    }
    Ok(())
}

/// Adds so many messages to another process and back, by pipes.
pub(super) fn add_pipe(image: &mut Image, trips: u64) {
    let label = image.region("pipe", trips, "round trip");
    image.line(&format!("micro pipe {trips} {label}"));
}

/// Context switches and messages: two processes by pipes, as `perf bench sched pipe`, and hackbench with 40 and
/// with 200 processes. (perf itself comes with Perl and Python.) Each of hackbench's senders sends 100 messages to each receiver, as
/// it does unless it is told otherwise, and did in the paper; in the quick size 2, so that its processes' start and end is most of it.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn switching(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let (trips, loops) = match scale {
        Scale::Quick => (5_000, 2),
        Scale::Full => (50_000, 100),
    };
    let mut image = Image::new("switching", pages)?;
    image.own(&["micro"])?;
    image.debian("rt-tests", Wanted::Program("usr/bin/hackbench"))?;
    add_pipe(&mut image, trips);
    // A group has 20 senders, each of which sends to 20 receivers.
    for (name, groups) in [("hackbench 40", 1), ("hackbench 200", 5)] {
        let hackbench = format!("hackbench -g {groups} -l {loops} >/dev/null");
        image.marked(name, groups * 400 * loops, "message", &hackbench);
    }
    image.finish(Size(256 * MIB))
}

/// hackbench with 40 and with 200 processes, with figures of the `time` CSR in place of markers: `begin-1`, `end-1`, ... by
/// the region's label.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn timed(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let loops = match scale {
        Scale::Quick => 2,
        Scale::Full => 10,
    };
    let mut image = Image::new("timed", pages)?;
    image.own(&["clock"])?;
    image.debian("rt-tests", Wanted::Program("usr/bin/hackbench"))?;
    for (name, groups) in [("hackbench 40", 1), ("hackbench 200", 5)] {
        let label = image.region(name, groups * 400 * loops, "message");
        image.line(&format!("clock begin-{label}\nhackbench -g {groups} -l {loops} >/dev/null\nclock end-{label}"));
    }
    image.finish(Size(256 * MIB))
}

/// fio's requests for a disk, past the guest's cache: large ones in order, four at once, that write and that read; and pages at random,
/// 32 at once and one by one. The quick disk is 32 MiB, the full one 256 MiB.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn disk(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let (size, requests) = match scale {
        Scale::Quick => (32 * MIB, 2_000),
        Scale::Full => (256 * MIB, 20_000),
    };
    let mut image = Image::new("disk", pages)?;
    image.debian("fio", Wanted::Program("usr/bin/fio"))?;
    image.disk(Size(size))?;
    let mut jobs = String::from(FIO);
    let mut job = |name, count, options: &str| {
        let label = image.region(name, count, "request");
        let marks = format!("exec_prerun=mark begin {label}\nexec_postrun=mark end {label}");
        let _ = writeln!(jobs, "[{label}]\n{options}\nnumber_ios={count}\n{marks}");
    };
    job("write 1 MiB", size / MIB, "rw=write\nbs=1M\niodepth=4");
    job("read 1 MiB", size / MIB, "rw=read\nbs=1M\niodepth=4");
    job("read 4 KiB, 32 at once", requests, "rw=randread\nbs=4k\niodepth=32");
    job("read 4 KiB", requests, "rw=randread\nbs=4k\niodepth=1");
    image.file("root/jobs", jobs);
    image.line("fio --eta=never --output=/out --output-format=terse --terse-version=3 /root/jobs");
    // KiB that the jobs have written and read.
    image.line("echo gnomon-figure: KiB $(($(grep '^3;' /out | cut -d';' -f6,47 | tr ';\\n' '++')0))");
    // Each MiB of the disk, or of much of it, is to be one of the four buffers.
    let sums = "for at in $(seq 0 31); do dd if=/dev/vda bs=1M skip=$at count=1 2>/dev/null | md5sum; done";
    image.line(&format!("echo gnomon-figure: buffers $({sums} | sort -u | wc -l)"));
    image.finish(Size(256 * MIB))
}

/// The common settings of fio's jobs. They come one after another, and in a region is what each does when it has all that it needs. What is
/// written is random, and made before; fio does not take times of its own.
const FIO: &str = "[global]
filename=/dev/vda
direct=1
ioengine=libaio
size=100%
norandommap
scramble_buffers=0
thread
stonewall
gtod_reduce=1
disk_util=0
";

/// Bytes to a program of the host's, and from one, by TCP. Quick: 1 MiB, full: 16 MiB.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn net(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let bytes = match scale {
        Scale::Quick => MIB,
        Scale::Full => 16 * MIB,
    };
    let mut image = Image::new("net", pages)?;
    let service = |name: &str, command: &str| Service { name: name.into(), command: command.into() };
    image.net(vec![service("sink", "wc -c"), service("source", &format!("head -c {bytes} /dev/zero"))])?;
    image.line(&format!("head -c {bytes} /dev/zero >/data"));
    // A pipe that nobody writes to: the receiver says no last word. passt repeats no lost frame to one that has.
    image.line("mkfifo /silence");
    let kib = bytes >> 10;
    image.marked("send", kib, "KiB", &format!("nc {GATEWAY} $sink </data >/sent"));
    image.marked("receive", kib, "KiB", &format!("nc {GATEWAY} $source <>/silence >/got"));
    image.line(&format!("[ $(cat /sent) = {bytes} ] && cmp /data /got"));
    // The files have half of what the kernel leaves.
    image.finish(Size(256 * MIB))
}

/// A file in a share is written and read, and files are made, looked at and removed. Quick: 2,000 requests and 200 files,
/// full: 20,000 and 2,000.
///
/// # Errors
/// If a package or a program cannot be had.
pub fn share(scale: Scale, pages: HugePages) -> miette::Result<Workload> {
    let (requests, files) = match scale {
        Scale::Quick => (2_000, 200),
        Scale::Full => (20_000, 2_000),
    };
    let mut image = Image::new("share", pages)?;
    image.share()?;
    image.line(&format!("head -c {} /dev/zero | tr '\\0' g >/data", requests * 4096));
    image.marked("write 4 KiB", requests, "request", "dd if=/data of=/mnt/share/file bs=4k");
    image.marked("read 4 KiB", requests, "request", "dd if=/mnt/share/file of=/got bs=4k");
    image.line("cmp /data /got && rm /got /data");
    // One process for all files: its own instructions are few beside those of their messages.
    image.line(&format!("names=$(seq 1 {files} | sed s,^,/mnt/share/,)"));
    image.marked("make a file", files, "file", "touch $names");
    image.marked("look at a file", files, "file", "stat -c %s $names >/sizes");
    image.marked("remove a file", files, "file", "rm $names");
    image.line("echo gnomon-figure: files $(sort -u /sizes | wc -l) && ls /mnt/share >/left");
    image.line("echo gnomon-figure: left $(wc -l </left)");
    image.finish(Size(256 * MIB))
}
