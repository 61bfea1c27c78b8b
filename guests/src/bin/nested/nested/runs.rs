//! Code after an instruction of the H extension, beside the same code after one that is not: registers, memory and traps are the same, however
//! much of it the hypervisor below executes in software.

use crate::{guest, reset};
use core::hint::black_box;
use core::sync::atomic::Ordering::Relaxed;
use guests::console::UART;
use guests::paging::{Page, RO, RW, RWX, Space, TEST_VA, XO, page};
use guests::random::Random;
use guests::trap::Trap;
use guests::user::User;
use guests::{Check, board, console, ensure, ensure_eq, paging, ram, run, sbi, trap};
use metal::{csr, fence};
use rv::csr::status;
use rv::format::SV39;
use rv::plain::Plain;
use rv::{Interrupt, Mode, PteFlags};

pub fn run_all() {
    run("nested/run-random", random);
    run("nested/run-csrs", csrs);
    run("nested/run-faults", faults);
    run("nested/run-code-faults", code_faults);
    run("nested/run-device", device);
    run("nested/run-interrupts", interrupts);
    run("nested/run-own-code", own_code);
}

crate::code! {
    calls_on: "1: ecall", "j 1b";
}

/// Prints what a round trip costs a hypervisor that accesses CSRs as KVM does for a call which its kernel handles: ticks for 1000 of them. With
/// the boot argument `cost` only.
pub fn cost() -> Check {
    const ROUNDS: u64 = 1000;
    reset();
    let _ = guest::machine(calls_on(), 1);
    let mut user = User::at(guest::CODE);
    let mut trips = |count: u64| {
        let start = metal::time();
        for _ in 0..count {
            // SAFETY: the guest's own.
            unsafe { csr::hvip::write(0) };
            let trap = guest::run(&mut user, Mode::Supervisor);
            black_box([trap.cause, csr::htval::read(), csr::htinst::read()]);
            user.pc += 4;
            black_box([csr::vsie::read(), csr::hvip::read()]);
            user.pc = guest::CODE;
        }
        metal::time() - start
    };
    trips(10);
    let ticks = trips(ROUNDS);
    console::figure("ticks for 1000 round trips", ticks);
    reset();
    Ok(())
}

const CSRW_HTVAL: u32 = 0x6430_1073;
const NOP: u32 = 0x13;
const EBREAK: u32 = 0x0010_0073;
/// Instructions of one sequence.
const UNITS: usize = 48;

/// The end of a sequence: its trap, and the registers then.
type End = (Trap, [u64; 32]);

/// Executes code in supervisor mode until its first trap.
fn execute(at: u64, x: &[u64; 32]) -> End {
    let mut user = User::at(at);
    user.x = *x;
    let found = user.run_in(Mode::Supervisor);
    (found, user.x)
}

/// Executes code whose first instruction is replaced, in the place where it is written, by one that is of the H extension, and by one that is not.
/// `fresh` restores memory before each.
fn both(at: u64, first: &Page, x: &[u64; 32], fresh: impl Fn()) -> [End; 2] {
    [CSRW_HTVAL, NOP].map(|insn| {
        fresh();
        let word = first.0[(at >> 3 & 511) as usize].load(Relaxed);
        let shift = 8 * (at & 4);
        first.0[(at >> 3 & 511) as usize].store(word & !(0xffff_ffff << shift) | u64::from(insn) << shift, Relaxed);
        fence::instruction();
        execute(at, x)
    })
}

/// Puts instructions at an offset of a page.
fn put(page: &Page, offset: u64, code: &[u32]) {
    for (at, insn) in (offset..).step_by(4).zip(code) {
        let word = &page.0[(at >> 3) as usize];
        let shift = 8 * (at & 4);
        word.store(word.load(Relaxed) & !(0xffff_ffff << shift) | u64::from(*insn) << shift, Relaxed);
    }
    fence::instruction();
}

/// A random plain instruction that accesses no memory but around x8 and x9, writes neither, and goes forward.
fn any_insn(random: &mut Random) -> u32 {
    const OPS: [u32; 11] = [0x13, 0x1b, 0x33, 0x3b, 0x37, 0x17, 0x63, 0x6f, 0x03, 0x23, 0x0f];
    const FUNCTS: [u32; 3] = [0, 0x20 << 25, 1 << 25];
    loop {
        let op = random.any(&OPS);
        let mut insn = random.any_bits() as u32 & !0x7f | op;
        let writes = op != 0x23 && op != 0x63;
        match op {
            0x33 | 0x3b => insn = insn & 0x01ff_ffff | random.any(&FUNCTS),
            // Shifts.
            0x13 | 0x1b if insn >> 12 & 3 == 1 => insn &= !0xbe00_0000,
            // Branches by 4, 8 or 12.
            0x63 => insn = insn & 0x01ff_f07f | (random.any(&[4, 8, 12]) / 2) << 8,
            0x6f => insn = insn & 0xfff | random.any(&[4, 8]) << 20,
            0x03 | 0x23 => {
                insn = insn & !(31 << 15) | random.any(&[8, 9]) << 15;
                if random.below(8) != 0 {
                    // Mostly aligned.
                    let mask = (1 << (insn >> 12 & 3)) - 1;
                    insn &= if writes { !(mask << 20) } else { !(mask << 7) };
                }
            }
            0x0f => insn = random.any(&[0x0ff0_000f, 0x0100_000f, 0x0330_000f]),
            _ => {}
        }
        if Plain::of(insn, 0, &[0; 32]).is_some() && !(writes && [8, 9].contains(&(insn >> 7 & 31))) {
            return insn;
        }
    }
}

/// A compressed one likewise.
fn any_compressed(random: &mut Random) -> u32 {
    loop {
        let insn = random.any_bits() as u32 & 0xffff;
        let (rd, rd3, rs3) = (insn >> 7 & 31, (insn >> 7 & 7) + 8, (insn >> 2 & 7) + 8);
        let is_kept = |rd| [8, 9].contains(&rd);
        let is_fine = match (insn & 3, insn >> 13) {
            (0, 0) => insn & 0x1fe0 != 0 && !is_kept(rs3),
            (0, 2 | 3) => is_kept(rd3) && !is_kept(rs3),
            (0, 6 | 7) => is_kept(rd3),
            (1, 0 | 2) => !is_kept(rd),
            (1, 1) => rd != 0 && !is_kept(rd),
            (1, 3) => insn & 0x107c != 0 && !is_kept(rd),
            (1, 4) => !is_kept(rd3) && insn & 0x1c40 != 0x1c40,
            (2, 0) => !is_kept(rd),
            // c.mv, c.add
            (2, 4) => insn >> 2 & 31 != 0 && !is_kept(rd),
            _ => false,
        };
        if is_fine && Plain::of(insn, 0, &[0; 32]).is_some() {
            return insn;
        }
    }
}

fn random() -> Check {
    const ROUNDS: usize = 600;
    let mut random = Random::of(11);
    let (code, data) = (page(), ram::pages(3));
    let space = Space::new(&SV39, 0);
    let mut breaks = 0;
    for round in 0..ROUNDS {
        reset();
        let mut units = [0; UNITS];
        for unit in &mut units {
            *unit = match random.below(3) {
                0 => any_compressed(&mut random) | any_compressed(&mut random) << 16,
                1 if random.below(8) == 0 => CSRW_HTVAL,
                _ => any_insn(&mut random),
            };
        }
        code.0.iter().for_each(|word| word.store(u64::from(EBREAK) << 32 | u64::from(EBREAK), Relaxed));
        put(code, 8, &units);
        let mut x = core::array::from_fn(|_| match random.below(3) {
            0 => random.any_bits(),
            1 => random.below(64),
            _ => !random.below(64),
        });
        (x[8], x[9]) = (data[1].address() + 8 * random.below(512), data[1].address() + 2048);
        // x2 is the kernel's after the sequence only.
        let words: [u64; 8] = core::array::from_fn(|_| random.any_bits());
        let fresh = || {
            data.iter()
                .for_each(|page| page.0.iter().enumerate().for_each(|(n, word)| word.store(words[n % 8], Relaxed)))
        };
        let sum =
            || data.iter().flat_map(|page| &page.0).fold(0_u64, |sum, word| sum.rotate_left(7) ^ word.load(Relaxed));
        if round % 2 == 1 {
            space.enter();
        }
        let mut sums = [0; 2];
        let mut n = 0;
        let ends = [CSRW_HTVAL, NOP].map(|insn| {
            fresh();
            put(code, 4, &[insn]);
            let end = execute(code.address() + 4, &x);
            sums[n] = sum();
            n += 1;
            end
        });
        paging::leave();
        ensure_eq!(ends[0], ends[1], "round {round}");
        ensure_eq!(sums[0], sums[1], "memory, round {round}");
        breaks += u64::from(ends[0].0.cause == 3);
    }
    ensure!(breaks > ROUNDS as u64 / 2, "{breaks} of {ROUNDS} sequences ended as they should");
    Ok(())
}

fn csrs() -> Check {
    reset();
    let code = page();
    put(
        code,
        0,
        &[
            NOP,
            0x1403_12f3, // csrrw t0, sscratch, t1
            0x1400_23f3, // csrr t2, sscratch
            0x1402_9073, // csrw sscratch, t0
            0x1413_1073, // csrw sepc, t1: odd
            0x1410_2573, // csrr a0, sepc
            0x1423_5073, // csrwi scause, 6
            0x1420_25f3, // csrr a1, scause
            0x1433_1073, // csrw stval, t1
            0x1430_2673, // csrr a2, stval
            0x1000_26f3, // csrr a3, sstatus
            0x1001_f773, // csrrci a4, sstatus, 3: interrupts off
            0x1000_27f3, // csrr a5, sstatus
            0x1007_3873, // csrrc a6, sstatus, a4
            0x1006_9073, // csrw sstatus, a3
            0x1000_28f3, // csrr a7, sstatus
            0x1060_2e73, // csrr t3, scounteren
            0x106e_1ef3, // csrrw t4, scounteren, t3
            0x10a0_2f73, // csrr t5, senvcfg
            0x10af_1ff3, // csrrw t6, senvcfg, t5
            CSRW_HTVAL,
            EBREAK,
        ],
    );
    let mut x = [0; 32];
    x[6] = 0x1234_5671;
    let mut ends = both(code.address(), code, &x, || {});
    ensure_eq!(ends[0], ends[1], "CSRs");
    let x = &mut ends[0].1;
    ensure_eq!(
        (x[7], x[10] | 1, x[11], x[12]),
        (0x1234_5671, 0x1234_5671, 6, 0x1234_5671),
        "sscratch, sepc, scause, stval"
    );
    ensure_eq!((x[15] & status::SIE, x[13] & status::SIE), (0, status::SIE), "sstatus.SIE");
    Ok(())
}

/// `li a0, 1; OP; li a0, 2; ebreak`.
const fn with(op: u32) -> [u32; 5] {
    [NOP, 0x0010_0513, op, 0x0020_0513, EBREAK]
}

const LD: u32 = 0x0004_3583; // ld a1, 0(s0)
const LW_TO_NOWHERE: u32 = 0x0004_2003; // lw x0, 0(s0)
const SD: u32 = 0x00c4_3023; // sd a2, 0(s0)

/// Loads and stores that trap, or may.
fn faults() -> Check {
    reset();
    let (code, data, other) = (page(), page(), page());
    let space = Space::new(&SV39, 0);
    let user = RW.union(PteFlags::U);
    let at = |n: u64| TEST_VA + n * 0x1000;
    space.map(at(0), data.address(), RW);
    space.map(at(1), data.address(), RO);
    space.map(at(2), data.address(), XO);
    space.map(at(3), data.address(), user);
    space.map(at(4), data.address(), PteFlags::R.union(PteFlags::W));
    space.map(at(5), data.address(), PteFlags::R.union(PteFlags::W).union(PteFlags::A));
    space.map(at(6), 1 << 40, RW);
    space.map(at(8), data.address(), RW);
    space.map(at(9), other.address(), RW);
    let places = [
        at(0),
        at(1),
        at(2),
        at(3),
        at(4),
        at(5),
        at(6),
        at(7),
        at(8) + 0xffc,
        at(9) + 0xffc,
        at(0) + 1,
        1 << 50,
        !0 << 40,
        0,
        u64::MAX - 3,
    ];
    for (bits, what) in
        [(0, "no bits"), (status::SUM, "SUM"), (status::MXR, "MXR"), (status::SUM | status::MXR, "SUM and MXR")]
    {
        for op in [LD, LW_TO_NOWHERE, SD] {
            for place in places {
                put(code, 0, &with(op));
                let mut x = [0; 32];
                (x[8], x[12]) = (place, 0x0123_4567_89ab_cdef);
                space.enter();
                // SAFETY: this program accesses nothing by these rights.
                unsafe {
                    csr::sstatus::clear(status::SUM | status::MXR);
                    csr::sstatus::set(bits);
                }
                let fresh = || {
                    // A and D, where hardware sets them.
                    space.map(at(4), data.address(), PteFlags::R.union(PteFlags::W));
                    space.map(at(5), data.address(), PteFlags::R.union(PteFlags::W).union(PteFlags::A));
                    fence::sfence_all();
                    data.0[0].store(77, Relaxed);
                };
                let ends = both(code.address(), code, &x, fresh);
                // SAFETY: as above.
                unsafe { csr::sstatus::clear(status::SUM | status::MXR) };
                paging::leave();
                ensure_eq!(ends[0], ends[1], "{op:#x} at {place:#x} with {what}");
            }
        }
    }
    Ok(())
}

/// Code that cannot be executed, after a page that can.
fn code_faults() -> Check {
    reset();
    let (code, next) = (page(), page());
    let space = Space::new(&SV39, 0);
    const C_LI: u32 = 0x4505; // c.li a0, 1
    for (flags, what) in [
        (RWX, "executable"),
        (XO, "execute-only"),
        (RW, "not executable"),
        (RWX.union(PteFlags::U), "user mode's"),
        (PteFlags::R.union(PteFlags::X), "without A"),
        (PteFlags::empty(), "absent"),
    ] {
        for is_split in [false, true] {
            // The last instruction of the page has 4 bytes, or 2, or begins in it.
            let last = if is_split { 0x0513_0001 } else { C_LI | C_LI << 16 };
            put(code, 0xff8, &[NOP, last]);
            put(next, 0, &[if is_split { 0x4585_0020 } else { 0x4589_4585 }, EBREAK]);
            let fresh = || {
                space.map(TEST_VA, code.address(), RWX);
                space.map(TEST_VA + 0x1000, next.address(), flags);
                fence::sfence_all();
            };
            for sum in [0, status::SUM] {
                space.enter();
                // SAFETY: as for `faults`.
                unsafe { csr::sstatus::set(sum) };
                let ends = both(TEST_VA + 0xff8, code, &[0; 32], fresh);
                // SAFETY: as above.
                unsafe { csr::sstatus::clear(status::SUM) };
                paging::leave();
                ensure_eq!(ends[0], ends[1], "a next page that is {what}, an instruction across: {is_split}, {sum:#x}");
            }
        }
    }
    // A jump to an odd address leads to the even one before it, and one out of the page to a fault.
    for to in [code.address() + 17, 1 << 50, UART] {
        put(code, 0, &[NOP, 0x0004_0567, EBREAK, EBREAK, 0x0030_0593, EBREAK]); // jalr a0, s0
        let mut x = [0; 32];
        x[8] = to;
        let ends = both(code.address(), code, &x, || {});
        ensure_eq!(ends[0], ends[1], "a jump to {to:#x}");
    }
    Ok(())
}

/// Accesses to a device in the middle.
fn device() -> Check {
    reset();
    let code = page();
    // sb a2, 7(s0); lbu a1, 7(s0): the UART's scratch register, if it has one.
    put(code, 0, &[NOP, 0x00c4_03a3, 0x0074_4583, 0x0010_0513, EBREAK]);
    let mut x = [0; 32];
    (x[8], x[12]) = (UART, 0x5a);
    let ends = both(code.address(), code, &x, || {});
    ensure_eq!(ends[0], ends[1], "a device's register");
    ensure_eq!(ends[0].1[10], 1, "the instruction after");
    Ok(())
}

/// Interrupts while such code runs.
fn interrupts() -> Check {
    reset();
    let code = page();
    // One is pending when the code enables interrupts.
    put(code, 0, &[NOP, 0x0015_0513, 0x1001_6073, 0x0015_0513, 0x0015_0513, EBREAK]); // csrsi sstatus, 2 among addi a0, a0, 1
    let start = page();
    // csrci sstatus, 2; csrsi sip, 2; jr s0
    put(start, 0, &[0x1001_7073, 0x1441_6073, 0x0004_0067]);
    for insn in [CSRW_HTVAL, NOP] {
        put(code, 0, &[insn]);
        let mut x = [0; 32];
        x[8] = code.address();
        trap::enable(Interrupt::SSoft.bit());
        let (found, x) = execute(start.address(), &x);
        trap::disable(Interrupt::SSoft.bit());
        trap::clear_ipi();
        ensure_eq!(
            (found.cause, found.epc, x[10]),
            (1 << 63 | 1, code.address() + 12, 1),
            "an interrupt when it is enabled, {insn:#x}"
        );
    }
    // One comes while the code does nothing but jump to itself.
    for insn in [CSRW_HTVAL, NOP] {
        put(code, 0, &[insn, 0x0000_006f]);
        sbi::set_timer(metal::time() + board().ticks(30));
        trap::enable(Interrupt::STimer.bit());
        let (found, _) = execute(code.address(), &[0; 32]);
        trap::disable(Interrupt::STimer.bit());
        sbi::set_timer(u64::MAX);
        ensure_eq!((found.cause, found.epc), (1 << 63 | 5, code.address() + 4), "an interrupt of a loop, {insn:#x}");
    }
    // A loop of such instructions ends as well.
    put(code, 0, &[CSRW_HTVAL, CSRW_HTVAL, 0xff9f_f06f]);
    sbi::set_timer(metal::time() + board().ticks(30));
    trap::enable(Interrupt::STimer.bit());
    let (found, _) = execute(code.address(), &[0; 32]);
    trap::disable(Interrupt::STimer.bit());
    sbi::set_timer(u64::MAX);
    ensure_eq!(found.cause, 1 << 63 | 5, "an interrupt of a loop of them");
    Ok(())
}

/// Code that changes itself.
fn own_code() -> Check {
    reset();
    let code = page();
    // sw a2, 16(s0); fence.i; nop; and at 16 what is stored; ebreak.
    let mut x = [0; 32];
    (x[8], x[12]) = (code.address(), 0x0070_0513); // li a0, 7
    let fresh = || put(code, 4, &[0x00c4_2823, 0x0000_100f, NOP, 0x0010_0513, EBREAK]);
    let ends = both(code.address(), code, &x, fresh);
    ensure_eq!(ends[0], ends[1], "code that changes itself");
    ensure_eq!(ends[0].1[10], 7, "the new instruction");
    Ok(())
}
