//! Interrupts: of the guest, and of the hypervisor while its guest runs.

use crate::guest::{CODE, machine, run as run_guest};
use crate::reset;
use guests::hart;
use guests::user::User;
use guests::{Check, board, ensure, ensure_eq, run, sbi, trap};
use metal::csr;
use rv::csr::{envcfg, status};
use rv::{Interrupt, Mode};

const INTERRUPT: u64 = 1 << 63;

pub fn run_all() {
    run("nested/interrupt-delegated", delegated);
    run("nested/interrupt-undelegated", undelegated);
    run("nested/interrupt-of-the-hypervisor", own);
    run("nested/interrupt-in-the-hypervisor", in_the_hypervisor);
    if board().has("sstc") {
        run("nested/timer", timer);
    }
}

crate::code! {
    // The handler is at offset 32.
    spins: "1: j 1b", ".balign 32", "csrr a0, scause", "csrr a1, sip", "ecall";
    // Waits until the clock says a0, which it has set its comparator to.
    sleeps: "csrw stimecmp, a0", "1: j 1b", ".balign 32", "csrr a0, scause", "rdtime a1", "ecall";
}

fn delegated() -> Check {
    for (interrupt, cause) in [(Interrupt::VsSoft, 1), (Interrupt::VsTimer, 5), (Interrupt::VsExternal, 9)] {
        reset();
        let _ = machine(spins(), 1);
        // SAFETY: the guest's own.
        unsafe {
            csr::hideleg::write(0x444);
            csr::vstvec::write(CODE + 32);
            csr::vsie::write(0x222);
            csr::vsstatus::write(status::SIE);
            csr::hvip::write(interrupt.bit());
        }
        let mut user = User::at(CODE);
        let trap = run_guest(&mut user, Mode::Supervisor);
        ensure_eq!((trap.cause, user.x[10]), (10, INTERRUPT | cause), "the call of the handler, and its cause");
        ensure_eq!(user.x[11] & 0x222, interrupt.bit() >> 1, "sip in the handler");
    }
    reset();
    Ok(())
}

fn undelegated() -> Check {
    for interrupt in [Interrupt::VsSoft, Interrupt::VsTimer, Interrupt::VsExternal] {
        reset();
        let _ = machine(spins(), 1);
        // SAFETY: the handler is this program's.
        unsafe {
            csr::hie::write(interrupt.bit());
            csr::hvip::write(interrupt.bit());
        }
        let trap = run_guest(&mut User::at(CODE), Mode::Supervisor);
        ensure_eq!((trap.cause, trap.epc), (INTERRUPT | interrupt as u64, CODE), "cause and sepc");
    }
    reset();
    Ok(())
}

/// The hypervisor's own timer ends its guest's run.
fn own() -> Check {
    reset();
    let _ = machine(spins(), 1);
    for n in 0..5 {
        let until = metal::time() + 10_000;
        sbi::set_timer(until);
        trap::enable(Interrupt::STimer.bit());
        let trap = run_guest(&mut User::at(CODE), Mode::Supervisor);
        trap::disable(Interrupt::STimer.bit());
        sbi::set_timer(u64::MAX);
        ensure_eq!(trap.cause, INTERRUPT | 5, "cause, round {n}");
        ensure!(metal::time() >= until, "the timer of round {n} comes too early");
    }
    Ok(())
}

/// An interrupt of the guest's that is not delegated comes while the hypervisor itself runs.
fn in_the_hypervisor() -> Check {
    fn take(_: u64) {
        // SAFETY: its source.
        unsafe { csr::hvip::write(0) };
    }
    reset();
    trap::on_interrupt(Some(take));
    let before = hart::this().count(Interrupt::VsSoft);
    let after = trap::with_interrupts(|| {
        // SAFETY: the handler is this program's.
        unsafe {
            csr::hie::write(Interrupt::VsSoft.bit());
            csr::hvip::write(Interrupt::VsSoft.bit());
        }
        hart::this().count(Interrupt::VsSoft)
    });
    trap::on_interrupt(None);
    reset();
    ensure_eq!(after, before + 1, "interrupts taken");
    Ok(())
}

fn timer() -> Check {
    reset();
    let _ = machine(sleeps(), 1);
    let delta = 0_u64.wrapping_sub(metal::time() / 2);
    // SAFETY: the guest's own.
    unsafe {
        csr::hideleg::write(0x444);
        csr::henvcfg::write(envcfg::STCE);
        csr::hcounteren::write(7);
        csr::htimedelta::write(delta);
        csr::vstvec::write(CODE + 32);
        csr::vsie::write(0x20);
        csr::vsstatus::write(status::SIE);
        csr::vstimecmp::write(u64::MAX);
    }
    let mut user = User::at(CODE);
    let until = metal::time().wrapping_add(delta) + 20_000;
    user.x[10] = until;
    let trap = run_guest(&mut user, Mode::Supervisor);
    let now = metal::time().wrapping_add(delta);
    ensure_eq!((trap.cause, user.x[10]), (10, INTERRUPT | 5), "the call of the handler, and its cause");
    ensure!(until <= user.x[11] && user.x[11] <= now, "time in the handler {}, not from {until} to {now}", user.x[11]);
    ensure_eq!(csr::vstimecmp::read(), until, "vstimecmp");
    // It is in the hypervisor's view of what is pending, until the comparator is ahead.
    ensure!(csr::hip::read() & Interrupt::VsTimer.bit() != 0, "hip.VSTIP is clear");
    // SAFETY: the guest's own.
    unsafe { csr::vstimecmp::write(u64::MAX) };
    ensure!(csr::hip::read() & Interrupt::VsTimer.bit() == 0, "hip.VSTIP is set");
    reset();
    Ok(())
}
