//! All tests of the library's that need no model checker: one program, since each would compile the library's generic code anew.

mod adaptive;
mod balloon;
mod brief;
mod coalescing;
mod connections;
mod console;
mod control;
mod debug;
mod disk;
mod entropy;
mod exits;
mod fake;
mod host_map;
mod lacking;
mod lives;
mod network;
mod pager;
mod pmp;
mod sched;
mod serial;
mod shadow;
mod share;
mod slots;
mod snapshot;
mod steering;
mod toys;
