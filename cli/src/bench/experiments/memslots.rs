//! The cost of a region of L2's memory by the number of regions: KVM's `memslot_perf_test` as Gnomon sees it.
//!
//! A hypervisor of ours maps a page of each region at L2's fault, and unmaps them, with a fence for each page or for each 32. What Gnomon does for
//! one of 8192 regions must cost what it does for one alone. The meter counts Gnomon's instructions between markers.

use super::linux::number;
use super::series::{self, MEMORY, Plan, Point, Series};
use crate::bench::lab::Lab;
use crate::bench::lab::subject::{Choice, Subject};
use crate::bench::output::report::{Block, Report};
use crate::bench::output::table::Table;
use crate::subject::workload::Scale;
use abi::bundle::L2Tables;
use serde_json::json;

/// The kinds of work that are measured, and their names.
const KINDS: [(&str, &str); 6] = [
    ("map", "map"),
    ("unmap", "unmap"),
    ("chunks", "unmap in chunks of 32"),
    ("map-nacl", "map, NACL"),
    ("unmap-nacl", "unmap, NACL"),
    ("chunks-nacl", "unmap in chunks of 32, NACL"),
];

/// A call of L2's, by which it ends each round of maps.
const CALLS: [&str; 2] = ["call", "call-nacl"];

/// Pages that are mapped or unmapped, at least.
const LEAST: u64 = 256;

fn regions(scale: Scale) -> &'static [u64] {
    match scale {
        Scale::Quick => &[1, 64, 8192],
        Scale::Full => &[1, 8, 64, 512, 4096, 8192],
    }
}

/// Measures.
///
/// # Errors
/// If something is missing. What goes wrong with a subject stands in the report.
pub fn measure(lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
    let sizes = regions(scale);
    let of = |kind: &str| sizes.iter().map(move |n| format!("{kind} {} {n}", LEAST.max(*n))).collect::<Vec<_>>();
    let calls = CALLS.iter().map(|kind| format!("{kind} {LEAST} 1"));
    let points = KINDS.iter().flat_map(|(kind, _)| of(kind)).chain(calls).collect();
    let plan = Plan::of_l1("memslots", points, L2Tables::Nested, MEMORY);
    Ok(report(&series::measure(&plan, lab, choice)?, sizes, &series::versions(lab)))
}

/// Gnomon's instructions for a region.
fn each(subject: Subject, point: &Point) -> Option<f64> {
    let count = point.figure("count");
    Some(point.counts()?.host_instructions(subject) as f64 / count as f64).filter(|_| count > 0)
}

fn report(all: &[Series], sizes: &[u64], versions: &str) -> Report {
    let of = |series: &Series, kind: usize, size: usize| {
        let of_point = |at| series.point(at).and_then(|point| each(series.subject, point));
        let (name, all) = (KINDS[kind].0, of_point(kind * sizes.len() + size)?);
        if !name.starts_with("map") {
            return Some(all);
        }
        // A call for each round, which has so many regions.
        let call = of_point(KINDS.len() * sizes.len() + usize::from(name.ends_with("-nacl")))?;
        Some(all - call / sizes[size] as f64)
    };
    let mut blocks = Vec::new();
    for series in all {
        let headings = sizes.iter().map(|n| format!("{n} regions"));
        let mut table = Table::new(std::iter::once(String::new()).chain(headings).chain(["most / one".into()]));
        for (kind, (_, name)) in KINDS.iter().enumerate() {
            let cells = (0..sizes.len()).map(|size| number(of(series, kind, size), 1));
            let ratio = of(series, kind, sizes.len() - 1).and_then(|most| Some(most / of(series, kind, 0)?));
            table.row(std::iter::once((*name).to_owned()).chain(cells).chain([number(ratio, 3)]));
        }
        blocks.push(Block::Table(format!("{}: instructions of Gnomon for a region", series.subject), table));
    }
    let kinds = |series: &Series| {
        let each = |(kind, (name, _)): (usize, &(&str, &str))| {
            ((*name).to_owned(), (0..sizes.len()).map(|size| json!(of(series, kind, size))).collect())
        };
        KINDS.iter().enumerate().map(each).collect::<serde_json::Map<_, _>>()
    };
    Report {
        name: "memslots",
        title: "maps and unmaps of a page of L2's, by the number of its regions".into(),
        lead: vec!["Each region is a page, 64 KiB from the next one.".into(), versions.into()],
        blocks,
        misleads: "KVM's own work for its memory slots is L1's, and is not measured here".into(),
        json: json!({
            "experiment": "memslots",
            "versions": versions,
            "regions": sizes,
            "series": all.iter().map(|series| json!({ "subject": series.subject, "instructions": kinds(series) })).collect::<Vec<_>>(),
        }),
        failures: series::failures(all),
    }
}
