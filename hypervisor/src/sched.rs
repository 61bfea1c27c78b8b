//! Who runs where: one round-robin queue for all harts, and those that wait or are stopped.
//!
//! While there are no more started vCPUs than harts, each has a hart to itself, WFI stays in the
//! guest and no slice ends. Only beyond that (*overcommitted*) do WFI and the slice timer trap.

use crate::vcpu::VcpuRun;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// vCPUs that are on no hart.
#[derive(Default)]
pub struct Sched {
    ready: VecDeque<Box<VcpuRun>>,
    waiting: Vec<Waiter>,
    /// Those that are stopped, by VM and vCPU number.
    parked: BTreeMap<(usize, u32), Box<VcpuRun>>,
    /// vCPUs that are started: ready, waiting or on a hart.
    started: usize,
}

struct Waiter {
    run: Box<VcpuRun>,
    /// Host time at which it is woken even without an interrupt.
    until: u64,
    /// The hart whose timer watches `until`.
    hart: usize,
}

impl Sched {
    /// vCPUs that are started.
    #[must_use]
    pub fn started_count(&self) -> usize {
        self.started
    }

    /// Whether a vCPU is ready to run.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Adds a vCPU that was not started before.
    pub fn start(&mut self, run: Box<VcpuRun>) {
        self.started += 1;
        self.ready.push_back(run);
    }

    /// Says that a vCPU, on a hart until now, is no longer started.
    pub fn stopped(&mut self) {
        self.started -= 1;
    }

    /// Puts a vCPU whose slice ended at the back.
    pub fn requeue(&mut self, run: Box<VcpuRun>) {
        self.ready.push_back(run);
    }

    /// Keeps a stopped vCPU; returns how many of its VM are stopped now.
    pub fn park(&mut self, run: Box<VcpuRun>) -> usize {
        let (vm, id) = (run.shared.vm, run.shared.id);
        self.parked.insert((vm, id), run);
        self.parked_count(vm)
    }

    /// Hands out a stopped vCPU, or `None` if it is not stopped.
    pub fn unpark(&mut self, vm: usize, vcpu: u32) -> Option<Box<VcpuRun>> {
        self.parked.remove(&(vm, vcpu))
    }

    /// vCPUs of a VM that are stopped.
    #[must_use]
    pub fn parked_count(&self, vm: usize) -> usize {
        self.parked.range((vm, 0)..=(vm, u32::MAX)).count()
    }

    /// Lets a vCPU wait for an interrupt, or until host time `until`, watched by `hart`.
    pub fn wait(&mut self, run: Box<VcpuRun>, until: u64, hart: usize) {
        self.waiting.push(Waiter { run, until, hart });
    }

    /// Makes a waiting vCPU ready; returns the hart it last ran on, or `None` if it did not wait.
    pub fn wake(&mut self, vm: usize, vcpu: u32) -> Option<usize> {
        let at = self.waiting.iter().position(|w| w.run.shared.vm == vm && w.run.shared.id == vcpu)?;
        let run = self.waiting.swap_remove(at).run;
        let hart = run.last_hart;
        self.ready.push_back(run);
        Some(hart)
    }

    /// Makes those ready whose time has come and that `hart` watches, telling `due` of each.
    pub fn expire(&mut self, hart: usize, now: u64, mut due: impl FnMut(&mut VcpuRun)) {
        let mut at = 0;
        while at < self.waiting.len() {
            if self.waiting[at].hart == hart && self.waiting[at].until <= now {
                let mut run = self.waiting.swap_remove(at).run;
                due(&mut run);
                self.ready.push_back(run);
            } else {
                at += 1;
            }
        }
    }

    /// The vCPU that has been ready longest.
    pub fn take(&mut self) -> Option<Box<VcpuRun>> {
        self.ready.pop_front()
    }

    /// The earliest time that `hart` watches for a waiting vCPU.
    #[must_use]
    pub fn earliest(&self, hart: usize) -> u64 {
        self.waiting.iter().filter(|w| w.hart == hart).map(|w| w.until).min().unwrap_or(u64::MAX)
    }

    /// Takes all vCPUs of a VM that are ready or wait; they are no longer started.
    pub fn remove_vm(&mut self, vm: usize) -> Vec<Box<VcpuRun>> {
        let mut out = Vec::new();
        for _ in 0..self.ready.len() {
            if let Some(run) = self.ready.pop_front() {
                if run.shared.vm == vm {
                    out.push(run);
                } else {
                    self.ready.push_back(run);
                }
            }
        }
        let mut at = 0;
        while at < self.waiting.len() {
            if self.waiting[at].run.shared.vm == vm {
                out.push(self.waiting.swap_remove(at).run);
            } else {
                at += 1;
            }
        }
        self.started -= out.len();
        out
    }
}
