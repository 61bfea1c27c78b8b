//! Tables as each version of Linux has them, sound and not.

use super::{Image, PAGE, Symbol, symbols};

/// The address of the image in these tests: not that for which a kernel is linked.
const BASE: u64 = 0xffff_ffff_9260_0000;
const IMAGE: u64 = 2 << 20;

/// An order of the tables.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// Linux 6.1.
    Old,
    /// Linux 6.2 and 6.3.
    OldWithSequence,
    /// Linux 6.4 and later.
    New,
}

use Order::{New, Old, OldWithSequence};

/// Symbols whose names have every length of a code.
fn made(count: usize) -> Vec<Symbol> {
    let symbol = |number: usize| Symbol {
        address: BASE + 5 * number as u64 + u64::from(number != 0),
        kind: b"tTdDrR"[number % 6],
        name: format!("do_sys_{number}_{}", "long_".repeat(if number.is_multiple_of(97) { 90 } else { number % 4 })),
    };
    (0..count).map(symbol).collect()
}

/// Codes 0 to 31 are for pieces, and what is printable is for itself, as in a kernel's.
fn token(code: usize) -> Vec<u8> {
    match code {
        1 => b"tdo_sys_".to_vec(),
        2 => b"long_".to_vec(),
        0x1b | 0x20..0x7f => vec![code as u8],
        _ => format!("#{code}").into_bytes(),
    }
}

fn compress(symbol: &Symbol) -> Vec<u8> {
    let text = [&[symbol.kind], symbol.name.as_bytes()].concat();
    let (mut codes, mut rest) = (Vec::new(), text.as_slice());
    while let Some((first, others)) = rest.split_first() {
        let piece = [1, 2].into_iter().find(|code| rest.starts_with(&token(*code)));
        // Long names keep some of their pieces' letters, so that their lengths need two bytes.
        let piece = piece.filter(|_| symbol.name.len() < 300 || rest.len().is_multiple_of(10));
        codes.push(piece.map_or(*first, |code| code as u8));
        rest = piece.map_or(others, |code| &rest[token(code).len()..]);
    }
    let length = codes.len();
    let head = if length < 128 { vec![length as u8] } else { vec![length as u8 | 0x80, (length >> 7) as u8] };
    [head, codes].concat()
}

fn align(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

/// The bytes of a kernel with these symbols, whose tables begin at `at`.
fn kernel(all: &[Symbol], order: Order, at: usize) -> Vec<u8> {
    let table = |parts: Vec<Vec<u8>>| {
        let mut bytes = parts.concat();
        align(&mut bytes);
        bytes
    };
    let offsets = table(all.iter().map(|symbol| ((symbol.address - BASE) as u32).to_le_bytes().to_vec()).collect());
    let base = BASE.to_le_bytes().to_vec();
    let count = (all.len() as u64).to_le_bytes().to_vec();
    let (mut places, mut names) = (Vec::new(), Vec::new());
    for symbol in all {
        places.push(names.len() as u32);
        names.extend(compress(symbol));
    }
    align(&mut names);
    let markers = table(places.iter().step_by(256).map(|place| place.to_le_bytes().to_vec()).collect());
    let sequence = table(vec![vec![0x5a; 3 * all.len()]]);
    let texts: Vec<Vec<u8>> = (0..256).map(|code| [token(code), vec![0]].concat()).collect();
    let index = texts.iter().scan(0u16, |at, text| {
        let own = *at;
        *at += text.len() as u16;
        Some(own.to_le_bytes().to_vec())
    });
    let (index, tokens) = (table(index.collect()), table(texts.clone()));
    let tables = match order {
        Old => vec![offsets, base, count, names, markers, tokens, index],
        OldWithSequence => vec![offsets, base, count, names, markers, sequence, tokens, index],
        New => vec![count, names, markers, tokens, index, offsets, base, sequence],
    };
    let tables = tables.concat();
    let mut image: Vec<u8> = (0..IMAGE).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    image[at..at + tables.len()].copy_from_slice(&tables);
    image
}

fn find(bytes: &[u8]) -> Option<Vec<Symbol>> {
    let mut fetch = |at: u64| {
        let from = (at - BASE) as usize;
        bytes.get(from..from + PAGE as usize).map(<[u8]>::to_vec)
    };
    symbols(&mut Image::new(BASE, IMAGE, &mut fetch))
}

#[test]
fn tables_of_every_version_are_found_wherever_they_are() {
    for order in [Old, OldWithSequence, New] {
        for (count, at) in [(2816, 0x10_0008), (2817, 0x10_0f18), (3071, 0x10_0ff0), (20_001, 0x4_0000)] {
            let all = made(count);
            let found = find(&kernel(&all, order, at));
            assert!(found == Some(all), "{count} symbols at {at:#x}");
        }
    }
}

#[test]
fn names_that_a_terminal_would_obey_are_left_out() {
    let mut all = made(3000);
    all[7].name = "red\u{1b}[31m".into();
    all[8].name = "two words".into();
    let found = find(&kernel(&all, New, 0x10_0000)).expect("the others");
    all.drain(7..9);
    assert!(found == all);
}

#[test]
fn addresses_outside_are_left_out_and_a_base_outside_is_no_table() {
    let mut all = made(3000);
    let last = all.last_mut().expect("some");
    last.address = BASE + IMAGE + 4;
    // Too far for the ascent: the tables do not agree.
    assert!(find(&kernel(&all, New, 0x10_0000)).is_none());
    for base in [0, BASE - 1, BASE + IMAGE + 1, u64::MAX] {
        let mut image = kernel(&made(3000), New, 0x10_0000);
        let at = image.windows(8).position(|bytes| bytes == BASE.to_le_bytes()).expect("the base");
        image[at..at + 8].copy_from_slice(&base.to_le_bytes());
        assert!(find(&image).is_none(), "{base:#x}");
    }
}

/// A generator by Marsaglia of numbers below its argument: reproducible, and enough here.
pub(super) fn generator() -> impl FnMut(u64) -> u64 {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

/// One bit in each table, anywhere: the symbols are other ones, or there are none, and each is one that the rest of the command may have.
#[test]
fn whatever_a_guest_writes_there_is_no_fault() {
    let mut random = generator();
    for order in [Old, OldWithSequence, New] {
        let at = 0x10_0000;
        let sound = kernel(&made(2900), order, at as usize);
        for _ in 0..30 {
            let mut image = sound.clone();
            for _ in 0..=random(3) {
                let (place, bit) = (at + random(0x2_0000), random(8));
                match random(3) {
                    0 => image[place as usize] ^= 1 << bit,
                    1 => image[place as usize..][..8].fill(0xff * (bit as u8 % 2)),
                    _ => image[place as usize..][..4].copy_from_slice(&(random(1 << 33) as u32).to_le_bytes()),
                }
            }
            for symbol in find(&image).into_iter().flatten() {
                assert!((BASE..=BASE + IMAGE).contains(&symbol.address));
                assert!(symbol.name.len() < 512 && symbol.name.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}

/// Memory in which every page may be a table, so that each is tried: the search ends.
#[test]
fn a_guest_cannot_make_a_search_last() {
    let page: Vec<u8> = (0..1024_u32).flat_map(u32::to_le_bytes).collect();
    let ones = vec![1; PAGE as usize];
    for second in [&page, &ones] {
        let mut reads = 0_u64;
        let mut fetch = |at: u64| {
            reads += 1;
            Some(if (at / PAGE).is_multiple_of(2) { page.clone() } else { second.clone() })
        };
        assert!(symbols(&mut Image::new(BASE, 32 << 20, &mut fetch)).is_none());
        assert!(reads <= (32 << 20) / PAGE, "no page is read again");
    }
}
