//! A device that goes on from its state behaves as the one that was never stopped: both are given the same, and compared.

use super::interface::tests::World;
use super::{Answer, Device, Plic, Rtc, Uart, Wild};
use crate::machine::clock::Clock;
use crate::random::Random;
use abi::snapshot::bytes::Bytes;
use abi::snapshot::device::{DeviceState, RtcState, UartState};
use alloc::vec;
use alloc::vec::Vec;

const ROUNDS: u64 = 40;
const STEPS: u64 = 200;

/// Makes an access of some width at some place, with some time passing, and returns its result.
fn step<D: Device>(device: &mut D, world: &mut World, random: &mut Random) -> (Answer<u64>, bool) {
    let offset = random.below(device.place().bytes / 4 * 4);
    let (offset, width) = if random.one_in(2) { (offset, 1) } else { (offset / 4 * 4, 4) };
    world.now += random.below(1000);
    let answer = match random.below(8) {
        0..=2 => device.load(offset, width, world),
        3..=5 => match device.store(offset, width, random.below(256), world) {
            Answer::Done(()) => Answer::Done(0),
            Answer::Later => Answer::Later,
            Answer::Again => Answer::Again,
            Answer::Refused => Answer::Refused,
        },
        6 => {
            device.claimed();
            device.completed();
            Answer::Done(1)
        }
        _ => {
            device.moment(world);
            Answer::Done(2)
        }
    };
    (answer, device.interrupt())
}

/// Lets one go on while others are made of its state, now and then.
fn compare<D: Device>(new: impl Fn() -> D, mut comes: impl FnMut(&mut D, &mut Random)) {
    for seed in 1..=ROUNDS {
        let (mut device, mut world, mut random) = (new(), World::default(), Random(seed));
        let mut twin: Option<(D, World)> = None;
        for _ in 0..STEPS {
            if random.one_in(20) {
                let state = device.save().expect("it has nothing under way");
                let mut other = new();
                assert_eq!(other.restore(&state), Ok(()));
                assert_eq!(other.save(), Ok(state));
                twin = Some((other, World { now: world.now, ..World::default() }));
                world.printed.clear();
            }
            let before = random.0;
            comes(&mut device, &mut random);
            let seen = step(&mut device, &mut world, &mut random);
            if let Some((twin, its_world)) = &mut twin {
                let mut random = Random(before);
                comes(twin, &mut random);
                assert_eq!(step(twin, its_world, &mut random), seen, "seed {seed}");
                assert_eq!((&its_world.printed, its_world.at), (&world.printed, world.at), "seed {seed}");
            }
            world.at = None;
            twin.iter_mut().for_each(|(_, world)| world.at = None);
        }
    }
}

#[test]
fn uarts() {
    compare(Uart::default, |uart, random| {
        if random.one_in(3) {
            uart.receive(random.below(256) as u8);
        }
    });
}

#[test]
fn clocks() {
    compare(|| Rtc::new(0x10_1000, 11, Clock::new(10_000_000, 5, 1 << 60)), |_, _| {});
}

#[test]
fn interrupt_controllers() {
    for seed in 1..=ROUNDS {
        let (mut plic, mut twin, mut random) = (Plic::new(3), None, Random(seed));
        for _ in 0..STEPS {
            if random.one_in(20) {
                let mut other = Plic::new(3);
                assert_eq!(other.restore(&plic.save()), Ok(()));
                assert_eq!(other.save(), plic.save());
                twin = Some(other);
            }
            let (source, context) = (1 + random.below(95), random.below(6));
            let (what, value) = (random.below(6), random.0 as u32);
            let act = |plic: &mut Plic| match what {
                0 => plic.set_level(source as u32, value & 1 != 0),
                1 => plic.write(4 * source, value),
                2 => plic.write(0x2000 + 0x80 * context + 4 * (source / 32), value),
                3 => plic.write(0x20_0000 + 0x1000 * context, value % 4),
                _ => {}
            };
            let ask = |plic: &mut Plic| {
                let claim = 0x20_0004 + 0x1000 * context;
                let claimed = if what == 4 { plic.read(claim) } else { 0 };
                if what == 5 {
                    plic.write(claim, source as u32);
                }
                (claimed, plic.read(0x1000 + 4 * (source / 32)), (0..3).map(|n| plic.interrupts_hart(n)).collect())
            };
            act(&mut plic);
            let seen: (u32, u32, Vec<bool>) = ask(&mut plic);
            if let Some(twin) = &mut twin {
                act(twin);
                assert_eq!(ask(twin), seen, "seed {seed}");
            }
        }
    }
}

#[test]
fn no_device_takes_what_it_cannot_have() {
    let mut uart = Uart::default();
    let long = |bytes: usize| Bytes(vec![1; bytes]);
    for state in [
        DeviceState::Rtc(RtcState::default()),
        DeviceState::Uart(UartState { sending: long(129), ..UartState::default() }),
        DeviceState::Uart(UartState { received: long((16 << 10) + 1), ..UartState::default() }),
        DeviceState::Uart(UartState { looped: long(17), ..UartState::default() }),
    ] {
        assert!(uart.restore(&state).is_err());
    }
    let wild = UartState { ier: 0xff, mcr: 0xff, quiet: 0xff, ..UartState::default() };
    assert_eq!(uart.restore(&DeviceState::Uart(wild)), Ok(()));
    assert_eq!((uart.read(1), uart.read(4)), (0x0f, 0x1f), "as if the driver had written that");
    let mut plic = Plic::new(2);
    assert_eq!(plic.restore(&Plic::new(1).save()), Err(Wild("its PLIC is for another number of harts, or none")));
    let mut state = plic.save();
    state.pending[0] = u32::MAX;
    state.priority[3] = u32::MAX;
    assert_eq!(plic.restore(&state), Ok(()));
    assert_eq!((plic.read(0x1000), plic.read(12)), (!1, 7));
    state.level.pop();
    assert!(plic.restore(&state).is_err());
}
