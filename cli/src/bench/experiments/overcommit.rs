//! More vCPUs than harts: hackbench by as many vCPUs as there are harts, and by twice as many; and by two vCPUs on one hart, under
//! the meter, beside KVM.
//!
//! The meter cannot tell several harts apart under `-icount`, where all are one thread of QEMU's. But there an instruction, of
//! whatever hart and privilege mode, is a nanosecond of the `time` CSR, so the guest reads the figure itself. Time in which all harts
//! wait would count, too.

use super::linux::{Case, Plan, number, ratio};
use crate::bench::lab::progress::Progress;
use crate::bench::lab::subject::{Choice, Extra, Gnomon, Subject};
use crate::bench::lab::{Keeping, Lab, Load, Nesting, Processors, Run};
use crate::bench::output::report::{Block, Report};
use crate::bench::output::table::Table;
use crate::bench::{INSTRUCTIONS_PER_TICK, in_parallel};
use crate::guest::debian::Software;
use crate::subject::workload::{DONE, Devices, HugePages, Kind, Region, Scale};
use miette::miette;
use serde_json::json;

const HARTS: u32 = 2;
const VCPUS: [u32; 2] = [HARTS, 2 * HARTS];
const APPEND: &str = "console=ttyS0 quiet panic=-1 norandmaps no4lvl";
/// The counters of a vCPU's waiting.
const COUNTERS: [&str; 4] = ["exits.total", "vcpu.wfis", "vcpu.wrs_ntos", "vcpu.yields"];

/// A subject, how many vCPUs it had, and what it came to, or why to nothing.
type Row = (Subject, u32, Result<Run, String>);

/// Measures.
///
/// # Errors
/// If something is missing. What goes wrong with a machine stands in the report.
pub fn measure(lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
    // It is not about the lane, and KVM's hosts have one hart.
    let can = |subject: &Subject| {
        matches!(
            subject,
            Subject::Native
                | Subject::Gnomon(Gnomon { variant: crate::subject::variant::Variant { lane: true, .. }, .. })
        )
    };
    let shared = shared(scale)?;
    let results = shared.run(lab, choice)?;
    let shared = shared.report(lab, &results, Vec::new())?;
    // None, if only KVM is chosen.
    let subjects = choice.subjects("overcommit", Extra::None, can).unwrap_or_default();
    let (kernel, workload) = (Software::Kernel.provide()?, Kind::Timed.provide(scale, HugePages::Never)?);
    let jobs: Vec<_> = subjects.iter().flat_map(|subject| VCPUS.map(|vcpus| (*subject, vcpus))).collect();
    let step = Progress::begin("overcommit", jobs.len());
    let rows: Vec<Row> = in_parallel(&jobs, |(subject, vcpus)| {
        let load = Load {
            kernel: kernel.file.clone(),
            initrd: Some(workload.initrd.clone()),
            append: APPEND.into(),
            memory: workload.memory,
            svadu: choice.svadu,
            keeping: Keeping::Demand,
            has_few_devices: false,
            processors: Processors { harts: if *subject == Subject::Native { *vcpus } else { HARTS }, vcpus: *vcpus },
            devices: Devices::default(),
            nesting: Nesting::None,
        };
        let run = lab.run(*subject, &load).and_then(|run| match run.figures.get(DONE) {
            Some(_) => Ok(run),
            None => Err(miette!("the guest's script was interrupted")),
        });
        step.done(&format!("{subject}, {vcpus} vCPUs"));
        (*subject, *vcpus, run.map_err(|why| why.to_string()))
    });
    let versions = format!(
        "{}, {} {}; {HARTS} harts, -icount shift=0{}; size: {}; {}",
        lab.versions(),
        kernel.name,
        kernel.version,
        Choice::promise(choice.svadu),
        scale.name(),
        workload.versions.join(", ")
    );
    let report = report(&rows, &workload.regions, &versions);
    Ok(Report {
        lead: [report.lead, shared.lead].concat(),
        blocks: [report.blocks, shared.blocks].concat(),
        json: json!({ "experiment": "overcommit", "versions": versions, "rows": report.json, "cases": shared.json["cases"] }),
        failures: [report.failures, shared.failures].concat(),
        ..report
    })
}

/// Two vCPUs that share a hart.
fn shared(scale: Scale) -> miette::Result<Plan> {
    let case = Case {
        name: "2 vCPUs on 1 hart".into(),
        workload: Kind::Switching.provide(scale, HugePages::Never)?,
        svadu: false,
        keeping: Keeping::Demand,
        vcpus: 2,
    };
    Ok(Plan {
        name: "overcommit",
        title: String::new(),
        lead: vec!["By two vCPUs on one hart, under the meter; native has one hart for one.".into()],
        misleads: String::new(),
        cases: vec![case],
        extra: Extra::None,
        scale,
    })
}

/// Instructions of all harts in a region.
fn instructions(run: &Run, region: &Region) -> Option<u64> {
    let at = |end: &str| run.figures.get(&format!("{end}-{}", region.label));
    Some((at("end")? - at("begin")?) * INSTRUCTIONS_PER_TICK)
}

fn report(rows: &[Row], regions: &[Region], versions: &str) -> Report {
    let find = |subject, vcpus| rows.iter().find(|row| (row.0, row.1) == (subject, vcpus))?.2.as_ref().ok();
    let mut subjects: Vec<_> = rows.iter().map(|row| row.0).collect();
    subjects.dedup();
    let mut blocks = Vec::new();
    for region in regions {
        let mut table = Table::new(["", "instr., 2 vCPUs", "4 vCPUs", "4 / 2", "2 / native", "4 / native"]);
        let of = |subject, vcpus| find(subject, vcpus).and_then(|run| instructions(run, region));
        let natives = VCPUS.map(|harts| of(Subject::Native, harts));
        for subject in &subjects {
            let [two, four] = VCPUS.map(|vcpus| of(*subject, vcpus));
            let count = |value: Option<u64>| value.map_or_else(|| "-".into(), |value| value.to_string());
            let over = |of: Option<u64>, to: Option<u64>| number(of.zip(to).and_then(|(of, to)| ratio(of, to)), 3);
            table.row([
                subject.to_string(),
                count(two),
                count(four),
                over(four, two),
                over(two, natives[0]),
                over(four, natives[1]),
            ]);
        }
        blocks.push(Block::Table(format!("{}: instructions on {HARTS} harts", region.name), table));
    }
    let mut table = Table::new(["", "vCPUs", "exits", "WFI", "WRS.NTO", "yields"]);
    for (subject, vcpus, run) in rows.iter().filter(|row| row.0 != Subject::Native) {
        let count = |name: &&str| {
            run.as_ref().ok().and_then(|run| run.counters.get(*name)).map_or_else(|| "-".into(), u64::to_string)
        };
        table.row([subject.to_string(), vcpus.to_string()].into_iter().chain(COUNTERS.iter().map(count)));
    }
    blocks.push(Block::Table("Whole run, boot included".into(), table));
    let row = |(subject, vcpus, run): &Row| json!({ "subject": subject, "vcpus": vcpus, "run": run });
    let failure =
        |(subject, vcpus, run): &Row| Some(format!("overcommit, {vcpus} vCPUs on {subject}: {}", run.as_ref().err()?));
    Report {
        name: "overcommit",
        title: "messages among many, with more vCPUs than harts".into(),
        lead: vec!["Native: on 2 and on 4 harts. With 4, a kernel has more to do itself: more run queues, and more interrupts between them.".into(), versions.into()],
        blocks,
        misleads: "two harts in one thread of QEMU's take turns by their deadlines: a run repeats, but waits are not as on hardware".into(),
        json: rows.iter().map(row).collect(),
        failures: rows.iter().filter_map(failure).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::counts::tests::subject;

    #[test]
    fn the_table_shows_what_twice_as_many_cost() {
        let run =
            |begin, end| Run { figures: [("begin-1".into(), begin), ("end-1".into(), end)].into(), ..Run::default() };
        let region = Region { label: 1, name: "hackbench", operations: 1, unit: "message" };
        let nested = subject("firmware/two-stage");
        let rows = [
            (Subject::Native, 2, Ok(run(10, 20))),
            (Subject::Native, 4, Ok(run(10, 25))),
            (nested, 2, Ok(run(10, 30))),
            (nested, 4, Ok(run(10, 40))),
            (subject("firmware/lazy"), 2, Err("no memory".into())),
        ];
        let report = report(&rows, &[region], "v");
        let text = report.to_string();
        let row = |name: &str| {
            text.lines().find(|line| line.starts_with(name)).map(|line| line.split_whitespace().collect::<Vec<_>>())
        };
        assert_eq!(row("firmware/two-stage").expect(&text)[1..], ["2000", "3000", "1.500", "2.000", "2.000"]);
        assert_eq!(row("native").expect(&text)[1..], ["1000", "1500", "1.500", "1.000", "1.000"]);
        assert_eq!(row("firmware/lazy").expect(&text)[1..], ["-", "-", "-", "-", "-"]);
        assert_eq!(report.failures, ["overcommit, 2 vCPUs on firmware/lazy: no memory"]);
    }
}
