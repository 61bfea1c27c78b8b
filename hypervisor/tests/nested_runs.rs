//! Runs: L1's code after an instruction that trapped, as far as Gnomon executes it in the same exit.

use crate::fake::{Event, World, vm_config, world_of};
use abi::bundle::{MmuMode, VmConfig};
use hypervisor::device::offer::GuestTimer;
use hypervisor::exit;
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::request;
use rv::csr::{hstatus, status};
use rv::{Exception, Exit, Mode};
use std::sync::atomic::Ordering::SeqCst;

const VIRTUAL: u64 = Exception::VirtualInstruction as u64;
/// The address of L1's code.
const CODE: u64 = 0x8020_0ff0;
/// Of its data.
const DATA: u64 = 0x8040_0000;

// Encodings from `llvm-mc -triple=riscv64 -mattr=+h,+c -show-encoding`.
const CSRW_HTVAL_A0: u32 = 0x6435_1073;
const CSRR_A1_HTVAL: u32 = 0x6430_25f3;
const ADDI_A0_1: u32 = 0x0015_0513;
const LD_A2: u32 = 0x0004_3603; // ld a2, 0(s0)
const SD_A2: u32 = 0x00c4_3423; // sd a2, 8(s0)
const LOOP: u32 = 0x0000_006f;
const SRET: u32 = 0x1020_0073;
const HFENCE_GVMA: u32 = 0x6200_0073;
const WFI: u32 = 0x1050_0073;

/// L1 with that code, of which the first instruction is about to trap.
fn with_code(code: &[u32]) -> World {
    let config = VmConfig { nested: true, mmu: Some(MmuMode::TwoStage), ..vm_config("l1", 1) };
    let mut w = world_of(config, GuestTimer::Sstc);
    let bytes = code.iter().flat_map(|insn| insn.to_le_bytes());
    w.hart.bytes.extend((CODE..).zip(bytes).map(|(at, byte)| (at, Ok(byte))));
    w.hart.bytes.extend((DATA..DATA + 64).map(|at| (at, Ok(at as u8))));
    w.hart.regs.vsstatus |= status::UXL_64;
    w.run.context.pc = CODE;
    w.run.context.x[8] = DATA;
    w
}

/// Lets the first instruction trap. Returns the bytes that L1 has got ahead, and the instructions of the extension that ran after it.
fn go(w: &mut World) -> (u64, u64) {
    let first = (0..4).map(|n| u64::from(w.hart.bytes[&(CODE + n)].expect("code")) << (8 * n)).sum();
    w.hart.events.clear();
    let hits = w.run.shared.of_guests().run_hits.get();
    w.run.context.exit = Exit { cause: VIRTUAL, tval: first, ..Exit::default() };
    assert_eq!(exit::handle(&w.g, &mut w.run, &mut w.hart), Outcome::Resume);
    let count = |what: bool| w.hart.events.iter().filter(|event| **event == Event::Emulation(what)).count();
    assert_eq!(count(true), count(false), "what begins ends");
    (w.run.context.pc.wrapping_sub(CODE), w.run.shared.of_guests().run_hits.get() - hits)
}

#[test]
fn instructions_between_two_that_trap_are_executed() {
    let mut w = with_code(&[CSRW_HTVAL_A0, ADDI_A0_1, LD_A2, SD_A2, CSRW_HTVAL_A0, CSRR_A1_HTVAL, WFI]);
    w.run.context.x[10] = 7;
    assert_eq!(go(&mut w), (24, 2));
    let x = &w.run.context.x;
    assert_eq!((x[10], x[11], x[12]), (8, 8, 0x0706_0504_0302_0100));
    assert_eq!(w.hart.bytes[&(DATA + 15)], Ok(7), "the store");
    let counters = w.run.shared.of_guests();
    assert_eq!((counters.run_instructions.get(), counters.traps.get()), (3, 1));
}

#[test]
fn a_run_ends_before_what_the_hart_is_to_do() {
    for (code, at) in [
        (WFI, "a wait"),
        (0x0004_2583, "a load that faults"), // lw a1, 0(s0), with s0 elsewhere
        (0x0014_2583, "a misaligned load"),  // lw a1, 1(s0)
        (0x1005_252f, "lr.w"),
        (0x0000_100f, "fence.i"),
        (SRET, "sret without SPV"),
        (0x1800_2573, "csrr a0, satp"),
        (0x1442_5073, "csrwi sip, 4"),
        (0x1051_5073, "csrwi stvec, 2: a reserved mode"),
        (0x0000_0073, "ecall"),
        (0xffff_ffff, "nothing"),
    ] {
        let mut w = with_code(&[CSRW_HTVAL_A0, ADDI_A0_1, code, ADDI_A0_1]);
        if at == "a load that faults" {
            w.run.context.x[8] = 0x1000;
        }
        assert_eq!((go(&mut w), w.run.context.x[10]), ((8, 0), 1), "{at}");
        // In vain: the next run from there is left out.
        w.run.context.pc = CODE;
        assert_eq!(go(&mut w), (4, 0), "{at}");
    }
    let mut w = with_code(&[CSRW_HTVAL_A0, SD_A2, ADDI_A0_1]);
    w.hart.read_only.push(DATA >> 12);
    assert_eq!(go(&mut w), (4, 0), "a store to a page that is read-only");
}

#[test]
fn a_run_is_bounded() {
    let mut w = with_code(&[CSRW_HTVAL_A0, LOOP]);
    w.g.tunables.set("nested-run=20").expect("a tunable");
    assert_eq!((go(&mut w), w.run.shared.of_guests().run_instructions.get()), ((4, 0), 20));
    // All of them trap.
    let mut w = with_code(&[CSRW_HTVAL_A0; 64]);
    assert_eq!(go(&mut w), (4 * 17, 16));
    // Stretches together.
    let body = [ADDI_A0_1; 60];
    let code: Vec<u32> = [CSRW_HTVAL_A0].iter().chain(&body).copied().cycle().take(61 * 12).collect();
    let mut w = with_code(&code);
    w.g.tunables.set("nested-run=60").expect("a tunable");
    assert_eq!((go(&mut w).1, w.run.shared.of_guests().run_instructions.get()), (8, 512));
    // A tunable of 0 turns runs off.
    let mut w = with_code(&[CSRW_HTVAL_A0, CSRW_HTVAL_A0]);
    w.g.tunables.set("nested-run=0").expect("a tunable");
    assert_eq!((go(&mut w), w.hart.events.is_empty()), ((4, 0), true));
}

#[test]
fn one_exit_does_one_fence() {
    let mut w = with_code(&[CSRW_HTVAL_A0, HFENCE_GVMA, ADDI_A0_1, HFENCE_GVMA]);
    assert_eq!(go(&mut w), (12, 1));
    let mut w = with_code(&[HFENCE_GVMA, CSRW_HTVAL_A0, HFENCE_GVMA]);
    assert_eq!(go(&mut w), (8, 1));
}

#[test]
fn nothing_is_executed_where_something_else_comes_first() {
    type Case = (&'static str, fn(&mut World));
    let cases: [Case; 5] = [
        ("a request", |w| _ = w.run.shared.posted.fetch_or(request::FENCE_I, SeqCst)),
        ("a debugger", |w| _ = w.run.vm.breaks.set_on(true)),
        ("SUM", |w| w.hart.regs.vsstatus |= status::SUM),
        ("an interrupt", |w| {
            w.hart.regs.vsstatus |= status::SIE;
            w.hart.is_interrupted = true;
        }),
        ("NACL", |w| w.run.nested.as_mut().expect("a hypervisor").shared = Some(rv::Addr::new(DATA))),
    ];
    for (what, prepare) in cases {
        let mut w = with_code(&[CSRW_HTVAL_A0, ADDI_A0_1, CSRW_HTVAL_A0]);
        prepare(&mut w);
        assert_eq!(go(&mut w), (4, 0), "{what}");
    }
    // Without SIE, a pending interrupt waits in any case.
    let mut w = with_code(&[CSRW_HTVAL_A0, ADDI_A0_1, CSRW_HTVAL_A0]);
    w.hart.is_interrupted = true;
    assert_eq!(go(&mut w), (12, 1));
}

#[test]
fn an_sstatus_that_lets_interrupts_in_ends_a_run() {
    let mut w = with_code(&[CSRW_HTVAL_A0, 0x1001_6073, ADDI_A0_1, CSRW_HTVAL_A0]); // csrsi sstatus, 2
    assert_eq!(go(&mut w), (8, 0));
    assert_eq!((w.hart.regs.vsstatus & status::SIE, w.run.context.x[10]), (status::SIE, 0));
}

#[test]
fn code_is_read_across_words_and_pages() {
    // c.nop, then instructions at addresses that are not multiples of 4, across the end of the page at CODE + 16, and c.nop.
    let halves = [CSRW_HTVAL_A0, ADDI_A0_1 << 16 | 1, ADDI_A0_1.rotate_right(16), ADDI_A0_1.rotate_right(16)];
    let end = [CSRW_HTVAL_A0 << 16 | ADDI_A0_1 >> 16, CSRW_HTVAL_A0 >> 16 | 1 << 16];
    let mut w = with_code(&[&halves[..], &end].concat());
    assert_eq!((go(&mut w), w.run.context.x[10]), ((4 + 2 + 12 + 4 + 2, 1), 3));
    // The next page cannot be executed: the instruction across is the hart's.
    let mut w = with_code(&[&halves[..], &end].concat());
    (CODE + 16..CODE + 32).for_each(|at| _ = w.hart.bytes.remove(&at));
    assert_eq!((go(&mut w), w.run.context.x[10]), ((4 + 2 + 8, 0), 2));
}

#[test]
fn l1s_handler_is_entered_and_left_in_one_exit() {
    let mut w = with_code(&[CSRR_A1_HTVAL, 0x6000_2673, WFI]); // csrr a2, hstatus
    let nested = w.run.nested.as_deref_mut().expect("a hypervisor");
    nested.runs_l2 = true;
    nested.other.vstvec = CODE;
    nested.other.vsstatus = status::UXL_64;
    w.hart.mode = Mode::Supervisor;
    w.run.context.exit = Exit { cause: Exception::EcallFromVs.code(), ..Exit::default() };
    assert_eq!(exit::nested::handle(&w.g, &mut w.run, &mut w.hart), Outcome::Resume);
    assert_eq!((w.run.context.pc, w.run.shared.of_guests().run_hits.get()), (CODE + 8, 2));
    assert_ne!(w.run.context.x[12] & hstatus::SPV, 0);
}
