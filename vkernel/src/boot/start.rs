//! The start of the kernel on the machine, and the end of the VM.

use super::{COMMAND_LINE, End, FIRST, HARTS, command_line, harts, make_root, mount_systems, variables};
use crate::call;
use crate::call::Strings;
use crate::errno::Errno;
use crate::fs::descriptors::{Content, Descriptors, OpenFile};
use crate::fs::path::{Last, Place, Position};
use crate::machine::{Boot, FloatUse};
use crate::memory::{frames, translation};
use crate::task::process::{self, Process, Thread};
use crate::task::{Task, executor, run, timers};
use crate::{link, machine, terminal};
use abi::exec::Io;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::panic::PanicInfo;
use core::sync::atomic::Ordering;
use dtoolkit::fdt::Fdt;
use dtoolkit::{Node as _, Property, ToCellInt};
use linux_raw_sys::general as linux;

/// The file in the archive that says which program runs.
const START: &str = abi::exec::FILE;

/// The facts of the device tree.
struct Machine {
    ram: (u64, u64),
    tree: (u64, u64),
    archive: Option<(u64, u64)>,
    seed: [u8; 64],
    per_second: u64,
    /// The address of the clock that knows the time of day.
    clock: Option<u64>,
    has_sstc: bool,
    has_zawrs: bool,
}

#[expect(unsafe_code, reason = "the device tree is found by its address")]
fn tree(at: u64) -> &'static [u8] {
    let header = machine::direct(at).cast::<u32>();
    // SAFETY: by firmware's boot protocol the device tree is there; nothing writes it.
    unsafe { core::slice::from_raw_parts(header.cast::<u8>(), u32::from_be(*header.add(1)) as usize) }
}

/// A number of one or two cells.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn describe(boot: Boot) -> Machine {
    let bytes = tree(boot.device_tree);
    let tree = Fdt::new(bytes).expect("a well-formed device tree");
    let property = |path: &str, name: &str| -> Option<ArrayVec<u8, 64>> {
        let node = tree.find_node(path)?;
        let property = node.property(name)?;
        Some(property.value().iter().copied().take(64).collect())
    };
    let memory = tree.memory().expect("a memory node");
    let ram = memory.reg().expect("memory has reg").and_then(|mut all| all.next()).expect("one range of RAM");
    let start: u64 = ram.address().expect("an address");
    let size: u64 = ram.size().expect("a size");
    let end = property("/chosen", "linux,initrd-end").map(|bytes| number(&bytes));
    let archive = property("/chosen", "linux,initrd-start").map(|bytes| number(&bytes)).zip(end);
    let mut seed = [0; 64];
    let known = property("/chosen", "rng-seed").unwrap_or_default();
    seed.iter_mut().zip(&known).for_each(|(to, from)| *to = *from);
    let per_second = property("/cpus", "timebase-frequency").map_or(10_000_000, |bytes| number(&bytes));
    let cpus = tree.cpus().expect("a cpus node");
    let isa = cpus.cpus().next().and_then(|cpu| cpu.property("riscv,isa"));
    let has = |name: &[u8]| {
        isa.as_ref().is_some_and(|isa| isa.value().split(|byte| *byte == b'_' || *byte == 0).any(|part| part == name))
    };
    let (has_sstc, has_zawrs) = (has(b"sstc"), has(b"zawrs"));
    let clock = find_clock(&tree);
    let at = boot.device_tree;
    Machine {
        ram: (start, start + size),
        tree: (at, at + bytes.len() as u64),
        archive,
        seed,
        per_second,
        clock,
        has_sstc,
        has_zawrs,
    }
}

/// Finds Goldfish's clock, which QEMU's and Gnomon's machines have.
fn find_clock(tree: &Fdt<'static>) -> Option<u64> {
    let soc = tree.find_node("/soc")?;
    let clock = soc.children().find(|node| node.name().starts_with("rtc@"))?;
    clock.reg().ok()??.next()?.address().ok()
}

/// Returns the command line. It needs the heap.
fn bootargs(boot: Boot) -> String {
    let tree = Fdt::new(tree(boot.device_tree)).expect("read before");
    let Some(property) = tree.find_node("/chosen").and_then(|node| node.property("bootargs")) else {
        return String::new();
    };
    let bytes = property.value();
    String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned()
}

/// Finds the devices. It needs the heap.
fn find_devices(boot: Boot) -> crate::device::Board {
    let tree = Fdt::new(tree(boot.device_tree)).expect("read before");
    let mut board = crate::device::Board::default();
    let Some(soc) = tree.find_node("/soc") else { return board };
    for node in soc.children() {
        let at = || node.reg().ok()??.next()?.address::<u64>().ok();
        let Some(at) = at() else { continue };
        if node.name().starts_with("plic@") || node.name().starts_with("interrupt-controller@") {
            board.plic = Some(at);
            continue;
        }
        let Some(source) = node.property("interrupts").map(|property| number(property.value()) as u32) else {
            continue;
        };
        if node.name().starts_with("virtio_mmio@") {
            board.virtio.push((at, source));
        } else if node.name().starts_with("serial@") {
            board.uart = Some((at, source));
        }
    }
    board
}

#[expect(unsafe_code, reason = "a device's registers")]
fn time_of_day(clock: u64) -> u64 {
    let at = machine::direct(clock).expose_provenance() as u64;
    // SAFETY: the device tree names these registers. The low half is read first, which keeps the high one.
    let (low, high) = unsafe { (metal::mmio::read32(at), metal::mmio::read32(at + 4)) };
    u64::from(high) << 32 | u64::from(low)
}

/// The boot hart's start.
pub fn main(boot: Boot) -> ! {
    let facts = describe(boot);
    let mut used = [(boot.image_start, boot.image_end), facts.tree, facts.archive.unwrap_or((0, 0))];
    used.sort_unstable();
    start_frames(facts.ram, &used);
    COMMAND_LINE.call_once(|| bootargs(boot));
    machine::use_timer(facts.has_sstc);
    machine::use_wrs(facts.has_zawrs);
    timers::start(facts.per_second, facts.clock.map_or(0, time_of_day));
    crate::random::start(&facts.seed);
    translation::go_online(machine::asid_mask());
    translation::choose(machine::way_to_use());
    crate::device::start(&find_devices(boot), boot.hart);
    start_harts(boot);
    let kernel = Process::kernel();
    if let Err(why) = start_first(&kernel, facts.archive) {
        crate::report(format_args!("the program cannot be started: {why}"));
        end(End::Status(127));
    }
    executor::run()
}

#[expect(unsafe_code, reason = "all of RAM is handed over")]
fn start_frames(ram: (u64, u64), used: &[(u64, u64)]) {
    // SAFETY: the device tree names this RAM, and nothing else is in it.
    unsafe { frames::start(ram, used) };
}

fn start_harts(boot: Boot) {
    let tree = Fdt::new(tree(boot.device_tree)).expect("read before");
    let cpus = tree.cpus().expect("read before");
    let ids: Vec<u64> = cpus.cpus().filter_map(|cpu| cpu.ids().ok()?.next()?.to_int().ok()).collect();
    for id in ids.into_iter().filter(|id| *id != boot.hart).take(machine::MAX_HARTS - 1) {
        match machine::start_hart(id, harts()) {
            Ok(()) => HARTS.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                crate::report(format_args!("hart {id} does not start: error {error}"));
                continue;
            }
        };
    }
}

/// A further hart's start.
pub fn secondary() -> ! {
    translation::go_online(machine::asid_mask());
    executor::run()
}

#[expect(unsafe_code, reason = "the archive is found by its address")]
fn archive((start, end): (u64, u64)) -> &'static [u8] {
    // SAFETY: the boot loader has put it there, and its frames are not handed out.
    unsafe { core::slice::from_raw_parts(machine::direct(start), (end - start) as usize) }
}

/// Returns the message of an error about something.
fn is(what: &str) -> impl Fn(Errno) -> String + '_ {
    move |why| match why {
        Errno::NOENT => format!("{what} is not there"),
        Errno::ACCES => format!("{what} is not executable, or not a file"),
        Errno::NOEXEC => format!("{what} is not a program for this machine"),
        Errno::NOMEM => format!("there is no memory for {what}"),
        why => format!("{what}: error {}", why.0),
    }
}

fn start_first(kernel: &Arc<Process>, place: Option<(u64, u64)>) -> core::result::Result<(), String> {
    let root = make_root();
    crate::fs::archive::unpack(place.map_or(&[], archive), &root).map_err(is("the archive"))?;
    mount_systems(&root).map_err(is("the root directory"))?;
    let position = Position { current: Arc::clone(&root), root: Arc::clone(&root), mask: 0o022, user: Arc::default() };
    let mut start = read_start(&root, &position)?;
    if start.io == Io::Console {
        start.environment.extend(variables(command_line()).map(|word| word.as_bytes().to_vec()));
    }
    let mut position = position;
    position.current = position.present(&root, &start.directory, Last::Follow).map_err(is(&start.directory))?;
    let path = String::from_utf8_lossy(&start.program).into_owned();
    let place = position.present(&position.current, &path, Last::Follow).map_err(is(&path))?;
    let strings = Strings { arguments: start.arguments, environment: start.environment };
    let loaded = call::load(&position, place, path.clone(), strings).map_err(is(&path))?;
    let pid = process::new_id().map_err(is("its number"))?;
    let process = Process::child(kernel, pid, Arc::clone(loaded.space()), process::default_actions());
    process.begin_session();
    terminal::begin_session(pid);
    FIRST.store(pid, Ordering::Relaxed);
    let mut files = Descriptors::default();
    link::begin(start.io, pid);
    if start.io == Io::Pipes {
        for (fd, pipe) in (0..).zip([link::Pipe::Input, link::Pipe::Output, link::Pipe::Error]) {
            let access = if fd == 0 { linux::O_RDONLY } else { linux::O_WRONLY };
            files.set(fd, OpenFile::of(pipe.stream(), access), false);
        }
    } else {
        let console = OpenFile::new(
            Content::Stream(terminal::terminal()),
            position.present(&root, "/dev/console", Last::Follow).ok(),
            linux::O_RDWR,
        );
        (0..3).for_each(|fd| drop(files.set(fd, Arc::clone(&console), false)));
    }
    let (files, position) = (Arc::new(crate::sync::Mutex::new(files)), Arc::new(crate::sync::Mutex::new(position)));
    let thread = Thread::new(pid, &process, files, position, 0);
    let space = Arc::clone(loaded.space());
    let context = Box::new(loaded.install(&process, &thread));
    run::start(Task {
        thread,
        space,
        context,
        float: Box::new(FloatUse::new()),
        call: None,
        written: 0,
        saved_mask: None,
    });
    Ok(())
}

/// Reads which program runs first.
fn read_start(root: &Arc<Place>, position: &Position) -> core::result::Result<abi::exec::Start, String> {
    let Ok(place) = position.present(root, START, Last::Follow) else {
        return Ok(abi::exec::Start::new(b"/init"));
    };
    let mut bytes = vec![0; place.node.status().bytes as usize];
    place.node.read_at(0, &mut bytes).map_err(|why| format!("{START}: error {}", why.0))?;
    root.node.unlink(START, false).map_err(|why| format!("{START}: error {}", why.0))?;
    abi::exec::Start::decode(&bytes).ok_or_else(|| format!("{START} is not what this kernel reads"))
}

/// Ends the VM.
pub fn end(how: End) -> ! {
    match how {
        End::Again => machine::reboot(),
        End::Status(status) => {
            crate::device::finish(status);
            machine::power_off(status != 0)
        }
    }
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    // By the console, since nothing works on the port any more.
    machine::put(format!("vkernel: bug in the kernel: {info}\r\n").as_bytes());
    machine::power_off(true)
}
