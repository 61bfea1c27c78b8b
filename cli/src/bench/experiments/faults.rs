//! The cost of faults and fences of all vCPUs of one VM at once: instructions of all privilege modes for each first touch, fence,
//! change of a page and copy on write, by 1 to 8 vCPUs on as many harts; and how often a hart has waited for the lock of the VM's
//! memory.
//!
//! Guest memory is mapped by 4 KiB leaves. Under `-icount` the harts are one thread of QEMU's, which they share by turns, and the `time` CSR
//! counts the instructions of all: those of harts that wait for others are among them.

use super::linux::number;
use crate::bench::lab::progress::Progress;
use crate::bench::lab::subject::{Choice, Extra, Gnomon, Subject};
use crate::bench::lab::{Keeping, Lab, Load, Nesting, Processors, Run};
use crate::bench::output::report::{Block, Chart, ChartKind, Line, Report};
use crate::bench::output::table::Table;
use crate::bench::{INSTRUCTIONS_PER_TICK, in_parallel};
use crate::host::parts;
use crate::host::size::Size;
use crate::subject::workload::Devices;
use miette::miette;
use serde_json::json;

const VCPUS: [u32; 4] = [1, 2, 4, 8];
/// The guest touches 6 MiB for each vCPU.
const MEMORY: Size = Size(96 << 20);
/// The figures of the guest, and what they are.
const KINDS: [(&str, &str); 5] = [
    ("apart", "first touch, 2 MiB each"),
    ("together", "first touch, side by side"),
    ("fence", "fence of a page"),
    ("remap", "page to another frame"),
    ("fork", "copy on write"),
];

/// A subject, by how many vCPUs it was measured, and what it came to, or why to nothing.
type Row = (Subject, u32, Result<Run, String>);

/// Measures.
///
/// # Errors
/// If something is missing. What goes wrong with a machine stands in the report.
pub fn measure(lab: &Lab, choice: &Choice) -> miette::Result<Report> {
    // KVM's hosts have one hart.
    let can = |subject: &Subject| !matches!(subject, Subject::Kvm { .. });
    let small = |subject| match subject {
        Subject::Gnomon(gnomon) => Subject::Gnomon(Gnomon { superpages: false, ..gnomon }),
        other => other,
    };
    let subjects = choice.subjects("faults", Extra::None, can)?.into_iter().map(small);
    let guests = parts::guests()?;
    let guest = guests.get("faults").ok_or_else(|| miette!("there is no test guest `faults`"))?;
    let jobs: Vec<_> = subjects.flat_map(|subject| VCPUS.map(|vcpus| (subject, vcpus))).collect();
    let step = Progress::begin("faults", jobs.len());
    let rows: Vec<Row> = in_parallel(&jobs, |&(subject, vcpus)| {
        let load = Load {
            kernel: guest.clone(),
            initrd: None,
            append: String::new(),
            memory: MEMORY,
            svadu: false,
            keeping: Keeping::Demand,
            has_few_devices: false,
            processors: Processors { harts: vcpus, vcpus },
            devices: Devices::default(),
            nesting: Nesting::None,
        };
        let run = lab.run(subject, &load).map_err(|why| why.to_string());
        step.done(&format!("{subject}, {vcpus} vCPUs"));
        (subject, vcpus, run)
    });
    Ok(report(&rows, &format!("{}; as many harts as vCPUs, {MEMORY}, -icount shift=0", lab.versions())))
}

/// Instructions of all harts for each.
fn instructions(run: &Run, kind: &str) -> Option<f64> {
    let (ticks, count) = (run.figures.get(kind)?, run.figures.get(&format!("{kind}_count"))?);
    (*count > 0).then(|| (ticks * INSTRUCTIONS_PER_TICK) as f64 / *count as f64)
}

fn report(rows: &[Row], versions: &str) -> Report {
    let find = |subject, vcpus| rows.iter().find(|row| (row.0, row.1) == (subject, vcpus))?.2.as_ref().ok();
    let of = |subject, vcpus, kind| find(subject, vcpus).and_then(|run| instructions(run, kind));
    let mut subjects: Vec<Subject> = rows.iter().map(|row| row.0).collect();
    subjects.dedup();
    let vcpus_of = |count: u32| if count == 1 { "1 vCPU".to_owned() } else { format!("{count} vCPUs") };
    let mut blocks = Vec::new();
    for group in subjects.chunk_by(|a, b| a.group() == b.group()) {
        let headings = || std::iter::once(String::new()).chain(group.iter().map(|subject| subject.short()));
        for (kind, name) in KINDS {
            let mut table = Table::new(headings());
            for vcpus in VCPUS {
                let cells = group.iter().map(|subject| number(of(*subject, vcpus, kind), 1));
                table.row(std::iter::once(vcpus_of(vcpus)).chain(cells));
            }
            let quotient = |subject: &Subject| {
                let [one, four] = [1, 4].map(|vcpus| of(*subject, vcpus, kind));
                number(one.zip(four).filter(|(one, _)| *one > 0.0).map(|(one, four)| four / one), 2)
            };
            table.row(std::iter::once("4 / 1".to_owned()).chain(group.iter().map(quotient)));
            blocks.push(Block::Table(format!("{}: {name}: instructions", group[0].group()), table));
        }
        if group[0] == Subject::Native {
            continue;
        }
        let mut table = Table::new(headings());
        for vcpus in VCPUS {
            let waits = |subject: &Subject| {
                let waits = find(*subject, vcpus).and_then(|run| run.counters.get("memory.waits"));
                waits.map_or_else(|| "-".into(), u64::to_string)
            };
            table.row(std::iter::once(vcpus_of(vcpus)).chain(group.iter().map(waits)));
        }
        blocks
            .push(Block::Table(format!("{}: waits for the lock of the VM's memory, in all", group[0].group()), table));
    }
    for (kind, name) in KINDS {
        let line = |subject: &Subject| {
            let point = |vcpus| Some((f64::from(vcpus), of(*subject, vcpus, kind)?));
            Line { name: subject.to_string(), points: VCPUS.into_iter().filter_map(point).collect() }
        };
        let axes = ["vCPUs".into(), "instructions".into()];
        let kind = ChartKind::Lines { axes, lines: subjects.iter().map(line).collect(), paper: Vec::new() };
        blocks.push(Block::Chart(Chart { title: format!("{name}: instructions"), kind }));
    }
    let each = |(subject, vcpus, run): &Row| {
        let run = run.as_ref().ok();
        let instructions = KINDS.map(|(kind, _)| (kind, run.and_then(|run| instructions(run, kind))));
        let waits = run.and_then(|run| run.counters.get("memory.waits"));
        let instructions: std::collections::BTreeMap<_, _> = instructions.into_iter().collect();
        json!({ "subject": subject, "vcpus": vcpus, "instructions": instructions, "waits": waits })
    };
    let failure = |(subject, vcpus, run): &Row| Some(format!("{subject}, {vcpus} vCPUs: {}", run.as_ref().err()?));
    Report {
        name: "faults",
        title: "instructions of all privilege modes and harts, where all vCPUs of one VM do the same at once".into(),
        lead: vec![versions.into()],
        blocks,
        misleads: "harts take turns, so one that waits for a lock waits until the turn of the one that has it".into(),
        json: json!({
            "experiment": "faults",
            "versions": versions,
            "series": rows.iter().map(each).collect::<Vec<_>>(),
        }),
        failures: rows.iter().filter_map(failure).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_for_each_and_four_vcpus_stand_beside_one() {
        let run = |ticks, waits| Run {
            figures: [("apart".to_owned(), ticks), ("apart_count".to_owned(), 1000)].into(),
            counters: [("memory.waits".to_owned(), waits)].into(),
            ..Run::default()
        };
        let subjects = Choice { words: vec!["firmware/two-stage".into()], ..Choice::default() };
        let [subject] = subjects.subjects("faults", Extra::None, |_| true).expect("one")[..] else { panic!("one") };
        let rows =
            [(1, 12_870, 0), (4, 46_580, 77)].map(|(vcpus, ticks, waits)| (subject, vcpus, Ok(run(ticks, waits))));
        let report = report(&rows, "v");
        let text = report.to_string();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        for row in [["1", "vCPU", "1287.0"], ["4", "vCPUs", "4658.0"], ["4", "vCPUs", "77"]] {
            assert!(rows.contains(&row.to_vec()), "{row:?} in {text}");
        }
        assert!(rows.contains(&vec!["4", "/", "1", "3.62"]), "{text}");
        assert_eq!(report.json["series"][1]["instructions"]["apart"], 4658.0);
    }
}
