//! Starting, stopping and suspending harts.
//!
//! Boot argument: for how many milliseconds harts race (100 if missing).
#![no_std]
#![no_main]

mod races;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use guests::paging::Space;
use guests::sbi::{
    ALREADY_AVAILABLE, INVALID_ADDRESS, INVALID_PARAM, NOT_SUPPORTED, SUCCESS, call, hart_start, hart_status,
};
use guests::sleep::Woken;
use guests::trap::{disable, enable, pending};
use guests::{Check, board, ensure, ensure_eq, hart, paging, run, sbi, sleep};
use rv::Interrupt::{SSoft, STimer};
use rv::csr::status;
use rv::format::SV39;
use sbi_spec::hsm::{self, hart_state, suspend_type};

guests::entry_point!(main);

fn main() {
    run("hsm/own-status", own_status);
    run("hsm/start-self", || start_error(hart::id(), hart::entry_address(), ALREADY_AVAILABLE));
    run("hsm/start-absent", start_absent);
    run("hsm/suspend-until-timer", suspend_until_timer);
    run("hsm/suspend-bad-type", suspend_bad_type);
    run("hsm/sleep-until-timer", sleep_until_timer);
    run("hsm/sleep-though-pending", sleep_though_pending);
    run("hsm/sleep-bad-address", sleep_bad_address);
    if board().hart_count > 1 {
        run("hsm/start-bad-address", start_bad_address);
        run("hsm/start-all", start_all);
        run("hsm/start-started", start_started);
        run("hsm/status-transitions", status_transitions);
        run("hsm/stop-and-start-20-times", stop_and_start);
        run("hsm/memory-is-shared", memory_is_shared);
        run("hsm/suspend-until-ipi", suspend_until_ipi);
        run("hsm/sleep-until-ipi", sleep_until_ipi);
        run("hsm/races", races::races);
    }
    if board().hart_count > 2 {
        run("hsm/one-start-wins", one_start_wins);
        run("hsm/harts-start-harts", harts_start_harts);
    }
}

fn own_status() -> Check {
    ensure_eq!(hart_status(hart::id()), (SUCCESS, hart_state::STARTED as u64), "status");
    Ok(())
}

fn start_error(target: u64, at: u64, expected: i64) -> Check {
    ensure_eq!(hart_start(target, at, 0), expected, "hart_start of {target} at {at:#x}");
    Ok(())
}

fn start_absent() -> Check {
    for absent in [board().hart_count as u64, 63, 1 << 20, u64::MAX] {
        start_error(absent, hart::entry_address(), INVALID_PARAM)?;
    }
    Ok(())
}

/// Addresses that no hart could fetch from: Gnomon knows its guest's RAM; OpenSBI guards itself.
fn start_bad_address() -> Check {
    let Some(other) = board().other_harts().next() else { guests::fail!("no other hart") };
    if sbi::is_gnomon() {
        for at in [0, 0x1000_0000, 0x4000_0000, board().ram_end(), 1 << 50, !3] {
            start_error(other, at, INVALID_ADDRESS)?;
        }
    } else {
        start_error(other, 0x8000_0000, INVALID_ADDRESS)?;
    }
    ensure_eq!(hart_status(other), (SUCCESS, hart_state::STOPPED as u64), "status after the error");
    Ok(())
}

fn start_all() -> Check {
    fn job(_: u64) {}
    let opaque = |id: u64| 0xdead_beef_0000_0000 | id;
    board().other_harts().try_for_each(|other| hart::start(other, job, opaque(other)))?;
    board().other_harts().try_for_each(hart::join)?;
    for other in board().other_harts() {
        let [a0, a1, sstatus, satp] = hart::of(other).entry.each_ref().map(|field| field.load(Relaxed));
        ensure_eq!(a0, other, "a0");
        ensure_eq!(a1, opaque(other), "a1");
        ensure_eq!(sstatus & status::SIE, 0, "sstatus.SIE");
        ensure_eq!(satp, 0, "satp");
    }
    Ok(())
}

static GO: AtomicBool = AtomicBool::new(false);

fn wait_for_go(_: u64) {
    while !GO.load(SeqCst) {
        core::hint::spin_loop();
    }
}

fn start_started() -> Check {
    GO.store(false, SeqCst);
    board().other_harts().try_for_each(|other| hart::start(other, wait_for_go, 0))?;
    // On the way up, OpenSBI finds a second start invalid rather than late.
    let all_up = || board().other_harts().all(|other| hart_status(other).1 == hart_state::STARTED as u64);
    let outcome = if hart::wait_for(hart::PATIENCE_MS, all_up) {
        board().other_harts().try_for_each(|other| start_error(other, hart::entry_address(), ALREADY_AVAILABLE))
    } else {
        Err(guests::Text::of(format_args!("not all become started")))
    };
    GO.store(true, SeqCst);
    board().other_harts().try_for_each(hart::join)?;
    outcome
}

/// Stopped, perhaps start pending, started; perhaps stop pending, stopped. Never another order.
fn status_transitions() -> Check {
    for other in board().other_harts() {
        ensure_eq!(hart_status(other), (SUCCESS, hart_state::STOPPED as u64), "before");
        GO.store(false, SeqCst);
        hart::start(other, wait_for_go, 0)?;
        let is = |state: usize| move || hart_status(other).1 == state as u64;
        ensure!(!is(hart_state::STOPPED)(), "stopped after its start");
        ensure!(hart::wait_for(hart::PATIENCE_MS, is(hart_state::STARTED)), "does not become started");
        for _ in 0..1000 {
            ensure!(is(hart_state::STARTED)(), "left the state by itself: {:?}", hart_status(other));
        }
        GO.store(true, SeqCst);
        let end = metal::time() + board().ticks(hart::PATIENCE_MS);
        loop {
            let (error, state) = hart_status(other);
            ensure_eq!(error, SUCCESS, "status");
            let allowed = [hart_state::STARTED, hart_state::STOP_PENDING, hart_state::STOPPED];
            ensure!(allowed.map(|s| s as u64).contains(&state), "state {state} on the way down");
            if state == hart_state::STOPPED as u64 {
                break;
            }
            ensure!(metal::time() < end, "does not stop");
        }
    }
    Ok(())
}

fn stop_and_start() -> Check {
    fn job(_: u64) {
        // What a guest leaves in these must not matter to its next start.
        enable(STimer.bit());
    }
    for round in 0..20 {
        for other in board().other_harts() {
            let before = hart::of(other).starts.load(Relaxed);
            hart::start(other, job, round)?;
            hart::join(other)?;
            ensure_eq!(hart::of(other).starts.load(Relaxed), before + 1, "starts of hart {other}");
            let [a0, a1, sstatus, satp] = hart::of(other).entry.each_ref().map(|field| field.load(Relaxed));
            ensure_eq!((a0, a1, sstatus & status::SIE, satp), (other, round, 0, 0), "a0, a1, SIE, satp");
        }
    }
    Ok(())
}

static CELL: AtomicU64 = AtomicU64::new(0);

fn memory_is_shared() -> Check {
    fn add(rounds: u64) {
        (0..rounds).for_each(|_| _ = CELL.fetch_add(1, Relaxed));
    }
    CELL.store(0, Relaxed);
    board().other_harts().try_for_each(|other| hart::start(other, add, 100_000))?;
    add(100_000);
    board().other_harts().try_for_each(hart::join)?;
    ensure_eq!(CELL.load(Relaxed), 100_000 * board().hart_count as u64, "atomic additions");
    Ok(())
}

fn suspend(kind: u32) -> i64 {
    call(hsm::EID_HSM, hsm::HART_SUSPEND, [u64::from(kind), 0, 0, 0, 0, 0]).0
}

/// Retentive suspend is an extra: a firmware may say that it has none.
fn suspend_until_timer() -> Check {
    let target = metal::time() + board().ticks(20);
    sbi::set_timer(target);
    enable(STimer.bit());
    let error = suspend(suspend_type::RETENTIVE);
    disable(STimer.bit());
    let (woke, is_pending) = (metal::time(), pending() & STimer.bit() != 0);
    sbi::set_timer(u64::MAX);
    if error == NOT_SUPPORTED {
        return Ok(());
    }
    ensure_eq!(error, SUCCESS, "hart_suspend");
    ensure!(is_pending && woke >= target, "woke for nothing");
    Ok(())
}

fn suspend_bad_type() -> Check {
    for kind in [1, 0x0fff_ffff] {
        let error = suspend(kind);
        ensure!([INVALID_PARAM, NOT_SUPPORTED].contains(&error), "type {kind:#x}: {error}");
    }
    let here = hart::entry_address();
    for (kind, expected) in [
        // Reserved, and what a platform may have.
        (1, INVALID_PARAM),
        (0x0fff_ffff, INVALID_PARAM),
        (LOSES + 1, INVALID_PARAM),
        (LOSES + 0x0fff_ffff, INVALID_PARAM),
        (0x1000_0000, NOT_SUPPORTED),
        (0x7fff_ffff, NOT_SUPPORTED),
        (LOSES + 0x1000_0000, NOT_SUPPORTED),
        (LOSES + 0x7fff_ffff, NOT_SUPPORTED),
    ] {
        let (error, _) = call(hsm::EID_HSM, hsm::HART_SUSPEND, [kind, here, 0, 0, 0, 0]);
        ensure_eq!(error, expected, "type {kind:#x}");
    }
    Ok(())
}

const LOSES: u64 = suspend_type::NON_RETENTIVE as u64;

/// The expected state of a hart that has slept without its state.
fn is_anew(woken: &Woken) -> Check {
    ensure_eq!((woken.hart, woken.has_opaque), (hart::id(), true), "a0, whether a1 is the opaque value");
    ensure_eq!((woken.sstatus & status::SIE, woken.satp), (0, 0), "sstatus.SIE, satp");
    Ok(())
}

/// Sleeps without its state, with translation on, until a timer of some milliseconds.
fn sleep_for(milliseconds: u64) -> Check {
    let space = Space::new(&SV39, 0);
    let target = metal::time() + board().ticks(milliseconds);
    sbi::set_timer(target);
    enable(STimer.bit());
    space.enter();
    let woken = sleep::suspend(LOSES);
    let (woke, is_pending) = (metal::time(), pending() & STimer.bit() != 0);
    paging::leave();
    disable(STimer.bit());
    sbi::set_timer(u64::MAX);
    let Ok(woken) = woken else { guests::fail!("hart_suspend: {woken:?}") };
    is_anew(&woken)?;
    ensure!(is_pending && woke >= target, "woke for nothing");
    ensure_eq!(hart_status(hart::id()), (SUCCESS, hart_state::STARTED as u64), "status afterwards");
    Ok(())
}

fn sleep_until_timer() -> Check {
    (0..3).try_for_each(|_| sleep_for(5))
}

/// The interrupt that ends the sleep is pending before it begins: the state is lost nevertheless.
fn sleep_though_pending() -> Check {
    sleep_for(0)
}

fn sleep_bad_address() -> Check {
    // OpenSBI guards itself, Gnomon knows its guest's RAM.
    let bad: &[u64] = if sbi::is_gnomon() { &[0, 0x1000_0000, 0x4000_0000, 1 << 50, !3] } else { &[0x8000_0000] };
    for at in bad {
        for kind in [LOSES, LOSES | 0x1000_0000] {
            let (error, _) = call(hsm::EID_HSM, hsm::HART_SUSPEND, [kind, *at, 0, 0, 0, 0]);
            ensure_eq!(error, INVALID_ADDRESS, "type {kind:#x} at {at:#x}");
        }
    }
    Ok(())
}

static SLEPT: AtomicU64 = AtomicU64::new(0);

fn sleep_until_ipi() -> Check {
    fn job(_: u64) {
        enable(SSoft.bit());
        let woken = sleep::suspend(LOSES);
        let is_pending = || pending() & SSoft.bit() != 0;
        // OpenSBI passes the IPI on that it woke by.
        let comes = hart::wait_for(hart::PATIENCE_MS, is_pending);
        let is_right = woken.is_ok_and(|woken| is_anew(&woken).is_ok()) && comes;
        SLEPT.store(if is_right { 1 } else { 2 }, SeqCst);
    }
    for other in board().other_harts() {
        SLEPT.store(0, SeqCst);
        hart::start(other, job, 0)?;
        let is_suspended = || hart_status(other).1 == hart_state::SUSPENDED as u64;
        ensure!(hart::wait_for(hart::PATIENCE_MS, is_suspended), "hart {other} does not suspend");
        ensure_eq!(sbi::send_ipi(1, other), SUCCESS, "send_ipi");
        hart::join(other)?;
        ensure_eq!(SLEPT.load(SeqCst), 1, "how hart {other} came back");
    }
    Ok(())
}

static SUSPEND_ERROR: AtomicU64 = AtomicU64::new(0);

fn suspend_until_ipi() -> Check {
    fn job(_: u64) {
        enable(SSoft.bit());
        SUSPEND_ERROR.store(suspend(suspend_type::RETENTIVE) as u64, SeqCst);
        disable(SSoft.bit());
    }
    let unset = 1 << 40;
    for other in board().other_harts() {
        SUSPEND_ERROR.store(unset, SeqCst);
        hart::start(other, job, 0)?;
        let is_suspended = || hart_status(other).1 == hart_state::SUSPENDED as u64;
        let is_through = || SUSPEND_ERROR.load(SeqCst) != unset;
        ensure!(hart::wait_for(hart::PATIENCE_MS, || is_suspended() || is_through()), "neither suspended nor back");
        if !is_through() {
            ensure_eq!(sbi::send_ipi(1, other), SUCCESS, "send_ipi");
            ensure!(hart::wait_for(hart::PATIENCE_MS, is_through), "the IPI does not wake hart {other}");
        }
        let error = SUSPEND_ERROR.load(SeqCst) as i64;
        ensure!([SUCCESS, NOT_SUPPORTED].contains(&error), "hart_suspend returned {error}");
        hart::join(other)?;
    }
    Ok(())
}

static WINNERS: AtomicU64 = AtomicU64::new(0);
static LOSERS: AtomicU64 = AtomicU64::new(0);
static RACERS: AtomicU64 = AtomicU64::new(0);

/// Tries to start `target` together with another hart.
fn race(target: u64) {
    RACERS.fetch_add(1, SeqCst);
    while RACERS.load(SeqCst) < 2 {
        core::hint::spin_loop();
    }
    match hart_start(target, hart::entry_address(), 0) {
        SUCCESS => WINNERS.fetch_add(1, SeqCst),
        // The second is OpenSBI's word while the first start is pending.
        ALREADY_AVAILABLE | INVALID_PARAM => LOSERS.fetch_add(1, SeqCst),
        error => panic!("hart_start returned {error}"),
    };
}

fn one_start_wins() -> Check {
    let mut others = board().other_harts();
    let (Some(racer), Some(target)) = (others.next(), others.next()) else { guests::fail!("too few harts") };
    for round in 0..20 {
        for counter in [&WINNERS, &LOSERS, &RACERS] {
            counter.store(0, SeqCst);
        }
        let before = hart::of(target).starts.load(SeqCst);
        hart::start(racer, race, target)?;
        race(target);
        hart::join(racer)?;
        let (won, lost) = (WINNERS.load(SeqCst), LOSERS.load(SeqCst));
        ensure!(won >= 1 && won + lost == 2, "round {round}: {won} won, {lost} lost");
        let started = || hart::of(target).starts.load(SeqCst) == before + won;
        ensure!(hart::wait_for(hart::PATIENCE_MS, started), "round {round}: {won} starts, but not as many arrivals");
        hart::join(target)?;
    }
    Ok(())
}

/// A chain: each hart starts the next one.
fn harts_start_harts() -> Check {
    fn next(left: u64) {
        CELL.fetch_add(1, SeqCst);
        let after = board().other_harts().find(|id| *id > hart::id() && *id != board().boot_hart);
        if let (1.., Some(after)) = (left, after) {
            assert!(hart::start(after, next, left - 1).is_ok(), "start of {after}");
        }
    }
    CELL.store(0, SeqCst);
    let Some(first) = board().other_harts().next() else { guests::fail!("no other hart") };
    hart::start(first, next, 100)?;
    let all = board().hart_count as u64 - 1;
    ensure!(hart::wait_for(hart::PATIENCE_MS, || CELL.load(SeqCst) == all), "{} of {all} came", CELL.load(SeqCst));
    board().other_harts().try_for_each(hart::join)
}
