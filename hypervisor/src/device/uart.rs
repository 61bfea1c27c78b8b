//! A 16550 UART as guests see it (National Semiconductor PC16550D data sheet; register names from there). A driver that
//! polls finds the transmitter empty at all times, but the interrupt that says so comes a moment after the last byte: a
//! driver that goes on in its interrupt handler for as long as there is room comes to an end.
//!
//! Bytes leave in lots, because to print each by itself costs more than all the rest: when a line is complete, when
//! there are many, or at [`Uart::moment`].

mod saved;
#[cfg(test)]
mod tests;

use super::interface::{Answer, Device, Outside, Place, Unsaved, Wild};
use abi::snapshot::device::{DeviceState, Thre};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use dtoolkit::model::DeviceTreeProperty;

/// GPA of its registers, on QEMU's `virt`.
pub const START: u64 = 0x1000_0000;
/// Its PLIC source there.
pub const SOURCE: u32 = 10;
/// Bytes of the register file: eight registers.
const REGISTERS: u64 = 8;
/// Bytes from the host that wait for the guest to read. Further ones wait where they come from.
const BACKLOG: usize = 16 << 10;
/// Bytes that leave at once when there are so many.
const LOT: usize = 64;
/// Bytes that wait to leave at most.
const MOST_SENDING: usize = 2 * LOT;
/// Bytes of the FIFO that loopback fills.
const FIFO: usize = 16;
/// After the guest has emptied its FIFO, the next byte is on its way until the guest wants an interrupt for it, or has read
/// LSR so often without sending anything. A driver that starts (Linux's empties the FIFO, reads RBR, and prints meanwhile)
/// loses nothing so.
const QUIET_READS: u8 = 32;

const IER_RX: u8 = 1 << 0;
const IER_THRE: u8 = 1 << 1;
const IER_LINE: u8 = 1 << 2;
const IER_MODEM: u8 = 1 << 3;
const IER_MASK: u8 = 0x0f;
const IIR_MODEM: u8 = 0x00;
const IIR_NONE: u8 = 0x01;
const IIR_THRE: u8 = 0x02;
const IIR_RX: u8 = 0x04;
const IIR_LINE: u8 = 0x06;
const IIR_FIFO: u8 = 0xc0;
const FCR_ENABLE: u8 = 1 << 0;
const FCR_CLEAR_RX: u8 = 1 << 1;
const LCR_DLAB: u8 = 1 << 7;
const MCR_LOOP: u8 = 1 << 4;
const LSR_READY: u8 = 1 << 0;
const LSR_OVERRUN: u8 = 1 << 1;
const LSR_THRE: u8 = 1 << 5;
const LSR_EMPTY: u8 = 1 << 6;
/// DCD, DSR and CTS: the other end listens.
const MSR_CONNECTED: u8 = 0xb0;
/// DSR and CTS, and DDCD: the carrier has gone.
const MSR_HUNG_UP: u8 = 0x38;

/// The device.
#[derive(Debug)]
pub struct Uart {
    ier: u8,
    lcr: u8,
    mcr: u8,
    scratch: u8,
    divisor: u16,
    fifo: bool,
    overrun: bool,
    thre: Thre,
    /// The transmitter will say that it is empty.
    draining: bool,
    /// Bytes that wait to leave.
    sending: ArrayVec<u8, MOST_SENDING>,
    received: VecDeque<u8>,
    /// The number of reads of LSR until `received` is present.
    quiet: u8,
    /// Bytes that loopback has sent to itself.
    looped: VecDeque<u8>,
    /// The carrier goes for one read of MSR. A snapshot does not have it: who hangs up does so again.
    is_hung_up: bool,
}

impl Default for Uart {
    fn default() -> Self {
        Self {
            ier: 0,
            lcr: 0,
            mcr: 0,
            scratch: 0,
            divisor: 12,
            fifo: false,
            overrun: false,
            thre: Thre::Idle,
            draining: false,
            sending: ArrayVec::new_const(),
            received: VecDeque::new(),
            quiet: QUIET_READS,
            looped: VecDeque::new(),
            is_hung_up: false,
        }
    }
}

impl Uart {
    /// Returns the highest interrupt that is pending and enabled, as IIR names it.
    fn identification(&self) -> u8 {
        if self.overrun && self.ier & IER_LINE != 0 {
            IIR_LINE
        } else if self.is_ready() && self.ier & IER_RX != 0 {
            IIR_RX
        } else if self.thre != Thre::Idle && self.ier & IER_THRE != 0 {
            IIR_THRE
        } else if self.is_hung_up && self.ier & IER_MODEM != 0 {
            IIR_MODEM
        } else {
            IIR_NONE
        }
    }

    /// Returns whether a byte from the outside can be taken.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.received.len() < BACKLOG
    }

    /// Receives a byte from the outside. A byte for which there is no room is lost.
    pub fn receive(&mut self, byte: u8) {
        if self.has_room() {
            self.received.push_back(byte);
        } else {
            self.overrun = true;
        }
    }

    /// Takes the oldest byte that came from the outside.
    pub fn take_received(&mut self) -> Option<u8> {
        self.received.pop_front()
    }

    /// Returns whether there are bytes from the outside that the guest has not taken.
    #[must_use]
    pub fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// Lets the carrier go for a moment, if the driver listens for that: a kernel hangs the terminal up then. Returns whether it listens.
    pub fn hang_up(&mut self) -> bool {
        self.is_hung_up = self.ier & IER_MODEM != 0;
        self.is_hung_up
    }

    /// Returns the bytes that came from the outside, the oldest first. It stays.
    pub fn received(&self) -> impl Iterator<Item = u8> {
        self.received.iter().copied()
    }

    /// Drops the oldest `count` of those bytes, which have been taken.
    pub fn drop_received(&mut self, count: usize) {
        self.received.drain(..count);
    }

    /// Returns whether RBR holds a byte.
    fn is_ready(&self) -> bool {
        if self.mcr & MCR_LOOP != 0 { !self.looped.is_empty() } else { self.quiet == 0 && !self.received.is_empty() }
    }

    fn raise_thre(&mut self) {
        self.thre = Thre::Raised;
    }

    /// Reads register `offset` (0..8).
    pub fn read(&mut self, offset: u64) -> u8 {
        let latched = self.lcr & LCR_DLAB != 0;
        match offset {
            0 if latched => self.divisor as u8,
            0 if self.mcr & MCR_LOOP != 0 => self.looped.pop_front().unwrap_or(0),
            0 if self.is_ready() => self.take_received().unwrap_or(0),
            0 => 0,
            1 if latched => (self.divisor >> 8) as u8,
            1 => self.ier,
            2 => {
                let id = self.identification();
                if id == IIR_THRE {
                    self.thre = Thre::Idle; // reading IIR acknowledges this one
                }
                id | if self.fifo { IIR_FIFO } else { 0 }
            }
            3 => self.lcr,
            4 => self.mcr,
            5 => {
                let ready = if self.is_ready() { LSR_READY } else { 0 };
                self.quiet = self.quiet.saturating_sub(1);
                let overrun = if core::mem::take(&mut self.overrun) { LSR_OVERRUN } else { 0 };
                LSR_THRE | LSR_EMPTY | ready | overrun
            }
            6 if self.mcr & MCR_LOOP != 0 => {
                // Loopback wires the modem outputs (DTR, RTS, OUT1, OUT2) to the inputs.
                let m = self.mcr;
                (m & 0x02) << 3 | (m & 0x01) << 5 | (m & 0x04) << 4 | (m & 0x08) << 4
            }
            6 if core::mem::take(&mut self.is_hung_up) => MSR_HUNG_UP,
            6 => MSR_CONNECTED,
            7 => self.scratch,
            _ => 0,
        }
    }

    /// Returns whether the waiting bytes are worth sending now: a line, or a lot.
    fn has_lot(&self) -> bool {
        self.sending.len() >= LOT || self.sending.last() == Some(&b'\n')
    }

    /// Sends as many bytes as there is room for outside.
    fn send(&mut self, outside: &mut dyn Outside) {
        let taken = outside.print(&self.sending);
        self.sent(taken);
    }

    /// Takes a byte to be sent if that only adds it to the bytes that wait to leave: no line changes, and nothing has
    /// to be notified. Else nothing has happened.
    #[inline(always)]
    pub fn take(&mut self, byte: u8) -> bool {
        let waiting = self.sending.len();
        let tells = self.ier & IER_THRE != 0;
        // A UART with waiting bytes has asked for a moment already.
        let is_one_more = byte != b'\n' && waiting.wrapping_sub(1) < LOT - 2;
        let is_plain =
            self.lcr & LCR_DLAB | self.mcr & MCR_LOOP | u8::from(tells & ((self.thre != Thre::Idle) | !self.draining))
                == 0;
        if !(is_one_more && is_plain) {
            return false;
        }
        if !tells {
            self.raise_thre();
        }
        if self.quiet > 0 {
            self.quiet = QUIET_READS;
        }
        self.sending.try_push(byte).is_ok()
    }

    /// Returns the bytes that wait to leave.
    #[must_use]
    pub fn sending(&self) -> &[u8] {
        &self.sending
    }

    /// Removes the first `count` bytes, which have left.
    pub fn sent(&mut self, count: usize) {
        self.sending.drain(..count);
    }

    /// Returns whether another byte can be written.
    fn can_send(&self) -> bool {
        self.sending.len() < MOST_SENDING
    }

    /// Returns whether a [`Device::moment`] is due soon.
    fn wants_moment(&self) -> bool {
        self.draining || !self.sending.is_empty()
    }

    /// Writes register `offset` (0..8). A byte to be sent joins those that leave; the caller has seen that it can.
    pub fn write(&mut self, offset: u64, value: u8) {
        let latched = self.lcr & LCR_DLAB != 0;
        match offset {
            0 if latched => self.divisor = self.divisor & 0xff00 | u16::from(value),
            0 => {
                self.thre = Thre::Idle;
                if self.ier & IER_THRE != 0 {
                    self.draining = true;
                } else {
                    self.raise_thre(); // no interrupt is enabled for it
                }
                if self.quiet > 0 {
                    self.quiet = QUIET_READS; // LSR was read for the sake of this byte
                }
                if self.mcr & MCR_LOOP == 0 {
                    self.sending.push(value); // the caller has seen that there is room
                } else if self.looped.len() < FIFO {
                    self.looped.push_back(value);
                } else {
                    self.overrun = true;
                }
            }
            1 if latched => self.divisor = self.divisor & 0x00ff | u16::from(value) << 8,
            1 => {
                let enabled = value & IER_MASK & !self.ier;
                self.ier = value & IER_MASK;
                // Enabling it while the transmitter is empty raises it at once.
                if enabled & IER_THRE != 0 && !self.draining {
                    self.raise_thre();
                }
                if self.ier & IER_RX != 0 {
                    self.quiet = 0;
                }
            }
            2 => {
                self.fifo = value & FCR_ENABLE != 0;
                if value & FCR_CLEAR_RX != 0 {
                    self.looped.clear();
                    self.quiet = if self.ier & IER_RX == 0 { QUIET_READS } else { 0 };
                }
            }
            3 => self.lcr = value,
            4 => self.mcr = value & 0x1f,
            7 => self.scratch = value,
            _ => {} // LSR and MSR are read-only
        }
    }
}

/// The UART is a device of its board by itself; the others are so in a box.
impl AsMut<dyn Device> for Uart {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut dyn Device {
        self
    }
}

impl Device for Uart {
    fn name(&self) -> &'static str {
        "serial"
    }

    fn place(&self) -> Place {
        Place { start: START, bytes: REGISTERS }
    }

    fn source(&self) -> u32 {
        SOURCE
    }

    fn properties(&self) -> Vec<DeviceTreeProperty> {
        const CLOCK: u32 = 3_686_400;
        let frequency = DeviceTreeProperty::new_unchecked("clock-frequency", CLOCK.to_be_bytes().as_slice());
        [DeviceTreeProperty::new_unchecked("compatible", "ns16550a"), frequency].into()
    }

    /// Loads one register, whatever the width, as QEMU's board does.
    fn load(&mut self, offset: u64, _: u8, outside: &mut dyn Outside) -> Answer<u64> {
        let value = self.read(offset);
        if offset == 0 && self.has_room() {
            outside.take_input();
        }
        Answer::Done(value.into())
    }

    /// Stores one register, whatever the width.
    fn store(&mut self, offset: u64, _: u8, value: u64, outside: &mut dyn Outside) -> Answer<()> {
        if !self.can_send() {
            self.send(outside);
            if !self.can_send() {
                outside.soon();
                return Answer::Later;
            }
        }
        self.write(offset, value as u8);
        if self.has_lot() {
            self.send(outside);
        }
        if self.wants_moment() {
            outside.soon();
        }
        Answer::Done(())
    }

    fn interrupt(&self) -> bool {
        match self.identification() {
            IIR_NONE => false,
            IIR_THRE => self.thre != Thre::Completed,
            _ => true,
        }
    }

    fn claimed(&mut self) {
        if self.identification() == IIR_THRE {
            self.thre = Thre::Claimed;
        } else if self.thre == Thre::Claimed {
            self.thre = Thre::Raised; // the claim was for another condition
        }
    }

    fn completed(&mut self) {
        if self.thre == Thre::Claimed {
            self.thre = Thre::Completed;
        }
    }

    /// Sends waiting bytes, some time after the last byte was written.
    fn moment(&mut self, outside: &mut dyn Outside) {
        self.send(outside);
        if core::mem::take(&mut self.draining) {
            self.raise_thre();
        }
        if self.can_send() {
            outside.wake();
        }
        if self.wants_moment() {
            outside.soon();
        }
    }

    /// Resets the UART. Bytes that came from the outside can still be read.
    fn reset(&mut self) {
        *self = Self { received: core::mem::take(&mut self.received), ..Self::default() };
    }

    fn save(&self) -> Result<DeviceState, Unsaved> {
        Ok(DeviceState::Uart(self.state()))
    }

    fn restore(&mut self, state: &DeviceState) -> Result<(), Wild> {
        let DeviceState::Uart(state) = state else { return Err(Wild::OTHER) };
        *self = Self::of_state(state)?;
        Ok(())
    }
}
