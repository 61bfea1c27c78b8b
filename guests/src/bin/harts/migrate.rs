//! A hart's state survives everything that a hypervisor does between two of its instructions: exits, other vCPUs on the
//! same hart, moves to another hart. Every hart works at once; run it with more vCPUs than harts.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "registers by assembly, CSR writes")]

use ::lane::{FloatState, VectorCsrs};
use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use guests::expect::{execute_in, read_csr, write_csr};
use guests::paging::Page;
use guests::ram::pages;
use guests::trap::{self, disable, enable, on_interrupt, pending, with_interrupts};
use guests::{Check, access, board, ensure, ensure_eq, hart, run, sbi};
use metal::csr::{self, sstatus};
use metal::{float, vector};
use rv::Interrupt::STimer;
use rv::csr::status;

guests::entry_point!(main);

fn main() {
    everywhere("migrate/integer-registers", integer_registers);
    everywhere("migrate/supervisor-csrs", supervisor_csrs);
    if board().has("d") {
        everywhere("migrate/float-registers", float_registers);
        everywhere("migrate/float-off", float_off);
        everywhere("migrate/float-status", float_status);
    }
    if board().has("v") {
        everywhere("migrate/vector-registers", vector_registers);
    }
    if board().has("sstc") {
        everywhere("migrate/stimecmp", stimecmp);
    }
    everywhere("migrate/every-csr", every_csr);
    everywhere("migrate/timer-ticks", timer_ticks);
    everywhere("migrate/atomics", atomics);
    run("migrate/atomics-sum", atomics_sum);
    everywhere("migrate/reservations", reservations);
    run("migrate/reservations-sum", reservations_sum);
}

/// Milliseconds that each check goes on: where four vCPUs share a hart and none gives it away, each has three slices of 10 ms.
const TIME_MS: u64 = 120;

/// The number of wrong findings of each hart, and the first of them.
static WRONG: [[AtomicU64; 2]; hart::MAX] = [const { [const { AtomicU64::new(0) }; 2] }; hart::MAX];
static WORK: spin::Mutex<fn()> = spin::Mutex::new(|| ());

fn wrong(what: u64) {
    let [count, first] = &WRONG[hart::id() as usize];
    if count.fetch_add(1, Relaxed) == 0 {
        first.store(what, Relaxed);
    }
}

/// Runs `work` on every hart at once. It reports with [`wrong`].
fn everywhere(name: &str, work: fn()) {
    fn job(_: u64) {
        let work = *WORK.lock();
        work();
    }
    run(name, || {
        WRONG.iter().flatten().for_each(|cell| cell.store(0, Relaxed));
        *WORK.lock() = work;
        board().other_harts().try_for_each(|other| hart::start(other, job, 0))?;
        job(0);
        board().other_harts().try_for_each(hart::join)?;
        for id in board().harts() {
            let [count, first] = WRONG[*id as usize].each_ref().map(|cell| cell.load(Relaxed));
            ensure!(count == 0, "hart {id}: {count} wrong, first {first:#x}");
        }
        Ok(())
    });
}

/// Calls `f` until the time is over, alternately after a spin and after a short sleep, so that
/// both preemption and yielding come in between.
fn for_a_while(mut f: impl FnMut()) {
    let end = metal::time() + board().ticks(TIME_MS);
    while metal::time() < end {
        (0..2000).for_each(|_| core::hint::spin_loop());
        f();
        nap();
        f();
    }
}

/// WFI until a timer half a millisecond away is pending. Takes no interrupt, so `sepc` and its like
/// stay as they are.
fn nap() {
    sbi::set_timer(metal::time() + board().timebase / 2000);
    enable(STimer.bit());
    while pending() & STimer.bit() == 0 {
        metal::wait_for_interrupt();
    }
    disable(STimer.bit());
    sbi::set_timer(u64::MAX);
}

/// Loads all of x1 to x31 but t6 (a counter) with values of their own, counts down, and ORs up what
/// changed. sp, gp and tp included: interrupts stay off.
#[unsafe(naked)]
extern "C" fn hold_registers(seed: u64, rounds: u64) -> u64 {
    naked_asm!(
        "addi sp, sp, -256",
        ".irp n, 1,3,4,8,9,18,19,20,21,22,23,24,25,26,27",
        "sd x\\n, 8*\\n(sp)",
        ".endr",
        "csrw sscratch, sp",
        "mv t6, a1",
        ".irp n, 1,2,3,4,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30",
        "addi x\\n, a0, \\n",
        ".endr",
        "1: addi t6, t6, -1",
        "bnez t6, 1b",
        // t6 collects the differences; each register minus its number must be the seed again.
        ".irp n, 1,2,3,4,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30",
        "addi x\\n, x\\n, -\\n",
        "xor x\\n, x\\n, a0",
        "or t6, t6, x\\n",
        ".endr",
        "csrr sp, sscratch",
        "mv a0, t6",
        ".irp n, 1,3,4,8,9,18,19,20,21,22,23,24,25,26,27",
        "ld x\\n, 8*\\n(sp)",
        ".endr",
        "addi sp, sp, 256",
        "ret",
    )
}

/// A value that depends on the hart and the index.
fn mark(index: u64) -> u64 {
    (hart::id() + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0x0101_0101_0101_0101)
}

fn integer_registers() {
    let mut round = 0;
    for_a_while(|| {
        round += 1;
        let changed = hold_registers(mark(round), 200_000);
        if changed != 0 {
            wrong(changed);
        }
    });
}

/// Checks a CSR that only this hart writes.
macro_rules! csrs_hold {
    ($($name:ident = $value:expr),* $(,)?) => {{
        // SAFETY: scratch values: no trap is taken while they stand.
        unsafe { $(csr::$name::write($value);)* }
        let expected = [$(csr::$name::read()),*];
        for_a_while(|| {
            for (index, (found, expected)) in [$(csr::$name::read()),*].into_iter().zip(expected).enumerate() {
                if found != expected {
                    wrong((index as u64) << 56 | (found ^ expected) & ((1 << 56) - 1));
                }
            }
        });
    }};
}

fn supervisor_csrs() {
    csrs_hold!(
        sscratch = mark(1),
        sepc = mark(2) & !3,
        scause = hart::id() + 1,
        stval = mark(3),
        scounteren = if hart::id().is_multiple_of(2) { 0b010 } else { 0b101 },
        stvec = trap::vector(),
    );
    // SAFETY: user mode's counters; no code relies on them.
    unsafe { csr::scounteren::write(0) };
    // Writable where the hart has privileged 1.12: FIOM.
    let has_senvcfg = trap::catch(|| _ = csr::senvcfg::read()).is_none();
    if has_senvcfg {
        csrs_hold!(senvcfg = hart::id() % 2);
    }
    // SUM and MXR differ between neighbours.
    let bits = if hart::id().is_multiple_of(2) { status::SUM } else { status::MXR };
    // SAFETY: paging is off, so they mean nothing.
    unsafe { sstatus::set(bits) };
    for_a_while(|| {
        if sstatus::read() & (status::SUM | status::MXR) != bits {
            wrong(sstatus::read());
        }
    });
    // SAFETY: as above.
    unsafe { sstatus::clear(bits) };
}

fn set_float(state: u64) {
    // SAFETY: Rust's code here uses no floating point.
    unsafe {
        sstatus::clear(status::FS);
        sstatus::set(state << status::FS_SHIFT);
    }
}

/// All 32 registers and fcsr, new values each round.
fn float_registers() {
    set_float(1);
    let mut round = 0;
    for_a_while(|| {
        round += 1;
        let mut held = FloatState::ZERO;
        for (index, f) in held.f.iter_mut().enumerate() {
            *f = mark(round * 32 + index as u64);
        }
        // Rounding modes 0 to 4, and any of the five flags.
        let (mode, flags) = ((round + hart::id()) % 5, (round + hart::id()) % 32);
        held.fcsr = mode << 5 | flags;
        // SAFETY: FS is on, the hart has D.
        unsafe { float::restore(&held) };
        (0..3000).for_each(|_| core::hint::spin_loop());
        nap();
        let mut found = FloatState::ZERO;
        // SAFETY: as above.
        unsafe { float::save(&mut found) };
        for (index, (found, held)) in found.f.iter().zip(held.f).enumerate() {
            if *found != held {
                wrong(index as u64);
            }
        }
        if found.fcsr != held.fcsr {
            wrong(100 + found.fcsr);
        }
        if sstatus::read() & status::FS != status::FS {
            wrong(200); // written, so dirty
        }
    });
    set_float(0);
}

/// With FS off every access traps, on every hart, after any other vCPU there. Odd harts keep it on.
fn float_off() {
    if hart::id() % 2 == 1 {
        return float_registers();
    }
    set_float(0);
    for_a_while(|| {
        let trap = trap::catch(|| _ = csr::fcsr::read());
        if trap.is_none_or(|t| t.cause != 2) {
            wrong(trap.map_or(99, |t| t.cause));
        }
        if sstatus::read() & status::FS != 0 {
            wrong(sstatus::read());
        }
    });
}

/// FS is the guest's: Initial stays Initial and Clean stays Clean while nothing is written.
fn float_status() {
    for state in [1, 2] {
        set_float(state);
        for_a_while(|| {
            let found = (sstatus::read() & status::FS) >> status::FS_SHIFT;
            if found != state {
                wrong(found << 8 | state);
            }
        });
    }
    set_float(0);
}

/// Room for registers of up to 512 bits.
const VECTOR_BYTES: usize = 32 * 64;

fn vector_registers() {
    let on = 1 << status::VS_SHIFT;
    // SAFETY: Rust's code here uses no vectors.
    unsafe { sstatus::set(on) };
    let bytes = 32 * csr::vlenb::read() as usize;
    if bytes > VECTOR_BYTES {
        return wrong(bytes as u64);
    }
    let mut round = 0;
    for_a_while(|| {
        round += 1;
        let (mut held, mut found) = ([0; VECTOR_BYTES], [0; VECTOR_BYTES]);
        for (index, word) in held.chunks_mut(8).enumerate() {
            word.copy_from_slice(&mark(round * 256 + index as u64).to_le_bytes());
        }
        // e8, m8, tail and mask agnostic: vl may be up to 256 at VLEN 256; 7 fits everywhere.
        let csrs = VectorCsrs { vstart: 0, vl: 7, vtype: 0xc3, vcsr: round % 8 };
        // SAFETY: VS is on, the hart has V, the slices have the right length.
        let back = unsafe {
            vector::restore(&held[..bytes], &csrs);
            (0..3000).for_each(|_| core::hint::spin_loop());
            nap();
            vector::save(&mut found[..bytes])
        };
        if held[..bytes] != found[..bytes] {
            wrong(1);
        }
        if (back.vl, back.vtype, back.vcsr) != (csrs.vl, csrs.vtype, csrs.vcsr) {
            wrong(2);
        }
    });
    // SAFETY: as above.
    unsafe { sstatus::clear(status::VS) };
}

/// A comparator far away, different on each hart, through preemption alone: a nap would set it.
fn stimecmp() {
    let far = u64::MAX / 2 + (hart::id() << 32);
    // SAFETY: its interrupt is off.
    unsafe { csr::stimecmp::write(far) };
    let end = metal::time() + board().ticks(TIME_MS);
    while metal::time() < end {
        (0..1000).for_each(|_| core::hint::spin_loop());
        if csr::stimecmp::read() != far {
            wrong(csr::stimecmp::read());
        }
        if pending() & STimer.bit() != 0 {
            wrong(1);
        }
    }
    sbi::set_timer(u64::MAX);
}

/// CSRs that do not hold what is written, or that this hart cannot do without: seed, sstatus, sie, stvec, sepc, scause,
/// stval, sip, stimecmp, stopei, satp. Each but the seed and the claim has a check of its own.
const PARTICULAR: [u32; 11] = [0x015, 0x100, 0x104, 0x105, 0x141, 0x142, 0x143, 0x144, 0x14d, 0x15c, 0x180];

/// Any user's or supervisor's CSR that can be written keeps this hart's value, even if this guest does not know it.
fn every_csr() {
    static CODE: spin::Once<&[Page]> = spin::Once::new();
    let code = &CODE.call_once(|| pages(hart::MAX))[hart::id() as usize];
    set_float(1);
    let read = |number| execute_in(code, read_csr(number), 0).ok();
    let write = |number, value| execute_in(code, write_csr(number), value).is_ok();
    let is_asked = |number: &u32| number >> 8 & 3 < 2 && number >> 10 != 3 && !PARTICULAR.contains(number);
    // As many as any hart has by far.
    let mut held = [(0, 0, 0); 64];
    let mut count = 0;
    for number in (0..4096).filter(is_asked) {
        if let Some(before) = read(number) {
            held[count] = (number, before, 0);
            count += 1;
        }
    }
    let held = &mut held[..count];
    held.iter().for_each(|&(number, ..)| _ = write(number, mark(number.into())));
    // Some are parts of others.
    held.iter_mut().for_each(|(number, _, value)| *value = read(*number).unwrap_or_default());
    for_a_while(|| {
        for (number, _, value) in held.iter() {
            if read(*number) != Some(*value) {
                wrong(u64::from(*number) << 32 | value & 0xffff_ffff);
            }
        }
    });
    held.iter().rev().for_each(|&(number, before, _)| _ = write(number, before));
    if !held.iter().any(|(_, before, value)| before != value) {
        wrong(count as u64);
    }
    set_float(0);
}

static NEXT: [AtomicU64; hart::MAX] = [const { AtomicU64::new(0) }; hart::MAX];

/// Each hart has a tick of its own every millisecond, in the midst of integer and register work.
fn timer_ticks() {
    fn tick(_: u64) {
        let (now, next) = (metal::time(), &NEXT[hart::id() as usize]);
        if now < next.load(Relaxed) {
            wrong(1);
        }
        next.store(now + board().ticks(1), Relaxed);
        sbi::set_timer(now + board().ticks(1));
    }
    let before = hart::this().count(STimer);
    on_interrupt(Some(tick));
    NEXT[hart::id() as usize].store(0, Relaxed);
    sbi::set_timer(0);
    enable(STimer.bit());
    let end = metal::time() + board().ticks(TIME_MS);
    let (mut sum, mut rounds) = (0_u64, 0_u64);
    with_interrupts(|| {
        while metal::time() < end || hart::this().count(STimer) < before + 3 {
            rounds += 1;
            sum = sum.wrapping_add(mark(rounds)).rotate_left(7);
            if metal::time() > end + board().ticks(hart::PATIENCE_MS) {
                return wrong(2);
            }
        }
    });
    disable(STimer.bit());
    sbi::set_timer(u64::MAX);
    let again = (1..=rounds).fold(0_u64, |sum, round| sum.wrapping_add(mark(round)).rotate_left(7));
    if sum != again {
        wrong(3);
    }
}

const ADDITIONS: u64 = 50_000;
static SUM: AtomicU64 = AtomicU64::new(0);
static RESERVED: AtomicU64 = AtomicU64::new(0);

fn atomics() {
    (0..ADDITIONS).for_each(|_| _ = SUM.fetch_add(1, SeqCst));
}

fn atomics_sum() -> Check {
    ensure_eq!(SUM.load(SeqCst), ADDITIONS * board().hart_count as u64, "sum");
    Ok(())
}

/// LR/SC: a reservation that survived a switch to a vCPU that stored there would lose an addition.
fn reservations() {
    let mut left = ADDITIONS;
    while left > 0 {
        if left.is_multiple_of(1000) {
            nap();
        }
        let failed: u64;
        // SAFETY: an atomic cell; a loop in between widens the window for a switch.
        unsafe {
            asm!(
                "lr.d {old}, ({cell})", "li {failed}, 20", "2: addi {failed}, {failed}, -1", "bnez {failed}, 2b",
                "addi {old}, {old}, 1", "sc.d {failed}, {old}, ({cell})",
                old = out(reg) _, failed = out(reg) failed, cell = in(reg) RESERVED.as_ptr(), options(nostack)
            );
        }
        left -= u64::from(failed == 0);
    }
}

fn reservations_sum() -> Check {
    // Untouched RAM is zero, whichever guest had its frames before.
    let (from, _) = board().largest_free();
    ensure_eq!(access::peek(from.next_multiple_of(2 << 20)), 0, "fresh RAM");
    ensure_eq!(RESERVED.load(SeqCst), ADDITIONS * board().hart_count as u64, "sum");
    Ok(())
}
