//! The hart itself.
#![expect(unsafe_code, reason = "this module is where instructions and pointers live")]

mod console;
mod entry;
mod float;
mod heap;
mod trap;
mod user;
mod vmspace;

pub use console::{put, read_input};
pub use entry::Boot;
pub use float::{FloatUse, clear_float, float_state, leave_float, set_float_state, take_float};
pub use trap::enter_user;
pub use user::{compare_exchange, copy, load_word};
pub use vmspace::{create_space, destroy_space, invalidate_space, run_space, switch_space, way_to_use};

use crate::memory::frames::PAGE;
use crate::task::Thread;
use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use metal::csr;
use sbi_spec::{hsm, rfnc, spi, srst, time};

/// The distance from a physical address to where the kernel has it mapped.
const DIRECT: usize = 0xffff_ffc0_0000_0000;

/// A hart, as its trap code and the scheduler know it. `tp` has its address while the hart is in the kernel.
#[repr(C)]
#[derive(Debug)]
pub struct Hart {
    /// The kernel's stack pointer while the hart is in a program.
    stack: u64,
    /// The context of the program that runs.
    context: u64,
    /// Registers that the trap code needs.
    scratch: [u64; 2],
    /// The number that firmware knows it by.
    id: u64,
    /// Its place among the harts in use, from 0.
    index: u64,
    /// The address of the thread that runs, from the begin of its turn until that of another one's.
    thread: u64,
}

/// Returns the place of this hart among those in use, from 0.
#[must_use]
pub fn hart_index() -> usize {
    let index: u64;
    // SAFETY: `tp` leads to this hart's `Hart` in the kernel, whose index never changes.
    unsafe { asm!("ld {}, 40(tp)", out(reg) index, options(nostack, readonly, preserves_flags)) };
    index as usize
}

/// Says which thread runs on this hart until another one does: it stays at least as long as it runs.
pub fn set_thread(thread: &Thread) {
    let address = (&raw const *thread).expose_provenance() as u64;
    // SAFETY: `tp` leads to this hart's `Hart` in the kernel, and no other hart uses it.
    unsafe {
        asm!("sd {}, {}(tp)", in(reg) address, const offset_of!(Hart, thread), options(nostack, preserves_flags))
    };
}

/// Firmware's numbers of harts, by their index.
static IDS: [AtomicU64; super::MAX_HARTS] = [const { AtomicU64::new(0) }; super::MAX_HARTS];

/// Returns where the kernel has a physical address mapped.
#[must_use]
pub fn direct(pa: u64) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(pa as usize + DIRECT)
}

/// Returns the physical address of something in the direct map.
#[must_use]
pub fn physical<T>(at: *const T) -> u64 {
    (at.expose_provenance() - DIRECT) as u64
}

/// Zeroes a page, by many words in each turn: the loops of `memset` take twice as many instructions.
///
/// # Safety
/// It is a whole page, which has no other user.
pub unsafe fn zero_page(at: *mut u8) {
    // SAFETY: stores to the page alone.
    unsafe {
        asm!(
            "2:",
            "sd zero, 0({at})", "sd zero, 8({at})", "sd zero, 16({at})", "sd zero, 24({at})",
            "sd zero, 32({at})", "sd zero, 40({at})", "sd zero, 48({at})", "sd zero, 56({at})",
            "sd zero, 64({at})", "sd zero, 72({at})", "sd zero, 80({at})", "sd zero, 88({at})",
            "sd zero, 96({at})", "sd zero, 104({at})", "sd zero, 112({at})", "sd zero, 120({at})",
            "addi {at}, {at}, 128",
            "bne {at}, {end}, 2b",
            at = inout(reg) at => _,
            end = in(reg) at.wrapping_add(PAGE),
            options(nostack),
        );
    }
}

/// Returns the ticks of `time`.
#[must_use]
pub fn ticks() -> u64 {
    csr::time::read()
}

/// Calls the firmware. The calls made here write no memory, unless the caller passes an address.
fn call(extension: usize, function: usize, args: [u64; 3]) -> (i64, u64) {
    // SAFETY: as said above; harts are started at `entry::secondary` alone.
    unsafe { metal::sbi::call(extension, function, args) }
}

/// Set if the harts have Sstc.
static HAS_SSTC: AtomicBool = AtomicBool::new(false);

/// Says whether the harts have Sstc.
pub fn use_timer(has_sstc: bool) {
    HAS_SSTC.store(has_sstc, Ordering::Relaxed);
}

/// Set if the harts have Zawrs.
static HAS_ZAWRS: AtomicBool = AtomicBool::new(false);

/// Says whether the harts have Zawrs.
pub fn use_wrs(has_zawrs: bool) {
    HAS_ZAWRS.store(has_zawrs, Ordering::Relaxed);
}

/// Waits a moment for another hart. Now and then it stalls in a way that a hypervisor with more harts than it has itself takes as an occasion to run
/// another one (Zawrs, "Wait-on-Reservation-Set Instructions").
pub fn relax() {
    const MOMENTS: u64 = 64;
    static SPINS: [AtomicU64; super::MAX_HARTS] = [const { AtomicU64::new(0) }; super::MAX_HARTS];
    core::hint::spin_loop();
    let spins = &SPINS[hart_index()];
    let count = spins.load(Ordering::Relaxed).wrapping_add(1);
    spins.store(count, Ordering::Relaxed);
    if count.is_multiple_of(MOMENTS) && HAS_ZAWRS.load(Ordering::Relaxed) {
        // SAFETY: wrs.nto, which changes nothing.
        unsafe { asm!(".insn i 0x73, 0, x0, x0, 0x0d", options(nostack)) };
    }
}

/// Makes the timer of this hart expire at that time; `u64::MAX` is never.
pub fn set_timer(at: u64) {
    if HAS_SSTC.load(Ordering::Relaxed) {
        // SAFETY: the timer alone.
        unsafe { csr::stimecmp::write(at) };
    } else {
        call(time::EID_TIME, time::SET_TIMER, [at, 0, 0]);
    }
}

/// Waits for an interrupt, and returns without handling it.
pub fn wait_for_interrupt() {
    // SAFETY: interrupts are off in the kernel, so the hart goes on behind the instruction.
    unsafe { asm!("wfi", options(nostack)) };
}

/// Returns whether the timer of this hart has expired.
#[must_use]
pub fn is_timer_due() -> bool {
    csr::sip::read() & 1 << 5 != 0
}

/// Returns whether a device interrupts this hart.
#[must_use]
pub fn is_external_pending() -> bool {
    csr::sip::read() & 1 << 9 != 0
}

/// Ends the interrupt that another hart has sent.
pub fn clear_ipi() {
    // SAFETY: the bit of software interrupts.
    unsafe { csr::sip::clear(1 << 1) };
}

/// Interrupts other harts: a bit for each index.
pub fn interrupt_harts(harts: u64) {
    each_id(harts, |id| {
        call(spi::EID_SPI, spi::SEND_IPI, [1, id, 0]);
    });
}

fn each_id(mut harts: u64, mut then: impl FnMut(u64)) {
    while harts != 0 {
        then(IDS[harts.trailing_zeros() as usize].load(Ordering::Relaxed));
        harts &= harts - 1;
    }
}

/// Forgets translations on this hart: of one address space or of all, of one page or of all. Both of all is [`fence_all`].
pub fn fence(asid: Option<u16>, page: Option<u64>) {
    // SAFETY: fences have no other effect.
    unsafe {
        match (page, asid.map(u64::from)) {
            (Some(at), Some(asid)) => asm!("sfence.vma {}, {}", in(reg) at, in(reg) asid, options(nostack)),
            (Some(at), None) => asm!("sfence.vma {}, x0", in(reg) at, options(nostack)),
            (None, Some(asid)) => asm!("sfence.vma x0, {}", in(reg) asid, options(nostack)),
            (None, None) => asm!("sfence.vma", options(nostack)),
        }
    }
}

/// Forgets all translations on this hart.
pub fn fence_all() {
    metal::fence::sfence_all();
}

/// Forgets translations of an address space on other harts: a bit for each index.
pub fn fence_harts(harts: u64, asid: u16, start: u64, bytes: u64) {
    each_id(harts, |id| {
        // SAFETY: the call writes no memory. It has five arguments.
        unsafe {
            asm!("ecall", inlateout("a0") 1u64 => _, inlateout("a1") id => _, in("a2") start, in("a3") bytes,
                in("a4") u64::from(asid), in("a6") rfnc::REMOTE_SFENCE_VMA_ASID, in("a7") rfnc::EID_RFNC, options(nostack));
        }
    });
}

/// Makes all harts fetch what was stored as code.
pub fn fence_code(harts: u64) {
    metal::fence::instruction();
    each_id(harts, |id| {
        call(rfnc::EID_RFNC, rfnc::REMOTE_FENCE_I, [1, id, 0]);
    });
}

/// Makes the hart translate by this table from now on.
///
/// # Safety
/// The table maps the kernel as all of the kernel's tables do, and stays while the hart uses it.
pub unsafe fn set_space(root: u64, asid: u16) {
    // SAFETY: by the caller's promise.
    unsafe { csr::satp::write(8 << 60 | u64::from(asid) << 44 | root >> 12) };
}

/// Returns the mask of ASIDs that the hart has, by writing one. It translates as before afterwards.
#[must_use]
pub fn asid_mask() -> u16 {
    let before = csr::satp::read();
    // SAFETY: the root stays, and the new ASID has no translations of its own.
    unsafe {
        csr::satp::write(before | 0xffff << 44);
        let mask = (csr::satp::read() >> 44) as u16;
        csr::satp::write(before);
        mask
    }
}

/// Returns the physical address of the kernel's own table.
#[must_use]
pub fn kernel_root() -> u64 {
    physical(&raw const entry::KERNEL_ROOT)
}

/// Starts another hart, which calls the kernel's `main` for further harts with its index.
///
/// # Errors
/// Firmware's.
pub fn start_hart(id: u64, index: usize) -> Result<(), i64> {
    IDS[index].store(id, Ordering::Relaxed);
    let hart = entry::prepare(id, index);
    match call(hsm::EID_HSM, hsm::HART_START, [id, entry::secondary_address(), hart]) {
        (0, _) => Ok(()),
        (error, _) => Err(error),
    }
}

/// Ends the VM, in order or by a failure.
pub fn power_off(is_failure: bool) -> ! {
    call(srst::EID_SRST, srst::SYSTEM_RESET, [u64::from(srst::RESET_TYPE_SHUTDOWN), u64::from(is_failure), 0]);
    loop {
        wait_for_interrupt();
    }
}

/// Starts the VM anew.
pub fn reboot() -> ! {
    call(srst::EID_SRST, srst::SYSTEM_RESET, [u64::from(srst::RESET_TYPE_COLD_REBOOT), 0, 0]);
    loop {
        wait_for_interrupt();
    }
}
