//! This computer: where files are, processors, jobs, progress, the user's terminal, and the compiler.

pub mod build;
pub mod home;
pub mod output;
pub mod parts;
pub mod place;
pub mod pool;
pub mod processors;
pub mod progress;
pub mod sandbox;
pub mod size;
pub mod socket;
pub mod sources;
mod stamp;
pub mod table;
pub mod tty;
pub mod turns;
pub mod unpack;
pub mod words;
pub mod written;
