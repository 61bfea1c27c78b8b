//! A virtio device as its driver sees it, on the MMIO transport: as small as can be.

use crate::access::{in32, out32, peek, poke};
use crate::{Check, ensure_eq};
use metal::fence;

/// Entries of each queue.
pub const SIZE: u64 = 64;

/// Flags of a descriptor.
pub const NEXT: u64 = 1;
/// The device writes the buffer.
pub const WRITE: u64 = 2;
/// The buffer is a table of descriptors.
pub const INDIRECT: u64 = 4;

/// Registers: the status, and which interrupts there are.
pub const STATUS: u64 = 0x070;
/// See above.
pub const INTERRUPTS: u64 = 0x060;
/// Acknowledged, driver, features agreed on, live.
pub const LIVE: u32 = 15;
/// The device can make nothing of its rings.
pub const NEEDS_RESET: u32 = 64;
/// Tables of descriptors may be used.
pub const INDIRECT_DESC: u32 = 1 << 28;

/// The address of a device's registers.
#[derive(Clone, Copy, Debug)]
pub struct Device(pub u64);

/// The addresses of a queue: three pages.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    /// The descriptors.
    pub table: u64,
    /// The ring of buffers that the driver makes available.
    pub driver: u64,
    /// The ring of buffers that the device has used.
    pub device: u64,
}

impl Rings {
    /// Those in three pages.
    #[must_use]
    pub const fn at(start: u64) -> Self {
        Self { table: start, driver: start + 0x1000, device: start + 0x2000 }
    }

    /// Empties them.
    pub fn clear(&self) {
        let pages = [self.table, self.driver, self.device];
        pages.iter().flat_map(|page| (*page..page + 4096).step_by(8)).for_each(|at| poke(at, 0));
    }

    /// Makes the chain that begins at a descriptor available, as number `made`.
    pub fn offer(&self, made: u16, head: u16) {
        put16(self.driver + 4 + 2 * (u64::from(made) % SIZE), head);
        fence::memory_and_devices();
        put16(self.driver + 2, made.wrapping_add(1));
        fence::memory_and_devices();
    }
}

/// Writes 16 bits; there is no other writer of the doubleword around them.
pub fn put16(at: u64, value: u16) {
    let (word, shift) = (at & !7, 8 * (at & 7));
    poke(word, peek(word) & !(0xffff << shift) | u64::from(value) << shift);
}

/// Reads 16 bits.
#[must_use]
pub fn get16(at: u64) -> u16 {
    (peek(at & !7) >> (8 * (at & 7))) as u16
}

/// Writes a descriptor.
pub fn describe(table: u64, index: u64, (gpa, bytes): (u64, u64), flags: u64, next: u64) {
    poke(table + 16 * index, gpa);
    poke(table + 16 * index + 8, bytes | flags << 32 | next << 48);
}

impl Device {
    /// Reads a register.
    #[must_use]
    pub fn get(self, register: u64) -> u32 {
        in32(self.0 + register)
    }

    /// Writes one.
    pub fn set(self, register: u64, value: u32) {
        out32(self.0 + register, value);
    }

    /// Resets it.
    ///
    /// # Errors
    /// If it is not reset.
    pub fn reset(self) -> Check {
        self.set(STATUS, 0);
        ensure_eq!(self.get(STATUS), 0, "status after reset");
        Ok(())
    }

    /// Makes a queue ready.
    pub fn set_queue(self, queue: u32, rings: &Rings) {
        self.set(0x030, queue);
        self.set(0x038, SIZE as u32);
        for (register, address) in [(0x080, rings.table), (0x090, rings.driver), (0x0a0, rings.device)] {
            self.set(register, address as u32);
            self.set(register + 4, (address >> 32) as u32);
        }
        self.set(0x044, 1);
    }

    /// Resets it, agrees on the lower features and VERSION_1, and makes the queues ready where the rings are.
    ///
    /// # Errors
    /// If it does not agree.
    pub fn set_up(self, features: u32, queues: &[Rings]) -> Check {
        self.reset()?;
        self.set(STATUS, 3);
        for (half, features) in [(0, features), (1, 1)] {
            self.set(0x024, half);
            self.set(0x020, features);
        }
        self.set(STATUS, 11);
        ensure_eq!(self.get(STATUS), 11, "features");
        for (queue, rings) in queues.iter().enumerate() {
            self.set_queue(queue as u32, rings);
            ensure_eq!(self.get(0x044), 1, "queue {queue} is ready");
        }
        self.set(STATUS, LIVE);
        ensure_eq!(self.get(STATUS), LIVE, "live");
        Ok(())
    }
}

/// The registers of the network card.
pub const CARD: Device = Device(0x1000_9000);
/// The feature of a network card that its configuration has its address.
pub const MAC: u32 = 1 << 5;
/// The address of all cards.
pub const ALL: [u8; 6] = [0xff; 6];

/// Returns the address of the network card, from its configuration.
#[must_use]
pub fn mac() -> [u8; 6] {
    let words = [CARD.get(0x100), CARD.get(0x104)].map(u32::to_le_bytes);
    core::array::from_fn(|n| words[n / 4][n % 4])
}

/// Returns a frame that asks for the gateway's hardware address (ARP), from any source address.
#[must_use]
pub fn question(source: [u8; 6]) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&ALL);
    frame[6..12].copy_from_slice(&source);
    frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame[22..28].copy_from_slice(&source);
    frame[28..32].copy_from_slice(&[10, 0, 2, 100]);
    frame[38..42].copy_from_slice(&[10, 0, 2, 2]);
    frame
}
