//! The report: JSON, the same for the same run.

use crate::check::Finding;
use crate::core::Core;
use crate::counts::{CoreCounts, Difference, HartCounts, MOST_CACHES};
use crate::insn::{FenceKind, Memory};
use crate::mode::{Mode, PerMode};
use crate::shared::{Mark, Shared};
use serde_json::{Map, Value, json};

/// The version of the report's form.
pub const FORMAT: u64 = 1;

/// What one hart contributes.
#[derive(Clone, Debug)]
pub struct HartReport {
    /// Its counts at each mark.
    pub at_marks: Vec<HartCounts>,
    /// Its counts when the machine stopped.
    pub at_end: HartCounts,
    /// What check mode found.
    pub findings: Vec<Finding>,
}

/// How regions and the whole run came to their end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    /// By a marker.
    Marker,
    /// By powering the machine off.
    PowerOff,
    /// By the end of QEMU: what ran last depends on the host.
    Exit,
}

impl Ended {
    const fn name(self) -> &'static str {
        match self {
            Self::Marker => "marker",
            Self::PowerOff => "power-off",
            Self::Exit => "exit",
        }
    }
}

/// A stretch of the run, by the numbers of its marks; `None` is the start or the end of the run.
struct Stretch {
    begin: Option<usize>,
    end: Option<usize>,
    ended: Ended,
    labels: (u64, u64),
}

/// The regions that the marks delimit.
fn regions(marks: &[Mark]) -> Vec<Stretch> {
    let mut regions = Vec::new();
    let mut open = None;
    for (number, mark) in marks.iter().enumerate() {
        let close = |open: Option<(usize, u64)>, ended, label| {
            open.map(|(begin, first)| Stretch { begin: Some(begin), end: Some(number), ended, labels: (first, label) })
        };
        match *mark {
            // A region that begins while another is open begins anew.
            Mark::Begin(label) => open = Some((number, label)),
            Mark::End(label) => regions.extend(close(open.take(), Ended::Marker, label)),
            Mark::PowerOff => regions.extend(close(open.take(), Ended::PowerOff, 0)),
        }
    }
    regions.extend(open.map(|(begin, first)| Stretch {
        begin: Some(begin),
        end: None,
        ended: Ended::Exit,
        labels: (first, 0),
    }));
    regions
}

fn at(hart: &HartReport, mark: Option<usize>) -> &HartCounts {
    mark.and_then(|number| hart.at_marks.get(number)).unwrap_or(&hart.at_end)
}

/// Makes the report.
#[must_use]
pub fn report(shared: &Shared, harts: &[HartReport]) -> Value {
    let marks = shared.marks();
    let power_off = marks.iter().position(|mark| *mark == Mark::PowerOff);
    let ended = if power_off.is_some() { Ended::PowerOff } else { Ended::Exit };
    let whole = Stretch { begin: None, end: power_off, ended, labels: (0, 0) };
    let findings: Vec<Value> = harts
        .iter()
        .enumerate()
        .flat_map(|(hart, report)| {
            report.findings.iter().map(move |finding| json!({ "hart": hart, "finding": finding }))
        })
        .collect();
    json!({
        "format": FORMAT,
        "level": shared.level.name(),
        "cores": shared.cores.iter().map(core_value).collect::<Vec<_>>(),
        "late_vectors": shared.late_vectors(),
        "regions": regions(&marks).iter().map(|region| stretch(region, shared, harts)).collect::<Vec<_>>(),
        "whole": stretch(&whole, shared, harts),
        "findings": findings,
    })
}

fn core_value(core: &Core) -> Value {
    let mut arrays = [&core.l1i, &core.l1d, &core.l2].into_iter().flatten();
    let mut caches = core.walk_first.iter().chain(&core.walk_g);
    let has_guesses = arrays.any(|array| array.guess) || caches.any(|cache| cache.array.guess);
    json!({
        "name": core.name,
        "about": core.about,
        "has_guesses": has_guesses,
        "costs_are_guesses": core.cost.guess,
    })
}

fn stretch(stretch: &Stretch, shared: &Shared, harts: &[HartReport]) -> Value {
    let counts: Vec<HartCounts> = harts
        .iter()
        .map(|hart| {
            let mut counts = at(hart, stretch.end).clone();
            if stretch.begin.is_some() {
                counts.minus(at(hart, stretch.begin));
            }
            counts
        })
        .collect();
    let mut total = HartCounts::new(shared.cores.len());
    counts.iter().for_each(|hart| total.plus(hart));
    let mut value = json!({
        "ended": stretch.ended.name(),
        "labels": [stretch.labels.0, stretch.labels.1],
        "total": hart_value(&total, shared),
    });
    if harts.len() > 1 {
        value["harts"] = counts.iter().map(|hart| hart_value(hart, shared)).collect();
    }
    value
}

/// Numbers by mode, without the zeros.
fn by_mode(numbers: &PerMode<u64>) -> Value {
    let all = Mode::ALL.iter().filter(|mode| numbers[mode.index()] > 0);
    all.map(|mode| (mode.name().to_owned(), json!(numbers[mode.index()]))).collect::<Map<_, _>>().into()
}

fn minus(a: &PerMode<u64>, b: &PerMode<u64>) -> PerMode<u64> {
    std::array::from_fn(|mode| a[mode].saturating_sub(b[mode]))
}

fn hart_value(counts: &HartCounts, shared: &Shared) -> Value {
    let traps: Vec<Value> = counts
        .traps
        .iter()
        .map(|(from, to, code, is_interrupt, count)| {
            json!({
                "from": from.name(), "to": to.name(), "cause": cause_name(code, is_interrupt),
                "code": code, "interrupt": is_interrupt, "count": count,
            })
        })
        .collect();
    let mut fences = Map::new();
    for kind in FenceKind::ALL {
        for (form, suffix) in ["", " address", " id", " address id"].iter().enumerate() {
            let numbers = &counts.fences[kind as usize][form];
            if numbers.iter().any(|count| *count > 0) {
                fences.insert(format!("{}{suffix}", kind.name()), by_mode(numbers));
            }
        }
    }
    let mut value = json!({
        "instructions_attempted": by_mode(&counts.insns),
        "instructions_retired": by_mode(&minus(&counts.insns, &counts.not_retired)),
        "traps": traps,
        "traps_total": counts.traps.total(),
        "fences": fences,
        "root_switches": {
            "satp": counts.root_switches[0], "vsatp": counts.root_switches[1], "hgatp": counts.root_switches[2],
        },
    });
    if !shared.cores.is_empty() {
        value["loads"] = by_mode(&counts.accesses_of(&[Memory::Load]));
        value["stores"] = by_mode(&counts.accesses_of(&[Memory::Store, Memory::Block]));
        value["amos"] = by_mode(&counts.accesses_of(&[Memory::Amo]));
        value["data_lookups"] = by_mode(&counts.lookups());
        value["ad_updates"] = by_mode(&counts.ad_updates);
        value["pmp_faults"] = json!(counts.pmp_faults);
        value["other_access_faults"] = json!(counts.other_access_faults);
        let cores = shared.cores.iter().enumerate();
        value["cores"] = cores
            .map(|(number, core)| (core.name.clone(), core_counts(counts, number, core)))
            .collect::<Map<_, _>>()
            .into();
    }
    if shared.level == crate::args::Level::Check {
        let stale = &counts.stale;
        value["stale"] = json!({
            "one_stage": stale.one_stage, "first_stage": stale.first_stage, "g_stage": stale.g_stage,
            "pointers": stale.pointers, "missed_faults": stale.missed_faults, "spurious": stale.spurious,
        });
    }
    value
}

fn core_counts(counts: &HartCounts, number: usize, core: &Core) -> Value {
    let CoreCounts { misses, walks_by_refs, refs_by_cache } = &counts.cores[number];
    let translated = |of: fn(&crate::counts::Misses) -> u64| by_mode(&std::array::from_fn(|mode| of(&misses[mode])));
    let has_l2 = !core.l2.is_empty();
    let mut value = json!({
        "l1i_misses": translated(|misses| misses.fetch),
        "l1d_misses": translated(|misses| misses.data),
        "walks": translated(|misses| misses.walks),
        "refs": translated(|misses| misses.refs_first + misses.refs_g),
        "refs_g_stage": translated(|misses| misses.refs_g),
        "failed_walks": translated(|misses| misses.failed_walks),
        "failed_refs": translated(|misses| misses.failed_refs),
        "dirty_walks": translated(|misses| misses.dirty_walks),
        "dirty_refs": translated(|misses| misses.dirty_refs),
        "vanished": translated(|misses| misses.vanished),
    });
    if has_l2 {
        value["l2_hits"] = translated(|misses| misses.l2_hits);
    }
    let histogram = walks_by_refs.0.iter().enumerate().filter(|(_, walks)| **walks > 0);
    value["walks_by_refs"] =
        histogram.map(|(refs, walks)| (refs.to_string(), json!(walks))).collect::<Map<_, _>>().into();
    let mut names: Vec<String> = core.cost.cache.iter().take(MOST_CACHES).map(|cache| cache.name.clone()).collect();
    names.push("memory".into());
    value["refs_by_cache"] =
        names.into_iter().zip(refs_by_cache).map(|(name, refs)| (name, json!(refs))).collect::<Map<_, _>>().into();
    let cycles = counts.cycles(number, &core.cost);
    let round = |cycles: f64| cycles.round() as u64;
    value["cycles_estimated"] = json!({
        "model": round(cycles.model), "of_those_walks": round(cycles.walks),
        "if_refs_hit": round(cycles.if_refs_hit), "if_refs_miss": round(cycles.if_refs_miss),
        "if_traps_half": round(cycles.if_traps_half), "if_traps_double": round(cycles.if_traps_double),
    });
    value
}

/// The name of a cause (privileged spec, "Supervisor cause register").
fn cause_name(code: usize, is_interrupt: bool) -> String {
    let name = match (is_interrupt, code) {
        (false, 0) => "fetch misaligned",
        (false, 1) => "fetch access fault",
        (false, 2) => "illegal instruction",
        (false, 3) => "breakpoint",
        (false, 4) => "load misaligned",
        (false, 5) => "load access fault",
        (false, 6) => "store misaligned",
        (false, 7) => "store access fault",
        (false, 8) => "ecall from U or VU",
        (false, 9) => "ecall from S",
        (false, 10) => "ecall from VS",
        (false, 11) => "ecall from M",
        (false, 12) => "fetch page fault",
        (false, 13) => "load page fault",
        (false, 15) => "store page fault",
        (false, 20) => "fetch guest-page fault",
        (false, 21) => "load guest-page fault",
        (false, 22) => "virtual instruction",
        (false, 23) => "store guest-page fault",
        (true, 1) => "S software interrupt",
        (true, 2) => "VS software interrupt",
        (true, 3) => "M software interrupt",
        (true, 5) => "S timer interrupt",
        (true, 6) => "VS timer interrupt",
        (true, 7) => "M timer interrupt",
        (true, 9) => "S external interrupt",
        (true, 10) => "VS external interrupt",
        (true, 11) => "M external interrupt",
        (true, 12) => "S guest external interrupt",
        (false, _) => return format!("exception {code}"),
        (true, _) => return format!("interrupt {code}"),
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;

    fn hart(at_marks: &[u64], at_end: u64) -> HartReport {
        let counts = |insns: u64| {
            let mut counts = HartCounts::new(1);
            counts.insns[Mode::U.index()] = insns;
            counts
        };
        HartReport {
            at_marks: at_marks.iter().copied().map(counts).collect(),
            at_end: counts(at_end),
            findings: vec![],
        }
    }

    #[test]
    fn regions_are_differences() {
        let shared = Shared::new(&Args::parse(["core=plain"]).expect("valid"));
        for mark in [Mark::Begin(5), Mark::End(6), Mark::End(9), Mark::Begin(7), Mark::PowerOff] {
            assert!(shared.mark(mark));
        }
        let value = report(&shared, &[hart(&[10, 25, 30, 100, 101], 999), hart(&[1, 2, 3, 4, 6], 7)]);
        let regions = value["regions"].as_array().expect("a list");
        assert_eq!(regions.len(), 2);
        assert_eq!(regions[0]["total"]["instructions_attempted"]["U"], 16);
        assert_eq!(regions[0]["harts"][0]["instructions_attempted"]["U"], 15);
        assert_eq!((&regions[0]["labels"], &regions[0]["ended"]), (&json!([5, 6]), &json!("marker")));
        assert_eq!((&regions[1]["labels"], &regions[1]["ended"]), (&json!([7, 0]), &json!("power-off")));
        assert_eq!(value["whole"]["total"]["instructions_attempted"]["U"], 107);
    }

    #[test]
    fn without_marks_the_end_is_said_to_be_inexact() {
        let shared = Shared::new(&Args::parse(["level=counts"]).expect("valid"));
        let value = report(&shared, &[hart(&[], 5)]);
        assert_eq!((&value["regions"], &value["whole"]["ended"]), (&json!([]), &json!("exit")));
        assert_eq!(value["whole"]["total"]["instructions_retired"]["U"], 5);
        assert!(value["whole"]["total"].get("cores").is_none());
    }
}
