//! The effects of plain instructions: those of RV64I, M and C that need integer registers and memory only.
//!
//! Not among them: SYSTEM instructions, AMOs, LR, SC, FENCE.I, cache-block operations, floating point, and the extensions that a hart may lack
//! (Zba, Zbb, Zcb and others).

use crate::insn::MemOp;

/// The effect of an instruction, besides `pc` moving on to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Register `rd` gets a value. Register 0 ignores it.
    Value {
        /// Destination register.
        rd: u8,
        /// Its new value.
        value: u64,
    },
    /// Execution continues elsewhere, and register `rd` gets the address of the next instruction. Register 0 ignores it.
    Jump {
        /// Destination register.
        rd: u8,
        /// The next address, a multiple of 2.
        to: u64,
    },
    /// A load or a store.
    Access {
        /// The operation.
        op: MemOp,
        /// The address of its first byte.
        at: u64,
    },
    /// A fence of memory accesses (FENCE, PAUSE).
    Fence,
}

/// A plain instruction, evaluated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plain {
    /// Its effect.
    pub effect: Effect,
    /// Its length in bytes, 2 or 4.
    pub length: u8,
}

impl Plain {
    /// Evaluates an instruction as it stands in memory (the low 16 bits suffice for a compressed one), at `pc`, with the integer registers `x`.
    /// `None` if it is not a plain one.
    #[must_use]
    #[inline(always)]
    pub fn of(insn: u32, pc: u64, x: &[u64; 32]) -> Option<Self> {
        let (insn, length) = if insn & 3 == 3 { (insn, 4) } else { (expand(insn)?, 2) };
        let effect = evaluate(insn, pc, x)?;
        Some(Self { effect, length })
    }
}

/// A field of an instruction: its bits from `low` on, `count` of them, moved to `to`.
const fn field(insn: u32, low: u32, count: u32, to: u32) -> u32 {
    (insn >> low & ((1 << count) - 1)) << to
}

/// Sign-extends the lowest `bits` of `value`.
const fn extend(value: u32, bits: u32) -> i32 {
    (value << (32 - bits)) as i32 >> (32 - bits)
}

const fn word(value: u64) -> u64 {
    value as i32 as i64 as u64
}

/// Evaluates an instruction of 32 bits.
#[inline(always)]
fn evaluate(insn: u32, pc: u64, x: &[u64; 32]) -> Option<Effect> {
    let (rd, funct3) = (field(insn, 7, 5, 0) as u8, field(insn, 12, 3, 0));
    let a = x[field(insn, 15, 5, 0) as usize];
    let i_immediate = i64::from(insn as i32 >> 20) as u64;
    let value = |value| Some(Effect::Value { rd, value });
    match insn & 0x7f {
        0x03 if funct3 != 7 => {
            let op = MemOp::Load { rd, width: 1 << (funct3 & 3), signed: funct3 < 4 };
            Some(Effect::Access { op, at: a.wrapping_add(i_immediate) })
        }
        0x23 if funct3 < 4 => {
            let offset = i64::from(insn as i32 >> 25 << 5) as u64 | u64::from(rd);
            let op = MemOp::Store { rs: field(insn, 20, 5, 0) as u8, width: 1 << funct3 };
            Some(Effect::Access { op, at: a.wrapping_add(offset) })
        }
        // HINTs for custom use (unprivileged spec, "HINT Instructions"): SLTI and SLTIU to x0 are markers for what watches the hart.
        0x13 if rd == 0 && funct3 & 6 == 2 => None,
        0x13 => value(with_immediate(insn, a, i_immediate)?),
        0x1b => value(with_immediate_of_word(insn, a, i_immediate)?),
        0x33 => value(of_registers(insn, a, x[field(insn, 20, 5, 0) as usize])?),
        0x3b => value(of_words(insn, a, x[field(insn, 20, 5, 0) as usize])?),
        0x37 => value(i64::from((insn & 0xffff_f000) as i32) as u64),
        0x17 => value(pc.wrapping_add(i64::from((insn & 0xffff_f000) as i32) as u64)),
        0x63 => {
            let b = x[field(insn, 20, 5, 0) as usize];
            let is_taken = match funct3 {
                0 => a == b,
                1 => a != b,
                4 => (a as i64) < b as i64,
                5 => a as i64 >= b as i64,
                6 => a < b,
                7 => a >= b,
                _ => return None,
            };
            if !is_taken {
                return Some(Effect::Value { rd: 0, value: 0 });
            }
            let low = field(insn, 8, 4, 1) | field(insn, 25, 6, 5);
            let offset = extend(low | field(insn, 7, 1, 11) | field(insn, 31, 1, 12), 13);
            Some(Effect::Jump { rd: 0, to: pc.wrapping_add_signed(offset.into()) })
        }
        0x6f => {
            let low = field(insn, 21, 10, 1) | field(insn, 20, 1, 11);
            let offset = extend(low | field(insn, 12, 8, 12) | field(insn, 31, 1, 20), 21);
            Some(Effect::Jump { rd, to: pc.wrapping_add_signed(offset.into()) })
        }
        0x67 if funct3 == 0 => Some(Effect::Jump { rd, to: a.wrapping_add(i_immediate) & !1 }),
        0x0f if funct3 == 0 => Some(Effect::Fence),
        _ => None,
    }
}

/// The value of an instruction of the opcode OP-IMM.
const fn with_immediate(insn: u32, a: u64, immediate: u64) -> Option<u64> {
    let (funct6, shift) = (insn >> 26, insn >> 20 & 63);
    Some(match (field(insn, 12, 3, 0), funct6) {
        (0, _) => a.wrapping_add(immediate),
        (1, 0) => a << shift,
        (2, _) => ((a as i64) < immediate as i64) as u64,
        (3, _) => (a < immediate) as u64,
        (4, _) => a ^ immediate,
        (5, 0) => a >> shift,
        (5, 0x10) => (a as i64 >> shift) as u64,
        (6, _) => a | immediate,
        (7, _) => a & immediate,
        _ => return None,
    })
}

/// The value of an instruction of the opcode OP-IMM-32.
const fn with_immediate_of_word(insn: u32, a: u64, immediate: u64) -> Option<u64> {
    let (funct7, shift) = (insn >> 25, insn >> 20 & 31);
    Some(word(match (field(insn, 12, 3, 0), funct7) {
        (0, _) => a.wrapping_add(immediate),
        (1, 0) => a << shift,
        (5, 0) => (a as u32 >> shift) as u64,
        (5, 0x20) => (a as i32 >> shift) as u64,
        _ => return None,
    }))
}

/// The value of an instruction of the opcode OP.
const fn of_registers(insn: u32, a: u64, b: u64) -> Option<u64> {
    let shift = b & 63;
    Some(match (insn >> 25, field(insn, 12, 3, 0)) {
        (0, 0) => a.wrapping_add(b),
        (0x20, 0) => a.wrapping_sub(b),
        (0, 1) => a << shift,
        (0, 2) => ((a as i64) < b as i64) as u64,
        (0, 3) => (a < b) as u64,
        (0, 4) => a ^ b,
        (0, 5) => a >> shift,
        (0x20, 5) => (a as i64 >> shift) as u64,
        (0, 6) => a | b,
        (0, 7) => a & b,
        (1, 0) => a.wrapping_mul(b),
        (1, 1) => ((a as i64 as i128 * b as i64 as i128) >> 64) as u64,
        (1, 2) => ((a as i64 as i128).wrapping_mul(b as i128) >> 64) as u64,
        (1, 3) => ((a as u128 * b as u128) >> 64) as u64,
        (1, 4 | 5) if b == 0 => u64::MAX,
        (1, 4) => (a as i64).wrapping_div(b as i64) as u64,
        (1, 5) => a / b,
        (1, 6 | 7) if b == 0 => a,
        (1, 6) => (a as i64).wrapping_rem(b as i64) as u64,
        (1, 7) => a % b,
        _ => return None,
    })
}

/// The value of an instruction of the opcode OP-32.
const fn of_words(insn: u32, a: u64, b: u64) -> Option<u64> {
    let (a, b) = (a as u32, b as u32);
    let shift = b & 31;
    Some(word(match (insn >> 25, field(insn, 12, 3, 0)) {
        (0, 0) => a.wrapping_add(b),
        (0x20, 0) => a.wrapping_sub(b),
        (0, 1) => a << shift,
        (0, 5) => a >> shift,
        (0x20, 5) => (a as i32 >> shift) as u32,
        (1, 0) => a.wrapping_mul(b),
        (1, 4 | 5) if b == 0 => u32::MAX,
        (1, 4) => (a as i32).wrapping_div(b as i32) as u32,
        (1, 5) => a / b,
        (1, 6 | 7) if b == 0 => a,
        (1, 6) => (a as i32).wrapping_rem(b as i32) as u32,
        (1, 7) => a % b,
        _ => return None,
    } as u64))
}

/// Encodings of the instructions that compressed ones stand for.
mod standard {
    /// An instruction of I type.
    pub const fn i(opcode: u32, funct3: u32, rd: u32, rs1: u32, immediate: i32) -> u32 {
        (immediate as u32) << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
    }

    /// A store.
    pub const fn s(funct3: u32, rs1: u32, rs2: u32, offset: u32) -> u32 {
        offset >> 5 << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | (offset & 31) << 7 | 0x23
    }

    /// An instruction of R type.
    pub const fn r(opcode: u32, funct7: u32, funct3: u32, rd: u32, rs1: u32, rs2: u32) -> u32 {
        funct7 << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
    }

    /// A branch on a comparison with register 0.
    pub const fn b(funct3: u32, rs1: u32, offset: i32) -> u32 {
        let o = offset as u32;
        (o >> 12 & 1) << 31
            | (o >> 5 & 0x3f) << 25
            | rs1 << 15
            | funct3 << 12
            | (o >> 1 & 0xf) << 8
            | (o >> 11 & 1) << 7
            | 0x63
    }

    /// A jump without a link.
    pub const fn j(offset: i32) -> u32 {
        let o = offset as u32;
        (o >> 20 & 1) << 31 | (o >> 1 & 0x3ff) << 21 | (o >> 11 & 1) << 20 | (o >> 12 & 0xff) << 12 | 0x6f
    }
}

/// Returns the instruction of 32 bits that a compressed one stands for (unprivileged spec, "C" extension). `None` if it is reserved, is not an
/// integer one, or is of an extension beyond C.
const fn expand(insn: u32) -> Option<u32> {
    use standard::{b, i, j, r, s};
    const OP_IMM: u32 = 0x13;
    const OP_IMM_32: u32 = 0x1b;
    const OP: u32 = 0x33;
    const OP_32: u32 = 0x3b;
    const LOAD: u32 = 0x03;
    let (rd, rs2) = (field(insn, 7, 5, 0), field(insn, 2, 5, 0));
    let (rd3, rs3) = (field(insn, 7, 3, 0) + 8, field(insn, 2, 3, 0) + 8);
    let immediate = extend(field(insn, 12, 1, 5) | rs2, 6);
    let shift = field(insn, 12, 1, 5) | rs2;
    let of_words = field(insn, 10, 3, 3) | field(insn, 6, 1, 2) | field(insn, 5, 1, 6);
    let of_doubles = field(insn, 10, 3, 3) | field(insn, 5, 2, 6);
    Some(match (insn & 3, field(insn, 13, 3, 0)) {
        // c.addi4spn
        (0, 0) => {
            let n = field(insn, 11, 2, 4) | field(insn, 7, 4, 6) | field(insn, 6, 1, 2) | field(insn, 5, 1, 3);
            if n == 0 {
                return None;
            }
            i(OP_IMM, 0, rs3, 2, n as i32)
        }
        (0, 2) => i(LOAD, 2, rs3, rd3, of_words as i32),         // c.lw
        (0, 3) => i(LOAD, 3, rs3, rd3, of_doubles as i32),       // c.ld
        (0, 6) => s(2, rd3, rs3, of_words),                      // c.sw
        (0, 7) => s(3, rd3, rs3, of_doubles),                    // c.sd
        (1, 0) => i(OP_IMM, 0, rd, rd, immediate),               // c.addi
        (1, 1) if rd != 0 => i(OP_IMM_32, 0, rd, rd, immediate), // c.addiw
        (1, 2) => i(OP_IMM, 0, rd, 0, immediate),                // c.li
        (1, 3) if immediate == 0 => return None,
        // c.addi16sp
        (1, 3) if rd == 2 => {
            let low = field(insn, 6, 1, 4) | field(insn, 2, 1, 5) | field(insn, 5, 1, 6) | field(insn, 3, 2, 7);
            i(OP_IMM, 0, 2, 2, extend(low | field(insn, 12, 1, 9), 10))
        }
        (1, 3) => (immediate as u32) << 12 | rd << 7 | 0x37, // c.lui
        (1, 4) => match (field(insn, 10, 2, 0), field(insn, 12, 1, 0), field(insn, 5, 2, 0)) {
            (0, ..) => i(OP_IMM, 5, rd3, rd3, shift as i32),         // c.srli
            (1, ..) => i(OP_IMM, 5, rd3, rd3, shift as i32 | 0x400), // c.srai
            (2, ..) => i(OP_IMM, 7, rd3, rd3, immediate),            // c.andi
            (_, 0, 0) => r(OP, 0x20, 0, rd3, rd3, rs3),              // c.sub
            (_, 0, 1) => r(OP, 0, 4, rd3, rd3, rs3),                 // c.xor
            (_, 0, 2) => r(OP, 0, 6, rd3, rd3, rs3),                 // c.or
            (_, 0, _) => r(OP, 0, 7, rd3, rd3, rs3),                 // c.and
            (_, _, 0) => r(OP_32, 0x20, 0, rd3, rd3, rs3),           // c.subw
            (_, _, 1) => r(OP_32, 0, 0, rd3, rd3, rs3),              // c.addw
            _ => return None,
        },
        // c.j
        (1, 5) => {
            let low = field(insn, 3, 3, 1) | field(insn, 11, 1, 4) | field(insn, 2, 1, 5) | field(insn, 7, 1, 6);
            let high = field(insn, 6, 1, 7) | field(insn, 9, 2, 8) | field(insn, 8, 1, 10) | field(insn, 12, 1, 11);
            j(extend(low | high, 12))
        }
        // c.beqz, c.bnez
        (1, 6 | 7) => {
            let low = field(insn, 3, 2, 1) | field(insn, 10, 2, 3) | field(insn, 2, 1, 5);
            b(insn >> 13 & 1, rd3, extend(low | field(insn, 5, 2, 6) | field(insn, 12, 1, 8), 9))
        }
        (2, 0) => i(OP_IMM, 1, rd, rd, shift as i32), // c.slli
        // c.lwsp
        (2, 2) if rd != 0 => {
            i(LOAD, 2, rd, 2, (field(insn, 12, 1, 5) | field(insn, 4, 3, 2) | field(insn, 2, 2, 6)) as i32)
        }
        // c.ldsp
        (2, 3) if rd != 0 => {
            i(LOAD, 3, rd, 2, (field(insn, 12, 1, 5) | field(insn, 5, 2, 3) | field(insn, 2, 3, 6)) as i32)
        }
        (2, 4) => match (field(insn, 12, 1, 0), rd, rs2) {
            (0, 1.., 0) => i(0x67, 0, 0, rd, 0), // c.jr
            (1, 1.., 0) => i(0x67, 0, 1, rd, 0), // c.jalr
            (_, 0, 0) => return None,
            (0, ..) => r(OP, 0, 0, rd, 0, rs2), // c.mv
            _ => r(OP, 0, 0, rd, rd, rs2),      // c.add
        },
        (2, 6) => s(2, 2, rs2, field(insn, 9, 4, 2) | field(insn, 7, 2, 6)), // c.swsp
        (2, 7) => s(3, 2, rs2, field(insn, 10, 3, 3) | field(insn, 7, 3, 6)), // c.sdsp
        _ => return None,
    })
}
