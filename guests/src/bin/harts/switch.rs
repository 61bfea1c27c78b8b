//! Context switches: two user processes in turn, each in an address space with an ASID of its own, under a
//! kernel that is global; `satp` is written at each switch, and nothing is fenced. Boot argument: how many
//! switches, else [`SWITCHES`]; before them, [`WARM_UP`] more. The runner compares Gnomon's counters.
#![no_std]
#![no_main]

use core::sync::atomic::Ordering::Relaxed;
use guests::expect::ECALL_U;
use guests::paging::{self, Page, RW, RWX, Space, TEST_VA, page};
use guests::user::{COUNTS, User};
use guests::{Check, access, board, console, ensure_eq, run};
use metal::fence;
use rv::{Level, PteFlags};

guests::entry_point!(main);

/// Switches that are made where the boot arguments name no number.
const SWITCHES: u64 = 20_000;
/// Switches before them, after which everything has been touched in both spaces.
const WARM_UP: u64 = 10;

/// A process's program, its data, and a page of the kernel's.
const CODE: u64 = TEST_VA;
const DATA: u64 = TEST_VA + rv::PAGE_BYTES;
const KERNEL: u64 = TEST_VA + (1 << 30);

fn main() {
    run("switch/processes", || {
        let number = board().number().unwrap_or(SWITCHES);
        let outcome = switches(number);
        paging::leave();
        console::line(format_args!("guest: {number} switches after {WARM_UP} to warm up"));
        outcome
    });
}

/// A process: its space, its data, its registers.
struct Process {
    space: Space,
    data: &'static Page,
    user: User,
}

impl Process {
    fn new(asid: u64, code: &Page, kernel: &Page) -> Self {
        let (space, data) = (Space::new(&rv::format::SV39, asid), page());
        for gib in 0..16 {
            space.slot(gib << 30, Level::GIGA).fetch_or(PteFlags::G.bits(), Relaxed);
        }
        space.map(KERNEL, kernel.address(), RW | PteFlags::G);
        space.map(CODE, code.address(), RWX | PteFlags::U);
        space.map(DATA, data.address(), RW | PteFlags::U);
        let mut user = User::at(CODE);
        user.x[11] = DATA;
        Self { space, data, user }
    }
}

fn switches(number: u64) -> Check {
    let (code, kernel) = (page(), page());
    code.fill(COUNTS.map(u32::to_le_bytes).as_flattened());
    let mut processes = [1, 2].map(|asid| Process::new(asid, code, kernel));
    fence::sfence_all();
    for switch in 0..WARM_UP + number {
        let process = &mut processes[switch as usize % 2];
        process.space.switch();
        access::poke(KERNEL, access::peek(KERNEL) + 1);
        let trap = process.user.run();
        // Each process counts for itself, at the same address.
        ensure_eq!((trap.cause, process.user.x[10]), (ECALL_U, switch / 2 + 1), "cause and a0 after switch {switch}");
        process.user.pc += 4;
    }
    let all = WARM_UP + number;
    let counts = processes.each_ref().map(|process| process.data.0[0].load(Relaxed));
    ensure_eq!(counts, [all.div_ceil(2), all / 2], "what the processes counted");
    ensure_eq!(kernel.0[0].load(Relaxed), all, "what the kernel counted");
    Ok(())
}
