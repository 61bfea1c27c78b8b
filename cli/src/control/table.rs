//! Columns of text.

/// Rows as lines, each column as wide as its widest cell; no blanks at the end. Those that `right` names by place are set to the right.
#[must_use]
pub fn lines<const COLUMNS: usize>(rows: &[[String; COLUMNS]], right: &[usize]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let line = |row: &[String; COLUMNS]| {
        let cell = |(column, text): (usize, &String)| {
            let width = widths[column];
            if right.contains(&column) { format!("{text:>width$}") } else { format!("{text:<width$}") }
        };
        row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
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
        assert_eq!(lines(&rows, &[1]), ["a     1", "bcd  10  x"]);
    }

    #[test]
    fn ages_have_two_units() {
        let said = [0, 59, 60, 3599, 3600, 86_399, 86_400, 900_000].map(age);
        assert_eq!(said, ["0s", "59s", "1m0s", "59m59s", "1h0m", "23h59m", "1d0h", "10d10h"]);
    }
}
