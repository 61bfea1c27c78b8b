//! The stage below the guest's tables.
//!
//! Most engines have none: the guest's tables lie in, and lead to, the VM's memory. An engine for the guests of a guest that is a hypervisor
//! has one, that hypervisor's G-stage table:
//!
//! ```text
//!             L2's tables, in L2's memory      L1's G-stage table        the VM's address space
//!    L2GVA ───────────────────────────► L2GPA ───────────────────► GPA ─────────────────────► HPA
//!          └────────── what the engine compares: composed ──────────┘
//! ```
//!
//! Such an engine never sees an entry of L2's as it is. It reads it *composed* with the stage below ([`Stage::compose`]): the frame is
//! the one where the stage below leads, and the rights are those that both give. So mirrors, lists and keys of shadow pages are all
//! of the VM's address space, as in any other engine: what the host takes is found by its frame, and a comparison finds what has
//! changed in either table. Three things are particular:
//!
//! - A superpage of L2's that the stage below does not map in one piece is composed piece by piece, in shadow pages of
//!   [`Role::Piece`]. So are all of L2's physical addresses, while its paging is off.
//! - A shadow page belongs to the stage by which it was made, its *context*. Another one has other shadows of the same table.
//! - A fence of L1's by a guest physical address has to find what was made by the stage's entry there. The stage notes which pages it
//!   has been used for ([`Used`]): for others, nothing is to be done. For those, all that the root leads to is compared.

use crate::gstage::AddressSpace;
use crate::shadow::pages::{CAPS, Key, MARK, NO_PTE, Role, permissions};
use crate::walk::{self, AdPolicy, ReadPte, Reason};
use near::Near;
use rv::{Addr, Entry, Format, Gpa, Hpa, L2Gpa, Leaf, Level, Pfn, PhysMem, Pte, PteFlags};
use used::Used;

mod near;
mod used;

/// The stage below the tables that an engine shadows, or none: `()`.
pub trait Lower: Sized + Send + Sync {
    /// Set if there is one.
    const COMPOSES: bool;

    /// Makes it, for a VM with that many pages of RAM. `None`: there is no room on the heap.
    fn new(ram_pages: u64) -> Option<Self>;

    /// The stage, if there is one.
    fn stage(&mut self) -> Option<&mut Stage>;

    /// Returns how the stage maps a page now, as far as that can be seen at once.
    fn peek(&self, page: Pfn<L2Gpa>, memory: (&AddressSpace, &impl PhysMem)) -> Option<Mapped>;

    /// Returns how often its table was walked since the last time.
    fn walked(&mut self) -> u32;

    /// Returns the number of times so far that it may have changed for entries that were made by it.
    fn changes(&self) -> u64;

    /// Notes that it may have changed.
    fn change(&mut self);
}

impl Lower for () {
    const COMPOSES: bool = false;

    fn new(_: u64) -> Option<Self> {
        Some(())
    }

    #[inline(always)]
    fn stage(&mut self) -> Option<&mut Stage> {
        None
    }

    fn peek(&self, _: Pfn<L2Gpa>, _: (&AddressSpace, &impl PhysMem)) -> Option<Mapped> {
        None
    }

    #[inline(always)]
    fn walked(&mut self) -> u32 {
        0
    }

    fn changes(&self) -> u64 {
        0
    }

    fn change(&mut self) {}
}

impl Lower for Stage {
    const COMPOSES: bool = true;

    fn new(ram_pages: u64) -> Option<Self> {
        let below = Below { table: None };
        Some(Self {
            below,
            vs_ad: AdPolicy::Svade,
            used: Used::new(ram_pages)?,
            near: Near::new()?,
            walked: 0,
            changes: 0,
        })
    }

    fn stage(&mut self) -> Option<&mut Stage> {
        Some(self)
    }

    fn peek(&self, page: Pfn<L2Gpa>, (space, mem): (&AddressSpace, &impl PhysMem)) -> Option<Mapped> {
        self.below.mapped(page, &mut Peek::new(space, mem)).ok()?
    }

    #[inline(always)]
    fn walked(&mut self) -> u32 {
        core::mem::take(&mut self.walked)
    }

    fn changes(&self) -> u64 {
        self.changes
    }

    fn change(&mut self) {
        self.changes += 1;
    }
}

/// The table of the stage below, in the VM's memory.
#[derive(Clone, Copy, Debug)]
pub struct Below {
    /// Its format and root. `None`: the addresses pass unchanged.
    pub table: Option<(&'static Format, Pfn<Gpa>)>,
}

/// The stage below that the present operation goes by.
#[derive(Debug)]
pub struct Stage {
    pub(super) below: Below,
    /// The setter of A and D in L2's tables. (That in the stage's own is the engine's [`crate::shadow::Config::ad`].)
    pub(super) vs_ad: AdPolicy,
    used: Used,
    near: Near,
    walked: u32,
    changes: u64,
}

/// A page as the stage below maps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// The frame where it is.
    pub gfn: Pfn<Gpa>,
    /// The rights of accesses of L2's there: R, W and X.
    pub rights: PteFlags,
    /// The level of the entry.
    pub level: Level,
}

impl Mapped {
    /// Returns what the entry of that page says, which is a leaf of `level`. `None` if it allows nothing: it is no user page, or A is not set.
    pub fn of(leaf: Leaf<Gpa>, level: Level, page: Pfn<L2Gpa>) -> Option<Self> {
        // norm:H_vm_gpapriv
        if !leaf.flags.contains(PteFlags::U | PteFlags::A) {
            return None;
        }
        let gfn = leaf.pfn.add(page.raw() & (level.pages() - 1));
        Some(Self { gfn, rights: permissions(leaf.flags) & RIGHTS, level })
    }
}

const RIGHTS: PteFlags = PteFlags::R.union(PteFlags::W).union(PteFlags::X);
/// The software bit of a superpage of L2's that is in pieces: the frame is of L2's physical address space.
const PIECES: PteFlags = MARK;
/// The bits of the flags of [`Role::Piece`] above which the context is.
const CONTEXT_SHIFT: u32 = 8;

/// Returns whether a composed entry is that of a superpage in pieces.
#[inline(always)]
pub fn is_in_pieces(composed: Pte) -> bool {
    composed.flags().contains(PIECES)
}

/// The key of the first shadow page of the pieces of a superpage.
pub fn first_piece(context: u32, level: Level, composed: Pte) -> Key {
    let flags = permissions(composed.flags()) - PteFlags::G;
    Key { gfn: composed.pfn(), level, role: piece(context, flags) }
}

/// The role of pieces in that context.
pub fn piece(context: u32, flags: PteFlags) -> Role {
    Role::Piece(PteFlags::from_bits_retain(u64::from(context) << CONTEXT_SHIFT | flags.bits()))
}

/// The frame by which the shadow of a root is known that the stage below does not map: none in memory.
pub fn nowhere(root: Pfn<L2Gpa>) -> Pfn<Gpa> {
    Pfn::new(1 << 50 | root.raw())
}

/// The VM's memory, read as far as it is mapped.
struct Peek<'a, M> {
    space: &'a AddressSpace,
    mem: &'a M,
    /// The place of the last entry that was read.
    last: Addr<Hpa>,
}

impl<'a, M> Peek<'a, M> {
    const fn new(space: &'a AddressSpace, mem: &'a M) -> Self {
        Self { space, mem, last: Addr::new(0) }
    }
}

impl<M: PhysMem> ReadPte<Gpa> for Peek<'_, M> {
    type Error = ();
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, ()> {
        self.last = self.space.translate(at, self.mem).ok_or(())?.hpa;
        Ok(Pte(self.mem.read_u64(self.last)))
    }
}

impl Below {
    /// Returns the number of the stage, by its root; a table outside of memory has that of no table, which has no shadows either.
    pub fn context(self) -> u32 {
        self.table.map_or(0, |(format, root)| {
            // Roots are of four frames.
            let number = (root.raw() >> 2) << 2 | u64::from(format.mode) & 3;
            u32::try_from(number + 1).unwrap_or(u32::MAX)
        })
    }

    /// Returns how the stage maps a page now: `Ok(None)` if it lets no access through, an error if that cannot be found out at once.
    pub fn mapped(self, page: Pfn<L2Gpa>, mem: &mut impl ReadPte<Gpa>) -> Result<Option<Mapped>, ()> {
        let Some((format, root)) = self.table else {
            return Ok(Some(Mapped { gfn: Pfn::new(page.raw()), rights: RIGHTS, level: Level::GIGA }));
        };
        Ok(match slot((format, root), page, mem)? {
            Some((level, Entry::Leaf(leaf))) => Mapped::of(leaf, level, page),
            _ => None,
        })
    }
}

/// Returns the entry that decides about a page, with its level: `Ok(None)` if no table maps such an address, an error if a table cannot be
/// read at once.
fn slot(
    (format, root): (&Format, Pfn<Gpa>),
    page: Pfn<L2Gpa>,
    mem: &mut impl ReadPte<Gpa>,
) -> Result<Option<(Level, Entry<Gpa>)>, ()> {
    match walk::descend(format, root, page.base(), CAPS, mem) {
        Ok(slot) => Ok(Some((slot.level, slot.entry))),
        Err(walk::Fault { reason: Reason::Memory(_), .. }) => Err(()),
        Err(_) => Ok(None),
    }
}

impl Stage {
    /// Begins an operation by that stage, in whose context A and D of L2's tables are set by `vs_ad`.
    pub(super) const fn begin(&mut self, below: Below, vs_ad: AdPolicy, keeps_near: bool) {
        (self.below, self.vs_ad) = (below, vs_ad);
        if !keeps_near {
            self.near.forget();
        }
    }

    /// Notes that something is about to be made by what the stage says of a page.
    pub(super) fn note(&mut self, page: Pfn<L2Gpa>, context: u32, frame: Pfn<Gpa>) {
        self.used.note((page, frame), Level::PAGE, context);
    }

    /// Returns the frame where all uses have found the page, if that is known and one.
    pub(super) fn frame_used(&self, page: Pfn<L2Gpa>, context: u32) -> Option<Pfn<Gpa>> {
        self.used.frame(page, context)
    }

    /// Returns whether something may have been made by the stage's entry for the page.
    pub(super) fn has_used(&self, page: Pfn<L2Gpa>, context: u32) -> bool {
        self.used.contains(page, context)
    }

    /// Returns how the stage maps a page, which something is about to be made by.
    fn use_page<M: PhysMem>(
        &mut self,
        page: Pfn<L2Gpa>,
        context: u32,
        memory: (&AddressSpace, &M),
    ) -> Result<Option<Mapped>, ()> {
        let Some(table) = self.below.table else { return self.below.mapped(page, &mut Peek::new(memory.0, memory.1)) };
        let tag = Used::tag(page, context);
        let known =
            self.near.entry(page, tag).map(|(at, level)| (level, Pte(memory.1.read_u64(at)).decode(level, CAPS)));
        let found = match known {
            // There was none before.
            None | Some((_, Entry::Table(_))) => self.walk(table, (page, tag), memory)?,
            known => known,
        };
        let Some((level, Entry::Leaf(leaf))) = found else { return Ok(None) };
        let mapped = Mapped::of(leaf, level, page);
        if let Some(mapped) = mapped {
            self.used.note((page, mapped.gfn), level, context);
        }
        Ok(mapped)
    }

    /// [`slot`], remembered.
    #[inline(never)]
    fn walk<M: PhysMem>(
        &mut self,
        table: (&Format, Pfn<Gpa>),
        (page, tag): (Pfn<L2Gpa>, u64),
        (space, mem): (&AddressSpace, &M),
    ) -> Result<Option<(Level, Entry<Gpa>)>, ()> {
        self.walked += 1;
        let mut peek = Peek::new(space, mem);
        let found = slot(table, page, &mut peek)?;
        if let Some((level, _)) = found {
            self.near.note((page, tag), peek.last, level);
        }
        Ok(found)
    }

    /// Composes an entry of L2's table of `level`. `None` if that cannot be found out at once.
    pub fn compose(
        &mut self,
        (context, level): (u32, Level),
        entry: Pte,
        memory: (&AddressSpace, &impl PhysMem),
    ) -> Option<Pte> {
        Some(match entry.decode::<L2Gpa>(level, CAPS) {
            Entry::Table(next) => match self.use_page(next, context, memory).ok()? {
                Some(table) if table.rights.contains(PteFlags::R) => Entry::Table(table.gfn).encode(),
                _ => Pte::INVALID,
            },
            Entry::Leaf(leaf) => {
                let mapped = self.use_page(leaf.pfn, context, memory);
                // What the walk needs of L1's table is there; for the rest of a superpage, another part of it may not be.
                let mapped = if level > Level::PAGE { mapped.unwrap_or(None) } else { mapped.ok()? };
                match mapped {
                    Some(mapped) if mapped.level >= level => met(leaf.flags, mapped),
                    None if level == Level::PAGE => Pte::INVALID,
                    _ => {
                        let flags = leaf.flags & (RIGHTS | PteFlags::U | PteFlags::A | PteFlags::D);
                        Pte((flags | PteFlags::V | PIECES).bits()).leading_to(leaf.pfn)
                    }
                }
            }
            Entry::Invalid | Entry::Reserved(_) => Pte::INVALID,
        })
    }

    /// Composes an entry of a shadow page of pieces. `None` if that cannot be found out at once.
    pub fn compose_piece(
        &mut self,
        (key, index): (Key, usize),
        flags: PteFlags,
        memory: (&AddressSpace, &impl PhysMem),
    ) -> Option<Pte> {
        let context = (flags.bits() >> CONTEXT_SHIFT) as u32;
        let page = Pfn::new(key.frame_below(index).raw());
        let mapped = self.use_page(page, context, memory);
        let mapped = if key.level > Level::PAGE { mapped.unwrap_or(None) } else { mapped.ok()? };
        Some(match mapped {
            Some(mapped) if mapped.level >= key.level => {
                // A is the superpage's, and D where W is.
                let flags = PteFlags::from_bits_truncate(flags.bits() & ((1 << CONTEXT_SHIFT) - 1));
                met(flags | PteFlags::A | PteFlags::D, mapped)
            }
            None if key.level == Level::PAGE => Pte::INVALID,
            _ => NO_PTE,
        })
    }
}

/// The leaf with L2's flags that leads where the stage below does, with the rights that both give.
fn met(flags: PteFlags, mapped: Mapped) -> Pte {
    let others = PteFlags::U | PteFlags::A | PteFlags::D;
    let mut flags = flags & (others | mapped.rights);
    if !flags.contains(PteFlags::R) {
        flags.remove(PteFlags::W);
    }
    if !flags.intersects(PteFlags::R | PteFlags::X) {
        return Pte::INVALID;
    }
    Pte((flags | PteFlags::V).bits()).leading_to(mapped.gfn)
}
