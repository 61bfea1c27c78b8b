//! The parts of a hart that the lane needs: its integer registers, its CSRs, its memory, and the instructions that the
//! lane is made of. It stops at any other.

use super::insn::{Op, Order, decode};
use super::memory::Memory;
use std::collections::BTreeMap;

/// An effect of a hart that others see, in its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// `fence`, with its predecessors and successors (bits I, O, R, W).
    Fence(u32, u32),
    /// A store of 8 bytes.
    Store { at: u64, value: u64 },
    /// An exchange of 8 bytes: what is there from then on.
    Swap { at: u64, value: u64, order: Order },
    /// `sfence.vma`, or `hfence.vvma`, of an address in all address spaces.
    Forget { address: u64, is_virtual: bool },
    /// A fence of all addresses.
    ForgetAll { is_virtual: bool },
    /// `mret` or `sret`: the instruction.
    Return(u32),
}

/// A hart in the middle of its work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hart {
    pub x: [u64; 32],
    pub pc: u64,
    pub csrs: BTreeMap<u32, u64>,
    pub memory: Memory,
    pub events: Vec<Event>,
}

/// An instruction or access that the hart does not support.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck(pub String);

impl Hart {
    fn set(&mut self, register: u32, value: u64) {
        if register != 0 {
            self.x[register as usize] = value;
        }
    }

    /// Executes the instruction at the program counter, of which `code` has at least 4 bytes, or 2 if it is compressed.
    pub fn step(&mut self, code: impl Fn(u64) -> Option<u16>) -> Result<(), Stuck> {
        let pc = self.pc;
        let stuck = |what: &str| Stuck(format!("{what} at {pc:#x}"));
        let (op, bytes) = decode(pc, code).map_err(Stuck)?;
        let x = |register: u32| self.x[register as usize];
        let mut next = pc + bytes;
        match op {
            Op::Load { rd, base, offset } => {
                let word = self.memory.get(x(base).wrapping_add(offset)).ok_or_else(|| stuck("no memory"))?;
                self.set(rd, word);
            }
            Op::Store { base, offset, source } => {
                let (at, value) = (x(base).wrapping_add(offset), x(source));
                self.memory.get(at).ok_or_else(|| stuck("no memory"))?;
                self.memory.set(at, value);
                self.events.push(Event::Store { at, value });
            }
            Op::Swap { rd, address, source, order } => {
                let (at, value) = (x(address), x(source));
                let old = self.memory.get(at).ok_or_else(|| stuck("no memory"))?;
                self.memory.set(at, value);
                self.events.push(Event::Swap { at, value, order });
                self.set(rd, old);
            }
            Op::Immediate { rd, how, a, b } => self.set(rd, how.of(x(a), b)),
            Op::Registers { rd, how, a, b } => self.set(rd, how.of(x(a), x(b))),
            Op::Branch { a, b, test, holds, target } => {
                if test.of(x(a), x(b)) == holds {
                    next = target;
                }
            }
            Op::Jump { rd, target } => {
                self.set(rd, next);
                next = target;
            }
            Op::JumpTo { rd, base, offset } => {
                let target = x(base).wrapping_add(offset) & !1;
                self.set(rd, next);
                next = target;
            }
            Op::Fence(before, after) => self.events.push(Event::Fence(before, after)),
            Op::Exchange { rd, csr, source } => {
                let new = x(source);
                let old = self.csrs.insert(csr, new).ok_or_else(|| stuck("an unknown CSR"))?;
                self.set(rd, old);
            }
            Op::SetBits { rd, csr, source } => {
                let bits = x(source);
                let csr = self.csrs.get_mut(&csr).ok_or_else(|| stuck("an unknown CSR"))?;
                let old = *csr;
                *csr |= bits;
                self.set(rd, old);
            }
            Op::Return(insn) => self.events.push(Event::Return(insn)),
            Op::ForgetAll { is_virtual } => self.events.push(Event::ForgetAll { is_virtual }),
            Op::Forget { address, is_virtual } => self.events.push(Event::Forget { address: x(address), is_virtual }),
        }
        self.pc = next;
        Ok(())
    }
}
