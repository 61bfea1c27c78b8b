//! A driver of the network card, as small as can be, that can also do what none should.

use guests::access::{peek, poke, poke_bytes};
use guests::virtio::{CARD, INDIRECT_DESC, LIVE, MAC, Rings, SIZE, STATUS, WRITE, describe, get16};
use guests::{Check, Text, board, ensure, ensure_eq, ram};

pub const RECEIVE: u32 = 0;
pub const TRANSMIT: u32 = 1;
/// Bytes of the header in front of each frame.
pub const HEADER: u64 = 12;

/// The driver.
#[derive(Debug)]
pub struct Driver {
    pub rings: [Rings; 2],
    /// By queue: how much was made available, and how much of what came back was seen.
    made: [u16; 2],
    seen: [u16; 2],
    /// A page for each entry of the queue of what comes, and as many for what goes.
    pub buffers: u64,
}

impl Driver {
    /// Resets the device, and sets it up.
    pub fn start() -> Result<Self, Text> {
        let start = ram::pages(8)[0].address();
        let buffers = ram::pages(2 * SIZE as usize)[0].address();
        let rings = [Rings::at(start), Rings::at(start + 0x4000)];
        let mut driver = Self { rings, made: [0; 2], seen: [0; 2], buffers };
        driver.start_over()?;
        Ok(driver)
    }

    /// Starts the device with empty rings.
    pub fn start_over(&mut self) -> Check {
        CARD.reset()?;
        self.rings.iter().for_each(Rings::clear);
        (self.made, self.seen) = ([0; 2], [0; 2]);
        CARD.set_up(MAC | INDIRECT_DESC, &self.rings)
    }

    /// The address of a place's frame, behind its header.
    pub fn frame(&self, queue: u32, place: u64) -> u64 {
        self.buffers + 4096 * (SIZE * u64::from(queue) + place) + 16
    }

    /// Makes a descriptor available that was written, without telling the device.
    pub fn offer(&mut self, queue: u32, head: u16) {
        let at = queue as usize;
        self.rings[at].offer(self.made[at], head);
        self.made[at] = self.made[at].wrapping_add(1);
    }

    /// Tells the device.
    pub fn notify(queue: u32) {
        CARD.set(0x050, queue);
    }

    /// Offers all buffers for what comes.
    pub fn offer_all(&mut self) {
        for place in 0..SIZE {
            let at = self.frame(RECEIVE, place) - HEADER;
            describe(self.rings[0].table, place, (at, 2048), WRITE, 0);
            self.offer(RECEIVE, place as u16);
        }
        Self::notify(RECEIVE);
    }

    /// The next buffer that has come back: its place, and how many bytes were written.
    pub fn next(&mut self, queue: u32) -> Option<(u64, u64)> {
        let at = queue as usize;
        if get16(self.rings[at].device + 2) == self.seen[at] {
            return None;
        }
        let element = self.rings[at].device + 4 + 8 * (u64::from(self.seen[at]) % SIZE);
        let words = [0, 2, 4, 6].map(|offset| u64::from(get16(element + offset)));
        self.seen[at] = self.seen[at].wrapping_add(1);
        Some((words[0] | words[1] << 16, words[2] | words[3] << 16))
    }

    /// The number of buffers that were made available and have not been returned.
    pub fn missing(&self, queue: u32) -> u16 {
        self.made[queue as usize].wrapping_sub(get16(self.rings[queue as usize].device + 2))
    }

    /// Waits until all is back.
    pub fn wait(&mut self, queue: u32) -> Check {
        let end = metal::time() + board().ticks(5000);
        while self.missing(queue) != 0 {
            ensure_eq!(CARD.get(STATUS), LIVE, "the device is well");
            ensure!(metal::time() < end, "{} buffers do not come back", self.missing(queue));
        }
        self.seen[queue as usize] = self.made[queue as usize];
        Ok(())
    }

    /// Writes a frame into a place for what goes, and its descriptor.
    pub fn put(&self, place: u64, frame: &[u8]) {
        let at = self.frame(TRANSMIT, place);
        (at - 16..at).step_by(8).for_each(|at| poke(at, 0));
        poke_bytes(at, frame);
        describe(self.rings[1].table, place, (at - HEADER, HEADER + frame.len() as u64), 0, 0);
    }

    /// Bytes of a frame that has come, from an even place on.
    pub fn bytes<const N: usize>(&self, place: u64, from: u64) -> [u8; N] {
        let at = self.frame(RECEIVE, place) + from;
        core::array::from_fn(|n| (peek((at + n as u64) & !7) >> (8 * ((at + n as u64) & 7))) as u8)
    }
}
