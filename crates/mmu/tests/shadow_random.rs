//! Random guests on shadow tables, in every mode: see the rig for what is checked.

mod shadow_rig;

use mmu::shadow::{Mode, Sabotage};
use shadow_rig::{Mutant, Rig, Setup};
use std::panic::catch_unwind;

/// Steps in the life of one VM.
const STEPS: u64 = 500;

/// Steps in all, for each mode. A soak sets SHADOW_STEPS.
fn steps() -> u64 {
    std::env::var("SHADOW_STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000)
}

fn run(mode: Mode, seed: u64, mutant: Mutant) -> (mmu::shadow::Counters, [u64; 4]) {
    let mut rig = Rig::new(Setup { mode, seed, mutant });
    (0..STEPS).for_each(|_| rig.step());
    let tally = rig.tally;
    (rig.finish(), tally)
}

fn million(mode: Mode) {
    let mut sum = mmu::shadow::Counters::default();
    let mut tallies = [0; 4];
    for seed in 0..steps() / STEPS {
        let result = catch_unwind(|| run(mode, seed, Mutant::None));
        let (counters, tally) = result.unwrap_or_else(|_| panic!("{mode:?}, seed {seed}"));
        sum += counters;
        tallies.iter_mut().zip(tally).for_each(|(sum, n)| *sum += n);
    }
    println!("{mode:?}: {tallies:?} {sum:?}");
}

#[test]
fn lazy() {
    million(Mode::Lazy);
}

#[test]
fn unsync() {
    million(Mode::Unsync);
}

#[test]
fn traditional() {
    million(Mode::Traditional);
}

/// Each mutant, the mode that it is for, and the checks that may catch it, by their messages.
const MUTANTS: [(Mutant, Mode, &[&str]); 22] = [
    (Mutant::DropsFences, Mode::Lazy, &["OWNERSHIP", "TLB-LIKE", "SUBSET"]),
    (Mutant::DropsFences, Mode::Traditional, &["OWNERSHIP", "TLB-LIKE", "SUBSET"]),
    (Mutant::KeepsOwn, Mode::Lazy, &["TLB-LIKE", "PROGRESS"]),
    (Mutant::Engine(Sabotage::ForgetsFence), Mode::Lazy, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::ForgetsFence), Mode::Unsync, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::ForgetsWideFence), Mode::Lazy, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::ForgetsWideFence), Mode::Unsync, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::ForgetsLog), Mode::Lazy, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::ForgetsToCatchUp), Mode::Lazy, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::LinksStale), Mode::Lazy, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::ForgetsSharer), Mode::Lazy, &["OWNERSHIP", "SUBSET", "TLB-LIKE", "shadow page exists"]),
    (Mutant::Engine(Sabotage::ForgetsLeaf), Mode::Lazy, &["OWNERSHIP", "TLB-LIKE"]),
    (Mutant::Engine(Sabotage::IgnoresDirty), Mode::Lazy, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::ForgetsUser), Mode::Lazy, &["TLB-LIKE", "PROGRESS"]),
    (Mutant::Engine(Sabotage::IgnoresHost), Mode::Lazy, &["OWNERSHIP", "TLB-LIKE"]),
    (Mutant::Engine(Sabotage::AllowsTableWrites), Mode::Traditional, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::CoversTables), Mode::Traditional, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::ProtectsWithoutFlush), Mode::Traditional, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::ForgetsWrite), Mode::Traditional, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::StoresBlindly), Mode::Lazy, &["TLB-LIKE"]),
    (Mutant::Engine(Sabotage::KeepsPointers), Mode::Lazy, &["TLB-LIKE", "OWNERSHIP", "SUBSET"]),
    (Mutant::Engine(Sabotage::ReusesEarly), Mode::Lazy, &["TLB-LIKE", "OWNERSHIP", "SUBSET"]),
];

/// The message of the first check that `mutant` fails, in one of many random lives.
fn caught(mutant: Mutant, mode: Mode) -> Option<String> {
    (0..1000).find_map(|seed| {
        let failed = catch_unwind(|| run(mode, seed, mutant)).err()?;
        let text = failed.downcast_ref::<String>().cloned();
        Some(text.or_else(|| failed.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
    })
}

#[test]
fn every_mutant_is_caught() {
    for (mutant, mode, checks) in MUTANTS {
        let message = caught(mutant, mode).unwrap_or_else(|| panic!("{mutant:?} was not caught in {mode:?}"));
        assert!(checks.iter().any(|check| message.contains(check)), "{mutant:?} was caught by chance: {message}");
    }
}
