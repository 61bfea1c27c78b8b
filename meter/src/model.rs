//! One core's TLBs and walk caches, and what an access does to them.

use crate::array::{Array, Entry, Hit, Ids, Invalidation, Regime};
use crate::core::{Core, Holds, LINE_BYTES, Serves, WalkCacheSpec};
use crate::counts::{CoreCounts, MOST_CACHES};
use crate::mode::Mode;
use crate::walk::{Mapping, Reference, Space, Stage, Trace, Walker, Words};

/// An access as a TLB sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// A fetch.
    Fetch,
    /// A load.
    Load,
    /// A store, or what loads and stores at once.
    Store,
}

/// A TLB: arrays that are looked into at once.
#[derive(Clone, Debug)]
struct Tlb(Vec<Array>);

impl Tlb {
    fn look_up(&mut self, page: u64, ids: Ids) -> Option<Hit> {
        self.0.iter_mut().find_map(|array| array.look_up(page, ids))
    }

    /// Into the array that takes the largest piece of it.
    fn insert(&mut self, entry: Entry) {
        let largest = self.0.iter().filter_map(|array| array.piece_of(&entry)).max();
        if let Some(array) = self.0.iter_mut().find(|array| largest.is_some() && array.piece_of(&entry) == largest) {
            array.insert(entry);
        }
    }
}

#[derive(Clone, Debug)]
struct WalkCache {
    holds: Holds,
    fills_line: bool,
    array: Array,
}

impl WalkCache {
    fn all(specs: &[WalkCacheSpec]) -> Vec<Self> {
        let cache = |spec: &WalkCacheSpec| Self {
            holds: spec.holds,
            fills_line: spec.fills_line,
            array: match spec.holds {
                Holds::Pointers => Array::of_pointers(&spec.array),
                Holds::Leaves => Array::new(&spec.array),
            },
        };
        specs.iter().map(cache).collect()
    }

    /// Returns whether the entry is one that it would hold.
    fn takes(&self, entry: &Reference) -> bool {
        let is_kind = match self.holds {
            Holds::Pointers => entry.is_pointer(),
            Holds::Leaves => entry.is_leaf(),
        };
        is_kind && self.array.spec().takes(entry.span())
    }
}

/// A core's state.
#[derive(Clone, Debug)]
pub struct Model {
    asids: bool,
    vmids: bool,
    l2_serves: Serves,
    pointers_survive: bool,
    l1i: Tlb,
    l1d: Tlb,
    l2: Tlb,
    first: Vec<WalkCache>,
    g: Vec<WalkCache>,
    /// Lines of data caches that hold entries of tables.
    lines: Vec<Array>,
}

/// Tags for what has none.
const NO_IDS: Ids = Ids { regime: Regime::One, asid: 0, vmid: 0 };

impl Model {
    /// A core that has just been reset.
    #[must_use]
    pub fn new(core: &Core) -> Self {
        let tlb = |specs: &[crate::core::ArraySpec]| Tlb(specs.iter().map(Array::new).collect());
        Self {
            asids: core.asids,
            vmids: core.vmids,
            l2_serves: core.l2_serves,
            pointers_survive: core.pointers_survive,
            l1i: tlb(&core.l1i),
            l1d: tlb(&core.l1d),
            l2: tlb(&core.l2),
            first: WalkCache::all(&core.walk_first),
            g: WalkCache::all(&core.walk_g),
            lines: core.cost.cache.iter().take(MOST_CACHES).map(|cache| Array::new(&cache.array())).collect(),
        }
    }

    /// An access that was allowed, by the translation of `mode`.
    pub fn access<W: Words>(&mut self, how: Use, mode: Mode, walker: &mut Walker<'_, W>, counts: &mut CoreCounts) {
        let (page, ids) = (walker.page(), self.tags(walker.space().ids));
        let l1 = if how == Use::Fetch { &mut self.l1i } else { &mut self.l1d };
        let is_done = |is_dirty: bool| is_dirty || how != Use::Store;
        match l1.look_up(page, ids) {
            Some(hit) if is_done(hit.is_dirty) => return,
            Some(_) => return self.walk_for_dirty(mode, walker, counts),
            None => {}
        }
        let misses = &mut counts.misses[mode.index()];
        *(if how == Use::Fetch { &mut misses.fetch } else { &mut misses.data }) += 1;
        let serves_l2 = self.serves_l2(walker.space());
        let hit = if serves_l2 { self.l2.look_up(page, ids) } else { None };
        if let Some(hit) = hit {
            misses.l2_hits += 1;
            if !is_done(hit.is_dirty) {
                return self.walk_for_dirty(mode, walker, counts);
            }
            let l1 = if how == Use::Fetch { &mut self.l1i } else { &mut self.l1d };
            let Hit { is_dirty, span, leaf_span, is_global } = hit;
            l1.insert(Entry { page, span, leaf_span, largest: span, ids, is_global, is_dirty });
            return;
        }
        let (first, g) = self.references(walker, counts);
        let misses = &mut counts.misses[mode.index()];
        match walker.trace().outcome {
            Ok(mapping) => {
                misses.walks += 1;
                misses.refs_first += first;
                misses.refs_g += g;
                counts.count_walk(mode, &mapping, first + g);
                self.fill(how, page, ids, serves_l2, &mapping);
            }
            Err(_) => misses.vanished += 1,
        }
    }

    /// Returns whether the L1 TLB has all that an access needs. To ask again, as [`Model::access`] does, changes nothing more.
    #[inline]
    pub fn hits(&mut self, how: Use, page: u64, ids: Ids) -> bool {
        let ids = self.tags(ids);
        let l1 = if how == Use::Fetch { &mut self.l1i } else { &mut self.l1d };
        l1.look_up(page, ids).is_some_and(|hit| hit.is_dirty || how != Use::Store)
    }

    /// A load or store of a page that the L1 TLB is known to have.
    pub fn touch(&mut self, page: u64, ids: Ids) {
        self.l1d.look_up(page, self.tags(ids));
    }

    /// The tags as this core has them: those that it lacks are all alike.
    const fn tags(&self, ids: Ids) -> Ids {
        Ids {
            regime: ids.regime,
            asid: if self.asids { ids.asid } else { 0 },
            vmid: if self.vmids { ids.vmid } else { 0 },
        }
    }

    /// An access that ended in a page fault. Where a TLB has a translation, that tells what it does not
    /// allow; else a walk is made, and nothing is remembered of it but what walk caches hold.
    pub fn fault<W: Words>(&mut self, how: Use, mode: Mode, walker: &mut Walker<'_, W>, counts: &mut CoreCounts) {
        let (page, ids) = (walker.page(), self.tags(walker.space().ids));
        let misses = &mut counts.misses[mode.index()];
        let l1 = if how == Use::Fetch { &mut self.l1i } else { &mut self.l1d };
        // An address with wrong upper bits is not even looked up.
        if walker.trace().refs.is_empty() || l1.look_up(page, ids).is_some() {
            misses.refused_without_walk += 1;
            return;
        }
        *(if how == Use::Fetch { &mut misses.fetch } else { &mut misses.data }) += 1;
        if self.serves_l2(walker.space()) && self.l2.look_up(page, ids).is_some() {
            misses.l2_hits += 1;
            misses.refused_without_walk += 1;
            return;
        }
        let (first, g) = self.references(walker, counts);
        let misses = &mut counts.misses[mode.index()];
        misses.failed_walks += 1;
        misses.failed_refs += first + g;
    }

    /// Returns whether there is an L2 TLB, for such translations.
    fn serves_l2(&self, space: &Space) -> bool {
        !self.l2.0.is_empty()
            && match self.l2_serves {
                Serves::All => true,
                Serves::BothOrNone => space.ids.regime == Regime::One || (space.has_first() && space.has_g()),
            }
    }

    /// A store has hit an entry that was filled when D was clear: hardware walks again, to set it.
    fn walk_for_dirty<W: Words>(&mut self, mode: Mode, walker: &mut Walker<'_, W>, counts: &mut CoreCounts) {
        let (page, ids) = (walker.page(), self.tags(walker.space().ids));
        let (first, g) = self.references(walker, counts);
        let misses = &mut counts.misses[mode.index()];
        misses.dirty_walks += 1;
        misses.dirty_refs += first + g;
        if let Ok(mapping) = walker.trace().outcome {
            let serves_l2 = self.serves_l2(walker.space());
            self.fill(Use::Store, page, ids, serves_l2, &mapping);
        }
    }

    fn fill(&mut self, how: Use, page: u64, ids: Ids, serves_l2: bool, mapping: &Mapping) {
        let is_dirty = mapping.is_dirty();
        let (span, is_global) = (mapping.span(), mapping.is_global);
        let (leaf_span, largest) = (mapping.first_span(), mapping.largest_span());
        let entry = Entry { page, span, leaf_span, largest, ids, is_global, is_dirty };
        if serves_l2 {
            self.l2.insert(entry);
        }
        let l1 = if how == Use::Fetch { &mut self.l1i } else { &mut self.l1d };
        l1.insert(entry);
    }

    /// Counts the references that a walk makes given what walk caches hold, and lets them hold what it
    /// read. Returns those to first-stage and to G-stage entries.
    fn references<W: Words>(&mut self, walker: &mut Walker<'_, W>, counts: &mut CoreCounts) -> (u64, u64) {
        walker.trace();
        let (ids, g_ids) = (self.tags(walker.space().ids), self.tags(walker.space().g_ids()));
        let words = walker.words();
        let trace: &Trace = walker.trace_done();
        let refs = &trace.refs;
        let (mut first, mut g) = (0, 0);
        let mut at = skipped(&mut self.first, refs, Stage::First, ids);
        while at < refs.len() {
            if refs[at].stage == Stage::First {
                first += 1;
                self.refer(&refs[at], ids, words, counts);
                at += 1;
                continue;
            }
            // A run of G-stage references translates one guest physical page.
            let end = refs[at..].iter().position(|entry| entry.stage != Stage::G || entry.input != refs[at].input);
            let run = &refs[at..end.map_or(refs.len(), |length| at + length)];
            for entry in &run[skipped(&mut self.g, run, Stage::G, g_ids)..] {
                g += 1;
                self.refer(entry, g_ids, words, counts);
            }
            at += run.len();
        }
        (first, g)
    }

    /// A reference that is made.
    fn refer<W: Words>(&mut self, entry: &Reference, ids: Ids, words: &W, counts: &mut CoreCounts) {
        let line = entry.at / LINE_BYTES as u64;
        let found = self.lines.iter_mut().position(|cache| cache.look_up(line, NO_IDS).is_some());
        let nearer = found.unwrap_or(self.lines.len());
        counts.refs_by_cache[nearer] += 1;
        for cache in &mut self.lines[..nearer] {
            cache.insert(Entry::whole(line, 0, NO_IDS));
        }
        let caches = if entry.stage == Stage::First { &mut self.first } else { &mut self.g };
        for cache in caches {
            let is_global = entry.pte & rv::PteFlags::G.bits() != 0;
            let held = |page| Entry { is_global, ..Entry::whole(page, entry.span(), ids) };
            if !cache.fills_line {
                if cache.takes(entry) {
                    cache.array.insert(held(entry.input));
                }
                continue;
            }
            // All eight entries of the line come in; the one that was asked for comes last.
            let own = entry.at / 8 % 8;
            for slot in (0..8).filter(|slot| *slot != own).chain([own]) {
                let at = entry.at - 8 * own + 8 * slot;
                let pte = if slot == own { Some(entry.pte) } else { words.word(at) };
                let input = entry.input.wrapping_add(slot.wrapping_sub(own) << entry.span());
                if let Some(pte) = pte
                    && cache.takes(&Reference { pte, at, ..*entry })
                {
                    cache.array.insert(held(input));
                }
            }
        }
    }

    /// A fence. Where entries lack a tag, a fence of one tag means all entries, except global ones.
    pub fn invalidate(&mut self, what: &Invalidation) {
        let what = &Invalidation {
            asid: what.asid.map(|asid| if self.asids { asid } else { 0 }),
            vmid: what.vmid.map(|vmid| if self.vmids { vmid } else { 0 }),
            ..*what
        };
        for array in self.l1i.0.iter_mut().chain(&mut self.l1d.0).chain(&mut self.l2.0) {
            array.invalidate(what);
        }
        let caches = if what.regime == Regime::G { &mut self.g } else { &mut self.first };
        for cache in caches.iter_mut() {
            match cache.holds {
                Holds::Leaves => cache.array.invalidate(what),
                Holds::Pointers if what.page.is_some() && self.pointers_survive => {}
                Holds::Pointers => cache.array.invalidate(&Invalidation { page: None, ..*what }),
            }
        }
        if what.regime == Regime::G {
            // What came of both stages does not know its guest physical address.
            let derived = Invalidation { regime: Regime::Two, asid: None, page: None, ..*what };
            for array in self.l1i.0.iter_mut().chain(&mut self.l1d.0).chain(&mut self.l2.0) {
                array.invalidate(&derived);
            }
        }
    }

    /// Another ASID is in use, in `satp` or in `vsatp`. Where entries have none, all but global ones have
    /// to go, as software on such a core would see to.
    pub fn switched_asid(&mut self, regime: Regime, vmid: u16) {
        if !self.asids {
            self.invalidate(&Invalidation { regime, vmid: Some(vmid), asid: Some(0), page: None });
        }
    }

    /// Another VMID is in use.
    pub fn switched_vmid(&mut self) {
        if !self.vmids {
            self.invalidate(&Invalidation { regime: Regime::G, vmid: None, asid: None, page: None });
        }
    }
}

/// The number of references that walk caches save: all up to the deepest entry that one holds.
fn skipped(caches: &mut [WalkCache], refs: &[Reference], stage: Stage, ids: Ids) -> usize {
    if caches.is_empty() {
        return 0;
    }
    let deepest = refs.iter().enumerate().rev().filter(|(_, entry)| entry.stage == stage).find(|(_, entry)| {
        caches.iter_mut().any(|cache| cache.takes(entry) && cache.array.has_sized(entry.input, entry.span(), ids))
    });
    deepest.map_or(0, |(place, _)| place + 1)
}
