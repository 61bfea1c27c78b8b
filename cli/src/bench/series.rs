//! A series: one test guest, run on each subject with several arguments, and what it cost each time.

use super::{Choice, Subject, two_at_a_time, watch};
use crate::build;
use crate::progress::Step;
use crate::qemu::Clock;
use crate::run::{self, RunSpec};
use crate::size::Size;
use crate::vmfile::{Kernel, VmFile};
use abi::bundle::{ConsoleMode, MmuMode};
use abi::record::EndReason;
use abi::report::{self, Line};
use miette::miette;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// RAM of the VM: the guests need some ten MiB.
const MEMORY: Size = Size(64 << 20);

/// What is run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The test guest.
    pub guest: &'static str,
    /// Its arguments in each run.
    pub points: Vec<String>,
    /// Its arguments in a run whose counters are subtracted from those of all others.
    pub baseline: Option<String>,
    /// Whether hardware updates of A and D bits are promised.
    pub svadu: bool,
}

/// What one run came to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Point {
    /// What the guest printed.
    pub figures: BTreeMap<String, u64>,
    /// The counters of its VM, less those of the baseline.
    pub counters: BTreeMap<String, u64>,
}

impl Point {
    /// A figure that the guest printed; 0 if it printed none of that name.
    pub fn figure(&self, name: &str) -> u64 {
        self.figures.get(name).copied().unwrap_or(0)
    }

    /// Full exits, but those of Gnomon's own timer, which come with time and not with what a guest does.
    pub fn exits(&self) -> u64 {
        self.counter("exits.total").saturating_sub(self.counter("exits.timer"))
    }

    /// Traps that the fast lane served.
    pub fn lane_traps(&self) -> u64 {
        self.counters.iter().filter(|(name, _)| LANE_TRAPS.contains(&name.as_str())).map(|(_, value)| value).sum()
    }

    /// Traps in total.
    pub fn traps(&self) -> u64 {
        self.exits() + self.lane_traps()
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

/// Counters of traps that the fast lane served: fences by address, of one ASID and of all.
const LANE_TRAPS: [&str; 2] = ["lane.page", "lane.page_global"];

/// A subject's points, in the order of the plan; or why there are none.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Series {
    /// The subject.
    pub subject: Subject,
    /// What was measured.
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
/// If Gnomon or the guests cannot be built. What goes wrong with a subject stands in its series.
pub fn measure(plan: &Plan, choice: &Choice) -> miette::Result<Vec<Series>> {
    let guests = build::guests()?;
    let guest = guests.get(plan.guest).ok_or_else(|| miette!("there is no test guest `{}`", plan.guest))?;
    let programs = Programs { hypervisor: build::hypervisor()?, guest: guest.clone() };
    let step = Step::spinner(&format!("measuring {}", plan.guest));
    two_at_a_time(&choice.subjects(), |subject| {
        step.note(subject.to_string());
        let points = programs.points(plan, *subject).map_err(|why| why.to_string());
        Series { subject: *subject, points }
    })
}

struct Programs {
    hypervisor: PathBuf,
    guest: PathBuf,
}

impl Programs {
    fn points(&self, plan: &Plan, subject: Subject) -> miette::Result<Vec<Point>> {
        let run = |append: &str| run_once(&self.hypervisor, &self.guest, subject, append, plan.svadu);
        let baseline = plan.baseline.as_deref().map(run).transpose()?.unwrap_or_default();
        plan.points.iter().map(|append| Ok(run(append)?.less(&baseline))).collect()
    }
}

fn run_once(hypervisor: &Path, guest: &Path, subject: Subject, append: &str, svadu: bool) -> miette::Result<Point> {
    let vm = VmFile {
        memory: Some(MEMORY),
        kernel: Some(Kernel::File(guest.to_owned())),
        append: Some(append.into()),
        svadu: Some(svadu),
        ..VmFile::default()
    };
    let spec = RunSpec {
        files: vec![subject.variant.applied_to(vm)],
        options: VmFile::default(),
        harts: Some(1),
        h: subject.variant.h,
        seat: subject.seat,
        exec: None,
        clock: Clock::Instructions,
        meter: None,
        qemu_args: Vec::new(),
        console: ConsoleMode::Lines,
    };
    let (machine, _bundle) = run::prepare(&spec, Some(hypervisor))?.machine_and_bundle();
    let (console, outcome) = watch(&machine)?;
    for line in console.lines() {
        if let Some(Line::Fail(why)) = Line::parse(line) {
            return Err(miette!("the guest found a fault: {why}"));
        }
    }
    match outcome.ends.first().map(|end| &end.reason) {
        Some(EndReason::Poweroff) => {}
        Some(EndReason::NotStarted { message } | EndReason::Killed { message }) => return Err(miette!("{message}")),
        other => return Err(miette!("the guest did not come to its end: {other:?}")),
    }
    let stats = outcome.stats.ok_or_else(|| miette!("Gnomon printed no counters"))?;
    let counters = stats.vms.into_iter().next().map(|vm| vm.counters).unwrap_or_default();
    let figures = console.lines().filter_map(report::figure).map(|(name, value)| (name.to_owned(), value)).collect();
    Ok(Point { figures, counters })
}

/// Series that stand beside each other: those of one seat and one kind of harts.
pub struct Group<'a> {
    /// What they have in common.
    pub title: String,
    /// The series.
    pub series: Vec<&'a Series>,
}

impl Group<'_> {
    /// The headings of its columns.
    pub fn headings(&self) -> impl Iterator<Item = String> {
        self.series.iter().map(|series| {
            let Subject { variant, .. } = series.subject;
            let lane = if variant.lane { "" } else { ", no lane" };
            format!("{}{lane}", variant.mmu.map_or("default", MmuMode::name))
        })
    }
}

/// Groups series as [`Choice::subjects`] orders them.
pub fn groups(all: &[Series]) -> Vec<Group<'_>> {
    let common = |series: &Series| (series.subject.seat, series.subject.variant.h);
    let group = |series: &'_ [Series]| -> String {
        let (seat, h) = common(&series[0]);
        let h = if h == crate::qemu::HExtension::Present { "with" } else { "without" };
        format!("{} seat, harts {h} H", seat.name())
    };
    all.chunk_by(|a, b| common(a) == common(b))
        .map(|series| Group { title: group(series), series: series.iter().collect() })
        .collect()
}

/// Why subjects could not be measured.
pub fn failures(all: &[Series]) -> Vec<String> {
    let failure = |series: &Series| Some(format!("{}: {}", series.subject, series.points.as_ref().err()?));
    all.iter().filter_map(failure).collect()
}

/// A cell: what is to be said of a point, or a dash.
pub fn cell(point: Option<&Point>, say: impl Fn(&Point) -> String) -> String {
    point.map_or_else(|| "-".into(), say)
}

/// The software measured.
///
/// # Errors
/// If QEMU is not there.
pub fn versions() -> miette::Result<String> {
    Ok(format!(
        "gnomon {}, QEMU {}; 1 hart, 1 vCPU, {MEMORY}, -icount shift=0",
        env!("CARGO_PKG_VERSION"),
        crate::qemu::version()?
    ))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::qemu::{HExtension, Seat};
    use crate::variant::Variant;

    /// Names and values.
    type Pairs<'a> = &'a [(&'a str, u64)];

    /// A series with these figures and counters at each point.
    pub fn series(seat: Seat, mmu: MmuMode, lane: bool, points: &[(Pairs<'_>, Pairs<'_>)]) -> Series {
        let map = |pairs: Pairs<'_>| pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let points = points.iter().map(|(figures, counters)| Point { figures: map(figures), counters: map(counters) });
        let variant = Variant { mmu: Some(mmu), h: HExtension::Present, lane };
        Series { subject: Subject { seat, variant }, points: Ok(points.collect()) }
    }

    #[test]
    fn traps_are_counted_by_difference() {
        let point = |total, timer, lane| {
            let counters = [("exits.total", total), ("exits.timer", timer), ("lane.page", lane), ("lane.bail", 50)];
            series(Seat::Firmware, MmuMode::Lazy, true, &[(&[], &counters)]).points.expect("points").remove(0)
        };
        let point = point(130, 10, 1020).less(&point(100, 7, 20));
        assert_eq!((point.exits(), point.lane_traps(), point.traps()), (27, 1000, 1027));
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
