//! Counters as Prometheus reads them: its text format, version 0.0.4.

use abi::record::Stats;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The counters that can decrease (gauges); all others only increase.
const GAUGES: [&str; 15] = [
    "balloon.actual",
    "balloon.target",
    "frames.free",
    "frames.guest",
    "frames.images",
    "frames.table",
    "frames.total",
    "heap.at_start",
    "heap.used",
    "swap.free",
    "swap.images",
    "swap.pages",
    "swap.refused",
    "vms.most",
    "zeroed.ready",
];

/// The page that describes all counters, from which each gets its help.
const PAGE: &str = include_str!("../../../docs/counters.md");

/// The counter's name and kind; and of each sample the labels and the value.
type Metric<'a> = (&'a str, &'static str, Vec<(String, u64)>);

/// A label's value, as it is to be written.
fn value(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

/// The description of a counter, without Markdown; `None` if the page has none.
fn help(counter: &str) -> Option<String> {
    let row = format!("| `{counter}` | ");
    let text = PAGE.lines().find_map(|line| line.strip_prefix(&row)).and_then(|rest| rest.strip_suffix(" |"))?;
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        let (label, behind) = after.split_once(']').unwrap_or((after, ""));
        let target = behind.strip_prefix('(').and_then(|target| target.split_once(')'));
        plain.extend([before, label]);
        rest = target.map_or(behind, |(_, behind)| behind);
    }
    plain += rest;
    Some(plain.replace(['`', '*'], "").replace('\\', r"\\"))
}

/// The name of a metric: a counter's ends in `_total`, and no gauge's does.
fn metric(prefix: &str, counter: &str, kind: &str) -> String {
    let name = format!("{prefix}_{}", counter.replace('.', "_"));
    let stem = name.strip_suffix("_total").unwrap_or(&name);
    if kind == "counter" { format!("{stem}_total") } else { stem.into() }
}

/// The text of runs' counters, each with its name. Of VMs `gnomon_vm_NAME`, with labels `run` and `vm`; of Gnomon itself
/// `gnomon_NAME`, with the label `run`; where a counter's name has a dot, that is `_`. Names of those that only increase
/// end in `_total`.
#[must_use]
pub fn text(run: &str, stats: &Stats) -> String {
    // All that is of one name stands together.
    let mut metrics: BTreeMap<String, Metric<'_>> = BTreeMap::new();
    let mut add = |prefix: &str, counter, labels: String, count: u64| {
        let kind = if GAUGES.contains(&counter) { "gauge" } else { "counter" };
        let name = metric(prefix, counter, kind);
        metrics.entry(name).or_insert((counter, kind, Vec::new())).2.push((labels, count));
    };
    let run = value(run);
    for vm in &stats.vms {
        for (counter, count) in &vm.counters {
            add("gnomon_vm", counter, format!("run=\"{run}\",vm=\"{}\"", value(&vm.vm)), *count);
        }
    }
    for (counter, count) in &stats.host {
        add("gnomon", counter, format!("run=\"{run}\""), *count);
    }
    let mut text = String::new();
    for (name, (counter, kind, samples)) in metrics {
        // Into memory: it cannot fail.
        if let Some(help) = help(counter) {
            let _ = writeln!(text, "# HELP {name} {help}");
        }
        let _ = writeln!(text, "# TYPE {name} {kind}");
        for (labels, count) in samples {
            let _ = writeln!(text, "{name}{{{labels}}} {count}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::record::VmStats;

    #[test]
    fn what_is_of_one_name_stands_together() {
        let counters = |count| [("exits.total".to_owned(), count), ("frames.guest".to_owned(), 5)].into();
        let vms = vec![
            VmStats { vm: "a".into(), counters: counters(1) },
            VmStats { vm: "b\"".into(), counters: counters(u64::MAX) },
        ];
        let stats = Stats { vms, host: [("ipis.sent".to_owned(), 7)].into() };
        let help = |counter| super::help(counter).expect("a description");
        let expected = format!(
            "# HELP gnomon_ipis_sent_total {}\n\
             # TYPE gnomon_ipis_sent_total counter\n\
             gnomon_ipis_sent_total{{run=\"r\"}} 7\n\
             # HELP gnomon_vm_exits_total {}\n\
             # TYPE gnomon_vm_exits_total counter\n\
             gnomon_vm_exits_total{{run=\"r\",vm=\"a\"}} 1\n\
             gnomon_vm_exits_total{{run=\"r\",vm=\"b\\\"\"}} 18446744073709551615\n\
             # HELP gnomon_vm_frames_guest {}\n\
             # TYPE gnomon_vm_frames_guest gauge\n\
             gnomon_vm_frames_guest{{run=\"r\",vm=\"a\"}} 5\n\
             gnomon_vm_frames_guest{{run=\"r\",vm=\"b\\\"\"}} 5\n",
            help("ipis.sent"),
            help("exits.total"),
            help("frames.guest")
        );
        assert_eq!(text("r", &stats), expected);
    }

    #[test]
    fn names_and_help_are_as_prometheus_wants_them() {
        assert_eq!(metric("gnomon", "frames.total", "gauge"), "gnomon_frames");
        assert_eq!(metric("gnomon_vm", "exits.timer", "counter"), "gnomon_vm_exits_timer_total");
        let help = help("sbi.root_cache").expect("a description");
        assert_eq!(help, "calls about the root cache");
    }

    /// The rules of `promtool check metrics` that a name with `_total` behind it can break.
    #[test]
    fn no_counter_is_named_as_promtool_forbids() {
        const FORBIDDEN: [&str; 14] = [
            "bucket",
            "counter",
            "count",
            "days",
            "gauge",
            "histogram",
            "hours",
            "kb",
            "mb",
            "milliseconds",
            "minutes",
            "ms",
            "sum",
            "summary",
        ];
        let counters: Vec<_> = PAGE
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
            .filter(|(name, _)| name.contains('.') && !name.contains(' '))
            .collect();
        assert!(counters.len() > 200, "{}", counters.len());
        for (counter, _) in counters {
            let name = metric("gnomon_vm", counter, "counter");
            assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{name}");
            assert!(name.split('_').all(|part| !FORBIDDEN.contains(&part)), "{name}");
            assert!(help(counter).is_some_and(|help| !help.is_empty()), "{name}");
        }
    }

    #[test]
    fn what_goes_down_is_a_counter_that_there_is() {
        for name in GAUGES {
            assert!(PAGE.contains(&format!("| `{name}` |")), "{name}");
        }
    }
}
