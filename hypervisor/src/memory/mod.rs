//! Memory of VMs: its translation in two stages and on shadow tables, accesses of Gnomon's own, fences on other harts, paging and
//! promotion.

mod adaptive;
mod coalescing;
pub(crate) mod collapsed;
pub(crate) mod edits;
mod engine;
pub(crate) mod nested;
pub(crate) mod own_tables;
mod paging;
mod promote;
pub mod reach;
pub(crate) mod root_cache;
pub(crate) mod shadow;
pub mod shootdown;
pub(crate) mod spaces;
pub mod translation;
mod two_stage;

pub use collapsed::brief::causes as brief_causes_of_l2;
