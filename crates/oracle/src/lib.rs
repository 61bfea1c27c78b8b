//! Models that judge the engines: tests only.
//!
//! Everything here is written straight from the rules of the privileged specification, by bit
//! arithmetic on plain numbers, slow and flat. It never calls `mmu` and never uses `rv`'s decoder of
//! page-table entries: an oracle that shares the code shares the bug.
//!
//! - [`Machine`]: sparse RAM that objects to stray accesses.
//! - [`translate()`]: what a hart does with an address, traps and A/D write-backs included.
//! - [`interpret()`]: the meaning of a table as a finite map.
//! - [`pmp::Pmp`]: physical memory protection, of few entries or coarse ones.
//! - [`FenceModel`]: which translations each hart may still use, and what must not happen meanwhile;
//!   [`IdModel`]: likewise for VMIDs and ASIDs.
#![forbid(unsafe_code)]

pub mod fences;
pub mod ids;
pub mod interpret;
pub mod machine;
pub mod pmp;
pub mod translate;

pub use fences::{FenceModel, Hart, Violation};
pub use ids::{IdModel, IdReused};
pub use interpret::{Mapping, interpret};
pub use machine::Machine;
pub use translate::{Ad, Context, Outcome, Raised, Table, Words, translate};
