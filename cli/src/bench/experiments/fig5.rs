//! Figure 5 of *Lazy Shadow Paging under the RISC-V Architecture*: exits by the share of operations that
//! change the page tables.
//!
//! 100,000 operations go over 1024 pages in order. Some of them, chosen at random, write the page's entry
//! (another frame, valid stays valid) and fence its address for its ASID; the others read the page. Counters
//! are those of a run less those of a run without operations.

use super::series::{self, MEMORY, Plan, Point, Series, cell};
use crate::bench::lab::subject::{Choice, Subject};
use crate::bench::lab::{Lab, Nesting};
use crate::bench::output::report::{Block, Line, Report};
use crate::bench::output::table::Table;
use serde_json::json;

/// Operations, as in the paper.
const OPERATIONS: u64 = 100_000;
/// Changes among a hundred operations, from none to all.
const STEP: usize = 10;

/// Measures.
///
/// # Errors
/// If something is missing.
pub fn measure(lab: &Lab, choice: &Choice) -> miette::Result<Report> {
    let points = percents().map(|percent| format!("{percent} {OPERATIONS}")).collect();
    let plan = Plan {
        name: "fig5",
        guest: "fig5",
        points,
        baseline: Some("0 0".into()),
        svadu: false,
        has_kvm: true,
        nesting: Nesting::None,
        memory: MEMORY,
    };
    let all = series::measure(&plan, lab, choice)?;
    let mut report = report(&all, &series::versions(lab));
    report.blocks.extend(series::metered(&all, lab, percents().count() - 1, "At 100 %"));
    Ok(report)
}

fn percents() -> impl Iterator<Item = usize> {
    (0..=100).step_by(STEP)
}

/// The paper's text gives the ends of its lines: 200,000 exits at 100 %, linear; lazy up to half fewer.
fn paper(percent: usize) -> [String; 2] {
    let traditional = 2 * OPERATIONS * percent as u64 / 100;
    [traditional.to_string(), if percent == 100 { (traditional / 2).to_string() } else { "-".into() }]
}

/// The paper's points, for the plots.
fn paper_points() -> Vec<Line> {
    let all = OPERATIONS as f64;
    let traditional = Line { name: "paper, traditional".into(), points: vec![(0.0, 0.0), (100.0, 2.0 * all)] };
    vec![traditional, Line { name: "paper, lazy".into(), points: vec![(100.0, all)] }]
}

/// Full exits and lane traps per change.
fn per_change(subject: Subject, point: &Point) -> String {
    let changes = point.figure("modifications");
    if changes == 0 {
        return "-".into();
    }
    let each = |count: u64| count as f64 / changes as f64;
    format!("{:.3}+{:.3}", each(point.exits(subject)), each(point.lane_traps()))
}

fn report(all: &[Series], versions: &str) -> Report {
    let mut blocks = Vec::new();
    // The bare machine has nothing to trap to.
    for group in series::groups(all).into_iter().filter(|group| !group.is_native()) {
        let rows = |headings: [&str; 2], say: fn(Subject, &Point) -> String| {
            let mut table =
                Table::new(std::iter::once("x".to_owned()).chain(group.headings()).chain(headings.map(Into::into)));
            for (at, percent) in percents().enumerate() {
                let cells =
                    group.series.iter().map(|series| cell(series.point(at), |point| say(series.subject, point)));
                let paper = paper(percent).map(|total| if headings[0].is_empty() { String::new() } else { total });
                table.row(std::iter::once(format!("{percent} %")).chain(cells).chain(paper));
            }
            table
        };
        let title = format!("{}: full exits + lane traps per change", group.title);
        blocks.push(Block::Table(title, rows(["", ""], per_change)));
        let total = |subject: Subject, point: &Point| point.traps(subject).to_string();
        let title = format!("{}: traps in total", group.title);
        blocks.push(Block::Table(title, rows(["paper, trad.", "paper, lazy"], total)));
        let x: Vec<f64> = percents().map(|percent| percent as f64).collect();
        let x = ("per cent of operations that change an entry", x.as_slice());
        blocks.extend(group.plots(x, paper_points()));
    }
    let paper = json!({ "traditional_at_100_percent": 2 * OPERATIONS, "lazy_at_100_percent": OPERATIONS });
    let json = json!({
        "experiment": "fig5",
        "versions": versions,
        "operations": OPERATIONS,
        "percents": percents().collect::<Vec<_>>(),
        "series": all,
        "paper": paper,
    });
    Report {
        name: "fig5",
        title: format!("{OPERATIONS} operations on 1024 pages; x % of them change an entry and fence it, the rest read"),
        lead: vec![
            "Figure 5 of Lazy Shadow Paging under the RISC-V Architecture.".into(),
            "Paper: without H, guest kernel in U mode; its text gives 200,000 exits at 100 %, in proportion below, and up to \
             half of them saved by lazy. What its plot shows between is not in the text."
                .into(),
            versions.into(),
        ],
        blocks,
        misleads: "a lane trap costs a twentieth of the same fence as a full exit (see lane), so sums of traps say less than instructions do; native's \
                   and KVM's traps are those that the meter saw, without timer interrupts"
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
    fn figures_stand_beside_the_papers() {
        let at = |percent: u64| ([("modifications", percent * 1000)], percent);
        let points: Vec<_> = percents().map(|percent| at(percent as u64)).collect();
        let of = |mmu, exits: u64, lane: u64| {
            let counters: Vec<_> =
                points.iter().map(|(_, p)| [("exits.total", p * exits), ("lane.page", p * lane)]).collect();
            let all: Vec<_> = points.iter().zip(&counters).map(|((f, _), c)| (&f[..], &c[..])).collect();
            series(Seat::Firmware, mmu, true, &all)
        };
        let mut failed = of(MmuMode::Unsync, 0, 0);
        failed.points = Err("not built".into());
        let all = [of(MmuMode::Shadow, 2000, 0), failed, of(MmuMode::Lazy, 4, 1000)];
        let report = report(&all, "v");
        assert_eq!(report.failures, ["firmware/unsync: not built"]);
        let text = report.to_string();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["100", "%", "2.000+0.000", "-", "0.004+1.000"]), "{text}");
        assert!(rows.contains(&vec!["0", "%", "-", "-", "-"]), "{text}");
        assert!(rows.contains(&vec!["100", "%", "200000", "-", "100400", "200000", "100000"]), "{text}");
        assert!(rows.contains(&vec!["50", "%", "100000", "-", "50200", "100000", "-"]), "{text}");
        assert_eq!(report.json["series"][2]["subject"], "firmware/lazy");
        assert_eq!(report.json["series"][2]["points"]["Ok"][10]["counters"]["lane.page"], 100_000);
    }
}
