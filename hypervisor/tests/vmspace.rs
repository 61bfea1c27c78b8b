//! The address-space calls, handled on a host.

use crate::fake::{self, Event, World, read_word as read, shadow_world, vm_config, world_of, write_word as write};
use crate::snapshot;
use abi::bundle::{GUEST_RAM_BASE, MmuMode, VmConfig};
use abi::tunable::Id;
use abi::vmspace::{
    CAUSE_AT, CREATE, DESTROY, EXTENSION, FLAGS_AT, INFO, INVALIDATE, PC_AT, READ, RUN, SET_ROOT, SWITCH, TVAL_AT,
    WRITE, Way,
};
use hypervisor::device::offer::GuestTimer;
use hypervisor::exit::vmspace;
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::spaces::{Reach, Refusal};
use hypervisor::vm::vcpu::request;
use rv::{Addr, Asid, Exception, Exit, Interrupt, Mode};
use std::sync::atomic::Ordering;

const RAM: u64 = GUEST_RAM_BASE;
const SV39: u64 = 8 << 60;
/// A program's root, the next tables, and its page, which is at 0x1000.
const ROOT: u64 = RAM + 0x10_0000;
const PAGE: u64 = RAM + 0x10_3000;
const AT: u64 = 0x1000;
/// The context page.
const CONTEXT: u64 = RAM + 0x28_0000;
const INVALID: i64 = -3;
const KERNEL: u64 = RAM + 0x40_0100;

/// Makes a space with a page for its program. Returns its handle.
fn space(w: &mut World) -> u64 {
    write(w, ROOT, (ROOT + 0x1000) >> 2 | 1);
    write(w, ROOT + 0x1000, (ROOT + 0x2000) >> 2 | 1);
    write(w, ROOT + 0x2008, PAGE >> 2 | 0xdf);
    let (error, handle) = call(w, CREATE, &[SV39 | 77 << 44 | ROOT >> 12]);
    assert_eq!(error, 0);
    handle
}

fn call(w: &mut World, function: usize, args: &[u64]) -> (i64, u64) {
    w.run.context.pc = KERNEL;
    w.sbi(EXTENSION, function as u64, args)
}

/// Calls RUN. Returns the error, if the program does not run.
fn run(w: &mut World, handle: u64, page: u64) -> Option<i64> {
    for n in 1..32 {
        w.run.context.x[n] = 0x1000 + n as u64;
    }
    let x = &mut w.run.context.x;
    (x[10], x[11], x[16], x[17]) = (handle, page, RUN as u64, EXTENSION as u64);
    w.run.context.pc = KERNEL;
    assert_eq!(w.exit(10, 0, 0, 0), Outcome::Resume);
    (!w.run.runs_program()).then(|| w.run.context.x[10] as i64)
}

fn exit(w: &mut World, cause: Exception, tval: u64) -> Outcome {
    w.run.context.exit = Exit { cause: cause.code(), tval, ..Exit::default() };
    vmspace::handle(&w.g, &mut w.run, &mut w.hart)
}

/// Checks that the kernel goes on behind its call, as it made it.
fn is_back(w: &World, pc: u64) {
    assert!(!w.run.runs_program() && w.hart.mode == Mode::Supervisor);
    assert_eq!((w.run.context.pc, w.run.bank.csrs.vsatp), (pc, 0));
    for n in (1..32).filter(|n| ![10, 11, 16, 17].contains(n)) {
        assert_eq!(w.run.context.x[n], 0x1000 + n as u64, "x{n}");
    }
    let last = w.hart.events.iter().rfind(|event| matches!(event, Event::Program(_)));
    assert_eq!(last, Some(&Event::Program(false)));
}

#[test]
fn a_program_runs_until_it_traps() {
    let mut w = shadow_world(MmuMode::Lazy, 1);
    w.hart.vsie = Interrupt::STimer.bit();
    let handle = space(&mut w);
    for n in 0..32 {
        write(&mut w, CONTEXT + 8 * n, 0x2000 + n);
    }
    write(&mut w, CONTEXT + PC_AT, AT | 1);
    assert_eq!(run(&mut w, handle, CONTEXT), None);
    assert_eq!((w.run.context.pc, w.hart.mode, w.hart.vsie), (AT, Mode::User, 0));
    assert_eq!((w.run.context.x[0], w.run.context.x[5], w.run.context.x[31]), (0, 0x2005, 0x201f));
    assert_eq!(w.run.bank.csrs.vsatp & !(0xffff << 44), SV39 | ROOT >> 12, "an ASID of Gnomon's");
    // Its tables answer a fault.
    assert_eq!(exit(&mut w, Exception::LoadPage, AT + 8), Outcome::Resume);
    assert!(w.run.runs_program());
    w.run.context.x[7] = 99;
    w.run.context.pc = AT + 4;
    assert_eq!(exit(&mut w, Exception::EcallFromU, 0), Outcome::Resume);
    is_back(&w, KERNEL + 4);
    assert_eq!((w.run.context.x[10], w.run.context.x[11], w.hart.vsie), (0, 0, Interrupt::STimer.bit()));
    let words = [56, PC_AT, CAUSE_AT, TVAL_AT, TVAL_AT + 8, 0, 248].map(|at| read(&mut w, CONTEXT + at));
    assert_eq!(words, [99, AT + 4, 8, 0, 0x73, 0, 0x201f]);
    // And not another, of which the kernel is told.
    assert_eq!(run(&mut w, handle, CONTEXT), None);
    assert_eq!(exit(&mut w, Exception::StorePage, 0x2345), Outcome::Resume);
    is_back(&w, KERNEL + 4);
    assert_eq!([CAUSE_AT, TVAL_AT].map(|at| read(&mut w, CONTEXT + at)), [15, 0x2345]);
    // What is virtual to the hart is illegal to the kernel.
    assert_eq!(run(&mut w, handle, CONTEXT), None);
    assert_eq!(exit(&mut w, Exception::VirtualInstruction, 0x1200_0073), Outcome::Resume);
    let words = [CAUSE_AT, TVAL_AT, TVAL_AT + 8].map(|at| read(&mut w, CONTEXT + at));
    assert_eq!(words, [2, 0x1200_0073, 0x1200_0073]);
    assert_eq!(w.run.shared.counters.inject_exception.get(), 0);
    assert_eq!(call(&mut w, DESTROY, &[handle]), (0, 0));
    assert_eq!(run(&mut w, handle, CONTEXT), Some(INVALID));
}

#[test]
fn interrupts_that_the_kernel_has_enabled_end_the_run() {
    let mut w = shadow_world(MmuMode::Lazy, 1);
    let handle = space(&mut w);
    write(&mut w, CONTEXT + PC_AT, AT);
    w.hart.lines = Interrupt::VsSoft.bit();
    assert_eq!(run(&mut w, handle, CONTEXT), None, "it is not enabled");
    assert_eq!(vmspace::settle(&w.g, &mut w.run, &mut w.hart), None);
    assert!(w.run.runs_program());
    assert_eq!(exit(&mut w, Exception::EcallFromU, 0), Outcome::Resume);
    w.hart.vsie = Interrupt::SSoft.bit() | Interrupt::STimer.bit();
    w.hart.comparator = 5000;
    assert_eq!(run(&mut w, handle, CONTEXT), Some(0), "it is pending before the program begins");
    is_back(&w, KERNEL + 4);
    assert_eq!(read(&mut w, CONTEXT + CAUSE_AT), 1 << 63 | 1);
    w.hart.lines = 0;
    assert_eq!(run(&mut w, handle, CONTEXT), None);
    assert_eq!(w.run.deadline, w.run.vm.host_time(5000, w.hart.time), "Gnomon's timer stands in for the comparator");
    w.hart.lines = Interrupt::VsTimer.bit() | Interrupt::VsSoft.bit();
    assert_eq!(vmspace::settle(&w.g, &mut w.run, &mut w.hart), None);
    is_back_after_timer(&w);
    assert_eq!([CAUSE_AT, PC_AT].map(|at| read(&mut w, CONTEXT + at)), [1 << 63 | 1, AT]);
    // The comparator alone, whose interrupt the hart has not raised yet.
    w.hart.lines = 0;
    assert_eq!(run(&mut w, handle, CONTEXT), None);
    w.hart.time = w.run.vm.host_time(5000, w.hart.time) - 1;
    assert_eq!(vmspace::settle(&w.g, &mut w.run, &mut w.hart), None);
    assert!(w.run.runs_program(), "it is not due yet");
    w.hart.time += 1;
    assert_eq!(vmspace::settle(&w.g, &mut w.run, &mut w.hart), None);
    is_back_after_timer(&w);
    assert_eq!((read(&mut w, CONTEXT + CAUSE_AT), w.hart.lines), (1 << 63 | 5, 0));
    w.hart.comparator = u64::MAX;
    // A software event: the kernel makes the call again.
    w.hart.lines = 0;
    assert_eq!(run(&mut w, handle, CONTEXT), None);
    w.run.program.as_mut().unwrap().waits_events = true;
    w.run.context.x[9] = 7;
    assert_eq!(vmspace::settle(&w.g, &mut w.run, &mut w.hart), None);
    assert_eq!((w.run.context.pc, w.run.context.x[10], w.run.context.x[11]), (KERNEL, handle, CONTEXT));
    assert_ne!(w.run.shared.posted.load(Ordering::SeqCst) & request::EVENTS, 0);
    assert_eq!(read(&mut w, CONTEXT + 72), 7, "the program's progress is in the page");
}

fn is_back_after_timer(w: &World) {
    assert!(!w.run.runs_program());
    assert_eq!((w.run.context.pc, w.run.deadline), (KERNEL + 4, u64::MAX));
}

#[test]
fn what_cannot_be_is_refused() {
    for mode in [MmuMode::Lazy, MmuMode::TwoStage] {
        let config = VmConfig { mmu: Some(mode), ..vm_config("vm", 1) };
        let mut w = if mode == MmuMode::Lazy { shadow_world(mode, 1) } else { world_of(config, GuestTimer::Sstc) };
        let is_soft = mode == MmuMode::Lazy;
        assert_eq!(call(&mut w, INFO, &[]), (0, if is_soft { 5 } else { 3 }));
        let handle = space(&mut w);
        assert_eq!(call(&mut w, if is_soft { SWITCH } else { RUN }, &[handle, CONTEXT]), (-2, 0));
        for satp in [0, ROOT >> 12, SV39, SV39 | (RAM + fake::MEMORY) >> 12, 9 << 60 | ROOT >> 12, u64::MAX] {
            assert_eq!(call(&mut w, CREATE, &[satp]), (-5, 0), "{satp:#x}");
            assert_eq!(call(&mut w, SET_ROOT, &[handle, satp]), (-5, 0), "{satp:#x}");
        }
        for (page, error) in [(CONTEXT + 8, INVALID), (0, -5), (RAM + fake::MEMORY, -5), (u64::MAX << 12, -5)] {
            if is_soft {
                assert_eq!(run(&mut w, handle, page), Some(error), "{page:#x}");
            }
        }
        if is_soft {
            write(&mut w, CONTEXT + FLAGS_AT, 1);
            assert_eq!(run(&mut w, handle, CONTEXT), Some(INVALID));
            assert_eq!(call(&mut w, DESTROY, &[handle + 0x100]), (INVALID, 0));
        }
        assert_eq!(call(&mut w, INVALIDATE, &[handle, CONTEXT, 257]), (INVALID, 0));
        assert_eq!(call(&mut w, INVALIDATE, &[handle, RAM + fake::MEMORY - 8, 1]), (-5, 0));
        let buffer = RAM + 0x30_0ff8;
        write(&mut w, PAGE + 0xff8, 42);
        assert_eq!(call(&mut w, READ, &[handle, AT + 0xff8, buffer, 16]), (-4, 8), "the next page is not mapped");
        assert_eq!(read(&mut w, buffer), 42);
        write(&mut w, buffer, 43);
        assert_eq!(call(&mut w, WRITE, &[handle, AT + 0xff0, buffer, 8]), (0, 8));
        assert_eq!(read(&mut w, PAGE + 0xff0), 43);
        assert_eq!(call(&mut w, READ, &[handle, AT, buffer, 4097]), (INVALID, 0));
        assert_eq!(call(&mut w, DESTROY, &[handle]), (0, 0));
        assert_eq!(call(&mut w, DESTROY, &[handle]), (INVALID, 0));
        assert!(w.g.tunables.set("vmspace=off").is_ok() && !w.g.tunables.is_on(Id::Vmspace));
        assert_eq!(call(&mut w, INFO, &[]), (-2, 0));
    }
}

#[test]
fn a_vm_has_the_way_that_it_is_to_use() {
    for (mode, way, part) in [
        (Some(MmuMode::Lazy), Way::Nested, "use mmu = two-stage"),
        (Some(MmuMode::TwoStage), Way::Soft, "use mmu = lazy"),
        (Some(MmuMode::Adaptive), Way::Nested, "use mmu = two-stage"),
        (None, Way::Soft, "use mmu = lazy"),
    ] {
        let config = VmConfig { mmu: mode, vmspace: way, ..vm_config("vm", 1) };
        let (g, _) = fake::machine(vec![vm_config("vm", 1)], 1, GuestTimer::Sstc);
        let translation = hypervisor::vm::Translation::from(g.offer.mode(&config));
        let refused = translation.check(&config, &g.offer).unwrap_err();
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn a_switch_fences_only_what_has_changed_meanwhile() {
    let config = VmConfig { mmu: Some(MmuMode::TwoStage), ..vm_config("vm", 1) };
    let mut w = world_of(config, GuestTimer::Sstc);
    let (one, other) = (space(&mut w), space(&mut w));
    // 9 bits of ASIDs: the highest.
    let satp = |slot: u64| SV39 | (511 - slot) << 44 | ROOT >> 12;
    let fences = |w: &mut World| {
        let fences = w.hart.events.iter().filter(|event| matches!(event, Event::GuestFence(..))).cloned().collect();
        w.hart.events.clear();
        fences
    };
    let asid = |slot: u16| Some(Asid(511 - slot));
    for (slot, handle) in [(0, one), (1, other), (0, one)] {
        assert_eq!(call(&mut w, SWITCH, &[handle]), (0, 0));
        assert_eq!((w.hart.vsatp, fences(&mut w)), (satp(slot), vec![]));
    }
    write(&mut w, CONTEXT, AT + 5);
    write(&mut w, CONTEXT + 8, 1);
    assert_eq!(call(&mut w, INVALIDATE, &[one, CONTEXT, 1]), (0, 0));
    assert_eq!(fences(&mut w), [Event::GuestFence(Some(Addr::new(AT)), asid(0))]);
    assert_eq!(call(&mut w, INVALIDATE, &[other, 0, 0]), (0, 0));
    assert_eq!(fences(&mut w), [Event::GuestFence(None, asid(1))], "of a space that is not the present one");
    assert_eq!(call(&mut w, SWITCH, &[other]), (0, 0));
    assert_eq!(fences(&mut w), []);
    assert_eq!(call(&mut w, DESTROY, &[one]), (0, 0));
    fences(&mut w);
    let next = space(&mut w);
    assert_eq!(call(&mut w, SWITCH, &[next]), (0, 0));
    assert_eq!(fences(&mut w), [Event::GuestFence(None, asid(0))], "it has the ASID of the one before");
    assert_eq!((call(&mut w, SWITCH, &[one]), call(&mut w, SWITCH, &[0])), ((INVALID, 0), (INVALID, 0)));
}

#[test]
fn changes_are_posted_to_vcpus_that_have_run_the_space() {
    let mut w = shadow_world(MmuMode::Lazy, 2);
    let handle = space(&mut w);
    let vm = w.run.vm.clone();
    let other = || vm.vcpus[1].posted.swap(0, Ordering::SeqCst) & request::FENCES != 0;
    let _ = vm.tlb.spaces.lock().enter(handle, 1);
    assert_eq!(call(&mut w, INVALIDATE, &[handle, 0, 0]), (0, 0));
    assert!(other(), "it runs the space");
    assert_eq!(call(&mut w, DESTROY, &[handle]), (-7, 0));
    assert_eq!(call(&mut w, SET_ROOT, &[handle, SV39 | ROOT >> 12]), (-7, 0));
    vm.tlb.spaces.lock().leave(1);
    assert_eq!(call(&mut w, INVALIDATE, &[handle, 0, 0]), (0, 0));
    assert!(other(), "it may have entered it since");
    assert_eq!(call(&mut w, INVALIDATE, &[handle, 0, 0]), (0, 0));
    assert!(!other(), "it has fenced all of it");
}

/// Takes a snapshot of a VM whose vCPU is in a program, and makes a machine on which the VM goes on from it in that mode, its vCPU not loaded.
fn kept(mut w: World, mmu: MmuMode) -> Result<World, String> {
    w.run.bank.mode = w.hart.mode;
    w.run.bank.csrs.vsie = w.hart.vsie;
    let mut w = snapshot::carry(w, VmConfig { mmu: Some(mmu), svvptc: false, ..vm_config("vm", 1) })?;
    w.hart.mode = w.run.bank.mode;
    w.hart.vsie = w.run.bank.csrs.vsie;
    Ok(w)
}

#[test]
fn a_program_goes_on_from_a_snapshot() {
    let program = || {
        let config = VmConfig { mmu: Some(MmuMode::Lazy), svvptc: false, ..vm_config("vm", 1) };
        let mut w = world_of(config, GuestTimer::Sstc);
        assert_eq!(w.run.vm.translation.load(&w.g, &mut w.run, &mut w.hart), Ok(()));
        w.hart.vsie = Interrupt::SSoft.bit();
        let handle = space(&mut w);
        write(&mut w, CONTEXT + PC_AT, AT);
        assert_eq!(run(&mut w, handle, CONTEXT), None);
        w.run.context.x[5] = 55;
        (w, handle)
    };
    let (w, handle) = program();
    let mut w = kept(w, MmuMode::Unsync).unwrap_or_else(|why| panic!("{why}"));
    assert!(w.run.runs_program());
    // As its hart does when it is loaded.
    w.hart.enabled = w.run.program.as_ref().map_or(0, |program| program.sie);
    assert_eq!(w.run.vm.translation.load(&w.g, &mut w.run, &mut w.hart), Ok(()));
    assert_eq!((w.run.context.x[5], w.run.context.pc, w.hart.mode, w.hart.vsie), (55, AT, Mode::User, 0));
    assert_eq!(w.run.vm.tlb.spaces.lock().destroy(handle, 1, Reach::Posted).map(|_| ()), Err(Refusal::Runs));
    assert_eq!(exit(&mut w, Exception::LoadPage, AT + 8), Outcome::Resume);
    assert_eq!(exit(&mut w, Exception::EcallFromU, 0), Outcome::Resume);
    is_back(&w, KERNEL + 4);
    assert_eq!((w.hart.vsie, read(&mut w, CONTEXT + 40)), (Interrupt::SSoft.bit(), 55));
    assert_eq!(call(&mut w, DESTROY, &[handle]), (0, 0));
    // Where programs do not run so, the VM does not continue.
    let (w, _) = program();
    let refused = kept(w, MmuMode::Adaptive).err().unwrap_or_default();
    assert!(refused.contains("restore it with --mmu lazy"), "{refused}");
}

#[test]
fn a_snapshot_has_the_kernel_of_a_program() {
    let mut w = shadow_world(MmuMode::Lazy, 1);
    let handle = space(&mut w);
    write(&mut w, CONTEXT + PC_AT, AT);
    assert_eq!(run(&mut w, handle, CONTEXT), None);
    w.run.context.x[5] = 55;
    let kernel = w.run.program.as_ref().and_then(|program| program.save()).expect("it waits");
    assert_eq!((kernel.pc, kernel.x[5], kernel.page, kernel.satp), (KERNEL + 4, 0x1005, CONTEXT, 0));
    w.run.reset(0, 0);
    assert!(w.run.program.is_none());
}
