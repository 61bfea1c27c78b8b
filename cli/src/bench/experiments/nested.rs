//! Nested virtualization: traps and instructions of Gnomon for an exit of L2, the guest of a guest; pages that it takes from L1; and Linux as L2.
//!
//! In the first part a hypervisor of ours makes the accesses to CSRs that KVM makes, in its order; the meter counts between markers. Traps are
//! those of L1 to Gnomon; the exit of L2 itself is not counted.

mod linux;
mod taking;

use self::linux::Linux;
use self::taking::Taking;
use super::linux::number;
use super::series::{self, MEMORY, Plan, Point, Series};
use crate::bench::lab::Lab;
use crate::bench::lab::subject::{Choice, Subject};
use crate::bench::output::report::{Block, Report};
use crate::bench::output::table::Table;
use abi::bundle::L2Tables;
use serde_json::json;

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

/// Measures.
///
/// # Errors
/// If something is missing. What goes wrong with a subject stands in the report.
pub fn measure(lab: &Lab, choice: &Choice) -> miette::Result<Report> {
    let points = KINDS.iter().map(|(kind, ..)| format!("{kind} {COUNT} 1")).collect();
    let plan = Plan::of_l1("nested", points, L2Tables::Nested, MEMORY);
    let exits = series::measure(&plan, lab, choice)?;
    let taking = Taking::measure(lab, choice)?;
    let linux = Linux::measure(lab, choice)?;
    let cores: Vec<_> = lab.cores().collect();
    Ok(report(&exits, (&taking, &linux), &cores, &series::versions(lab)))
}

/// Traps and instructions of Gnomon for each exit of L2 or fault.
fn each(subject: Subject, point: &Point) -> Option<(f64, f64)> {
    let (counts, count) = (point.counts()?, point.figure("count"));
    let own = counts.exits_by_cause(subject);
    let exits: u64 = own.iter().filter(|(cause, _)| !cause.contains("timer")).map(|(_, exits)| exits.count).sum();
    let each = |all: u64| all as f64 / count as f64;
    (count > 0).then(|| (each(exits), each(counts.host_instructions(subject))))
}

fn report(exits: &[Series], (taking, linux): (&Taking, &Linux), cores: &[&str], versions: &str) -> Report {
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
    blocks.extend(taking.blocks());
    blocks.extend(linux.blocks(cores));
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
            "Pages taken from L1: instructions of Gnomon for each. Second faults: faults of L2 that L1 has answered already.".into(),
            "First stores: all instructions of the machine; native is the bare machine.".into(),
            versions.into(),
        ],
        blocks,
        misleads: "the hypervisor of the first part does nothing but what KVM does at each exit: KVM's other work makes exits of its own".into(),
        json: json!({
            "experiment": "nested",
            "versions": versions,
            "series": exits.iter().map(exits_json).collect::<Vec<_>>(),
            "taking": taking.json(),
            "linux": linux.json(),
        }),
        failures: series::failures(exits).into_iter().chain(taking.failures()).chain(linux.failures()).collect(),
    }
}
