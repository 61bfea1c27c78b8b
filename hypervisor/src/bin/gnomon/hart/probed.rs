//! Exits that are more than handled: the first, which proves that guests run where they should, those that a client
//! wants to be noted, and those of vCPUs whose hardware counters run (SBI PMU). A flag of the hart's, which each exit has looked at anyway, leads here; and such an exit goes the
//! long way, whose end comes by here. So all others have no instruction of it, and there is one way that handles them.

use super::Hart;
use super::unplain::{Aside, Probed};
use abi::control::Event;
use core::sync::atomic::Ordering;
use hypervisor::hart::env::Env;
use hypervisor::measure::probe::Doing;
use hypervisor::vm::vcpu::{VcpuRun, request};
use rv::{Cause, Exception};

impl Hart {
    /// Begins an exit that is more than handled. Returns whether it is one of L2, or of a program.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_exit(&mut self) -> bool {
        if self.unplain.aside.is_some() {
            // Nothing but that makes the exit other than plain.
            return true;
        }
        if !self.unplain.is_proven {
            // OWNERSHIP rests on it: a "guest" that runs in HS mode, or in M mode, has all of memory.
            assert!(self.guest.came_from_guest(), "this hart does not enter the modes that guests run in");
            self.unplain.is_proven = true;
        }
        let is_of_l2 = self.guest.runs_l2();
        let is_aside = self.aside().is_some();
        if self.unplain.samples {
            self.sample_exit(is_of_l2);
        }
        let now = self.now();
        if !self.is_probed(now) {
            return is_aside;
        }
        self.exits_are_noted();
        let noted = &self.shared.probe;
        let before = noted.of(Doing::Guest);
        noted.turn(Doing::Host, now);
        // Interrupts of the host are not its doing.
        let is_own = |run: &VcpuRun| matches!(Cause::from_register(run.context.exit.cause), Cause::Exception(_));
        let own = self.current.as_deref().filter(|run| is_own(run));
        let vcpu = own.map(|run| (run.vm.handle.number, run.shared.id));
        self.unplain.exit =
            Some(Probed { idle: noted.of(Doing::Idle), host: noted.of(Doing::Host), vcpu, event: self.event(now) });
        if let Some(run) = &self.current {
            run.shared.counters.time_guest.add(noted.of(Doing::Guest) - before);
            // It finds that when it is about to enter its guest again.
            run.shared.posted.fetch_or(request::PROBE, Ordering::SeqCst);
        }
        is_aside
    }

    /// No exit is plain from now on.
    pub(super) const fn exits_are_noted(&mut self) {
        (self.is_plain, self.unplain.aside) = (false, None);
    }

    /// Notes whose exits are plain, if any are: the guest's own, or those of what runs in its place.
    pub(super) const fn set_plain_world(&mut self, aside: Option<Aside>) {
        if self.is_plain || self.unplain.aside.is_some() {
            (self.is_plain, self.unplain.aside) = (aside.is_none(), aside);
        }
    }

    /// Returns what runs in the loaded guest's place.
    fn aside(&self) -> Option<Aside> {
        let program = self.guest.runs_program().then_some(Aside::Program);
        program.or_else(|| self.guest.runs_l2().then_some(Aside::L2))
    }

    /// Takes a sample at an exit.
    fn sample_exit(&mut self, is_of_l2: bool) {
        let sample = self.guest.sample();
        if let Some(run) = &mut self.current {
            if let Some(pmu) = &mut run.pmu {
                pmu.leave(sample, is_of_l2);
            }
            // It finds that when it is about to enter its guest again.
            run.shared.posted.fetch_or(request::PROBE, Ordering::SeqCst);
        }
    }

    /// Ends an exit that is more than handled, when a guest is about to be entered, this one or another.
    #[cold]
    #[inline(never)]
    pub(super) fn end_exit(&mut self) {
        self.end_noted();
        if self.unplain.samples
            && let Some(pmu) = self.current.as_mut().and_then(|run| run.pmu.as_mut())
        {
            pmu.enter(self.guest.sample());
        }
    }

    /// Ends a noted exit.
    fn end_noted(&mut self) {
        let Some(Probed { idle, host, vcpu, event }) = self.unplain.exit.take() else { return };
        let (now, noted) = (self.now(), &self.shared.probe);
        noted.turn(Doing::Guest, now);
        // A vCPU that has left may be on another hart, which writes its counters.
        let same = self.current.as_ref().filter(|run| vcpu == Some((run.vm.handle.number, run.shared.id)));
        if let Some(run) = same {
            run.shared.counters.time_gnomon.add(noted.of(Doing::Host) - host);
        }
        if let Some(event) = event {
            noted.note(Event { took: now - event.at, idle: noted.of(Doing::Idle) - idle, ..event });
        }
    }

    /// Adds its detail to an exit by an interrupt, if it is noted.
    pub(super) fn mark_exit(&mut self, detail: u64) {
        if let Some(Probed { event: Some(event), .. }) = &mut self.unplain.exit
            && matches!(Cause::from_register(event.cause), Cause::Interrupt(_))
        {
            event.detail = detail;
        }
    }

    /// Returns the exit, if it is wanted.
    fn event(&self, at: u64) -> Option<Event> {
        let run = self.current.as_deref()?;
        if !self.g.asked.wants_exits(run.vm.handle.number, at) {
            return None;
        }
        let exit = &run.context.exit;
        let detail = match Cause::from_register(exit.cause) {
            // Which extension is called, by a7.
            Cause::Exception(Exception::EcallFromVs | Exception::EcallFromS) => run.context.x[17],
            Cause::Exception(_) => exit.tval2 << 2,
            _ => 0,
        };
        let (vm, vcpu) = (run.vm.handle.number, run.shared.id);
        Some(Event { at, took: 0, idle: 0, vm, vcpu, cause: exit.cause, pc: run.context.pc, tval: exit.tval, detail })
    }

    /// Returns whether a client asks now. If not, the hart's exits are plain again.
    fn is_probed(&mut self, now: u64) -> bool {
        let noted = &self.shared.probe;
        if self.g.asked.is_on(now) {
            let until = self.g.asked.until();
            match noted.is_on() {
                true => noted.extend(now, until),
                false => noted.begin(Doing::Guest, now, until),
            }
            return true;
        }
        noted.end(now);
        self.is_plain = self.unplain.is_proven && !self.unplain.samples;
        self.unplain.aside = None;
        self.set_plain_world(self.aside());
        self.set_policy();
        false
    }

    /// Checks whether a client asks, when the hart was kicked.
    pub(super) fn look_who_asks(&mut self) {
        let now = self.now();
        if self.g.asked.is_on(now) {
            self.exits_are_noted();
            // It is about to enter a guest. If it does not, it says so.
            self.is_probed(now);
        } else if !self.is_plain {
            self.is_probed(now);
        }
    }

    /// Notes that the hart does something else from now on.
    #[inline]
    pub(super) fn turns(&self, doing: Doing) {
        if !self.is_plain {
            self.shared.probe.turn(doing, self.now());
        }
    }
}
