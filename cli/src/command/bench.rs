//! `gnomon bench`.

use crate::bench::boot;
use clap::{Args, ValueEnum};

/// Measure Gnomon beside the bare machine.
///
/// All figures are counts of instructions, which repeat exactly; no clock of the host takes part.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure; without a name, everything
    #[arg(value_name = "NAME")]
    names: Vec<Experiment>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Experiment {
    /// Instructions from the kernel's entry to the shell
    Boot,
}

impl BenchArgs {
    /// Runs it; returns the exit status.
    ///
    /// # Errors
    /// Whatever keeps an experiment from being made.
    pub fn run(self) -> miette::Result<u8> {
        let names = if self.names.is_empty() { Experiment::value_variants() } else { &self.names };
        for name in names {
            match name {
                Experiment::Boot => print!("{}", boot::measure()?),
            }
        }
        Ok(0)
    }
}
