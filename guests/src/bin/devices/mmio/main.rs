//! The UART, the PLIC and the RTC, by every instruction that can reach them, and what they do.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "compressed forms by assembly")]

mod plic;
mod rtc;
mod virtio;
mod ways;

use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;
use guests::access::{self, in8, in32, out8, out32};
use guests::console::UART;
use guests::expect::{LOAD_ACCESS, STORE_ACCESS, ensure_trap};
use guests::paging::{self, RW, Space, TEST_VA, page};
use guests::trap::{Trap, disable, enable, pending};
use guests::{Check, Named, board, ensure, ensure_eq, hart, run, sbi};
use rv::Interrupt::SExternal;
use rv::format::SV39;

guests::entry_point!(main);

const PLIC: u64 = 0x0c00_0000;
/// The UART's PLIC source.
const SOURCE: u32 = 10;

/// UART registers by offset: data or divisor low, interrupt enable or divisor high, identification
/// (read) or FIFO control (write), line control, modem control, line status, modem status, scratch.
const RBR: u64 = 0;
const IER: u64 = 1;
const IIR: u64 = 2;
const LCR: u64 = 3;
const MCR: u64 = 4;
const LSR: u64 = 5;
const MSR: u64 = 6;
const SCR: u64 = 7;

const LCR_8N1: u8 = 0x03;
const LCR_DLAB: u8 = 0x80;
const IER_RX: u8 = 0x01;
const IER_THRE: u8 = 0x02;
const LSR_DATA: u8 = 0x01;
const LSR_IDLE: u8 = 0x60;
const MCR_LOOP: u8 = 0x10;

/// A check of the UART at an address.
type OnUart = fn(u64) -> Check;

fn main() {
    let checks: [Named<OnUart>; 6] = [
        ("scratch", scratch),
        ("loads", loads),
        ("stores", stores),
        ("x0-destination", x0_destination),
        ("every-register", every_register),
        ("compressed", compressed),
    ];
    for (name, check) in checks {
        run_quietly("", name, || check(UART));
    }
    for format in Space::formats() {
        let space = Space::new(format, 0);
        let alias = TEST_VA + 0x5000;
        space.map(alias, UART, RW);
        for (name, check) in checks {
            run_quietly(format.name, name, || {
                space.enter();
                let outcome = check(UART).and_then(|()| check(alias));
                paging::leave();
                outcome
            });
        }
    }
    if sbi::is_gnomon() {
        // QEMU's TLB lets each half through.
        run_quietly("", "across-into-a-device", across_into_a_device);
    }
    let ways: [Named<fn() -> Check>; 5] = [
        ("fenced", ways::fenced),
        ("spaces", ways::spaces),
        ("modes", ways::modes),
        ("code", ways::code),
        ("image", ways::image),
    ];
    for (name, check) in ways {
        run_quietly("way", name, check);
    }
    run_quietly("rtc", "time-of-day", rtc::time_of_day);
    run_quietly("rtc", "alarm", rtc::alarm);
    if virtio::is_there() {
        run_quietly("virtio", "registers", virtio::registers);
    }
    run_quietly("uart", "idle-status", idle_status);
    run_quietly("uart", "divisor-latch", divisor_latch);
    run_quietly("uart", "fifo-bits", fifo_bits);
    run_quietly("uart", "loopback", loopback);
    run_quietly("uart", "thre-identification", thre_identification);
    run_quietly("plic", "registers", plic::registers);
    run_quietly("plic", "words", plic::words);
    run_quietly("plic", "nothing-to-claim", plic::nothing_to_claim);
    run_quietly("plic", "claim-and-complete", || plic::deliver(hart::id()));
    run_quietly("plic", "claim-into-x0", plic::claim_into_x0);
    run_quietly("plic", "served-after-completion", plic::served_after_completion);
    run_quietly("plic", "masked", plic::masked);
    run_quietly("plic", "once", plic::once);
    if sbi::is_gnomon() {
        // QEMU's PLIC forgets a level that stays high through completion.
        run_quietly("plic", "level", plic::level);
    }
    if board().hart_count > 1 {
        run_quietly("plic", "each-hart", plic::each_hart);
    }
}

/// Runs a check while nothing is printed, and leaves the UART and the PLIC as it found them.
fn run_quietly(group: &str, name: &str, check: impl FnOnce() -> Check) {
    let separator = if group.is_empty() { "" } else { "-" };
    let name = guests::Text::of(format_args!("mmio/{group}{separator}{name}"));
    run(name.as_str(), || {
        while in8(UART + LSR) & LSR_IDLE != LSR_IDLE {}
        let outcome = check();
        disable(SExternal.bit());
        for id in board().harts() {
            out32(plic::enable_register(*id), 0);
            out32(plic::threshold_register(*id), 0);
        }
        out32(PLIC + 4 * u64::from(SOURCE), 0);
        for (register, value) in [(LCR, LCR_8N1), (IER, 0), (MCR, 0), (IIR, 0x07), (IIR, 0x01)] {
            out8(UART + register, value);
        }
        outcome
    });
}

/// Runs `f` with the divisor latch on: then offset 0 is a plain byte register, at which every width
/// is aligned.
fn with_latch(uart: u64, f: impl FnOnce() -> Check) -> Check {
    out8(uart + LCR, LCR_8N1 | LCR_DLAB);
    let outcome = f();
    out8(uart + LCR, LCR_8N1);
    outcome
}

fn scratch(uart: u64) -> Check {
    for value in 0..=255 {
        out8(uart + SCR, value);
        ensure_eq!(in8(uart + SCR), value, "scratch");
    }
    Ok(())
}

/// The low byte is the register's, whatever the width; bytes are extended as the instruction says.
fn loads(uart: u64) -> Check {
    for value in [0x00_u8, 0x5a, 0x7f, 0x80, 0xff] {
        out8(uart + SCR, value);
        ensure_eq!(access::lbu(uart + SCR), Ok(u64::from(value)), "lbu");
        ensure_eq!(access::lb(uart + SCR), Ok(value as i8 as u64), "lb");
        with_latch(uart, || {
            out8(uart, value);
            let wide: [Named<access::Load>; 7] = [
                ("lb", access::lb),
                ("lbu", access::lbu),
                ("lh", access::lh),
                ("lhu", access::lhu),
                ("lw", access::lw),
                ("lwu", access::lwu),
                ("ld", access::ld),
            ];
            for (name, load) in wide {
                ensure_eq!(load(uart).map(|v| v & 0xff), Ok(u64::from(value)), "low byte of {name}");
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Bytes by `sb`; of a wider store at least the low byte arrives. The bytes above it are what the
/// registers above hold anyway, so that it does not matter whether they arrive too.
fn stores(uart: u64) -> Check {
    // Divisor high 0, FIFO control 0x01, line control 8N1 with DLAB, the rest 0.
    const ABOVE: u64 = 0x8301_0000;
    let wide: [Named<access::Store>; 4] =
        [("sb", access::sb), ("sh", access::sh), ("sw", access::sw), ("sd", access::sd)];
    for (name, store) in wide {
        for value in [0x5a, 0x80, 0x01] {
            with_latch(uart, || {
                out8(uart, 0xff);
                ensure_eq!(store(uart, ABOVE | value), Ok(()), "{name}");
                ensure_eq!(u64::from(in8(uart)), value, "low byte of {name}");
                Ok(())
            })?;
        }
    }
    for value in [0x00, 0xa5, 0xff] {
        ensure_eq!(access::sb(uart + SCR, 0xffff_ff00 | value), Ok(()), "sb");
        ensure_eq!(u64::from(in8(uart + SCR)), value, "scratch");
    }
    Ok(())
}

/// A load into x0 is made, and x0 stays zero; a store from x0 stores zero.
fn x0_destination(uart: u64) -> Check {
    out8(uart + SCR, 0xa5);
    let zero: u64;
    // SAFETY: UART registers.
    unsafe {
        asm!("lbu x0, 7({uart})", "mv {zero}, x0", "sb x0, 7({uart})", uart = in(reg) uart, zero = out(reg) zero,
             options(nostack));
    }
    ensure_eq!(zero, 0, "x0");
    ensure_eq!(in8(uart + SCR), 0, "scratch after sb x0");
    // RBR read into x0: the byte is gone.
    let outcome = (|| {
        out8(uart + MCR, MCR_LOOP);
        out8(uart + RBR, 0x42);
        ensure!(hart::wait_for(1000, || in8(uart + LSR) & LSR_DATA != 0), "no byte by loopback");
        // SAFETY: a UART register.
        unsafe { asm!("lbu x0, 0({})", in(reg) uart, options(nostack)) };
        ensure_eq!(in8(uart + LSR) & LSR_DATA, 0, "data ready after lbu x0");
        Ok(())
    })();
    out8(uart + MCR, 0);
    outcome
}

/// `lbu xN, 7(a0)` and `sb xN, 7(a0)` for every N but a0, by code made on the spot.
fn every_register(uart: u64) -> Check {
    const A0: u32 = 10;
    const SCRATCH: u32 = 7; // t2 keeps xN meanwhile, t1 keeps t2
    let mv = |rd: u32, rs: u32| 0x13 | rd << 7 | rs << 15;
    let code = page();
    for n in (1..32).filter(|n| *n != A0) {
        let keep = if n == SCRATCH { 6 } else { SCRATCH };
        let load = 0x4003 | n << 7 | A0 << 15 | 7 << 20;
        let program = [mv(keep, n), load, mv(A0, n), mv(n, keep), 0x8067];
        code.fill(program.map(u32::to_le_bytes).as_flattened());
        let value = 0x80 | n as u8;
        out8(uart + SCR, value);
        ensure_eq!(access::call(code.address(), uart), Ok(u64::from(value)), "lbu x{n}");
        let store = 0x23 | 7 << 7 | A0 << 15 | n << 20;
        let li = 0x13 | n << 7 | (0x40 | n) << 20;
        let program = [mv(keep, n), li, store, mv(n, keep), 0x8067];
        code.fill(program.map(u32::to_le_bytes).as_flattened());
        ensure!(access::call(code.address(), uart).is_ok(), "sb x{n} traps");
        ensure_eq!(u32::from(in8(uart + SCR)), 0x40 | n, "sb x{n}");
    }
    Ok(())
}

/// The compressed forms: by register, and relative to sp.
fn compressed(uart: u64) -> Check {
    with_latch(uart, || {
        for value in [0x5a_u64, 0x80] {
            out8(uart, value as u8);
            let (w, d, wsp, dsp): (u64, u64, u64, u64);
            // SAFETY: UART registers; sp is back before anything uses it, and no interrupt is taken.
            unsafe {
                asm!("c.lw a1, 0(a0)", "c.ld a2, 0(a0)", "mv a5, sp", "mv sp, a0", "c.lwsp a3, 0(sp)",
                     "c.ldsp a4, 0(sp)", "mv sp, a5", in("a0") uart, out("a1") w, out("a2") d, out("a3") wsp,
                     out("a4") dsp, out("a5") _);
            }
            let found = [w, d, wsp, dsp].map(|v| v & 0xff);
            ensure_eq!(found, [value; 4], "low bytes of c.lw, c.ld, c.lwsp, c.ldsp");
        }
        for form in 0..4 {
            out8(uart, 0xff);
            let value = 0x8301_0000 + 0x11 * (form + 1);
            // SAFETY: as above.
            unsafe {
                match form {
                    0 => asm!("c.sw a1, 0(a0)", in("a0") uart, in("a1") value),
                    1 => asm!("c.sd a1, 0(a0)", in("a0") uart, in("a1") value),
                    2 => asm!("mv a5, sp", "mv sp, a0", "c.swsp a1, 0(sp)", "mv sp, a5", in("a0") uart,
                              in("a1") value, out("a5") _),
                    _ => asm!("mv a5, sp", "mv sp, a0", "c.sdsp a1, 0(sp)", "mv sp, a5", in("a0") uart,
                              in("a1") value, out("a5") _),
                }
            }
            ensure_eq!(u64::from(in8(uart)), value & 0xff, "low byte of compressed store {form}");
        }
        Ok(())
    })
}

/// An access that begins in RAM, or in another device, and ends in a device is an access fault; nothing of it happens.
fn across_into_a_device() -> Check {
    let space = Space::new(&SV39, 0);
    let data = page();
    let loads: [(u64, Named<access::Load>); 3] =
        [(2, ("lh", access::lh)), (4, ("lw", access::lw)), (8, ("ld", access::ld))];
    let stores: [(u64, Named<access::Store>); 3] =
        [(2, ("sh", access::sh)), (4, ("sw", access::sw)), (8, ("sd", access::sd))];
    let border = TEST_VA + 0x6000;
    space.map(border, UART, RW);
    out8(UART + LCR, LCR_8N1 | LCR_DLAB);
    out8(UART, 0x5a);
    for (before, whose) in [(data.address(), "RAM"), (PLIC + 0x1000, "a device"), (data.address(), "RAM again")] {
        space.map(border - 0x1000, before, RW);
        data.0[511].store(u64::MAX, Relaxed);
        space.enter();
        let outcome = stores.iter().try_for_each(|(width, (name, store))| {
            (1..*width).try_for_each(|first| {
                let found = store(border - first, 0);
                let what = guests::Text::of(format_args!("{name} with {first} bytes in {whose}"));
                ensure_across(found, STORE_ACCESS, border - first, what.as_str())
            })
        });
        let outcome = outcome.and_then(|()| {
            loads.iter().try_for_each(|(width, (name, load))| {
                (1..*width).try_for_each(|first| {
                    let what = guests::Text::of(format_args!("{name} with {first} bytes in {whose}"));
                    ensure_across(load(border - first), LOAD_ACCESS, border - first, what.as_str())
                })
            })
        });
        paging::leave();
        outcome?;
        ensure_eq!(data.0[511].load(Relaxed), u64::MAX, "RAM's half of the stores");
        ensure_eq!(in8(UART), 0x5a, "the UART's half of the stores");
    }
    Ok(())
}

/// The trap may name where the access begins, or the border, whichever part it is about.
fn ensure_across<T: core::fmt::Debug>(found: Result<T, Trap>, cause: u64, begins: u64, what: &str) -> Check {
    let border = begins.next_multiple_of(0x1000);
    let tval = found.as_ref().err().map_or(border, |trap| if trap.tval == begins { begins } else { border });
    ensure_trap(found, cause, tval, what)
}

fn idle_status() -> Check {
    ensure_eq!(in8(UART + LSR) & (LSR_IDLE | LSR_DATA), LSR_IDLE, "line status");
    ensure_eq!(in8(UART + IIR) & 0x0f, 0x01, "identification");
    Ok(())
}

/// With DLAB the divisor, without it data and interrupt enables: neither disturbs the other.
fn divisor_latch() -> Check {
    out8(UART + IER, 0x05);
    with_latch(UART, || {
        out8(UART, 0x34);
        out8(UART + IER, 0x12);
        ensure_eq!((in8(UART), in8(UART + IER)), (0x34, 0x12), "divisor");
        Ok(())
    })?;
    ensure_eq!(in8(UART + LCR), LCR_8N1, "line control");
    ensure_eq!(in8(UART + IER), 0x05, "interrupt enables after the divisor");
    with_latch(UART, || {
        ensure_eq!((in8(UART), in8(UART + IER)), (0x34, 0x12), "divisor, again");
        Ok(())
    })
}

fn fifo_bits() -> Check {
    out8(UART + IIR, 0x01);
    ensure_eq!(in8(UART + IIR) & 0xc0, 0xc0, "FIFO bits when on");
    out8(UART + IIR, 0x00);
    ensure_eq!(in8(UART + IIR) & 0xc0, 0x00, "FIFO bits when off");
    Ok(())
}

/// In loopback, sent bytes return and nothing leaves; modem outputs show as inputs.
fn loopback() -> Check {
    out8(UART + IIR, 0x07);
    out8(UART + MCR, MCR_LOOP | 0x0a);
    ensure_eq!(in8(UART + MSR) & 0xf0, 0x90, "modem status with RTS and OUT2 looped");
    for value in [0x00, 0x55, 0xff] {
        ensure_eq!(in8(UART + LSR) & LSR_DATA, 0, "data before");
        out8(UART + RBR, value);
        ensure!(hart::wait_for(1000, || in8(UART + LSR) & LSR_DATA != 0), "{value:#x} does not come back");
        ensure_eq!(in8(UART + RBR), value, "looped byte");
    }
    Ok(())
}

/// Enabling THRE with an empty transmitter raises it; reading IIR while it is shown clears it.
fn thre_identification() -> Check {
    out8(UART + IER, IER_THRE);
    ensure_eq!(in8(UART + IIR) & 0x0f, 0x02, "identification");
    ensure_eq!(in8(UART + IIR) & 0x0f, 0x01, "identification, read again");
    out8(UART + IER, 0);
    out8(UART + IER, IER_THRE);
    ensure_eq!(in8(UART + IIR) & 0x0f, 0x02, "identification after enabling again");
    Ok(())
}
