//! Plain instructions beside the tables of the manual: each form as the manual draws it, from bit 31 or 15 down, with its meaning.

use rv::insn::MemOp;
use rv::plain::{Effect, Plain};

/// The operands of an instruction: fields by name, and the registers.
struct Operands<'a> {
    fields: Vec<(&'a str, u64)>,
    immediate: i64,
    pc: u64,
    x: &'a [u64; 32],
}

impl Operands<'_> {
    fn get(&self, name: &str) -> Option<u64> {
        self.fields.iter().find(|field| field.0 == name).map(|field| field.1)
    }
    /// The number of a register: a field with a prime has three bits, and names x8 to x15.
    fn register(&self, names: &[&str]) -> usize {
        let found = names.iter().find_map(|name| Some((name, self.get(name)?))).expect("a register");
        found.1 as usize + if found.0.ends_with('\'') { 8 } else { 0 }
    }
    fn rd(&self) -> usize {
        self.register(&["rd", "rd'", "rd/rs1", "rd/rs1'"])
    }
    fn rs1(&self) -> usize {
        self.register(&["rs1", "rs1'", "rd/rs1", "rd/rs1'"])
    }
    fn rs2(&self) -> usize {
        self.register(&["rs2", "rs2'"])
    }
    fn a(&self) -> u64 {
        self.x[self.rs1()]
    }
    fn b(&self) -> u64 {
        self.x[self.rs2()]
    }
    fn imm(&self) -> u64 {
        self.immediate as u64
    }
    fn set(&self, value: u64) -> Option<Effect> {
        Some(Effect::Value { rd: self.rd() as u8, value })
    }
    fn set_word(&self, value: u64) -> Option<Effect> {
        self.set(value as i32 as u64)
    }
    fn jump(&self, rd: usize, to: u64) -> Option<Effect> {
        Some(Effect::Jump { rd: rd as u8, to })
    }
    fn branch(&self, is_taken: bool) -> Option<Effect> {
        if is_taken { self.jump(0, self.pc.wrapping_add(self.imm())) } else { Some(Effect::Value { rd: 0, value: 0 }) }
    }
    fn load(&self, base: usize, width: u8, signed: bool) -> Option<Effect> {
        let op = MemOp::Load { rd: self.rd() as u8, width, signed };
        Some(Effect::Access { op, at: self.x[base].wrapping_add(self.imm()) })
    }
    fn store(&self, base: usize, width: u8) -> Option<Effect> {
        let op = MemOp::Store { rs: self.rs2() as u8, width };
        Some(Effect::Access { op, at: self.x[base].wrapping_add(self.imm()) })
    }
}

type Form = (&'static str, fn(&Operands<'_>) -> Option<Effect>);

/// Forms of the unprivileged specification. `imm` has a sign, `uimm` has none.
const FORMS: &[Form] = &[
    ("imm[31:12] rd 0110111", |o| o.set(o.imm())),
    ("imm[31:12] rd 0010111", |o| o.set(o.pc.wrapping_add(o.imm()))),
    ("imm[20|10:1|11|19:12] rd 1101111", |o| o.jump(o.rd(), o.pc.wrapping_add(o.imm()))),
    ("imm[11:0] rs1 000 rd 1100111", |o| o.jump(o.rd(), o.a().wrapping_add(o.imm()) & !1)),
    ("imm[12|10:5] rs2 rs1 000 imm[4:1|11] 1100011", |o| o.branch(o.a() == o.b())),
    ("imm[12|10:5] rs2 rs1 001 imm[4:1|11] 1100011", |o| o.branch(o.a() != o.b())),
    ("imm[12|10:5] rs2 rs1 100 imm[4:1|11] 1100011", |o| o.branch((o.a() as i64) < o.b() as i64)),
    ("imm[12|10:5] rs2 rs1 101 imm[4:1|11] 1100011", |o| o.branch(o.a() as i64 >= o.b() as i64)),
    ("imm[12|10:5] rs2 rs1 110 imm[4:1|11] 1100011", |o| o.branch(o.a() < o.b())),
    ("imm[12|10:5] rs2 rs1 111 imm[4:1|11] 1100011", |o| o.branch(o.a() >= o.b())),
    ("imm[11:0] rs1 000 rd 0000011", |o| o.load(o.rs1(), 1, true)),
    ("imm[11:0] rs1 001 rd 0000011", |o| o.load(o.rs1(), 2, true)),
    ("imm[11:0] rs1 010 rd 0000011", |o| o.load(o.rs1(), 4, true)),
    ("imm[11:0] rs1 011 rd 0000011", |o| o.load(o.rs1(), 8, true)),
    ("imm[11:0] rs1 100 rd 0000011", |o| o.load(o.rs1(), 1, false)),
    ("imm[11:0] rs1 101 rd 0000011", |o| o.load(o.rs1(), 2, false)),
    ("imm[11:0] rs1 110 rd 0000011", |o| o.load(o.rs1(), 4, false)),
    ("imm[11:5] rs2 rs1 000 imm[4:0] 0100011", |o| o.store(o.rs1(), 1)),
    ("imm[11:5] rs2 rs1 001 imm[4:0] 0100011", |o| o.store(o.rs1(), 2)),
    ("imm[11:5] rs2 rs1 010 imm[4:0] 0100011", |o| o.store(o.rs1(), 4)),
    ("imm[11:5] rs2 rs1 011 imm[4:0] 0100011", |o| o.store(o.rs1(), 8)),
    ("imm[11:0] rs1 000 rd 0010011", |o| o.set(o.a().wrapping_add(o.imm()))),
    ("imm[11:0] rs1 010 rd 0010011", |o| o.set(((o.a() as i64) < o.imm() as i64).into())),
    ("imm[11:0] rs1 011 rd 0010011", |o| o.set((o.a() < o.imm()).into())),
    ("imm[11:0] rs1 100 rd 0010011", |o| o.set(o.a() ^ o.imm())),
    ("imm[11:0] rs1 110 rd 0010011", |o| o.set(o.a() | o.imm())),
    ("imm[11:0] rs1 111 rd 0010011", |o| o.set(o.a() & o.imm())),
    ("000000 uimm[5:0] rs1 001 rd 0010011", |o| o.set(o.a() << o.imm())),
    ("000000 uimm[5:0] rs1 101 rd 0010011", |o| o.set(o.a() >> o.imm())),
    ("010000 uimm[5:0] rs1 101 rd 0010011", |o| o.set((o.a() as i64 >> o.imm()) as u64)),
    ("imm[11:0] rs1 000 rd 0011011", |o| o.set_word(o.a().wrapping_add(o.imm()))),
    ("0000000 uimm[4:0] rs1 001 rd 0011011", |o| o.set_word(o.a() << o.imm())),
    ("0000000 uimm[4:0] rs1 101 rd 0011011", |o| o.set_word((o.a() & 0xffff_ffff) >> o.imm())),
    ("0100000 uimm[4:0] rs1 101 rd 0011011", |o| o.set((i64::from(o.a() as i32) >> o.imm()) as u64)),
    ("0000000 rs2 rs1 000 rd 0110011", |o| o.set(o.a().wrapping_add(o.b()))),
    ("0100000 rs2 rs1 000 rd 0110011", |o| o.set(o.a().wrapping_sub(o.b()))),
    ("0000000 rs2 rs1 001 rd 0110011", |o| o.set(o.a() << (o.b() % 64))),
    ("0000000 rs2 rs1 010 rd 0110011", |o| o.set(((o.a() as i64) < o.b() as i64).into())),
    ("0000000 rs2 rs1 011 rd 0110011", |o| o.set((o.a() < o.b()).into())),
    ("0000000 rs2 rs1 100 rd 0110011", |o| o.set(o.a() ^ o.b())),
    ("0000000 rs2 rs1 101 rd 0110011", |o| o.set(o.a() >> (o.b() % 64))),
    ("0100000 rs2 rs1 101 rd 0110011", |o| o.set((o.a() as i64 >> (o.b() % 64)) as u64)),
    ("0000000 rs2 rs1 110 rd 0110011", |o| o.set(o.a() | o.b())),
    ("0000000 rs2 rs1 111 rd 0110011", |o| o.set(o.a() & o.b())),
    ("0000000 rs2 rs1 000 rd 0111011", |o| o.set_word(o.a().wrapping_add(o.b()))),
    ("0100000 rs2 rs1 000 rd 0111011", |o| o.set_word(o.a().wrapping_sub(o.b()))),
    ("0000000 rs2 rs1 001 rd 0111011", |o| o.set_word(o.a() << (o.b() % 32))),
    ("0000000 rs2 rs1 101 rd 0111011", |o| o.set_word((o.a() & 0xffff_ffff) >> (o.b() % 32))),
    ("0100000 rs2 rs1 101 rd 0111011", |o| o.set((i64::from(o.a() as i32) >> (o.b() % 32)) as u64)),
    ("0000001 rs2 rs1 000 rd 0110011", |o| o.set((wide(o.a()) * wide(o.b())) as u64)),
    ("0000001 rs2 rs1 001 rd 0110011", |o| o.set(((signed(o.a()) * signed(o.b())) >> 64) as u64)),
    ("0000001 rs2 rs1 010 rd 0110011", |o| o.set(((signed(o.a()) * wide(o.b()) as i128) >> 64) as u64)),
    ("0000001 rs2 rs1 011 rd 0110011", |o| o.set(((wide(o.a()) * wide(o.b())) >> 64) as u64)),
    ("0000001 rs2 rs1 100 rd 0110011", |o| o.set(divide(signed(o.a()), signed(o.b())).0 as u64)),
    ("0000001 rs2 rs1 101 rd 0110011", |o| o.set(divide(wide(o.a()) as i128, wide(o.b()) as i128).0 as u64)),
    ("0000001 rs2 rs1 110 rd 0110011", |o| o.set(divide(signed(o.a()), signed(o.b())).1 as u64)),
    ("0000001 rs2 rs1 111 rd 0110011", |o| o.set(divide(wide(o.a()) as i128, wide(o.b()) as i128).1 as u64)),
    ("0000001 rs2 rs1 000 rd 0111011", |o| o.set_word(o.a().wrapping_mul(o.b()))),
    ("0000001 rs2 rs1 100 rd 0111011", |o| o.set_word(divide(low(o.a()), low(o.b())).0 as u64)),
    ("0000001 rs2 rs1 101 rd 0111011", |o| o.set_word(divide(low_wide(o.a()), low_wide(o.b())).0 as u64)),
    ("0000001 rs2 rs1 110 rd 0111011", |o| o.set_word(divide(low(o.a()), low(o.b())).1 as u64)),
    ("0000001 rs2 rs1 111 rd 0111011", |o| o.set_word(divide(low_wide(o.a()), low_wide(o.b())).1 as u64)),
    ("any[16:0] 000 any[21:17] 0001111", |_| Some(Effect::Fence)),
    // C, quadrant 0.
    ("000 uimm[5:4|9:6|2|3] rd' 00", |o| (o.imm() != 0).then(|| o.set(o.x[2].wrapping_add(o.imm())))?),
    ("010 uimm[5:3] rs1' uimm[2|6] rd' 00", |o| o.load(o.rs1(), 4, true)),
    ("011 uimm[5:3] rs1' uimm[7:6] rd' 00", |o| o.load(o.rs1(), 8, true)),
    ("110 uimm[5:3] rs1' uimm[2|6] rs2' 00", |o| o.store(o.rs1(), 4)),
    ("111 uimm[5:3] rs1' uimm[7:6] rs2' 00", |o| o.store(o.rs1(), 8)),
    // Quadrant 1.
    ("000 imm[5] rd/rs1 imm[4:0] 01", |o| o.set(o.a().wrapping_add(o.imm()))),
    ("001 imm[5] rd/rs1 imm[4:0] 01", |o| (o.rd() != 0).then(|| o.set_word(o.a().wrapping_add(o.imm())))?),
    ("010 imm[5] rd imm[4:0] 01", |o| o.set(o.imm())),
    ("011 imm[9] 00010 imm[4|6|8:7|5] 01", |o| {
        (o.imm() != 0).then_some(Effect::Value { rd: 2, value: o.x[2].wrapping_add(o.imm()) })
    }),
    ("011 imm[17] rd imm[16:12] 01", |o| (o.imm() != 0).then(|| o.set(o.imm()))?),
    ("100 uimm[5] 00 rd/rs1' uimm[4:0] 01", |o| o.set(o.a() >> o.imm())),
    ("100 uimm[5] 01 rd/rs1' uimm[4:0] 01", |o| o.set((o.a() as i64 >> o.imm()) as u64)),
    ("100 imm[5] 10 rd/rs1' imm[4:0] 01", |o| o.set(o.a() & o.imm())),
    ("100 0 11 rd/rs1' 00 rs2' 01", |o| o.set(o.a().wrapping_sub(o.b()))),
    ("100 0 11 rd/rs1' 01 rs2' 01", |o| o.set(o.a() ^ o.b())),
    ("100 0 11 rd/rs1' 10 rs2' 01", |o| o.set(o.a() | o.b())),
    ("100 0 11 rd/rs1' 11 rs2' 01", |o| o.set(o.a() & o.b())),
    ("100 1 11 rd/rs1' 00 rs2' 01", |o| o.set_word(o.a().wrapping_sub(o.b()))),
    ("100 1 11 rd/rs1' 01 rs2' 01", |o| o.set_word(o.a().wrapping_add(o.b()))),
    ("101 imm[11|4|9:8|10|6|7|3:1|5] 01", |o| o.jump(0, o.pc.wrapping_add(o.imm()))),
    ("110 imm[8|4:3] rs1' imm[7:6|2:1|5] 01", |o| o.branch(o.a() == 0)),
    ("111 imm[8|4:3] rs1' imm[7:6|2:1|5] 01", |o| o.branch(o.a() != 0)),
    // Quadrant 2.
    ("000 uimm[5] rd/rs1 uimm[4:0] 10", |o| o.set(o.a() << o.imm())),
    ("010 uimm[5] rd uimm[4:2|7:6] 10", |o| (o.rd() != 0).then(|| o.load(2, 4, true))?),
    ("011 uimm[5] rd uimm[4:3|8:6] 10", |o| (o.rd() != 0).then(|| o.load(2, 8, true))?),
    ("100 0 rs1 00000 10", |o| (o.rs1() != 0).then(|| o.jump(0, o.a() & !1))?),
    ("100 0 rd rs2 10", |o| o.set(o.b())),
    ("100 1 rs1 00000 10", |o| (o.rs1() != 0).then(|| o.jump(1, o.a() & !1))?),
    ("100 1 rd/rs1 rs2 10", |o| o.set(o.a().wrapping_add(o.b()))),
    ("110 uimm[5:2|7:6] rs2 10", |o| o.store(2, 4)),
    ("111 uimm[5:3|8:6] rs2 10", |o| o.store(2, 8)),
];

fn wide(value: u64) -> u128 {
    value.into()
}
fn signed(value: u64) -> i128 {
    i128::from(value as i64)
}
fn low(value: u64) -> i128 {
    i128::from(value as i32)
}
fn low_wide(value: u64) -> i128 {
    i128::from(value as u32)
}

/// The quotient and the remainder; of a division by zero -1 and the dividend. 128 bits have room for the quotient that overflows.
fn divide(a: i128, b: i128) -> (i128, i128) {
    if b == 0 { (-1, a) } else { (a / b, a % b) }
}

/// Bits of a named field: how many there are.
fn width(name: &str) -> u32 {
    if name.ends_with('\'') { 3 } else { 5 }
}

/// Reads an instruction of `bits` bits by a form. `None` if it has other fixed bits.
fn read<'a>(form: &'a str, insn: u32, bits: u32, pc: u64, x: &'a [u64; 32]) -> Option<Operands<'a>> {
    let (mut left, mut fields, mut immediate, mut top, mut has_sign) = (bits, Vec::new(), 0_i64, 0, false);
    let take = |left: &mut u32, count: u32| {
        *left -= count;
        insn >> *left & ((1 << count) - 1)
    };
    for part in form.split(' ') {
        if let Some((kind, ranges)) = part.strip_suffix(']').and_then(|part| part.split_once('[')) {
            has_sign |= kind == "imm";
            for range in ranges.split('|') {
                let (high, low) = range.split_once(':').unwrap_or((range, range));
                let (high, low): (u32, u32) = (high.parse().unwrap(), low.parse().unwrap());
                immediate |= i64::from(take(&mut left, high - low + 1)) << low;
                top = top.max(high);
            }
        } else if part.bytes().all(|byte| byte == b'0' || byte == b'1') {
            if take(&mut left, part.len() as u32) != u32::from_str_radix(part, 2).unwrap() {
                return None;
            }
        } else {
            fields.push((part, u64::from(take(&mut left, width(part)))));
        }
    }
    assert_eq!(left, 0, "`{form}` has another length");
    if has_sign {
        immediate = immediate << (63 - top) >> (63 - top);
    }
    Some(Operands { fields, immediate, pc, x })
}

/// The effect by the first form that fits.
fn expected(insn: u32, pc: u64, x: &[u64; 32]) -> Option<Plain> {
    // SLTI and SLTIU to x0 are HINTs for custom use.
    if insn & 0x6fff == 0x2013 {
        return None;
    }
    let is_long = insn & 3 == 3;
    let (bits, length) = if is_long { (32, 4) } else { (16, 2) };
    let forms = FORMS.iter().filter(|form| {
        let ends: u32 = u32::from_str_radix(form.0.rsplit(' ').next().unwrap(), 2).unwrap();
        (ends & 3 == 3) == is_long
    });
    let effect = forms.filter_map(|form| Some((form, read(form.0, insn, bits, pc, x)?))).next();
    effect.and_then(|(form, operands)| form.1(&operands)).map(|effect| Plain { effect, length })
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    /// Values at which arithmetic has its edges, and others.
    fn value(&mut self) -> u64 {
        const EDGES: [u64; 8] = [0, 1, u64::MAX, 1 << 63, i64::MAX as u64, 1 << 31, 0xffff_ffff_8000_0000, 64];
        if self.next() & 1 == 0 { EDGES[(self.next() >> 20) as usize % 8] } else { self.next() }
    }
    fn registers(&mut self) -> [u64; 32] {
        let mut x = core::array::from_fn(|_| self.value());
        x[0] = 0;
        x
    }
}

#[test]
fn all_compressed_instructions_are_what_the_manual_says() {
    let mut random = Random(1);
    for insn in (0..0x1_0000).filter(|insn| insn & 3 != 3) {
        for _ in 0..2 {
            let (pc, x) = (random.next() & !1, random.registers());
            assert_eq!(Plain::of(insn, pc, &x), expected(insn, pc, &x), "{insn:#06x} at {pc:#x}, {x:x?}");
        }
    }
}

#[test]
fn instructions_of_32_bits_are_what_the_manual_says() {
    /// Opcodes, `funct7` values.
    const OPCODES: [u32; 14] = [0x03, 0x0f, 0x13, 0x17, 0x1b, 0x23, 0x33, 0x37, 0x3b, 0x63, 0x67, 0x6f, 0x73, 0x2f];
    const FUNCTS: [u32; 4] = [0, 1, 0x20, 0x21];
    let (mut random, mut known) = (Random(2), 0);
    for _ in 0..100_000 {
        let mut insn = random.next() as u32 & !0x7f | OPCODES[(random.next() >> 30) as usize % OPCODES.len()];
        if random.next() & 1 == 0 {
            insn = insn & 0x01ff_ffff | FUNCTS[(random.next() >> 30) as usize % 4] << 25;
        }
        let (pc, x) = (random.next() & !1, random.registers());
        let found = Plain::of(insn, pc, &x);
        assert_eq!(found, expected(insn, pc, &x), "{insn:#010x} at {pc:#x}, {x:x?}");
        known += u32::from(found.is_some());
    }
    assert!(known > 40_000, "{known} were plain ones");
}

#[test]
fn upper_bits_of_a_compressed_instruction_do_not_count() {
    let x = core::array::from_fn(|n| n as u64);
    for insn in [0x0001_u32, 0x4501, 0x8082, 0xe02e] {
        assert_eq!(Plain::of(insn | 0xabcd_0000, 0x1000, &x), Plain::of(insn, 0x1000, &x));
    }
}
