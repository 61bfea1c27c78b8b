//! The messages of driver and device about ports (chapter 5.3.6.2), by two queues of their own.
//!
//! A message that is owed to a driver is a bit for each port and kind of message, and is sent when there is a buffer
//! for it. So requests take no memory, however many there are; and a message that is not true any more when its turn
//! comes is not sent.

use super::port::PortCounts;
use crate::device::interface::Outside;
use crate::device::virtio::portion::{Budget, STEP, Stop, next_chain};
use crate::device::virtio::queue::Chain;
use crate::device::virtio::queues::Queues;
use crate::device::virtio::wire::console::{CONTROL_RECEIVE, CONTROL_TRANSMIT, event};
use abi::bundle::{MAX_PORT_NAME, MAX_PORTS};
use abi::snapshot::device::PortState;
use alloc::string::String;
use alloc::vec::Vec;
use arrayvec::ArrayVec;

/// Ports of a device, that of the console among them.
pub(super) const PORTS: usize = 1 + MAX_PORTS;
/// Bytes of a message: port, kind, value.
const MESSAGE: usize = 8;

/// The messages that are owed, in the order in which they are sent: there is such a port,
const ADD: u8 = 1 << 0;
/// it is a console,
const CONSOLE: u8 = 1 << 1;
/// it has a name,
const NAME: u8 = 1 << 2;
/// the connection is closed,
const CLOSE: u8 = 1 << 3;
/// a connection is open.
const OPEN: u8 = 1 << 4;
const ALL: u8 = ADD | CONSOLE | NAME | CLOSE | OPEN;

/// The kind of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Nothing: there is none of that number.
    None,
    /// The VM's console.
    Console,
    /// A port with a name.
    Named(String),
}

/// The driver's knowledge of the ports.
#[derive(Debug)]
pub(super) struct Control {
    /// The ports, by number: [`PORTS`] at most.
    kinds: Vec<Kind>,
    known: [PortState; PORTS],
    /// Set for ports with a connection.
    is_there: [bool; PORTS],
    /// The chain with the driver's message.
    hearing: Option<Chain>,
    /// The chain for the next message.
    telling: Option<Chain>,
}

impl Control {
    /// Makes the state of a device with these ports, after reset. The console has a connection.
    pub(super) fn new(mut kinds: Vec<Kind>) -> Self {
        kinds.truncate(PORTS);
        let mut is_there = [false; PORTS];
        is_there[0] = true;
        Self { kinds, known: Default::default(), is_there, hearing: None, telling: None }
    }

    /// Returns the driver's knowledge of a port.
    pub(super) const fn known(&self, port: usize) -> PortState {
        self.known[port]
    }

    /// Returns all that the driver knows.
    pub(super) const fn save(&self) -> [PortState; PORTS] {
        self.known
    }

    /// Restores the state, without connections to ports that have names.
    pub(super) fn restore(&mut self, known: [PortState; PORTS]) {
        self.known = known;
        for (port, known) in self.known.iter_mut().enumerate() {
            if self.kinds.get(port).is_none_or(|kind| *kind == Kind::None) {
                *known = PortState::default();
            }
            known.owed &= ALL;
        }
        (0..PORTS).for_each(|port| self.meet(port, self.is_there[port]));
    }

    /// Resets the state: the driver starts over.
    pub(super) fn reset(&mut self) {
        self.known = Default::default();
        self.stop(CONTROL_TRANSMIT);
        self.stop(CONTROL_RECEIVE);
    }

    /// Drops the work that was begun for a queue.
    pub(super) fn stop(&mut self, at: usize) {
        if at == CONTROL_TRANSMIT { self.hearing = None } else { self.telling = None }
    }

    /// Returns whether work is begun for a queue.
    pub(super) const fn has_begun(&self, at: usize) -> bool {
        if at == CONTROL_TRANSMIT { self.hearing.is_some() } else { self.telling.is_some() }
    }

    /// Notes that a port is connected, or no longer.
    pub(super) fn connect(&mut self, port: usize, is_there: bool) {
        if self.is_there[port] && is_there {
            // A new connection replaces the old one: the driver sees the old one's end first.
            self.meet(port, false);
        }
        self.is_there[port] = is_there;
        self.meet(port, is_there);
    }

    /// Marks the messages about that which are owed to the driver.
    fn meet(&mut self, port: usize, is_there: bool) {
        let known = &mut self.known[port];
        if !known.is_ready {
            return;
        }
        if !is_there {
            known.owed &= !OPEN;
            known.owed |= if known.is_told { CLOSE } else { 0 };
        } else if !known.is_told || known.owed & CLOSE != 0 {
            known.owed |= OPEN;
        }
    }

    /// Does what the driver says; returns whether that means something.
    fn heed(&mut self, message: [u8; MESSAGE]) -> bool {
        let [i0, i1, i2, i3, e0, e1, v0, v1] = message;
        let (port, kind) = (u32::from_le_bytes([i0, i1, i2, i3]) as usize, u16::from_le_bytes([e0, e1]));
        let is_so = u16::from_le_bytes([v0, v1]) != 0;
        if kind == event::DEVICE_READY {
            for (known, kind) in self.known.iter_mut().zip(&self.kinds) {
                // One that can make nothing of the device is told nothing.
                known.owed = if !is_so || *kind == Kind::None { 0 } else { known.owed | ADD };
            }
            return true;
        }
        let Some(of) = self.kinds.get(port).filter(|kind| **kind != Kind::None) else { return false };
        let known = &mut self.known[port];
        match kind {
            event::PORT_READY if is_so => {
                (known.is_ready, known.is_told) = (true, false);
                known.owed = known.owed & ADD | if *of == Kind::Console { CONSOLE } else { NAME };
                self.meet(port, self.is_there[port]);
            }
            // It cannot use that port.
            event::PORT_READY => *known = PortState::default(),
            event::PORT_OPEN => known.is_open = is_so,
            _ => return false,
        }
        true
    }

    /// Hears one thing that the driver says.
    pub(super) fn hear(
        &mut self,
        counts: &mut PortCounts,
        queues: &mut Queues,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        let Some(queue) = queues.ready(CONTROL_TRANSMIT) else { return Err(Stop::Idle) };
        budget.pay(STEP)?;
        let Some(chain) = &self.hearing else {
            self.hearing = next_chain(queue, outside, budget)?;
            return Ok(());
        };
        let message = chain.hear(0, outside)?;
        queue.give(chain, 0, outside)?;
        self.hearing = None;
        counts.nonsense += u64::from(!message.is_some_and(|message| self.heed(message)));
        Ok(())
    }

    /// Returns the next message to be sent: its port and its kind.
    fn due(&self) -> Option<(usize, u8)> {
        let port = self.known.iter().position(|known| known.owed != 0)?;
        let owed = self.known[port].owed;
        Some((port, owed & owed.wrapping_neg()))
    }

    fn message(&self, port: usize, what: u8) -> ArrayVec<u8, { MESSAGE + MAX_PORT_NAME }> {
        let (kind, value) = match what {
            ADD => (event::PORT_ADD, 1_u16),
            CONSOLE => (event::CONSOLE_PORT, 1),
            NAME => (event::PORT_NAME, 1),
            CLOSE => (event::PORT_OPEN, 0),
            _ => (event::PORT_OPEN, 1),
        };
        let name = match &self.kinds[port] {
            Kind::Named(name) if what == NAME => name.as_bytes(),
            _ => &[],
        };
        let number = (port as u32).to_le_bytes();
        let head = number.into_iter().chain(kind.to_le_bytes()).chain(value.to_le_bytes());
        head.chain(name.iter().copied().take(MAX_PORT_NAME)).collect()
    }

    /// Tells the driver one thing, if it has a buffer for that.
    pub(super) fn tell(
        &mut self,
        counts: &mut PortCounts,
        queues: &mut Queues,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        let Some(queue) = queues.ready(CONTROL_RECEIVE) else { return Err(Stop::Idle) };
        let Some((port, what)) = self.due() else { return Err(Stop::Idle) };
        budget.pay(STEP)?;
        let Some(chain) = &self.telling else {
            self.telling = next_chain(queue, outside, budget)?;
            return Ok(());
        };
        let message = self.message(port, what);
        // One that is too short is filled in part, and then its length says that nothing is in it. The next one has all.
        let mut copy = message.clone();
        let is_told = chain.copy((true, 0), (&mut copy, &mut 0), outside, budget)?;
        queue.give(chain, if is_told { message.len() as u32 } else { 0 }, outside)?;
        self.telling = None;
        if !is_told {
            counts.refused += 1;
            return Ok(());
        }
        let known = &mut self.known[port];
        known.owed &= !what;
        known.is_told = (known.is_told || what == OPEN) && what != CLOSE;
        Ok(())
    }
}
