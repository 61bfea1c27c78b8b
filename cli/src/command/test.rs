//! `gnomon test`.

use super::script::{self, Need};
use crate::host::processors;
use crate::testing::{Extent, Suite, junit};
use clap::Args;
use miette::IntoDiagnostic;
use std::path::PathBuf;
use std::time::Instant;

/// Run the tests: those on the host, and boot tests in QEMU.
///
/// The last line says `N passed, N failed`. Exit status: 0 if all passed, else 1.
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Run only tests whose name contains one of these
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// Only show the tests' names
    #[arg(long)]
    list: bool,
    /// Run every combination of seats, harts and variants; by default enough that each pair of them meets
    #[arg(long)]
    full: bool,
    /// The number of processors to keep busy
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// Also write the results to a file, as JUnit's XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

impl TestArgs {
    /// The programs and packages that the command needs.
    pub(super) fn needs(&self) -> Vec<Need> {
        let suite = if self.list { None } else { self.suite().ok() };
        let names: Vec<String> = suite.iter().flat_map(Suite::names).collect();
        let has = |wanted: &[&str]| names.iter().any(|name| wanted.contains(&name.as_str()));
        let boots = names.iter().any(|name| !name.starts_with("host/"));
        let mut needs = Vec::new();
        // The page that benchmarks write is tested in a real browser, and other tests start machines.
        if boots || has(&["host/tests"]) {
            needs.extend(Need::GUESTS);
        }
        if has(&["host/tests"]) {
            needs.extend([Need::Browser, Need::Solver, Need::Debugger]);
        }
        if has(&["host/lint", "host/fuzz"]) {
            needs.push(Need::Cxx);
        }
        needs
    }

    fn suite(&self) -> miette::Result<Suite> {
        let extent = if self.full { Extent::Full } else { Extent::Default };
        Suite::select(&self.filters, extent)
    }

    /// Runs it; returns the exit status.
    ///
    /// # Errors
    /// If there is nothing to run.
    pub fn run(self) -> miette::Result<u8> {
        let suite = self.suite()?;
        if self.list {
            script::print(&suite.names().map(|name| format!("{name}\n")).collect::<String>())?;
            return Ok(0);
        }
        // Now, rather than when all has been run: a file that cannot be is told at once.
        self.junit.as_deref().map_or(Ok(()), |path| junit::FILE.check(path))?;
        let started = Instant::now();
        let tally = suite.run(self.jobs.into());
        let wall = started.elapsed();
        // Its own, and that of all that it has started.
        let cpu = processors::so_far(std::process::id()).unwrap_or_default();
        let lines = tally.times(wall, cpu).into_iter().chain(tally.explained()).chain([tally.summary()]);
        let printed = script::print(&lines.map(|line| format!("{line}\n")).collect::<String>());
        if let Some(path) = &self.junit {
            let mut text = Vec::new();
            junit::write(&tally, wall, &mut text).into_diagnostic()?;
            junit::FILE.write(path, &text)?;
        }
        printed?;
        Ok(u8::from(!tally.is_good()))
    }
}
