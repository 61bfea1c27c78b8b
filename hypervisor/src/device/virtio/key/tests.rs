//! The power key behind its transport, as drivers see it.

use super::*;
use crate::device::interface::Answer;
use crate::device::interface::tests::RAM;
use crate::device::virtio::driver::{DEVICE, DRIVER, Driver, TABLE};

const DATA: u64 = RAM + 0x1000;
const NOTIFY: u64 = 0x050;

fn rig() -> Driver<PowerKey> {
    let mut rig = Driver::new(Mmio::new(AT.0, AT.1, PowerKey::default()), 0x4000);
    rig.world.ram.fill(0xee);
    rig.start(0, 8);
    rig
}

/// Offers a buffer, and notifies.
fn offer(rig: &mut Driver<PowerKey>, gpa: u64, bytes: u32, flags: u64) {
    let at = u64::from(rig.available % 8);
    let words = [gpa, u64::from(bytes) | flags << 32];
    rig.poke(TABLE + 16 * at, words.map(u64::to_le_bytes).as_flattened());
    rig.poke(DRIVER + 4 + 2 * at, &(at as u16).to_le_bytes());
    rig.available += 1;
    let available = rig.available.to_le_bytes();
    rig.poke(DRIVER + 2, &available);
    assert_eq!(rig.set(NOTIFY, 0), Answer::Done(()));
}

fn press(rig: &mut Driver<PowerKey>) -> bool {
    rig.device.press(&mut rig.world)
}

fn back(rig: &Driver<PowerKey>) -> u8 {
    rig.bytes(DEVICE + 2, 1)[0]
}

/// Reads bytes of a part of the configuration.
fn part(rig: &mut Driver<PowerKey>, select: u64, subselect: u64) -> Vec<u8> {
    let Driver { device, world, .. } = rig;
    for (offset, value) in [(0x100, select), (0x101, subselect)] {
        assert_eq!(device.store(offset, 1, value, world), Answer::Done(()));
    }
    let mut byte = |offset| match device.load(offset, 1, world) {
        Answer::Done(byte) => byte as u8,
        other => panic!("{other:?}"),
    };
    let bytes = byte(0x102);
    (0..u64::from(bytes)).map(|at| byte(0x108 + at)).collect()
}

#[test]
fn a_press_is_four_events_in_four_buffers() {
    let mut rig = rig();
    (0..6).for_each(|n| offer(&mut rig, DATA + 8 * n, 8, 2));
    assert_eq!((back(&rig), rig.device.interrupt()), (0, false), "nothing happens by itself");
    assert!(press(&mut rig));
    assert_eq!((back(&rig), rig.device.interrupt()), (4, true));
    let seen = [[1, 0, 116, 0, 1, 0, 0, 0], [0; 8], [1, 0, 116, 0, 0, 0, 0, 0], [0; 8], [0xee; 8]];
    assert_eq!(rig.bytes(DATA, 40), seen.as_flattened());
    assert_eq!(rig.device.backend().counts.presses, 1);
}

#[test]
fn events_wait_for_buffers_and_are_one_press_meanwhile() {
    let mut rig = rig();
    assert!(press(&mut rig) && press(&mut rig));
    offer(&mut rig, DATA, 8, 2);
    assert!(press(&mut rig));
    // Useless buffers come back empty, and cost no event.
    offer(&mut rig, DATA + 8, 7, 2);
    offer(&mut rig, DATA + 8, 8, 0);
    offer(&mut rig, 0, 8, 2);
    assert_eq!((back(&rig), rig.device.backend().counts), (4, Counts { presses: 1, refused: 3 }));
    (1..5).for_each(|n| offer(&mut rig, DATA + 8 * n, 8, 2));
    assert_eq!((back(&rig), rig.bytes(DATA + 16, 8)), (7, &[1, 0, 116, 0, 0, 0, 0, 0][..]));
    assert_eq!(rig.bytes(DATA + 32, 8), [0xee; 8]);
    assert!(press(&mut rig));
    assert_eq!((back(&rig), rig.device.backend().counts.presses), (8, 2));
}

#[test]
fn memory_that_comes_later_is_waited_for() {
    let mut rig = rig();
    (0..4).for_each(|n| offer(&mut rig, DATA + 8 * n, 8, 2));
    rig.world.later = Some(7);
    press(&mut rig);
    (0..50).for_each(|_| rig.moment());
    rig.world.later = None;
    rig.moment();
    assert_eq!((back(&rig), rig.bytes(DATA, 8)), (4, &PRESS[0][..]));
}

#[test]
fn without_a_driver_a_press_is_refused() {
    let mut rig = rig();
    rig.set(0x070, 0);
    assert!(!press(&mut rig));
    // A driver that comes later does not get it.
    rig.start(0, 8);
    (0..4).for_each(|n| offer(&mut rig, DATA + 8 * n, 8, 2));
    assert_eq!(back(&rig), 0);
    // Nor does one that stops its queue and starts it again.
    let mut stopped = self::rig();
    press(&mut stopped);
    stopped.set(0x044, 0);
    assert!(!press(&mut stopped));
}

#[test]
fn the_configuration_names_one_key() {
    let mut rig = rig();
    assert_eq!(part(&mut rig, 1, 0), NAME);
    let keys = part(&mut rig, 0x11, 1);
    let set: Vec<usize> = (0..8 * keys.len()).filter(|at| keys[at / 8] >> (at % 8) & 1 == 1).collect();
    assert_eq!(set, [116]);
    for (select, subselect) in [(0, 0), (1, 1), (2, 0), (3, 0), (0x10, 0), (0x11, 0), (0x11, 2), (0x12, 0), (255, 255)]
    {
        assert!(part(&mut rig, select, subselect).is_empty(), "{select:#x}");
    }
}

#[test]
fn it_goes_on_elsewhere() {
    let mut rig = rig();
    (0..4).for_each(|n| offer(&mut rig, DATA + 8 * n, 8, 2));
    let state = rig.device.save().expect("nothing has to be waited for");
    let mut other = self::rig();
    other.device = Mmio::new(AT.0, AT.1, PowerKey::default());
    other.world.ram.clone_from(&rig.world.ram);
    assert_eq!(other.device.restore(&state), Ok(()));
    assert!(press(&mut other));
    assert_eq!((back(&other), other.bytes(DATA, 8)), (4, &PRESS[0][..]));
}
