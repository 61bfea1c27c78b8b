//! A driver of a virtio console with two ports that have names, as small as can be, that can also do what none should.

use guests::access::{peek, poke};
use guests::virtio::{Device, INDIRECT_DESC, LIVE, Rings, SIZE, STATUS, WRITE, describe, get16};
use guests::{Check, Text, board, ensure, ensure_eq, ram};

/// Its registers.
pub const CONSOLE: Device = Device(0x1000_f000);

/// The number of queues: two of the console, two of control messages, and two of each port.
pub const QUEUES: usize = 8;
/// The queue of printed bytes.
pub const PRINT: usize = 1;
/// The queues of control messages to the driver, and from it.
pub const TOLD: usize = 2;
pub const SAYS: usize = 3;
/// The queue of bytes from the first port, whose peer sends many.
pub const THERE: usize = 4;
/// The queues of bytes to the first port and to the second, whose peers read them.
pub const BACK: [usize; 2] = [5, 7];

/// Kinds of messages.
pub const DEVICE_READY: u64 = 0;
pub const PORT_ADD: u64 = 1;
pub const PORT_READY: u64 = 3;
pub const CONSOLE_PORT: u64 = 4;
pub const PORT_OPEN: u64 = 6;
pub const PORT_NAME: u64 = 7;

const MULTIPORT: u32 = 1 << 1;
/// Buffers for what the driver is told, of 64 bytes each.
const MESSAGES: u64 = 32;

/// The driver.
#[derive(Debug)]
pub struct Driver {
    pub rings: [Rings; QUEUES],
    /// By queue: how much was made available, and how much of what came back was seen.
    made: [u16; QUEUES],
    seen: [u16; QUEUES],
    /// A page for each entry of a queue, and one of messages.
    pub buffers: u64,
    messages: u64,
}

impl Driver {
    /// Resets the device, and sets it up.
    pub fn start() -> Result<Self, Text> {
        let start = ram::pages(4 * QUEUES)[0].address();
        let buffers = ram::pages(SIZE as usize + 1)[0].address();
        let rings = core::array::from_fn(|queue| Rings::at(start + 0x4000 * queue as u64));
        let messages = buffers + 4096 * SIZE;
        let mut driver = Self { rings, made: [0; QUEUES], seen: [0; QUEUES], buffers, messages };
        driver.start_over()?;
        Ok(driver)
    }

    /// Starts the device with empty rings.
    pub fn start_over(&mut self) -> Check {
        CONSOLE.reset()?;
        self.rings.iter().for_each(Rings::clear);
        (self.made, self.seen) = ([0; QUEUES], [0; QUEUES]);
        CONSOLE.set_up(MULTIPORT | INDIRECT_DESC, &self.rings)
    }

    /// Starts the device with empty rings, and waits until both ports are open.
    pub fn open(&mut self) -> Check {
        self.start_over()?;
        self.offer_messages();
        self.say(u64::from(u32::MAX), DEVICE_READY, 1)?;
        for port in 0..3 {
            self.say(port, PORT_READY, 1)?;
            self.say(port, PORT_OPEN, 1)?;
        }
        Ok(())
    }

    /// Makes a descriptor available that was written, without telling the device.
    pub fn offer(&mut self, queue: usize, head: u16) {
        self.rings[queue].offer(self.made[queue], head);
        self.made[queue] = self.made[queue].wrapping_add(1);
    }

    /// Tells the device.
    pub fn notify(queue: usize) {
        CONSOLE.set(0x050, queue as u32);
    }

    /// Offers a buffer by its place, and tells the device.
    pub fn put(&mut self, queue: usize, place: u64, buffer: (u64, u64), flags: u64) {
        describe(self.rings[queue].table, place, buffer, flags, 0);
        self.offer(queue, place as u16);
        Self::notify(queue);
    }

    /// Offers buffers for what the driver is told.
    pub fn offer_messages(&mut self) {
        for place in 0..MESSAGES {
            self.put(TOLD, place, (self.messages + 64 * place, 64), WRITE);
        }
    }

    /// Says something of a port.
    pub fn say(&mut self, port: u64, kind: u64, value: u64) -> Check {
        let at = self.messages + 64 * MESSAGES;
        poke(at, port | kind << 32 | value << 48);
        self.put(SAYS, 0, (at, 8), 0);
        self.wait(SAYS)
    }

    /// The next buffer that has come back: its place, and how many bytes were written.
    pub fn next(&mut self, queue: usize) -> Option<(u64, u64)> {
        if get16(self.rings[queue].device + 2) == self.seen[queue] {
            return None;
        }
        let element = self.rings[queue].device + 4 + 8 * (u64::from(self.seen[queue]) % SIZE);
        let words = [0, 2, 4, 6].map(|offset| u64::from(get16(element + offset)));
        self.seen[queue] = self.seen[queue].wrapping_add(1);
        Some((words[0] | words[1] << 16, words[2] | words[3] << 16))
    }

    /// The next thing that the driver was told: of which port, what, and how many bytes with the name.
    pub fn told(&mut self) -> Option<(u64, u64, u64)> {
        let (place, bytes) = self.next(TOLD)?;
        let word = peek(self.messages + 64 * place);
        Some((word & 0xffff_ffff, word >> 32 & 0xffff, bytes))
    }

    /// The number of buffers that were made available and have not been returned.
    pub fn missing(&self, queue: usize) -> u16 {
        self.made[queue].wrapping_sub(get16(self.rings[queue].device + 2))
    }

    /// Waits until all is back.
    pub fn wait(&mut self, queue: usize) -> Check {
        let end = metal::time() + board().ticks(10_000);
        while self.missing(queue) != 0 {
            ensure_eq!(CONSOLE.get(STATUS), LIVE, "the device is well");
            ensure!(metal::time() < end, "{} buffers of queue {queue} do not come back", self.missing(queue));
        }
        self.seen[queue] = self.made[queue];
        Ok(())
    }
}
