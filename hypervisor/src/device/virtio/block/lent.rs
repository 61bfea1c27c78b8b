//! Lending: the host's device reads the data of a write from the guest's memory itself, so nothing is copied.
//!
//! The guest may change that memory meanwhile, which shows on its own disk alone. It may also lose it, to the pager or
//! by giving it back: then no other owner gets the frame before the device has read it ([`Loan`]). So the device reads
//! what the guest has put there, or what it has put there since, and never another VM's data.
//!
//! A part is what was lent at once, down to a whole sector. If that is less than a sector, because the driver has cut
//! it so finely or some of it may not be lent now, the part is copied as others are.

use super::{Block, Lent, Part, Work};
use crate::backend::disks::{MOST_FLYING, MOST_LENT, NotBegun, Port, SECTOR, Units};
use crate::device::interface::{Outside, Unreached};
use crate::device::virtio::portion::{Budget, Stop, free_place};
use crate::device::virtio::queue::Trouble;
use crate::device::virtio::wire::block::{HEADER, S_IOERR};
use mmu::frames::Loan;

/// The number of requests whose end is noticed each time that a driver asks whether the device stands still.
const AT_ONCE: usize = 8;

impl Work {
    /// Lends what is written from byte `offset` of the data on, `most` bytes at most, in whole sectors: none if there is no memory for it,
    /// with the status that tells.
    fn lend(
        &mut self,
        (offset, most): (u64, usize),
        mut loan: Loan,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<Loan, Trouble> {
        let (faults, lent) = outside.lend(&mut self.chain.places((false, HEADER as u64 + offset), most), &mut loan);
        budget.pay_for_loan(&loan, faults);
        loan.cut(loan.bytes() - loan.bytes() % SECTOR as usize);
        match lent {
            Err(Unreached::Nowhere) => self.fail(S_IOERR),
            Err(Unreached::Later) if loan.bytes() == 0 => return Err(Trouble::Later),
            _ => {}
        }
        Ok(loan)
    }
}

impl Block {
    /// Returns whether the host's device reads no memory that was lent by a driver before it has reset the device, or
    /// by a queue that was stopped. A driver may put something else there when that is done, and it would be written.
    pub(super) fn stands_still(&mut self) -> bool {
        let mut port = self.port.lock();
        // The rest when the driver asks again.
        (0..AT_ONCE).all(|_| port.collect_one().is_some());
        let is_stopped = |part: &Part| self.works[part.work].as_ref().is_some_and(|work| work.queue.is_none());
        let mut parts = self.parts.iter().enumerate().filter_map(|(tag, part)| Some((tag, part.as_ref()?)));
        !port.has_lent_strangers() && !parts.any(|(tag, part)| part.is_lent && is_stopped(part) && port.is_flying(tag))
    }

    /// Begins the next part of a request to write, whose data is from `sector` on, if it can be lent.
    pub(super) fn begin_lent(
        &mut self,
        at: usize,
        (sector, bytes): (u64, u64),
        port: &mut Port,
        outside: &mut dyn Outside,
        budget: &mut Budget,
    ) -> Result<Lent, Stop> {
        // If there are as many as there may be, one of them lands first.
        let tag = free_place(&mut self.parts, MOST_FLYING).filter(|_| !port.is_full()).ok_or(Stop::Idle)?;
        let work = self.work(at);
        let offset = work.begun;
        let most = usize::try_from(bytes - offset).map_or(MOST_LENT, |left| left.min(MOST_LENT));
        let loan = outside.loan(port.device().most_pieces());
        let loan = work.lend((offset, most), loan, outside, budget)?;
        if !work.is_well() {
            return Ok(Lent::Failed);
        }
        let bytes = loan.bytes();
        if bytes == 0 {
            return Ok(Lent::Not);
        }
        match port.begin_lent(sector + offset / SECTOR, loan, tag) {
            Err(NotBegun::Busy) => Err(Stop::Idle),
            Err(NotBegun::Failed) => {
                work.fail(S_IOERR);
                Ok(Lent::Failed)
            }
            Ok(()) => {
                self.counts.bytes_lent += bytes as u64;
                let part = Part { work: at, offset, bytes, units: Units::NONE, copied: 0, is_lent: true };
                self.began(tag, part);
                Ok(Lent::Begun(part))
            }
        }
    }
}
