//! Time: the clock, and tasks that wait for a moment.

use crate::machine::{self, MAX_HARTS};
use crate::sync::Mutex;
use alloc::collections::BTreeMap;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Poll, Waker};

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// Nanoseconds between two signals of a timer, at least: more often, a hart would do nothing else.
pub const LEAST_INTERVAL: u64 = 50_000;

/// Ticks of `time` in a second.
static PER_SECOND: AtomicU64 = AtomicU64::new(SECOND);
/// Nanoseconds since 1970 at tick 0.
static EPOCH: AtomicU64 = AtomicU64::new(0);
/// Tasks that wait, by the tick that they wait for and a number of their own.
static WAITING: Mutex<BTreeMap<(u64, u64), Waker>> = Mutex::new(BTreeMap::new());
/// The first of those ticks.
static FIRST: AtomicU64 = AtomicU64::new(u64::MAX);
static NUMBER: AtomicU64 = AtomicU64::new(0);
/// The tick at which each hart's timer expires.
static ARMED: [AtomicU64; MAX_HARTS] = [const { AtomicU64::new(u64::MAX) }; MAX_HARTS];

/// Sets the clock's rate, and the time of day in nanoseconds since 1970.
pub fn start(per_second: u64, now: u64) {
    PER_SECOND.store(per_second, Ordering::Relaxed);
    set_time_of_day(now);
}

/// Returns the ticks of `time` in a second.
#[must_use]
pub fn per_second() -> u64 {
    PER_SECOND.load(Ordering::Relaxed)
}

/// Returns the nanoseconds since the start.
#[must_use]
pub fn now() -> u64 {
    nanoseconds(machine::ticks())
}

/// Returns the nanoseconds since 1970.
#[must_use]
pub fn time_of_day() -> u64 {
    EPOCH.load(Ordering::Relaxed).wrapping_add(now())
}

/// Sets the time of day, in nanoseconds since 1970.
pub fn set_time_of_day(to: u64) {
    EPOCH.store(to.wrapping_sub(now()), Ordering::Relaxed);
}

fn nanoseconds(ticks: u64) -> u64 {
    (u128::from(ticks) * u128::from(SECOND) / u128::from(per_second())) as u64
}

fn ticks(nanoseconds: u64) -> u64 {
    (u128::from(nanoseconds) * u128::from(per_second())).div_ceil(u128::from(SECOND)).try_into().unwrap_or(u64::MAX)
}

/// Waits until the clock, as [`now`] tells it, has reached a moment.
pub async fn sleep_until(at: u64) {
    let tick = ticks(at);
    let mut entry = Entry(None);
    poll_fn(|cx| {
        if machine::ticks() >= tick {
            return Poll::Ready(());
        }
        let key = *entry.0.get_or_insert_with(|| (tick, NUMBER.fetch_add(1, Ordering::Relaxed)));
        let mut waiting = WAITING.lock();
        waiting.insert(key, cx.waker().clone());
        publish(&waiting);
        Poll::Pending
    })
    .await;
}

/// An entry of the list, which goes with the future.
struct Entry(Option<(u64, u64)>);

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(key) = self.0 {
            let mut waiting = WAITING.lock();
            waiting.remove(&key);
            publish(&waiting);
        }
    }
}

fn publish(waiting: &BTreeMap<(u64, u64), Waker>) {
    FIRST.store(waiting.first_key_value().map_or(u64::MAX, |(key, _)| key.0), Ordering::Relaxed);
}

/// Wakes the tasks whose moment has come.
pub fn expire() {
    let now = machine::ticks();
    while FIRST.load(Ordering::Relaxed) <= now {
        let mut waiting = WAITING.lock();
        let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= now) else { break };
        let waker = first.remove();
        publish(&waiting);
        drop(waiting);
        waker.wake();
    }
}

/// Makes the timer of this hart expire when the first task's moment comes, or the turn of the running task ends.
pub fn arm(turn_end: Option<u64>) {
    let at = FIRST.load(Ordering::Relaxed).min(turn_end.unwrap_or(u64::MAX));
    let armed = &ARMED[machine::hart_index()];
    if armed.load(Ordering::Relaxed) != at {
        armed.store(at, Ordering::Relaxed);
        machine::set_timer(at);
    }
}

/// Records that the timer of this hart has expired: it is to be armed anew.
pub fn expired() {
    ARMED[machine::hart_index()].store(u64::MAX, Ordering::Relaxed);
    machine::set_timer(u64::MAX);
}
