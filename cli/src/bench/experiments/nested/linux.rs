//! Linux as L2, the guest of a guest: boots of Debian's kernel, the first touch of much memory, and a compiler.

use crate::bench::experiments::boot::{Loads, Machine, VARIANTS};
use crate::bench::experiments::linux::{command_line, complete, number, ratio};
use crate::bench::in_parallel;
use crate::bench::lab::counts::Counts;
use crate::bench::lab::progress::Progress;
use crate::bench::lab::subject::{Choice, Extra, Subject};
use crate::bench::lab::{Keeping, Lab, Load, Nesting, Processors, Run};
use crate::bench::output::report::Block;
use crate::bench::output::table::Table;
use crate::guest::debian::HostKernel;
use crate::subject::kvm::KvmKernel;
use crate::subject::workload::{HugePages, Kind, Region, Scale, TOUCH, Workload};
use abi::bundle::{L2Tables, MmuMode};
use miette::miette;
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
    /// The bare machine first.
    programs: Runs<Programs>,
}

/// The result of each machine, or why there is none.
type Runs<T> = Vec<(Level, Result<T, String>)>;

/// The bare machine.
const BARE: Level = Level(Subject::Native, 0);

/// The most instructions of the first touch of memory in L2, those of the bare machine being 1.
const TOUCH_AT_MOST: f64 = 3.0;

/// The programs of one boot.
struct Programs {
    /// The first touch of memory.
    touch: Touch,
    /// The compiler's regions, all together.
    build: Figures,
}

/// The first touch of memory.
#[derive(Serialize)]
struct Touch {
    pages: u64,
    instructions: u64,
    /// Exits to Gnomon; on the bare machine, to the firmware.
    exits: u64,
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
        let workload = Kind::Nested.provide(Scale::Quick, HugePages::Never)?;
        let machines = levels.iter().flat_map(|level| [(*level, false), (*level, true)]);
        let jobs: Vec<_> = std::iter::once((BARE, true)).chain(machines).collect();
        let step = Progress::begin("nested", jobs.len());
        let runs = in_parallel(&jobs, |&(level, has_programs)| {
            let run = if has_programs {
                level.programs(lab, &workload, choice).map(Done::Programs)
            } else {
                level.boot(lab, &loads, choice.svadu).map(Done::Boot)
            };
            step.done(&format!("{}, {}", level.name(), if has_programs { "programs" } else { "boot" }));
            run.map_err(|why| why.to_string())
        });
        let mut all = Self { boots: Vec::new(), programs: Vec::new() };
        for ((level, has_programs), run) in jobs.into_iter().zip(runs) {
            match run {
                Ok(Done::Boot(figures)) => all.boots.push((level, Ok(figures))),
                Ok(Done::Programs(programs)) => all.programs.push((level, Ok(programs))),
                Err(why) if has_programs => all.programs.push((level, Err(why))),
                Err(why) => all.boots.push((level, Err(why))),
            }
        }
        Ok(all)
    }

    pub(super) fn blocks(&self, cores: &[&str]) -> Vec<Block> {
        let mut blocks = vec![self.boots(), self.touches()];
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

    /// The quotient of a machine's instructions for the touch and those of the bare machine.
    fn of_bare(&self, touch: &Touch) -> Option<f64> {
        let (_, bare) = self.programs.iter().find(|(level, _)| *level == BARE)?;
        ratio(touch.instructions, bare.as_ref().ok()?.touch.instructions)
    }

    fn touches(&self) -> Block {
        let mut table = Table::new(["touch", "instructions", "/ page", "exits/page", "/ native", "at most"]);
        for (level, programs) in &self.programs {
            let Ok(Programs { touch, .. }) = programs else {
                table.row([level.name(), "-".into()]);
                continue;
            };
            table.row([
                level.name(),
                touch.instructions.to_string(),
                number(ratio(touch.instructions, touch.pages), 1),
                number(ratio(touch.exits, touch.pages), 2),
                number(self.of_bare(touch), 3),
                level.touch_at_most().map_or_else(String::new, |most| number(Some(most), 1)),
            ]);
        }
        Block::Table("First stores to 64 MiB of new memory, one for each page of 4 KiB".into(), table)
    }

    fn builds(&self, core: &str) -> Block {
        let mut table = Table::new(["compiler", "instructions", "/ L1", "walks", "refs/walk", "cycles", "/ L1"]);
        for (level, programs) in &self.programs {
            let figures = programs.as_ref().ok().map(|programs| &programs.build);
            let found = figures.and_then(|figures| Some((figures, figures.cores.get(core)?)));
            let Some((figures, &(cycles, walks, refs))) = found else {
                table.row([level.name(), "-".into()]);
                continue;
            };
            let l1 = level.of_l1(&self.programs).map(|programs| &programs.build);
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
        let boots = self.boots.iter().map(|(level, run)| ("a boot", level, run.as_ref().err()));
        let programs = self.programs.iter().map(|(level, run)| ("the programs", level, run.as_ref().err()));
        let failure = |(kind, level, why): (_, &Level, Option<&String>)| {
            Some(format!("nested, {kind} on {}: {}", level.name(), why?))
        };
        boots.chain(programs).filter_map(failure)
    }

    pub(super) fn json(&self) -> Value {
        let boots = self.boots.iter().map(|(level, run)| json!({ "machine": level.name(), "figures": run }));
        let build = |(level, run): &(Level, Result<Programs, String>)| json!({ "machine": level.name(), "figures": run.as_ref().map(|programs| &programs.build) });
        let touch = |(level, run): &(Level, Result<Programs, String>)| {
            let touch = run.as_ref().map(|programs| &programs.touch);
            json!({
                "machine": level.name(), "figures": touch,
                "of_native": touch.ok().and_then(|touch| self.of_bare(touch)), "at_most": level.touch_at_most(),
            })
        };
        json!({
            "boots": boots.collect::<Vec<_>>(),
            "touch": self.programs.iter().map(touch).collect::<Vec<_>>(),
            "compiler": self.programs.iter().map(build).collect::<Vec<_>>(),
        })
    }
}

impl Level {
    fn name(self) -> String {
        if self == BARE { self.0.to_string() } else { format!("{}, {}", self.0, LEVELS[self.1].0) }
    }

    /// The most instructions of the touch, those of the bare machine being 1.
    fn touch_at_most(self) -> Option<f64> {
        (LEVELS[self.1].1 != Nesting::None).then_some(TOUCH_AT_MOST)
    }

    /// The figures of the same subject without a hypervisor in its guest.
    fn of_l1<T>(self, all: &Runs<T>) -> Option<&T> {
        let (_, run) = all.iter().find(|(level, _)| *level == Self(self.0, 0) && *level != BARE)?;
        run.as_ref().ok()
    }

    fn boot(self, lab: &Lab, loads: &Loads, svadu: bool) -> miette::Result<Figures> {
        let machine = Machine { subject: self.0, has_few_devices: false, nesting: LEVELS[self.1].1 };
        let (instructions, counters) = loads.whole(lab, machine, (VARIANTS[0].1, svadu))?;
        Ok(Figures { instructions, counters, ..Figures::default() })
    }

    fn programs(self, lab: &Lab, workload: &Workload, choice: &Choice) -> miette::Result<Programs> {
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
        let (touch, build): (Vec<_>, Vec<_>) = workload.regions.iter().partition(|region| region.name == TOUCH);
        let touch = touch.first().ok_or_else(|| miette!("the workload touches no memory"))?;
        Ok(Programs { touch: Touch::of(self.0, &run, touch)?, build: Figures::of(run, &build)? })
    }
}

/// The result of a job.
enum Done {
    Boot(Figures),
    Programs(Programs),
}

impl Touch {
    fn of(subject: Subject, run: &Run, region: &Region) -> miette::Result<Self> {
        let counts: Counts = run.counts(region.label)?;
        Ok(Self { pages: region.operations, instructions: counts.instructions(), exits: counts.exits(subject) })
    }
}

impl Figures {
    fn of(run: Run, regions: &[Region]) -> miette::Result<Self> {
        let mut figures = Self::default();
        for region in regions {
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
