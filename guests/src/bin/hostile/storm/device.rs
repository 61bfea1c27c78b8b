//! Storms of requests to a virtio device.

use guests::access::{peek, poke, poke_bytes};
use guests::virtio::{CARD, Device, MAC, NEXT, Rings, SIZE, WRITE, describe, get16, mac, question};
use guests::{Check, ensure, ensure_eq, ram};

const PAGE: u64 = 4096;
/// Requests that are made at once.
const AT_ONCE: u64 = 16;
/// Bytes of the header in front of each frame.
const HEADER: u64 = 12;

/// Random bytes that are asked for at once: as many as one buffer gets.
const PIECE: u64 = 64;

/// The kind of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Reads of a page.
    Disk,
    /// Messages that ask for the version of the protocol.
    Share,
    /// Questions for the gateway's address (ARP), and the answers.
    Net,
    /// Random bytes.
    Entropy,
}

/// A storm of requests.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    kind: Kind,
    device: Device,
    /// The queue for requests, and the pages of the requests behind it: one for what the device reads, one for what it writes.
    requests: Rings,
    pages: u64,
    /// The queue for what comes by itself, and its buffers.
    arrivals: Rings,
    buffers: u64,
}

impl Flood {
    /// Returns the storm of that name, if there is one.
    pub fn of(name: &str) -> Option<Self> {
        let (kind, device) = match name {
            "disk" => (Kind::Disk, Device(0x1000_2000)),
            "share" => (Kind::Share, Device(0x1000_a000)),
            "net" => (Kind::Net, CARD),
            "rng" => (Kind::Entropy, Device(0x1000_e000)),
            _ => return None,
        };
        let rings = ram::pages(8)[0].address();
        let pages = ram::pages(2 * AT_ONCE as usize)[0].address();
        let buffers = ram::pages(SIZE as usize)[0].address();
        let (requests, arrivals) = (Rings::at(rings), Rings::at(rings + 4 * PAGE));
        Some(Self { kind, device, requests, pages, arrivals, buffers })
    }

    /// Sets the device up.
    pub fn start(&self) -> Check {
        self.requests.clear();
        self.arrivals.clear();
        if self.kind != Kind::Net {
            return self.device.set_up(0, &[self.requests]);
        }
        self.device.set_up(MAC, &[self.arrivals, self.requests])?;
        for n in 0..SIZE {
            describe(self.arrivals.table, n, (self.buffers + PAGE * n, 2048), WRITE, 0);
            self.arrivals.offer(n as u16, n as u16);
        }
        Ok(())
    }

    /// Makes some requests, and waits until they are done.
    pub fn blow(&self) {
        let rings = &self.requests;
        for n in 0..AT_ONCE {
            let head = self.request(n);
            rings.offer(get16(rings.driver + 2), head as u16);
        }
        let is_net = self.kind == Kind::Net;
        self.device.set(0x050, u32::from(is_net));
        while get16(rings.device + 2) != get16(rings.driver + 2) {
            core::hint::spin_loop();
        }
        if is_net {
            self.take_arrivals();
        }
    }

    /// Writes request `n` and its descriptors. Returns the first of these.
    fn request(&self, n: u64) -> u64 {
        let (head, table, page) = (3 * n, self.requests.table, self.pages + 2 * PAGE * n);
        let answer = page + PAGE;
        match self.kind {
            Kind::Disk => {
                poke(page, 0);
                poke(page + 8, 8 * n);
                describe(table, head, (page, 16), NEXT, head + 1);
                describe(table, head + 1, (answer, PAGE), NEXT | WRITE, head + 2);
                describe(table, head + 2, (page + 16, 1), WRITE, 0);
            }
            Kind::Share => {
                // Tversion: its length, type and tag, the most that a message may have, and the name of the version.
                let message = b"\x15\0\0\0\x64\xff\xff\0\x20\0\0\x08\x009P2000.L";
                poke_bytes(page, message);
                describe(table, head, (page, message.len() as u64), NEXT, head + 1);
                describe(table, head + 1, (answer, 64), WRITE, 0);
            }
            Kind::Net => {
                let frame = question(mac());
                // Behind the header, which is zero.
                poke_bytes(page, &[0; 16]);
                poke_bytes(page + 16, &frame);
                describe(table, head, (page + 16 - HEADER, HEADER + frame.len() as u64), 0, 0);
            }
            Kind::Entropy => describe(table, head, (answer, PIECE), WRITE, 0),
        }
        head
    }

    /// Offers the buffers of what has come again.
    fn take_arrivals(&self) {
        let rings = &self.arrivals;
        // As many are out as there are.
        while get16(rings.device + 2).wrapping_add(SIZE as u16) != get16(rings.driver + 2) {
            let made = get16(rings.driver + 2);
            let element = rings.device + 4 + 8 * (u64::from(made.wrapping_sub(SIZE as u16)) % SIZE);
            rings.offer(made, get16(element));
        }
        self.device.set(0x050, 0);
    }

    /// Checks that there were enough requests, and that they were answered.
    pub fn check(&self) -> Check {
        let done = get16(self.requests.device + 2);
        let least = if self.kind == Kind::Disk { 1000 } else { 300 };
        ensure!(done > least, "only {done} requests");
        let answers = self.pages + PAGE;
        match self.kind {
            Kind::Disk => {
                let failed = (0..AT_ONCE).find(|n| peek(self.pages + 2 * PAGE * n + 16) & 0xff != 0);
                ensure_eq!(failed, None, "a read that failed");
            }
            // Rversion.
            Kind::Share => ensure_eq!(peek(answers) >> 32 & 0xff, 101, "the answer's type"),
            Kind::Net => {
                let came = get16(self.arrivals.device + 2);
                ensure!(came > least, "only {came} answers");
            }
            Kind::Entropy => {
                let zeroes = (0..PIECE / 8).filter(|word| peek(answers + 8 * word) == 0).count();
                ensure_eq!(zeroes, 0, "words of zeroes among the random bytes");
            }
        }
        Ok(())
    }
}
