//! Harts: the functions that each offers ([`mod@env`]), the state that others see of it ([`harts`]), and the queues of ready vCPUs
//! ([`sched`]).

pub mod env;
pub mod harts;
pub mod sched;
