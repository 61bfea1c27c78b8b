//! Columns of text, and times as people read them.

/// The width of each column: that of its widest cell, in characters.
#[must_use]
pub fn widths(rows: &[impl AsRef<[String]>]) -> Vec<usize> {
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width =
        |column| rows.iter().filter_map(|row| row.as_ref().get(column)).map(|cell: &String| cell.chars().count()).max();
    (0..columns).map(|column| width(column).unwrap_or(0)).collect()
}

/// Formats rows as lines, with columns of these widths and no blanks at the end. Columns for which `is_right` holds are
/// aligned to the right.
pub fn lines(rows: &[impl AsRef<[String]>], is_right: impl Fn(usize) -> bool) -> Vec<String> {
    let widths = widths(rows);
    let line = |row: &[String]| {
        let cell = |(column, text): (usize, &String)| {
            let width = widths[column];
            if is_right(column) { format!("{text:>width$}") } else { format!("{text:<width$}") }
        };
        row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(|row| line(row.as_ref())).collect()
}

/// A time in seconds, as people say it: its two largest units.
#[must_use]
pub fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, ..) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = [["a", "1", ""], ["bcd", "10", "x"]].map(|row| row.map(String::from));
        assert_eq!(lines(&rows, |column| column == 1), ["a     1", "bcd  10  x"]);
    }

    #[test]
    fn ages_have_two_units() {
        let said = [0, 59, 60, 3599, 3600, 86_399, 86_400, 900_000].map(age);
        assert_eq!(said, ["0s", "59s", "1m0s", "59m59s", "1h0m", "23h59m", "1d0h", "10d10h"]);
    }
}
