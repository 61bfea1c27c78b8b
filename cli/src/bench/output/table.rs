//! Tables of text: columns as wide as what stands in them, as many side by side as a terminal is sure to have room for.

use crate::host::table::{lines, widths};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most characters in a line.
const WIDTH: usize = 100;

/// A table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// One with these headings and no rows.
    pub fn new<S: Into<String>>(headings: impl IntoIterator<Item = S>) -> Self {
        Self { rows: vec![headings.into_iter().map(Into::into).collect()] }
    }

    /// Its headings and its rows.
    pub fn parts(&self) -> (&[String], &[Vec<String>]) {
        // There is always a row of headings.
        self.rows.split_first().map_or((&[], &[]), |(head, rows)| (head.as_slice(), rows))
    }

    /// Adds a row: a name and what stands in the columns. Missing cells stay empty.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl Table {
    /// The columns that stand side by side: the first, which names the rows, and then as many others as there is room for.
    fn parts_of(widths: &[usize]) -> Vec<std::ops::Range<usize>> {
        let names = widths.first().copied().unwrap_or(0);
        let mut parts = Vec::new();
        let (mut from, mut used) = (1, names);
        for (column, width) in widths.iter().enumerate().skip(1) {
            if column > from && used + 2 + width > WIDTH {
                parts.push(from..column);
                (from, used) = (column, names);
            }
            used += 2 + width;
        }
        parts.push(from..widths.len());
        parts
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in Self::parts_of(&widths(&self.rows)).into_iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            let cells = |row: &Vec<String>| {
                let names = row.iter().take(1);
                names.chain(row.iter().take(part.end).skip(part.start)).cloned().collect::<Vec<_>>()
            };
            let rows: Vec<_> = self.rows.iter().map(cells).collect();
            // The first column holds names, the others numbers.
            lines(&rows, |column| column > 0).iter().try_for_each(|line| writeln!(f, "{line}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["x", "nested", "b"]);
        table.row(["10 %", "1", "200"]);
        table.row(["100 %", "12"]);
        assert_eq!(table.to_string(), "x      nested    b\n10 %        1  200\n100 %      12\n");
        assert_eq!(Table { rows: vec![vec![]] }.to_string(), "\n");
    }

    #[test]
    fn wide_ones_are_cut_between_columns() {
        let wide = "w".repeat(45);
        let mut table = Table::new(["name", &wide, &wide, &wide]);
        table.row(["a", "1", "2", "3"]);
        let text = table.to_string();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let w = wide.as_str();
        assert_eq!(lines, [vec!["name", w, w], vec!["a", "1", "2"], vec![], vec!["name", w], vec!["a", "3"]]);
    }
}
