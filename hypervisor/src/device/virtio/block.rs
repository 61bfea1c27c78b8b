//! A disk (chapter 5.2), behind which is one of the host's ([`crate::backend::disks`]).
//!
//! A request is cut into *parts*, each of which the host's device does at once. Data of writes is [`lent`] to it. Data
//! of reads goes through units of the port's buffer, and is copied from there when it has landed; so does data that
//! cannot be lent. No vCPU waits: a notification begins as many parts as it can, and the host's interrupt continues, in
//! portions, with parts that have landed and with parts that had no room. Guest memory that is not there, since it is
//! paged out, is asked for again a moment later.
//!
//! Requests are taken apart as the driver has put them together, at whatever borders: the bytes that the device reads
//! begin with the header, those that it writes end with the status.
//!
//! There are as many queues as the guest has harts, so that each has its own to fill. They belong to one disk, and
//! their requests are worked on together. The next request is taken from each in turn, as long as there is room for
//! one, so no queue keeps another waiting for longer than a request.
//!
//! A range to be discarded or zeroed is one part whatever its length: there is no data, and the host's device has the
//! work. The request names it in one *segment*.

use super::backend::{Backend, Progress, read_bytes};
use super::gather::Gathering;
use super::pace::Pace;
use super::portion::{Budget, STEP, Stop, free_place};
use super::queue::{MOST, Trouble, USUAL};
use super::queues::Queues;
use super::transport::Mmio;
use super::wire::block::{
    HEADER, NAME, S_IOERR, S_OK, S_UNSUPP, T_DISCARD, T_FLUSH, T_GET_ID, T_IN, T_OUT, T_WRITE_ZEROES,
};
use crate::backend::User;
use crate::backend::disks::{Asked, MOST_FLYING, NotBegun, Operation, Port, SECTOR, UNIT_BYTES, Units};
use crate::device::interface::Device;
use crate::device::interface::{Outside, Unsaved, Wild};
use crate::device::offer::Offer;
use crate::sync::Mutex;
use abi::bundle::MAX_DISKS;
use abi::bundle::VmConfig;
use abi::snapshot::device::OwnState;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use request::Request;
use rv::PAGE_BYTES;
use work::{Lent, Part, Work};

mod lent;
mod request;
mod work;

pub use request::Counts;

/// The GPA and the PLIC source of the first disk. Others follow, in steps of a page.
const AT: (u64, u32) = (0x1000_2000, 2);

/// Makes the disks of a VM, as far as the host has them.
pub fn make(config: &VmConfig, offer: &Offer) -> Vec<Box<dyn Device>> {
    let ports = config.disks.iter().take(MAX_DISKS).filter_map(|number| offer.disks.get(*number));
    let disk = |(at, port): (usize, &Arc<_>)| {
        let (start, source) = (AT.0 + PAGE_BYTES * at as u64, AT.1 + at as u32);
        let disk = Block::new(Arc::clone(port), &format!("disk{at}"), config.vcpus, offer.timebase);
        Box::new(Mmio::new(start, source, disk)) as _
    };
    ports.enumerate().map(disk).collect()
}

/// Most queues. More harts than that share them.
const MOST_QUEUES: usize = u8::BITS as usize;
/// Requests that are worked on at a time, of all queues.
const MOST_WORKS: usize = USUAL;

/// The most that a portion may cost, in bytes that are copied: 64 of them take some 20 instructions.
const PORTION: usize = 256 << 10;

/// The device.
#[derive(Debug)]
pub struct Block {
    port: Arc<Mutex<Port>>,
    /// The disk's name, as the guest is told.
    name: [u8; NAME],
    /// The number of queues.
    queues: usize,
    /// Queues (by bit) in which there may be requests of which the driver need not notify: it was not asked to since they were last seen empty.
    open: u8,
    /// The number of them that were found empty in this portion.
    empty: u8,
    /// The queue at which the search for the next request begins.
    turn: usize,
    works: Vec<Option<Work>>,
    /// Works to be used again: each has room for a chain.
    spare: Vec<Work>,
    /// The one of which something is still to be begun.
    asking: Option<usize>,
    /// The part of that one which has units, and is not begun.
    filling: Option<Part>,
    /// Set if a request was taken in this portion.
    has_taken: bool,
    gathering: Gathering,
    /// Parts in flight, by tag.
    parts: Vec<Option<Part>>,
    /// Requests that are over, and are to be given back.
    over: VecDeque<usize>,
    pace: Pace,
    counts: Counts,
}

impl Block {
    /// Makes a disk. The guest is told `name`, of which it hears 20 bytes, and has `harts` harts: the disk has a queue
    /// for each, up to 8. `timebase` is in ticks a second.
    #[must_use]
    pub fn new(port: Arc<Mutex<Port>>, name: &str, harts: u32, timebase: u64) -> Self {
        let mut bytes = [0; NAME];
        bytes.iter_mut().zip(name.bytes()).for_each(|(byte, of)| *byte = of);
        Self {
            port,
            name: bytes,
            queues: (harts as usize).clamp(1, MOST_QUEUES),
            open: 0,
            empty: 0,
            turn: 0,
            works: Vec::new(),
            spare: Vec::new(),
            asking: None,
            filling: None,
            has_taken: false,
            gathering: Gathering::default(),
            parts: Vec::new(),
            over: VecDeque::new(),
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
        let Some(work) = &mut self.works[at] else { unreachable!("there is no such request") };
        work
    }

    /// Does one step of the work.
    fn step(
        &mut self,
        port: &mut Port,
        queues: &mut Queues,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        // One after the other: at the end of each loan as many frames may come free as were lent.
        budget.check()?;
        if let Some(lent) = port.collect_one() {
            budget.pay_for_end(lent);
            return Ok(());
        }
        if let Some((tag, result)) = port.landed_before() {
            budget.pay(STEP)?;
            return self.land((tag, result.is_ok()), port, outside, budget);
        }
        if let Some(at) = self.over.front().copied() {
            budget.pay(STEP)?;
            self.give_back(at, queues, outside)?;
            self.over.pop_front();
            return Ok(());
        }
        // What an earlier life has asked for comes first: it may be about the same sectors.
        if port.has_strangers() {
            return Err(Stop::Idle);
        }
        match self.asking {
            Some(at) => {
                budget.pay(STEP)?;
                self.ask(at, port, outside, budget)
            }
            None => self.take(port, queues, outside, budget),
        }
    }

    /// Returns the queue that may have the next request: of those not known to be empty, each in turn.
    fn next_queue(&self) -> Option<usize> {
        let left = (self.open & !self.empty).rotate_right(self.turn as u32);
        (left != 0).then(|| (self.turn + left.trailing_zeros() as usize) % MOST_QUEUES)
    }

    /// Takes the next request, if there is one.
    fn take(
        &mut self,
        port: &mut Port,
        queues: &mut Queues,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        let Some(from) = self.next_queue() else { return self.rest(port, queues, outside, budget) };
        let Some(queue) = queues.ready(from) else {
            self.open &= !(1 << from);
            return Ok(());
        };
        let at = free_place(&mut self.works, MOST_WORKS).ok_or(Stop::Idle)?;
        let mut work = self.spare.pop().unwrap_or_default();
        let is_one = queue.take_into(&mut work.chain, outside);
        if is_one != Ok(true) {
            self.spare.push(work);
            is_one?;
            self.empty |= 1 << from;
            return Ok(());
        }
        work.begin_anew();
        work.queue = Some(from);
        budget.pay_for_chain(&work.chain);
        self.turn = (from + 1) % MOST_QUEUES;
        self.works[at] = Some(work);
        self.asking = Some(at);
        self.has_taken = true;
        self.gathering.took(outside.now());
        port.set_gathering(self.gathering.is_on());
        Ok(())
    }

    /// Handles the lack of requests. As long as they come, by whichever queue, and several are served at once, the
    /// queues are looked at a moment later, whether the driver notifies or not; so it need not. Else it is asked to,
    /// queue by queue.
    fn rest(
        &mut self,
        port: &Port,
        queues: &mut Queues,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        if self.open == 0 {
            return Err(Stop::Idle);
        }
        if port.is_busy() && self.has_taken {
            outside.soon();
            return Err(Stop::Idle);
        }
        let at = self.open.trailing_zeros() as usize;
        let has_more = match queues.ready(at) {
            Some(queue) => queue.await_more(outside)?,
            None => false,
        };
        if has_more {
            self.empty &= !(1 << at);
            return budget.pay(STEP);
        }
        self.open &= !(1 << at);
        Ok(())
    }

    /// Begins the next step of a request: reads its header, or begins a part.
    fn ask(&mut self, at: usize, port: &mut Port, outside: &mut dyn Outside, budget: &mut Budget) -> Result<(), Stop> {
        let Some(request) = self.work(at).request else { return Ok(self.read_header(at, port, outside)?) };
        let Request { operation, sector, bytes } = request;
        if operation == Operation::Write && self.filling.is_none() && self.work(at).is_well() {
            match self.begin_lent(at, (sector, bytes), port, outside, budget)? {
                Lent::Begun(part) if part.offset + (part.bytes as u64) < bytes => return Ok(()),
                Lent::Begun(_) | Lent::Failed => {
                    self.is_asked(at);
                    return Ok(());
                }
                Lent::Not => {}
            }
        }
        if self.work(at).is_well() {
            let part = self.filling.take().or_else(|| self.cut(at, &request, port));
            let mut part = part.ok_or(Stop::Idle)?;
            let filled = match operation {
                Operation::Write => self.work(at).copy(&mut part, operation, port, outside, budget),
                _ => Ok(()),
            };
            self.filling = Some(part);
            filled?;
        }
        if self.work(at).is_well()
            && let Some(part) = self.filling
        {
            // If there are as many as there may be, one of them lands first.
            let tag = free_place(&mut self.parts, MOST_FLYING).ok_or(Stop::Idle)?;
            let sector = sector + part.offset / SECTOR;
            match port.begin(&Asked { operation, sector, units: part.units, bytes: part.bytes }, tag) {
                Err(NotBegun::Busy) => return Err(Stop::Idle),
                Err(NotBegun::Failed) => self.work(at).fail(S_IOERR),
                Ok(()) => {
                    self.filling = None;
                    // What is read is copied when it has landed.
                    self.began(tag, Part { copied: 0, ..part });
                    if self.work(at).begun < bytes {
                        return Ok(());
                    }
                }
            }
        }
        // There is no more of it; or it has failed.
        self.filling.take().into_iter().for_each(|part| port.give(part.units));
        self.is_asked(at);
        Ok(())
    }

    /// Notes that a part was begun.
    fn began(&mut self, tag: usize, part: Part) {
        self.counts.parts += 1;
        self.parts[tag] = Some(part);
        let work = self.work(part.work);
        work.flying += 1;
        work.begun += part.bytes as u64;
    }

    /// Cuts the next part of a request, with units for it, if there are any.
    fn cut(&self, at: usize, request: &Request, port: &mut Port) -> Option<Part> {
        let offset = self.works[at].as_ref().map_or(0, |work| work.begun);
        let left = usize::try_from(request.bytes - offset).unwrap_or(usize::MAX);
        if !request.operation.has_data() {
            return Some(Part { work: at, offset, bytes: left, units: Units::NONE, copied: 0, is_lent: false });
        }
        let units = port.take(left.div_ceil(UNIT_BYTES))?;
        Some(Part { work: at, offset, bytes: left.min(units.bytes()), units, copied: 0, is_lent: false })
    }

    /// Handles the end of a part that the host's device has finished.
    fn land(
        &mut self,
        (tag, is_done): (usize, bool),
        port: &mut Port,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<(), Stop> {
        let Some(mut part) = self.parts[tag] else { unreachable!("what has landed was begun") };
        let work = self.work(part.work);
        if !is_done {
            work.fail(S_IOERR);
            self.counts.errors += 1;
        } else if work.request.is_some_and(|request| request.operation == Operation::Read) {
            let copied = work.copy(&mut part, Operation::Read, port, outside, budget);
            self.parts[tag] = Some(part);
            copied?;
        }
        port.forget_landed();
        port.give(part.units);
        self.parts[tag] = None;
        let work = self.work(part.work);
        work.flying -= 1;
        // The queue is polled: a driver that adds requests there, and has not notified yet, need not notify any more.
        self.open |= work.queue.map_or(0, |queue| 1 << queue);
        self.settle(part.work);
        Ok(())
    }

    /// Notes that nothing more is to be begun of a request.
    fn is_asked(&mut self, at: usize) {
        self.asking = None;
        self.work(at).is_asked = true;
        self.settle(at);
    }

    /// Notes that a request is over, if it is.
    fn settle(&mut self, at: usize) {
        let work = self.work(at);
        if work.is_asked && work.flying == 0 {
            self.over.push_back(at);
        }
    }

    /// Gives a finished request back, unless its queue was stopped.
    fn give_back(&mut self, at: usize, queues: &mut Queues, outside: &mut dyn Outside) -> Result<(), Trouble> {
        let work = self.work(at);
        let Some(queue) = work.queue.and_then(|queue| queues.ready(queue)) else {
            self.spare.extend(self.works[at].take());
            return Ok(());
        };
        let mut written = 0;
        // One that has no place for the status cannot be told.
        if let Some(last) = work.chain.room(true).checked_sub(1)
            && work.chain.tell(last, &[work.status], outside)?
        {
            let read = work.request.filter(|request| request.operation == Operation::Read);
            let data = read.filter(|_| work.status == S_OK).map_or(0, |request| request.bytes);
            written = u32::try_from(data + 1).unwrap_or(u32::MAX);
        }
        queue.give(&work.chain, written, outside)?;
        self.spare.extend(self.works[at].take());
        Ok(())
    }

    /// Reads and checks the header of a request. A request that is answered at once is over then.
    fn read_header(&mut self, at: usize, port: &Port, outside: &mut dyn Outside) -> Result<(), Trouble> {
        let name = self.name;
        let work = self.work(at);
        let header = work.chain.hear::<HEADER>(0, outside)?;
        let (Some(header), Some(data_in)) = (header, work.chain.room(true).checked_sub(1)) else {
            self.refuse(at, S_IOERR);
            return Ok(());
        };
        let data_out = work.chain.room(false) - HEADER as u64;
        let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
        let sector = u64::from_le_bytes(sector);
        let request = match u32::from_le_bytes([t0, t1, t2, t3]) {
            T_IN => Request { operation: Operation::Read, sector, bytes: data_in },
            T_OUT => Request { operation: Operation::Write, sector, bytes: data_out },
            T_FLUSH => Request { operation: Operation::Flush, sector, bytes: 0 },
            kind @ (T_DISCARD | T_WRITE_ZEROES) => match work.segment(kind, outside)? {
                Ok(request) => request,
                Err(status) => {
                    self.refuse(at, status);
                    return Ok(());
                }
            },
            T_GET_ID => {
                let told = NAME.min(usize::try_from(data_in).unwrap_or(NAME));
                match work.chain.tell(0, &name[..told], outside)? {
                    true => self.is_asked(at),
                    false => self.refuse(at, S_IOERR),
                }
                return Ok(());
            }
            _ => {
                self.refuse(at, S_UNSUPP);
                return Ok(());
            }
        };
        if let Err(status) = request.check(port) {
            self.refuse(at, status);
            return Ok(());
        }
        let Request { operation, bytes, .. } = request;
        work.request = Some(request);
        self.counts.count(operation, bytes);
        if bytes == 0 && operation != Operation::Flush {
            self.is_asked(at);
        }
        Ok(())
    }

    fn refuse(&mut self, at: usize, status: u8) {
        self.counts.refused += 1;
        self.work(at).fail(status);
        self.is_asked(at);
    }

    /// Does a portion of the work, for all queues together.
    fn go_on(&mut self, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        let port = Arc::clone(&self.port);
        let mut port = port.lock();
        (self.has_taken, self.empty) = (false, 0);
        let mut pace = self.pace;
        let progress = pace.go_on(PORTION, outside, |budget, outside| self.step(&mut port, queues, outside, budget));
        self.pace = pace;
        progress
    }
}

impl Backend for Block {
    const ID: u32 = 2;
    const GOES_ON: bool = true;
    const MOST_ENTRIES: usize = MOST;
    const COUNTERS: [&'static str; 2] = ["disk.notifications", "disk.malformed"];

    fn queues(&self) -> usize {
        self.queues
    }

    fn features(&self) -> u64 {
        request::features(&self.port.lock(), self.queues)
    }

    fn read_config(&self, offset: u64, width: u8) -> u32 {
        read_bytes(&request::config(&self.port.lock(), self.queues), offset, width)
    }

    fn notified(&mut self, at: usize, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        self.open |= 1 << at;
        self.go_on(queues, outside)
    }

    fn moment(&mut self, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        self.go_on(queues, outside)
    }

    /// Stops a queue. The host's device finishes the parts in flight; nothing more is begun, and nothing is copied.
    fn stop(&mut self, at: usize) {
        self.open &= !(1 << at);
        for work in self.works.iter_mut().flatten().filter(|work| work.queue == Some(at)) {
            work.queue = None;
            work.fail(S_IOERR);
        }
        // Its header is not to be read any more; units that it may have go back with the next portion.
        if let Some(at) = self.asking
            && self.work(at).queue.is_none()
            && self.work(at).request.is_none()
        {
            self.is_asked(at);
        }
    }

    fn reset(&mut self) {
        self.port.lock().start_over();
        (self.asking, self.filling) = (None, None);
        (self.open, self.empty, self.turn) = (0, 0, 0);
        self.gathering = Gathering::default();
        self.works.clear();
        self.spare.clear();
        self.parts.clear();
        self.over.clear();
    }

    fn is_still(&mut self) -> bool {
        self.stands_still()
    }

    fn attach(&mut self, user: User) {
        self.port.lock().set_user(user);
    }

    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.counts.each().into_iter().for_each(|(name, count)| report(name, count));
    }

    /// Saves the state, unless requests are open. A write that was begun may have been done, and one that is done twice
    /// may come after a newer one: so none is begun anew.
    fn save(&self) -> Result<OwnState, Unsaved> {
        let is_busy = self.works.iter().any(Option::is_some) || self.port.lock().has_strangers();
        if is_busy { Err(Unsaved::Busy) } else { Ok(OwnState::Nothing) }
    }

    fn begun(&self, _: usize) -> u16 {
        0
    }

    /// Restores the disk: any queue may have requests that were not taken.
    fn restore(&mut self, own: &OwnState, is_live: bool) -> Result<(), Wild> {
        self.open = if is_live { u8::MAX >> (MOST_QUEUES - self.queues) } else { 0 };
        if *own == OwnState::Nothing { Ok(()) } else { Err(Wild::OTHER) }
    }
}

#[cfg(test)]
mod tests;
