//! The remains of an address space that has ended: frames that are no longer reachable, given back in portions.

use super::giga;
use super::kept::{self, Kept};
use super::policy::OWNED;
use super::space::{SwapSlot, order};
use crate::frames::{Frames, Run};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use rv::{Caps, Entry, Format, Level, PhysMem, Pte};

/// Frames of an address space that has ended, in the tables that led to them. No TLB knows them any more.
#[must_use = "dropping it leaks its frames"]
pub struct Remains {
    format: &'static Format,
    /// The tables from the root down to the one whose entries come next, each with the index of its next entry.
    path: Vec<(Run, u64)>,
    /// The runs that are left of a leaf.
    runs: Vec<Run>,
    /// The swap device's copies of pages that were in memory.
    copies: BTreeMap<u64, SwapSlot>,
}

/// Something that is to be given back.
#[derive(PartialEq, Eq, Debug)]
pub enum Remain {
    /// Frames.
    Run(Run),
    /// A page of the swap device.
    Slot(SwapSlot),
}

/// The cost of giving a run of frames back, in entries that are looked at.
const fn cost(run: &Run) -> u32 {
    4 + (run.pages() / 2) as u32
}

impl Remains {
    pub(super) fn below(root: Run, format: &'static Format, copies: BTreeMap<u64, SwapSlot>) -> Self {
        Self { format, path: alloc::vec![(root, 0)], runs: Vec::new(), copies }
    }

    /// Returns whether all is given back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.path.is_empty() && self.copies.is_empty() && self.runs.is_empty()
    }

    /// Returns the next run or slot to be given back. `None` if there is none; or if `steps`, the entries that may be
    /// looked at, are used up.
    pub fn take(&mut self, steps: &mut u32, mem: &impl PhysMem) -> Option<Remain> {
        while *steps > 0 {
            *steps -= 1;
            if let Some((_, slot)) = self.copies.pop_first() {
                *steps = steps.saturating_sub(4);
                return Some(Remain::Slot(slot));
            }
            if let Some(run) = self.runs.pop() {
                *steps = steps.saturating_sub(cost(&run));
                return Some(Remain::Run(run));
            }
            let level = self.format.levels_down().nth(self.path.len().checked_sub(1)?)?;
            let (table, next) = self.path.last_mut()?;
            if *next == self.format.entries(level) as u64 {
                let (table, _) = self.path.pop()?;
                *steps = steps.saturating_sub(cost(&table));
                return Some(Remain::Run(table));
            }
            let at = table.first().at(8 * *next);
            *next += 1;
            let pte = Pte(mem.read_u64(at));
            match pte.decode(level, Caps::default()) {
                Entry::Leaf(leaf) if leaf.flags.contains(OWNED) && level > Level::MEGA => {
                    self.runs.extend(giga::runs(&leaf, level));
                }
                Entry::Leaf(leaf) if leaf.flags.contains(OWNED) => {
                    let run = Run::from_entry(leaf.pfn, order(level));
                    *steps = steps.saturating_sub(cost(&run));
                    return Some(Remain::Run(run));
                }
                Entry::Leaf(_) => {}
                Entry::Invalid => match Kept::of(pte, level) {
                    Kept::Nothing => {}
                    Kept::Idle(leaf) => {
                        let run = kept::run_of(&leaf, level);
                        *steps = steps.saturating_sub(cost(&run));
                        return Some(Remain::Run(run));
                    }
                    Kept::Out(slot) => return Some(Remain::Slot(slot)),
                },
                Entry::Table(next) => self.path.push((Run::from_entry(next, 0), 0)),
                Entry::Reserved(why) => panic!("{at}: {why:?} in a G-stage table"),
            }
        }
        None
    }

    /// Gives things back, looking at about so many entries: frames, and by `forgo` pages of the swap device. Returns whether there
    /// are more.
    pub fn release(
        &mut self,
        mut steps: u32,
        frames: &Frames,
        mem: &impl PhysMem,
        mut forgo: impl FnMut(SwapSlot),
    ) -> bool {
        while let Some(remain) = self.take(&mut steps, mem) {
            match remain {
                Remain::Run(run) => frames.free(run),
                Remain::Slot(slot) => forgo(slot),
            }
        }
        !self.is_empty()
    }
}
