//! A console (chapter 5.3), and ports. Port 0 is the VM's console, like the UART: the driver's data is printed there,
//! and the driver gets the input. A device with other ports has names for them ([`port`]), and may have no console.
//!
//! Input comes to the UART's backlog, whichever driver the guest has: firmware reads it there, and so do calls of the
//! SBI. This device takes it from there as soon as its driver has a buffer for it, and has shown that it handles input:
//! it has opened the port, or, if it knows of one port only, printed something. (Linux's driver offers buffers before
//! that, and throws away what comes in them.) So no input goes to the wrong driver, and the sender waits as before.
//!
//! Output is copied a piece at a time. If the console has no room for it, the driver gets its buffer back later: it
//! waits, as with a UART that is full, and its vCPU does not.

mod control;
mod port;

use super::backend::{Backend, Progress, read_bytes};
use super::portion::{self, Budget, STEP, Stop, go_on_with, next_chain};
use super::queue::{Chain, Trouble};
use super::queues::Queues;
use super::transport::Mmio;
use super::wire::console::{CONTROL_RECEIVE, CONTROL_TRANSMIT, MAX_NR_PORTS, MULTIPORT, RECEIVE, TRANSMIT};
use crate::device::interface::Device;
use crate::device::interface::{Outside, Unsaved, Wild};
use crate::device::offer::Offer;
use crate::device::uart::Uart;
use abi::bundle::MAX_PORTS;
use abi::bundle::VmConfig;
use abi::control::port::{Exchange, Heard};
use abi::snapshot::device::OwnState;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use control::{Control, Kind};
use core::iter::once;
use port::Port;
pub use port::PortCounts;

/// The most that a portion may cost, in bytes that are copied.
const PORTION: usize = 64 << 10;
/// Bytes that are printed at once, or given to the driver.
const PIECE: usize = 1 << 10;
/// The cost of printing a piece: some of its bytes, or others, go to the host's UART at once.
const PRINT: usize = PORTION / 2;
/// The number of times in a second that a hart prints for a guest that it does not run.
const SELDOM: u64 = 1000;
/// The number of the console's port.
const CONSOLE: usize = 0;

/// The GPA and the PLIC source of the console, behind the source of random bytes.
const AT: (u64, u32) = (0x1000_f000, 17);

/// Makes the virtio console of a VM, with its ports, if it has any of them.
pub fn make(config: &VmConfig, offer: &Offer) -> Vec<Box<dyn Device>> {
    if !config.virtio_console && config.ports.is_empty() {
        return Vec::new();
    }
    let first = if config.virtio_console { First::Console } else { First::Nobody };
    alloc::vec![Box::new(Mmio::new(AT.0, AT.1, Console::new(offer.timebase, first, &config.ports)))]
}

/// The device's counts. All only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Bytes that the guest has printed.
    pub bytes_out: u64,
    /// Bytes that it was given.
    pub bytes_in: u64,
    /// Buffers that came back as they were, since there is no room in them, or no memory.
    pub refused: u64,
    /// The counts of ports that have names.
    pub ports: PortCounts,
}

impl Counts {
    /// Returns every count with its name, as `docs/counters.md` lists them.
    pub(super) const fn each(&self) -> [(&'static str, u64); 3] {
        [("console.bytes_out", self.bytes_out), ("console.bytes_in", self.bytes_in), ("console.refused", self.refused)]
    }
}

/// The use of port 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    /// The VM's console.
    Console,
    /// None: there is no such port, for drivers that know of others.
    Nobody,
}

/// The purpose of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// Input or output of the console.
    Console,
    /// Messages about ports.
    Control,
    /// Data for or from that port of those that have names, from 0.
    Port(usize),
}

impl Use {
    const fn of(queue: usize) -> Self {
        match queue {
            RECEIVE | TRANSMIT => Self::Console,
            CONTROL_RECEIVE | CONTROL_TRANSMIT => Self::Control,
            _ => Self::Port(queue / 2 - 2),
        }
    }
}

/// Returns whether the driver sends by that queue. It receives by the others.
const fn is_sent_by(queue: usize) -> bool {
    queue % 2 == 1
}

/// The device.
#[derive(Debug)]
pub struct Console {
    /// A while after which a hart looks again after what a guest sends that it does not run, in ticks.
    seldom: u64,
    /// Set if port 0 is the VM's console; else it is unused.
    is_console: bool,
    /// The chain that the driver prints, and the number of its bytes that were printed.
    sending: Option<(Chain, u64)>,
    /// The number of bytes of the next chain that were printed before the VM was saved.
    ahead: u32,
    /// Set if the driver has printed something.
    has_sent: bool,
    /// The chain for the next input.
    receiving: Option<Chain>,
    /// The ports that have names.
    ports: Vec<Port>,
    control: Control,
    /// The queue that is looked at first in the next moment.
    first: usize,
    counts: Counts,
}

impl Console {
    /// Makes a console on a machine with `timebase` ticks a second, with ports of these names, [`MAX_PORTS`] at most.
    #[must_use]
    pub fn new(timebase: u64, first: First, names: &[String]) -> Self {
        let names = &names[..names.len().min(MAX_PORTS)];
        let is_console = first == First::Console;
        let console = if is_console { Kind::Console } else { Kind::None };
        let control = Control::new(once(console).chain(names.iter().cloned().map(Kind::Named)).collect());
        Self {
            seldom: timebase / SELDOM,
            is_console,
            sending: None,
            ahead: 0,
            has_sent: false,
            receiving: None,
            ports: names.iter().map(|_| Port::default()).collect(),
            control,
            first: 0,
            counts: Counts::default(),
        }
    }

    /// Returns the device's counts.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns whether there are ports that have names.
    #[must_use]
    pub const fn has_ports(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Returns whether the console's driver is ready for input.
    const fn is_listening(&self) -> bool {
        let known = self.control.known(CONSOLE);
        self.is_console && if known.is_ready { known.is_open } else { self.has_sent }
    }

    /// Asks for a moment to do more work: soon, if this hart runs the guest. Another hart, whose own guest pays for it,
    /// does it seldom: the buffers in a queue may be any number of gigabytes, and a console that is not shown takes
    /// them all.
    fn again(&self, outside: &mut dyn Outside) {
        if outside.is_own() {
            outside.soon();
        } else {
            outside.at(outside.now() + self.seldom);
        }
    }

    /// Does one thing of what the driver prints.
    fn print(&mut self, queues: &mut Queues, outside: &mut dyn Outside, budget: &mut Budget) -> Result<(), Stop> {
        let Some(queue) = queues.ready(TRANSMIT) else { return Err(Stop::Idle) };
        let Some((chain, done)) = &mut self.sending else {
            budget.pay(STEP)?;
            let chain = next_chain(queue, outside, budget)?;
            self.sending = chain.map(|chain| (chain, core::mem::take(&mut self.ahead).into()));
            return Ok(());
        };
        let left = if self.is_console { chain.room(false).saturating_sub(*done) } else { 0 };
        if left != 0 {
            budget.pay(PRINT)?;
            self.has_sent = true;
            let mut piece = [0; PIECE];
            let piece = &mut piece[..left.min(PIECE as u64) as usize];
            if chain.hear_some(*done, piece, outside)? {
                let taken = outside.print(piece);
                *done += taken as u64;
                self.counts.bytes_out += taken as u64;
                if taken < piece.len() {
                    self.again(outside);
                    return Err(Stop::Idle);
                }
                return Ok(());
            }
            self.counts.refused += 1;
        }
        queue.give(chain, 0, outside)?;
        self.sending = None;
        Ok(())
    }

    /// Gives the driver a piece of what was typed, if it has a buffer for that.
    fn type_in(
        &mut self,
        uart: &mut Uart,
        queues: &mut Queues,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        let Some(queue) = queues.ready(RECEIVE).filter(|_| uart.has_received()) else { return Err(Stop::Idle) };
        budget.pay(STEP)?;
        let Some(chain) = &self.receiving else {
            self.receiving = next_chain(queue, outside, budget)?;
            return Ok(());
        };
        budget.pay(PIECE)?;
        let mut piece = [0; PIECE];
        let room = chain.room(true).min(PIECE as u64) as usize;
        let typed = piece[..room].iter_mut().zip(uart.received());
        let count = typed.map(|(slot, byte)| *slot = byte).count();
        let is_there = count != 0 && chain.tell(0, &piece[..count], outside)?;
        let given = if is_there { count } else { 0 };
        queue.give(chain, given as u32, outside)?;
        uart.drop_received(given);
        self.counts.bytes_in += given as u64;
        self.counts.refused += u64::from(!is_there);
        self.receiving = None;
        Ok(())
    }

    /// Does one step for a queue. Input has its own way ([`Mmio::take_input`]).
    fn step(
        &mut self,
        at: usize,
        queues: &mut Queues,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        let counts = &mut self.counts.ports;
        match (Use::of(at), is_sent_by(at)) {
            (Use::Console, true) => self.print(queues, outside, budget),
            (Use::Console, false) => Err(Stop::Idle),
            (Use::Control, true) => self.control.hear(counts, queues, outside, budget),
            (Use::Control, false) => self.control.tell(counts, queues, outside, budget),
            (Use::Port(port), is_sent) => {
                let is_open = self.control.known(port + 1).is_open;
                let (Some(port), Some(queue)) = (self.ports.get_mut(port), queues.ready(at)) else {
                    return Err(Stop::Idle);
                };
                match is_sent {
                    true => port.send(counts, queue, outside, budget),
                    // A driver throws away what comes before.
                    false if !is_open => Err(Stop::Idle),
                    false => port.receive(counts, queue, outside, budget),
                }
            }
        }
    }

    /// Does a portion of the work for some queues, one after the other, from one on. Returns the queue by which the
    /// portion was spent.
    fn serve(
        &mut self,
        all: impl Iterator<Item = usize>,
        queues: &mut Queues,
        outside: &mut dyn Outside,
    ) -> Result<Option<usize>, Trouble> {
        let (mut budget, mut is_later) = (Budget::new(PORTION), false);
        for at in all {
            if queues.ready(at).is_none() {
                continue;
            }
            match go_on_with(&mut budget, |budget| self.step(at, queues, outside, budget)) {
                Ok(Progress::Idle) => {}
                Ok(Progress::More) => return Ok(Some(at)),
                // That of the others may be there.
                Err(Trouble::Later) => is_later = true,
                Err(why) => return Err(why),
            }
        }
        if is_later { Err(Trouble::Later) } else { Ok(None) }
    }

    /// Returns the progress after a portion: a device that has not made the guest wait continues later.
    fn progress(&self, spent: Option<usize>, outside: &mut dyn Outside) -> Progress {
        match spent {
            None => Progress::Idle,
            Some(_) if outside.is_own() => Progress::More,
            Some(_) => {
                self.again(outside);
                Progress::Idle
            }
        }
    }

    /// Does a portion for messages about ports, and for a port at which something has happened.
    fn attend(&mut self, port: usize, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        let own = 2 * (port + 2);
        let spent = self.serve([CONTROL_RECEIVE, own, own + 1].into_iter(), queues, outside)?;
        Ok(self.progress(spent, outside))
    }
}

impl Mmio<Console> {
    /// Gives the driver what was typed, as far as it has buffers for that.
    pub fn take_input(&mut self, uart: &mut Uart, outside: &mut dyn Outside) {
        if !self.backend().is_listening() {
            return;
        }
        let had_room = uart.has_room();
        self.act(outside, |console, queues, outside| {
            portion::go_on(PORTION, |budget| console.type_in(uart, queues, outside, budget))
        });
        if !had_room && uart.has_room() {
            outside.take_input();
        }
    }

    /// Exchanges data with the program that is connected to a port: takes what it says, and returns what there is to
    /// hear; `None` if there is no such port. Without an `outside` the guest stands still, and sees nothing of it.
    pub fn exchange(&mut self, port: usize, said: &Exchange, outside: Option<&mut dyn Outside>) -> Option<Heard> {
        let console = self.backend_mut();
        if console.ports.get_mut(port)?.hear(said) {
            console.control.connect(port + 1, true);
        }
        if let Some(outside) = outside {
            self.act(outside, |console, queues, outside| console.attend(port, queues, outside));
        }
        let console = self.backend();
        Some(console.ports.get(port)?.heard(said, console.control.known(port + 1).is_open))
    }

    /// Ends a connection; `None` if there is no such port.
    pub fn close(&mut self, port: usize, connection: u32, outside: Option<&mut dyn Outside>) -> Option<()> {
        let console = self.backend_mut();
        let at = console.ports.get_mut(port)?;
        if at.has(connection) {
            at.close();
            console.control.connect(port + 1, false);
        }
        if let Some(outside) = outside {
            self.act(outside, |console, queues, outside| console.attend(port, queues, outside));
        }
        Some(())
    }
}

/// The configuration does not say how large the console is, because that is unknown.
impl Backend for Console {
    const ID: u32 = 3;
    const GOES_ON: bool = true;
    const COUNTERS: [&'static str; 2] = ["console.notifications", "console.malformed"];

    fn queues(&self) -> usize {
        if self.has_ports() { 2 * (self.ports.len() + 2) } else { 2 }
    }

    fn features(&self) -> u64 {
        if self.has_ports() { MULTIPORT } else { 0 }
    }

    fn read_config(&self, offset: u64, width: u8) -> u32 {
        let mut config = [0; MAX_NR_PORTS + 4];
        if self.has_ports() {
            config[MAX_NR_PORTS..].copy_from_slice(&(1 + self.ports.len() as u32).to_le_bytes());
        }
        read_bytes(&config, offset, width)
    }

    /// Serves a queue. Buffers for input are used when there is input ([`Mmio::take_input`]). The driver's messages
    /// about ports are answered at once, and a port that it has opened has the data that waits for it.
    fn notified(&mut self, at: usize, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        let spent = if at == CONTROL_TRANSMIT {
            let received = (CONTROL_RECEIVE..self.queues()).step_by(2);
            self.serve(once(at).chain(received), queues, outside)
        } else {
            self.serve(once(at), queues, outside)
        }?;
        Ok(self.progress(spent, outside))
    }

    /// Does one portion for all queues, each of which is the first in its turn.
    fn moment(&mut self, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        let (count, first) = (self.queues(), self.first);
        let spent = self.serve((0..count).map(|n| (first + n) % count), queues, outside)?;
        self.first = spent.map_or(0, |at| (at + 1) % count);
        Ok(self.progress(spent, outside))
    }

    fn stop(&mut self, at: usize) {
        match (Use::of(at), is_sent_by(at)) {
            (Use::Console, true) => (self.sending, self.ahead) = (None, 0),
            (Use::Console, false) => self.receiving = None,
            (Use::Control, _) => self.control.stop(at),
            (Use::Port(port), is_sent) => self.ports.iter_mut().skip(port).take(1).for_each(|port| port.stop(is_sent)),
        }
    }

    /// Resets the device. Output that was printed stays printed, and connections stay open.
    fn reset(&mut self) {
        (self.sending, self.ahead, self.receiving, self.has_sent) = (None, 0, None, false);
        self.ports.iter_mut().for_each(|port| [true, false].into_iter().for_each(|is_sent| port.stop(is_sent)));
        self.control.reset();
        self.first = 0;
    }

    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.counts.each().into_iter().for_each(|(name, count)| report(name, count));
        if self.has_ports() {
            self.counts.ports.each().into_iter().for_each(|(name, count)| report(name, count));
        }
    }

    fn save(&self) -> Result<OwnState, Unsaved> {
        let sent = self.sending.as_ref().map_or(self.ahead, |(_, done)| u32::try_from(*done).unwrap_or(u32::MAX));
        Ok(OwnState::Console { sent, has_sent: self.has_sent, ports: self.control.save() })
    }

    fn begun(&self, at: usize) -> u16 {
        let is_begun = match (Use::of(at), is_sent_by(at)) {
            (Use::Console, true) => self.sending.is_some(),
            (Use::Console, false) => self.receiving.is_some(),
            (Use::Control, _) => self.control.has_begun(at),
            (Use::Port(port), is_sent) => self.ports.get(port).is_some_and(|port| port.has_begun(is_sent)),
        };
        is_begun.into()
    }

    fn restore(&mut self, own: &OwnState, _: bool) -> Result<(), Wild> {
        let OwnState::Console { sent, has_sent, ports } = *own else { return Err(Wild::OTHER) };
        (self.ahead, self.has_sent) = (sent, has_sent);
        self.control.restore(ports);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
