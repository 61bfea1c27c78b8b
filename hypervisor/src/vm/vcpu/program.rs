//! A program that a vCPU's kernel runs by the address-space calls ([`abi::vmspace::RUN`]), and the kernel, which waits for its trap.

use abi::snapshot::KernelState;

/// The kernel of a vCPU, as it called RUN. While its program runs, the vCPU's registers, mode and root are the program's.
#[derive(Clone, Copy, Default, Debug)]
pub struct Program {
    /// Set while the program runs.
    pub runs: bool,
    /// Set if a software event of the kernel's may be due: the kernel calls RUN again behind it.
    pub waits_events: bool,
    /// The kernel's integer registers.
    pub x: [u64; 32],
    /// Its program counter, behind the call.
    pub pc: u64,
    /// Its `satp`.
    pub satp: u64,
    /// Its `sie`: the interrupts that end the run.
    pub sie: u64,
    /// GPA of the context page.
    pub page: u64,
}

impl Program {
    /// Returns the kernel's state for a snapshot, while the program runs.
    #[must_use]
    pub fn save(&self) -> Option<KernelState> {
        let Self { runs, waits_events: _, x, pc, satp, sie, page } = *self;
        runs.then_some(KernelState { x, pc, satp, sie, page })
    }

    /// Makes a kernel that waits for its program from that state, which was checked.
    #[must_use]
    pub const fn restore(saved: &KernelState) -> Self {
        let KernelState { mut x, pc, satp, sie, page } = *saved;
        x[0] = 0;
        Self { runs: true, waits_events: false, x, pc: pc & !1, satp, sie, page }
    }
}
