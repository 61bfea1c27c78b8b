//! Gnomon's own end: a bug, or a machine it cannot run on.

use crate::pen::stack_guard;
use crate::{drivers, seat};
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, Ordering};
use hypervisor::hart::harts::MAX_HARTS;

/// Writes past the console's lock, which the failing code may hold, and without the heap.
struct Raw;

impl Write for Raw {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(drivers::put);
        Ok(())
    }
}

/// The output, escaped for a JSON string.
struct Json;

impl Write for Json {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' => {
                    drivers::put(b'\\');
                    drivers::put(byte);
                }
                b'\n' => Raw.write_str("\\n")?,
                0..0x20 | 0x7f.. => drivers::put(b'?'),
                _ => drivers::put(byte),
            }
        }
        Ok(())
    }
}

static FAILING: AtomicBool = AtomicBool::new(false);

/// Prints the last record, as a line that people can read too, and powers off.
pub fn fail(message: fmt::Arguments<'_>) -> ! {
    if !FAILING.swap(true, Ordering::SeqCst) {
        // The keys of `abi::record::Record::Failed`.
        let _ = write!(Raw, "\r\n{}{{\"failed\":{{\"message\":\"", char::from(abi::record::MARK));
        let _ = Json.write_fmt(message);
        let _ = Raw.write_str("\"}}\n");
        seat::power_off(seat::PowerOff::Failure);
    }
    loop {
        metal::wait_for_interrupt();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    fail(format_args!("bug in Gnomon: {info}"))
}

/// Handles a trap of Gnomon's own code. Called by the trap vectors.
#[unsafe(no_mangle)]
extern "C" fn gnomon_host_trap(cause: u64, epc: u64, tval: u64) -> ! {
    while FAILING.load(Ordering::SeqCst) {
        metal::wait_for_interrupt(); // the last words trapped, or another hart is saying its own
    }
    if let Some(hart) = (0..MAX_HARTS).find(|hart| stack_guard(*hart).contains(tval)) {
        panic!("the stack of hart {hart} is used up, at {epc:#x}");
    }
    panic!("trap in the hypervisor: cause {cause:#x} at {epc:#x}, value {tval:#x}");
}
