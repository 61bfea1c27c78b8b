//! Linux as L2, the guest of a guest: boots of Debian's kernel, and a compiler.

use crate::bench::boot::{Loads, Machine, VARIANTS};
use crate::bench::counts::Counts;
use crate::bench::lab::{Keeping, Lab, Load, Nesting, Processors, Run};
use crate::bench::linux::{command_line, complete, number, ratio};
use crate::bench::report::Block;
use crate::bench::subject::{Choice, Extra, Subject};
use crate::bench::table::Table;
use crate::bench::{in_parallel, progress};
use crate::guest::debian::HostKernel;
use crate::subject::kvm::KvmKernel;
use crate::subject::workload::{HugePages, Kind, Scale, Workload};
use abi::bundle::{L2Tables, MmuMode};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The hypervisors between Gnomon and Linux.
const LEVELS: [(&str, Nesting); 5] = [
    ("L1", Nesting::None),
    ("L2, KVM with NACL", Nesting::UnderKvm(KvmKernel::Newest, L2Tables::Nested)),
    ("L2, KVM without", Nesting::UnderKvm(KvmKernel::OfGuests, L2Tables::Nested)),
    ("L2, Gnomon", Nesting::UnderGnomon),
    ("L2 collapsed, KVM with NACL", Nesting::UnderKvm(KvmKernel::Newest, L2Tables::Collapsed)),
];

/// Linux on a subject, as L1 and as L2.
pub(super) struct Linux {
    boots: Vec<(Level, Result<Figures, String>)>,
    /// The compiler's regions, all together.
    builds: Vec<(Level, Result<Figures, String>)>,
}

/// A machine with Linux on it: the subject, and a place in [`LEVELS`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Level(Subject, usize);

#[derive(Default, Serialize)]
struct Figures {
    instructions: u64,
    /// Cycles, walks and references of each modelled core, the host's included.
    cores: BTreeMap<String, (u64, u64, u64)>,
    /// Gnomon's counters of the VM, from its start to its end.
    counters: BTreeMap<String, u64>,
}

impl Linux {
    pub(super) fn measure(lab: &Lab, choice: &Choice) -> miette::Result<Self> {
        let can = |subject: &Subject| match subject {
            Subject::Gnomon(gnomon) => gnomon.variant.mmu == Some(MmuMode::TwoStage),
            Subject::Native => false,
            Subject::Kvm { .. } => true,
        };
        let levels = choice.subjects("nested", Extra::None, can)?.into_iter().flat_map(|subject| {
            let count = if matches!(subject, Subject::Gnomon(_)) { LEVELS.len() } else { 1 };
            (0..count).map(move |level| Level(subject, level))
        });
        let levels: Vec<_> = levels.collect();
        let (loads, _) = Loads::provide()?;
        let workload = Kind::Build.provide(Scale::Quick, HugePages::Never)?;
        let jobs: Vec<_> = levels.iter().flat_map(|level| [(*level, false), (*level, true)]).collect();
        let step = progress("nested", jobs.len());
        let mut figures = in_parallel(&jobs, |&(level, is_build)| {
            let figures =
                if is_build { level.build(lab, &workload, choice) } else { level.boot(lab, &loads, choice.svadu) };
            step.done(&format!("{}, {}", level.name(), if is_build { "compiler" } else { "boot" }));
            figures.map_err(|why| why.to_string())
        })
        .into_iter();
        let (mut boots, mut builds) = (Vec::new(), Vec::new());
        for level in levels {
            boots.extend(figures.next().map(|boot| (level, boot)));
            builds.extend(figures.next().map(|build| (level, build)));
        }
        Ok(Self { boots, builds })
    }

    pub(super) fn blocks(&self, cores: &[&str]) -> Vec<Block> {
        let mut blocks = vec![self.boots()];
        blocks.extend(cores.iter().map(|core| self.builds(core)));
        blocks
    }

    fn boots(&self) -> Block {
        let mut table =
            Table::new(["Debian boots", "instructions", "/ L1", "entries of L2", "traps/entry", "second faults %"]);
        for (level, figures) in &self.boots {
            let Ok(figures) = figures else {
                table.row([level.name(), "-".into()]);
                continue;
            };
            let of_l1 = level.of_l1(&self.boots).and_then(|l1| ratio(figures.instructions, l1.instructions));
            let mut row = vec![level.name(), figures.instructions.to_string(), number(of_l1, 3)];
            let count = |name: &str| figures.counters.get(name).copied();
            if let Some(entries) = count("nested.entries") {
                let faults = count("nested.exits_guest_page").unwrap_or(0);
                row.extend([
                    entries.to_string(),
                    number(ratio(count("nested.traps").unwrap_or(0), entries), 2),
                    number(ratio(100 * count("nested.second_faults").unwrap_or(0), faults), 2),
                ]);
            }
            table.row(row);
        }
        Block::Table("Debian's kernel from its entry to the power-off".into(), table)
    }

    fn builds(&self, core: &str) -> Block {
        let mut table = Table::new(["compiler", "instructions", "/ L1", "walks", "refs/walk", "cycles", "/ L1"]);
        for (level, figures) in &self.builds {
            let found = figures.as_ref().ok().and_then(|figures| Some((figures, figures.cores.get(core)?)));
            let Some((figures, &(cycles, walks, refs))) = found else {
                table.row([level.name(), "-".into()]);
                continue;
            };
            let l1 = level.of_l1(&self.builds);
            let l1_cycles = l1.and_then(|l1| Some(l1.cores.get(core)?.0));
            table.row([
                level.name(),
                figures.instructions.to_string(),
                number(l1.and_then(|l1| ratio(figures.instructions, l1.instructions)), 3),
                walks.to_string(),
                number(ratio(refs, walks), 2),
                cycles.to_string(),
                number(l1_cycles.and_then(|l1| ratio(cycles, l1)), 3),
            ]);
        }
        Block::Table(format!("A compiler's run; TLBs and walks of core {core}"), table)
    }

    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        let all = [("a boot", &self.boots), ("the compiler", &self.builds)];
        all.into_iter().flat_map(|(kind, runs)| {
            runs.iter().filter_map(move |(level, run)| {
                Some(format!("nested, {kind} on {}: {}", level.name(), run.as_ref().err()?))
            })
        })
    }

    pub(super) fn json(&self) -> Value {
        let of = |runs: &[(Level, Result<Figures, String>)]| {
            let of = |(level, figures): &(Level, Result<Figures, String>)| json!({ "machine": level.name(), "figures": figures });
            runs.iter().map(of).collect::<Vec<_>>()
        };
        json!({ "boots": of(&self.boots), "compiler": of(&self.builds) })
    }
}

impl Level {
    fn name(self) -> String {
        format!("{}, {}", self.0, LEVELS[self.1].0)
    }

    /// The figures of the same subject without a hypervisor in its guest.
    fn of_l1(self, all: &[(Self, Result<Figures, String>)]) -> Option<&Figures> {
        all.iter().find(|(level, _)| *level == Self(self.0, 0))?.1.as_ref().ok()
    }

    fn boot(self, lab: &Lab, loads: &Loads, svadu: bool) -> miette::Result<Figures> {
        let machine = Machine { subject: self.0, has_few_devices: false, nesting: LEVELS[self.1].1 };
        let (instructions, counters) = loads.whole(lab, machine, (VARIANTS[0].1, svadu))?;
        Ok(Figures { instructions, counters, ..Figures::default() })
    }

    fn build(self, lab: &Lab, workload: &Workload, choice: &Choice) -> miette::Result<Figures> {
        let load = Load {
            // Programs of the kernel that guests boot have no `time` as L2 under KVM on such harts.
            kernel: HostKernel::newest()?.image,
            initrd: Some(workload.initrd.clone()),
            append: command_line(),
            memory: workload.memory,
            svadu: choice.svadu,
            keeping: Keeping::Demand,
            has_few_devices: false,
            processors: Processors::ONE,
            devices: workload.devices.clone(),
            nesting: LEVELS[self.1].1,
        };
        let run = lab.run(self.0, &load).and_then(|run| complete(run, workload))?;
        Figures::of(run, workload)
    }
}

impl Figures {
    fn of(run: Run, workload: &Workload) -> miette::Result<Self> {
        let mut figures = Self::default();
        for region in &workload.regions {
            let counts: Counts = run.counts(region.label)?;
            figures.instructions += counts.instructions();
            for (name, core) in &counts.cores {
                let sum = figures.cores.entry(name.clone()).or_default();
                sum.0 += core.cycles_estimated.model;
                sum.1 += core.walks();
                sum.2 += core.refs();
            }
        }
        figures.counters = run.counters;
        Ok(figures)
    }
}
