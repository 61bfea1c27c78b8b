//! A series: one test guest, run on each subject with several arguments, and what it cost each time.

use super::linux::{number, ratio};
use crate::bench::in_parallel;
use crate::bench::lab::counts::{CoreCounts, Counts};
use crate::bench::lab::progress::Progress;
use crate::bench::lab::subject::{Choice, Extra, Subject};
use crate::bench::lab::{Keeping, Lab, Load, Nesting, Processors};
use crate::bench::output::report::{Block, Chart, ChartKind, Line};
use crate::bench::output::table::Table;
use crate::host::parts;
use crate::host::size::Size;
use crate::subject::workload::Devices;
use abi::bundle::{L2Tables, MmuMode};
use miette::miette;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// RAM of the VM for most guests: they need some ten MiB.
pub const MEMORY: Size = Size(64 << 20);

/// The runs of a series.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The experiment.
    pub name: &'static str,
    /// The test guest.
    pub guest: &'static str,
    /// Its arguments in each run.
    pub points: Vec<String>,
    /// Its arguments in a run whose counters are subtracted from those of all others.
    pub baseline: Option<String>,
    /// Set if hardware updates of A and D bits are promised.
    pub svadu: bool,
    /// Set if KVM can take part: the guest times nothing that a tick of the host could fall into.
    pub has_kvm: bool,
    /// The hypervisor in the guest. With one, mode `two-stage` alone can take part.
    pub nesting: Nesting,
    /// RAM of the VM.
    pub memory: Size,
}

impl Plan {
    /// The runs of the guest `l1`, a hypervisor, at these points, with a VM of that size.
    #[must_use]
    pub fn of_l1(name: &'static str, points: Vec<String>, l2: L2Tables, memory: Size) -> Self {
        let nesting = Nesting::Itself(l2);
        Self { name, guest: "l1", points, baseline: None, svadu: false, has_kvm: false, nesting, memory }
    }
}

/// The result of one run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Point {
    /// The figures that the guest printed.
    pub figures: BTreeMap<String, u64>,
    /// On Gnomon, the counters of its VM, less those of the baseline.
    pub counters: BTreeMap<String, u64>,
    /// The meter's counts between the guest's markers, if it set them.
    pub region: Option<Value>,
}

impl Point {
    /// A figure that the guest printed; 0 if it printed none of that name.
    pub fn figure(&self, name: &str) -> u64 {
        self.figures.get(name).copied().unwrap_or(0)
    }

    /// Full exits, but those of the hypervisor's own timer, which come with time and not with what a guest does:
    /// by Gnomon's counters, elsewhere by the meter.
    pub fn exits(&self, subject: Subject) -> u64 {
        match subject {
            Subject::Gnomon(_) => self.counter("exits.total").saturating_sub(self.counter("exits.timer")),
            Subject::Native | Subject::Kvm { .. } => self.counts().map_or(0, |counts| {
                let exits = counts.exits_by_cause(subject);
                exits.iter().filter(|(cause, _)| !cause.contains("timer")).map(|(_, exits)| exits.count).sum()
            }),
        }
    }

    /// The meter's counts, if the guest set markers.
    pub fn counts(&self) -> Option<Counts> {
        Counts::read(self.region.as_ref()?).ok()
    }

    /// Traps that the fast lane served.
    pub fn lane_traps(&self) -> u64 {
        self.counter("lane.page") + self.counter("lane.page_global")
    }

    /// Traps in total.
    pub fn traps(&self, subject: Subject) -> u64 {
        self.exits(subject) + self.lane_traps()
    }

    fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    fn less(mut self, baseline: &Self) -> Self {
        for (name, value) in &mut self.counters {
            *value = value.saturating_sub(baseline.counter(name));
        }
        self
    }
}

/// A subject's points, in the order of the plan; or why there are none.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Series {
    /// The subject.
    pub subject: Subject,
    /// The results.
    pub points: Result<Vec<Point>, String>,
}

impl Series {
    /// A point, if the subject could be measured.
    pub fn point(&self, at: usize) -> Option<&Point> {
        self.points.as_ref().ok()?.get(at)
    }
}

/// Runs a plan on the chosen subjects.
///
/// # Errors
/// If the guests cannot be built. What goes wrong with a subject stands in its series.
pub fn measure(plan: &Plan, lab: &Lab, choice: &Choice) -> miette::Result<Vec<Series>> {
    let can = |subject: &Subject| match subject {
        Subject::Gnomon(gnomon) => plan.nesting == Nesting::None || gnomon.variant.mmu == Some(MmuMode::TwoStage),
        Subject::Native => plan.nesting == Nesting::None,
        Subject::Kvm { .. } => plan.has_kvm,
    };
    let choice = Choice { svadu: choice.svadu || plan.svadu, ..choice.clone() };
    let subjects = choice.subjects(plan.name, Extra::None, can)?;
    let guests = parts::guests()?;
    let guest = guests.get(plan.guest).ok_or_else(|| miette!("there is no test guest `{}`", plan.guest))?;
    let step = Progress::begin(plan.name, subjects.len());
    Ok(in_parallel(&subjects, |&subject| {
        let points = points(plan, lab, guest, subject).map_err(|why| why.to_string());
        step.done(&format!("{} on {subject}", plan.name));
        Series { subject, points }
    }))
}

fn points(plan: &Plan, lab: &Lab, guest: &std::path::Path, subject: Subject) -> miette::Result<Vec<Point>> {
    let run = |append: &str| -> miette::Result<Point> {
        let (kernel, append) = (guest.to_owned(), append.to_owned());
        let (memory, svadu) = (plan.memory, plan.svadu);
        let run = lab.run(
            subject,
            &Load {
                kernel,
                initrd: None,
                append,
                memory,
                svadu,
                keeping: Keeping::Demand,
                has_few_devices: false,
                processors: Processors::ONE,
                devices: Devices::default(),
                nesting: plan.nesting,
            },
        )?;
        let region = run.regions.into_iter().next().map(|region| region.total);
        Ok(Point { figures: run.figures, counters: run.counters, region })
    };
    let baseline = plan.baseline.as_deref().map(run).transpose()?.unwrap_or_default();
    plan.points.iter().map(|append| Ok(run(append)?.less(&baseline))).collect()
}

/// Series that stand beside each other: those of one seat and one kind of harts.
pub struct Group<'a> {
    /// The common title.
    pub title: String,
    /// The series.
    pub series: Vec<&'a Series>,
}

impl Group<'_> {
    /// Returns whether the group is the bare machine.
    pub fn is_native(&self) -> bool {
        self.series.iter().all(|series| series.subject == Subject::Native)
    }

    /// The headings of its columns.
    pub fn headings(&self) -> impl Iterator<Item = String> {
        self.series.iter().map(|series| series.subject.short())
    }

    /// Traps and instructions against the points: plots, with what a paper gives of traps, and a table of the instructions.
    pub fn plots(&self, x: (&str, &[f64]), paper: Vec<Line>) -> [Block; 3] {
        let instructions = |point: &Point| point.counts().map(|counts| counts.instructions());
        let mut table = Table::new(std::iter::once(String::new()).chain(self.headings()));
        for (at, value) in x.1.iter().enumerate() {
            let each = |series: &&Series| {
                series.point(at).and_then(instructions).map_or_else(|| "-".into(), |count| count.to_string())
            };
            table.row(std::iter::once(value.to_string()).chain(self.series.iter().map(each)));
        }
        [
            Block::Table(format!("{}: instructions, all privilege modes; {}", self.title, x.0), table),
            self.lines("traps", x, paper, |subject, point| point.traps(subject) as f64),
            self.lines("instructions", x, Vec::new(), |_, point| instructions(point).unwrap_or(0) as f64),
        ]
    }

    /// A plot of something against the points.
    fn lines(&self, what: &str, x: (&str, &[f64]), paper: Vec<Line>, say: impl Fn(Subject, &Point) -> f64) -> Block {
        let line = |series: &&Series| {
            let points = series.points.as_deref().unwrap_or_default();
            let points = x.1.iter().zip(points).map(|(x, point)| (*x, say(series.subject, point)));
            Line { name: series.subject.short(), points: points.collect() }
        };
        let lines = self.series.iter().map(line).collect();
        let kind = ChartKind::Lines { axes: [x.0.into(), what.into()], lines, paper };
        Block::Chart(Chart { title: format!("{}: {what}", self.title), kind })
    }
}

/// Groups series as [`Choice::all`] orders them.
pub fn groups(all: &[Series]) -> Vec<Group<'_>> {
    all.chunk_by(|a, b| a.subject.group() == b.subject.group())
        .map(|series| Group { title: series[0].subject.group(), series: series.iter().collect() })
        .collect()
}

/// The meter's counts at a point, a row for each subject: instructions, and for each core its misses and walks.
pub fn metered(all: &[Series], lab: &Lab, at: usize, title: &str) -> Vec<Block> {
    let counts: Vec<_> = all.iter().map(|series| (series.subject, series.point(at).and_then(Point::counts))).collect();
    let native = counts.iter().find(|(subject, _)| *subject == Subject::Native).and_then(|(_, counts)| counts.as_ref());
    let table = |core: &str| {
        let mut table = Table::new([
            "",
            "instructions",
            "/ native",
            "of those host's",
            "L1 misses",
            "walks",
            "refs/walk",
            "refs/4K walk",
            "cycles / native",
        ]);
        for (subject, counts) in &counts {
            let of = counts.as_ref().and_then(|counts| Some((counts, counts.cores.get(core)?)));
            let Some((counts, of)) = of else {
                table.row([subject.to_string(), "-".into()]);
                continue;
            };
            let all = counts.instructions();
            let cycles = |core: &CoreCounts| core.cycles_estimated.model;
            let native_core = native.and_then(|native| native.cores.get(core));
            table.row([
                subject.to_string(),
                all.to_string(),
                number(native.and_then(|native| ratio(all, native.instructions())), 3),
                format!("{:.1} %", 100.0 * ratio(counts.host_instructions(*subject), all).unwrap_or(0.0)),
                of.misses().to_string(),
                of.walks().to_string(),
                number(ratio(of.refs(), of.walks()), 2),
                number(of.refs_per_4k_walk(*subject), 2),
                number(native_core.and_then(|native| ratio(cycles(of), cycles(native))), 3),
            ]);
        }
        Block::Table(format!("{title}, core {core}"), table)
    };
    lab.cores().map(table).collect()
}

/// Returns the reasons why subjects could not be measured, a line each.
pub fn failures(all: &[Series]) -> Vec<String> {
    let failure = |series: &Series| Some(format!("{}: {}", series.subject, series.points.as_ref().err()?));
    all.iter().filter_map(failure).collect()
}

/// A cell: what is to be said of a point, or a dash.
pub fn cell(point: Option<&Point>, say: impl Fn(&Point) -> String) -> String {
    point.map_or_else(|| "-".into(), say)
}

/// The software measured, and how.
pub fn versions(lab: &Lab) -> String {
    format!("{}; 1 hart, 1 vCPU, {MEMORY}, -icount shift=0", lab.versions())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bench::lab::subject::Gnomon;
    use crate::machine::board::{HExtension, Seat};
    use crate::subject::variant::Variant;
    use abi::bundle::MmuMode;

    /// Names and values.
    type Pairs<'a> = &'a [(&'a str, u64)];

    /// A series with these figures and counters at each point.
    pub fn series(seat: Seat, mmu: MmuMode, lane: bool, points: &[(Pairs<'_>, Pairs<'_>)]) -> Series {
        let map = |pairs: Pairs<'_>| pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let point = |(figures, counters): &(Pairs<'_>, Pairs<'_>)| Point {
            figures: map(figures),
            counters: map(counters),
            region: None,
        };
        let variant = Variant { mmu: Some(mmu), h: HExtension::Present, lane };
        let subject = Subject::Gnomon(Gnomon { seat, variant, superpages: true, without: None, vkernel: None });
        Series { subject, points: Ok(points.iter().map(point).collect()) }
    }

    #[test]
    fn traps_are_counted_by_difference() {
        let point = |total, timer, lane| {
            let counters = [("exits.total", total), ("exits.timer", timer), ("lane.page", lane), ("lane.bail", 50)];
            series(Seat::Firmware, MmuMode::Lazy, true, &[(&[], &counters)])
        };
        let subject = point(0, 0, 0).subject;
        let point = |total, timer, lane| point(total, timer, lane).points.expect("points").remove(0);
        let point = point(130, 10, 1020).less(&point(100, 7, 20));
        assert_eq!((point.exits(subject), point.lane_traps(), point.traps(subject)), (27, 1000, 1027));
    }

    #[test]
    fn series_are_grouped() {
        let of = |seat, mmu| series(seat, mmu, true, &[]);
        let mut all = vec![
            of(Seat::Firmware, MmuMode::Shadow),
            of(Seat::Firmware, MmuMode::Lazy),
            of(Seat::Payload, MmuMode::Lazy),
        ];
        let groups = groups(&all);
        assert_eq!(groups.iter().map(|group| group.series.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(groups[0].headings().collect::<Vec<_>>(), ["shadow", "lazy"]);
        assert!(groups[1].title.starts_with("payload seat, harts with H"));
        all[1].points = Err("no memory".into());
        assert_eq!(failures(&all), ["firmware/lazy: no memory"]);
    }
}
