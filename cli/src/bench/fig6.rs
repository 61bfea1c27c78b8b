//! Figure 6 of *Lazy Shadow Paging under the RISC-V Architecture*: exits of a kernel that samples A and D.
//!
//! In each of 10 windows the guest clears A and D in the entries of 1024 pages, each with a fence of its
//! address for its ASID, and then makes N x 1024 accesses, 80 % of them to 20 % of the pages. Of the accesses,
//! 20 % are stores (the paper does not say). The guest is promised Svadu, so that no page fault of its own
//! sets the bits, and checks after each window that they say what it did. Counters are those of a run less
//! those of a run without windows.

use super::series::{self, Group, Plan, Point, Series, cell};
use super::table::Table;
use super::{Choice, Report};
use abi::bundle::MmuMode;
use serde_json::json;
use std::fmt::Write;

/// Windows, as in the paper.
const WINDOWS: u64 = 10;
/// Accesses in a hundred that are stores.
const STORES: u64 = 20;
/// Exits of traditional shadow paging in the paper's text, at each N.
const PAPER_TRADITIONAL: u64 = 20_000;
/// What lazy saves of them at small N, in the paper's text; in per cent.
const PAPER_SAVING: u64 = 32;

/// Measures.
///
/// # Errors
/// If something is missing.
pub fn measure(choice: &Choice) -> miette::Result<Report> {
    let points = sizes().map(|size| format!("{WINDOWS} {size} {STORES}")).collect();
    let plan = Plan { guest: "fig6", points, baseline: Some(format!("0 0 {STORES}")), svadu: true };
    Ok(report(&series::measure(&plan, choice)?, &series::versions()?))
}

/// N: accesses in a window, in multiples of 1024.
fn sizes() -> std::ops::RangeInclusive<u64> {
    1..=10
}

/// What a mode saves of the traps of `shadow` in the same group, in per cent.
fn saving(point: &Point, shadow: &Point) -> Option<f64> {
    (shadow.traps() > 0).then(|| 100.0 * (1.0 - point.traps() as f64 / shadow.traps() as f64))
}

fn shadow<'a>(group: &Group<'a>) -> Option<&'a Series> {
    group.series.iter().copied().find(|series| series.subject.variant.mmu == Some(MmuMode::Shadow))
}

fn report(all: &[Series], versions: &str) -> Report {
    let mut text = format!(
        "Figure 6: {WINDOWS} windows; in each, A and D of 1024 pages are cleared and fenced, then N x 1024 accesses,\n\
         80 % of them to 20 % of the pages, {STORES} % of them stores; Svadu promised\n{versions}\n"
    );
    for group in series::groups(all) {
        let table = |name: &str, paper: Option<String>, say: &dyn Fn(usize, &Point) -> String| {
            let heading = paper.as_ref().map(|_| name.to_owned());
            let mut table = Table::new(std::iter::once("N".to_owned()).chain(group.headings()).chain(heading));
            for (at, size) in sizes().enumerate() {
                let cells = group.series.iter().map(|series| cell(series.point(at), |point| say(at, point)));
                table.row(std::iter::once(size.to_string()).chain(cells).chain(paper.clone()));
            }
            table
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{}: full exits + lane traps", group.title);
        let counts = |_, point: &Point| format!("{}+{}", point.exits(), point.lane_traps());
        let _ = write!(text, "{}", table("paper, trad.", Some(PAPER_TRADITIONAL.to_string()), &counts));
        if shadow(&group).is_none() {
            continue;
        }
        let _ = writeln!(text, "\n{}: per cent of the traps of `shadow` saved", group.title);
        let share = |at, point: &Point| {
            let saving = shadow(&group).and_then(|shadow| saving(point, shadow.point(at)?));
            saving.map_or_else(|| "-".into(), |saving| format!("{saving:.1}"))
        };
        let _ = write!(text, "{}", table("", None, &share));
    }
    let _ = writeln!(
        text,
        "\npaper: without H; its text gives {PAPER_TRADITIONAL} exits for traditional at every N, and nearly {PAPER_SAVING} % of\n\
         them saved by lazy at small N. Its traditional exits are those of the writes and fences alone."
    );
    let json = json!({
        "experiment": "fig6",
        "versions": versions,
        "windows": WINDOWS,
        "stores_percent": STORES,
        "sizes": sizes().collect::<Vec<_>>(),
        "series": all,
        "paper": { "traditional": PAPER_TRADITIONAL, "saving_percent_at_small_n": PAPER_SAVING },
    });
    Report { text, json, failures: series::failures(all) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::series::tests::series;
    use crate::qemu::Seat;

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
        let rows: Vec<Vec<&str>> = report.text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["1", "20000+0", "3000+10000", "20000"]), "{}", report.text);
        assert!(rows.contains(&vec!["10", "0.0", "35.0"]), "{}", report.text);
        // In the payload seat there is nothing to compare with.
        assert_eq!(report.text.matches("traps of `shadow` saved").count(), 1);
        assert!(report.failures.is_empty());
    }
}
