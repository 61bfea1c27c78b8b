//! Traps that must come: making them, and checking what they say.

use crate::paging::{Page, page};
use crate::trap::Trap;
use crate::{Check, access, board, ensure, ensure_eq, fail, sbi};
use rv::csr::status;

/// Instruction access fault.
pub const FETCH_ACCESS: u64 = 1;
/// Illegal instruction.
pub const ILLEGAL: u64 = 2;
/// Breakpoint.
pub const BREAKPOINT: u64 = 3;
/// Load access fault.
pub const LOAD_ACCESS: u64 = 5;
/// Store or AMO access fault.
pub const STORE_ACCESS: u64 = 7;
/// Environment call from U.
pub const ECALL_U: u64 = 8;
/// Instruction page fault.
pub const FETCH_PAGE: u64 = 12;
/// Load page fault.
pub const LOAD_PAGE: u64 = 13;
/// Store or AMO page fault.
pub const STORE_PAGE: u64 = 15;

/// Checks cause and value of a trap that must have come.
///
/// # Errors
/// If it is another, or none.
pub fn ensure_trap<T: core::fmt::Debug>(found: Result<T, Trap>, cause: u64, tval: u64, what: &str) -> Check {
    match found {
        Ok(value) => fail!("{what} does not trap: {value:x?}"),
        Err(trap) => {
            ensure_eq!((trap.cause, trap.tval), (cause, tval), "cause and value, {what}");
            ensure_eq!(trap.status & (status::SPP | status::SIE), status::SPP, "SPP and SIE, {what}");
            Ok(())
        }
    }
}

/// Runs one instruction in S mode, with `a0` given. Only one hart at a time may.
///
/// # Errors
/// The trap, if there was one.
///
/// # Panics
/// If the trap names another instruction.
pub fn execute(instruction: u32, a0: u64) -> Result<u64, Trap> {
    static CODE: spin::Once<&Page> = spin::Once::new();
    execute_in(CODE.call_once(page), instruction, a0)
}

/// Runs one instruction like [`execute`], in a page that has no other user.
///
/// # Errors
/// The trap, if there was one.
///
/// # Panics
/// If the trap names another instruction.
pub fn execute_in(code: &Page, instruction: u32, a0: u64) -> Result<u64, Trap> {
    code.fill([instruction, 0x8067].map(u32::to_le_bytes).as_flattened());
    let found = access::call(code.address(), a0);
    if let Err(trap) = found {
        assert_eq!(trap.epc, code.address(), "epc of {instruction:#x}");
    }
    found
}

/// The instruction is illegal: cause 2, and `stval` its bits or zero.
///
/// # Errors
/// If it works, or the trap is another.
pub fn ensure_illegal(instruction: u32, a0: u64, what: core::fmt::Arguments<'_>) -> Check {
    let found = execute(instruction, a0);
    let Err(trap) = found else { fail!("{what} does not trap: {found:x?}") };
    ensure_eq!(trap.cause, ILLEGAL, "cause of {what}");
    ensure!([0, u64::from(instruction)].contains(&trap.tval), "{what}: stval {:#x}", trap.tval);
    ensure_eq!(trap.status & (status::SPP | status::SIE), status::SPP, "SPP and SIE of {what}");
    Ok(())
}

/// `csrr a0, number`.
#[must_use]
pub const fn read_csr(number: u32) -> u32 {
    number << 20 | 0x2573
}

/// `csrw number, a0`.
#[must_use]
pub const fn write_csr(number: u32) -> u32 {
    number << 20 | 0x5_1073
}

/// Physical addresses where there is nothing. A bare QEMU has things in places where Gnomon's board
/// has none.
pub fn hole_addresses() -> impl Iterator<Item = u64> {
    let end = board().ram_end();
    let anywhere = [end, end + 0x1238, end + (3 << 30), 1 << 40, 1 << 45];
    let gnomon =
        [0, 0x1000, 0x10_0000, 0x0200_0000, 0x1000_1000, 0x2000_0000, 0x4000_0000, 0x7fff_fff8, 1 << 50, 1 << 55];
    let is_gnomon = sbi::is_gnomon();
    anywhere.into_iter().chain(gnomon.into_iter().filter(move |_| is_gnomon))
}
