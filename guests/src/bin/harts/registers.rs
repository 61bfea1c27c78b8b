//! Instructions that trap to the hypervisor leave all registers as they are, except the ones that they change: each is
//! executed with random numbers in all 31.
#![no_std]
#![no_main]

use core::arch::naked_asm;
use core::sync::atomic::Ordering::Relaxed;
use guests::paging::{self, RW, RWX, Space, TEST_VA, leaf, page};
use guests::random::Random;
use guests::{Check, board, ensure_eq, run, sbi};
use rv::format::SV39;
use rv::{Level, PAGE_BYTES};
use sbi_spec::{base, spi, time};

guests::entry_point!(main);

const ROUNDS: u64 = 500;
/// Pages of the space under test.
const PAGES: u64 = 64;
const ASIDS: [u64; 2] = [41, 42];
/// `ret`.
const RETURN: u64 = 0x8067;

/// All registers, by their numbers.
type Registers = [u64; 32];

/// A function that executes an instruction with those registers, and returns what they are then.
macro_rules! with_all_registers {
    ($name:ident, $instruction:literal) => {
        #[unsafe(naked)]
        extern "C" fn $name(registers: &mut Registers) {
            naked_asm!(
                // What is the caller's, where no register has to lead: there is one hart.
                ".pushsection .bss",
                ".balign 8",
                "3: .zero 136",
                ".popsection",
                "la t0, 3b",
                "sd ra, 0(t0)", "sd sp, 8(t0)", "sd gp, 16(t0)", "sd tp, 24(t0)", "sd s0, 32(t0)", "sd s1, 40(t0)",
                "sd s2, 48(t0)", "sd s3, 56(t0)", "sd s4, 64(t0)", "sd s5, 72(t0)", "sd s6, 80(t0)", "sd s7, 88(t0)",
                "sd s8, 96(t0)", "sd s9, 104(t0)", "sd s10, 112(t0)", "sd s11, 120(t0)",
                "csrr t1, sscratch", "sd t1, 128(t0)", "csrw sscratch, a0",
                ".irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, \
                    30, 31, 10",
                "ld x\\n, 8 * \\n(a0)",
                ".endr",
                $instruction,
                "csrrw a0, sscratch, a0",
                ".irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, \
                    30, 31",
                "sd x\\n, 8 * \\n(a0)",
                ".endr",
                "csrr t0, sscratch", "sd t0, 80(a0)",
                "la t0, 3b",
                "ld t1, 128(t0)", "csrw sscratch, t1",
                "ld ra, 0(t0)", "ld sp, 8(t0)", "ld gp, 16(t0)", "ld tp, 24(t0)", "ld s0, 32(t0)", "ld s1, 40(t0)",
                "ld s2, 48(t0)", "ld s3, 56(t0)", "ld s4, 64(t0)", "ld s5, 72(t0)", "ld s6, 80(t0)", "ld s7, 88(t0)",
                "ld s8, 96(t0)", "ld s9, 104(t0)", "ld s10, 112(t0)", "ld s11, 120(t0)",
                "ret",
            )
        }
    };
}

with_all_registers!(call, "ecall");
with_all_registers!(fence_page, "sfence.vma s11, x0");
with_all_registers!(fence_page_asid, "sfence.vma s11, t6");
with_all_registers!(fence_all, "sfence.vma x0, x0");
with_all_registers!(write_satp, "csrw satp, t6");
with_all_registers!(exchange_satp, "csrrw t0, satp, s11");
with_all_registers!(exchange_satp_preserved, "csrrw s5, satp, t6");
with_all_registers!(read_satp, "csrr s9, satp");
with_all_registers!(load, "ld a3, 0(s11)");
with_all_registers!(load_preserved, "ld s7, 0(t6)");
with_all_registers!(store, "sd s6, 0(s11)");
with_all_registers!(fetch, "jalr ra, 0(s11)");

fn main() {
    run("registers/calls", calls);
    run("registers/translation", translation);
}

fn random_registers(random: &mut Random) -> Registers {
    core::array::from_fn(|n| if n == 0 { 0 } else { random.any_bits() })
}

/// Executes an instruction, and compares all registers. Those in `changed` have the values given there, all others
/// their old ones.
fn check(name: &str, execute: extern "C" fn(&mut Registers), registers: Registers, changed: &[(usize, u64)]) -> Check {
    let mut found = registers;
    execute(&mut found);
    let mut expected = registers;
    changed.iter().for_each(|(n, value)| expected[*n] = *value);
    for n in 1..32 {
        ensure_eq!(found[n], expected[n], "{name}: x{n}");
    }
    Ok(())
}

fn calls() -> Check {
    let mut random = Random::of(1);
    let version = sbi::base(base::GET_SBI_SPEC_VERSION).1;
    for _ in 0..ROUNDS {
        // A timer that is far ahead, an IPI to the hart itself, an IPI to no hart.
        for (extension, function, arguments, value) in [
            (base::EID_BASE, base::GET_SBI_SPEC_VERSION, [0, 0], version),
            (time::EID_TIME, time::SET_TIMER, [u64::MAX >> 1, 0], 0),
            (spi::EID_SPI, spi::SEND_IPI, [1, board().boot_hart], 0),
            (spi::EID_SPI, spi::SEND_IPI, [0, 0], 0),
        ] {
            let mut x = random_registers(&mut random);
            (x[10], x[11], x[16], x[17]) = (arguments[0], arguments[1], function as u64, extension as u64);
            check("a call", call, x, &[(10, 0), (11, value)])?;
        }
    }
    Ok(())
}

fn translation() -> Check {
    let mut random = Random::of(2);
    let frames = [page(), page()];
    for frame in frames {
        frame.0[0].store(RETURN, Relaxed);
    }
    let spaces = ASIDS.map(|asid| Space::new(&SV39, asid));
    let at = |n: u64| TEST_VA + n * PAGE_BYTES;
    for space in &spaces {
        (0..PAGES).for_each(|n| space.map(at(n), frames[0].address(), RWX));
    }
    spaces[0].enter();
    let mut present = 0;
    for _ in 0..ROUNDS {
        let gva = at(random.below(PAGES));
        // Each access finds an entry that a fence has passed over, and most fences one that has changed.
        for (name, execute) in [
            ("a load", load as extern "C" fn(&mut Registers)),
            ("a load to s7", load_preserved),
            ("a store", store),
            ("a fetch", fetch),
        ] {
            let frame = frames[random.below(2) as usize].address();
            let flags = if random.below(4) == 0 && name != "a fetch" { RW } else { RWX };
            spaces[present].slot(gva, Level::PAGE).store(leaf(frame, flags), Relaxed);
            let mut x = random_registers(&mut random);
            (x[27], x[31]) = (gva, ASIDS[present]);
            match random.below(8) {
                0 => check("a fence of everything", fence_all, x, &[])?,
                1..=3 => check("a fence of a page", fence_page, x, &[])?,
                _ => check("a fence of a page and an ASID", fence_page_asid, x, &[])?,
            }
            let mut x = random_registers(&mut random);
            (x[27], x[31], x[22]) = (gva, gva, RETURN);
            match name {
                "a load" => check(name, execute, x, &[(13, RETURN)])?,
                "a load to s7" => check(name, execute, x, &[(23, RETURN)])?,
                "a store" => check(name, execute, x, &[])?,
                _ => {
                    // It comes back to the instruction after it.
                    let mut found = x;
                    execute(&mut found);
                    x[1] = found[1];
                    ensure_eq!(found, x, "a fetch");
                }
            }
        }
        let (old, other) = (spaces[present].satp(), spaces[1 - present].satp());
        let mut x = random_registers(&mut random);
        check("a read of satp", read_satp, x, &[(25, old)])?;
        let new = if random.below(2) == 0 { old } else { other };
        (x[27], x[31]) = (new, new);
        match random.below(3) {
            0 => check("a write of satp", write_satp, x, &[])?,
            1 => check("an exchange of satp", exchange_satp, x, &[(5, old)])?,
            _ => check("an exchange of satp by s5", exchange_satp_preserved, x, &[(21, old)])?,
        }
        if new == other {
            present = 1 - present;
        }
    }
    paging::leave();
    Ok(())
}
