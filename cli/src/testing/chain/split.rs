//! Takes apart what a chain's machine has printed: a transcript for each case, as if its VM had been the only one.

use super::super::cases::Case;
use super::super::judge::Transcript;
use super::super::tally::Spent;
use crate::machine::process::Outcome;
use crate::machine::stream::Lines;
use abi::record::VmEnd;

/// The name of a chain's VM, by its place.
pub fn vm_name(place: usize) -> String {
    format!("vm{}", place + 1)
}

/// The progress of a machine at the end of a VM.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    /// The length of the console's text so far, in bytes.
    pub console: usize,
    /// The machine's cost.
    pub spent: Spent,
}

/// The transcripts of the VMs that have ended and of the one that ran, or was about to start, when the machine ended early: in
/// the order of the chain, whose rest has not been run. `marks` has one for each VM that has ended, `whole` is what the machine
/// took. The machine's own trouble is that of the last VM alone: the others had come to their end before.
pub fn split(chain: &[&Case], console: &[u8], marks: &[Mark], outcome: &Outcome, whole: Spent) -> Vec<Transcript> {
    let was_run = chain.len().min(marks.len() + 1);
    let mut before = Spent::default();
    let laps = marks.iter().map(|mark| mark.spent).chain([whole]).map(|now| {
        let lap = Spent {
            wall: now.wall.saturating_sub(before.wall),
            cpu: now.cpu.saturating_sub(before.cpu),
            machines: now.machines - before.machines,
        };
        before = now;
        lap
    });
    let mut laps: Vec<_> = laps.collect();
    // What comes after the last VM's end is its own.
    let rest: Spent = laps.drain(was_run..).collect::<Vec<_>>().into_iter().sum();
    laps[was_run - 1] += rest;
    let consoles = consoles(console, marks, was_run);
    let parts = (0..was_run).zip(consoles).zip(laps);
    let transcript = |((place, console), spent): ((usize, Vec<u8>), Spent)| {
        let end = outcome.ends.iter().find(|end| end.vm == vm_name(place));
        let ends = end.map(|VmEnd { reason, .. }| VmEnd { vm: chain[place].vms().concat(), reason: reason.clone() });
        let own = Outcome { boot: outcome.boot.clone(), ends: ends.into_iter().collect(), ..Outcome::default() };
        let outcome = if place + 1 == was_run {
            Outcome {
                has_halted: outcome.has_halted,
                failed: outcome.failed.clone(),
                stopped: outcome.stopped,
                status: outcome.status,
                stderr: outcome.stderr.clone(),
                ..own
            }
        } else {
            Outcome { has_halted: true, ..own }
        };
        Transcript { console, spent, outcome, ..Transcript::default() }
    };
    parts.map(transcript).collect()
}

/// The text of each VM: its own lines, without its name, and what Gnomon said in its time.
fn consoles(console: &[u8], marks: &[Mark], vms: usize) -> Vec<Vec<u8>> {
    let prefixes: Vec<_> = (0..vms).map(|place| format!("{}| ", vm_name(place))).collect();
    let mut texts = vec![Vec::new(); vms];
    let mut from = 0;
    for (turn, to) in marks.iter().map(|mark| mark.console).chain([console.len()]).enumerate() {
        let mut lines = Lines::default();
        let whole = lines.push(&console[from..to]);
        for line in whole.into_iter().chain(lines.finish()) {
            let own = prefixes.iter().position(|prefix| line.starts_with(prefix.as_bytes()));
            let text = &line[own.map_or(0, |vm| prefixes[vm].len())..];
            let vm = own.unwrap_or(turn.min(vms - 1));
            texts[vm].extend_from_slice(text);
            texts[vm].push(b'\n');
        }
        from = to;
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::super::super::plan::tests::plan;
    use super::*;
    use crate::machine::process::Stopped;
    use crate::testing::judge;
    use abi::record::EndReason;
    use std::time::Duration;

    const DONE: &str = "gnomon-test: PASS x\r\ngnomon-test: DONE 1\r\n";

    fn cases() -> Vec<Case> {
        let text = "[a]\nabout = ''\nguest = 'x'\nmmu = ['two-stage', 'shadow', 'lazy']\nseats = ['firmware']\n";
        plan(text).expect("a plan")
    }

    fn spent(seconds: u64) -> Spent {
        Spent { wall: Duration::from_secs(seconds), cpu: Duration::from_secs(seconds), machines: 1 }
    }

    fn ended(place: usize, reason: EndReason) -> VmEnd {
        VmEnd { vm: vm_name(place), reason }
    }

    /// A console on which each VM but those of `silent` has reported, with marks after the first so many.
    fn console(silent: &[usize], marks: usize) -> (Vec<u8>, Vec<Mark>) {
        let (mut console, mut at) = (Vec::new(), Vec::new());
        for place in 0..3 {
            console.extend(format!("gnomon: {} begins\r\n", vm_name(place)).bytes());
            if !silent.contains(&place) {
                let lines = DONE.lines().map(|line| format!("{}| {line}\r\n", vm_name(place)));
                console.extend(lines.collect::<String>().bytes());
            }
            if place < marks {
                at.push(Mark { console: console.len(), spent: spent(place as u64 + 1) });
            }
        }
        (console, at)
    }

    /// Of each case that was run, what failed.
    fn failures(cases: &[Case], transcripts: &[Transcript]) -> Vec<Vec<String>> {
        let of =
            |(case, transcript)| judge::judge(case, transcript).into_iter().filter_map(|v| v.result.err()).collect();
        cases.iter().zip(transcripts).map(of).collect()
    }

    #[test]
    fn each_is_judged_by_its_own() {
        let cases = cases();
        let chain: Vec<&Case> = cases.iter().collect();
        let (text, marks) = console(&[], 3);
        let ends = (0..3).map(|place| ended(place, EndReason::Poweroff)).collect();
        let mut outcome = Outcome { ends, has_halted: true, ..Outcome::default() };
        let transcripts = split(&chain, &text, &marks, &outcome, spent(4));
        assert_eq!(failures(&cases, &transcripts), [vec![], vec![], Vec::<String>::new()]);
        let text_of = |transcript: &Transcript| String::from_utf8_lossy(&transcript.console).into_owned();
        assert_eq!(text_of(&transcripts[1]), "gnomon: vm2 begins\ngnomon-test: PASS x\ngnomon-test: DONE 1\n");
        let took: Vec<_> = transcripts.iter().map(|t| (t.spent.wall.as_secs(), t.spent.machines)).collect();
        assert_eq!(took, [(1, 1), (1, 0), (2, 0)]);
        // One that ends badly, or is silent, is no other's failure.
        outcome.ends[1].reason = EndReason::Killed { message: "bad".into() };
        let (text, marks) = console(&[0], 3);
        let all = failures(&cases, &split(&chain, &text, &marks, &outcome, spent(4)));
        assert!(all[0][0].contains("breaks off after 0") && all[1][0].contains("bad") && all[2].is_empty(), "{all:?}");
    }

    #[test]
    fn what_comes_late_is_of_the_vm_that_printed_it() {
        let cases = cases();
        let chain: Vec<&Case> = cases.iter().collect();
        let text = "vm2| x\nvm1| late\nvm1| vm2| said\nnobody's\n";
        let marks = [Mark::default()];
        let transcripts = split(&chain, text.as_bytes(), &marks, &Outcome::default(), spent(1));
        let texts: Vec<_> = transcripts.iter().map(|t| String::from_utf8_lossy(&t.console).into_owned()).collect();
        assert_eq!(texts, ["late\nvm2| said\n", "x\nnobody's\n"]);
    }

    #[test]
    fn an_early_end_is_that_of_the_vm_that_ran() {
        let cases = cases();
        let chain: Vec<&Case> = cases.iter().collect();
        let (text, marks) = console(&[1, 2], 1);
        let ends = vec![ended(0, EndReason::Poweroff)];
        let hung = Outcome { ends: ends.clone(), stopped: Some(Stopped::Timeout), ..Outcome::default() };
        let panicked = Outcome { ends: ends.clone(), failed: Some("a panic".into()), ..Outcome::default() };
        let gone = Outcome { ends, stderr: "killed".into(), ..Outcome::default() };
        for outcome in [&hung, &panicked, &gone] {
            let transcripts = split(&chain, &text, &marks, outcome, spent(9));
            let all = failures(&cases, &transcripts);
            assert_eq!((all.len(), all[0].len(), all[1].len()), (2, 0, 1), "{all:?}");
            assert_eq!(transcripts[1].spent.wall.as_secs(), 8);
        }
        // Whose report is whole fails as well, if it does not end.
        let (text, marks) = console(&[2], 1);
        let all = failures(&cases, &split(&chain, &text, &marks, &hung, spent(9)));
        assert!(all[1][0].contains("longer than 60 s"), "{all:?}");
    }

    #[test]
    fn what_fails_after_all_have_ended_is_of_the_last() {
        let cases = cases();
        let chain: Vec<&Case> = cases.iter().collect();
        let (text, marks) = console(&[], 3);
        let ends = (0..3).map(|place| ended(place, EndReason::Poweroff)).collect();
        let outcome = Outcome { ends, failed: Some("a panic".into()), ..Outcome::default() };
        let all = failures(&cases, &split(&chain, &text, &marks, &outcome, spent(4)));
        assert!(all[0].is_empty() && all[1].is_empty() && all[2][0].contains("a panic"), "{all:?}");
    }
}
