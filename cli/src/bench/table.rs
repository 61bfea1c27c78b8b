//! Tables of text: columns as wide as what stands in them.

use std::fmt;

/// A table.
#[derive(Clone, PartialEq, Eq, Debug)]
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

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                // The first column holds names, the others numbers.
                line += &if column == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
            }
            writeln!(f, "{}", line.trim_end())?;
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
    }
}
