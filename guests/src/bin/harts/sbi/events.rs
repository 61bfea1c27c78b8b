//! SSE: the states of events, what their handlers find, who comes first, events for other harts.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use guests::event::{self, GLOBAL, Handler, LOCAL, attribute, get, inject, on, register_at, set};
use guests::sbi::{
    ALREADY_STARTED, ALREADY_STOPPED, BAD_RANGE, DENIED, INVALID_ADDRESS, INVALID_PARAM, INVALID_STATE, NOT_SUPPORTED,
    SUCCESS,
};
use guests::{Check, board, ensure, ensure_eq, fail, hart, run, sbi, trap};
use metal::csr;
use rv::Interrupt;
use rv::csr::status;
use sbi_spec::sse;

pub fn checks() {
    if !sbi::probe(sse::EID_SSE) {
        return run("sbi/events-absent", || fail!("SSE is missing"));
    }
    run("sbi/events-states", states);
    run("sbi/events-handler", handler);
    run("sbi/events-one-shot", one_shot);
    run("sbi/events-priority", priority);
    run("sbi/events-errors", errors);
    if board().hart_count > 1 {
        run("sbi/events-elsewhere", elsewhere);
        run("sbi/events-storm", storm);
    }
    if sbi::is_gnomon() {
        // OpenSBI 1.5.1 has a draft of SSE: no masks, and other answers to what cannot be written.
        run("sbi/events-mask", mask);
        run("sbi/events-attributes", attributes);
        run("sbi/events-restart", restart);
    }
}

static OWN: [Handler; 2] = [const { Handler::idle() }; 2];

/// Both events, with a handler for each.
fn both() -> impl Iterator<Item = (u64, &'static Handler)> {
    [LOCAL, GLOBAL].into_iter().zip(&OWN)
}

/// Lets events come to this hart, where there are masks.
fn unmask() -> Check {
    let error = on(sse::HART_UNMASK, 0);
    ensure!([SUCCESS, ALREADY_STARTED, NOT_SUPPORTED].contains(&error), "hart_unmask: {error}");
    Ok(())
}

fn is_in(event: u64, expected: u64) -> Check {
    ensure_eq!(get(event, attribute::STATUS).map(|status| status & 3), Ok(expected), "state of {event:#x}");
    Ok(())
}

/// Calls that are to have no other answer.
fn each(event: u64, calls: &[(usize, i64, u64)]) -> Check {
    for (fid, expected, state) in calls {
        ensure_eq!(on(*fid, event), *expected, "function {fid} on {event:#x}");
        is_in(event, *state)?;
    }
    Ok(())
}

fn states() -> Check {
    for (event, handler) in both() {
        let initial =
            [(sse::UNREGISTER, INVALID_STATE, 0), (sse::ENABLE, INVALID_STATE, 0), (sse::DISABLE, INVALID_STATE, 0)];
        each(event, &initial)?;
        ensure_eq!(inject(event, hart::id()), INVALID_STATE, "injection of {event:#x}, which has no handler");
        ensure_eq!(register_at(event, 0x8020_0001, 0), INVALID_PARAM, "a handler at an odd address");
        ensure_eq!(handler.register(event, None), SUCCESS, "register {event:#x}");
        ensure_eq!(handler.register(event, None), INVALID_STATE, "register {event:#x} twice");
        each(event, &[(sse::DISABLE, INVALID_STATE, 1), (sse::ENABLE, SUCCESS, 2)])?;
        each(
            event,
            &[(sse::ENABLE, INVALID_STATE, 2), (sse::UNREGISTER, INVALID_STATE, 2), (sse::DISABLE, SUCCESS, 1)],
        )?;
        each(event, &[(sse::UNREGISTER, SUCCESS, 0), (sse::UNREGISTER, INVALID_STATE, 0)])?;
    }
    Ok(())
}

/// The event comes before the call returns, and changes nothing but what the handler does.
fn handler() -> Check {
    unmask()?;
    for (event, handler) in both() {
        ensure_eq!(handler.register(event, None), SUCCESS, "register");
        ensure_eq!(on(sse::ENABLE, event), SUCCESS, "enable");
        for (bits, flags) in [(0, 0), (status::SPP, 1), (status::SPIE, 2), (status::SPP | status::SPIE, 3)] {
            let before = handler.runs.load(SeqCst);
            let mark = 0x8123_4560 + 4 * flags;
            set_interrupted(bits, mark);
            let error = inject(event, hart::id());
            let (found, sepc) = (csr::sstatus::read() & (status::SPP | status::SPIE), csr::sepc::read());
            ensure_eq!(
                (error, handler.runs.load(SeqCst)),
                (SUCCESS, before + 1),
                "injection of {event:#x}: error, runs"
            );
            ensure_eq!((found, sepc), (bits, mark), "sstatus.SPP and SPIE, sepc after the handler");
            let interrupted = handler.interrupted.each_ref().map(|field| field.load(SeqCst));
            let expected = [mark, flags, sse::INJECT as u64, sse::EID_SSE as u64];
            ensure_eq!(interrupted, expected, "what {event:#x} interrupted: sepc, flags, a6, a7");
            let sstatus = handler.sstatus.load(SeqCst) & (status::SPP | status::SPIE | status::SIE);
            ensure_eq!(sstatus, status::SPP, "sstatus in the handler: from S, interrupts off before and now");
            ensure_eq!((handler.named.load(SeqCst), handler.hart.load(SeqCst)), (hart::id(), hart::id()), "harts");
            is_in(event, 2)?;
        }
        each(event, &[(sse::DISABLE, SUCCESS, 1), (sse::UNREGISTER, SUCCESS, 0)])?;
    }
    Ok(())
}

#[expect(unsafe_code, reason = "registers that the next trap overwrites")]
fn set_interrupted(bits: u64, sepc: u64) {
    // SAFETY: only `sret` reads them, and only the trap handler executes it, after a trap that sets them.
    unsafe {
        csr::sstatus::clear(status::SPP | status::SPIE);
        csr::sstatus::set(bits);
        csr::sepc::write(sepc);
    }
}

fn one_shot() -> Check {
    for (event, handler) in both() {
        let before = handler.runs.load(SeqCst);
        ensure_eq!(handler.register(event, None), SUCCESS, "register");
        ensure_eq!(set(event, attribute::CONFIG, 1), SUCCESS, "set one-shot");
        ensure_eq!(get(event, attribute::CONFIG), Ok(1), "the configuration");
        ensure_eq!(on(sse::ENABLE, event), SUCCESS, "enable");
        ensure_eq!(inject(event, hart::id()), SUCCESS, "injection");
        ensure_eq!(handler.runs.load(SeqCst), before + 1, "runs");
        is_in(event, 1)?;
        ensure_eq!(inject(event, hart::id()), INVALID_STATE, "injection of an event that is over");
        ensure_eq!(set(event, attribute::CONFIG, 0), SUCCESS, "clear one-shot");
        ensure_eq!(on(sse::UNREGISTER, event), SUCCESS, "unregister");
    }
    Ok(())
}

/// The runs of the other event, as the handler of the first saw them after it had injected it.
static SEEN: AtomicU64 = AtomicU64::new(0);

/// An event interrupts the handler of one behind it, and waits for the end of one before it.
fn priority() -> Check {
    fn injects_global() {
        inject(GLOBAL, hart::id());
        SEEN.store(OWN[1].runs.load(SeqCst), SeqCst);
    }
    // Of equals the smaller number is first: the local one's.
    for (local, global, at_once) in [(2, 1, 1), (1, 2, 0), (7, 7, 0)] {
        let runs = OWN[1].runs.load(SeqCst);
        for ((event, handler), priority) in both().zip([local, global]) {
            let job = (event == LOCAL).then_some(injects_global as fn());
            ensure_eq!(handler.register(event, job), SUCCESS, "register");
            ensure_eq!(set(event, attribute::PRIORITY, priority), SUCCESS, "priority");
            ensure_eq!(on(sse::ENABLE, event), SUCCESS, "enable");
        }
        ensure_eq!(inject(LOCAL, hart::id()), SUCCESS, "injection");
        let (during, after) = (SEEN.load(SeqCst) - runs, OWN[1].runs.load(SeqCst) - runs);
        ensure_eq!((during, after), (at_once, 1), "priorities {local} and {global}: runs in the handler, and after it");
        for (event, _) in both() {
            each(event, &[(sse::DISABLE, SUCCESS, 1)])?;
            ensure_eq!(set(event, attribute::PRIORITY, 0), SUCCESS, "priority");
            each(event, &[(sse::UNREGISTER, SUCCESS, 0)])?;
        }
    }
    Ok(())
}

fn errors() -> Check {
    let value = AtomicU64::new(0);
    let at = value.as_ptr().expose_provenance() as u64;
    for (event, _) in both() {
        for call in [event::read, event::write] {
            ensure_eq!(call(event, 0, 0, at), INVALID_PARAM, "no attributes");
            ensure_eq!(call(event, 10, 1, at), BAD_RANGE, "the attribute behind the last");
            ensure_eq!(call(event, 1, 10, at), BAD_RANGE, "beyond the last");
            ensure_eq!(call(event, u64::from(u32::MAX), 2, at), BAD_RANGE, "a range that wraps");
            ensure_eq!(call(event, 0, u64::from(u32::MAX), at), BAD_RANGE, "as many as can be");
            ensure_eq!(call(event, 1, 1, at + 4), INVALID_ADDRESS, "a misaligned buffer");
        }
        ensure_eq!(set(event, attribute::PRIORITY, 1 << 32), INVALID_PARAM, "a priority beyond 32 bits");
        ensure_eq!(set(event, attribute::CONFIG, 2), INVALID_PARAM, "a configuration that is not there");
        ensure_eq!(get(event, attribute::PRIORITY), Ok(0), "the priority");
    }
    ensure_eq!(inject(LOCAL, board().hart_count as u64), INVALID_PARAM, "a hart that is not there");
    ensure_eq!(inject(LOCAL, u64::MAX), INVALID_PARAM, "hart -1");
    ensure_eq!(set(GLOBAL, attribute::PREFERRED_HART, 1 << 20), INVALID_PARAM, "a preferred hart that is not there");
    if let Some(other) = board().other_harts().next() {
        ensure_eq!(set(GLOBAL, attribute::PREFERRED_HART, other), INVALID_PARAM, "a preferred hart that is stopped");
    }
    // Reserved.
    for event in [2, 0x1_0001, 0xffff_0001] {
        for fid in [sse::REGISTER, sse::UNREGISTER, sse::ENABLE, sse::DISABLE, sse::INJECT] {
            ensure_eq!(on(fid, event), INVALID_PARAM, "function {fid} on {event:#x}");
        }
    }
    Ok(())
}

static READY: AtomicBool = AtomicBool::new(false);
static GO: AtomicBool = AtomicBool::new(false);
static FAR: Handler = Handler::idle();

/// A hart with an event of its own, which it waits for: spinning, or asleep until an IPI.
fn target(sleeps: u64) {
    let is_ready = unmask().is_ok() && FAR.register(LOCAL, None) == SUCCESS && on(sse::ENABLE, LOCAL) == SUCCESS;
    READY.store(is_ready, SeqCst);
    trap::enable(Interrupt::SSoft.bit());
    while !GO.load(SeqCst) {
        if sleeps == 1 && trap::pending() & Interrupt::SSoft.bit() == 0 {
            metal::wait_for_interrupt();
        }
    }
    trap::disable(Interrupt::SSoft.bit());
    on(sse::DISABLE, LOCAL);
    on(sse::UNREGISTER, LOCAL);
}

/// Runs `check` while `other` is such a hart.
fn with_target(other: u64, sleeps: u64, check: impl Fn() -> Check) -> Check {
    READY.store(false, SeqCst);
    GO.store(false, SeqCst);
    hart::start(other, target, sleeps)?;
    let is_ready = hart::wait_for(hart::PATIENCE_MS, || READY.load(SeqCst));
    let outcome = if is_ready { check() } else { Err(guests::Text::of(format_args!("hart {other} is not ready"))) };
    GO.store(true, SeqCst);
    sbi::send_ipi(1, other);
    hart::join(other)?;
    outcome
}

fn elsewhere() -> Check {
    unmask()?;
    for other in board().other_harts() {
        for sleeps in [0, 1] {
            with_target(other, sleeps, || {
                for event in [LOCAL, GLOBAL] {
                    let handler = if event == LOCAL { &FAR } else { &OWN[1] };
                    if event == GLOBAL {
                        ensure_eq!(handler.register(event, None), SUCCESS, "register");
                        ensure_eq!(set(event, attribute::PREFERRED_HART, other), SUCCESS, "preferred hart");
                        ensure_eq!(on(sse::ENABLE, event), SUCCESS, "enable");
                    }
                    for _ in 0..20 {
                        let before = handler.runs.load(SeqCst);
                        ensure_eq!(inject(event, other), SUCCESS, "injection of {event:#x} into hart {other}");
                        let ran = || handler.runs.load(SeqCst) == before + 1;
                        ensure!(hart::wait_for(hart::PATIENCE_MS, ran), "{event:#x} does not come to hart {other}");
                        ensure_eq!((handler.hart.load(SeqCst), handler.named.load(SeqCst)), (other, other), "hart");
                    }
                    if event == GLOBAL {
                        // It is complete a little after the handler has counted it.
                        let is_over = || get(event, attribute::STATUS).map(|status| status & 3) == Ok(2);
                        ensure!(hart::wait_for(hart::PATIENCE_MS, is_over), "{event:#x} does not end");
                        ensure_eq!(on(sse::DISABLE, event), SUCCESS, "disable");
                        ensure_eq!(set(event, attribute::PREFERRED_HART, hart::id()), SUCCESS, "preferred hart");
                        ensure_eq!(on(sse::UNREGISTER, event), SUCCESS, "unregister");
                    }
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Injections faster than they are handled become one. None is lost for ever.
fn storm() -> Check {
    let Some(other) = board().other_harts().next() else { fail!("no other hart") };
    with_target(other, 0, || {
        let before = FAR.runs.load(SeqCst);
        for _ in 0..2000 {
            let error = inject(LOCAL, other);
            // OpenSBI's queue between two harts may be full.
            ensure!(error == SUCCESS || !sbi::is_gnomon(), "injection: {error}");
        }
        let came = || FAR.runs.load(SeqCst) > before;
        ensure!(hart::wait_for(hart::PATIENCE_MS, came), "none came");
        ensure!(FAR.runs.load(SeqCst) - before <= 2000, "more than were injected");
        Ok(())
    })
}

fn mask() -> Check {
    unmask()?;
    ensure_eq!(on(sse::HART_UNMASK, 0), ALREADY_STARTED, "unmask twice");
    for (event, handler) in both() {
        let before = handler.runs.load(SeqCst);
        ensure_eq!(handler.register(event, None), SUCCESS, "register");
        ensure_eq!(on(sse::ENABLE, event), SUCCESS, "enable");
        ensure_eq!(on(sse::HART_MASK, 0), SUCCESS, "mask");
        ensure_eq!(on(sse::HART_MASK, 0), ALREADY_STOPPED, "mask twice");
        ensure_eq!(inject(event, hart::id()), SUCCESS, "injection");
        ensure_eq!(handler.runs.load(SeqCst), before, "runs while masked");
        ensure_eq!(get(event, attribute::STATUS), Ok(0b1110), "status: enabled, pending, can be injected");
        ensure_eq!(on(sse::HART_UNMASK, 0), SUCCESS, "unmask");
        ensure_eq!(handler.runs.load(SeqCst), before + 1, "runs when no longer masked");
        let a6 = handler.interrupted[2].load(SeqCst);
        ensure_eq!(a6, sse::HART_UNMASK as u64, "the call that it interrupted");
        each(event, &[(sse::DISABLE, SUCCESS, 1), (sse::UNREGISTER, SUCCESS, 0)])?;
    }
    ensure_eq!(on(sse::COMPLETE, 0), INVALID_STATE, "completion of nothing");
    Ok(())
}

fn attributes() -> Check {
    for (event, _) in both() {
        ensure_eq!(get(event, attribute::STATUS), Ok(8), "status: unused, can be injected");
        for which in [attribute::STATUS, attribute::ENTRY_PC, attribute::ENTRY_PC + 1] {
            ensure_eq!(set(event, which, 0), DENIED, "attribute {which}");
        }
        for which in attribute::INTERRUPTED..10 {
            ensure_eq!(set(event, which, 0), INVALID_STATE, "attribute {which} of what is not interrupted");
        }
        // Numbers are 32 bits wide.
        ensure_eq!(get(event | 1 << 32, attribute::STATUS | 1 << 40), Ok(8), "numbers with more bits");
        for at in [0, 0x1000_0000, board().ram_end(), board().ram_end() - 8, 1 << 50, !7] {
            for call in [event::read, event::write] {
                ensure_eq!(call(event, 0, 10, at), INVALID_ADDRESS, "attributes at {at:#x}");
            }
        }
    }
    ensure_eq!(set(LOCAL, attribute::PREFERRED_HART, hart::id()), DENIED, "the hart of a local event");
    // Sources that the machine has not: RAS, double traps, counters that overflow.
    for event in [0, 1, 0x8000, 0x1_0000, 0x10_0000, 0x10_8000] {
        ensure_eq!(on(sse::ENABLE, event), NOT_SUPPORTED, "event {event:#x}");
    }
    Ok(())
}

/// A hart that stops with events starts without.
fn restart() -> Check {
    fn leaves(_: u64) {
        _ = (unmask(), FAR.register(LOCAL, None), on(sse::ENABLE, LOCAL));
    }
    fn looks(_: u64) {
        let is_fresh = on(sse::HART_MASK, 0) == ALREADY_STOPPED && get(LOCAL, attribute::STATUS) == Ok(8);
        READY.store(is_fresh, SeqCst);
    }
    for other in board().other_harts() {
        READY.store(false, SeqCst);
        hart::start(other, leaves, 0)?;
        hart::join(other)?;
        hart::start(other, looks, 0)?;
        hart::join(other)?;
        ensure!(READY.load(SeqCst), "hart {other} has an event of its earlier life");
    }
    Ok(())
}
