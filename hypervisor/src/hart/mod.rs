//! Harts: the functions that each offers ([`env`], [`worlds`], [`programs`], [`emulation`]), the time that each spends on other VMs ([`budget`]), the state that others
//! see of it ([`harts`]), and the queues of ready vCPUs ([`sched`]).

pub mod budget;
pub mod emulation;
pub mod env;
pub mod harts;
pub mod programs;
pub mod sched;
pub mod worlds;
