//! Printing: by the debug console extension, or by the UART where that is missing.
#![expect(unsafe_code, reason = "UART registers")]

use crate::paging::page;
use crate::report::Line;
use crate::{hart, sbi};
use abi::report::FIGURE;
use core::fmt::{self, Write};
use core::sync::atomic::Ordering::Relaxed;
use metal::mmio;
use sbi_spec::dbcn;

/// The UART's registers.
pub const UART: u64 = 0x1000_0000;

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let (error, written) = sbi::console_write(rest);
            if error != 0 {
                rest.iter().for_each(|byte| uart_byte(*byte));
                break;
            }
            rest = &rest[(written as usize).min(rest.len())..];
        }
        Ok(())
    }
}

fn uart_byte(byte: u8) {
    const LSR_THR_EMPTY: u8 = 0x20;
    // SAFETY: the board's UART: line status at 5, transmit holding at 0.
    unsafe {
        while mmio::read8(UART + 5) & LSR_THR_EMPTY == 0 {}
        mmio::write8(UART, byte);
    }
}

/// Prints a line. The whole line goes out in as few calls as possible, so that lines of several
/// harts or VMs do not mix.
pub fn line(text: fmt::Arguments<'_>) {
    let mut whole = Line::of(text);
    whole.end_line();
    // `Console` never fails.
    let _ = Console.write_str(whole.as_str());
}

/// Prints a figure that a benchmark reads.
pub fn figure(name: &str, value: u64) {
    line(format_args!("{FIGURE}{name} {value}"));
}

/// Waits for one of these keys, by the debug console.
///
/// # Panics
/// If that has no way to read.
pub fn key_of(keys: &[u8]) -> u8 {
    let buffer = page();
    loop {
        let (error, count) = sbi::call(dbcn::EID_DBCN, dbcn::CONSOLE_READ, [1, buffer.address(), 0, 0, 0, 0]);
        assert_eq!(error, 0, "console read");
        let key = buffer.0[0].load(Relaxed) as u8;
        if count == 1 && keys.contains(&key) {
            return key;
        }
        hart::wait_for(5, || false);
    }
}
