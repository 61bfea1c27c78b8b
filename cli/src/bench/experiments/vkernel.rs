//! The vkernel in each of its ways, beside Debian's kernel in a VM and on the bare machine: services for programs, and a build.

use super::linux::{Case, Plan, Results, number, ratio};
use crate::bench::lab::subject::{Choice, Extra, Gnomon, Subject};
use crate::bench::lab::{Keeping, Lab};
use crate::bench::output::report::{Block, Report};
use crate::bench::output::table::Table;
use crate::subject::workload::{HugePages, Kind, Scale};

/// vCPUs of the guest, on one hart.
const VCPUS: [u32; 2] = [1, 4];

/// Counters of Gnomon's that a build's table shows, with their headings.
const COUNTERS: [(&str, &str); 7] = [
    ("exits.total", "exits"),
    ("vmspace.run", "RUN"),
    ("vmspace.switch", "SWITCH"),
    ("vmspace.invalidate", "INVALIDATE"),
    ("vmspace.set_root", "SET_ROOT"),
    ("vmspace.fences_posted", "fences posted"),
    ("memory.waits", "lock waits"),
];

/// Measures.
///
/// # Errors
/// If something is missing. What goes wrong with a subject stands in the report.
pub fn measure(lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
    let workload = Kind::Vkernel.provide(scale, HugePages::Never)?;
    let case = |vcpus: u32| Case {
        name: if vcpus == 1 { "1 vCPU".into() } else { format!("{vcpus} vCPUs") },
        workload: workload.clone(),
        svadu: false,
        keeping: Keeping::Demand,
        vcpus,
    };
    let plan = Plan {
        name: "vkernel",
        title: "a build and the kernel's services, by the vkernel in each of its ways".into(),
        lead: vec![
            "A virtual kernel as a process of its host, whose programs run in nested tables of the hardware or by calls for address spaces: \
             there, a build took 355 s with nested tables, and 390 s by calls (1.10)."
                .into(),
            "Here: make -j4 of four C files by Debian's cc1, as and ld. In `direct` the hart walks the vkernel's tables, in `nested` as well, and \
             changes of them are calls; in `soft` Gnomon shadows them, and each trap of a program ends a call."
                .into(),
        ],
        misleads: "the vkernel does less than Linux: no page cache on a disk, no accounting, no security modules; its own locks are not counted, \
                   and all vCPUs are on one hart"
            .into(),
        cases: VCPUS.map(case).into(),
        extra: Extra::Vkernel,
        scale,
    };
    let results = plan.run(lab, choice)?;
    let summary = VCPUS.iter().enumerate().flat_map(|(at, _)| [services(at, &results), counters(at, &results)]);
    let summary = summary.collect();
    plan.report(lab, &results, summary)
}

/// Returns Debian's kernel in the same mode of the same VM.
fn with_linux(subject: Subject) -> Subject {
    match subject {
        Subject::Gnomon(gnomon) => Subject::Gnomon(Gnomon { vkernel: None, ..gnomon }),
        Subject::Native | Subject::Kvm { .. } => subject,
    }
}

/// Instructions of the whole machine for an operation of each kind, and by how much they differ from those with Debian's kernel.
fn services(at: usize, results: &Results) -> Block {
    let Some((case, runs)) = results.cases.get(at) else { return Block::Heading(String::new()) };
    let regions = &case.workload.regions;
    let mut table = Table::new(std::iter::once(String::new()).chain(regions.iter().map(|region| region.name.into())));
    for (subject, _) in runs {
        let each = |subject, region| Some(results.counts(at, subject, region)?.instructions());
        let cells = regions.iter().map(|region| {
            let own = each(*subject, region);
            let figure = number(own.and_then(|own| ratio(own, region.operations)), 0);
            match each(with_linux(*subject), region).zip(own).and_then(|(linux, own)| ratio(own, linux)) {
                Some(quotient) if with_linux(*subject) != *subject => format!("{figure} ({quotient:.2})"),
                _ => figure,
            }
        });
        table.row(std::iter::once(subject.to_string()).chain(cells));
    }
    Block::Table(
        format!(
            "{}: instructions of the machine; in brackets, those with Debian's kernel in the same VM = 1",
            case.name
        ),
        table,
    )
}

/// Counters of Gnomon's, from the start to the end of the machine.
fn counters(at: usize, results: &Results) -> Block {
    let Some((case, runs)) = results.cases.get(at) else { return Block::Heading(String::new()) };
    let mut table = Table::new(std::iter::once("").chain(COUNTERS.map(|(_, heading)| heading)));
    for (subject, run) in runs.iter().filter(|(subject, _)| *subject != Subject::Native) {
        let count = |name: &str| Some(run.as_ref().ok()?.counters.get(name)?.to_string());
        let cells = COUNTERS.map(|(name, _)| count(name).unwrap_or_else(|| "-".into()));
        table.row(std::iter::once(subject.to_string()).chain(cells));
    }
    Block::Table(format!("{}: counters of Gnomon's, from the start to the end", case.name), table)
}
