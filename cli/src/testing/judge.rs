//! Judges the transcript of a boot test's run.

use super::cases::{Case, Site};
use super::plan::End;
use super::tally::{Spent, Verdict};
use crate::machine::meter::Report;
use crate::machine::process::{Outcome, Stopped};
use crate::machine::stream::Lines;
use abi::record::{EndReason, Stats, VmEnd};
use abi::report::{self, Line};

/// Lines of the console shown for a failure.
const SHOWN_LINES: usize = 30;

/// The transcript of a run.
#[derive(Debug, Default)]
pub struct Transcript {
    /// Everything on the console, records left out.
    pub console: Vec<u8>,
    /// The commands' output.
    pub exec_output: Vec<u8>,
    /// The commands' status in each VM.
    pub statuses: Vec<(String, Option<i32>)>,
    /// Linux's panic message.
    pub panic: Option<String>,
    /// The text that the dialog still waited for.
    pub unanswered: Option<String>,
    /// Set if the machine was stopped because everything that the test waits for had happened.
    pub has_seen_enough: bool,
    /// Its cost, with that of the runs that belong to it.
    pub spent: Spent,
    /// The outcome of the machine.
    pub outcome: Outcome,
    /// The meter's report, if there is one.
    pub meter: Option<Report>,
    /// A defect of the meter's output, regardless of the counts.
    pub meter_complaint: Option<String>,
    /// The counters of the run before, where there is one to be subtracted.
    pub baseline: Option<Stats>,
}

/// The verdicts: those of the checks that test guests report, and one on the run as a whole where
/// that is a test of its own, or is amiss.
pub fn judge(case: &Case, transcript: &Transcript) -> Vec<Verdict> {
    let name = case.name();
    let mut lines = Lines::default();
    let console: Vec<String> = lines
        .push(&transcript.console)
        .into_iter()
        .chain(lines.finish())
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .collect();
    let vms = case.vms();
    let (own, others) = vms.split_at(case.test.vms);
    let mut verdicts = Vec::new();
    let mut reports = Ok(());
    let reporting = own.iter().filter(|_| case.has_report()).map(|vm| (vm, name.clone(), case.test.expect.boots));
    let others = others.iter().map(|vm| (vm, format!("{name}/{vm}"), 1));
    for (vm, name, boots) in reporting.chain(others) {
        let (checks, complete) = read_report(&name, said_by(vm, vms.len(), &console), boots);
        verdicts.extend(checks);
        reports = reports.and(complete.map_err(|why| format!("{vm}: {why}")));
    }
    let has_failures = verdicts.iter().any(|verdict| verdict.result.is_err());
    let whole = reports.and_then(|()| whole(case, transcript, has_failures));
    let expect = &case.test.expect;
    let has_more = !expect.output.is_empty()
        || !expect.absent.is_empty()
        || case.counters().next().is_some()
        || case.test.meter.is_some();
    if !case.has_report() || has_more || whole.is_err() {
        let name = if case.has_report() || !verdicts.is_empty() { format!("{name}/run") } else { name };
        verdicts.push(Verdict { result: whole, ..Verdict::passed(name) });
    }
    let tail = &console[console.len().saturating_sub(SHOWN_LINES)..];
    if let Some(last) = verdicts.iter_mut().rfind(|verdict| verdict.result.is_err()) {
        last.output = tail.to_vec();
        last.output.extend(transcript.outcome.stderr.lines().map(|line| format!("QEMU: {line}")));
    }
    verdicts
}

/// The lines of one VM, without their prefix.
fn said_by<'a>(vm: &str, vms: usize, console: &'a [String]) -> impl Iterator<Item = &'a str> {
    let prefix = if vms > 1 { format!("{vm}| ") } else { String::new() };
    console.iter().filter_map(move |line| line.strip_prefix(&prefix))
}

/// The checks of a test guest that was started so many times; and whether its report is complete.
fn read_report<'a>(
    name: &str,
    lines: impl Iterator<Item = &'a str>,
    boots: usize,
) -> (Vec<Verdict>, Result<(), String>) {
    let mut verdicts = Vec::new();
    let mut done = None;
    for line in lines {
        match Line::parse(line) {
            Some(Line::Pass(check)) => verdicts.push(Verdict::passed(format!("{name}/{check}"))),
            Some(Line::Fail(text)) => {
                let (check, why) = text.split_once(": ").unwrap_or((text, "no reason given"));
                verdicts.push(Verdict::failed(format!("{name}/{check}"), why));
            }
            Some(Line::Done(count)) => done = Some(count as usize * boots),
            None => {}
        }
    }
    let has_failures = verdicts.iter().any(|verdict| verdict.result.is_err());
    let complete = match done {
        None => Err(format!("the guest's report breaks off after {} checks", verdicts.len())),
        Some(0) => Err("the guest made no check".into()),
        // A failure outside a check is reported without being one.
        Some(count) if count == verdicts.len() || (has_failures && count < verdicts.len()) => Ok(()),
        Some(count) => Err(format!("the guest made {count} checks and reported {}", verdicts.len())),
    };
    (verdicts, complete)
}

/// Judges a run as a whole.
fn whole(case: &Case, transcript: &Transcript, has_failures: bool) -> Result<(), String> {
    let expect = &case.test.expect;
    let outcome = &transcript.outcome;
    if let Some(message) = &transcript.panic {
        return Err(format!("the guest's kernel panicked: {message}"));
    }
    if transcript.has_seen_enough {
        if let Some(message) = &outcome.failed {
            return Err(format!("Gnomon failed: {message}"));
        }
    } else {
        ended_well(case, outcome)?;
        if let Some(until) = &expect.until {
            return Err(format!("`{}` did not appear {} times", until.text, until.count));
        }
    }
    if let Some(text) = &transcript.unanswered {
        return Err(format!("`{text}` did not appear"));
    }
    let own = &case.vms()[..case.test.vms];
    for VmEnd { vm, reason } in &outcome.ends {
        let end = if own.contains(vm) { expect.end } else { End::Poweroff };
        check_end(vm, reason, end, &expect.message, has_failures)?;
    }
    for (vm, status) in &transcript.statuses {
        match status {
            _ if transcript.has_seen_enough => {}
            Some(status) if *status == expect.status => {}
            Some(status) => return Err(format!("the commands in {vm} ended with {status}, not {}", expect.status)),
            None => return Err(format!("the commands in {vm} were interrupted")),
        }
    }
    let text = if case.has_commands() { &transcript.exec_output } else { &transcript.console };
    let text = String::from_utf8_lossy(text);
    for pattern in &expect.output {
        let found = pattern.0.find_iter(&text).count();
        if found < case.test.vms {
            let what = pattern.0.as_str();
            return Err(format!("`{what}` was found {found} times in the output, not {}", case.test.vms));
        }
    }
    if let Some(pattern) = expect.absent.iter().find(|pattern| pattern.0.is_match(&text)) {
        return Err(format!("`{}` is in the output", pattern.0.as_str()));
    }
    case.counters().try_for_each(|assertion| {
        let stats = outcome.stats.as_ref().ok_or("Gnomon printed no counters")?;
        assertion.check(stats, transcript.baseline.as_ref())
    })?;
    metered(case, transcript)
}

/// Judges the meter's counts.
fn metered(case: &Case, transcript: &Transcript) -> Result<(), String> {
    let Some(report) = &transcript.meter else {
        return if case.test.meter.is_some() { Err("the meter left no report".into()) } else { Ok(()) };
    };
    if let Some(why) = &transcript.meter_complaint {
        return Err(why.clone());
    }
    let expect = &case.test.expect;
    let found: Vec<String> = report.findings().collect();
    match found.first() {
        Some(first) if !expect.stale => {
            return Err(format!("check mode found {} uses of stale translations. The first: {first}", found.len()));
        }
        None if expect.stale => return Err("check mode found no use of a stale translation".into()),
        _ => {}
    }
    let console = String::from_utf8_lossy(&transcript.console);
    let number = |name: &str| match name.strip_prefix("figure.") {
        Some(figure) => {
            let mut figures = console.lines().filter_map(report::figure);
            let found = figures.find(|(known, _)| *known == figure);
            found.map(|(_, value)| value).ok_or_else(|| format!("the guest printed no figure {figure}"))
        }
        None => report.number(name).ok_or_else(|| format!("the meter's report has no {name}")),
    };
    expect.meter.iter().try_for_each(|assertion| assertion.check_by(number))
}

/// Checks that the machine ended as it should.
fn ended_well(case: &Case, outcome: &Outcome) -> Result<(), String> {
    if let Some(message) = &outcome.failed {
        return Err(format!("Gnomon failed: {message}"));
    }
    match outcome.stopped {
        Some(Stopped::Timeout) => return Err(format!("it took longer than {} s", case.test.timeout)),
        Some(_) => return Err("the machine was stopped".into()),
        None => {}
    }
    if !matches!(case.site, Site::Gnomon(_)) {
        // There QEMU itself ends, with the guest's wish for a status.
        return Ok(());
    }
    if !outcome.has_halted {
        return Err("QEMU ended before Gnomon was done".into());
    }
    match outcome.ends.len() {
        count if count == case.vms().len() => Ok(()),
        count => Err(format!("Gnomon told of the end of {count} VMs, not {}", case.vms().len())),
    }
}

fn check_end(vm: &str, reason: &EndReason, end: End, expected: &str, has_failures: bool) -> Result<(), String> {
    match (end, reason) {
        (End::Poweroff, EndReason::Poweroff) | (End::Failure, EndReason::SystemFailure) => Ok(()),
        // A guest with failed checks says so by its end, too; that is told already.
        (End::Poweroff, EndReason::SystemFailure) if has_failures => Ok(()),
        (End::Killed, EndReason::Killed { message }) if message.contains(expected) => Ok(()),
        (End::Killed, EndReason::Killed { message }) => {
            Err(format!("{vm} was stopped with `{message}`, expected `{expected}`"))
        }
        (_, EndReason::Poweroff) => Err(format!("{vm} powered off")),
        (_, EndReason::Requested) => Err(format!("{vm} was stopped by request")),
        (_, EndReason::SystemFailure) => Err(format!("{vm} ended with a system failure")),
        (_, EndReason::Killed { message }) => Err(format!("{vm} was stopped: {message}")),
        (_, EndReason::NotStarted { message }) => Err(format!("{vm} could not be started: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::board::Seat;
    use crate::subject::variant::Variant;
    use crate::testing::plan::BootTest;

    fn case(text: &str) -> Case {
        let test: BootTest = toml::from_str(text).expect("a test");
        Case {
            test_name: "t".into(),
            test,
            site: Site::Gnomon(Seat::Firmware),
            harts: 1,
            variant: Variant::DEFAULT,
            by_default: true,
        }
    }

    fn ended(console: &str, reason: EndReason) -> Transcript {
        let mut outcome = Outcome { has_halted: true, ..Outcome::default() };
        outcome.ends.push(VmEnd { vm: "vm".into(), reason });
        Transcript { console: console.into(), outcome, ..Transcript::default() }
    }

    fn failures(case: &Case, transcript: &Transcript) -> Vec<(String, String)> {
        let failed = |verdict: Verdict| Some((verdict.name, verdict.result.err()?));
        judge(case, transcript).into_iter().filter_map(failed).collect()
    }

    const PASS: &str = "gnomon-test: PASS a\r\ngnomon-test: PASS b\r\n";

    #[test]
    fn checks_count_one_by_one() {
        let case = case("about = ''\nguest = 'g'\n");
        let good = ended(&format!("{PASS}gnomon-test: DONE 2\r\n"), EndReason::Poweroff);
        let names: Vec<_> = judge(&case, &good).into_iter().map(|v| (v.name, v.result)).collect();
        assert_eq!(names, [("t/firmware/1/a".into(), Ok(())), ("t/firmware/1/b".into(), Ok(()))]);
        let bad = ended(&format!("{PASS}gnomon-test: FAIL c: x: y\ngnomon-test: DONE 3\n"), EndReason::SystemFailure);
        assert_eq!(failures(&case, &bad), [("t/firmware/1/c".into(), "x: y".into())]);
    }

    #[test]
    fn an_incomplete_report_fails() {
        let case = case("about = ''\nguest = 'g'\n");
        for (console, why) in [
            (PASS.to_owned(), "breaks off after 2"),
            (format!("{PASS}gnomon-test: DONE 3\n"), "made 3 checks and reported 2"),
            ("gnomon-test: DONE 0\n".into(), "no check"),
        ] {
            let failures = failures(&case, &ended(&console, EndReason::Poweroff));
            assert!(failures.len() == 1 && failures[0].0 == "t/firmware/1/run", "{failures:?}");
            assert!(failures[0].1.contains(why), "{failures:?}");
        }
    }

    #[test]
    fn ends_are_judged() {
        let killed = |message: &str| EndReason::Killed { message: message.into() };
        let done = format!("{PASS}gnomon-test: DONE 2\n");
        let plain = case("about = ''\nguest = 'g'\n");
        assert_eq!(failures(&plain, &ended(&done, killed("bad"))).len(), 1);
        assert_eq!(failures(&plain, &ended(&done, EndReason::SystemFailure)).len(), 1);
        let wild = case("about = ''\nguest = 'g'\nexpect = { end = 'killed', message = 'jump' }\n");
        assert_eq!(failures(&wild, &ended("", killed("a jump into nowhere"))), []);
        assert_eq!(failures(&wild, &ended("", killed("else"))).len(), 1);
        assert_eq!(failures(&wild, &ended("", EndReason::Poweroff)).len(), 1);
        let mut early = ended(&done, EndReason::Poweroff);
        early.outcome.has_halted = false;
        assert!(failures(&plain, &early)[0].1.contains("QEMU ended"));
        early.outcome.stopped = Some(Stopped::Timeout);
        assert!(failures(&plain, &early)[0].1.contains("60 s"));
    }

    #[test]
    fn those_beside_have_to_pass() {
        let text = "about = ''\nguest = 'g'\nbeside = [{ guest = 'noise' }]\nexpect.end = 'never'\n";
        let case = case(text);
        let said = |passes: &str| {
            format!("vm| gnomon-test: PASS x\nbeside1| gnomon-test: {passes} a\nbeside1| gnomon-test: DONE 1\n")
        };
        let mut run = ended(&said("PASS"), EndReason::Poweroff);
        run.outcome.ends[0].vm = "beside1".into();
        run.outcome.has_halted = false;
        run.outcome.stopped = Some(Stopped::Enough);
        assert_eq!(failures(&case, &run).len(), 1);
        run.has_seen_enough = true;
        assert_eq!(failures(&case, &run), []);
        run.console = said("FAIL").into();
        assert_eq!(failures(&case, &run)[0].0, "t/firmware/1/beside1/a");
        run.console = said("PASS").into();
        run.outcome.ends[0].vm = "vm".into();
        assert_eq!(failures(&case, &run).len(), 1);
    }

    #[test]
    fn those_that_follow_have_to_pass() {
        let case = case("about = ''\nguest = 'g'\nthen = [{ guest = 'x' }, { guest = 'y' }]\n");
        let said = |last: &str| {
            let one = |vm: &str| format!("{vm}| gnomon-test: PASS a\n{vm}| gnomon-test: DONE 1\n");
            [one("vm"), one("then1"), last.to_owned()].concat()
        };
        let mut run = ended(&said("then2| gnomon-test: PASS b\nthen2| gnomon-test: DONE 1\n"), EndReason::Poweroff);
        assert!(failures(&case, &run)[0].1.contains("1 VMs, not 3"));
        run.outcome.ends.extend(["then1", "then2"].map(|vm| VmEnd { vm: vm.into(), reason: EndReason::Poweroff }));
        assert_eq!(failures(&case, &run), []);
        run.console = said("then2| gnomon-test: FAIL b: x\nthen2| gnomon-test: DONE 1\n").into();
        assert_eq!(failures(&case, &run)[0].0, "t/firmware/1/then2/b");
        run.console = said("").into();
        assert!(failures(&case, &run)[0].1.contains("then2"));
    }

    #[test]
    fn each_boot_makes_the_checks() {
        let case = case("about = ''\nguest = 'g'\nexpect.boots = 2\n");
        let good = ended(&format!("{PASS}{PASS}gnomon-test: DONE 2\n"), EndReason::Poweroff);
        assert_eq!(failures(&case, &good), []);
        let bad = ended(&format!("{PASS}gnomon-test: DONE 2\n"), EndReason::Poweroff);
        assert_eq!(failures(&case, &bad).len(), 1);
    }

    #[test]
    fn commands_are_judged() {
        let case =
            case("about = ''\nkernel = 'debian'\nexec = 'x'\nexpect.output = ['^b.b$']\nexpect.absent = ['zz']\n");
        let mut run = ended("", EndReason::Poweroff);
        run.statuses.push(("vm".into(), Some(0)));
        run.exec_output = b"a\nbob\n".to_vec();
        assert_eq!(failures(&case, &run), []);
        run.exec_output = b"a\nzz\nbob\n".to_vec();
        assert!(failures(&case, &run)[0].1.contains("zz"));
        run.exec_output.clear();
        assert!(failures(&case, &run)[0].1.contains("0 times"));
        run.statuses[0].1 = Some(1);
        assert!(failures(&case, &run)[0].1.contains("ended with 1"));
        run.panic = Some("no init".into());
        assert!(failures(&case, &run)[0].1.contains("no init"));
    }
}
