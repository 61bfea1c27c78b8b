//! Assertions about counters: `exits.total - exits.timer <= 1000`.

use abi::record::Stats;
use serde::Deserialize;
use std::fmt;

/// One assertion: a counter, or that less others, against a number. A name is a counter of the VMs
/// (the sum over all of them), or, after `host.`, one of Gnomon's own.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Assertion {
    name: String,
    less: Vec<String>,
    relation: Relation,
    bound: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    Equal,
    AtMost,
    AtLeast,
}

impl TryFrom<String> for Assertion {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let error = || format!("`{text}` is not of the form `NAME [- NAME]... <= NUMBER` (or ==, or >=)");
        let words: Vec<_> = text.split_whitespace().collect();
        let [name, ref middle @ .., relation, bound] = words[..] else { return Err(error()) };
        let less = middle.chunks(2).map(|pair| match pair {
            ["-", name] => Ok((*name).to_owned()),
            _ => Err(error()),
        });
        let less = less.collect::<Result<_, _>>()?;
        let relation = match relation {
            "==" => Relation::Equal,
            "<=" => Relation::AtMost,
            ">=" => Relation::AtLeast,
            _ => return Err(error()),
        };
        Ok(Self { name: name.into(), less, relation, bound: bound.replace('_', "").parse().map_err(|_| error())? })
    }
}

impl Assertion {
    /// Checks it. A counter that is not there fails. What a counter was in `baseline` is subtracted.
    pub fn check(&self, stats: &Stats, baseline: Option<&Stats>) -> Result<(), String> {
        let of = |stats: &Stats, name: &str| match name.strip_prefix("host.") {
            Some(name) => stats.host.get(name).copied(),
            None => stats.vms.iter().filter_map(|vm| vm.counters.get(name)).copied().reduce(|a, b| a + b),
        };
        let value = |name: &str| {
            let value = of(stats, name).ok_or_else(|| format!("{name} is not a counter"))?;
            let before = baseline.and_then(|baseline| of(baseline, name)).unwrap_or(0);
            Ok::<_, String>(value.saturating_sub(before))
        };
        let over = if baseline.is_some() { " over the baseline" } else { "" };
        self.compare(value, over)
    }

    /// Checks it on counters of another kind.
    pub fn check_by(&self, value: impl Fn(&str) -> Result<u64, String>) -> Result<(), String> {
        self.compare(value, "")
    }

    fn compare(&self, value: impl Fn(&str) -> Result<u64, String>, over: &str) -> Result<(), String> {
        let mut total = i128::from(value(&self.name)?);
        for name in &self.less {
            total -= i128::from(value(name)?);
        }
        let Self { relation, bound, .. } = self;
        let wanted = i128::from(*bound);
        let holds = match relation {
            Relation::Equal => total == wanted,
            Relation::AtMost => total <= wanted,
            Relation::AtLeast => total >= wanted,
        };
        if holds { Ok(()) } else { Err(format!("{} is {total}{over}, expected {relation} {bound}", self.what())) }
    }

    fn what(&self) -> String {
        std::iter::once(&self.name).chain(&self.less).map(String::as_str).collect::<Vec<_>>().join(" - ")
    }
}

impl fmt::Display for Assertion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.what(), self.relation, self.bound)
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "==",
            Self::AtMost => "<=",
            Self::AtLeast => ">=",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::record::VmStats;

    #[test]
    fn assertions() {
        let vm = |value| VmStats { vm: "a".into(), counters: [("exits.total".into(), value)].into() };
        let stats = Stats { vms: vec![vm(3), vm(4)], host: [("ipis.sent".into(), 9)].into() };
        let check = |text: &str| Assertion::try_from(text.to_owned()).expect(text).check(&stats, None);
        assert_eq!(check("exits.total == 7"), Ok(()));
        assert_eq!(check("exits.total <= 1_000"), Ok(()));
        assert_eq!(check("host.ipis.sent >= 9"), Ok(()));
        assert_eq!(check("exits.total >= 8"), Err("exits.total is 7, expected >= 8".into()));
        assert_eq!(check("host.ipis.sent - exits.total == 2"), Ok(()));
        // What is less than nothing is not nothing.
        let negative = "exits.total - host.ipis.sent is -2, expected == 0";
        assert_eq!(check("exits.total - host.ipis.sent == 0"), Err(negative.into()));
        assert_eq!(check("exits.total - host.ipis.sent <= 0"), Ok(()));
        assert_eq!(check("exits.none >= 0"), Err("exits.none is not a counter".into()));
        let past = Stats { vms: vec![vm(5)], host: [].into() };
        let over = |text: &str| Assertion::try_from(text.to_owned()).expect(text).check(&stats, Some(&past));
        assert_eq!(over("exits.total == 2"), Ok(()));
        assert_eq!(over("host.ipis.sent == 9"), Ok(()));
        assert_eq!(over("exits.total >= 3"), Err("exits.total is 2 over the baseline, expected >= 3".into()));
        for bad in ["a", "a < 1", "a == b", "a == 1 2", "a - == 1", "a + b == 1", "a b == 1"] {
            assert!(Assertion::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
