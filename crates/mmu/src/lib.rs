//! The engines that translate and keep memory: one page-table walker, host frames with owners,
//! edits that owe fences, a VM's guest physical memory, VMIDs and ASIDs.
//!
//! Nothing here touches hardware or takes a lock: memory is an [`rv::PhysMem`], fences an
//! [`rv::Fence`], and the caller serialises. So the whole crate runs, and is tested, on a host.
//!
//! Invariants that this crate upholds (the names are those of `docs/invariants.md`):
//! - **OWNERSHIP**: a G-stage leaf reaches only frames that its VM owns, or image frames, and those
//!   never writable. A frame becomes free only after the fence that its removal owes ([`stale`]).
//! - **ACCOUNTED**: every frame has one [`frames::Owner`] and counts against its limit.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "sabotage")]
extern crate std;

pub mod adapt;
pub mod budget;
pub mod edits;
pub mod frames;
pub mod globals;
pub mod gstage;
pub mod ids;
pub mod mapper;
pub mod shadow;
pub mod stale;
pub mod sync;
pub mod table;
pub mod two_stage;
pub mod walk;

pub use budget::Budget;
pub use edits::{Collected, Edits};
pub use frames::{AllocError, Frames, Owner, Run, Usage, Use};
pub use gstage::{
    Ad, AddressSpace, Comes, Content, Counters, How, Images, Object, Policy, Promoted, Promotion, Prot, Ready, Region,
    RegionError, Residence, ResolveError, Resolved, Returned, Span, Superpages, Translation, Unresolved, with_ready,
};
pub use ids::{Acquired, IdSlot, Ids};
pub use mapper::{Change, Loss, Mapper};
pub use stale::{Retired, Stale, Told};
pub use two_stage::{Arrival, Stage, Stages, two_stage};
pub use walk::{AdPolicy, Fault, Ram, ReadPte, Reason, UpdatePte, Walk, touch, translate, walk};
