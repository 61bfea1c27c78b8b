//! Decoding the loads and stores that reach emulated devices.
//!
//! The source is either `htinst`/`mtinst`, the *transformed* instruction (privileged spec,
//! "Transformed Instruction or Pseudoinstruction for `mtinst` or `htinst`"), or the instruction
//! itself, read from the guest's memory. The address comes from the trap. It is that of the access only if
//! the access begins there: of one across two pages, the trap may name the second.

use crate::PAGE_BYTES;

/// The operation of a trapping load or store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemOp {
    /// Load into register `rd` (0..32).
    Load {
        /// Destination register.
        rd: u8,
        /// Bytes read: 1, 2, 4 or 8.
        width: u8,
        /// The value is sign-extended.
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
    /// The operation.
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
    /// one), which with the registers `x` faulted at `at`. `None` if it is not an integer load or store: AMOs,
    /// LR/SC, floating point and vector accesses have no business with a device. Nor has an access that does
    /// not begin at `at`: its bytes before that are another device's.
    #[must_use]
    pub fn decode(insn: u32, x: &[u64; 32], at: u64) -> Option<Self> {
        let decoded = Self::of(insn)?;
        (begins(insn, x) == at).then_some(decoded)
    }

    /// Decodes an instruction, wherever its access goes.
    fn of(insn: u32) -> Option<Self> {
        if insn & 3 == 3 {
            Some(Self { op: standard(insn)?, length: 4 })
        } else {
            Some(Self { op: compressed(insn & 0xffff)?, length: 2 })
        }
    }

    /// Decodes a transformed instruction of `htinst` or `mtinst`. `None` if the register holds
    /// zero, a pseudoinstruction or a custom value, or if it does not tell that the access begins at `at`; the
    /// instruction must then be read from memory.
    #[must_use]
    pub fn from_tinst(tinst: u64, at: u64) -> Option<Self> {
        let insn = u32::try_from(tinst).ok()?;
        // Bit 0 set: a transformed standard instruction. Bit 1 clear: it was a 16-bit one, expanded.
        // A pseudoinstruction has bit 0 clear.
        if insn & 1 == 0 {
            return None;
        }
        let length = if insn & 2 != 0 { 4 } else { 2 };
        let decoded = Self { op: standard(insn | 2)?, length };
        (decoded.op.width() == 1 || tells_begin(insn, at)).then_some(decoded)
    }
}

/// The register and the length in bytes of a `sb`, if that is what a transformed instruction of `htinst` or `mtinst` is: a
/// part of [`MemInsn::from_tinst`], at a small part of what that takes.
#[must_use]
#[inline(always)]
pub const fn byte_store_from_tinst(tinst: u64) -> Option<(u8, u8)> {
    /// The register's field, and the bit that says whether it was a 32-bit instruction.
    const FREE: u64 = 0x1f << 20 | 1 << 1;
    /// The rest: opcode STORE, `funct3` of `sb`, no offset.
    const SB: u64 = 0x21;
    if tinst & !FREE != SB {
        return None;
    }
    Some((field(tinst as u32, 20, 5), if tinst & 2 != 0 { 4 } else { 2 }))
}

/// The register of a `sb` of 32 bits, if that is what an instruction is, as it stands in memory, which with the registers `x`
/// faulted at `at`: a part of [`MemInsn::decode`], at a small part of what that takes.
#[must_use]
#[inline(always)]
pub const fn byte_store(insn: u32, x: &[u64; 32], at: u64) -> Option<u8> {
    const SB: u32 = 0x23;
    let offset = insn as i32 >> 20 & !0x1f | field(insn, 7, 5) as i32;
    let begin = x[field(insn, 15, 5) as usize].wrapping_add_signed(offset as i64);
    if insn & 0x707f == SB && begin == at { Some(field(insn, 20, 5)) } else { None }
}

impl MemOp {
    /// Bytes read or written: 1, 2, 4 or 8.
    #[must_use]
    pub const fn width(self) -> u8 {
        let (MemOp::Load { width, .. } | MemOp::Store { width, .. }) = self;
        width
    }

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

/// An instruction that changes memory within 8 aligned bytes at once: a store of an integer register, or an AMO.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WordStore {
    op: StoreOp,
    /// Bytes written: 1, 2, 4 or 8.
    pub width: u8,
    /// The register that the operand comes from.
    pub rs: u8,
    /// The register that gets what was there before; 0 for stores.
    pub rd: u8,
    /// Its length in bytes, 2 or 4.
    pub length: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StoreOp {
    Store,
    Add,
    Xor,
    Or,
    And,
    Min,
    Max,
    MinU,
    MaxU,
}

/// Returns whether a transformed instruction tells that its access begins at `at`. By the spec rs1 gives way to the distance from
/// there, but to QEMU 10's it is the low bits of `at`: 0 in the second page of an access across two.
const fn tells_begin(tinst: u32, at: u64) -> bool {
    field(tinst, 15, 5) == 0 && !at.is_multiple_of(PAGE_BYTES)
}

/// Returns the base register and the offset of a load, a store or an AMO. Of no meaning for other instructions.
fn place(insn: u32) -> (u8, i64) {
    const LOAD: u32 = 0x03;
    const STORE: u32 = 0x23;
    const LOAD_FP: u32 = 0x07;
    const STORE_FP: u32 = 0x27;
    let opcode = insn & 0x7f;
    // Bits of the instruction from `low` on, moved to `to`.
    let bits = |low, count, to: u32| i64::from(field(insn, low, count)) << to;
    let compressed_base = field(insn, 7, 3) + 8;
    match (insn & 3, field(insn, 13, 3)) {
        (3, _) if opcode == LOAD || opcode == LOAD_FP => (field(insn, 15, 5), i64::from(insn as i32 >> 20)),
        (3, _) if opcode == STORE || opcode == STORE_FP => {
            (field(insn, 15, 5), i64::from(insn as i32 >> 25) << 5 | bits(7, 5, 0))
        }
        (3, _) => (field(insn, 15, 5), 0),
        (0, 2 | 6) => (compressed_base, bits(10, 3, 3) | bits(6, 1, 2) | bits(5, 1, 6)), // c.lw, c.sw
        (0, 1 | 3 | 5 | 7) => (compressed_base, bits(10, 3, 3) | bits(5, 2, 6)),         // c.fld, c.ld, c.fsd, c.sd
        // Zcb.
        (0, _) if field(insn, 10, 1) == 0 => (compressed_base, bits(6, 1, 0) | bits(5, 1, 1)), // c.lbu, c.sb
        (0, _) => (compressed_base, bits(5, 1, 1)),                                            // c.lh, c.lhu, c.sh
        (_, 2) => (2, bits(12, 1, 5) | bits(4, 3, 2) | bits(2, 2, 6)),                         // c.lwsp
        (_, 1 | 3) => (2, bits(12, 1, 5) | bits(5, 2, 3) | bits(2, 3, 6)),                     // c.fldsp, c.ldsp
        (_, 6) => (2, bits(9, 4, 2) | bits(7, 2, 6)),                                          // c.swsp
        (..) => (2, bits(10, 3, 3) | bits(7, 3, 6)),                                           // c.fsdsp, c.sdsp
    }
}

/// A load or store of an integer or a floating-point register, and the address at which it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlainAccess {
    /// The operation, on the register file that `is_float` says.
    pub op: MemOp,
    /// Set if the register is a floating-point one. A narrower value than the register's is NaN-boxed by a load.
    pub is_float: bool,
    /// The address of the first byte.
    pub at: u64,
    /// The instruction's length in bytes, 2 or 4.
    pub length: u8,
}

impl PlainAccess {
    /// Decodes an instruction as it stands in memory (the low 16 bits suffice for a compressed one), which is executed with the integer
    /// registers `x`. `None` for anything else: AMOs, LR, SC, vector accesses, those of quadruple precision.
    #[must_use]
    pub fn decode(insn: u32, x: &[u64; 32]) -> Option<Self> {
        let at = begins(insn, x);
        match MemInsn::of(insn) {
            Some(MemInsn { op, length }) => Some(Self { op, is_float: false, at, length }),
            None => {
                let (op, length) = float(insn)?;
                Some(Self { op, is_float: true, at, length })
            }
        }
    }

    /// Returns the value that a load leaves in its register, if `value` has been read.
    #[must_use]
    pub fn extend(&self, value: u64) -> u64 {
        if self.is_float && self.op.width() < 8 {
            value | u64::MAX << (8 * self.op.width())
        } else {
            self.op.extend(value)
        }
    }
}

/// Decodes a load or store of a floating-point register of up to 64 bits; returns its length, too.
fn float(insn: u32) -> Option<(MemOp, u8)> {
    const LOAD_FP: u32 = 0x07;
    const STORE_FP: u32 = 0x27;
    let funct3 = field(insn, 12, 3);
    let width = 1 << (funct3 & 3);
    let load = |rd, width| MemOp::Load { rd, width, signed: false };
    match (insn & 3, field(insn, 13, 3)) {
        // Half, single and double precision.
        (3, _) if !(1..=3).contains(&funct3) => None,
        (3, _) if insn & 0x7f == LOAD_FP => Some((load(field(insn, 7, 5), width), 4)),
        (3, _) if insn & 0x7f == STORE_FP => Some((MemOp::Store { rs: field(insn, 20, 5), width }, 4)),
        (0, 1) => Some((load(field(insn, 2, 3) + 8, 8), 2)), // c.fld
        (0, 5) => Some((MemOp::Store { rs: field(insn, 2, 3) + 8, width: 8 }, 2)), // c.fsd
        (2, 1) => Some((load(field(insn, 7, 5), 8), 2)),     // c.fldsp
        (2, 5) => Some((MemOp::Store { rs: field(insn, 2, 5), width: 8 }, 2)), // c.fsdsp
        _ => None,
    }
}

/// The address at which its access begins, with the registers `x`.
fn begins(insn: u32, x: &[u64; 32]) -> u64 {
    let (base, offset) = place(insn);
    x[usize::from(base)].wrapping_add_signed(offset)
}

impl WordStore {
    /// Decodes an instruction as it stands in memory, which with the registers `x` faulted at `at`. `None` for
    /// anything else, LR, SC and AMOCAS among them, which depend on more than the operand; and for a store across
    /// two pages that faulted in the second.
    #[must_use]
    pub fn decode(insn: u32, x: &[u64; 32], at: u64) -> Option<Self> {
        (begins(insn, x) == at).then(|| Self::of(insn))?
    }

    /// Decodes a transformed instruction of `htinst` or `mtinst`; see [`MemInsn::from_tinst`]. `None` also
    /// if it does not tell that the access begins at `at`.
    #[must_use]
    pub fn from_tinst(tinst: u64, at: u64) -> Option<Self> {
        let insn = u32::try_from(tinst).ok().filter(|insn| insn & 1 != 0 && tells_begin(*insn, at))?;
        let length = if insn & 2 != 0 { 4 } else { 2 };
        Some(Self { length, ..Self::of(insn | 2)? })
    }

    fn of(insn: u32) -> Option<Self> {
        const AMO: u32 = 0x2f;
        if let Some(MemInsn { op: MemOp::Store { rs, width }, length }) = MemInsn::of(insn) {
            return Some(Self { op: StoreOp::Store, width, rs, rd: 0, length });
        }
        if insn & 0x7f != AMO || field(insn, 12, 3) > 3 {
            return None;
        }
        let op = match field(insn, 27, 5) {
            0b00000 => StoreOp::Add,
            0b00001 => StoreOp::Store,
            0b00100 => StoreOp::Xor,
            0b01000 => StoreOp::Or,
            0b01100 => StoreOp::And,
            0b10000 => StoreOp::Min,
            0b10100 => StoreOp::Max,
            0b11000 => StoreOp::MinU,
            0b11100 => StoreOp::MaxU,
            _ => return None,
        };
        let (rs, rd) = (field(insn, 20, 5), field(insn, 7, 5));
        Some(Self { op, width: 1 << field(insn, 12, 3), rs, rd, length: 4 })
    }

    /// Returns whether a store at `offset` bytes past a multiple of 8 is aligned to its width.
    #[must_use]
    pub fn is_aligned(&self, offset: u64) -> bool {
        offset.is_multiple_of(self.width.into())
    }

    /// Returns the contents of 8 aligned bytes after it, if they held `word`; the store is `offset` bytes into them, aligned.
    #[must_use]
    pub fn apply(&self, word: u64, offset: u64, operand: u64) -> u64 {
        let (shift, mask) = (8 * offset, u64::MAX >> (64 - 8 * u32::from(self.width)));
        let old = word >> shift & mask;
        let (a, b) = (self.sign_extend(old), self.sign_extend(operand));
        let new = match self.op {
            StoreOp::Store => operand,
            StoreOp::Add => old.wrapping_add(operand),
            StoreOp::Xor => old ^ operand,
            StoreOp::Or => old | operand,
            StoreOp::And => old & operand,
            StoreOp::Min => a.min(b) as u64,
            StoreOp::Max => a.max(b) as u64,
            StoreOp::MinU => old.min(operand & mask),
            StoreOp::MaxU => old.max(operand & mask),
        };
        word & !(mask << shift) | (new & mask) << shift
    }

    /// Returns the value that an AMO leaves in `rd`, if the 8 bytes held `word`.
    #[must_use]
    pub fn result(&self, word: u64, offset: u64) -> u64 {
        self.sign_extend(word >> (8 * offset)) as u64
    }

    fn sign_extend(&self, value: u64) -> i64 {
        let unused = 64 - 8 * u32::from(self.width);
        (value << unused) as i64 >> unused
    }
}

/// Returns whether an instruction cleans, flushes or invalidates a cache block (Zicbom: CBO.CLEAN, CBO.FLUSH, CBO.INVAL).
#[must_use]
pub const fn is_cache_block_management(insn: u32) -> bool {
    insn & 0x7fff == 0x200f && insn >> 20 <= 2
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
        assert_eq!(MemInsn::of(0x0005_0583), load(11, 1, true, 4)); // lb a1, 0(a0)
        assert_eq!(MemInsn::of(0x0005_4583), load(11, 1, false, 4)); // lbu a1, 0(a0)
        assert_eq!(MemInsn::of(0x0045_5583), load(11, 2, false, 4)); // lhu a1, 4(a0)
        assert_eq!(MemInsn::of(0x0005_2583), load(11, 4, true, 4)); // lw a1, 0(a0)
        assert_eq!(MemInsn::of(0x0005_6583), load(11, 4, false, 4)); // lwu a1, 0(a0)
        assert_eq!(MemInsn::of(0x0005_3583), load(11, 8, true, 4)); // ld a1, 0(a0)
        assert_eq!(MemInsn::of(0x00b5_0023), store(11, 1, 4)); // sb a1, 0(a0)
        assert_eq!(MemInsn::of(0x00b5_3423), store(11, 8, 4)); // sd a1, 8(a0)
        assert_eq!(MemInsn::of(0x410c), load(11, 4, true, 2)); // c.lw a1, 0(a0)
        assert_eq!(MemInsn::of(0x610c), load(11, 8, true, 2)); // c.ld a1, 0(a0)
        assert_eq!(MemInsn::of(0xc10c), store(11, 4, 2)); // c.sw a1, 0(a0)
        assert_eq!(MemInsn::of(0xe10c), store(11, 8, 2)); // c.sd a1, 0(a0)
        assert_eq!(MemInsn::of(0x4582), load(11, 4, true, 2)); // c.lwsp a1, 0(sp)
        assert_eq!(MemInsn::of(0xe02e), store(11, 8, 2)); // c.sdsp a1, 0(sp)
        assert_eq!(MemInsn::of(0x810c), load(11, 1, false, 2)); // c.lbu a1, 0(a0)
        assert_eq!(MemInsn::of(0x890c), store(11, 1, 2)); // c.sb a1, 0(a0)
        assert_eq!(MemInsn::of(0x0005_2587), None); // flw fa1, 0(a0)
        assert_eq!(MemInsn::of(0x00b5_252f), None); // amoadd.w a0, a1, (a0)
        assert_eq!(MemInsn::of(0x0000_0013), None); // nop
    }

    #[test]
    fn transformed_instructions_keep_their_length() {
        assert_eq!(MemInsn::from_tinst(0x0005_2583 & !0xf8000, 0x1008), load(11, 4, true, 4));
        // Bit 1 clear: a compressed load, expanded (hardware.md saw 0x3501 for c.ld a0).
        assert_eq!(MemInsn::from_tinst(0x3501, 0x1008), load(10, 8, true, 2));
        assert_eq!(MemInsn::from_tinst(0, 0x1008), None);
        assert_eq!(MemInsn::from_tinst(0x3000, 0x1008), None);
    }

    #[test]
    fn stores_and_amos_change_their_bytes_only() {
        let insn = |raw| WordStore::of(raw).unwrap();
        let (sw, amoadd_w) = (insn(0x00b5_2023), insn(0x00b5_252f)); // sw a1, 0(a0); amoadd.w a0, a1, (a0)
        assert_eq!(
            (sw.rs, sw.rd, sw.apply(0x1111_2222_3333_4444, 4, 0xaaaa_bbbb_cccc_dddd)),
            (11, 0, 0xcccc_dddd_3333_4444)
        );
        assert_eq!(amoadd_w.apply(0xffff_ffff_0000_0001, 4, 2), 0x0000_0001_0000_0001);
        assert_eq!((amoadd_w.rd, amoadd_w.result(0x8000_0000_0000_0001, 4)), (10, 0xffff_ffff_8000_0000));
        let amoand_d = insn(0x60b5_352f);
        assert_eq!(amoand_d.apply(0xff, 0, !0x40), 0xbf);
        let (min, minu) = (insn(0x80b5_252f), insn(0xc0b5_252f)); // amomin.w, amominu.w
        assert_eq!((min.apply(1, 0, u64::MAX), minu.apply(1, 0, u64::MAX)), (0xffff_ffff, 1));
        for other in [0x1005_352f, 0x18b5_352f, 0x28b5_352f, 0x0005_2583, 0x00b5_3427] {
            assert_eq!(WordStore::of(other), None, "{other:#x}"); // lr.d, sc.d, amocas.d, lw, fsd
        }
    }

    // Encodings from `llvm-mc -triple=riscv64 -mattr=+c,+a,+zcb -show-encoding`.
    #[test]
    fn stores_go_where_the_fault_was() {
        let mut x = [0; 32];
        (x[2], x[10]) = (0x2000, 0x1000);
        for (raw, at) in [
            (0x7eb5_3fa3, 0x17ff), // sd a1, 2047(a0)
            (0x80b5_3023, 0x0800), // sd a1, -2048(a0)
            (0xfeb5_2e23, 0x0ffc), // sw a1, -4(a0)
            (0x00b5_352f, 0x1000), // amoadd.d a0, a1, (a0)
            (0xdd6c, 0x107c),      // c.sw a1, 124(a0)
            (0xc14c, 0x1004),      // c.sw a1, 4(a0)
            (0xfd6c, 0x10f8),      // c.sd a1, 248(a0)
            (0xe12c, 0x1040),      // c.sd a1, 64(a0)
            (0x896c, 0x1003),      // c.sb a1, 3(a0)
            (0x892c, 0x1002),      // c.sb a1, 2(a0)
            (0x8d2c, 0x1002),      // c.sh a1, 2(a0)
            (0xdfae, 0x20fc),      // c.swsp a1, 252(sp)
            (0xc0ae, 0x2040),      // c.swsp a1, 64(sp)
            (0xffae, 0x21f8),      // c.sdsp a1, 504(sp)
            (0xe0ae, 0x2040),      // c.sdsp a1, 64(sp)
        ] {
            assert_eq!(WordStore::decode(raw, &x, at).map(|insn| insn.rs), Some(11), "{raw:#x}");
            assert_eq!(WordStore::decode(raw, &x, at + 4), None, "{raw:#x}: its second half");
        }
    }

    // Encodings from `llvm-mc -triple=riscv64 -mattr=+c,+d,+zfh,+v,+a -show-encoding`; `flq` by hand.
    #[test]
    fn accesses_of_both_register_files_begin_where_they_say() {
        let mut x = [0; 32];
        (x[2], x[10]) = (0x2000, 0x1000);
        let load = |width| MemOp::Load { rd: 11, width, signed: false };
        let store = |width| MemOp::Store { rs: 11, width };
        for (raw, op, at, length) in [
            (0x7ff5_1587, load(2), 0x17ff, 4),  // flh fa1, 2047(a0)
            (0x8005_2587, load(4), 0x0800, 4),  // flw fa1, -2048(a0)
            (0x0095_3587, load(8), 0x1009, 4),  // fld fa1, 9(a0)
            (0xfeb5_1fa7, store(2), 0x0fff, 4), // fsh fa1, -1(a0)
            (0x00b5_21a7, store(4), 0x1003, 4), // fsw fa1, 3(a0)
            (0x7eb5_3fa7, store(8), 0x17ff, 4), // fsd fa1, 2047(a0)
            (0x3d6c, load(8), 0x10f8, 2),       // c.fld fa1, 248(a0)
            (0xa12c, store(8), 0x1040, 2),      // c.fsd fa1, 64(a0)
            (0x35fe, load(8), 0x21f8, 2),       // c.fldsp fa1, 504(sp)
            (0xbfae, store(8), 0x21f8, 2),      // c.fsdsp fa1, 504(sp)
        ] {
            assert_eq!(PlainAccess::decode(raw, &x), Some(PlainAccess { op, is_float: true, at, length }), "{raw:#x}");
        }
        let lw = PlainAccess::decode(0x0015_2583, &x).unwrap(); // lw a1, 1(a0)
        assert_eq!((lw.at, lw.is_float, lw.extend(0x8000_0001)), (0x1001, false, 0xffff_ffff_8000_0001));
        let flw = PlainAccess::decode(0x8005_2587, &x).unwrap();
        assert_eq!(flw.extend(0x8000_0001), 0xffff_ffff_8000_0001);
        assert_eq!(PlainAccess::decode(0x7ff5_1587, &x).unwrap().extend(0x7c01), 0xffff_ffff_ffff_7c01);
        assert_eq!(PlainAccess::decode(0x0095_3587, &x).unwrap().extend(7), 7);
        // vle32.v, vse32.v, amoswap.w, lr.w, flq, nop.
        for other in [0x0205_6087, 0x0205_60a7, 0x08b5_25af, 0x1005_25af, 0x0005_4587, 0x13] {
            assert_eq!(PlainAccess::decode(other, &x), None, "{other:#x}");
        }
    }

    // Encodings as above.
    #[test]
    fn loads_begin_where_the_fault_was() {
        let mut x = [0; 32];
        (x[2], x[10]) = (0x2000, 0x1000);
        for (raw, at) in [
            (0x7ff5_3583, 0x17ff), // ld a1, 2047(a0)
            (0x8005_3583, 0x0800), // ld a1, -2048(a0)
            (0x5d6c, 0x107c),      // c.lw a1, 124(a0)
            (0x414c, 0x1004),      // c.lw a1, 4(a0)
            (0x7d6c, 0x10f8),      // c.ld a1, 248(a0)
            (0x612c, 0x1040),      // c.ld a1, 64(a0)
            (0x816c, 0x1003),      // c.lbu a1, 3(a0)
            (0x852c, 0x1002),      // c.lhu a1, 2(a0)
            (0x856c, 0x1002),      // c.lh a1, 2(a0)
            (0x55fe, 0x20fc),      // c.lwsp a1, 252(sp)
            (0x4586, 0x2040),      // c.lwsp a1, 64(sp)
            (0x75fe, 0x21f8),      // c.ldsp a1, 504(sp)
            (0x6586, 0x2040),      // c.ldsp a1, 64(sp)
        ] {
            let decoded = MemInsn::decode(raw, &x, at);
            assert!(matches!(decoded, Some(MemInsn { op: MemOp::Load { rd: 11, .. }, .. })), "{raw:#x}: {decoded:?}");
            assert_eq!(MemInsn::decode(raw, &x, at + 4), None, "{raw:#x}: its second half");
        }
    }

    #[test]
    fn a_transformed_access_tells_where_it_begins_but_at_the_start_of_a_page() {
        let lw = load(11, 4, true, 4);
        assert_eq!(MemInsn::from_tinst(0x0000_2583, 0x1004), lw);
        assert_eq!(MemInsn::from_tinst(0x0000_2583, 0x1000), None);
        assert_eq!(MemInsn::from_tinst(0x0001_2583, 0x1004), None, "2 bytes on");
        assert_eq!(MemInsn::from_tinst(0x0000_0583, 0x1000), load(11, 1, true, 4), "a byte lies in one page");
    }

    #[test]
    fn a_transformed_store_tells_where_it_goes_but_at_the_start_of_a_page() {
        let sd = WordStore::of(0x00b5_3023);
        assert_eq!(WordStore::from_tinst(0x00b0_3023, 0x1008), sd);
        assert_eq!(WordStore::from_tinst(0x00b0_3021, 0x1008), sd.map(|sd| WordStore { length: 2, ..sd }));
        assert_eq!(WordStore::from_tinst(0x00b0_3023, 0x1000), None);
        assert_eq!(WordStore::from_tinst(0x00b2_3023, 0x1008), None, "4 bytes on");
        assert_eq!(WordStore::from_tinst(0, 0x1008), None);
    }

    #[test]
    fn loads_extend() {
        let lb = MemInsn::of(0x0005_0583).unwrap().op;
        let lbu = MemInsn::of(0x0005_4583).unwrap().op;
        assert_eq!(lb.extend(0x80), 0xffff_ffff_ffff_ff80);
        assert_eq!(lbu.extend(0xffff_ff80), 0x80);
    }
}
