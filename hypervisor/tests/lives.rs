//! The lives of VMs: start, SBI calls that move them, restart, end.

use crate::fake::{self, Event, MEMORY, depart, machine, park, printed, start_due, vm_config, world};
use abi::bundle::{GUEST_ENTRY, GUEST_RAM_BASE, MAX_VMS, MmuMode, Segment, ShareConfig, VmConfig};
use abi::mac::Mac;
use abi::record::{EndReason, Record};
use hypervisor::device::board;
use hypervisor::device::offer::{GuestMode, GuestTimer};
use hypervisor::gnomon::Gnomon;
use hypervisor::life::lifecycle;
use hypervisor::life::lifecycle::{pause, put_aside, resume};
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::{VcpuRun, hsm, request};
use hypervisor::vm::{Departure, Phase};
use mmu::frames::Owner;
use rv::Addr;
use sbi_spec::{base, hsm as hsm_call, rfnc, spi, srst, time};
use std::sync::atomic::Ordering;

fn records() -> Vec<Record> {
    printed().split('\u{1e}').skip(1).filter_map(|r| Record::parse(r.lines().next()?)).collect()
}

#[test]
fn a_vm_starts_as_its_board_says() {
    let mut w = world(2, GuestTimer::Sstc);
    let x = &w.run.context.x;
    assert_eq!((w.run.context.pc, x[10], x[11]), (GUEST_ENTRY, 0, board::tree_address(MEMORY)));
    assert!(x.iter().enumerate().all(|(i, v)| i == 11 || *v == 0));
    let mut magic = [0; 4];
    let tree = Addr::new(w.run.context.x[11]);
    fake::read(&w.g, &w.run.vm, tree, &mut magic, &mut w.hart).unwrap();
    assert_eq!(magic, 0xd00d_feedu32.to_be_bytes());
    assert_eq!(w.run.vm.vcpus[1].hsm.load(Ordering::SeqCst), hsm::STOPPED);
}

#[test]
fn a_nested_vm_on_harts_without_h_is_told_what_to_use_instead() {
    let config = VmConfig { mmu: Some(MmuMode::TwoStage), ..vm_config("vm", 1) };
    let (mut g, mut hart) = machine(vec![config], 1, GuestTimer::Sstc);
    g.offer.guest = GuestMode::Supervisor;
    start_due(&g, &mut hart);
    let all = printed();
    let complaint = ["vm could not be started", "two-stage", "H extension", "shadow", "unsync", "lazy"];
    assert!(complaint.iter().all(|part| all.contains(part)), "{all}");
    assert!(g.is_over());
}

#[test]
fn bad_bundles_are_refused_one_vm_at_a_time() {
    let segment = |gpa, offset, bytes| Segment { gpa, offset, bytes, label: "kernel".into() };
    let cases = [
        (segment(GUEST_ENTRY + 1, 0, 1), "whole pages"),
        (segment(GUEST_ENTRY, 3, 1), "whole pages"),
        (segment(GUEST_ENTRY, 0, 0), "whole pages"),
        (segment(0x1000, 0, 1), "does not fit"),
        (segment(GUEST_RAM_BASE + MEMORY, 0, 1), "does not fit"),
        (segment(GUEST_ENTRY, 0, u64::MAX), "does not fit"),
        (segment(GUEST_ENTRY, 0x7000, 0x2000), "cut off"),
        (segment(GUEST_ENTRY, !0xfff, 0x1000), "cut off"),
    ];
    let (g, mut hart) = machine(vec![vm_config("good", 1)], 1, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    let alone = g.frames().free_count();
    for (segment, complaint) in cases {
        let mut bad = vm_config("bad", 1);
        bad.segments = vec![segment.clone()];
        let (g, mut hart) = machine(vec![bad, vm_config("good", 1)], 1, GuestTimer::Sstc);
        start_due(&g, &mut hart);
        let all = printed();
        assert!(all.contains("bad could not be started") && all.contains(complaint), "{segment:?}: {all}");
        assert_eq!(g.frames().free_count(), alone, "{segment:?}: the other one alone has any");
        assert_eq!(g.vms.most(), 1);
        assert_eq!(g.sched.take(0).map(|run| run.vm.config.name.clone()).as_deref(), Some("good"));
    }
    let mut small = vm_config("small", 1);
    small.memory_bytes = 4096;
    let mut huge = vm_config("huge", 1);
    huge.memory_bytes = 1 << 50;
    let (g, mut hart) = machine(vec![small, huge], 1, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    assert!(g.is_over());
}

#[test]
fn a_power_off_gives_every_frame_back() {
    let mut w = world(1, GuestTimer::Sstc);
    let free = w.g.frames().total_count();
    fake::write(&w.g, &w.run.vm, Addr::new(GUEST_RAM_BASE), &[7; 9000], &mut w.hart).unwrap();
    assert!(w.frames_used() > 0);
    let vm = w.run.vm.clone();
    depart(&w.g, &vm, Departure::End(EndReason::Poweroff), &mut w.hart);
    assert_ne!(w.run.shared.posted.load(Ordering::SeqCst) & request::PARK, 0);
    w.g.sched.stopped();
    park(&w.g, w.run, &mut w.hart);
    assert_eq!(w.g.frames().free_count(), free);
    assert_eq!(*vm.phase.lock(), Phase::Ended);
    assert!(w.g.is_over());
    assert!(matches!(&records()[..], [Record::VmEnd(end)] if end.reason == EndReason::Poweroff));
}

#[test]
fn a_reboot_starts_with_clean_memory_and_all_other_vcpus_stopped() {
    let mut w = world(2, GuestTimer::Sstc);
    assert_eq!(w.sbi(hsm_call::EID_HSM, 0, &[1, GUEST_ENTRY, 9]), (0, 0));
    let vm = w.run.vm.clone();
    fake::write(&w.g, &vm, Addr::new(GUEST_RAM_BASE), &[7; 10], &mut w.hart).unwrap();
    vm.vcpus[0].external.store(true, Ordering::SeqCst);
    depart(&w.g, &vm, Departure::Reboot, &mut w.hart);
    assert_eq!(w.g.vms.tenant(&vm, |tenant| tenant.parked.len()), Some(1), "the one in the queue is collected at once");
    w.g.sched.stopped();
    park(&w.g, w.run, &mut w.hart);
    let run = w.g.sched.take(0).expect("the first vCPU is ready again");
    assert_eq!((run.shared.id, run.context.pc), (0, GUEST_ENTRY));
    assert_eq!(w.g.sched.started_count(), 1);
    assert_eq!(vm.vcpus[1].hsm.load(Ordering::SeqCst), hsm::STOPPED);
    assert!(!vm.vcpus[0].external.load(Ordering::SeqCst), "the devices start over, and so do their lines");
    let mut bytes = [1; 10];
    fake::read(&w.g, &vm, Addr::new(GUEST_RAM_BASE), &mut bytes, &mut w.hart).unwrap();
    assert_eq!(bytes, [0; 10]);
    assert_eq!(*vm.phase.lock(), Phase::Running);
}

/// The wish to end a VM may come at any moment of its restart.
#[test]
fn an_end_overrides_a_restart_that_is_not_done() {
    let mut w = world(1, GuestTimer::Sstc);
    let (vm, free) = (w.run.vm.clone(), w.g.frames().total_count());
    depart(&w.g, &vm, Departure::Reboot, &mut w.hart);
    depart(&w.g, &vm, Departure::End(EndReason::Poweroff), &mut w.hart);
    w.g.sched.stopped();
    park(&w.g, w.run, &mut w.hart);
    assert!(w.g.is_over() && !w.g.sched.has_ready());
    assert_eq!(w.g.frames().free_count(), free);
    assert!(matches!(&records()[..], [Record::VmEnd(end)] if end.reason == EndReason::Poweroff));
    // And nothing starts it again.
    depart(&w.g, &vm, Departure::Reboot, &mut w.hart);
    assert_eq!(*vm.phase.lock(), Phase::Ended);
}

/// Makes a VM of many pages, one vCPU of which is about to be parked.
fn with_many_pages(mmu: MmuMode) -> fake::World {
    let mut w = fake::world_of(VmConfig { superpages: false, mmu: Some(mmu), ..vm_config("vm", 1) }, GuestTimer::Sstc);
    for page in 0..1500 {
        fake::write(&w.g, &w.run.vm, Addr::new(GUEST_RAM_BASE + page * 4096), &[7], &mut w.hart).unwrap();
    }
    w
}

#[test]
fn memory_is_given_back_in_portions() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut w = with_many_pages(mmu);
        let (vm, all) = (w.run.vm.clone(), w.g.frames().total_count());
        lifecycle::depart(&w.g, &vm, Departure::End(EndReason::Poweroff), &mut w.hart);
        w.g.sched.stopped();
        lifecycle::park(&w.g, w.run, &mut w.hart);
        let mut portions = Vec::new();
        while !w.g.is_over() {
            let (before, asked) = (w.g.frames().free_count(), w.hart.asked_to_go_on());
            assert!(asked, "the hart asks to go on");
            assert!(lifecycle::go_on(&w.g, &mut w.hart));
            portions.push(w.g.frames().free_count() - before);
        }
        assert!(portions.len() > 5 && portions.iter().all(|frames| *frames < 400), "{mmu:?}: {portions:?}");
        assert_eq!(w.g.frames().free_count(), all);
        assert!(!lifecycle::go_on(&w.g, &mut w.hart), "nothing is left to be done");
    }
}

#[test]
fn an_end_overrides_a_restart_between_any_two_portions() {
    for portions in 0.. {
        let mut w = with_many_pages(MmuMode::Lazy);
        let (vm, all) = (w.run.vm.clone(), w.g.frames().total_count());
        lifecycle::depart(&w.g, &vm, Departure::Reboot, &mut w.hart);
        w.g.sched.stopped();
        lifecycle::park(&w.g, w.run, &mut w.hart);
        let done = (0..portions).take_while(|_| lifecycle::go_on(&w.g, &mut w.hart)).count();
        if done < portions {
            assert!(portions > 8, "memory is given back, and made anew");
            assert_eq!(*vm.phase.lock(), Phase::Running);
            break;
        }
        depart(&w.g, &vm, Departure::End(EndReason::Poweroff), &mut w.hart);
        if let Some(run) = w.g.sched.take(0) {
            w.g.sched.stopped();
            park(&w.g, run, &mut w.hart);
        }
        assert!(w.g.is_over(), "after {portions} portions");
        assert_eq!(w.g.frames().free_count(), all);
    }
    printed();
}

/// Ends the VM that is next to run, and says which it was.
fn end_next(g: &Gnomon, hart: &mut fake::Hart, reason: EndReason) -> String {
    let run = g.sched.take(0).expect("a VM runs");
    let vm = run.vm.clone();
    depart(g, &vm, Departure::End(reason), hart);
    g.sched.stopped();
    park(g, run, hart);
    vm.config.name.clone()
}

fn ended() -> Vec<String> {
    let name = |record| if let Record::VmEnd(end) = record { Some(end.vm) } else { None };
    records().into_iter().filter_map(name).collect()
}

#[test]
fn vms_run_one_after_another_in_the_same_memory() {
    let after = |name: &str, after| VmConfig { after, ..vm_config(name, 1) };
    let vms = vec![after("a", None), after("b", Some(0)), after("c", Some(1)), after("beside", Some(1))];
    let (g, mut hart) = machine(vms, 1, GuestTimer::Sstc);
    let free = g.frames().free_count();
    start_due(&g, &mut hart);
    assert_eq!(g.sched.started_count(), 1);
    let used = g.frames().usage(Owner::Vm(0)).total();
    assert_eq!(end_next(&g, &mut hart, EndReason::Poweroff), "a");
    let usage = |vm| g.frames().usage(Owner::Vm(vm)).total();
    assert_eq!(
        (usage(0), usage(1), g.vms.most()),
        (used, 0, 1),
        "the next has the slot, and nothing more than the first"
    );
    // However one ends, it is the next one's turn; here of two.
    assert_eq!(end_next(&g, &mut hart, EndReason::Killed { message: "x".into() }), "b");
    assert_eq!((g.sched.started_count(), g.is_over()), (2, false));
    assert_eq!(end_next(&g, &mut hart, EndReason::Poweroff), "c");
    assert_eq!(end_next(&g, &mut hart, EndReason::Poweroff), "beside");
    assert!(g.is_over());
    assert_eq!(g.frames().free_count(), free);
    assert_eq!(ended(), ["a", "b", "c", "beside"]);
}

#[test]
fn as_many_vms_as_a_bundle_may_have_run_one_after_another() {
    let vm = |place| VmConfig { after: u32::checked_sub(place, 1), ..vm_config(&format!("vm{place}"), 1) };
    let (g, mut hart) = machine((0..MAX_VMS as u32).map(vm).collect(), 1, GuestTimer::Sstc);
    let free = g.frames().free_count();
    start_due(&g, &mut hart);
    for place in 0..MAX_VMS {
        assert_eq!(end_next(&g, &mut hart, EndReason::Poweroff), format!("vm{place}"));
    }
    assert!(g.is_over());
    assert_eq!(g.frames().free_count(), free);
    printed();
}

#[test]
fn those_that_wait_for_a_vm_that_cannot_start_have_their_turn() {
    let after = |name: &str, after| VmConfig { after, ..vm_config(name, 1) };
    let bad = |config| VmConfig { memory_bytes: 4096, ..config };
    let vms = vec![
        bad(after("a", None)),
        bad(after("b", Some(0))),
        after("c", Some(1)),
        after("itself", Some(3)),
        after("later", Some(9)),
    ];
    let (g, mut hart) = machine(vms, 1, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    assert_eq!(end_next(&g, &mut hart, EndReason::Poweroff), "c");
    assert!(g.is_over());
    let all = printed();
    assert_eq!(all.matches("could not be started: it is to start after a VM").count(), 2, "{all}");
}

#[test]
fn a_vm_that_waits_can_be_ended() {
    let vms = vec![vm_config("a", 1), VmConfig { after: Some(0), ..vm_config("b", 1) }];
    let (g, mut hart) = machine(vms, 1, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    g.vms.cancel(|wish| wish.number == 1, &EndReason::Poweroff);
    assert!(!g.is_over(), "it is over when its turn comes");
    assert_eq!(end_next(&g, &mut hart, EndReason::Poweroff), "a");
    assert!(g.is_over() && !g.sched.has_ready());
    assert_eq!(ended(), ["a", "b"]);
}

#[test]
fn a_guest_may_reboot_for_ever() {
    let mut w = world(1, GuestTimer::Sstc);
    for _ in 0..200 {
        let vm = w.run.vm.clone();
        depart(&w.g, &vm, Departure::Reboot, &mut w.hart);
        w.g.sched.stopped();
        park(&w.g, w.run, &mut w.hart);
        w.run = w.g.sched.take(0).expect("it starts again");
    }
    let stats = w.g.stats();
    // Each life's device tree took one fault, and all lives count.
    let faults = &stats.vms[0].counters;
    assert!(faults["gstage.anonymous_2m"] + faults["gstage.anonymous_4k"] >= 201);
    printed();
}

#[test]
fn when_all_vcpus_have_stopped_the_vm_is_over() {
    let mut w = world(1, GuestTimer::Sstc);
    w.run.context.x[16] = 1;
    w.run.context.x[17] = hsm_call::EID_HSM as u64;
    assert_eq!(w.exit(10, 0, 0, 0), Outcome::Stop);
    w.g.sched.stopped();
    park(&w.g, w.run, &mut w.hart);
    assert!(matches!(&records()[..], [Record::VmEnd(end)] if matches!(end.reason, EndReason::Killed { .. })));
}

#[test]
fn harts_are_started_once_and_in_ram() {
    let mut w = world(3, GuestTimer::Sstc);
    let hsm_id = hsm_call::EID_HSM;
    assert_eq!(w.sbi(hsm_id, 0, &[0, GUEST_ENTRY, 0]).0, -6, "already started");
    assert_eq!(w.sbi(hsm_id, 0, &[3, GUEST_ENTRY, 0]).0, -3, "no such hart");
    assert_eq!(w.sbi(hsm_id, 0, &[1, 0x1000, 0]).0, -5, "not in RAM");
    assert_eq!(w.sbi(hsm_id, 2, &[1]), (0, 1), "stopped");
    assert_eq!(w.sbi(hsm_id, 0, &[1, GUEST_ENTRY + 8, 77]), (0, 0));
    assert_eq!(w.sbi(hsm_id, 2, &[1]), (0, 0), "started");
    let run = w.g.sched.take(0).unwrap();
    assert_eq!((run.context.pc, run.context.x[10], run.context.x[11]), (GUEST_ENTRY + 8, 1, 77));
}

#[test]
fn nobody_is_started_in_a_vm_that_is_leaving() {
    let mut w = world(2, GuestTimer::Sstc);
    depart(&w.g, &w.run.vm.clone(), Departure::End(EndReason::Poweroff), &mut w.hart);
    assert_eq!(w.sbi(hsm_call::EID_HSM, 0, &[1, GUEST_ENTRY, 0]).0, -1);
    assert!(!w.g.sched.has_ready());
}

#[test]
fn a_third_vcpu_on_two_harts_is_one_too_many() {
    let mut w = world(3, GuestTimer::Sstc);
    w.sbi(hsm_call::EID_HSM, 0, &[1, GUEST_ENTRY, 0]);
    assert!(!w.g.sched.is_overcommitted());
    w.hart.events.clear();
    w.sbi(hsm_call::EID_HSM, 0, &[2, GUEST_ENTRY, 0]);
    assert!(w.g.sched.is_overcommitted());
    assert_eq!(w.hart.events, [Event::Ipi(0), Event::Ipi(1)], "both harts look again");
}

#[test]
fn two_vcpus_made_ready_rouse_two_harts() {
    let (g, mut hart) = machine((0..2).map(|i| vm_config(&format!("vm{i}"), 1)).collect(), 3, GuestTimer::Sstc);
    g.harts[1].idle.store(true, Ordering::SeqCst);
    g.harts[2].idle.store(true, Ordering::SeqCst);
    start_due(&g, &mut hart);
    let ipis: Vec<_> = hart.events.iter().filter(|e| matches!(e, Event::Ipi(_))).collect();
    assert_eq!(ipis, [&Event::Ipi(1), &Event::Ipi(2)]);
}

#[test]
fn masks_name_vcpus() {
    let mut w = world(3, GuestTimer::Sstc);
    let posted = |w: &fake::World| -> Vec<u64> {
        w.run.vm.vcpus.iter().map(|v| v.posted.swap(0, Ordering::SeqCst) & request::SOFTWARE).collect()
    };
    posted(&w);
    assert_eq!(w.sbi(spi::EID_SPI, 0, &[0b11, 1]), (0, 0));
    assert_eq!(posted(&w), [0, 1, 1]);
    w.hart.events.clear();
    assert_eq!(w.sbi(spi::EID_SPI, 0, &[0, u64::MAX]), (0, 0));
    assert_eq!(posted(&w), [0, 1, 1]);
    assert_eq!(w.hart.events, [Event::SoftwareInterrupt(true)], "its own it has at once");
    for (mask, first) in [(0b1000, 0), (1, 3), (0b10, 2), (1, 1 << 63)] {
        assert_eq!(w.sbi(spi::EID_SPI, 0, &[mask, first]).0, -3, "{mask:#b} from {first}");
        assert_eq!(posted(&w), [0, 0, 0]);
    }
    assert_eq!(w.sbi(spi::EID_SPI, 0, &[0, 1 << 40]), (0, 0), "an empty set is a set");
}

#[test]
fn remote_fences_wait_in_their_targets_queue() {
    let mut w = world(2, GuestTimer::Sstc);
    assert_eq!(w.sbi(rfnc::EID_RFNC, 2, &[0b10, 0, 0x1000, 0x1000, 5]), (0, 0));
    assert_ne!(w.run.vm.vcpus[1].posted.load(Ordering::SeqCst) & request::FENCES, 0);
    let fences = w.run.vm.vcpus[1].fences.lock().take().unwrap();
    assert_eq!(fences.len(), 1);
    assert_eq!(w.sbi(rfnc::EID_RFNC, 3, &[1, 0, 0, 0]).0, -2, "the guest has no H extension");
}

#[test]
fn timers() {
    let mut w = world(1, GuestTimer::Sbi);
    w.hart.events.clear();
    assert_eq!(w.sbi(time::EID_TIME, 0, &[500]), (0, 0));
    assert_eq!(w.run.deadline, 500 + 1000, "guest time starts with the VM");
    assert_eq!(w.hart.events, [Event::TimerInterrupt(false), Event::DeadlineChanged(1500)]);
    w.sbi(time::EID_TIME, 0, &[u64::MAX]);
    assert_eq!(w.run.deadline, u64::MAX);
    let mut w = world(1, GuestTimer::Sstc);
    w.hart.events.clear();
    w.sbi(time::EID_TIME, 0, &[500]);
    assert_eq!(w.hart.events, [Event::Deadline(500)]);
}

#[test]
fn resets_say_what_they_are() {
    let reset = |kind: u64, reason: u64| {
        let mut w = world(1, GuestTimer::Sstc);
        w.run.context.x[10..12].copy_from_slice(&[kind, reason]);
        (w.run.context.x[16], w.run.context.x[17]) = (0, srst::EID_SRST as u64);
        let outcome = w.exit(10, 0, 0, 0);
        (outcome, w.run.context.x[10] as i64)
    };
    assert_eq!(reset(0, 0).0, Outcome::Depart(Departure::End(EndReason::Poweroff)));
    assert_eq!(reset(0, 1).0, Outcome::Depart(Departure::End(EndReason::SystemFailure)));
    assert_eq!(reset(1, 0).0, Outcome::Depart(Departure::Reboot));
    assert_eq!(reset(3, 0), (Outcome::Resume, -3));
    assert_eq!(reset(0, 2), (Outcome::Resume, -3));
    assert_eq!(reset(0, u64::MAX), (Outcome::Resume, -3));
    assert_eq!(reset(0xf000_0000, 0), (Outcome::Resume, -2));
}

#[test]
fn unknown_calls_are_not_supported() {
    let mut w = world(1, GuestTimer::Sstc);
    assert_eq!(w.sbi(0x53_5441, 0, &[]).0, -2, "steal-time accounting");
    assert_eq!(w.sbi(base::EID_BASE, 7, &[]).0, -2);
    assert_eq!(w.sbi(9, 0, &[]).0, -2, "the first after the legacy calls");
    assert_eq!(w.run.shared.counters.sbi_unknown.get(), 3);
    assert_eq!(printed().matches("does not have").count(), 1, "the first is named");
}

#[test]
fn every_counter_is_documented() {
    let (mmu, mac) = (Some(MmuMode::Lazy), Some(Mac([2, 0, 0, 0, 0, 1])));
    let shares = vec![ShareConfig { number: 1, tag: "src".into() }];
    let (balloon_bytes, disks, vm) = (Some(0), vec![1], vm_config("lazy", 2));
    let lazy = VmConfig {
        mmu,
        balloon_bytes,
        disks,
        shares,
        mac,
        rng: true,
        virtio_console: true,
        power_key: true,
        ports: vec!["agent".into()],
        ..vm
    };
    let nested = VmConfig { nested: true, ..vm_config("nested", 1) };
    let (g, mut hart) = machine(vec![vm_config("two-stage", 1), lazy, nested], 1, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    let stats = g.stats();
    let names: std::collections::BTreeSet<_> =
        stats.vms.iter().flat_map(|vm| vm.counters.keys()).chain(stats.host.keys()).cloned().collect();
    let page = include_str!("../../docs/counters.md");
    let documented = page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_string()));
    assert_eq!(names, documented.collect());
}

#[test]
fn what_shadow_tables_cannot_be_given_is_said() {
    let lazy = || VmConfig { mmu: Some(MmuMode::Lazy), ..vm_config("vm", 2) };
    let cases = [
        (VmConfig { shadow_bytes: Some(64 << 10), ..lazy() }, "at least 786432 are needed"),
        (VmConfig { memory_bytes: 255 << 30, ..lazy() }, "do not fit an identity map in Sv39"),
        (VmConfig { mmu: Some(MmuMode::TwoStage), svadu: Some(true), ..vm_config("vm", 1) }, "henvcfg.ADUE"),
    ];
    for (config, complaint) in cases {
        let (g, mut hart) = machine(vec![config], 1, GuestTimer::Sstc);
        start_due(&g, &mut hart);
        let all = printed();
        assert!(all.contains("could not be started") && all.contains(complaint), "{all}");
        assert_eq!(g.frames().usage(Owner::Vm(0)).total(), 0);
    }
}

#[test]
fn a_shadowed_vm_gives_all_back_at_its_end_and_at_a_reboot() {
    for departure in [Departure::Reboot, Departure::End(EndReason::Poweroff)] {
        let mut w = fake::shadow_world(MmuMode::Lazy, 1);
        let (start, page_fault) = (w.frames_used(), 15);
        for n in 0..100 {
            assert_eq!(w.exit(page_fault, GUEST_RAM_BASE + 0x1_1000 * n, 0, 0), Outcome::Resume);
        }
        assert!(w.frames_used() > start);
        let vm = w.run.vm.clone();
        depart(&w.g, &vm, departure.clone(), &mut w.hart);
        let serials = vm.past.lock().serials;
        park(&w.g, w.run, &mut w.hart);
        let used = w.g.frames().usage(Owner::Vm(0)).total();
        match departure {
            Departure::Reboot => assert!(used < start, "{used} frames after a reboot"),
            Departure::End(_) => assert_eq!(used, 0),
        }
        assert!(vm.past.lock().serials > serials, "roots are numbered on");
    }
}

/// Does the work of a hart with a vCPU that it finds asked to pause.
fn leave_for_pause(g: &Gnomon, run: Box<VcpuRun>, hart: &mut fake::Hart) {
    assert_ne!(run.shared.posted.swap(0, Ordering::SeqCst) & request::PAUSE, 0);
    g.sched.stopped();
    put_aside(g, run, hart);
}

#[test]
fn a_paused_vm_keeps_its_state_and_goes_on() {
    let mut w = world(2, GuestTimer::Sstc);
    assert_eq!(w.sbi(hsm_call::EID_HSM, 0, &[1, GUEST_ENTRY + 8, 0]), (0, 0));
    let vm = w.run.vm.clone();
    w.run.context.x[5] = 77;
    assert!(pause(&w.g, &vm, &mut w.hart) && !pause(&w.g, &vm, &mut w.hart));
    let other = w.g.sched.take(1).expect("the hart that takes it finds the request");
    leave_for_pause(&w.g, w.run, &mut w.hart);
    assert!(resume(&w.g, &vm, &mut w.hart) && !resume(&w.g, &vm, &mut w.hart));
    // That one was not aside yet when the VM went on.
    leave_for_pause(&w.g, other, &mut w.hart);
    let (first, second) = (w.g.sched.take(0).unwrap(), w.g.sched.take(0).unwrap());
    assert_eq!((first.shared.id, first.context.x[5], second.shared.id, second.context.pc), (0, 77, 1, GUEST_ENTRY + 8));
    assert_eq!((w.g.sched.started_count(), w.g.sched.has_ready()), (2, false));
    assert_eq!(*vm.phase.lock(), Phase::Running);
}

#[test]
fn a_vcpu_that_is_started_in_a_paused_vm_pauses() {
    let mut w = world(2, GuestTimer::Sstc);
    let vm = w.run.vm.clone();
    assert!(pause(&w.g, &vm, &mut w.hart));
    assert_eq!(w.sbi(hsm_call::EID_HSM, 0, &[1, GUEST_ENTRY, 0]), (0, 0));
    let started = w.g.sched.take(0).unwrap();
    leave_for_pause(&w.g, started, &mut w.hart);
    leave_for_pause(&w.g, w.run, &mut w.hart);
    assert!(!w.g.sched.has_ready() && w.g.sched.started_count() == 0);
}

#[test]
fn a_paused_vm_can_be_ended_and_gives_all_back() {
    let mut w = world(1, GuestTimer::Sstc);
    let (vm, free) = (w.run.vm.clone(), w.g.frames().total_count());
    assert!(pause(&w.g, &vm, &mut w.hart));
    leave_for_pause(&w.g, w.run, &mut w.hart);
    depart(&w.g, &vm, Departure::End(EndReason::Poweroff), &mut w.hart);
    assert!(w.g.is_over());
    assert_eq!((w.g.frames().free_count(), w.g.sched.started_count()), (free, 0));
    assert!(!pause(&w.g, &vm, &mut w.hart) && !resume(&w.g, &vm, &mut w.hart));
}

/// Harts that set A and D behind a G-stage are made use of, unless pages may go to a swap device.
#[test]
fn hardware_sets_a_and_d_where_it_can() {
    let (mut g, _) = machine(vec![vm_config("vm", 1)], 1, GuestTimer::Sstc);
    let config = |mmu, svadu| VmConfig { mmu, svadu, ..vm_config("vm", 1) };
    let plain = config(None, None);
    let offer = &mut g.offer;
    assert!(!offer.svadu(&plain), "these harts do not");
    offer.two_stage_svadu = true;
    assert!(offer.svadu(&plain));
    assert!(!offer.svadu(&config(None, Some(false))));
    for mode in [MmuMode::Shadow, MmuMode::Lazy, MmuMode::Steered, MmuMode::Adaptive] {
        assert!(!offer.svadu(&config(Some(mode), None)), "{mode}");
    }
    assert!(offer.svadu(&config(Some(MmuMode::Lazy), Some(true))));
    offer.has_swap = true;
    assert!(!offer.svadu(&plain));
    assert!(offer.svadu(&config(None, Some(true))));
    offer.has_swap = false;
    offer.guest = GuestMode::Supervisor;
    assert!(!offer.svadu(&plain), "without H");
}
