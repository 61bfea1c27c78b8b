//! System calls of a small kernel, as xv6 is: without ASIDs, with an address space of its own for the kernel, and a fence of everything
//! before and after each change of address spaces. The kernel maps RAM by 4 KiB pages, and has [`TABLES`] tables more.
//!
//! Boot argument: how many calls, else [`CALLS`]; before them come [`WARM_UP`]. Under `-icount` the figure `overhead` is what the changes
//! of address spaces and the fences of all calls cost, in ticks.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "satp")]

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use guests::expect::ECALL_U;
use guests::paging::{self, RW, RWX, Space, TEST_VA, page, pointer};
use guests::user::{COUNTS, User};
use guests::{Check, access, board, console, ensure, ensure_eq, hart, ram, run};
use metal::{csr, fence};
use rv::{Level, PAGE_BYTES, PteFlags};

guests::entry_point!(main);

/// Calls that are made where the boot arguments name no number.
const CALLS: u64 = 20_000;
/// Calls before them.
const WARM_UP: u64 = 800;
/// Tables that the kernel has for one page, which it maps again and again.
const TABLES: u64 = 1000;
/// The number of tables that each call of the warm-up uses, so that nothing that is used is left to be found.
const AT_ONCE: u64 = 25;

/// The user's program, its data, and where those tables are for.
const CODE: u64 = TEST_VA;
const DATA: u64 = TEST_VA + PAGE_BYTES;
const AGAIN: u64 = TEST_VA + (1 << 30);

fn main() {
    run("small/calls", || {
        let number = board().number().unwrap_or(CALLS);
        let kernel = Kernel::new();
        kernel.space.enter();
        let outcome = kernel.calls(number);
        paging::leave();
        console::line(format_args!("guest: {number} calls after {WARM_UP} to warm up"));
        outcome
    });
    if board().hart_count > 1 {
        run("small/told-by-another", told_by_another);
    }
}

/// The number of changed tables; the number of those that the other hart has seen, and what it found by the last one;
/// its fences; and the kernel's `satp`.
static CHANGED: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);
static FOUND: AtomicU64 = AtomicU64::new(0);
static FENCES: AtomicU64 = AtomicU64::new(0);
static SATP: AtomicU64 = AtomicU64::new(0);
/// The contents of the page that the changed tables map.
const MARK: u64 = 0x600d_600d;
/// Fences after which all is quiet again.
const CALM: u64 = 120;
/// Tables that are changed.
const CHANGES: u64 = 200;

/// One hart writes tables that have not been written for long, and says so. The other, which does nothing but fences,
/// has to see each after the first fence that follows: also where that fence would have had nothing to do a moment
/// before.
fn told_by_another() -> Check {
    let kernel = Kernel::new();
    SATP.store(kernel.space.satp(), SeqCst);
    let marked = page();
    marked.0[0].store(MARK, Relaxed);
    kernel.space.enter();
    board().other_harts().try_for_each(|other| hart::start(other, look, 0))?;
    let outcome = (0..CHANGES).try_for_each(|number| {
        let from = FENCES.load(Acquire);
        let is_calm = hart::wait_for(hart::PATIENCE_MS, || FENCES.load(Acquire) >= from + CALM);
        ensure!(is_calm, "the other hart does not fence");
        // At another moment of its loop each time.
        (0..number % 61).for_each(|n| _ = core::hint::black_box(n));
        kernel.space.map(Kernel::again(number), marked.address(), RW);
        CHANGED.store(number + 1, Release);
        ensure!(hart::wait_for(hart::PATIENCE_MS, || SEEN.load(Acquire) > number), "no look by table {number}");
        ensure_eq!(FOUND.load(Acquire), MARK, "what the other hart finds by table {number}");
        Ok(())
    });
    CHANGED.store(u64::MAX, Release);
    board().other_harts().try_for_each(hart::join)?;
    paging::leave();
    outcome
}

/// Fences, and looks by each table that has been changed.
fn look(_: u64) {
    // SAFETY: the space maps Rust's memory and the devices to themselves.
    unsafe { csr::satp::write(SATP.load(SeqCst)) };
    fence::sfence_all();
    for number in 0.. {
        // So it knows what was mapped there.
        core::hint::black_box(access::peek(Kernel::again(number % TABLES)));
        let changed = loop {
            let changed = CHANGED.load(Acquire);
            fence::sfence_all();
            FENCES.fetch_add(1, Release);
            if changed != number {
                break changed;
            }
        };
        if changed == u64::MAX {
            break;
        }
        FOUND.store(access::peek(Kernel::again(number)), Release);
        SEEN.store(number + 1, Release);
    }
    paging::leave();
}

struct Kernel {
    space: Space,
    user: Space,
    shared: &'static paging::Page,
}

impl Kernel {
    fn new() -> Self {
        let [space, user] = [0, 0].map(|asid| Space::new(&rv::format::SV39, asid));
        let shared = page();
        let (from, to) = (board().ram_start, board().ram_end());
        let all = || (from >> 30 << 30..to).step_by(1 << 30);
        all().for_each(|at| space.slot(at, Level::GIGA).store(0, Relaxed));
        (from..to).step_by(PAGE_BYTES as usize).for_each(|at| space.map(at, at, RWX));
        all().for_each(|at| {
            let slot = space.slot(at, Level::GIGA).load(Relaxed);
            user.slot(at, Level::GIGA).store(slot, Relaxed);
        });
        for number in 0..TABLES {
            let table = &ram::pages(1)[0];
            space.slot(Self::again(number), Level::MEGA).store(pointer(table.address()), Relaxed);
            space.map(Self::again(number), shared.address(), RW);
        }
        let code = page();
        code.fill(COUNTS.map(u32::to_le_bytes).as_flattened());
        user.map(CODE, code.address(), RWX | PteFlags::U);
        user.map(DATA, page().address(), RW | PteFlags::U);
        Self { space, user, shared }
    }

    /// The address of the page's second mapping, by a table for that alone.
    fn again(number: u64) -> u64 {
        AGAIN + (number << Level::MEGA.shift())
    }

    /// A call from user mode.
    fn call(&self, user: &mut User, number: u64) -> Check {
        // xv6 leaves in the trap frame which space is the kernel's.
        let kernel = csr::satp::read();
        paging::change(self.user.satp());
        let trap = user.run();
        paging::change(kernel);
        ensure_eq!((trap.cause, user.x[10]), (ECALL_U, number), "cause and a0 of call {number}");
        user.pc += 4;
        Ok(())
    }

    /// A call without any change of the address space.
    fn plain_call(user: &mut User, number: u64) -> Check {
        let trap = user.run();
        ensure_eq!((trap.cause, user.x[10]), (ECALL_U, number), "cause and a0 of plain call {number}");
        user.pc += 4;
        Ok(())
    }

    fn calls(&self, number: u64) -> Check {
        let mut user = User::at(CODE);
        user.x[11] = DATA;
        for call in 1..=WARM_UP {
            let turn = (call - 1) / (WARM_UP * AT_ONCE / TABLES);
            (turn * AT_ONCE..(turn + 1) * AT_ONCE)
                .for_each(|table| access::poke(Self::again(table), access::peek(Self::again(table)) + 1));
            self.call(&mut user, call)?;
        }
        ensure_eq!(
            self.shared.0[0].load(Relaxed),
            WARM_UP * AT_ONCE,
            "stores to the page that is mapped again and again"
        );
        let start = metal::time();
        for call in 1..=number {
            self.call(&mut user, WARM_UP + call)?;
        }
        let took = metal::time() - start;
        paging::change(self.user.satp());
        let start = metal::time();
        for call in 1..=number {
            Self::plain_call(&mut user, WARM_UP + number + call)?;
        }
        let plain = metal::time() - start;
        paging::change(self.space.satp());
        // A table that is written is seen by the next fence, also where none was for long.
        let other = page();
        self.user.map(DATA, other.address(), RW | PteFlags::U);
        self.call(&mut user, 1)?;
        ensure_eq!(other.0[0].load(Relaxed), 1, "what the program stores after its data is elsewhere");
        console::figure("calls", number);
        console::figure("overhead", took.saturating_sub(plain));
        Ok(())
    }
}
