//! Promotion in the background: a hart that has nothing else to do looks for 4 KiB pages that fill 2 MiB, and makes
//! them one page of 2 MiB, in portions ([`mmu::Promotion`]).
//!
//! Such pages exist if memory was short once, or came back from the swap device. VMs that have none cost nothing, and
//! nothing is promoted while memory is short.

use crate::slots::Handle;
use crate::sync::Mutex;
use abi::bundle::GUEST_RAM_BASE;
use core::sync::atomic::AtomicU64;
use mmu::Promotion;
use rv::{Addr, Gpa, Pfn};

/// The state of promotion that harts share.
#[derive(Default)]
pub struct Promoter {
    /// The position of the search. The hart that holds the lock looks, or does a portion.
    pub(crate) hand: Mutex<Hand>,
    /// The host time at which it begins anew.
    pub(crate) due: AtomicU64,
    /// The number of promotions in a row that failed, as far as it is counted.
    pub(crate) in_vain: AtomicU64,
}

/// The position of the search.
pub(crate) struct Hand {
    pub(crate) slot: usize,
    pub(crate) page: Pfn<Gpa>,
    /// The promotion that is under way.
    pub(crate) doing: Option<Doing>,
}

/// A promotion that is not finished.
pub(crate) struct Doing {
    pub(crate) vm: Handle,
    pub(crate) promotion: Promotion,
    /// Portions that it may still take: some only make room for others.
    pub(crate) left: u32,
}

/// The first page of a VM's RAM.
pub(crate) const FIRST: Pfn<Gpa> = Addr::new(GUEST_RAM_BASE).pfn();

impl Default for Hand {
    fn default() -> Self {
        Self { slot: 0, page: FIRST, doing: None }
    }
}
