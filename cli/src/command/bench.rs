//! `gnomon bench`.

use super::run::Mmu;
use crate::bench::{Choice, Report, boot, fig5, fig6, lane};
use crate::place::{IoError, write_whole};
use crate::qemu::HExtension;
use abi::bundle::MmuMode;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Measure Gnomon beside the bare machine, and beside the papers it follows.
///
/// All figures are counts of instructions, exits and traps, which repeat exactly; no clock of the host
/// takes part. See docs/bench.md.
///
/// Exit status: 0 all was measured, 1 bad input, or something could not be measured.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct BenchArgs {
    /// What to measure; without a name, everything
    #[arg(value_name = "NAME")]
    names: Vec<Experiment>,
    /// Measure these modes only, such as `--mmu shadow,lazy`
    #[arg(long, value_name = "MODE", value_delimiter = ',')]
    mmu: Vec<Mmu>,
    /// Measure harts without the H extension only
    #[arg(long)]
    no_h: bool,
    /// Write everything that was measured to a file, too (JSON)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Experiment {
    /// Instructions from the kernel's entry to the shell
    Boot,
    /// Exits by the share of operations that change page tables (figure 5 of the lazy-shadowing paper)
    Fig5,
    /// Exits of a kernel that samples A and D bits (figure 6 of that paper)
    Fig6,
    /// Instructions from a trap to the return
    Lane,
}

impl Experiment {
    fn measure(self, choice: &Choice) -> miette::Result<Report> {
        match self {
            Self::Boot => boot::measure(choice),
            Self::Fig5 => fig5::measure(choice),
            Self::Fig6 => fig6::measure(choice),
            Self::Lane => lane::measure(choice),
        }
    }
}

/// What was chosen does not exist.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("there is nothing to measure: mode `nested` needs the H extension")]
#[diagnostic(help("choose shadow, unsync or lazy, or leave out --no-h"))]
struct Nothing;

impl BenchArgs {
    /// Runs it; returns the exit status.
    ///
    /// # Errors
    /// Whatever keeps an experiment from being made.
    pub fn run(self) -> miette::Result<u8> {
        let names = if self.names.is_empty() { Experiment::value_variants() } else { &self.names };
        let modes =
            if self.mmu.is_empty() { MmuMode::ALL.to_vec() } else { self.mmu.iter().map(|mmu| mmu.0).collect() };
        let h = if self.no_h { vec![HExtension::Absent] } else { vec![HExtension::Present, HExtension::Absent] };
        let choice = Choice { modes, h };
        if choice.subjects().is_empty() {
            Err(Nothing)?;
        }
        let mut reports = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let report = name.measure(&choice)?;
            print!("{}{}", if at == 0 { "" } else { "\n" }, report.text);
            report.failures.iter().for_each(|why| eprintln!("gnomon: could not measure {why}"));
            reports.push(report);
        }
        if let Some(path) = &self.json {
            write_json(path, &reports)?;
        }
        Ok(u8::from(reports.iter().any(|report| !report.failures.is_empty())))
    }
}

fn write_json(path: &Path, reports: &[Report]) -> Result<(), IoError> {
    let command_line: Vec<_> = std::env::args().collect();
    let experiments: Vec<_> = reports.iter().map(|report| &report.json).collect();
    let all = json!({ "command_line": command_line, "experiments": experiments });
    write_whole(path, format!("{all:#}\n").as_bytes())
}
