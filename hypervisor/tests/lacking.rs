//! Harts that lack what others have, so that Gnomon does it for guests.

use crate::exits::{nested, supervisor, trapped};
use crate::fake::{self, Event, World};
use abi::bundle::GUEST_ENTRY;
use hypervisor::machine::isa::Isa;
use hypervisor::vm::outcome::Outcome;
use rv::{Addr, Exception, Mode};

#[test]
fn misaligned_accesses_are_made_byte_by_byte() {
    const LOAD: u64 = Exception::LoadMisaligned as u64;
    const STORE: u64 = Exception::StoreMisaligned as u64;
    const AT: u64 = 0x1_0ffd;
    let put = |w: &mut World, insn: u32| {
        fake::write(&w.g, &w.run.vm, Addr::new(GUEST_ENTRY), &insn.to_le_bytes(), &mut w.hart).unwrap();
        (w.run.context.pc, w.hart.mode) = (GUEST_ENTRY, Mode::Supervisor);
    };
    let mut w = nested();
    w.run.context.x[10] = AT;
    // Harts that access misaligned memory themselves trap what cannot be emulated.
    put(&mut w, 0x0005_3583); // ld a1, 0(a0)
    let outcome = w.exit(LOAD, AT, 0, 0);
    trapped(&w, outcome, Exception::LoadMisaligned, AT, GUEST_ENTRY);
    (w.g.offer.emulates_misaligned, w.g.offer.isa) = (true, Isa::from_isa_string("rv64imafdc"));
    for (n, byte) in [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88].into_iter().enumerate() {
        w.hart.bytes.insert(AT + n as u64, Ok(byte));
    }
    put(&mut w, 0x0005_3583);
    assert_eq!(w.exit(LOAD, AT, 0, 0), Outcome::Resume);
    assert_eq!((w.run.context.x[11], w.run.context.pc), (0x8877_6655_4433_2211, GUEST_ENTRY + 4));
    put(&mut w, 0x0035_1583); // lh a1, 3(a0)
    assert_eq!(w.exit(LOAD, AT + 3, 0, 0), Outcome::Resume);
    assert_eq!(w.run.context.x[11], 0x5544);
    put(&mut w, 0x0045_2587); // flw fa1, 4(a0)
    assert_eq!(w.exit(LOAD, AT + 4, 0, 0), Outcome::Resume);
    assert_eq!(w.hart.float[11], 0xffff_ffff_8877_6655);
    put(&mut w, 0xc10c); // c.sw a1, 0(a0)
    w.run.context.x[11] = 0xdead_beef;
    assert_eq!(w.exit(STORE, AT, 0, 0), Outcome::Resume);
    assert_eq!(w.run.context.pc, GUEST_ENTRY + 2);
    put(&mut w, 0x0005_3587); // fld fa1, 0(a0)
    assert_eq!(w.exit(LOAD, AT, 0, 0), Outcome::Resume);
    assert_eq!(w.hart.float[11], 0x8877_6655_dead_beef);
    assert_eq!(w.run.shared.counters.misaligned.get(), 5);
    // Each time as in its guest, for other harts: those that faulted, too.
    let count = |begins| w.hart.events.iter().filter(|event| **event == Event::Emulation(begins)).count();
    assert!(count(true) >= 5 && count(true) == count(false), "{:?}", w.hart.events);
    // An AMO is one access or none; and amoadd.w is not made of bytes.
    put(&mut w, 0x00b5_252f);
    let outcome = w.exit(STORE, AT, 0, 0);
    trapped(&w, outcome, Exception::StoreMisaligned, AT, GUEST_ENTRY);
    // A byte's fault is the guest's: here a page fault, at that byte's address, and the access is made again.
    w.hart.bytes.remove(&(AT + 3));
    put(&mut w, 0x0005_3583);
    let outcome = w.exit(LOAD, AT, 0, 0);
    trapped(&w, outcome, Exception::LoadPage, AT + 3, GUEST_ENTRY);
    assert_eq!(w.run.context.x[11], 0xdead_beef, "nothing is loaded");
    // One of the G-stage is handled, and the guest goes on with the same instruction.
    let gpa = 0x8030_0000;
    w.hart.bytes.insert(AT + 3, Err(rv::Exit { cause: 21, tval: AT + 3, tval2: gpa >> 2, tinst: 0 }));
    put(&mut w, 0x0005_3583);
    assert_eq!(w.exit_until_ready(LOAD, AT, 0, 0), Outcome::Resume);
    assert_eq!(w.run.context.pc, GUEST_ENTRY);
    assert!(w.run.shared.counters.faults_memory.get() >= 1);
    // A kernel that asks for its exceptions gets them.
    assert_eq!(w.sbi(0x4657_4654, 0, &[0, 1, 0]).0, 0);
    put(&mut w, 0x0005_3583);
    let outcome = w.exit(LOAD, AT, 0, 0);
    trapped(&w, outcome, Exception::LoadMisaligned, AT, GUEST_ENTRY);
}

#[test]
fn time_is_read_for_guests_whose_hart_lacks_it() {
    const ILLEGAL: u64 = Exception::IllegalInstruction as u64;
    // csrrs a0, time, x0 (`rdtime`); csrrc, csrrsi and csrrci likewise read only.
    const READS: [u64; 4] = [0xc010_2573, 0xc010_3573, 0xc010_6573, 0xc010_7573];
    // csrrw a0, time, x0; csrrs a0, time, a1; csrrci a0, time, 1; csrr a0, cycle.
    const OTHERS: [u64; 4] = [0xc010_1573, 0xc015_a573, 0xc010_f573, 0xc000_2573];
    for make in [nested, supervisor] {
        let mut w = make();
        (w.hart.time, w.hart.user_counters) = (5000, 0b101);
        w.run.vm.time_zero.store(2000, std::sync::atomic::Ordering::SeqCst);
        for insn in READS {
            let pc = w.run.context.pc;
            w.run.context.x[10] = 7;
            assert_eq!(w.exit(ILLEGAL, insn, 0, 0), Outcome::Resume);
            assert_eq!((w.run.context.x[10], w.run.context.pc), (3000, pc + 4), "{insn:#x}");
        }
        // rdtime zero.
        assert_eq!(w.exit(ILLEGAL, 0xc010_2073, 0, 0), Outcome::Resume);
        assert_eq!(w.run.context.x[0], 0);
        for insn in OTHERS {
            let pc = w.run.context.pc;
            let outcome = w.exit(ILLEGAL, insn, 0, 0);
            trapped(&w, outcome, Exception::IllegalInstruction, insn, pc);
            w.run.context.pc = GUEST_ENTRY;
        }
        // In user mode `scounteren` decides.
        w.hart.mode = Mode::User;
        let outcome = w.exit(ILLEGAL, READS[0], 0, 0);
        trapped(&w, outcome, Exception::IllegalInstruction, READS[0], GUEST_ENTRY);
        (w.hart.mode, w.hart.user_counters) = (Mode::User, 0b010);
        w.run.context.pc = GUEST_ENTRY;
        assert_eq!(w.exit(ILLEGAL, READS[0], 0, 0), Outcome::Resume);
        assert_eq!((w.run.context.x[10], w.run.context.pc), (3000, GUEST_ENTRY + 4));
        assert_eq!(w.run.shared.counters.time_reads.get(), 6);
        // A hart may tell nothing of the instruction, which is then read from memory.
        fake::write(&w.g, &w.run.vm, Addr::new(GUEST_ENTRY), &0xc010_2573u32.to_le_bytes(), &mut w.hart).unwrap();
        w.run.context.pc = GUEST_ENTRY;
        assert_eq!(w.exit(ILLEGAL, 0, 0, 0), Outcome::Resume);
        assert_eq!((w.run.context.x[10], w.run.context.pc), (3000, GUEST_ENTRY + 4));
    }
}
