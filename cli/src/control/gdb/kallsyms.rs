//! Reads the symbol table that Linux keeps in its own memory, from the memory of a guest that may have written anything there.
//!
//! With `CONFIG_KALLSYMS`, a kernel has these tables in its read-only data, each aligned to 8 bytes (`scripts/kallsyms.c`):
//!
//! - `offsets`: 32 bits for each symbol, ascending: its address less `relative_base`;
//! - `relative_base`: 64 bits. A kernel that has moved itself (KASLR) has relocated it, so addresses are those of the running kernel;
//! - `num_syms`: 32 bits;
//! - `names`: for each symbol a length (one byte, or two if bit 7 of the first is set: Linux 6.1) and codes of one byte;
//! - `markers`: 32 bits for each 256th symbol: where its name is in `names`;
//! - `seqs_of_names`: 3 bytes for each symbol (Linux 6.2), not needed here;
//! - `token_table`: the text of each code, 256 strings with a NUL at the end. The first letter of a name is the symbol's type;
//! - `token_index`: 16 bits for each code: where its text is in `token_table`.
//!
//! Linux 6.4 and later have them in the order `num_syms`, `names`, `markers`, `token_table`, `token_index`, `offsets`, `relative_base`,
//! `seqs_of_names`; up to 6.3 they are in the order of the list. Nothing says where they are. `offsets` is found first: no other table
//! ascends for so long. All others follow from it, and each is checked against another one.

mod image;
pub mod modules;
#[cfg(test)]
mod tests;

pub use image::{Image, PAGE};

/// The most symbols of a kernel. Debian's has 150,000.
const MOST_SYMBOLS: u64 = 1 << 20;
/// The longest name, with its type: `KSYM_NAME_LEN`.
const LONGEST_NAME: usize = 512;
/// The most bytes of all names.
const MOST_TEXT: usize = 64 << 20;
/// The most bytes in `token_table`, since `token_index` has 16 bits.
const MOST_TOKENS: u64 = 1 << 16;
/// The bytes of `token_index`.
const INDEX: u64 = 2 * CODES as u64;
/// The number of codes in names.
const CODES: usize = 256;
/// The number of symbols for each marker.
const MARKED: u64 = 256;
/// The distances of the pages that are looked at for `offsets`: coarse first, then all.
const STRIDES: [u64; 2] = [16 * PAGE, PAGE];
/// The least number of different offsets in a page of `offsets`: unlike other ascending tables it has hardly an offset twice.
const LEAST_DISTINCT: usize = 256;

/// A symbol of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// The virtual address.
    pub address: u64,
    /// The type, as `nm` prints it: `T` and `t` are text, capital letters are global.
    pub kind: u8,
    /// The name: printable ASCII without spaces.
    pub name: String,
}

/// Returns the symbols of the kernel in that memory, in the order of their addresses. All of them are in the image.
#[must_use]
pub fn symbols(image: &mut Image) -> Option<Vec<Symbol>> {
    STRIDES.iter().find_map(|stride| {
        // Read-only data follows the text, and zeroed data is at the end: from the end it is nearer.
        let pages = (0..image.bytes() / stride).rev().map(|number| number * stride);
        let mut refused = 0..0;
        pages.into_iter().find_map(|page| {
            if refused.contains(&page) || !is_ascending(image, page) {
                return None;
            }
            let (start, end) = ascent(image, page);
            let found = new_order(image, start, end).or_else(|| old_order(image, end));
            refused = start..end;
            found
        })
    })
}

/// Returns whether all of a page may be a part of `offsets`.
fn is_ascending(image: &mut Image, page: u64) -> bool {
    let (limit, Some(bytes)) = (image.bytes(), image.read(page, PAGE)) else { return false };
    let mut values = words(&bytes).collect::<Vec<_>>();
    let is_sorted = values.is_sorted() && values.last().is_some_and(|last| u64::from(*last) <= limit);
    values.dedup();
    is_sorted && values.len() >= LEAST_DISTINCT
}

/// Extends an ascending page both ways, and returns the start and the end of the ascent.
fn ascent(image: &mut Image, page: u64) -> (u64, u64) {
    let limit = image.bytes();
    let (mut start, mut end) = (page, page + 4);
    let (mut least, mut most) = (image.u32(start).unwrap_or_default(), image.u32(page).unwrap_or_default());
    let longest = 4 * MOST_SYMBOLS;
    while start >= 4 && page - start < longest {
        match image.u32(start - 4) {
            Some(before) if before <= least => (start, least) = (start - 4, before),
            _ => break,
        }
    }
    while end - page < longest {
        match image.u32(end) {
            Some(next) if next >= most && u64::from(next) <= limit => (end, most) = (end + 4, next),
            _ => break,
        }
    }
    (start, end)
}

/// Reads the tables of Linux 6.4 and later: `token_index` is right before `offsets`.
fn new_order(image: &mut Image, start: u64, end: u64) -> Option<Vec<Symbol>> {
    let index_at = start.checked_sub(INDEX)?;
    let (tokens, tokens_at) = tokens_before(image, index_at)?;
    // The zeros that align `relative_base` are not a part of the ascent.
    let count = (end - start) / 4;
    let base_at = end.next_multiple_of(8);
    let markers_at = tokens_at.checked_sub((4 * count.div_ceil(MARKED)).next_multiple_of(8))?;
    let markers = markers(image, markers_at, count)?;
    // The names from the last marker on have between 2 and 128 + 255 * 128 bytes each; `num_syms` is 8 bytes before the first.
    let rest = (count - 1) % MARKED + 1;
    let last = u64::from(*markers.last()?);
    let nearest = (last + 2 * rest).next_multiple_of(8);
    let furthest = last + rest * (2 + LONGEST_NAME as u64);
    let names_at = (nearest..=furthest).step_by(8).find_map(|bytes| {
        let names_at = markers_at.checked_sub(bytes)?;
        let count_at = names_at.checked_sub(8)?;
        (image.u64(count_at)? == count).then_some(names_at)
    })?;
    let tables = Tables { count, offsets_at: start, base_at, names_at, markers, tokens };
    tables.decode(image, markers_at)
}

/// Reads the tables of Linux up to 6.3: `relative_base` and `num_syms` are right behind `offsets`.
fn old_order(image: &mut Image, end: u64) -> Option<Vec<Symbol>> {
    let base_at = end.next_multiple_of(8);
    let count = image.u64(base_at + 8)?;
    // Zeros before the first offset ascend as well, so `num_syms` says where it is.
    if !(1..=MOST_SYMBOLS).contains(&count) {
        return None;
    }
    let offsets_at = end.checked_sub(4 * count)?;
    let names_at = base_at + 16;
    let mut at = 0;
    for _ in 0..count {
        at += skip(image, names_at + at)?;
    }
    let markers_at = (names_at + at).next_multiple_of(8);
    let markers = markers(image, markers_at, count)?;
    let behind = (markers_at + 4 * count.div_ceil(MARKED)).next_multiple_of(8);
    // Linux 6.2 and 6.3 have `seqs_of_names` here.
    let tokens = [behind, (behind + 3 * count).next_multiple_of(8)];
    let tokens = tokens.into_iter().find_map(|at| tokens_at(image, at))?;
    Tables { count, offsets_at, base_at, names_at, markers, tokens }.decode(image, markers_at)
}

/// Returns the markers, which ascend from 0.
fn markers(image: &mut Image, at: u64, count: u64) -> Option<Vec<u32>> {
    let bytes = image.read(at, 4 * count.div_ceil(MARKED))?;
    let markers: Vec<u32> = words(&bytes).collect();
    let is_sound = markers.first() == Some(&0) && markers.windows(2).all(|pair| pair[0] < pair[1]);
    is_sound.then_some(markers)
}

/// Returns the texts of the codes, whose index is at `index_at`, and where the table of them begins.
fn tokens_before(image: &mut Image, index_at: u64) -> Option<([Vec<u8>; CODES], u64)> {
    let index = index(image, index_at)?;
    let last = u64::from(*index.last()?);
    // The last text has an unknown length.
    (last..last + LONGEST_NAME as u64).step_by(8).find_map(|end| {
        let at = index_at.checked_sub((end + 1).next_multiple_of(8))?;
        texts(image, at, index_at, &index).map(|texts| (texts, at))
    })
}

/// Returns the texts of the codes, whose table begins at `at`.
fn tokens_at(image: &mut Image, at: u64) -> Option<[Vec<u8>; CODES]> {
    let mut end = at;
    for _ in 0..CODES {
        while image.byte(end)? != 0 {
            end += 1;
            if end - at > MOST_TOKENS {
                return None;
            }
        }
        end += 1;
    }
    let index_at = end.next_multiple_of(8);
    let index = index(image, index_at)?;
    texts(image, at, index_at, &index)
}

/// Returns an index of tokens, which ascends from 0.
fn index(image: &mut Image, at: u64) -> Option<Vec<u16>> {
    let bytes = image.read(at, INDEX)?;
    let index: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    let is_sound = index.first() == Some(&0) && index.windows(2).all(|pair| pair[0] < pair[1]);
    is_sound.then_some(index)
}

/// Cuts a table into the texts of its codes, if these are where the index says and fill it up to zeros that align its end.
fn texts(image: &mut Image, at: u64, end: u64, index: &[u16]) -> Option<[Vec<u8>; CODES]> {
    let table = image.read(at, end.checked_sub(at).filter(|bytes| *bytes <= MOST_TOKENS)?)?;
    let (mut all, mut from) = (Vec::with_capacity(CODES), 0);
    for place in index {
        if usize::from(*place) != from {
            return None;
        }
        let text = table.get(from..)?;
        let text = &text[..text.iter().position(|byte| *byte == 0)?];
        all.push(text.to_vec());
        from += text.len() + 1;
    }
    let padding = table.get(from..)?;
    let is_sound = padding.len() < 8 && padding.iter().all(|byte| *byte == 0);
    all.try_into().ok().filter(|_| is_sound)
}

/// Returns the bytes of the name at `at`, its length's included.
fn skip(image: &mut Image, at: u64) -> Option<u64> {
    let first = u64::from(image.byte(at)?);
    let (head, length) = match first & 0x80 {
        0 => (1, first),
        _ => (2, first & 0x7f | u64::from(image.byte(at + 1)?) << 7),
    };
    (1..=LONGEST_NAME as u64).contains(&length).then_some(head + length)
}

/// Tables that were found.
struct Tables {
    count: u64,
    offsets_at: u64,
    base_at: u64,
    names_at: u64,
    markers: Vec<u32>,
    tokens: [Vec<u8>; CODES],
}

impl Tables {
    /// Returns all symbols in the image, if names and markers agree, and the names end at `end`.
    fn decode(&self, image: &mut Image, end: u64) -> Option<Vec<Symbol>> {
        let base = image.u64(self.base_at)?;
        let range = image.base()..=image.base().checked_add(image.bytes())?;
        if !range.contains(&base) {
            return None;
        }
        let names = image.read(self.names_at, end.checked_sub(self.names_at)?)?;
        let offsets = image.read(self.offsets_at, 4 * self.count)?;
        let (mut at, mut text) = (0, 0);
        let mut all = Vec::new();
        for (number, offset) in words(&offsets).enumerate() {
            if (number as u64).is_multiple_of(MARKED) && *self.markers.get(number / MARKED as usize)? as usize != at {
                return None;
            }
            let (codes, next) = codes(&names, at)?;
            at = next;
            let mut expanded = codes.iter().flat_map(|code| &self.tokens[usize::from(*code)]).copied();
            let kind = expanded.next().filter(u8::is_ascii_alphabetic)?;
            let name: Vec<u8> = expanded.take(LONGEST_NAME).collect();
            text += name.len();
            if text > MOST_TEXT {
                return None;
            }
            // gdb prints names as they are, so that none may have an escape sequence.
            let is_clean = !name.is_empty() && name.len() < LONGEST_NAME && name.iter().all(u8::is_ascii_graphic);
            let address = base.wrapping_add(offset.into());
            if is_clean && range.contains(&address) {
                all.push(Symbol { address, kind, name: String::from_utf8(name).ok()? });
            }
        }
        // Only the zeros are left that align the markers.
        let is_end = names.len() - at < 8 && names[at..].iter().all(|byte| *byte == 0);
        (is_end && !all.is_empty()).then_some(all)
    }
}

/// Returns the codes of the name at `at`, and where the next one is.
fn codes(names: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let first = usize::from(*names.get(at)?);
    let (from, length) = match first & 0x80 {
        0 => (at + 1, first),
        _ => (at + 2, first & 0x7f | usize::from(*names.get(at + 1)?) << 7),
    };
    let codes = names.get(from..from + length).filter(|codes| !codes.is_empty())?;
    Some((codes, from + length))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}
