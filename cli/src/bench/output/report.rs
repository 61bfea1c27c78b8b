//! A benchmark's report: as text, as a page, and as JSON.

use super::table::Table;
use std::fmt;

/// An experiment's report.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The experiment.
    pub name: &'static str,
    /// The experiment, in a line.
    pub title: String,
    /// The method, the versions and sizes, and the papers' figures, in paragraphs.
    pub lead: Vec<String>,
    /// The results.
    pub blocks: Vec<Block>,
    /// A caveat for the reader, in a line.
    pub misleads: String,
    /// All that was measured.
    pub json: serde_json::Value,
    /// The reasons why subjects could not be measured, and other complaints, such as an exit that took too long.
    pub failures: Vec<String>,
}

/// A part of a report.
#[derive(Clone, PartialEq, Debug)]
pub enum Block {
    /// The title of the blocks that follow.
    Heading(String),
    /// A paragraph.
    Text(String),
    /// A table under a line of its own.
    Table(String, Table),
    /// A plot, on the page only.
    Chart(Chart),
}

/// A plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// The quantity, with its unit.
    pub title: String,
    /// The kind of plot, with its data.
    pub kind: ChartKind,
}

/// The kinds of plots.
#[derive(Clone, PartialEq, Debug)]
pub enum ChartKind {
    /// A bar for each name; a value that could not be measured is missing.
    Bars {
        /// Names and lengths.
        bars: Vec<(String, Option<f64>)>,
        /// The value at which a line is drawn across the bars, such as 1.00 for the bare machine.
        reference: Option<f64>,
    },
    /// A bar for each name, cut into parts.
    Stacks {
        /// The names of the parts.
        parts: Vec<String>,
        /// Names, and the length of each part.
        bars: Vec<(String, Vec<f64>)>,
    },
    /// Lines over a common axis.
    Lines {
        /// The quantities of both axes.
        axes: [String; 2],
        /// The measured lines.
        lines: Vec<Line>,
        /// A paper's points: marks without a line between them.
        paper: Vec<Line>,
    },
}

/// A line of a plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Its points, in the order of x.
    pub points: Vec<(f64, f64)>,
}

impl Chart {
    /// Returns whether there is nothing to plot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match &self.kind {
            ChartKind::Bars { bars, .. } => bars.iter().all(|(_, value)| value.is_none()),
            ChartKind::Stacks { bars, .. } => bars.iter().all(|(_, parts)| parts.iter().all(|part| *part == 0.0)),
            ChartKind::Lines { lines, .. } => lines.iter().all(|line| line.points.is_empty()),
        }
    }
}

impl Report {
    /// Its tables, with their titles.
    pub fn tables(&self) -> impl Iterator<Item = (&str, &Table)> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Table(title, table) => Some((title.as_str(), table)),
            _ => None,
        })
    }

    /// Its plots, but those that show nothing.
    pub fn charts(&self) -> impl Iterator<Item = &Chart> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Chart(chart) if !chart.is_empty() => Some(chart),
            _ => None,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.name, self.title)?;
        self.lead.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        for block in &self.blocks {
            match block {
                Block::Heading(text) => writeln!(f, "\n== {text} ==")?,
                Block::Text(text) => writeln!(f, "\n{text}")?,
                Block::Table(title, table) => write!(f, "\n{title}\n{table}")?,
                Block::Chart(_) => {}
            }
        }
        writeln!(f, "\nwhat may mislead: {}", self.misleads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_leaves_plots_out() {
        let mut table = Table::new(["x", "y"]);
        table.row(["1", "2"]);
        let kind = ChartKind::Bars { bars: vec![("a".into(), None)], reference: None };
        let chart = Chart { title: "unseen".into(), kind };
        assert!(chart.is_empty());
        let report = Report {
            name: "figure",
            title: "a test".into(),
            lead: vec!["lead".into()],
            blocks: vec![Block::Heading("part".into()), Block::Table("t".into(), table), Block::Chart(chart)],
            misleads: "all".into(),
            json: serde_json::Value::Null,
            failures: vec![],
        };
        let text = "figure: a test\nlead\n\n== part ==\n\nt\nx  y\n1  2\n\nwhat may mislead: all\n";
        assert_eq!(report.to_string(), text);
    }
}
