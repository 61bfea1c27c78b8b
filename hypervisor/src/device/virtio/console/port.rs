//! A port that has a name, and the program of the host's that is connected to it.
//!
//! Data waits here until the other side takes it, a few KiB in each direction: then the sender waits, the guest's
//! driver without its buffer, the host's program without an answer that more was taken. Data that the guest sends
//! without a connection is dropped.

use crate::device::interface::Outside;
use crate::device::virtio::portion::{Budget, STEP, Stop, next_chain};
use crate::device::virtio::queue::{Chain, Queue};
use abi::control::port::{Exchange, Heard, MOST_KEPT};
use abi::snapshot::bytes::Bytes;
use alloc::collections::VecDeque;

/// Bytes that are taken of what the guest says at once.
const PIECE: usize = 1 << 10;

/// The counts of ports. All only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PortCounts {
    /// Bytes that the guest has sent.
    pub bytes_out: u64,
    /// Bytes that it was given.
    pub bytes_in: u64,
    /// Bytes that the guest has sent while no program was connected.
    pub unheard: u64,
    /// Buffers that came back as they were, since there is no room in them, or no memory.
    pub refused: u64,
    /// Messages of the guest about ports that mean nothing.
    pub nonsense: u64,
}

impl PortCounts {
    /// Returns every count with its name, as `docs/counters.md` lists them.
    pub(super) const fn each(&self) -> [(&'static str, u64); 5] {
        [
            ("ports.bytes_out", self.bytes_out),
            ("ports.bytes_in", self.bytes_in),
            ("ports.unheard", self.unheard),
            ("ports.refused", self.refused),
            ("ports.nonsense", self.nonsense),
        ]
    }
}

/// A connection.
#[derive(Debug, Default)]
struct Line {
    /// Which connection it is.
    number: u32,
    /// The number of bytes that were taken for the guest.
    taken: u64,
    /// The bytes of those that the guest does not have yet.
    input: VecDeque<u8>,
    /// The place of the first byte of the guest's that is kept.
    from: u64,
    /// The guest's bytes from there on.
    output: VecDeque<u8>,
}

/// A port.
#[derive(Debug, Default)]
pub(super) struct Port {
    line: Option<Line>,
    /// The chain that the driver sends, and the number of its bytes that were taken.
    sending: Option<(Chain, u64)>,
    /// The chain for the next bytes for the guest, and the number of bytes in it.
    receiving: Option<(Chain, usize)>,
}

impl Port {
    /// Takes data from the connected program. Returns whether the connection is a new one.
    pub(super) fn hear(&mut self, said: &Exchange) -> bool {
        let is_new = self.line.as_ref().is_none_or(|line| line.number != said.connection);
        if is_new {
            self.close();
        }
        let line = self.line.get_or_insert_with(|| Line { number: said.connection, ..Line::default() });
        let has_come = said.from.saturating_sub(line.from).min(line.output.len() as u64);
        line.output.drain(..has_come as usize);
        line.from += has_come;
        // Where some are missing between, none is taken.
        let again = usize::try_from(line.taken.wrapping_sub(said.at)).unwrap_or(usize::MAX).min(said.bytes.0.len());
        let new = &said.bytes.0[again..];
        let new = &new[..new.len().min(MOST_KEPT.saturating_sub(line.input.len()))];
        line.input.extend(new);
        line.taken += new.len() as u64;
        is_new
    }

    /// Returns the data that the connected program can hear.
    pub(super) fn heard(&self, said: &Exchange, is_open: bool) -> Heard {
        let Some(line) = &self.line else { return Heard { is_open, ..Heard::default() } };
        let most = if said.from == line.from { said.most as usize } else { 0 };
        let (front, back) = line.output.as_slices();
        let most = most.min(line.output.len());
        let cut = most.min(front.len());
        let bytes = Bytes([&front[..cut], &back[..most - cut]].concat());
        Heard { taken: line.taken, waiting: line.input.len() as u32, bytes, is_open }
    }

    /// Returns whether the port has that connection.
    pub(super) fn has(&self, connection: u32) -> bool {
        self.line.as_ref().is_some_and(|line| line.number == connection)
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.line = None;
        if let Some((_, done)) = &mut self.receiving {
            *done = 0;
        }
    }

    /// Drops the work that was begun for a queue.
    pub(super) fn stop(&mut self, is_sent: bool) {
        if is_sent { self.sending = None } else { self.receiving = None }
    }

    /// Returns whether work is begun for a queue.
    pub(super) const fn has_begun(&self, is_sent: bool) -> bool {
        if is_sent { self.sending.is_some() } else { self.receiving.is_some() }
    }

    /// Does one thing of what the driver sends.
    pub(super) fn send(
        &mut self,
        counts: &mut PortCounts,
        queue: &mut Queue,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        let Some((chain, done)) = &mut self.sending else {
            budget.pay(STEP)?;
            self.sending = next_chain(queue, outside, budget)?.map(|chain| (chain, 0));
            return Ok(());
        };
        let left = chain.room(false).saturating_sub(*done);
        match &mut self.line {
            Some(line) if left != 0 => {
                let room = MOST_KEPT.saturating_sub(line.output.len());
                if room == 0 {
                    // The exchange that takes some of the output serves this queue again.
                    return Err(Stop::Idle);
                }
                let (mut piece, mut copied) = ([0; PIECE], 0);
                let piece = &mut piece[..left.min(room.min(PIECE) as u64) as usize];
                let is_there = chain.copy((false, *done), (piece, &mut copied), outside, budget);
                line.output.extend(&piece[..copied]);
                *done += copied as u64;
                counts.bytes_out += copied as u64;
                if is_there? {
                    return Ok(());
                }
                counts.refused += 1;
            }
            Some(_) => {}
            // `left` is what the driver says: the buffers need not exist.
            None => counts.unheard = counts.unheard.saturating_add(left),
        }
        queue.give(chain, 0, outside)?;
        self.sending = None;
        Ok(())
    }

    /// Gives the driver some of the data for it, if it has a buffer for that.
    pub(super) fn receive(
        &mut self,
        counts: &mut PortCounts,
        queue: &mut Queue,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        let Some(line) = self.line.as_mut().filter(|line| !line.input.is_empty()) else { return Err(Stop::Idle) };
        budget.pay(STEP)?;
        let Some((chain, done)) = &mut self.receiving else {
            self.receiving = next_chain(queue, outside, budget)?.map(|chain| (chain, 0));
            return Ok(());
        };
        let (front, _) = line.input.as_mut_slices();
        let count = chain.room(true).min(front.len() as u64) as usize;
        let is_there = count != 0 && chain.copy((true, 0), (&mut front[..count], done), outside, budget)?;
        let given = if is_there { count } else { 0 };
        queue.give(chain, given as u32, outside)?;
        line.input.drain(..given);
        counts.bytes_in += given as u64;
        counts.refused += u64::from(!is_there);
        self.receiving = None;
        Ok(())
    }
}
