//! Shadow paging: tables of our own that take a guest from GVA to HPA in one stage. Or a guest of its own from that one's
//! GPA, in the place of a G-stage: what an engine's tables translate is a parameter ([`Shadowed`]).
//!
//! One engine, and four upkeeps, by which its tables follow the guest's ([`Upkeep`]; `policy` has in what they differ). The hardware walks
//! *shadow pages*, each the shadow of one guest table at one level (or of a part of a superpage, or of the
//! identity while the guest's paging is off). They are shared by all roots and vCPUs of a VM, and recycled within a bound.
//!
//! The engine is made of parts. Each has what it needs of those below, and none calls one above:
//!
//! ```text
//!  Shadow    api/      the operations: each keeps within its budget, and spends what it owes at its end
//!  ├ Gathering         the search for leaves that one of 2 MiB may stand for
//!  └ Filler  fill/     faults, links, roots: how the shadow grows
//!    └ Syncer  sync/   comparisons with the guest's tables, fences, quiet tables
//!      ├ Digests, Candidates, Rate
//!      └ Cache  cache/   shadow pages within a bound, flushes, protected tables, and what the host takes from the guest
//!        ├ Pool, Passed
//!        └ Tables  entries/   the entries: the one place that writes them (`slot`), leaves, coalescing, restless pages
//!          ├ Rules, Gate, Unrest
//!          └ Index, Walks  pages/   shadow pages, and the lists by which they and their entries are found
//! ```
//!
//! What always holds (the names are those of `docs/invariants.md`):
//! - TLB-LIKE: every translation in a shadow of a vCPU's root is one that the guest's tables gave at some time
//!   since that vCPU's last fence that covers it.
//! - SUBSET: an entry allows at most what the guest's entry and the G-stage allow together, with A set, and
//!   with D set where it allows stores. Hardware never writes it.
//! - OWNERSHIP: an entry leads only to frames that the G-stage table leads to; before that changes, the entry
//!   goes, and all TLBs forget it.
//! - SPENT: every write of an entry says what it owes ([`crate::table::Debt`]), and no operation ends before that is
//!   fenced or waived.
//!
//! The caller holds the VM's lock; hardware walkers and the lane do not: `entries::read` says what is done about that. A page is
//! linked below another only once it is up to date: where the lane finds no pointer it passes the fence on, to code that
//! needs the lock. In `steered` the lane has a lock of its own with the engine, the gate (`lane::gate`).

mod api;
#[cfg(feature = "sabotage")]
mod audit;
mod cache;
mod config;
mod engine;
mod entries;
mod fill;
mod gather;
mod lane;
mod lower;
mod pages;
mod policy;
mod root;
mod sabotage;
mod shadowed;
mod sync;
mod views;

pub use crate::budget::Budget;
pub use api::{GuestFence, Wrote, companion, fence_below, go_by, is_current};
pub use config::{Companion, Config, Counters, Host};
pub use engine::Shadow;
pub use fill::{Answer, Beside, Forget, Loaded};
pub use gather::Gathered;
pub use lane::{GLOBAL_LEAVES, LEAVES, whole_chunk};
pub use lower::{Lower, Stage};
pub use pages::{Lists, MARK};
pub use policy::Upkeep;
pub use root::{Paging, Root};
pub use sabotage::Sabotage;
pub use shadowed::Shadowed;
pub use views::Views;
