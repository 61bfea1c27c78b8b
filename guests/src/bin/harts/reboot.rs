//! Reboots when told so: `r` on the console reboots, `q` powers off. Each boot checks that nothing of
//! the one before is left, and then leaves as much behind as it can.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "CSRs left in disorder")]

use core::sync::atomic::Ordering::Relaxed;
use guests::console::{UART, key_of, line};
use guests::paging::Space;
use guests::{Check, access, at_boot, board, ensure_eq, hart, run, sbi};
use metal::csr;
use rv::csr::status;
use sbi_spec::{hsm::hart_state, srst};

guests::entry_point!(main);

const UART_IER: u64 = UART + 1;
const UART_MCR: u64 = UART + 4;
const PLIC_PRIORITY: u64 = 0x0c00_0000 + 4 * 10;

fn plic_enables(hart: u64) -> u64 {
    0x0c00_2000 + 0x80 * (2 * hart + 1)
}

fn main() {
    line(format_args!("guest: boot"));
    run("reboot/csrs", csrs);
    run("reboot/other-harts-stopped", others_stopped);
    run("reboot/devices", devices);
    if sbi::is_gnomon() {
        // QEMU keeps RAM through a reset.
        run("reboot/ram-is-zero", ram_is_zero);
    }
    line(format_args!("guest: press r or q"));
    if key_of(b"rq") == b'r' {
        leave_a_mess();
        let error = sbi::reset(srst::RESET_TYPE_COLD_REBOOT, srst::RESET_REASON_NO_REASON);
        panic!("cold reboot returned {error}");
    }
}

fn csrs() -> Check {
    let boot = at_boot();
    ensure_eq!(boot.satp.load(Relaxed), 0, "satp");
    ensure_eq!(boot.sie.load(Relaxed), 0, "sie");
    ensure_eq!(boot.sip.load(Relaxed), 0, "sip");
    let kept = status::SIE | status::SUM | status::MXR;
    ensure_eq!(boot.sstatus.load(Relaxed) & kept, 0, "sstatus");
    Ok(())
}

fn others_stopped() -> Check {
    for other in board().other_harts() {
        ensure_eq!(sbi::hart_status(other), (0, hart_state::STOPPED as u64), "hart {other}");
    }
    Ok(())
}

fn devices() -> Check {
    ensure_eq!(access::in8(UART_IER), 0, "interrupt enables of the UART");
    ensure_eq!(access::in8(UART_MCR) & 0x10, 0, "loopback of the UART");
    ensure_eq!(access::in32(PLIC_PRIORITY), 0, "priority of the UART in the PLIC");
    for id in board().harts() {
        ensure_eq!(access::in32(plic_enables(*id)), 0, "enables of hart {id}");
    }
    Ok(())
}

fn ram_is_zero() -> Check {
    for (from, to) in board().free_ram() {
        for at in (from..to).step_by(512) {
            ensure_eq!(access::peek(at), 0, "at {at:#x}");
        }
    }
    Ok(())
}

fn leave_a_mess() {
    fn forever(_: u64) {
        loop {
            core::hint::spin_loop();
        }
    }
    for other in board().other_harts() {
        assert!(hart::start(other, forever, 0).is_ok(), "hart {other} does not start");
    }
    for (from, to) in board().free_ram() {
        (from..to).step_by(512).for_each(|at| access::poke(at, !at));
    }
    for id in board().harts() {
        access::out32(plic_enables(*id), 1 << 10);
    }
    access::out32(PLIC_PRIORITY, 7);
    access::out8(UART_IER, 0x02);
    sbi::set_timer(0);
    assert_eq!(sbi::send_ipi(1, hart::id()), 0, "send_ipi");
    // SAFETY: interrupts stay off; paging maps everything to itself.
    unsafe {
        csr::sie::write(u64::MAX);
        csr::sstatus::set(status::SUM | status::MXR);
        csr::sscratch::write(u64::MAX);
    }
    Space::new(&rv::format::SV39, 9).enter();
}
