//! `gnomon test`: everything there is, in one run.
//!
//! Host tests are cargo's ([`host`]). Boot tests are data ([`plan`], [`cases`]): each is run ([`boot`]) in the
//! way that `gnomon run` runs VMs, and judged ([`judge`]) by what it printed and how it ended. Those that need the same
//! machine share a boot ([`chain`]).

mod boot;
mod cases;
mod chain;
mod counters;
mod dialog;
mod host;
mod image;
mod judge;
pub mod junit;
mod metered;
mod pairs;
mod plan;
mod ports;
mod selftests;
mod serve;
mod shared;
mod tally;

use crate::host::home::checkout;
use crate::host::pool::{self, Job};
use crate::host::progress::Step;
use crate::host::turns::take_turns;
use boot::Programs;
pub use cases::{Case, PlanError};
use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
pub use tally::{Run, Tally, Verdict};

/// No test has such a name.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
pub enum NoMatch {
    /// No test at all.
    #[error("no test matches {0}")]
    #[diagnostic(help("gnomon test --list shows the names, with --full all of them; a filter is a part of one"))]
    Nowhere(String),
    /// Only tests that are not run by default.
    #[error("no test that is run by default matches {0}")]
    #[diagnostic(help("add --full, or give a whole name: gnomon test --full --list shows them"))]
    InFull(String),
}

/// The part of all runs that is selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// Of each test the runs that are its default.
    Default,
    /// Everything.
    Full,
}

/// Everything that a run of the tests comprises.
#[derive(Debug)]
pub struct Suite {
    host: Vec<host::Group>,
    boot: Vec<Case>,
}

/// Something that is run by itself.
enum Work<'a> {
    /// Cargo's: one at a time, since they would wait for each other anyway.
    Host(&'a [host::Group]),
    /// Cases that share a boot, or one.
    Boot(Vec<&'a Case>),
}

impl Suite {
    /// All tests whose name contains one of the filters; all without a filter. A whole name selects its test alone, in
    /// any extent.
    ///
    /// # Errors
    /// If the plan is broken, or nothing matches one of the filters.
    pub fn select(filters: &[String], extent: Extent) -> miette::Result<Self> {
        let cases = cases::read(&checkout("run the tests")?.join("tests.toml"))?;
        Ok(Self::of(cases, filters, extent)?)
    }

    fn of(cases: Vec<Case>, filters: &[String], extent: Extent) -> Result<Self, NoMatch> {
        let is_named = |name: &str| filters.iter().any(|filter| filter == name);
        let is_in = |case: &Case| extent == Extent::Full || case.by_default || is_named(&case.name());
        let (mut boot, hidden): (Vec<_>, Vec<_>) = cases.into_iter().partition(is_in);
        let mut host = host::GROUPS.to_vec();
        for filter in filters {
            let has = |cases: &[Case]| cases.iter().any(|case| case.name().contains(filter));
            if !has(&boot) && !host.iter().any(|group| group.name.contains(filter)) {
                let no_match = if has(&hidden) { NoMatch::InFull } else { NoMatch::Nowhere };
                return Err(no_match(filter.clone()));
            }
        }
        let names: HashSet<_> = boot.iter().map(Case::name).chain(host.iter().map(|group| group.name.into())).collect();
        let selects = |filter: &String, name: &str| match names.contains(filter) {
            true => name == filter,
            false => name.contains(filter.as_str()),
        };
        let matches = |name: &str| filters.is_empty() || filters.iter().any(|filter| selects(filter, name));
        host.retain(|group| matches(group.name));
        boot.retain(|case| matches(&case.name()));
        Ok(Self { host, boot })
    }

    /// The names of all tests.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.host.iter().map(|group| group.name.to_owned()).chain(self.boot.iter().map(Case::name))
    }

    /// Runs it, on so many processors.
    #[must_use]
    pub fn run(&self, processors: usize) -> Tally {
        let has_boot = !self.boot.is_empty();
        let programs = LazyLock::new(Programs::build);
        let mut jobs: Vec<_> = chain::chains(&self.boot).into_iter().map(job).collect();
        let for_host = if has_boot { 1 } else { processors };
        if !self.host.is_empty() {
            jobs.push(Job { slots: for_host, estimate: Duration::MAX, work: Work::Host(&self.host) });
        }
        let tally = Mutex::new(Tally::default());
        let step = Step::spinner("running tests");
        // QEMU ends with the thread that started it (see `machine`), so each thread runs its own.
        pool::run(jobs, processors, |work| match work {
            Work::Host(groups) => {
                for group in groups {
                    step.note(group.name);
                    let started = Instant::now();
                    let ran = group.run(for_host);
                    step.suspend(|| group.count(ran, started.elapsed(), &mut lock(&tally)));
                }
            }
            Work::Boot(chain) => {
                step.note(chain.iter().map(|case| case.name()).collect::<Vec<_>>().join(", "));
                let runs = take_turns(threads(&chain), || chain::run(&chain, &programs));
                step.suspend(|| runs.into_iter().for_each(|run| lock(&tally).add(run)));
            }
        });
        drop(step);
        tally.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

fn job(chain: Vec<&Case>) -> Job<Work<'_>> {
    // Two harts seldom have work at the same time all along: they keep one processor busy and a half.
    let slots = threads(&chain).div_ceil(2) as usize;
    let estimate = chain.iter().map(|case| case.timeout()).max().unwrap_or_default();
    Job { slots, estimate, work: Work::Boot(chain) }
}

/// QEMU has a thread for each hart, but with `icount`.
fn threads(chain: &[&Case]) -> u32 {
    chain.iter().map(|case| if case.test.icount { 1 } else { case.harts }).max().unwrap_or(1)
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_name_selects_no_other() {
        let text = "[a]\nabout = ''\nguest = 'x'\nh = [true, false]\nseats = ['firmware']\n";
        let select = |filter: &str| {
            let suite = Suite::of(plan::tests::plan(text).expect("a plan"), &[filter.to_owned()], Extent::Default);
            suite.expect("some match").names().collect::<Vec<_>>()
        };
        assert_eq!(select("a/firmware/"), ["a/firmware/1", "a/firmware/1/noh"]);
        assert_eq!(select("a/firmware/1"), ["a/firmware/1"]);
    }

    #[test]
    fn filters_select() {
        let text = "[a]\nabout = ''\nguest = 'x'\nmmu = ['two-stage', 'shadow', 'lazy']\nharts = [1, 2, 4]\n\
                    [b]\nabout = ''\nguest = 'x'\nmmu = ['two-stage', 'lazy']\nvariants = 'full'\n";
        let select = |filters: &[&str], extent| {
            let filters: Vec<String> = filters.iter().map(ToString::to_string).collect();
            let suite = Suite::of(plan::tests::plan(text).expect("a plan"), &filters, extent);
            suite.map(|suite| suite.names().collect::<Vec<_>>())
        };
        let some = |filters: &[&str], extent| select(filters, extent).expect("some match");
        let all = some(&[], Extent::Full);
        let by_default = some(&[], Extent::Default);
        assert_eq!(all.len(), host::GROUPS.len() + 18 + 4);
        assert!(by_default.len() < all.len() && by_default.iter().all(|name| all.contains(name)));
        assert_eq!(some(&["b/"], Extent::Default), some(&["b/"], Extent::Full));
        let hidden = all.iter().find(|name| !by_default.contains(name)).expect("one that only the full run has");
        assert_eq!(some(&[hidden], Extent::Default), std::slice::from_ref(hidden));
        let part = &hidden[..hidden.len() - 1];
        assert!(matches!(select(&[part], Extent::Default), Err(NoMatch::InFull(_))), "{part}");
        assert!(matches!(select(&["nothing"], Extent::Full), Err(NoMatch::Nowhere(_))));
        // Each filter has to match something, whatever the others do.
        let error = |filters: &[&str], extent| select(filters, extent).expect_err("one matches nothing").to_string();
        assert_eq!(error(&["b/", "nothing", "host/"], Extent::Full), "no test matches nothing");
        assert!(error(&["host/", part], Extent::Default).ends_with(&format!("run by default matches {part}")));
        assert_eq!(some(&["host/"], Extent::Default).len(), host::GROUPS.len());
    }
}
