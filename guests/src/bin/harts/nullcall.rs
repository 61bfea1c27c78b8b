//! Null system calls: a user program calls the guest's own kernel, which does nothing. Boot argument: how
//! many, else [`CALLS`]; before them, [`WARM_UP`] more. The runner compares Gnomon's counters.
#![no_std]
#![no_main]

use guests::expect::ECALL_U;
use guests::paging::{self, RW, RWX, Space, TEST_VA, page};
use guests::user::{COUNTS, User};
use guests::{Check, board, console, ensure_eq, run};
use rv::PteFlags;

guests::entry_point!(main);

/// Calls that are made where the boot arguments name no number.
const CALLS: u64 = 100_000;
/// Calls before them, after which everything has been touched.
const WARM_UP: u64 = 10;

/// The user's program, and its data.
const CODE: u64 = TEST_VA;
const DATA: u64 = TEST_VA + rv::PAGE_BYTES;

fn main() {
    run("nullcall/calls", || {
        let number = board().number().unwrap_or(CALLS);
        let outcome = calls(number);
        paging::leave();
        console::line(format_args!("guest: {number} null calls after {WARM_UP} to warm up"));
        outcome
    });
}

fn calls(number: u64) -> Check {
    let space = Space::new(&rv::format::SV39, 1);
    let (code, data) = (page(), page());
    code.fill(COUNTS.map(u32::to_le_bytes).as_flattened());
    space.map(CODE, code.address(), RWX | PteFlags::U);
    space.map(DATA, data.address(), RW | PteFlags::U);
    space.enter();
    let mut user = User::at(CODE);
    user.x[11] = DATA;
    for call in 1..=WARM_UP + number {
        let trap = user.run();
        ensure_eq!((trap.cause, user.x[10]), (ECALL_U, call), "cause and a0 of call {call}");
        user.pc += 4;
    }
    Ok(())
}
