//! The processes that a process has started: servers of shares, and others.

use rustix::process::{Pid, test_kill_process};
use std::time::{Duration, Instant};

/// Returns the children of a process.
pub fn children_of(parent: u32) -> Vec<Pid> {
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let children = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let children: String = children.map(|children| children + " ").collect();
    children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Returns the servers among the children of a process.
pub fn servers_of(parent: u32) -> Vec<Pid> {
    let is_server = |pid: &Pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("share-server")
    };
    children_of(parent).into_iter().filter(is_server).collect()
}

/// Waits until a process has gone; says whether it has.
pub fn has_gone(pid: Pid) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    let is_there = || {
        // One that nothing waits for is no more than a number.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        test_kill_process(pid).is_ok() && !stat.contains(") Z ")
    };
    while is_there() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    !is_there()
}
