//! `gnomon test`: everything there is, in one run.
//!
//! Host tests are cargo's ([`host`]). Boot tests are data ([`plan`]): each is run ([`boot`]) in the
//! way that `gnomon run` runs VMs, and judged ([`judge`]) by what it printed and how it ended.

mod boot;
mod counters;
mod dialog;
mod host;
mod judge;
mod metered;
mod plan;
mod tally;

use crate::build::{self, BuildError};
use crate::place;
use crate::progress::Step;
pub use plan::{Case, PlanError};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
pub use tally::{Tally, Verdict};

/// What boot tests run: built once, before the first.
#[derive(Debug)]
pub struct Programs {
    /// The hypervisor.
    hypervisor: Result<PathBuf, BuildError>,
    /// The test guests by name.
    guests: Result<BTreeMap<String, PathBuf>, BuildError>,
}

/// No test has such a name.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[error("no test matches {0}")]
#[diagnostic(help("gnomon test --list shows all names; a filter is a part of one"))]
pub struct NoMatch(String);

/// Everything that a run of the tests comprises.
#[derive(Debug)]
pub struct Suite {
    host: Vec<host::Group>,
    boot: Vec<Case>,
}

impl Suite {
    /// All tests whose name contains one of the filters; all without a filter.
    ///
    /// # Errors
    /// If the plan is broken, or nothing matches.
    pub fn select(filters: &[String]) -> miette::Result<Self> {
        let matches = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
        let host = host::GROUPS.iter().filter(|group| matches(group.name)).cloned().collect();
        let mut boot = plan::read(&place::root().join("tests.toml"))?;
        boot.retain(|case| matches(&case.name()));
        let suite = Self { host, boot };
        if suite.names().next().is_none() {
            Err(NoMatch(filters.join(", ")))?;
        }
        Ok(suite)
    }

    /// The names of all tests, in the order in which they start.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.host.iter().map(|group| group.name.to_owned()).chain(self.boot.iter().map(Case::name))
    }

    /// Runs it, with so many boot tests at a time.
    #[must_use]
    pub fn run(self, jobs: usize) -> Tally {
        let mut tally = Tally::default();
        for group in &self.host {
            let _step = Step::spinner(&format!("running {}", group.name));
            group.run(&mut tally);
        }
        if self.boot.is_empty() {
            return tally;
        }
        let programs = Programs { hypervisor: build::hypervisor(), guests: build::guests() };
        let tally = Mutex::new(tally);
        let next = AtomicUsize::new(0);
        let step = Step::spinner("running boot tests");
        // QEMU ends with the thread that started it (see `machine`), so each thread runs its own.
        std::thread::scope(|scope| {
            for _ in 0..jobs.max(1) {
                scope.spawn(|| {
                    while let Some(case) = self.boot.get(next.fetch_add(1, Ordering::Relaxed)) {
                        step.note(case.name());
                        let (verdicts, spent) = boot::run(case, &programs);
                        let mut tally = tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        step.suspend(|| tally.add_run(case.name(), verdicts, spent));
                    }
                });
            }
        });
        drop(step);
        tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
