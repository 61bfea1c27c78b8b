//! Software interrupts: by SBI to any set of harts, and by SSIP itself.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "sip")]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use guests::sbi::{ALL_HARTS, SUCCESS, send_ipi};
use guests::trap::{disable, enable, pending, with_interrupts};
use guests::{Check, board, ensure, ensure_eq, hart, run};
use metal::csr;
use rv::Interrupt::SSoft;

guests::entry_point!(main);

fn main() {
    run("ipi/to-self", to_self);
    run("ipi/by-ssip", by_ssip);
    run("ipi/coalesce", coalesce);
    run("ipi/clear-before-taken", clear_before_taken);
    run("ipi/wakes-wfi", wakes_wfi);
    run("ipi/mask-forms", mask_forms);
    if board().hart_count > 1 {
        run("ipi/to-each-other", to_each_other);
        run("ipi/to-all", to_all);
        run("ipi/ping-pong", ping_pong);
        run("ipi/storm", storm);
    }
}

fn count() -> u64 {
    hart::this().count(SSoft)
}

fn is_pending() -> bool {
    pending() & SSoft.bit() != 0
}

fn clear() {
    // SAFETY: a pending bit of this hart's.
    unsafe { csr::sip::clear(SSoft.bit()) };
}

/// Takes what is pending; says how many interrupts came. Each was cleared by the handler.
fn take() -> u64 {
    let before = count();
    enable(SSoft.bit());
    with_interrupts(|| hart::wait_for(20, || false));
    disable(SSoft.bit());
    count() - before
}

fn send(mask: u64, mask_base: u64) -> Check {
    ensure_eq!(send_ipi(mask, mask_base), SUCCESS, "send_ipi({mask:#x}, {mask_base:#x})");
    Ok(())
}

/// An IPI to oneself through the firmware may take a moment on a bare machine.
fn arrives() -> Check {
    ensure!(hart::wait_for(hart::PATIENCE_MS, is_pending), "SSIP does not come");
    Ok(())
}

fn to_self() -> Check {
    ensure!(!is_pending(), "pending before");
    let before = count();
    send(1, hart::id())?;
    arrives()?;
    ensure_eq!(count(), before, "interrupts taken while disabled");
    ensure_eq!(take(), 1, "interrupts");
    ensure!(!is_pending(), "pending after");
    Ok(())
}

/// SSIP is software's to write.
fn by_ssip() -> Check {
    // SAFETY: a pending bit of this hart's.
    unsafe { csr::sip::set(SSoft.bit()) };
    ensure!(is_pending(), "SSIP cannot be set");
    ensure_eq!(take(), 1, "interrupts");
    ensure!(!is_pending(), "SSIP stays");
    Ok(())
}

fn coalesce() -> Check {
    for _ in 0..3 {
        send(1, hart::id())?;
        arrives()?;
    }
    ensure_eq!(take(), 1, "interrupts of three IPIs");
    Ok(())
}

fn clear_before_taken() -> Check {
    send(1, hart::id())?;
    arrives()?;
    clear();
    ensure!(!is_pending(), "SSIP cannot be cleared");
    ensure_eq!(take(), 0, "interrupts after clearing");
    Ok(())
}

fn wakes_wfi() -> Check {
    enable(SSoft.bit());
    send(1, hart::id())?;
    ensure!(hart::sleep_until(is_pending), "SSIP does not come");
    // Pending already: returns.
    metal::wait_for_interrupt();
    disable(SSoft.bit());
    ensure_eq!(take(), 1, "interrupts");
    Ok(())
}

fn mask_forms() -> Check {
    let own = hart::id();
    let mut forms = [(1 << own, 0), (1, own), (1, own), (0, ALL_HARTS)];
    if own > 0 {
        forms[2] = (1 << 1, own - 1);
    }
    for (mask, mask_base) in forms {
        send(mask, mask_base)?;
        arrives()?;
        ensure_eq!(take(), 1, "interrupts by ({mask:#x}, {mask_base:#x})");
    }
    Ok(())
}

static STOP: AtomicBool = AtomicBool::new(false);
static READY: AtomicU64 = AtomicU64::new(0);

/// Takes IPIs until told to stop.
fn listen(_: u64) {
    enable(SSoft.bit());
    READY.fetch_add(1, SeqCst);
    // Interrupts are let in only after WFI: one taken between the look at STOP and a WFI would leave
    // that WFI asleep.
    while !STOP.load(SeqCst) {
        metal::wait_for_interrupt();
        with_interrupts(|| ());
    }
    disable(SSoft.bit());
}

fn with_listeners(check: impl FnOnce() -> Check) -> Check {
    STOP.store(false, SeqCst);
    READY.store(0, SeqCst);
    board().other_harts().try_for_each(|other| hart::start(other, listen, 0))?;
    let expected = board().hart_count as u64 - 1;
    ensure!(hart::wait_for(hart::PATIENCE_MS, || READY.load(SeqCst) == expected), "not all harts listen");
    let outcome = check();
    STOP.store(true, SeqCst);
    for other in board().other_harts() {
        send(1, other)?;
    }
    board().other_harts().try_for_each(hart::join)?;
    outcome
}

fn to_each_other() -> Check {
    with_listeners(|| {
        for target in board().other_harts() {
            let before = board().hart_ids.map(|id| hart::of(id).count(SSoft));
            let came = || hart::of(target).count(SSoft) > before[index(target)];
            send(1 << target, 0)?;
            ensure!(hart::wait_for(hart::PATIENCE_MS, came), "hart {target} got none");
            hart::wait_for(5, || false);
            for id in board().harts() {
                let more = hart::of(*id).count(SSoft) - before[index(*id)];
                ensure_eq!(more, u64::from(*id == target), "interrupts on hart {id} of one to {target}");
            }
        }
        Ok(())
    })
}

fn index(id: u64) -> usize {
    board().harts().iter().position(|other| *other == id).expect("a hart")
}

fn to_all() -> Check {
    with_listeners(|| {
        for round in 0..10 {
            let before = board().hart_ids.map(|id| hart::of(id).count(SSoft));
            send(if round % 2 == 0 { 0 } else { u64::MAX }, ALL_HARTS)?;
            arrives()?;
            ensure_eq!(take(), 1, "interrupts on the sender");
            for other in board().other_harts() {
                let came = || hart::of(other).count(SSoft) == before[index(other)] + 1;
                ensure!(hart::wait_for(hart::PATIENCE_MS, came), "hart {other} got none in round {round}");
            }
        }
        Ok(())
    })
}

const ROUNDS: u64 = 1000;
static PING: AtomicU64 = AtomicU64::new(0);
static PONG: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);

/// Waits for one IPI and clears it; says whether it came.
fn receive() -> bool {
    let came = hart::sleep_until(is_pending);
    clear();
    came
}

/// Answers each IPI with one. What was stored before an IPI is there when it arrives.
fn answer(to: u64) {
    clear(); // one to stop may have come late
    enable(SSoft.bit());
    READY.store(1, SeqCst);
    for round in 1..=ROUNDS {
        if !receive() || PING.load(Relaxed) != round {
            WRONG.fetch_add(1, SeqCst);
        }
        PONG.store(round, Relaxed);
        if send_ipi(1, to) != SUCCESS {
            WRONG.fetch_add(1, SeqCst);
        }
    }
    disable(SSoft.bit());
}

fn ping_pong() -> Check {
    clear();
    enable(SSoft.bit());
    for other in board().other_harts() {
        READY.store(0, SeqCst);
        hart::start(other, answer, hart::id())?;
        ensure!(hart::wait_for(hart::PATIENCE_MS, || READY.load(SeqCst) == 1), "hart {other} is not ready");
        for round in 1..=ROUNDS {
            PING.store(round, Relaxed);
            send(1, other)?;
            ensure!(receive(), "no answer of hart {other} in round {round}");
            ensure_eq!(PONG.load(Relaxed), round, "answer of hart {other}");
        }
        hart::join(other)?;
    }
    disable(SSoft.bit());
    ensure_eq!(WRONG.load(SeqCst), 0, "rounds gone wrong on the other side");
    Ok(())
}

/// All harts send to all harts; none may hang, and none misses the last IPI.
fn storm() -> Check {
    fn shout(_: u64) {
        enable(SSoft.bit());
        with_interrupts(|| (0..100).for_each(|_| assert_eq!(send_ipi(0, ALL_HARTS), SUCCESS, "send_ipi")));
        disable(SSoft.bit());
    }
    with_listeners(|| {
        let before = board().hart_ids.map(|id| hart::of(id).count(SSoft));
        shout(0);
        for other in board().other_harts() {
            let more = || hart::of(other).count(SSoft) - before[index(other)];
            ensure!(hart::wait_for(hart::PATIENCE_MS, || more() > 0), "hart {other} got none");
            ensure!(more() <= 100, "hart {other} got {} interrupts of 100 IPIs", more());
        }
        Ok(())
    })?;
    board().other_harts().try_for_each(|other| hart::start(other, shout, 0))?;
    shout(0);
    board().other_harts().try_for_each(hart::join)?;
    clear();
    Ok(())
}
