//! Making leaves of the guest's.

use crate::gstage::{AddressSpace, Translation};
use crate::shadow::entries::Tables;
use crate::shadow::pages::{At, CAPS};
use crate::shadow::{Sabotage, Shadowed};
use crate::table::Debt;
use rv::{Entry, Gpa, Leaf, Level, Pfn, PhysMem, Pte, PteFlags};

impl<S: Shadowed> Tables<S> {
    /// Returns whether a leaf of `level` may map `gfn`, which the G-stage maps with a leaf of level `there`.
    #[inline(always)]
    pub fn leaf_fits(&self, gfn: Pfn<Gpa>, level: Level, there: Level) -> bool {
        let is_ram = self.index.heads.contains(gfn);
        let covers_no_table =
            || self.rules.is_sabotaged(Sabotage::CoversTables) || !self.index.heads.has_protected_around(gfn);
        is_ram && level <= there && level <= Level::MEGA && (level == Level::PAGE || covers_no_table())
    }

    /// The entry of `level` for what is around `gfn`, which the G-stage translates as `there` says, at that level or
    /// a higher one. `None` if it would allow nothing.
    #[inline(always)]
    pub fn leaf(
        &self,
        gfn: Pfn<Gpa>,
        level: Level,
        allowed: PteFlags,
        there: Translation,
        mem: &impl PhysMem,
    ) -> Option<Pte> {
        let host = PteFlags::R | PteFlags::W | PteFlags::X;
        let mut flags = allowed.intersection(there.flags & host | self.rules.kept);
        if self.rules.is_sabotaged(Sabotage::IgnoresHost) {
            flags = allowed;
        }
        if self.rules.is_sabotaged(Sabotage::ForgetsUser) {
            flags.remove(PteFlags::U);
        }
        if flags.contains(PteFlags::W) && level == Level::PAGE {
            let sees_writes = !self.rules.is_sabotaged(Sabotage::AllowsTableWrites);
            flags.set(PteFlags::W, !(sees_writes && self.is_protected(gfn, mem)));
        }
        // A leaf that allows nothing would be a pointer; W without R is reserved.
        if !flags.contains(PteFlags::R) {
            flags.remove(PteFlags::W);
        }
        if !flags.intersects(PteFlags::R | PteFlags::X) {
            return None;
        }
        // Hardware finds nothing to set.
        flags.insert(PteFlags::A);
        flags.set(PteFlags::D, flags.contains(PteFlags::W));
        let pfn = there.hpa.pfn().align_down(level.pages());
        Some(Entry::Leaf(Leaf { pfn, flags, napot: false }).encode())
    }

    /// The leaf of `level` for what is at `gfn`, if it is there and allows all that the guest's entry does.
    #[inline(always)]
    pub fn whole_leaf(
        &mut self,
        gfn: Pfn<Gpa>,
        level: Level,
        allowed: PteFlags,
        (space, mem): (&AddressSpace, &impl PhysMem),
    ) -> Option<Pte> {
        let there = space.translate(gfn.base(), mem)?;
        if !self.rules.allows(allowed, there) {
            return None;
        }
        // No leaf maps a quiet table: the first access to it is an exit.
        let is_quiet = level == Level::PAGE && self.is_quiet(gfn, mem);
        (!is_quiet && self.leaf_fits(gfn, level, there.level)).then(|| self.leaf(gfn, level, allowed, there, mem))?
    }

    /// Makes an entry of the shadow of a table from the guest's.
    #[inline(always)]
    pub fn remade(&mut self, at: At, ours: Pte, pte: Pte, space: &AddressSpace, mem: &mut impl PhysMem) -> Debt {
        let level = self.index.page(at.0).key.level;
        if let Entry::Leaf(leaf) = pte.decode::<Gpa>(level, CAPS)
            && leaf.flags.contains(PteFlags::A)
        {
            if let Some(new) = self.whole_leaf(leaf.pfn, level, self.rules.rights(leaf.flags), (space, &*mem))
                && let Some(debt) = self.set_leaf(at, (ours, new), pte, mem)
            {
                return debt;
            }
            if self.rules.is_sabotaged(Sabotage::SteersMissing) {
                return self.replaced(at, Pte::INVALID, pte, mem);
            }
        }
        self.replaced(at, self.rules.faulting(level, pte), pte, mem)
    }
}
