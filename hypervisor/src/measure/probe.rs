//! Notes that harts take of their exits for as long as a client asks: the time that they are in guests, in Gnomon and
//! idle; and, for a trace, each exit. A client repeats its request: nothing has to be ended. Harts that are not asked
//! have no instruction of it.

use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;
use abi::control::{Event, HartTimes};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Bytes of all harts' events together, at most.
const EVENT_BYTES: usize = 512 << 10;

/// The notes that are asked of all harts.
#[derive(Debug)]
pub struct Asked {
    /// Host time until which they note how long they do what.
    until: AtomicU64,
    /// Host time until which WFI traps, so that a guest that waits is not taken for one that works.
    exact_until: AtomicU64,
    /// Host time until which they note exits.
    trace_until: AtomicU64,
    /// Those of the VM of that number, or of all VMs.
    vm: AtomicU64,
}

/// [`Asked::vm`]: all.
const ALL: u64 = u64::MAX;

impl Default for Asked {
    fn default() -> Self {
        Self {
            until: AtomicU64::new(0),
            exact_until: AtomicU64::new(0),
            trace_until: AtomicU64::new(0),
            vm: AtomicU64::new(ALL),
        }
    }
}

impl Asked {
    /// Asks for times until then.
    pub fn ask(&self, until: u64) {
        self.exact_until.fetch_max(until, Relaxed);
        self.until.fetch_max(until, Relaxed);
    }

    /// Returns the host time until which notes are asked for.
    #[must_use]
    pub fn until(&self) -> u64 {
        self.until.load(Relaxed)
    }

    /// Returns whether WFI is to trap at host time `now`. For a trace it does not: that would have exits that are not there otherwise.
    #[must_use]
    pub fn is_exact(&self, now: u64) -> bool {
        self.exact_until.load(Relaxed) > now
    }

    /// Asks for exits of a VM, or of all, until then.
    pub fn ask_for_exits(&self, vm: Option<u64>, until: u64) {
        self.vm.store(vm.unwrap_or(ALL), Relaxed);
        self.trace_until.fetch_max(until, Relaxed);
        self.until.fetch_max(until, Relaxed);
    }

    /// Returns whether notes are asked for at host time `now`.
    #[must_use]
    pub fn is_on(&self, now: u64) -> bool {
        self.until.load(Relaxed) > now
    }

    /// Returns whether exits of that VM are asked for.
    #[must_use]
    pub fn wants_exits(&self, vm: u64, now: u64) -> bool {
        let wanted = self.vm.load(Relaxed);
        self.trace_until.load(Relaxed) > now && (wanted == ALL || wanted == vm)
    }
}

/// The activity of a hart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// The hart runs a guest.
    Guest = 1,
    /// The hart is in Gnomon.
    Host = 2,
    /// The hart waits for something to do.
    Idle = 3,
}

/// The notes of one hart. The hart writes, any may read: what is read in the middle of a change is a little off.
#[derive(Debug, Default)]
pub struct Noted {
    /// A [`Doing`], or 0: it notes nothing.
    doing: AtomicU64,
    /// Since when, in host time.
    since: AtomicU64,
    /// The host time until which this counts: so all harts note equally long, whenever each finds that no client asks any more.
    until: AtomicU64,
    /// Ticks, by [`Doing`] less 1.
    ticks: [AtomicU64; 3],
    events: Mutex<Option<Events>>,
}

/// Exits that no client has taken yet.
#[derive(Debug)]
struct Events {
    all: VecDeque<Event>,
    most: usize,
    lost: u64,
}

impl Noted {
    /// Returns whether the hart takes notes.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.doing.load(Relaxed) != 0
    }

    /// Returns whether the time that was asked for has passed at host time `now`. The hart may take notes yet.
    #[must_use]
    pub fn has_lapsed(&self, now: u64) -> bool {
        self.until.load(Relaxed) <= now
    }

    /// Starts the notes, up to host time `until`, with the hart's present activity.
    pub fn begin(&self, doing: Doing, now: u64, until: u64) {
        self.until.store(until, Relaxed);
        self.since.store(now, Relaxed);
        self.doing.store(doing as u64, Relaxed);
    }

    /// Continues the notes up to host time `until`. What the hart did since an earlier time that has lapsed does not count.
    pub fn extend(&self, now: u64, until: u64) {
        if self.has_lapsed(now) {
            self.add(now);
            self.since.store(now, Relaxed);
        }
        self.until.store(until, Relaxed);
    }

    /// Notes that the hart's activity changes, if it takes notes.
    pub fn turn(&self, doing: Doing, now: u64) {
        if self.is_on() {
            self.add(now);
            self.since.store(now, Relaxed);
            self.doing.store(doing as u64, Relaxed);
        }
    }

    /// Returns the time since `since` that counts.
    fn span(&self, since: u64, now: u64) -> u64 {
        now.min(self.until.load(Relaxed)).saturating_sub(since)
    }

    fn add(&self, now: u64) {
        if let Some(ticks) = self.ticks.get((self.doing.load(Relaxed) as usize).wrapping_sub(1)) {
            // There is one writer.
            ticks.store(ticks.load(Relaxed) + self.span(self.since.load(Relaxed), now), Relaxed);
        }
    }

    /// Ends the notes, and frees their memory.
    pub fn end(&self, now: u64) {
        if self.is_on() {
            self.add(now);
            self.doing.store(0, Relaxed);
            *self.events.lock() = None;
        }
    }

    /// Returns the time that the hart spent in each activity while it was asked, in ticks, up to host time `now`.
    #[must_use]
    pub fn times(&self, now: u64) -> HartTimes {
        let (doing, since) = (self.doing.load(Relaxed), self.since.load(Relaxed));
        let of = |which: Doing| {
            let present = if doing == which as u64 { self.span(since, now) } else { 0 };
            self.of(which) + present
        };
        HartTimes { guest: of(Doing::Guest), host: of(Doing::Host), idle: of(Doing::Idle) }
    }

    /// Returns the time that the hart has spent so so far, in ticks, without the present activity.
    #[must_use]
    pub fn of(&self, which: Doing) -> u64 {
        self.ticks[which as usize - 1].load(Relaxed)
    }

    /// Makes room for exits, one of so many harts; false if there is no memory for that.
    pub fn make_room(&self, harts: usize) -> bool {
        let mut events = self.events.lock();
        if events.is_none() {
            let most = EVENT_BYTES / harts.max(1) / size_of::<Event>();
            let mut all = VecDeque::new();
            if all.try_reserve_exact(most).is_err() {
                return false;
            }
            *events = Some(Events { all, most, lost: 0 });
        }
        true
    }

    /// Notes an exit. The oldest is lost if there is no room.
    pub fn note(&self, event: Event) {
        if let Some(Events { all, most, lost }) = self.events.lock().as_mut() {
            if all.len() >= *most {
                all.pop_front();
                *lost += 1;
            }
            all.push_back(event);
        }
    }

    /// Takes the oldest so many away; and how many were lost before them.
    pub fn take(&self, most: usize) -> (Vec<Event>, u64) {
        let mut events = self.events.lock();
        let Some(Events { all, lost, .. }) = events.as_mut() else { return (Vec::new(), 0) };
        let count = most.min(all.len());
        (all.drain(..count).collect(), core::mem::take(lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_what_is_done() {
        let noted = Noted::default();
        noted.turn(Doing::Guest, 5);
        assert_eq!(noted.times(100), HartTimes { guest: 0, host: 0, idle: 0 }, "there was no request");
        noted.begin(Doing::Host, 100, 10_000);
        noted.turn(Doing::Guest, 110);
        noted.turn(Doing::Idle, 140);
        assert_eq!(noted.times(141), HartTimes { guest: 30, host: 10, idle: 1 });
        noted.turn(Doing::Host, 200);
        noted.end(205);
        assert_eq!(noted.times(1000), HartTimes { guest: 30, host: 15, idle: 60 });
        noted.begin(Doing::Guest, 2000, 10_000);
        assert_eq!(noted.times(2001), HartTimes { guest: 31, host: 15, idle: 60 }, "they go on");
    }

    #[test]
    fn time_beyond_what_was_asked_for_does_not_count() {
        let noted = Noted::default();
        noted.begin(Doing::Idle, 100, 200);
        assert!(noted.is_on() && !noted.has_lapsed(199) && noted.has_lapsed(200));
        assert_eq!(noted.times(900).idle, 100, "the hart has not found it yet");
        noted.turn(Doing::Guest, 1000);
        noted.turn(Doing::Host, 1010);
        assert_eq!(noted.times(1020), HartTimes { guest: 0, host: 0, idle: 100 });
        // A new request that comes before the hart has found that the last one lapsed.
        noted.extend(2000, 2100);
        noted.turn(Doing::Guest, 2030);
        noted.extend(2040, 2500);
        noted.end(3000);
        assert_eq!(noted.times(4000), HartTimes { guest: 470, host: 30, idle: 100 });
    }

    #[test]
    fn exits_are_kept_as_far_as_there_is_room() {
        let event = |at| Event { at, ..Event::default() };
        let noted = Noted::default();
        noted.note(event(1));
        assert_eq!(noted.take(9), (Vec::new(), 0), "there is no buffer for them");
        assert!(noted.make_room(64) && noted.make_room(64));
        let most = EVENT_BYTES / 64 / size_of::<Event>();
        assert!(most > 50, "{most}");
        (0..most as u64 + 3).for_each(|at| noted.note(event(at)));
        let (first, lost) = noted.take(2);
        assert_eq!((first.iter().map(|event| event.at).collect::<Vec<_>>(), lost), (alloc::vec![3, 4], 3));
        assert_eq!((noted.take(most).0.len(), noted.take(most)), (most - 2, (Vec::new(), 0)));
        noted.begin(Doing::Guest, 0, 9);
        noted.note(event(1));
        noted.end(1);
        assert_eq!(noted.take(9), (Vec::new(), 0), "its memory is given back");
    }

    #[test]
    fn what_is_asked_for_lapses() {
        let asked = Asked::default();
        assert!(!asked.is_on(0) && !asked.wants_exits(1, 0));
        asked.ask(50);
        asked.ask(20);
        assert!(asked.is_on(49) && !asked.is_on(50) && !asked.wants_exits(1, 10));
        asked.ask_for_exits(Some(1), 100);
        assert!(asked.wants_exits(1, 99) && !asked.wants_exits(2, 99) && !asked.wants_exits(1, 100));
        asked.ask_for_exits(None, 100);
        assert!(asked.wants_exits(2, 99) && asked.is_on(99));
        assert!(asked.is_exact(49) && !asked.is_exact(50), "not for a trace");
    }
}
