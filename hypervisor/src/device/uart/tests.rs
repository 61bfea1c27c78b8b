//! Tests of the UART's registers and interrupts.

use super::super::interface::tests::World;
use super::*;
use alloc::format;

#[test]
fn a_full_transmitter_holds_the_guest_until_there_is_room() {
    let mut uart = Uart::default();
    let mut world = World { room: 100, ..World::default() };
    let sent = (0..).take_while(|_| uart.store(0, 1, b'.'.into(), &mut world) == Answer::Done(())).count();
    assert_eq!((sent, world.printed.len()), (100 + MOST_SENDING, 100));
    assert!(world.is_soon, "it has its moment");
    uart.moment(&mut world);
    assert_eq!((uart.sending().len(), world.is_awake), (MOST_SENDING, false), "there is no room yet");
    world.room = 1;
    uart.moment(&mut world);
    assert!(world.is_awake);
    assert_eq!(uart.store(0, 1, b'.'.into(), &mut world), Answer::Done(()));
}

#[test]
fn what_is_written_goes_out_and_what_comes_is_read() {
    let mut uart = Uart::default();
    uart.write(1, IER_RX);
    let mut world = World::default();
    assert_eq!(uart.store(0, 1, b'x'.into(), &mut world), Answer::Done(()));
    assert_eq!((uart.sending(), &world.printed[..], world.is_soon), (&b"x"[..], &b""[..], true), "more may come");
    world.is_soon = false;
    assert_eq!(uart.store(0, 1, b'\n'.into(), &mut world), Answer::Done(()));
    assert_eq!((uart.sending(), &world.printed[..], world.is_soon), (&b""[..], &b"x\n"[..], false));
    uart.receive(b'a');
    uart.receive(b'b');
    assert_eq!(uart.read(5) & LSR_READY, LSR_READY);
    assert_eq!((uart.read(0), uart.read(0)), (b'a', b'b'));
    assert_eq!(uart.read(5), LSR_THRE | LSR_EMPTY);
}

/// Two UARTs, to one of which bytes are given the short way wherever that is one, end alike whatever is done to them.
#[test]
fn the_short_way_is_the_same_as_the_long_one() {
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 8) % below
    };
    let (mut short, mut long) = (Uart::default(), Uart::default());
    let (mut near, mut far, mut taken) = (World::default(), World::default(), 0);
    for _ in 0..25_000 {
        let byte = if next(40) == 0 { b'\n' } else { next(256) as u8 };
        // What drivers mostly do, and all else now and then.
        let (offset, value) = match next(30) {
            0 => (1 + next(7), next(256) as u8),
            1 => (3, 3),
            2 => (4, 0),
            3 => (1, [0, IER_THRE, IER_RX | IER_THRE][next(3) as usize]),
            4 => {
                short.moment(&mut near);
                long.moment(&mut far);
                continue;
            }
            5 => {
                short.receive(byte);
                long.receive(byte);
                continue;
            }
            6 => {
                for uart in [&mut short, &mut long] {
                    uart.claimed();
                    uart.completed();
                }
                continue;
            }
            7..9 => {
                let register = [0, 2, 5][next(3) as usize];
                assert_eq!(short.read(register), long.read(register));
                continue;
            }
            _ => (0, byte),
        };
        let line = (short.interrupt(), near.is_soon);
        let is_taken = offset == 0 && short.take(value);
        if is_taken {
            taken += 1;
            assert_eq!((short.interrupt(), near.is_soon), line, "no interrupt and no moment is asked for");
        } else {
            assert_eq!(short.store(offset, 1, value.into(), &mut near), Answer::Done(()));
        }
        assert_eq!(long.store(offset, 1, value.into(), &mut far), Answer::Done(()));
        assert_eq!(format!("{short:?}"), format!("{long:?}"));
        assert_eq!(near.printed, far.printed);
        if is_taken {
            assert!(far.is_soon, "a moment was asked for before");
        }
    }
    assert!(taken > 5_000, "{taken} took the short way");
}

#[test]
fn interrupts_follow_enables_and_are_acknowledged() {
    let mut uart = Uart::default();
    uart.receive(b'a');
    assert!(!uart.interrupt());
    uart.write(1, IER_RX | IER_THRE);
    assert_eq!(uart.read(2), IIR_RX, "receive data goes first");
    uart.read(0);
    assert_eq!(uart.read(2), IIR_THRE, "enabling THRE on an empty transmitter raises it");
    assert!(!uart.interrupt(), "reading IIR acknowledges THRE");
    uart.write(0, b'x');
    assert!(!uart.interrupt() && uart.wants_moment(), "it is not empty yet");
    uart.moment(&mut World::default());
    assert!(uart.interrupt());
    uart.write(1, 0);
    assert!(!uart.interrupt());
}

#[test]
fn the_divisor_hides_behind_dlab() {
    let mut uart = Uart::default();
    uart.write(3, LCR_DLAB | 3);
    uart.write(0, 0x34);
    uart.write(1, 0x12);
    assert_eq!((uart.read(0), uart.read(1)), (0x34, 0x12));
    uart.write(3, 3);
    assert_eq!(uart.read(1), 0, "IER is untouched");
}

#[test]
fn loopback_is_how_drivers_probe() {
    let mut uart = Uart::default();
    uart.write(4, MCR_LOOP | 0x0a);
    assert_eq!(uart.read(6), 0x90);
    uart.write(0, 7);
    assert_eq!(uart.read(0), 7);
}

#[test]
fn a_flood_is_bounded_and_says_so() {
    let mut uart = Uart::default();
    uart.write(1, IER_RX);
    while uart.has_room() {
        uart.receive(1);
    }
    assert_eq!(uart.read(5) & LSR_OVERRUN, 0);
    uart.receive(1);
    assert_eq!(uart.read(5) & LSR_OVERRUN, LSR_OVERRUN);
    assert_eq!(uart.read(5) & LSR_OVERRUN, 0);
    uart.read(0);
    assert!(uart.has_room());
    uart.write(4, MCR_LOOP);
    (0..FIFO + 1).for_each(|_| uart.write(0, 7));
    assert!(uart.sending().is_empty());
    assert_eq!(uart.read(5) & LSR_OVERRUN, LSR_OVERRUN);
}

#[test]
fn a_driver_that_starts_loses_no_input() {
    let mut uart = Uart::default();
    uart.receive(b'a');
    // As Linux's does.
    for value in [FCR_ENABLE, FCR_ENABLE | FCR_CLEAR_RX, 0] {
        uart.write(2, value);
    }
    for byte in b"messages that are longer than that" {
        uart.read(5);
        uart.write(0, *byte);
    }
    assert_eq!((uart.read(5) & LSR_READY, uart.read(0)), (0, 0));
    uart.write(1, IER_RX);
    assert_eq!((uart.interrupt(), uart.read(5) & LSR_READY, uart.read(0)), (true, LSR_READY, b'a'));
}

#[test]
fn a_driver_that_polls_gets_its_input_after_a_while() {
    let mut uart = Uart::default();
    uart.receive(b'a');
    let reads = (0..100).take_while(|_| uart.read(5) & LSR_READY == 0).count();
    assert_eq!((reads, uart.read(0)), (QUIET_READS.into(), b'a'));
}

#[test]
fn a_kernel_that_never_reads_iir_gets_one_interrupt_for_an_empty_transmitter() {
    let mut uart = Uart::default();
    uart.write(1, IER_THRE);
    uart.write(0, b'x');
    uart.moment(&mut World::default());
    assert!(uart.interrupt());
    uart.claimed();
    uart.write(0, b'y');
    uart.moment(&mut World::default());
    uart.completed();
    assert!(uart.interrupt(), "it has become empty once more");
    uart.claimed();
    uart.completed();
    assert!(!uart.interrupt());
    uart.completed();
    uart.write(0, b'z');
    uart.moment(&mut World::default());
    uart.completed();
    assert!(uart.interrupt(), "that one was not claimed");
}

/// Linux's threaded handlers claim, mask, complete, and read IIR when their thread runs.
#[test]
fn an_empty_transmitter_is_seen_in_iir_after_the_completion() {
    let mut uart = Uart::default();
    uart.write(1, IER_THRE | IER_RX);
    uart.claimed();
    uart.completed();
    assert_eq!((uart.interrupt(), uart.read(2)), (false, IIR_THRE));
    assert_eq!(uart.read(2), IIR_NONE);
    uart.write(1, IER_RX);
    uart.write(1, IER_THRE | IER_RX);
    uart.claimed();
    uart.completed();
    uart.receive(b'a');
    assert_eq!((uart.interrupt(), uart.read(2)), (true, IIR_RX), "another condition is signalled");
    uart.claimed();
    uart.completed();
    assert_eq!((uart.interrupt(), uart.read(0)), (true, b'a'));
    assert_eq!((uart.interrupt(), uart.read(2)), (false, IIR_THRE), "and hides nothing");
}

#[test]
fn the_carrier_goes_once_for_a_driver_that_listens() {
    let mut uart = Uart::default();
    assert!(!uart.hang_up());
    assert_eq!((uart.read(6), uart.interrupt()), (MSR_CONNECTED, false));
    uart.write(1, IER_MODEM | IER_RX);
    assert!(uart.hang_up());
    uart.receive(b'a');
    assert_eq!((uart.interrupt(), uart.read(2)), (true, IIR_RX), "input comes first");
    assert_eq!(uart.read(0), b'a');
    assert_eq!((uart.interrupt(), uart.read(2)), (true, IIR_MODEM));
    assert_eq!((uart.read(6), uart.read(6)), (MSR_HUNG_UP, MSR_CONNECTED));
    assert_eq!((uart.interrupt(), uart.read(2)), (false, IIR_NONE));
    uart.hang_up();
    uart.reset();
    assert_eq!(uart.read(6), MSR_CONNECTED);
}
