//! Each target for some seconds, from what is kept in `corpus/` and what earlier runs found. `GNOMON_FUZZ_SECONDS` says how
//! many; docs/fuzzing.md says more.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Seconds for each target if nothing else is said.
const SECONDS: u64 = 2;
/// The longest input, in bytes.
const LONGEST: usize = 4096;
/// An input that takes longer has hung; in seconds.
const PATIENCE: u64 = 30;

fn seconds() -> u64 {
    let Ok(text) = std::env::var("GNOMON_FUZZ_SECONDS") else { return SECONDS };
    text.parse().unwrap_or_else(|_| panic!("GNOMON_FUZZ_SECONDS is `{text}`, and no number of seconds"))
}

/// Lets the fuzzer look for an input that makes a target panic, hang, or use too much memory.
fn look_for_faults_of(target: &str) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    assert!(
        fs::read_dir(&kept).is_ok_and(|mut files| files.next().is_some()),
        "{}: nothing to start from",
        kept.display()
    );
    // What is new goes to the first directory, and is there for the next run.
    let grown = Path::new(env!("CARGO_TARGET_TMPDIR")).join(target);
    let found = grown.join("found");
    fs::create_dir_all(&found).expect("a directory");
    let inputs = grown.join("inputs");
    fs::create_dir_all(&inputs).expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_fuzz"))
        .env("GNOMON_FUZZ", target)
        .args([&inputs, &kept])
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args([format!("-max_total_time={}", seconds()), format!("-timeout={PATIENCE}"), format!("-max_len={LONGEST}")])
        .args(["-len_control=0", "-rss_limit_mb=2048", "-print_final_stats=1"])
        .output()
        .expect("the fuzzer");
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    let tail = lines[lines.len().saturating_sub(40)..].join("\n");
    assert!(output.status.success(), "{target}: mend it, and keep the input in {}\n{tail}", kept.display());
    let runs = |line: &&str| line.strip_prefix("stat::number_of_executed_units:")?.trim().parse::<u64>().ok();
    let runs =
        lines.iter().find_map(runs).unwrap_or_else(|| panic!("{target}: the fuzzer told no number of runs\n{tail}"));
    println!("{target}: {runs} inputs");
    assert!(runs > 100, "{target}: {runs} inputs only\n{tail}");
    // Without coverage it would be blind.
    assert!(
        lines.iter().any(|line| line.contains("inline 8-bit counters")),
        "{target}: built without coverage\n{tail}"
    );
}

macro_rules! targets {
    ($($name:ident: $target:literal),* $(,)?) => {
        $(#[test] fn $name() { look_for_faults_of($target); })*
    };
}

targets! {
    agent: "agent",
    answers: "answers",
    api: "api",
    archive: "archive",
    bundle: "bundle",
    exits: "exits",
    frames: "frames",
    instructions: "instructions",
    payload: "payload",
    requests: "requests",
    restore: "restore",
    rings: "rings",
    share: "share",
    snapshot: "snapshot",
    tree: "tree",
    turns: "turns",
    vm_file: "vm-file",
    walks: "walks",
}
