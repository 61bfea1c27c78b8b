//! A driver, in tests of devices: with one queue, whose rings are at the start of RAM, or with several.

use super::backend::Backend;
use super::transport::Mmio;
use crate::device::interface::tests::{RAM, World};
use crate::device::interface::{Answer, Device};
use alloc::vec;
use alloc::vec::Vec;

pub(super) const TABLE: u64 = RAM;
pub(super) const DRIVER: u64 = RAM + 0x800;
pub(super) const DEVICE: u64 = RAM + 0xa00;
/// Tables of descriptors, one for each entry of the queue.
pub(super) const TABLES: u64 = RAM + 0x1000;
/// Entries of a queue of chains that have tables.
pub(super) const ENTRIES: u16 = 64;

/// A driver, and its device.
pub(super) struct Driver<B: Backend> {
    pub(super) device: Mmio<B>,
    pub(super) world: World,
    /// The number of chains that were made available, in the chosen queue.
    pub(super) available: u16,
    /// The number of chains that came back and were looked at.
    pub(super) seen: u16,
    /// The queue that is meant: the first one, unless another was chosen.
    queue: usize,
    /// By queue: those counts, while another one is meant.
    others: Vec<(u16, u16)>,
    /// The address of the rings of the second queue; those of the others follow, a page each.
    more: u64,
}

impl<B: Backend> Driver<B> {
    /// Makes a driver with `ram` bytes of RAM.
    pub(super) fn new(device: Mmio<B>, ram: usize) -> Self {
        let world = World { ram: vec![0; ram], ..World::default() };
        Self { device, world, available: 0, seen: 0, queue: 0, others: vec![(0, 0)], more: 0 }
    }

    /// Makes a driver with `queues` queues: each but the first has a page behind the rest of RAM.
    pub(super) fn with_queues(device: Mmio<B>, ram: usize, queues: usize) -> Self {
        let others = vec![(0, 0); queues];
        Self { others, more: RAM + ram as u64, ..Self::new(device, ram + 0x1000 * (queues - 1)) }
    }

    /// Chooses a queue: later calls are about it.
    pub(super) fn choose(&mut self, queue: usize) {
        self.others[self.queue] = (self.available, self.seen);
        self.queue = queue;
        (self.available, self.seen) = self.others[queue];
    }

    /// Returns the chosen queue.
    pub(super) const fn chosen(&self) -> usize {
        self.queue
    }

    /// Returns the address in the chosen queue's page that corresponds to one in the first queue's.
    pub(super) const fn ring(&self, of_first: u64) -> u64 {
        match self.queue {
            0 => of_first,
            queue => of_first - RAM + self.more + 0x1000 * (queue as u64 - 1),
        }
    }

    pub(super) fn set(&mut self, offset: u64, value: u32) -> Answer<()> {
        self.device.store(offset, 4, value.into(), &mut self.world)
    }

    pub(super) fn get(&mut self, offset: u64, width: u8) -> Answer<u64> {
        self.device.load(offset, width, &mut self.world)
    }

    /// Gives the device a moment.
    pub(super) fn moment(&mut self) {
        self.device.moment(&mut self.world);
    }

    /// Resets the device and sets it up, with these of its first 32 features and so many entries.
    pub(super) fn start(&mut self, features: u32, entries: u16) {
        // The rings are the driver's.
        let later = self.world.later.take();
        for (offset, value) in [(0x070, 0), (0x070, 3), (0x024, 0), (0x020, features), (0x024, 1), (0x020, 1)] {
            self.set(offset, value);
        }
        self.set(0x070, 11);
        for queue in (0..self.others.len()).rev() {
            self.choose(queue);
            (self.available, self.seen) = (0, 0);
            self.poke_ring(RAM, &[0; 0x1000]);
            self.set(0x030, queue as u32);
            self.set(0x038, entries.into());
            for (offset, address) in [(0x080, TABLE), (0x090, DRIVER), (0x0a0, DEVICE)] {
                let address = self.ring(address);
                self.set(offset, address as u32);
                self.set(offset + 4, (address >> 32) as u32);
            }
            self.set(0x044, 1);
        }
        self.set(0x070, 15);
        self.world.later = later;
    }

    /// Does something that the guest does itself, whose memory is there then.
    pub(super) fn poke(&mut self, gpa: u64, bytes: &[u8]) {
        let start = (gpa - RAM) as usize;
        self.world.ram[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes bytes to the chosen queue's page, at the place that corresponds to one in the first queue's.
    pub(super) fn poke_ring(&mut self, of_first: u64, bytes: &[u8]) {
        self.poke(self.ring(of_first), bytes);
    }

    pub(super) fn bytes(&self, gpa: u64, bytes: usize) -> &[u8] {
        &self.world.ram[(gpa - RAM) as usize..][..bytes]
    }

    /// Puts a chain into a place's table and makes it available.
    pub(super) fn chain(&mut self, place: usize, buffers: &[(u64, u32, bool)]) {
        let table = TABLES + 16 * u64::from(ENTRIES) * place as u64;
        for (n, (gpa, bytes, is_written)) in buffers.iter().enumerate() {
            let flags = u64::from(n + 1 < buffers.len()) | u64::from(*is_written) << 1;
            let words = [*gpa, u64::from(*bytes) | flags << 32 | (n as u64 + 1) << 48];
            self.poke(table + 16 * n as u64, words.map(u64::to_le_bytes).as_flattened());
        }
        let words = [table, (16 * buffers.len() as u64) | (4 << 32)];
        self.poke_ring(TABLE + 16 * place as u64, words.map(u64::to_le_bytes).as_flattened());
        self.poke_ring(DRIVER + 4 + 2 * u64::from(self.available % ENTRIES), &(place as u16).to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.poke_ring(DRIVER + 2, &self.available.to_le_bytes());
    }

    /// Returns the chains that have come back since: by place, with the number of bytes.
    pub(super) fn used(&mut self) -> Vec<(usize, u32)> {
        let mut all = Vec::new();
        let index = self.bytes(self.ring(DEVICE + 2), 2).try_into().map(u16::from_le_bytes).expect("two bytes");
        while self.seen != index {
            let element = self.bytes(self.ring(DEVICE + 4 + 8 * u64::from(self.seen % ENTRIES)), 8);
            let [place, bytes] = [0, 4].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|n| element[at + n])));
            all.push((place as usize, bytes));
            self.seen = self.seen.wrapping_add(1);
        }
        all
    }
}
