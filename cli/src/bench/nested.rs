//! Nested virtualization: traps and instructions of Gnomon for an exit of L2, the guest of a guest; and boots of Debian's kernel as L2, under KVM.
//!
//! In the first part a hypervisor of ours makes the accesses to CSRs that KVM makes, in its order; the meter counts between markers. In the
//! second, Debian's kernel with its module `kvm` is L1, and QEMU its VMM. Traps are those of L1 to Gnomon; the exit of L2 itself is not counted.

use super::boot::{Loads, Machine, VARIANTS};
use super::lab::{Lab, Nesting};
use super::linux::{number, ratio};
use super::report::{Block, Report};
use super::series::{self, Plan, Point, Series};
use super::subject::{Choice, Extra, Subject};
use super::table::Table;
use super::{in_parallel, progress};
use abi::bundle::MmuMode;
use serde_json::json;
use std::collections::BTreeMap;

/// Exits of L2 that are measured.
const COUNT: u64 = 4096;

/// The kinds of exits, their names, the most traps that each may take, and Xvisor's figure (its series for NACL, 2024).
const KINDS: [(&str, &str, Option<f64>, &str); 7] = [
    ("call", "call, answered by L1's kernel", Some(9.3), "14.5"),
    ("call-nacl", "the same, NACL", Some(1.2), "1.9"),
    ("vmm", "call, answered by L1's VMM", Some(33.3), ""),
    ("vmm-nacl", "the same, NACL", Some(3.2), ""),
    ("missing", "new page, L1 maps it", None, ""),
    ("missing-nacl", "the same, NACL", None, ""),
    (KNOWN, "new page, L1's table has it", None, ""),
];
/// Pages of which Gnomon may answer several faults by one.
const KNOWN: &str = "known";

/// The machine of a boot, its instructions, and the counters of its VM.
type Boot = (Machine, Result<(u64, BTreeMap<String, u64>), String>);

/// Measures.
///
/// # Errors
/// If something is missing. What goes wrong with a subject stands in the report.
pub fn measure(lab: &Lab, choice: &Choice) -> miette::Result<Report> {
    let points = KINDS.iter().map(|(kind, ..)| format!("{kind} {COUNT} 1")).collect();
    let nesting = Nesting::Itself;
    let plan = Plan { name: "nested", guest: "l1", points, baseline: None, svadu: false, has_kvm: false, nesting };
    let exits = series::measure(&plan, lab, choice)?;
    let boots = boots(lab, choice)?;
    Ok(report(&exits, &boots, &series::versions(lab)))
}

fn boots(lab: &Lab, choice: &Choice) -> miette::Result<Vec<Boot>> {
    let can = |subject: &Subject| match subject {
        Subject::Gnomon(gnomon) => gnomon.variant.mmu == Some(MmuMode::TwoStage),
        Subject::Native => false,
        Subject::Kvm { .. } => true,
    };
    let (loads, _) = Loads::provide()?;
    let machines: Vec<_> = choice
        .subjects("nested", Extra::None, can)?
        .into_iter()
        .flat_map(|subject| {
            let is_gnomon = matches!(subject, Subject::Gnomon(_));
            let under_kvm = is_gnomon.then_some(Nesting::UnderKvm);
            std::iter::once(Nesting::None).chain(under_kvm).map(move |nesting| Machine {
                subject,
                has_few_devices: false,
                nesting,
            })
        })
        .collect();
    let step = progress("nested", machines.len());
    Ok(in_parallel(&machines, |machine| {
        let append = (VARIANTS[0].1, choice.svadu);
        let figures = loads.whole(lab, *machine, append).map_err(|why| why.to_string());
        step.done(&name(*machine));
        (*machine, figures)
    }))
}

fn name(machine: Machine) -> String {
    match machine.nesting {
        Nesting::UnderKvm => format!("{}, L2", machine.subject),
        Nesting::None | Nesting::Itself => machine.subject.to_string(),
    }
}

/// Traps and instructions of Gnomon for each exit of L2 or fault.
fn each(subject: Subject, point: &Point) -> Option<(f64, f64)> {
    let (counts, count) = (point.counts()?, point.figure("count"));
    let own = counts.exits_by_cause(subject);
    let exits: u64 = own.iter().filter(|(cause, _)| !cause.contains("timer")).map(|(_, exits)| exits.count).sum();
    let each = |all: u64| all as f64 / count as f64;
    (count > 0).then(|| (each(exits), each(counts.host_instructions(subject))))
}

fn report(exits: &[Series], boots: &[Boot], versions: &str) -> Report {
    let mut blocks = Vec::new();
    for series in exits {
        let mut table = Table::new(["L2's", "exits", "traps of L1", "at most", "Xvisor", "instructions", "/ exit"]);
        for (at, (kind, name, most, xvisor)) in KINDS.iter().enumerate() {
            let found = series.point(at).and_then(|point| each(series.subject, point));
            let most = most.map_or_else(String::new, |most| format!("{most:.1}"));
            let exits = found.map(|(exits, _)| exits);
            table.row([
                (*name).to_owned(),
                number(exits, 2),
                number(exits.filter(|_| *kind != KNOWN).map(|exits| exits - 1.0), 2),
                most,
                (*xvisor).to_owned(),
                number(found.map(|(_, instructions)| instructions), 1),
                number(found.map(|(exits, instructions)| instructions / exits), 1),
            ]);
        }
        blocks.push(Block::Table(series.subject.to_string(), table));
    }
    let mut table =
        Table::new(["Debian boots", "instructions", "/ L1", "entries of L2", "traps/entry", "second faults %"]);
    let own = |subject: Subject| {
        let is_it = |boot: &&Boot| boot.0.subject == subject && boot.0.nesting == Nesting::None;
        boots.iter().find(is_it).and_then(|boot| Some(boot.1.as_ref().ok()?.0))
    };
    for (machine, figures) in boots {
        let figures = figures.as_ref().ok();
        let count = |name: &str| figures.and_then(|(_, counters)| counters.get(name)).copied();
        let entries = count("nested.entries");
        let mut row = vec![
            name(*machine),
            figures.map_or_else(|| "-".into(), |(instructions, _)| instructions.to_string()),
            number(figures.and_then(|(instructions, _)| ratio(*instructions, own(machine.subject)?)), 3),
        ];
        if let Some(entries) = entries {
            let faults = count("nested.exits_guest_page").unwrap_or(0);
            row.extend([
                entries.to_string(),
                number(ratio(count("nested.traps").unwrap_or(0), entries), 2),
                number(ratio(100 * count("nested.second_faults").unwrap_or(0), faults), 2),
            ]);
        }
        table.row(row);
    }
    blocks.push(Block::Table(
        "Debian's kernel from its entry to the power-off; under KVM of Debian sid as L2".into(),
        table,
    ));
    let failure = |(machine, figures): &Boot| Some(format!("nested, {}: {}", name(*machine), figures.as_ref().err()?));
    let exits_json = |series: &Series| {
        let of = |(at, (kind, ..)): (usize, &(&str, &str, Option<f64>, &str))| {
            let found = series.point(at).and_then(|point| each(series.subject, point));
            json!({ "kind": kind, "exits": found.map(|found| found.0), "instructions": found.map(|found| found.1) })
        };
        json!({ "subject": series.subject, "exits": KINDS.iter().enumerate().map(of).collect::<Vec<_>>() })
    };
    Report {
        name: "nested",
        title: "exits of L2, the guest of a guest: traps of L1's for each, and instructions of Gnomon".into(),
        lead: vec![
            "Exits: all that come to Gnomon but by its own timer. Traps of L1: without the exit of L2 itself. Instructions: Gnomon's.".into(),
            "Second faults: faults of L2 that L1 has answered already.".into(),
            versions.into(),
        ],
        blocks,
        misleads: "the hypervisor of the first part does nothing but what KVM does at each exit: KVM's other work makes exits of its own".into(),
        json: json!({
            "experiment": "nested",
            "versions": versions,
            "series": exits.iter().map(exits_json).collect::<Vec<_>>(),
            "boots": boots.iter().map(|(machine, figures)| json!({ "machine": name(*machine), "figures": figures })).collect::<Vec<_>>(),
        }),
        failures: series::failures(exits).into_iter().chain(boots.iter().filter_map(failure)).collect(),
    }
}
