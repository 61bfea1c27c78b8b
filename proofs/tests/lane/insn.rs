//! The instructions that the lane is made of, decoded. There are no others.

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// `ld`.
    Load { rd: u32, base: u32, offset: u64 },
    /// `sd`.
    Store { base: u32, offset: u64, source: u32 },
    /// With an immediate.
    Immediate { rd: u32, how: How, a: u32, b: u64 },
    /// With two registers.
    Registers { rd: u32, how: How, a: u32, b: u32 },
    /// A branch to `target` if `test` holds, or if it does not.
    Branch { a: u32, b: u32, test: Test, holds: bool, target: u64 },
    /// `jal`.
    Jump { rd: u32, target: u64 },
    /// `jalr`.
    JumpTo { rd: u32, base: u32, offset: u64 },
    /// `amoswap.d`, which may acquire and release.
    Swap { rd: u32, address: u32, source: u32, order: Order },
    /// `fence`, with its predecessors and successors (bits I, O, R, W).
    Fence(u32, u32),
    /// `csrrw`.
    Exchange { rd: u32, csr: u32, source: u32 },
    /// `csrrs`.
    SetBits { rd: u32, csr: u32, source: u32 },
    /// `mret` or `sret`: the instruction.
    Return(u32),
    /// `sfence.vma`, or `hfence.vvma`, of the address in a register, in all address spaces.
    Forget { address: u32, is_virtual: bool },
    /// A fence of all addresses.
    ForgetAll { is_virtual: bool },
}

/// The order of an atomic instruction: `acquires` puts later accesses behind it, `releases` puts it behind earlier
/// ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    pub acquires: bool,
    pub releases: bool,
}

/// An operation on two values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum How {
    Add,
    And,
    Or,
    /// To the left, by an immediate.
    Left,
    /// To the right, zeroes coming in, by an immediate.
    Right,
    /// `sh3add`: the first times eight, and the second.
    AddEighth,
}

impl How {
    /// The result of the operation.
    pub fn of(self, a: u64, b: u64) -> u64 {
        match self {
            How::Add => a.wrapping_add(b),
            How::And => a & b,
            How::Or => a | b,
            How::Left => a << b,
            How::Right => a >> b,
            How::AddEighth => (a << 3).wrapping_add(b),
        }
    }
}

/// The condition of a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    Equal,
    /// Signed.
    Less,
    /// Unsigned.
    Below,
}

impl Test {
    /// Returns whether it holds.
    pub const fn of(self, a: u64, b: u64) -> bool {
        match self {
            Test::Equal => a == b,
            Test::Less => (a as i64) < b as i64,
            Test::Below => a < b,
        }
    }
}

pub const MRET: u32 = 0x3020_0073;
pub const SRET: u32 = 0x1020_0073;

const fn sign_extend(value: u32, bits: u32) -> u64 {
    ((value << (32 - bits)) as i32 >> (32 - bits)) as i64 as u64
}

/// Bits `from` to `from + bits` of `value`, moved to begin at `to`.
const fn moved(value: u32, from: u32, bits: u32, to: u32) -> u32 {
    (value >> from & ((1 << bits) - 1)) << to
}

const fn branch(offset: u32, rs1: u32, funct3: u32) -> u32 {
    moved(offset, 12, 1, 31)
        | moved(offset, 5, 6, 25)
        | rs1 << 15
        | funct3 << 12
        | moved(offset, 1, 4, 8)
        | moved(offset, 11, 1, 7)
        | 0x63
}

/// The 32-bit form of a compressed instruction.
fn expand(c: u32) -> Option<u32> {
    let (rd, rs2) = (c >> 7 & 31, c >> 2 & 31);
    let (short1, short2) = (8 + (c >> 7 & 7), 8 + (c >> 2 & 7));
    let imm6 = sign_extend(moved(c, 12, 1, 5) | rs2, 6) as u32;
    let shamt = moved(c, 12, 1, 5) | rs2;
    let offset8 = moved(c, 10, 3, 3) | moved(c, 5, 2, 6);
    let to = moved(c, 12, 1, 8) | moved(c, 10, 2, 3) | moved(c, 5, 2, 6) | moved(c, 3, 2, 1) | moved(c, 2, 1, 5);
    let to = sign_extend(to, 9) as u32;
    let jump = moved(c, 12, 1, 11)
        | moved(c, 11, 1, 4)
        | moved(c, 9, 2, 8)
        | moved(c, 8, 1, 10)
        | moved(c, 7, 1, 6)
        | moved(c, 6, 1, 7)
        | moved(c, 3, 3, 1)
        | moved(c, 2, 1, 5);
    let jump = sign_extend(jump, 12) as u32;
    Some(match (c & 3, c >> 13) {
        (0, 3) => offset8 << 20 | short1 << 15 | 3 << 12 | short2 << 7 | 0x03,
        (0, 7) => moved(offset8, 5, 7, 25) | short2 << 20 | short1 << 15 | 3 << 12 | moved(offset8, 0, 5, 7) | 0x23,
        (1, 0) => imm6 << 20 | rd << 15 | rd << 7 | 0x13,
        (1, 2) => imm6 << 20 | rd << 7 | 0x13,
        (1, 4) if c >> 10 & 3 == 0 => shamt << 20 | short1 << 15 | 5 << 12 | short1 << 7 | 0x13,
        (1, 4) if c >> 10 & 3 == 2 => imm6 << 20 | short1 << 15 | 7 << 12 | short1 << 7 | 0x13,
        (1, 4) if c >> 10 & 7 == 3 && c >> 5 & 3 == 3 => short2 << 20 | short1 << 15 | 7 << 12 | short1 << 7 | 0x33,
        (1, 5) => {
            moved(jump, 20, 1, 31) | moved(jump, 1, 10, 21) | moved(jump, 11, 1, 20) | moved(jump, 12, 8, 12) | 0x6f
        }
        (1, 6) => branch(to, short1, 0),
        (1, 7) => branch(to, short1, 1),
        (2, 0) => shamt << 20 | rd << 15 | 1 << 12 | rd << 7 | 0x13,
        (2, 4) if c >> 12 & 1 == 0 && rs2 == 0 && rd != 0 => rd << 15 | 0x67,
        (2, 4) if c >> 12 & 1 == 0 && rs2 != 0 => rs2 << 20 | rd << 7 | 0x33,
        (2, 4) if rs2 != 0 => rs2 << 20 | rd << 15 | rd << 7 | 0x33,
        _ => return None,
    })
}

/// The instruction at `pc`, of which `code` has at least 4 bytes, or 2 if it is compressed; and its length.
///
/// # Errors
/// What is wrong with it.
pub fn decode(pc: u64, code: impl Fn(u64) -> Option<u16>) -> Result<(Op, u64), String> {
    let half = |at| code(at).map(u32::from).ok_or_else(|| format!("no code at {pc:#x}"));
    let low = half(pc)?;
    let (insn, bytes) = match low & 3 {
        3 => (half(pc + 2)? << 16 | low, 4),
        _ => (expand(low).ok_or_else(|| format!("an unknown compressed instruction at {pc:#x}"))?, 2),
    };
    let (rd, funct3) = (insn >> 7 & 31, insn >> 12 & 7);
    let (rs1, rs2) = (insn >> 15 & 31, insn >> 20 & 31);
    let imm = sign_extend(insn >> 20, 12);
    let shift = u64::from(insn >> 20 & 63);
    let op = match (insn & 0x7f, funct3) {
        (0x03, 3) => Op::Load { rd, base: rs1, offset: imm },
        (0x23, 3) => Op::Store { base: rs1, offset: sign_extend(insn >> 25 << 5 | rd, 12), source: rs2 },
        (0x13, 0) => Op::Immediate { rd, how: How::Add, a: rs1, b: imm },
        (0x13, 6) => Op::Immediate { rd, how: How::Or, a: rs1, b: imm },
        (0x13, 7) => Op::Immediate { rd, how: How::And, a: rs1, b: imm },
        (0x13, 1) if insn >> 26 == 0 => Op::Immediate { rd, how: How::Left, a: rs1, b: shift },
        (0x13, 5) if insn >> 26 == 0 => Op::Immediate { rd, how: How::Right, a: rs1, b: shift },
        // `auipc`: a value that is known where it stands.
        (0x17, _) => {
            let value = pc.wrapping_add(sign_extend(insn & 0xffff_f000, 32));
            Op::Immediate { rd, how: How::Add, a: 0, b: value }
        }
        (0x33, 0) if insn >> 25 == 0 => Op::Registers { rd, how: How::Add, a: rs1, b: rs2 },
        (0x33, 7) if insn >> 25 == 0 => Op::Registers { rd, how: How::And, a: rs1, b: rs2 },
        (0x33, 6) if insn >> 25 == 0x10 => Op::Registers { rd, how: How::AddEighth, a: rs1, b: rs2 },
        (0x2f, 3) if insn >> 27 == 1 => {
            let order = Order { acquires: insn >> 26 & 1 == 1, releases: insn >> 25 & 1 == 1 };
            Op::Swap { rd, address: rs1, source: rs2, order }
        }
        (0x63, 0 | 1 | 4..8) => {
            let offset = moved(insn, 31, 1, 12) | moved(insn, 25, 6, 5) | moved(insn, 8, 4, 1) | moved(insn, 7, 1, 11);
            let test = match funct3 {
                0 | 1 => Test::Equal,
                4 | 5 => Test::Less,
                _ => Test::Below,
            };
            let target = pc.wrapping_add(sign_extend(offset, 13));
            Op::Branch { a: rs1, b: rs2, test, holds: funct3 & 1 == 0, target }
        }
        (0x6f, _) => {
            let offset =
                moved(insn, 31, 1, 20) | moved(insn, 21, 10, 1) | moved(insn, 20, 1, 11) | moved(insn, 12, 8, 12);
            Op::Jump { rd, target: pc.wrapping_add(sign_extend(offset, 21)) }
        }
        (0x67, 0) => Op::JumpTo { rd, base: rs1, offset: imm },
        (0x0f, 0) if insn >> 28 == 0 && rd == 0 && rs1 == 0 => Op::Fence(insn >> 24 & 15, insn >> 20 & 15),
        (0x73, 1) => Op::Exchange { rd, csr: insn >> 20, source: rs1 },
        (0x73, 2) => Op::SetBits { rd, csr: insn >> 20, source: rs1 },
        (0x73, 0) if [MRET, SRET].contains(&insn) => Op::Return(insn),
        (0x73, 0) if rd == 0 && rs2 == 0 && [0x09, 0x11].contains(&(insn >> 25)) => {
            let is_virtual = insn >> 25 == 0x11;
            if rs1 == 0 { Op::ForgetAll { is_virtual } } else { Op::Forget { address: rs1, is_virtual } }
        }
        _ => return Err(format!("instruction {insn:#x} at {pc:#x}")),
    };
    Ok((op, bytes))
}
