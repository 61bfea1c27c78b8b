//! Entries to a guest, its traps, and whose they are.

use crate::guest::{CODE, DATA, HOLE, machine, run as run_guest, run_once};
use crate::reset;
use core::sync::atomic::Ordering::Relaxed;
use guests::expect::{ILLEGAL, ensure_illegal, read_csr};
use guests::paging::{leaf, page, pointer};
use guests::user::User;
use guests::{Check, access, board, ensure, ensure_eq, run, trap};
use metal::csr;
use rv::csr::{hstatus, status};
use rv::{Exception, Mode};

pub fn run_all() {
    run("nested/time-in-vu", time_in_vu);
    run("nested/call", call);
    run("nested/faults", faults);
    run("nested/table-faults", table_faults);
    run("nested/delegation", delegation);
    run("nested/virtual-instructions", virtual_instructions);
    run("nested/user-mode", user_mode);
    run("nested/trap-before-entry", trap_before_entry);
    run("nested/floating-point", floating_point);
}

crate::code! {
    reads_time: "rdtime a0", "ecall";
    calls: "1: addi a0, a0, 1", "ecall", "j 1b";
    copies: "ld a0, (a1)", "sd a0, 8(a1)", "jr a2";
    // The handler is at offset 32.
    breaks: "ebreak", "nop", ".balign 32", "csrr a0, scause", "csrr a1, sepc", "ecall";
    reads_hstatus: "csrr a0, hstatus";
    fences: "sfence.vma";
    waits: "wfi";
    returns: "sret";
    reads_sstatus: "csrr a0, sstatus";
    reads_counter: "csrr a0, hpmcounter3";
    reads_comparator: "csrr a0, stimecmp";
    moves_float: "fmv.x.d a0, fa0", "ecall";
}

fn call() -> Check {
    reset();
    let _ = machine(calls(), 1);
    let mut user = User::at(CODE);
    for n in 1..10 {
        let trap = run_guest(&mut user, Mode::Supervisor);
        ensure_eq!((trap.cause, user.x[10]), (10, n), "cause and a0 of a call");
        let status = csr::hstatus::read();
        ensure!(status & (hstatus::SPV | hstatus::SPVP) == hstatus::SPV | hstatus::SPVP, "hstatus {status:#x}");
        ensure!(trap.status & status::SPP != 0 && trap.status & status::SIE == 0, "sstatus {:#x}", trap.status);
        user.pc += 4;
    }
    let trap = run_guest(&mut user, Mode::User);
    ensure_eq!((trap.cause, csr::hstatus::read() & hstatus::SPVP), (8, 0), "cause and SPVP of a call from VU mode");
    ensure!(trap.status & status::SPP == 0, "SPP of a call from VU mode");
    Ok(())
}

fn faults() -> Check {
    reset();
    let (_, data) = machine(copies(), 2);
    data.0[0].store(77, Relaxed);
    let mut user = User::at(CODE);
    for address in [HOLE, HOLE + 0xff8, 1 << 40] {
        (user.x[11], user.pc) = (address, CODE);
        let trap = run_guest(&mut user, Mode::Supervisor);
        ensure_eq!((trap.cause, trap.tval), (21, address), "cause and stval of a load from a hole");
        ensure_eq!(csr::htval::read(), address >> 2, "htval");
        ensure!(csr::hstatus::read() & hstatus::GVA != 0, "hstatus.GVA");
        ensure_eq!(trap.epc, CODE, "sepc");
    }
    (user.x[11], user.x[12], user.pc) = (DATA + 0xff8, HOLE + 4, CODE);
    let trap = run_guest(&mut user, Mode::Supervisor);
    ensure_eq!((trap.cause, trap.tval), (23, DATA + 0x1000), "cause and stval of a store to a hole");
    (user.x[11], user.pc) = (DATA, CODE);
    let trap = run_guest(&mut user, Mode::Supervisor);
    ensure_eq!(
        (trap.cause, trap.tval, trap.epc),
        (20, HOLE + 4, HOLE + 4),
        "cause, stval, sepc of a fetch from a hole"
    );
    ensure_eq!(csr::htval::read(), (HOLE + 4) >> 2, "htval of a fetch");
    ensure_eq!((user.x[10], data.0[1].load(Relaxed)), (77, 77), "a0, and the copy");
    Ok(())
}

/// The guest has tables of its own, and one of them is not there.
fn table_faults() -> Check {
    reset();
    let (stage, data) = machine(copies(), 3);
    // Identity for the first GiB of the guest's; the second GiB has its table in a hole.
    let root = page();
    stage.map(DATA + 0x1000, root.address(), crate::guest::ALL);
    root.0[(CODE >> 30) as usize].store(leaf(CODE, guests::paging::RWX), Relaxed);
    root.0[3].store(pointer(HOLE), Relaxed);
    data.0[0].store(5, Relaxed);
    // SAFETY: the guest's own.
    unsafe { csr::vsatp::write(8 << 60 | (DATA + 0x1000) >> 12) };
    let mut user = User::at(CODE);
    user.x[11] = 3 << 30;
    let trap = run_guest(&mut user, Mode::Supervisor);
    ensure_eq!((trap.cause, trap.tval), (21, 3 << 30), "cause and stval of a walk into a hole");
    ensure_eq!((csr::htval::read(), csr::htinst::read()), (HOLE >> 2, 0x3000), "htval and htinst");
    // Where the guest's table says no, the fault is an ordinary one.
    user.x[11] = 1 << 30;
    let trap = run_guest(&mut user, Mode::Supervisor);
    ensure_eq!((trap.cause, trap.tval), (13, 1 << 30), "cause and stval of a page fault");
    (user.x[11], user.x[12]) = (DATA, HOLE);
    let trap = run_guest(&mut user, Mode::Supervisor);
    ensure_eq!((trap.cause, user.x[10]), (20, 5), "cause of a fetch from a hole, and what was read before");
    reset();
    Ok(())
}

fn delegation() -> Check {
    reset();
    let _ = machine(breaks(), 4);
    let mut user = User::at(CODE);
    let trap = run_guest(&mut user, Mode::Supervisor);
    ensure_eq!((trap.cause, trap.epc), (3, CODE), "a breakpoint that is not delegated");
    // SAFETY: the guest's own.
    unsafe {
        csr::hedeleg::write(Exception::Breakpoint.bit());
        csr::vstvec::write(CODE + 32);
    }
    for mode in [Mode::Supervisor, Mode::User] {
        user.pc = CODE;
        let trap = run_guest(&mut user, mode);
        ensure_eq!(
            (trap.cause, user.x[10], user.x[11]),
            (10, 3, CODE),
            "a breakpoint that is delegated, from {mode:?}"
        );
        ensure_eq!((csr::vscause::read(), csr::vsepc::read()), (3, CODE), "vscause and vsepc");
        ensure_eq!(csr::vsstatus::read() & status::SPP != 0, mode == Mode::Supervisor, "vsstatus.SPP");
    }
    reset();
    Ok(())
}

/// Instructions that VS mode would have if it were HS mode, or if the hypervisor let it.
fn virtual_instructions() -> Check {
    const VIRTUAL: u64 = 22;
    for (name, code, traps) in [
        ("csrr hstatus", reads_hstatus(), 0),
        ("csrr hpmcounter3 without hcounteren", reads_counter(), 0),
        ("csrr stimecmp without henvcfg.STCE", reads_comparator(), 0),
        ("sfence.vma", fences(), hstatus::VTVM),
        ("wfi", waits(), hstatus::VTW),
        ("sret", returns(), hstatus::VTSR),
    ] {
        reset();
        // SAFETY: concerns the guest only.
        unsafe { csr::hstatus::write(traps) };
        let trap = run_once(code, Mode::Supervisor);
        ensure_eq!((trap.cause, trap.epc), (VIRTUAL, CODE), "cause and sepc of {name}");
        let insn = code.iter().rev().fold(0, |insn, byte| insn << 8 | u64::from(*byte));
        ensure!([0, insn].contains(&trap.tval), "stval of {name}: {:#x}", trap.tval);
    }
    reset();
    let trap = run_once(reads_sstatus(), Mode::User);
    // QEMU 10 has it as illegal.
    ensure!([VIRTUAL, ILLEGAL].contains(&trap.cause), "cause of csrr sstatus in VU mode: {}", trap.cause);
    Ok(())
}

/// Instructions that this hypervisor's own user mode may not execute.
fn user_mode() -> Check {
    reset();
    let code = page();
    code.fill(reads_hstatus());
    let trap = User::at(code.address()).run();
    ensure_eq!(
        (trap.cause, csr::hstatus::read() & hstatus::SPV),
        (ILLEGAL, 0),
        "cause and SPV of csrr hstatus in U mode"
    );
    // hlv.d a0, (a0), unless hstatus.HU.
    code.fill(&0x6c05_4573_u32.to_le_bytes());
    let trap = User::at(code.address()).run();
    ensure_eq!(trap.cause, ILLEGAL, "cause of hlv.d in U mode");
    // A CSR that can only be read, and one that is not there.
    ensure_illegal(0xe120_1073 | 10 << 15, 0, format_args!("csrw hgeip, a0"))?;
    ensure_illegal(read_csr(0x6ff), 0, format_args!("csrr of CSR 0x6ff"))
}

/// A trap that a hypervisor takes itself, when it was about to enter its guest, sets SPV to 0.
fn trap_before_entry() -> Check {
    reset();
    // Their handlers return by `sret`: an access to nothing, an instruction that is illegal, a breakpoint.
    for what in ["access", "instruction", "breakpoint"] {
        // SAFETY: no guest is entered before it is cleared.
        unsafe { csr::hstatus::set(hstatus::SPV) };
        let found = trap::catch(|| {
            match what {
                "access" => _ = access::ld(1 << 55),
                // SAFETY: the handler skips it.
                "instruction" => unsafe { core::arch::asm!(".4byte 0xc0001073") },
                // SAFETY: as above.
                _ => unsafe { core::arch::asm!("ebreak") },
            }
        });
        let spv = csr::hstatus::read() & hstatus::SPV;
        reset();
        ensure!(what == "access" || found.is_some(), "no trap, {what}");
        ensure_eq!(spv, 0, "SPV after a trap of the hypervisor's own, {what}");
    }
    Ok(())
}

fn floating_point() -> Check {
    reset();
    let _ = machine(moves_float(), 5);
    // Where both have one register for FS, what the hypervisor has off its guest can have on.
    let denied = if board().bootargs == "one-status" { (1, 0, ILLEGAL) } else { (0, 1, ILLEGAL) };
    for (own, guests, cause) in [denied, (1, 0, ILLEGAL), (1, 1, 10), (3, 2, 10)] {
        // SAFETY: this program has no floating point of its own.
        unsafe {
            csr::sstatus::clear(status::FS);
            csr::sstatus::set(own << status::FS_SHIFT);
            csr::vsstatus::write(guests << status::FS_SHIFT);
        }
        let trap = run_guest(&mut User::at(CODE), Mode::Supervisor);
        ensure_eq!(trap.cause, cause, "cause of fmv.x.d with FS {own} in sstatus, {guests} in vsstatus");
    }
    // SAFETY: as above.
    unsafe { csr::sstatus::clear(status::FS) };
    reset();
    Ok(())
}

/// `time` in the guest's user mode, as `hcounteren` and `scounteren` let it.
fn time_in_vu() -> Check {
    // Linux without a counter of its own lets KVM's guests begin with 7, and its own programs read `time` only.
    for (h, s, mode, cause) in [
        (2, 7, Mode::User, 8),
        (2, 2, Mode::User, 8),
        (2, 0, Mode::Supervisor, 10),
        (2, 5, Mode::User, 22),
        (5, 7, Mode::User, 22),
        (5, 7, Mode::Supervisor, 22),
    ] {
        reset();
        let own = csr::scounteren::read();
        // SAFETY: the guest's, and this program's user mode, which there is none of.
        unsafe {
            csr::hcounteren::write(h);
            csr::scounteren::write(s);
        }
        let found = run_once(reads_time(), mode);
        // SAFETY: as it was.
        unsafe { csr::scounteren::write(own) };
        ensure_eq!(found.cause, cause, "hcounteren {h}, scounteren {s}, {mode:?}");
    }
    Ok(())
}
