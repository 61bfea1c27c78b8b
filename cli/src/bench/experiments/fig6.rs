//! Figure 6 of *Lazy Shadow Paging under the RISC-V Architecture*: exits of a kernel that samples A and D.
//!
//! In each of 10 windows the guest clears A and D in the entries of 1024 pages, each with a fence of its
//! address for its ASID, and then makes N x 1024 accesses, 80 % of them to 20 % of the pages. Of the accesses,
//! 20 % are stores (the paper does not say). The guest is promised Svadu, so that no page fault of its own
//! sets the bits, and checks after each window that they say what it did. Counters are those of a run less
//! those of a run without windows.

use super::series::{self, Group, MEMORY, Plan, Point, Series, cell};
use crate::bench::lab::subject::{Choice, Subject};
use crate::bench::lab::{Lab, Nesting};
use crate::bench::output::report::{Block, Line, Report};
use crate::bench::output::table::Table;
use abi::bundle::MmuMode;
use serde_json::json;

/// Windows, as in the paper.
const WINDOWS: u64 = 10;
/// Accesses in a hundred that are stores.
const STORES: u64 = 20;
/// Exits of traditional shadow paging in the paper's text, at each N.
const PAPER_TRADITIONAL: u64 = 20_000;
/// The share of traps that lazy saves at small N in the paper's text, in per cent.
const PAPER_SAVING: u64 = 32;

/// Measures.
///
/// # Errors
/// If something is missing.
pub fn measure(lab: &Lab, choice: &Choice) -> miette::Result<Report> {
    let points = sizes().map(|size| format!("{WINDOWS} {size} {STORES}")).collect();
    let plan = Plan {
        name: "fig6",
        guest: "fig6",
        points,
        baseline: Some(format!("0 0 {STORES}")),
        svadu: true,
        has_kvm: true,
        nesting: Nesting::None,
        memory: MEMORY,
    };
    let all = series::measure(&plan, lab, choice)?;
    let mut report = report(&all, &series::versions(lab));
    report.blocks.extend(series::metered(&all, lab, 0, "At N = 1"));
    Ok(report)
}

/// N: accesses in a window, in multiples of 1024.
fn sizes() -> std::ops::RangeInclusive<u64> {
    1..=10
}

/// The points in the paper's text, for the plots.
fn paper_points() -> Vec<Line> {
    let traditional = PAPER_TRADITIONAL as f64;
    let lazy = traditional * (100 - PAPER_SAVING) as f64 / 100.0;
    let every = sizes().map(|size| (size as f64, traditional)).collect();
    vec![
        Line { name: "paper, traditional".into(), points: every },
        Line { name: "paper, lazy".into(), points: vec![(1.0, lazy)] },
    ]
}

/// The share of the traps of `shadow` in the same group that a mode saves, in per cent.
fn saving(traps: u64, shadow: u64) -> Option<f64> {
    (shadow > 0).then(|| 100.0 * (1.0 - traps as f64 / shadow as f64))
}

fn shadow<'a>(group: &Group<'a>) -> Option<&'a Series> {
    let is_shadow = |subject| matches!(subject, Subject::Gnomon(it) if it.variant.mmu == Some(MmuMode::Shadow));
    group.series.iter().copied().find(|series| is_shadow(series.subject))
}

fn report(all: &[Series], versions: &str) -> Report {
    let mut blocks = Vec::new();
    // The bare machine has nothing to trap to.
    for group in series::groups(all).into_iter().filter(|group| !group.is_native()) {
        let table = |paper: Option<String>, say: &dyn Fn(usize, Subject, &Point) -> String| {
            let heading = paper.as_ref().map(|_| "paper, trad.".to_owned());
            let mut table = Table::new(std::iter::once("N".to_owned()).chain(group.headings()).chain(heading));
            for (at, size) in sizes().enumerate() {
                let cells =
                    group.series.iter().map(|series| cell(series.point(at), |point| say(at, series.subject, point)));
                table.row(std::iter::once(size.to_string()).chain(cells).chain(paper.clone()));
            }
            table
        };
        let counts = |_, subject, point: &Point| format!("{}+{}", point.exits(subject), point.lane_traps());
        let title = format!("{}: full exits + lane traps", group.title);
        blocks.push(Block::Table(title, table(Some(PAPER_TRADITIONAL.to_string()), &counts)));
        let x: Vec<f64> = sizes().map(|size| size as f64).collect();
        let x = ("N: accesses in a window, in 1024", x.as_slice());
        blocks.extend(group.plots(x, paper_points()));
        let Some(shadow) = shadow(&group) else { continue };
        let share = |at, subject, point: &Point| {
            let of = shadow.point(at).map(|point| point.traps(shadow.subject));
            let saving = of.and_then(|of| saving(point.traps(subject), of));
            saving.map_or_else(|| "-".into(), |saving| format!("{saving:.1}"))
        };
        let title = format!("{}: per cent of the traps of `shadow` saved", group.title);
        blocks.push(Block::Table(title, table(None, &share)));
    }
    let json = json!({
        "experiment": "fig6",
        "versions": versions,
        "windows": WINDOWS,
        "stores_percent": STORES,
        "sizes": sizes().collect::<Vec<_>>(),
        "series": all,
        "paper": { "traditional": PAPER_TRADITIONAL, "saving_percent_at_small_n": PAPER_SAVING },
    });
    Report {
        name: "fig6",
        title: format!("{WINDOWS} windows: A and D of 1024 pages are cleared and fenced, then N x 1024 accesses"),
        lead: vec![
            format!(
                "Figure 6 of Lazy Shadow Paging under the RISC-V Architecture. 80 % of the accesses go to 20 % of the \
                 pages, {STORES} % of them are stores; Svadu is promised."
            ),
            format!(
                "Paper: without H; its text gives {PAPER_TRADITIONAL} exits for traditional at every N, and nearly \
                 {PAPER_SAVING} % of them saved by lazy at small N. Its traditional exits are those of the writes and \
                 fences alone."
            ),
            versions.into(),
        ],
        blocks,
        misleads:
            "who counts exits that set A and D again, as is done here, has more to save than who does not; the bare \
                   machine sets the bits in hardware"
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

    #[test]
    fn savings_are_against_shadow_of_the_same_group() {
        let of = |seat, mmu, exits, lane| {
            let counters = [("exits.total", exits), ("lane.page", lane)];
            series(seat, mmu, true, &sizes().map(|_| (&[][..], &counters[..])).collect::<Vec<_>>())
        };
        let all = [
            of(Seat::Firmware, MmuMode::Shadow, 20_000, 0),
            of(Seat::Firmware, MmuMode::Lazy, 3_000, 10_000),
            of(Seat::Payload, MmuMode::Lazy, 3_000, 10_000),
        ];
        let report = report(&all, "v");
        let text = report.to_string();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["1", "20000+0", "3000+10000", "20000"]), "{text}");
        assert!(rows.contains(&vec!["10", "0.0", "35.0"]), "{text}");
        // In the payload seat there is nothing to compare with.
        assert_eq!(text.matches("traps of `shadow` saved").count(), 1);
        assert!(report.failures.is_empty());
    }
}
