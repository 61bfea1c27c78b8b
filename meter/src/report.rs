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

/// The part of a report that one hart contributes.
#[derive(Clone, Debug)]
pub struct HartReport {
    /// Its counts at each mark.
    pub at_marks: Vec<HartCounts>,
    /// Its counts when the machine stopped.
    pub at_end: HartCounts,
    /// The findings of check mode.
    pub findings: Vec<Finding>,
}

/// The end of a region, or of the whole run.
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
    /// Of the two markers; a region that no marker has ended has no second one.
    labels: Option<(u64, Option<u64>)>,
}

/// Markers that made no region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Unmatched {
    /// Begins that another begin followed.
    begins: u64,
    /// Ends with no region open.
    ends: u64,
}

/// The regions that the marks delimit.
fn regions(marks: &[Mark]) -> (Vec<Stretch>, Unmatched) {
    let mut regions = Vec::new();
    let mut unmatched = Unmatched::default();
    let mut open = None;
    for (number, mark) in marks.iter().enumerate() {
        let close = |open: Option<(usize, u64)>, ended, label| {
            open.map(|(begin, first)| Stretch {
                begin: Some(begin),
                end: Some(number),
                ended,
                labels: Some((first, label)),
            })
        };
        match *mark {
            // A region that begins while another is open begins anew.
            Mark::Begin(label) => unmatched.begins += u64::from(open.replace((number, label)).is_some()),
            Mark::End(_) if open.is_none() => unmatched.ends += 1,
            Mark::End(label) => regions.extend(close(open.take(), Ended::Marker, Some(label))),
            Mark::PowerOff => regions.extend(close(open.take(), Ended::PowerOff, None)),
        }
    }
    regions.extend(open.map(|(begin, first)| Stretch {
        begin: Some(begin),
        end: None,
        ended: Ended::Exit,
        labels: Some((first, None)),
    }));
    (regions, unmatched)
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
    let whole = Stretch { begin: None, end: power_off, ended, labels: None };
    let (regions, unmatched) = regions(&marks);
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
        "markers": { "begins_unmatched": unmatched.begins, "ends_unmatched": unmatched.ends, "lost": shared.lost_marks() },
        "regions": regions.iter().map(|region| stretch(region, shared, harts)).collect::<Vec<_>>(),
        "region_sums": sums(&regions, shared, harts),
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

/// The counts of each hart in a stretch of the run.
fn counts_of<'a>(stretch: &Stretch, harts: &'a [HartReport]) -> impl Iterator<Item = HartCounts> + use<'a> {
    let (begin, end) = (stretch.begin, stretch.end);
    harts.iter().map(move |hart| {
        let mut counts = at(hart, end).clone();
        if begin.is_some() {
            counts.minus(at(hart, begin));
        }
        counts
    })
}

fn total(counts: impl IntoIterator<Item = HartCounts>, shared: &Shared) -> Value {
    let mut total = HartCounts::new(shared.cores.len());
    counts.into_iter().for_each(|one| total.plus(&one));
    hart_value(&total, shared)
}

/// Regions with the same labels, added up; in the order in which the first of each began.
fn sums(regions: &[Stretch], shared: &Shared, harts: &[HartReport]) -> Vec<Value> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (number, region) in regions.iter().enumerate() {
        match groups.iter_mut().find(|group| regions[group[0]].labels == region.labels) {
            Some(group) => group.push(number),
            None => groups.push(vec![number]),
        }
    }
    let sum = |group: &Vec<usize>| {
        json!({
            "labels": regions[group[0]].labels,
            "regions": group,
            "total": total(group.iter().flat_map(|number| counts_of(&regions[*number], harts)), shared),
        })
    };
    groups.iter().map(sum).collect()
}

fn stretch(stretch: &Stretch, shared: &Shared, harts: &[HartReport]) -> Value {
    let counts: Vec<HartCounts> = counts_of(stretch, harts).collect();
    let mut value = json!({ "ended": stretch.ended.name() });
    if let Some(labels) = stretch.labels {
        value["labels"] = json!(labels);
    }
    value["total"] = total(counts.iter().cloned(), shared);
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

/// Tables by mode, without those that are empty.
fn tables_by_mode<T>(of: &PerMode<T>, table: impl Fn(&T) -> Map<String, Value>) -> Value {
    let all = Mode::ALL.iter().map(|mode| (mode.name().to_owned(), table(&of[mode.index()])));
    all.filter(|(_, table)| !table.is_empty()).map(|(name, table)| (name, table.into())).collect::<Map<_, _>>().into()
}

fn minus(a: &PerMode<u64>, b: &PerMode<u64>) -> PerMode<u64> {
    std::array::from_fn(|mode| a[mode].saturating_sub(b[mode]))
}

fn hart_value(counts: &HartCounts, shared: &Shared) -> Value {
    let traps: Vec<Value> = counts
        .traps
        .iter()
        .map(|(kind, one)| {
            let mut value = json!({
                "from": kind.from.name(), "to": kind.to.name(), "cause": cause_name(kind.code, kind.is_interrupt),
                "code": kind.code, "interrupt": kind.is_interrupt, "count": one.count,
            });
            if kind.is_exit() {
                value["handling_instructions"] = json!(one.handling);
                value["longest_handling"] = json!(one.longest.of_all);
            }
            value
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
    let CoreCounts { misses, walks_by_refs, walks_by_leaf, refs_by_cache } = &counts.cores[number];
    let translated = |of: fn(&crate::counts::Misses) -> u64| by_mode(&std::array::from_fn(|mode| of(&misses[mode])));
    let has_l2 = !core.l2.is_empty();
    let lookups = counts.lookups();
    // M mode translates nothing.
    let hits: PerMode<u64> = std::array::from_fn(|mode| match Mode::from_index(mode) {
        Mode::M => 0,
        _ => lookups[mode].saturating_sub(misses[mode].data),
    });
    let mut value = json!({
        "l1i_misses": translated(|misses| misses.fetch),
        "l1d_misses": translated(|misses| misses.data),
        "l1d_hits": by_mode(&hits),
        "walks": translated(|misses| misses.walks),
        "refs": translated(|misses| misses.refs_first + misses.refs_g),
        "refs_g_stage": translated(|misses| misses.refs_g),
        "failed_walks": translated(|misses| misses.failed_walks),
        "failed_refs": translated(|misses| misses.failed_refs),
        "dirty_walks": translated(|misses| misses.dirty_walks),
        "dirty_refs": translated(|misses| misses.dirty_refs),
        "refused_without_walk": translated(|misses| misses.refused_without_walk),
        "vanished": translated(|misses| misses.vanished),
    });
    if has_l2 {
        value["l2_hits"] = translated(|misses| misses.l2_hits);
        value["l2_misses"] = translated(|misses| misses.fetch + misses.data - misses.l2_hits);
    }
    value["walks_by_refs"] = tables_by_mode(walks_by_refs, |histogram| {
        let counted = histogram.0.iter().enumerate().filter(|(_, walks)| **walks > 0);
        counted.map(|(refs, walks)| (refs.to_string(), json!(walks))).collect()
    });
    value["walks_by_leaf"] = tables_by_mode(walks_by_leaf, |leaves| {
        leaves.iter().map(|(name, one)| (name, json!({ "walks": one.walks, "refs": one.refs }))).collect()
    });
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
    use crate::walk::{Leaf, Mapping};
    use rv::PteFlags;

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
        let marks = [Mark::Begin(5), Mark::End(6), Mark::End(9), Mark::Begin(7), Mark::PowerOff];
        marks.into_iter().for_each(|mark| assert!(shared.mark(mark)));
        let value = report(&shared, &[hart(&[10, 25, 30, 100, 101], 999), hart(&[1, 2, 3, 4, 6], 7)]);
        assert_eq!(value["markers"], json!({ "begins_unmatched": 0, "ends_unmatched": 1, "lost": 0 }));
        let regions = value["regions"].as_array().expect("a list");
        assert_eq!(regions.len(), 2);
        assert_eq!(regions[0]["total"]["instructions_attempted"]["U"], 16);
        assert_eq!(regions[0]["harts"][0]["instructions_attempted"]["U"], 15);
        assert_eq!((&regions[0]["labels"], &regions[0]["ended"]), (&json!([5, 6]), &json!("marker")));
        assert_eq!((&regions[1]["labels"], &regions[1]["ended"]), (&json!([7, null]), &json!("power-off")));
        assert_eq!(value["whole"]["total"]["instructions_attempted"]["U"], 107);
    }

    #[test]
    fn regions_with_the_same_labels_are_added_up() {
        let shared = Shared::new(&Args::parse(["core=plain"]).expect("valid"));
        let marks = [Mark::Begin(5), Mark::End(6), Mark::Begin(5), Mark::End(7), Mark::Begin(5), Mark::End(6)];
        marks.into_iter().for_each(|mark| assert!(shared.mark(mark)));
        let value = report(&shared, &[hart(&[10, 20, 100, 300, 1000, 1007], 2000), hart(&[0, 1, 1, 1, 1, 1], 1)]);
        let insns = |part: &Value| part["total"]["instructions_attempted"]["U"].as_u64();
        let sums = value["region_sums"].as_array().expect("a list");
        assert_eq!(sums.iter().map(insns).collect::<Vec<_>>(), [Some(18), Some(200)]);
        let labels = |part: &Value| part["labels"].clone();
        assert_eq!(sums.iter().map(labels).collect::<Vec<_>>(), [json!([5, 6]), json!([5, 7])]);
        assert_eq!((&sums[0]["regions"], &sums[1]["regions"]), (&json!([0, 2]), &json!([1])));
        let regions = value["regions"].as_array().expect("a list");
        assert_eq!(regions.iter().map(insns).collect::<Vec<_>>(), [Some(11), Some(200), Some(7)]);
    }

    #[test]
    fn walks_have_tables() {
        let shared = Shared::new(&Args::parse(["core=plain"]).expect("valid"));
        let mut hart = hart(&[], 5);
        let core = &mut hart.at_end.cores[0];
        let leaf = |span| Some(Leaf { span, flags: PteFlags::empty() });
        for (first, g, refs, mode) in [
            (leaf(0), leaf(0), 15, Mode::VU),
            (leaf(0), leaf(0), 15, Mode::VU),
            (leaf(4), None, 3, Mode::VU),
            (None, leaf(9), 2, Mode::VS),
            (leaf(18), leaf(36), 7, Mode::VS),
        ] {
            let mapping = Mapping { guest_page: 0, page: 0, first, g, is_global: false };
            core.count_walk(mode, &mapping, refs);
        }
        let counted = &report(&shared, &[hart])["whole"]["total"]["cores"]["plain"];
        let expected = json!({ "VU": { "3": 1, "15": 2 }, "VS": { "2": 1, "7": 1 } });
        assert_eq!(counted["walks_by_refs"], expected);
        let one = |walks: u64, refs: u64| json!({ "walks": walks, "refs": refs });
        let expected = json!({
            "VU": { "4K/4K": one(2, 30), "64K": one(1, 3) }, "VS": { "-/2M": one(1, 2), "1G/256T": one(1, 7) },
        });
        assert_eq!(counted["walks_by_leaf"], expected);
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
