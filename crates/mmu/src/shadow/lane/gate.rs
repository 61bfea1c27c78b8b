//! The data by which the lane brings an entry of a steered shadow in step with the guest's by itself (`docs/lane.md`),
//! and the log by which the engine learns of it.
//!
//! ```text
//!  a shadow page: four frames in a row           the lane's memory, of a VM
//!  ┌─────────────────────────────────┐           ┌──────────────────────────────────────┐
//!  │ parked · at rest? · table · id  │ header    │ gate: where the next line of the log │
//!  ├─────────────────────────────────┤           │       goes, or 0: closed; the epoch  │
//!  │ entries                         │ table     │ log: (entry, guest's entry) each     │
//!  ├─────────────────────────────────┤           ├──────────────────────────────────────┤
//!  │ what they were made from        │ mirror    │ a word for each 2 MiB of GPA: what   │
//!  ├─────────────────────────────────┤           │ makes an HPA of it                   │
//!  │ lists                           │ links     └──────────────────────────────────────┘
//!  └─────────────────────────────────┘
//! ```
//!
//! Which of the four the header is, and with it the table behind it, changes from page to page: so that tables do not share sets of caches.
//!
//! The gate is a lock: it is 0 while it is held. The lane never waits for it, but passes the trap on. The engine, which closes
//! it while it works ([`Shadow::alone`]), and a fault with a share of the VM's lock (`shadow/fill/beside`), which enters for one exchange, do
//! wait: the lane holds it for some 70 instructions. So the lane changes no entry of level 0 between two steps of the engine's, and
//! the log has all that the lane has done when the engine begins.

use crate::shadow::lane::{ID_AT, LOG_AT, LaneMemory};
use crate::shadow::pages::{Id, Page};
use crate::sync::spin_loop;
use lane::LaneSync;
use rv::{Addr, Hpa, PhysMem};

/// The lane's side of the tables.
pub struct Gate {
    /// The lane's memory, where it brings entries in step.
    pub memory: Option<LaneMemory>,
    /// The lane is kept out.
    pub is_closed: bool,
    /// Every shadow page has its number in its header.
    pub all_have_headers: bool,
}

impl Gate {
    /// The gate of an engine without a lane's memory.
    pub const fn new() -> Self {
        Self { memory: None, is_closed: false, all_have_headers: false }
    }

    /// Returns whether an entry of level 0 may be changed now.
    pub const fn is_alone(&self) -> bool {
        self.memory.is_none() || self.is_closed
    }

    /// Closes the gate, and waits for the lane of other harts to leave it. Returns the gate's address and the end of the log, if
    /// the lane has written lines.
    #[inline(always)]
    pub fn close(&mut self, mem: &mut impl PhysMem) -> Option<(Addr<Hpa>, u64)> {
        debug_assert!(!self.is_closed);
        let next = self.enter(mem)?;
        let gate = self.memory.as_ref()?.gate();
        self.is_closed = true;
        (next != gate.raw() + LOG_AT).then_some((gate, next))
    }

    /// Keeps the lane out for a moment, with a share of the lock. Returns what is to be left there ([`Gate::leave`]).
    #[inline(always)]
    pub fn enter(&self, mem: &mut impl PhysMem) -> Option<u64> {
        let gate = self.memory.as_ref()?.gate();
        let mut next = mem.exchange_u64(gate, 0);
        while next == 0 {
            spin_loop();
            next = mem.exchange_u64(gate, 0);
        }
        Some(next)
    }

    /// Lets the lane in again; its log is as it was.
    pub fn leave(&self, next: Option<u64>, mem: &mut impl PhysMem) {
        if let (Some(lane), Some(next)) = (&self.memory, next) {
            mem.write_u64(lane.gate(), next);
        }
    }

    /// Opens the gate, with an empty log.
    #[inline(always)]
    pub fn open(&mut self, mem: &mut impl PhysMem) {
        let Some(lane) = &self.memory else { return };
        self.is_closed = false;
        mem.write_u64(lane.gate(), lane.gate().raw() + LOG_AT);
    }

    /// The header of a page of level 0 that is about to be linked. Says whether it has one: the lane stays out of others.
    pub fn write_header(&self, page: &Page, mem: &mut impl PhysMem) -> bool {
        let (Some(_), Some(header), Some(guest)) = (&self.memory, &page.body.header, page.origin.guest) else {
            return false;
        };
        let end = header.first().add(1).base().raw();
        mem.write_u64(Addr::new(end.wrapping_add_signed(LaneSync::GUEST_AT)), guest.base().raw());
        true
    }

    /// A new page's number, in its header: it is found by the table's address.
    pub fn write_id(page: &Page, id: Id, mem: &mut impl PhysMem) {
        if page.body.header.is_some() {
            mem.write_own(Addr::new(page.table().base().raw() - ID_AT), id.into());
        }
    }

    /// Tells the lane the epoch: all pages that lead to tables are taken for restless from now on.
    pub fn tell_epoch(&self, epoch: u64, mem: &mut impl PhysMem) {
        if let Some(lane) = &self.memory {
            mem.write_u64(lane.gate().wrapping_add(LaneSync::EPOCH_AT), epoch);
        }
    }
}
