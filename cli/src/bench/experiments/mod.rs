//! The experiments: those with test guests are series, those with Linux are plans of [`crate::subject::workload`]s.

pub mod boot;
pub mod faults;
pub mod fig5;
pub mod fig6;
pub mod lane;
pub mod linux;
pub mod memslots;
pub mod nested;
pub mod overcommit;
pub mod papers;
mod series;
pub mod vkernel;
