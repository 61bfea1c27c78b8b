//! Random VMs, random histories: see the rig for what is checked.

use crate::rig::{Mutant, Rig, ops, setups};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};
use std::panic::catch_unwind;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn memory_is_what_the_flat_model_says((setup, ops) in (setups(), ops(60))) {
        Rig::new(setup, Mutant::None).run(&ops);
    }
}

/// The scenarios would prove little if they did not get about.
#[test]
fn scenarios_reach_everything() {
    let mut runner = TestRunner::deterministic();
    let mut sum = [0; 16];
    for _ in 0..150 {
        let (setup, ops) = (setups(), ops(60)).new_tree(&mut runner).expect("no filters").current();
        let c = Rig::new(setup, Mutant::None).run(&ops);
        let filled = [c.anonymous_4k, c.anonymous_2m, c.mega_denied, c.image_4k, c.image_2m];
        let rest = [c.promoted, c.copies, c.copies_2m, c.splits, c.spurious, c.denied, c.tables];
        // What comes in from a device is `shadow_random`'s: there the device's copy may stay.
        let paged = [c.rested, c.revived, c.swapped_out, c.zero_pages];
        sum.iter_mut().zip(filled.into_iter().chain(rest).chain(paged)).for_each(|(total, more)| *total += more);
    }
    assert!(sum.iter().all(|count| *count >= 10), "{sum:?}");
}

/// Each mutant, and the checks that may catch it, by their messages. That the scenarios trip none by
/// themselves is the test above.
const MUTANTS: [(Mutant, &[&str]); 28] = [
    (Mutant::DropsFences, &["StalePermission", "FreedWhileReachable"]),
    (Mutant::FencesOneHart, &["StalePermission", "FreedWhileReachable"]),
    (Mutant::FencesOnePage, &["StalePermission", "FreedWhileReachable"]),
    (Mutant::FencesLeavesOnly, &["FreedWhileReachable"]),
    (Mutant::FreesBeforeTheFence, &["FreedWhileReachable"]),
    (Mutant::Leaks, &["pays for what it has", "pays for its tables"]),
    (Mutant::GrantsWrite, &["an image is writable"]),
    (Mutant::ForgetsUser, &["Raised { cause: 2"]),
    (Mutant::ForgetsAccessed, &["Raised { cause: 2"]),
    (
        Mutant::ForgetsOneOfASplit,
        &["exactly the range is gone", "another page changed", "contents of", "harts see nothing of a split"],
    ),
    (Mutant::ForgetsToZero, &["in a G-stage table", "contents of"]),
    (Mutant::ForgetsToCopy, &["contents of"]),
    (Mutant::LinksTooEarly, &["StalePermission"]),
    (Mutant::ForgetsToClear, &["exactly the range is gone", "SPENT"]),
    (
        Mutant::ForgetsDebtOfImages,
        &["a copy without a fence", "a fence is owed for what is gone", "it is to be fenced"],
    ),
    (Mutant::RestsWithoutFence, &["StalePermission", "FreedWhileReachable", "TOLD"]),
    (Mutant::TakesBeforeTheFence, &["FreedWhileReachable"]),
    (Mutant::RevivesReadOnly, &["mapped again as it was"]),
    (Mutant::RevivesElsewhere, &["mapped again as it was"]),
    (Mutant::SplitsIntoMapped, &["harts see nothing of a split"]),
    (Mutant::BringsNothing, &["contents of"]),
    (Mutant::ForgetsIdle, &["pays for what it has", "pays for its tables"]),
    (Mutant::ForgetsSlots, &["slots are forgone"]),
    (Mutant::ForgetsToTakeOver, &["contents of"]),
    (Mutant::TakesOverEarly, &["contents of"]),
    (Mutant::WithdrawsWithoutFence, &["FreedWhileReachable", "StalePermission", "TOLD"]),
    (Mutant::ForgetsUseOfOriginals, &["owned by"]),
    (Mutant::BringsOriginalsHome, &["owned by", "contents of", "not of one owner", "freed twice"]),
];

/// The message of the first check that `mutant` fails, in one of many random scenarios.
fn caught(mutant: Mutant) -> Option<String> {
    let mut runner = TestRunner::deterministic();
    (0..400).find_map(|_| {
        let scenario = (setups(), ops(60)).new_tree(&mut runner).expect("no filters").current();
        let failed = catch_unwind(|| Rig::new(scenario.0, mutant).run(&scenario.1)).err()?;
        let text = failed.downcast_ref::<String>().cloned();
        Some(text.or_else(|| failed.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
    })
}

#[test]
fn every_mutant_is_caught() {
    for (mutant, checks) in MUTANTS {
        let message = caught(mutant).unwrap_or_else(|| panic!("{mutant:?} was not caught"));
        assert!(checks.iter().any(|check| message.contains(check)), "{mutant:?} was caught by chance: {message}");
    }
}
