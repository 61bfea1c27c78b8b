//! The addresses at which a hart may continue after an instruction: for a debugger that has no other way to make one
//! step.

use crate::system::System;

/// Most addresses that [`successors`] names.
pub const MOST: usize = 2 + SEQUENCE;
/// Instructions that an LR/SC sequence has at most (unprivileged specification, "Eventual Success of Store-Conditional Instructions").
const SEQUENCE: usize = 16;

/// `c.ebreak`.
pub const C_EBREAK: u16 = 0x9002;

/// Bytes of an instruction.
const fn length(insn: u32) -> u64 {
    if insn & 3 == 3 { 4 } else { 2 }
}

/// Sign-extends the lowest `bits` of `value`.
const fn extend(value: u32, bits: u32) -> u64 {
    ((value << (32 - bits)) as i32 >> (32 - bits)) as i64 as u64
}

/// A field of an instruction: its bits from `low` on, `count` of them, moved to `to`.
const fn field(insn: u32, low: u32, count: u32, to: u32) -> u32 {
    (insn >> low & ((1 << count) - 1)) << to
}

const fn is_atomic(insn: u32, funct5: u32) -> bool {
    insn & 0x7f == 0x2f && insn >> 27 == funct5
}

/// The effect of an instruction on `pc`.
enum Flow {
    /// To the next instruction.
    On,
    /// To the next, or so far away.
    Branch(u64),
    /// By this distance.
    Jump(u64),
    /// To what that register holds, plus so much.
    Indirect(usize, u64),
    /// To `sepc`.
    Return,
}

fn flow(insn: u32) -> Flow {
    let register = field(insn, 7, 5, 0) as usize;
    match (insn & 3, insn & 0x7f, insn >> 13 & 7) {
        (3, 0x63, _) => {
            let low = field(insn, 8, 4, 1) | field(insn, 25, 6, 5);
            Flow::Branch(extend(low | field(insn, 7, 1, 11) | field(insn, 31, 1, 12), 13))
        }
        (3, 0x6f, _) => {
            let low = field(insn, 21, 10, 1) | field(insn, 20, 1, 11);
            Flow::Jump(extend(low | field(insn, 12, 8, 12) | field(insn, 31, 1, 20), 21))
        }
        (3, 0x67, _) => Flow::Indirect(field(insn, 15, 5, 0) as usize, extend(insn >> 20, 12)),
        (3, 0x73, _) if System::decode(insn) == Some(System::Sret) => Flow::Return,
        (1, _, 5) => {
            let low = field(insn, 3, 3, 1) | field(insn, 11, 1, 4) | field(insn, 2, 1, 5) | field(insn, 7, 1, 6);
            let high = field(insn, 6, 1, 7) | field(insn, 9, 2, 8) | field(insn, 8, 1, 10) | field(insn, 12, 1, 11);
            Flow::Jump(extend(low | high, 12))
        }
        (1, _, 6 | 7) => {
            let low = field(insn, 3, 2, 1) | field(insn, 10, 2, 3) | field(insn, 2, 1, 5);
            Flow::Branch(extend(low | field(insn, 5, 2, 6) | field(insn, 12, 1, 8), 9))
        }
        // c.jr and c.jalr; without a register that is c.ebreak.
        (2, _, 4) if field(insn, 2, 5, 0) == 0 && register != 0 => Flow::Indirect(register, 0),
        _ => Flow::On,
    }
}

/// Tells `to` each address at which a hart may go on after the instruction at `pc`, if that makes no trap. An LR/SC sequence counts as
/// one instruction, since a trap within it takes the reservation away. `sepc`: where `sret` leads. `fetch` reads an instruction,
/// `None` where it cannot.
pub fn successors(
    (pc, x): (u64, &[u64; 32]),
    sepc: u64,
    mut fetch: impl FnMut(u64) -> Option<u32>,
    mut to: impl FnMut(u64),
) {
    let Some(insn) = fetch(pc) else { return };
    if is_atomic(insn, 2) && sequence(pc, &mut fetch, &mut to) {
        return;
    }
    let next = pc.wrapping_add(length(insn));
    match flow(insn) {
        Flow::On => to(next),
        Flow::Branch(far) => {
            to(next);
            to(pc.wrapping_add(far));
        }
        Flow::Jump(far) => to(pc.wrapping_add(far)),
        Flow::Indirect(register, far) => to(x[register].wrapping_add(far) & !1),
        Flow::Return => to(sepc),
    }
}

/// Passes the exits of the sequence that an LR at `start` begins to `to`; false if it is none.
fn sequence(start: u64, fetch: &mut impl FnMut(u64) -> Option<u32>, to: &mut impl FnMut(u64)) -> bool {
    let (mut at, mut exits) = (start, [None; SEQUENCE]);
    for exit in &mut exits {
        let Some(insn) = fetch(at) else { return false };
        let here = at;
        at = at.wrapping_add(length(insn));
        if is_atomic(insn, 3) {
            to(at);
            let outside = |target: &u64| target.wrapping_sub(start) >= at.wrapping_sub(start);
            exits.into_iter().flatten().filter(outside).for_each(to);
            return true;
        }
        match flow(insn) {
            Flow::On => {}
            Flow::Branch(far) => *exit = Some(here.wrapping_add(far)),
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    /// The addresses at which a program at 0x1000 may continue after its first instruction: 16 bits each, x1 holds
    /// 0x5001, `sepc` 0x7000.
    fn after(code: &[u16]) -> Vec<u64> {
        let fetch = |at: u64| {
            let half = |at: u64| code.get((at as usize - 0x1000) / 2).copied();
            let low = half(at)?;
            Some(if low & 3 == 3 { u32::from(low) | u32::from(half(at + 2)?) << 16 } else { low.into() })
        };
        let (mut x, mut found) = ([0; 32], Vec::new());
        x[1] = 0x5001;
        successors((0x1000, &x), 0x7000, fetch, |at| found.push(at));
        found.sort_unstable();
        found
    }

    fn word(insn: u32) -> [u16; 2] {
        [insn as u16, (insn >> 16) as u16]
    }

    #[test]
    fn each_kind_of_instruction_goes_where_it_says() {
        assert_eq!(after(&[0x0001]), [0x1002]); // c.nop
        assert_eq!(after(&word(0x0000_0013)), [0x1004]); // nop
        assert_eq!(after(&word(0xfe00_0ee3)), [0xffc, 0x1004]); // beqz x0, -4
        assert_eq!(after(&word(0x0000_0463)), [0x1004, 0x1008]); // beqz x0, 8
        assert_eq!(after(&word(0x1000_006f)), [0x1100]); // j 256
        assert_eq!(after(&word(0xff1f_f06f)), [0xff0]); // j -16
        assert_eq!(after(&word(0x0040_8067)), [0x5004]); // jr 4(ra): bit 0 is cleared
        assert_eq!(after(&[0x8082]), [0x5000]); // ret
        assert_eq!(after(&[0x9082]), [0x5000]); // c.jalr ra
        assert_eq!(after(&[0xa001]), [0x1000]); // c.j 0
        assert_eq!(after(&[0xbffd]), [0xffe]); // c.j -2
        assert_eq!(after(&[0xa009]), [0x1002]); // c.j 2
        assert_eq!(after(&[0xc119]), [0x1002, 0x1006]); // c.beqz a0, 6
        assert_eq!(after(&[0xfd7d]), [0xffe, 0x1002]); // c.bnez a0, -2
        assert_eq!(after(&word(0x1020_0073)), [0x7000]);
        assert_eq!(after(&[C_EBREAK]), [0x1002]);
        assert_eq!(after(&[]), []);
    }

    #[test]
    fn a_sequence_is_one_step() {
        let lr = word(0x1005_252f); // lr.w a0, (a0)
        let out = word(0x00b5_1663); // bne a0, a1, 12: behind the sequence
        let sc = word(0x18c5_252f); // sc.w a0, a2, (a0)
        let again = word(0xfe05_1ae3); // bnez a0, -12
        let code = [lr, out, sc, again].concat();
        assert_eq!(after(&code), [0x100c, 0x1010]);
        // Without an end it is no sequence.
        assert_eq!(after(&[lr, out].concat()), [0x1004]);
        assert_eq!(after(&[lr, word(0x0000_8067), sc].concat()), [0x1004]);
    }
}
