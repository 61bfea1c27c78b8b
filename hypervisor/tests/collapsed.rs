//! A guest that is a hypervisor (L1), and its guest (L2) on collapsed tables.

use crate::fake::{self, Event, World, vm_config, world_of};
use abi::bundle::{GUEST_RAM_BASE, L2Tables, MmuMode, VmConfig};
use hypervisor::device::offer::GuestTimer;
use hypervisor::exit;
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::Nested;
use mmu::Edits;
use mmu::gstage::{Ready, Span};
use mmu::shadow::{Host, Shadow};
use mmu::walk::{Ram, walk};
use rv::csr::{atp, hstatus, status};
use rv::system::number;
use rv::{Access, Addr, Caps, Exception, Exit, Fence, FenceScope, Gpa, L2Gva, Mode, Pfn, Request};

const VIRTUAL: u64 = Exception::VirtualInstruction as u64;
const LOAD: u64 = Exception::LoadPage as u64;
const GUEST_LOAD: u64 = Exception::LoadGuestPage as u64;
const SRET: u64 = 0x1020_0073;
/// L1's root table, the next one, the one with leaves, and what it gives to L2: a page and a table.
const ROOT: u64 = GUEST_RAM_BASE + (4 << 20);
const MIDDLE: u64 = ROOT + 0x4000;
const LEAVES: u64 = ROOT + 0x5000;
const PAGE: u64 = ROOT + 0x10_0000;
const TABLE: u64 = ROOT + 0x11_0000;
/// L2's physical addresses of those two.
const AT: u64 = 0x4000_3000;
const TABLE_AT: u64 = 0x4000_5000;
const ALL: u64 = 0xdf;
/// L2's own paging: 1 GiB onto itself, by 1 GiB.
const VSATP: u64 = 8 << atp::MODE_SHIFT | 9 << atp::ID_SHIFT | TABLE_AT >> 12;

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
    assert_eq!(w.exit(VIRTUAL, u64::from(csr) << 20 | 0x5_1073, 0, 0), Outcome::Resume);
}

/// Makes L1's tables, and lets it enter L2.
fn l2() -> World {
    let config = VmConfig {
        nested: true,
        l2: L2Tables::Collapsed,
        mmu: Some(MmuMode::TwoStage),
        memory_bytes: 64 << 20,
        ..vm_config("l1", 1)
    };
    let mut w = world_of(config, GuestTimer::Sstc);
    let pointer = |to: u64| to >> 12 << 10 | 1;
    store(&mut w, ROOT + 8, pointer(MIDDLE));
    store(&mut w, MIDDLE, pointer(LEAVES));
    store(&mut w, LEAVES + 3 * 8, PAGE >> 12 << 10 | ALL);
    store(&mut w, LEAVES + 5 * 8, TABLE >> 12 << 10 | ALL);
    store(&mut w, PAGE, 4711);
    store(&mut w, TABLE + 8, 0x4000_0000 >> 12 << 10 | 0xcf);
    csrw(&mut w, number::HGATP, 8 << atp::MODE_SHIFT | 5 << atp::ID_SHIFT | ROOT >> 12);
    enter(&mut w, 0x1000);
    w
}

fn enter(w: &mut World, pc: u64) {
    csrw(w, number::HSTATUS, hstatus::SPV | hstatus::SPVP);
    w.hart.regs.vsepc = pc;
    w.hart.regs.vsstatus |= status::SPP;
    for _ in 0..100 {
        assert_eq!(w.exit(VIRTUAL, SRET, 0, 0), Outcome::Resume);
        if w.run.runs_l2() {
            return;
        }
    }
    panic!("L2 is not entered");
}

/// A page fault of L2's, and those that it makes until its memory is ready.
fn fault(w: &mut World, tval: u64) {
    let before = w.run.shared.of_guests().faults.get();
    for _ in 0..200 {
        w.run.context.exit = Exit { cause: LOAD, tval, ..Exit::default() };
        assert_eq!(exit::nested::handle(&w.g, &mut w.run, &mut w.hart), Outcome::Resume);
        if !w.run.runs_l2() || walked(w, tval).is_some() || w.hart.regs.vscause == LOAD {
            return;
        }
        assert!(exit::nested::settle(&w.g, &mut w.run, &mut w.hart).is_none(), "it has a root");
    }
    panic!("L2's fault is not answered: {before}");
}

/// Returns the host address that L2's virtual address leads to by the table which the hart walks.
fn walked(w: &mut World, at: u64) -> Option<u64> {
    let root = state(w).collapsed.as_ref()?.root?;
    let mem = w.hart.mem.clone();
    let request = Request::supervisor(Access::Load);
    let found = walk(root.format, root.table, Addr::<L2Gva>::new(at), &request, Caps::default(), &mut Ram(&mem));
    found.ok().map(|walk| walk.out.raw())
}

fn is_page(w: &World, hpa: Option<u64>) -> bool {
    let mut bytes = [0; 8];
    hpa.is_some_and(|hpa| {
        rv::PhysMem::read_bytes(&w.hart.mem, Addr::new(hpa), &mut bytes);
        u64::from_le_bytes(bytes) == 4711
    })
}

/// Lets L2 execute an instruction that traps.
fn execute(w: &mut World, insn: u64) -> Outcome {
    w.run.context.exit = Exit { cause: VIRTUAL, tval: insn, ..Exit::default() };
    exit::nested::handle(&w.g, &mut w.run, &mut w.hart)
}

/// `csrrw a1, satp, a0`.
fn set_satp(w: &mut World, value: u64) {
    w.run.context.x[10] = value;
    for _ in 0..100 {
        let pc = w.run.context.pc;
        assert_eq!(execute(w, 0x180 << 20 | 10 << 15 | 1 << 12 | 11 << 7 | 0x73), Outcome::Resume);
        if w.run.context.pc != pc {
            return;
        }
    }
    panic!("satp is not written");
}

#[test]
fn one_table_leads_from_l2s_addresses_to_the_hosts() {
    let mut w = l2();
    assert!(w.hart.events.iter().any(|event| matches!(event, Event::Nested(_))), "{:?}", w.hart.events);
    fault(&mut w, AT);
    let there = walked(&mut w, AT);
    assert!(is_page(&w, there), "without paging of its own");
    set_satp(&mut w, VSATP);
    assert_eq!((w.run.context.x[11], w.run.bank.csrs.vsatp), (0, VSATP));
    assert_eq!(walked(&mut w, AT), None, "it has another root");
    fault(&mut w, AT);
    assert_eq!(walked(&mut w, AT), there);
    // It turns paging off and on again.
    set_satp(&mut w, 0);
    assert_eq!((w.run.context.x[11], walked(&mut w, AT)), (VSATP, there));
    set_satp(&mut w, 13 << atp::MODE_SHIFT);
    assert_eq!(w.run.bank.csrs.vsatp, 0, "no such mode");
}

#[test]
fn a_fault_of_l1s_table_is_l1s_and_is_not_made_twice() {
    let mut w = l2();
    set_satp(&mut w, VSATP);
    state(&mut w).other.vstvec = 0x8010_0000;
    w.run.context.pc = 0x1000;
    fault(&mut w, AT + 0x1123);
    assert!(!w.run.runs_l2());
    let (regs, csrs) = (w.hart.regs, state(&mut w).csrs);
    assert_eq!((regs.vscause, regs.vstval, csrs.htval, csrs.htinst), (GUEST_LOAD, AT + 0x1123, (AT + 0x1123) >> 2, 0));
    assert_eq!(state(&mut w).other.vsatp, VSATP, "and L1 sees L2's own vsatp");
    store(&mut w, LEAVES + 4 * 8, PAGE >> 12 << 10 | ALL);
    enter(&mut w, 0x1000);
    assert_eq!(w.run.shared.of_guests().filled.get(), 1);
    assert!(walked(&mut w, AT + 0x1123).is_some());
}

#[test]
fn a_fault_of_l2s_own_table_is_l2s_if_l1_delegates_it() {
    for delegated in [true, false] {
        let mut w = l2();
        set_satp(&mut w, VSATP);
        state(&mut w).csrs.hedeleg = if delegated { 1 << LOAD } else { 0 };
        fault(&mut w, 0x8000_0000);
        assert_eq!((w.run.runs_l2(), w.hart.regs.vscause, w.hart.regs.vstval), (delegated, LOAD, 0x8000_0000));
    }
}

#[test]
fn a_table_that_l1_does_not_give_is_a_fault_of_l1s_with_the_pseudoinstruction() {
    let mut w = l2();
    store(&mut w, LEAVES + 5 * 8, 0);
    set_satp(&mut w, VSATP);
    fault(&mut w, AT);
    let csrs = state(&mut w).csrs;
    assert_eq!((w.run.runs_l2(), csrs.htval, csrs.htinst), (false, (TABLE_AT + 8) >> 2, 0x3000));
    // L1 gives it; L2 gets the root that it asked for.
    store(&mut w, LEAVES + 5 * 8, TABLE >> 12 << 10 | ALL);
    enter(&mut w, 0x1000);
    fault(&mut w, AT);
    let there = walked(&mut w, AT);
    assert!(is_page(&w, there));
}

#[test]
fn fences_end_what_they_are_about() {
    const SFENCE: u64 = 0x1200_0073;
    let mut w = l2();
    set_satp(&mut w, VSATP);
    fault(&mut w, AT);
    // L2 takes its mapping away.
    store(&mut w, TABLE + 8, 0);
    assert!(walked(&mut w, AT).is_some(), "it has not fenced");
    assert_eq!(execute(&mut w, SFENCE), Outcome::Resume);
    assert_eq!(walked(&mut w, AT), None);
    store(&mut w, TABLE + 8, 0x4000_0000 >> 12 << 10 | 0xcf);
    fault(&mut w, AT);
    // L1 takes the page away: a fence of another page, then of this one, in L1.
    state(&mut w).csrs.hstatus |= hstatus::VTVM;
    assert_eq!(execute(&mut w, SFENCE), Outcome::Resume);
    assert!(!w.run.runs_l2(), "L1 wants L2's fences");
    store(&mut w, LEAVES + 3 * 8, 0);
    let fence = |w: &mut World, at: u64| {
        (w.run.context.x[10], w.run.context.x[11]) = (at >> 2, 5);
        // hfence.gvma a0, a1
        assert_eq!(w.exit(VIRTUAL, 0x31 << 25 | 11 << 20 | 10 << 15 | 0x73, 0, 0), Outcome::Resume);
    };
    fence(&mut w, AT + 0x4000);
    assert!(walked(&mut w, AT).is_some());
    fence(&mut w, AT);
    assert_eq!(walked(&mut w, AT), None);
}

/// A fence that only takes note.
#[derive(Default)]
struct Noted(Vec<FenceScope<Gpa>>);

impl Fence<Gpa> for Noted {
    fn fence(&mut self, scope: FenceScope<Gpa>) {
        self.0.push(scope);
    }
}

#[test]
fn a_page_that_gnomon_takes_from_l1_is_out_of_l2s_reach() {
    let mut w = l2();
    fault(&mut w, AT);
    let (mut hw, mut mem) = (Noted::default(), w.hart.mem.clone());
    {
        let mut guard = w.run.vm.memory.lock();
        let memory = guard.as_mut().expect("it has memory");
        let (mut ready, frames) = (Ready::Nothing, w.g.frames());
        let host = &mut Host::new(&mut memory.space, (frames, &mut ready), &mut mem, &mut hw);
        let page = Span { start: Pfn::new(PAGE >> 12), pages: 1 };
        let collapsed = memory.collapsed.as_mut();
        Edits { shadow: None::<&mut Shadow>, nested: None, collapsed, host }.give_back(&[page]);
    }
    assert_eq!(walked(&mut w, AT), None);
    assert!(!hw.0.is_empty(), "and the TLBs forget it");
    // L2 touches it again, and finds zeroes.
    fault(&mut w, AT);
    let there = walked(&mut w, AT);
    assert!(there.is_some() && !is_page(&w, there) && w.hart.mode == Mode::Supervisor);
}
