//! Decoding the loads and stores that reach emulated devices.
//!
//! The source is either `htinst`/`mtinst`, the *transformed* instruction (privileged spec,
//! "Transformed Instruction or Pseudoinstruction for `mtinst` or `htinst`"), or the instruction
//! itself, read from the guest's memory. The address comes from the trap, so only the width, the
//! direction and the register matter.

/// What a trapping load or store does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemOp {
    /// Load into register `rd` (0..32).
    Load {
        /// Destination register.
        rd: u8,
        /// Bytes read: 1, 2, 4 or 8.
        width: u8,
        /// Whether the value is sign-extended.
        signed: bool,
    },
    /// Store from register `rs` (0..32).
    Store {
        /// Source register.
        rs: u8,
        /// Bytes written: 1, 2, 4 or 8.
        width: u8,
    },
}

/// A memory instruction and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemInsn {
    /// What it does.
    pub op: MemOp,
    /// Its length in bytes, 2 or 4.
    pub length: u8,
}

const fn field(insn: u32, low: u32, bits: u32) -> u8 {
    (insn >> low & ((1 << bits) - 1)) as u8
}

fn standard(insn: u32) -> Option<MemOp> {
    const LOAD: u32 = 0x03;
    const STORE: u32 = 0x23;
    let funct3 = field(insn, 12, 3);
    let width = 1 << (funct3 & 3);
    match insn & 0x7f {
        LOAD if funct3 != 7 => Some(MemOp::Load { rd: field(insn, 7, 5), width, signed: funct3 < 4 }),
        STORE if funct3 < 4 => Some(MemOp::Store { rs: field(insn, 20, 5), width }),
        _ => None,
    }
}

fn compressed(insn: u32) -> Option<MemOp> {
    let reg3 = |low| field(insn, low, 3) + 8;
    let (quadrant, funct3) = (insn & 3, field(insn, 13, 3));
    match (quadrant, funct3) {
        (0, 2) => Some(MemOp::Load { rd: reg3(2), width: 4, signed: true }), // c.lw
        (0, 3) => Some(MemOp::Load { rd: reg3(2), width: 8, signed: true }), // c.ld
        (0, 6) => Some(MemOp::Store { rs: reg3(2), width: 4 }),              // c.sw
        (0, 7) => Some(MemOp::Store { rs: reg3(2), width: 8 }),              // c.sd
        // Zcb.
        (0, 4) => match (field(insn, 10, 3), field(insn, 6, 1)) {
            (0, _) => Some(MemOp::Load { rd: reg3(2), width: 1, signed: false }), // c.lbu
            (1, 0) => Some(MemOp::Load { rd: reg3(2), width: 2, signed: false }), // c.lhu
            (1, 1) => Some(MemOp::Load { rd: reg3(2), width: 2, signed: true }),  // c.lh
            (2, _) => Some(MemOp::Store { rs: reg3(2), width: 1 }),               // c.sb
            (3, 0) => Some(MemOp::Store { rs: reg3(2), width: 2 }),               // c.sh
            _ => None,
        },
        (2, 2) if field(insn, 7, 5) != 0 => Some(MemOp::Load { rd: field(insn, 7, 5), width: 4, signed: true }), // c.lwsp
        (2, 3) if field(insn, 7, 5) != 0 => Some(MemOp::Load { rd: field(insn, 7, 5), width: 8, signed: true }), // c.ldsp
        (2, 6) => Some(MemOp::Store { rs: field(insn, 2, 5), width: 4 }), // c.swsp
        (2, 7) => Some(MemOp::Store { rs: field(insn, 2, 5), width: 8 }), // c.sdsp
        _ => None,
    }
}

impl MemInsn {
    /// Decodes an instruction as it stands in memory (the low 16 bits suffice for a compressed
    /// one). `None` if it is not an integer load or store: AMOs, LR/SC, floating point and vector
    /// accesses have no business with a device.
    #[must_use]
    pub fn decode(insn: u32) -> Option<Self> {
        if insn & 3 == 3 {
            Some(Self { op: standard(insn)?, length: 4 })
        } else {
            Some(Self { op: compressed(insn & 0xffff)?, length: 2 })
        }
    }

    /// Decodes a transformed instruction of `htinst` or `mtinst`. `None` if the register holds
    /// zero, a pseudoinstruction or a custom value; the instruction must then be read from memory.
    #[must_use]
    pub fn from_tinst(tinst: u64) -> Option<Self> {
        let insn = u32::try_from(tinst).ok()?;
        // Bit 0 set: a transformed standard instruction. Bit 1 clear: it was a 16-bit one, expanded.
        // A pseudoinstruction has bit 0 clear.
        if insn & 1 == 0 {
            return None;
        }
        let length = if insn & 2 != 0 { 4 } else { 2 };
        Some(Self { op: standard(insn | 2)?, length })
    }
}

impl MemOp {
    /// Extends what a device returned to the value a load leaves in its register.
    #[must_use]
    pub fn extend(self, value: u64) -> u64 {
        match self {
            MemOp::Load { width, signed, .. } => {
                let unused = 64 - 8 * u32::from(width);
                if signed { ((value << unused) as i64 >> unused) as u64 } else { value << unused >> unused }
            }
            MemOp::Store { .. } => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn load(rd: u8, width: u8, signed: bool, length: u8) -> Option<MemInsn> {
        Some(MemInsn { op: MemOp::Load { rd, width, signed }, length })
    }
    const fn store(rs: u8, width: u8, length: u8) -> Option<MemInsn> {
        Some(MemInsn { op: MemOp::Store { rs, width }, length })
    }

    // Encodings from `llvm-mc -triple=riscv64 -mattr=+c,+zcb -show-encoding`.
    #[test]
    fn forms_and_widths() {
        assert_eq!(MemInsn::decode(0x0005_0583), load(11, 1, true, 4)); // lb a1, 0(a0)
        assert_eq!(MemInsn::decode(0x0005_4583), load(11, 1, false, 4)); // lbu a1, 0(a0)
        assert_eq!(MemInsn::decode(0x0045_5583), load(11, 2, false, 4)); // lhu a1, 4(a0)
        assert_eq!(MemInsn::decode(0x0005_2583), load(11, 4, true, 4)); // lw a1, 0(a0)
        assert_eq!(MemInsn::decode(0x0005_6583), load(11, 4, false, 4)); // lwu a1, 0(a0)
        assert_eq!(MemInsn::decode(0x0005_3583), load(11, 8, true, 4)); // ld a1, 0(a0)
        assert_eq!(MemInsn::decode(0x00b5_0023), store(11, 1, 4)); // sb a1, 0(a0)
        assert_eq!(MemInsn::decode(0x00b5_3423), store(11, 8, 4)); // sd a1, 8(a0)
        assert_eq!(MemInsn::decode(0x410c), load(11, 4, true, 2)); // c.lw a1, 0(a0)
        assert_eq!(MemInsn::decode(0x610c), load(11, 8, true, 2)); // c.ld a1, 0(a0)
        assert_eq!(MemInsn::decode(0xc10c), store(11, 4, 2)); // c.sw a1, 0(a0)
        assert_eq!(MemInsn::decode(0xe10c), store(11, 8, 2)); // c.sd a1, 0(a0)
        assert_eq!(MemInsn::decode(0x4582), load(11, 4, true, 2)); // c.lwsp a1, 0(sp)
        assert_eq!(MemInsn::decode(0xe02e), store(11, 8, 2)); // c.sdsp a1, 0(sp)
        assert_eq!(MemInsn::decode(0x810c), load(11, 1, false, 2)); // c.lbu a1, 0(a0)
        assert_eq!(MemInsn::decode(0x890c), store(11, 1, 2)); // c.sb a1, 0(a0)
        assert_eq!(MemInsn::decode(0x0005_2587), None); // flw fa1, 0(a0)
        assert_eq!(MemInsn::decode(0x00b5_252f), None); // amoadd.w a0, a1, (a0)
        assert_eq!(MemInsn::decode(0x0000_0013), None); // nop
    }

    #[test]
    fn transformed_instructions_keep_their_length() {
        assert_eq!(MemInsn::from_tinst(0x0005_2583 & !0xf8000), load(11, 4, true, 4));
        // Bit 1 clear: a compressed load, expanded (hardware.md saw 0x3501 for c.ld a0).
        assert_eq!(MemInsn::from_tinst(0x3501), load(10, 8, true, 2));
        assert_eq!(MemInsn::from_tinst(0), None);
        assert_eq!(MemInsn::from_tinst(0x3000), None);
    }

    #[test]
    fn loads_extend() {
        let lb = MemInsn::decode(0x0005_0583).unwrap().op;
        let lbu = MemInsn::decode(0x0005_4583).unwrap().op;
        assert_eq!(lb.extend(0x80), 0xffff_ffff_ffff_ff80);
        assert_eq!(lbu.extend(0xffff_ff80), 0x80);
    }
}
