//! Counters as Prometheus reads them: its text format, version 0.0.4.

use abi::record::Stats;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The counters that can decrease (gauges); all others only increase.
const GAUGES: [&str; 14] = [
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
    "vms.most",
    "zeroed.ready",
];

/// Its kind; and of each sample the labels and the value.
type Metric = (&'static str, Vec<(String, u64)>);

/// A label's value, as it is to be written.
fn value(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

/// The text of runs' counters, each with its name. Of VMs `gnomon_vm_NAME`, with labels `run` and `vm`; of Gnomon itself
/// `gnomon_NAME`, with the label `run`; where a counter's name has a dot, that is `_`.
#[must_use]
pub fn text(run: &str, stats: &Stats) -> String {
    // All that is of one name stands together.
    let mut metrics: BTreeMap<String, Metric> = BTreeMap::new();
    let mut add = |prefix: &str, counter: &str, labels: String, count: u64| {
        let kind = if GAUGES.contains(&counter) { "gauge" } else { "counter" };
        let name = format!("{prefix}_{}", counter.replace('.', "_"));
        metrics.entry(name).or_insert((kind, Vec::new())).1.push((labels, count));
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
    for (name, (kind, samples)) in metrics {
        // Into memory: it cannot fail.
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
        let expected = "\
            # TYPE gnomon_ipis_sent counter\n\
            gnomon_ipis_sent{run=\"r\"} 7\n\
            # TYPE gnomon_vm_exits_total counter\n\
            gnomon_vm_exits_total{run=\"r\",vm=\"a\"} 1\n\
            gnomon_vm_exits_total{run=\"r\",vm=\"b\\\"\"} 18446744073709551615\n\
            # TYPE gnomon_vm_frames_guest gauge\n\
            gnomon_vm_frames_guest{run=\"r\",vm=\"a\"} 5\n\
            gnomon_vm_frames_guest{run=\"r\",vm=\"b\\\"\"} 5\n";
        assert_eq!(text("r", &stats), expected);
    }

    #[test]
    fn what_goes_down_is_a_counter_that_there_is() {
        let docs = include_str!("../../../docs/counters.md");
        for name in GAUGES {
            assert!(docs.contains(&format!("| `{name}` |")), "{name}");
        }
    }
}
