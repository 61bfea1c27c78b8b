//! The symbols of the modules that a Linux has loaded, from the memory of a guest that may have written anything there.
//!
//! `modules` is the head of a list of `struct module` (`include/linux/module.h`). Its beginning is the same in Linux 6.1 to 6.12:
//! the state (4 bytes), the link at 8, the name at 24 (56 bytes). Behind these, at a place that depends on the kernel's
//! configuration, is a pointer to a `struct mod_kallsyms`: the address of ELF symbols, their number, the addresses of their
//! names and of their types, a letter each. Once the module has started, that is a part of the `struct module`, too. So
//! the pointer is found by what it leads to.

use super::{Image, LONGEST_NAME, MOST_SYMBOLS, MOST_TEXT, Symbol};

/// The offset of the link in a `struct module`.
const LINK: u64 = 8;
/// The offsets at which the pointer may be.
const POINTER: std::ops::Range<u64> = 80..4096;
/// The most modules.
const MOST_MODULES: usize = 1024;
/// Bytes of a symbol of ELF: name (4), info (1), other (1), section (2), value (8), size (8).
const ENTRY: u64 = 24;
/// The names of a module's symbols have less than so many bytes.
const MOST_NAMES: u64 = 4 << 20;

/// The places of a module's symbols.
struct Table {
    symbols: u64,
    count: u64,
    names: u64,
    kinds: u64,
}

/// Returns the number of modules in the list whose head is at the virtual address `head`, and their symbols in the order of
/// addresses; `None` if there is no list. Addresses of `memory` are virtual ones. A module whose symbols cannot be found
/// has none.
pub fn symbols(memory: &mut Image, head: u64) -> Option<(usize, Vec<Symbol>)> {
    let (mut link, mut count, mut text) = (memory.u64(head)?, 0, 0);
    let mut all = Vec::new();
    while link != head {
        count += 1;
        if count > MOST_MODULES {
            return None;
        }
        let module = link.checked_sub(LINK)?;
        if let Some(table) = POINTER.step_by(8).find_map(|offset| table(memory, module, offset)) {
            all.extend(read(memory, &table, &mut text).unwrap_or_default());
        }
        if all.len() as u64 > MOST_SYMBOLS || text > MOST_TEXT {
            return None;
        }
        link = memory.u64(link)?;
    }
    all.sort_by_key(|symbol| symbol.address);
    Some((count, all))
}

/// Returns the table that the pointer at that offset of a module leads to, if it is one.
fn table(memory: &mut Image, module: u64, offset: u64) -> Option<Table> {
    let at = memory.u64(module.checked_add(offset)?)?;
    if !at.is_multiple_of(8) || !(POINTER.start..POINTER.end).contains(&at.checked_sub(module)?) {
        return None;
    }
    let [symbols, count, names, kinds] = [0, 8, 16, 24].map(|offset| memory.u64(at.checked_add(offset)?));
    let table = Table { symbols: symbols?, count: count? & 0xffff_ffff, names: names?, kinds: kinds? };
    let first_name = memory.u32(table.symbols.checked_add(ENTRY)?)?;
    let is_one = table.symbols.is_multiple_of(8)
        && (2..=MOST_SYMBOLS).contains(&table.count)
        // The first symbol and the first name are empty.
        && memory.read(table.symbols, ENTRY)?.iter().all(|byte| *byte == 0)
        && memory.byte(table.names)? == 0
        && memory.byte(table.kinds.checked_add(1)?)?.is_ascii_graphic()
        && name(memory, &table, first_name.into()).is_some();
    is_one.then_some(table)
}

/// Returns the name at an offset of a module's names: printable ASCII without spaces.
fn name(memory: &mut Image, table: &Table, offset: u64) -> Option<String> {
    if offset >= MOST_NAMES {
        return None;
    }
    let mut name = String::new();
    let mut at = table.names.checked_add(offset)?;
    loop {
        match memory.byte(at)? {
            0 => return (!name.is_empty()).then_some(name),
            byte if byte.is_ascii_graphic() && name.len() < LONGEST_NAME => name.push(byte.into()),
            _ => return None,
        }
        at = at.checked_add(1)?;
    }
}

/// Returns the symbols of a module, and adds the bytes of their names to `text`.
fn read(memory: &mut Image, table: &Table, text: &mut usize) -> Option<Vec<Symbol>> {
    let mut all = Vec::new();
    for number in 1..table.count {
        let entry = memory.read(table.symbols.checked_add(number * ENTRY)?, ENTRY)?;
        let [section, value, offset] = [6..8, 8..16, 0..4].map(|range| {
            let mut bytes = [0; 8];
            bytes[..range.len()].copy_from_slice(&entry[range]);
            u64::from_le_bytes(bytes)
        });
        let kind = memory.byte(table.kinds.checked_add(number)?)?;
        // One that the module only uses, or an absolute one, has no place in it. Mapping symbols and labels are the tools'.
        let is_own = section != 0 && section < 0xff00 && kind.is_ascii_alphabetic();
        let Some(name) = name(memory, table, offset).filter(|name| is_own && !name.starts_with(['$', '.'])) else {
            continue;
        };
        *text += name.len();
        if *text > MOST_TEXT {
            return None;
        }
        all.push(Symbol { address: value, kind, name });
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::super::PAGE;
    use super::super::tests::generator;
    use super::*;

    const AT: u64 = 0xffff_ffff_0100_0000;

    /// Memory with the head of a list at its beginning and two modules, each a page: its symbols, their kinds and names
    /// follow in the same page.
    fn memory() -> Vec<u8> {
        let mut bytes = vec![0; 3 * PAGE as usize];
        let mut put = |at: u64, value: &[u8]| bytes[at as usize..][..value.len()].copy_from_slice(value);
        let word = |value: u64| value.to_le_bytes();
        for n in 1..=2 {
            let (module, next) = (n * PAGE, if n == 2 { 0 } else { (n + 1) * PAGE + LINK });
            put(if n == 1 { 0 } else { (n - 1) * PAGE + LINK }, &word(AT + module + LINK));
            put(module + LINK, &word(AT + next));
            put(module + 24, format!("module{n}").as_bytes());
            // A pointer that leads to no table comes first.
            put(module + 96, &word(AT + module));
            put(module + 200 * n, &word(AT + module + 1024));
            let [symbols, kinds, names] = [2048, 3000, 3100].map(|offset| module + offset);
            for (at, value) in [AT + symbols, 4, AT + names, AT + kinds].into_iter().enumerate() {
                put(module + 1024 + 8 * at as u64, &word(value));
            }
            put(kinds, b"?tUd");
            put(names, b"\0work\0used\0$x");
            let all = [(1, 2, 0x80), (6, 0, 0), (if n == 1 { 1 } else { 11 }, 4, 0x40)];
            for (number, (name, section, offset)) in (1..).zip(all) {
                let at = symbols + number * ENTRY;
                put(at, &[name, 0, 0, 0, 0, 0, section, 0]);
                put(at + 8, &word(AT + 0x10_0000 * n + offset));
            }
        }
        bytes
    }

    fn find(bytes: &[u8]) -> Option<(usize, Vec<Symbol>)> {
        let mut fetch = |at: u64| {
            let from = usize::try_from(at.checked_sub(AT)?).ok()?;
            bytes.get(from..from + PAGE as usize).map(<[u8]>::to_vec)
        };
        symbols(&mut Image::new(0, u64::MAX, &mut fetch), AT)
    }

    #[test]
    fn symbols_of_all_modules_are_found() {
        let (count, all) = find(&memory()).expect("a list");
        let symbol = |address, kind, name: &str| Symbol { address: AT + address, kind, name: name.into() };
        // One that is another module's, and a mapping symbol, are left out.
        let expected =
            [symbol(0x10_0040, b'd', "work"), symbol(0x10_0080, b't', "work"), symbol(0x20_0080, b't', "work")];
        assert_eq!((count, &all[..]), (2, &expected[..]));
    }

    #[test]
    fn whatever_a_guest_writes_there_is_no_fault() {
        let sound = memory();
        let mut random = generator();
        for _ in 0..500 {
            let mut bytes = sound.clone();
            let (place, bit) = (random(bytes.len() as u64 / 8) as usize * 8, random(64));
            let word = u64::from_le_bytes(bytes[place..place + 8].try_into().expect("8 bytes"));
            bytes[place..place + 8].copy_from_slice(&(word ^ 1 << bit).to_le_bytes());
            for symbol in find(&bytes).into_iter().flat_map(|(_, all)| all) {
                assert!(symbol.name.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
        // A list that does not end.
        let mut bytes = sound;
        bytes[PAGE as usize + LINK as usize..][..8].copy_from_slice(&(AT + PAGE + LINK).to_le_bytes());
        assert!(find(&bytes).is_none());
    }
}
