//! The trap vector: interrupts are counted, exceptions are either expected (recorded and skipped)
//! or the end of the guest.
#![expect(unsafe_code, reason = "trap assembly, CSR writes")]

use crate::hart;
use core::arch::global_asm;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use core::{mem, ptr};
use metal::csr;
use rv::Interrupt;

/// An exception, as the handler found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trap {
    /// `scause`.
    pub cause: u64,
    /// `stval`.
    pub tval: u64,
    /// `sepc`.
    pub epc: u64,
    /// `sstatus` in the handler.
    pub status: u64,
}

/// The interrupted hart's registers: x1 to x31 at their index, `sepc` at index 0.
#[repr(C)]
struct Frame([u64; 32]);

global_asm!(
    ".section .text.trap, \"ax\"",
    ".balign 4",
    ".global guest_vector",
    "guest_vector:",
    "addi sp, sp, -256",
    ".irp n, 1,3,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "sd x\\n, 8*\\n(sp)",
    ".endr",
    "csrr t0, sepc",
    "sd t0, 0(sp)",
    "mv a0, sp",
    "call {handler}",
    "ld t0, 0(sp)",
    "csrw sepc, t0",
    ".irp n, 1,3,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "ld x\\n, 8*\\n(sp)",
    ".endr",
    "addi sp, sp, 256",
    "sret",
    handler = sym handle,
);

unsafe extern "C" {
    pub(crate) fn guest_vector();
}

/// The address of the trap vector.
#[must_use]
pub fn vector() -> u64 {
    guest_vector as *const () as u64
}

static HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Replaces what the handler does after it counted an interrupt; it gets the code. `None` brings
/// the default back, which silences the source: SSIP is cleared, STIE and SEIE are disabled.
pub fn on_interrupt(hook: Option<fn(u64)>) {
    HOOK.store(hook.map_or(ptr::null_mut(), |f| f as *mut ()), Relaxed);
}

fn interrupt(code: u64) {
    let own = hart::this();
    own.interrupts[code as usize & 15].fetch_add(1, Relaxed);
    own.interrupted_at.store(metal::time(), Relaxed);
    let hook = HOOK.load(Relaxed);
    if !hook.is_null() {
        // SAFETY: only `on_interrupt` stores here, and it stores functions of this type.
        unsafe { mem::transmute::<*mut (), fn(u64)>(hook)(code) };
    } else if code == Interrupt::SSoft as u64 {
        clear_ipi();
    } else {
        disable(1 << code);
    }
}

extern "C" fn handle(frame: &mut Frame) {
    const INTERRUPT: u64 = 1 << 63;
    let (cause, tval, epc) = (csr::scause::read(), csr::stval::read(), frame.0[0]);
    if cause & INTERRUPT != 0 {
        return interrupt(cause & !INTERRUPT);
    }
    let own = hart::this();
    let expecting = own.expecting.load(Relaxed);
    assert!(expecting != NOTHING, "unexpected trap: cause {cause}, tval {tval:#x}, epc {epc:#x}");
    if own.trapped.fetch_add(1, Relaxed) == 0 {
        for (field, value) in own.first.iter().zip([cause, tval, epc, csr::sstatus::read()]) {
            field.store(value, Relaxed);
        }
    }
    if expecting == RETURN {
        frame.0[0] = frame.0[1];
        return;
    }
    // SAFETY: the instruction was fetched from there, and what is fetched here can be read.
    let low = unsafe { ptr::with_exposed_provenance::<u16>(epc as usize).read_volatile() };
    frame.0[0] = epc + if low & 3 == 3 { 4 } else { 2 };
}

/// The treatment of exceptions (`Hart::expecting`): they end the guest.
const NOTHING: u64 = 0;
/// Exceptions are recorded, and the instruction is skipped.
const SKIP: u64 = 1;
/// Exceptions are recorded, and the trapping function returns.
const RETURN: u64 = 2;

/// Runs `f`, skips each instruction of it that traps, and returns the first trap.
pub fn catch(f: impl FnOnce()) -> Option<Trap> {
    expect(SKIP, f)
}

/// Runs `f`, which calls a function without a stack frame; at a trap that function returns at once.
pub fn catch_call(f: impl FnOnce()) -> Option<Trap> {
    expect(RETURN, f)
}

fn expect(what: u64, f: impl FnOnce()) -> Option<Trap> {
    let own = hart::this();
    own.trapped.store(0, Relaxed);
    own.expecting.store(what, Relaxed);
    f();
    own.expecting.store(NOTHING, Relaxed);
    if own.trapped.load(Relaxed) == 0 {
        return None;
    }
    let [cause, tval, epc, status] = own.first.each_ref().map(|field| field.load(Relaxed));
    Some(Trap { cause, tval, epc, status })
}

/// Lets this hart take interrupts while `f` runs.
pub fn with_interrupts<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the vector handles every interrupt.
    unsafe { csr::sstatus::set(rv::csr::status::SIE) };
    let result = f();
    // SAFETY: as above.
    unsafe { csr::sstatus::clear(rv::csr::status::SIE) };
    result
}

/// Enables interrupts by their bits in `sie`.
pub fn enable(bits: u64) {
    // SAFETY: the vector handles every interrupt.
    unsafe { csr::sie::set(bits) };
}

/// Disables interrupts by their bits in `sie`.
pub fn disable(bits: u64) {
    // SAFETY: takes nothing away that Rust needs.
    unsafe { csr::sie::clear(bits) };
}

/// Clears this hart's pending IPI.
pub fn clear_ipi() {
    // SAFETY: clearing a pending bit.
    unsafe { csr::sip::clear(Interrupt::SSoft.bit()) };
}

/// The pending interrupts.
#[must_use]
pub fn pending() -> u64 {
    csr::sip::read()
}
