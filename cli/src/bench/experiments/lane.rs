//! The cost of a trap: instructions from the trap to the return, of all privilege modes, for fences
//! and for what is always a full exit.
//!
//! The guest executes each instruction many times, in a loop that it also runs without; under `-icount`
//! the `time` CSR counts the instructions of all modes, and one that traps does not count itself. An
//! instruction that does not trap counts as 1.

use super::series::{self, MEMORY, Plan, Point, Series, cell};
use crate::bench::INSTRUCTIONS_PER_TICK;
use crate::bench::lab::subject::Choice;
use crate::bench::lab::{Lab, Nesting};
use crate::bench::output::report::{Block, Chart, ChartKind, Report};
use crate::bench::output::table::Table;
use serde_json::json;
use std::collections::BTreeMap;

/// The figures of the guest, and what they are.
const KINDS: [(&str, &str); 14] = [
    ("fence_page_asid", "sfence.vma va, asid"),
    ("fence_page_asid_again", "sfence.vma va, asid, again"),
    ("fence_page", "sfence.vma va, x0"),
    ("fence_page_again", "sfence.vma va, x0, again"),
    ("write_satp", "csrw satp, the same value"),
    ("switch_satp", "csrw satp, a known root"),
    ("switch_fenced", "another root of ASID 0, two fences"),
    ("switch_shared", "the same by the root cache"),
    ("ecall", "SBI call (base)"),
    ("set_timer", "SBI call, sets the timer"),
    ("send_ipi", "SBI call, IPI to itself"),
    ("fault", "load, new table, known memory"),
    ("uart_byte", "sb to the UART, a byte"),
    ("dbcn_byte", "SBI debug console, a byte"),
];

/// Measures.
///
/// # Errors
/// If something is missing.
pub fn measure(lab: &Lab, choice: &Choice) -> miette::Result<Report> {
    let plan = Plan {
        name: "lane",
        guest: "lane",
        points: vec![String::new()],
        baseline: None,
        svadu: false,
        has_kvm: false,
        nesting: Nesting::None,
        memory: MEMORY,
    };
    Ok(report(&series::measure(&plan, lab, choice)?, &series::versions(lab)))
}

/// Instructions for each execution.
fn instructions(point: &Point, kind: &str) -> Option<f64> {
    let (ticks, count) = (point.figures.get(kind)?, point.figure("count"));
    (count > 0).then(|| (ticks * INSTRUCTIONS_PER_TICK) as f64 / count as f64)
}

fn report(all: &[Series], versions: &str) -> Report {
    let mut blocks = Vec::new();
    for group in series::groups(all) {
        let mut table = Table::new(std::iter::once(String::new()).chain(group.headings()));
        for (kind, name) in KINDS {
            let say = |point: &Point| instructions(point, kind).map_or_else(|| "-".into(), |each| format!("{each:.1}"));
            table.row(
                std::iter::once(name.to_owned()).chain(group.series.iter().map(|series| cell(series.point(0), say))),
            );
        }
        blocks.push(Block::Table(group.title, table));
    }
    for (kind, name) in KINDS {
        let bar = |series: &Series| {
            let each = series.point(0).and_then(|point| instructions(point, kind));
            (series.subject.to_string(), each)
        };
        let kind = ChartKind::Bars { bars: all.iter().map(bar).collect(), reference: None };
        blocks.push(Block::Chart(Chart { title: format!("{name}: instructions"), kind }));
    }
    let each = |series: &Series| {
        let of = |point: &Point| KINDS.map(|(kind, _)| (kind, instructions(point, kind))).into_iter().collect();
        let instructions: Option<BTreeMap<_, _>> = series.point(0).map(of);
        json!({ "subject": series.subject, "instructions": instructions })
    };
    let json = json!({
        "experiment": "lane",
        "versions": versions,
        "series": all.iter().map(each).collect::<Vec<_>>(),
    });
    Report {
        name: "lane",
        title: "instructions of all privilege modes from a trap to its return; 1 is no trap".into(),
        lead: vec![
            "Again: the entry does not translate any more; else the page was read just before.".into(),
            versions.into(),
        ],
        blocks,
        misleads:
            "an instruction of a trap handler costs more cycles than one of a loop: it finds caches and predictors cold"
                .into(),
        json,
        failures: series::failures(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiments::series::tests::series;
    use crate::machine::board::Seat;
    use abi::bundle::MmuMode;

    #[test]
    fn ticks_become_instructions() {
        let figures = [("count", 16_384), ("fence_page_asid", 7_373), ("ecall", 49_152)];
        let all = [series(Seat::Firmware, MmuMode::Lazy, true, &[(&figures, &[])])];
        let report = report(&all, "v");
        let text = report.to_string();
        let lines: Vec<_> = text.lines().collect();
        let row = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name)).map(str::trim);
        assert_eq!((row("sfence.vma va, asid"), row("csrw satp, the same value")), (Some("45.0"), Some("-")));
        assert_eq!(report.json["series"][0]["instructions"]["ecall"], 300.0);
    }
}
