//! Ports of VMs, in each mode, by the control channel's requests.

use crate::fake::driver::{self, counters, offer, read, rings, write};
use crate::fake::{World, depart, park, printed, vm_config};
use abi::bundle::{GUEST_RAM_BASE, MmuMode, VmConfig};
use abi::control::Answer;
use abi::control::port::{Exchange, Heard, MOST_SENT, Wish};
use abi::snapshot::bytes::Bytes;
use hypervisor::control::connections::ask;
use hypervisor::io::host_events::go_on;
use hypervisor::io::serial::type_in;
use hypervisor::vm::Departure;
use std::sync::atomic::Ordering;

const DEVICE: u64 = 0x1000_f000;
const SOURCE: u32 = 17;
/// Queues: what the driver is told of ports, what it says, and those of the first one.
const TOLD: u64 = 2;
const SAYS: u64 = 3;
const IN: u64 = 4;
const OUT: u64 = 5;
const MULTIPORT: u64 = 1 << 1;
const DATA: u64 = GUEST_RAM_BASE + 0x1_0ff0;

fn world(mmu: MmuMode, virtio_console: bool) -> World {
    let ports = vec!["one".into()];
    driver::world(VmConfig { mmu: Some(mmu), virtio_console, ports, ..vm_config("vm", 2) })
}

/// Starts the driver, which has opened the port.
fn start(w: &mut World) {
    driver::start(w, DEVICE, MULTIPORT, 6);
    // The device is ready, the port is, and it is open.
    for (made, message) in (0..).zip([[0, 0, 0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 3, 0, 1, 0], [1, 0, 0, 0, 6, 0, 1, 0]]) {
        write(w, DATA, &message);
        offer(w, (DEVICE, SAYS), made, &[(DATA, 8, 0)]);
    }
}

fn exchange(w: &mut World, said: Exchange) -> Heard {
    let vm = w.run.vm.clone();
    let wish = Wish::Exchange(said);
    let Some(Answer::Heard(heard)) = ask(&w.g, &vm, 0, &wish, &mut w.hart) else { panic!("it has the port") };
    heard
}

fn said(connection: u32, at: u64, bytes: &[u8], from: u64) -> Exchange {
    Exchange { connection, at, bytes: Bytes(bytes.to_vec()), from, most: 100 }
}

#[test]
fn a_guest_and_a_program_of_the_host_speak_with_each_other() {
    for mmu in MmuMode::ALL {
        let mut w = world(mmu, false);
        start(&mut w);
        offer(&mut w, (DEVICE, IN), 0, &[(DATA, 3, 1), (DATA + 14, 4, 2)]);
        assert_eq!(read::<2>(&mut w, rings(IN)[2] + 2), [0, 0], "{mmu}");
        // The first of the buffers is none that can be written, by the driver's own words.
        let heard = exchange(&mut w, said(1, 0, b"hello", 0));
        assert_eq!(heard, Heard { taken: 5, waiting: 1, is_open: true, ..Heard::default() }, "{mmu}");
        assert_eq!(&read::<4>(&mut w, DATA + 14), b"hell", "{mmu}: across pages");
        assert!(w.run.vm.devices.plic.lock().is_high(SOURCE), "{mmu}: the guest is interrupted");
        write(&mut w, DATA, b"answer");
        offer(&mut w, (DEVICE, OUT), 0, &[(DATA, 6, 0)]);
        assert_eq!(exchange(&mut w, said(1, 5, b"", 0)).bytes.0, b"answer", "{mmu}");
        // What the driver was told: the port, its name, and that a client is connected.
        for (made, message) in
            (0..).zip([&[1, 0, 0, 0, 1, 0, 1, 0][..], b"\x01\0\0\0\x07\0\x01\0one", &[1, 0, 0, 0, 6, 0, 1, 0]])
        {
            offer(&mut w, (DEVICE, TOLD), made, &[(DATA, 64, 2)]);
            let told: [u8; 11] = read(&mut w, DATA);
            assert_eq!(&told[..message.len()], message, "{mmu}");
        }
        let vm = w.run.vm.clone();
        assert_eq!(ask(&w.g, &vm, 0, &Wish::Close(1), &mut w.hart), Some(Answer::Done));
        offer(&mut w, (DEVICE, TOLD), 3, &[(DATA, 64, 2)]);
        assert_eq!(read::<8>(&mut w, DATA), [1, 0, 0, 0, 6, 0, 0, 0], "{mmu}");
        let names = ["ports.bytes_out", "ports.bytes_in", "ports.unheard", "ports.refused", "ports.nonsense"];
        assert_eq!(counters(&w, names), [6, 4, 0, 0, 0].map(Some), "{mmu}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let mut w = world(MmuMode::TwoStage, true);
    let vm = w.run.vm.clone();
    let none = |w: &mut World, port, wish| ask(&w.g, &vm, port, &wish, &mut w.hart).is_none();
    assert!(none(&mut w, 1, Wish::Exchange(said(1, 0, b"", 0))) && none(&mut w, u32::MAX, Wish::Close(1)));
    assert!(none(&mut w, 0, Wish::Exchange(said(1, 0, &[0; MOST_SENT + 1], 0))));
    let mut w = driver::world(VmConfig { virtio_console: true, ..vm_config("vm", 1) });
    let vm = w.run.vm.clone();
    assert_eq!(ask(&w.g, &vm, 0, &Wish::Close(1), &mut w.hart), None);
}

#[test]
fn a_vm_that_starts_over_finds_whoever_is_connected() {
    let mut w = world(MmuMode::Lazy, false);
    start(&mut w);
    exchange(&mut w, said(1, 0, b"early", 0));
    let vm = w.run.vm.clone();
    depart(&w.g, &vm, Departure::Reboot, &mut w.hart);
    park(&w.g, w.run, &mut w.hart);
    w.run = w.g.sched.take(0).expect("it has started over");
    assert!(!exchange(&mut w, said(1, 5, b"", 0)).is_open, "its driver is another one");
    start(&mut w);
    offer(&mut w, (DEVICE, IN), 0, &[(DATA, 8, 2)]);
    assert_eq!(&read::<5>(&mut w, DATA), b"early");
    printed();
}

#[test]
fn a_vm_that_is_frozen_is_given_nothing_before_it_goes_on() {
    let mut w = world(MmuMode::TwoStage, false);
    start(&mut w);
    write(&mut w, DATA, &[0xee; 8]);
    offer(&mut w, (DEVICE, IN), 0, &[(DATA, 8, 2)]);
    let vm = w.run.vm.clone();
    vm.is_frozen.store(true, Ordering::SeqCst);
    assert_eq!(exchange(&mut w, said(1, 0, b"later", 0)).waiting, 5);
    go_on(&w.g, 1 << vm.slot(), &mut w.hart);
    assert_eq!(read::<8>(&mut w, DATA), [0xee; 8]);
    vm.is_frozen.store(false, Ordering::SeqCst);
    go_on(&w.g, 1 << vm.slot(), &mut w.hart);
    assert_eq!(&read::<5>(&mut w, DATA), b"later");
}

#[test]
fn where_there_are_ports_only_what_is_typed_is_the_uarts() {
    let mut w = world(MmuMode::TwoStage, false);
    start(&mut w);
    offer(&mut w, (DEVICE, 0), 0, &[(DATA, 8, 2)]);
    let vm = w.run.vm.clone();
    assert_eq!(type_in(&w.g, &vm, b"typed", &mut w.hart), 5);
    assert!(vm.devices.uart.lock().received().eq(b"typed".iter().copied()));
    assert_eq!(read::<2>(&mut w, rings(0)[2] + 2), [0, 0]);
    printed();
}
