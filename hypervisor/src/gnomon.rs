//! The state that all harts share.

use crate::backend::channel::Channel;
use crate::backend::console::Console;
use crate::device::offer::Offer;
use crate::hart::env::Env;
use crate::hart::harts::HartShared;
use crate::hart::sched::Sched;
use crate::machine::tunables::Tunables;
use crate::measure::counters::HeapUse;
use crate::measure::probe::Asked;
use crate::pager::Pager;
use crate::pager::promoter::Promoter;
use crate::vm::chores::Chores;
use crate::vm::mapper;
use crate::vm::vcpu::{NOWHERE, Vcpu, VcpuRun, request};
use crate::vm::vms::Vms;
use crate::vm::{Unreachable, Vm};
use abi::record::Record;
use abi::tunable::Id;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use mmu::frames::Frames;
use mmu::gstage::{Content, Unresolved};
use rv::{Hpa, Pfn};

/// All harts' common state. `docs/invariants.md` has the order of the locks.
pub struct Gnomon {
    /// The features that guests get.
    pub offer: Offer,
    /// The mappers that each VM's memory has.
    pub mappers: &'static [mapper::Kind],
    /// The VMs.
    pub vms: Vms,
    /// vCPUs that are started and on no hart.
    pub sched: Sched,
    /// The harts in use.
    pub harts: Vec<HartShared>,
    /// Work that is done in portions.
    pub chores: Chores,
    /// Paging.
    pub pager: Pager,
    /// Makes small pages large when harts are idle.
    pub promoter: Promoter,
    /// The tunables.
    pub tunables: Tunables,
    /// The console.
    pub console: Console,
    /// The control channel.
    pub channel: Channel,
    /// Notes that harts are asked to take.
    pub asked: Asked,
    /// Returns the use of Gnomon's heap.
    pub heap: fn() -> HeapUse,
    /// Bytes of it that were in use before there was any VM.
    pub heap_at_start: u64,
    /// The frame that holds the start of the bundle.
    pub bundle: Pfn<Hpa>,
    /// Length of the bundle in bytes.
    pub bundle_bytes: u64,
}

impl Gnomon {
    /// Returns host RAM, for questions; to take from it, ask a hart's [`HartShared::frames`].
    #[must_use]
    pub fn frames(&self) -> &Frames {
        &self.harts[0].frames
    }

    /// Posts requests to a vCPU and sees to it that it looks at them soon: a running one leaves its
    /// guest, a waiting one becomes ready.
    pub fn post<E: Env>(&self, vcpu: &Vcpu, requests: u64, env: &mut E) {
        if self.post_briefly(vcpu, requests, env) {
            return;
        }
        match self.sched.wake(vcpu, env.now()) {
            Some(hart) => self.rouse(hart, env),
            // It waits no more.
            None => self.kick_vcpu(vcpu, env),
        }
    }

    /// Like `post`, but not for a vCPU that waits, because its hart's queue has a lock. Returns whether the request was
    /// posted completely; if not, it has to be posted again.
    #[inline]
    pub fn post_briefly<E: Env>(&self, vcpu: &Vcpu, requests: u64, env: &mut E) -> bool {
        vcpu.posted.fetch_or(requests, Ordering::SeqCst);
        if vcpu.waiting.load(Ordering::SeqCst) != NOWHERE {
            return false;
        }
        self.kick_vcpu(vcpu, env);
        true
    }

    /// Makes the hart of a vCPU leave its guest, unless that is this one.
    #[inline]
    fn kick_vcpu<E: Env>(&self, vcpu: &Vcpu, env: &mut E) {
        let hart = vcpu.hart.load(Ordering::SeqCst);
        if hart != NOWHERE && hart != env.hart() {
            self.kick(hart, env);
        }
    }

    /// Makes the held vCPUs of a VM ([`Vm::hold`]) make their exits again.
    pub fn release_held<E: Env>(&self, vm: &Vm, env: &mut E) {
        if vm.held.load(Ordering::SeqCst) == 0 {
            return;
        }
        let held = vm.held.swap(0, Ordering::SeqCst);
        let named = vm.vcpus.iter().filter(|vcpu| held >> vcpu.id & 1 == 1);
        named.for_each(|vcpu| self.post(vcpu, request::AGAIN, env));
    }

    /// Returns whether work for a VM on that hart delays no other VM: the hart runs a vCPU of it, or has no guest.
    #[must_use]
    pub fn is_own(&self, vm: &Vm, hart: usize) -> bool {
        !self.harts[hart].has_guest.load(Ordering::Relaxed)
            || vm.vcpus.iter().any(|vcpu| vcpu.hart.load(Ordering::SeqCst) == hart)
    }

    /// Makes `hart` leave its guest or its wait.
    pub fn kick<E: Env>(&self, hart: usize, env: &mut E) {
        env.send_ipi(hart);
        if hart != env.hart() {
            self.harts[env.hart()].counters.ipis.bump();
        }
    }

    /// Finds a hart for a vCPU that is ready: `preferred` if that is idle, else another idle one, else one whose vCPU
    /// spins.
    pub fn rouse<E: Env>(&self, preferred: usize, env: &mut E) {
        let me = env.hart();
        // The swap claims an idle hart, so that two vCPUs made ready rouse two harts.
        let idle = |hart: &usize| *hart != me && self.harts[*hart].idle.swap(false, Ordering::SeqCst);
        let spins = |hart: &usize| self.harts[*hart].spins.swap(false, Ordering::SeqCst);
        let all = 0..self.harts.len();
        let found = Some(preferred).filter(|h| all.contains(h) && idle(h));
        if let Some(hart) = found.or_else(|| all.clone().find(idle)).or_else(|| all.clone().find(spins)) {
            self.kick(hart, env);
        }
    }

    /// Converts the reason why an attempt to reach guest memory was not resolved. If it is about to fill 2 MiB with
    /// zeroes, and few are left that were made ahead, a hart that is idle goes on to make some.
    #[cold]
    #[inline(never)]
    pub(crate) fn unresolved<E: Env>(&self, why: Unresolved, env: &mut E) -> Unresolved<Unreachable> {
        let (me, frames) = (env.hart(), &self.harts[env.hart()].frames);
        if why == Unresolved::Wants(Content::ZERO) && frames.lacks_zeroed(self.tunables.get(Id::ZeroPool)) {
            let idle = |hart: &usize| *hart != me && self.harts[*hart].idle.swap(false, Ordering::SeqCst);
            (0..self.harts.len()).find(idle).into_iter().for_each(|hart| self.kick(hart, env));
        }
        why.map(Unreachable::from)
    }

    /// Gives back the frames that are taken for work in the background, because memory is short. Returns whether there
    /// were some.
    pub(crate) fn give_back_ahead(&self, frames: &Frames) -> bool {
        let stops_moving = |vm: Arc<Vm>| {
            let mut guard = vm.memory.lock();
            let shadow = guard.as_mut().and_then(|memory| memory.shadow.as_mut());
            shadow.is_some_and(|shadow| shadow.stop_moving(frames))
        };
        self.promoter.give_back(frames) || self.vms.all().any(stops_moving)
    }

    /// Waits when this hart has nothing to do. The hart announces that first, and looks again then, so that no wake-up
    /// falls between; it waits if there is still nothing.
    pub fn rest<E: Env>(&self, env: &mut E, wait: impl FnOnce(&mut E)) {
        let idle = &self.harts[env.hart()].idle;
        idle.store(true, Ordering::SeqCst);
        if !self.sched.has_ready() && !self.is_over() {
            wait(env);
        }
        idle.store(false, Ordering::SeqCst);
    }

    /// Starts a vCPU: it becomes ready, and some hart will run it.
    pub fn start<E: Env>(&self, run: Box<VcpuRun>, env: &mut E) {
        let last_hart = run.last_hart;
        if self.sched.start(run, env.hart(), env.now()) {
            // Until now every vCPU had a hart to itself and no slice ever ended: all harts look again, this one included,
            // since most entries do not look.
            (0..self.harts.len()).for_each(|hart| self.kick(hart, env));
        } else {
            self.rouse(last_hart, env);
        }
    }

    /// Returns whether all VMs have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.vms.is_empty()
    }

    /// Prints a record.
    pub fn record(&self, record: &Record) {
        self.console.record(record);
    }
}
