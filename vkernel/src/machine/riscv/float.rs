//! Floating-point registers. The kernel is compiled without them, so a hart's hold those of the last thread that ran there.

use core::sync::atomic::{AtomicU64, Ordering};
use lane::FloatState;
use metal::csr::sstatus;

const FS: u64 = 3 << 13;
const CLEAN: u64 = 2 << 13;
const DIRTY: u64 = 3 << 13;

/// The number of the thread whose registers each hart has; 0 is none.
static OWNERS: [AtomicU64; crate::machine::MAX_HARTS] = [const { AtomicU64::new(0) }; crate::machine::MAX_HARTS];
/// Numbers that have been given out.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The floating-point registers of a thread, while no hart has newer ones.
#[derive(Debug)]
pub struct FloatUse {
    /// A new one at each change of the state in memory, so that no hart takes old registers for current ones.
    version: u64,
    state: FloatState,
}

impl FloatUse {
    /// All registers zero.
    #[must_use]
    pub fn new() -> Self {
        Self { version: next(), state: FloatState::ZERO }
    }
}

impl Default for FloatUse {
    fn default() -> Self {
        Self::new()
    }
}

fn next() -> u64 {
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

fn set_status(to: u64) {
    // SAFETY: the kernel uses no such registers.
    unsafe {
        sstatus::clear(FS);
        sstatus::set(to);
    }
}

/// Gives the hart a thread's registers, if it has others.
pub fn take_float(float: &FloatUse) {
    let owner = &OWNERS[super::hart_index()];
    if owner.load(Ordering::Relaxed) != float.version {
        set_status(DIRTY);
        // SAFETY: FS is on, and the kernel's harts have D.
        unsafe { metal::float::restore(&float.state) };
        owner.store(float.version, Ordering::Relaxed);
        set_status(CLEAN);
    }
}

/// Stores a thread's registers, if the program has changed them. The thread may run on another hart then.
pub fn leave_float(float: &mut FloatUse) {
    if sstatus::read() & FS == DIRTY {
        // SAFETY: FS is on, and the kernel's harts have D.
        unsafe { metal::float::save(&mut float.state) };
        float.version = next();
        OWNERS[super::hart_index()].store(float.version, Ordering::Relaxed);
        set_status(CLEAN);
    }
}

/// Returns the registers f0 to f31, and `fcsr`.
#[must_use]
pub fn float_state(float: &mut FloatUse) -> ([u64; 32], u64) {
    leave_float(float);
    (float.state.f, float.state.fcsr)
}

/// Sets all registers.
pub fn set_float_state(float: &mut FloatUse, f: [u64; 32], fcsr: u64) {
    float.state.f = f;
    float.state.fcsr = fcsr & 0xff;
    float.version = next();
    set_status(CLEAN);
}

/// Sets all registers to zero, as at a program's start.
pub fn clear_float(float: &mut FloatUse) {
    set_float_state(float, [0; 32], 0);
}
