//! The layout of the data that the trap vector and the lane share with Gnomon's Rust code: a vCPU's context, the lane's switches, its log of
//! fences, its roots, and the exits that may be brief (`docs/lane.md`).
//!
//! The instructions that read and write these fields are in `metal`; `proofs` checks each of their paths against the shadow
//! engine. Nothing here touches hardware.
#![no_std]
#![forbid(unsafe_code)]

pub mod brief;
pub mod context;

pub use brief::{BriefCauses, BriefExits};
pub use context::{Context, FenceLog, FloatState, Lane, LaneRoot, LaneRoots, LaneSync, VectorCsrs};
