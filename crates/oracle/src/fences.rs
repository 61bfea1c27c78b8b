//! Which translations each hart may still use.
//!
//! The whole semantics is one sentence of the manual (norm:sfence-vma_ordering_semantics, and
//! likewise for `hfence.gvma`): an implicit read of the tables may use any translation that was valid
//! at any time since the last fence that subsumes it. So for each hart the model keeps the
//! translations that the table no longer makes but the hart may still use (*leftovers*), and the
//! tables that are no longer linked but that it may still walk (*orphans*): a fence by address
//! orders leaf entries only, so orphans stay until a fence of everything.
//!
//! Events come in as memory writes ([`rv::PhysMem`]), fences ([`rv::Fence`]), and calls. What must
//! not happen is a [`Violation`]; the first is kept.

use crate::machine::Machine;
use rv::{Addr, Fence, FenceScope, Format, Gpa, Hpa, Pfn, PhysMem};
use std::collections::{BTreeMap, BTreeSet};

/// The number of a hart, from 0.
pub type Hart = usize;

/// A violation of the model's rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A frame was freed that a hart may still reach, through a translation or as a table.
    FreedWhileReachable {
        /// The frame's number.
        frame: u64,
        /// A hart that may reach it.
        hart: Hart,
    },
    /// A hart entered the guest, and may still use a translation that allows more than the table, or
    /// leads elsewhere.
    StalePermission {
        /// The hart.
        hart: Hart,
        /// The guest page's number.
        page: u64,
    },
}

/// Frame and permissions (U, X, W, R as in an entry) of one page's translation.
type Target = (u64, u64);

/// Translations by guest page.
type Leaves = Vec<(u64, Target)>;
/// Tables by frame.
type Tables = Vec<(u64, Place)>;

/// The position of a table: its level, and the first guest page below it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    level: u32,
    first: u64,
}

#[derive(Clone, Default, Debug)]
struct HartState {
    /// The root is in its `hgatp`: it may walk the table at any time.
    is_attached: bool,
    /// The hart may use the table's contents: it is attached, or was, and has not fenced everything since.
    may_use_table: bool,
    leftovers: BTreeSet<(u64, Target)>,
    orphans: BTreeSet<(u64, Place)>,
}

/// The model of one VM's G-stage table and the harts that may use it.
#[derive(Clone, Debug)]
pub struct FenceModel {
    /// All memory. Writes that bypass the model bypass its judgement.
    pub machine: Machine,
    harts: Vec<HartState>,
    /// The tables linked now, by frame (a G-stage root is four frames).
    linked: BTreeMap<u64, Place>,
    /// The table's present mappings, by guest page.
    current: BTreeMap<u64, Target>,
    /// The number of times that each frame occurs in `current`.
    uses: BTreeMap<u64, usize>,
    violation: Option<Violation>,
}

impl FenceModel {
    /// A machine with `harts` harts that know nothing yet.
    #[must_use]
    pub fn new(machine: Machine, harts: usize) -> Self {
        Self {
            machine,
            harts: vec![HartState::default(); harts],
            linked: BTreeMap::new(),
            current: BTreeMap::new(),
            uses: BTreeMap::new(),
            violation: None,
        }
    }

    /// The table at `root` is the one to watch, and `hgatp` of no hart has it yet.
    pub fn watch(&mut self, format: &Format, root: Pfn<Hpa>) {
        let level = u32::from(format.levels) - 1;
        for i in 0..1u64 << format.root_extra_bits {
            self.link_table(root.raw() + i, Place { level, first: i << (9 * level + 9) });
        }
    }

    /// The hart enters the guest, with the root in its `hgatp` from now on.
    pub fn enter_guest(&mut self, hart: Hart) {
        let state = &mut self.harts[hart];
        (state.is_attached, state.may_use_table) = (true, true);
        let unjustified =
            state.leftovers.iter().find(|(page, target)| !justified(self.current.get(page), *target)).map(|l| l.0);
        if let Some(page) = unjustified {
            self.blame(Violation::StalePermission { hart, page });
        }
    }

    /// The hart's `hgatp` has another root from now on. Its TLB still remembers this one's.
    pub fn detach(&mut self, hart: Hart) {
        self.harts[hart].is_attached = false;
    }

    /// The hart executes a fence for this VM.
    pub fn fence_hart(&mut self, hart: Hart, scope: FenceScope<Gpa>) {
        let state = &mut self.harts[hart];
        match scope {
            FenceScope::Everything => {
                state.leftovers.clear();
                state.orphans.clear();
                state.may_use_table = state.is_attached;
            }
            FenceScope::Range { start, bytes } => {
                let pages = start.raw() >> 12..(start.raw() + bytes).div_ceil(4096);
                state.leftovers.retain(|(page, _)| !pages.contains(page));
                // Leaves were forgotten, pointers were not: an orphan is walked again, as it is now.
                for (frame, place) in state.orphans.clone() {
                    let (leaves, _) = self.below(frame, place);
                    self.harts[hart].leftovers.extend(leaves.into_iter().filter(|(page, _)| pages.contains(page)));
                }
            }
        }
    }

    /// The frame returns to the allocator: it may become anything.
    pub fn free(&mut self, frame: Pfn<Hpa>) {
        let frame = frame.raw();
        let in_table = self.uses.contains_key(&frame) || self.linked.contains_key(&frame);
        let reacher = self.harts.iter().position(|hart| {
            (in_table && hart.may_use_table)
                || hart.leftovers.iter().any(|(_, target)| target.0 == frame)
                || hart.orphans.iter().any(|(orphan, _)| *orphan == frame)
        });
        if let Some(hart) = reacher {
            self.blame(Violation::FreedWhileReachable { frame, hart });
        }
    }

    /// Returns the verdict so far.
    ///
    /// # Errors
    /// The first violation.
    pub fn verdict(&self) -> Result<(), Violation> {
        self.violation.map_or(Ok(()), Err)
    }

    /// The number of frames that the table's pages take now, the root's included.
    #[must_use]
    pub fn table_count(&self) -> usize {
        self.linked.len()
    }

    /// Returns whether `frame` holds a table that the root leads to now, or is part of the root.
    #[must_use]
    pub fn is_linked(&self, frame: Pfn<Hpa>) -> bool {
        self.linked.contains_key(&frame.raw())
    }

    fn blame(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    /// All page translations that the entry `pte` at a level makes from page `first` on, and all
    /// tables below it.
    fn meaning(&self, pte: u64, level: u32, first: u64) -> (Leaves, Tables) {
        let frame = pte >> 10 & ((1 << 44) - 1);
        // Illegal entries fault, as invalid ones do: bits 63-54, W without R, a misaligned superpage.
        let is_leaf = pte & 0b1010 != 0;
        let is_misaligned = is_leaf && frame & ((1 << (9 * level)) - 1) != 0;
        if pte & 1 == 0 || pte >> 54 != 0 || pte & 0b110 == 0b100 || is_misaligned {
            return (vec![], vec![]);
        }
        if is_leaf {
            let leaf = |k| (first + k, (frame + k, pte & 0x1e));
            return ((0..1u64 << (9 * level)).map(leaf).collect(), vec![]);
        }
        // A pointer at level 0, or with A, D or U, is illegal, too.
        let Some(level) = level.checked_sub(1).filter(|_| pte & 0b1101_0000 == 0) else { return (vec![], vec![]) };
        let place = Place { level, first };
        let (leaves, mut tables) = self.below(frame, place);
        tables.push((frame, place));
        (leaves, tables)
    }

    fn below(&self, table: u64, place: Place) -> (Leaves, Tables) {
        let (mut leaves, mut tables) = (vec![], vec![]);
        for index in 0..512 {
            // A walk into nothing is an access fault and makes no translation.
            let pte = self.machine.peek((table << 12) + 8 * index).unwrap_or(0);
            let (more_leaves, more_tables) = self.meaning(pte, place.level, place.first + (index << (9 * place.level)));
            leaves.extend(more_leaves);
            tables.extend(more_tables);
        }
        (leaves, tables)
    }

    fn link_table(&mut self, table: u64, place: Place) {
        let (leaves, mut tables) = self.below(table, place);
        tables.push((table, place));
        self.link(leaves, tables);
    }

    fn link(&mut self, leaves: Leaves, tables: Tables) {
        self.linked.extend(tables);
        for (page, target) in leaves {
            self.current.insert(page, target);
            *self.uses.entry(target.0).or_default() += 1;
        }
    }

    fn unlink(&mut self, leaves: &[(u64, Target)], tables: &[(u64, Place)]) {
        for (table, _) in tables {
            self.linked.remove(table);
        }
        for (page, target) in leaves {
            self.current.remove(page);
            let uses = self.uses.get_mut(&target.0).expect("what is unlinked was linked");
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(&target.0);
            }
        }
    }

    /// A word of memory is about to change.
    fn write(&mut self, at: Addr<Hpa>, new: u64) {
        let frame = at.pfn().raw();
        let index = at.page_offset() / 8;
        if let Some(&Place { level, first }) = self.linked.get(&frame) {
            let first = first + (index << (9 * level));
            let old = self.machine.peek(at.raw()).unwrap_or(0);
            let (leaves, tables) = self.meaning(old, level, first);
            self.unlink(&leaves, &tables);
            self.machine.write_u64(at, new);
            let (new_leaves, new_tables) = self.meaning(new, level, first);
            self.link(new_leaves, new_tables);
            for hart in self.harts.iter_mut().filter(|hart| hart.may_use_table) {
                let gone = leaves.iter().filter(|(page, target)| self.current.get(page) != Some(target));
                hart.leftovers.extend(gone);
                hart.orphans.extend(tables.iter().filter(|(table, _)| !self.linked.contains_key(table)));
            }
        } else {
            self.machine.write_u64(at, new);
        }
        // An orphan that is written makes new translations for the harts that may still walk it.
        for hart in 0..self.harts.len() {
            let places: Vec<Place> =
                self.harts[hart].orphans.iter().filter(|(orphan, _)| *orphan == frame).map(|o| o.1).collect();
            for Place { level, first } in places {
                let (leaves, tables) = self.meaning(new, level, first + (index << (9 * level)));
                self.harts[hart].leftovers.extend(leaves);
                self.harts[hart].orphans.extend(tables);
            }
        }
    }

    fn is_table(&self, frame: u64) -> bool {
        self.linked.contains_key(&frame)
            || self.harts.iter().any(|hart| hart.orphans.iter().any(|(orphan, _)| *orphan == frame))
    }
}

/// Returns whether the table allows all that a translation does, of the same frame.
fn justified(current: Option<&Target>, (frame, perms): Target) -> bool {
    current.is_some_and(|(now, allowed)| *now == frame && perms & !allowed == 0)
}

impl Fence<Gpa> for FenceModel {
    /// All harts fence.
    fn fence(&mut self, scope: FenceScope<Gpa>) {
        for hart in 0..self.harts.len() {
            self.fence_hart(hart, scope);
        }
    }
}

impl PhysMem for FenceModel {
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        self.machine.read_u64(at)
    }

    fn write_u64(&mut self, at: Addr<Hpa>, value: u64) {
        self.write(at, value);
    }

    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64 {
        let found = self.machine.read_u64(at);
        self.write(at, value);
        found
    }

    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        let found = self.machine.read_u64(at);
        if found != old {
            return Err(found);
        }
        self.write(at, new);
        Ok(())
    }

    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        for frame in (0..pages).map(|i| first.add(i)) {
            if self.is_table(frame.raw()) {
                (0..512).for_each(|i| self.write(frame.at(8 * i), 0));
            } else {
                self.machine.zero_frames(frame, 1);
            }
        }
    }

    fn copy_frames(&mut self, from: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64) {
        for i in 0..pages {
            if self.is_table(to.add(i).raw()) {
                let words = *self.machine.frame(from.add(i));
                words.iter().enumerate().for_each(|(k, word)| self.write(to.add(i).at(8 * k as u64), *word));
            } else {
                self.machine.copy_frames(from.add(i), to.add(i), 1);
            }
        }
    }

    fn read_bytes(&self, at: Addr<Hpa>, into: &mut [u8]) {
        self.machine.read_bytes(at, into);
    }

    /// Guest memory, never tables.
    fn write_bytes(&mut self, at: Addr<Hpa>, from: &[u8]) {
        assert!(!self.is_table(at.pfn().raw()), "{at} is in a table: write it by the word");
        self.machine.write_bytes(at, from);
    }
}
