//! A user program that attacks its machine with all that user mode has. Whatever it does comes to its kernel, which goes
//! on. Boot argument: how many milliseconds the timed attacks last, else [`MILLISECONDS`].
#![no_std]
#![no_main]

use core::sync::atomic::Ordering::Relaxed;
use guests::expect::{BREAKPOINT, ECALL_U, FETCH_PAGE, ILLEGAL, read_csr, write_csr};
use guests::paging::{self, Page, RO, RW, RWX, Space, TEST_VA, page};
use guests::user::{self, JUMP_TO_A1, User};
use guests::{Check, board, ensure, ensure_eq, run, sbi, trap};
use metal::csr;
use rv::csr::status;
use rv::{Interrupt, PteFlags};

guests::entry_point!(main);

/// The time of timed attacks if the boot arguments do not say: two looks of a watch that looks once a second.
const MILLISECONDS: u64 = 2300;
/// Programs of random instructions.
const PROGRAMS: u64 = 4000;
/// The time that one of those may run.
const PROGRAM_MILLISECONDS: u64 = 2;

/// The memory of user mode: code and data of its own, and pages that lead to a device, to nothing, and to a table.
const CODE: u64 = TEST_VA;
const DATA: u64 = TEST_VA + 0x1000;
const PLIC: u64 = TEST_VA + 0x2000;
const UART: u64 = TEST_VA + 0x3000;
const NOTHING: u64 = TEST_VA + 0x4000;

const ECALL: u32 = 0x73;

/// A user program's world.
struct World {
    code: &'static Page,
    /// Memory that user mode cannot reach; it keeps its contents.
    guard: &'static Page,
}

fn main() {
    let milliseconds = board().number();
    let ticks = board().ticks(milliseconds.unwrap_or(MILLISECONDS));
    let world = World::enter();
    run("usermode/jump-to-the-handler", || world.jump_to_the_handler());
    run("usermode/hammer-the-handler", || world.hammer_the_handler(ticks));
    run("usermode/privileged-instructions", || world.privileged_instructions());
    run("usermode/every-csr", || world.every_csr());
    run("usermode/random-programs", || world.random_programs());
    run("usermode/kernel-goes-on", || world.kernel_goes_on());
    paging::leave();
}

impl World {
    fn enter() -> Self {
        let space = Space::new(&rv::format::SV39, 1);
        let (code, data, guard) = (page(), page(), page());
        guard.0.iter().for_each(|word| word.store(u64::MAX / 3, Relaxed));
        space.map(CODE, code.address(), RWX | PteFlags::U);
        space.map(DATA, data.address(), RW | PteFlags::U);
        space.map(PLIC, 0x0c00_0000, RW | PteFlags::U);
        // Loads only: what it prints could pass for a report.
        space.map(UART, 0x1000_0000, RO | PteFlags::U);
        space.map(NOTHING, 0x4000_0000, RWX | PteFlags::U);
        space.enter();
        Self { code, guard }
    }

    /// Runs the instructions, then a call of the kernel, in user mode with `a0` to `a7` given.
    fn run(&self, instructions: &[u32], a: [u64; 8]) -> (User, trap::Trap) {
        for (word, pair) in self.code.0.iter().zip(instructions.chunks(2).chain([[ECALL; 2].as_slice(); 4])) {
            let high = pair.get(1).copied().unwrap_or(ECALL);
            word.store(u64::from(high) << 32 | u64::from(pair[0]), Relaxed);
        }
        metal::fence::instruction();
        let mut program = User::at(CODE);
        program.x[10..18].copy_from_slice(&a);
        let found = program.run();
        (program, found)
    }

    /// The one address where a kernel must never fault.
    fn jump_to_the_handler(&self) -> Check {
        for _ in 0..100 {
            for at in [user::vector(), user::vector() + 2, trap::vector()] {
                let (_, found) = self.run(&[JUMP_TO_A1], [0, at, 0, 0, 0, 0, 0, 0]);
                ensure_eq!((found.cause, found.epc, found.tval), (FETCH_PAGE, at, at), "a jump to the handler");
                ensure_eq!(found.status & status::SPP, 0, "SPP");
            }
        }
        Ok(())
    }

    /// Jumps to the handler so often that a watch which looks from time to time sees nothing else.
    fn hammer_the_handler(&self, ticks: u64) -> Check {
        self.code.fill(&JUMP_TO_A1.to_le_bytes());
        let (rounds, found, vector) = user::hammer_vector(CODE, csr::time::read() + ticks);
        ensure!(rounds > 100, "only {rounds} rounds");
        ensure_eq!((found.cause, found.epc, found.tval), (FETCH_PAGE, vector, vector), "the last jump");
        Ok(())
    }

    /// Instructions that only a kernel, a hypervisor or firmware may execute.
    fn privileged_instructions(&self) -> Check {
        let illegal = [
            ("sret", 0x1020_0073),
            ("mret", 0x3020_0073),
            ("mnret", 0x7020_0073),
            ("dret", 0x7b20_0073),
            ("sfence.vma", 0x1200_0073),
            ("sfence.vma a1", 0x1205_8073),
            ("sfence.vma a1, a2", 0x12c5_8073),
            ("sinval.vma", 0x1600_0073),
            ("sfence.w.inval", 0x1800_0073),
            ("hfence.vvma", 0x2200_0073),
            ("hfence.gvma", 0x6200_0073),
            ("hlv.d", 0x6c05_c573),
            ("hsv.d", 0x6eb5_c073),
            ("an illegal one", 0xffff_ffff),
            ("c.unimp", 0),
        ];
        for (name, instruction) in illegal {
            let (_, found) = self.run(&[instruction], [DATA; 8]);
            ensure_eq!((found.cause, found.epc), (ILLEGAL, CODE), "{name}");
        }
        let (_, found) = self.run(&[0x0010_0073], [0; 8]);
        ensure_eq!((found.cause, found.epc), (BREAKPOINT, CODE), "ebreak");
        // WFI is illegal in user mode, or ends after a time; WRS.NTO and WRS.STO are illegal, or end at once.
        for (name, instruction) in [("wfi", 0x1050_0073), ("wrs.nto", 0x00d0_0073), ("wrs.sto", 0x01d0_0073)] {
            let (_, found) = self.run(&[instruction], [0; 8]);
            ensure!([ILLEGAL, ECALL_U].contains(&found.cause), "{name}: {found:x?}");
        }
        Ok(())
    }

    /// Reads and writes every number. None above user mode's is there; of its own, some are.
    fn every_csr(&self) -> Check {
        for number in 0..4096 {
            for (what, instruction) in [("read", read_csr(number)), ("write", write_csr(number))] {
                let (_, found) = self.run(&[instruction], [u64::MAX; 8]);
                let is_users = number >> 8 & 3 == 0;
                let is_right = found.cause == ILLEGAL || is_users && found.cause == ECALL_U;
                ensure!(is_right, "a {what} of CSR {number:#x}: {found:x?}");
            }
        }
        Ok(())
    }

    /// Random instructions with addresses of everything in their registers.
    fn random_programs(&self) -> Check {
        let kernel = self.guard.address();
        let addresses =
            [CODE, DATA, DATA + 0xffc, PLIC, UART, NOTHING, kernel, user::vector(), 0, 1 << 38, u64::MAX - 3];
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let patience = board().ticks(PROGRAM_MILLISECONDS);
        trap::enable(Interrupt::STimer.bit());
        let (mut traps, mut late) = (0_u32, 0_u32);
        for _ in 0..PROGRAMS {
            let program: [u32; 16] = core::array::from_fn(|_| match random() % 4 {
                0 => random() as u32,
                // Loads, stores, jumps and atomics from an address in a0 to a7, with small offsets.
                n => {
                    let opcode = [0x03, 0x23, 0x67, 0x2f, 0x07, 0x27, 0x73, 0x0f][(random() % 8) as usize];
                    let base = (10 + random() % 8) as u32;
                    (random() as u32 & 0x0ff0_7f80) | base << 15 | opcode | (n as u32 & 1) << 25
                }
            });
            let a = core::array::from_fn(|_| addresses[(random() % addresses.len() as u64) as usize]);
            sbi::set_timer(csr::time::read() + patience);
            let (_, found) = self.run(&program, a);
            let is_interrupt = found.cause == 1 << 63 | Interrupt::STimer as u64;
            ensure!(is_interrupt || found.cause < 16, "{found:x?}");
            ensure_eq!(found.status & status::SPP, 0, "SPP at {found:x?}");
            traps += u32::from(!is_interrupt);
            late += u32::from(is_interrupt);
        }
        trap::disable(Interrupt::STimer.bit());
        sbi::set_timer(u64::MAX);
        ensure!(traps > late, "{traps} traps, {late} programs that were stopped");
        Ok(())
    }

    fn kernel_goes_on(&self) -> Check {
        for (index, word) in self.guard.0.iter().enumerate() {
            ensure_eq!(word.load(Relaxed), u64::MAX / 3, "word {index} of what is the kernel's");
        }
        let (_, found) = self.run(&[], [0; 8]);
        ensure_eq!((found.cause, found.epc), (ECALL_U, CODE), "a call");
        Ok(())
    }
}
