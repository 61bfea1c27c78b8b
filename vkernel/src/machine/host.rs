//! In place of a hart: tests run the kernel's pure parts on the host. There are no programs, so nothing of a program is reached.
#![expect(unsafe_code, reason = "the functions of the machine are unsafe there")]

use std::sync::OnceLock;
use std::time::Instant;

/// The floating-point registers of a thread: none here.
#[derive(Debug, Default)]
pub struct FloatUse;

/// The host's memory in place of RAM, 2 MiB aligned.
static RAM: OnceLock<usize> = OnceLock::new();
/// Its size.
pub const RAM_BYTES: usize = 64 << 20;

/// Returns the address of the memory in place of RAM.
fn ram() -> usize {
    *RAM.get_or_init(|| {
        let all = vec![0u8; RAM_BYTES + (2 << 20)].leak();
        all.as_mut_ptr().expose_provenance().next_multiple_of(2 << 20)
    })
}

/// The physical address at which tests have RAM.
pub const RAM_START: u64 = 0x8000_0000;

/// Returns where a physical address of RAM is.
#[must_use]
pub fn direct(pa: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(ram() + (pa - RAM_START) as usize)
}

/// Waits a moment.
pub fn relax() {
    std::thread::yield_now();
}

/// Zeroes a page.
///
/// # Safety
/// It is a whole page, which has no other user.
pub unsafe fn zero_page(at: *mut u8) {
    // SAFETY: by the caller's promise.
    unsafe { at.write_bytes(0, crate::memory::frames::PAGE) };
}

/// Returns the index of this hart: there is one.
#[must_use]
pub fn hart_index() -> usize {
    0
}

/// Returns the nanoseconds since the first call.
#[must_use]
pub fn ticks() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// No hart waits.
pub fn interrupt_harts(_harts: u64) {}

/// Nothing translates here.
pub fn fence(_asid: Option<u16>, _page: Option<u64>) {}

/// Nothing translates here.
pub fn fence_all() {}

/// Nothing translates here.
pub fn fence_harts(_harts: u64, _asid: u16, _start: u64, _bytes: u64) {}

/// The kernel's own table: none.
#[must_use]
pub fn kernel_root() -> u64 {
    0
}

/// No timer is there.
pub fn set_timer(_at: u64) {}

/// Nothing is shown.
pub fn put(_bytes: &[u8]) {}

/// There is no input.
#[must_use]
pub fn read_input(_to: &mut [u8]) -> usize {
    0
}

/// There is no Gnomon below.
#[must_use]
pub fn create_space(_root: u64) -> Option<u64> {
    None
}

/// There is no Gnomon below.
pub fn destroy_space(_handle: u64) {}

/// There is no Gnomon below.
pub fn switch_space(_handle: u64) {}

/// There is no Gnomon below.
pub fn invalidate_space(_handle: u64, _start: u64, _bytes: u64) {}

/// No program runs here.
///
/// # Errors
/// Always.
///
/// # Safety
/// None is needed.
pub unsafe fn copy(_to: u64, _from: u64, bytes: usize) -> Result<(), (usize, u64)> {
    Err((bytes, 0))
}

/// No program runs here.
///
/// # Safety
/// None is needed.
#[must_use]
pub unsafe fn load_word(_at: u64) -> Option<u32> {
    None
}

/// No program runs here.
///
/// # Safety
/// None is needed.
#[must_use]
pub unsafe fn compare_exchange(_at: u64, _old: u32, _new: u32) -> Option<u32> {
    None
}

/// No program runs here.
///
/// # Panics
/// Always.
pub fn enter_user(_context: &mut super::Context) -> super::Trap {
    unimplemented_here()
}

/// No program runs here.
///
/// # Panics
/// Always.
pub fn run_space(_handle: u64, _context: &mut super::Context) -> super::Trap {
    unimplemented_here()
}

fn unimplemented_here() -> ! {
    panic!("programs run on the machine only")
}

/// There is no interrupt.
pub fn clear_ipi() {}

/// There is one hart.
pub fn fence_code(_harts: u64) {}

/// There are no registers.
pub fn take_float(_float: &FloatUse) {}

/// There are no registers.
pub fn leave_float(_float: &mut FloatUse) {}

/// There are no registers.
#[must_use]
pub fn float_state(_float: &mut FloatUse) -> ([u64; 32], u64) {
    ([0; 32], 0)
}

/// There are no registers.
pub fn set_float_state(_float: &mut FloatUse, _f: [u64; 32], _fcsr: u64) {}

/// There are no registers.
pub fn clear_float(_float: &mut FloatUse) {}

impl FloatUse {
    /// All registers zero.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

/// No program runs here.
pub fn set_thread(_thread: &crate::task::Thread) {}
