//! The papers' experiments under Linux: what each runs, and their own figures beside ours.

use super::linux::{self, Case, Plan, Results, number, ratio};
use crate::bench::lab::subject::{Choice, Extra, Gnomon, Subject};
use crate::bench::lab::{Keeping, Lab};
use crate::bench::output::report::{Block, Report};
use crate::bench::output::table::Table;
use crate::subject::workload::{HugePages, Kind, Scale, Workload};

/// The caveat of all experiments under the meter.
const MODEL: &str = "cycles are a model's, whose parameters are estimates: the last columns say how far they could be off; \
     QEMU executes in order and speculates nothing, so no walk is started in vain";

/// The further caveat of experiments whose guests wait for a device.
const WAITS: &str = "while the guest waits, time is the host's, so that runs differ by what was answered together or not: exits by a tenth, \
     instructions by a few in a hundred";

fn case(name: &str, workload: Workload, svadu: bool) -> Case {
    Case { name: name.into(), workload, svadu, keeping: Keeping::Demand, vcpus: 1 }
}

/// Figure 7 of *Lazy Shadow Paging under the RISC-V Architecture*.
///
/// # Errors
/// If something is missing.
pub fn fig7(lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
    let plan = Plan {
        name: "fig7",
        title: "four programs under Linux: TLB misses, walks and exits".into(),
        lead: vec![
            "Figure 7 of Lazy Shadow Paging under the RISC-V Architecture runs four programs of SPEC CPU2006; here free ones \
             of their kind stand for them: cc1 (403.gcc), network simplex (429.mcf), a lattice (433.milc), A* (473.astar)."
                .into(),
            "Paper: lazy has 14 to 32 % more TLB misses than two-stage tables, each of 3 references rather than 15; it saves up to 25 % \
             of the exits of traditional shadow paging; two-stage tables have almost none after warm-up."
                .into(),
            "The guest has Sv39 and 4 KiB pages. -4k: the host maps guest memory by 4 KiB leaves, too, as the paper's does: \
             15 references in core `plain`, which has no walk cache, where other cores skip most of them."
                .into(),
        ],
        misleads: MODEL.into(),
        cases: vec![case("", Kind::Fig7.provide(scale, HugePages::Never)?, false)],
        extra: Extra::TwoStage,
        scale,
    };
    let results = plan.run(lab, choice)?;
    let summary = [walk_lengths(lab.cores(), &results), linux::beside_kvm(&results)].concat();
    plan.report(lab, &results, summary)
}

/// References of the guest's walks by the leaves that they end at, all regions together.
fn walk_lengths<'a>(cores: impl Iterator<Item = &'a str>, results: &Results) -> Vec<Block> {
    const LEAVES: [&str; 6] = ["4K", "2M", "4K/4K", "4K/2M", "2M/4K", "2M/2M"];
    let Some((case, runs)) = results.cases.first() else { return Vec::new() };
    let table = |core: &str| {
        let mut table = Table::new(std::iter::once(String::new()).chain(LEAVES.map(|leaf| format!("{leaf} leaves"))));
        for (subject, _) in runs {
            let counts: Vec<_> =
                case.workload.regions.iter().filter_map(|region| results.counts(0, *subject, region)).collect();
            let cells = LEAVES.map(|leaf| {
                let of = counts
                    .iter()
                    .filter_map(|counts| counts.cores.get(core)?.guest_leaves(*subject).get(leaf).copied());
                let (walks, refs) = of.fold((0, 0), |sum, of| (sum.0 + of.walks, sum.1 + of.refs));
                number(ratio(refs, walks), 2)
            });
            table.row(std::iter::once(subject.to_string()).chain(cells));
        }
        Block::Table(
            format!("References per walk by the leaves of guest/host, core {core}; without a slash: one stage"),
            table,
        )
    };
    cores.map(table).collect()
}

/// Table 3 of *Nested Paging in bhyve*.
///
/// # Errors
/// If something is missing.
pub fn gups(lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
    let plan = Plan {
        name: "gups",
        title: "random updates of a table, with superpages of guest and host".into(),
        lead: vec![
            "Table 3 of Nested Paging in bhyve: GUPS. The guest's superpages are its transparent huge pages; the host's are \
             Gnomon's 2 MiB leaves, or the transparent huge pages of KVM's host."
                .into(),
            "Paper: 12 GB in a 24 GB guest, CPU seconds by (guest, host) superpages: off/off 500, off/on 258, on/off 267, \
             on/on 102."
                .into(),
        ],
        misleads: format!("{MODEL}; the table here is smaller than the paper's, and its own cache misses are not modelled, only those of walks"),
        cases: vec![
            case("guest 4 KiB", Kind::Gups.provide(scale, HugePages::Never)?, false),
            case("guest 2 MiB", Kind::Gups.provide(scale, HugePages::Always)?, false),
        ],
        extra: Extra::Small,
        scale,
    };
    let results = plan.run(lab, choice)?;
    let summary = lab.cores().map(|core| superpages(core, &results, &results.subjects())).collect();
    plan.report(lab, &results, summary)
}

/// Modelled cycles by superpages of guest and host, where none at all is 1.
fn superpages(core: &str, results: &Results, subjects: &[Subject]) -> Block {
    let mut table = Table::new(["guest/host", "4K/4K", "4K/2M", "2M/4K", "2M/2M"]);
    table.row(["paper: bhyve, nested", "1.000", "0.516", "0.534", "0.204"]);
    let cycles = |guest: usize, subject: Subject| {
        let (case, _) = results.cases.get(guest)?;
        let updates = case.workload.regions.iter().find(|region| region.operations > 1)?;
        let counts = results.counts(guest, subject, updates)?;
        counts.cores.get(core).map(|core| core.cycles_estimated.model)
    };
    for subject in subjects {
        let small = match *subject {
            Subject::Native => *subject,
            Subject::Gnomon(gnomon) => Subject::Gnomon(Gnomon { superpages: false, ..gnomon }),
            Subject::Kvm { .. } => Subject::Kvm { superpages: false },
        };
        if !subjects.contains(&small) || (small == *subject && *subject != Subject::Native) {
            continue;
        }
        let base = cycles(0, small);
        // The bare machine has no host.
        let host = Some(*subject).filter(|subject| *subject != Subject::Native);
        let cells = [(0, Some(small)), (0, host), (1, Some(small)), (1, host)].map(|(guest, of)| {
            let cycles = of.and_then(|of| cycles(guest, of));
            number(cycles.zip(base).and_then(|(of, base)| ratio(of, base)), 3)
        });
        table.row(std::iter::once(subject.to_string()).chain(cells));
    }
    Block::Table(format!("Modelled cycles by superpages, none = 1, core {core}"), table)
}

/// Table 2 of *Nested Paging in bhyve*.
///
/// # Errors
/// If something is missing.
pub fn build(lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
    let plan = Plan {
        name: "build",
        title: "programs are compiled, with A and D updated by hardware and by software".into(),
        lead: vec![
            "Table 2 of Nested Paging in bhyve: buildworld with memory wired 2207 s, not wired 2225 s (+0.8 %), not wired and \
             A/D emulated 2276 s (+3.1 %)."
                .into(),
            "Svadu: the guest is promised that A and D are updated, by hardware in mode two-stage and by Gnomon where it shadows. \
             Svade: the guest's own page faults update them. The bare machine and KVM are measured as they are, twice."
                .into(),
            "Wired: all of the guest's RAM is there before it starts. D by faults: pages that are first read lack W until they are \
             written. A and D by hardware: in mode two-stage; where Gnomon shadows, this is the same as Svade."
                .into(),
        ],
        misleads: format!("{MODEL}; the compiler's files are in RAM, so that a build is short of what a disk would cost"),
        cases: vec![
            case("Svade", Kind::Build.provide(scale, HugePages::Never)?, false),
            case("Svadu", Kind::Build.provide(scale, HugePages::Never)?, true),
            kept("wired", Keeping::Wired, scale)?,
            kept("D by faults", Keeping::Faults, scale)?,
            kept("A and D by hardware", Keeping::Hardware, scale)?,
        ],
        extra: Extra::TwoStage,
        scale,
    };
    let results = plan.run(lab, choice)?;
    let summary = [vec![keeping(&results)], linux::beside_kvm(&results)].concat();
    plan.report(lab, &results, summary)
}

/// The build with Svade, and Gnomon keeping its guest's memory so.
fn kept(name: &str, keeping: Keeping, scale: Scale) -> miette::Result<Case> {
    Ok(Case { keeping, ..case(name, Kind::Build.provide(scale, HugePages::Never)?, false) })
}

/// Instructions of the whole build by how memory is kept, wired = 1, beside the paper's times.
fn keeping(results: &Results) -> Block {
    let ways = [Keeping::Wired, Keeping::Demand, Keeping::Faults, Keeping::Hardware];
    let mut table = Table::new(["", "wired", "on demand", "D by faults", "A, D by hardware"]);
    table.row(["paper: bhyve, nested, A and D by faults", "1.0000", "1.0082", "1.0313", "-"]);
    // With `--svadu` all are promised it.
    let place = |way| {
        let of = |svadu| results.cases.iter().position(|(case, _)| case.keeping == way && case.svadu == svadu);
        of(false).or_else(|| of(true))
    };
    for subject in results.subjects() {
        let instructions = |way| {
            let at = place(way)?;
            let (case, _) = results.cases.get(at)?;
            let of = case.workload.regions.iter().filter_map(|region| results.counts(at, subject, region));
            Some(of.map(|counts| counts.instructions()).sum::<u64>()).filter(|sum| *sum > 0)
        };
        let base = instructions(Keeping::Wired);
        let cells = ways.map(|way| number(instructions(way).zip(base).and_then(|(of, base)| ratio(of, base)), 4));
        table.row(std::iter::once(subject.to_string()).chain(cells));
    }
    Block::Table("Instructions by how the guest's memory is kept, wired = 1".into(), table)
}

/// Context switches and messages, as in *Paravirtualized KVM with a CR3 cache*.
///
/// # Errors
/// If something is missing.
pub fn switching(lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
    let plan = Plan {
        name: "switching",
        title: "context switches between tasks, and messages among many".into(),
        lead: vec![
            "The CR3 cache paper, microseconds for a switch between 2 tasks: native 1.11, KVM 6.36 (5.73 of native), with the \
             cache 1.60 (1.44). hackbench 1 (40 tasks): native 0.25 s, KVM 0.55 (2.20), with the cache 0.36 (1.44). hackbench 5 \
             (200 tasks): native 0.9 s, KVM 2.8 (3.11), with the cache 2.2 (2.44)."
                .into(),
        ],
        misleads: format!("{MODEL}; hackbench's regions include the start and end of its 40 and 200 processes; the paper's machines had neither two-stage tables nor tagged TLBs"),
        cases: vec![case("", Kind::Switching.provide(scale, HugePages::Never)?, false)],
        extra: Extra::Parts,
        scale,
    };
    let results = plan.run(lab, choice)?;
    plan.report(lab, &results, linux::beside_kvm(&results))
}

/// Measures the kernel's work for processes: system calls, faults, fork, exec, exit.
///
/// # Errors
/// If something is missing.
pub fn processes(lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
    let plan = Plan {
        name: "processes",
        title: "null system call, minor fault, fork and exit, fork and exec and exit".into(),
        lead: vec![
            "What the literature measures of guests' kernels. PVM (SOSP 2023) has, on x86 and beside nested paging: fork 5.3 times, \
             exec 3.1 times; traditional shadow paging 6.1 and 3.6 times."
                .into(),
        ],
        misleads: MODEL.into(),
        cases: vec![case("", Kind::Processes.provide(scale, HugePages::Never)?, false)],
        extra: Extra::Parts,
        scale,
    };
    let results = plan.run(lab, choice)?;
    plan.report(lab, &results, linux::beside_kvm(&results))
}

/// Requests for a disk.
///
/// # Errors
/// If something is missing.
pub fn disk(lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
    const LEAD: &str = "The guest's program is fio, its driver Linux's virtio_blk, past its cache. The bare machine has QEMU's disk; Gnomon \
                        drives that disk, as KVM's host does, whose VMM passes it on.";
    device(lab, choice, scale, ("disk", "requests for a disk: instructions and exits", LEAD, Kind::Disk))
}

/// Bytes over a network.
///
/// # Errors
/// If something is missing.
pub fn net(lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
    const LEAD: &str = "The guest's driver is Linux's virtio_net, its program busybox's nc, the other end a program of QEMU's host. The bare \
                        machine has QEMU's card; Gnomon drives that card, as KVM's host does, which bridges it to its VMM's.";
    device(
        lab,
        choice,
        scale,
        ("net", "bytes to the host and from it, by TCP: instructions and exits", LEAD, Kind::Net),
    )
}

/// Messages to a share.
///
/// # Errors
/// If something is missing.
pub fn share(lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
    const LEAD: &str = "The guest's driver is Linux's 9p, without a cache. The bare machine has QEMU's own 9P device; Gnomon passes messages \
                        to the share's server. KVM is not there: its VMM serves the files itself, in the machine, where all other servers \
                        are outside.";
    device(lab, choice, scale, ("share", "messages to a share: instructions and exits", LEAD, Kind::Share))
}

/// Measures requests for a device that the guest waits for.
fn device(
    lab: &Lab,
    choice: &Choice,
    scale: Scale,
    (name, title, lead, kind): (&'static str, &str, &str, Kind),
) -> miette::Result<Report> {
    let plan = Plan {
        name,
        title: title.into(),
        lead: vec![lead.into()],
        misleads: format!("{MODEL}; {WAITS}"),
        cases: vec![case("", kind.provide(scale, HugePages::Never)?, false)],
        extra: Extra::None,
        scale,
    };
    let results = plan.run(lab, choice)?;
    let summary = [vec![throughput(&results)], linux::beside_kvm(&results)].concat();
    plan.report(lab, &results, summary)
}

/// Returns the table of operations per million instructions.
fn throughput(results: &Results) -> Block {
    let regions: Vec<_> = results.cases.iter().flat_map(|(case, _)| &case.workload.regions).collect();
    let mut table = Table::new(
        std::iter::once(String::new()).chain(regions.iter().map(|region| format!("{}, {}", region.name, region.unit))),
    );
    for subject in results.subjects() {
        let cells = regions.iter().map(|region| {
            let counts = results.counts(0, subject, region);
            number(counts.and_then(|counts| ratio(region.operations * 1_000_000, counts.instructions())), 2)
        });
        table.row(std::iter::once(subject.to_string()).chain(cells));
    }
    Block::Table("Per million instructions, the host's included".into(), table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiments::linux::tests::results;
    use crate::bench::lab::counts::tests::{counts, subject};

    fn rows(block: &Block) -> Vec<Vec<String>> {
        match block {
            Block::Table(_, table) => table.parts().1.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn walks_are_told_by_their_leaves() {
        let results = results(&[("firmware/two-stage-4k", counts(9, 9, 9, 4, 60))]);
        let blocks = walk_lengths(["plain"].into_iter(), &results);
        assert_eq!(rows(&blocks[0])[0], ["firmware/two-stage-4k", "-", "-", "15.00", "-", "-", "-"]);
    }

    #[test]
    fn requests_stand_for_a_million_instructions() {
        // 10 operations, of 500 instructions of the guest's and 1500 of the host's.
        let results = results(&[("firmware/two-stage", counts(500, 1500, 3, 1, 1))]);
        let rows = rows(&throughput(&results));
        assert_eq!(rows, [["firmware/two-stage", "5000.00"]]);
    }

    #[test]
    fn superpages_are_shares_of_none() {
        // Cycles are the sum of the first two.
        let small = results(&[
            ("firmware/two-stage", counts(300, 0, 0, 1, 1)),
            ("firmware/two-stage-4k", counts(600, 0, 0, 1, 1)),
        ]);
        let large = results(&[
            ("firmware/two-stage", counts(150, 0, 0, 1, 1)),
            ("firmware/two-stage-4k", counts(360, 0, 0, 1, 1)),
        ]);
        let both = Results { cases: small.cases.into_iter().chain(large.cases).collect() };
        let subjects = ["native", "firmware/two-stage", "firmware/two-stage-4k"].map(subject);
        let rows = rows(&superpages("plain", &both, &subjects));
        assert_eq!(rows[1], ["native", "-", "-", "-", "-"]);
        assert_eq!(rows[2], ["firmware/two-stage", "1.000", "0.500", "0.600", "0.250"]);
        assert_eq!(rows.len(), 3, "{rows:?}");
    }
}
