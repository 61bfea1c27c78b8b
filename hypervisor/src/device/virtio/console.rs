//! A console (chapter 5.3) with one port, which is the VM's console, as the UART is: what the driver sends is printed there, and it is given
//! what is typed there.
//!
//! What is typed comes to the UART's backlog, whichever driver the guest has: firmware reads it there, and so do calls of the SBI. This device
//! takes it from there as soon as its driver has a buffer for it. So nothing is typed for the wrong one, and whoever types waits as ever.
//!
//! What is to be printed is copied a piece at a time. Where the console has no room for it, the driver has its buffer back later: it waits, as
//! with a UART that is full, and its vCPU does not.

use super::backend::{Backend, Progress};
use super::portion::{self, Budget, STEP, Stop};
use super::queue::{Chain, Trouble};
use super::queues::Queues;
use super::transport::Mmio;
use super::wire::console::{RECEIVE, TRANSMIT};
use crate::device::interface::{Outside, Unsaved, Wild};
use crate::device::uart::Uart;
use abi::snapshot::device::OwnState;
use alloc::boxed::Box;

/// What a portion may cost, in bytes that are copied.
const PORTION: usize = 64 << 10;
/// Bytes that are printed at once, or given to the driver.
const PIECE: usize = 1 << 10;
/// What it costs to print so many: some of them, or of others, go to the host's UART at once.
const PRINT: usize = PORTION / 2;
/// How often within a second a hart prints for a guest that it does not run.
const SELDOM: u64 = 1000;

/// What was done so far. All only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Bytes that the guest has printed.
    pub bytes_out: u64,
    /// Bytes that it was given.
    pub bytes_in: u64,
    /// Buffers that came back as they were, since there is no room in them, or no memory.
    pub refused: u64,
}

/// The device.
#[derive(Debug, Default)]
pub struct Console {
    /// A while after which a hart looks again after what a guest prints that it does not run, in ticks.
    seldom: u64,
    /// What the driver sends, and how many bytes of it were printed.
    sending: Option<(Box<Chain>, u64)>,
    /// How many bytes of the next one were, before the VM was saved.
    ahead: u32,
    /// Where the next bytes go that were typed.
    receiving: Option<Box<Chain>>,
    counts: Counts,
}

impl Console {
    /// One on a machine whose clock counts so many times a second.
    #[must_use]
    pub fn new(timebase: u64) -> Self {
        Self { seldom: timebase / SELDOM, ..Self::default() }
    }

    /// What was done so far.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// There is more to print: in a moment, where the guest runs. Another hart, whose own guest pays for it, does it seldom: the buffers in a
    /// queue may be any number of gigabytes, and a console that is not shown takes them all.
    fn again(&self, outside: &mut dyn Outside) {
        if outside.is_own() {
            outside.soon();
        } else {
            outside.at(outside.now() + self.seldom);
        }
    }

    /// Does one thing of what the driver sends.
    fn send(&mut self, queues: &mut Queues, outside: &mut dyn Outside, budget: &mut Budget) -> Result<(), Stop> {
        let Some(queue) = queues.ready(TRANSMIT) else { return Err(Stop::Idle) };
        let Some((chain, done)) = &mut self.sending else {
            budget.pay(STEP)?;
            return match queue.take(outside)? {
                Some(chain) => {
                    budget.pay_for_chain(&chain);
                    self.sending = Some((Box::new(chain), core::mem::take(&mut self.ahead).into()));
                    Ok(())
                }
                None if queue.await_more(outside)? => Ok(()),
                None => Err(Stop::Idle),
            };
        };
        let left = chain.room(false).saturating_sub(*done);
        if left != 0 {
            budget.pay(PRINT)?;
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
    fn receive(
        &mut self,
        uart: &mut Uart,
        queues: &mut Queues,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        let Some(queue) = queues.ready(RECEIVE).filter(|_| uart.has_received()) else { return Err(Stop::Idle) };
        budget.pay(STEP)?;
        let Some(chain) = &self.receiving else {
            return match queue.take(outside)? {
                Some(chain) => {
                    budget.pay_for_chain(&chain);
                    self.receiving = Some(Box::new(chain));
                    Ok(())
                }
                None if queue.await_more(outside)? => Ok(()),
                None => Err(Stop::Idle),
            };
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
}

impl Mmio<Console> {
    /// Gives the driver what was typed, as far as it has buffers for that.
    pub fn take_input(&mut self, uart: &mut Uart, outside: &mut dyn Outside) {
        let had_room = uart.has_room();
        self.act(outside, |console, queues, outside| {
            portion::go_on(PORTION, |budget| console.receive(uart, queues, outside, budget))
        });
        if !had_room && uart.has_room() {
            outside.take_input();
        }
    }
}

/// It has no features: one port, of a size that nobody knows.
impl Backend for Console {
    const ID: u32 = 3;
    const GOES_ON: bool = true;

    fn queues(&self) -> usize {
        2
    }

    /// Of buffers for what is typed is seen to when there is something ([`Mmio::take_input`]).
    fn notified(&mut self, at: usize, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        match at {
            TRANSMIT => {
                let progress = portion::go_on(PORTION, |budget| self.send(queues, outside, budget))?;
                if progress == Progress::More && !outside.is_own() {
                    self.again(outside);
                    return Ok(Progress::Idle);
                }
                Ok(progress)
            }
            _ => Ok(Progress::Idle),
        }
    }

    fn stop(&mut self, at: usize) {
        if at == TRANSMIT { (self.sending, self.ahead) = (None, 0) } else { self.receiving = None }
    }

    /// What has been printed has been printed.
    fn reset(&mut self) {
        (self.sending, self.ahead, self.receiving) = (None, 0, None);
    }

    fn save(&self) -> Result<OwnState, Unsaved> {
        let sent = self.sending.as_ref().map_or(self.ahead, |(_, done)| u32::try_from(*done).unwrap_or(u32::MAX));
        Ok(OwnState::Console { sent })
    }

    fn begun(&self, at: usize) -> u16 {
        let is_begun = if at == TRANSMIT { self.sending.is_some() } else { self.receiving.is_some() };
        is_begun.into()
    }

    fn restore(&mut self, own: &OwnState, _: bool) -> Result<(), Wild> {
        let OwnState::Console { sent } = *own else { return Err(Wild::OTHER) };
        self.ahead = sent;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
