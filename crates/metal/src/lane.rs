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
//!
//! Where the instruction is a write of `satp` instead, a block for each way out of a guest changes to a root that the vCPU knows: 68
//! instructions. Where it is a read, another one tells what the guest has written.
//!
//! There are blocks for fences of two kinds. One leaves a token in the entry. The other brings the entry in step with the guest's
//! ([`Deed::Sync`]), and takes 90 instructions for a leaf by one word for its 2 MiB. It has t1 to t3, too: t1 is where the log goes
//! on, t3 the guest's entry, t2 scratch. What it finds saved is for the full path to save again.

use core::arch::global_asm;
use core::mem::offset_of;
use rv::context::token;
use rv::{BriefExits, Context, FenceLog, Format, Gva, Lane, LaneRoot, LaneRoots, LaneSync};

/// What stands at the front of a guest vector, after the exchange of a0 and the scratch register, up to the
/// jump. Without a match it goes on with t4 to t6 saved, at label 2.
macro_rules! front {
    ($full:literal, $roots:literal, $reads:literal, $cause:literal, $tval:literal, $fence_cause:literal, $status:literal,
     $mode_to_top:literal) => {
        concat!(
            "sd t4, {t4}(a0)\n",
            concat!("csrr t4, ", $cause, "\n"),
            concat!("addi t4, t4, -", $fence_cause, "\n"),
            "bnez t4, 1f\n",
            "sd t5, {t5}(a0)\n sd t6, {t6}(a0)\n",
            concat!("csrr t5, ", $status, "\n slli t5, t5, ", $mode_to_top, "\n bgez t5, ", $full, "\n"),
            concat!("csrr t4, ", $tval, "\n"),
            "ld t5, {mask}(a0)\n ld t6, {matches}(a0)\n and t5, t5, t4\n",
            "bne t5, t6, 3f\n",
            "srli t5, t4, 10\n andi t5, t5, 0x3e0\n ld t6, {table}(a0)\n add t5, t5, t6\n jr t5\n",
            // It may be a write of `satp`.
            "3: ld t5, {write_mask}(a0)\n ld t6, {write_matches}(a0)\n and t5, t5, t4\n",
            "bne t5, t6, 4f\n",
            concat!("srli t5, t4, 12\n andi t5, t5, 0xf8\n la t6, ", $roots, "\n add t5, t5, t6\n jr t5\n"),
            // Or a read.
            "4: ld t5, {read_mask}(a0)\n ld t6, {read_matches}(a0)\n and t5, t5, t4\n",
            concat!("bne t5, t6, ", $full, "\n"),
            concat!("srli t5, t4, 4\n andi t5, t5, 0xf8\n la t6, ", $reads, "\n add t5, t5, t6\n"),
            "ld t6, {posting}(a0)\n ld t6, 0(t6)\n jr t5\n",
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
    ".option arch, +zba, +a",
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
    // Down to the last table.
    ".macro lane_descend levels, tag, zba",
    "ld t4, {root}(a0)",
    ".if \\levels == 5",
    "lane_pointer 7, \\tag, \\zba",
    ".endif",
    ".if \\levels >= 4",
    "lane_pointer 16, \\tag, \\zba",
    ".endif",
    "lane_pointer 25, \\tag, \\zba",
    "lane_pointer 34, \\tag, \\zba",
    ".endm",
    ".macro lane_walk levels, tag, zba",
    "lane_descend \\levels, \\tag, \\zba",
    "lane_index 43, \\zba",
    ".endm",
    // The address's translations leave this hart's TLB; the guest goes on after its fence. `saved`: t1 to t3 are, too.
    ".macro lane_leave is_virtual, scratch, epc, xret, saved=0",
    ".if \\is_virtual",
    ".insn r 0x73, 0, 0x11, x0, t5, x0", // hfence.vvma t5, x0
    ".else",
    "sfence.vma t5, x0",
    ".endif",
    "lane_resume \\scratch, \\epc, \\xret, \\saved",
    ".endm",
    ".macro lane_resume scratch, epc, xret, saved=0",
    "csrr t4, \\epc",
    "addi t4, t4, 4",
    "csrw \\epc, t4",
    ".if \\saved",
    "ld t1, {t1}(a0)",
    "ld t2, {t2}(a0)",
    "ld t3, {t3}(a0)",
    ".endif",
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
    // Brings the entry of the address in step with the guest's: t4 has its address (plus the displacement) then. It holds the gate from
    // the first instruction on to `lane_open`, with t1 where the log goes on.
    ".macro lane_sync path, levels, tag, zba",
    "sd t1, {t1}(a0)",
    "sd t2, {t2}(a0)",
    "sd t3, {t3}(a0)",
    "ld t1, {gate}(a0)",
    "amoswap.d.aqrl t1, x0, (t1)", // what the guest stored, or had seen, before its fence comes first
    "beqz t1, lane_busy_\\tag",
    "lane_descend \\levels, \\tag, \\zba",
    "ld t3, {guest}-{flags}(t4)", // the guest's table
    "lane_index 43, \\zba",
    ".if \\zba",
    "sh3add t3, t6, t3",
    ".else",
    "add t3, t3, t6",
    ".endif",
    "ld t3, 0(t3)", // the guest's entry
    "slli t2, t1, 52",
    "beqz t2, lane_return_\\tag", // the log is full
    "sd t4, 0(t1)",
    "sd t3, 8(t1)",
    "andi t6, t3, 0x3ff",
    "ld t2, {leaves}(a0)",
    ".if \\zba",
    "sh3add t6, t6, t2",
    ".else",
    "slli t6, t6, 3",
    "add t6, t6, t2",
    ".endif",
    "ld t6, 0(t6)",
    "beqz t6, lane_write_\\path\\()_\\tag", // it faults whatever the access
    "add t6, t6, t3",
    "srli t3, t3, 19",
    "ld t2, {count}(a0)",
    "bgeu t3, t2, lane_return_\\tag", // no RAM
    "ld t2, {chunks}(a0)",
    ".if \\zba",
    "sh3add t3, t3, t2",
    ".else",
    "slli t3, t3, 3",
    "add t3, t3, t2",
    ".endif",
    "ld t2, 0(t3)",
    "bgez t2, lane_pages_\\path\\()_\\tag",
    "add t6, t6, t2",
    "lane_write_\\path\\()_\\tag:",
    "sd t6, -{flags}(t4)",
    ".endm",
    // A table of 4 KiB leaves stands for the 2 MiB: t2 is its address, or 0. Its leaf is to allow everything.
    ".macro lane_sync_page path, tag",
    "lane_pages_\\path\\()_\\tag:",
    "beqz t2, lane_return_\\tag",
    "andi t6, t6, 0x3ff", // the flags
    "ld t3, 8(t1)",
    "srli t3, t3, 10",
    "andi t3, t3, 0x1ff",
    "slli t3, t3, 3",
    "add t2, t2, t3",
    "ld t2, 0(t2)",
    "andi t3, t2, 0xf",
    "addi t3, t3, -0xf",
    "bnez t3, lane_return_\\tag",
    "srli t2, t2, 10",
    "slli t2, t2, 10",
    "add t6, t6, t2",
    "j lane_write_\\path\\()_\\tag",
    ".endm",
    // The log has a line more, and the gate is open.
    ".macro lane_open",
    "ld t2, {gate}(a0)",
    "addi t1, t1, {line}",
    "amoswap.d.rl x0, t1, (t2)",
    ".endm",
    ".macro lane_block tag, full, levels, is_virtual, scratch, epc, tval, xret, zba, syncs=0",
    ".balign 32",
    "lane_table_\\tag:",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    ".balign 32",
    ".if \\n == 0",
    ".if \\syncs",
    "j lane_wide_\\tag", // a fence of all addresses
    ".else",
    "j \\full",
    ".endif",
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
    ".if \\syncs",
    "lane_sync own, \\levels, \\tag, \\zba",
    "lane_open",
    "lane_synced_\\tag:",
    "sd x0, {brief}(a0)", // what was known by the address may be so no more
    "lane_leave \\is_virtual, \\scratch, \\epc, \\xret, 1",
    ".else",
    "lane_walk \\levels, \\tag, \\zba",
    "ld t6, {token}(a0)",
    "addi t6, t6, {step}",
    "sd t6, {token}(a0)",
    "fence rw, w", // whoever sees the entry gone sees what the guest wrote before its fence
    "sd t6, -{flags}(t4)",
    "lane_leave \\is_virtual, \\scratch, \\epc, \\xret",
    ".endif",
    // A fence of all ASIDs: the same, and the log of fences remembers it for other roots.
    "lane_all_\\tag:",
    ".if \\syncs",
    "lane_sync all, \\levels, \\tag, \\zba",
    "lane_open",
    "lane_log_\\tag:",
    "ld t6, {head}(a0)",
    "addi t6, t6, {step}",
    "sd t6, {head}(a0)",
    "andi t4, t6, {ring_mask}",
    "add t4, t4, a0",
    "sd t5, {ring}(t4)",
    "lane_leave \\is_virtual, \\scratch, \\epc, \\xret, 1",
    // No marked pointer. If it is poison (`mmu::table`), there is no entry, and only the log is to know of the fence.
    "lane_bail_\\tag:",
    "srli t6, t4, 53",
    "beqz t6, lane_return_\\tag",
    "slli t6, t1, 52",
    "beqz t6, lane_return_\\tag",
    "ori t6, t5, 1",
    "sd t6, 0(t1)",
    "lane_open",
    "csrr t4, \\tval",
    "srli t4, t4, 20",
    "andi t4, t4, 31",
    "beqz t4, lane_log_\\tag", // it names no ASID
    "j lane_synced_\\tag",
    "lane_return_\\tag:",
    "ld t2, {gate}(a0)",
    "amoswap.d.rl x0, t1, (t2)",
    "lane_busy_\\tag:",
    "ld t1, {t1}(a0)",
    "ld t2, {t2}(a0)",
    "ld t3, {t3}(a0)",
    "j \\full",
    "lane_sync_page own, \\tag",
    "lane_sync_page all, \\tag",
    // A fence of all addresses, and of all ASIDs: nothing is to be done in the tables if the root is at rest, but the log knows.
    "lane_wide_\\tag:",
    "srli t4, t4, 20",
    "andi t4, t4, 31",
    "bnez t4, \\full", // it names an ASID
    "ld t5, {root}(a0)",
    "ld t6, {gate}(a0)",
    "fence rw, r", // what the guest stored, or had seen, before its fence comes first
    "ld t5, {rest}-{flags}(t5)",
    "ld t4, {epoch}(t6)",
    "bne t4, t5, \\full", // some table may have been written
    "amoswap.d.aqrl t5, x0, (t6)",
    "beqz t5, \\full",
    "slli t4, t5, 52",
    "beqz t4, lane_full_\\tag",
    "sd x0, 0(t5)",
    "addi t5, t5, {line}",
    "amoswap.d.rl x0, t5, (t6)",
    "ld t6, {head}(a0)",
    "addi t6, t6, {everything}",
    "sd t6, {head}(a0)",
    "ld t6, {wide}(a0)",
    "addi t6, t6, 1",
    "sd t6, {wide}(a0)",
    "sd x0, {brief}(a0)",
    ".if \\is_virtual",
    ".insn r 0x73, 0, 0x11, x0, x0, x0", // hfence.vvma x0, x0
    ".else",
    "sfence.vma x0, x0",
    ".endif",
    "lane_resume \\scratch, \\epc, \\xret",
    "lane_full_\\tag:",
    "amoswap.d.rl x0, t5, (t6)",
    "j \\full",
    ".else",
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
    ".endif",
    ".endm",
    // A write of `satp`, and nothing else. It begins with a jump table: 32 entries of 8 bytes, one for each rs1. t5: what is written;
    // t4: its place in the table of roots; t3: the head of the log.
    ".macro lane_roots tag, full, is_virtual, scratch, epc, xret",
    ".balign 8",
    "lane_roots_\\tag:",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    ".balign 8",
    ".if \\n == 0",
    "j \\full", // paging goes off
    ".else",
    "lane_fetch t5, \\n, \\scratch",
    "j lane_write_\\tag",
    ".endif",
    ".endr",
    "lane_write_\\tag:",
    "slli t4, t5, 4",
    "srli t4, t4, 48", // the ASID
    "bnez t4, 1f",
    "mv t4, t5",
    "1: ld t6, {last_pair}(a0)",
    "and t4, t4, t6",
    "slli t4, t4, {pair_shift}",
    "ld t6, {roots}(a0)",
    "add t4, t4, t6",
    "ld t6, {key_of}(t4)",
    "beq t6, t5, 4f",
    "addi t4, t4, {root_bytes}",
    "ld t6, {key_of}(t4)",
    "bne t6, t5, \\full",
    "4: sd t3, {t3}(a0)",
    "ld t3, {head}(a0)",
    "ld t6, {head_of}(t4)",
    "bne t6, t3, 5f", // fences have passed over it
    "6: ld t6, {posting}(a0)",
    "amoswap.d.aq t5, t5, (t6)", // whoever posts a fence from now on goes by that
    "ld t3, {posted}(t6)",
    "bnez t3, 3f",
    "ld t3, {head}(a0)",
    "ld t6, {present}(a0)",
    "sd t3, {head_of}(t6)",
    "sd t4, {present}(a0)",
    "ld t6, {root_of}(t4)",
    "sd t6, {root}(a0)",
    "ld t6, {asid_of}(t4)",
    "sd t6, {asid}(a0)",
    "sd x0, {brief}(a0)", // it is the way of another address space
    "ld t6, {satp_of}(t4)",
    ".if \\is_virtual",
    "csrw vsatp, t6",
    ".else",
    "csrw satp, t6",
    ".endif",
    "ld t6, {changes}(a0)",
    "addi t6, t6, 1",
    "sd t6, {changes}(a0)",
    "csrr t4, \\epc",
    "addi t4, t4, 4",
    "csrw \\epc, t4",
    "ld t3, {t3}(a0)",
    "ld t4, {t4}(a0)",
    "ld t5, {t5}(a0)",
    "ld t6, {t6}(a0)",
    "csrrw a0, \\scratch, a0",
    "\\xret",
    // They had nothing to do if it is at rest.
    "5: ld t3, {gate}(a0)",
    "beqz t3, 2f", // in `lazy` nothing says so
    "ld t6, {root_of}(t4)",
    "ld t6, {rest}-{flags}(t6)",
    "ld t3, {epoch}(t3)",
    "fence r, rw", // what the tables are comes after
    "beq t6, t3, 6b",
    "j 2f",
    // What is posted comes first; the present root is what it was.
    "3: sd t5, (t6)",
    "2: ld t3, {t3}(a0)",
    "j \\full",
    ".endm",
    // A read of `satp`. It begins with a jump table: 32 entries of 8 bytes, one for each rd. t6: what is read.
    ".macro lane_reads tag, scratch, epc, xret",
    ".balign 8",
    "lane_reads_\\tag:",
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    ".balign 8",
    ".if \\n == 10",
    "csrw \\scratch, t6",
    ".elseif \\n == 29",
    "sd t6, {t4}(a0)",
    ".elseif \\n == 30",
    "sd t6, {t5}(a0)",
    ".elseif \\n == 31",
    "sd t6, {t6}(a0)",
    ".elseif \\n != 0",
    "mv x\\n, t6",
    ".endif",
    "j 1f",
    ".endr",
    "1: ld t6, {reads}(a0)",
    "addi t6, t6, 1",
    "sd t6, {reads}(a0)",
    "lane_resume \\scratch, \\epc, \\xret",
    ".endm",
    "lane_reads vs_m, mscratch, mepc, mret",
    "lane_reads vs_hs, sscratch, sepc, sret",
    "lane_reads s_m, mscratch, mepc, mret",
    "lane_roots vs_m, gnomon_full_vs_to_m, 1, mscratch, mepc, mret",
    "lane_roots vs_hs, gnomon_full_vs_to_hs, 1, sscratch, sepc, sret",
    "lane_roots s_m, gnomon_full_s_to_m, 0, mscratch, mepc, mret",
    ".irp zba,0,1",
    "lane_block vs_m_39_\\zba, gnomon_full_vs_to_m, 3, 1, mscratch, mepc, mtval, mret, \\zba",
    "lane_block vs_m_48_\\zba, gnomon_full_vs_to_m, 4, 1, mscratch, mepc, mtval, mret, \\zba",
    "lane_block vs_m_57_\\zba, gnomon_full_vs_to_m, 5, 1, mscratch, mepc, mtval, mret, \\zba",
    "lane_block vs_hs_39_\\zba, gnomon_full_vs_to_hs, 3, 1, sscratch, sepc, stval, sret, \\zba",
    "lane_block vs_hs_48_\\zba, gnomon_full_vs_to_hs, 4, 1, sscratch, sepc, stval, sret, \\zba",
    "lane_block vs_hs_57_\\zba, gnomon_full_vs_to_hs, 5, 1, sscratch, sepc, stval, sret, \\zba",
    "lane_block s_m_39_\\zba, gnomon_full_s_to_m, 3, 0, mscratch, mepc, mtval, mret, \\zba",
    "lane_block s_m_48_\\zba, gnomon_full_s_to_m, 4, 0, mscratch, mepc, mtval, mret, \\zba",
    "lane_block s_m_57_\\zba, gnomon_full_s_to_m, 5, 0, mscratch, mepc, mtval, mret, \\zba",
    "lane_block vs_m_39_\\zba\\()_sync, gnomon_full_vs_to_m, 3, 1, mscratch, mepc, mtval, mret, \\zba, 1",
    "lane_block vs_m_48_\\zba\\()_sync, gnomon_full_vs_to_m, 4, 1, mscratch, mepc, mtval, mret, \\zba, 1",
    "lane_block vs_m_57_\\zba\\()_sync, gnomon_full_vs_to_m, 5, 1, mscratch, mepc, mtval, mret, \\zba, 1",
    "lane_block vs_hs_39_\\zba\\()_sync, gnomon_full_vs_to_hs, 3, 1, sscratch, sepc, stval, sret, \\zba, 1",
    "lane_block vs_hs_48_\\zba\\()_sync, gnomon_full_vs_to_hs, 4, 1, sscratch, sepc, stval, sret, \\zba, 1",
    "lane_block vs_hs_57_\\zba\\()_sync, gnomon_full_vs_to_hs, 5, 1, sscratch, sepc, stval, sret, \\zba, 1",
    "lane_block s_m_39_\\zba\\()_sync, gnomon_full_s_to_m, 3, 0, mscratch, mepc, mtval, mret, \\zba, 1",
    "lane_block s_m_48_\\zba\\()_sync, gnomon_full_s_to_m, 4, 0, mscratch, mepc, mtval, mret, \\zba, 1",
    "lane_block s_m_57_\\zba\\()_sync, gnomon_full_s_to_m, 5, 0, mscratch, mepc, mtval, mret, \\zba, 1",
    ".endr",
    ".option pop",
    t1 = const offset_of!(Context, x) + 8 * 6,
    t2 = const offset_of!(Context, x) + 8 * 7,
    t3 = const offset_of!(Context, x) + 8 * 28,
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
    gate = const offset_of!(Context, lane) + Lane::GATE_AT,
    leaves = const offset_of!(Context, lane) + Lane::LEAVES_AT,
    chunks = const offset_of!(Context, lane) + Lane::CHUNKS_AT,
    count = const offset_of!(Context, lane) + Lane::COUNT_AT,
    brief = const offset_of!(Context, brief) + BriefExits::CAUSE_AT,
    guest = const LaneSync::GUEST_AT,
    line = const LaneSync::LINE_BYTES,
    roots = const offset_of!(Context, lane) + Lane::ROOTS_AT,
    present = const offset_of!(Context, lane) + Lane::PRESENT_AT,
    posting = const offset_of!(Context, lane) + Lane::POSTING_AT,
    changes = const offset_of!(Context, lane) + Lane::CHANGES_AT,
    reads = const offset_of!(Context, lane) + Lane::READS_AT,
    wide = const offset_of!(Context, lane) + Lane::WIDE_AT,
    everything = const FenceLog::<Gva>::EVERYTHING,
    rest = const LaneSync::REST_AT,
    epoch = const LaneSync::EPOCH_AT,
    posted = const LaneRoots::POSTED_AT,
    last_pair = const offset_of!(Context, lane) + Lane::LAST_PAIR_AT,
    pair_shift = const (LaneRoot::PAIR * LaneRoot::BYTES).trailing_zeros(),
    root_bytes = const LaneRoot::BYTES,
    key_of = const LaneRoot::KEY_AT,
    head_of = const LaneRoot::HEAD_AT,
    root_of = const LaneRoot::ROOT_AT,
    asid_of = const LaneRoot::ASID_AT,
    satp_of = const LaneRoot::SATP_AT,
);

unsafe extern "C" {
    fn lane_table_vs_m_39_0();
    fn lane_table_vs_m_39_0_sync();
    fn lane_table_vs_m_39_1();
    fn lane_table_vs_m_39_1_sync();
    fn lane_table_vs_m_48_0();
    fn lane_table_vs_m_48_0_sync();
    fn lane_table_vs_m_48_1();
    fn lane_table_vs_m_48_1_sync();
    fn lane_table_vs_m_57_0();
    fn lane_table_vs_m_57_0_sync();
    fn lane_table_vs_m_57_1();
    fn lane_table_vs_m_57_1_sync();
    fn lane_table_vs_hs_39_0();
    fn lane_table_vs_hs_39_0_sync();
    fn lane_table_vs_hs_39_1();
    fn lane_table_vs_hs_39_1_sync();
    fn lane_table_vs_hs_48_0();
    fn lane_table_vs_hs_48_0_sync();
    fn lane_table_vs_hs_48_1();
    fn lane_table_vs_hs_48_1_sync();
    fn lane_table_vs_hs_57_0();
    fn lane_table_vs_hs_57_0_sync();
    fn lane_table_vs_hs_57_1();
    fn lane_table_vs_hs_57_1_sync();
    fn lane_table_s_m_39_0();
    fn lane_table_s_m_39_0_sync();
    fn lane_table_s_m_39_1();
    fn lane_table_s_m_39_1_sync();
    fn lane_table_s_m_48_0();
    fn lane_table_s_m_48_0_sync();
    fn lane_table_s_m_48_1();
    fn lane_table_s_m_48_1_sync();
    fn lane_table_s_m_57_0();
    fn lane_table_s_m_57_0_sync();
    fn lane_table_s_m_57_1();
    fn lane_table_s_m_57_1_sync();
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

/// What becomes of the entry that a fence is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// It is invalid until the next access.
    Invalidate,
    /// It is brought in step with the guest's.
    Sync,
}

/// The address of the jump table for shadow roots of `format`. `has_zba`: the harts have Zba, which saves an instruction
/// for each level.
///
/// # Panics
/// If it is not a format of `satp`.
#[must_use]
pub fn table(way: Way, deed: Deed, format: &Format, has_zba: bool) -> u64 {
    type Tables = [[unsafe extern "C" fn(); 2]; 3];
    let tables: Tables = match (way, deed) {
        (Way::VirtualToMachine, Deed::Invalidate) => [
            [lane_table_vs_m_39_0, lane_table_vs_m_39_1],
            [lane_table_vs_m_48_0, lane_table_vs_m_48_1],
            [lane_table_vs_m_57_0, lane_table_vs_m_57_1],
        ],
        (Way::VirtualToMachine, Deed::Sync) => [
            [lane_table_vs_m_39_0_sync, lane_table_vs_m_39_1_sync],
            [lane_table_vs_m_48_0_sync, lane_table_vs_m_48_1_sync],
            [lane_table_vs_m_57_0_sync, lane_table_vs_m_57_1_sync],
        ],
        (Way::VirtualToSupervisor, Deed::Invalidate) => [
            [lane_table_vs_hs_39_0, lane_table_vs_hs_39_1],
            [lane_table_vs_hs_48_0, lane_table_vs_hs_48_1],
            [lane_table_vs_hs_57_0, lane_table_vs_hs_57_1],
        ],
        (Way::VirtualToSupervisor, Deed::Sync) => [
            [lane_table_vs_hs_39_0_sync, lane_table_vs_hs_39_1_sync],
            [lane_table_vs_hs_48_0_sync, lane_table_vs_hs_48_1_sync],
            [lane_table_vs_hs_57_0_sync, lane_table_vs_hs_57_1_sync],
        ],
        (Way::SupervisorToMachine, Deed::Invalidate) => [
            [lane_table_s_m_39_0, lane_table_s_m_39_1],
            [lane_table_s_m_48_0, lane_table_s_m_48_1],
            [lane_table_s_m_57_0, lane_table_s_m_57_1],
        ],
        (Way::SupervisorToMachine, Deed::Sync) => [
            [lane_table_s_m_39_0_sync, lane_table_s_m_39_1_sync],
            [lane_table_s_m_48_0_sync, lane_table_s_m_48_1_sync],
            [lane_table_s_m_57_0_sync, lane_table_s_m_57_1_sync],
        ],
    };
    tables[usize::from(format.levels) - 3][usize::from(has_zba)] as *const () as u64
}
