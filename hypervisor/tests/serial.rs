//! Input from the host's serial port waits there until a guest has room for it, and guests wait until it has room for their
//! output.

use crate::fake::{self, Event, LISTENS, ROOM, TYPED, World, world};
use hypervisor::device::offer::GuestTimer;
use hypervisor::device::uart::START as UART;
use hypervisor::io::{host_events, serial};
use hypervisor::vm::outcome::Outcome;
use hypervisor::vm::vcpu::request;
use sbi_spec::{dbcn, legacy};
use std::sync::atomic::Ordering;

#[test]
fn input_waits_for_the_guest_and_none_is_lost() {
    let mut w = world(1, GuestTimer::Sstc);
    let typed: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
    TYPED.with_borrow_mut(|queue| queue.extend(&typed));
    let mut read = Vec::new();
    while read.len() < typed.len() {
        assert_eq!(serial::attend(&w.g, &mut w.hart), None);
        let is_held = !LISTENS.get().input;
        assert_eq!(is_held, TYPED.with_borrow(|queue| !queue.is_empty()));
        // The guest takes some of it, by both ways.
        let buffer = abi::bundle::GUEST_RAM_BASE;
        let (error, count) = w.sbi(dbcn::EID_DBCN, dbcn::CONSOLE_READ as u64, &[200, buffer, 0]);
        assert_eq!(error, 0);
        let mut bytes = vec![0; count as usize];
        fake::read(&w.g, &w.run.vm, rv::Addr::new(buffer), &mut bytes, &mut w.hart).expect("it is RAM");
        read.extend(bytes);
        let mut uart = w.run.vm.devices.uart.lock();
        for _ in 0..50 {
            if uart.read(5) & 1 != 0 {
                read.push(uart.read(0));
            }
        }
        serial::input_taken(&w.g, &w.run.vm, uart, &mut w.hart);
        assert!(LISTENS.get().input, "there is room: the port interrupts again");
    }
    assert_eq!(read, typed);
}

/// A guest that prints on a line without a reader waits, and goes on when the line is read.
#[test]
fn a_guest_that_prints_too_much_waits_until_there_is_room() {
    const STORE: u64 = 23;
    const SB: u64 = 0x00b0_0023;
    let mut w = world(1, GuestTimer::Sstc);
    ROOM.set(0);
    w.run.context.x[11] = b'.'.into();
    let by_uart = |w: &mut World| w.exit(STORE, UART, UART, SB);
    let mut stored = 0;
    while by_uart(&mut w) == Outcome::Resume {
        stored += 1;
        assert!(stored < 100_000, "it never waits");
    }
    let pc = w.run.context.pc;
    assert_eq!(by_uart(&mut w), Outcome::Later);
    assert_eq!(w.run.context.pc, pc, "the store is still to be made");
    (w.run.context.x[10], w.run.context.x[16], w.run.context.x[17]) = (b'!'.into(), 2, dbcn::EID_DBCN as u64);
    assert_eq!(w.exit(10, 0, 0, 0), Outcome::Later);
    assert_eq!(w.run.context.pc, pc, "the call as well");
    let is_awake = |w: &World| w.run.shared.posted.load(Ordering::SeqCst) & request::AGAIN != 0;
    host_events::go_on(&w.g, 1, &mut w.hart);
    assert!(!is_awake(&w) && w.hart.events.contains(&Event::AttendSoon), "there is no room yet");
    ROOM.set(16);
    for _ in 0..10 {
        host_events::go_on(&w.g, 1, &mut w.hart);
    }
    assert!(is_awake(&w));
    assert_eq!(by_uart(&mut w), Outcome::Resume);
    for _ in 0..1000 {
        host_events::go_on(&w.g, 1, &mut w.hart);
    }
    assert_eq!(fake::printed().matches('.').count(), stored + 1);
}

/// A call that waits for room is made again, whatever else the VM's devices have to do.
#[test]
fn a_call_that_waits_for_room_is_made_again_when_there_is_some() {
    let mut w = world(1, GuestTimer::Sstc);
    ROOM.set(0);
    let call = |w: &mut World| {
        (w.run.context.x[10], w.run.context.x[16], w.run.context.x[17]) = (b'!'.into(), 2, dbcn::EID_DBCN as u64);
        w.exit(10, 0, 0, 0)
    };
    let mut printed = 0;
    while call(&mut w) == Outcome::Resume {
        printed += 1;
        assert!(printed < 100_000, "it never waits");
    }
    let is_awake = |w: &World| w.run.shared.posted.load(Ordering::SeqCst) & request::AGAIN != 0;
    for _ in 0..10 {
        host_events::go_on(&w.g, 1, &mut w.hart);
    }
    assert!(!is_awake(&w), "there is no room yet");
    ROOM.set(16);
    for _ in 0..10 {
        host_events::go_on(&w.g, 1, &mut w.hart);
    }
    assert!(is_awake(&w));
    assert_eq!(call(&mut w), Outcome::Resume);
}

#[test]
fn the_legacy_calls_read_and_print_a_byte() {
    let mut w = world(1, GuestTimer::Sstc);
    TYPED.with_borrow_mut(|queue| queue.extend(b"q"));
    assert_eq!(serial::attend(&w.g, &mut w.hart), None);
    for expected in [i64::from(b'q'), -1] {
        assert_eq!(w.sbi(legacy::LEGACY_CONSOLE_GETCHAR, 0, &[0, 5]), (expected, 5), "a1 stays");
    }
    assert_eq!(w.sbi(legacy::LEGACY_CONSOLE_PUTCHAR, 0, &[b'!'.into(), 5]), (0, 5));
    assert!(fake::printed().ends_with('!'));
}
