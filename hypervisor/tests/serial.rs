//! Input from the host's serial port waits there until a guest has room for it.

mod fake;

use fake::{LISTENS, TYPED, world};
use hypervisor::offer::GuestTimer;
use hypervisor::serial;
use sbi_spec::{dbcn, legacy};

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
        w.run.vm.read(&w.g, rv::Addr::new(buffer), &mut bytes, &mut w.hart).expect("it is RAM");
        read.extend(bytes);
        let mut devices = w.run.vm.devices.lock();
        for _ in 0..50 {
            if devices.uart.read(5) & 1 != 0 {
                read.push(devices.uart.read(0));
            }
        }
        serial::accessed(&w.g, &w.run.vm, devices, &mut w.hart);
        assert!(LISTENS.get().input, "there is room: the port interrupts again");
    }
    assert_eq!(read, typed);
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
