//! The guest's own traps without page tables, exactly as on a machine without a hypervisor: illegal
//! instructions, CSRs that are not there, holes in the physical map.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "stvec")]

use core::sync::atomic::Ordering::Relaxed;
use guests::expect::{
    BREAKPOINT, FETCH_ACCESS, ILLEGAL, LOAD_ACCESS, STORE_ACCESS, ensure_illegal, ensure_trap, execute, hole_addresses,
    read_csr, write_csr,
};
use guests::paging::page;
use guests::trap::{self, Trap};
use guests::{Check, access, board, ensure, ensure_eq, run, sbi};
use metal::csr;
use rv::csr::status;

guests::entry_point!(main);

fn main() {
    run("exceptions/illegal-instruction", illegal_instruction);
    run("exceptions/breakpoint", breakpoint);
    run("exceptions/machine-csrs", || csrs_are_illegal(&MACHINE_CSRS));
    if !board().has("h") {
        // OpenSBI emulates htimedelta, the last one, for hypervisors it knows nothing of.
        let count = HYPERVISOR_CSRS.len() - usize::from(!sbi::is_gnomon());
        run("exceptions/hypervisor-csrs", || csrs_are_illegal(&HYPERVISOR_CSRS[..count]));
        run("exceptions/hypervisor-instructions", hypervisor_instructions);
    }
    if sbi::is_gnomon() {
        // QEMU's `-cpu max` has them.
        run("exceptions/state-enable-csrs", || csrs_are_illegal(&[0x10c, 0x10d, 0x10e, 0x10f]));
    }
    run("exceptions/promised-cbo", promised_cbo);
    run("exceptions/misaligned", misaligned);
    run("exceptions/holes", holes);
    run("exceptions/end-of-ram", end_of_ram);
    run("exceptions/trap-status", trap_status);
    if sbi::is_gnomon() {
        // OpenSBI 1.5.1 sends the traps that it passes on to stvec with its mode bits.
        run("exceptions/vectored-stvec", vectored_stvec);
        // QEMU can execute from its devices, and do atomics on them.
        run("exceptions/fetch-from-device", fetch_from_device);
        run("exceptions/atomics-on-device", atomics_on_device);
    }
}

fn illegal_instruction() -> Check {
    // custom-0, unimp, a write to a read-only CSR, a CSR that does not exist, all ones.
    for instruction in [0x0000_000b, 0xc000_1073, write_csr(0xc01), read_csr(0x5c0), 0xffff_ffff] {
        ensure_illegal(instruction, 0, format_args!("{instruction:#010x}"))?;
    }
    // mret; QEMU leaves the value of an earlier trap here.
    let found = execute(0x3020_0073, 0);
    ensure!(found.is_err_and(|t| t.cause == ILLEGAL), "mret: {found:x?}");
    // 16 bits of zero.
    let found = execute(0, 0);
    ensure!(found.is_err_and(|t| t.cause == ILLEGAL && t.tval == 0), "c.unimp: {found:x?}");
    Ok(())
}

fn breakpoint() -> Check {
    for instruction in [0x0010_0073, 0x9002] {
        let found = execute(instruction, 0);
        let is_right = found.is_err_and(|t| t.cause == BREAKPOINT && (t.tval == 0 || t.tval == t.epc));
        ensure!(is_right, "{instruction:#x}: {found:x?}");
    }
    Ok(())
}

/// mstatus to mcounteren, menvcfg, mscratch to mip, mtinst, mtval2, PMP, ids, debug.
const MACHINE_CSRS: [u32; 21] = [
    0x300, 0x301, 0x302, 0x303, 0x304, 0x305, 0x306, 0x30a, 0x340, 0x341, 0x342, 0x343, 0x344, 0x34a, 0x34b, 0x3a0,
    0x3b0, 0xf11, 0xf12, 0xf14, 0x7b0,
];

/// hstatus to hgeie, henvcfg, htval, hip, hvip, htinst, hgatp, hgeip, and every vs* register.
const HYPERVISOR_CSRS: [u32; 24] = [
    0x600, 0x602, 0x603, 0x604, 0x606, 0x607, 0x60a, 0x643, 0x644, 0x645, 0x64a, 0x680, 0xe12, 0x200, 0x204, 0x205,
    0x240, 0x241, 0x242, 0x243, 0x244, 0x24d, 0x280, 0x605,
];

fn csrs_are_illegal(numbers: &[u32]) -> Check {
    for number in numbers {
        ensure_illegal(read_csr(*number), 0, format_args!("csrr of {number:#x}"))?;
        ensure_illegal(write_csr(*number), 0, format_args!("csrw of {number:#x}"))?;
    }
    Ok(())
}

fn hypervisor_instructions() -> Check {
    let at = 0x8020_0000;
    for (instruction, name) in [
        (0x6200_0073, "hfence.gvma"),
        (0x2200_0073, "hfence.vvma"),
        (0x6005_4573, "hlv.b"),
        (0x6c05_4573, "hlv.d"),
        (0x6435_4573, "hlvx.hu"),
        (0x6ea5_4073, "hsv.d"),
    ] {
        ensure_illegal(instruction, at, format_args!("{name}"))?;
    }
    Ok(())
}

/// Promises of the ISA string about cache blocks hold: `henvcfg` must let the guest.
fn promised_cbo() -> Check {
    let target = page();
    for (extension, instruction) in [("zicboz", 0x0045_200f), ("zicbom", 0x0015_200f), ("zicbom", 0x0025_200f)] {
        if board().has(extension) {
            target.0[0].store(77, Relaxed);
            let found = execute(instruction, target.address());
            ensure!(found.is_ok(), "{extension} is promised, but {found:x?}");
            let expected = if extension == "zicboz" { 0 } else { 77 };
            ensure_eq!(target.0[0].load(Relaxed), expected, "memory after {extension}");
        }
    }
    Ok(())
}

/// Either the value is right, or the trap is the right one.
fn misaligned() -> Check {
    let target = page();
    target.0[0].store(0x8877_6655_4433_2211, Relaxed);
    target.0[1].store(0xff00_eedd_ccbb_aa99, Relaxed);
    let at = target.address() + 3;
    match access::ld(at) {
        Ok(value) => ensure_eq!(value, 0xbbaa_9988_7766_5544, "ld"),
        Err(trap) => ensure_eq!((trap.cause, trap.tval), (4, at), "cause and value of ld"),
    }
    match access::sw(at, 0x0102_0304) {
        Ok(()) => ensure_eq!(target.0[0].load(Relaxed), 0x8801_0203_0433_2211, "after sw"),
        Err(trap) => ensure_eq!((trap.cause, trap.tval), (6, at), "cause and value of sw"),
    }
    // amoadd.d a0, x0, (a0); lr.d a0, (a0)
    // An AMO's cause is 6; QEMU says 4 when it emulates one hart.
    for instruction in [0x0005_352f, 0x1005_352f] {
        let found = execute(instruction, at);
        let is_right = found.is_err_and(|t| [4, LOAD_ACCESS, 6, STORE_ACCESS].contains(&t.cause) && t.tval == at);
        ensure!(is_right, "{instruction:#x} at an odd address: {found:x?}");
    }
    Ok(())
}

fn holes() -> Check {
    for at in hole_addresses() {
        ensure_trap(access::ld(at), LOAD_ACCESS, at, "ld of a hole")?;
        ensure_trap(access::lbu(at + 1), LOAD_ACCESS, at + 1, "lbu of a hole")?;
        ensure_trap(access::sd(at, 1), STORE_ACCESS, at, "sd to a hole")?;
        ensure_trap(access::sb(at + 7, 1), STORE_ACCESS, at + 7, "sb to a hole")?;
        let fetched = access::call(at, 0);
        ensure!(fetched.is_err_and(|t| t.epc == at), "epc of a fetch from a hole: {fetched:x?}");
        ensure_trap(fetched, FETCH_ACCESS, at, "a fetch from a hole")?;
        // amoadd.d a0, x0, (a0)
        ensure_trap(execute(0x0005_352f, at), STORE_ACCESS, at, "amoadd of a hole")?;
    }
    Ok(())
}

/// The last byte of RAM is there, the next is not.
fn end_of_ram() -> Check {
    let end = board().ram_end();
    ensure!(access::lbu(end - 1).is_ok(), "the last byte of RAM traps");
    ensure_trap(access::lbu(end), LOAD_ACCESS, end, "the first byte beyond RAM")?;
    let found = access::ld(end - 4);
    let is_right = found.is_err_and(|t| [4, LOAD_ACCESS].contains(&t.cause) && (end - 4..=end).contains(&t.tval));
    ensure!(is_right, "half in RAM: {found:x?}");
    Ok(())
}

/// A trap pushes SIE into SPIE and the mode into SPP, also when a hypervisor makes the trap.
fn trap_status() -> Check {
    let traps: [fn() -> Result<u64, Trap>; 2] = [|| access::ld(board().ram_end()), || execute(read_csr(0x300), 0)];
    for make in traps {
        for expected in [0, status::SPIE] {
            let found = if expected == 0 { make() } else { trap::with_interrupts(make) };
            let Err(trap) = found else { guests::fail!("no trap") };
            let bits = status::SPP | status::SPIE | status::SIE;
            ensure_eq!(trap.status & bits, status::SPP | expected, "SPP, SPIE, SIE at cause {}", trap.cause);
        }
    }
    Ok(())
}

/// In vectored mode exceptions still go to the base address.
fn vectored_stvec() -> Check {
    // SAFETY: no interrupt is taken meanwhile.
    unsafe { csr::stvec::write(trap::vector() | 1) };
    let stvec = csr::stvec::read();
    let found = [access::ld(board().ram_end()), execute(read_csr(0x300), 0), execute(0xb, 0)];
    // SAFETY: the runtime's own.
    unsafe { csr::stvec::write(trap::vector()) };
    ensure_eq!(stvec & 3, 1, "mode of stvec");
    let causes = found.map(|f| f.map_or_else(|t| t.cause, |_| 99));
    ensure_eq!(causes, [LOAD_ACCESS, ILLEGAL, ILLEGAL], "causes");
    Ok(())
}

fn fetch_from_device() -> Check {
    for at in [0x1000_0000, 0x0c00_0000, 0x0c20_1004] {
        ensure_trap(access::call(at, 0), FETCH_ACCESS, at, "fetch")?;
    }
    Ok(())
}

fn atomics_on_device() -> Check {
    // amoadd.w a0, x0, (a0); lr.w a0, (a0)
    for at in [0x1000_0000, 0x0c00_0028] {
        ensure_trap(execute(0x0005_252f, at), STORE_ACCESS, at, "amoadd.w")?;
        ensure_trap(execute(0x1005_252f, at), LOAD_ACCESS, at, "lr.w")?;
    }
    Ok(())
}
