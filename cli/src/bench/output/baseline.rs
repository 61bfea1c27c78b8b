//! Comparison with an earlier measurement: figures of the tables beside those of an earlier `--json` file.

use super::report::{Block, Report};
use super::table::Table;
use crate::host::written::explain_json;
use miette::Diagnostic;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Changes by more than this are shown; in per cent.
const SHOWN: f64 = 1.0;

/// The content of a `--json` file.
#[derive(Debug, Deserialize)]
pub struct Baseline {
    versions: String,
    experiments: Vec<Experiment>,
}

#[derive(Debug, Deserialize)]
struct Experiment {
    experiment: String,
    tables: Vec<Titled>,
}

#[derive(Debug, Deserialize)]
struct Titled {
    title: String,
    rows: Table,
}

/// A file that is no baseline.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{path} is not a baseline: {why}")]
#[diagnostic(help("`gnomon bench NAME --json FILE` writes a baseline"))]
pub struct NoBaseline {
    path: PathBuf,
    why: String,
}

/// The tables of a report, for programs.
pub fn tables(report: &Report) -> Vec<Value> {
    report.tables().map(|(title, rows)| json!({ "title": title, "rows": rows })).collect()
}

/// Figures by the row and the column they stand in.
type Cells = BTreeMap<(String, String), String>;

fn cells(table: &Table) -> Cells {
    let (head, rows) = table.parts();
    let mut all = Cells::new();
    for row in rows {
        for (heading, cell) in head.iter().zip(row).skip(1) {
            // Columns without a heading hold no figures.
            if !heading.is_empty() && !numbers(cell).is_empty() {
                // Files of before have the former name of a mode.
                let name = row[0].replace("/nested", "/two-stage");
                all.insert((name, heading.clone()), cell.clone());
            }
        }
    }
    all
}

/// The numbers of a cell, and how much the last digit of each is worth; nothing for whole numbers.
fn numbers(cell: &str) -> Vec<(f64, f64)> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let number = |text: &str| {
        let decimals = text.split_once('.').map(|(_, decimals)| decimals.len() as i32);
        Some((text.parse().ok()?, decimals.map_or(0.0, |decimals| 10f64.powi(-decimals))))
    };
    cell.split(|c| !is_part(c)).filter_map(number).collect()
}

/// By how much a cell changed, in per cent: the number that changed most. What rounding may have done is no change.
fn change(then: &str, now: &str) -> f64 {
    let (then, now) = (numbers(then), numbers(now));
    if then.len() != now.len() {
        return f64::INFINITY;
    }
    let change = |((then, digit), (now, _)): (&(f64, f64), &(f64, f64))| match now - then {
        // A little more than a digit: both are inexact.
        by if by.abs() <= digit * 1.001 => 0.0,
        by => 100.0 * by / then,
    };
    then.iter().zip(&now).map(change).fold(0.0, |most: f64, of| if of.abs() > most.abs() { of } else { most })
}

impl Baseline {
    /// Reads one.
    ///
    /// # Errors
    /// [`NoBaseline`].
    pub fn read(path: &Path) -> Result<Self, NoBaseline> {
        let error = |why: String| NoBaseline { path: path.to_owned(), why };
        let bytes = std::fs::read(path).map_err(|why| error(why.to_string()))?;
        serde_json::from_slice(&bytes).map_err(|why| error(explain_json(&why)))
    }

    /// Compares reports with the baseline.
    #[must_use]
    pub fn compare(&self, reports: &[Report]) -> Report {
        let mut blocks = Vec::new();
        let (mut same, mut changed, mut new, mut gone) = (0_u64, 0_u64, 0_u64, 0_u64);
        for report in reports {
            let then = self.experiments.iter().find(|it| it.experiment == report.name);
            let then = |title: &str| Some(&then?.tables.iter().find(|table| table.title == title)?.rows);
            for (title, table) in report.tables() {
                let (now, then) = (cells(table), then(title).map(cells).unwrap_or_default());
                let mut shown = Table::new(["", "then", "now", "change"]);
                for ((row, column), now) in &now {
                    match then.get(&(row.clone(), column.clone())) {
                        None => new += 1,
                        Some(then) if change(then, now).abs() <= SHOWN => same += 1,
                        Some(then) => {
                            changed += 1;
                            let by = change(then, now);
                            let by = if by.is_finite() { format!("{by:+.1} %") } else { "-".into() };
                            shown.row([format!("{row}, {column}"), then.clone(), now.clone(), by]);
                        }
                    }
                }
                gone += then.keys().filter(|place| !now.contains_key(*place)).count() as u64;
                if !shown.parts().1.is_empty() {
                    blocks.push(Block::Table(format!("{}, {title}", report.name), shown));
                }
            }
        }
        let counts = json!({ "same": same, "changed": changed, "new": new, "gone": gone });
        Report {
            name: "baseline",
            title: format!("what changed by more than {SHOWN} %"),
            lead: vec![
                format!("Then: {}.", self.versions),
                format!("Figures: {changed} changed, {same} did not, {new} were not there then, {gone} are gone."),
            ],
            blocks,
            misleads: "a figure that is rounded to few digits changes by much or not at all".into(),
            json: json!({ "experiment": "baseline", "versions": self.versions, "figures": counts }),
            failures: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: &[[&str; 4]]) -> Report {
        let mut table = Table::new(["", "lazy", "shadow", ""]);
        rows.iter().for_each(|row| table.row(*row));
        Report {
            name: "fig5",
            title: "t".into(),
            lead: vec![],
            blocks: vec![Block::Table("traps".into(), table)],
            misleads: String::new(),
            json: Value::Null,
            failures: vec![],
        }
    }

    fn compared(then: &[[&str; 4]], now: &[[&str; 4]]) -> Report {
        let written =
            json!({ "versions": "v1", "experiments": [{ "experiment": "fig5", "tables": tables(&report(then)) }] });
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f.json");
        std::fs::write(&path, written.to_string()).expect("a file");
        Baseline::read(&path).expect("a baseline").compare(&[report(now)])
    }

    #[test]
    fn what_changed_is_shown_and_counted() {
        let then = [["a", "100", "1.00+2.00", "x 9"], ["b", "0.004", "-", ""], ["c", "5", "7", ""]];
        let now = [["a", "101", "1.00+2.50", "x 1"], ["b", "0.005", "3", ""], ["d", "5", "0", ""]];
        let report = compared(&then, &now);
        let text = report.to_string();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["a,", "shadow", "1.00+2.00", "1.00+2.50", "+25.0", "%"]), "{text}");
        assert_eq!(report.json["figures"], json!({ "same": 2, "changed": 1, "new": 3, "gone": 2 }), "{text}");
        // The same again: nothing.
        assert!(compared(&now, &now).blocks.is_empty());
        assert_eq!(change("0", "3"), f64::INFINITY);
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f.json");
        for text in ["", "{}", "{\"versions\": \"v\", \"experiments\": [{\"experiment\": \"lane\"}]}"] {
            std::fs::write(&path, text).expect("a file");
            let error = Baseline::read(&path).expect_err(text).to_string();
            assert!(error.contains("is not a baseline"), "{error}");
        }
        assert!(Baseline::read(&dir.path().join("nothing")).is_err());
    }
}
