//! `gnomon bench`.

use super::run::Mmu;
use super::script::{Need, print};
use crate::bench::experiments::{boot, faults, fig5, fig6, lane, memslots, nested, overcommit, papers, vkernel};
use crate::bench::lab::Lab;
use crate::bench::lab::subject::{Choice, ChoiceError};
use crate::bench::output::baseline::{self, Baseline};
use crate::bench::output::report::Report;
use crate::bench::output::{files, page};
use crate::host::output::{Kind, OutputError};
use crate::host::tty;
use crate::subject::workload::Scale;
use crate::vm::mode;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The files of `--json`.
const JSON: Kind = Kind { what: "a file of `gnomon bench --json`", mark: b"{\n  \"command\": \"gnomon bench " };

/// The cores that are modelled if none are named: one like a board's, and one without walk caches.
const CORES: [&str; 2] = ["p550", "plain"];

/// Measure Gnomon beside the bare machine, beside Linux KVM, and beside the papers it follows.
///
/// Without a name, lists what can be measured. All figures are counts of instructions, exits, TLB misses and
/// page walks, which repeat exactly; no clock of the host takes part. What was measured is kept, so that a
/// benchmark that was stopped goes on where it was. See docs/bench.md.
///
/// Exit status: 0 all was measured, 1 bad input, something could not be measured, or an exit took too long.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct BenchArgs {
    /// The benchmarks to run, or `all`
    #[arg(value_name = "NAME")]
    names: Vec<Name>,
    /// Small sizes: minutes instead of hours
    #[arg(long)]
    quick: bool,
    /// Measure only these subjects: groups (native, gnomon, kvm, firmware, payload, h, noh) or single ones
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    subject: Vec<String>,
    /// Measure only these modes of Gnomon, such as `--mmu shadow,lazy`
    #[arg(long, value_name = "MODE", value_delimiter = ',')]
    mmu: Vec<Mmu>,
    /// Measure only harts without the H extension
    #[arg(long)]
    no_h: bool,
    /// Promise Gnomon's guests under Linux that the hardware sets A and D (Svadu), as KVM does
    #[arg(long)]
    svadu: bool,
    /// The cores to model: names, or core files (docs/meter.md)
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = CORES)]
    core: Vec<String>,
    /// Measure again what was measured before
    #[arg(long)]
    fresh: bool,
    /// Write everything that was measured to a file, too (JSON)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with plots, too (HTML)
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each table (CSV) and each plot (SVG) to a file in a directory, too
    #[arg(long, value_name = "DIRECTORY")]
    files: Option<PathBuf>,
    /// Report what changed since a file that --json wrote
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
}

/// The experiments' names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Name {
    /// All of the following
    All,
    /// Instructions from a trap to the return
    Lane,
    /// Faults and fences of all vCPUs of a VM at once
    Faults,
    /// Exits by the share of operations that change page tables (figure 5 of the lazy-shadowing paper)
    Fig5,
    /// Exits of a kernel that samples A and D bits (figure 6 of that paper)
    Fig6,
    /// Four programs under Linux: TLB misses, walks, exits (figure 7 of that paper)
    Fig7,
    /// Random updates, with superpages of guest and host on and off (table 3 of the bhyve paper)
    Gups,
    /// Programs are compiled, with A and D bits in hardware and emulated (table 2 of the bhyve paper)
    Build,
    /// Context switches and messages (the paper on the CR3 cache)
    Switching,
    /// Messages, with more vCPUs than harts
    Overcommit,
    /// Null system call, minor fault, fork, exec and exit
    Processes,
    /// Instructions from the kernel's entry to the shell
    Boot,
    /// Exits of a guest's guest, and boots under KVM
    Nested,
    /// Maps and unmaps of a guest's guest, by the number of its regions
    Memslots,
    /// A build and the kernel's services on the vkernel, in each of its ways (the paper on DragonFly's)
    Vkernel,
    /// Requests for a disk: instructions and exits
    Disk,
    /// Bytes over a network: instructions and exits
    Net,
    /// Messages to a share: instructions and exits
    Share,
}

impl Name {
    fn measure(self, lab: &Lab, choice: &Choice, scale: Scale) -> miette::Result<Report> {
        match self {
            Self::Lane => lane::measure(lab, choice),
            Self::Faults => faults::measure(lab, choice),
            Self::Fig5 => fig5::measure(lab, choice),
            Self::Fig6 => fig6::measure(lab, choice),
            Self::Fig7 => papers::fig7(lab, choice, scale),
            Self::Gups => papers::gups(lab, choice, scale),
            Self::Build => papers::build(lab, choice, scale),
            Self::Switching => papers::switching(lab, choice, scale),
            Self::Overcommit => overcommit::measure(lab, choice, scale),
            Self::Processes => papers::processes(lab, choice, scale),
            Self::Boot => boot::measure(lab, choice),
            Self::Nested => nested::measure(lab, choice),
            Self::Memslots => memslots::measure(lab, choice, scale),
            Self::Vkernel => vkernel::measure(lab, choice, scale),
            Self::Disk => papers::disk(lab, choice, scale),
            Self::Net => papers::net(lab, choice, scale),
            Self::Share => papers::share(lab, choice, scale),
            Self::All => unreachable!("`all` stands for the others"),
        }
    }

    /// A description in a line.
    fn about(self) -> (String, String) {
        let value = self.to_possible_value();
        let help = value.as_ref().and_then(|value| value.get_help()).map(ToString::to_string);
        (value.map(|value| value.get_name().to_owned()).unwrap_or_default(), help.unwrap_or_default())
    }
}

impl BenchArgs {
    /// The programs and packages that the command needs.
    pub(super) fn needs(&self) -> Vec<Need> {
        if self.names.is_empty() { Vec::new() } else { Need::GUESTS.to_vec() }
    }

    /// Runs it; returns the exit status.
    ///
    /// # Errors
    /// Whatever keeps an experiment from being made.
    pub fn run(self) -> miette::Result<u8> {
        if self.names.is_empty() {
            for (name, about) in Name::value_variants().iter().map(|name| name.about()) {
                print(&format!("{name:10} {about}\n"))?;
            }
            return Ok(0);
        }
        let choice = Choice {
            words: self.subject.iter().map(|name| mode::present_subject(name)).collect(),
            modes: self.mmu.iter().map(|mmu| mmu.mode()).collect(),
            no_h: self.no_h,
            svadu: self.svadu,
        };
        choice.check()?;
        self.json.as_deref().map_or(Ok(()), |path| JSON.check(path))?;
        self.html.as_deref().map_or(Ok(()), |path| page::FILE.check(path))?;
        self.files.as_deref().map_or(Ok(()), |dir| files::begin(dir, &self.command()))?;
        let baseline = self.baseline.as_deref().map(Baseline::read).transpose()?;
        let scale = if self.quick { Scale::Quick } else { Scale::Full };
        let lab = Lab::open(&self.core, self.fresh)?;
        let is_all = self.names.contains(&Name::All);
        let names = if is_all { &Name::value_variants()[1..] } else { &self.names };
        let mut reports = Vec::new();
        let mut has_failed = false;
        for name in names {
            let (measured, longests) = (name.measure(&lab, &choice, scale), lab.longests());
            let report = match measured {
                Ok(mut report) => {
                    longests.report(&mut report);
                    report
                }
                Err(why) if is_all && matches!(why.downcast_ref(), Some(ChoiceError::NotHere(_))) => continue,
                // One that cannot be made keeps none of the others from being made.
                Err(why) => {
                    has_failed = true;
                    tty::say(&format!("gnomon: could not measure {}: {why:?}", name.about().0));
                    continue;
                }
            };
            let printed = print(&format!("{}{report}", if reports.is_empty() { "" } else { "\n" }));
            report.failures.iter().for_each(|why| tty::say(&format!("gnomon: failed: {why}")));
            reports.push(report);
            // Each time: a benchmark that is stopped has written what it had.
            self.write(&lab, &reports)?;
            printed?;
        }
        if let Some(baseline) = baseline {
            let report = baseline.compare(&reports);
            let printed = print(&format!("{}{report}", if reports.is_empty() { "" } else { "\n" }));
            reports.push(report);
            self.write(&lab, &reports)?;
            printed?;
        }
        Ok(u8::from(has_failed || reports.iter().any(|report| !report.failures.is_empty())))
    }

    /// Writes the reports so far, the last of them as files of its own.
    fn write(&self, lab: &Lab, reports: &[Report]) -> miette::Result<()> {
        if let Some(path) = &self.json {
            write_json(path, &self.command(), lab, reports)?;
        }
        if let Some(path) = &self.html {
            page::FILE.write(path, page::page(reports, &self.command(), &lab.versions())?.as_bytes())?;
        }
        match (&self.files, reports.last()) {
            (Some(dir), Some(report)) => files::write(dir, report),
            _ => Ok(()),
        }
    }

    /// The command that measures the same.
    fn command(&self) -> String {
        let mut words = vec!["gnomon".to_owned(), "bench".to_owned()];
        words.extend(self.names.iter().map(|name| name.about().0));
        let mut list = |option: &str, values: Vec<String>| {
            if !values.is_empty() {
                words.extend([option.to_owned(), values.join(",")]);
            }
        };
        list("--subject", self.subject.clone());
        list("--mmu", self.mmu.iter().map(|mmu| mmu.mode().name().to_owned()).collect());
        list("--core", self.core.clone());
        let switches = [(self.quick, "--quick"), (self.no_h, "--no-h"), (self.svadu, "--svadu")];
        words.extend(switches.iter().filter(|it| it.0).map(|it| it.1.to_owned()));
        words.join(" ")
    }
}

fn write_json(path: &Path, command: &str, lab: &Lab, reports: &[Report]) -> Result<(), OutputError> {
    let experiment = |report: &Report| {
        let mut all = report.json.clone();
        all["tables"] = baseline::tables(report).into();
        all
    };
    let experiments: Vec<_> = reports.iter().map(experiment).collect();
    let all = json!({ "command": command, "versions": lab.versions(), "experiments": experiments });
    JSON.write(path, format!("{all:#}\n").as_bytes())
}
