//! Runs jobs beside each other, as many as there are slots for.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Something to be done.
#[derive(Debug)]
pub struct Job<T> {
    /// The number of processors that the job keeps busy. A number above that of the slots means all slots.
    pub slots: usize,
    /// The expected time, which only determines the order.
    pub estimate: Duration,
    /// The work.
    pub work: T,
}

struct State<T> {
    to_do: VecDeque<Job<T>>,
    free: usize,
}

/// Gives slots back, also when the work ends in a panic: others wait for them.
struct Taken<'a, T> {
    slots: usize,
    state: &'a Mutex<State<T>>,
    freed: &'a Condvar,
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        lock(self.state).free += self.slots;
        self.freed.notify_all();
    }
}

/// Does all jobs by `work`, each on a thread of the pool, and returns when all are done. The narrowest come first, so that
/// slots are left idle for a wide one only once, and the first jobs, which wait for what all need, leave slots to others; among
/// those as wide the longest come first, so that none is left alone at the end.
///
/// # Panics
/// If `work` does, when the other threads have done what is left; the thread of that job does no other.
pub fn run<T: Send>(mut jobs: Vec<Job<T>>, slots: usize, work: impl Fn(T) + Sync) {
    jobs.sort_by_key(|job| (job.slots.min(slots), std::cmp::Reverse(job.estimate)));
    let state = Mutex::new(State { to_do: jobs.into(), free: slots });
    let freed = Condvar::new();
    let worker = || {
        let mut now = lock(&state);
        while let Some(wanted) = now.to_do.front().map(|job| job.slots.clamp(1, slots)) {
            if wanted > now.free {
                now = freed.wait(now).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some(job) = now.to_do.pop_front() else { break };
            now.free -= wanted;
            drop(now);
            let taken = Taken { slots: wanted, state: &state, freed: &freed };
            work(job.work);
            drop(taken);
            now = lock(&state);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..slots {
            scope.spawn(worker);
        }
    });
}

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn job<T>(slots: usize, seconds: u64, work: T) -> Job<T> {
        Job { slots, estimate: Duration::from_secs(seconds), work }
    }

    #[test]
    fn the_narrowest_and_longest_come_first() {
        let jobs = vec![job(1, 5, "c"), job(2, 1, "e"), job(1, 9, "a"), job(4, 3, "d"), job(1, 9, "b")];
        let done = Mutex::new(vec![]);
        run(jobs, 2, |work| done.lock().expect("whole").push(work));
        // Two workers may pass each other where both slots are taken one by one.
        let done = done.into_inner().expect("whole");
        assert_eq!((done[3..].to_vec(), done.len()), (vec!["d", "e"], 5));
        let jobs = vec![job(1, 5, "c"), job(1, 9, "a"), job(3, 9, "b")];
        let done = Mutex::new(vec![]);
        run(jobs, 1, |work| done.lock().expect("whole").push(work));
        assert_eq!(done.into_inner().expect("whole"), ["a", "b", "c"]);
    }

    #[test]
    fn no_more_slots_are_used_than_there_are() {
        const SLOTS: usize = 3;
        let (used, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let jobs = (0..60).map(|n| job(n % 5, n as u64 % 7, (n % 5).clamp(1, SLOTS))).collect();
        run(jobs, SLOTS, |slots| {
            most.fetch_max(used.fetch_add(slots, Ordering::SeqCst) + slots, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
            used.fetch_sub(slots, Ordering::SeqCst);
            done.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!((most.into_inner(), done.into_inner()), (SLOTS, 60));
    }

    #[test]
    fn a_panic_takes_no_slots_along() {
        let done = Mutex::new(vec![]);
        let all = std::panic::AssertUnwindSafe(|| {
            run(vec![job(3, 1, 0), job(1, 9, 1), job(2, 3, 2), job(3, 0, 3), job(1, 1, 4)], 3, |work| {
                assert_ne!(work, 0, "the job that fails");
                done.lock().expect("whole").push(work);
            });
        });
        assert!(std::panic::catch_unwind(all).is_err());
        let mut done = done.into_inner().expect("whole");
        done.sort_unstable();
        assert_eq!(done, [1, 2, 3, 4]);
    }
}
