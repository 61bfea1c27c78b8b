//! Shadow pages within a bound, and what the host takes from the guest.

mod forget;
mod missing;
mod pool;
mod protect;
mod reach;
mod recycle;
mod store;

pub use missing::Missing;
pub use pool::Pool;
pub use reach::needed;
pub use store::Cache;
