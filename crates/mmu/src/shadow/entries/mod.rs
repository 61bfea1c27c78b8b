//! Entries of shadow pages: reading, making and writing them.

mod coalesce;
mod leaf;
mod parked;
mod read;
mod rows;
mod rules;
mod slot;
mod tables;
mod unrest;
mod write;

pub use coalesce::{Leaves, leaves_of};
pub use read::{Both, look_at};
pub use rows::Row;
pub use rules::Rules;
pub use slot::{Act, COALESCED, Slot};
pub use tables::{STIRS, Tables, Unrest};
