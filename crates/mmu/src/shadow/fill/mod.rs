//! Growth of the shadow: faults, links, roots.

mod beside;
mod composed;
mod fault;
mod filler;
mod fills;
mod link;
mod roots;

pub use beside::Beside;
pub use fault::{Answer, Forget};
pub use filler::Filler;
pub use fills::Fills;
pub use roots::Loaded;
