//! Lines that test guests print on their console.

/// Starts a line that says a named check passed.
pub const PASS: &str = "gnomon-test: PASS ";
/// Starts a line that says a named check failed; the name, `: ` and the reason follow.
pub const FAIL: &str = "gnomon-test: FAIL ";
/// The line that ends a report; the number of checks made follows.
pub const DONE: &str = "gnomon-test: DONE ";
/// Starts a line with a figure that a benchmark reads; its name, a space and a decimal number follow.
pub const FIGURE: &str = "gnomon-figure: ";

/// A line of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line<'a> {
    /// The named check passed.
    Pass(&'a str),
    /// The named check failed, and why.
    Fail(&'a str),
    /// The report is complete, with so many checks.
    Done(u32),
}

impl<'a> Line<'a> {
    /// Reads one console line; `None` if it is not part of a report.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        let line = line.trim_end();
        if let Some(name) = line.strip_prefix(PASS) {
            Some(Line::Pass(name))
        } else if let Some(rest) = line.strip_prefix(FAIL) {
            Some(Line::Fail(rest))
        } else {
            line.strip_prefix(DONE)?.parse().ok().map(Line::Done)
        }
    }
}

/// Reads one console line as a figure: its name and value.
#[must_use]
pub fn figure(line: &str) -> Option<(&str, u64)> {
    let (name, value) = line.trim_end().strip_prefix(FIGURE)?.split_once(' ')?;
    Some((name, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        assert_eq!(Line::parse("gnomon-test: PASS sbi/base\r\n"), Some(Line::Pass("sbi/base")));
        assert_eq!(Line::parse("gnomon-test: FAIL x: 1 != 2"), Some(Line::Fail("x: 1 != 2")));
        assert_eq!(Line::parse("gnomon-test: DONE 7"), Some(Line::Done(7)));
        assert_eq!(Line::parse("gnomon-test: DONE"), None);
        assert_eq!(figure("gnomon-figure: faults 12\r\n"), Some(("faults", 12)));
        assert_eq!(figure("gnomon-figure: faults many"), None);
        assert_eq!(Line::parse("[ 0.0] gnomon-test: PASS x"), None);
    }
}
