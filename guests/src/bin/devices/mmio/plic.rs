//! The PLIC's registers, and the UART's interrupt through it.

use super::*;

fn context(id: u64) -> u64 {
    2 * id + 1
}

pub fn enable_register(id: u64) -> u64 {
    PLIC + 0x2000 + 0x80 * context(id)
}

pub fn threshold_register(id: u64) -> u64 {
    PLIC + 0x20_0000 + 0x1000 * context(id)
}

pub fn claim_register(id: u64) -> u64 {
    threshold_register(id) + 4
}

fn is_pending() -> bool {
    in32(PLIC + 0x1000) & 1 << SOURCE != 0
}

fn is_raised() -> bool {
    pending() & SExternal.bit() != 0
}

fn set_priority(priority: u32) {
    out32(PLIC + 4 * u64::from(SOURCE), priority);
}

pub fn registers() -> Check {
    for priority in [7, 1, 0] {
        set_priority(priority);
        ensure_eq!(in32(PLIC + 4 * u64::from(SOURCE)), priority, "priority");
    }
    for id in board().harts() {
        out32(enable_register(*id), 1 << SOURCE);
        ensure_eq!(in32(enable_register(*id)), 1 << SOURCE, "enables of hart {id}");
        out32(threshold_register(*id), 3);
        ensure_eq!(in32(threshold_register(*id)), 3, "threshold of hart {id}");
        for other in board().harts().iter().filter(|other| *other > id) {
            ensure_eq!(in32(enable_register(*other)), 0, "enables of hart {other}, not written");
        }
    }
    // Source 0 does not exist.
    out32(enable_register(hart::id()), 0xffff_ffff);
    ensure_eq!(in32(PLIC) & 7, 0, "priority of source 0");
    Ok(())
}

/// Word registers by `lw`, `lwu` and the compressed forms.
pub fn words() -> Check {
    let at = enable_register(hart::id());
    out32(threshold_register(hart::id()), 7);
    for value in [0x0000_0400_u32, 0xffff_fffe, 0x8000_0000] {
        ensure_eq!(access::sw(at, u64::from(value)), Ok(()), "sw");
        let found = in32(at);
        ensure_eq!(access::lwu(at), Ok(u64::from(found)), "lwu");
        ensure_eq!(access::lw(at), Ok(found as i32 as u64), "lw");
        let loaded: u64;
        // SAFETY: a PLIC register.
        unsafe { asm!("c.sw a1, 0(a0)", "c.lw a1, 0(a0)", in("a0") at, inout("a1") u64::from(value) => loaded) };
        ensure_eq!(loaded, found as i32 as u64, "c.sw, c.lw");
    }
    Ok(())
}

pub fn nothing_to_claim() -> Check {
    for id in board().harts() {
        ensure_eq!(in32(claim_register(*id)), 0, "claim of hart {id}");
        // Completing what was not claimed does nothing.
        out32(claim_register(*id), SOURCE);
        out32(claim_register(*id), 0);
    }
    ensure!(!is_raised(), "an interrupt out of nothing");
    Ok(())
}

/// Routes the UART's interrupt to this hart: raised, taken, claimed once, gone after completion.
pub fn deliver(id: u64) -> Check {
    let before = hart::this().count(SExternal);
    set_priority(1);
    out32(threshold_register(id), 0);
    out32(enable_register(id), 1 << SOURCE);
    ensure!(!is_raised(), "raised before");
    out8(UART + IER, IER_THRE);
    ensure!(hart::wait_for(hart::PATIENCE_MS, is_raised), "not raised");
    enable(SExternal.bit());
    guests::trap::with_interrupts(|| hart::wait_for(hart::PATIENCE_MS, || hart::this().count(SExternal) > before));
    disable(SExternal.bit());
    ensure_eq!(hart::this().count(SExternal), before + 1, "interrupts taken");
    ensure!(is_pending(), "not pending in the PLIC");
    ensure_eq!(in32(claim_register(id)), SOURCE, "claim");
    ensure!(!is_pending(), "pending though claimed");
    ensure!(hart::wait_for(hart::PATIENCE_MS, || !is_raised()), "raised though claimed");
    ensure_eq!(in32(claim_register(id)), 0, "second claim");
    ensure_eq!(in8(UART + IIR) & 0x0f, 0x02, "identification");
    out32(claim_register(id), SOURCE);
    hart::wait_for(5, || false);
    ensure!(!is_raised() && !is_pending(), "raised again though the UART was served");
    out8(UART + IER, 0);
    out32(enable_register(id), 0);
    Ok(())
}

/// A load into x0 from the claim register claims.
pub fn claim_into_x0() -> Check {
    set_priority(1);
    out32(enable_register(hart::id()), 1 << SOURCE);
    out8(UART + IER, IER_THRE);
    ensure!(hart::wait_for(hart::PATIENCE_MS, is_raised), "not raised");
    // SAFETY: a PLIC register.
    unsafe { asm!("lw x0, 0({})", in(reg) claim_register(hart::id()), options(nostack)) };
    ensure!(hart::wait_for(hart::PATIENCE_MS, || !is_raised()), "not claimed");
    let _ = in8(UART + IIR);
    out32(claim_register(hart::id()), SOURCE);
    Ok(())
}

/// THRE is shown in IIR until it is read there, even after the interrupt has been completed: drivers with threaded
/// handlers read it later.
pub fn served_after_completion() -> Check {
    let id = hart::id();
    set_priority(1);
    out32(threshold_register(id), 0);
    out32(enable_register(id), 1 << SOURCE);
    out8(UART + IER, IER_THRE);
    ensure!(hart::wait_for(hart::PATIENCE_MS, is_raised), "not raised");
    ensure_eq!(in32(claim_register(id)), SOURCE, "claim");
    // As Linux does between its two handlers: no interrupt is to come before the second one is done.
    set_priority(0);
    out32(claim_register(id), SOURCE);
    ensure_eq!(in8(UART + IIR) & 0x0f, 0x02, "identification after the completion");
    set_priority(1);
    hart::wait_for(5, || false);
    ensure!(!is_raised(), "raised again though the UART was served");
    Ok(())
}

/// Priority 0, a threshold as high as the priority, and a clear enable each hold the interrupt back.
pub fn masked() -> Check {
    let id = hart::id();
    out8(UART + IER, IER_THRE);
    for (priority, threshold, enables, expected) in
        [(0, 0, 1 << SOURCE, false), (3, 3, 1 << SOURCE, false), (3, 0, 0, false), (3, 2, 1 << SOURCE, true)]
    {
        set_priority(priority);
        out32(enable_register(id), enables);
        out32(threshold_register(id), threshold); // last: QEMU's PLIC looks again at this one
        hart::wait_for(if expected { hart::PATIENCE_MS } else { 5 }, || is_raised() == expected && expected);
        ensure_eq!(
            is_raised(),
            expected,
            "raised with priority {priority}, threshold {threshold}, enables {enables:#x}"
        );
        ensure!(is_pending(), "not pending in the PLIC");
    }
    ensure_eq!(in32(claim_register(id)), SOURCE, "claim");
    let _ = in8(UART + IIR);
    out32(claim_register(id), SOURCE);
    Ok(())
}

/// A kernel that never reads IIR is told once that the transmitter is empty, and again after each byte.
pub fn once() -> Check {
    let id = hart::id();
    set_priority(1);
    out32(enable_register(id), 1 << SOURCE);
    out8(UART + IER, IER_THRE);
    for round in 0..5 {
        ensure!(hart::wait_for(hart::PATIENCE_MS, is_raised), "not raised in round {round}");
        ensure_eq!(in32(claim_register(id)), SOURCE, "claim");
        out32(claim_register(id), SOURCE);
        hart::wait_for(2, || false);
        ensure!(!is_raised(), "raised for ever");
        out8(UART, b'\n');
    }
    ensure!(hart::wait_for(hart::PATIENCE_MS, is_raised), "not raised at last");
    let _ = in8(UART + IIR);
    Ok(())
}

/// A source whose cause was not removed comes back after completion, and not before.
pub fn level() -> Check {
    let id = hart::id();
    set_priority(1);
    out32(enable_register(id), 1 << SOURCE);
    let modem = in8(UART + MCR);
    out8(UART + MCR, modem | MCR_LOOP);
    out8(UART + IER, IER_RX);
    out8(UART, b'x');
    for round in 0..5 {
        ensure!(hart::wait_for(hart::PATIENCE_MS, is_raised), "not raised in round {round}");
        ensure_eq!(in32(claim_register(id)), SOURCE, "claim");
        hart::wait_for(2, || false);
        ensure!(!is_raised(), "raised while being served");
        out32(claim_register(id), SOURCE);
    }
    // Now the cause goes while it is claimed.
    ensure!(hart::wait_for(hart::PATIENCE_MS, is_raised), "not raised at last");
    ensure_eq!(in32(claim_register(id)), SOURCE, "claim");
    ensure_eq!(in8(UART), b'x', "what came back");
    out8(UART + MCR, modem);
    out32(claim_register(id), SOURCE);
    hart::wait_for(2, || false);
    ensure!(!is_raised(), "raised without a cause");
    Ok(())
}

static OUTCOME: spin::Mutex<Check> = spin::Mutex::new(Ok(()));

pub fn each_hart() -> Check {
    fn job(_: u64) {
        *OUTCOME.lock() = deliver(hart::id());
    }
    for other in board().other_harts() {
        hart::start(other, job, 0)?;
        hart::join(other)?;
        (*OUTCOME.lock())?;
        ensure!(!is_raised(), "hart {}'s line followed", hart::id());
    }
    Ok(())
}
