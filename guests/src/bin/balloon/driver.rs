//! A driver of the balloon, as small as can be, that can also do what none should.

use guests::access::{in32, out32, peek, poke};
use guests::{Check, board, ensure, ensure_eq, ram};
use metal::fence;

/// Its registers, and its place in the device tree.
pub const DEVICE: u64 = 0x1000_1000;
pub const NODE: &str = "/soc/virtio_mmio@10001000";

pub const INFLATE: u32 = 0;
pub const DEFLATE: u32 = 1;
pub const REPORT: u32 = 2;
/// Entries of each queue.
pub const SIZE: u64 = 64;

pub const NEXT: u64 = 1;
pub const WRITE: u64 = 2;
pub const INDIRECT: u64 = 4;

pub const STATUS: u64 = 0x070;
pub const INTERRUPTS: u64 = 0x060;
/// Acknowledged, driver, features agreed on, live.
pub const LIVE: u32 = 15;
pub const NEEDS_RESET: u32 = 64;

const REPORTING: u32 = 1 << 5;
pub const INDIRECT_DESC: u32 = 1 << 28;

pub fn get(register: u64) -> u32 {
    in32(DEVICE + register)
}

pub fn set(register: u64, value: u32) {
    out32(DEVICE + register, value);
}

/// Where a queue is: three pages.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    pub table: u64,
    pub driver: u64,
    pub device: u64,
}

impl Rings {
    fn at(start: u64) -> Self {
        Self { table: start, driver: start + 0x1000, device: start + 0x2000 }
    }
}

/// The driver.
#[derive(Debug)]
pub struct Driver {
    pub rings: [Rings; 3],
    /// By queue: how much was made available.
    pub made: [u16; 3],
}

/// Writes 16 bits; nobody else writes the doubleword around them.
pub fn put16(at: u64, value: u16) {
    let (word, shift) = (at & !7, 8 * (at & 7));
    poke(word, peek(word) & !(0xffff << shift) | u64::from(value) << shift);
}

pub fn get16(at: u64) -> u16 {
    (peek(at & !7) >> (8 * (at & 7))) as u16
}

impl Driver {
    /// Resets the device, and sets it up.
    pub fn start() -> Result<Self, guests::Text> {
        let pages = ram::pages(16);
        let start = pages[0].address();
        let driver = Self { rings: [0, 1, 2].map(|n| Rings::at(start + 0x4000 * n)), made: [0; 3] };
        driver.set_up()?;
        Ok(driver)
    }

    /// Resets the device, agrees with it, and makes the queues ready where the rings are.
    pub fn set_up(&self) -> Check {
        reset()?;
        set(STATUS, 3);
        for (half, features) in [(0, REPORTING | INDIRECT_DESC), (1, 1)] {
            set(0x024, half);
            set(0x020, features);
        }
        set(STATUS, 11);
        ensure_eq!(get(STATUS), 11, "features");
        for (queue, rings) in self.rings.iter().enumerate() {
            set_queue(queue as u32, rings);
            ensure_eq!(get(0x044), 1, "queue {queue} is ready");
        }
        set(STATUS, LIVE);
        ensure_eq!(get(STATUS), LIVE, "live");
        Ok(())
    }

    /// The same from empty rings on.
    pub fn start_over(&mut self) -> Check {
        reset()?;
        for Rings { table, driver, device } in self.rings {
            [table, driver, device].iter().flat_map(|page| (*page..page + 4096).step_by(8)).for_each(|at| poke(at, 0));
        }
        self.made = [0; 3];
        self.set_up()
    }

    /// Writes a descriptor.
    pub fn describe(table: u64, index: u64, (gpa, bytes): (u64, u64), flags: u64, next: u64) {
        poke(table + 16 * index, gpa);
        poke(table + 16 * index + 8, bytes | flags << 32 | next << 48);
    }

    /// Makes the chain that begins at a descriptor available, and says so.
    pub fn publish(&mut self, queue: u32, head: u16) {
        let at = queue as usize;
        put16(self.rings[at].driver + 4 + 2 * (u64::from(self.made[at]) % SIZE), head);
        self.made[at] = self.made[at].wrapping_add(1);
        fence::memory_and_devices();
        put16(self.rings[at].driver + 2, self.made[at]);
        fence::memory_and_devices();
        set(0x050, queue);
    }

    /// Makes buffers available, by one chain, and waits until it is back.
    pub fn give(&mut self, queue: u32, buffers: &[(u64, u64)], flags: u64) -> Check {
        let rings = self.rings[queue as usize];
        for (n, buffer) in (0..).zip(buffers) {
            let next = if n + 1 < buffers.len() as u64 { NEXT } else { 0 };
            Self::describe(rings.table, n, *buffer, flags | next, n + 1);
        }
        self.publish(queue, 0);
        self.is_back(queue)
    }

    /// The same by a table of descriptors of its own.
    pub fn give_by_table(&mut self, queue: u32, table: u64, buffers: &[(u64, u64)], flags: u64) -> Check {
        for (n, buffer) in (0..).zip(buffers) {
            let next = if n + 1 < buffers.len() as u64 { NEXT } else { 0 };
            Self::describe(table, n, *buffer, flags | next, n + 1);
        }
        Self::describe(self.rings[queue as usize].table, 0, (table, 16 * buffers.len() as u64), INDIRECT, 0);
        self.publish(queue, 0);
        self.is_back(queue)
    }

    /// All that was made available is back.
    fn is_back(&self, queue: u32) -> Check {
        let (rings, made) = (self.rings[queue as usize], self.made[queue as usize]);
        ensure_eq!(get(STATUS), LIVE, "the device is well");
        ensure_eq!(get16(rings.device + 2), made, "it is back when the notification is over");
        ensure!(get(INTERRUPTS) & 1 == 1, "no interrupt");
        set(0x064, 1);
        ensure_eq!(get(INTERRUPTS), 0, "acknowledged");
        Ok(())
    }
}

pub fn reset() -> Check {
    set(STATUS, 0);
    ensure_eq!(get(STATUS), 0, "status after reset");
    Ok(())
}

pub fn set_queue(queue: u32, rings: &Rings) {
    set(0x030, queue);
    set(0x038, SIZE as u32);
    for (register, address) in [(0x080, rings.table), (0x090, rings.driver), (0x0a0, rings.device)] {
        set(register, address as u32);
        set(register + 4, (address >> 32) as u32);
    }
    set(0x044, 1);
}

/// Whether the VM has a balloon, as its device tree says.
pub fn is_there() -> bool {
    let node = board::tree().find_node(NODE);
    node.is_some_and(|node| {
        use dtoolkit::{Node, Property};
        node.property("compatible").is_some_and(|p| p.value_as::<&str>() == Ok("virtio,mmio"))
    })
}
