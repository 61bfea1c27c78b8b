//! Memory: RAM in pages, accesses, address spaces, and the fences that they need.

pub mod access;
pub mod fences;
pub mod paging;
pub mod ram;
pub mod region;
pub mod root_cache;
pub mod vmspace;
pub mod window;
