//! User mode: run some code there until its next trap.
#![expect(unsafe_code, reason = "sret and the vector for traps from U")]

use crate::trap::{self, Trap};
use core::arch::global_asm;
use core::mem::offset_of;
use metal::csr;
use rv::Mode;
use rv::csr::status;

/// A user program's registers, and where the kernel's are kept meanwhile.
#[repr(C)]
#[derive(Debug, Default)]
pub struct User {
    /// x0 to x31 (x0 unused).
    pub x: [u64; 32],
    /// The program counter.
    pub pc: u64,
    kernel: [u64; 28],
}

global_asm!(
    ".section .text.user_switch, \"ax\"",
    // a0: the User. Returns at the program's next trap.
    ".global guest_enter_user",
    "guest_enter_user:",
    ".irp n, 1,2,3,4,8,9,18,19,20,21,22,23,24,25,26,27",
    "sd x\\n, {kernel} + 8*\\n(a0)",
    ".endr",
    "csrw sscratch, a0",
    "ld t0, {pc}(a0)",
    "csrw sepc, t0",
    "la t0, guest_user_vector",
    "csrw stvec, t0",
    ".irp n, 1,2,3,4,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,10",
    "ld x\\n, 8*\\n(a0)",
    ".endr",
    "sret",
    ".balign 4",
    ".global guest_user_vector",
    "guest_user_vector:",
    "csrrw a0, sscratch, a0",
    ".irp n, 1,2,3,4,5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "sd x\\n, 8*\\n(a0)",
    ".endr",
    "csrr t0, sscratch",
    "sd t0, 80(a0)",
    ".irp n, 1,2,3,4,8,9,18,19,20,21,22,23,24,25,26,27",
    "ld x\\n, {kernel} + 8*\\n(a0)",
    ".endr",
    "ret",
    kernel = const offset_of!(User, kernel),
    pc = const offset_of!(User, pc),
);

global_asm!(
    ".section .text.user_hammer, \"ax\"",
    // a0: the address of `jr a1` in user mode; a1: when to end. Returns how often it trapped.
    ".global guest_hammer_vector",
    "guest_hammer_vector:",
    "mv t0, a0",
    "mv t3, a1",
    "la a1, guest_hammered_vector",
    "csrw stvec, a1",
    "csrw sepc, t0",
    "li a0, 0",
    "sret",
    // As few instructions as can be: so that timers come at the first of them as often as can be.
    ".balign 4",
    ".global guest_hammered_vector",
    "guest_hammered_vector:",
    "rdtime t1",
    "addi a0, a0, 1",
    "bgeu t1, t3, 1f",
    "csrw sepc, t0",
    "sret",
    "1:",
    "ret",
);

unsafe extern "C" {
    fn guest_enter_user(user: *mut User);
    fn guest_user_vector();
    fn guest_hammer_vector(code: u64, until: u64) -> u64;
    fn guest_hammered_vector();
}

/// The trap vector while user mode runs.
#[must_use]
pub fn vector() -> u64 {
    guest_user_vector as *const () as u64
}

/// A program that counts in the doubleword at a1, has the count in a0, and calls its kernel, again and again:
/// `1: ld a0, (a1); addi a0, a0, 1; sd a0, (a1); ecall; j 1b`.
pub const COUNTS: [u32; 5] = [0x0005_b503, 0x0015_0513, 0x00a5_b023, 0x0000_0073, 0xff1f_f06f];

/// The code for [`hammer_vector`]: `jr a1`.
pub const JUMP_TO_A1: u32 = 0x0005_8067;

/// Lets user mode at `code`, where [`JUMP_TO_A1`] stands, jump to its kernel's trap vector again and again until `time`
/// is `until`. Returns how often it trapped, the last trap, which is to be a fetch fault at the vector, and the vector.
pub fn hammer_vector(code: u64, until: u64) -> (u64, Trap, u64) {
    // SAFETY: as for `User::run`; the assembly changes temporary registers only.
    let rounds = unsafe {
        csr::sstatus::clear(status::SPP);
        guest_hammer_vector(code, until)
    };
    let found = last_trap();
    // SAFETY: the runtime's own vector.
    unsafe { csr::stvec::write(trap::vector()) };
    (rounds, found, guest_hammered_vector as *const () as u64)
}

fn last_trap() -> Trap {
    Trap { cause: csr::scause::read(), tval: csr::stval::read(), epc: csr::sepc::read(), status: csr::sstatus::read() }
}

impl User {
    /// A program that starts at `pc`.
    #[must_use]
    pub fn at(pc: u64) -> Self {
        Self { pc, ..Self::default() }
    }

    /// Runs the program until its next trap, an interrupt included, and leaves `pc` at the trapped
    /// instruction.
    pub fn run(&mut self) -> Trap {
        self.run_in(Mode::User)
    }

    /// Runs the program in either mode. In supervisor mode the program has to leave `stvec`, `sscratch`, `satp` and the
    /// kernel's memory alone.
    pub fn run_in(&mut self, mode: Mode) -> Trap {
        // SAFETY: SPP and SPIE only matter to the sret that follows; the assembly keeps every
        // register that Rust needs, and restores the vector by the write below.
        unsafe {
            match mode {
                Mode::User => csr::sstatus::clear(status::SPP),
                Mode::Supervisor => csr::sstatus::set(status::SPP),
            }
            csr::sstatus::set(status::SPIE);
            guest_enter_user(self);
        }
        let found = last_trap();
        // SAFETY: the runtime's own vector.
        unsafe { csr::stvec::write(trap::vector()) };
        self.pc = found.epc;
        found
    }
}
