//! Runs a chain, and again what a failure leaves open.

use super::super::Programs;
use super::super::boot;
use super::super::cases::{Case, Site};
use super::super::judge::{self, Transcript};
use super::super::tally::{Run, Spent, Verdict};
use super::split::{Mark, split, vm_name};
use crate::host::processors;
use crate::machine::process::{Machine, Next};
use crate::machine::stream::Piece;
use crate::run;
use crate::vm::file::{Kernel, VmFile};
use abi::record::Record;
use miette::miette;
use std::time::Instant;

/// Runs a chain's cases in one boot, each with its own time limit. Where the machine ends early, those whose turn did not come
/// are a chain of their own, in another boot; and a case that fails is run again alone. Alone is also a chain of one.
pub fn run(chain: &[&Case], programs: &Programs) -> Vec<Run> {
    conclude(chain, |cases| together(cases, programs), |case| boot::run(case, programs))
}

/// Judges a chain, given how its cases are booted together (a transcript for each whose turn came, one at least; an error
/// if they cannot be) and how one is alone.
fn conclude(
    chain: &[&Case],
    together: impl Fn(&[&Case]) -> miette::Result<Vec<Transcript>>,
    alone: impl Fn(&Case) -> (Vec<Verdict>, Spent),
) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut left = chain;
    while left.len() > 1 {
        // Where no machine can be started, each says alone what is in the way.
        let Ok(transcripts) = together(left) else { break };
        for (place, transcript) in transcripts.iter().enumerate() {
            let case = left[place];
            let (mut verdicts, mut spent) = (judge::judge(case, transcript), transcript.spent);
            if !are_good(&verdicts) {
                let (again, more) = alone(case);
                spent += more;
                verdicts = if are_good(&again) { only_in_chain(verdicts, left, place) } else { again };
            }
            runs.push(Run { name: case.name(), verdicts, spent });
        }
        left = &left[transcripts.len()..];
    }
    runs.extend(left.iter().map(|case| {
        let (verdicts, spent) = alone(case);
        Run { name: case.name(), verdicts, spent }
    }));
    runs
}

fn are_good(verdicts: &[Verdict]) -> bool {
    verdicts.iter().all(|verdict| verdict.result.is_ok())
}

/// Verdicts of a case that failed in a boot with others and passes alone: they say so, and how to see it again.
fn only_in_chain(mut verdicts: Vec<Verdict>, boot: &[&Case], place: usize) -> Vec<Verdict> {
    let names: Vec<_> = boot.iter().map(|case| case.name()).collect();
    let when = match &names[..place] {
        [] => "it passes alone, and fails as the first in a boot with others".to_owned(),
        before => format!("it passes alone, and fails only after {} in the same boot", before.join(", ")),
    };
    for why in verdicts.iter_mut().filter_map(|verdict| verdict.result.as_mut().err()) {
        *why = format!(
            "{}; {when}. To repeat it: ./gnomon test {}",
            why.lines().next().unwrap_or_default(),
            names.join(" ")
        );
    }
    verdicts
}

/// Boots a machine for cases that share it, and takes apart what it says.
fn together(chain: &[&Case], programs: &Programs) -> miette::Result<Vec<Transcript>> {
    let mut files: Vec<VmFile> = Vec::new();
    for (place, case) in chain.iter().enumerate() {
        let kernel = case.test.guest.as_ref().map(|name| boot::guest(name, programs).map(Kernel::File)).transpose()?;
        files.push(VmFile {
            name: Some(vm_name(place)),
            after: place.checked_sub(1).map(vm_name),
            append: Some(case.test.append.clone()),
            ..boot::vm_file(case, kernel, case.variant.mmu)
        });
    }
    let Site::Gnomon(seat) = chain[0].site else { return Err(miette!("{} is not on Gnomon", chain[0].name())) };
    let spec = boot::machine(chain[0], seat, files);
    let prepared = run::prepare(&spec, Some(boot::hypervisor(programs)?))?;
    let started = Instant::now();
    let (machine, _) = Machine::start(&prepared.machine)?;
    let id = machine.id();
    let now = |cpu| Spent { wall: started.elapsed(), cpu, machines: 1 };
    let (mut console, mut marks) = (Vec::new(), Vec::<Mark>::new());
    let outcome = machine.run(Some(started + chain[0].timeout()), |piece| {
        match piece {
            Piece::Text(bytes) => console.extend_from_slice(bytes),
            Piece::Record(Record::VmEnd(_)) => {
                // A machine that is gone has its time in the outcome.
                let cpu = processors::so_far(id).unwrap_or_default();
                marks.push(Mark { console: console.len(), spent: now(cpu) });
                if let Some(next) = chain.get(marks.len()) {
                    return Next::Until(Instant::now() + next.timeout());
                }
            }
            Piece::Record(_) | Piece::Trouble(_) => {}
        }
        Next::Continue
    })?;
    let whole = now(outcome.cpu);
    Ok(split(chain, &console, &marks, &outcome, whole))
}

#[cfg(test)]
mod tests {
    use super::super::super::plan::tests::plan;
    use super::*;
    use crate::machine::process::{Outcome, Stopped};
    use abi::record::{EndReason, VmEnd};
    use std::cell::RefCell;

    /// A boot of these cases, if one of them (by the number of its vCPUs) hangs behind others.
    fn boot(chain: &[&Case], hangs: Option<u32>) -> Vec<Transcript> {
        let (mut console, mut marks, mut outcome) = (Vec::new(), Vec::new(), Outcome::default());
        for (place, case) in chain.iter().enumerate() {
            let vm = vm_name(place);
            console.extend(format!("{vm}| gnomon-test: PASS x\n").bytes());
            if Some(case.vcpus()) == hangs {
                outcome.stopped = Some(Stopped::Timeout);
                break;
            }
            console.extend(format!("{vm}| gnomon-test: DONE 1\n").bytes());
            outcome.ends.push(VmEnd { vm, reason: EndReason::Poweroff });
            marks.push(Mark { console: console.len(), spent: Spent { machines: 1, ..Spent::default() } });
            outcome.has_halted = marks.len() == chain.len();
        }
        split(chain, &console, &marks, &outcome, Spent { machines: 1, ..Spent::default() })
    }

    fn cases() -> Vec<Case> {
        let tests = (1..=5).map(|n| format!("[t{n}]\nabout = ''\nguest = 'x'\nseats = ['firmware']\nvcpus = {n}\n"));
        plan(&tests.collect::<String>()).expect("a plan")
    }

    /// Runs all of the cases in a chain of which one hangs; alone it passes or fails. Returns the results, and the boots: the
    /// numbers of the tests in each.
    fn run_with(hangs: u32, alone_it: Result<(), &str>) -> (Vec<Run>, Vec<String>) {
        let cases = cases();
        let chain: Vec<&Case> = cases.iter().collect();
        let boots = RefCell::new(Vec::new());
        let numbers = |cases: &[&Case]| cases.iter().map(|case| case.vcpus().to_string()).collect::<String>();
        let runs = conclude(
            &chain,
            |cases| {
                boots.borrow_mut().push(numbers(cases));
                Ok(boot(cases, Some(hangs)))
            },
            |case| {
                boots.borrow_mut().push(numbers(&[case]));
                let fails = alone_it.err().filter(|_| case.vcpus() == hangs);
                let name = format!("{}/x", case.name());
                let verdict = fails.map_or_else(|| Verdict::passed(&name), |why| Verdict::failed(&name, why));
                (vec![verdict], Spent { machines: 1, ..Spent::default() })
            },
        );
        (runs, boots.into_inner())
    }

    fn failed(runs: &[Run]) -> Vec<(&str, &str)> {
        let verdicts = runs.iter().flat_map(|run| &run.verdicts);
        verdicts.filter_map(|verdict| Some((verdict.name.as_str(), verdict.result.as_ref().err()?.as_str()))).collect()
    }

    #[test]
    fn one_boot_is_enough_where_all_pass() {
        let (runs, boots) = run_with(9, Ok(()));
        assert_eq!((runs.len(), failed(&runs), boots), (5, vec![], vec!["12345".to_owned()]));
        assert_eq!(runs.iter().map(|run| run.spent.machines).sum::<usize>(), 1);
    }

    #[test]
    fn the_rest_is_run_again_after_a_hang() {
        let (runs, boots) = run_with(2, Err("it hangs"));
        assert_eq!(boots, ["12345", "2", "345"]);
        assert_eq!(failed(&runs), [("t2/firmware/1/x", "it hangs")]);
        let names: Vec<_> = runs.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names, [1, 2, 3, 4, 5].map(|n| format!("t{n}/firmware/1")));
        // What is left of a chain may be one.
        assert_eq!(run_with(4, Err("it hangs")).1, ["12345", "4", "5"]);
        assert_eq!(run_with(5, Err("it hangs")).1, ["12345", "5"]);
        assert_eq!(run_with(1, Err("it hangs")).1, ["12345", "1", "2345"]);
    }

    #[test]
    fn who_passes_alone_has_failed_all_the_same() {
        let (runs, boots) = run_with(3, Ok(()));
        assert_eq!(boots, ["12345", "3", "45"]);
        let [(name, why)] = failed(&runs)[..] else { panic!("one failure: {runs:?}") };
        assert_eq!(name, "t3/firmware/1/run");
        assert!(why.contains("only after t1/firmware/1, t2/firmware/1 in the same boot"), "{why}");
        let all = [1, 2, 3, 4, 5].map(|n| format!("t{n}/firmware/1")).join(" ");
        assert!(why.ends_with(&format!("./gnomon test {all}")), "{why}");
        assert!(failed(&run_with(1, Ok(())).0)[0].1.contains("as the first"));
    }

    #[test]
    fn where_none_can_start_each_says_so() {
        let cases = cases();
        let chain: Vec<&Case> = cases.iter().collect();
        let alone = |case: &Case| (vec![Verdict::failed(case.name(), "no QEMU")], Spent::default());
        let runs = conclude(&chain, |_| Err(miette!("no QEMU")), alone);
        assert_eq!((runs.len(), failed(&runs).len()), (5, 5));
    }
}
