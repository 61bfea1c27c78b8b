//! Memory: frames, tables, and the address spaces of programs.

pub mod frames;
pub mod object;
pub mod space;
pub mod table;
pub mod translation;
pub mod user;
