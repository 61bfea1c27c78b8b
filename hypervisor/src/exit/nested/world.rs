//! The change between L1 and L2.

use super::shared;
use super::state::state;
use crate::device::offer::GuestTimer;
use crate::exit::inject::{enter_at, inject, nested_trap};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::{collapsed, nested};
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::nested::{Refused, VS_INTERRUPTS};
use crate::vm::vcpu::{Nested, VcpuRun, request};
use core::sync::atomic::Ordering;
use rv::csr::{envcfg, hstatus, status};
use rv::{Exception, Exit, Interrupt, Mode, Trap};

const INTERRUPT: u64 = 1 << 63;

/// A trap of L2's that L1 gets, as its registers have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reflected {
    /// `scause`.
    pub cause: u64,
    /// `stval`.
    pub tval: u64,
    /// `htval`.
    pub tval2: u64,
    /// `htinst`.
    pub tinst: u64,
}

impl Reflected {
    /// An exception, with the values that the hart had for it. Those of the hypervisor's are written by guest-page faults only.
    pub(super) const fn of(exception: Exception, exit: &Exit) -> Self {
        Self { cause: exception.code(), tval: exit.tval, tval2: 0, tinst: 0 }
    }

    /// Returns whether `stval` is a guest virtual address.
    const fn is_address(&self) -> bool {
        const ADDRESSES: u64 = Exception::FetchMisaligned.bit()
            | Exception::FetchAccess.bit()
            | Exception::Breakpoint.bit()
            | Exception::LoadMisaligned.bit()
            | Exception::LoadAccess.bit()
            | Exception::StoreMisaligned.bit()
            | Exception::StoreAccess.bit()
            | Exception::FetchPage.bit()
            | Exception::LoadPage.bit()
            | Exception::StorePage.bit()
            | Exception::FetchGuestPage.bit()
            | Exception::LoadGuestPage.bit()
            | Exception::StoreGuestPage.bit();
        self.cause & INTERRUPT == 0 && ADDRESSES >> (self.cause & 63) & 1 != 0
    }
}

/// Executes L1's `sret`, which traps because it enters L2. If L2's tables take long to find, L1 executes the instruction again.
pub(super) fn enter<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    match nested::attach(g, run, env) {
        Ok(true) => {
            run.shared.of_guests().srets.bump();
            sret(g, run, env)
        }
        Ok(false) => Outcome::Resume,
        Err(outcome) => outcome,
    }
}

/// Executes `sret` of L1's, for which the vCPU has L2's root (privileged spec, "Trap Return" of the hypervisor extension).
pub(super) fn sret<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    let mut regs = env.trap_regs();
    // L2 executes the instruction again that L1's G-stage refused: L1 has answered the fault, and L2 would make it once more for Gnomon.
    if let Some(Refused { at, request, .. }) = state(run).reflected.take().filter(|it| it.pc == regs.vsepc) {
        nested::fill(g, run, (at, &request), env);
    }
    if state(run).collapsed.is_some() {
        collapsed::fill(g, run, regs.vsepc, env);
    }
    run.context.pc = regs.vsepc;
    let mode = if regs.vsstatus & status::SPP != 0 { Mode::Supervisor } else { Mode::User };
    let sie = if regs.vsstatus & status::SPIE != 0 { status::SIE } else { 0 };
    regs.vsstatus = regs.vsstatus & !(status::SIE | status::SPP) | status::SPIE | sie;
    env.set_trap_regs(&regs);
    if state(run).csrs.hstatus & hstatus::SPV == 0 {
        env.set_privilege(mode);
        return Outcome::Resume;
    }
    state(run).csrs.hstatus &= !hstatus::SPV;
    begin(g, run, mode, env);
    Outcome::Resume
}

/// Puts L2 on the hart, in that mode; the vCPU has L2's root.
fn begin<E: Env>(g: &Gnomon, run: &mut VcpuRun, mode: Mode, env: &mut E) {
    run.shared.of_guests().entries.bump();
    let state = state(run);
    state.other.vsie = (state.csrs.hie & state.csrs.hideleg) >> 1;
    state.kept = (state.other.hvip, state.other.vstimecmp);
    if state.csrs.henvcfg & envcfg::STCE == 0 {
        // L2 has no comparator. That of the hart raises its timer interrupt where L1 does so: QEMU 10.0 with Sstc does not let M mode
        // write hvip.VSTIP.
        let is_raised = state.other.hvip & Interrupt::VsTimer.bit() != 0;
        state.other.vstimecmp = if is_raised { 0 } else { u64::MAX };
    }
    state.runs_l2 = true;
    env.change_world(run);
    env.set_privilege(mode);
    if g.offer.timer == GuestTimer::Sstc {
        watch_timers(run, env);
    }
    interrupt(g, run, env);
}

/// Enters L2 if the vCPU was restored from a snapshot that was taken while L2 ran. Returns how the vCPU goes on instead, if that cannot be done
/// now: nothing else must be entered then.
pub(super) fn go_on<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Option<Outcome> {
    let mode = run.nested.as_deref()?.goes_on?;
    if !run.vm.translation.may_enter(run) {
        // L1 has no root yet, to which L2's exits lead.
        return Some(Outcome::Resume);
    }
    match nested::attach(g, run, env) {
        Ok(true) => {
            state(run).goes_on = None;
            begin(g, run, mode, env);
            None
        }
        Ok(false) => Some(Outcome::Resume),
        Err(outcome) => Some(outcome),
    }
}

/// Lets Gnomon's timer stand in for L1's comparator, which no register of the hart holds while L2 runs, and for the one of L2's that L1 knew
/// at the entry, if its interrupt is L1's.
pub(super) fn watch_timers<E: Env>(run: &mut VcpuRun, env: &mut E) {
    let (now, timer) = (env.now(), Interrupt::VsTimer.bit());
    let Nested { csrs, other, kept: (_, l2), .. } = state(run);
    let is_l1s = csrs.henvcfg & envcfg::STCE != 0 && timer & csrs.hie & !csrs.hideleg != 0 && *l2 != u64::MAX;
    let l2 = if is_l1s { l2.wrapping_sub(csrs.htimedelta) } else { u64::MAX };
    let at = other.vstimecmp.min(l2);
    let due = run.vm.host_time(at, now);
    env.set_timer_interrupt(due <= now);
    run.deadline = if due <= now { u64::MAX } else { due };
    if env.watches_l2() {
        watch_l2(run, now, env);
    }
}

/// Lets Gnomon's timer stand in for L2's comparator as well, which no register of a hart without the H extension holds.
fn watch_l2<E: Env>(run: &mut VcpuRun, now: u64, env: &mut E) {
    let at = env.watched_comparator();
    let Nested { csrs, kept: (hvip, _), .. } = state(run);
    let has_comparator = csrs.henvcfg & envcfg::STCE != 0 && at != u64::MAX;
    let (is_raised, at) = (*hvip & Interrupt::VsTimer.bit() != 0, at.wrapping_sub(csrs.htimedelta));
    let due = if has_comparator { run.vm.host_time(at, now) } else { u64::MAX };
    env.set_timer_of_l2(is_raised || due <= now);
    if due > now {
        run.deadline = run.deadline.min(due);
    }
}

/// Takes L2 off the hart, for L1 to go on.
fn leave<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    state(run).runs_l2 = false;
    env.change_world(run);
    let state = state(run);
    state.end_run();
    if core::mem::take(&mut state.waits_events) {
        run.shared.posted.fetch_or(request::EVENTS, Ordering::SeqCst);
    }
    if g.offer.timer == GuestTimer::Sstc {
        // L1's comparator is in the hart again.
        run.deadline = u64::MAX;
    }
}

/// Gives L1 a trap of L2's (privileged spec, "Trap Entry" of the hypervisor extension, for a trap to HS).
pub(super) fn reflect<E: Env>(g: &Gnomon, run: &mut VcpuRun, trap: Reflected, env: &mut E) -> Outcome {
    run.shared.of_guests().reflected.bump();
    let (from, pc) = (env.privilege(), run.context.pc);
    let csrs = &mut state(run).csrs;
    csrs.hstatus = csrs.hstatus & !(hstatus::GVA | hstatus::SPVP) | hstatus::SPV;
    if from == Mode::Supervisor {
        csrs.hstatus |= hstatus::SPVP;
    }
    if trap.is_address() {
        csrs.hstatus |= hstatus::GVA;
    }
    (csrs.htval, csrs.htinst) = (trap.tval2, trap.tinst);
    leave(g, run, env);
    let mut regs = env.trap_regs();
    run.context.pc = enter_at(&mut regs, (trap.cause, trap.tval), pc, from);
    env.set_trap_regs(&regs);
    env.set_privilege(Mode::Supervisor);
    shared::left(g, run, env);
    Outcome::Resume
}

/// Gives an exception of L2's to L2 itself, if L1 has delegated it, though the hart did not; else to L1.
pub(super) fn own_or_reflect<E: Env>(g: &Gnomon, run: &mut VcpuRun, trap: Reflected, env: &mut E) -> Outcome {
    let is_own = state(run).csrs.hedeleg >> (trap.cause & 63) & 1 != 0;
    match Exception::from_code(trap.cause) {
        Some(exception) if is_own => inject(run, &Trap::new(exception, trap.tval), env),
        _ => reflect(g, run, trap, env),
    }
}

/// Delivers an interrupt that L1 is to take, if there is one: while L2 runs, any that L1 has enabled; L2's own that L1 has not delegated, at
/// any time.
pub fn interrupt<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    /// From the first to the last (privileged spec, "Machine Interrupt Registers").
    const PRIORITIES: [Interrupt; 6] = [
        Interrupt::SExternal,
        Interrupt::SSoft,
        Interrupt::STimer,
        Interrupt::VsExternal,
        Interrupt::VsSoft,
        Interrupt::VsTimer,
    ];
    if env.watches_l2() {
        watch_timers(run, env);
    }
    let Some(nested) = run.nested.as_deref().filter(|nested| nested.goes_on.is_none()) else { return };
    let time = run.vm.guest_time(env.now());
    let pending = if nested.runs_l2 {
        let mut held = env.held_interrupts();
        if g.offer.timer == GuestTimer::Sstc {
            // Gnomon's timer may have stood in for L2's comparator.
            let timer = Interrupt::VsTimer.bit();
            held = held & !timer | if time >= nested.other.vstimecmp { timer } else { 0 };
        }
        let own = held & (nested.other.vsie << 1) & VS_INTERRUPTS;
        // Of L2's, what the hart has pending and may not deliver.
        own >> 1 | env.undelegated_interrupts() & nested.csrs.hie & !nested.csrs.hideleg
    } else {
        let takes = env.privilege() == Mode::User || env.status() & status::SIE != 0;
        if takes { nested.undelegated(time) } else { 0 }
    };
    let Some(first) = PRIORITIES.into_iter().find(|interrupt| pending & interrupt.bit() != 0) else { return };
    let cause = INTERRUPT | first as u64;
    if nested.runs_l2 {
        let _ = reflect(g, run, Reflected { cause, tval: 0, tval2: 0, tinst: 0 }, env);
        return;
    }
    // A trap from L1 itself: V was 0.
    let (mut regs, from, pc) = (env.trap_regs(), env.privilege(), run.context.pc);
    run.context.pc = enter_at(&mut regs, (cause, 0), pc, from);
    env.set_trap_regs(&regs);
    env.set_privilege(Mode::Supervisor);
    nested_trap(run, env);
}
