//! A VM's virtio console, in each mode: what is printed and typed there goes the way of the UART's.

use crate::fake::driver::{self, USED, ask_by, counters, read, write};
use crate::fake::{World, depart, park, printed, vm_config};
use abi::bundle::{GUEST_RAM_BASE, MmuMode, VmConfig};
use hypervisor::device::virtio::{Console, Mmio};
use hypervisor::io::host_events::go_on;
use hypervisor::io::outside::{Output, Reach};
use hypervisor::io::serial::type_in;
use hypervisor::vm::Departure;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const DEVICE: u64 = 0x1000_f000;
const BALLOON: u64 = 0x1000_1000;
const SOURCE: u32 = 17;
const RECEIVE: u64 = 0;
const TRANSMIT: u64 = 1;
const DATA: u64 = GUEST_RAM_BASE + 0x1ff0;

fn world(mmu: MmuMode) -> World {
    driver::world(VmConfig { mmu: Some(mmu), virtio_console: true, ..vm_config("vm", 2) })
}

/// Starts the driver, which has printed a byte, and offers buffers for what is typed.
fn listen(w: &mut World, chain: &[(u64, u64, u64)]) {
    driver::start(w, DEVICE, 0, 2);
    driver::offer(w, (DEVICE, TRANSMIT), 0, &[(DATA + 64, 1, 0)]);
    driver::offer(w, (DEVICE, RECEIVE), 0, chain);
}

fn data(w: &mut World) -> [u8; 8] {
    read(w, DATA)
}

#[test]
fn what_is_sent_is_printed_and_what_is_typed_comes() {
    for mmu in MmuMode::ALL {
        let mut w = world(mmu);
        printed();
        write(&mut w, DATA, b"a line of its own\n");
        ask_by(&mut w, (DEVICE, TRANSMIT), &[(DATA, 6, 1), (DATA + 6, 12, 0)]);
        let said = printed();
        assert!(said.contains("a line of its own"), "{mmu}: {said}");
        assert_eq!(read::<2>(&mut w, USED + 2), [1, 0], "{mmu}");
        let vm = Arc::clone(&w.run.vm);
        let board = &mut Reach::new(&w.g, &vm, &mut w.hart, Output::Leave);
        assert_eq!(vm.devices.with(board, |console: &mut Mmio<Console>, _| console.counts().1), Some(0));
        write(&mut w, DATA, &[0xee; 8]);
        listen(&mut w, &[(DATA, 6, 2)]);
        assert_eq!(data(&mut w), [0xee; 8], "{mmu}: there is no input yet");
        let vm = w.run.vm.clone();
        assert_eq!(type_in(&w.g, &vm, b"typed!!", &mut w.hart), 7);
        assert_eq!(&data(&mut w), b"typed!\xee\xee", "{mmu}");
        assert!(vm.devices.plic.lock().is_high(SOURCE), "{mmu}: the guest is interrupted");
        // What there was no room for comes with the next buffer.
        listen(&mut w, &[(DATA, 6, 2)]);
        assert_eq!(&data(&mut w), b"!yped!\xee\xee", "{mmu}");
        let counts = counters(&w, ["console.bytes_out", "console.bytes_in", "console.refused"]);
        assert_eq!(counts, [Some(20), Some(7), Some(0)], "{mmu}");
    }
}

#[test]
fn before_there_is_a_driver_and_when_the_vm_has_started_over_the_uart_has_what_is_typed() {
    let mut w = world(MmuMode::TwoStage);
    write(&mut w, DATA, &[0xee; 8]);
    listen(&mut w, &[(DATA, 8, 2)]);
    let vm = w.run.vm.clone();
    depart(&w.g, &vm, Departure::Reboot, &mut w.hart);
    park(&w.g, w.run, &mut w.hart);
    w.run = w.g.sched.take(0).expect("it has started over");
    write(&mut w, DATA, &[7; 8]);
    assert_eq!(type_in(&w.g, &vm, b"firmware", &mut w.hart), 8);
    assert_eq!(data(&mut w), [7; 8], "a buffer of an earlier life");
    assert!(vm.devices.uart.lock().received().eq(b"firmware".iter().copied()));
    // The driver that comes then has it.
    listen(&mut w, &[(DATA, 8, 2)]);
    assert_eq!(&data(&mut w), b"firmware");
    printed();
}

#[test]
fn whoever_types_waits_while_nobody_reads() {
    let mut w = world(MmuMode::Lazy);
    let vm = w.run.vm.clone();
    let room = type_in(&w.g, &vm, &[b'x'; 1 << 16], &mut w.hart);
    assert!(room < 1 << 16 && !vm.devices.uart.lock().has_room());
    w.g.console.hold_input();
    listen(&mut w, &[(DATA, 8, 2)]);
    assert_eq!(data(&mut w), [b'x'; 8]);
    assert_eq!(type_in(&w.g, &vm, &[b'y'; 100], &mut w.hart), 8, "there is room for as much as was read");
}

#[test]
fn a_vm_that_is_frozen_is_given_nothing() {
    let mut w = world(MmuMode::TwoStage);
    write(&mut w, DATA, &[0xee; 8]);
    listen(&mut w, &[(DATA, 8, 2)]);
    let vm = w.run.vm.clone();
    vm.is_frozen.store(true, Ordering::SeqCst);
    assert_eq!(type_in(&w.g, &vm, b"later", &mut w.hart), 5);
    go_on(&w.g, 1 << vm.slot(), &mut w.hart);
    assert_eq!(data(&mut w), [0xee; 8]);
    vm.is_frozen.store(false, Ordering::SeqCst);
    go_on(&w.g, 1 << vm.slot(), &mut w.hart);
    assert_eq!(&data(&mut w)[..5], b"later");
}

#[test]
fn what_is_typed_goes_by_when_somebody_looks_at_the_line() {
    let config =
        VmConfig { mmu: Some(MmuMode::TwoStage), virtio_console: true, balloon_bytes: Some(0), ..vm_config("vm", 2) };
    let mut w = driver::world(config);
    listen(&mut w, &[(DATA, 8, 2)]);
    let vm = w.run.vm.clone();
    assert_eq!(type_in(&w.g, &vm, b"typed more", &mut w.hart), 10);
    // The next buffer is available, and before the driver notifies of it another vCPU stores to another device, of whose line it hears then.
    write(&mut w, DATA, &[0xee; 8]);
    write(&mut w, driver::DRIVER + 2, &[2, 0, 0, 0, 0, 0]);
    driver::set(&mut w, BALLOON + 0x030, 0);
    assert_eq!(data(&mut w), [0xee; 8], "nothing would raise the console's interrupt");
    driver::set(&mut w, DEVICE + 0x050, RECEIVE);
    assert_eq!(&data(&mut w)[..2], b"re");
}
