//! The stacks of the harts, and the pen where those wait that did not boot.

use core::sync::atomic::{AtomicU64, Ordering};
use hypervisor::hart::harts::MAX_HARTS;
use hypervisor::machine::description::Span;

/// Bytes of stack for each hart, the guard page at its lower end among them.
pub const STACK_BYTES: usize = 64 << 10;

/// The number of valid entries of [`HART_IDS`]; the waiting harts of the firmware seat go on when it is not 0.
#[unsafe(link_section = ".data.boot")]
pub static RELEASED: AtomicU64 = AtomicU64::new(0);
/// The hart id of each hart in use, by Gnomon's index.
#[unsafe(link_section = ".data.boot")]
pub static HART_IDS: [AtomicU64; MAX_HARTS] = [const { AtomicU64::new(u64::MAX) }; MAX_HARTS];

unsafe extern "C" {
    fn gnomon_secondary();
    static __stacks: u8;
}

/// Returns the address at which a secondary hart starts in the payload seat, with its index in a1.
pub fn secondary_address() -> u64 {
    gnomon_secondary as *const () as u64
}

/// Returns the end of the stack of hart `index`.
pub fn stack_end(index: usize) -> u64 {
    (&raw const __stacks) as u64 + (STACK_BYTES * (index + 1)) as u64
}

/// Returns the lowest page of the stack of hart `index`, which may not be accessed: a stack that grows into it traps,
/// where it would spoil another hart's.
pub fn stack_guard(index: usize) -> Span {
    Span { start: stack_end(index) - STACK_BYTES as u64, bytes: rv::PAGE_BYTES }
}

/// Lets the harts that wait at the start go on, when they are interrupted next; `ids` are theirs, by index.
pub fn release(ids: &[u64]) {
    for (slot, id) in HART_IDS.iter().zip(ids) {
        slot.store(*id, Ordering::Relaxed);
    }
    RELEASED.store(ids.len() as u64, Ordering::SeqCst);
}
