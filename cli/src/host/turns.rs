//! Short turns for threads that wait for each other, where other threads want the same processors.
//!
//! QEMU has a thread for each hart, and harts wait for each other by spinning: a fence that all have to answer, a lock, a
//! flag. A thread that spins is not idle, so the host lets it go on until its clock ticks, 4 ms later, and the one that it
//! waits for stands by. Threads that wake for a moment on each processor make the host choose anew, and it takes who
//! has had least.
//!
//! ```text
//!  processor 0   hart 0 spins ........................ | hart 2 answers        without: a turn is a tick of the host
//!  processor 0   hart 0 spins .. ' hart 2 answers ' hart 0 goes on             with: a turn ends where a waker (') comes
//! ```

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The length of a turn. Each wake-up takes some 15 us.
const TURN: Duration = Duration::from_micros(300);

/// Does something in which so many threads wait for each other, and take turns with each other and with what else the host does.
pub fn take_turns<R>(threads: u32, act: impl FnOnce() -> R) -> R {
    if threads < 2 {
        return act();
    }
    wake(&processors(), act).0
}

/// The processors that this process may use. None, if the host does not say.
fn processors() -> Vec<usize> {
    sched_getaffinity(None)
        .map_or_else(|_| Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|at| set.is_set(*at)).collect())
}

/// Does something while a thread on each of these processors wakes again and again. Says how often they did, together.
fn wake<R>(processors: &[usize], act: impl FnOnce() -> R) -> (R, u64) {
    /// Ends the threads, also where `act` panics.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    let waker = |processor: usize| {
        let mut set = CpuSet::new();
        set.set(processor);
        let mut moments = 0;
        // Where it may not be bound it is of no use.
        if sched_setaffinity(None, &set).is_ok() {
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(TURN);
                moments += 1;
            }
        }
        moments
    };
    std::thread::scope(|scope| {
        let wakers: Vec<_> = processors.iter().map(|at| scope.spawn(move || waker(*at))).collect();
        let end = End(&is_over);
        let result = act();
        drop(end);
        (result, wakers.into_iter().map(|waker| waker.join().unwrap_or_default()).sum())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{ClockId, clock_gettime};
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    /// Returns how much processor time a turn took on average, while two threads on one processor handed over to each
    /// other for a fifth of a second.
    fn turn(processor: usize) -> Duration {
        let (turn, deadline) = (AtomicU64::new(0), Instant::now() + Duration::from_millis(200));
        let player = |me: u64| {
            let mut set = CpuSet::new();
            set.set(processor);
            sched_setaffinity(None, &set).expect("a processor of ours");
            while Instant::now() < deadline {
                if turn.load(Ordering::SeqCst) % 2 == me {
                    turn.fetch_add(1, Ordering::SeqCst);
                }
            }
            clock_gettime(ClockId::ThreadCPUTime)
        };
        let player = &player;
        let used = std::thread::scope(|scope| {
            let players = [0, 1].map(|me| scope.spawn(move || player(me)));
            players.map(|player| Duration::try_from(player.join().expect("a player's time")).expect("time passes"))
        });
        (used[0] + used[1]) / u32::try_from(turn.into_inner().max(1)).expect("few turns")
    }

    #[test]
    fn turns_are_short_on_each_processor() {
        let processors = processors();
        assert!(!processors.is_empty());
        for at in processors {
            // Other programs make turns short as well, or disturb several times.
            let is_short = |_| wake(&[at], || turn(at)).0 < (4 * TURN).max(turn(at) / 2);
            assert!((0..25).any(is_short), "processor {at}");
        }
    }

    #[test]
    fn what_is_done_comes_back() {
        assert_eq!((take_turns(1, || 7), take_turns(100_000, || 8)), (7, 8));
        assert!(std::panic::catch_unwind(|| take_turns(100_000, || panic!("as an example"))).is_err());
    }
}
