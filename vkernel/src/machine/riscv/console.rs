//! The VM's console, by calls of the firmware (DBCN).

use super::{call, physical};
use crate::sync::Mutex;
use sbi_spec::dbcn;

/// Bytes on their way: in RAM of its own, since firmware is told physical addresses.
struct Buffer([u8; 256]);

static OUTPUT: Mutex<Buffer> = Mutex::new(Buffer([0; 256]));
static INPUT: Mutex<Buffer> = Mutex::new(Buffer([0; 256]));

/// Prints bytes.
pub fn put(mut bytes: &[u8]) {
    let mut buffer = OUTPUT.lock();
    while !bytes.is_empty() {
        let count = bytes.len().min(buffer.0.len());
        buffer.0[..count].copy_from_slice(&bytes[..count]);
        let (error, printed) =
            call(dbcn::EID_DBCN, dbcn::CONSOLE_WRITE, [count as u64, physical(buffer.0.as_ptr()), 0]);
        if error != 0 {
            return;
        }
        bytes = &bytes[(printed as usize).min(count)..];
    }
}

/// Reads bytes of the console's input, if there are any. Returns how many.
pub fn read_input(to: &mut [u8]) -> usize {
    let mut buffer = INPUT.lock();
    let most = to.len().min(buffer.0.len());
    let (error, count) = call(dbcn::EID_DBCN, dbcn::CONSOLE_READ, [most as u64, physical(buffer.0.as_mut_ptr()), 0]);
    let count = if error == 0 { (count as usize).min(most) } else { 0 };
    to[..count].copy_from_slice(&buffer.0[..count]);
    count
}
