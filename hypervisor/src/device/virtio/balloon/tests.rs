//! The balloon behind its transport, as a driver sees it.

use super::*;
use crate::device::interface::tests::{RAM, World};
use crate::device::interface::{Answer, Device, GuestMemory};
use crate::device::virtio::Mmio;
use alloc::vec::Vec;

/// Pages of the guest's RAM.
const PAGES: u64 = 1 << 16;
/// The first one.
const FIRST: u64 = RAM / PAGE_BYTES;
const EVENT_IDX: u32 = 1 << 29;

/// A driver that has set up its device.
struct Driver {
    device: Mmio<Balloon>,
    world: World,
    /// By queue: how much was made available.
    made: [u16; COUNT],
}

/// Returns the addresses of a queue: descriptors, the driver's ring, the device's.
fn at(queue: usize) -> [u64; 3] {
    let start = RAM + 0x1000 * queue as u64;
    [start, start + 0x800, start + 0xa00]
}

impl Driver {
    fn new() -> Self {
        let world = World { ram: alloc::vec![0; 0x10000], ..World::default() };
        let device = Mmio::new(0x1000_1000, 1, Balloon::new(PAGES, 0));
        Self { device, world, made: [0; COUNT] }
    }

    fn get(&mut self, offset: u64) -> u32 {
        let Answer::Done(value) = self.device.load(offset, 4, &mut self.world) else {
            panic!("{offset:#x} is refused")
        };
        value as u32
    }

    fn set(&mut self, offset: u64, value: u32) {
        assert_eq!(self.device.store(offset, 4, value.into(), &mut self.world), Answer::Done(()), "{offset:#x}");
    }

    /// Agrees on features, their low half and their high half; says whether the device did.
    fn agree(&mut self, low: u32, high: u32) -> bool {
        self.set(0x070, 0);
        self.set(0x070, 3);
        for (half, features) in [(0, low), (1, high)] {
            self.set(0x024, half);
            self.set(0x020, features);
        }
        self.set(0x070, 11);
        self.get(0x070) == 11
    }

    fn started() -> Self {
        let mut driver = Self::new();
        assert!(driver.agree(1 << 5 | EVENT_IDX, 1));
        driver.set_up();
        driver
    }

    /// Makes the queues ready, and the device live.
    fn set_up(&mut self) {
        self.made = [0; COUNT];
        self.world.ram.fill(0);
        for queue in 0..COUNT {
            self.set(0x030, queue as u32);
            assert_eq!((self.get(0x034), self.get(0x044)), (USUAL as u32, 0));
            self.set(0x038, 64);
            for (offset, address) in [0x080, 0x090, 0x0a0].into_iter().zip(at(queue)) {
                self.set(offset, address as u32);
                self.set(offset + 4, (address >> 32) as u32);
            }
            self.set(0x044, 1);
            assert_eq!(self.get(0x044), 1);
        }
        self.set(0x070, 15);
    }

    /// Makes a chain available: places, lengths, and whether they are to be written.
    fn add(&mut self, queue: usize, buffers: &[(u64, u32, bool)]) {
        let [table, ring, _] = at(queue);
        for (n, (gpa, bytes, is_written)) in buffers.iter().enumerate() {
            let flags = u16::from(n + 1 < buffers.len()) | u16::from(*is_written) << 1;
            let mut descriptor = [0; 16];
            descriptor[..8].copy_from_slice(&gpa.to_le_bytes());
            descriptor[8..12].copy_from_slice(&bytes.to_le_bytes());
            descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
            descriptor[14..].copy_from_slice(&(n as u16 + 1).to_le_bytes());
            self.world.write(table + 16 * n as u64, &descriptor).unwrap();
        }
        self.made[queue] += 1;
        self.world.store_u16(ring + 2, self.made[queue]).unwrap();
    }

    /// Notifies until the device has done with it; returns in how many portions.
    fn notify(&mut self, queue: usize) -> usize {
        let mut once = || self.device.store(0x050, 4, queue as u64, &mut self.world);
        (1..1000).find(|_| once() == Answer::Done(())).expect("it comes to an end")
    }

    /// Returns the number of chains that came back.
    fn came_back(&mut self, queue: usize) -> u16 {
        self.world.load_u16(at(queue)[2] + 2).unwrap()
    }

    fn list(&mut self, at: u64, pages: &[u32]) -> (u64, u32, bool) {
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
        self.world.write(at, &bytes).unwrap();
        (at, bytes.len() as u32, false)
    }
}

#[test]
fn only_what_is_offered_is_agreed_on() {
    let mut driver = Driver::new();
    assert_eq!([0x000, 0x004, 0x008].map(|offset| driver.get(offset)), [0x7472_6976, 2, 5]);
    driver.set(0x014, 1);
    assert_eq!(driver.get(0x010), 1);
    driver.set(0x014, 0);
    let offered = driver.get(0x010);
    assert_eq!(offered, 1 << 2 | 1 << 5 | 1 << 28 | 1 << 29);
    assert!(driver.agree(offered, 1) && driver.agree(0, 1));
    assert!(!driver.agree(offered, 0), "legacy drivers have no place here");
    assert!(!driver.agree(1 << 1, 1), "statistics");
    driver.set(0x030, COUNT as u32);
    assert_eq!(driver.get(0x034), 0, "no such queue");
}

#[test]
fn what_is_reported_goes_in_portions_and_comes_back() {
    let mut driver = Driver::started();
    driver.world.portion = 400;
    // The first lacks a part of a page at each end.
    let buffers =
        [(RAM + 0x10_0800, 0x3000, true), (RAM + 0x20_0000, 0x20_0000, true), (RAM + 0x50_0000, 0x1000, true)];
    driver.add(REPORT, &buffers);
    assert_eq!(driver.notify(REPORT), 2);
    assert_eq!((driver.came_back(REPORT), driver.device.interrupt()), (1, true));
    let pages: Vec<u64> = (0x101..0x103).chain(0x200..0x400).chain([0x500]).map(|page| FIRST + page).collect();
    assert_eq!(driver.world.given_back, pages);
    assert_eq!((driver.get(0x060), driver.device.backend().counts().reported), (1, 515));
    driver.set(0x064, 1);
    assert!(!driver.device.interrupt());
    // Nothing new.
    assert_eq!((driver.notify(REPORT), driver.came_back(REPORT), driver.device.interrupt()), (1, 1, false));
}

#[test]
fn what_is_not_the_guests_is_refused_and_the_rest_is_done() {
    let mut driver = Driver::started();
    let end = RAM + PAGES * PAGE_BYTES;
    let wild = [
        (end - 0x1000, 0x2000, true),
        (u64::MAX - 0xfff, u32::MAX, true),
        (0, u32::MAX, true),
        (RAM, u32::MAX, true),
        (end - 0x1000, 0x1000, true),
    ];
    driver.add(REPORT, &wild);
    driver.notify(REPORT);
    assert_eq!((driver.came_back(REPORT), &driver.world.given_back[..]), (1, &[FIRST + PAGES - 1][..]));
    assert_eq!(driver.device.backend().counts().refused, 4);
    driver.add(REPORT, &[(RAM, 0x1000, false)]);
    driver.notify(REPORT);
    assert_eq!((driver.came_back(REPORT), driver.device.backend().counts().refused), (2, 5), "it is to be read");
    let list = driver.list(RAM + 0x8000, &[0, FIRST as u32 + 7, u32::MAX, (FIRST + PAGES) as u32]);
    driver.add(INFLATE, &[list, (0x1000, 8, false), (RAM, 4, true)]);
    driver.notify(INFLATE);
    assert_eq!((driver.came_back(INFLATE), driver.world.given_back.last()), (1, Some(&(FIRST + 7))));
    let counts = *driver.device.backend().counts();
    assert_eq!((counts.inflated, counts.refused), (1, 5 + 3 + 2));
    assert_eq!(driver.get(0x070), 15, "all is well");
}

#[test]
fn lists_of_pages_go_in_portions() {
    let mut driver = Driver::started();
    driver.world.portion = 50;
    let pages: Vec<u32> = (0..256).map(|n| FIRST as u32 + 3 * n).collect();
    let list = driver.list(RAM + 0x8000, &pages);
    driver.add(INFLATE, &[list]);
    assert_eq!(driver.notify(INFLATE), 6);
    assert_eq!(driver.world.given_back, pages.iter().map(|page| u64::from(*page)).collect::<Vec<_>>());
    driver.add(DEFLATE, &[list]);
    driver.notify(DEFLATE);
    let counts = driver.device.backend().counts();
    assert_eq!((counts.inflated, counts.deflated, counts.freed), (256, 256, 256));
}

/// Memory that is not there yet, wherever that is found out, makes the notification longer, and nothing else.
#[test]
fn memory_that_comes_later_is_waited_for() {
    for seed in 0..40 {
        let mut driver = Driver::started();
        driver.world.portion = 100;
        let list = driver.list(RAM + 0x8000, &[FIRST as u32 + 7, FIRST as u32 + 9]);
        driver.world.later = Some(seed);
        for (queue, buffer) in [(REPORT, (RAM + 0x20_0000, 0x20_0000, true)), (INFLATE, list), (DEFLATE, list)] {
            driver.world.later = None;
            driver.add(queue, &[buffer]);
            driver.world.later = Some(seed);
            // As a driver does that sees no end otherwise.
            driver.notify(queue);
            driver.world.later = None;
            assert_eq!((driver.came_back(queue), driver.get(0x060)), (1, 1), "seed {seed}, queue {queue}");
            driver.set(0x064, 1);
        }
        let counts = *driver.device.backend().counts();
        assert_eq!((counts.reported, counts.inflated, counts.deflated), (512, 2, 2), "seed {seed}");
        assert_eq!((counts.refused, driver.get(0x070)), (0, 15));
    }
}

#[test]
fn a_malformed_ring_needs_a_reset_and_no_more() {
    let mut driver = Driver::started();
    driver.add(REPORT, &[(RAM, 0x1000, true)]);
    driver.world.store_u16(at(REPORT)[1] + 4, 64).unwrap();
    driver.notify(REPORT);
    assert_eq!((driver.get(0x070), driver.get(0x060), driver.device.counts().1), (15 | 64, 2, 1));
    // Neither this queue nor another goes on.
    driver.add(INFLATE, &[(RAM, 4, false)]);
    assert_eq!((driver.notify(INFLATE), driver.came_back(INFLATE)), (1, 0));
    driver.set(0x070, 15);
    assert_eq!(driver.get(0x070), 15 | 64, "that one is the device's");
    assert!(driver.agree(0, 1));
    driver.set_up();
    driver.add(REPORT, &[(RAM, 0x1000, true)]);
    driver.notify(REPORT);
    assert_eq!((driver.came_back(REPORT), driver.get(0x070)), (1, 15));
    // A queue that cannot be.
    assert!(driver.agree(0, 1));
    driver.set(0x038, 63);
    driver.set(0x044, 1);
    assert_eq!((driver.get(0x044), driver.get(0x070)), (0, 11 | 64));
}

#[test]
fn a_reset_drops_what_was_begun() {
    let mut driver = Driver::started();
    driver.world.portion = 1;
    driver.add(REPORT, &[(RAM, 0x20_0000, true)]);
    assert_eq!(driver.device.store(0x050, 4, REPORT as u64, &mut driver.world), Answer::Again);
    assert!(driver.agree(0, 1));
    driver.set_up();
    assert_eq!((driver.notify(REPORT), driver.came_back(REPORT), driver.world.given_back.len()), (1, 0, 1));
}

#[test]
fn the_driver_hears_of_another_target() {
    let mut driver = Driver::new();
    driver.device.reconfigure(|balloon| balloon.set_target(5));
    assert!(!driver.device.interrupt(), "there is no driver yet");
    assert!(driver.agree(0, 1));
    driver.set_up();
    let before = driver.get(0x0fc);
    driver.device.reconfigure(|balloon| balloon.set_target(u64::MAX));
    assert_eq!((driver.get(0x100), driver.get(0x060), driver.device.interrupt()), (PAGES as u32 / 8 * 7, 2, true));
    assert_ne!(driver.get(0x0fc), before);
    driver.set(0x104, 77);
    driver.set(0x100, 78);
    assert_eq!((driver.get(0x104), driver.device.backend().target_and_actual()), (77, (PAGES / 8 * 7, 77)));
    assert_eq!(driver.device.load(0x104, 1, &mut driver.world), Answer::Done(77));
    driver.device.reset();
    assert_eq!(driver.device.backend().target_and_actual(), (PAGES / 8 * 7, 0), "the host's wish stays");
}

#[test]
fn no_access_panics() {
    let mut driver = Driver::started();
    for offset in 0..0x200 {
        for width in [1, 2, 4, 8] {
            let is_word = width == 4 && offset % 4 == 0;
            let is_config = offset >= 0x100 && width <= 4 && offset % u64::from(width) == 0;
            let is_refused = driver.device.load(offset, width, &mut driver.world) == Answer::Refused;
            assert_eq!(is_refused, !is_word && !is_config, "{offset:#x}, {width}");
            for value in [0, 1, u64::MAX] {
                driver.device.store(offset, width, value, &mut driver.world);
            }
        }
    }
}
