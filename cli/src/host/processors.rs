//! Programs that were started: their processor time, and their end.

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::process::Child;
use std::time::Duration;

/// Returns whether a program has ended. The caller still has to wait for it.
///
/// # Errors
/// If it is none of ours any more.
pub fn has_ended(child: &Child) -> std::io::Result<bool> {
    look(child, WaitIdOptions::NOHANG)
}

/// Waits until a program has ended; returns the processor time that it took, all its threads and the children that it
/// waited for together. It is still to be waited for: once its status is taken, its processor time is lost.
///
/// # Errors
/// If it is none of ours any more.
pub fn wait(child: &Child) -> std::io::Result<Duration> {
    look(child, WaitIdOptions::empty())?;
    so_far(child.id())
}

/// The processor time that a process has taken so far, all its threads and the children that it waited for together.
///
/// # Errors
/// If there is no such process.
pub fn so_far(id: u32) -> std::io::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
    Ok(in_stat(&stat, clock_ticks_per_second()).unwrap_or_default())
}

/// Ends a program by force, and all that it started and they started. What they start meanwhile may be left.
///
/// # Errors
/// If it is none of ours any more.
pub fn end_with_children(child: &Child) -> std::io::Result<()> {
    let mut to_end = vec![Pid::from_child(child)];
    while let Some(pid) = to_end.pop() {
        // By the thread that started them. An ended process has none.
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            to_end.extend(children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)));
        }
        // It may have ended by itself.
        let _ = kill_process(pid, Signal::KILL);
    }
    look(child, WaitIdOptions::empty()).map(drop)
}

fn look(child: &Child, how: WaitIdOptions) -> std::io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | how;
    Ok(waitid(WaitId::Pid(Pid::from_child(child)), options)?.is_some())
}

/// The times in a process's `stat`: user and system, its own and its children's (proc_pid_stat(5)).
fn in_stat(stat: &str, ticks_per_second: u64) -> Option<Duration> {
    /// The user time's place behind the program's name, which may hold anything.
    const UTIME: usize = 11;
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(UTIME).take(4);
    let ticks = fields.map(|field| field.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    let [user, system, children_user, children_system] = ticks[..] else { return None };
    Some(Duration::from_millis((user + system + children_user + children_system) * 1000 / ticks_per_second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn times_are_read() {
        let stat = "7 (a) b) Z 1 7 7 0 -1 4 0 0 0 0 250 50 90 10 20 0 1 0 5 0 0";
        assert_eq!(in_stat(stat, 100), Some(Duration::from_secs(4)));
        assert_eq!((in_stat("", 100), in_stat("7 (a) Z 1 7", 100)), (None, None));
    }

    #[test]
    fn a_program_that_worked_took_time() {
        let mut child = Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"])
            .spawn()
            .expect("a shell");
        let took = wait(&child).expect("it is ours");
        assert!(has_ended(&child).expect("it is ours"));
        assert!(child.wait().expect("its status").success());
        assert!(took > Duration::ZERO && took < Duration::from_secs(60), "{took:?}");
    }
}
