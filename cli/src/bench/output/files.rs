//! Tables and plots as files of their own: CSV and SVG.

use super::plot;
use super::report::Report;
use super::table::Table;
use crate::host::output::Kind;
use crate::host::place::{IoError, write_whole};
use miette::{Diagnostic, IntoDiagnostic};
use std::fs;
use std::path::{Path, PathBuf};

/// The file that marks a directory of tables and plots, and has the command that they are of.
const MARK: &str = "gnomon-bench.txt";
const MARKED: Kind = Kind { what: "a file of `gnomon bench`", mark: b"gnomon bench " };

/// A directory that other files are in.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("the directory {0} has files that are not of `gnomon bench`, which could be replaced")]
#[diagnostic(help("name a new directory for --files, or an empty one"))]
struct Foreign(PathBuf);

/// Makes a directory for tables and plots, if it is not there. One that is there must be empty, or bear the mark.
///
/// # Errors
/// If the directory is another one, or cannot be written.
pub fn begin(dir: &Path, command: &str) -> miette::Result<()> {
    fs::create_dir_all(dir).map_err(IoError::at("make the directory", dir))?;
    let mut there = fs::read_dir(dir).map_err(IoError::at("read the directory", dir))?;
    if there.next().is_some() && !dir.join(MARK).exists() {
        return Err(Foreign(dir.to_owned()).into());
    }
    Ok(MARKED.write(&dir.join(MARK), format!("{command}\n").as_bytes())?)
}

/// Writes every table and every plot of a report to files in a directory, which is made if it is not there.
///
/// # Errors
/// If something cannot be plotted or written.
pub fn write(dir: &Path, report: &Report) -> miette::Result<()> {
    fs::create_dir_all(dir).map_err(IoError::at("make the directory", dir))?;
    let path = |title: &str, kind: &str| dir.join(format!("{}-{}.{kind}", report.name, slug(title)));
    for (title, table) in report.tables() {
        write_whole(&path(title, "csv"), &csv(table)?)?;
    }
    for chart in report.charts() {
        write_whole(&path(&chart.title, "svg"), plot::svg(chart)?.as_bytes())?;
    }
    Ok(())
}

/// A table as RFC 4180 has it: a line of headings, then the rows, all of one length.
fn csv(table: &Table) -> miette::Result<Vec<u8>> {
    let (head, rows) = table.parts();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let empty = String::new();
    for row in std::iter::once(head).chain(rows.iter().map(Vec::as_slice)) {
        let cells = row.iter().chain(std::iter::repeat(&empty)).take(head.len().max(row.len()));
        writer.write_record(cells.map(String::as_bytes)).into_diagnostic()?;
    }
    writer.into_inner().into_diagnostic()
}

/// A title as a file's name: words of small letters and digits with dashes between.
fn slug(title: &str) -> String {
    let lower = title.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::output::report::{Block, Chart, ChartKind};
    use std::collections::BTreeMap;

    #[test]
    fn other_directories_are_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = dir.path().join("own");
        for command in ["gnomon bench lane", "gnomon bench fig5"] {
            begin(&own, command).expect("it is new, or its own");
            assert_eq!(fs::read_to_string(own.join(MARK)).expect("a mark"), format!("{command}\n"));
        }
        let why = begin(dir.path(), "gnomon bench lane").expect_err("something else is in it").to_string();
        assert!(why.contains("not of `gnomon bench`"), "{why}");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing is left");
    }

    #[test]
    fn each_table_and_each_plot_is_a_file() {
        let mut table = Table::new(["", "a, b"]);
        table.row(["x \"1\"", "2"]);
        table.row(["y"]);
        let chart = |value| {
            let kind = ChartKind::Bars { bars: vec![("kvm".into(), value)], reference: None };
            Block::Chart(Chart { title: "Cycles, core p550".into(), kind })
        };
        let report = Report {
            name: "fig7",
            title: String::new(),
            lead: vec![],
            blocks: vec![Block::Table("cc1: exits / native".into(), table), chart(Some(1.0)), chart(None)],
            misleads: String::new(),
            json: serde_json::Value::Null,
            failures: vec![],
        };
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().join("made/of/it");
        write(&dir, &report).expect("files");
        let files = fs::read_dir(&dir).expect("a directory").map(|entry| entry.expect("an entry").path());
        let read = |path: std::path::PathBuf| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).expect("text"))
        };
        let files: BTreeMap<String, String> = files.map(read).collect();
        assert_eq!(files.keys().collect::<Vec<_>>(), ["fig7-cc1-exits-native.csv", "fig7-cycles-core-p550.svg"]);
        assert_eq!(files["fig7-cc1-exits-native.csv"], ",\"a, b\"\n\"x \"\"1\"\"\",2\ny,\n");
        assert!(files["fig7-cycles-core-p550.svg"].starts_with("<svg"));
        assert!(write(Path::new("/dev/null/x"), &report).is_err());
    }
}
