//! The state that the [`super::Frames`] of all harts share.

use super::ledger::Ledger;
use super::originals::Originals;
use super::store::Store;
use super::zeroed::ZeroedCounters;
use core::sync::atomic::AtomicU64;

#[derive(Default, Debug)]
pub(super) struct Shared {
    pub ledger: Ledger,
    pub store: Store,
    /// Free frames that runs of 2 MiB leave to others.
    pub kept: AtomicU64,
    /// Frames that are taken ahead, and have no owner yet.
    pub ahead: AtomicU64,
    /// Frames that were freed while they were on loan.
    pub late: AtomicU64,
    pub zeroed: ZeroedCounters,
    pub originals: Originals,
}
