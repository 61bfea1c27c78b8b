//! Gnomon's own map in the payload seat: an identity map, so that physical addresses work as they
//! do in M mode, but with W^X: its code is never writable, and nothing else is ever executable.

use crate::machine::description::Span;
use alloc::vec::Vec;
use mmu::table;
use rv::pte::{Leaf, PteFlags};
use rv::{Addr, Caps, Entry, Format, Hpa, Level, PAGE_BYTES, Pfn, PhysMem, Pte};

/// Makes a G-stage of `format` that maps the RAM in `spans` onto itself, for everything, and nothing where poison leads
/// ([`mmu::table::poison_leaf`]). Its leaves are the entries of its root, so walks are short; other addresses in an
/// entry with RAM are mapped, too. So it keeps nothing from a guest except that hole: its users have tables of Gnomon's
/// in front. `root` are as many frames as a root has, in a row and aligned.
///
/// Returns whether it could be made: it cannot if there is RAM behind what it can map, or behind the hole.
pub fn map_onto_itself<'a>(
    format: &Format,
    root: Pfn<Hpa>,
    spans: impl IntoIterator<Item = &'a Span>,
    mem: &mut impl PhysMem,
) -> bool {
    let level = format.root_level();
    let hole = table::poison_leaf(false).pfn::<Hpa>().base().raw();
    let flags = PteFlags::R | PteFlags::W | PteFlags::X | PteFlags::U | PteFlags::A | PteFlags::D;
    mem.zero_frames(root, format.root_pages());
    for span in spans {
        let mut at = span.start / level.bytes() * level.bytes();
        while at < span.end() {
            let end = at + level.bytes();
            if end > hole || end > 1 << format.input_bits() {
                return false;
            }
            let leaf = Leaf { pfn: Addr::<Hpa>::new(at).pfn(), flags, napot: false };
            let slot = root.at(8 * format.index(leaf.pfn.base(), level) as u64);
            table::write_unlinked(slot, Entry::Leaf(leaf).encode(), mem);
            at = end;
        }
    }
    true
}

/// The accesses that a range allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Gnomon's code.
    Code,
    /// Gnomon's constants, the bundle where its images stay.
    ReadOnly,
    /// RAM and device registers, the bundle where its images may go.
    ReadWrite,
}

impl Kind {
    fn flags(self) -> PteFlags {
        let common = PteFlags::A | PteFlags::G;
        match self {
            Kind::Code => common | PteFlags::R | PteFlags::X,
            Kind::ReadOnly => common | PteFlags::R,
            Kind::ReadWrite => common | PteFlags::R | PteFlags::W | PteFlags::D,
        }
    }
}

/// Builds the table.
pub struct Builder<'a, M> {
    format: &'static Format,
    root: Pfn<Hpa>,
    mem: &'a mut M,
    /// Frames for tables, all that may be used.
    spare: Vec<Pfn<Hpa>>,
}

/// The reason why a range cannot be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// The range lies beyond the format's (positive) addresses.
    TooHigh(Addr<Hpa>),
    /// There are too few frames for tables.
    OutOfFrames,
    /// Something else is mapped there.
    Taken(Addr<Hpa>),
}

impl<'a, M: PhysMem> Builder<'a, M> {
    /// Makes an empty table. `spare` are frames for the root and the tables below.
    ///
    /// # Errors
    /// If there is not even one.
    pub fn new(format: &'static Format, mut spare: Vec<Pfn<Hpa>>, mem: &'a mut M) -> Result<Self, MapError> {
        let root = spare.pop().ok_or(MapError::OutOfFrames)?;
        mem.zero_frames(root, 1);
        Ok(Self { format, root, mem, spare })
    }

    /// Returns the root's frame.
    #[must_use]
    pub fn root(&self) -> Pfn<Hpa> {
        self.root
    }

    /// Maps `[start, end)`, widened to whole pages, onto itself, with the largest leaves that fit.
    ///
    /// # Errors
    /// [`MapError`]; a part may have been mapped.
    pub fn map(&mut self, start: u64, end: u64, kind: Kind) -> Result<(), MapError> {
        let mut at = start / PAGE_BYTES * PAGE_BYTES;
        let end = end.next_multiple_of(PAGE_BYTES);
        if end >> (self.format.input_bits() - 1) != 0 {
            return Err(MapError::TooHigh(Addr::new(end)));
        }
        while at < end {
            let fits = |level: &Level| at.is_multiple_of(level.bytes()) && at + level.bytes() <= end;
            let level = [Level::GIGA, Level::MEGA].into_iter().find(fits).unwrap_or(Level::PAGE);
            self.leaf(Addr::new(at), level, kind)?;
            at += level.bytes();
        }
        Ok(())
    }

    fn leaf(&mut self, addr: Addr<Hpa>, at: Level, kind: Kind) -> Result<(), MapError> {
        let mut table = self.root;
        for level in self.format.levels_down() {
            let slot = table.at(8 * self.format.index(addr, level) as u64);
            let entry = Pte(self.mem.read_u64(slot)).decode::<Hpa>(level, Caps::default());
            if level == at {
                if entry != Entry::Invalid {
                    return Err(MapError::Taken(addr));
                }
                let leaf = Leaf { pfn: addr.pfn(), flags: kind.flags(), napot: false };
                table::write_unlinked(slot, Entry::Leaf(leaf).encode(), self.mem);
                return Ok(());
            }
            table = match entry {
                Entry::Table(next) => next,
                Entry::Invalid => {
                    let next = self.spare.pop().ok_or(MapError::OutOfFrames)?;
                    self.mem.zero_frames(next, 1);
                    table::write_unlinked(slot, Entry::<Hpa>::Table(next).encode(), self.mem);
                    next
                }
                Entry::Leaf(_) | Entry::Reserved(_) => return Err(MapError::Taken(addr)),
            };
        }
        Ok(())
    }
}
