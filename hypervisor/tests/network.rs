//! VMs on a network, in each mode: a frame from one to the other, and what becomes of those on their way when a VM ends or starts over.

use crate::fake::{self, Event, Hart, depart, park, printed, start_due, vm_config};
use abi::bundle::{GUEST_RAM_BASE, MmuMode, VmConfig};
use abi::mac::Mac;
use abi::record::EndReason;
use hypervisor::device::Answer;
use hypervisor::device::offer::GuestTimer;
use hypervisor::gnomon::Gnomon;
use hypervisor::io::host_events;
use hypervisor::io::outside::{Output, Reach};
use hypervisor::vm::vcpu::VcpuRun;
use hypervisor::vm::{Departure, Vm};
use rv::Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The address of the card's registers.
const DEVICE: u64 = 0x1000_9000;
const SOURCE: u32 = 9;
const RECEIVE: u64 = 0;
const TRANSMIT: u64 = 1;
const HEADER: usize = 12;

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn ring(queue: u64) -> u64 {
    GUEST_RAM_BASE + 0x1000 * queue
}

/// Returns the address of a queue's one buffer.
fn buffer(queue: u64) -> u64 {
    GUEST_RAM_BASE + 0x4000 + 0x1800 * queue
}

/// A machine with the VMs `a` and `b`, which have network cards, and a vCPU each.
struct Pair {
    g: Gnomon,
    hart: Hart,
    runs: [Option<Box<VcpuRun>>; 2],
    vms: [Arc<Vm>; 2],
}

impl Pair {
    fn new(mmu: MmuMode) -> Self {
        let config = |name, n, mmu| VmConfig { mac: Some(mac(n)), mmu: Some(mmu), ..vm_config(name, 1) };
        let vms = vec![config("a", 1, MmuMode::TwoStage), config("b", 2, mmu)];
        let (g, mut hart) = fake::machine(vms, 2, GuestTimer::Sstc);
        start_due(&g, &mut hart);
        let mut runs = [0, 1].map(|_| g.sched.take(0).expect("its first vCPU is ready"));
        runs.sort_by_key(|run| run.vm.handle.number);
        let vms = [0, 1].map(|at: usize| Arc::clone(&runs[at].vm));
        let mut pair = Self { g, hart, runs: runs.map(Some), vms };
        (0..2).for_each(|at| pair.start_driver(at));
        pair
    }

    fn set(&mut self, at: usize, register: u64, value: u64) {
        self.store(at, register, value);
        host_events::deliver(&self.g, &mut self.hart);
    }

    fn store(&mut self, at: usize, register: u64, value: u64) {
        let vm = &self.vms[at];
        let (target, offset, _) = vm.device_at(DEVICE + register).expect("it is there");
        let outside = &mut Reach::new(&self.g, vm, &mut self.hart, Output::Print);
        let answer = vm.devices.store(target, (offset, 4), value, outside);
        assert_eq!(answer, Answer::Done(()));
    }

    fn write(&mut self, at: usize, gpa: u64, bytes: &[u8]) {
        fake::write(&self.g, &self.vms[at], Addr::new(gpa), bytes, &mut self.hart).unwrap();
    }

    fn read<const N: usize>(&mut self, at: usize, gpa: u64) -> [u8; N] {
        let mut bytes = [0; N];
        fake::read(&self.g, &self.vms[at], Addr::new(gpa), &mut bytes, &mut self.hart).unwrap();
        bytes
    }

    fn start_driver(&mut self, at: usize) {
        for (register, value) in [(0x070, 0), (0x070, 3), (0x024, 1), (0x020, 1), (0x070, 11)] {
            self.set(at, register, value);
        }
        for queue in [RECEIVE, TRANSMIT] {
            self.write(at, ring(queue), &[0; 0x1000]);
            self.set(at, 0x030, queue);
            self.set(at, 0x038, 4);
            for (register, place) in [(0x080, 0), (0x090, 0x800), (0x0a0, 0xa00)] {
                self.set(at, register, (ring(queue) + place) & 0xffff_ffff);
                self.set(at, register + 4, (ring(queue) + place) >> 32);
            }
            self.set(at, 0x044, 1);
        }
        self.set(at, 0x070, 15);
        self.set(at, 0x050, RECEIVE);
    }

    /// Makes a queue's buffer available, for the `n`th time.
    fn offer(&mut self, at: usize, queue: u64, bytes: u64, n: u8) {
        let flags = if queue == RECEIVE { 2 } else { 0 };
        self.write(at, ring(queue), [buffer(queue), bytes | flags << 32].map(u64::to_le_bytes).as_flattened());
        self.write(at, ring(queue) + 0x802, &[n, 0]);
        self.set(at, 0x050, queue);
    }

    /// Sends a frame from one to the other, as the `n`th.
    fn send(&mut self, from: usize, content: u8, n: u8) {
        let macs = [mac(2 - from as u8).0, mac(1 + from as u8).0].concat();
        let frame = [vec![0xee; HEADER], macs, vec![content; 400]].concat();
        self.write(from, buffer(TRANSMIT), &frame);
        self.offer(from, TRANSMIT, frame.len() as u64, n);
        assert_eq!(self.read::<2>(from, ring(TRANSMIT) + 0xa02), [n, 0], "it is back");
    }

    fn count(&self, at: usize, name: &str) -> u64 {
        self.g.report(&self.vms[at]).count(name).expect("it is counted")
    }
}

#[test]
fn a_frame_goes_from_memory_to_memory_and_interrupts() {
    for mmu in MmuMode::ALL {
        let mut pair = Pair::new(mmu);
        pair.offer(1, RECEIVE, 2048, 1);
        pair.send(0, 7, 1);
        assert_eq!(pair.read::<8>(1, ring(RECEIVE) + 0xa00), [0, 0, 1, 0, 0, 0, 0, 0], "{mmu}");
        let frame = pair.read::<424>(1, buffer(RECEIVE));
        assert_eq!((&frame[HEADER..HEADER + 6], frame[24..] == [7; 400]), (&mac(2).0[..], true), "{mmu}");
        assert!(pair.vms[1].devices.plic.lock().is_high(SOURCE), "{mmu}: the guest is interrupted");
        pair.offer(0, RECEIVE, 2048, 1);
        pair.send(1, 9, 1);
        assert_eq!(pair.read::<1>(0, buffer(RECEIVE) + 24), [9], "{mmu}");
        let counts =
            ["net.frames_out", "net.frames_in", "net.bytes_in", "net.malformed"].map(|name| pair.count(1, name));
        assert_eq!(counts, [1, 1, 412, 0], "{mmu}");
    }
}

/// A hart that runs a third VM delivers frames within its budget for others.
#[test]
fn frames_for_others_wait_for_the_budget() {
    let mut pair = Pair::new(MmuMode::TwoStage);
    pair.offer(1, RECEIVE, 2048, 1);
    let frame = [vec![0xee; HEADER], [mac(2).0, mac(1).0].concat(), vec![7; 400]].concat();
    pair.write(0, buffer(TRANSMIT), &frame);
    pair.write(0, ring(TRANSMIT), [buffer(TRANSMIT), frame.len() as u64].map(u64::to_le_bytes).as_flattened());
    pair.write(0, ring(TRANSMIT) + 0x802, &[1, 0]);
    pair.store(0, 0x050, TRANSMIT);
    pair.g.harts[0].has_guest.store(true, Relaxed);
    pair.hart.others_from = pair.hart.time + 1000;
    pair.hart.events.clear();
    let go_on = |pair: &mut Pair| host_events::go_on(&pair.g, u64::MAX, &mut pair.hart);
    go_on(&mut pair);
    assert_eq!(pair.count(1, "net.frames_in"), 0);
    assert!(pair.hart.events.contains(&Event::AttendAt(pair.hart.others_from)), "{:?}", pair.hart.events);
    pair.hart.time = pair.hart.others_from;
    go_on(&mut pair);
    assert_eq!(pair.count(1, "net.frames_in"), 1);
    // Its own guest's do not wait.
    pair.offer(1, RECEIVE, 2048, 2);
    pair.write(0, ring(TRANSMIT) + 0x802, &[2, 0]);
    pair.store(0, 0x050, TRANSMIT);
    pair.hart.others_from = pair.hart.time + 1000;
    pair.vms[1].vcpus[0].hart.store(0, Relaxed);
    go_on(&mut pair);
    assert_eq!(pair.count(1, "net.frames_in"), 2);
}

#[test]
fn what_waits_for_a_vm_that_starts_over_does_not_reach_it() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut pair = Pair::new(mmu);
        // It has no buffers: those wait.
        (1..4).for_each(|n| pair.send(0, n, n));
        let vm = Arc::clone(&pair.vms[1]);
        depart(&pair.g, &vm, Departure::Reboot, &mut pair.hart);
        park(&pair.g, pair.runs[1].take().expect("it is there"), &mut pair.hart);
        pair.runs[1] = pair.g.sched.take(0);
        assert!(pair.runs[1].is_some(), "{mmu}: it has started over");
        // It has no driver yet.
        pair.send(0, 4, 4);
        pair.start_driver(1);
        pair.offer(1, RECEIVE, 2048, 1);
        assert_eq!(pair.read::<2>(1, ring(RECEIVE) + 0xa02), [0, 0], "{mmu}: nothing of before");
        pair.send(0, 5, 5);
        assert_eq!(pair.read::<1>(1, buffer(RECEIVE) + 24), [5], "{mmu}");
    }
    printed();
}

#[test]
fn what_waits_for_a_vm_that_ends_is_nobodys() {
    let mut pair = Pair::new(MmuMode::TwoStage);
    pair.send(0, 1, 1);
    let (vm, handle) = (Arc::clone(&pair.vms[1]), pair.vms[1].handle);
    depart(&pair.g, &vm, Departure::End(EndReason::Poweroff), &mut pair.hart);
    // Its memory is gone; it is still there, since its vCPU is not parked.
    park(&pair.g, pair.runs[1].take().expect("it is there"), &mut pair.hart);
    assert!(pair.g.vms.get(handle).is_none());
    for n in 2..100 {
        pair.send(0, n, n);
    }
    assert!(!pair.g.offer.network.has_work(), "no member is left to be served");
    assert_eq!(pair.count(0, "net.frames_out"), 99);
    printed();
}
