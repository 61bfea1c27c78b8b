//! The meter's counts of a region, as the benchmarks read them. See docs/meter.md for each counter.

use super::subject::Subject;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Events by privilege mode: `M`, `S`, `U`, `VS`, `VU`. What did not happen is left out.
pub type ByMode = BTreeMap<String, u64>;

/// The counts of a region.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
pub struct Counts {
    /// Instructions retired.
    pub instructions_retired: ByMode,
    /// Traps taken.
    pub traps: Vec<Trap>,
    /// The counts of each modelled core, by its name.
    #[serde(default)]
    pub cores: BTreeMap<String, CoreCounts>,
}

/// Traps of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct Trap {
    /// The mode that was left.
    pub from: String,
    /// The mode that was entered.
    pub to: String,
    /// The cause, in words.
    pub cause: String,
    /// The number of such exits.
    pub count: u64,
    /// Instructions until the software that was left ran again, where that is of interest.
    #[serde(default)]
    pub handling_instructions: u64,
    /// The most of them that one took.
    #[serde(default)]
    pub longest_handling: u64,
}

/// Traps out of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exits {
    /// Their number.
    pub count: u64,
    /// Instructions that the host executed for them before the guest ran again.
    pub instructions: u64,
}

impl Exits {
    /// Adds others.
    pub const fn add(&mut self, other: Self) {
        self.count += other.count;
        self.instructions += other.instructions;
    }
}

/// The cost of translating a guest's own addresses, in all stages together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Own {
    /// Misses of the first TLBs, for instructions and data.
    pub misses: u64,
    /// Page walks, whatever came of them.
    pub walks: u64,
    /// Their memory references.
    pub refs: u64,
}

/// The counts of a modelled core.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
pub struct CoreCounts {
    /// Instruction fetches that the first TLB did not know.
    pub l1i_misses: ByMode,
    /// Loads and stores that the first TLB did not know.
    pub l1d_misses: ByMode,
    /// Page walks that found a translation.
    pub walks: ByMode,
    /// Their memory references.
    pub refs: ByMode,
    /// Page walks that ended in a page fault.
    pub failed_walks: ByMode,
    /// Their memory references.
    pub failed_refs: ByMode,
    /// Page walks by stores to pages that the TLB knew as clean.
    pub dirty_walks: ByMode,
    /// Their memory references.
    pub dirty_refs: ByMode,
    /// Walks by mode and by the number of their references.
    pub walks_by_refs: BTreeMap<String, BTreeMap<u64, u64>>,
    /// Walks by mode and by the leaves that they ended at: first stage/G-stage.
    pub walks_by_leaf: BTreeMap<String, BTreeMap<String, Leaf>>,
    /// Cycles that the core's cost model comes to.
    pub cycles_estimated: Cycles,
}

/// Walks that ended at leaves of certain sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct Leaf {
    /// The number of walks.
    pub walks: u64,
    /// Their memory references together.
    pub refs: u64,
}

/// The cost model's estimate, and its range with other parameters.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
pub struct Cycles {
    /// By the core file.
    pub model: u64,
    /// Cycles if each reference of a walk hit the first cache.
    pub if_refs_hit: u64,
    /// Cycles if each went to memory.
    pub if_refs_miss: u64,
}

impl Leaf {
    /// References for each walk.
    #[must_use]
    pub fn refs_per_walk(self) -> Option<f64> {
        (self.walks > 0).then(|| self.refs as f64 / self.walks as f64)
    }
}

impl Counts {
    /// Reads what the meter reports of a region.
    ///
    /// # Errors
    /// If that is not what this version writes.
    pub fn read(total: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(total)
    }

    /// Instructions of all modes.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.instructions_retired.values().sum()
    }

    /// Instructions outside the guest: of the hypervisor, and of whatever it stands on.
    #[must_use]
    pub fn host_instructions(&self, subject: Subject) -> u64 {
        self.instructions_retired.iter().filter(|(mode, _)| !subject.is_guest(mode)).map(|(_, count)| count).sum()
    }

    /// Traps out of the guest, by cause. On the bare machine: out of S and U mode to the firmware.
    #[must_use]
    pub fn exits_by_cause(&self, subject: Subject) -> BTreeMap<&str, Exits> {
        let mut causes = BTreeMap::<_, Exits>::new();
        for trap in self.traps.iter().filter(|trap| subject.is_guest(&trap.from) && !subject.is_guest(&trap.to)) {
            let exits = Exits { count: trap.count, instructions: trap.handling_instructions };
            causes.entry(trap.cause.as_str()).or_default().add(exits);
        }
        causes
    }

    /// Traps out of the guest.
    #[must_use]
    pub fn exits(&self, subject: Subject) -> u64 {
        self.exits_by_cause(subject).values().map(|exits| exits.count).sum()
    }

    /// Instructions that were executed for them.
    #[must_use]
    pub fn handling_instructions(&self, subject: Subject) -> u64 {
        self.exits_by_cause(subject).values().map(|exits| exits.instructions).sum()
    }
}

impl CoreCounts {
    /// Misses of the first TLBs, for instructions and data.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.l1i_misses.values().chain(self.l1d_misses.values()).sum()
    }

    /// All walks, of guest and host, whatever came of them.
    #[must_use]
    pub fn walks(&self) -> u64 {
        [&self.walks, &self.failed_walks, &self.dirty_walks].into_iter().flat_map(BTreeMap::values).sum()
    }

    /// References of all walks.
    #[must_use]
    pub fn refs(&self) -> u64 {
        [&self.refs, &self.failed_refs, &self.dirty_refs].into_iter().flat_map(BTreeMap::values).sum()
    }

    /// The guest's part of misses, walks and references: over a whole run, it is that of the guest's life.
    #[must_use]
    pub fn own(&self, subject: Subject) -> Own {
        let sum = |of: &[&ByMode]| {
            let modes = of.iter().flat_map(|of| of.iter());
            modes.filter(|(mode, _)| subject.is_guest(mode)).map(|(_, count)| count).sum()
        };
        Own {
            misses: sum(&[&self.l1i_misses, &self.l1d_misses]),
            walks: sum(&[&self.walks, &self.failed_walks, &self.dirty_walks]),
            refs: sum(&[&self.refs, &self.failed_refs, &self.dirty_refs]),
        }
    }

    /// The guest's walks by the leaves that they ended at.
    #[must_use]
    pub fn guest_leaves(&self, subject: Subject) -> BTreeMap<&str, Leaf> {
        let mut leaves = BTreeMap::<_, Leaf>::new();
        for (name, leaf) in self.walks_by_leaf.iter().filter(|(mode, _)| subject.is_guest(mode)).flat_map(|(_, of)| of)
        {
            let sum = leaves.entry(name.as_str()).or_default();
            *sum = Leaf { walks: sum.walks + leaf.walks, refs: sum.refs + leaf.refs };
        }
        leaves
    }

    /// The guest's walks by the number of their references.
    #[must_use]
    pub fn guest_walks_by_refs(&self, subject: Subject) -> BTreeMap<u64, u64> {
        let mut walks = BTreeMap::new();
        for (refs, count) in self.walks_by_refs.iter().filter(|(mode, _)| subject.is_guest(mode)).flat_map(|(_, of)| of)
        {
            *walks.entry(*refs).or_insert(0) += count;
        }
        walks
    }

    /// References of each of the guest's walks that ended at 4 KiB leaves in every stage, or in the only one.
    #[must_use]
    pub fn refs_per_4k_walk(&self, subject: Subject) -> Option<f64> {
        let leaves = self.guest_leaves(subject);
        leaves.get("4K/4K").or_else(|| leaves.get("4K")).and_then(|leaf| leaf.refs_per_walk())
    }
}

#[cfg(test)]
pub(in crate::bench) mod tests {
    use super::*;
    use crate::bench::lab::subject::{Choice, Extra};
    use serde_json::json;

    /// A subject by its name.
    pub fn subject(name: &str) -> Subject {
        Choice::all(Extra::Small).into_iter().find(|subject| subject.to_string() == name).expect(name)
    }

    /// Counts of a guest with H: so many instructions, exits of one kind, 4 KiB walks.
    pub fn counts(guest: u64, host: u64, exits: u64, walks: u64, refs: u64) -> Value {
        json!({
            "instructions_retired": { "VU": guest, "M": host },
            "traps": [
                { "from": "VU", "to": "M", "code": 21, "cause": "load guest-page fault", "interrupt": false, "count": exits,
                  "handling_instructions": host },
                { "from": "VU", "to": "VS", "code": 8, "cause": "ecall from U or VU", "interrupt": false, "count": 7 },
            ],
            "cores": { "plain": {
                "l1i_misses": {}, "l1d_misses": { "VU": walks }, "walks": { "VU": walks }, "refs": { "VU": refs },
                "failed_walks": {}, "failed_refs": {}, "dirty_walks": {}, "dirty_refs": {},
                "walks_by_refs": { "VU": { (refs / walks.max(1)).to_string(): walks }, "M": { "3": 9 } },
                "walks_by_leaf": { "VU": { "4K/4K": { "walks": walks, "refs": refs } } },
                "cycles_estimated": { "model": guest + host, "if_refs_hit": guest, "if_refs_miss": guest + host + 1 },
            } },
        })
    }

    #[test]
    fn guest_and_host_are_told_apart() {
        let (nested, counts) =
            (subject("firmware/two-stage"), Counts::read(&counts(100, 30, 5, 4, 60)).expect("counts"));
        assert_eq!((counts.instructions(), counts.host_instructions(nested), counts.exits(nested)), (130, 30, 5));
        let core = &counts.cores["plain"];
        assert_eq!((core.misses(), core.walks(), core.refs()), (4, 4, 60));
        let more = |key: &str, count| (key.to_owned(), count);
        let mut with_faults = core.clone();
        with_faults.failed_walks.extend([more("VS", 2)]);
        with_faults.failed_refs.extend([more("VS", 5)]);
        with_faults.dirty_walks.extend([more("S", 1)]);
        with_faults.dirty_refs.extend([more("S", 3)]);
        assert_eq!((with_faults.walks(), with_faults.refs()), (7, 68));
        assert_eq!(with_faults.own(nested), Own { misses: 4, walks: 6, refs: 65 });
        assert_eq!(core.refs_per_4k_walk(nested), Some(15.0));
        assert_eq!(core.guest_walks_by_refs(nested), BTreeMap::from([(15, 4)]));
        // In U mode nothing was done, so for a machine without H all is the host's.
        assert_eq!((counts.host_instructions(Subject::Native), counts.exits(Subject::Native)), (130, 0));
    }
}
