//! Shadow pages within a bound, and what the host takes from the guest.

mod forget;
mod pool;
mod protect;
mod reach;
mod recycle;
mod store;

pub use pool::Pool;
pub use reach::{Missing, needed};
pub use store::Cache;
