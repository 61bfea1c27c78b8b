//! The world switch: into the guest, and the trap vectors that come back.
//!
//! One [`Context`] per vCPU holds what every exit saves: the integer registers and the trap's
//! registers. Everything else of a vCPU (its S-level CSRs, floating point) stays in the hart between
//! exits and is swapped when the hart changes vCPUs.
//!
//! Protocol: while a guest runs, `mtvec` (payload seat: `stvec`) points to a guest vector and
//! `mscratch` (`sscratch`) holds the context's address. While Gnomon runs, the trap vector is the
//! host's, so that a trap of Gnomon's own is told apart; what is in the scratch register then means
//! nothing. Gnomon is an event loop: each exit starts on the hart's empty stack, and the handler
//! ends with the context to enter ([`resume`]). So no register of Gnomon's survives a guest's run, and none need be saved.
//!
//! Some exits may be *brief* ([`::lane::BriefCauses`]): their handler is an ordinary call, which preserves half of the guest's
//! registers. If that says that this one is not, the exit goes on as all do, or as one of which something is known.
//!
//! There are three guest vectors: from VS mode to M mode, from VS mode to HS mode, and, on harts
//! without the H extension, from S mode to M mode.

use crate::lane::front;
use ::lane::{BriefExits, Context, Lane};
use core::arch::{global_asm, naked_asm};
use core::mem::offset_of;

/// Saves those of the guest's integer registers that a call preserves to the context in a0.
macro_rules! save_saved {
    () => {
        concat!(
            "sd x8, {x1} + 56(a0)\n sd x9, {x1} + 64(a0)\n sd x18, {x1} + 136(a0)\n sd x19, {x1} + 144(a0)\n",
            "sd x20, {x1} + 152(a0)\n sd x21, {x1} + 160(a0)\n sd x22, {x1} + 168(a0)\n sd x23, {x1} + 176(a0)\n",
            "sd x24, {x1} + 184(a0)\n sd x25, {x1} + 192(a0)\n sd x26, {x1} + 200(a0)\n sd x27, {x1} + 208(a0)\n",
        )
    };
}

/// Loads them.
macro_rules! load_saved {
    () => {
        concat!(
            "ld x8, {x1} + 56(a0)\n ld x9, {x1} + 64(a0)\n ld x18, {x1} + 136(a0)\n ld x19, {x1} + 144(a0)\n",
            "ld x20, {x1} + 152(a0)\n ld x21, {x1} + 160(a0)\n ld x22, {x1} + 168(a0)\n ld x23, {x1} + 176(a0)\n",
            "ld x24, {x1} + 184(a0)\n ld x25, {x1} + 192(a0)\n ld x26, {x1} + 200(a0)\n ld x27, {x1} + 208(a0)\n",
        )
    };
}

/// Calls a handler of brief exits with the context in a0, where that is again then. In a2 what it says.
macro_rules! ask {
    ($scratch:literal, $handler:literal) => {
        concat!("csrw ", $scratch, ", a0\n call ", $handler, "\n mv a2, a0\n csrr a0, ", $scratch, "\n")
    };
}

/// Loads the others, a0 itself last.
macro_rules! load_others {
    () => {
        concat!(
            "ld x1, {x1}(a0)\n ld x2, {x1} + 8(a0)\n ld x3, {x1} + 16(a0)\n ld x4, {x1} + 24(a0)\n",
            "ld x5, {x1} + 32(a0)\n ld x6, {x1} + 40(a0)\n ld x7, {x1} + 48(a0)\n ld x11, {x1} + 80(a0)\n",
            "ld x12, {x1} + 88(a0)\n ld x13, {x1} + 96(a0)\n ld x14, {x1} + 104(a0)\n ld x15, {x1} + 112(a0)\n",
            "ld x16, {x1} + 120(a0)\n ld x17, {x1} + 128(a0)\n ld x28, {x1} + 216(a0)\n ld x29, {x1} + 224(a0)\n",
            "ld x30, {x1} + 232(a0)\n ld x31, {x1} + 240(a0)\n ld x10, {x1} + 72(a0)\n",
        )
    };
}

/// A guest vector, and the resume path that installs it. `$tval2` and `$tinst` bring these values to
/// the registers that are named.
macro_rules! guest_vector {
    ($entry:literal, $resume:literal, host: $host:literal, $tvec:literal, $scratch:literal, $epc:literal,
     $cause:literal, $tval:literal, $tval2:literal, $tinst:literal, in: $of_tval2:literal, $of_tinst:literal, $xret:literal,
     full: $full:literal, roots: $roots:literal, reads: $reads:literal, fence: $fence_cause:literal, mode: $status:literal, $mode_to_top:literal) => {
        global_asm!(
            ".section .text.world, \"ax\"",
            ".balign 4",
            concat!($entry, ":"),
            concat!("csrrw a0, ", $scratch, ", a0"),
            front!($full, $roots, $reads, $cause, $tval, $fence_cause, $status, $mode_to_top),
            "sd x1, {x1}(a0)", "sd x2, {x1} + 8(a0)", "sd x3, {x1} + 16(a0)", "sd x4, {x1} + 24(a0)",
            "sd x5, {x1} + 32(a0)", "sd x6, {x1} + 40(a0)", "sd x7, {x1} + 48(a0)", "sd x11, {x1} + 80(a0)",
            "sd x12, {x1} + 88(a0)", "sd x13, {x1} + 96(a0)", "sd x14, {x1} + 104(a0)", "sd x15, {x1} + 112(a0)",
            "sd x16, {x1} + 120(a0)", "sd x17, {x1} + 128(a0)", "sd x28, {x1} + 216(a0)",
            // From here on a trap is Gnomon's own, and finds Gnomon's stack.
            "ld sp, {sp}(a0)",
            concat!("la t0, ", $host), concat!("csrw ", $tvec, ", t0"),
            "ld tp, {tp}(a0)",
            concat!("csrr t0, ", $scratch), "sd t0, {x1} + 72(a0)",
            concat!("csrr t0, ", $epc), "sd t0, {pc}(a0)",
            concat!("csrr t1, ", $cause), "sd t1, {cause}(a0)",
            concat!("csrr t2, ", $tval), "sd t2, {cause} + 8(a0)",
            $tval2, concat!("sd ", $of_tval2, ", {cause} + 16(a0)"),
            $tinst, concat!("sd ", $of_tinst, ", {cause} + 24(a0)"),
            "ld t0, {brief}(a0)",
            "beq t0, t1, 2f",
            "0: ld t0, {brief_causes}(a0)",
            "sll t0, t0, t1",
            "bltz t0, 4f",
            "1:",
            save_saved!(),
            // In a1 where to go on.
            concat!("7: la a1, ", $resume),
            "tail gnomon_exit",
            // It may send a byte, if it is by an access to the right place.
            "2: ld t0, {brief_mask}(a0)",
            "and t2, t2, t0",
            concat!("or t2, t2, ", $of_tval2),
            "ld t0, {brief_place}(a0)",
            "bne t2, t0, 0b",
            // The byte is in one of the guest's registers.
            save_saved!(),
            ask!($scratch, "gnomon_byte"),
            "beqz a2, 7b",
            "li t0, 1",
            "beq a2, t0, 3f",
            concat!("la a1, ", $resume),
            "tail gnomon_known",
            // It may be brief, unless it is an interrupt: what a call preserves is there when the guest goes on.
            "4: bltz t1, 1b",
            concat!("addi t0, t1, -", $fence_cause),
            "beqz t0, 5f",
            "mv a1, t1",
            ask!($scratch, "gnomon_brief"),
            "beqz a2, 1b",
            "li t0, 1",
            "beq a2, t0, 3f",
            save_saved!(),
            concat!("la a1, ", $resume),
            "tail gnomon_known",
            // An instruction names registers.
            "5:",
            save_saved!(),
            ask!($scratch, "gnomon_instruction"),
            "beqz a2, 7b",
            "j 3f",
            // a0: the context to enter.
            concat!($resume, ":"),
            concat!("csrw ", $scratch, ", a0"),
            load_saved!(),
            concat!("3: la t0, ", $entry), concat!("csrw ", $tvec, ", t0"),
            "ld t0, {pc}(a0)", concat!("csrw ", $epc, ", t0"),
            load_others!(),
            $xret,
            x1 = const offset_of!(Context, x) + 8,
            pc = const offset_of!(Context, pc),
            cause = const offset_of!(Context, exit),
            brief_causes = const offset_of!(Context, brief_causes),
            brief = const offset_of!(Context, brief) + BriefExits::CAUSE_AT,
            brief_mask = const offset_of!(Context, brief) + BriefExits::MASK_AT,
            brief_place = const offset_of!(Context, brief) + BriefExits::PLACE_AT,
            sp = const offset_of!(Context, host_sp),
            tp = const offset_of!(Context, host_tp),
            t4 = const offset_of!(Context, x) + 8 * 29,
            t5 = const offset_of!(Context, x) + 8 * 30,
            t6 = const offset_of!(Context, x) + 8 * 31,
            mask = const offset_of!(Context, lane) + Lane::MASK_AT,
            matches = const offset_of!(Context, lane) + Lane::MATCHES_AT,
            table = const offset_of!(Context, lane) + Lane::TABLE_AT,
            write_mask = const offset_of!(Context, lane) + Lane::WRITE_MASK_AT,
            read_mask = const offset_of!(Context, lane) + Lane::READ_MASK_AT,
            read_matches = const offset_of!(Context, lane) + Lane::READ_MATCHES_AT,
            posting = const offset_of!(Context, lane) + Lane::POSTING_AT,
            write_matches = const offset_of!(Context, lane) + Lane::WRITE_MATCHES_AT,
        );
    };
}

guest_vector!(
    "gnomon_vs_to_m",
    "gnomon_m_to_vs",
    host: "gnomon_host_m",
    "mtvec",
    "mscratch",
    "mepc",
    "mcause",
    "mtval",
    "csrr t3, mtval2",
    "csrr t0, mtinst",
    in: "t3",
    "t0",
    "mret",
    full: "gnomon_full_vs_to_m",
    roots: "lane_roots_vs_m",
    reads: "lane_reads_vs_m",
    fence: "22",
    mode: "mstatus",
    "52"
);
guest_vector!(
    "gnomon_vs_to_hs",
    "gnomon_hs_to_vs",
    host: "gnomon_host_s",
    "stvec",
    "sscratch",
    "sepc",
    "scause",
    "stval",
    "csrr t3, htval",
    "csrr t0, htinst",
    in: "t3",
    "t0",
    "sret",
    full: "gnomon_full_vs_to_hs",
    roots: "lane_roots_vs_hs",
    reads: "lane_reads_vs_hs",
    fence: "22",
    mode: "sstatus",
    "55"
);
guest_vector!(
    "gnomon_s_to_m",
    "gnomon_m_to_s",
    host: "gnomon_host_m",
    "mtvec",
    "mscratch",
    "mepc",
    "mcause",
    "mtval",
    "",
    "",
    in: "zero",
    "zero",
    "mret",
    full: "gnomon_full_s_to_m",
    roots: "lane_roots_s_m",
    reads: "lane_reads_s_m",
    fence: "2",
    mode: "mstatus",
    "52"
);

/// The vector while Gnomon runs: whatever arrives is a bug. The stack may be the reason, having come to its end: there is
/// another one, for the first hart that gets here. Others, and a second trap of the same, stay.
macro_rules! host_vector {
    ($entry:literal, $epc:literal, $cause:literal, $tval:literal) => {
        global_asm!(
            ".section .text.world, \"ax\"",
            ".balign 4",
            concat!($entry, ":"),
            concat!("csrr a0, ", $cause),
            concat!("csrr a1, ", $epc),
            concat!("csrr a2, ", $tval),
            "la t0, gnomon_is_failing",
            "li t1, 1",
            ".option push",
            ".option arch, +a",
            "amoswap.w.aqrl t1, t1, (t0)",
            ".option pop",
            "bnez t1, 1f",
            "la sp, gnomon_last_stack_end",
            "call gnomon_host_trap",
            "1: wfi",
            "j 1b",
        );
    };
}

global_asm!(
    ".section .bss.world, \"aw\", @nobits",
    ".balign 16",
    "gnomon_last_stack: .zero {bytes}",
    "gnomon_last_stack_end:",
    "gnomon_is_failing: .zero 4",
    bytes = const LAST_STACK_BYTES,
);

/// Enough to print a message.
const LAST_STACK_BYTES: usize = 16 << 10;

host_vector!("gnomon_host_m", "mepc", "mcause", "mtval");
host_vector!("gnomon_host_s", "sepc", "scause", "stval");

// The first entry from M mode into VS mode: by `sret`, which takes the virtualization mode from
// `hstatus.SPV`. `mret` takes it from `mstatus.MPV`, which software cannot set on some machines (QEMU
// 10.0.13); a trap out of a guest sets it, so all later entries are by `mret`.
global_asm!(
    ".section .text.world, \"ax\"",
    ".balign 4",
    "gnomon_m_to_vs_first:",
    "la t0, gnomon_vs_to_m",
    "csrw mtvec, t0",
    "csrw mscratch, a0",
    "ld t0, {pc}(a0)",
    "csrw sepc, t0",
    load_saved!(),
    load_others!(),
    "sret",
    x1 = const offset_of!(Context, x) + 8,
    pc = const offset_of!(Context, pc),
);

unsafe extern "C" {
    fn gnomon_host_m();
    fn gnomon_host_s();
    fn gnomon_m_to_vs_first(context: *mut Context) -> !;
    fn gnomon_hs_to_vs(context: *mut Context) -> !;
    fn gnomon_m_to_s(context: *mut Context) -> !;
}

/// The address of M mode's trap vector while Gnomon runs, in direct mode.
#[must_use]
pub fn machine_vector() -> u64 {
    gnomon_host_m as *const () as u64
}

/// The address of HS mode's trap vector while Gnomon runs, in direct mode.
#[must_use]
pub fn supervisor_vector() -> u64 {
    gnomon_host_s as *const () as u64
}

/// From M mode, enters a guest in VS or VU mode for the first time on this hart; later entries are
/// the ends of `gnomon_exit`. Comes back as that, on the context's stack.
///
/// # Safety
/// Firmware seat only, on a hart with the H extension. `context` is exclusively this hart's until the
/// next exit; its stack and tp are this hart's; `hstatus.SPV` is set, `mstatus.SPP` says the guest's
/// privilege, and the VS CSRs and the translation are that vCPU's.
pub unsafe fn enter_virtual_from_machine(context: *mut Context) -> ! {
    // SAFETY: by the caller's promise.
    unsafe { gnomon_m_to_vs_first(context) }
}

/// Enters VS or VU mode from HS mode; see [`enter_virtual_from_machine`].
///
/// # Safety
/// Payload seat only; with `sstatus.SPP`.
pub unsafe fn enter_virtual_from_supervisor(context: *mut Context) -> ! {
    // SAFETY: by the caller's promise.
    unsafe { gnomon_hs_to_vs(context) }
}

/// Enters S or U mode from M mode, on a hart without the H extension; see [`enter_virtual_from_machine`].
///
/// # Safety
/// Firmware seat only. `mstatus.MPP` says the guest's privilege and is not M; `mstatus.TVM` is set; the
/// S-level CSRs are that vCPU's, and `satp` a table of Gnomon's that is meant for it.
pub unsafe fn enter_supervisor(context: *mut Context) -> ! {
    // SAFETY: by the caller's promise.
    unsafe { gnomon_m_to_s(context) }
}

/// Goes on in a guest: the end of an exit.
///
/// # Safety
/// `resume` is what `gnomon_exit` was given, and `context` is exclusively this hart's until the next exit; all else is
/// as for [`enter_virtual_from_machine`].
pub unsafe fn resume(context: *mut Context, resume: usize) -> ! {
    // SAFETY: by the caller's promise.
    unsafe { core::arch::asm!("jr {}", in(reg) resume, in("a0") context, options(noreturn)) }
}

/// Starts over on an empty stack: calls `then(argument)` with nothing above it.
///
/// # Safety
/// Nothing on the present stack is used again; `sp` is the 16-aligned end of the hart's stack.
#[unsafe(naked)]
pub unsafe extern "C" fn on_empty_stack(argument: usize, sp: u64, then: extern "C" fn(usize) -> !) -> ! {
    naked_asm!("mv sp, a1", "jr a2")
}

/// The value of `tp`: the hart's own block, as [`set_thread_pointer`] left it.
#[must_use]
#[inline(always)]
pub fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: reading a register.
    unsafe { core::arch::asm!("mv {}, tp", out(reg) tp, options(nomem, nostack, preserves_flags)) };
    tp
}

/// Sets `tp`.
///
/// # Safety
/// Only at a hart's start: everything later relies on it.
pub unsafe fn set_thread_pointer(tp: usize) {
    // SAFETY: compiled code never touches tp on this target (no thread-local storage).
    unsafe { core::arch::asm!("mv tp, {}", in(reg) tp, options(nomem, nostack)) };
}
