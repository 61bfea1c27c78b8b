//! The cases of boot tests: one for each combination of seat, harts and variant, and which of them are run by
//! default.

use super::counters::Assertion;
use super::pairs::{self, Cover};
use super::plan::{self, BootTest, Choice, End, Expect, Platform};
use crate::guest::debian::LEAN;
use crate::host::written::explain;
use crate::machine::board::{HExtension, Seat};
use crate::subject::kvm::Thp;
use crate::subject::variant::{Selector, Variant};
use abi::bundle::MmuMode;
use miette::Diagnostic;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The site of a run: the software below the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Site {
    /// Gnomon, in a seat.
    Gnomon(Seat),
    /// OpenSBI and nothing else.
    Bare,
    /// Linux and its KVM, with huge pages or without.
    Kvm(Thp),
}

impl Site {
    /// The name, as part of a run's.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gnomon(seat) => seat.name(),
            Self::Bare => "bare",
            Self::Kvm(_) => "kvm",
        }
    }
}

/// One of the circumstances of a run.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Circumstance {
    Site(&'static str),
    Harts(u32),
    Mode(Option<MmuMode>),
    H(HExtension),
    /// Of mode `lazy` only.
    Lane(bool),
    Thp(bool),
}

/// One run of a boot test.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The test's name.
    pub test_name: String,
    /// The test.
    pub test: BootTest,
    /// The site.
    pub site: Site,
    /// Number of harts.
    pub harts: u32,
    /// The way in which Gnomon virtualizes memory; of no meaning on other sites.
    pub variant: Variant,
    /// Set if the case is run without `--full`.
    pub by_default: bool,
}

impl Case {
    /// Its name: test, seat, harts, and the variant if there is more than the default.
    #[must_use]
    pub fn name(&self) -> String {
        let name = format!("{}/{}/{}", self.test_name, self.site.name(), self.harts);
        match self.variant.label() {
            _ if self.site == Site::Kvm(Thp::Never) => format!("{name}/nothp"),
            label if label.is_empty() => name,
            label => format!("{name}/{label}"),
        }
    }

    /// The circumstances in which it may differ from the other runs of its test.
    fn circumstances(&self) -> Vec<Circumstance> {
        let mut all = vec![Circumstance::Site(self.site.name()), Circumstance::Harts(self.harts)];
        match self.site {
            Site::Gnomon(_) => {
                let Variant { mmu, h, lane } = self.variant;
                all.extend([Circumstance::Mode(mmu), Circumstance::H(h)]);
                all.extend(mmu.is_some_and(MmuMode::has_lane).then_some(Circumstance::Lane(lane)));
            }
            Site::Kvm(thp) => all.push(Circumstance::Thp(thp == Thp::Always)),
            Site::Bare => {}
        }
        all
    }

    /// The expected counters.
    pub fn counters(&self) -> impl Iterator<Item = &Assertion> {
        let expect = &self.test.expect;
        let some = expect.counters_for.iter().filter(|(selector, _)| selector.selects(self.variant));
        expect.counters.iter().chain(some.flat_map(|(_, counters)| counters))
    }

    /// The run whose counters are subtracted, if there is one.
    #[must_use]
    pub fn baseline(&self) -> Option<Self> {
        let other = self.test.expect.baseline.clone()?;
        let mut test = self.test.clone();
        if test.exec.is_some() {
            test.exec = Some(other);
        } else {
            test.append = other;
        }
        // It has to end as the test does; all else is for the test itself.
        let Expect { end, status, boots, .. } = test.expect;
        test.expect = Expect { end, status, boots, ..Expect::default() };
        Some(Self { test, ..self.clone() })
    }

    /// vCPUs of each VM.
    #[must_use]
    pub fn vcpus(&self) -> u32 {
        self.test.vcpus.unwrap_or(self.harts)
    }

    /// Returns whether commands run in the guest's shell.
    #[must_use]
    pub fn has_commands(&self) -> bool {
        self.test.exec.is_some() || self.test.workload.is_some()
    }

    /// The names of its VMs: those it is about, then those beside, then those after.
    #[must_use]
    pub fn vms(&self) -> Vec<String> {
        let own = |number: usize| if self.test.vms == 1 { "vm".to_owned() } else { format!("vm{number}") };
        let beside = (1..=self.test.beside.len()).map(|number| format!("beside{number}"));
        let then = (1..=self.test.then.len()).map(|number| format!("then{number}"));
        (1..=self.test.vms).map(own).chain(beside).chain(then).collect()
    }

    /// Returns whether the test guest has to report.
    #[must_use]
    pub fn has_report(&self) -> bool {
        let expect = &self.test.expect;
        self.test.guest.is_some() && expect.end == End::Poweroff && expect.until.is_none()
    }

    /// The time after which the case has failed.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        Duration::from_secs(self.test.timeout)
    }
}

/// A plan that cannot be followed.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{path}: {message}")]
#[diagnostic(help("correct it; docs/tests.md describes the file"))]
pub struct PlanError {
    path: PathBuf,
    message: String,
}

/// Reads the plan and expands it.
///
/// # Errors
/// [`PlanError`].
pub fn read(path: &Path) -> Result<Vec<Case>, PlanError> {
    let error = |message: String| PlanError { path: path.to_owned(), message };
    let text = std::fs::read_to_string(path).map_err(|why| error(why.to_string()))?;
    let tests: BTreeMap<String, BootTest> = toml::from_str(&text).map_err(|why| error(explain(&why)))?;
    let mut cases = Vec::new();
    for (name, mut test) in tests {
        let error = |message: &str| error(format!("{name}: {message}"));
        plan::check(&test).map_err(error)?;
        if test.lean {
            test.append = format!("{LEAN} {}", test.append).trim_end().into();
        }
        cases.extend(expand(&name, &test).map_err(|why| error(&why))?);
    }
    leave_to_twins(&mut cases).map_err(error)?;
    Ok(cases)
}

/// All cases of a test, with a note of those that are run by default.
///
/// # Errors
/// If there is none, or if something is expected of runs that are none by default.
pub fn expand(name: &str, test: &BootTest) -> Result<Vec<Case>, String> {
    let case = |site, harts, variant| Case {
        test_name: name.to_owned(),
        test: test.clone(),
        site,
        harts,
        variant,
        by_default: test.variants == Choice::Full,
    };
    let mut cases = Vec::new();
    for seat in test.seats.iter().copied().filter(|_| test.on.contains(&Platform::Gnomon)) {
        for harts in test.harts.iter().copied() {
            cases.extend(variants(test, seat).into_iter().map(|variant| case(Site::Gnomon(seat), harts, variant)));
        }
    }
    if test.on.contains(&Platform::Bare) {
        cases.extend(test.harts.iter().map(|harts| case(Site::Bare, *harts, Variant::DEFAULT)));
    }
    if test.on.contains(&Platform::Kvm) {
        let thp = test.thp.iter().map(|thp| if *thp { Thp::Always } else { Thp::Never });
        cases.extend(thp.map(|thp| case(Site::Kvm(thp), 1, Variant::DEFAULT)));
    }
    if test.variants != Choice::Full {
        let rows: Vec<_> = cases.iter().map(Case::circumstances).collect();
        let cover = if test.variants == Choice::Values { Cover::Values } else { Cover::Pairs };
        let chosen = pairs::covering(&rows, cover);
        match test.variants {
            Choice::Never => cases = chosen.into_iter().map(|place| cases[place].clone()).collect(),
            _ => chosen.into_iter().for_each(|place| cases[place].by_default = true),
        }
    }
    check_bounds(test, &cases)?;
    Ok(cases)
}

/// Takes those out of the default that another test, the twin, makes with more checks.
///
/// # Errors
/// If there is no such test, or it is no twin, or nothing is left.
pub fn leave_to_twins(cases: &mut [Case]) -> Result<(), String> {
    let circumstances = |case: &Case| (case.site.name(), case.harts, case.variant);
    let mut places = Vec::new();
    for (place, case) in cases.iter().enumerate().filter(|(_, case)| case.by_default) {
        let (name, Some(twin)) = (&case.test_name, &case.test.twin) else { continue };
        let mut theirs = cases.iter().filter(|other| other.by_default && other.test_name == *twin).peekable();
        let Some(other) = theirs.peek() else { return Err(format!("{name}: there is no test called {twin}")) };
        if (&other.test.guest, &other.test.append) != (&case.test.guest, &case.test.append) || name == twin {
            return Err(format!("{name}: {twin} is not a twin: a twin is another test of the same guest"));
        }
        if theirs.any(|other| circumstances(other) == circumstances(case)) {
            places.push(place);
        }
    }
    places.into_iter().for_each(|place| cases[place].by_default = false);
    let never = |case: &&Case| {
        case.test.twin.is_some() && !cases.iter().any(|other| other.by_default && other.test_name == case.test_name)
    };
    cases.iter().find(never).map_or(Ok(()), |case| Err(format!("{}: all of it is left to its twin", case.test_name)))
}

/// The variants of a test in a seat. Those that cannot be are left out, so that one table serves for all.
fn variants(test: &BootTest, seat: Seat) -> Vec<Variant> {
    let modes = match test.mmu.as_slice() {
        [] => vec![None],
        modes => modes.iter().copied().map(Some).collect(),
    };
    let h = |has_h: &bool| if *has_h { HExtension::Present } else { HExtension::Absent };
    let h: Vec<_> = test.h.iter().map(h).collect();
    Variant::combine(seat, &modes, &h, &test.lane)
}

/// Looks for what would never be run or checked.
fn check_bounds(test: &BootTest, cases: &[Case]) -> Result<(), String> {
    if cases.is_empty() {
        return Err("it would never run".into());
    }
    let chosen = |selector: &Selector| {
        let is_run = |case: &&Case| case.by_default || test.variants == Choice::Never;
        let mut runs = cases.iter().filter(|case| is_run(case) && matches!(case.site, Site::Gnomon(_)));
        runs.any(|case| selector.selects(case.variant))
    };
    match test.expect.counters_for.keys().find(|selector| !chosen(selector)) {
        Some(selector) => Err(format!("`counters_for` has bounds for {selector}, and no run is of that kind")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    #[test]
    fn tests_are_expanded() {
        let cases = plan("[a]\nabout = ''\nguest = 'x'\non = ['gnomon', 'bare']\nharts = [1, 4]\n").expect("a plan");
        let names: Vec<_> = cases.iter().map(Case::name).collect();
        assert_eq!(names, ["a/firmware/1", "a/firmware/4", "a/payload/1", "a/payload/4", "a/bare/1", "a/bare/4"]);
        assert_eq!((cases[1].vcpus(), cases[0].timeout()), (4, Duration::from_secs(60)));
    }

    #[test]
    fn tests_are_expanded_over_variants() {
        let text = "[a]\nabout = ''\nguest = 'x'\non = ['gnomon', 'bare']\nmmu = ['two-stage', 'lazy']\n\
                    h = [true, false]\nlane = [true, false]\n";
        let cases = plan(text).expect("a plan");
        let names: Vec<_> = cases.iter().map(Case::name).collect();
        let expected = [
            "a/firmware/1/two-stage",
            "a/firmware/1/lazy",
            "a/firmware/1/lazy-nolane",
            "a/firmware/1/lazy-noh",
            "a/firmware/1/lazy-noh-nolane",
            "a/payload/1/two-stage",
            "a/payload/1/lazy",
            "a/payload/1/lazy-nolane",
            "a/bare/1",
        ];
        assert_eq!(names, expected);
        let cases = plan("[a]\nabout = ''\nguest = 'x'\nh = [false]\n").expect("a plan");
        assert_eq!(cases.iter().map(Case::name).collect::<Vec<_>>(), ["a/firmware/1/noh"]);
    }

    #[test]
    fn tests_are_expanded_over_huge_pages() {
        let cases = plan("[a]\nabout = ''\nkernel = 'debian'\non = ['bare', 'kvm']\nthp = [true, false]\n");
        let names: Vec<_> = cases.expect("a plan").iter().map(Case::name).collect();
        assert_eq!(names, ["a/bare/1", "a/kvm/1", "a/kvm/1/nothp"]);
    }

    #[test]
    fn bounds_are_for_variants() {
        let text = "[a]\nabout = ''\nkernel = 'debian'\nexec = 'x'\nmmu = ['shadow', 'lazy']\nh = [true, false]\n\
                    seats = ['firmware']\n[a.expect]\ncounters = ['a >= 1']\nbaseline = 'true'\n\
                    counters_for = { lazy = ['b == 0'], lazy-noh = ['c == 1'], shadow = ['d <= 2'] }\n";
        let cases = plan(text).expect("a plan");
        let bounds = |case: &Case| case.counters().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let all: Vec<_> = cases.iter().map(|case| (case.variant.label(), bounds(case))).collect();
        let all: Vec<_> = all.iter().map(|(label, bounds)| (label.as_str(), bounds.as_str())).collect();
        let expected = [
            ("shadow", "a >= 1, d <= 2"),
            ("shadow-noh", "a >= 1, d <= 2"),
            ("lazy", "a >= 1, b == 0"),
            ("lazy-noh", "a >= 1, b == 0, c == 1"),
        ];
        assert_eq!(all, expected);
        let baseline = cases[0].baseline().expect("a baseline");
        assert_eq!((baseline.test.exec.as_deref(), baseline.counters().count()), (Some("true"), 0));
        assert_eq!(baseline.baseline(), None);
    }

    #[test]
    fn by_default_each_two_circumstances_meet() {
        let text = "[a]\nabout = ''\nguest = 'x'\non = ['gnomon', 'bare']\nmmu = ['two-stage', 'shadow', 'unsync', 'lazy']\n\
                    harts = [1, 4]\nh = [true, false]\nlane = [true, false]\n";
        let cases = plan(text).expect("a plan");
        let by_default: Vec<_> = cases.iter().filter(|case| case.by_default).collect();
        assert_eq!((cases.len(), by_default.len()), (30, 12));
        for (first, case) in cases.iter().map(|case| (case.circumstances(), case.name())) {
            for pair in first.iter().flat_map(|one| first.iter().map(move |other| [one, other])) {
                let meets = |case: &&Case| pair.iter().all(|one| case.circumstances().contains(one));
                assert!(by_default.iter().any(meets), "{pair:?} of {case}");
            }
        }
        let all = plan(&format!("{text}variants = 'full'\n")).expect("a plan");
        assert!(all.iter().all(|case| case.by_default));
        let never = plan(&format!("{text}variants = 'never'\n")).expect("a plan");
        assert_eq!(
            never.iter().map(Case::name).collect::<Vec<_>>(),
            by_default.iter().map(|case| case.name()).collect::<Vec<_>>()
        );
        assert!(never.iter().all(|case| !case.by_default));
    }

    #[test]
    fn what_a_twin_makes_is_left_to_it() {
        let text = "[a]\nabout = ''\nguest = 'x'\nharts = [1, 4]\nvariants = 'full'\ntwin = 'b'\n\
                    [b]\nabout = ''\nguest = 'x'\nmeter = 'check'\nseats = ['firmware']\n";
        let cases = plan(text).expect("a plan");
        let by_default: Vec<_> = cases.iter().filter(|case| case.by_default).map(Case::name).collect();
        assert_eq!(by_default, ["a/firmware/4", "a/payload/1", "a/payload/4", "b/firmware/1"]);
        assert_eq!(cases.len(), 5);
    }
}
