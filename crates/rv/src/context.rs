//! What an exit saves: the part of a vCPU that the trap vector touches.

/// What the trap hardware said at an exit. A snapshot: nobody below the exit handler reads a CSR.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// `mcause` or `scause`.
    pub cause: u64,
    /// `mtval` or `stval`.
    pub tval: u64,
    /// `mtval2` or `htval`.
    pub tval2: u64,
    /// `mtinst` or `htinst`.
    pub tinst: u64,
}

/// The registers that an exit saves and an entry loads. The layout is the trap vector's; it takes
/// the offsets from here.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// x0 to x31; x0 is kept 0.
    pub x: [u64; 32],
    /// Where the guest goes on: `mepc` or `sepc`.
    pub pc: u64,
    /// The exit.
    pub exit: Exit,
    /// The stack that the exit handler starts on: the end of the hart's stack.
    pub host_sp: u64,
    /// What the exit handler finds in `tp`: the hart's own block.
    pub host_tp: u64,
}

impl Context {
    /// Goes past an instruction of that many bytes, wrapping as the hart's own adder does.
    pub fn skip(&mut self, bytes: u64) {
        self.pc = self.pc.wrapping_add(bytes);
    }

    /// Writes a register; writes to x0 are lost, as they should be.
    ///
    /// # Panics
    /// If `register` is not below 32.
    pub fn set(&mut self, register: u8, value: u64) {
        if register != 0 {
            self.x[usize::from(register)] = value;
        }
    }
}

/// The F and D registers and `fcsr`.
#[repr(C, align(8))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloatState {
    /// f0 to f31.
    pub f: [u64; 32],
    /// `fcsr`.
    pub fcsr: u64,
}

impl FloatState {
    /// The state that a new vCPU starts with.
    pub const ZERO: FloatState = FloatState { f: [0; 32], fcsr: 0 };
}

/// `vstart`, `vl`, `vtype` and `vcsr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorCsrs {
    /// `vstart`.
    pub vstart: u64,
    /// `vl`.
    pub vl: u64,
    /// `vtype`.
    pub vtype: u64,
    /// `vcsr`.
    pub vcsr: u64,
}
