//! A guest that is a hypervisor (L1), and its guest (L2): entries, exits, and the memory that Gnomon takes from L1.

use crate::fake::{self, Event, World, printed, vm_config, world_of};
use crate::snapshot;
use abi::bundle::{GUEST_RAM_BASE, L2Tables, MmuMode, VmConfig};
use abi::control::Answer;
use abi::control::debug::{Debug, Stopped};
use hypervisor::control::debug;
use hypervisor::device::offer::GuestTimer;
use hypervisor::exit;
use hypervisor::life::lifecycle::put_aside;
use hypervisor::vm::Vm;
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::{self, Nested, VsCsrs, VsTrapRegs};
use mmu::Edits;
use mmu::gstage::{Ready, Span};
use mmu::shadow::{Host, Shadow};
use mmu::walk::{Ram, walk};
use rv::csr::{atp, hstatus, status};
use rv::system::number;
use rv::{Access, Addr, Caps, Exception, Exit, Fence, FenceScope, Gpa, Interrupt, L2Gpa, Mode, Pfn};
use sbi_spec::nacl;
use std::sync::Arc;

const VIRTUAL: u64 = Exception::VirtualInstruction as u64;
const LOAD: u64 = Exception::LoadGuestPage as u64;
const SRET: u64 = 0x1020_0073;
/// L1's root table, the next one, the one with leaves, and a page that it gives to L2.
const ROOT: u64 = GUEST_RAM_BASE + (4 << 20);
const MIDDLE: u64 = ROOT + 0x4000;
const LEAVES: u64 = ROOT + 0x5000;
const PAGE: u64 = ROOT + 0x10_0000;
/// L2's address of that page.
const AT: u64 = 0x4000_3000;
const ALL: u64 = 0xdf;

fn l1() -> World {
    let config = VmConfig { nested: true, mmu: Some(MmuMode::TwoStage), ..vm_config("l1", 1) };
    world_of(config, GuestTimer::Sstc)
}

fn state(w: &mut World) -> &mut Nested {
    w.run.nested.as_deref_mut().expect("it has the H extension")
}

fn store(w: &mut World, at: u64, value: u64) {
    let done = fake::write(&w.g, &w.run.vm, Addr::new(at), &value.to_le_bytes(), &mut w.hart);
    assert!(done.is_ok(), "{at:#x}: {done:?}");
}

/// `csrw CSR, a0`.
fn csrw(w: &mut World, csr: u16, value: u64) {
    w.run.context.x[10] = value;
    let insn = u64::from(csr) << 20 | 0x5_1073;
    assert_eq!(w.exit(VIRTUAL, insn, 0, 0), Outcome::Resume);
}

/// `csrr a0, CSR`.
fn csrr(w: &mut World, csr: u16) -> u64 {
    let insn = u64::from(csr) << 20 | 0x2573;
    assert_eq!(w.exit(VIRTUAL, insn, 0, 0), Outcome::Resume);
    w.run.context.x[10]
}

/// Makes L1's tables, and its wish to enter L2 at `pc`.
fn with_tables() -> World {
    let mut w = l1();
    let pointer = |to: u64| to >> 12 << 10 | 1;
    store(&mut w, ROOT + 8, pointer(MIDDLE));
    store(&mut w, MIDDLE, pointer(LEAVES));
    store(&mut w, LEAVES + 3 * 8, PAGE >> 12 << 10 | ALL);
    store(&mut w, PAGE, 4711);
    csrw(&mut w, number::HGATP, 8 << atp::MODE_SHIFT | 5 << atp::ID_SHIFT | ROOT >> 12);
    w
}

fn enter(w: &mut World, pc: u64) {
    csrw(w, number::HSTATUS, hstatus::SPV | hstatus::SPVP);
    w.hart.regs.vsepc = pc;
    w.hart.regs.vsstatus |= status::SPP;
    // Its tables may take more than one attempt.
    for _ in 0..100 {
        assert_eq!(w.exit(VIRTUAL, SRET, 0, 0), Outcome::Resume);
        if w.run.runs_l2() {
            assert_eq!((w.run.context.pc, w.hart.mode), (pc, Mode::Supervisor));
            return;
        }
    }
    panic!("L2 is not entered");
}

/// An exit of L2's, and those that it makes until its memory is ready.
fn exit_of_l2(w: &mut World, cause: u64, tval: u64, gpa: u64) {
    for _ in 0..100 {
        w.run.context.exit = Exit { cause, tval, tval2: gpa >> 2, tinst: 0 };
        assert_eq!(exit::nested::handle(&w.g, &mut w.run, &mut w.hart), Outcome::Resume);
        if !w.run.runs_l2() || w.run.shared.of_guests().faults.get() != 0 {
            return;
        }
    }
    panic!("L2's fault is not answered");
}

/// Returns the host address that L2's `at` leads to by the table which the hart walks.
fn walked(w: &mut World, at: u64) -> Option<u64> {
    let root = state(w).root?;
    let mem = w.hart.mem.clone();
    let request = rv::Request::user(Access::Store);
    let found = walk(root.format, root.table, Addr::<L2Gpa>::new(at), &request, Caps::default(), &mut Ram(&mem));
    found.ok().map(|walk| walk.out.raw())
}

#[test]
fn l2_runs_behind_the_shadow_of_l1s_table() {
    let mut w = with_tables();
    enter(&mut w, 0x1000);
    let events = &w.hart.events;
    assert!(events.iter().any(|event| matches!(event, Event::Nested(_))), "{events:?}");
    assert_eq!(walked(&mut w, AT), None);
    exit_of_l2(&mut w, LOAD, AT + 8, AT + 8);
    let hpa = walked(&mut w, AT + 8).expect("it is filled");
    let mut bytes = [0; 8];
    rv::PhysMem::read_bytes(&w.hart.mem, Addr::new(hpa - 8), &mut bytes);
    assert_eq!(u64::from_le_bytes(bytes), 4711);
}

#[test]
fn a_fault_that_l1s_table_makes_is_l1s_and_is_not_made_twice() {
    let mut w = with_tables();
    enter(&mut w, 0x1000);
    w.hart.regs.vstvec = 0xdead_0000;
    state(&mut w).other.vstvec = 0x8010_0000;
    w.hart.mode = Mode::User;
    exit_of_l2(&mut w, LOAD, 0x7123, 0x4000_4123);
    assert!(!w.run.runs_l2());
    let regs = w.hart.regs;
    assert_eq!((regs.vscause, regs.vstval, regs.vsepc), (LOAD, 0x7123, 0x1000));
    assert_eq!((w.run.context.pc, w.hart.mode), (0x8010_0000, Mode::Supervisor));
    assert_eq!(regs.vsstatus & status::SPP, 0, "L2 was in user mode");
    assert_eq!((csrr(&mut w, number::HTVAL), csrr(&mut w, number::VSTVEC)), (0x4000_4123 >> 2, 0xdead_0000));
    let status = csrr(&mut w, number::HSTATUS);
    assert_eq!(status & (hstatus::SPV | hstatus::SPVP | hstatus::GVA), hstatus::SPV | hstatus::GVA);
    // L1 maps the page, and enters L2 at the same instruction.
    store(&mut w, LEAVES + 4 * 8, PAGE >> 12 << 10 | ALL);
    enter(&mut w, 0x1000);
    assert_eq!(w.run.shared.of_guests().filled.get(), 1);
    assert!(walked(&mut w, 0x4000_4123).is_some());
}

/// A fence that only takes note.
#[derive(Default)]
struct Noted(Vec<FenceScope<Gpa>>);

impl Fence<Gpa> for Noted {
    fn fence(&mut self, scope: FenceScope<Gpa>) {
        self.0.push(scope);
    }
}

/// Takes a page from L1. Returns the fences.
fn give_back(w: &World, at: u64) -> Noted {
    let (mut hw, mut mem) = (Noted::default(), w.hart.mem.clone());
    let mut guard = w.run.vm.memory.lock();
    let memory = guard.as_mut().expect("it has memory");
    let (mut ready, frames) = (Ready::Nothing, w.g.frames());
    let host = &mut Host::new(&mut memory.space, (frames, &mut ready), &mut mem, &mut hw);
    let page = Span { start: Pfn::new(at >> 12), pages: 1 };
    Edits { shadow: None::<&mut Shadow>, nested: memory.nested.as_mut(), collapsed: None, host }.give_back(&[page]);
    hw
}

#[test]
fn a_page_that_gnomon_takes_from_l1_is_out_of_l2s_reach() {
    let mut w = with_tables();
    enter(&mut w, 0x1000);
    exit_of_l2(&mut w, LOAD, AT, AT);
    assert!(walked(&mut w, AT).is_some());
    let hw = give_back(&w, PAGE);
    assert_eq!(walked(&mut w, AT), None);
    assert!(!hw.0.is_empty(), "and the TLBs forget it");
    // L2 touches it again, and finds zeroes.
    w.run.shared.of_guests().faults.add(0);
    w.run.context.exit = Exit { cause: LOAD, tval: AT, tval2: AT >> 2, tinst: 0 };
    assert_eq!(exit::nested::handle(&w.g, &mut w.run, &mut w.hart), Outcome::Resume);
    assert!(w.run.runs_l2());
}

#[test]
fn an_interrupt_of_l1s_ends_l2s_run_if_it_is_enabled() {
    let mut w = with_tables();
    enter(&mut w, 0x1000);
    state(&mut w).other.vstvec = 0x8010_0001;
    w.hart.held = Interrupt::VsSoft.bit();
    exit::nested::interrupt(&w.g, &mut w.run, &mut w.hart);
    assert!(w.run.runs_l2(), "L1 has not enabled it");
    state(&mut w).other.vsie = Interrupt::SSoft.bit();
    exit::nested::interrupt(&w.g, &mut w.run, &mut w.hart);
    assert!(!w.run.runs_l2());
    assert_eq!((w.hart.regs.vscause, w.run.context.pc), (1 << 63 | 1, 0x8010_0004), "vectored");
}

#[test]
fn a_wait_of_l2s_is_gnomons_or_l1s() {
    for (traps, is_l1s) in [(0, false), (hstatus::VTW, true)] {
        let mut w = with_tables();
        csrw(&mut w, number::HSTATUS, traps);
        enter(&mut w, 0x1000);
        state(&mut w).csrs.hstatus |= traps;
        w.run.context.exit = Exit { cause: VIRTUAL, tval: rv::system::WFI, ..Exit::default() };
        let outcome = exit::nested::handle(&w.g, &mut w.run, &mut w.hart);
        assert_eq!((outcome == Outcome::Wait, w.run.runs_l2()), (!is_l1s, !is_l1s));
    }
}

#[test]
fn the_worlds_of_a_hart_are_told_apart() {
    let mut w = with_tables();
    w.hart.events.clear();
    csrw(&mut w, number::HSTATUS, hstatus::SPV);
    assert!(w.hart.events.contains(&Event::World(vcpu::World::Leaving)), "{:?}", w.hart.events);
    // A trap of L1's own ends its wish.
    let outcome = w.exit(LOAD, 5, 0x1000, 0);
    assert_eq!((outcome, w.hart.regs.vscause), (Outcome::Resume, Exception::LoadAccess.code()));
    assert_eq!(csrr(&mut w, number::HSTATUS) & hstatus::SPV, 0);
    assert!(w.hart.events.contains(&Event::World(vcpu::World::Own)), "{:?}", w.hart.events);
}

#[test]
fn the_extension_is_refused_where_it_cannot_be() {
    for (mmu, line) in [
        (MmuMode::Adaptive, "needs mmu = two-stage"),
        (MmuMode::Lazy, "vm: mmu = lazy; its guests run on collapsed tables"),
    ] {
        let config = VmConfig { nested: true, mmu: Some(mmu), ..vm_config("vm", 1) };
        let (g, mut hart) = fake::machine(vec![config], 1, GuestTimer::Sstc);
        fake::start_due(&g, &mut hart);
        let printed = printed();
        assert!(printed.contains(line), "{printed}");
    }
    // Without it, its instructions are illegal.
    let mut w = world_of(vm_config("vm", 1), GuestTimer::Sstc);
    let outcome = w.exit(VIRTUAL, 0x6000_2573, 0, 0);
    assert_eq!((outcome, w.hart.regs.vscause), (Outcome::Resume, Exception::IllegalInstruction.code()));
}

#[test]
fn a_shared_page_is_mapped_until_gnomon_takes_it() {
    const SHARED: u64 = PAGE + 0x10_0000;
    const SCRATCH: u64 = SHARED + 0x1000 + 8 * 0x40;
    let counted = |w: &World| {
        let counters = w.run.shared.of_guests();
        [&counters.mappings_made, &counters.mappings_used].map(hypervisor::measure::counters::Counter::get)
    };
    let read = |w: &mut World, at: u64| {
        let mut bytes = [0; 8];
        let vm = w.run.vm.clone();
        vm.read(&w.g, Addr::new(at), &mut bytes, &mut Ready::Nothing, &mut w.hart).expect("it is memory");
        u64::from_le_bytes(bytes)
    };
    let mut w = l1();
    assert_eq!(w.sbi(nacl::EID_NACL, nacl::SET_SHMEM as u64, &[SHARED, 0, 0]).0, 0);
    let [made, _] = counted(&w);
    assert_eq!(made, 2, "what CSRs are written, and their values");
    csrw(&mut w, number::VSSCRATCH, 0x1234);
    assert_eq!(read(&mut w, SCRATCH), 0x1234);
    let [still, used] = counted(&w);
    assert!(still == made && used > 0, "{still} made, {used} used");
    // The page is another one from now on.
    let _ = give_back(&w, SCRATCH);
    assert_eq!(read(&mut w, SCRATCH), 0);
    csrw(&mut w, number::VSSCRATCH, 0x5678);
    assert_eq!((read(&mut w, SCRATCH), counted(&w)[0]), (0x5678, made + 1));
    assert_eq!(w.sbi(nacl::EID_NACL, nacl::SET_SHMEM as u64, &[u64::MAX, u64::MAX, 0]).0, 0);
    csrw(&mut w, number::VSSCRATCH, 0x9abc);
    assert_eq!((read(&mut w, SCRATCH), counted(&w)[0]), (0x5678, made + 1), "it is shared no more");
}

/// The registers that the fake hart has for a guest are the vCPU's again.
fn unload(w: &mut World) {
    let csrs = &mut w.run.bank.csrs;
    let VsTrapRegs { vsstatus, vstvec, vsepc, vscause, vstval } = w.hart.regs;
    *csrs = VsCsrs { vsstatus, vstvec, vsepc, vscause, vstval, vsie: w.hart.vsie, hvip: w.hart.lines, ..*csrs };
    csrs.vsatp = w.hart.vsatp;
    w.run.bank.mode = w.hart.mode;
}

/// The vCPU's registers are in the fake hart.
fn load(w: &mut World) {
    let VsCsrs { vsstatus, vstvec, vsepc, vscause, vstval, vsie, hvip, vsatp, .. } = w.run.bank.csrs;
    w.hart.regs = VsTrapRegs { vsstatus, vstvec, vsepc, vscause, vstval };
    (w.hart.vsie, w.hart.lines, w.hart.vsatp, w.hart.mode) = (vsie, hvip, vsatp, w.run.bank.mode);
}

/// Takes a snapshot, and makes a machine on which the VM goes on from it, its vCPU on the hart.
fn kept(w: World, l2: L2Tables) -> World {
    let config = VmConfig { nested: true, l2, mmu: Some(MmuMode::TwoStage), ..vm_config("l1", 1) };
    let mut w = snapshot::carry(w, config).unwrap_or_else(|why| panic!("{why}"));
    load(&mut w);
    w
}

#[test]
fn l2_goes_on_from_a_snapshot_that_was_taken_while_it_ran() {
    for l2 in [L2Tables::Nested, L2Tables::Collapsed] {
        let mut w = with_tables();
        csrw(&mut w, number::HIDELEG, Interrupt::VsSoft.bit());
        csrw(&mut w, number::HEDELEG, 0x100);
        csrw(&mut w, number::VSTVEC, 0x6000);
        w.hart.regs.vstvec = 0x8010_0000;
        enter(&mut w, 0x1000);
        (w.run.context.pc, w.hart.mode, w.run.context.x[5]) = (0x1234, Mode::User, 55);
        (w.hart.regs.vsepc, w.hart.vsie) = (0x78, Interrupt::SSoft.bit());
        unload(&mut w);
        // What has not gone on yet is kept, too.
        let mut w = kept(w, l2);
        assert!(!w.run.runs_l2() && w.hart.regs.vstvec == 0x8010_0000, "L1 first");
        unload(&mut w);
        let mut w = kept(w, l2);
        exit::nested::interrupt(&w.g, &mut w.run, &mut w.hart);
        let attempts = (0..100).take_while(|_| exit::nested::settle(&w.g, &mut w.run, &mut w.hart).is_some()).count();
        assert!(w.run.runs_l2() && w.run.collapses() == (l2 == L2Tables::Collapsed), "{attempts}");
        assert_eq!((w.run.context.pc, w.hart.mode, w.run.context.x[5]), (0x1234, Mode::User, 55));
        assert_eq!((w.hart.regs.vsepc, w.hart.vsie), (0x78, Interrupt::SSoft.bit()));
        // L1 finds it so after the next exit.
        let cause = if l2 == L2Tables::Collapsed { Exception::LoadPage as u64 } else { LOAD };
        exit_of_l2(&mut w, cause, 0x4000_4123, 0x4000_4123);
        assert_eq!((w.run.context.pc, w.hart.regs.vsepc, w.hart.regs.vscause), (0x8010_0000, 0x1234, LOAD));
        assert_eq!((csrr(&mut w, number::VSEPC), csrr(&mut w, number::VSTVEC)), (0x78, 0x6000));
        assert_eq!((csrr(&mut w, number::HIDELEG), csrr(&mut w, number::HIE)), (4, 4));
        assert_eq!(csrr(&mut w, number::HGATP), 8 << atp::MODE_SHIFT | 5 << atp::ID_SHIFT | ROOT >> 12);
    }
}

#[test]
fn a_debugger_reads_and_stops_l2_by_l1s_table() {
    let ask = |w: &mut World, vm: &Arc<Vm>, wish| debug::ask(&w.g, vm, wish, &mut w.hart);
    let aside = |w: &mut World| {
        let other = l1().run;
        unload(w);
        let run = std::mem::replace(&mut w.run, other);
        w.g.sched.stopped();
        put_aside(&w.g, run, &mut w.hart);
    };
    let mut w = with_tables();
    enter(&mut w, AT);
    let vm = Arc::clone(&w.run.vm);
    assert_eq!(ask(&mut w, &vm, Debug::Attach), Answer::Done);
    aside(&mut w);
    assert_eq!(ask(&mut w, &vm, Debug::State), Answer::Stopped(Stopped::Halted));
    let wish = Debug::Read { vcpu: 0, at: AT, bytes: 8 };
    assert_eq!(ask(&mut w, &vm, wish), Answer::Memory(4711u64.to_le_bytes().to_vec()));
    let nowhere = ask(&mut w, &vm, Debug::Read { vcpu: 0, at: AT + 0x1000, bytes: 8 });
    assert!(matches!(nowhere, Answer::Refused(_)), "{nowhere:?}");
    assert_eq!(ask(&mut w, &vm, Debug::Break { vcpu: 0, at: AT + 4 }), Answer::Done);
    assert_eq!(ask(&mut w, &vm, Debug::Continue), Answer::Done);
    w.run = w.g.sched.take(0).expect("it goes on");
    load(&mut w);
    w.run.context.pc = AT + 4;
    w.run.context.exit = Exit { cause: Exception::Breakpoint as u64, tval: AT + 4, ..Exit::default() };
    assert_eq!(exit::nested::handle(&w.g, &mut w.run, &mut w.hart), Outcome::Resume);
    assert!(w.run.runs_l2(), "it is not L1's");
    aside(&mut w);
    assert_eq!(ask(&mut w, &vm, Debug::State), Answer::Stopped(Stopped::AtBreak(0)));
    assert_eq!(ask(&mut w, &vm, Debug::Detach), Answer::Done);
    // Another one is L1's.
    w.run = w.g.sched.take(0).expect("it goes on");
    load(&mut w);
    state(&mut w).other.vstvec = 0x8010_0000;
    w.run.context.exit = Exit { cause: Exception::Breakpoint as u64, tval: AT + 4, ..Exit::default() };
    assert_eq!(exit::nested::handle(&w.g, &mut w.run, &mut w.hart), Outcome::Resume);
    assert_eq!((w.run.runs_l2(), w.run.context.pc), (false, 0x8010_0000));
}
