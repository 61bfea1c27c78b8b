//! The lane: the guest's fences by address, done at the front of the trap vector without leaving for Rust.
//!
//! The design, what the lane may touch, and why that is sound are in `docs/lane.md`; its inputs are
//! [`rv::Lane`]. This file has its two halves: what stands at the front of a guest vector
//! ([`front`](crate::lane)), and for each way out of a guest and each format a block of code, which the front
//! jumps into by the fence's rs1. A block begins with two jump tables:
//!
//! - 32 entries of 32 bytes, one for each rs1: brings the address to t5, and goes on by rs2;
//! - 32 entries of 16 bytes, one for each rs2: goes on if the register holds the running ASID.
//!
//! Registers: a0 is the context; t4, t5 and t6 are saved in it. t4: the instruction, then the table walked;
//! t5: the address; t6: scratch. Whatever is not as expected goes to the full path, which finds these three
//! saved and a0 as they are. On harts with Zba, counted from the trap to the return, and both included, a fence
//! that names an ASID takes 60 instructions under Sv39 and 7 more for each level more (one more where rs2 is
//! a0, t4, t5 or t6); one that names none takes 59. Without Zba each level takes one more.

use core::arch::global_asm;
use core::mem::offset_of;
use rv::context::token;
use rv::{Context, Format, Lane};

/// What stands at the front of a guest vector, after the exchange of a0 and the scratch register, up to the
/// jump. Without a match it goes on with t4 to t6 saved, at label 2.
macro_rules! front {
    ($full:literal, $cause:literal, $tval:literal, $fence_cause:literal, $status:literal, $mode_to_top:literal) => {
        concat!(
            "sd t4, {t4}(a0)\n",
            concat!("csrr t4, ", $cause, "\n"),
            concat!("addi t4, t4, -", $fence_cause, "\n"),
            "bnez t4, 1f\n",
            "sd t5, {t5}(a0)\n sd t6, {t6}(a0)\n",
            concat!("csrr t5, ", $status, "\n slli t5, t5, ", $mode_to_top, "\n bgez t5, ", $full, "\n"),
            concat!("csrr t4, ", $tval, "\n"),
            "ld t5, {mask}(a0)\n ld t6, {matches}(a0)\n and t5, t5, t4\n",
            concat!("bne t5, t6, ", $full, "\n"),
            "srli t5, t4, 10\n andi t5, t5, 0x3e0\n ld t6, {table}(a0)\n add t5, t5, t6\n jr t5\n",
            "1: sd t5, {t5}(a0)\n sd t6, {t6}(a0)\n",
            concat!($full, ":"),
        )
    };
}
pub(crate) use front;

global_asm!(
    ".section .text.world, \"ax\"",
    ".option push",
    ".option norvc",
    ".option arch, +zba",
    // Adds the offset of the entry that the address selects, by the bits that `shift` brings to the top.
    ".macro lane_index shift, zba",
    "slli t6, t5, \\shift",
    ".if \\zba",
    "srli t6, t6, 55",
    "sh3add t4, t6, t4",
    ".else",
    "srli t6, t6, 52",
    "andi t6, t6, -8",
    "add t4, t4, t6",
    ".endif",
    ".endm",
    // From a table to the next: only by a pointer with the mark. The entry shifted left by 2 is the next
    // table's address plus the displacement that its V and mark make, which the next load takes off.
    ".macro lane_pointer shift, tag, zba",
    "lane_index \\shift, \\zba",
    "ld t4, -{flags}(t4)",
    "andi t6, t4, 0x100",
    "beqz t6, lane_bail_\\tag",
    "slli t4, t4, 2",
    ".endm",
    ".macro lane_walk levels, tag, zba",
    "ld t4, {root}(a0)",
    ".if \\levels == 5",
    "lane_pointer 7, \\tag, \\zba",
    ".endif",
    ".if \\levels >= 4",
    "lane_pointer 16, \\tag, \\zba",
    ".endif",
    "lane_pointer 25, \\tag, \\zba",
    "lane_pointer 34, \\tag, \\zba",
    "lane_index 43, \\zba",
    ".endm",
    // The address's translations leave this hart's TLB; the guest goes on after its fence.
    ".macro lane_leave is_virtual, scratch, epc, xret",
    ".if \\is_virtual",
    ".insn r 0x73, 0, 0x11, x0, t5, x0", // hfence.vvma t5, x0
    ".else",
    "sfence.vma t5, x0",
    ".endif",
    "csrr t4, \\epc",
    "addi t4, t4, 4",
    "csrw \\epc, t4",
    "ld t4, {t4}(a0)",
    "ld t5, {t5}(a0)",
    "ld t6, {t6}(a0)",
    "csrrw a0, \\scratch, a0",
    "\\xret",
    ".endm",
    // The guest's register n comes to `to`.
    ".macro lane_fetch to, n, scratch",
    ".if \\n == 10",
    "csrr \\to, \\scratch",
    ".elseif \\n == 29",
    "ld \\to, {t4}(a0)",
    ".elseif \\n == 30",
    "ld \\to, {t5}(a0)",
    ".elseif \\n == 31",
    "ld \\to, {t6}(a0)",
    ".else",
    "mv \\to, x\\n",
    ".endif",
    ".endm",
    ".macro lane_block tag, full, levels, is_virtual, scratch, epc, xret, zba",
    ".balign 32",
    "lane_table_\\tag:",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    ".balign 32",
    ".if \\n == 0",
    "j \\full", // a fence of all addresses
    ".else",
    "lane_fetch t5, \\n, \\scratch",
    "srli t4, t4, 16",
    "andi t4, t4, 0x1f0",
    "beqz t4, lane_all_\\tag",
    "add t4, t4, t6",
    "ld t6, {asid}(a0)",
    "jr 1024(t4)",
    ".endif",
    ".endr",
    ".balign 32",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    ".balign 16",
    ".if (\\n == 10) || (\\n >= 29)",
    "lane_fetch t4, \\n, \\scratch",
    "beq t4, t6, lane_own_\\tag",
    ".elseif \\n != 0",
    "beq x\\n, t6, lane_own_\\tag",
    ".endif",
    "j \\full",
    ".endr",
    // A fence of the running ASID.
    "lane_own_\\tag:",
    "lane_walk \\levels, \\tag, \\zba",
    "ld t6, {token}(a0)",
    "addi t6, t6, {step}",
    "sd t6, {token}(a0)",
    "fence rw, w", // whoever sees the entry gone sees what the guest wrote before its fence
    "sd t6, -{flags}(t4)",
    "lane_leave \\is_virtual, \\scratch, \\epc, \\xret",
    // A fence of all ASIDs: the same, and the log remembers it for other roots.
    "lane_all_\\tag:",
    "lane_walk \\levels, \\tag, \\zba",
    "ld t6, {head}(a0)",
    "addi t6, t6, {step}",
    "fence rw, w",
    "sd t6, -{flags}(t4)",
    "sd t6, {head}(a0)",
    "andi t4, t6, {ring_mask}",
    "add t4, t4, a0",
    "sd t5, {ring}(t4)",
    "lane_leave \\is_virtual, \\scratch, \\epc, \\xret",
    "lane_bail_\\tag:",
    "j \\full",
    ".endm",
    ".irp zba,0,1",
    "lane_block vs_m_39_\\zba, gnomon_full_vs_to_m, 3, 1, mscratch, mepc, mret, \\zba",
    "lane_block vs_m_48_\\zba, gnomon_full_vs_to_m, 4, 1, mscratch, mepc, mret, \\zba",
    "lane_block vs_m_57_\\zba, gnomon_full_vs_to_m, 5, 1, mscratch, mepc, mret, \\zba",
    "lane_block vs_hs_39_\\zba, gnomon_full_vs_to_hs, 3, 1, sscratch, sepc, sret, \\zba",
    "lane_block vs_hs_48_\\zba, gnomon_full_vs_to_hs, 4, 1, sscratch, sepc, sret, \\zba",
    "lane_block vs_hs_57_\\zba, gnomon_full_vs_to_hs, 5, 1, sscratch, sepc, sret, \\zba",
    "lane_block s_m_39_\\zba, gnomon_full_s_to_m, 3, 0, mscratch, mepc, mret, \\zba",
    "lane_block s_m_48_\\zba, gnomon_full_s_to_m, 4, 0, mscratch, mepc, mret, \\zba",
    "lane_block s_m_57_\\zba, gnomon_full_s_to_m, 5, 0, mscratch, mepc, mret, \\zba",
    ".endr",
    ".option pop",
    t4 = const offset_of!(Context, x) + 8 * 29,
    t5 = const offset_of!(Context, x) + 8 * 30,
    t6 = const offset_of!(Context, x) + 8 * 31,
    root = const offset_of!(Context, lane) + Lane::ROOT_AT,
    asid = const offset_of!(Context, lane) + Lane::ASID_AT,
    token = const offset_of!(Context, lane) + Lane::TOKEN_AT,
    head = const offset_of!(Context, lane) + Lane::LOG_HEAD_AT,
    ring = const offset_of!(Context, lane) + Lane::LOG_RING_AT,
    ring_mask = const Lane::LOG_RING_MASK,
    step = const token::STEP,
    flags = const Lane::POINTER_FLAGS,
);

unsafe extern "C" {
    fn lane_table_vs_m_39_0();
    fn lane_table_vs_m_39_1();
    fn lane_table_vs_m_48_0();
    fn lane_table_vs_m_48_1();
    fn lane_table_vs_m_57_0();
    fn lane_table_vs_m_57_1();
    fn lane_table_vs_hs_39_0();
    fn lane_table_vs_hs_39_1();
    fn lane_table_vs_hs_48_0();
    fn lane_table_vs_hs_48_1();
    fn lane_table_vs_hs_57_0();
    fn lane_table_vs_hs_57_1();
    fn lane_table_s_m_39_0();
    fn lane_table_s_m_39_1();
    fn lane_table_s_m_48_0();
    fn lane_table_s_m_48_1();
    fn lane_table_s_m_57_0();
    fn lane_table_s_m_57_1();
}

/// The way out of a guest, and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From VS mode to M mode.
    VirtualToMachine,
    /// From VS mode to HS mode.
    VirtualToSupervisor,
    /// From S mode to M mode.
    SupervisorToMachine,
}

/// The address of the jump table for shadow roots of `format`. `has_zba`: the harts have Zba, which saves an instruction
/// for each level.
///
/// # Panics
/// If it is not a format of `satp`.
#[must_use]
pub fn table(way: Way, format: &Format, has_zba: bool) -> u64 {
    type Tables = [[unsafe extern "C" fn(); 2]; 3];
    let tables: Tables = match way {
        Way::VirtualToMachine => [
            [lane_table_vs_m_39_0, lane_table_vs_m_39_1],
            [lane_table_vs_m_48_0, lane_table_vs_m_48_1],
            [lane_table_vs_m_57_0, lane_table_vs_m_57_1],
        ],
        Way::VirtualToSupervisor => [
            [lane_table_vs_hs_39_0, lane_table_vs_hs_39_1],
            [lane_table_vs_hs_48_0, lane_table_vs_hs_48_1],
            [lane_table_vs_hs_57_0, lane_table_vs_hs_57_1],
        ],
        Way::SupervisorToMachine => [
            [lane_table_s_m_39_0, lane_table_s_m_39_1],
            [lane_table_s_m_48_0, lane_table_s_m_48_1],
            [lane_table_s_m_57_0, lane_table_s_m_57_1],
        ],
    };
    tables[usize::from(format.levels) - 3][usize::from(has_zba)] as *const () as u64
}
