//! Loads, stores and fetches anywhere, one instruction each.
//!
//! These are safe functions: loads change nothing of Rust's, and stores refuse the image, except
//! for the pages that [`paging`](crate::paging) hands out for such use. Virtual addresses that tests
//! map lead to those pages, to free RAM or to devices.
#![expect(unsafe_code, reason = "loads and stores at any address")]

use crate::trap::{Trap, catch, catch_call};
use crate::{image_end, paging};
use core::arch::asm;

/// A load of this module.
pub type Load = fn(u64) -> Result<u64, Trap>;
/// A store of this module.
pub type Store = fn(u64, u64) -> Result<(), Trap>;

fn assert_storable(at: u64) {
    let is_image = (0x8020_0000..image_end()).contains(&at) && !paging::is_pool(at);
    assert!(!is_image, "store into the image at {at:#x}");
}

macro_rules! loads {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Errors
        /// The trap, if it trapped.
        #[inline]
        pub fn $name(at: u64) -> Result<u64, Trap> {
            let mut value = 0x5a5a_5a5a_5a5a_5a5a_u64;
            let trap = catch(|| {
                // SAFETY: a load; a trap skips it.
                unsafe {
                    asm!(concat!(stringify!($name), " {value}, 0({at})"), value = inout(reg) value, at = in(reg) at,
                         options(nostack));
                }
            });
            trap.map_or(Ok(value), Err)
        }
    )*};
}

macro_rules! stores {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Errors
        /// The trap, if it trapped.
        #[inline]
        pub fn $name(at: u64, value: u64) -> Result<(), Trap> {
            assert_storable(at);
            let trap = catch(|| {
                // SAFETY: no Rust object lies there (asserted); a trap skips it.
                unsafe {
                    asm!(concat!(stringify!($name), " {value}, 0({at})"), value = in(reg) value, at = in(reg) at,
                         options(nostack));
                }
            });
            trap.map_or(Ok(()), Err)
        }
    )*};
}

loads!(lb lbu lh lhu lw lwu ld);
stores!(sb sh sw sd);

/// `amoadd.d`; returns what was there.
///
/// # Errors
/// The trap, if it trapped.
pub fn amoadd(at: u64, value: u64) -> Result<u64, Trap> {
    assert_storable(at);
    let mut old = 0;
    let trap = catch(|| {
        // SAFETY: no Rust object lies there (asserted); a trap skips it.
        unsafe {
            asm!("amoadd.d {old}, {value}, ({at})", old = inout(reg) old, value = in(reg) value, at = in(reg) at, options(nostack))
        };
    });
    trap.map_or(Ok(old), Err)
}

/// `lr.d`.
///
/// # Errors
/// The trap, if it trapped.
pub fn lr(at: u64) -> Result<u64, Trap> {
    let mut value = 0;
    let trap = catch(|| {
        // SAFETY: a load; a trap skips it.
        unsafe { asm!("lr.d {value}, ({at})", value = inout(reg) value, at = in(reg) at, options(nostack)) };
    });
    trap.map_or(Ok(value), Err)
}

/// `lr.d` and `sc.d` of another value, until the `sc.d` succeeds or one of them traps.
///
/// # Errors
/// The first trap.
pub fn lr_sc(at: u64, value: u64) -> Result<(), Trap> {
    assert_storable(at);
    loop {
        let mut failed = 1_u64;
        let trap = catch(|| {
            // SAFETY: no Rust object lies there (asserted); a trap skips one instruction.
            unsafe {
                asm!("lr.d {failed}, ({at})", "sc.d {failed}, {value}, ({at})",
                     failed = inout(reg) failed, value = in(reg) value, at = in(reg) at, options(nostack));
            }
        });
        match trap {
            Some(trap) => return Err(trap),
            None if failed == 0 => return Ok(()),
            // The reservation was lost, as to a hypervisor's exit in between.
            None => {}
        }
    }
}

/// Calls the code at `at` with `argument` in a0 and returns a0.
///
/// # Errors
/// The first trap in that code, which returns then.
pub fn call(at: u64, argument: u64) -> Result<u64, Trap> {
    let mut value = argument;
    let trap = catch_call(|| {
        // SAFETY: test code follows the C convention, is a leaf and touches no memory of Rust's; where
        // it traps, the handler returns to ra.
        unsafe { asm!("jalr ra, 0({at})", at = in(reg) at, inout("a0") value, clobber_abi("C")) };
    });
    trap.map_or(Ok(value), Err)
}

/// Reads a doubleword of RAM; a trap ends the guest.
#[must_use]
#[inline(always)]
pub fn peek(at: u64) -> u64 {
    // SAFETY: a load; other code than Rust's may write there, hence volatile (in `metal`).
    unsafe { metal::mmio::read64(at) }
}

/// Writes a doubleword of RAM; a trap ends the guest.
#[inline(always)]
pub fn poke(at: u64, value: u64) {
    assert_storable(at);
    // SAFETY: no Rust object lies there (asserted).
    unsafe { metal::mmio::write64(at, value) };
}

/// Writes bytes at a multiple of eight, and zeroes up to the next one behind them.
pub fn poke_bytes(at: u64, bytes: &[u8]) {
    for (n, chunk) in (0..).zip(bytes.chunks(8)) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        poke(at + 8 * n, u64::from_le_bytes(word));
    }
}

/// Reads a device's byte register; a trap ends the guest.
#[must_use]
pub fn in8(at: u64) -> u8 {
    // SAFETY: a device register, or RAM.
    unsafe { metal::mmio::read8(at) }
}

/// Writes a device's byte register; a trap ends the guest.
pub fn out8(at: u64, value: u8) {
    assert_storable(at);
    // SAFETY: no Rust object lies there (asserted), and the board's devices do not touch memory.
    unsafe { metal::mmio::write8(at, value) };
}

/// Reads a device's word register; a trap ends the guest.
#[must_use]
pub fn in32(at: u64) -> u32 {
    // SAFETY: as for `in8`.
    unsafe { metal::mmio::read32(at) }
}

/// Writes a device's word register; a trap ends the guest.
pub fn out32(at: u64, value: u32) {
    assert_storable(at);
    // SAFETY: as for `out8`.
    unsafe { metal::mmio::write32(at, value) };
}
