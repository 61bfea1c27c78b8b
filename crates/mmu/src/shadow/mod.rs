//! Shadow paging: tables of our own that take a guest from GVA to HPA in one stage. Or a guest of its own from that one's
//! GPA, in the place of a G-stage: what an engine's tables translate is a parameter ([`Shadowed`]).
//!
//! One engine, and four ways to keep its tables in step with the guest's ([`Upkeep`]). The hardware walks
//! *shadow pages*, each the shadow of one guest table at one level (or of a part of a superpage, or of the
//! identity while the guest's paging is off). They are shared by all roots and vCPUs of a VM, and recycled within a bound.
//!
//! | file | what |
//! |---|---|
//! | `page` | a shadow page, and what a live entry is |
//! | `shadowed` | the address spaces that can be shadowed |
//! | `walks` | where walks down the shadow ended lately |
//! | `passed` | what fences have passed over lately |
//! | `heads`, `index` | pages and entries by what they lead to; knows nothing of what entries may say |
//! | `entries` | the one place where entries change |
//! | `fault` | faults: the guest's walk, and the fill |
//! | `fences` | the guest's fences, and comparing tables |
//! | `digest`, `by_digest` | what is to be compared of a part that many roots share, in a row |
//! | `steer` | what an entry is to be where the guest gets its page faults itself |
//! | `rows`, `notes` | many leaves of one page that enter and leave lists, and where parked ones are noted |
//! | `lane`, `lane_memory` | what the lane needs to do the same for one entry, and how the engine learns of it |
//! | `coalesce`, `gather` | leaves that one of 2 MiB stands for, and who sees to it that there are some |
//! | `protect` | write protection of guest tables |
//! | `upkeep` | what the upkeeps answer differently, one file each |
//! | `root`, `roots`, `views` | roots, and what one vCPU remembers of those that it used |
//! | `reclaim` | the bound, flushes, and what the host takes from the guest |
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
//! The caller holds the VM's lock; hardware walkers and the lane do not: `entries` says what is done about that. A page is
//! linked below another only once it is up to date: where the lane finds no pointer it leaves the fence to the full path,
//! which waits for the lock. In `steered` the lane has a lock of its own with the engine, the gate (`lane`).

mod by_digest;
mod candidates;
mod coalesce;
mod config;
mod digest;
mod engine;
mod entries;
mod fault;
mod fences;
mod gather;
mod gathering;
mod heads;
mod index;
mod lane;
mod lane_memory;
mod lists;
mod notes;
mod page;
mod passed;
mod protect;
mod quiet;
mod rate;
mod reclaim;
mod root;
mod roots;
mod rows;
mod sabotage;
mod shadowed;
mod steer;
mod upkeep;
mod views;
mod walks;

pub use config::{Budget, Config, Counters, Host, Upkeep};
pub use engine::Shadow;
pub use fault::{Answer, Forget};
pub use fences::GuestFence;
pub use gathering::Gathered;
pub use lane_memory::{GLOBAL_LEAVES, LEAVES, whole_chunk};
pub use lists::Lists;
pub use page::MARK;
pub use protect::Wrote;
pub use root::{Paging, Root};
pub use roots::Loaded;
pub use sabotage::Sabotage;
pub use shadowed::Shadowed;
pub use views::Views;
