//! A debugger at a VM: what it may ask for, what it changes, and that nothing of it stays.

use crate::fake::{self, World, park, world};
use abi::bundle::GUEST_RAM_BASE;
use abi::control::Answer;
use abi::control::debug::{Debug, F0, FCSR, PC, Stopped};
use hypervisor::control::debug;
use hypervisor::device::offer::GuestTimer;
use hypervisor::life::lifecycle;
use hypervisor::life::lifecycle::put_aside;
use hypervisor::vm::vcpu::VcpuRun;
use hypervisor::vm::{Departure, Vm};
use rv::csr::status;
use rv::{Addr, Exception};
use std::sync::Arc;

const BREAKPOINT: u64 = Exception::Breakpoint as u64;
const CODE: u64 = GUEST_RAM_BASE + 0x20_0000;
const NOP: [u8; 4] = [0x13, 0, 0, 0];
const C_EBREAK: [u8; 2] = [0x02, 0x90];

/// A vCPU at [`CODE`], where there are instructions that do nothing.
struct Rig {
    w: World,
    vm: Arc<Vm>,
}

impl Rig {
    fn new() -> Self {
        let mut w = world(1, GuestTimer::Sstc);
        w.run.context.pc = CODE;
        let vm = Arc::clone(&w.run.vm);
        let mut rig = Self { w, vm };
        rig.attach();
        rig.done(Debug::Write { vcpu: 0, at: CODE, bytes: NOP.repeat(4) });
        rig
    }

    fn ask(&mut self, wish: Debug) -> Answer {
        debug::ask(&self.w.g, &self.vm, wish, &mut self.w.hart)
    }

    fn done(&mut self, wish: Debug) {
        let asked = format!("{wish:?}");
        assert_eq!(self.ask(wish), Answer::Done, "{asked}");
    }

    fn refused(&mut self, wish: Debug, part: &str) {
        let answer = self.ask(wish);
        assert!(matches!(&answer, Answer::Refused(why) if why.contains(part)), "{answer:?}");
    }

    /// Puts the vCPU aside, like its hart when it finds that it is to pause.
    fn leave(&mut self) {
        let other = world(1, GuestTimer::Sstc).run;
        let run: Box<VcpuRun> = std::mem::replace(&mut self.w.run, other);
        self.w.g.sched.stopped();
        put_aside(&self.w.g, run, &mut self.w.hart);
    }

    /// Takes the vCPU, like a hart that schedules it.
    fn come(&mut self) {
        self.w.run = self.w.g.sched.take(0).expect("it goes on");
    }

    fn attach(&mut self) {
        self.done(Debug::Attach);
        assert_eq!(self.ask(Debug::State), Answer::Stopped(Stopped::Not));
        self.refused(Debug::Registers(0), "not stopped");
        self.leave();
        assert_eq!(self.ask(Debug::State), Answer::Stopped(Stopped::Halted));
    }

    fn code(&mut self) -> [u8; 2] {
        let mut bytes = [0; 2];
        fake::read(&self.w.g, &self.vm, Addr::new(CODE + 4), &mut bytes, &mut self.w.hart).expect("memory");
        bytes
    }

    fn pc(&mut self) -> u64 {
        match self.ask(Debug::Registers(0)) {
            Answer::Registers(registers) => registers.pc,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_breakpoint_stops_the_vm_and_another_is_the_guests() {
    let mut rig = Rig::new();
    rig.done(Debug::Break { vcpu: 0, at: CODE + 4 });
    assert_eq!(rig.code(), C_EBREAK);
    rig.done(Debug::Continue);
    rig.come();
    // Its own.
    rig.w.run.context.pc = CODE + 8;
    rig.w.exit(BREAKPOINT, CODE + 8, 0, 0);
    assert_eq!((rig.w.hart.regs.vscause, rig.w.hart.regs.vsepc), (BREAKPOINT, CODE + 8));
    // The debugger's.
    rig.w.run.context.pc = CODE + 4;
    rig.w.exit(BREAKPOINT, CODE + 4, 0, 0);
    assert_eq!(rig.w.run.context.pc, CODE + 4);
    assert_eq!(rig.ask(Debug::State), Answer::Stopped(Stopped::Not), "it is on its hart still");
    rig.leave();
    assert_eq!(rig.ask(Debug::State), Answer::Stopped(Stopped::AtBreak(0)));
    rig.done(Debug::Unbreak(CODE + 4));
    assert_eq!(rig.code(), NOP[..2]);
}

#[test]
fn a_step_ends_at_the_next_instruction_without_interrupts() {
    let mut rig = Rig::new();
    rig.done(Debug::Step(0));
    rig.come();
    assert_eq!((rig.code(), rig.w.run.bank.csrs.vsie), (C_EBREAK, 0));
    rig.w.run.context.pc = CODE + 4;
    rig.w.exit(BREAKPOINT, CODE + 4, 0, 0);
    rig.leave();
    assert_eq!(rig.ask(Debug::State), Answer::Stopped(Stopped::Stepped(0)));
    assert_eq!((rig.code(), rig.pc()), ([NOP[0], NOP[1]], CODE + 4));
    // What waits for an interrupt does not.
    rig.done(Debug::Write { vcpu: 0, at: CODE + 4, bytes: 0x1050_0073_u32.to_le_bytes().into() });
    rig.done(Debug::Step(0));
    assert_eq!(rig.ask(Debug::State), Answer::Stopped(Stopped::Stepped(0)));
    assert_eq!(rig.pc(), CODE + 8);
}

#[test]
fn one_that_goes_leaves_nothing_and_another_may_come() {
    let mut rig = Rig::new();
    rig.refused(Debug::Attach, "another debugger");
    rig.done(Debug::Break { vcpu: 0, at: CODE + 4 });
    rig.done(Debug::Continue);
    rig.come();
    assert_eq!(rig.ask(Debug::Detach), Answer::Later, "it has to stop first");
    rig.leave();
    rig.done(Debug::Detach);
    assert_eq!(rig.code(), NOP[..2]);
    rig.come();
    rig.refused(Debug::State, "no debugger");
    rig.attach();
}

#[test]
fn what_the_guest_has_put_in_its_place_stays() {
    let mut rig = Rig::new();
    rig.done(Debug::Break { vcpu: 0, at: CODE + 4 });
    rig.done(Debug::Write { vcpu: 0, at: CODE + 4, bytes: vec![7, 8] });
    rig.done(Debug::Unbreak(CODE + 4));
    assert_eq!(rig.code(), [7, 8]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut rig = Rig::new();
    rig.refused(Debug::Registers(1), "no such vCPU");
    rig.refused(Debug::Step(9), "not started");
    rig.refused(Debug::Break { vcpu: 0, at: CODE + 1 }, "odd");
    rig.refused(Debug::Write { vcpu: 0, at: CODE + 0xfff, bytes: vec![1, 2] }, "two pages");
    for at in [0, 0x1000_0000, u64::MAX - 1, 1 << 60] {
        rig.refused(Debug::Read { vcpu: 0, at, bytes: 8 }, "");
        rig.refused(Debug::Break { vcpu: 0, at: at & !1 }, "");
    }
    let answer = rig.ask(Debug::Read { vcpu: 0, at: CODE + 0xff0, bytes: u32::MAX });
    assert!(matches!(&answer, Answer::Memory(bytes) if bytes.len() == 16), "up to the page's end: {answer:?}");
}

#[test]
fn a_vm_that_ends_while_it_stands_still_is_gone() {
    let mut rig = Rig::new();
    rig.done(Debug::Break { vcpu: 0, at: CODE + 4 });
    let vm = Arc::clone(&rig.vm);
    lifecycle::depart(&rig.w.g, &vm, Departure::Reboot, &mut rig.w.hart);
    assert_eq!(rig.ask(Debug::State), Answer::Stopped(Stopped::Not));
    rig.refused(Debug::Halt, "does not run");
    rig.done(Debug::Detach);
    while lifecycle::go_on(&rig.w.g, &mut rig.w.hart) {}
    rig.come();
    let run = std::mem::replace(&mut rig.w.run, world(1, GuestTimer::Sstc).run);
    lifecycle::depart(&rig.w.g, &vm, Departure::End(abi::record::EndReason::Poweroff), &mut rig.w.hart);
    park(&rig.w.g, run, &mut rig.w.hart);
    while lifecycle::go_on(&rig.w.g, &mut rig.w.hart) {}
    assert!(rig.w.g.is_over());
}

#[test]
fn registers_are_set_by_their_numbers() {
    let mut rig = Rig::new();
    rig.w.g.vms.tenant(&rig.vm, |tenant| {
        let run = tenant.paused.iter_mut().flatten().next().expect("it is aside");
        run.bank.csrs.vsstatus |= status::FS & !(status::FS << 1);
    });
    let set = |register, value| Debug::SetRegister { vcpu: 0, register, value };
    for (register, value) in [(0, 1), (31, 2), (PC, CODE + 9), (F0, 3), (F0 + 31, 4), (FCSR, 0xfff)] {
        rig.done(set(register, value));
    }
    rig.refused(set(FCSR + 1, 0), "no such register");
    let Answer::Registers(now) = rig.ask(Debug::Registers(0)) else { panic!("no registers") };
    assert_eq!((now.x[0], now.x[31], now.pc, now.f[0], now.f[31], now.fcsr), (0, 2, CODE + 8, 3, 4, 0xff));
    assert_eq!(now.sstatus & status::FS, status::FS, "the guest is to save them");
    assert_eq!(now.vlenb, 0, "it has no vectors");
    rig.refused(Debug::Vector { vcpu: 0, register: 0 }, "no such register");
    rig.refused(Debug::SetVector { vcpu: 0, register: 0, bytes: vec![] }, "no such register");
}
