//! The originals ([`crate::frames::Originals`]) in a VM's memory: regions say where they are, and no list leads back
//! from a frame.

use super::policy::OWNED;
use super::region::Object;
use super::space::AddressSpace;
use core::ops::Range;
use rv::{Entry, Level, Pfn, PhysMem, Space};

impl<In: Space> AddressSpace<In> {
    /// The guest's pages that are originals' with these homes, unless it has copies of its own: in pieces, each with the number of
    /// homes before its first one's.
    pub fn pages_of(&self, homes: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + use<'_, In> {
        self.regions().filter_map(move |region| {
            let Object::Image { first } = region.object else { return None };
            let first = first.raw();
            let (from, to) = (homes.start.max(first), homes.end.min(first + region.pages));
            let page = |home: u64| region.start.raw() + (home - first);
            (from < to).then(|| (from - homes.start, page(from)..page(to)))
        })
    }

    /// The leaf, if there is one, by which the guest may use the original at `page`, by its level; and the first page behind what the
    /// entry there translates.
    #[must_use]
    pub fn look_for_original(&self, page: Pfn<In>, mem: &impl PhysMem) -> (Option<Level>, Pfn<In>) {
        let Some(slot) = self.slot(page.base(), mem) else { return (None, page.add(1)) };
        let next = page.align_down(slot.level.pages()).add(slot.level.pages());
        let is_shown = matches!(slot.entry, Entry::Leaf(leaf) if !leaf.flags.contains(OWNED));
        (is_shown.then_some(slot.level), next)
    }
}
