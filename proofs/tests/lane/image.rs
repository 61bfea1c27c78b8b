//! The lane's machine code, as it stands in the built hypervisor, and the ways that lead to it.

use super::insn::{MRET, SRET};
use gnomon::host::parts;
use lane::{BriefExits, Context};
use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;

/// The context's address in the tests: the code knows it by its register only.
pub const CONTEXT: u64 = 0x8800_0000;
pub const X: u64 = CONTEXT + offset_of!(Context, x) as u64;
pub const LANE: u64 = CONTEXT + offset_of!(Context, lane) as u64;
/// The cause of the exits that may be brief.
pub const BRIEF: u64 = CONTEXT + (offset_of!(Context, brief) + BriefExits::CAUSE_AT) as u64;
/// The bits that identify a fence, without its registers, and their values.
pub const FENCE_MASK: u64 = 0xfe00_7fff;
pub const SFENCE_VMA: u64 = 0x1200_0073;
/// The bits that identify a write of `satp`, without its source, and their values.
pub const WRITE_MASK: u64 = 0xfff0_7fff;
pub const WRITES_SATP: u64 = 0x1800_1073;
/// The bits that identify a read of `satp`, without its destination, and their values.
pub const READ_MASK: u64 = 0xffff_f07f;
pub const READS_SATP: u64 = 0x1800_2073;
/// A value that is no instruction's, and no ASID.
pub const NEVER: u64 = 1 << 32;
/// V of an entry, and the mark of a pointer between shadows of tables.
pub const VALID: u64 = 1;
pub const MARK: u64 = 0x100;

/// A way out of a guest, and back.
#[derive(Clone, Copy)]
pub struct Way {
    pub tag: &'static str,
    pub vector: &'static str,
    pub full: &'static str,
    /// The cause of a fence that traps.
    pub fence: u64,
    pub scratch: u32,
    pub epc: u32,
    pub cause: u32,
    pub tval: u32,
    pub status: u32,
    /// The register of a guest's root.
    pub satp: u32,
    /// The bit of the status register that says that the guest was in supervisor mode.
    pub supervisor: u64,
    pub is_virtual: bool,
    pub xret: u32,
}

pub const VIRTUAL_TO_MACHINE: Way = Way {
    tag: "vs_m",
    vector: "gnomon_vs_to_m",
    full: "gnomon_full_vs_to_m",
    fence: 22,
    scratch: 0x340,
    epc: 0x341,
    cause: 0x342,
    tval: 0x343,
    status: 0x300,
    satp: 0x280,
    supervisor: 1 << 11,
    is_virtual: true,
    xret: MRET,
};
pub const VIRTUAL_TO_SUPERVISOR: Way = Way {
    tag: "vs_hs",
    vector: "gnomon_vs_to_hs",
    full: "gnomon_full_vs_to_hs",
    scratch: 0x140,
    epc: 0x141,
    cause: 0x142,
    tval: 0x143,
    status: 0x100,
    supervisor: 1 << 8,
    xret: SRET,
    ..VIRTUAL_TO_MACHINE
};
pub const SUPERVISOR_TO_MACHINE: Way = Way {
    tag: "s_m",
    vector: "gnomon_s_to_m",
    full: "gnomon_full_s_to_m",
    fence: 2,
    satp: 0x180,
    is_virtual: false,
    ..VIRTUAL_TO_MACHINE
};
pub const WAYS: [Way; 3] = [VIRTUAL_TO_MACHINE, VIRTUAL_TO_SUPERVISOR, SUPERVISOR_TO_MACHINE];

/// A block of the lane's code.
#[derive(Clone, Copy)]
pub struct Block {
    pub way: Way,
    /// Levels of the tables that it walks.
    pub levels: u64,
    /// 1 if it is for harts with Zba, else 0.
    pub zba: u64,
    /// True if it synchronises entries, and does not only invalidate them.
    pub syncs: bool,
}

impl Block {
    /// The blocks of a way: those that only invalidate first.
    pub fn of(way: Way) -> impl Iterator<Item = Self> {
        let formats = move |syncs| (3..=5).flat_map(move |levels| [0, 1].map(|zba| Self { way, levels, zba, syncs }));
        [false, true].into_iter().flat_map(formats)
    }

    /// One of its symbols.
    pub fn symbol(&self, name: &str) -> String {
        let Self { way, levels, zba, syncs } = self;
        format!("lane_{name}_{}_{}_{zba}{}", way.tag, 12 + 9 * levels, if *syncs { "_sync" } else { "" })
    }

    /// The symbol of its jump tables, which it begins with.
    pub fn table(&self) -> String {
        self.symbol("table")
    }
}

/// The hypervisor's code.
pub struct Image {
    pub text: Vec<u8>,
    pub start: u64,
    pub symbols: BTreeMap<String, u64>,
}

impl Image {
    pub fn read() -> Self {
        let path = parts::hypervisor().expect("the hypervisor can be built");
        let bytes = std::fs::read(path).expect("a file");
        let file = object::File::parse(&*bytes).expect("an ELF file");
        let text = file.section_by_name(".text").expect("code");
        let symbols = file.symbols().filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address())));
        Self { text: text.data().expect("code").to_vec(), start: text.address(), symbols: symbols.collect() }
    }

    /// All blocks that it has.
    pub fn blocks(&self) -> Vec<Block> {
        let blocks: Vec<Block> = WAYS.into_iter().flat_map(Block::of).collect();
        let known: BTreeSet<String> = blocks.iter().map(Block::table).collect();
        let theirs = self.symbols.keys().filter(|name| name.starts_with("lane_table_"));
        assert!(known.iter().eq(theirs), "blocks of the lane that the tests do not know");
        blocks
    }

    pub fn at(&self, symbol: &str) -> u64 {
        *self.symbols.get(symbol).unwrap_or_else(|| panic!("the hypervisor has no symbol {symbol}"))
    }

    pub fn half(&self, at: u64) -> Option<u16> {
        let at = usize::try_from(at.checked_sub(self.start)?).ok()?;
        Some(u16::from_le_bytes([*self.text.get(at)?, *self.text.get(at + 1)?]))
    }

    /// The instruction at `at`, and its bytes.
    pub fn insn(&self, at: u64) -> (u32, usize) {
        let half = |at| u32::from(self.half(at).expect("code"));
        if half(at) & 3 == 3 { (half(at + 2) << 16 | half(at), 4) } else { (half(at), 2) }
    }

    pub fn set_insn(&mut self, at: u64, (insn, bytes): (u32, usize)) {
        let from = (at - self.start) as usize;
        self.text[from..from + bytes].copy_from_slice(&insn.to_le_bytes()[..bytes]);
    }
}
