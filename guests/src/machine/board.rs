//! The machine, as its device tree tells.
#![expect(unsafe_code, reason = "the device tree is found by the address in a1")]

use crate::{hart, image_end};
use core::ptr;
use core::slice;
use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property, ToCellInt};
use spin::Once;

/// The facts that every guest needs.
#[derive(Debug)]
pub struct Board {
    /// The hart that entered first.
    pub boot_hart: u64,
    /// The address of the device tree.
    pub tree_at: u64,
    /// Its size.
    pub tree_bytes: u64,
    /// First byte of RAM.
    pub ram_start: u64,
    /// Bytes of RAM.
    pub ram_bytes: u64,
    /// The harts' ids, ascending; the first `hart_count` count.
    pub hart_ids: [u64; hart::MAX],
    /// Number of harts.
    pub hart_count: usize,
    /// Ticks of `time` in a second.
    pub timebase: u64,
    /// The ISA string of the first hart.
    pub isa: &'static str,
    /// `/chosen/bootargs`.
    pub bootargs: &'static str,
}

static BOARD: Once<Board> = Once::new();

/// The machine.
#[must_use]
pub fn board() -> &'static Board {
    BOARD.get().expect("read at the start")
}

/// The bytes of the device tree at `at`, if that is one.
fn tree_bytes(at: u64) -> Option<&'static [u8]> {
    const MAGIC: u32 = 0xd00d_feed;
    let header = ptr::with_exposed_provenance::<u32>(at as usize);
    if at == 0 || !header.is_aligned() {
        return None;
    }
    // SAFETY: a1 is the device tree's address (SBI's boot protocol); nothing of ours lies there, and it is never
    // written.
    unsafe {
        if u32::from_be(*header) != MAGIC {
            return None;
        }
        Some(slice::from_raw_parts(header.cast(), u32::from_be(*header.add(1)) as usize))
    }
}

/// The device tree.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn tree() -> Fdt<'static> {
    let bytes = tree_bytes(board().tree_at).expect("a device tree at a1");
    Fdt::new(bytes).expect("a well-formed device tree")
}

/// Reads the device tree once, before anything else.
pub(crate) fn read(boot_hart: u64, tree_at: u64) {
    let bytes = tree_bytes(tree_at).expect("a device tree at a1");
    let tree = Fdt::new(bytes).expect("a well-formed device tree");
    let memory = tree.memory().expect("a memory node");
    let ram = memory.reg().expect("memory has reg").and_then(|mut all| all.next()).expect("one range of RAM");
    let cpus = tree.cpus().expect("a cpus node");
    let (mut hart_ids, mut hart_count) = ([0; hart::MAX], 0);
    for id in cpus.cpus().filter_map(|cpu| cpu.ids().ok()?.next()).take(hart::MAX) {
        hart_ids[hart_count] = id.to_int().expect("a hart id");
        hart_count += 1;
    }
    hart_ids[..hart_count].sort_unstable();
    let timebase = cpus.property("timebase-frequency").and_then(|p| p.value_as::<u32>().ok());
    let first = cpus.cpus().next().expect("a cpu");
    let isa = first.property("riscv,isa").and_then(|p| p.value_as::<&str>().ok());
    let bootargs = tree.find_node("/chosen").and_then(|n| n.property("bootargs")?.value_as::<&str>().ok());
    BOARD.call_once(|| Board {
        boot_hart,
        tree_at,
        tree_bytes: bytes.len() as u64,
        ram_start: ram.address().expect("an address"),
        ram_bytes: ram.size().expect("a size"),
        hart_ids,
        hart_count,
        timebase: u64::from(timebase.expect("timebase-frequency")),
        isa: isa.expect("riscv,isa"),
        bootargs: bootargs.unwrap_or(""),
    });
}

impl Board {
    /// The first of the boot arguments, if it is a number.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.bootargs.split_whitespace().next()?.parse().ok()
    }

    /// Every hart's id.
    #[must_use]
    pub fn harts(&self) -> &[u64] {
        &self.hart_ids[..self.hart_count]
    }

    /// Every hart's id but the caller's.
    pub fn other_harts(&self) -> impl Iterator<Item = u64> + Clone {
        let own = hart::id();
        self.harts().iter().copied().filter(move |id| *id != own)
    }

    /// The end of RAM.
    #[must_use]
    pub fn ram_end(&self) -> u64 {
        self.ram_start + self.ram_bytes
    }

    /// Returns whether the harts have an extension: one letter, or the name of a multi-letter one.
    #[must_use]
    pub fn has(&self, extension: &str) -> bool {
        let mut parts = self.isa.split('_');
        let single = parts.next().unwrap_or("").get(4..).unwrap_or("");
        if extension.len() == 1 { single.contains(extension) } else { parts.any(|part| part == extension) }
    }

    /// Ticks of `time` in so many milliseconds.
    #[must_use]
    pub fn ticks(&self, milliseconds: u64) -> u64 {
        self.timebase * milliseconds / 1000
    }

    /// The free RAM, as ascending ranges (start, end) of whole pages: all of it except the image, the device tree, and
    /// what the tree reserves (a bare machine's firmware).
    pub fn free_ram(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        const MOST: usize = 8;
        let mut taken = [(u64::MAX, u64::MAX); MOST];
        taken[0] = (0x8020_0000, image_end());
        taken[1] = (self.tree_at, self.tree_at + self.tree_bytes);
        let mut count = 2;
        if let Some(nodes) = tree().reserved_memory() {
            for range in nodes.filter_map(|node| node.reg().ok().flatten()).flatten().take(MOST - 2) {
                let start: u64 = range.address().expect("an address");
                taken[count] = (start, start + range.size::<u64>().expect("a size"));
                count += 1;
            }
        }
        taken.sort_unstable();
        let (end, mut at) = (self.ram_end(), self.ram_start);
        let gaps = taken.map(|(from, to)| {
            let gap = (at, (from & !0xfff).min(end));
            at = at.max(to.saturating_add(0xfff) & !0xfff);
            gap
        });
        gaps.into_iter().filter(|(from, to)| from < to)
    }

    /// The largest piece of free RAM.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn largest_free(&self) -> (u64, u64) {
        self.free_ram().max_by_key(|(from, to)| to - from).expect("free RAM")
    }
}
