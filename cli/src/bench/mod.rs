//! Benchmarks: Gnomon beside the bare machine, beside Linux KVM and beside the papers, in units that repeat.
//!
//! One of the [`experiments`] runs guests on [subjects](lab::subject) in the [`lab`], under QEMU's `-icount` and the meter, and
//! ends in a report, which is an [`output`].

pub mod experiments;
pub mod lab;
pub mod output;

use crate::host::pool::{self, Job};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Instructions in a tick of QEMU's 10 MHz timebase, at one nanosecond each.
const INSTRUCTIONS_PER_TICK: u64 = 100;
/// Runs at a time. Each is one thread, and figures do not depend on how fast the host is.
const WORKERS: usize = 2;

/// Does something with each item, two at a time. The results are in the order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let results = Mutex::new(BTreeMap::new());
    let job = |work| Job { slots: 1, estimate: Duration::ZERO, work };
    pool::run(items.iter().enumerate().map(job).collect(), WORKERS, |(at, item)| {
        let result = work(item);
        results.lock().unwrap_or_else(PoisonError::into_inner).insert(at, result);
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stay_in_order() {
        for count in 0..5 {
            let items: Vec<_> = (0..count).collect();
            let doubled: Vec<_> = items.iter().map(|n| n * 2).collect();
            assert_eq!(in_parallel(&items, |n| n * 2), doubled);
        }
    }
}
