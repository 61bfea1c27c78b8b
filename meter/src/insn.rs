//! The properties of an instruction that the meter needs, by its encoding.

pub use rv::system::FenceKind;
use rv::system::{FenceInsn, System, number};

/// The use of memory by an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Memory {
    /// Not at all.
    None,
    /// Loads, LR and HLV among them.
    Load,
    /// Stores.
    Store,
    /// Loads and stores at once: AMOs and SC. One look into the TLB, as for a store.
    Amo,
    /// `cbo.zero`: one look into the TLB, though QEMU stores byte by byte.
    Block,
}

impl Memory {
    /// The number of kinds.
    pub const KINDS: usize = Self::ALL.len();
    /// All, in the order of their discriminants.
    pub const ALL: [Self; 5] = [Self::None, Self::Load, Self::Store, Self::Amo, Self::Block];

    /// The kind with this discriminant.
    #[must_use]
    pub fn from_index(index: usize) -> Self {
        Self::ALL.get(index).copied().unwrap_or(Self::None)
    }

    /// Returns whether it needs permission to write.
    #[must_use]
    pub const fn is_store(self) -> bool {
        matches!(self, Self::Store | Self::Amo | Self::Block)
    }
}

/// A CSR that the meter follows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Csr {
    /// `satp`; that of the guest, if V=1.
    Satp,
    /// `vsatp`.
    Vsatp,
    /// `hgatp`.
    Hgatp,
    /// `mtvec`.
    Mtvec,
    /// `stvec`; that of the guest, if V=1.
    Stvec,
    /// `vstvec`.
    Vstvec,
}

/// An instruction that the meter follows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Special {
    /// A fence; the numbers of its registers, 0 for what is not given.
    Fence {
        /// Which.
        kind: FenceKind,
        /// The address.
        rs1: u8,
        /// The ASID or VMID.
        rs2: u8,
    },
    /// A write of a CSR.
    CsrWrite(Csr),
    /// `mret` (from M) or `sret`.
    Return {
        /// An `mret`.
        from_m: bool,
    },
    /// The marker `slti x0, rs1, code`. With rd=x0 it is a HINT that the unprivileged spec leaves to
    /// custom use ("HINT Instructions"): it does nothing, in every mode.
    Marker {
        /// The register with the label.
        label: u8,
        /// The marker's code.
        code: i16,
    },
}

/// An instruction, as far as the meter cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Insn {
    /// The use of memory.
    pub memory: Memory,
    /// True if the instruction can trap at run time, after others of its translation block have run. An instruction
    /// that is illegal by encoding or by state ends a block and needs no mention here.
    pub may_trap: bool,
    /// True if its execution is an event.
    pub special: Option<Special>,
    /// True for a store of 2 or 4 bytes from an integer register, as is done to the registers of devices.
    pub is_device_like: bool,
    /// True for a `fence` before output to devices.
    pub orders_output: bool,
    /// True for a read or write of `mscratch` or `sscratch`, as trap handlers do first.
    pub uses_scratch: bool,
}

/// Bit O of the successors of a `fence`.
const FENCE_TO_OUTPUT: u32 = 1 << 22;

impl Insn {
    const PLAIN: Self = Self {
        memory: Memory::None,
        may_trap: false,
        special: None,
        is_device_like: false,
        orders_output: false,
        uses_scratch: false,
    };

    const fn memory(memory: Memory) -> Self {
        Self { memory, may_trap: true, ..Self::PLAIN }
    }

    const fn special(special: Special) -> Self {
        Self { may_trap: true, special: Some(special), ..Self::PLAIN }
    }

    /// Decodes 2 or 4 bytes (by the two lowest bits).
    #[must_use]
    pub fn decode(raw: u32) -> Self {
        if raw & 3 == 3 { Self::decode_full(raw) } else { Self::decode_compressed(raw) }
    }

    fn decode_compressed(raw: u32) -> Self {
        let is_device_like = raw & 3 != 1 && raw >> 13 & 7 == 6;
        // In quadrants 0 and 2 funct3 1-3 load and 5-7 store; 4 of quadrant 0 is Zcb.
        match (raw & 3, raw >> 13 & 7) {
            (0 | 2, 1..=3) => Self::memory(Memory::Load),
            (0 | 2, 5..=7) => Self { is_device_like, ..Self::memory(Memory::Store) },
            (0, 4) if raw >> 11 & 1 == 0 => Self::memory(Memory::Load),
            (0, 4) => Self { is_device_like: true, ..Self::memory(Memory::Store) },
            _ => Self::PLAIN,
        }
    }

    fn decode_full(raw: u32) -> Self {
        let funct3 = raw >> 12 & 7;
        match raw & 0x7f {
            0x03 | 0x07 => Self::memory(Memory::Load),
            0x23 => Self { is_device_like: matches!(funct3, 1 | 2), ..Self::memory(Memory::Store) },
            0x27 => Self::memory(Memory::Store),
            0x2f if raw >> 27 == 0b00010 => Self::memory(Memory::Load), // LR
            0x2f => Self::memory(Memory::Amo),
            // MISC-MEM: the cache-block operations; only one of them stores.
            0x0f if funct3 == 2 && raw >> 20 == 4 => Self::memory(Memory::Block),
            0x0f if funct3 == 0 => Self { orders_output: raw & FENCE_TO_OUTPUT != 0, ..Self::PLAIN },
            0x0f if funct3 == 2 => Self { may_trap: true, ..Self::PLAIN },
            0x13 if funct3 == 2 && raw >> 7 & 31 == 0 => {
                let label = (raw >> 15 & 31) as u8;
                Self::special(Special::Marker { label, code: (raw as i32 >> 20) as i16 })
            }
            // Vector arithmetic may trap by vstart.
            0x57 => Self { may_trap: true, ..Self::PLAIN },
            0x73 => Self::decode_system(raw),
            _ => Self::PLAIN,
        }
    }

    fn decode_system(raw: u32) -> Self {
        let system = Self { may_trap: true, ..Self::PLAIN };
        match System::decode(raw) {
            Some(System::Sret) => Self::special(Special::Return { from_m: false }),
            Some(System::Mret) => Self::special(Special::Return { from_m: true }),
            Some(System::Fence(FenceInsn { kind, rs1, rs2 })) => Self::special(Special::Fence { kind, rs1, rs2 }),
            Some(System::GuestLoad(_)) => Self::memory(Memory::Load),
            Some(System::GuestStore(_)) => Self::memory(Memory::Store),
            Some(System::Csr(access)) => {
                let csr = match access.csr {
                    number::SATP => Csr::Satp,
                    number::VSATP => Csr::Vsatp,
                    number::HGATP => Csr::Hgatp,
                    number::MTVEC => Csr::Mtvec,
                    number::STVEC => Csr::Stvec,
                    number::VSTVEC => Csr::Vstvec,
                    number::SSCRATCH | number::MSCRATCH => return Self { uses_scratch: true, ..system },
                    _ => return system,
                };
                Self { special: access.writes().then_some(Special::CsrWrite(csr)), ..system }
            }
            _ => system,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special(raw: u32) -> Option<Special> {
        Insn::decode(raw).special
    }

    // Encodings from `llvm-mc -triple=riscv64 -mattr=+h,+svinval,+zicboz,+a,+c -show-encoding`.
    #[test]
    fn memory_and_traps() {
        let kinds = [
            (0x0005_3583, Memory::Load),  // ld a1, 0(a0)
            (0x0005_3587, Memory::Load),  // fld fa1, 0(a0)
            (0x00b5_3423, Memory::Store), // sd a1, 8(a0)
            (0x00b5_3427, Memory::Store), // fsd fa1, 8(a0)
            (0x1005_352f, Memory::Load),  // lr.d a0, (a0)
            (0x18b5_352f, Memory::Amo),   // sc.d a0, a1, (a0)
            (0x00b5_352f, Memory::Amo),   // amoadd.d a0, a1, (a0)
            (0x0045_200f, Memory::Block), // cbo.zero (a0)
            (0x6c05_4573, Memory::Load),  // hlv.d a0, (a0)
            (0x6eb5_4073, Memory::Store), // hsv.d a1, (a0)
            (0x610c, Memory::Load),       // c.ld a1, 0(a0)
            (0xe10c, Memory::Store),      // c.sd a1, 0(a0)
            (0x4582, Memory::Load),       // c.lwsp a1, 0(sp)
            (0xe02e, Memory::Store),      // c.sdsp a1, 0(sp)
            (0x810c, Memory::Load),       // c.lbu a1, 0(a0)
            (0x890c, Memory::Store),      // c.sb a1, 0(a0)
        ];
        for (raw, memory) in kinds {
            let is_device_like = raw == 0x890c;
            assert_eq!(Insn::decode(raw), Insn { is_device_like, ..Insn::memory(memory) }, "{raw:#x}");
        }
        // sh a1, 0(a0); sw a1, 0(a0); c.sw a1, 0(a0)
        for raw in [0x00b5_1023, 0x00b5_2023, 0xc10c] {
            assert_eq!(Insn::decode(raw), Insn { is_device_like: true, ..Insn::memory(Memory::Store) }, "{raw:#x}");
        }
        // addi, c.addi, c.addi4spn, c.mv, jal, fence.i, fadd.d
        for raw in [0x0000_0013, 0x0505, 0x0808, 0x852e, 0x0000_006f, 0x0000_100f, 0x02b5_7553] {
            assert_eq!(Insn::decode(raw), Insn::PLAIN, "{raw:#x}");
        }
        assert_eq!(Insn::decode(0x0140_000f), Insn { orders_output: true, ..Insn::PLAIN }); // fence w, o
        assert_eq!(Insn::decode(0x0330_000f), Insn::PLAIN); // fence rw, rw
        for raw in [0x0000_0073, 0xc000_2573, 0x1050_0073] {
            assert!(Insn::decode(raw).may_trap && special(raw).is_none(), "{raw:#x}"); // ecall, rdcycle, wfi
        }
    }

    #[test]
    fn events() {
        let fence = |kind, rs1, rs2| Some(Special::Fence { kind, rs1, rs2 });
        assert_eq!(special(0x1200_0073), fence(FenceKind::Sfence, 0, 0));
        assert_eq!(special(0x12b5_0073), fence(FenceKind::Sfence, 10, 11));
        assert_eq!(special(0x16b5_0073), fence(FenceKind::Sinval, 10, 11));
        assert_eq!(special(0x22b5_0073), fence(FenceKind::HfenceVvma, 10, 11));
        assert_eq!(special(0x62b5_0073), fence(FenceKind::HfenceGvma, 10, 11));
        assert_eq!(special(0x3020_0073), Some(Special::Return { from_m: true }));
        assert_eq!(special(0x1805_1073), Some(Special::CsrWrite(Csr::Satp))); // csrw satp, a0
        assert_eq!(special(0x1800_2573), None); // csrr a0, satp
        assert_eq!(special(0x6805_1073), Some(Special::CsrWrite(Csr::Hgatp)));
        assert_eq!(special(0x1050_5073 | 1 << 15), Some(Special::CsrWrite(Csr::Stvec))); // csrwi stvec, 1
        assert!(Insn::decode(0x1400_1073 | 2 << 7 | 2 << 15).uses_scratch); // csrrw sp, sscratch, sp
    }

    #[test]
    fn markers_are_hints() {
        assert_eq!(special(0x0010_2013), Some(Special::Marker { label: 0, code: 1 })); // slti x0, x0, 1
        assert_eq!(special(0x0025_2013), Some(Special::Marker { label: 10, code: 2 })); // slti x0, a0, 2
        assert_eq!(special(0x0025_2513), None); // slti a0, a0, 2
    }
}
