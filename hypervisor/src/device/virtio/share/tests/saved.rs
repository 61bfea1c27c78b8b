//! A share is saved as long as its guest has no file open there.

use super::rig::Rig;
use super::{clunk, error, message, text, version};
use crate::device::interface::{Device, Unsaved};
use crate::device::virtio::Mmio;
use crate::device::virtio::share::Share;
use abi::snapshot::device::{DeviceState, OwnState};
use alloc::sync::Arc;
use alloc::vec::Vec;

const ATTACH: u8 = 104;
const WALK: u8 = 110;
const XATTRWALK: u8 = 30;
const REMOVE: u8 = 122;

fn attach(file: u32) -> Vec<u8> {
    message(ATTACH, 1, &[&file.to_le_bytes()[..], &[0xff; 4], &text("u"), &text(""), &[0; 4]].concat())
}

fn walk(from: u32, to: u32, names: u16) -> Vec<u8> {
    let names: Vec<u8> = [&names.to_le_bytes()[..], &(0..names).flat_map(|_| text("d")).collect::<Vec<_>>()].concat();
    message(WALK, 1, &[&from.to_le_bytes()[..], &to.to_le_bytes(), &names].concat())
}

/// Makes the answer to a walk that has come so far.
fn walked(names: u16) -> Vec<u8> {
    let files: Vec<u8> = (0..names).flat_map(|_| [0; 13]).collect();
    message(WALK + 1, 1, &[&names.to_le_bytes()[..], &files].concat())
}

fn xattrwalk(from: u32, to: u32) -> Vec<u8> {
    message(XATTRWALK, 1, &[&from.to_le_bytes()[..], &to.to_le_bytes(), &text("")].concat())
}

/// Makes the answer that begins a session.
fn versioned() -> Vec<u8> {
    let mut answer = version(8192, "9P2000.L");
    answer[4] += 1;
    answer
}

fn remove(file: u32) -> Vec<u8> {
    message(REMOVE, 1, &file.to_le_bytes())
}

/// Makes the answer to a message that has been done, with nothing else to be told.
fn done(kind: u8) -> Vec<u8> {
    message(kind + 1, 1, &[0; 13])
}

impl Rig {
    /// Answers a message, as the host's device, and has the guest hear that.
    fn hear(&mut self, message: &[u8], answer: Vec<u8>) {
        self.message(0, message, 600, &[]);
        self.notify();
        assert_eq!(self.device.save(), Err(Unsaved::Busy), "it is not answered");
        self.model.lock().answer(0, answer);
        self.port.lock().attend();
        assert_eq!(self.device.save(), Err(Unsaved::Busy), "the guest has not heard it");
        // As often as the guest's memory is away, it counts once.
        for seed in 0..8 {
            self.world.later = Some(seed);
            (**self).moment();
        }
        self.world.later = None;
        self.moment();
        assert_eq!(self.come_back().len(), 1);
    }

    fn is_open(&self) -> bool {
        match self.device.save() {
            Ok(_) => false,
            Err(Unsaved::Never(why)) => why.contains("unmount it"),
            Err(Unsaved::Busy) => panic!("nothing is under way"),
        }
    }
}

#[test]
fn files_are_open_from_the_first_to_the_last() {
    const NO_ENTRY: u32 = 2;
    let no = |why| error(1, why);
    let hello = version(8192, "9P2000.L");
    let steps = [
        (hello.clone(), versioned(), false),
        // What the host refuses opens nothing.
        (attach(0), no(13), false),
        (attach(0), done(ATTACH), true),
        (walk(0, 1, 2), walked(1), true),
        (clunk(0), done(120), false),
        (attach(0), done(ATTACH), true),
        (walk(0, 1, 2), walked(2), true),
        // To go on with the same number is no other file.
        (walk(1, 1, 1), walked(1), true),
        (walk(0, 2, 0), walked(0), true),
        (xattrwalk(1, 3), done(XATTRWALK), true),
        (xattrwalk(1, 4), no(95), true),
        (remove(3), done(REMOVE), true),
        // Nothing was open by that number; the others end although something goes wrong.
        (clunk(9), no(NO_ENTRY), true),
        (clunk(1), no(5), true),
        (remove(2), no(39), true),
        (clunk(0), done(120), false),
        // Another session begins with none.
        (attach(0), done(ATTACH), true),
        (hello, versioned(), false),
    ];
    let mut rig = Rig::new();
    assert!(!rig.is_open());
    for (n, (asked, answer, is_open)) in steps.into_iter().enumerate() {
        rig.hear(&asked, answer);
        assert_eq!(rig.is_open(), is_open, "step {n}");
    }
    rig.hear(&attach(0), done(ATTACH));
    rig.start();
    assert!(!rig.is_open(), "a driver that starts over has none");
}

#[test]
fn a_share_goes_on_elsewhere_with_another_device_of_the_hosts() {
    let mut rig = Rig::new();
    assert!(rig.ask(&version(8192, "9P2000.L"), 64).len() > 20);
    let state = rig.device.save().expect("nothing is open");
    let mut other = Rig::new();
    other.device = Mmio::new(0x1000_a000, 12, Share::new(Arc::clone(&other.port), "src", 10_000_000));
    other.world.ram.clone_from(&rig.world.ram);
    (other.available, other.seen) = (rig.available, rig.seen);
    assert_eq!(other.device.restore(&state), Ok(()));
    assert_eq!(other.device.save(), Ok(state.clone()));
    assert_eq!(other.ask(&version(4096, "9P2000.L"), 64)[4], 101);
    other.hear(&attach(0), done(ATTACH));
    assert!(other.is_open() && !rig.is_open());
    let DeviceState::Virtio(mut wild) = state else { panic!("a virtio device's") };
    wild.own = OwnState::Balloon { target: 0, actual: 0 };
    rig.device.reset();
    assert!(rig.device.restore(&DeviceState::Virtio(wild)).is_err());
}

#[test]
fn what_was_in_flight_when_its_queue_was_stopped_may_have_opened_a_file() {
    let mut rig = Rig::new();
    rig.hear(&version(8192, "9P2000.L"), versioned());
    rig.message(0, &attach(0), 600, &[]);
    rig.notify();
    for (register, value) in [(0x030, 0), (0x044, 0)] {
        rig.set(register, value);
    }
    rig.model.lock().answer(0, done(ATTACH));
    rig.port.lock().attend();
    rig.moment();
    assert!(rig.is_open() && rig.come_back().is_empty());
}
