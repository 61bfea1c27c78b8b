//! Functions that are small enough to be tried with every value that matters: in place of a proof.

use lane::context::FenceLog;
use oracle::Machine;
use rv::insn::{MemInsn, MemOp, WordStore, byte_store, byte_store_from_tinst};
use rv::{Addr, Gva, Pfn, PhysMem};

const STORE: u32 = 0x23;
const AMO: u32 = 0x2f;

/// Registers that all hold something else.
fn registers() -> [u64; 32] {
    std::array::from_fn(|n| if n == 0 { 0 } else { 0x1_0000_1000 * n as u64 })
}

/// The address of a store's access.
fn place(insn: u32, x: &[u64; 32]) -> u64 {
    let immediate = (insn as i32 >> 25) << 5 | (insn >> 7 & 31) as i32;
    x[(insn >> 15 & 31) as usize].wrapping_add(immediate as i64 as u64)
}

/// The result of an operation of `width` bytes on the value in memory, as the specification has it.
fn performed(insn: u32, old: u64, operand: u64, width: u32) -> Option<u64> {
    let signed = |value: u64| if width == 4 { i64::from(value as i32) } else { value as i64 };
    let unsigned = |value: u64| if width == 4 { u64::from(value as u32) } else { value };
    let (a, b) = (old, operand);
    if insn & 0x7f == STORE {
        return Some(b);
    }
    Some(match insn >> 27 {
        0b00000 => a.wrapping_add(b),
        0b00001 => b,
        0b00100 => a ^ b,
        0b01000 => a | b,
        0b01100 => a & b,
        0b10000 => {
            if signed(a) < signed(b) {
                a
            } else {
                b
            }
        }
        0b10100 => {
            if signed(a) > signed(b) {
                a
            } else {
                b
            }
        }
        0b11000 => {
            if unsigned(a) < unsigned(b) {
                a
            } else {
                b
            }
        }
        0b11100 => {
            if unsigned(a) > unsigned(b) {
                a
            } else {
                b
            }
        }
        _ => return None,
    })
}

/// Bytes `at..at + width` of the eight of a word.
fn bytes(word: u64, at: usize, width: usize) -> u64 {
    let mut value = [0; 8];
    value[..width].copy_from_slice(&word.to_le_bytes()[at..at + width]);
    u64::from_le_bytes(value)
}

#[test]
fn every_store_and_amo_changes_its_bytes() {
    const VALUES: [u64; 9] =
        [0, 1, 0x7f, 0x80, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff_0000_0001, 0x8000_0000_0000_0000, u64::MAX];
    let x = registers();
    let stores = (0..8).flat_map(|f3| (0..32).map(move |rs| STORE | f3 << 12 | 10 << 15 | rs << 20));
    let amos = (0..8).flat_map(|f3| {
        (0..128).flat_map(move |f7| {
            [(0, 5), (11, 0), (31, 31)].map(|(rd, rs)| AMO | rd << 7 | f3 << 12 | 10 << 15 | rs << 20 | f7 << 25)
        })
    });
    let mut done = 0;
    for insn in stores.chain(amos) {
        let (f3, is_amo) = (insn >> 12 & 7, insn & 0x7f == AMO);
        let at = if is_amo { x[10] } else { place(insn, &x) };
        // Sub-word AMOs are Zabha's, which is like all others; AMOs of 128 bits, and loads by the name of stores, are not.
        let expected = performed(insn, 0, 0, 8).filter(|_| f3 < 4);
        let decoded = WordStore::decode(insn, &x, at);
        assert_eq!(decoded.is_some(), expected.is_some(), "{insn:#x}");
        assert_eq!(WordStore::decode(insn, &x, at + 8), None, "{insn:#x} goes elsewhere");
        let Some(store) = decoded else { continue };
        let width = 1_usize << f3;
        assert_eq!((usize::from(store.width), u32::from(store.rs), store.length), (width, insn >> 20 & 31, 4));
        assert_eq!(u32::from(store.rd), if is_amo { insn >> 7 & 31 } else { 0 });
        for offset in 0..8 {
            let is_aligned = offset % width == 0;
            assert_eq!(store.is_aligned(offset as u64), is_aligned);
            if !is_aligned {
                continue;
            }
            for (word, operand) in VALUES.iter().flat_map(|word| VALUES.map(|operand| (*word, operand))) {
                let old = bytes(word, offset, width);
                let extend = |value: u64| (value << (64 - 8 * width)) as i64 >> (64 - 8 * width);
                // Narrow values are compared as they are extended.
                let new = performed(insn, extend(old) as u64, extend(operand) as u64, 8).unwrap();
                let mut expected = word.to_le_bytes();
                expected[offset..offset + width].copy_from_slice(&new.to_le_bytes()[..width]);
                let found = store.apply(word, offset as u64, operand);
                assert_eq!(found.to_le_bytes(), expected, "{insn:#x} at {offset}: {word:#x}, {operand:#x}");
                assert_eq!(store.result(word, offset as u64) as i64, extend(old), "{insn:#x} at {offset}");
                done += 1;
            }
        }
    }
    assert!(done > 100_000, "{done}");
}

#[test]
fn every_store_of_a_byte_is_found_and_nothing_else() {
    let x = registers();
    for fields in 0..1 << 22 {
        // The immediate, rs1 and rs2.
        let insn =
            STORE | (fields & 31) << 7 | (fields >> 5 & 0x7f) << 25 | (fields >> 12 & 31) << 15 | (fields >> 17) << 20;
        let at = place(insn, &x);
        let expected = MemInsn { op: MemOp::Store { rs: (fields >> 17) as u8, width: 1 }, length: 4 };
        assert_eq!(MemInsn::decode(insn, &x, at), Some(expected));
        assert_eq!(byte_store(insn, &x, at), Some((fields >> 17) as u8), "{insn:#x}");
        assert_eq!(byte_store(insn, &x, at ^ 1), None, "{insn:#x}");
    }
    for (opcode, f3) in (0..128).flat_map(|opcode| (0..8).map(move |f3| (opcode, f3))) {
        let insn = opcode | f3 << 12 | 10 << 15 | 11 << 20;
        assert_eq!(byte_store(insn, &x, place(insn, &x)).is_some(), (opcode, f3) == (STORE, 0), "{insn:#x}");
    }
}

#[test]
fn every_transformed_store_of_a_byte_is_found_and_nothing_else() {
    // Each half of the register, the other as in one that it is, and what is above.
    let good = u64::from(STORE) | 11 << 20;
    let halves = (0..1 << 16).flat_map(|half| [half << 16 | good & 0xffff, good & !0xffff | half, half << 32 | good]);
    let mut found = 0;
    for tinst in halves {
        let by_all = MemInsn::from_tinst(tinst, 0x1008);
        let has_no_offset = tinst & !0x01f0_707f == 0;
        let expected = match by_all {
            Some(MemInsn { op: MemOp::Store { rs, width: 1 }, length }) if has_no_offset => Some((rs, length)),
            _ => None,
        };
        assert_eq!(byte_store_from_tinst(tinst), expected, "{tinst:#x}");
        found += usize::from(expected.is_some());
    }
    assert_eq!(found, 32 + 2 + 1);
}

#[test]
fn a_log_has_the_fences_since_any_head_that_it_holds() {
    const LENGTH: u64 = FenceLog::<Gva>::LENGTH;
    for vcpu in [0, 1, 4095, 8191] {
        let mut log = FenceLog::<Gva>::new(vcpu);
        let start = log.head();
        let mut tokens = vec![log.token()];
        for count in 0..3 * LENGTH {
            assert_eq!((log.head() - start, log.count()), (count, count));
            for back in 0..=count.min(LENGTH) {
                let since: Vec<_> = log.since(log.head() - back).map(Addr::raw).collect();
                assert_eq!(since, (count - back..count).map(|n| n << 12).collect::<Vec<_>>());
            }
            log.push(Addr::new(count << 12));
            assert!(
                !tokens.contains(&log.token()) && log.token() & 1 == 0,
                "a token is there once, and is no valid entry"
            );
            tokens.push(log.token());
        }
    }
}

/// Frames that differ in one word, and in all, for every word and every set of at most two: the words that differ, of those asked
/// for.
#[test]
fn words_that_differ() {
    let (one, other) = (Pfn::new(0x8_0000), Pfn::new(0x8_0001));
    let mut mem = Machine::with_ram(one, 2);
    mem.zero_frames(one, 2);
    let differing = |mem: &Machine, part: u64, among| mem.differing((one, other), part as usize, among);
    for word in 0..512 {
        let (part, bit) = (word / 64, 1 << (word % 64));
        mem.write_u64(other.at(8 * word), word + 1);
        let others = (0..8).filter(|other| *other != part);
        assert!(others.into_iter().all(|other| differing(&mem, other, u64::MAX) == 0), "word {word}");
        for second in (0..64).map(|n| 1 << n) {
            assert_eq!(differing(&mem, part, bit | second), bit, "word {word}, among {second:#x}");
            assert_eq!(differing(&mem, part, second), bit & second, "word {word}, of {second:#x}");
        }
        assert_eq!(differing(&mem, part, u64::MAX), bit, "word {word}, of all");
        mem.write_u64(other.at(8 * word), 0);
    }
    (0..512).for_each(|word| mem.write_u64(one.at(8 * word), u64::MAX));
    for among in [0, 1, u64::MAX, 1 << 63, 0x8000_0000_0000_0101, 0x00ff_0000_ff00_0000] {
        assert!((0..8).all(|part| differing(&mem, part, among) == among), "of {among:#x}");
    }
}
