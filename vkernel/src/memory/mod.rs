//! Memory: frames, tables, and the address spaces of programs.

pub mod edits;
pub mod frames;
pub mod object;
pub mod region;
pub mod space;
pub mod table;
pub mod translation;
pub mod user;

#[cfg(test)]
pub(crate) mod tests;
