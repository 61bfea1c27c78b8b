//! VMs come and go while the machine runs, in the same slots, and leave nothing.

use crate::fake::{self, Hart, MEMORY, ROOM, depart, end_all, machine, park, printed, start, start_due, vm_config};
use abi::bundle::{GUEST_ENTRY, GUEST_RAM_BASE, MAX_VCPUS, MAX_VMS, MmuMode, VmConfig};
use abi::record::{EndReason, Record};
use hypervisor::device::offer::GuestTimer;
use hypervisor::exit;
use hypervisor::gnomon::Gnomon;
use hypervisor::io::{host_events, outside};
use hypervisor::life::lifecycle::{create, pause, put_aside, resume};
use hypervisor::vm::vcpu::VcpuRun;
use hypervisor::vm::{Departure, Phase, Vm};
use mmu::frames::Owner;
use rv::{Addr, Exit};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Creates a VM and starts it; returns its first vCPU, which a hart has taken.
fn launch(g: &Gnomon, config: VmConfig, hart: &mut Hart) -> Box<VcpuRun> {
    let vm = create(g, g.vms.draw(config, &g.offer), hart).expect("there is room");
    start(g, &vm, hart);
    let run = g.sched.take(0).expect("it has started");
    assert!(Arc::ptr_eq(&run.vm, &vm));
    run
}

/// Starts another vCPU of a VM (SBI HSM). It is ready, on no hart.
fn start_vcpu(g: &Gnomon, run: &mut VcpuRun, id: u32, hart: &mut Hart) {
    run.context.exit = Exit { cause: 10, ..Exit::default() };
    run.context.x[10..13].copy_from_slice(&[id.into(), GUEST_ENTRY, 0]);
    (run.context.x[16], run.context.x[17]) = (0, sbi_spec::hsm::EID_HSM as u64);
    assert_eq!(exit::handle(g, run, hart), exit::Outcome::Resume);
    assert_eq!(run.context.x[10], 0);
}

/// Parks a vCPU, like the hart that has it and finds that it is to be parked.
fn give_up(g: &Gnomon, run: Box<VcpuRun>, hart: &mut Hart) {
    g.sched.stopped();
    park(g, run, hart);
}

fn end(g: &Gnomon, run: Box<VcpuRun>, hart: &mut Hart) -> Weak<Vm> {
    let vm = Arc::clone(&run.vm);
    depart(g, &vm, Departure::End(EndReason::Poweroff), hart);
    give_up(g, run, hart);
    Arc::downgrade(&vm)
}

fn ended() -> Vec<String> {
    let records = printed();
    let record = |text: &str| Record::parse(text.lines().next()?);
    let name = |record| if let Record::VmEnd(end) = record { Some(end.vm) } else { None };
    records.split('\u{1e}').skip(1).filter_map(record).filter_map(name).collect()
}

#[test]
fn more_lives_than_slots_of_all_kinds_leave_nothing_beside_a_neighbour() {
    let (g, mut hart) = machine(vec![], 2, GuestTimer::Sstc);
    let neighbour = launch(&g, VmConfig { mmu: Some(MmuMode::Lazy), ..vm_config("neighbour", 1) }, &mut hart);
    let free = g.frames().free_count();
    let mut before: Option<Weak<Vm>> = None;
    for life in 0..4 * MAX_VMS {
        let config = VmConfig {
            mmu: Some(MmuMode::ALL[life % MmuMode::ALL.len()]),
            memory_bytes: MEMORY * (1 + life as u64 % 3),
            ..vm_config(&format!("vm{life}"), 1 + life as u32 % 5)
        };
        let mut run = launch(&g, config, &mut hart);
        let vm = Arc::clone(&run.vm);
        assert_eq!((vm.slot(), vm.handle.number), (1, life as u64 + 1));
        assert_eq!(vm.translation.load(&g, &mut run, &mut hart), Ok(()));
        fake::write(&g, &vm, Addr::new(GUEST_RAM_BASE), &[life as u8; 9000], &mut hart).unwrap();
        (1..vm.vcpus.len() as u32).for_each(|id| start_vcpu(&g, &mut run, id, &mut hart));
        if let Some(before) = before.replace(end(&g, run, &mut hart)) {
            assert_eq!(before.strong_count(), 0, "the VM before is gone, with its vCPUs");
        }
        assert_eq!(*vm.phase.lock(), Phase::Ended);
        assert_eq!(g.frames().usage(Owner::Vm(1)).total(), 0);
        assert_eq!(g.frames().free_count(), free, "life {life}");
        assert_eq!((g.sched.started_count(), g.vms.all().count()), (1, 1), "only the neighbour's is started");
    }
    assert_eq!(g.vms.most(), 2);
    let stats = g.stats();
    assert_eq!(stats.vms.len(), 1 + 4 * MAX_VMS);
    // The first of five has one vCPU, and starts no other.
    let starts = |place: usize| stats.vms[place].counters["sbi.hsm"];
    assert!((0..4 * MAX_VMS).all(|life| starts(1 + life) == life as u64 % 5));
    assert_eq!(*neighbour.vm.phase.lock(), Phase::Running);
    end(&g, neighbour, &mut hart);
    assert!(g.is_over());
    assert_eq!(g.frames().free_count(), g.frames().total_count());
    assert_eq!(ended().len(), 1 + 4 * MAX_VMS);
}

#[test]
fn what_is_told_of_a_vm_outlives_it() {
    let (g, mut hart) = machine(vec![], 1, GuestTimer::Sstc);
    let mut run = launch(&g, vm_config("a", 3), &mut hart);
    start_vcpu(&g, &mut run, 2, &mut hart);
    start_vcpu(&g, &mut run, 1, &mut hart);
    let alive = g.stats().vms.remove(0);
    end(&g, run, &mut hart);
    let b = launch(&g, vm_config("b", 1), &mut hart);
    let [a, b_alive] = &g.stats().vms[..] else { panic!("two VMs were there") };
    assert_eq!((a.vm.as_str(), b_alive.vm.as_str()), ("a", "b"));
    assert_eq!((a.counters["sbi.hsm"], a.counters["exits.total"]), (2, 2));
    assert_eq!(b_alive.counters["exits.total"], 0);
    let but_frames = |(name, _): &(&String, &u64)| !name.starts_with("frames.");
    assert!(a.counters.iter().filter(but_frames).eq(alive.counters.iter().filter(but_frames)));
    assert_eq!((a.counters["frames.guest"], a.counters["frames.table"]), (0, 0));
    end(&g, b, &mut hart);
}

/// A handle of a VM that is gone is used when another VM has its slot.
#[test]
fn a_vm_that_is_gone_is_not_taken_for_the_next_in_its_slot() {
    let (g, mut hart) = machine(vec![], 1, GuestTimer::Sstc);
    let first = launch(&g, vm_config("first", 2), &mut hart);
    let gone = Arc::clone(&first.vm);
    end(&g, first, &mut hart);
    let mut second = launch(&g, vm_config("second", 2), &mut hart);
    start_vcpu(&g, &mut second, 1, &mut hart);
    assert_eq!((gone.slot(), second.vm.slot()), (0, 0));
    assert!(g.vms.get(gone.handle).is_none() && g.vms.tenant(&gone, |_| ()).is_none());
    depart(&g, &gone, Departure::End(EndReason::Poweroff), &mut hart);
    depart(&g, &gone, Departure::Reboot, &mut hart);
    start(&g, &gone, &mut hart);
    assert!(!pause(&g, &gone, &mut hart) && !resume(&g, &gone, &mut hart));
    assert!(g.sched.remove_vm(gone.handle.number).is_empty());
    assert!(fake::read(&g, &gone, Addr::new(GUEST_RAM_BASE), &mut [0], &mut hart).is_err());
    // As harts do that were to look after the slot's devices.
    host_events::go_on(&g, u64::MAX, &mut hart);
    assert_eq!(*second.vm.phase.lock(), Phase::Running);
    assert_eq!(g.sched.started_count(), 2);
    assert!(pause(&g, &second.vm.clone(), &mut hart));
    assert!(!resume(&g, &gone, &mut hart) && resume(&g, &second.vm.clone(), &mut hart));
    end(&g, second, &mut hart);
    assert_eq!(ended(), ["first", "second"]);
}

#[test]
fn a_vm_is_gone_when_its_last_vcpu_is_parked_wherever_the_others_were() {
    // 0 is on a hart, 1 is ready, 2 waits, 3 has stopped by itself, 4 is stopped.
    let (g, mut hart) =
        machine(vec![vm_config("a", 5), VmConfig { after: Some(0), ..vm_config("b", 2) }], 2, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    let mut on_hart = g.sched.take(0).unwrap();
    let vm = Arc::clone(&on_hart.vm);
    for id in [1, 2, 3] {
        start_vcpu(&g, &mut on_hart, id, &mut hart);
    }
    let take = || g.sched.take(0).unwrap();
    let (one, two, three) = (take(), take(), take());
    for vcpu in &vm.vcpus {
        vcpu.posted.store(0, Ordering::SeqCst);
    }
    g.sched.requeue(one, 1, hart.time);
    g.sched.wait(two, u64::MAX, 1, hart.time);
    give_up(&g, three, &mut hart);
    assert!(pause(&g, &vm, &mut hart));
    depart(&g, &vm, Departure::End(EndReason::Poweroff), &mut hart);
    assert_eq!(
        g.vms.all().map(|vm| vm.config.name.clone()).collect::<Vec<_>>(),
        ["a"],
        "a hart has still one of its vCPUs"
    );
    give_up(&g, on_hart, &mut hart);
    let names: Vec<_> = g.vms.all().map(|vm| (vm.config.name.clone(), vm.slot())).collect();
    assert_eq!(names, [("b".to_string(), 0)]);
    let gone = Arc::downgrade(&vm);
    drop(vm);
    assert_eq!(gone.strong_count(), 0);
    let next = g.sched.take(0).expect("the next runs");
    end(&g, next, &mut hart);
    assert!(g.is_over());
}

#[test]
fn a_paused_vm_that_is_ended_makes_room_at_once() {
    let (g, mut hart) =
        machine(vec![vm_config("a", 2), VmConfig { after: Some(0), ..vm_config("b", 1) }], 2, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    let run = g.sched.take(0).unwrap();
    let vm = Arc::clone(&run.vm);
    assert!(pause(&g, &vm, &mut hart));
    run.shared.posted.store(0, Ordering::SeqCst);
    g.sched.stopped();
    put_aside(&g, run, &mut hart);
    depart(&g, &vm, Departure::End(EndReason::Killed { message: "by Ctrl-A k".into() }), &mut hart);
    let next = g.sched.take(0).expect("its slot is free, and the next is started");
    assert_eq!((next.vm.config.name.as_str(), next.vm.slot()), ("b", 0));
    end(&g, next, &mut hart);
    assert!(g.is_over());
}

#[test]
fn what_a_vm_printed_last_is_shown_when_it_is_gone() {
    let (g, mut hart) = machine(vec![], 1, GuestTimer::Sstc);
    let run = launch(&g, vm_config("a", 1), &mut hart);
    printed();
    ROOM.set(0);
    assert_eq!(outside::print(&g, 0, b"the last words", &mut hart), 14);
    let gone = end(&g, run, &mut hart);
    let run = launch(&g, vm_config("b", 1), &mut hart);
    assert_eq!(gone.strong_count(), 0);
    assert_eq!(outside::print(&g, 0, b"the first words\n", &mut hart), 16);
    assert_eq!(printed(), "");
    ROOM.set(16);
    g.console.flush();
    let all = printed();
    let order = ["the last words\r\n", "a powered off", "the first words\r\n"].map(|part| all.find(part).expect(part));
    assert!(order.is_sorted(), "{all}");
    end(&g, run, &mut hart);
}

#[test]
fn a_vm_too_many_is_refused_until_another_is_gone() {
    let (g, mut hart) = machine(vec![], 1, GuestTimer::Sstc);
    let mut small = vm_config("small", 1);
    small.superpages = false;
    let mut runs: Vec<_> = (0..MAX_VMS).map(|_| launch(&g, small.clone(), &mut hart)).collect();
    assert!(create(&g, g.vms.draw(small.clone(), &g.offer), &mut hart).is_none());
    assert!(printed().contains("could not be started: there are 64 VMs already"));
    let place = runs[17].vm.slot();
    end(&g, runs.swap_remove(17), &mut hart);
    let next = launch(&g, small, &mut hart);
    assert_eq!((next.vm.slot(), g.vms.most()), (place, MAX_VMS));
    runs.push(next);
    runs.into_iter().for_each(|run| drop(end(&g, run, &mut hart)));
    assert!(g.is_over());
}

#[test]
fn what_cannot_be_created_is_over() {
    let (g, mut hart) = machine(vec![], 1, GuestTimer::Sstc);
    for vcpus in [0, MAX_VCPUS + 1, u32::MAX] {
        assert!(create(&g, g.vms.draw(vm_config("bad", vcpus), &g.offer), &mut hart).is_none());
    }
    assert!(create(&g, g.vms.draw(VmConfig { after: Some(3), ..vm_config("bad", 1) }, &g.offer), &mut hart).is_none());
    assert!(g.is_over());
    assert_eq!((ended().len(), g.stats().vms.len(), g.vms.most()), (4, 4, 0));
}

#[test]
fn a_vm_that_was_created_can_be_ended_before_it_starts() {
    let (g, mut hart) = machine(vec![], 1, GuestTimer::Sstc);
    let free = g.frames().free_count();
    let vm = create(&g, g.vms.draw(vm_config("a", 2), &g.offer), &mut hart).unwrap();
    depart(&g, &vm, Departure::Reboot, &mut hart);
    assert!(!pause(&g, &vm, &mut hart) && g.vms.get(vm.handle).is_some());
    depart(&g, &vm, Departure::End(EndReason::Poweroff), &mut hart);
    start(&g, &vm, &mut hart);
    assert!(g.is_over() && !g.sched.has_ready() && g.vms.get(vm.handle).is_none());
    assert_eq!((ended(), g.frames().free_count()), (vec!["a".to_string()], free));
}

#[test]
fn whoever_comes_after_one_that_is_gone_has_its_turn_at_once() {
    let (g, mut hart) = machine(vec![vm_config("a", 1), vm_config("beside", 1)], 1, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    let (a, beside) = (g.sched.take(0).unwrap(), g.sched.take(0).unwrap());
    g.vms.wish(VmConfig { after: Some(0), ..vm_config("b", 1) }, &g.offer);
    start_due(&g, &mut hart);
    assert!(!g.sched.has_ready());
    end(&g, a, &mut hart);
    let b = g.sched.take(0).unwrap();
    g.vms.wish(VmConfig { after: Some(0), ..vm_config("c", 1) }, &g.offer);
    start_due(&g, &mut hart);
    let c = g.sched.take(0).unwrap();
    assert_eq!([&b, &c].map(|run| (run.vm.config.name.as_str(), run.vm.slot())), [("b", 0), ("c", 2)]);
    [beside, b, c].into_iter().for_each(|run| drop(end(&g, run, &mut hart)));
    assert!(g.is_over());
}

#[test]
fn all_can_be_ended_those_that_are_to_be_as_well() {
    let after = |name: &str, after| VmConfig { after, ..vm_config(name, 1) };
    let vms = vec![after("a", None), after("b", Some(0)), after("c", Some(1)), after("beside", None)];
    let (g, mut hart) = machine(vms, 1, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    let (a, beside) = (g.sched.take(0).unwrap(), g.sched.take(0).unwrap());
    end_all(&g, &EndReason::Poweroff, &mut hart);
    give_up(&g, beside, &mut hart);
    assert!(!g.is_over());
    give_up(&g, a, &mut hart);
    assert!(g.is_over() && !g.sched.has_ready());
    assert_eq!((ended(), g.vms.most()), (["beside", "a", "b", "c"].map(String::from).to_vec(), 2));
}
