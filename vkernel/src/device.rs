//! Devices.

use crate::{machine, terminal};

/// Looks for input.
pub fn poll() {
    let mut bytes = [0; 64];
    while terminal::has_room() {
        let count = machine::read_input(&mut bytes);
        if count == 0 {
            return;
        }
        terminal::input(&bytes[..count]);
    }
}

/// Tells the host how the first program has ended, before the VM ends.
pub fn finish(status: u8) {
    crate::report(format_args!("status {status}"));
}
