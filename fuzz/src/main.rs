//! One program for all targets: `GNOMON_FUZZ` names the one that the fuzzer's inputs go to.
#![no_main]

mod agent;
mod api;
mod control;
mod exits;
#[path = "../../hypervisor/tests/fake/mod.rs"]
#[allow(clippy::all, clippy::pedantic, unreachable_pub, reason = "it is linted where it belongs")]
mod fake;
mod files;
mod frames;
mod rings;
mod share;
mod snapshots;
mod turns;
mod walks;

use std::sync::OnceLock;

/// A function of an input. A fault panics.
type Target = fn(&[u8]);

/// The targets: what guests and files feed Gnomon.
const TARGETS: [(&str, Target); 18] = [
    ("agent", agent::agent),
    ("answers", control::answers),
    ("api", api::api),
    ("archive", agent::archive),
    ("bundle", files::bundle),
    ("exits", exits::exits),
    ("frames", frames::frames),
    ("instructions", walks::instructions),
    ("payload", files::payload),
    ("requests", control::requests),
    ("restore", snapshots::restore),
    ("rings", rings::rings_of),
    ("share", share::share),
    ("snapshot", snapshots::snapshot),
    ("tree", files::tree),
    ("turns", turns::turns),
    ("vm-file", files::vm_file),
    ("walks", walks::walks),
];

static TARGET: OnceLock<Target> = OnceLock::new();

fn target() -> Target {
    let name = std::env::var("GNOMON_FUZZ").unwrap_or_default();
    let known = TARGETS.iter().find(|(known, _)| *known == name);
    known.unwrap_or_else(|| panic!("GNOMON_FUZZ names one of {:?}", TARGETS.map(|(name, _)| name))).1
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET.get_or_init(target)(data));
