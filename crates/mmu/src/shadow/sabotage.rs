//! Engines that are broken on purpose: a check that none of them can trip checks nothing. Without the feature
//! `sabotage`, which only tests set, nothing of this remains.

use super::Shadow;

/// What is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// Fences by address do nothing.
    ForgetsFence,
    /// Fences of everything do nothing.
    ForgetsWideFence,
    /// Fences by address are not remembered for other roots.
    ForgetsLog,
    /// A root that the vCPU comes back to does not catch up.
    ForgetsToCatchUp,
    /// A page is linked without being brought up to date.
    LinksStale,
    /// A page that goes stays linked below all its parents but one.
    ForgetsSharer,
    /// Of the leaves that lead to a frame only the first is found.
    ForgetsLeaf,
    /// Leaves allow stores without D.
    IgnoresDirty,
    /// Leaves are never for user mode.
    ForgetsUser,
    /// Leaves allow stores that the G-stage does not.
    IgnoresHost,
    /// Leaves allow stores to protected tables.
    AllowsTableWrites,
    /// Leaves of 2 MiB cover protected tables.
    CoversTables,
    /// A table is protected, but TLBs do not hear of it.
    ProtectsWithoutFlush,
    /// Emulated writes are not mirrored.
    ForgetsWrite,
    /// A leaf is stored whatever happened meanwhile.
    StoresBlindly,
    /// Harts may go on to walk by pointers that are gone.
    KeepsPointers,
    /// Shadow pages are used again while TLBs may walk them.
    ReusesEarly,
}

impl Shadow {
    /// Breaks the engine.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&mut self, how: Sabotage) {
        self.sabotage = Some(how);
    }

    /// Checks the rules of the structure (`pages`): every live entry is in the list that it belongs to.
    ///
    /// # Panics
    /// If one is not.
    #[cfg(feature = "sabotage")]
    pub fn audit(&self, mem: &impl rv::PhysMem) {
        for (id, page) in (0..).zip(&self.arena) {
            let Some(page) = page else { continue };
            assert_eq!(self.find(page.key, mem), Some(id), "{:?} is not found", page.key);
            for index in (0..512).filter(|index| page.is_live(*index)) {
                assert!(self.is_listed(id, index, mem), "entry {index} of {:?} is in no list", page.key);
            }
        }
    }

    /// Whether it is broken so.
    #[cfg(feature = "sabotage")]
    pub(super) fn is_sabotaged(&self, how: Sabotage) -> bool {
        self.sabotage == Some(how)
    }

    /// Whether it is broken so: it is not.
    #[cfg(not(feature = "sabotage"))]
    #[inline(always)]
    pub(super) const fn is_sabotaged(&self, _: Sabotage) -> bool {
        false
    }
}
