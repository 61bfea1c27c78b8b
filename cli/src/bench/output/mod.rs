//! Reports, and the forms that they are printed and kept in.

pub mod baseline;
pub mod files;
pub mod page;
mod plot;
pub mod report;
pub mod table;
