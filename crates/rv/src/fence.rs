//! Fences as values: what a change of tables owes the TLBs.

use crate::addr::{Addr, Space};

/// An address-space identifier of `satp` or `vsatp`: 16 bits at most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Asid(pub u16);

/// A virtual-machine identifier of `hgatp`: 14 bits at most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Vmid(pub u16);

/// Which translations of one address space a fence must remove, by input address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceScope<S: Space> {
    /// Leaf entries of `[start, start + bytes)`.
    Range {
        /// First address.
        start: Addr<S>,
        /// Length in bytes, more than 0.
        bytes: u64,
    },
    /// Every translation, and every cached pointer between tables.
    Everything,
}

impl<S: Space> FenceScope<S> {
    /// The smallest scope that covers both.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        match (self, other) {
            (FenceScope::Range { start: a, bytes: n }, FenceScope::Range { start: b, bytes: m }) => {
                let start = a.min(b);
                let end = (a.raw().saturating_add(n)).max(b.raw().saturating_add(m));
                FenceScope::Range { start, bytes: end - start.raw() }
            }
            _ => FenceScope::Everything,
        }
    }
}

/// Whatever can make the harts forget translations of one address space over inputs `S`.
///
/// The hypervisor's implementation reaches every hart that may hold such a translation and
/// returns only when none can use it any more; tests record and judge.
pub trait Fence<S: Space> {
    /// Removes the translations in `scope` from every TLB.
    fn fence(&mut self, scope: FenceScope<S>);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Gpa;

    #[test]
    fn a_join_covers_both() {
        let r = |s, n| FenceScope::<Gpa>::Range { start: Addr::new(s), bytes: n };
        assert_eq!(r(0x1000, 0x1000).join(r(0x4000, 0x2000)), r(0x1000, 0x5000));
        assert_eq!(r(0x1000, 0x1000).join(FenceScope::Everything), FenceScope::Everything);
    }
}
