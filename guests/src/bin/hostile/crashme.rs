//! Programs of random instructions, in supervisor and in user mode, on pages whose entries change at random. Each ends
//! by a trap. The results of traps, registers and memory go into a digest, which has to be the same on every machine.
//! Then programs of random bits, whose end cannot be foretold: the memory that is not theirs has to survive them.
//!
//! Boot arguments: a seed (1 if missing), how many programs of each kind (else [`PROGRAMS`]), and for how many milliseconds more
//! are to follow, of other seeds (else none).
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "sstatus")]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use guests::console::line;
use guests::expect::ILLEGAL;
use guests::paging::{self, AD, Page, Space, TEST_VA, leaf, page};
use guests::random::Random;
use guests::trap::{self, Trap};
use guests::user::User;
use guests::{Check, board, ensure, hart, run, sbi};
use metal::csr;
use rv::csr::status;
use rv::{Interrupt, Level, Mode, PteFlags};

guests::entry_point!(main);

/// Programs of each kind.
const PROGRAMS: u64 = 2000;
/// Instructions in a program.
const LENGTH: usize = 32;
/// The time after which a program has no end of its own: no other program takes a second.
const LONG_MS: u64 = 1000;
/// The time that a program of random bits may run.
const SHORT_MS: u64 = 1;

/// The addresses of programs: one page for each mode.
const CODE: [u64; 2] = [TEST_VA, TEST_VA + 0x1000];
/// Pages whose entries change.
const REGION: u64 = TEST_VA + 0x10_000;
const PAGES: u64 = 8;
/// Frames behind them: those that can be executed cannot be stored to.
const DATA: usize = 5;
const TEXT: usize = 3;

/// There is neither RAM nor a device, nor a window for one.
const NOWHERE: u64 = 0x1_0000_0000;

const ECALL: u32 = 0x73;
const EBREAK: u32 = 0x0010_0073;
/// The contents of memory that no program reaches.
const GUARD: u64 = u64::MAX / 3;

/// The sum over all harts, so that their order does not matter.
static DIGEST: AtomicU64 = AtomicU64::new(0);
/// Programs that came to an end by themselves, and those that were stopped.
static ENDS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn argument(index: usize, otherwise: u64) -> u64 {
    board().bootargs.split_whitespace().nth(index).and_then(|word| word.parse().ok()).unwrap_or(otherwise)
}

fn main() {
    run("crashme/known-instructions", || hart::everywhere(|| World::new(argument(0, 1)).known(argument(1, PROGRAMS))));
    line(format_args!("guest: crashme digest {:#018x}", DIGEST.load(Relaxed)));
    run("crashme/random-bits", || hart::everywhere(|| World::new(argument(0, 1)).random_bits(argument(1, PROGRAMS))));
    let (ended, stopped) = (ENDS[0].load(Relaxed), ENDS[1].load(Relaxed));
    line(format_args!("guest: crashme {ended} programs ended, {stopped} were stopped"));
    run("crashme/most-end-by-themselves", || {
        ensure!(ended > 3 * stopped, "{ended} ended, {stopped} were stopped");
        Ok(())
    });
    if argument(2, 0) != 0 {
        run("crashme/more", || hart::everywhere(more));
    }
}

/// Other seeds, until the time is over.
fn more() -> Check {
    let (end, mut seed) = (metal::time() + board().ticks(argument(2, 0)), argument(0, 1));
    let mut world = World::new(seed);
    while metal::time() < end {
        seed += 1;
        world.random = Random::of(seed);
        world.known(100)?;
        world.random_bits(100)?;
    }
    Ok(())
}

/// A hart's memory and state for its programs.
struct World {
    random: Random,
    space: Space,
    code: [&'static Page; 2],
    data: [&'static Page; DATA],
    text: [&'static Page; TEXT],
    /// The kernel's own.
    guard: &'static Page,
    digest: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let space = Space::new(&rv::format::SV39, 1 + hart::id());
        let world = Self {
            random: Random::of(seed),
            space,
            code: [page(), page()],
            data: core::array::from_fn(|_| page()),
            text: core::array::from_fn(|_| page()),
            guard: page(),
            digest: 0xcbf2_9ce4_8422_2325,
        };
        for ((at, page), user) in CODE.into_iter().zip(world.code).zip([PteFlags::empty(), PteFlags::U]) {
            space.map(at, page.address(), PteFlags::R | PteFlags::X | AD | user);
        }
        let pattern = u64::from(EBREAK) << 32 | u64::from(EBREAK);
        world.text.iter().chain(&world.code).flat_map(|page| &page.0).for_each(|word| word.store(pattern, Relaxed));
        world.guard.0.iter().for_each(|word| word.store(GUARD, Relaxed));
        world
    }

    /// One entry of the region becomes another; a fence that covers it follows.
    fn edit(&mut self) {
        let at = REGION + 0x1000 * self.random.below(PAGES) + 8 * self.random.below(512);
        let flags = PteFlags::from_bits_truncate(self.random.below(4) << 4) | AD;
        let entry = match self.random.below(8) {
            0 => 0,
            // Nothing is there, or no walk may accept it: a store without a load, a table below the last level, a
            // reserved bit.
            1 => leaf(NOWHERE, flags | PteFlags::R | PteFlags::W),
            2 => self.random.any(&[leaf(GUARD & 0xf_ffff_f000, flags | PteFlags::W), 1, 1 << 54 | 0xcf]),
            3 => leaf(self.random.any(&self.text).address(), flags | self.random.any(&[PteFlags::R, PteFlags::X])),
            4 => leaf(self.random.any(&self.text).address(), flags | PteFlags::R | PteFlags::X),
            5 => leaf(self.random.any(&self.data).address(), flags | PteFlags::R),
            _ => leaf(self.random.any(&self.data).address(), flags | PteFlags::R | PteFlags::W),
        };
        self.space.slot(at, Level::PAGE).store(entry, Relaxed);
        match self.random.below(3) {
            0 => metal::fence::sfence_all(),
            // A fence by ASID need not order global entries.
            1 => paging::fence_page(at),
            _ => paging::fence_page(at & !0xfff),
        }
    }

    /// A program of that mode runs to its next trap.
    fn run(&mut self, mode: Mode, program: &[u32; LENGTH], milliseconds: u64) -> (User, Trap) {
        let place = usize::from(mode == Mode::User);
        for (word, pair) in self.code[place].0.iter().zip(program.as_chunks::<2>().0) {
            word.store(u64::from(pair[1]) << 32 | u64::from(pair[0]), Relaxed);
        }
        metal::fence::instruction();
        let mut user = User::at(CODE[place]);
        for x in &mut user.x[1..] {
            *x = match self.random.below(8) {
                0 => self.random.any_bits(),
                1 => self.random.below(64),
                _ => REGION + self.random.below(0x1000 * PAGES),
            };
        }
        // SAFETY: programs may have set what lets this kernel read more than it does.
        unsafe {
            csr::sstatus::clear(status::SUM | status::MXR);
            csr::stval::write(0);
        }
        let deadline = metal::time() + board().ticks(milliseconds);
        let mut until_trap = || {
            sbi::set_timer(deadline);
            trap::enable(Interrupt::STimer.bit());
            let found = user.run_in(mode);
            trap::disable(Interrupt::STimer.bit());
            (found, found.cause == 1 << 63 | Interrupt::STimer as u64)
        };
        let (mut found, mut is_stopped) = until_trap();
        if is_stopped && metal::time() < deadline {
            // QEMU 10.0 may interrupt for the deadline before, when that comes just as it is replaced. Once, it goes on.
            (found, is_stopped) = until_trap();
        }
        ENDS[usize::from(is_stopped)].fetch_add(1, Relaxed);
        (user, found)
    }

    fn add(&mut self, value: u64) {
        self.digest = (self.digest ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    /// Programs of instructions that every hart of ours has, whose outcome the specification says.
    fn known(&mut self, programs: u64) -> Check {
        self.space.enter();
        for number in 0..programs {
            (0..=self.random.below(3)).for_each(|_| self.edit());
            let mode = self.random.any(&[Mode::Supervisor, Mode::User]);
            let program = core::array::from_fn(|_| instruction(&mut self.random, mode));
            let (user, found) = self.run(mode, &program, LONG_MS);
            ensure!(found.cause < 16, "program {number}: {found:x?}");
            // What is told of an illegal instruction may be the instruction, or nothing.
            let value = if found.cause == ILLEGAL { 0 } else { found.tval };
            [found.cause, value, found.epc, found.status & status::SPP].into_iter().for_each(|v| self.add(v));
            user.x[1..].iter().for_each(|x| self.add(*x));
        }
        paging::leave();
        for page in self.data {
            page.0.iter().for_each(|word| self.add(word.load(Relaxed)));
        }
        DIGEST.fetch_add(self.digest, Relaxed);
        self.is_intact()
    }

    fn random_bits(&mut self, programs: u64) -> Check {
        self.space.enter();
        for number in 0..programs {
            self.edit();
            let mode = self.random.any(&[Mode::Supervisor, Mode::User]);
            let mut program = core::array::from_fn(|_| self.random.any_bits() as u32);
            if mode == Mode::Supervisor {
                self.tame(&mut program);
            }
            let (_, found) = self.run(mode, &program, SHORT_MS);
            let is_timer = found.cause == 1 << 63 | Interrupt::STimer as u64;
            ensure!(is_timer || found.cause < 16, "program {number}: {found:x?}");
        }
        paging::leave();
        self.is_intact()
    }

    /// Takes out of a program for supervisor mode what would take its kernel away, wherever a jump may enter it.
    fn tame(&mut self, program: &mut [u32; LENGTH]) {
        loop {
            let halves = |at: usize| program.get(at / 2).copied().unwrap_or(EBREAK) >> (16 * (at % 2)) & 0xffff;
            let Some(at) = (0..2 * LENGTH).find(|at| is_fatal(halves(at + 1) << 16 | halves(*at))) else { return };
            program[at / 2] = self.random.any_bits() as u32;
        }
    }

    fn is_intact(&self) -> Check {
        for (index, word) in self.guard.0.iter().enumerate() {
            ensure!(word.load(Relaxed) == GUARD, "word {index} of what is the kernel's is {:#x}", word.load(Relaxed));
        }
        let pattern = u64::from(EBREAK) << 32 | u64::from(EBREAK);
        let has_changed = self.text.iter().flat_map(|page| &page.0).any(|word| word.load(Relaxed) != pattern);
        ensure!(!has_changed, "something was stored to what can only be read");
        Ok(())
    }
}

/// The CSRs of the kernel's own state and of its interrupts.
const KERNELS: [u32; 7] = [0x100, 0x104, 0x105, 0x140, 0x144, 0x14d, 0x180];

/// Returns whether an instruction of supervisor mode may take its kernel away: it writes the vector, `sscratch`, `satp`, or what
/// interrupts come by, calls the firmware, or waits.
fn is_fatal(word: u32) -> bool {
    if word & 0x7f != 0x73 {
        return false;
    }
    match word >> 12 & 7 {
        0 => [ECALL, 0x1050_0073, 0x00d0_0073, 0x01d0_0073].contains(&word),
        4 => false,
        _ => KERNELS.contains(&(word >> 20)),
    }
}

/// Numbers of registers that lead to the region, or anywhere; nothing is computed into them.
const BASES: (u64, u64) = (10, 8);

fn instruction(random: &mut Random, mode: Mode) -> u32 {
    let base = (BASES.0 + random.below(BASES.1)) as u32;
    // Any but those, and the one for links.
    let result = random.any(&[0_u32, 2, 3, 4, 5, 6, 7, 8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31]);
    let (one, two) = (random.below(32) as u32, random.below(32) as u32);
    let immediate = (random.any_bits() as u32) << 20;
    let of = |opcode: u32, f3: u32| opcode | f3 << 12;
    match random.below(16) {
        // Loads, stores, atomics.
        0..=2 => of(0x03, random.below(7) as u32) | result << 7 | base << 15 | immediate,
        3..=5 => {
            of(0x23, random.below(4) as u32)
                | (immediate >> 20 & 31) << 7
                | base << 15
                | two << 20
                | immediate & 0xfe00_0000
        }
        6 => {
            let operation = random.any(&[0_u32, 1, 4, 8, 12, 16, 20, 24, 28]);
            of(0x2f, random.any(&[2, 3])) | result << 7 | base << 15 | two << 20 | operation << 27
        }
        // Arithmetic.
        7 => of(0x33, random.below(8) as u32) | result << 7 | one << 15 | two << 20 | random.any(&[0, 1 << 25]),
        8 => of(0x3b, random.any(&[0, 4, 5, 6, 7])) | result << 7 | one << 15 | two << 20 | 1 << 25,
        9 => of(0x13, random.any(&[0, 2, 3, 4, 6, 7])) | result << 7 | one << 15 | immediate,
        10 => of(random.any(&[0x37, 0x17]), random.below(8) as u32) | result << 7 | one << 15 | immediate,
        // Forward by 4 to 32 bytes.
        11 => of(0x63, random.any(&[0, 1, 4, 5, 6, 7])) | (random.below(7) as u32 + 1) << 9 | one << 15 | two << 20,
        12 => 0x6f | (random.below(8) as u32 + 1) << 22 | random.any(&[0, 1 << 7]),
        // A jump into the region.
        13 => 0x67 | random.any(&[0, 1 << 7]) | base << 15 | immediate & 0x0ff0_0000,
        // What is the supervisor's. (Not `mret`: of what only fails when it is executed QEMU 10.0 tells the instruction that it
        // translated last.)
        14 => {
            let fence = 0x1200_0073 | random.any(&[0, base]) << 15 | random.any(&[0, two]) << 20;
            let ecall = if mode == Mode::User { ECALL } else { EBREAK };
            random.any(&[fence, fence, 0x1020_0073, 0x0000_100f, 0x0ff0_000f, ecall, EBREAK, 0, 0xffff_ffff])
        }
        _ => {
            // Its own cause, value and counter, and those that it has not.
            let number =
                random.any(&[0x141, 0x142, 0x143, 0x141, 0x142, 0x143, 0x300, 0x301, 0x304, 0x342, 0x680, 0x600]);
            of(0x73, random.any(&[1, 2, 3, 5, 6, 7])) | result << 7 | one << 15 | number << 20
        }
    }
}
