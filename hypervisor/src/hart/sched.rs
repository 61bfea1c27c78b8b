//! The scheduler: for each hart a queue of ready vCPUs and a list of waiting ones, with the times of their timers, behind a lock of its
//! own.
//!
//! While there are no more started vCPUs than harts, each vCPU has a hart to itself, WFI stays in the guest and no
//! slice ends. Only beyond that (*overcommitted*) do WFI and the slice timer trap.
//!
//! A hart takes the vCPU that has been ready longest on the whole machine, from its own queue or another's. So all
//! vCPUs get as much as from one queue, and no lock is common to all harts. A vCPU that gave its hart away because it
//! waits for another one's store counts as ready only somewhat later ([`Sched::requeue`]): vCPUs that can make progress
//! come first.

use crate::sync::Mutex;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::atomic::{AtomicIsize, AtomicU64};
use crate::vm::vcpu::{NOWHERE, Vcpu, VcpuRun};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// vCPUs that are started and on no hart.
pub struct Sched {
    /// The queues, by hart.
    queues: Vec<Queue>,
    /// vCPUs that are started, less the harts.
    surplus: AtomicIsize,
}

struct Queue {
    lists: Mutex<Lists>,
    /// Since when the first one is ready, or `u64::MAX` if there is none. Written under the lock, so that others look for work
    /// without it.
    since: AtomicU64,
}

#[derive(Default)]
struct Lists {
    /// With the host times since when they count as ready, in that order.
    ready: VecDeque<(u64, Box<VcpuRun>)>,
    waiting: Vec<Waiter>,
}

struct Waiter {
    run: Box<VcpuRun>,
    /// Host time at which it is woken even without an interrupt.
    until: u64,
}

impl Lists {
    fn push(&mut self, run: Box<VcpuRun>, since: u64) {
        let at = self.ready.partition_point(|(other, _)| *other <= since);
        self.ready.insert(at, (since, run));
    }

    /// Makes the waiter at a place ready.
    fn wake(&mut self, at: usize, now: u64) {
        let run = self.waiting.swap_remove(at).run;
        run.shared.waiting.store(NOWHERE, SeqCst);
        self.push(run, now);
    }

    fn place_of(&self, vcpu: &Vcpu) -> Option<usize> {
        self.waiting.iter().position(|w| (w.run.shared.vm, w.run.shared.id) == (vcpu.vm, vcpu.id))
    }
}

impl Queue {
    /// Does something to the lists.
    fn with<R>(&self, change: impl FnOnce(&mut Lists) -> R) -> R {
        let mut lists = self.lists.lock();
        let result = change(&mut lists);
        self.since.store(lists.ready.front().map_or(u64::MAX, |(since, _)| *since), SeqCst);
        result
    }
}

impl Sched {
    /// Makes queues without vCPUs, for `harts` harts.
    #[must_use]
    pub fn new(harts: usize) -> Self {
        let queue = || Queue { lists: Mutex::default(), since: AtomicU64::new(u64::MAX) };
        let mut queues = Vec::new();
        queues.resize_with(harts, queue);
        Self { queues, surplus: AtomicIsize::new(-(harts as isize)) }
    }

    /// Returns the number of started vCPUs: ready, waiting or on a hart.
    #[must_use]
    pub fn started_count(&self) -> usize {
        (self.surplus.load(SeqCst) + self.queues.len() as isize) as usize
    }

    /// Returns whether there are more started vCPUs than harts. The hart that changes that kicks the harts that must
    /// know.
    #[inline(always)]
    #[must_use]
    pub fn is_overcommitted(&self) -> bool {
        self.surplus.load(SeqCst) > 0
    }

    /// Returns the host time since when the next vCPU is ready; `u64::MAX` if none is.
    #[must_use]
    pub fn ready_since(&self) -> u64 {
        self.queues.iter().map(|queue| queue.since.load(SeqCst)).min().unwrap_or(u64::MAX)
    }

    /// Returns whether a vCPU is ready to run.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.ready_since() != u64::MAX
    }

    /// Adds a vCPU that was not started before, to a hart's queue; says whether there is one too many from now on.
    #[must_use]
    pub fn start(&self, run: Box<VcpuRun>, hart: usize, now: u64) -> bool {
        let became_overcommitted = self.surplus.fetch_add(1, SeqCst) == 0;
        self.requeue(run, hart, now);
        became_overcommitted
    }

    /// Notes that a vCPU, on a hart until now, is no longer started.
    pub fn stopped(&self) {
        self.surplus.fetch_sub(1, SeqCst);
    }

    /// Puts a vCPU into a hart's queue, behind all that are ready since `since` (host time, which may be to come).
    pub fn requeue(&self, run: Box<VcpuRun>, hart: usize, since: u64) {
        self.queues[hart].with(|lists| lists.push(run, since));
    }

    /// Lets a vCPU wait until something is posted to it, or until host time `until`, watched by `hart`. If something was
    /// posted already it is ready at once.
    pub fn wait(&self, run: Box<VcpuRun>, until: u64, hart: usize, now: u64) {
        let shared = Arc::clone(&run.shared);
        self.queues[hart].with(|lists| {
            shared.waiting.store(hart, SeqCst);
            lists.waiting.push(Waiter { run, until });
            // A sender posts before it reads `waiting`, so either it finds the vCPU waiting, or the request is seen
            // here.
            if shared.posted.load(SeqCst) != 0 {
                lists.wake(lists.waiting.len() - 1, now);
            }
        });
    }

    /// Makes a vCPU ready if it waits; returns the hart in whose queue it is then.
    pub fn wake(&self, vcpu: &Vcpu, now: u64) -> Option<usize> {
        let hart = vcpu.waiting.load(SeqCst);
        self.queues.get(hart)?.with(|lists| {
            let at = lists.place_of(vcpu)?;
            lists.wake(at, now);
            Some(hart)
        })
    }

    /// Makes those ready whose time has come and that `hart` watches, telling `due` of each; returns the earliest time that it
    /// watches for another.
    pub fn expire(&self, hart: usize, now: u64, mut due: impl FnMut(&mut VcpuRun)) -> u64 {
        self.queues[hart].with(|lists| {
            while let Some(at) = lists.waiting.iter().position(|waiter| waiter.until <= now) {
                due(&mut lists.waiting[at].run);
                lists.wake(at, now);
            }
            lists.waiting.iter().map(|waiter| waiter.until).min().unwrap_or(u64::MAX)
        })
    }

    /// Takes the vCPU that has been ready longest, for `hart`.
    #[must_use]
    pub fn take(&self, hart: usize) -> Option<Box<VcpuRun>> {
        loop {
            let since = |queue: &&Queue| queue.since.load(SeqCst);
            // The first of equals: its own.
            let (before, from) = self.queues.split_at(hart);
            let queue = from.iter().chain(before).min_by_key(since)?;
            if since(&queue) == u64::MAX && !self.has_ready() {
                return None;
            }
            if let Some((_, run)) = queue.with(|lists| lists.ready.pop_front()) {
                return Some(run);
            }
        }
    }

    /// Takes all vCPUs of the VM of that number that are ready or wait; they are no longer started. A vCPU that is
    /// queued meanwhile may be missed: the hart that takes it finds what was posted to it.
    pub fn remove_vm(&self, vm: u64) -> Vec<Box<VcpuRun>> {
        let mut out = Vec::new();
        for queue in &self.queues {
            queue.with(|lists| {
                while let Some(at) = lists.waiting.iter().position(|waiter| waiter.run.shared.vm == vm) {
                    lists.wake(at, u64::MAX);
                }
                for (since, run) in core::mem::take(&mut lists.ready) {
                    if run.shared.vm == vm {
                        out.push(run);
                    } else {
                        lists.ready.push_back((since, run));
                    }
                }
            });
        }
        self.surplus.fetch_sub(out.len() as isize, SeqCst);
        out
    }
}
