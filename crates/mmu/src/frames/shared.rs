//! What all harts have in common of host RAM.

use super::ledger::Ledger;
use super::originals::Originals;
use super::store::Store;
use super::zeroed::ZeroedCounters;
use core::sync::atomic::AtomicU64;

/// Whose frames are, and where the free ones are.
#[derive(Default, Debug)]
pub(super) struct Shared {
    pub(super) ledger: Ledger,
    pub(super) store: Store,
    /// Frames that are not for runs of 2 MiB.
    pub(super) kept: AtomicU64,
    /// Frames that are taken ahead, and nobody's yet.
    pub(super) ahead: AtomicU64,
    pub(super) zeroed: ZeroedCounters,
    pub(super) originals: Originals,
}
