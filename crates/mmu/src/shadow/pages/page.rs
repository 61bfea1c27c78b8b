//! Shadow pages, and the rules of their entries.
//!
//! A shadow page stands for one frame of a guest's tables; a root of four frames has four. It is three frames: the
//! *table* that hardware walks; the *mirror*, which keeps for each entry the guest's entry that it was made from; and
//! the *links*, by which the entry is a member of one doubly linked list. In an engine with a stage below there is a fourth, for the guest's *own*
//! entries, since mirrors are composed. In `steered` there is a fourth, the *header*.
//! It holds the place of the guest's table, for the lane; the page's number, which is found from the table's address;
//! and the lists that parked entries are in. Rules:
//!
//! - An entry whose bit is set in its page's bitmap is *live*: it has a mirror, and is a member of exactly one list.
//!   The entry in the table may still be poison, because a fence has passed over it (a level-0 entry; the lane writes
//!   there without the caller's lock). Entries above level 0 change under the caller's lock only: a live one is valid,
//!   and one that is not live is empty.
//! - A live leaf is in the list of the guest frame that it leads to, or, a 2 MiB one, of the 2 MiB. A live pointer is in
//!   the list of parents of the shadow page that it leads to.
//! - In `steered`, entries of level 0 of the shadow of a table have a mirror, live or not: one that is not live is empty
//!   where the mirror faults, and poison where it does not. Above level 0, what is not live is poison (`steer`).
//! - One of those that is not live may be *parked*: it was a leaf, and is still in the list of the frame that it led to, by what the
//!   header says of it, four bytes for each entry. A guest that has taken a page from an address often puts it there again.
//! - Pointers from one shadowed table to another carry [`MARK`]; others do not, and so the lane stays out of
//!   what is not a shadow of a guest's table.
//! - A leaf with [`COALESCED`] stands for the pointer that was there: it is in the list of parents of the page that this led to.

use crate::frames::Run;
use crate::shadow::entries::{COALESCED, Slot};
use crate::shadow::pages::{Calm, Compared, Marks, PARTS, Passed};
use rv::format::ENTRIES;
use rv::{Addr, Caps, Entry, Gpa, Hpa, Level, Pfn, PhysMem, Pte, PteFlags, Space};

/// The software bit of pointers between shadows of guest tables.
pub const MARK: PteFlags = PteFlags::RSW0;

/// The guest's entries are read without Svnapot and Svpbmt: the guest is not offered them.
pub const CAPS: Caps = Caps { svnapot: false, svpbmt: false };

/// Number of a shadow page: index into the arena. Reused, unlike a page's serial.
pub type Id = u32;

/// The number of a digest (`digest`).
pub type Number = u8;
/// The number that stands for no digest.
pub const NO_DIGEST: Number = 0;

/// The indices of the entries that `bits` has a bit for, of the 64 from number 64 * `part` on.
pub fn indices(part: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let next = (bits != 0).then(|| part * 64 + bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        next
    })
}

/// Returns an address that entry `index` translates. `gva`: an address that its page, of `level`, translates.
pub fn below<S: Space>(level: Level, gva: Addr<S>, index: usize) -> Addr<S> {
    Addr::new(gva.raw() & !((ENTRIES as u64 - 1) << level.shift()) | (index as u64) << level.shift())
}

/// An entry: its page and its index.
pub type At = (Id, usize);

/// The role of a shadow page: the thing that it is a shadow of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// The guest's table in the frame.
    Table,
    /// Of an engine with a stage below ([`super::super::lower`]): a part of a superpage of the guest's, or of its physical addresses while
    /// its paging is off, that the stage below does not map in one piece. The frame is of the address space between the two stages; the flags are
    /// the superpage's permissions, with the context above them.
    Piece(PteFlags),
    /// A part of a guest's superpage, from the frame on, with these permissions (R, W, X, U). Never global: a fence of any address in
    /// the superpage ends all of it, in all address spaces, and here only where it is known to be in pieces.
    Direct(PteFlags),
    /// A part of the identity map, from the frame on: the guest has paging off.
    Bare,
}

/// The key by which a shadow page is found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    pub gfn: Pfn<Gpa>,
    pub level: Level,
    pub role: Role,
}

impl Key {
    /// The guest frame that entry `index` maps from, by its place (roles `Direct` and `Bare`).
    pub fn frame_below(self, index: usize) -> Pfn<Gpa> {
        self.gfn.add(index as u64 * self.level.pages())
    }

    /// The key of what a pointer made from `pte` leads to.
    pub fn child(self, index: usize, pte: Pte) -> Option<Key> {
        let level = self.level.down()?;
        match self.role {
            Role::Table if pte.is_pointer() => Some(Key { gfn: pte.pfn(), level, role: Role::Table }),
            Role::Table => match pte.decode::<Gpa>(self.level, CAPS) {
                Entry::Leaf(leaf) => {
                    Some(Key { gfn: leaf.pfn, level, role: Role::Direct(permissions(leaf.flags) - PteFlags::G) })
                }
                _ => None,
            },
            role => Some(Key { gfn: self.frame_below(index), level, role }),
        }
    }

    /// The guest frame that a leaf at `index` leads to, which was made from `mirror`.
    pub fn frame_of(self, index: usize, mirror: Pte) -> Pfn<Gpa> {
        match self.role {
            Role::Table | Role::Piece(_) => mirror.pfn(),
            Role::Direct(_) | Role::Bare => self.frame_below(index),
        }
    }
}

/// The mirror of entries that no guest entry stands behind.
pub const NO_PTE: Pte = Pte(1);

/// An entry of a shadow page, or none; the form that lists are made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ref(pub u32);

impl Ref {
    pub const NONE: Ref = Ref(0);

    pub const fn new((id, index): At) -> Self {
        Ref(id * ENTRIES as u32 + index as u32 + 1)
    }

    pub const fn entry(self) -> Option<At> {
        match self.0.checked_sub(1) {
            Some(packed) => Some((packed / ENTRIES as u32, packed as usize % ENTRIES)),
            None => None,
        }
    }
}

/// Most shadow pages of a VM: a [`Ref`] has 32 bits.
pub const MOST_PAGES: usize = 1 << 22;

/// Frames of one shadow page.
pub const FRAMES_EACH: u64 = 3;

/// A shadow page's frames.
pub struct Body {
    pub table: Run,
    pub mirror: Run,
    pub links: Run,
    /// The header that the lane reads (`lane`), in the frame before the table, if the lane may bring entries in step.
    pub header: Option<Run>,
    /// The guest's entries as they are, of an engine with a stage below ([`Own`]). There may be no frame for it.
    pub own: Option<Run>,
}

impl Body {
    pub fn runs(self) -> impl Iterator<Item = Run> {
        [self.table, self.mirror, self.links].into_iter().chain(self.header).chain(self.own)
    }
}

/// The entries of a page that lead to restless pages ([`super::super::sync::quiet`]).
pub struct Stirred {
    bits: [u64; PARTS],
    /// The [`super::super::entries::unrest::Unrest::epoch`] of those bits: of another, they say nothing.
    pub epoch: u64,
}

/// The digest that a page is a part of.
pub struct Membership {
    /// Its number, if it holds.
    pub number: Number,
    /// The number of comparisons of the page since it had one.
    pub seen: u8,
}

/// A shadow page.
pub struct Page {
    pub key: Key,
    pub body: Body,
    /// Unlike its number, never used again.
    pub serial: u64,
    pub origin: Origin,
    pub marks: Marks,
    /// The entries that lead to restless pages.
    pub stirred: Stirred,
    pub parents: Ref,
    /// The next shadow of the same guest frame.
    pub next: Option<Id>,
    /// Of a root of several frames, the shadow of the next one. Their tables follow one another, and so do their serials.
    pub sibling: Option<Id>,
    /// vCPUs that have it as their root.
    pub users: u32,
    /// Used since the last search for victims.
    pub is_recent: bool,
    /// The guest may write the table without an exit (always, in `lazy`).
    pub is_unsync: bool,
    /// Writes in a row that no table would see.
    pub flood: u8,
    /// The time of its last synchronisation.
    pub compared: Compared,
    /// The record of its use: whether it is worth while to compare it at wide fences.
    pub use_: Use,
    /// The place that it translates, of a page of level 0 or 1.
    pub place: Place,
    pub digest: Membership,
    /// The calmness of its table.
    pub calm: Calm,
    /// Set if a leaf of 2 MiB stands for it in all entries that led to it (`coalesce`).
    pub is_coalesced: bool,
    /// The time since which its leaves are unchanged.
    pub stay: Stay,
}

/// The origin of a shadow page: the table that it is made from.
pub struct Origin {
    /// The frame of the guest's table; `None` if it must be found out anew.
    pub guest: Option<Pfn<Hpa>>,
    /// The stage below by which its entries were made, if the engine has one ([`super::super::lower`]).
    pub context: u32,
    /// The entries that are known to be in step as long as the guest's are what they were.
    pub own: Own,
}

/// Of an engine with a stage below, whose mirrors are composed: the entries for which [`Body::own`] keeps the guest's own. If that is what it was,
/// and the stage below is, too, a comparison has nothing to compose.
pub struct Own {
    known: [u64; PARTS],
    /// The changes of the stage below up to which all entries were compared ([`super::super::lower::Lower::changes`]).
    pub below: u64,
}

impl Own {
    const NONE: Self = Self { known: [0; PARTS], below: 0 };

    /// Of 64 entries, from number 64 * `part` on, those of which it is known: a bit for each.
    pub const fn known_in(&self, part: usize) -> u64 {
        self.known[part]
    }

    /// Notes that it is not known of an entry any more.
    pub const fn forget(&mut self, index: usize) {
        self.known[index / 64] &= !(1 << (index % 64));
    }
}

/// The time since which the leaves of a page of level 0 are unchanged, as far as they have been looked at (`gather`).
#[derive(Clone, Copy)]
pub enum Stay {
    /// The leaves may have changed since.
    Changed,
    /// At least since that time.
    Since(u64),
    /// Since so long ago that all that could be done about them has been done.
    Judged,
}

/// The place that a shadow page translates, by all entries that it is linked below, or was: it decides which fences
/// concern the page. The lane does not say which address it fenced; and a guest may have a table of level 1 at several
/// places.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Nowhere,
    /// Always in the same part of address spaces ([`super::passed::Passed`]), that of this address.
    At(u64),
    /// In several.
    Various,
}

impl Place {
    /// Notes that the page is linked for the translation of `gva`, too.
    pub fn add(&mut self, gva: u64, level: Level) {
        *self = match *self {
            Place::Nowhere => Place::At(gva),
            Place::At(known) if Passed::is_same_part(level, known, gva) => Place::At(known),
            Place::At(_) | Place::Various => Place::Various,
        };
    }
}

/// The record of the use of a page of level 0, in `steered`. A wide fence that does not find the page in use leaves it
/// out, and the next access brings it back. Hardware does not tell when a table was walked, so each page is left out
/// now and then, and the sooner the longer ago it came back.
#[derive(Clone, Copy)]
pub struct Use {
    /// Wide fences that it is kept for still.
    left: u8,
    /// Wide fences that it was kept for when it came last.
    kept: u8,
    /// The number of the wide fence that left it out last.
    out: u64,
}

impl Use {
    /// A page that comes is kept for so many wide fences at first, and for twice as many if it comes back soon, up to a limit.
    const FIRST: u8 = 2;
    const MOST: u8 = 64;
    /// Soon: within so many wide fences.
    const SOON: u64 = 4;

    const NEW: Self = Self { left: Self::FIRST, kept: Self::FIRST, out: 0 };

    /// Notes that the page is linked, after that many wide fences.
    pub fn comes(&mut self, fences: u64) {
        if self.left == 0 {
            let is_soon = fences - self.out <= Self::SOON;
            self.kept = if is_soon { (2 * self.kept).min(Self::MOST) } else { Self::FIRST };
        }
        self.left = self.kept;
    }

    /// Notes the wide fence of that number. Returns whether the page is kept.
    pub fn is_kept(&mut self, fences: u64) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.out = fences;
        }
        self.left != 0
    }
}

impl Page {
    pub fn new(key: Key, body: Body, serial: u64, guest: Option<Pfn<Hpa>>) -> Self {
        Self {
            key,
            body,
            serial,
            origin: Origin { guest, context: 0, own: Own::NONE },
            marks: Marks::new(),
            stirred: Stirred { bits: [0; PARTS], epoch: 0 },
            parents: Ref::NONE,
            next: None,
            sibling: None,
            users: 0,
            is_recent: true,
            is_unsync: false,
            flood: 0,
            compared: Compared::NEVER,
            use_: Use::NEW,
            place: Place::Nowhere,
            digest: Membership { number: NO_DIGEST, seen: 0 },
            calm: Calm::NEW,
            is_coalesced: false,
            stay: Stay::Changed,
        }
    }

    /// The hardware table.
    pub const fn table(&self) -> Pfn<Hpa> {
        self.body.table.first()
    }

    /// The place of an entry.
    #[inline(always)]
    pub const fn slot(&self, index: usize) -> Slot {
        Slot::new(self.table().base(), index, self.key.level)
    }

    pub const fn mirror_at(&self, index: usize) -> Addr<Hpa> {
        self.body.mirror.first().at(8 * index as u64)
    }

    pub const fn links_at(&self, index: usize) -> Addr<Hpa> {
        self.body.links.first().at(8 * index as u64)
    }

    /// Returns the frame in which the lists of parked entries are noted.
    #[inline(always)]
    pub fn notes(&self) -> Option<Pfn<Hpa>> {
        self.body.header.as_ref().map(Run::first)
    }

    /// The frame in whose list a parked entry is.
    #[inline(always)]
    pub fn parked_at(&self, index: usize, mem: &impl PhysMem) -> Pfn<Gpa> {
        noted_frame(self.notes().expect("parked entries are noted there"), index as u64, mem)
    }

    /// The guest's entry that a live entry was made from.
    #[inline(always)]
    pub fn mirror(&self, index: usize, mem: &impl PhysMem) -> Option<Pte> {
        self.marks.is_live(index).then(|| Pte(mem.read_own(self.mirror_at(index))))
    }

    /// The guest's entry that an entry of a steered table was made from, whether it is live or not.
    pub fn made_from(&self, index: usize, mem: &impl PhysMem) -> Pte {
        Pte(mem.read_own(self.mirror_at(index)))
    }

    /// Makes `pte` what an entry was made from.
    #[inline(always)]
    pub fn set_mirror(&mut self, index: usize, pte: Pte, mem: &mut impl PhysMem) {
        self.marks.write(index);
        mem.write_own(self.mirror_at(index), pte.0);
    }

    /// Notes the guest's own entry for one that is in step with it.
    pub fn note_own(&mut self, index: usize, entry: Pte, mem: &mut impl PhysMem) {
        if let Some(own) = &self.body.own {
            mem.write_own(own.first().at(8 * index as u64), entry.0);
            self.origin.own.known[index / 64] |= 1 << (index % 64);
        }
    }

    /// Finds out which of 64 mirrors, from number 64 * `part` on, are global leaves, and not reserved.
    pub fn settle(&mut self, part: usize, mem: &impl PhysMem) {
        self.marks.settle(part, self.body.mirror.first(), mem);
    }

    /// Notes that the entry leads to a restless page.
    pub fn stir(&mut self, index: usize) {
        self.stirred.bits[index / 64] |= 1 << (index % 64);
    }

    /// Notes that the entry leads to no restless page.
    pub fn calm_at(&mut self, index: usize) {
        self.stirred.bits[index / 64] &= !(1 << (index % 64));
    }

    /// Of 64 entries, from number 64 * `part` on, those that lead to restless pages: a bit for each.
    pub fn stirred_in(&self, part: usize) -> u64 {
        self.stirred.bits[part]
    }

    /// Returns whether an entry leads to a restless page.
    pub fn is_any_stirred(&self) -> bool {
        self.stirred.bits.iter().any(|part| *part != 0)
    }

    /// All entries that lead to tables may lead to restless ones.
    pub fn stir_all(&mut self, epoch: u64) {
        self.stirred.epoch = epoch;
        for part in 0..PARTS {
            self.stirred.bits[part] = self.marks.leading_in(part);
        }
    }

    #[cfg(feature = "sabotage")]
    pub fn is_stirred(&self, index: usize) -> bool {
        self.stirred.bits[index / 64] >> (index % 64) & 1 == 1
    }

    /// Returns whether the entry, live and as it stands in the table, is a pointer, or stands in place of one.
    pub fn is_pointer(&self, entry: Pte) -> bool {
        let flags = entry.flags();
        self.key.level > Level::PAGE && (!flags.intersects(PteFlags::R | PteFlags::X) || flags.contains(COALESCED))
    }

    /// Returns whether the page is one whose entries may be out of step with the guest's.
    pub fn may_lag(&self) -> bool {
        self.key.role == Role::Table && self.is_unsync
    }
}

/// Returns the place of the note of a parked entry's frame: a word of the header's, and the bit of it at which the four
/// bytes begin.
#[inline(always)]
const fn note_at(header: Pfn<Hpa>, index: u64) -> (Addr<Hpa>, u64) {
    (header.at(index / 2 * 8), index % 2 * 32)
}

/// Returns the frame that is noted for a parked entry.
#[inline(always)]
pub fn noted_frame(header: Pfn<Hpa>, index: u64, mem: &impl PhysMem) -> Pfn<Gpa> {
    let (at, shift) = note_at(header, index);
    Pfn::new(mem.read_own(at) >> shift & 0xffff_ffff)
}

/// Notes the frame that an entry made from `known` led to: the entry stays in that frame's list. Returns whether there
/// is room for the frame's number.
#[inline(always)]
pub fn note_frame(header: Pfn<Hpa>, index: u64, known: Pte, mem: &mut impl PhysMem) -> bool {
    let frame = known.pfn::<Gpa>().raw();
    if frame >> 32 != 0 {
        return false;
    }
    let (at, shift) = note_at(header, index);
    let others = mem.read_own(at) & !(0xffff_ffff << shift);
    mem.write_own(at, others | frame << shift);
    true
}

/// Returns the rights of a guest's leaf, and its G, as on hardware that never sets A or D: without D no W. For leaves
/// with A only.
pub fn permissions(flags: PteFlags) -> PteFlags {
    let all = PteFlags::R | PteFlags::W | PteFlags::X | PteFlags::U | PteFlags::G;
    let mut allowed = flags & all;
    allowed.set(PteFlags::W, flags.contains(PteFlags::W | PteFlags::D));
    allowed
}
