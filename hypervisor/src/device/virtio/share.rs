//! A folder of the host's (chapter 5.9): a device that passes messages of the protocol 9P to the share's server
//! ([`crate::backend::shares`]).
//!
//! A request is a chain with a message to be read, and room for the answer. The message is copied, looked through where
//! the guest reaches it no more (`message`), and given to the host's device. The answer is copied back when that
//! interrupts. If the server ends, all messages are answered with I/O errors. No vCPU waits: many are in flight, answers come in any order, and guest memory that is paged out is
//! asked for again a moment later.
//!
//! Gnomon knows nothing of files. Which are open, and what the guest calls them, is the server's to know: it
//! forgets all when the next session begins, which each driver does first. Only their number is counted, by the
//! answers: a guest that has none open can go on with another device of the host's.

use super::backend::{Backend, Progress, read_bytes};
use super::pace::Pace;
use super::portion::{Budget, STEP, Stop, free_place, next_chain_into};
use super::queue::{Chain, Queue, Trouble, USUAL};
use super::queues::Queues;
use super::transport::Mmio;
use super::wire::share::MOUNT_TAG;
use crate::backend::User;
use crate::backend::shares::{Asked, Lost, MOST_MESSAGE, NotBegun, Port, Units};
use crate::device::interface::Device;
use crate::device::interface::{Outside, Unsaved, Wild};
use crate::device::offer::Offer;
use crate::sync::Mutex;
use abi::bundle::MAX_SHARES;
use abi::bundle::VmConfig;
use abi::snapshot::device::OwnState;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use message::{Answer, Change, ERROR, Errno, HEAD, Head, READ_HEAD, SMALL, Verdict};
use rv::PAGE_BYTES;

mod message;

/// The most that a portion may cost, in bytes that are copied.
const PORTION: usize = 256 << 10;

/// The most bytes of a message that are read together with its head: most messages are not longer.
const FIRST: usize = 64;

/// The GPA and the PLIC source of the first share. Others follow, in steps of a page.
const AT: (u64, u32) = (0x1000_a000, 12);

/// Makes the shares of a VM, as far as the host has them.
pub fn make(config: &VmConfig, offer: &Offer) -> Vec<Box<dyn Device>> {
    let ports = config.shares.iter().take(MAX_SHARES);
    let ports = ports.filter_map(|share| Some((offer.shares.get(share.number)?, &share.tag)));
    let share = |(at, (port, tag)): (usize, (&Arc<_>, &String))| {
        let (start, source) = (AT.0 + PAGE_BYTES * at as u64, AT.1 + at as u32);
        Box::new(Mmio::new(start, source, Share::new(Arc::clone(port), tag, offer.timebase))) as _
    };
    ports.enumerate().map(share).collect()
}

/// The device's counts. All only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Messages that the host's device was given.
    pub messages: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Bytes of the answers.
    pub bytes_in: u64,
    /// Messages that Gnomon has answered itself: they are none, or too long, or not for this device.
    pub refused: u64,
    /// Answers that found no room, or no memory.
    pub unfit: u64,
}

impl Counts {
    /// Returns every count with its name, as `docs/counters.md` lists them.
    pub(super) const fn each(&self) -> [(&'static str, u64); 5] {
        [
            ("share.messages", self.messages),
            ("share.bytes_out", self.bytes_out),
            ("share.bytes_in", self.bytes_in),
            ("share.refused", self.refused),
            ("share.unfit", self.unfit),
        ]
    }
}

/// A message that is worked on.
#[derive(Debug)]
struct Work {
    chain: Chain,
    /// Once its head was read, and there are units for it.
    open: Option<(Head, Asked)>,
    /// Set if the message was checked: the units hold it for the host's device.
    is_checked: bool,
    /// Bytes that were copied: of the message, and when it has landed of the answer.
    copied: usize,
}

/// The device.
#[derive(Debug)]
pub struct Share {
    port: Arc<Mutex<Port>>,
    /// The tag by which the guest mounts it.
    tag: String,
    works: Vec<Option<Work>>,
    /// The next chain is taken here.
    next: Chain,
    /// Chains that were given back: their room for buffers is used again.
    spare: Vec<Chain>,
    /// The one that is still to be begun.
    asking: Option<usize>,
    /// The requests that are over, and are to be given back: with the number of bytes.
    over: VecDeque<(usize, u32)>,
    /// The count of file numbers that the guest has, since its session began.
    files: u32,
    pace: Pace,
    counts: Counts,
}

impl Share {
    /// Makes a share that the guest mounts by `tag`, on a machine with `timebase` ticks a second.
    #[must_use]
    pub fn new(port: Arc<Mutex<Port>>, tag: &str, timebase: u64) -> Self {
        Self {
            port,
            tag: tag.into(),
            works: Vec::new(),
            next: Chain::default(),
            spare: Vec::new(),
            asking: None,
            over: VecDeque::new(),
            files: 0,
            pace: Pace::new(timebase),
            counts: Counts::default(),
        }
    }

    /// Returns the device's counts.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    fn work(&mut self, at: usize) -> &mut Work {
        let Some(work) = &mut self.works[at] else { unreachable!("there is no such message") };
        work
    }

    /// Does one step of the work.
    fn step(
        &mut self,
        port: &mut Port,
        queue: &mut Queue,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        if let Some((at, answer)) = port.landed() {
            budget.pay(STEP)?;
            return match answer {
                Ok(bytes) => self.land(at, bytes, port, outside, budget),
                Err(Lost) => self.lose(at, port, outside),
            };
        }
        if let Some((at, written)) = self.over.front().copied() {
            budget.pay(STEP)?;
            queue.give(&self.work(at).chain, written, outside)?;
            self.over.pop_front();
            self.spare.extend(self.works[at].take().map(|work| work.chain));
            return Ok(());
        }
        // What an earlier life has asked for comes first: it may be about the same files.
        if port.has_strangers() {
            return Err(Stop::Idle);
        }
        if let Some(at) = self.asking {
            budget.pay(STEP)?;
            return self.ask(at, port, outside, budget);
        }
        let at = free_place(&mut self.works, USUAL).ok_or(Stop::Idle)?;
        if !next_chain_into(&mut self.next, queue, outside, budget)? {
            return budget.pay(STEP);
        }
        let chain = mem::replace(&mut self.next, self.spare.pop().unwrap_or_default());
        self.works[at] = Some(Work { chain, open: None, is_checked: false, copied: 0 });
        self.asking = Some(at);
        Ok(())
    }

    /// Begins a message that is still to be begun.
    fn ask(&mut self, at: usize, port: &mut Port, outside: &mut dyn Outside, budget: &mut Budget) -> Result<(), Stop> {
        let Some((head, asked)) = self.work(at).open else { return self.open(at, port, outside) };
        if !self.work(at).is_checked {
            if !self.fetch(at, &asked, port, outside, budget)? {
                return self.give_up(at, &asked, Answer::error(head.tag, Errno::BadAddress), port, outside);
            }
            let room = self.work(at).chain.room(true).min(asked.room as u64) as usize;
            let message = &mut port.buffer(asked.units)[asked.message()];
            if let Verdict::Answer(answer) = head.examine(message, room) {
                return self.give_up(at, &asked, answer, port, outside);
            }
            self.work(at).is_checked = true;
        }
        match port.begin(&asked, at) {
            Err(NotBegun::Busy) => return Err(Stop::Idle),
            Err(NotBegun::Failed) => {
                return self.give_up(at, &asked, Answer::error(head.tag, Errno::Io), port, outside);
            }
            Ok(()) => {}
        }
        self.counts.messages += 1;
        self.counts.bytes_out += asked.message as u64;
        // Of the answer nothing is copied yet.
        self.work(at).copied = 0;
        self.asking = None;
        Ok(())
    }

    /// Reads a message's head, and what lies together with it; takes units for the message and its answer.
    fn open(&mut self, at: usize, port: &mut Port, outside: &mut dyn Outside) -> Result<(), Stop> {
        let chain = &self.work(at).chain;
        let (there, room) = (chain.room(false), chain.room(true));
        let mut first = [0; FIRST];
        let first = &mut first[..chain.first(FIRST).max(HEAD)];
        let head = chain.hear_some(0, first, outside)?.then(|| first.first_chunk()).flatten().copied().map(Head::of);
        // A message without room for an error cannot be answered with one.
        let Some(head) = head.filter(|_| room >= ERROR as u64) else {
            self.counts.refused += 1;
            self.end(at, 0);
            return Ok(());
        };
        if let Err(why) = head.check(there) {
            return self.answer(at, Answer::error(head.tag, why), outside);
        }
        // What reads says how much: then there is to be room for that.
        let mut count = 0;
        if let Some(offset) = head.count_at() {
            let heard = first.get(offset..).and_then(|rest| rest.first_chunk());
            let heard = heard.map_or_else(|| chain.hear(offset as u64, outside), |count| Ok(Some(*count)))?;
            count = u32::from_le_bytes(heard.unwrap_or_default());
        }
        let most = (u64::from(count) + READ_HEAD as u64).min(room).clamp(SMALL as u64, MOST_MESSAGE as u64);
        let asked = Asked { units: Units::NONE, message: head.bytes, room: most as usize };
        // If there are too few, some are in flight.
        let units = port.take(asked.bytes()).ok_or(Stop::Idle)?;
        let asked = Asked { units, ..asked };
        let first = &first[..first.len().min(asked.message)];
        port.buffer(units)[asked.message()][..first.len()].copy_from_slice(first);
        let work = self.work(at);
        (work.open, work.copied) = (Some((head, asked)), first.len());
        Ok(())
    }

    /// Copies a message, or what is left of it; says whether there is memory.
    fn fetch(
        &mut self,
        at: usize,
        asked: &Asked,
        port: &mut Port,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<bool, Stop> {
        let work = self.work(at);
        let message = &mut port.buffer(asked.units)[asked.message()];
        work.chain.copy((false, 0), (message, &mut work.copied), outside, budget)
    }

    /// Answers what has units, and nothing comes of.
    fn give_up(
        &mut self,
        at: usize,
        asked: &Asked,
        answer: Answer,
        port: &mut Port,
        outside: &mut dyn Outside,
    ) -> Result<(), Stop> {
        self.answer(at, answer, outside)?;
        port.give(asked.units);
        Ok(())
    }

    /// Answers a message that is not for the host's device.
    fn answer(&mut self, at: usize, answer: Answer, outside: &mut dyn Outside) -> Result<(), Stop> {
        let is_told = self.work(at).chain.tell(0, answer.bytes(), outside)?;
        self.counts.refused += 1;
        self.end(at, if is_told { answer.bytes().len() as u32 } else { 0 });
        Ok(())
    }

    /// Ends a message: it is only to be given back.
    fn end(&mut self, at: usize, written: u32) {
        self.asking.take_if(|asking| *asking == at);
        self.over.push_back((at, written));
    }

    /// Answers a message whose server has ended with an I/O error.
    fn lose(&mut self, at: usize, port: &mut Port, outside: &mut dyn Outside) -> Result<(), Stop> {
        let Some((head, asked)) = self.work(at).open else { unreachable!("what has landed was begun") };
        self.answer(at, Answer::error(head.tag, Errno::Io), outside)?;
        port.forget_landed();
        port.give(asked.units);
        Ok(())
    }

    /// Copies an answer of the host's device to the guest, or what is left of it: so many bytes.
    fn land(
        &mut self,
        at: usize,
        bytes: usize,
        port: &mut Port,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        let work = self.work(at);
        let Some((head, asked)) = work.open else { unreachable!("what has landed was begun") };
        let mut written = bytes;
        if bytes as u64 > work.chain.room(true) {
            // It was done, and the guest has no room to hear of it.
            let error = Answer::error(head.tag, Errno::MessageSize);
            written = if work.chain.tell(0, error.bytes(), outside)? { ERROR } else { 0 };
            self.counts.unfit += 1;
        } else {
            let answer = &mut port.buffer(asked.units)[asked.answer()][..bytes];
            if !work.chain.copy((true, 0), (answer, &mut work.copied), outside, budget)? {
                written = 0;
                self.counts.unfit += 1;
            }
        }
        let units = port.buffer(asked.units);
        match head.change(&units[asked.message()], &units[asked.answer()][..bytes]) {
            Change::Nothing => {}
            Change::More => self.files = self.files.saturating_add(1),
            Change::Less => self.files = self.files.saturating_sub(1),
            Change::None => self.files = 0,
        }
        self.counts.bytes_in += bytes as u64;
        port.forget_landed();
        port.give(asked.units);
        self.end(at, written as u32);
        Ok(())
    }
}

impl Backend for Share {
    const ID: u32 = 9;
    const GOES_ON: bool = true;
    const COUNTERS: [&'static str; 2] = ["share.notifications", "share.malformed"];

    fn queues(&self) -> usize {
        1
    }

    fn features(&self) -> u64 {
        MOUNT_TAG
    }

    fn read_config(&self, offset: u64, width: u8) -> u32 {
        let length = (self.tag.len() as u16).to_le_bytes();
        read_bytes(&[&length, self.tag.as_bytes()].concat(), offset, width)
    }

    fn notified(&mut self, at: usize, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        let Some(queue) = queues.ready(at) else { return Ok(Progress::Idle) };
        let port = Arc::clone(&self.port);
        let mut port = port.lock();
        let mut pace = self.pace;
        let progress = pace.go_on(PORTION, outside, |budget, outside| self.step(&mut port, queue, outside, budget));
        self.pace = pace;
        progress
    }

    /// Stops a queue. The results of the messages in flight are lost to the driver, and each may have opened a file.
    fn stop(&mut self, _: usize) {
        let under_way = self.works.iter().flatten().count() as u32;
        let files = self.files.saturating_add(under_way);
        self.reset();
        self.files = files;
    }

    fn reset(&mut self) {
        self.port.lock().start_over();
        self.asking = None;
        self.works.clear();
        self.over.clear();
        self.files = 0;
    }

    fn attach(&mut self, user: User) {
        self.port.lock().set_user(user);
    }

    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.counts.each().into_iter().for_each(|(name, count)| report(name, count));
    }

    /// Refuses to save while messages are in flight. They are answered first: repeating a message may have another
    /// result.
    fn save(&self) -> Result<OwnState, Unsaved> {
        if self.works.iter().any(Option::is_some) || self.port.lock().has_strangers() {
            return Err(Unsaved::Busy);
        }
        match self.files {
            0 => Ok(OwnState::Nothing),
            _ => Err(Unsaved::Never(
                "a shared folder is mounted, and which files are open there is not Gnomon's to save: unmount it in the guest first",
            )),
        }
    }

    fn begun(&self, _: usize) -> u16 {
        0
    }

    fn restore(&mut self, own: &OwnState, _: bool) -> Result<(), Wild> {
        if *own == OwnState::Nothing { Ok(()) } else { Err(Wild::OTHER) }
    }
}

#[cfg(test)]
mod tests;
