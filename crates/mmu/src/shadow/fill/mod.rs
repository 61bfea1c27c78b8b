//! Growth of the shadow: faults, links, roots.

mod fault;
mod filler;
mod link;
mod roots;

pub use fault::{Answer, Forget};
pub use filler::Filler;
pub use roots::Loaded;
