//! For tests: breaking an engine, and checking the rules of its structure.

use crate::shadow::entries::{COALESCED, Tables};
use crate::shadow::pages::{Id, List, Role};
use crate::shadow::{Sabotage, Shadow, Shadowed};
use alloc::collections::{BTreeMap, BTreeSet};
use lane::LaneSync;
use rv::format::ENTRIES;
use rv::{Addr, Gpa, Hpa, Level, Pfn, PhysMem, Pte};

impl<S: Shadowed> Shadow<S> {
    /// Breaks the engine.
    pub fn sabotage(&mut self, how: Sabotage) {
        self.cache().tables.rules.sabotage = Some(how);
    }

    /// Checks the rules of the structure.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit(&self, mem: &impl PhysMem) {
        let tables = &self.filler.syncer.cache.tables;
        tables.index.audit(mem);
        audit_quiet(tables, mem);
        audit_coalesced(tables, mem);
    }

    /// Pages of roots that vCPUs have, or that are held for them: one for each. For tests.
    #[must_use]
    pub fn pages_in_use(&self) -> u64 {
        self.filler.syncer.cache.tables.index.arena.all().map(|(_, page)| u64::from(page.users)).sum()
    }
}

/// Checks the rules above.
///
/// # Panics
/// If one does not hold.
fn audit_quiet<S: Shadowed>(tables: &Tables<S>, mem: &impl PhysMem) {
    let broken = [
        Sabotage::QuietsWithLeaves,
        Sabotage::ForgetsToStir,
        Sabotage::ForgetsMostParents,
        Sabotage::RestsForEver,
        Sabotage::KeepsEpoch,
    ];
    if broken.into_iter().any(|how| tables.rules.is_sabotaged(how)) {
        return;
    }
    let mut quiet = BTreeMap::<Pfn<Gpa>, BTreeSet<Pfn<Gpa>>>::new();
    for id in 0..tables.index.arena.end() {
        let Some(page) =
            tables.index.arena.get(id).filter(|page| page.key.role == Role::Table && tables.rules.policy.quiets)
        else {
            continue;
        };
        assert!(
            !is_said_to_rest(tables, id, mem) || !tables.unrest.is_restless(page),
            "the lane is told that {:?} is at rest",
            page.key
        );
        let gfn = page.key.gfn;
        if tables.index.is_by_frame(page.key) {
            let around = quiet.entry(gfn.align_down(Level::MEGA.pages())).or_default();
            if !page.is_unsync {
                around.insert(gfn);
            }
        }
        if tables.index.is_by_frame(page.key) && !page.is_unsync {
            let leads = [List::Frame(gfn), List::Mega(gfn)].map(|list| tables.index.first(list, mem));
            assert_eq!(leads, [None, None], "a leaf leads to the quiet table {gfn:?}");
            assert!(tables.index.heads.has_protected_around(gfn), "{gfn:?} is not counted as quiet");
        }
        let mut next = tables.index.first(List::Parents(id), mem);
        while let Some((above, index)) = next.filter(|_| tables.unrest.is_restless(page)) {
            let says = tables.index.page(above).stirred.epoch != tables.unrest.epoch
                || tables.index.page(above).is_stirred(index);
            assert!(says, "what leads to the restless {:?} does not say so", page.key);
            next = tables.index.next((above, index), mem);
        }
    }
    for (around, quiet) in quiet {
        let counted = tables.index.heads.count_protected_around(around);
        assert_eq!(usize::from(counted), quiet.len(), "quiet tables counted around {around:?}");
    }
}

/// Returns whether it would take that page for one at rest.
fn is_said_to_rest<S: Shadowed>(tables: &Tables<S>, id: Id, mem: &impl PhysMem) -> bool {
    let page = tables.index.page(id);
    let at = Addr::new(page.table().base().raw().wrapping_add_signed(LaneSync::REST_AT));
    tables.gate.memory.is_some() && page.body.header.is_some() && mem.read_u64(at) == tables.unrest.lane_epoch()
}

/// Checks that what stands for a page says what its leaves say.
///
/// # Panics
/// If it does not.
fn audit_coalesced<S: Shadowed>(tables: &Tables<S>, mem: &impl PhysMem) {
    let broken = [Sabotage::KeepsCoalesced, Sabotage::SplitsOneParent];
    if broken.into_iter().any(|how| tables.rules.is_sabotaged(how)) {
        return;
    }
    for id in 0..tables.index.arena.end() {
        let Some(page) = tables.index.arena.get(id) else { continue };
        let mut next = tables.index.first(List::Parents(id), mem);
        while let Some((above, index)) = next {
            let entry = tables.index.page(above).slot(index).read(mem);
            assert_eq!(entry.flags().contains(COALESCED), page.is_coalesced, "COALESCED: {:?}", page.key);
            let first = Pte(entry.0 & !COALESCED.bits());
            let follows = |n: usize| first.leading_to(first.pfn::<Hpa>().add(n as u64)).0;
            let same = (0..ENTRIES).all(|n| page.marks.is_live(n) && page.slot(n).read(mem).0 == follows(n));
            assert!(!page.is_coalesced || same, "COALESCED: a leaf of {:?} has changed", page.key);
            next = tables.index.next((above, index), mem);
        }
    }
}
