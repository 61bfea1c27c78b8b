//! Workloads under Linux: the same kernel, initramfs and command line on every subject, and for each marked
//! region what the meter counted there.

use crate::bench::in_parallel;
use crate::bench::lab::counts::{CoreCounts, Counts, Exits};
use crate::bench::lab::progress::Progress;
use crate::bench::lab::subject::{Choice, Extra, Gnomon, Subject};
use crate::bench::lab::{Keeping, Lab, Load, Nesting, Processors, Run};
use crate::bench::output::report::{Block, Chart, ChartKind, Report};
use crate::bench::output::table::Table;
use crate::guest::debian::{LEAN, Software};
use crate::machine::board::{HExtension, Seat};
use crate::subject::variant::Variant;
use crate::subject::workload::{Region, Scale, Workload};
use abi::bundle::MmuMode;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The guest's command line. What [`LEAN`] leaves out belongs to no region. Sv39, so that walks have the papers' lengths.
pub fn command_line() -> String {
    format!("console=ttyS0 quiet panic=-1 norandmaps no4lvl {LEAN}")
}

/// Causes of exits that a plot shows; the others are one part.
const CAUSES_SHOWN: usize = 8;

/// An experiment.
#[derive(Debug)]
pub struct Plan {
    /// Its name on the command line.
    pub name: &'static str,
    /// The experiment, in a line.
    pub title: String,
    /// The method, and the papers' figures, in paragraphs.
    pub lead: Vec<String>,
    /// A caveat for the reader.
    pub misleads: String,
    /// The cases to run on each subject.
    pub cases: Vec<Case>,
    /// Which subjects take part beside those of all experiments.
    pub extra: Extra,
    /// The size of the workloads.
    pub scale: Scale,
}

/// Something to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Case {
    /// The difference to the other cases; empty if it is the only one.
    pub name: String,
    /// The initramfs and its regions.
    pub workload: Workload,
    /// Set if guests of Gnomon's are promised hardware updates of A and D.
    pub svadu: bool,
    /// The way in which Gnomon keeps the guest's memory.
    pub keeping: Keeping,
    /// vCPUs of the guest, under a hypervisor, all on one hart.
    pub vcpus: u32,
}

/// A subject, and what it came to, or why to nothing.
pub type Outcome = (Subject, Result<Run, String>);

/// The results of an experiment.
#[derive(Debug)]
pub struct Results {
    /// For each case in the plan's order, each subject and its run, or why there is none.
    pub cases: Vec<(Case, Vec<Outcome>)>,
}

impl Results {
    /// The subjects that took part.
    #[must_use]
    pub fn subjects(&self) -> Vec<Subject> {
        self.cases.first().map(|(_, runs)| runs.iter().map(|(subject, _)| *subject).collect()).unwrap_or_default()
    }

    /// The counts of a region.
    #[must_use]
    pub fn counts(&self, case: usize, subject: Subject, region: &Region) -> Option<Counts> {
        let (_, runs) = self.cases.get(case)?;
        let (_, run) = runs.iter().find(|(other, _)| *other == subject)?;
        run.as_ref().ok()?.counts(region.label).ok()
    }
}

impl Plan {
    /// Runs all of it.
    ///
    /// # Errors
    /// If something is missing. What goes wrong with a subject stands in its results.
    pub fn run(&self, lab: &Lab, choice: &Choice) -> miette::Result<Results> {
        let has_share = self.cases.iter().any(|case| case.workload.devices.has_share);
        let can = |subject: &Subject| !(has_share && matches!(subject, Subject::Kvm { .. }));
        let subjects = choice.subjects(self.name, self.extra, can)?;
        let kernel = Software::Kernel.provide()?;
        let promise = |case: &Case| Case { svadu: case.svadu || choice.svadu, ..case.clone() };
        let cases: Vec<_> = self.cases.iter().map(promise).collect();
        let jobs: Vec<_> = cases.iter().flat_map(|case| subjects.iter().map(move |subject| (case, *subject))).collect();
        let step = Progress::begin(self.name, jobs.len());
        let mut runs = in_parallel(&jobs, |(case, subject)| {
            let load = Load {
                kernel: kernel.file.clone(),
                initrd: Some(case.workload.initrd.clone()),
                append: command_line(),
                memory: case.workload.memory,
                svadu: case.svadu,
                keeping: case.keeping,
                has_few_devices: false,
                processors: Processors {
                    vcpus: if *subject == Subject::Native { 1 } else { case.vcpus },
                    ..Processors::ONE
                },
                devices: case.workload.devices.clone(),
                nesting: Nesting::None,
            };
            let run = lab.run(*subject, &load).and_then(|run| complete(run, &case.workload));
            step.done(&format!("{}{} on {subject}", self.name, case.suffix()));
            run.map_err(|why| why.to_string())
        })
        .into_iter();
        let cases = cases.iter().map(|case| {
            let mut runs: Vec<_> = subjects.iter().copied().zip(runs.by_ref()).collect();
            agree(&mut runs);
            (case.clone(), runs)
        });
        Ok(Results { cases: cases.collect() })
    }

    /// The report: for each case and region, tables and plots; `summary` stands before them.
    ///
    /// # Errors
    /// If the meter's report is not understood.
    pub fn report(&self, lab: &Lab, results: &Results, summary: Vec<Block>) -> miette::Result<Report> {
        let mut blocks = summary;
        let cores: Vec<_> = lab.cores().collect();
        for (at, (case, runs)) in results.cases.iter().enumerate() {
            for region in &case.workload.regions {
                let counts = runs.iter().map(|(subject, _)| (*subject, results.counts(at, *subject, region)));
                blocks.extend(Shown { case, region, counts: counts.collect() }.blocks(&cores));
            }
        }
        let failures = results.cases.iter().flat_map(|(case, runs)| {
            let failed = |(subject, run): &Outcome| {
                Some(format!("{}{} on {subject}: {}", self.name, case.suffix(), run.as_ref().err()?))
            };
            runs.iter().filter_map(failed).collect::<Vec<_>>()
        });
        let mut lead = self.lead.clone();
        let packages: Vec<_> =
            results.cases.first().map(|(case, _)| case.workload.versions.clone()).unwrap_or_default();
        let kernel = Software::Kernel.provide()?;
        let vcpus = results.cases.first().map_or(1, |(case, _)| case.vcpus);
        lead.push(format!(
            "{}; {} {}; 1 hart, {vcpus} vCPU{}, -icount shift=0{}; size: {}; {}",
            lab.versions(),
            kernel.name,
            kernel.version,
            if vcpus == 1 { "" } else { "s" },
            Choice::promise(results.cases.iter().all(|(case, _)| case.svadu)),
            self.scale.name(),
            packages.join(", ")
        ));
        Ok(Report {
            name: self.name,
            title: self.title.clone(),
            lead,
            blocks,
            misleads: self.misleads.clone(),
            json: self.json(lab, results)?,
            failures: failures.collect(),
        })
    }

    fn json(&self, lab: &Lab, results: &Results) -> miette::Result<Value> {
        let case = |(case, runs): &(Case, Vec<Outcome>)| {
            json!({
                "name": case.name,
                "append": command_line(),
                "memory_bytes": case.workload.memory.0,
                "svadu": case.svadu,
                "keeping": case.keeping,
                "vcpus": case.vcpus,
                "packages": case.workload.versions,
                "regions": case.workload.regions,
                "runs": runs.iter().map(|(subject, run)| json!({ "subject": subject, "run": run })).collect::<Vec<_>>(),
            })
        };
        Ok(json!({
            "experiment": self.name,
            "scale": self.scale.name(),
            "versions": lab.versions(),
            "cores": lab.cores().collect::<Vec<_>>(),
            "cases": results.cases.iter().map(case).collect::<Vec<_>>(),
        }))
    }
}

impl Case {
    fn suffix(&self) -> String {
        if self.name.is_empty() { String::new() } else { format!(", {}", self.name) }
    }
}

/// Checks that each region was marked.
pub fn complete(run: Run, workload: &Workload) -> miette::Result<Run> {
    workload.regions.iter().try_for_each(|region| run.counts(region.label).map(drop))?;
    Ok(run)
}

/// Marks subjects as failed whose computed figures differ from the first subject's.
fn agree(runs: &mut [Outcome]) {
    let Some((first, figures)) =
        runs.iter().find_map(|(subject, run)| Some((*subject, run.as_ref().ok()?.figures.clone())))
    else {
        return;
    };
    for (_, run) in runs {
        if let Ok(other) = run
            && other.figures != figures
        {
            *run = Err(format!("it computed {:?}, where {first} computed {figures:?}", other.figures));
        }
    }
}

/// One region of a case.
struct Shown<'a> {
    case: &'a Case,
    region: &'a Region,
    counts: Vec<(Subject, Option<Counts>)>,
}

/// A quotient, if there is one.
pub fn ratio(of: u64, to: u64) -> Option<f64> {
    (to > 0).then(|| of as f64 / to as f64)
}

/// A cell: a number with so many digits behind the point, or a dash.
pub fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

impl Shown<'_> {
    fn title(&self) -> String {
        format!("{}{}", self.region.name, self.case.suffix())
    }

    fn blocks(&self, cores: &[&str]) -> Vec<Block> {
        let title = self.title();
        let mut charts = Vec::new();
        for core in cores.iter().take(1) {
            let cycles = |_: Subject, counts: &Counts| counts.cores.get(*core).map(|core| core.cycles_estimated.model);
            charts.push(self.bars(format!("{title}: modelled cycles, native = 1 ({core})"), cycles));
            let refs = |_: Subject, counts: &Counts| counts.cores.get(*core).map(CoreCounts::refs);
            charts.push(self.bars(format!("{title}: references of page walks, native = 1 ({core})"), refs));
            charts.push(self.histogram(core));
        }
        charts.push(self.bars(format!("{title}: instructions, native = 1"), |_, counts| Some(counts.instructions())));
        charts.push(self.causes());
        let mut blocks = vec![Block::Heading(title.clone())];
        blocks.extend(charts.into_iter().map(Block::Chart));
        blocks.push(self.events());
        blocks.extend(cores.iter().map(|core| self.walks(core)));
        blocks
    }

    /// The figure on the bare machine.
    fn native<T>(&self, of: impl Fn(Subject, &Counts) -> Option<T>) -> Option<T> {
        let (_, counts) = self.counts.iter().find(|(subject, _)| *subject == Subject::Native)?;
        of(Subject::Native, counts.as_ref()?)
    }

    /// Instructions and exits.
    fn events(&self) -> Block {
        let Region { operations, unit, .. } = self.region;
        let mut headings: Vec<String> =
            ["", "instructions", "/ native", "of those host's", "exits", "host instr./exit"].map(Into::into).to_vec();
        if *operations > 1 {
            headings.extend([format!("instr./{unit}"), format!("exits/{unit}")]);
        }
        let mut table = Table::new(headings);
        let native = self.native(|_, counts| Some(counts.instructions()));
        for (subject, counts) in &self.counts {
            let name = subject.to_string();
            let Some(counts) = counts else {
                table.row([name, "-".into()]);
                continue;
            };
            let (all, host, exits) =
                (counts.instructions(), counts.host_instructions(*subject), counts.exits(*subject));
            let mut row = vec![
                name,
                all.to_string(),
                number(native.and_then(|native| ratio(all, native)), 3),
                format!("{:.2} %", 100.0 * ratio(host, all).unwrap_or(0.0)),
                exits.to_string(),
                number(ratio(host, exits), 0),
            ];
            if *operations > 1 {
                row.extend([number(ratio(all, *operations), 1), number(ratio(exits, *operations), 4)]);
            }
            table.row(row);
        }
        Block::Table(format!("{}: instructions and exits", self.title()), table)
    }

    /// The work of a core's modelled TLBs and walker.
    fn walks(&self, core: &str) -> Block {
        let mut table = Table::new([
            "",
            "L1 misses",
            "/ native",
            "walks",
            "refs/walk",
            "refs/4K walk",
            "walk refs / native",
            "cycles / native",
            "(if refs hit",
            "if they miss)",
        ]);
        let native = self.native(|_, counts| counts.cores.get(core).cloned());
        for (subject, counts) in &self.counts {
            let name = subject.to_string();
            let Some(of) = counts.as_ref().and_then(|counts| counts.cores.get(core)) else {
                table.row([name, "-".into()]);
                continue;
            };
            let to = |what: fn(&CoreCounts) -> u64| {
                number(native.as_ref().and_then(|native| ratio(what(of), what(native))), 3)
            };
            table.row([
                name,
                of.misses().to_string(),
                to(CoreCounts::misses),
                of.walks().to_string(),
                number(ratio(of.refs(), of.walks()), 2),
                number(of.refs_per_4k_walk(*subject), 2),
                to(CoreCounts::refs),
                to(|core| core.cycles_estimated.model),
                to(|core| core.cycles_estimated.if_refs_hit),
                to(|core| core.cycles_estimated.if_refs_miss),
            ]);
        }
        Block::Table(format!("{}: TLBs and page walks of core {core}", self.title()), table)
    }

    fn bars(&self, title: String, of: impl Fn(Subject, &Counts) -> Option<u64>) -> Chart {
        let native = self.native(&of);
        let bar = |(subject, counts): &(Subject, Option<Counts>)| {
            let value = counts.as_ref().and_then(|counts| of(*subject, counts));
            (subject.to_string(), value.zip(native).and_then(|(value, native)| ratio(value, native)))
        };
        Chart { title, kind: ChartKind::Bars { bars: self.counts.iter().map(bar).collect(), reference: Some(1.0) } }
    }

    /// Walks of the guest by the number of their references, in per cent.
    fn histogram(&self, core: &str) -> Chart {
        let walks = |subject: Subject, counts: &Option<Counts>| {
            let core = counts.as_ref().and_then(|counts| counts.cores.get(core));
            core.map(|core| core.guest_walks_by_refs(subject)).unwrap_or_default()
        };
        let rows: Vec<_> =
            self.counts.iter().map(|(subject, counts)| (subject.to_string(), walks(*subject, counts))).collect();
        let (parts, mut bars) = stacks(&rows, |refs| format!("{refs} refs"));
        for (_, parts) in &mut bars {
            let sum: f64 = parts.iter().sum();
            parts.iter_mut().for_each(|part| *part *= if sum > 0.0 { 100.0 / sum } else { 0.0 });
        }
        let title = format!("{}: the guest's walks by their references, per cent ({core})", self.title());
        Chart { title, kind: ChartKind::Stacks { parts, bars } }
    }

    fn causes(&self) -> Chart {
        let causes = |(subject, counts): &(Subject, Option<Counts>)| {
            let causes = counts.as_ref().map(|counts| counts.exits_by_cause(*subject)).unwrap_or_default();
            (subject.to_string(), causes.into_iter().map(|(cause, exits)| (cause.to_owned(), exits.count)).collect())
        };
        let rows: Vec<(String, BTreeMap<String, u64>)> = self.counts.iter().map(causes).collect();
        let (parts, bars) = stacks(&rows, ToString::to_string);
        Chart { title: format!("{}: exits by cause", self.title()), kind: ChartKind::Stacks { parts, bars } }
    }
}

/// Makes parts of keys: the largest in the order of the keys, and the rest as one.
fn stacks<K: Ord + Clone>(
    rows: &[(String, BTreeMap<K, u64>)],
    name: impl Fn(&K) -> String,
) -> (Vec<String>, Vec<(String, Vec<f64>)>) {
    let mut sums = BTreeMap::<&K, u64>::new();
    for (key, count) in rows.iter().flat_map(|(_, counts)| counts) {
        *sums.entry(key).or_insert(0) += count;
    }
    let mut by_size: Vec<_> = sums.into_iter().collect();
    by_size.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
    by_size.truncate(CAUSES_SHOWN);
    let mut keys: Vec<&K> = by_size.into_iter().map(|(key, _)| key).collect();
    keys.sort();
    let bar = |counts: &BTreeMap<K, u64>| {
        let shown: Vec<f64> = keys.iter().map(|key| counts.get(key).copied().unwrap_or(0) as f64).collect();
        let rest = counts.values().sum::<u64>() as f64 - shown.iter().sum::<f64>();
        shown.into_iter().chain([rest]).collect()
    };
    let mut bars: Vec<(String, Vec<f64>)> = rows.iter().map(|(name, counts)| (name.clone(), bar(counts))).collect();
    let mut parts: Vec<_> = keys.iter().map(|key| name(key)).collect();
    if bars.iter().any(|(_, parts)| parts.last().is_some_and(|rest| *rest > 0.0)) {
        parts.push("others".into());
    } else {
        bars.iter_mut().for_each(|(_, parts)| parts.truncate(keys.len()));
    }
    (parts, bars)
}

/// Gnomon's `two-stage` in the firmware seat, with superpages or without.
const fn two_stage(superpages: bool) -> Subject {
    let variant = Variant { mmu: Some(MmuMode::TwoStage), h: HExtension::Present, lane: true };
    Subject::Gnomon(Gnomon { seat: Seat::Firmware, variant, superpages, without: None, vkernel: None })
}

/// Gnomon's `two-stage` beside KVM, all regions together: exits, and what those of each cause cost the host.
pub fn beside_kvm(results: &Results) -> Vec<Block> {
    let kvm = |superpages| Subject::Kvm { superpages };
    let subjects = [two_stage(true), kvm(true), two_stage(false), kvm(false)];
    let sums: Vec<_> = subjects.into_iter().filter_map(|subject| Some((subject, sums(results, subject)?))).collect();
    let is_there = |is_kvm| sums.iter().any(|(subject, _)| matches!(subject, Subject::Kvm { .. }) == is_kvm);
    if !is_there(true) || !is_there(false) {
        return Vec::new();
    }
    let mut all = Table::new(["", "exits", "/ two-stage", "host instructions", "per exit"]);
    let base = sums.iter().find(|(subject, _)| *subject == two_stage(true)).map(|(_, sums)| sums.total().count);
    for (subject, sums) in &sums {
        let Exits { count, instructions } = sums.total();
        all.row([
            subject.to_string(),
            count.to_string(),
            number(base.and_then(|base| ratio(count, base)), 2),
            instructions.to_string(),
            number(ratio(instructions, count), 0),
        ]);
    }
    let causes: BTreeSet<_> = sums.iter().flat_map(|(_, sums)| sums.0.keys()).collect();
    let mut by_cause = Table::new(["", "exits", "host instructions", "per exit"]);
    for (cause, (subject, sums)) in causes.iter().flat_map(|cause| sums.iter().map(move |of| (cause, of))) {
        let Exits { count, instructions } = sums.0.get(*cause).copied().unwrap_or_default();
        by_cause.row([
            format!("{cause}, {subject}"),
            count.to_string(),
            instructions.to_string(),
            number(ratio(instructions, count), 0),
        ]);
    }
    vec![
        Block::Table("Gnomon's two-stage mode beside KVM, all regions together".into(), all),
        Block::Table("The same by cause".into(), by_cause),
    ]
}

/// Exits by cause, of all regions of all cases.
struct Sums(BTreeMap<String, Exits>);

impl Sums {
    fn total(&self) -> Exits {
        let mut total = Exits::default();
        self.0.values().for_each(|exits| total.add(*exits));
        total
    }
}

/// The sums of a subject, if it has run everything.
fn sums(results: &Results, subject: Subject) -> Option<Sums> {
    let mut sums = BTreeMap::<_, Exits>::new();
    for (at, (case, _)) in results.cases.iter().enumerate() {
        for region in &case.workload.regions {
            let counts = results.counts(at, subject, region)?;
            for (cause, exits) in counts.exits_by_cause(subject) {
                sums.entry(group_of(cause).to_owned()).or_default().add(exits);
            }
        }
    }
    Some(Sums(sums))
}

/// The group of an exit's cause, without the kind of access that faulted and the setter of a timer.
fn group_of(cause: &str) -> &str {
    match cause {
        _ if cause.ends_with("guest-page fault") => "guest-page fault",
        _ if cause.ends_with("timer interrupt") => "timer interrupt",
        _ => cause,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::lab;
    use crate::bench::lab::counts::tests::{counts, subject};
    use crate::host::size::Size;
    use crate::subject::workload::Devices;

    /// A case of one region, and what subjects came to in it.
    pub fn results(runs: &[(&str, Value)]) -> Results {
        let region = Region { label: 3, name: "cc1", operations: 10, unit: "call" };
        let (initrd, memory) = ("i".into(), Size(1 << 20));
        let workload = Workload {
            name: "test",
            regions: vec![region],
            initrd,
            memory,
            versions: vec![],
            devices: Devices::default(),
        };
        let run = |(name, total): &(&str, Value)| {
            let regions = vec![lab::Region { labels: (3, Some(3)), total: total.clone() }];
            (subject(name), Ok(Run { regions, ..Run::default() }))
        };
        let case = Case { name: String::new(), workload, svadu: false, keeping: Keeping::Demand, vcpus: 1 };
        Results { cases: vec![(case, runs.iter().map(run).collect())] }
    }

    fn rows(blocks: &[Block], title: &str) -> Vec<Vec<String>> {
        let found = blocks.iter().find_map(|block| match block {
            Block::Table(name, table) if name.contains(title) => Some(table.parts().1.to_vec()),
            _ => None,
        });
        found.expect(title)
    }

    #[test]
    fn subjects_stand_beside_the_bare_machine() {
        let mut native = counts(0, 0, 0, 4, 12);
        native["instructions_retired"] = json!({ "U": 1000 });
        native["cores"]["plain"]["cycles_estimated"]["model"] = json!(1000);
        let results = results(&[("native", native), ("firmware/two-stage", counts(1000, 200, 5, 8, 120))]);
        let (case, runs) = &results.cases[0];
        let region = &case.workload.regions[0];
        let of = runs.iter().map(|(subject, _)| (*subject, results.counts(0, *subject, region))).collect();
        let blocks = Shown { case, region, counts: of }.blocks(&["plain"]);
        let events = rows(&blocks, "instructions and exits");
        assert_eq!(events[1], ["firmware/two-stage", "1200", "1.200", "16.67 %", "5", "40", "120.0", "0.5000"]);
        let walks = rows(&blocks, "core plain");
        assert_eq!(walks[1][..8], ["firmware/two-stage", "8", "2.000", "8", "15.00", "15.00", "10.000", "1.200"]);
        let charts = blocks.iter().filter(|block| matches!(block, Block::Chart(chart) if !chart.is_empty()));
        assert_eq!(charts.count(), 5);
    }

    #[test]
    fn kvm_stands_beside_nested() {
        let results =
            results(&[("firmware/two-stage", counts(9, 40, 10, 1, 1)), ("kvm-4k", counts(9, 1000, 50, 1, 1))]);
        let blocks = beside_kvm(&results);
        let all = rows(&blocks, "KVM");
        assert_eq!(all, [["firmware/two-stage", "10", "1.00", "40", "4"], ["kvm-4k", "50", "5.00", "1000", "20"]]);
        let by_cause = [
            ["guest-page fault, firmware/two-stage", "10", "40", "4"],
            ["guest-page fault, kvm-4k", "50", "1000", "20"],
        ];
        assert_eq!(rows(&blocks, "by cause"), by_cause);
        assert!(beside_kvm(&self::results(&[("firmware/two-stage", counts(9, 40, 10, 1, 1))])).is_empty());
    }

    #[test]
    fn who_computes_something_else_has_failed() {
        let run = |value| Ok(Run { figures: BTreeMap::from([("cc1".into(), value)]), ..Run::default() });
        let [native, nested, kvm] = ["native", "firmware/two-stage", "kvm"].map(subject);
        let mut runs = [(native, run(1)), (nested, run(2)), (kvm, run(1))];
        agree(&mut runs);
        assert!(runs[1].1.as_ref().unwrap_err().contains("where native computed"), "{runs:?}");
        assert!(runs[0].1.is_ok() && runs[2].1.is_ok());
    }

    #[test]
    fn parts_beyond_the_largest_are_one() {
        let many: BTreeMap<u64, u64> = (1..=10).map(|key| (key, 100 - key)).collect();
        let (parts, bars) = stacks(&[("a".into(), many)], ToString::to_string);
        assert_eq!((parts.len(), parts[0].as_str(), parts[8].as_str()), (9, "1", "others"));
        assert_eq!((bars[0].1[0], bars[0].1[8]), (99.0, 91.0 + 90.0));
        let (parts, bars) = stacks(&[("a".into(), BTreeMap::from([(3, 4)]))], ToString::to_string);
        assert_eq!((parts, bars[0].1.clone()), (vec!["3".to_owned()], vec![4.0]));
    }
}
