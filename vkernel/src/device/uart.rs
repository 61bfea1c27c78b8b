//! Input of the VM's console: a 16550 UART (National Semiconductor PC16550D data sheet; names of registers from there). Output goes by calls of
//! the firmware, many bytes at once.
#![expect(unsafe_code, reason = "a device's registers")]

use crate::machine::direct;
use crate::sync::{Mutex, Once};
use crate::terminal;
use metal::mmio::{read8, write8};

const RBR: u64 = 0;
const IER: u64 = 1;
const FCR: u64 = 2;
const LSR: u64 = 5;
const IER_RECEIVED: u8 = 1;
const FCR_ENABLE: u8 = 1;
const LSR_READY: u8 = 1;

/// The address of its registers.
static AT: Once<u64> = Once::new();
/// Set while it must not interrupt, because the terminal has no room. The register is written under this lock.
static IS_HELD: Mutex<bool> = Mutex::new(false);

/// Uses the device at a physical address.
pub fn start(at: u64) {
    let at = *AT.call_once(|| direct(at).expose_provenance() as u64);
    // SAFETY: the device tree names these registers.
    unsafe {
        write8(at + FCR, FCR_ENABLE);
        write8(at + IER, IER_RECEIVED);
    }
}

/// Returns whether there is one.
pub fn is_used() -> bool {
    AT.get().is_some()
}

/// Takes what has come, as far as the terminal has room for it.
pub fn receive() {
    let Some(&at) = AT.get() else { return };
    while terminal::has_room() {
        // SAFETY: as above.
        let byte = unsafe { (read8(at + LSR) & LSR_READY != 0).then(|| read8(at + RBR)) };
        let Some(byte) = byte else { return };
        terminal::input(&[byte]);
    }
    hold(at);
}

/// Goes on if the terminal has room again.
pub fn go_on() {
    if let Some(&at) = AT.get() {
        let mut is_held = IS_HELD.lock();
        if *is_held && terminal::has_room() {
            allow(at, &mut is_held, true);
        }
    }
}

/// Keeps it from interrupting as long as the terminal has no room.
fn hold(at: u64) {
    let mut is_held = IS_HELD.lock();
    allow(at, &mut is_held, false);
    // A reader may have made room before the lock was taken.
    if terminal::has_room() {
        allow(at, &mut is_held, true);
    }
}

fn allow(at: u64, is_held: &mut bool, interrupts: bool) {
    *is_held = !interrupts;
    // SAFETY: as above.
    unsafe { write8(at + IER, if interrupts { IER_RECEIVED } else { 0 }) };
}
