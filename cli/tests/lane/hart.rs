//! As much of a hart as the lane needs: its integer registers, its CSRs, its memory, and the instructions that the lane is
//! made of. It stops at any other.

use std::collections::BTreeMap;
use std::ops::Range;

/// What others see of a hart, in its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// `fence`, with its predecessors and successors (bits I, O, R, W).
    Fence(u32, u32),
    /// A store of 8 bytes.
    Store { at: u64, value: u64 },
    /// `sfence.vma`, or `hfence.vvma`, of an address in all address spaces.
    Forget { address: u64, is_virtual: bool },
    /// `mret` or `sret`: the instruction.
    Return(u32),
}

/// A hart in the middle of its work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hart {
    pub x: [u64; 32],
    pub pc: u64,
    pub csrs: BTreeMap<u32, u64>,
    /// Words by their addresses.
    pub memory: BTreeMap<u64, u64>,
    /// Where words that are not named are zero. Elsewhere there are none.
    pub zeroes: Range<u64>,
    pub events: Vec<Event>,
}

/// What it cannot do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck(pub String);

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

impl Hart {
    fn word(&self, at: u64) -> Option<u64> {
        let zero = (at.is_multiple_of(8) && self.zeroes.contains(&at)).then_some(0);
        self.memory.get(&at).copied().or(zero)
    }

    fn set(&mut self, register: u32, value: u64) {
        if register != 0 {
            self.x[register as usize] = value;
        }
    }

    /// Executes the instruction at the program counter, of which `code` has at least 4 bytes, or 2 if it is compressed.
    pub fn step(&mut self, code: impl Fn(u64) -> Option<u16>) -> Result<(), Stuck> {
        let stuck = |what: &str| Stuck(format!("{what} at {:#x}", self.pc));
        let half = |at| code(at).map(u32::from).ok_or_else(|| stuck("no code"));
        let low = half(self.pc)?;
        let (insn, bytes) = match low & 3 {
            3 => (half(self.pc + 2)? << 16 | low, 4),
            _ => (expand(low).ok_or_else(|| stuck("an unknown compressed instruction"))?, 2),
        };
        let unknown = || stuck(&format!("instruction {insn:#x}"));
        let (rd, funct3) = (insn >> 7 & 31, insn >> 12 & 7);
        let (rs1, rs2) = (insn >> 15 & 31, insn >> 20 & 31);
        let (a, b) = (self.x[rs1 as usize], self.x[rs2 as usize]);
        let imm = sign_extend(insn >> 20, 12);
        let mut next = self.pc + bytes;
        match (insn & 0x7f, funct3) {
            (0x03, 3) => {
                let word = self.word(a.wrapping_add(imm)).ok_or_else(|| stuck("no memory"))?;
                self.set(rd, word);
            }
            (0x23, 3) => {
                let at = a.wrapping_add(sign_extend(insn >> 25 << 5 | rd, 12));
                self.word(at).ok_or_else(|| stuck("no memory"))?;
                self.memory.insert(at, b);
                self.events.push(Event::Store { at, value: b });
            }
            (0x13, 0) => self.set(rd, a.wrapping_add(imm)),
            (0x13, 7) => self.set(rd, a & imm),
            (0x13, 1) if insn >> 26 == 0 => self.set(rd, a << (insn >> 20 & 63)),
            (0x13, 5) if insn >> 26 == 0 => self.set(rd, a >> (insn >> 20 & 63)),
            (0x33, 0) if insn >> 25 == 0 => self.set(rd, a.wrapping_add(b)),
            (0x33, 7) if insn >> 25 == 0 => self.set(rd, a & b),
            (0x33, 6) if insn >> 25 == 0x10 => self.set(rd, (a << 3).wrapping_add(b)),
            (0x63, 0 | 1 | 4 | 5) => {
                let offset =
                    moved(insn, 31, 1, 12) | moved(insn, 25, 6, 5) | moved(insn, 8, 4, 1) | moved(insn, 7, 1, 11);
                let is_taken = match funct3 {
                    0 => a == b,
                    1 => a != b,
                    4 => (a as i64) < b as i64,
                    _ => a as i64 >= b as i64,
                };
                if is_taken {
                    next = self.pc.wrapping_add(sign_extend(offset, 13));
                }
            }
            (0x6f, _) => {
                let offset =
                    moved(insn, 31, 1, 20) | moved(insn, 21, 10, 1) | moved(insn, 20, 1, 11) | moved(insn, 12, 8, 12);
                self.set(rd, next);
                next = self.pc.wrapping_add(sign_extend(offset, 21));
            }
            (0x67, 0) => {
                self.set(rd, next);
                next = a.wrapping_add(imm) & !1;
            }
            (0x0f, 0) if insn >> 28 == 0 && rd == 0 && rs1 == 0 => {
                self.events.push(Event::Fence(insn >> 24 & 15, insn >> 20 & 15));
            }
            (0x73, 1 | 2) => {
                let csr = self.csrs.get_mut(&(insn >> 20)).ok_or_else(unknown)?;
                let old = *csr;
                match (funct3, rs1) {
                    (1, _) => *csr = a,
                    (_, 0) => {}
                    _ => *csr |= a,
                }
                self.set(rd, old);
            }
            (0x73, 0) if [MRET, SRET].contains(&insn) => self.events.push(Event::Return(insn)),
            (0x73, 0) if rd == 0 && rs1 != 0 && rs2 == 0 && [0x09, 0x11].contains(&(insn >> 25)) => {
                self.events.push(Event::Forget { address: a, is_virtual: insn >> 25 == 0x11 });
            }
            _ => return Err(unknown()),
        }
        self.pc = next;
        Ok(())
    }
}
