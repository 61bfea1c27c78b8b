//! The synchronisation of shadow tables with the guest's.

mod candidates;
mod composed;
mod digest;
mod fences;
mod quiet;
mod rate;
mod steer;
mod syncer;
mod tree;

pub use candidates::{Candidates, MOST};
pub use digest::{Digest, Digests};
pub use rate::{KeptOut, Rate};
pub use syncer::Syncer;
