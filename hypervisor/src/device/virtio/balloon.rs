//! The memory balloon (chapter 5.5), by which a guest gives memory back.
//!
//! - **Free page reporting**: buffers of memory that the guest does not use now. They are untouched again once the
//!   device has given them back, and the guest may use them at any time.
//! - **Inflate and deflate**: lists of pages, which the guest keeps itself from using until it has deflated them. It
//!   inflates and deflates until it has as many in the balloon as the target says. It may deflate at its own wish when
//!   it is short of memory (`DEFLATE_ON_OOM`): nothing here rests on its keeping away from them.
//!
//! Whatever pages a guest names, it gets what it asked for: their content is gone, even if that was its page tables,
//! its rings, or its code. Pages that it names and does not have are refused, and counted.
//!
//! As Linux's driver has it, and QEMU's device, queues that were not negotiated have no number: without statistics and
//! hinting the one for reporting is number 2.

use super::backend::{Backend, Progress};
use super::queue::{Buffer, Chain, Trouble, USUAL};
use super::queues::Queues;
use super::transport::Mmio;
use crate::device::interface::Device;
use crate::device::interface::{Outside, Unreached, Unsaved, Wild};
use crate::device::offer::Offer;
use abi::bundle::GUEST_RAM_BASE;
use abi::bundle::VmConfig;
use abi::snapshot::device::OwnState;
use alloc::boxed::Box;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use mmu::Span;
use rv::{PAGE_BYTES, PAGE_SHIFT, Pfn};

const DEFLATE_ON_OOM: u64 = 1 << 2;
const REPORTING: u64 = 1 << 5;

const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const REPORT: usize = 2;
const COUNT: usize = 3;

/// Bytes of a page's number in a list: little endian.
const NUMBER: usize = 4;
/// Pages of a list that are looked at in one portion.
const LISTED_AT_ONCE: usize = 64;

/// The GPA and the PLIC source of the balloon: the first of the board's places for virtio.
const AT: (u64, u32) = (0x1000_1000, 1);

/// Makes the balloon of a VM, if it has one.
pub fn make(config: &VmConfig, _: &Offer) -> Vec<Box<dyn Device>> {
    let pages = |bytes| bytes / PAGE_BYTES;
    let balloon = |target| Balloon::new(pages(config.memory_bytes), pages(target));
    let balloon = config.balloon_bytes.map(|target| Mmio::new(AT.0, AT.1, balloon(target)));
    balloon.into_iter().map(|balloon| Box::new(balloon) as _).collect()
}

/// The device's counts. All only grow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Pages that the guest reported as free.
    pub reported: u64,
    /// Pages that went into the balloon.
    pub inflated: u64,
    /// Pages that came out of it.
    pub deflated: u64,
    /// Frames that came free.
    pub freed: u64,
    /// Pages that the guest kept, for lack of a frame for a table.
    pub kept: u64,
    /// Buffers and pages that are not the guest's, or not to be used so.
    pub refused: u64,
}

impl Counts {
    /// Returns every count with its name, as `docs/counters.md` lists them.
    pub(super) const fn each(&self) -> [(&'static str, u64); 6] {
        [
            ("balloon.reported", self.reported),
            ("balloon.inflated", self.inflated),
            ("balloon.deflated", self.deflated),
            ("balloon.freed", self.freed),
            ("balloon.kept", self.kept),
            ("balloon.refused", self.refused),
        ]
    }
}

/// A chain that is being worked on.
#[derive(Debug)]
struct Work {
    chain: Chain,
    /// The buffer that is next.
    at: usize,
    /// The part of the buffer that is done: bytes of a list, pages of a report.
    done: u64,
}

const NO_WORKS: [Option<Work>; COUNT] = [const { None }; COUNT];

/// The device.
#[derive(Debug)]
pub struct Balloon {
    /// Pages of the guest's RAM.
    pages: u64,
    /// Pages that are to be in the balloon.
    target: u32,
    /// Pages that are, as the driver says.
    actual: u32,
    /// By queue.
    works: [Option<Work>; COUNT],
    counts: Counts,
}

impl Balloon {
    /// Makes the balloon of a guest with `pages` pages of RAM.
    #[must_use]
    pub fn new(pages: u64, target: u64) -> Self {
        let mut balloon = Self { pages, target: 0, actual: 0, works: NO_WORKS, counts: Counts::default() };
        balloon.set_target(target);
        balloon
    }

    /// Returns the device's counts.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the number of pages that are to be in the balloon, and of those that are, as the driver says.
    #[must_use]
    pub const fn target_and_actual(&self) -> (u64, u64) {
        (self.target as u64, self.actual as u64)
    }

    /// Sets how many pages are to be in the balloon: seven eighths of all at most.
    pub fn set_target(&mut self, pages: u64) {
        self.target = pages.min(self.pages / 8 * 7).try_into().unwrap_or(u32::MAX);
    }

    /// Returns whether the guest has those pages.
    fn has(&self, page: u64, pages: u64) -> bool {
        let first = page.checked_sub(GUEST_RAM_BASE >> PAGE_SHIFT);
        first.and_then(|first| first.checked_add(pages)).is_some_and(|end| end <= self.pages)
    }

    /// Returns the whole pages of a buffer that the guest has.
    fn whole_pages(&self, buffer: &Buffer) -> Option<(u64, u64)> {
        let end = buffer.gpa.checked_add(buffer.bytes.into())?;
        let (first, end) = (buffer.gpa.div_ceil(PAGE_BYTES), end / PAGE_BYTES);
        let pages = end.saturating_sub(first);
        self.has(first, pages).then_some((first, pages))
    }

    /// Gives back the pages that a chain reports as free, a portion of them. Returns whether those were all.
    fn report(&mut self, work: &mut Work, outside: &mut dyn Outside) -> bool {
        // What is refused comes to nothing; it is counted as it is passed.
        let span = |(n, buffer): (usize, &Buffer)| {
            let (start, pages) = self.whole_pages(buffer).filter(|_| buffer.is_written).unwrap_or((0, 0));
            let done = if n == 0 { work.done } else { 0 };
            Span { start: Pfn::new(start + done), pages: pages - done }
        };
        let spans: ArrayVec<Span, USUAL> = work.chain.buffers[work.at..].iter().enumerate().map(span).collect();
        let returned = outside.give_back(&spans);
        self.counts.reported += returned.passed;
        self.counts.freed += returned.freed;
        self.counts.kept += returned.kept;
        let mut passed = returned.passed;
        for span in &spans {
            if passed < span.pages {
                work.done += passed;
                return false;
            }
            passed -= span.pages;
            let buffer = &work.chain.buffers[work.at];
            let is_refused = !buffer.is_written || self.whole_pages(buffer).is_none();
            self.counts.refused += u64::from(is_refused);
            (work.at, work.done) = (work.at + 1, 0);
        }
        true
    }

    /// Takes pages of a list into the balloon, a portion of them. Returns whether that was all.
    fn inflate(&mut self, work: &mut Work, outside: &mut dyn Outside) -> Result<bool, Trouble> {
        let Some(buffer) = work.chain.buffers.get(work.at) else { return Ok(true) };
        let count = ((u64::from(buffer.bytes) - work.done) as usize / NUMBER).min(LISTED_AT_ONCE);
        let mut list = [0; NUMBER * LISTED_AT_ONCE];
        let list = &mut list[..NUMBER * count];
        // An address that wraps is nowhere.
        let at = buffer.gpa.saturating_add(work.done);
        let read = if buffer.is_written { Err(Unreached::Nowhere) } else { outside.read(at, list) };
        match read {
            Ok(()) => {}
            Err(Unreached::Later) => return Err(Trouble::Later),
            Err(Unreached::Nowhere) => {
                self.counts.refused += 1;
                (work.at, work.done) = (work.at + 1, 0);
                return Ok(work.at == work.chain.buffers.len());
            }
        }
        let numbers = list.as_chunks::<NUMBER>().0.iter().map(|number| u64::from(u32::from_le_bytes(*number)));
        let span = |page| Span { start: Pfn::new(page), pages: self.has(page, 1).into() };
        let spans: ArrayVec<Span, LISTED_AT_ONCE> = numbers.map(span).collect();
        let returned = outside.give_back(&spans);
        self.counts.inflated += returned.passed;
        self.counts.freed += returned.freed;
        self.counts.kept += returned.kept;
        let mut passed = returned.passed;
        for span in &spans {
            if passed < span.pages {
                return Ok(false);
            }
            passed -= span.pages;
            self.counts.refused += u64::from(span.pages == 0);
            work.done += NUMBER as u64;
        }
        if u64::from(buffer.bytes) - work.done < NUMBER as u64 {
            (work.at, work.done) = (work.at + 1, 0);
        }
        Ok(work.at == work.chain.buffers.len())
    }

    /// Takes pages of a list out of the balloon. There is nothing to do: a page comes at its next touch.
    fn deflate(&mut self, work: &mut Work) {
        for buffer in &work.chain.buffers[work.at..] {
            let pages = u64::from(buffer.bytes) / NUMBER as u64;
            if buffer.is_written || pages > self.pages {
                self.counts.refused += 1;
            } else {
                self.counts.deflated += pages;
            }
        }
        work.at = work.chain.buffers.len();
    }

    /// Does a portion of the work that is begun for a queue. Returns whether that was all. Another call after that does
    /// nothing.
    fn work(&mut self, at: usize, work: &mut Work, outside: &mut dyn Outside) -> Result<bool, Trouble> {
        match at {
            INFLATE => return self.inflate(work, outside),
            REPORT => return Ok(self.report(work, outside)),
            DEFLATE => self.deflate(work),
            _ => {}
        }
        Ok(true)
    }
}

impl Backend for Balloon {
    const ID: u32 = 5;
    const COUNTERS: [&'static str; 2] = ["balloon.notifications", "balloon.malformed"];

    fn queues(&self) -> usize {
        COUNT
    }

    fn features(&self) -> u64 {
        DEFLATE_ON_OOM | REPORTING
    }

    fn read_config(&self, offset: u64, width: u8) -> u32 {
        let config = u64::from(self.actual) << 32 | u64::from(self.target);
        let bytes = config.checked_shr(8 * offset.min(8) as u32).unwrap_or(0);
        (bytes & (u64::MAX >> (64 - 8 * u32::from(width)))) as u32
    }

    fn write_config(&mut self, offset: u64, width: u8, value: u32) {
        if (offset, width) == (4, 4) {
            self.actual = value;
        }
    }

    /// Takes one chain at most, and gives pages back once.
    fn notified(&mut self, at: usize, queues: &mut Queues, outside: &mut dyn Outside) -> Result<Progress, Trouble> {
        let Some(queue) = queues.ready(at) else { return Ok(Progress::Idle) };
        let begun = match self.works[at].take() {
            Some(work) => Some(work),
            None => queue.take(outside)?.map(|chain| Work { chain, at: 0, done: 0 }),
        };
        if let Some(mut work) = begun {
            let is_back = match self.work(at, &mut work, outside) {
                Ok(true) => queue.give(&work.chain, 0, outside).map(|()| true),
                other => other,
            };
            if is_back != Ok(true) {
                self.works[at] = Some(work);
                return is_back.map(|_| Progress::More);
            }
        }
        Ok(if queue.await_more(outside)? { Progress::More } else { Progress::Idle })
    }

    fn stop(&mut self, at: usize) {
        self.works[at] = None;
    }

    fn reset(&mut self) {
        self.works = NO_WORKS;
        self.actual = 0;
    }

    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.counts.each().into_iter().for_each(|(name, count)| report(name, count));
        let (target, actual) = self.target_and_actual();
        report("balloon.target", target);
        report("balloon.actual", actual);
    }

    fn save(&self) -> Result<OwnState, Unsaved> {
        Ok(OwnState::Balloon { target: self.target, actual: self.actual })
    }

    /// Returns the number of chains to begin anew: a driver that has notified does so again, and pages that were given
    /// back can be given back again.
    fn begun(&self, at: usize) -> u16 {
        self.works[at].is_some().into()
    }

    fn restore(&mut self, own: &OwnState, _: bool) -> Result<(), Wild> {
        let OwnState::Balloon { target, actual } = *own else { return Err(Wild::OTHER) };
        self.set_target(target.into());
        self.actual = actual;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
