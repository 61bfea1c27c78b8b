//! Harts, as threads, that take vCPUs from each other, let them wait, and post to them: nothing is lost.

use crate::fake::{machine, vm_config};
use hypervisor::device::offer::GuestTimer;
use hypervisor::hart::sched::Sched;
use hypervisor::life::lifecycle;
use hypervisor::vm::vcpu::{NOWHERE, Vcpu, VcpuRun, request};
use lane::BriefCauses;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Returns so many vCPUs of one VM, ready since times 0, 1, ... in the queues of so many harts.
fn ready(vcpus: u32, harts: usize) -> (Sched, Vec<Arc<Vcpu>>) {
    let (g, mut hart) = machine(vec![], harts, GuestTimer::Sstc);
    let sched = Sched::new(harts);
    let vm = lifecycle::create(&g, g.vms.draw(vm_config("vm", vcpus), &g.offer), &mut hart).expect("there is room");
    for vcpu in &vm.vcpus {
        let run = VcpuRun::new(Arc::clone(&vm), Arc::clone(vcpu), 0, BriefCauses::NONE);
        let one_too_many = sched.start(run, vcpu.id as usize % harts, vcpu.id.into());
        assert_eq!(one_too_many, vcpu.id as usize == harts);
    }
    (sched, vm.vcpus.clone())
}

fn take(sched: &Sched, hart: usize) -> u32 {
    sched.take(hart).expect("one is ready").shared.id
}

#[test]
fn who_has_been_ready_longest_comes_next_whichever_hart_asks() {
    let (sched, _) = ready(5, 3);
    assert_eq!([2, 0, 0, 1, 2].map(|hart| take(&sched, hart)), [0, 1, 2, 3, 4]);
    assert!(sched.take(1).is_none() && !sched.has_ready());
}

#[test]
fn all_get_as_much_whatever_queue_they_are_in() {
    // Three on two harts, whose slices end at the same time: in one round of three slices each has two.
    let (sched, vcpus) = ready(3, 2);
    let mut slices = [0; 3];
    let mut now = 10;
    let mut on_harts = [sched.take(0), sched.take(1)];
    for _ in 0..30 {
        for (hart, run) in on_harts.iter_mut().enumerate() {
            let ended = run.take().expect("it runs");
            slices[ended.shared.id as usize] += 1;
            now += 1;
            sched.requeue(ended, hart, now);
            *run = sched.take(hart);
        }
    }
    assert_eq!((slices, vcpus.len()), ([20; 3], 3));
}

#[test]
fn who_waits_for_a_store_lets_others_go_first_for_a_while() {
    let (sched, _) = ready(3, 1);
    let spinner = sched.take(0).unwrap();
    sched.requeue(spinner, 0, 100);
    assert_eq!(sched.ready_since(), 1);
    let preempted = sched.take(0).unwrap();
    sched.requeue(preempted, 0, 50);
    assert_eq!([(); 3].map(|()| take(&sched, 0)), [2, 1, 0], "who was preempted, then who waits");
}

#[test]
fn those_whose_time_has_come_are_ready() {
    let (sched, vcpus) = ready(3, 2);
    for until in [30, 10, 20] {
        let run = sched.take(1).unwrap();
        sched.wait(run, until, 1, 5);
    }
    assert_eq!(sched.expire(0, 100, |_| panic!("another hart's")), u64::MAX);
    assert_eq!(sched.expire(1, 20, |_| {}), 30);
    assert_eq!((take(&sched, 0), take(&sched, 0), sched.has_ready()), (1, 2, false));
    assert_eq!((sched.wake(&vcpus[1], 40), sched.wake(&vcpus[0], 40)), (None, Some(1)));
    assert_eq!(sched.remove_vm(0).len(), 1);
    assert_eq!((sched.started_count(), vcpus[0].waiting.load(SeqCst)), (2, NOWHERE));
}

#[test]
fn what_was_posted_before_a_wait_ends_it() {
    let (sched, vcpus) = ready(1, 2);
    let run = sched.take(1).unwrap();
    vcpus[0].posted.store(request::SOFTWARE, SeqCst);
    assert_eq!(sched.wake(&vcpus[0], 7), None, "it does not wait yet");
    sched.wait(run, u64::MAX, 1, 8);
    assert_eq!((sched.ready_since(), vcpus[0].waiting.load(SeqCst)), (8, NOWHERE));
}

#[test]
fn a_vcpu_that_something_is_posted_to_never_waits() {
    const ROUNDS: u64 = 4_000;
    let (sched, vcpus) = ready(5, 3);
    let (served, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for hart in 0..3 {
            let (sched, served, over) = (&sched, &served, &over);
            scope.spawn(move || {
                let mut round = hart;
                while !over.load(SeqCst) {
                    let Some(run) = sched.take(hart) else {
                        std::thread::yield_now();
                        continue;
                    };
                    round += 1;
                    served.fetch_add(u64::from(run.shared.posted.swap(0, SeqCst) != 0), SeqCst);
                    match round % 8 {
                        0 => sched.requeue(run, hart, round as u64),
                        _ => sched.wait(run, u64::MAX, hart, round as u64),
                    }
                }
            });
        }
        // Each post waits until a hart that ran the vCPU has served it: nothing else would ever wake the vCPU.
        for n in 0..ROUNDS {
            let vcpu = &vcpus[n as usize % vcpus.len()];
            vcpu.posted.fetch_or(request::SOFTWARE, SeqCst);
            let _ = sched.wake(vcpu, n);
            let since = std::time::Instant::now();
            while vcpu.posted.load(SeqCst) != 0 {
                assert!(since.elapsed().as_secs() < 20, "vCPU {} sleeps on what was posted", vcpu.id);
                std::thread::yield_now();
            }
        }
        over.store(true, SeqCst);
    });
    assert_eq!(served.into_inner(), ROUNDS);
    assert_eq!(sched.remove_vm(0).len(), vcpus.len(), "none is lost");
    assert_eq!(sched.started_count(), 0);
}
