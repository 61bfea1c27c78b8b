//! A driver of the balloon, as small as can be, that can also do what none should.

use guests::virtio::{Device, INDIRECT_DESC};
pub use guests::virtio::{
    INDIRECT, INTERRUPTS, LIVE, NEEDS_RESET, NEXT, Rings, SIZE, STATUS, WRITE, describe, get16, put16,
};
use guests::{Check, board, ensure, ensure_eq, ram};

/// Its registers, and its place in the device tree.
pub const DEVICE: u64 = 0x1000_1000;
pub const NODE: &str = "/soc/virtio_mmio@10001000";

pub const INFLATE: u32 = 0;
pub const DEFLATE: u32 = 1;
pub const REPORT: u32 = 2;
const REPORTING: u32 = 1 << 5;

const BALLOON: Device = Device(DEVICE);

pub fn get(register: u64) -> u32 {
    BALLOON.get(register)
}

pub fn set(register: u64, value: u32) {
    BALLOON.set(register, value);
}

/// The driver.
#[derive(Debug)]
pub struct Driver {
    pub rings: [Rings; 3],
    /// By queue: how much was made available.
    pub made: [u16; 3],
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
        BALLOON.set_up(REPORTING | INDIRECT_DESC, &self.rings)
    }

    /// Starts the device with empty rings.
    pub fn start_over(&mut self) -> Check {
        reset()?;
        self.rings.iter().for_each(Rings::clear);
        self.made = [0; 3];
        self.set_up()
    }

    /// Makes the chain that begins at a descriptor available, and says so.
    pub fn publish(&mut self, queue: u32, head: u16) {
        let at = queue as usize;
        self.rings[at].offer(self.made[at], head);
        self.made[at] = self.made[at].wrapping_add(1);
        set(0x050, queue);
    }

    /// Makes buffers available, by one chain, and waits until it is back.
    pub fn give(&mut self, queue: u32, buffers: &[(u64, u64)], flags: u64) -> Check {
        let rings = self.rings[queue as usize];
        for (n, buffer) in (0..).zip(buffers) {
            let next = if n + 1 < buffers.len() as u64 { NEXT } else { 0 };
            describe(rings.table, n, *buffer, flags | next, n + 1);
        }
        self.publish(queue, 0);
        self.is_back(queue)
    }

    /// Makes buffers available by a table of descriptors of their own.
    pub fn give_by_table(&mut self, queue: u32, table: u64, buffers: &[(u64, u64)], flags: u64) -> Check {
        for (n, buffer) in (0..).zip(buffers) {
            let next = if n + 1 < buffers.len() as u64 { NEXT } else { 0 };
            describe(table, n, *buffer, flags | next, n + 1);
        }
        describe(self.rings[queue as usize].table, 0, (table, 16 * buffers.len() as u64), INDIRECT, 0);
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
    BALLOON.reset()
}

pub fn set_queue(queue: u32, rings: &Rings) {
    BALLOON.set_queue(queue, rings);
}

/// Returns whether the VM has a balloon, as its device tree says.
pub fn is_there() -> bool {
    let node = board::tree().find_node(NODE);
    node.is_some_and(|node| {
        use dtoolkit::{Node, Property};
        node.property("compatible").is_some_and(|p| p.value_as::<&str>() == Ok("virtio,mmio"))
    })
}
