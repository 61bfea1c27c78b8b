//! The cost of a guest with a disk and a network card that has nothing to do.

#[expect(dead_code, reason = "not all of it has a use here")]
mod background;

use background::{Run, command};
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time for which the guests are left alone.
const SPAN: Duration = Duration::from_secs(3);
/// A guest may have had some work left: kernels write, look for neighbours, and count, some seconds after they have started.
const PATIENCE: Duration = Duration::from_secs(40);

/// Exits that each VM has had until now, those of its timer, and those of the machine's devices: by these this test's own questions come.
fn exits(dir: &Path) -> [[u64; 3]; 2] {
    let done = command(dir).args(["stats", "--json"]).assert().success();
    let stats: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).expect("JSON");
    let count = |vm: usize, name| stats["vms"][vm]["counters"][name].as_u64().expect("a count");
    [0, 1].map(|vm| ["exits.total", "exits.timer", "exits.external"].map(|name| count(vm, name)))
}

#[test]
fn idle_guests_exit_for_their_timers_only() {
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = scratch.path();
    let vms = ["two-stage", "steered"].map(|mmu| {
        let path = dir.join(mmu).with_extension("toml");
        let disk = dir.join(mmu).with_extension("img");
        let vm = format!("memory = '128M'\nmmu = '{mmu}'\nnet = true\ndisks = [{{ file = {disk:?}, size = '1M' }}]\n");
        fs::write(&path, vm).expect("a VM file");
        path.into_os_string()
    });
    let exec = "ip link show eth0 && [ -b /dev/vda ] && echo there; sleep 100";
    // A hart for each, so that WFI is the hardware's affair.
    let more = ["--harts", "2", "--exec", exec, "--timeout", "120"].map(Into::into);
    let _run = Run::start(dir, vms.into_iter().chain(more), ("there", 2));
    let end = Instant::now() + PATIENCE;
    loop {
        let before = exits(dir);
        sleep(SPAN);
        let after = exits(dir);
        let more = [0, 1].map(|vm| [0, 1, 2].map(|n| after[vm][n] - before[vm][n]));
        let is_idle = |[total, timer, external]: [u64; 3]| (1..=100).contains(&timer) && total <= timer + external;
        if more.into_iter().all(is_idle) {
            break;
        }
        assert!(Instant::now() < end, "exits, of timers, of devices within {SPAN:?}: {more:?}");
    }
    // Nor do they use a hart's time: waiting is not work.
    loop {
        let done = command(dir).args(["top", "--once"]).assert().success();
        let once = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
        let number = |line: &str, at: usize| line.split_whitespace().nth(at).and_then(|word| word.parse::<f64>().ok());
        let idle = once.lines().find_map(|line| line.split_once("idle ").and_then(|(_, rest)| number(rest, 0)));
        let row = |name: &str| once.lines().find(|line| line.starts_with(name)).and_then(|line| number(line, 3));
        let cpu = [row("two-stage "), row("steered ")];
        assert!(idle.is_some() && cpu.iter().all(Option::is_some), "{once}");
        if idle > Some(60.0) && cpu.iter().all(|cpu| *cpu < Some(25.0)) {
            break;
        }
        assert!(Instant::now() < end + PATIENCE, "{once}");
    }
}
