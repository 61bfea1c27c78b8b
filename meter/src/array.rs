//! An array of translations: a TLB, a walk cache, or a part of one. It says hit or miss, and keeps no
//! translation.

use crate::core::{ArraySpec, Replacement};

/// Which translation an entry is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Regime {
    /// By `satp`, V=0.
    One,
    /// With V=1: by `vsatp`, `hgatp`, or both.
    Two,
    /// By `hgatp` alone, of guest physical addresses.
    G,
}

/// The tags of an entry beside its address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ids {
    /// Which translation.
    pub regime: Regime,
    /// Its ASID; of no meaning for [`Regime::G`].
    pub asid: u16,
    /// Its VMID; of no meaning for [`Regime::One`].
    pub vmid: u16,
}

impl Ids {
    /// Returns whether an entry with these tags serves who has the others.
    #[must_use]
    pub fn serve(self, is_global: bool, other: Self) -> bool {
        self.regime == other.regime
            && (self.regime == Regime::One || self.vmid == other.vmid)
            && (is_global || self.regime == Regime::G || self.asid == other.asid)
    }
}

/// The entries that a fence removes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invalidation {
    /// Translations of this regime.
    pub regime: Regime,
    /// Only those of this VMID.
    pub vmid: Option<u16>,
    /// Only those of this ASID, and no global ones.
    pub asid: Option<u16>,
    /// Only those of this page.
    pub page: Option<u64>,
}

impl Invalidation {
    /// Returns whether an entry with these tags is meant, the page aside.
    #[must_use]
    pub fn means(&self, ids: Ids, is_global: bool) -> bool {
        ids.regime == self.regime
            && self.vmid.is_none_or(|vmid| ids.regime == Regime::One || ids.vmid == vmid)
            && self.asid.is_none_or(|asid| !is_global && ids.asid == asid)
    }
}

/// A translation that an array is to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// A base page that it translates.
    pub page: u64,
    /// log2 of the base pages that it translates.
    pub span: u8,
    /// log2 of the base pages of the leaf that a fence by address names: that of the first stage. It may
    /// be more than what both stages translate at once.
    pub leaf_span: u8,
    /// log2 of the base pages of the larger leaf of both stages.
    pub largest: u8,
    /// Its tags.
    pub ids: Ids,
    /// True if it is of all ASIDs.
    pub is_global: bool,
    /// True if a store needs no look at D.
    pub is_dirty: bool,
}

impl Entry {
    /// One of a single leaf that is not global, and whose D is of no concern.
    #[must_use]
    pub const fn whole(page: u64, span: u8, ids: Ids) -> Self {
        Self { page, span, leaf_span: span, largest: span, ids, is_global: false, is_dirty: true }
    }
}

/// A hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hit {
    /// The entry's [`Entry::is_dirty`].
    pub is_dirty: bool,
    /// The size in which it is held.
    pub span: u8,
    /// The entry's [`Entry::leaf_span`].
    pub leaf_span: u8,
    /// The entry's [`Entry::is_global`].
    pub is_global: bool,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    /// The page's number, without the bits of the span and the sector.
    tag: u64,
    /// One bit for each sector: it is there.
    valid: u8,
    /// One bit for each sector: stores need no look at D.
    dirty: u8,
    span: u8,
    leaf_span: u8,
    is_global: bool,
    ids: Ids,
    /// The time of the last use.
    used: u64,
}

const EMPTY: Line = Line {
    tag: 0,
    valid: 0,
    dirty: 0,
    span: 0,
    leaf_span: 0,
    is_global: false,
    ids: Ids { regime: Regime::One, asid: 0, vmid: 0 },
    used: 0,
};

const HINTS: usize = 256;

/// The array.
#[derive(Clone, Debug)]
pub struct Array {
    spec: ArraySpec,
    holds_pointers: bool,
    spans: Vec<u8>,
    sector_bits: u8,
    lines: Vec<Line>,
    /// For each set: the tree of bits, for pseudo-LRU.
    trees: Vec<u64>,
    clock: u64,
    random: u64,
    /// The slot in which a page was found last, by the page's lowest bits. Saves the search, and changes no answer.
    hints: Box<[u32; HINTS]>,
}

impl Array {
    /// An empty one for pointers between tables: those of several levels stand for the same page, and
    /// are kept beside each other.
    #[must_use]
    pub fn of_pointers(spec: &ArraySpec) -> Self {
        Self { holds_pointers: true, ..Self::new(spec) }
    }

    /// An empty one.
    #[must_use]
    pub fn new(spec: &ArraySpec) -> Self {
        let mut spans: Vec<u8> = spec.pages.iter().map(|size| size.span()).collect();
        spans.sort_unstable();
        spans.dedup();
        Self {
            spans,
            sector_bits: spec.sectors.ilog2() as u8,
            lines: vec![EMPTY; spec.sets * spec.ways],
            trees: vec![0; spec.sets],
            clock: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            hints: Box::new([0; HINTS]),
            holds_pointers: false,
            spec: spec.clone(),
        }
    }

    /// The specification of the array.
    #[must_use]
    pub fn spec(&self) -> &ArraySpec {
        &self.spec
    }

    /// The size of piece in which it would hold a translation, if it would at all.
    #[must_use]
    pub fn piece_of(&self, entry: &Entry) -> Option<u8> {
        let own = self.spans.iter().copied().filter(|own| *own <= entry.span).max()?;
        (own == entry.largest || self.spec.pieces).then_some(own)
    }

    /// Looks a page up, which makes it the most recently used.
    #[inline]
    pub fn look_up(&mut self, page: u64, ids: Ids) -> Option<Hit> {
        let hint = page as usize % HINTS;
        let hinted = self.hints[hint] as usize;
        let found = if self.serves(hinted, page, ids) { hinted } else { self.search(page, ids)? };
        self.hints[hint] = found as u32;
        self.touch(found);
        let line = &self.lines[found];
        let is_dirty = line.dirty >> self.sector(page, line.span) & 1 != 0;
        Some(Hit { is_dirty, span: line.span, leaf_span: line.leaf_span, is_global: line.is_global })
    }

    /// Returns whether an entry of this size serves the page, and counts it as used: pointers at several levels stand
    /// for the same page.
    pub fn has_sized(&mut self, page: u64, span: u8, ids: Ids) -> bool {
        let first = self.set(page, span) * self.spec.ways;
        let found = (first..first + self.spec.ways)
            .find(|number| self.lines[*number].span == span && self.serves(*number, page, ids));
        found.inspect(|number| self.touch(*number)).is_some()
    }

    fn sector(&self, page: u64, span: u8) -> u32 {
        (page >> span) as u32 & ((1 << self.sector_bits) - 1)
    }

    fn tag(&self, page: u64, span: u8) -> u64 {
        page >> span >> self.sector_bits
    }

    fn set(&self, page: u64, span: u8) -> usize {
        self.tag(page, span) as usize & (self.spec.sets - 1)
    }

    #[inline]
    fn serves(&self, number: usize, page: u64, ids: Ids) -> bool {
        let line = &self.lines[number];
        line.valid >> self.sector(page, line.span) & 1 != 0
            && line.tag == self.tag(page, line.span)
            && line.ids.serve(line.is_global, ids)
    }

    fn search(&self, page: u64, ids: Ids) -> Option<usize> {
        let ways = self.spec.ways;
        if self.spec.sets == 1 {
            return (0..ways).find(|number| self.serves(*number, page, ids));
        }
        // Each size has its own index: all are tried.
        self.spans.iter().find_map(|span| {
            let first = self.set(page, *span) * ways;
            (first..first + ways).find(|number| self.lines[*number].span == *span && self.serves(*number, page, ids))
        })
    }

    fn touch(&mut self, number: usize) {
        self.clock += 1;
        self.lines[number].used = self.clock;
        if self.spec.replacement == Replacement::Plru {
            // Every bit on the way to the line points away from it.
            let (set, way) = (number / self.spec.ways, number % self.spec.ways);
            let (tree, mut node) = (&mut self.trees[set], 1);
            for level in (0..self.spec.ways.ilog2()).rev() {
                let right = way >> level & 1;
                *tree = *tree & !(1 << node) | ((right as u64) ^ 1) << node;
                node = 2 * node + right;
            }
        }
    }

    /// Holds a translation, or the piece of it that its pages allow; see [`Array::piece_of`].
    pub fn insert(&mut self, entry: Entry) {
        let Some(span) = self.piece_of(&entry) else { return };
        let (tag, bit) = (self.tag(entry.page, span), 1 << self.sector(entry.page, span));
        let first = self.set(entry.page, span) * self.spec.ways;
        let same = |line: &Line| {
            line.valid != 0
                && (line.tag, line.span, line.ids, line.is_global) == (tag, span, entry.ids, entry.is_global)
        };
        let number = (first..first + self.spec.ways).find(|number| same(&self.lines[*number]));
        if number.is_none() {
            self.make_unique(&entry, span, first);
        }
        let number = number.unwrap_or_else(|| {
            let number = self.victim(first);
            let Entry { leaf_span, is_global, ids, .. } = entry;
            self.lines[number] = Line { tag, span, leaf_span, is_global, ids, ..EMPTY };
            number
        });
        let line = &mut self.lines[number];
        // Of several leaves in one line, a fence may then remove more than it names, and never less.
        line.leaf_span = if line.valid & !bit == 0 { entry.leaf_span } else { line.leaf_span.max(entry.leaf_span) };
        line.valid |= bit;
        line.dirty = if entry.is_dirty { line.dirty | bit } else { line.dirty & !bit };
        self.touch(number);
    }

    /// Removes what would serve a page of the new entry, too: a page is found in one place only.
    fn make_unique(&mut self, entry: &Entry, span: u8, first: usize) {
        let sector = 1 << self.sector(entry.page, span);
        let (tag, holds_pointers) = (self.tag(entry.page, span), self.holds_pointers);
        let serves_too = |line: &Line| {
            let is_size = line.span == span || (line.span < span && !holds_pointers);
            // With sectors there is one size only.
            let is_within = is_size && line.tag >> (span - line.span) == tag;
            is_within && (line.ids.serve(line.is_global, entry.ids) || entry.ids.serve(entry.is_global, line.ids))
        };
        // Pieces of another size are in other sets.
        let lines = if span > 0 { &mut self.lines[..] } else { &mut self.lines[first..first + self.spec.ways] };
        for line in lines.iter_mut().filter(|line| serves_too(line)) {
            line.valid &= if line.span == span { !sector } else { 0 };
        }
    }

    fn victim(&mut self, first: usize) -> usize {
        let ways = self.spec.ways;
        if let Some(free) = (first..first + ways).find(|number| self.lines[*number].valid == 0) {
            return free;
        }
        match self.spec.replacement {
            Replacement::Lru => (first..first + ways).min_by_key(|number| self.lines[*number].used).unwrap_or(first),
            Replacement::Random => {
                // xorshift64
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                first + self.random as usize % ways
            }
            Replacement::Plru => {
                let tree = self.trees[first / ways];
                let node = (0..ways.ilog2()).fold(1, |node, _| 2 * node + (tree >> node & 1) as usize);
                first + node - ways
            }
        }
    }

    /// Removes what a fence means.
    pub fn invalidate(&mut self, what: &Invalidation) {
        for line in self.lines.iter_mut().filter(|line| line.valid != 0 && what.means(line.ids, line.is_global)) {
            match what.page {
                None => line.valid = 0,
                // A piece of a larger leaf: all pieces of that go.
                Some(page) if line.leaf_span > line.span => {
                    let base = line.tag << self.sector_bits << line.span;
                    if (page ^ base) >> line.leaf_span == 0 {
                        line.valid = 0;
                    }
                }
                Some(page) if page >> line.span >> self.sector_bits == line.tag => {
                    line.valid &= !(1 << ((page >> line.span) & ((1 << self.sector_bits) - 1)));
                }
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::PageSize;

    const IDS: Ids = Ids { regime: Regime::One, asid: 7, vmid: 0 };

    fn spec(pages: &[PageSize], sets: usize, ways: usize) -> ArraySpec {
        ArraySpec {
            pages: pages.to_vec(),
            sets,
            ways,
            sectors: 1,
            replacement: Replacement::Lru,
            pieces: true,
            source: String::new(),
            guess: false,
        }
    }

    fn entry(page: u64, span: u8) -> Entry {
        Entry { is_dirty: false, ..Entry::whole(page, span, IDS) }
    }

    /// Looks up, and fills after a miss, as a TLB does; says which hit.
    fn run(array: &mut Array, pages: &[u64]) -> Vec<bool> {
        let step = |page: &u64| {
            let hit = array.look_up(*page, IDS).is_some();
            if !hit {
                array.insert(entry(*page, 0));
            }
            hit
        };
        pages.iter().map(step).collect()
    }

    #[test]
    fn lru_forgets_the_least_recently_used() {
        let mut array = Array::new(&spec(&[PageSize::K4], 1, 2));
        assert_eq!(run(&mut array, &[1, 2, 1, 3, 1, 2, 3]), [false, false, true, false, true, false, false]);
    }

    #[test]
    fn plru_follows_its_tree() {
        let mut array = Array::new(&ArraySpec { replacement: Replacement::Plru, ..spec(&[PageSize::K4], 1, 4) });
        run(&mut array, &[0, 1, 2, 3]);
        // After 3 and then 0: the root points right, and there to way 2, although way 1 is older.
        assert_eq!(run(&mut array, &[0, 9, 1, 3, 2]), [true, false, true, true, false]);
    }

    #[test]
    fn random_repeats() {
        let spec = ArraySpec { replacement: Replacement::Random, ..spec(&[PageSize::K4], 1, 8) };
        let pages: Vec<u64> = (0..500).map(|i| i * 7 % 23).collect();
        assert_eq!(run(&mut Array::new(&spec), &pages), run(&mut Array::new(&spec), &pages));
    }

    #[test]
    fn sets_are_chosen_by_low_bits() {
        let mut array = Array::new(&spec(&[PageSize::K4], 2, 1));
        assert_eq!(run(&mut array, &[2, 3, 4, 3, 2]), [false, false, false, true, false]);
    }

    #[test]
    fn sizes_and_pieces() {
        let mut both = Array::new(&spec(&[PageSize::K4, PageSize::M2], 4, 2));
        both.insert(entry(512, 9));
        assert!(both.look_up(1000, IDS).is_some() && both.look_up(1024, IDS).is_none());
        let mut small = Array::new(&spec(&[PageSize::K4], 1, 2));
        small.insert(entry(512, 9));
        assert!(small.look_up(512, IDS).is_some() && small.look_up(513, IDS).is_none());
        // A fence for any page of the leaf means its pieces.
        small.invalidate(&Invalidation { regime: Regime::One, vmid: None, asid: None, page: Some(1000) });
        assert!(small.look_up(512, IDS).is_none());
        let mut whole = Array::new(&ArraySpec { pieces: false, ..spec(&[PageSize::K4], 1, 2) });
        whole.insert(entry(512, 9));
        assert!(whole.look_up(512, IDS).is_none());
        // A page of 4 KiB by one stage, and of 2 MiB by the other.
        whole.insert(Entry { largest: 9, ..entry(512, 0) });
        assert!(whole.look_up(512, IDS).is_none());
        whole.insert(entry(512, 0));
        assert!(whole.look_up(512, IDS).is_some());
        let mut large = Array::new(&spec(&[PageSize::M2], 1, 2));
        large.insert(entry(512, 0));
        assert!(large.look_up(512, IDS).is_none());
    }

    #[test]
    fn pointers_of_several_levels_are_kept() {
        let mut array = Array::of_pointers(&spec(&[PageSize::M2, PageSize::G1], 1, 4));
        array.insert(entry(513, 9));
        assert!(!array.has_sized(513, 18, IDS));
        array.insert(entry(513, 18));
        assert!(array.has_sized(1000, 9, IDS) && array.has_sized(5000, 18, IDS) && !array.has_sized(5000, 9, IDS));
    }

    #[test]
    fn sectors_share_a_tag() {
        let mut array = Array::new(&ArraySpec { sectors: 4, ..spec(&[PageSize::K4], 1, 1) });
        assert_eq!(run(&mut array, &[4, 5, 4, 5, 8, 4]), [false, false, true, true, false, false]);
        array.insert(entry(5, 0));
        array.invalidate(&Invalidation { regime: Regime::One, vmid: None, asid: None, page: Some(5) });
        assert!(array.look_up(5, IDS).is_none() && array.look_up(4, IDS).is_some());
    }

    #[test]
    fn tags_and_fences() {
        let mut array = Array::new(&spec(&[PageSize::K4, PageSize::M2], 1, 8));
        let other = Ids { asid: 8, ..IDS };
        let guest = |vmid| Ids { regime: Regime::Two, asid: 7, vmid };
        array.insert(entry(1, 0));
        array.insert(Entry { is_global: true, ..entry(2, 0) });
        array.insert(Entry { ids: guest(3), ..entry(1, 0) });
        array.insert(Entry { ids: guest(4), ..entry(1, 0) });
        assert!(array.look_up(1, other).is_none() && array.look_up(2, other).is_some());
        assert!(array.look_up(2, guest(3)).is_none());
        let fence = Invalidation { regime: Regime::One, vmid: None, asid: Some(7), page: None };
        array.invalidate(&fence);
        assert!(array.look_up(1, IDS).is_none() && array.look_up(2, IDS).is_some());
        array.invalidate(&Invalidation { regime: Regime::Two, vmid: Some(3), ..fence });
        assert!(array.look_up(1, guest(3)).is_none() && array.look_up(1, guest(4)).is_some());
        array.insert(entry(512, 9));
        array.invalidate(&Invalidation { asid: None, page: Some(700), ..fence });
        assert!(array.look_up(512, IDS).is_none());
    }

    #[test]
    fn dirty_entries_are_known() {
        let mut array = Array::new(&spec(&[PageSize::K4], 1, 8));
        array.insert(entry(1, 0));
        let is_dirty = |array: &mut Array| array.look_up(1, IDS).map(|hit| hit.is_dirty);
        assert_eq!(is_dirty(&mut array), Some(false));
        array.insert(Entry { is_dirty: true, ..entry(1, 0) });
        assert_eq!(is_dirty(&mut array), Some(true));
    }
}
