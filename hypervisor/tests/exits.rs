//! Exits, handled on a host: what the guest did, and what became of it.

use crate::fake::{self, Event, MEMORY, World, printed, world};
use abi::bundle::{GUEST_ENTRY, GUEST_RAM_BASE};
use abi::record::EndReason;
use hypervisor::device::offer::{GuestMode, GuestTimer};
use hypervisor::device::plic::START as PLIC;
use hypervisor::device::uart::START as UART;
use hypervisor::exit::watch;
use hypervisor::io::outside::{Output, Reach};
use hypervisor::vm::Departure;
use hypervisor::vm::outcome::{Brief, Outcome};
use hypervisor::vm::vcpu::VsTrapRegs;
use mmu::frames::{MEGA_ORDER, Owner, Use};
use rv::csr::status;
use rv::{Addr, Exception, Exit, Mode};
use std::sync::atomic::Ordering;

const FETCH: u64 = Exception::FetchGuestPage as u64;
const LOAD: u64 = Exception::LoadGuestPage as u64;
const STORE: u64 = Exception::StoreGuestPage as u64;
const VIRTUAL: u64 = Exception::VirtualInstruction as u64;
/// `lw a1, 0(a0)` and `sw a1, 0(a0)`, transformed (rs1 cleared).
const LW: u64 = 0x2583;
const SW: u64 = 0x00b0_2023;
const SB: u64 = 0x00b0_0023;
const LB: u64 = 0x0583;

pub fn nested() -> World {
    world(1, GuestTimer::Sstc)
}

fn killed(outcome: Outcome) -> String {
    match outcome {
        Outcome::Depart(Departure::End(EndReason::Killed { message })) => message,
        other => panic!("not killed: {other:?}"),
    }
}

/// Asserts that the guest got a trap.
#[track_caller]
pub fn trapped(world: &World, outcome: Outcome, cause: Exception, tval: u64, pc: u64) {
    assert_eq!(outcome, Outcome::Resume);
    let regs = world.hart.regs;
    assert_eq!((regs.vscause, regs.vstval, regs.vsepc), (cause.code(), tval, pc));
    assert_eq!(world.run.context.pc, regs.vstvec);
    assert_eq!(world.hart.mode, Mode::Supervisor);
}

#[test]
fn touched_memory_appears_and_is_zero() {
    let mut w = nested();
    let before = w.frames_used();
    let gpa = GUEST_RAM_BASE + 0x1230;
    assert_eq!(w.exit_until_ready(STORE, gpa, gpa, 0), Outcome::Resume);
    assert_eq!(w.run.context.pc, GUEST_ENTRY, "the instruction runs again");
    assert!(w.frames_used() > before);
    let mut bytes = [1; 16];
    fake::read(&w.g, &w.run.vm, Addr::new(gpa), &mut bytes, &mut w.hart).unwrap();
    assert_eq!(bytes, [0; 16]);
    assert_eq!(w.run.shared.counters.faults_memory.get(), 1);
}

/// Ends the VM; returns how many runs of 2 MiB there are then.
fn runs_after(World { g, mut hart, run }: World) -> usize {
    let vm = run.vm.clone();
    fake::depart(&g, &vm, Departure::End(EndReason::Poweroff), &mut hart);
    fake::park(&g, run, &mut hart);
    core::iter::from_fn(|| g.frames().alloc(Owner::Host, Use::Other, MEGA_ORDER).ok()).count()
}

/// BOUNDED: 2 MiB take four exits here. What the guest does between two of them is answered as ever, and nothing is lost when
/// the vCPU is parked.
#[test]
fn two_mebibytes_are_made_ready_in_portions() {
    let mut w = nested();
    let used = w.frames_used();
    let gpa = GUEST_RAM_BASE + 0x1230;
    let other = gpa + (4 << 20);
    // Zeroes are as good elsewhere.
    assert_eq!(w.exit(STORE, other, other, 0), Outcome::Resume);
    for _ in 0..2 {
        assert_eq!(w.exit(STORE, gpa, gpa, 0), Outcome::Resume);
        assert_eq!((w.frames_used(), w.run.shared.counters.faults_memory.get()), (used, 0));
        assert_eq!(w.sbi(sbi_spec::dbcn::EID_DBCN, 7, &[]), (-2, 0));
    }
    assert_eq!(w.exit(STORE, gpa, gpa, 0), Outcome::Resume);
    assert_eq!(w.run.shared.counters.faults_memory.get(), 1);
    assert!(w.frames_used() >= used + 512);
    assert_eq!(w.exit(STORE, other, other, 0), Outcome::Resume);
    assert_eq!(w.run.shared.counters.faults_memory.get(), 1);
    assert_eq!(runs_after(w), runs_after(nested()));
}

#[test]
fn the_2_mib_where_the_kernel_ends_are_copied_and_this_hart_only_is_fenced() {
    let mut w = nested();
    assert_eq!(w.exit_until_ready(FETCH, GUEST_ENTRY, GUEST_ENTRY, 0), Outcome::Resume);
    assert!(w.frames_used() >= 512);
    assert!(w.hart.events.iter().any(|e| matches!(e, Event::Fence(_))));
    assert!(w.hart.events.contains(&Event::FenceInstructions), "what it copied is code");
    assert!(!w.hart.events.iter().any(|e| matches!(e, Event::Ipi(_))));
    // They are its own.
    let used = w.frames_used();
    assert_eq!(w.exit(STORE, GUEST_ENTRY + 8, GUEST_ENTRY + 8, 0), Outcome::Resume);
    assert_eq!(w.frames_used(), used);
}

#[test]
fn a_hole_answers_with_an_access_fault_of_the_access() {
    for (cause, exception) in
        [(LOAD, Exception::LoadAccess), (STORE, Exception::StoreAccess), (FETCH, Exception::FetchAccess)]
    {
        let mut w = nested();
        let end = GUEST_RAM_BASE + MEMORY;
        let outcome = w.exit(cause, 0xffff_0000_0000_0123, end, 0);
        trapped(&w, outcome, exception, 0xffff_0000_0000_0123, GUEST_ENTRY);
    }
}

#[test]
fn a_trap_keeps_what_it_interrupted() {
    let mut w = nested();
    w.hart.mode = Mode::User;
    w.hart.regs.vsstatus = status::SIE | status::SPP;
    let outcome = w.exit(LOAD, 5, 0x4000_0000, 0);
    trapped(&w, outcome, Exception::LoadAccess, 5, GUEST_ENTRY);
    assert_eq!(w.hart.regs.vsstatus, status::SPIE, "from U: SPP clear; SIE moved to SPIE");
}

#[test]
fn guest_tables_in_a_hole_fault_with_the_original_access() {
    let mut w = nested();
    let outcome = w.exit(STORE, 0x1000, 0x4000_0008, mmu::two_stage::TINST_PTE_READ);
    trapped(&w, outcome, Exception::StoreAccess, 0x1000, GUEST_ENTRY);
    // Even where a device is: a walk does not read a UART's registers.
    let outcome = w.exit(LOAD, 0x1000, UART, mmu::two_stage::TINST_PTE_READ);
    assert_eq!(outcome, Outcome::Resume);
    assert_eq!(w.hart.regs.vscause, Exception::LoadAccess.code());
    assert_eq!(w.run.shared.counters.mmio_uart.get(), 0);
}

/// Makes a guest at its handler at `HANDLER`, after a fetch fault there; without paging, and without memory there.
fn at_its_handler(from: Mode) -> World {
    let mut w = nested();
    w.hart.regs.vstvec = HANDLER;
    w.run.context.pc = HANDLER;
    w.hart.mode = from;
    let outcome = w.exit(FETCH, HANDLER, HANDLER, 0);
    trapped(&w, outcome, Exception::FetchAccess, HANDLER, HANDLER);
    w
}

const HANDLER: u64 = 0x4000_0000;

fn look(w: &mut World) -> Option<String> {
    watch::look(&w.g, &mut w.run, (1000, 10), &mut w.hart)
}

#[test]
fn a_handler_that_cannot_be_fetched_ends_the_vm_at_the_second_look() {
    let mut w = at_its_handler(Mode::Supervisor);
    assert_eq!(look(&mut w), None);
    let message = look(&mut w).expect("proof");
    assert!(message.contains("trap handler at 0x40000000"), "{message}");
    assert_eq!(w.run.watch.due(), 1010);
}

#[test]
fn no_jump_of_user_mode_to_the_handler_ends_the_vm() {
    // Each is a fetch fault at the handler's address, and the guest's kernel is about to handle it.
    let mut w = at_its_handler(Mode::User);
    assert_eq!((look(&mut w), look(&mut w)), (None, None));
}

#[test]
fn a_guest_that_gets_on_is_not_stuck() {
    let mut w = at_its_handler(Mode::Supervisor);
    assert_eq!(look(&mut w), None);
    w.run.context.x[5] += 1;
    assert_eq!(look(&mut w), None);
    // Seen twice, but what it found between was another state.
    w.hart.regs.vscause = Exception::LoadPage.code();
    assert_eq!(look(&mut w), None);
    w.hart.regs.vscause = Exception::FetchPage.code();
    assert_eq!(look(&mut w), None);
    assert!(look(&mut w).is_some());
    // Memory is there now, as another hart could bring it about.
    w.hart.regs = VsTrapRegs { vstvec: GUEST_ENTRY, vsepc: GUEST_ENTRY, vstval: GUEST_ENTRY, ..w.hart.regs };
    w.run.context.pc = GUEST_ENTRY;
    assert_eq!(w.exit_until_ready(FETCH, GUEST_ENTRY, GUEST_ENTRY, 0), Outcome::Resume);
    assert_eq!((look(&mut w), look(&mut w)), (None, None));
}

#[test]
fn the_uart_prints_what_is_stored_whoever_decodes() {
    let mut w = nested();
    w.run.context.x[10] = UART;
    w.run.context.x[11] = u64::from(b'A');
    assert_eq!(w.exit(STORE, UART, UART, SB), Outcome::Resume);
    assert_eq!(w.run.context.pc, GUEST_ENTRY + 4);
    // The trap does not say: the instruction is read from the guest's memory. `c.sw a1, 0(a0)`.
    fake::write(&w.g, &w.run.vm, Addr::new(GUEST_ENTRY + 4), &[0x0c, 0xc1], &mut w.hart).unwrap();
    w.run.context.x[11] = u64::from(b'B');
    assert_eq!(w.exit(STORE, UART, UART, 0), Outcome::Resume);
    assert_eq!(w.run.context.pc, GUEST_ENTRY + 6);
    assert_eq!(w.run.shared.counters.mmio_decoded.get(), 1);
    assert!(w.hart.events.contains(&Event::AttendSoon) && !printed().ends_with("AB"), "more may come");
    hypervisor::io::host_events::go_on(&w.g, 1, &mut w.hart);
    assert!(printed().ends_with("AB"));
}

#[test]
fn one_more_byte_for_the_uart_is_a_brief_exit_and_nothing_else_is() {
    let mut w = nested();
    let trap = |cause, gpa: u64, tinst| Exit { cause, tval: gpa, tval2: gpa >> 2, tinst };
    w.run.context.x[11] = u64::from(b'A');
    assert_eq!(w.brief(trap(STORE, UART, SB)), Brief::NO, "the first byte has its moment asked for");
    assert_eq!(w.exit(STORE, UART, UART, SB), Outcome::Resume);
    for _ in 0..3 {
        assert_eq!(w.brief(trap(STORE, UART, SB)), Brief::OVER);
    }
    let counters = &w.run.shared.counters;
    assert_eq!(
        (counters.exits.get(), counters.exits_store.get(), counters.mmio_uart.get(), counters.faults_mmio.get()),
        (4, 4, 4, 4)
    );
    assert_eq!(w.run.context.pc, GUEST_ENTRY + 16);
    let sw = SB | 2 << 12;
    for other in [
        trap(STORE, UART + 1, SB),
        trap(STORE, UART, 0),
        trap(STORE, UART, sw),
        trap(LOAD, UART, SB),
        trap(STORE, UART - 4, SB),
    ] {
        assert_eq!(w.brief(other), Brief::NO, "{other:?}");
    }
    // Another hart has the UART: this hart does not wait.
    let vm = w.run.vm.clone();
    let uart = vm.devices.uart.lock();
    assert_eq!(w.brief(trap(STORE, UART, SB)), Brief::NO);
    drop(uart);
    assert_eq!(w.run.context.pc, GUEST_ENTRY + 16);
    hypervisor::io::host_events::go_on(&w.g, 1, &mut w.hart);
    assert!(printed().ends_with("AAAA"));
}

#[test]
fn what_is_no_plain_access_to_a_device_is_refused() {
    let mut w = nested();
    // amoswap.w a0, a1, (a0), read from memory.
    fake::write(&w.g, &w.run.vm, Addr::new(GUEST_ENTRY), &0x08b5_252fu32.to_le_bytes(), &mut w.hart).unwrap();
    let outcome = w.exit(STORE, UART, UART, 0);
    trapped(&w, outcome, Exception::StoreAccess, UART, GUEST_ENTRY);
    // The PLIC takes whole words only: `lb a1, 0(a0)`.
    let outcome = w.exit(LOAD, PLIC, PLIC, 0x0583);
    assert_eq!(outcome, Outcome::Resume);
    assert_eq!(w.hart.regs.vscause, Exception::LoadAccess.code());
}

#[test]
fn an_access_that_begins_or_ends_elsewhere_is_refused() {
    let mut w = nested();
    let (before, after) = (UART - 4, UART + 4);
    w.run.context.x[10] = before;
    // sd a1, 0(a0), from the page before into the UART's.
    fake::write(&w.g, &w.run.vm, Addr::new(GUEST_ENTRY), &0x00b5_3023u32.to_le_bytes(), &mut w.hart).unwrap();
    // The trap tells nothing; what QEMU's tells, which looks like one that begins there; what the spec's tells.
    for tinst in [0, 0x00b0_3023, 0x00b2_3023] {
        w.run.context.pc = GUEST_ENTRY;
        let outcome = w.exit(STORE, UART, UART, tinst);
        trapped(&w, outcome, Exception::StoreAccess, UART, GUEST_ENTRY);
    }
    // From the UART's last registers beyond them.
    w.run.context.pc = GUEST_ENTRY;
    let outcome = w.exit(STORE, after, after, 0x00b0_3023);
    trapped(&w, outcome, Exception::StoreAccess, after, GUEST_ENTRY);
    assert_eq!(w.run.vm.devices.uart.lock().sending(), b"");
}

#[test]
fn an_instruction_that_changed_meanwhile_runs_again() {
    let mut w = nested();
    w.run.context.x[11] = 7;
    assert_eq!(w.exit(STORE, UART, UART, LB), Outcome::Resume);
    assert_eq!(w.run.context.pc, GUEST_ENTRY);
    assert_eq!(w.run.context.x[11], 7);
}

#[test]
fn uart_input_reaches_the_guest_through_the_plic() {
    let mut w = nested();
    let plic_write = |w: &mut World, offset: u64, value: u64| {
        w.run.context.x[11] = value;
        assert_eq!(w.exit(STORE, PLIC + offset, PLIC + offset, SW), Outcome::Resume);
    };
    plic_write(&mut w, 4 * 10, 1);
    plic_write(&mut w, 0x2000 + 0x80, 1 << 10);
    w.run.context.x[11] = 1;
    assert_eq!(w.exit(STORE, UART + 1, UART + 1, 0x00b0_0023), Outcome::Resume); // sb: receive interrupt on
    let vm = w.run.vm.clone();
    let mut uart = vm.devices.uart.lock();
    uart.receive(b'k');
    vm.devices.pass_line(&mut uart, &mut Reach::new(&w.g, &vm, &mut w.hart, Output::Leave));
    drop(uart);
    assert!(w.run.shared.external.load(Ordering::SeqCst));
    let claim = PLIC + 0x20_1004;
    assert_eq!(w.exit(LOAD, claim, claim, LW), Outcome::Resume);
    assert_eq!(w.run.context.x[11], 10);
    assert!(!w.run.shared.external.load(Ordering::SeqCst));
}

#[test]
fn virtual_instructions() {
    const WFI: u64 = 0x1050_0073;
    let mut w = nested();
    assert_eq!(w.exit(VIRTUAL, WFI, 0, 0), Outcome::Wait);
    assert_eq!(w.run.context.pc, GUEST_ENTRY + 4);
    assert_eq!(w.exit(VIRTUAL, 0x00d0_0073, 0, 0), Outcome::Yield);
    // csrr a0, hgatp: no such register on the guest's machine.
    let pc = w.run.context.pc;
    let outcome = w.exit(VIRTUAL, 0x6800_2573, 0, 0);
    trapped(&w, outcome, Exception::IllegalInstruction, 0x6800_2573, pc);
    w.hart.mode = Mode::User;
    let pc = w.run.context.pc;
    let outcome = w.exit(VIRTUAL, WFI, 0, 0);
    trapped(&w, outcome, Exception::IllegalInstruction, WFI, pc);
}

#[test]
fn a_virtual_instruction_without_tval_is_read_from_memory() {
    let mut w = nested();
    fake::write(&w.g, &w.run.vm, Addr::new(GUEST_ENTRY), &0x00d0_0073u32.to_le_bytes(), &mut w.hart).unwrap();
    assert_eq!(w.exit(VIRTUAL, 0, 0, 0), Outcome::Yield);
}

/// Makes a machine whose guest runs in S mode.
pub fn supervisor() -> World {
    let mut w = nested();
    // Its memory stays that of a nested VM: what is tested here does not depend on it.
    w.g.offer.guest = GuestMode::Supervisor;
    w.run.context.brief_causes = w.run.vm.translation.brief_causes(&w.g.offer);
    w
}

#[test]
fn in_s_mode_what_traps_is_an_illegal_instruction() {
    const WFI: u64 = 0x1050_0073;
    const ILLEGAL: u64 = Exception::IllegalInstruction as u64;
    let mut w = supervisor();
    assert_eq!(w.exit(ILLEGAL, WFI, 0, 0), Outcome::Wait);
    assert_eq!(w.run.context.pc, GUEST_ENTRY + 4);
    w.hart.mode = Mode::User;
    assert_eq!(w.exit(ILLEGAL, 0x00d0_0073, 0, 0), Outcome::Yield);
    // From U mode WFI is illegal; csrr a0, hgatp is everywhere.
    for insn in [WFI, 0x6800_2573] {
        let pc = w.run.context.pc;
        let outcome = w.exit(ILLEGAL, insn, 0, 0);
        trapped(&w, outcome, Exception::IllegalInstruction, insn, pc);
        w.hart.mode = Mode::User;
    }
    // What the hart does not say Gnomon does not add: c.unimp is 0, and some harts always say 0.
    fake::write(&w.g, &w.run.vm, Addr::new(GUEST_ENTRY), &0x6800_2573u32.to_le_bytes(), &mut w.hart).unwrap();
    w.run.context.pc = GUEST_ENTRY;
    let outcome = w.exit(ILLEGAL, 0, 0, 0);
    trapped(&w, outcome, Exception::IllegalInstruction, 0, GUEST_ENTRY);
    assert_eq!(w.run.shared.counters.exits_illegal.get(), 5);
}

#[test]
fn in_vs_mode_an_illegal_instruction_is_the_guests() {
    let mut w = nested();
    let outcome = w.exit(Exception::IllegalInstruction as u64, 0x1050_0073, 0, 0);
    trapped(&w, outcome, Exception::IllegalInstruction, 0x1050_0073, GUEST_ENTRY);
    assert_eq!(w.run.shared.counters.exits_illegal.get(), 1);
}

#[test]
fn the_sbi_is_called_from_where_the_guest_runs() {
    const FROM_S: u64 = Exception::EcallFromS as u64;
    const FROM_VS: u64 = Exception::EcallFromVs as u64;
    let probe = |w: &mut World, cause| {
        (w.run.context.x[16], w.run.context.x[17]) = (0, 0x10);
        w.exit(cause, 0, 0, 0)
    };
    let mut w = supervisor();
    assert_eq!(probe(&mut w, FROM_S), Outcome::Resume);
    assert_eq!((w.run.context.x[10], w.run.context.x[11]), (0, 0x0200_0000));
    assert_eq!(w.run.context.pc, GUEST_ENTRY + 4);
    assert!(killed(probe(&mut w, FROM_VS)).contains("EcallFromVs"));
    assert!(killed(probe(&mut nested(), FROM_S)).contains("EcallFromS"));
}

#[test]
fn interrupts_are_the_harts() {
    const INTERRUPT: u64 = 1 << 63;
    let mut w = nested();
    for (code, outcome) in [
        (7, Outcome::Timer),
        (5, Outcome::Timer),
        (3, Outcome::Kicked),
        (1, Outcome::Kicked),
        (11, Outcome::External),
        (9, Outcome::External),
    ] {
        assert_eq!(w.exit(INTERRUPT | code, 0, 0, 0), outcome);
    }
    assert_eq!(w.run.context.pc, GUEST_ENTRY);
}

#[test]
fn what_the_guest_alone_can_have_caused_comes_back_to_it() {
    // Software check and hardware error, on harts that do not delegate them.
    for exception in [Exception::SoftwareCheck, Exception::HardwareError] {
        let mut w = nested();
        let outcome = w.exit(exception.code(), 3, 0, 0);
        trapped(&w, outcome, exception, 3, GUEST_ENTRY);
    }
}

#[test]
fn what_is_not_known_ends_the_vm_with_its_cause() {
    let mut w = nested();
    assert!(killed(w.exit(24, 0, 0, 0)).contains("Unknown(24)"));
}

#[test]
fn a_greedy_vm_meets_its_limit() {
    let mut w = nested();
    w.g.frames().set_limit(mmu::frames::Owner::Vm(0), 0);
    let message = killed(w.exit_until_ready(STORE, GUEST_RAM_BASE, GUEST_RAM_BASE, 0));
    assert!(message.contains("limit"), "{message}");
}

/// BLAME: whatever the registers say, there is an outcome, and nothing panics.
#[test]
fn no_exit_panics() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let interesting = [
        0,
        1,
        UART,
        UART + 7,
        UART + 8,
        PLIC,
        PLIC + 0x20_1004,
        GUEST_ENTRY,
        GUEST_RAM_BASE + MEMORY - 1,
        GUEST_RAM_BASE + MEMORY,
        u64::MAX,
        1 << 41,
        0xffff_0000,
        0xffff_8000,
    ];
    let extensions = [
        0x10,
        0x5449_4d45,
        0x73_5049,
        0x5246_4e43,
        0x48_534d,
        0x5352_5354,
        0x4442_434e,
        0x4657_4654,
        0x53_5345,
        0x50_4d55,
        0,
    ];
    let mut ends = 0;
    let mut w = world(3, GuestTimer::Sbi);
    for _ in 0..200_000 {
        let mut pick = |choices: &[u64]| match random() % 4 {
            0 => random(),
            _ => choices[random() as usize % choices.len()],
        };
        for register in 1..32 {
            w.run.context.x[register] = pick(&interesting);
        }
        w.run.context.x[17] = pick(&extensions);
        w.run.context.x[16] = pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        w.run.context.pc = pick(&interesting) & !1;
        w.hart.regs.vstvec = pick(&interesting);
        w.hart.vsatp = pick(&[0, 8 << 60 | GUEST_ENTRY >> 12, 9 << 60 | 3, 10 << 60 | 0x8_0000]);
        w.hart.mode = if pick(&[0, 1]) == 0 { Mode::User } else { Mode::Supervisor };
        let cause = pick(&[10, 10, 10, 20, 21, 22, 23, 1, 2, 5, 7, 12, 1 << 63 | 7]);
        let (tval, gpa, tinst) = (pick(&interesting), pick(&interesting), pick(&[0, LW, SW, 0x3000, 0x3020, 0x3501]));
        let outcome = w.exit(cause, tval, gpa, tinst);
        if matches!(outcome, Outcome::Depart(_)) {
            ends += 1;
        }
        // vCPUs that were started wait in the queue for a hart; stop them again now and then.
        while let Some(other) = w.g.sched.take(0) {
            w.g.sched.stopped();
            other.shared.hsm.store(hypervisor::vm::vcpu::hsm::STOPPED, Ordering::SeqCst);
            w.set_aside(other);
        }
        w.hart.events.clear();
        printed();
    }
    assert!(ends > 100, "{ends}: the calls did reach the interesting places");
}
