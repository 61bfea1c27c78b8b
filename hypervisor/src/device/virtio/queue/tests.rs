//! Tests of queues beside models: a driver that keeps the rules, while another hart meddles, and rings of random bytes.

use super::*;
use crate::device::interface::tests::{RAM, World};
use crate::random::Random;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use mmu::frames::Loan;
use mmu::{Returned, Span};

const TABLE: u64 = RAM;
const DRIVER: u64 = RAM + 0x800;
const DEVICE: u64 = RAM + 0xa00;
/// Tables of descriptors: one for each entry.
const TABLES: u64 = RAM + 0x1000;
const TABLE_BYTES: u64 = DESCRIPTOR * MOST as u64;

fn layout(size: u16) -> Layout {
    Layout { size, descriptors: TABLE, driver: DRIVER, device: DEVICE }
}

fn world() -> World {
    World { ram: alloc::vec![0; (TABLES - RAM + TABLE_BYTES * MOST as u64) as usize], ..World::default() }
}

/// A driver that plays by the rules.
struct Driver {
    layout: Layout,
    agreed: Agreed,
    /// Descriptors that are not in use.
    free: Vec<u16>,
    /// The chains that were made available and have not come back: the descriptors of each, by the head.
    out: Vec<(u16, Vec<u16>)>,
    /// The chains that were made available and are still to be seen by the device.
    expected: VecDeque<Vec<Buffer>>,
    made: u16,
    /// The count of available chains when the driver last considered a notification.
    notified: u16,
    seen: u16,
}

impl Driver {
    fn new(layout: Layout, agreed: Agreed) -> Self {
        let (free, out, expected) = ((0..layout.size).collect(), Vec::new(), VecDeque::new());
        Self { layout, agreed, free, out, expected, made: 0, notified: 0, seen: 0 }
    }

    fn write(at: u64, buffer: Buffer, flags: u16, next: u16, world: &mut World) {
        let flags = flags | if buffer.is_written { WRITE } else { 0 };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&buffer.gpa.to_le_bytes());
        bytes[8..12].copy_from_slice(&buffer.bytes.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        world.write(at, &bytes).unwrap();
    }

    /// Makes a chain available, if there are descriptors for one.
    fn add(&mut self, random: &mut Random, world: &mut World) {
        let size = u64::from(self.layout.size);
        let count = 1 + random.below(size.min(5)) as usize;
        let reads = random.below(count as u64 + 1) as usize;
        let buffer =
            |n| Buffer { gpa: random.below(1 << 40), bytes: random.below(1 << 32) as u32, is_written: n >= reads };
        let buffers: Vec<Buffer> = (0..count).map(buffer).collect();
        let is_table = self.agreed.indirect && random.one_in(2);
        // A table may follow some plain ones.
        let plain = if is_table { random.below(count as u64) as usize } else { count };
        let needed = plain + usize::from(is_table);
        if self.free.len() < needed {
            return;
        }
        let taken = self.free.split_off(self.free.len() - needed);
        for (n, buffer) in buffers[..plain].iter().enumerate() {
            let (flags, next) = taken.get(n + 1).map_or((0, 99), |next| (NEXT, *next));
            Self::write(TABLE + DESCRIPTOR * u64::from(taken[n]), *buffer, flags, next, world);
        }
        if is_table {
            let at = TABLES + TABLE_BYTES * u64::from(taken[plain]);
            let bytes = (DESCRIPTOR * (count - plain) as u64) as u32;
            Self::write(
                TABLE + DESCRIPTOR * u64::from(taken[plain]),
                Buffer { gpa: at, bytes, is_written: false },
                INDIRECT,
                0,
                world,
            );
            for (n, buffer) in buffers[plain..].iter().enumerate() {
                let flags = if plain + n + 1 < count { NEXT } else { 0 };
                Self::write(at + DESCRIPTOR * n as u64, *buffer, flags, n as u16 + 1, world);
            }
        }
        let slot = u64::from(self.made % self.layout.size);
        world.write(DRIVER + 4 + 2 * slot, &taken[0].to_le_bytes()).unwrap();
        self.made = self.made.wrapping_add(1);
        world.store_u16(DRIVER + 2, self.made).unwrap();
        self.out.push((taken[0], taken));
        self.expected.push_back(buffers);
    }

    /// Returns whether the driver is to notify, for all chains that it has added since the last call.
    fn must_notify(&mut self, world: &mut World) -> bool {
        let before = core::mem::replace(&mut self.notified, self.made);
        if !self.agreed.event_index {
            return self.made != before && world.load_u16(DEVICE).unwrap() & 1 == 0;
        }
        let event = world.load_u16(DEVICE + 4 + 8 * u64::from(self.layout.size)).unwrap();
        self.made.wrapping_sub(event).wrapping_sub(1) < self.made.wrapping_sub(before)
    }

    /// Looks at what came back.
    fn collect(&mut self, world: &mut World) {
        while self.seen != world.load_u16(DEVICE + 2).unwrap() {
            let mut element = [0; 8];
            world.read(DEVICE + 4 + 8 * u64::from(self.seen % self.layout.size), &mut element).unwrap();
            let head = u32::from_le_bytes(element[..4].try_into().unwrap()) as u16;
            let at = self.out.iter().position(|(other, _)| *other == head).expect("what came back was given");
            self.free.extend(self.out.remove(at).1);
            self.seen = self.seen.wrapping_add(1);
        }
    }

    /// Sleeps until a chain comes back; returns whether one has already.
    fn sleep(&mut self, world: &mut World) -> bool {
        if self.agreed.event_index {
            world.store_u16(DRIVER + 4 + 2 * u64::from(self.layout.size), self.seen).unwrap();
        }
        self.seen != world.load_u16(DEVICE + 2).unwrap()
    }
}

/// Memory in which the driver, on another hart, adds a chain when the device has stored that often.
struct Meddling<'a> {
    world: &'a mut World,
    driver: &'a mut Driver,
    random: &'a mut Random,
    after: Option<u32>,
    notifies: &'a mut bool,
}

impl GuestMemory for Meddling<'_> {
    fn read(&mut self, gpa: u64, into: &mut [u8]) -> Result<(), Unreached> {
        self.world.read(gpa, into)
    }
    fn write(&mut self, gpa: u64, from: &[u8]) -> Result<(), Unreached> {
        self.world.write(gpa, from)
    }
    fn load_u16(&mut self, gpa: u64) -> Result<u16, Unreached> {
        self.world.load_u16(gpa)
    }
    fn store_u16(&mut self, gpa: u64, value: u16) -> Result<(), Unreached> {
        match &mut self.after {
            Some(0) => {
                // Just before: the driver does not see this store yet.
                self.after = None;
                self.driver.add(self.random, self.world);
                *self.notifies |= self.driver.must_notify(self.world);
            }
            Some(more) => *more -= 1,
            None => {}
        }
        self.world.store_u16(gpa, value)
    }
    fn loan(&self, most: usize) -> Loan {
        self.world.loan(most)
    }
    fn lend(
        &mut self,
        places: &mut dyn Iterator<Item = (u64, usize)>,
        loan: &mut Loan,
    ) -> (usize, Result<(), Unreached>) {
        self.world.lend(places, loan)
    }
    fn give_back(&mut self, _: &[Span]) -> Returned {
        Returned::default()
    }
}

/// Runs the life of a queue: all chains that are made available are taken, once and in order, all come back, and
/// neither side sleeps for ever.
fn life(seed: u64, broken: Option<Broken>) -> Result<(), &'static str> {
    let random = &mut Random(seed * 2 + 1);
    let layout = layout(1 << random.below(7));
    let agreed = Agreed { indirect: random.one_in(2), event_index: !random.one_in(3) };
    let (world, mut driver) = (&mut world(), Driver::new(layout, agreed));
    let mut queue = Queue { broken, ..Queue::new(layout, agreed).expect("it is possible") };
    for _ in 0..200 {
        (0..random.below(4)).for_each(|_| driver.add(random, world));
        let sleeps = random.one_in(2) && !driver.sleep(world);
        let mut notified = driver.must_notify(world);
        let (mut told, mut came_back) = (false, false);
        while core::mem::take(&mut notified) {
            let after = random.one_in(3).then(|| random.below(4) as u32);
            let random = &mut *random;
            let mem = &mut Meddling { world, driver: &mut driver, random, after, notifies: &mut notified };
            loop {
                let mut held = Vec::new();
                while let Some(chain) = queue.take(mem).map_err(|_| "a proper ring is refused")? {
                    let expected = mem.driver.expected.pop_front().ok_or("taken twice")?;
                    if chain.buffers[..] != expected[..] {
                        return Err("other buffers");
                    }
                    held.push(chain);
                    if mem.random.one_in(3) {
                        break;
                    }
                }
                while !held.is_empty() {
                    let chain = held.remove(mem.random.below(held.len() as u64) as usize);
                    queue.give(&chain, 7, mem).map_err(|_| "cannot be given")?;
                    came_back = true;
                }
                told |= queue.must_tell(mem).map_err(|_| "cannot be asked")?;
                if !queue.await_more(mem).map_err(|_| "cannot be awaited")? {
                    break;
                }
            }
        }
        if !driver.expected.is_empty() {
            return Err("the device sleeps, and the driver has not notified");
        }
        if sleeps && came_back && !told {
            return Err("the driver sleeps, and is not told");
        }
        driver.collect(world);
        if !driver.out.is_empty() {
            return Err("something did not come back");
        }
    }
    Ok(())
}

#[test]
fn everything_comes_through_and_nobody_sleeps_for_ever() {
    for seed in 0..400 {
        assert_eq!(life(seed, None), Ok(()), "seed {seed}");
    }
}

/// Returns the next chain of a ring with these bytes, by the plainest possible code.
fn model(ram: &[u8], layout: Layout, agreed: Agreed, taken: u16) -> Result<Option<Vec<Buffer>>, ()> {
    let bytes = |gpa: u64, count: usize| ram.get((gpa.checked_sub(RAM)? as usize)..).and_then(|rest| rest.get(..count));
    let number =
        |gpa, count| bytes(gpa, count).map(|all| all.iter().rev().fold(0, |n: u64, byte| n << 8 | u64::from(*byte)));
    let size = u64::from(layout.size);
    let ahead = (number(layout.driver + 2, 2).ok_or(())? as u16).wrapping_sub(taken);
    if ahead == 0 {
        return Ok(None);
    }
    if u64::from(ahead) > size {
        return Err(());
    }
    let (mut table, mut entries) = (layout.descriptors, size);
    let mut at = number(layout.driver + 4 + 2 * (u64::from(taken) % size), 2).ok_or(())?;
    let mut buffers: Vec<Buffer> = Vec::new();
    loop {
        if at >= entries {
            return Err(());
        }
        let this = table + 16 * at;
        let [gpa, length, flags, next] =
            [(0, 8), (8, 4), (12, 2), (14, 2)].map(|(from, count)| number(this + from, count));
        let (gpa, length, flags) = (gpa.ok_or(())?, length.ok_or(())?, flags.ok_or(())? as u16);
        if flags & INDIRECT != 0 {
            let is_inner = table != layout.descriptors || entries != size;
            let is_size = length % 16 == 0 && length != 0 && length / 16 <= size;
            if is_inner || !agreed.indirect || flags & NEXT != 0 || !is_size || bytes(gpa, length as usize).is_none() {
                return Err(());
            }
            (table, entries, at) = (gpa, length / 16, 0);
            continue;
        }
        let is_written = flags & WRITE != 0;
        if buffers.last().is_some_and(|last| last.is_written) && !is_written || buffers.len() as u64 == size {
            return Err(());
        }
        buffers.push(Buffer { gpa, bytes: length as u32, is_written });
        if flags & NEXT == 0 {
            return Ok(Some(buffers));
        }
        at = next.ok_or(())?;
    }
}

/// Takes a chain of a wild ring, and of the model. Returns whether there was one.
fn wild(seed: u64, broken: Option<Broken>) -> Result<bool, &'static str> {
    let random = &mut Random(seed * 2 + 1);
    let size = 1 << random.below(4);
    let layout = layout(size);
    let agreed = Agreed { indirect: random.one_in(2), event_index: random.one_in(2) };
    let world = &mut world();
    let end = RAM + world.ram.len() as u64;
    for at in 0..u64::from(size) {
        let gpa = match random.below(4) {
            0 => end - random.below(64),
            1 => u64::MAX - random.below(64),
            _ => TABLES + TABLE_BYTES * random.below(2),
        };
        let bytes = if random.one_in(4) { random.below(1 << 32) } else { 16 * random.below(6) } as u32;
        let flag = |random: &mut Random, flag, odds| if random.one_in(odds) { flag } else { 0 };
        let flags = flag(random, INDIRECT, 5) | flag(random, NEXT, 2) | flag(random, WRITE, 2) | flag(random, 8, 9);
        let next = random.below(u64::from(size) + 2) as u16;
        Driver::write(TABLE + DESCRIPTOR * at, Buffer { gpa, bytes, is_written: false }, flags, next, world);
    }
    for at in 0..8 {
        let flag = |random: &mut Random, flag, odds| if random.one_in(odds) { flag } else { 0 };
        let flags = flag(random, INDIRECT, 20) | flag(random, NEXT, 2) | flag(random, WRITE, 3);
        let buffer = Buffer { gpa: random.below(1 << 40), bytes: 5, is_written: false };
        Driver::write(TABLES + DESCRIPTOR * at, buffer, flags, random.below(6) as u16, world);
    }
    let index = if random.one_in(4) { random.below(1 << 16) } else { random.below(u64::from(size) + 2) } as u16;
    world.store_u16(DRIVER + 2, index).unwrap();
    for at in 0..u64::from(size) {
        let head = random.below(u64::from(size) + 1) as u16;
        world.store_u16(DRIVER + 4 + 2 * at, head).unwrap();
    }
    let mut queue = Queue { broken, ..Queue::new(layout, agreed).expect("it is possible") };
    let mut found = false;
    for taken in 0..size {
        let expected = model(&world.ram, layout, agreed, taken);
        match (queue.take(world), expected) {
            (Ok(None), Ok(None)) => break,
            (Ok(Some(chain)), Ok(Some(buffers))) if chain.buffers[..] == buffers[..] => found = true,
            (Err(_), Err(())) => break,
            _ => return Err("not what the model says"),
        }
    }
    Ok(found)
}

#[test]
fn wild_rings_are_what_a_model_says() {
    let found = (0..20_000).filter(|seed| wild(*seed, None).unwrap_or_else(|why| panic!("seed {seed}: {why}"))).count();
    assert!((2000..18_000).contains(&found), "{found} of 20,000 rings held a chain");
}

#[test]
fn broken_queues_are_noticed() {
    for broken in [Broken::LooksNoMore, Broken::TellsLate] {
        assert!((0..400).any(|seed| life(seed, Some(broken)).is_err()), "{broken:?}");
    }
    for broken in [Broken::RunsAlong, Broken::Wraps] {
        assert!((0..20_000).any(|seed| wild(seed, Some(broken)).is_err()), "{broken:?}");
    }
}

#[test]
fn queues_that_cannot_be_are_refused() {
    let good = layout(64);
    assert!(Queue::new(good, Agreed::default()).is_some());
    for bad in [
        layout(0),
        layout(3),
        layout(512),
        Layout { descriptors: RAM + 8, ..good },
        Layout { driver: RAM + 1, ..good },
        Layout { device: RAM + 2, ..good },
        Layout { descriptors: u64::MAX - 15, ..good },
        Layout { driver: u64::MAX - 1, ..good },
        Layout { device: u64::MAX - 3, ..good },
    ] {
        assert!(Queue::new(bad, Agreed::default()).is_none(), "{bad:x?}");
    }
}

#[test]
fn a_ring_without_memory_is_malformed() {
    let (mut world, nowhere) = (world(), Layout { driver: RAM - 0x1000, ..layout(4) });
    let mut queue = Queue::new(nowhere, Agreed::default()).expect("the addresses are not accessed yet");
    assert_eq!(queue.take(&mut world), Err(Malformed::Unreached.into()));
    let no_device = Layout { device: RAM - 0x1000, ..layout(4) };
    let mut queue = Queue::new(no_device, Agreed::default()).expect("the addresses are not accessed yet");
    let chain = Chain::default();
    assert_eq!(queue.give(&chain, 0, &mut world), Err(Malformed::Unreached.into()));
}
