//! A VM's guest physical memory: regions, and the G-stage table that is filled from them by demand.
//!
//! A region says what the guest finds at its addresses; the table says what the hardware knows of it
//! so far. [`AddressSpace::resolve`] (in `demand`) moves knowledge from regions to the table,
//! [`AddressSpace::unmap`] and [`AddressSpace::destroy`] (in `remove`) take it out again; what a guest gives back, a portion at
//! a time (`give_back`).
//!
//! Rules of the table:
//! - Leaves have U=1 (norm:H_vm_gpapriv: every G-stage access is a user access), A=1, and D=1 iff
//!   W=1: hardware never writes it, so entries change only here; unless A and D are the hardware's ([`Ad::Hardware`]).
//! - A leaf of the VM's own lacks W where the region has it, iff the page has not been written since it was brought in, or since
//!   it was made ([`Ad::Faults`]). A page of which the swap device has a copy ([`AddressSpace::bring_in`]) lacks it.
//!   Nor does one that is on its way to become a part of 2 MiB ([`promote`]), or that was collected ([`dirty`]), until it is written.
//! - A leaf with the software bit [`OWNED`] leads to frames of the VM, which live as long as the
//!   leaf; one without leads to originals of images ([`originals`]) and has W=0 (OWNERSHIP).
//! - Leaves are 4 KiB or 2 MiB, or 1 GiB where that is asked for ([`giga`]). Pointers never change but from invalid and, in `remove`,
//!   `mega`, `giga` and `promote`, back; and from a leaf where that is split.
//! - An invalid entry is 0, or keeps a page ([`kept`]).
//! - A new table or page is complete before the one write that links it, which releases, so a concurrent hardware
//!   walk finds the old state or the new one. It says what it owes, as all writes of tables do ([`crate::table`]).
//!
//! The caller serialises edits of one address space. Only first touches may be resolved by several harts at once ([`AddressSpace::fill`]). Frames and
//! memory are lent for each call, so that it may guard them by locks of its own.

mod beside;
mod demand;
mod dirty;
mod edit;
mod giga;
mod give_back;
mod kept;
mod mega;
mod originals;
mod policy;
mod promote;
mod ready;
mod region;
mod relocate;
mod remains;
mod remove;
mod space;
mod told;

pub use beside::Filled;
pub use dirty::{Change, Dirt};
pub(crate) use give_back::GiveBack;
pub use give_back::{Returned, Span};
pub use kept::{Comes, Sight};
pub use policy::{Ad, Images, OWNED, Policy, Residence, Superpages};
pub use promote::{Promoted, Promotion};
pub use ready::{Content, Ready, Unresolved, in_portions, with_ready};
pub use region::{Object, Prot, Region, RegionError};
pub(crate) use relocate::{Leaving, Near};
pub use remains::{Remain, Remains};
pub use space::{AddressSpace, Counters, How, Publish, ResolveError, Resolved, SwapSlot, Translation};
