//! A driver of the balloon, as small as can be, that can also do what none should.

use crate::virtio::{Device, INDIRECT_DESC};
pub use crate::virtio::{
    INDIRECT, INTERRUPTS, LIVE, NEEDS_RESET, NEXT, Rings, SIZE, STATUS, WRITE, describe, get16, put16,
};
use crate::{Check, Text, board, ensure, ensure_eq, ram};

/// The address of its registers.
pub const DEVICE: u64 = 0x1000_1000;
/// Its node in the device tree.
pub const NODE: &str = "/soc/virtio_mmio@10001000";

/// The queue of lists of pages that go into the balloon.
pub const INFLATE: u32 = 0;
/// The queue of lists of pages that leave the balloon.
pub const DEFLATE: u32 = 1;
/// The queue of buffers that are free memory.
pub const REPORT: u32 = 2;
const REPORTING: u32 = 1 << 5;

const BALLOON: Device = Device(DEVICE);

/// Reads a register.
#[must_use]
pub fn get(register: u64) -> u32 {
    BALLOON.get(register)
}

/// Writes a register.
pub fn set(register: u64, value: u32) {
    BALLOON.set(register, value);
}

/// The driver.
#[derive(Debug)]
pub struct Driver {
    /// The rings of each queue.
    pub rings: [Rings; 3],
    /// The number of chains that were made available, by queue.
    pub made: [u16; 3],
}

impl Driver {
    /// Resets the device, and sets it up.
    ///
    /// # Errors
    /// If the device does not agree.
    pub fn start() -> Result<Self, Text> {
        let pages = ram::pages(16);
        let start = pages[0].address();
        let driver = Self { rings: [0, 1, 2].map(|n| Rings::at(start + 0x4000 * n)), made: [0; 3] };
        driver.set_up()?;
        Ok(driver)
    }

    /// Resets the device, agrees with it, and makes the queues ready where the rings are.
    ///
    /// # Errors
    /// If the device does not agree.
    pub fn set_up(&self) -> Check {
        BALLOON.set_up(REPORTING | INDIRECT_DESC, &self.rings)
    }

    /// Starts the device with empty rings.
    ///
    /// # Errors
    /// If the device does not agree.
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

    /// Makes buffers available, by one chain, and checks that the device has returned it.
    ///
    /// # Errors
    /// If it has not.
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
    ///
    /// # Errors
    /// If the device has not returned them.
    pub fn give_by_table(&mut self, queue: u32, table: u64, buffers: &[(u64, u64)], flags: u64) -> Check {
        for (n, buffer) in (0..).zip(buffers) {
            let next = if n + 1 < buffers.len() as u64 { NEXT } else { 0 };
            describe(table, n, *buffer, flags | next, n + 1);
        }
        describe(self.rings[queue as usize].table, 0, (table, 16 * buffers.len() as u64), INDIRECT, 0);
        self.publish(queue, 0);
        self.is_back(queue)
    }

    /// Checks that the device has returned all chains.
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

/// Resets the device.
///
/// # Errors
/// If it is not reset.
pub fn reset() -> Check {
    BALLOON.reset()
}

/// Makes a queue ready where the rings are.
pub fn set_queue(queue: u32, rings: &Rings) {
    BALLOON.set_queue(queue, rings);
}

/// Returns whether the VM has a balloon, as its device tree says.
#[must_use]
pub fn is_there() -> bool {
    let node = board::tree().find_node(NODE);
    node.is_some_and(|node| {
        use dtoolkit::{Node, Property};
        node.property("compatible").is_some_and(|p| p.value_as::<&str>() == Ok("virtio,mmio"))
    })
}
