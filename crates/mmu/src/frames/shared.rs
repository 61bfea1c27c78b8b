//! What all harts' [`super::Frames`] share.

use super::ledger::Ledger;
use super::originals::Originals;
use super::store::Store;
use super::zeroed::ZeroedCounters;
use core::sync::atomic::AtomicU64;

#[derive(Default, Debug)]
pub(super) struct Shared {
    pub ledger: Ledger,
    pub store: Store,
    /// Frames that are not for runs of 2 MiB.
    pub kept: AtomicU64,
    /// Frames that are taken ahead, and nobody's yet.
    pub ahead: AtomicU64,
    /// Frames that were freed while they were lent.
    pub late: AtomicU64,
    pub zeroed: ZeroedCounters,
    pub originals: Originals,
}
