//! Counts of a hart and of the modelled cores.

use crate::core::{Cost, PageSize};
use crate::insn::{FenceKind, Memory};
use crate::mode::{Mode, PerMode};
use crate::walk::{Leaf, Mapping};
use std::ops::Sub;

/// More references than any walk makes: 35 with Sv57 and Sv57x4.
pub const MOST_REFS: usize = 36;
/// More caches than any core file needs.
pub const MOST_CACHES: usize = 4;
/// Causes that are told apart: exceptions 0 to 31, then interrupts 0 to 31. Greater ones count as 31.
pub const CAUSES: usize = 64;
/// Forms of a fence: with an address (1), with an ASID or VMID (2).
pub const FENCE_FORMS: usize = 4;

/// Numbers that can be subtracted one by one.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug, Default)]
        pub struct $name { $($(#[$field_doc])* pub $field: $kind,)* }

        impl Difference for $name {
            fn minus(&mut self, earlier: &Self) {
                $(self.$field.minus(&earlier.$field);)*
            }
            fn plus(&mut self, other: &Self) {
                $(self.$field.plus(&other.$field);)*
            }
        }
    };
}

/// Counts that can be subtracted and added, number by number.
pub trait Difference {
    /// Takes off what had been counted before.
    fn minus(&mut self, earlier: &Self);
    /// Adds what was counted elsewhere.
    fn plus(&mut self, other: &Self);
}

impl Difference for u64 {
    fn minus(&mut self, earlier: &Self) {
        *self = self.sub(earlier);
    }
    fn plus(&mut self, other: &Self) {
        *self += other;
    }
}

impl<T: Difference, const N: usize> Difference for [T; N] {
    fn minus(&mut self, earlier: &Self) {
        self.iter_mut().zip(earlier).for_each(|(now, earlier)| now.minus(earlier));
    }
    fn plus(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(now, other)| now.plus(other));
    }
}

impl<T: Difference> Difference for Vec<T> {
    fn minus(&mut self, earlier: &Self) {
        self.iter_mut().zip(earlier).for_each(|(now, earlier)| now.minus(earlier));
    }
    fn plus(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(now, other)| now.plus(other));
    }
}

counters! {
    /// One core's translations for accesses of one mode.
    Misses {
        /// Fetches that the L1 TLB did not have.
        fetch: u64,
        /// Loads and stores that the L1 TLB did not have.
        data: u64,
        /// Those of both kinds that the L2 TLB had.
        l2_hits: u64,
        /// Page walks that found a translation.
        walks: u64,
        /// References to entries of `satp` and `vsatp` tables by those.
        refs_first: u64,
        /// References to entries of `hgatp` tables by those.
        refs_g: u64,
        /// Walks that ended in a page fault.
        failed_walks: u64,
        /// All references by those.
        failed_refs: u64,
        /// Walks of stores that hit an entry which had been filled when D was clear.
        dirty_walks: u64,
        /// All references by those.
        dirty_refs: u64,
        /// Page faults for which no walk was made: a TLB had the translation, and it did not allow the access;
        /// or the address was none.
        refused_without_walk: u64,
        /// Accesses that QEMU made by a translation that tables no longer had: no walk could be traced.
        vanished: u64,
    }
}

/// Numbers for each count of references.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram(pub [u64; MOST_REFS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; MOST_REFS])
    }
}

impl Difference for Histogram {
    fn minus(&mut self, earlier: &Self) {
        self.0.minus(&earlier.0);
    }
    fn plus(&mut self, other: &Self) {
        self.0.plus(&other.0);
    }
}

counters! {
    /// Page walks that found a translation, and their references.
    Walks {
        /// The number of walks.
        walks: u64,
        /// The references of all of them.
        refs: u64,
    }
}

/// Sizes of leaves, and none: that of a stage that does not translate.
const LEAVES: usize = 7;

/// Numbers for each pair of leaves: that of the first stage, and that by which the G-stage mapped the
/// address that came of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ByLeaf([[Walks; LEAVES]; LEAVES]);

impl ByLeaf {
    /// The numbers of walks that found these leaves.
    fn of(&mut self, mapping: &Mapping) -> &mut Walks {
        let number = |leaf: Option<Leaf>| {
            leaf.map_or(0, |leaf| 1 + PageSize::ALL.iter().position(|size| size.span() == leaf.span).unwrap_or(0))
        };
        &mut self.0[number(mapping.first)][number(mapping.g)]
    }

    /// All that occurred, by the names of the leaves: `4K` of one stage, `4K/2M` of both, `-/2M` of the
    /// G-stage alone.
    pub fn iter(&self) -> impl Iterator<Item = (String, &Walks)> {
        let name = |leaf: usize| leaf.checked_sub(1).map_or("-", |number| PageSize::ALL[number].name());
        let all = self
            .0
            .iter()
            .enumerate()
            .flat_map(|(first, all)| all.iter().enumerate().map(move |(g, one)| (first, g, one)));
        all.filter(|(.., one)| one.walks > 0).map(move |(first, g, one)| match g {
            0 => (name(first).to_owned(), one),
            _ => (format!("{}/{}", name(first), name(g)), one),
        })
    }
}

impl Difference for ByLeaf {
    fn minus(&mut self, earlier: &Self) {
        self.0.minus(&earlier.0);
    }
    fn plus(&mut self, other: &Self) {
        self.0.plus(&other.0);
    }
}

counters! {
    /// One core's counts.
    CoreCounts {
        /// By the mode whose translation was used.
        misses: PerMode<Misses>,
        /// The number of [`Misses::walks`] with so many references, by the same mode.
        walks_by_refs: PerMode<Histogram>,
        /// [`Misses::walks`] by the leaves that they found, by the same mode.
        walks_by_leaf: PerMode<ByLeaf>,
        /// References by the cache that had them; the last one is memory.
        refs_by_cache: [u64; MOST_CACHES + 1],
    }
}

impl CoreCounts {
    /// A walk in a mode found a translation, by so many references.
    pub fn count_walk(&mut self, mode: Mode, mapping: &Mapping, refs: u64) {
        self.walks_by_refs[mode.index()].0[(refs as usize).min(MOST_REFS - 1)] += 1;
        let by_leaf = self.walks_by_leaf[mode.index()].of(mapping);
        by_leaf.walks += 1;
        by_leaf.refs += refs;
    }
}

counters! {
    /// Traps of one kind.
    Trapped {
        /// The number of traps.
        count: u64,
        /// Instructions that retired, in whatever mode, before the software that was left ran again: see
        /// [`HartCounts::traps`].
        handling: u64,
        /// The most of them that one trap took.
        longest: Longest,
    }
}

/// The greatest of some numbers. It cannot be taken off, so the greatest since the last mark is kept as well: a
/// region lies between two marks that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Longest {
    /// Of all, or of a region.
    pub of_all: u64,
    since_mark: u64,
}

impl Longest {
    /// One more number.
    pub fn add(&mut self, number: u64) {
        self.of_all = self.of_all.max(number);
        self.since_mark = self.since_mark.max(number);
    }
}

impl Difference for Longest {
    fn minus(&mut self, _: &Self) {
        self.of_all = self.since_mark;
    }
    fn plus(&mut self, other: &Self) {
        self.of_all = self.of_all.max(other.of_all);
    }
}

/// Traps, by cause, the mode they came from, and the mode that took them: M, S or VS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traps(Vec<Trapped>);

/// Which of [`Traps`] one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrapKind {
    /// The mode it came from.
    pub from: Mode,
    /// The mode that took it.
    pub to: Mode,
    /// The code of the cause register; what is greater than 31 is 31.
    pub code: usize,
    /// True if it is an interrupt.
    pub is_interrupt: bool,
}

impl TrapKind {
    /// Of a trap with this cause register.
    #[must_use]
    pub fn new(from: Mode, to: Mode, cause: u64) -> Self {
        let code = (cause & (u64::MAX >> 1)).min(31) as usize;
        Self { from, to, code, is_interrupt: cause >> 63 != 0 }
    }

    /// Returns whether it left a guest (V=1), or software for the firmware (M): then it is of interest how long that
    /// took to be back.
    #[must_use]
    pub const fn is_exit(self) -> bool {
        (self.from.is_virtual() && !self.to.is_virtual())
            || (matches!(self.to, Mode::M) && !matches!(self.from, Mode::M))
    }

    const fn place(self) -> usize {
        let code = if self.is_interrupt { self.code + 32 } else { self.code };
        (self.from.index() * Mode::ALL.len() + self.to.index()) * CAUSES + code
    }

    const fn at(place: usize) -> Self {
        let (modes, code) = (place / CAUSES, place % CAUSES);
        let (from, to) = (modes / Mode::ALL.len(), modes % Mode::ALL.len());
        Self { from: Mode::from_index(from), to: Mode::from_index(to), code: code % 32, is_interrupt: code >= 32 }
    }
}

impl Default for Traps {
    fn default() -> Self {
        Self(vec![Trapped::default(); Mode::ALL.len() * Mode::ALL.len() * CAUSES])
    }
}

impl Difference for Traps {
    fn minus(&mut self, earlier: &Self) {
        self.0.minus(&earlier.0);
    }
    fn plus(&mut self, other: &Self) {
        self.0.plus(&other.0);
    }
}

impl Traps {
    /// Those of a kind.
    pub fn of(&mut self, kind: TrapKind) -> &mut Trapped {
        &mut self.0[kind.place()]
    }

    /// All that occurred, or were handled.
    pub fn iter(&self) -> impl Iterator<Item = (TrapKind, &Trapped)> {
        let all = self.0.iter().enumerate().filter(|(_, one)| one.count > 0 || one.handling > 0);
        all.map(|(place, one)| (TrapKind::at(place), one))
    }

    /// A mark has been set, and what was counted until then is kept.
    pub fn marked(&mut self) {
        self.0.iter_mut().for_each(|one| one.longest.since_mark = 0);
    }

    /// The number of traps.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(|one| one.count).sum()
    }
}

/// Accesses by the mode of the code, the mode whose translation was used, and the kind.
pub type Accesses = PerMode<PerMode<[u64; Memory::KINDS]>>;

counters! {
    /// The findings of check mode.
    Stale {
        /// Accesses by a translation of one stage (V=0) that the tables no longer make.
        one_stage: u64,
        /// Like `one_stage` with V=1, for translations that the guest's (or the shadow) tables no longer make.
        first_stage: u64,
        /// Like `one_stage`, for translations that the G-stage's tables no longer make.
        g_stage: u64,
        /// Walks that could have used a pointer between tables that is no longer there.
        pointers: u64,
        /// Page faults that a hart would not have had to raise: it may still have had a translation.
        missed_faults: u64,
        /// Accesses for which a hart might have raised a page fault out of date. That is legal.
        spurious: u64,
    }
}

counters! {
    /// The counts of one hart.
    HartCounts {
        /// Instructions that were attempted.
        insns: PerMode<u64>,
        /// Attempted instructions that did not retire, because of an exception.
        not_retired: PerMode<u64>,
        /// Loads and stores that were made: by the mode of the code, the mode whose translation was used
        /// (another one for HLV, HSV and MPRV), and the kind (as of [`crate::insn::Memory`]).
        accesses: Accesses,
        /// Accesses that reached into a second page.
        crossings: PerMode<u64>,
        /// Loads and stores that ended in a page fault or an access fault, by the mode whose translation was used.
        refused: PerMode<u64>,
        /// Traps. Those that leave a guest (V=1) are handled until V=1 again, by any software; others to M until a
        /// return to a lower mode with V=0, so that one may be handled within the other. A trap that is open at a mark
        /// counts where it ends.
        traps: Traps,
        /// Fences by kind (in the order of [`FenceKind::ALL`]), form, and mode.
        fences: [[PerMode<u64>; FENCE_FORMS]; FenceKind::ALL.len()],
        /// Writes that changed `satp`, `vsatp`, `hgatp`.
        root_switches: [u64; 3],
        /// Updates of A and D bits by hardware, by the mode of the access.
        ad_updates: PerMode<u64>,
        /// Access faults in RAM: physical memory protection.
        pmp_faults: u64,
        /// Access faults elsewhere.
        other_access_faults: u64,
        /// The counts of each core, in the order of the arguments.
        cores: Vec<CoreCounts>,
        /// The findings of check mode.
        stale: Stale,
    }
}

/// Cycles that a count comes to, and how much hangs on what is not known.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cycles {
    /// By the core file as it is.
    pub model: f64,
    /// Of those, page walks.
    pub walks: f64,
    /// The estimate with every reference of a walk in the nearest cache.
    pub if_refs_hit: f64,
    /// The estimate with every reference of a walk in memory.
    pub if_refs_miss: f64,
    /// The estimate with traps at half their cost.
    pub if_traps_half: f64,
    /// The estimate with traps at double their cost.
    pub if_traps_double: f64,
}

impl HartCounts {
    /// Counters of a hart, for so many cores.
    #[must_use]
    pub fn new(cores: usize) -> Self {
        Self { cores: vec![CoreCounts::default(); cores], ..Self::default() }
    }

    /// The accesses of some kinds, by the mode of the code.
    #[must_use]
    pub fn accesses_of(&self, kinds: &[Memory]) -> PerMode<u64> {
        let of = |made: &[u64; Memory::KINDS]| kinds.iter().map(|kind| made[*kind as usize]).sum::<u64>();
        std::array::from_fn(|code| self.accesses[code].iter().map(of).sum())
    }

    /// Looks of loads and stores into the TLB, refused ones too, by the mode whose translation was used (M: none was).
    #[must_use]
    pub fn lookups(&self) -> PerMode<u64> {
        let made = |used: usize| self.accesses.iter().map(|code| code[used].iter().sum::<u64>()).sum::<u64>();
        std::array::from_fn(|used| made(used) + self.crossings[used] + self.refused[used])
    }

    /// The estimate for one of the cores.
    #[must_use]
    pub fn cycles(&self, core: usize, cost: &Cost) -> Cycles {
        let counts = &self.cores[core];
        let sum = |numbers: &[u64]| numbers.iter().sum::<u64>() as f64;
        let caches = cost.cache.len().min(MOST_CACHES);
        let refs = counts.refs_by_cache;
        let by_cache = cost.cache.iter().zip(refs).map(|(cache, refs)| cache.cycles * refs as f64).sum::<f64>();
        let walks = by_cache + cost.memory * sum(&refs[caches..]);
        let nearest = cost.cache.first().map_or(cost.memory, |cache| cache.cycles);
        let l2_hits = counts.misses.iter().map(|misses| misses.l2_hits).sum::<u64>() as f64;
        let fences = self.fences.as_flattened().iter().flatten().sum::<u64>() as f64;
        let traps = cost.trap * self.traps.total() as f64;
        let rest = cost.instruction * sum(&self.insns)
            + cost.l2_hit * l2_hits
            + cost.fence * fences
            + cost.root_switch * sum(&self.root_switches);
        let with = |walks: f64, traps: f64| rest + walks + traps;
        Cycles {
            model: with(walks, traps),
            walks,
            if_refs_hit: with(nearest * sum(&refs), traps),
            if_refs_miss: with(cost.memory * sum(&refs), traps),
            if_traps_half: with(walks, traps / 2.0),
            if_traps_double: with(walks, traps * 2.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Core;

    #[test]
    fn traps_are_told_apart() {
        let mut traps = Traps::default();
        let kinds = [
            TrapKind::new(Mode::U, Mode::S, 8),
            TrapKind::new(Mode::U, Mode::S, 1 << 63 | 5),
            TrapKind::new(Mode::VS, Mode::M, 1000),
        ];
        kinds.iter().for_each(|kind| traps.of(*kind).count += 1);
        assert_eq!(traps.iter().map(|(kind, _)| kind).collect::<Vec<_>>(), kinds);
        let found = |kind: TrapKind| (kind.code, kind.is_interrupt, kind.is_exit());
        assert_eq!(kinds.map(found), [(8, false, false), (5, true, false), (31, false, true)]);
        let mut later = traps.clone();
        traps.of(kinds[0]).longest.add(90);
        traps.marked();
        let mut longest = traps.of(kinds[0]).longest;
        longest.add(50);
        longest.add(20);
        *later.of(kinds[0]) = Trapped { count: 2, handling: 70, longest };
        later.minus(&traps);
        let found: Vec<_> =
            later.iter().map(|(kind, one)| (kind, one.count, one.handling, one.longest.of_all)).collect();
        assert_eq!((found, longest.of_all), (vec![(kinds[0], 1, 70, 50)], 90));
    }

    #[test]
    fn cycles_are_sums() {
        let core = Core::find("plain").expect("built in");
        let cost = Cost { instruction: 1.0, trap: 10.0, memory: 100.0, l2_hit: 0.0, ..core.cost };
        let mut counts = HartCounts::new(1);
        counts.insns[1] = 1000;
        counts.traps.of(TrapKind::new(Mode::U, Mode::S, 8)).count = 1;
        let near = cost.cache[0].cycles;
        counts.cores[0].refs_by_cache[0] = 3;
        counts.cores[0].refs_by_cache[cost.cache.len()] = 2;
        let cycles = counts.cycles(0, &cost);
        assert_eq!((cycles.walks, cycles.model), (3.0 * near + 200.0, 1010.0 + 3.0 * near + 200.0));
        assert_eq!((cycles.if_refs_hit, cycles.if_refs_miss), (1010.0 + 5.0 * near, 1510.0));
        assert_eq!(cycles.if_traps_double - cycles.if_traps_half, 15.0);
    }
}
