//! Supervisor software events (SBI 3.0, chapter 17): handlers, and the calls.
#![expect(unsafe_code, reason = "the entry of a handler is assembly")]

use crate::sbi::{self, call};
use core::arch::global_asm;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::SeqCst};
use core::{mem, ptr};
use metal::csr;
use sbi_spec::sse;

/// The event of each hart.
pub const LOCAL: u64 = 0xffff_0000;
/// The event of all.
pub const GLOBAL: u64 = 0xffff_8000;

/// Attributes of an event, by their numbers.
pub mod attribute {
    /// State in bits 1:0, pending, can be injected.
    pub const STATUS: u64 = 0;
    /// Less is first.
    pub const PRIORITY: u64 = 1;
    /// Bit 0: disabled when complete.
    pub const CONFIG: u64 = 2;
    /// Of the global event.
    pub const PREFERRED_HART: u64 = 3;
    /// The handler's address.
    pub const ENTRY_PC: u64 = 4;
    /// The interrupted state: `sepc`, flags, a6, a7.
    pub const INTERRUPTED: u64 = 6;
}

const STACK_WORDS: usize = 512;

/// A handler, for one event on one hart. What its last run found.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct Handler {
    stack: [AtomicU64; STACK_WORDS],
    sp: AtomicU64,
    event: AtomicU64,
    job: AtomicPtr<()>,
    /// The number of times that it ran to its end.
    pub runs: AtomicU64,
    /// The hart that the event named.
    pub named: AtomicU64,
    /// The hart that it came to.
    pub hart: AtomicU64,
    /// `sstatus` in the handler.
    pub sstatus: AtomicU64,
    /// `sepc` in the handler.
    pub sepc: AtomicU64,
    /// The interrupted state, by the attributes: `sepc`, flags, a6, a7.
    pub interrupted: [AtomicU64; 4],
}

const SP: usize = 8 * STACK_WORDS;

global_asm!(
    ".section .text",
    ".balign 4",
    // OpenSBI 1.5 passes the argument in a6 and the hart in a7.
    ".global guest_event_swapped",
    "guest_event_swapped:",
    "xor a6, a6, a7",
    "xor a7, a6, a7",
    "xor a6, a6, a7",
    ".balign 4",
    // a6: the hart, a7: the handler's block.
    ".global guest_event",
    "guest_event:",
    "sd sp, 0(a7)",
    "li sp, {sp}",
    "add sp, sp, a7",
    "sd t0, -8(sp)",
    "ld t0, 0(a7)",
    "sd t0, 0(sp)",
    "ld t0, -8(sp)",
    "addi sp, sp, -256",
    ".irp n, 1,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "sd x\\n, 8*\\n(sp)",
    ".endr",
    "mv a0, a7",
    "mv a1, a6",
    "call {handle}",
    ".irp n, 1,3,4,5,6,7,8,9,10,11,12,13,14,15,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "ld x\\n, 8*\\n(sp)",
    ".endr",
    "ld sp, 256(sp)",
    "li a6, {complete}",
    "li a7, {sse}",
    "ecall",
    // Nothing goes on here.
    "unimp",
    sp = const SP,
    handle = sym handle,
    complete = const sse::COMPLETE,
    sse = const sse::EID_SSE,
);

unsafe extern "C" {
    safe fn guest_event();
    safe fn guest_event_swapped();
}

extern "C" fn handle(handler: &Handler, named: u64) {
    let found = [named, crate::hart::id(), csr::sstatus::read(), csr::sepc::read()];
    for (cell, value) in [&handler.named, &handler.hart, &handler.sstatus, &handler.sepc].into_iter().zip(found) {
        cell.store(value, SeqCst);
    }
    let at = handler.interrupted.as_ptr().expose_provenance() as u64;
    read(handler.event.load(SeqCst), attribute::INTERRUPTED, 4, at);
    let job = handler.job.load(SeqCst);
    if !job.is_null() {
        // SAFETY: only `register` stores here, and it stores functions of this type.
        unsafe { mem::transmute::<*mut (), fn()>(job)() };
    }
    handler.runs.fetch_add(1, SeqCst);
}

impl Handler {
    /// One that has not run.
    #[must_use]
    pub const fn idle() -> Self {
        Self {
            stack: [const { AtomicU64::new(0) }; STACK_WORDS],
            sp: AtomicU64::new(0),
            event: AtomicU64::new(0),
            job: AtomicPtr::new(ptr::null_mut()),
            runs: AtomicU64::new(0),
            named: AtomicU64::new(0),
            hart: AtomicU64::new(0),
            sstatus: AtomicU64::new(0),
            sepc: AtomicU64::new(0),
            interrupted: [const { AtomicU64::new(0) }; 4],
        }
    }

    /// Names it the handler of an event, for the calling hart; it does `job`, too. Returns the call's error.
    pub fn register(&'static self, event: u64, job: Option<fn()>) -> i64 {
        self.event.store(event, SeqCst);
        self.job.store(job.map_or(ptr::null_mut(), |job| job as *mut ()), SeqCst);
        let entry = if sbi::is_gnomon() { guest_event as *const () } else { guest_event_swapped as *const () };
        register_at(event, entry as u64, ptr::from_ref(self).expose_provenance() as u64)
    }
}

/// A call about an event.
pub fn on(fid: usize, event: u64) -> i64 {
    call(sse::EID_SSE, fid, [event, 0, 0, 0, 0, 0]).0
}

/// Names what an event is to run.
pub fn register_at(event: u64, pc: u64, argument: u64) -> i64 {
    call(sse::EID_SSE, sse::REGISTER, [event, pc, argument, 0, 0, 0]).0
}

/// Makes an event of a hart pending.
pub fn inject(event: u64, hart: u64) -> i64 {
    call(sse::EID_SSE, sse::INJECT, [event, hart, 0, 0, 0, 0]).0
}

/// Reads attributes to a physical address.
pub fn read(event: u64, first: u64, count: u64, at: u64) -> i64 {
    call(sse::EID_SSE, sse::READ_ATTRS, [event, first, count, at, 0, 0]).0
}

/// Writes attributes from a physical address.
pub fn write(event: u64, first: u64, count: u64, at: u64) -> i64 {
    call(sse::EID_SSE, sse::WRITE_ATTRS, [event, first, count, at, 0, 0]).0
}

/// One attribute.
///
/// # Errors
/// That of the call.
pub fn get(event: u64, which: u64) -> Result<u64, i64> {
    let value = AtomicU64::new(u64::MAX);
    match read(event, which, 1, value.as_ptr().expose_provenance() as u64) {
        sbi::SUCCESS => Ok(value.load(SeqCst)),
        error => Err(error),
    }
}

/// Writes one attribute; returns the call's error.
pub fn set(event: u64, which: u64, value: u64) -> i64 {
    let value = AtomicU64::new(value);
    write(event, which, 1, value.as_ptr().expose_provenance() as u64)
}
