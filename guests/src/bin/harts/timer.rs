//! Timer interrupts by SBI and by Sstc, and the clock.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "stimecmp")]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use guests::trap::{enable, on_interrupt, pending, with_interrupts};
use guests::{Check, Named, board, ensure, ensure_eq, hart, run, sbi};
use metal::csr;
use rv::Interrupt::STimer;

guests::entry_point!(main);

fn main() {
    check_all("sbi", by_sbi);
    if board().has("sstc") {
        check_all("stimecmp", by_stimecmp);
        run("timer/stimecmp-reads-back", stimecmp_reads_back);
        run("timer/sbi-writes-stimecmp", sbi_writes_stimecmp);
    }
    run("timer/clock-is-monotonic", clock_is_monotonic);
    if board().hart_count > 1 {
        run("timer/clock-agrees-across-harts", clock_agrees);
        run("timer/each-hart-its-own", each_hart_its_own);
    }
}

/// A way of setting the timer.
type Set = fn(u64);
/// A check of one.
type WithSet = fn(Set) -> Check;

/// The checks that both ways of setting the timer have in common.
fn check_all(way: &str, set: Set) {
    let checks: [Named<WithSet>; 7] = [
        ("arrives", arrives),
        ("masked-stays-pending", masked_stays_pending),
        ("cleared-by-setting", cleared_by_setting),
        ("past-fires-at-once", past_fires_at_once),
        ("wakes-wfi", wakes_wfi),
        ("wfi-with-pending", wfi_with_pending),
        ("re-armed-100-times", rearmed),
    ];
    for (name, check) in checks {
        let name = guests::Text::of(format_args!("timer/{way}-{name}"));
        run(name.as_str(), || {
            let outcome = check(set);
            on_interrupt(None);
            guests::trap::disable(STimer.bit());
            set(u64::MAX);
            outcome
        });
    }
}

fn by_sbi(time: u64) {
    let error = sbi::set_timer(time);
    assert_eq!(error, 0, "set_timer");
}

fn by_stimecmp(time: u64) {
    // SAFETY: the vector handles the interrupt.
    unsafe { csr::stimecmp::write(time) };
}

fn now() -> u64 {
    csr::time::read()
}

fn count() -> u64 {
    hart::this().count(STimer)
}

fn is_pending() -> bool {
    pending() & STimer.bit() != 0
}

fn arrives(set: Set) -> Check {
    let (before, target) = (count(), now() + board().ticks(10));
    set(target);
    enable(STimer.bit());
    let came = with_interrupts(|| hart::wait_for(hart::PATIENCE_MS, || count() > before));
    ensure!(came, "no interrupt");
    ensure_eq!(count() - before, 1, "interrupts");
    let at = hart::this().interrupted_at.load(Relaxed);
    ensure!(at >= target, "{} ticks early", target - at);
    Ok(())
}

fn masked_stays_pending(set: Set) -> Check {
    let before = count();
    let target = now() + board().ticks(2);
    set(target);
    ensure!(!is_pending() || now() >= target, "pending early");
    with_interrupts(|| hart::wait_for(hart::PATIENCE_MS, is_pending));
    ensure!(is_pending() && now() >= target, "not pending");
    ensure_eq!(count(), before, "interrupts taken while disabled in sie");
    enable(STimer.bit());
    ensure_eq!(count(), before, "interrupts taken while SIE is clear");
    with_interrupts(|| hart::wait_for(hart::PATIENCE_MS, || count() > before));
    ensure_eq!(count(), before + 1, "interrupts taken once enabled");
    Ok(())
}

fn cleared_by_setting(set: Set) -> Check {
    let before = count();
    set(0);
    ensure!(hart::wait_for(hart::PATIENCE_MS, is_pending), "a timer of the past is not pending");
    set(u64::MAX);
    ensure!(!is_pending(), "pending though set far away");
    enable(STimer.bit());
    with_interrupts(|| hart::wait_for(20, || false));
    ensure_eq!(count(), before, "interrupts though set far away");
    // A level, not an edge: it comes back by itself when the time is again of the past.
    set(now() - 1);
    ensure!(hart::wait_for(hart::PATIENCE_MS, is_pending), "not pending again");
    Ok(())
}

fn past_fires_at_once(set: Set) -> Check {
    enable(STimer.bit());
    for time in [0, 1, now()] {
        let before = count();
        enable(STimer.bit());
        set(time);
        let came = with_interrupts(|| hart::wait_for(hart::PATIENCE_MS, || count() > before));
        ensure!(came, "no interrupt for time {time}");
    }
    Ok(())
}

/// WFI with interrupts off goes on when one becomes pending; it is not taken.
fn wakes_wfi(set: Set) -> Check {
    let before = count();
    enable(STimer.bit());
    for _ in 0..5 {
        let target = now() + board().ticks(5);
        set(target);
        while !is_pending() {
            metal::wait_for_interrupt(); // may return for no reason
        }
        let woke = now();
        ensure!(woke >= target, "pending {} ticks early", target - woke);
        let late = (woke - target) * 1000 / board().timebase;
        ensure!(late < hart::PATIENCE_MS, "woke {late} ms late");
    }
    ensure_eq!(count(), before, "interrupts taken");
    Ok(())
}

fn wfi_with_pending(set: Set) -> Check {
    set(0);
    enable(STimer.bit());
    ensure!(hart::wait_for(hart::PATIENCE_MS, is_pending), "not pending");
    // Nothing else will come: a WFI that slept now would sleep for ever.
    (0..10).for_each(|_| metal::wait_for_interrupt());
    ensure!(is_pending(), "WFI took the pending bit away");
    Ok(())
}

static EARLY: AtomicU64 = AtomicU64::new(0);
static TARGET: AtomicU64 = AtomicU64::new(0);
static SET: spin::Once<spin::Mutex<Set>> = spin::Once::new();

fn rearmed(set: Set) -> Check {
    *SET.call_once(|| spin::Mutex::new(set)).lock() = set;
    fn rearm(_: u64) {
        let now = now();
        if now < TARGET.load(Relaxed) {
            EARLY.fetch_add(1, Relaxed);
        }
        let next = now + board().ticks(1);
        TARGET.store(next, Relaxed);
        let set = *SET.get().expect("set before").lock();
        set(next);
    }
    EARLY.store(0, Relaxed);
    TARGET.store(0, Relaxed);
    let before = count();
    on_interrupt(Some(rearm));
    set(0);
    enable(STimer.bit());
    let end = now() + board().ticks(hart::PATIENCE_MS);
    with_interrupts(|| {
        while count() < before + 100 && now() < end {
            metal::wait_for_interrupt();
        }
    });
    ensure!(count() >= before + 100, "{} interrupts of 100", count() - before);
    ensure_eq!(EARLY.load(Relaxed), 0, "early ones");
    Ok(())
}

fn stimecmp_reads_back() -> Check {
    for time in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
        by_stimecmp(time);
        ensure_eq!(csr::stimecmp::read(), time, "stimecmp");
    }
    Ok(())
}

/// With Sstc, the firmware has no other timer to set than this one.
fn sbi_writes_stimecmp() -> Check {
    by_sbi(0x7654_3210_0000_0000);
    ensure_eq!(csr::stimecmp::read(), 0x7654_3210_0000_0000, "stimecmp after set_timer");
    by_stimecmp(u64::MAX);
    Ok(())
}

fn clock_is_monotonic() -> Check {
    let (start, mut before) = (now(), now());
    for _ in 0..200_000 {
        let after = now();
        ensure!(after >= before, "time went back by {}", before - after);
        before = after;
    }
    ensure!(before > start, "time stands still");
    Ok(())
}

static LATEST: AtomicU64 = AtomicU64::new(0);
static WENT_BACK: AtomicU64 = AtomicU64::new(0);
static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// No hart ever reads a time before one that another hart has read and published.
fn compare_clocks(rounds: u64) {
    for _ in 0..rounds {
        let seen = LATEST.load(SeqCst);
        let now = now();
        WENT_BACK.fetch_max(seen.saturating_sub(now), SeqCst);
        LATEST.fetch_max(now, SeqCst);
        ROUNDS.fetch_add(1, Relaxed);
    }
}

fn clock_agrees() -> Check {
    for other in board().other_harts() {
        hart::start(other, compare_clocks, 50_000)?;
    }
    compare_clocks(50_000);
    board().other_harts().try_for_each(hart::join)?;
    ensure_eq!(ROUNDS.load(Relaxed), 50_000 * board().hart_count as u64, "rounds");
    ensure_eq!(WENT_BACK.load(Relaxed), 0, "ticks that a hart is behind another");
    Ok(())
}

/// Each hart arms its timer for another time; each gets one interrupt, not before.
fn each_hart_its_own() -> Check {
    fn job(_: u64) {
        let (own, before) = (hart::this(), count());
        let target = now() + board().ticks(5 + 7 * hart::id());
        by_sbi(target);
        enable(STimer.bit());
        with_interrupts(|| hart::wait_for(hart::PATIENCE_MS, || count() > before));
        with_interrupts(|| hart::wait_for(20, || false));
        let early = target.saturating_sub(own.interrupted_at.load(Relaxed));
        own.entry[0].store(count() - before, Relaxed);
        own.entry[1].store(early, Relaxed);
        by_sbi(u64::MAX);
    }
    board().other_harts().try_for_each(|other| hart::start(other, job, 0))?;
    job(0);
    board().other_harts().try_for_each(hart::join)?;
    for id in board().harts() {
        let found = [0, 1].map(|field| hart::of(*id).entry[field].load(Relaxed));
        ensure_eq!(found, [1, 0], "interrupts and ticks early on hart {id}");
    }
    Ok(())
}
