//! Instructions of the major opcode SYSTEM: calls, returns, waits, fences, accesses to guest memory, and accesses to CSRs.

/// The numbers of CSRs that are looked for in instructions (privileged spec, "CSR Listing").
pub mod number {
    /// `satp`.
    pub const SATP: u16 = 0x180;
    /// `vsstatus`.
    pub const VSSTATUS: u16 = 0x200;
    /// `vsie`.
    pub const VSIE: u16 = 0x204;
    /// `vsscratch`.
    pub const VSSCRATCH: u16 = 0x240;
    /// `vsepc`.
    pub const VSEPC: u16 = 0x241;
    /// `vscause`.
    pub const VSCAUSE: u16 = 0x242;
    /// `vstval`.
    pub const VSTVAL: u16 = 0x243;
    /// `vsip`.
    pub const VSIP: u16 = 0x244;
    /// `vstimecmp` (Sstc).
    pub const VSTIMECMP: u16 = 0x24d;
    /// `vsatp`.
    pub const VSATP: u16 = 0x280;
    /// `hstatus`.
    pub const HSTATUS: u16 = 0x600;
    /// `hedeleg`.
    pub const HEDELEG: u16 = 0x602;
    /// `hideleg`.
    pub const HIDELEG: u16 = 0x603;
    /// `hie`.
    pub const HIE: u16 = 0x604;
    /// `htimedelta`.
    pub const HTIMEDELTA: u16 = 0x605;
    /// `hcounteren`.
    pub const HCOUNTEREN: u16 = 0x606;
    /// `hgeie`.
    pub const HGEIE: u16 = 0x607;
    /// `henvcfg`.
    pub const HENVCFG: u16 = 0x60a;
    /// `htval`.
    pub const HTVAL: u16 = 0x643;
    /// `hip`.
    pub const HIP: u16 = 0x644;
    /// `hvip`.
    pub const HVIP: u16 = 0x645;
    /// `htinst`.
    pub const HTINST: u16 = 0x64a;
    /// `hgatp`.
    pub const HGATP: u16 = 0x680;
    /// `hgeip`.
    pub const HGEIP: u16 = 0xe12;
    /// `sstatus`.
    pub const SSTATUS: u16 = 0x100;
    /// `scounteren`.
    pub const SCOUNTEREN: u16 = 0x106;
    /// `senvcfg`.
    pub const SENVCFG: u16 = 0x10a;
    /// `sepc`.
    pub const SEPC: u16 = 0x141;
    /// `scause`.
    pub const SCAUSE: u16 = 0x142;
    /// `stval`.
    pub const STVAL: u16 = 0x143;
    /// `sip`.
    pub const SIP: u16 = 0x144;
    /// `stimecmp` (Sstc).
    pub const STIMECMP: u16 = 0x14d;
    /// `sie`.
    pub const SIE: u16 = 0x104;
    /// `stvec`.
    pub const STVEC: u16 = 0x105;
    /// `vstvec`.
    pub const VSTVEC: u16 = 0x205;
    /// `mtvec`.
    pub const MTVEC: u16 = 0x305;
    /// `sscratch`.
    pub const SSCRATCH: u16 = 0x140;
    /// `mscratch`.
    pub const MSCRATCH: u16 = 0x340;
    /// `time`.
    pub const TIME: u16 = 0xc01;
}

/// An instruction of the opcode SYSTEM.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum System {
    /// `ecall`.
    Ecall,
    /// `ebreak`.
    Ebreak,
    /// `sret`.
    Sret,
    /// `mret`.
    Mret,
    /// `wfi`.
    Wfi,
    /// `wrs.nto` (Zawrs): waits without a bound.
    WrsNto,
    /// `wrs.sto` (Zawrs): waits for a short time.
    WrsSto,
    /// `sfence.w.inval` (Svinval).
    SfenceWInval,
    /// `sfence.inval.ir` (Svinval).
    SfenceInvalIr,
    /// A fence of translations.
    Fence(FenceInsn),
    /// `hlv` or `hlvx`.
    GuestLoad(GuestLoad),
    /// `hsv`.
    GuestStore(GuestStore),
    /// An access to a CSR.
    Csr(CsrInsn),
}

/// A load from guest memory by a hypervisor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GuestLoad {
    /// The register for the value.
    pub rd: u8,
    /// The register with the address.
    pub rs1: u8,
    /// Bytes: 1, 2, 4 or 8.
    pub width: u8,
    /// The value is extended by its sign.
    pub is_signed: bool,
    /// `hlvx`: permission to execute takes the place of permission to read.
    pub is_fetch: bool,
}

impl GuestLoad {
    const fn decode(rd: u8, rs1: u8, rs2: u8, width: u8) -> Option<Self> {
        match (rs2, width) {
            (0, _) => Some(Self { rd, rs1, width, is_signed: true, is_fetch: false }),
            (1, 1 | 2 | 4) => Some(Self { rd, rs1, width, is_signed: false, is_fetch: false }),
            (3, 2 | 4) => Some(Self { rd, rs1, width, is_signed: false, is_fetch: true }),
            _ => None,
        }
    }

    /// The register's value after a load of `raw`, whose upper bytes are 0.
    #[must_use]
    pub const fn extend(&self, raw: u64) -> u64 {
        let unused = 64 - 8 * self.width as u32;
        if self.is_signed { ((raw << unused) as i64 >> unused) as u64 } else { raw }
    }
}

/// A store to guest memory by a hypervisor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GuestStore {
    /// The register with the address.
    pub rs1: u8,
    /// The register with the value.
    pub rs2: u8,
    /// Bytes: 1, 2, 4 or 8.
    pub width: u8,
}

/// Which fence of translations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FenceKind {
    /// `sfence.vma`.
    Sfence,
    /// `sinval.vma`.
    Sinval,
    /// `hfence.vvma`.
    HfenceVvma,
    /// `hinval.vvma`.
    HinvalVvma,
    /// `hfence.gvma`.
    HfenceGvma,
    /// `hinval.gvma`.
    HinvalGvma,
}

impl FenceKind {
    /// All, in the order of their discriminants.
    pub const ALL: [Self; 6] =
        [Self::Sfence, Self::Sinval, Self::HfenceVvma, Self::HinvalVvma, Self::HfenceGvma, Self::HinvalGvma];

    /// The mnemonic.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sfence => "sfence.vma",
            Self::Sinval => "sinval.vma",
            Self::HfenceVvma => "hfence.vvma",
            Self::HinvalVvma => "hinval.vvma",
            Self::HfenceGvma => "hfence.gvma",
            Self::HinvalGvma => "hinval.gvma",
        }
    }
}

/// A fence of translations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FenceInsn {
    /// Which.
    pub kind: FenceKind,
    /// The register with the address, 0 for all addresses.
    pub rs1: u8,
    /// The register with the ASID or VMID, 0 for all of them.
    pub rs2: u8,
}

/// An access to a CSR: CSRRW, CSRRS, CSRRC, and their immediate forms.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CsrInsn {
    /// The CSR's number.
    pub csr: u16,
    /// The register for the old value.
    pub rd: u8,
    /// The register that is the operand, or the operand.
    pub rs1: u8,
    /// `rs1` is the operand.
    pub is_immediate: bool,
    /// The use of the operand.
    pub op: CsrOp,
}

/// The use of the operand of an access to a CSR.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CsrOp {
    /// CSRRW: writes it.
    Write,
    /// CSRRS: sets its bits.
    Set,
    /// CSRRC: clears its bits.
    Clear,
}

/// The opcode.
pub const OPCODE: u32 = 0x73;

impl System {
    /// Decodes an instruction. `None` if it is not of this opcode, or reserved.
    #[must_use]
    pub const fn decode(insn: u32) -> Option<Self> {
        if insn & 0x7f != OPCODE {
            return None;
        }
        let (rd, rs1, rs2) = ((insn >> 7 & 31) as u8, (insn >> 15 & 31) as u8, (insn >> 20 & 31) as u8);
        let (funct3, funct7) = (insn >> 12 & 7, insn >> 25);
        match funct3 {
            0 => {
                let kind = match (insn, funct7) {
                    (0x0000_0073, _) => return Some(Self::Ecall),
                    (0x0010_0073, _) => return Some(Self::Ebreak),
                    (0x1020_0073, _) => return Some(Self::Sret),
                    (0x3020_0073, _) => return Some(Self::Mret),
                    (0x1050_0073, _) => return Some(Self::Wfi),
                    (0x00d0_0073, _) => return Some(Self::WrsNto),
                    (0x01d0_0073, _) => return Some(Self::WrsSto),
                    (0x1800_0073, _) => return Some(Self::SfenceWInval),
                    (0x1810_0073, _) => return Some(Self::SfenceInvalIr),
                    (_, 0x09) => FenceKind::Sfence,
                    (_, 0x0b) => FenceKind::Sinval,
                    (_, 0x11) => FenceKind::HfenceVvma,
                    (_, 0x13) => FenceKind::HinvalVvma,
                    (_, 0x31) => FenceKind::HfenceGvma,
                    (_, 0x33) => FenceKind::HinvalGvma,
                    _ => return None,
                };
                if rd == 0 { Some(Self::Fence(FenceInsn { kind, rs1, rs2 })) } else { None }
            }
            4 if funct7 & 0x78 == 0x30 => {
                let width = 1 << (funct7 >> 1 & 3);
                match (funct7 & 1 == 0, rd) {
                    (true, _) => match GuestLoad::decode(rd, rs1, rs2, width) {
                        Some(load) => Some(Self::GuestLoad(load)),
                        None => None,
                    },
                    (false, 0) => Some(Self::GuestStore(GuestStore { rs1, rs2, width })),
                    (false, _) => None,
                }
            }
            4 => None,
            _ => match CsrInsn::of(insn) {
                Some(access) => Some(Self::Csr(access)),
                None => None,
            },
        }
    }

    /// The access to the CSR `csr`, if the instruction is one.
    #[must_use]
    pub const fn access_to(insn: u32, csr: u16) -> Option<CsrInsn> {
        match Self::decode(insn) {
            Some(Self::Csr(access)) if access.csr == csr => Some(access),
            _ => None,
        }
    }
}

impl CsrInsn {
    /// Decodes an instruction of this opcode. `None` if it is no access to a CSR.
    #[inline(always)]
    #[must_use]
    pub const fn of(insn: u32) -> Option<Self> {
        let op = match insn >> 12 & 3 {
            0 => return None,
            1 => CsrOp::Write,
            2 => CsrOp::Set,
            _ => CsrOp::Clear,
        };
        let (rd, rs1) = ((insn >> 7 & 31) as u8, (insn >> 15 & 31) as u8);
        Some(Self { csr: (insn >> 20) as u16, rd, rs1, is_immediate: insn >> 14 & 1 != 0, op })
    }

    /// Returns whether it writes. CSRRS and CSRRC with the operand x0 or 0 read only.
    #[must_use]
    pub const fn writes(&self) -> bool {
        matches!(self.op, CsrOp::Write) || self.rs1 != 0
    }

    /// Returns whether it writes a CSR that can only be read (privileged spec, "CSR Address Mapping Conventions").
    #[must_use]
    pub const fn writes_read_only(&self) -> bool {
        const READ_ONLY: u16 = 0xc00;
        self.csr & READ_ONLY == READ_ONLY && self.writes()
    }

    /// The value that the CSR gets, which holds `old`, on a hart with the integer registers `x`.
    #[inline(always)]
    #[must_use]
    pub const fn apply(&self, old: u64, x: &[u64; 32]) -> u64 {
        let operand = if self.is_immediate { self.rs1 as u64 } else { x[self.rs1 as usize] };
        match self.op {
            CsrOp::Write => operand,
            CsrOp::Set => old | operand,
            CsrOp::Clear => old & !operand,
        }
    }
}

/// `wfi`.
pub const WFI: u64 = 0x1050_0073;
/// `wrs.nto`.
pub const WRS_NTO: u64 = 0x00d0_0073;

/// Returns whether an instruction is `sfence.vma`: a part of [`System::decode`], at a small part of its cost.
#[inline(always)]
#[must_use]
pub const fn is_fence(insn: u64) -> bool {
    /// All bits but those of rs1 and rs2.
    const MASK: u64 = 0xfe00_7fff;
    insn & MASK == 0x1200_0073
}

/// Returns whether an instruction is `sfence.vma` with an address.
#[inline(always)]
#[must_use]
pub const fn is_fence_of_page(insn: u64) -> bool {
    const RS1: u64 = 31 << 15;
    is_fence(insn) && insn & RS1 != 0
}

/// Returns the destination register of an access to a CSR that holds `old`, and the value that the CSR gets, on a hart with the integer
/// registers `x`: [`CsrInsn::of`] and [`CsrInsn::apply`], at a part of their cost. `None` if the instruction is no such access.
#[inline(always)]
#[must_use]
pub const fn accessed(insn: u64, old: u64, x: &[u64; 32]) -> Option<(u8, u64)> {
    let (rd, source, funct3) = ((insn >> 7 & 31) as u8, (insn >> 15 & 31) as usize, insn >> 12 & 7);
    let operand = if funct3 & 4 != 0 { source as u64 } else { x[source] };
    let new = match (funct3 & 3, source) {
        (0, _) => return None,
        (1, _) => operand,
        // Without a source they only read.
        (_, 0) => old,
        (2, _) => old | operand,
        _ => old & !operand,
    };
    Some((rd, new))
}

/// Returns whether an instruction of this opcode names the CSR `csr`: a part of [`System::decode`], at a small part of its cost. If its `funct3`
/// is 0 or 4, it is no access to a CSR.
#[inline(always)]
#[must_use]
pub const fn names_csr(insn: u64, csr: u16) -> bool {
    insn & 0x7f == OPCODE as u64 && insn >> 20 == csr as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    // Encodings from `llvm-mc -triple=riscv64 -mattr=+h,+svinval,+zawrs -show-encoding`.
    #[test]
    fn encodings() {
        let fence = |kind, rs1, rs2| System::Fence(FenceInsn { kind, rs1, rs2 });
        let load =
            |width, is_signed, is_fetch| System::GuestLoad(GuestLoad { rd: 10, rs1: 10, width, is_signed, is_fetch });
        let csr = |csr, rd, rs1, is_immediate, op| System::Csr(CsrInsn { csr, rd, rs1, is_immediate, op });
        for (insn, expected) in [
            (0x0000_0073, System::Ecall),
            (0x0010_0073, System::Ebreak),
            (0x1020_0073, System::Sret),
            (0x3020_0073, System::Mret),
            (0x1050_0073, System::Wfi),
            (0x00d0_0073, System::WrsNto),
            (0x01d0_0073, System::WrsSto),
            (0x1800_0073, System::SfenceWInval),
            (0x1810_0073, System::SfenceInvalIr),
            (0x1200_0073, fence(FenceKind::Sfence, 0, 0)),
            (0x12b5_0073, fence(FenceKind::Sfence, 10, 11)),
            (0x16b5_0073, fence(FenceKind::Sinval, 10, 11)),
            (0x22b5_0073, fence(FenceKind::HfenceVvma, 10, 11)),
            (0x26b5_0073, fence(FenceKind::HinvalVvma, 10, 11)),
            (0x62b5_0073, fence(FenceKind::HfenceGvma, 10, 11)),
            (0x66b5_0073, fence(FenceKind::HinvalGvma, 10, 11)),
            (0x6c05_4573, load(8, true, false)),
            (0x6005_4573, load(1, true, false)),
            (0x6015_4573, load(1, false, false)),
            (0x6435_4573, load(2, false, true)),
            (0x6835_4573, load(4, false, true)),
            (0x6eb5_4073, System::GuestStore(GuestStore { rs1: 10, rs2: 11, width: 8 })),
            (0x62b5_4073, System::GuestStore(GuestStore { rs1: 10, rs2: 11, width: 1 })),
            (0x1805_1073, csr(number::SATP, 0, 10, false, CsrOp::Write)),
            (0x1800_2573, csr(number::SATP, 10, 0, false, CsrOp::Set)),
            (0x6805_3573, csr(number::HGATP, 10, 10, false, CsrOp::Clear)),
            (0x1050_d073, csr(number::STVEC, 0, 1, true, CsrOp::Write)),
        ] {
            assert_eq!(System::decode(insn), Some(expected), "{insn:#x}");
        }
        // Another opcode; a fence with rd; a reserved one; a load of guest memory as wide as a register without its sign; a store with rd.
        for insn in [0x1200_0033, 0x1200_00f3, 0x7e00_0073, 0x6c15_4573, 0x6eb5_40f3] {
            assert_eq!(System::decode(insn), None, "{insn:#x}");
        }
    }

    #[test]
    fn the_short_questions_have_the_long_ones_answers() {
        let mut seed = 1_u32;
        for _ in 0..100_000 {
            seed ^= seed << 13;
            seed ^= seed >> 17;
            seed ^= seed << 5;
            // Mostly SYSTEM, often `satp` and fences.
            let insn = match seed % 4 {
                0 => seed & !0x7f | OPCODE,
                1 => seed & 0xf_ff80 | 0x1800_0000 | OPCODE,
                2 => seed & 0x01ff_8000 | 0x1200_0000 | OPCODE,
                _ => seed,
            };
            let decoded = System::decode(insn);
            let is_of_page =
                matches!(decoded, Some(System::Fence(FenceInsn { kind: FenceKind::Sfence, rs1: 1.., .. })));
            assert_eq!(is_fence_of_page(insn.into()), is_of_page, "{insn:#x}");
            assert_eq!(is_fence(insn.into()), matches!(decoded, Some(System::Fence(f)) if f.kind == FenceKind::Sfence));
            assert_eq!(u64::from(insn) == WFI, decoded == Some(System::Wfi));
            assert_eq!(u64::from(insn) == WRS_NTO, decoded == Some(System::WrsNto));
            let x = core::array::from_fn(|n| n as u64 * 0x9e37_79b9);
            if let Some(System::Csr(access)) = decoded {
                assert_eq!(accessed(insn.into(), 77, &x), Some((access.rd, access.apply(77, &x))), "{insn:#x}");
            }
            let is_access = System::access_to(insn, number::SATP).is_some();
            assert_eq!(names_csr(insn.into(), number::SATP) && insn >> 12 & 3 != 0, is_access, "{insn:#x}");
        }
    }

    #[test]
    fn accesses_write_what_the_manual_says() {
        let mut x = [0; 32];
        x[10] = 0b0110;
        let access = |insn| System::access_to(insn, number::SATP).unwrap();
        let new = |insn| access(insn).apply(0b0011, &x);
        assert_eq!(new(0x1805_1073), 0b0110); // csrw satp, a0
        assert_eq!(new(0x1805_2073), 0b0111); // csrs satp, a0
        assert_eq!(new(0x1805_3073), 0b0001); // csrc satp, a0
        assert_eq!(new(0x1805_5073), 10); // csrwi satp, 10
        assert!(access(0x1800_1073).writes() && access(0x1805_2073).writes());
        assert!(!access(0x1800_2573).writes() && !access(0x1800_7573).writes());
    }
}
