//! Shadow pages: what they are, and what a live entry is.
//!
//! A shadow page stands for one frame of a guest's tables; a root of four frames has four. It is three frames: the *table*
//! that hardware walks; the *mirror*, which keeps for each entry the guest's entry that it was made from; and the *links*,
//! by which the entry is a member of one doubly linked list. In `steered` there is a fourth, the *header*, where the lane finds the
//! guest's table, and whoever comes by the page's table its number; and which lists parked entries are in. Rules:
//!
//! - An entry whose bit is set in its page's bitmap is *live*: it has a mirror, and is a member of exactly one list.
//!   The entry in the table may be poison all the same, because a fence has passed over it (a level-0 entry; the lane
//!   writes there without the caller's lock). Entries above level 0 change under the caller's lock only: a live one
//!   is valid, and one that is not live is empty.
//! - A live leaf is in the list of the guest frame that it leads to, or, a 2 MiB one, of the 2 MiB. A live pointer is in
//!   the list of parents of the shadow page that it leads to.
//! - In `steered`, entries of level 0 of the shadow of a table have a mirror, live or not: one that is not live is empty
//!   where the mirror faults, and poison where it does not. Above level 0, what is not live is poison (`steer`).
//! - One of those that is not live may be *parked*: it was a leaf, and is still in the list of the frame that it led to, by what the
//!   header says of it, four bytes for each entry. A guest that has taken a page from an address often puts it there again.
//! - Pointers from one shadowed table to another carry [`MARK`]; others do not, and so the lane stays out of
//!   what is not a shadow of a guest's table.
//! - A leaf with [`COALESCED`] stands for the pointer that was there: it is in the list of parents of the page that this led to.

mod parked;

use super::candidates::Calm;
use super::passed::{Compared, Mappings, Passed};
use crate::frames::Run;
use rv::format::ENTRIES;
use rv::{Addr, Caps, Entry, Gpa, Hpa, Level, Pfn, PhysMem, Pte, PteFlags, Space};

/// The software bit of pointers between shadows of guest tables.
pub const MARK: PteFlags = PteFlags::RSW0;

/// The software bit of a leaf of 2 MiB that stands for a shadow page of level 0, and in place of the pointer to it (`coalesce`).
pub const COALESCED: PteFlags = PteFlags::RSW1;

/// The guest's entries are read without Svnapot and Svpbmt: the guest is not offered them.
pub(super) const CAPS: Caps = Caps { svnapot: false, svpbmt: false };

/// Number of a shadow page: index into the arena. Reused, unlike a page's serial.
pub(super) type Id = u32;

/// The number of a digest (`digest`).
pub(super) type Number = u8;
/// That of none.
pub(super) const NO_DIGEST: Number = 0;

/// Entries are looked at 64 at a time.
pub(super) const PARTS: usize = ENTRIES / 64;

/// The indices of the entries that `bits` has a bit for, of the 64 from number 64 * `part` on.
pub(super) fn indices(part: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let next = (bits != 0).then(|| part * 64 + bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        next
    })
}

/// A bit for each eight entries of 64 of which `bits` has any.
const fn eights_of(mut bits: u64) -> u64 {
    bits |= bits >> 4;
    bits |= bits >> 2;
    bits |= bits >> 1;
    // The lowest bit of each byte, brought together.
    (bits & 0x0101_0101_0101_0101).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// Where what an entry leads to translates: an address there, by one that its page, of `level`, translates.
pub(super) fn below<S: Space>(level: Level, gva: Addr<S>, index: usize) -> Addr<S> {
    Addr::new(gva.raw() & !((ENTRIES as u64 - 1) << level.shift()) | (index as u64) << level.shift())
}

/// An entry: its page and its index.
pub(super) type At = (Id, usize);

/// What a shadow page is a shadow of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Role {
    /// The guest's table in the frame.
    Table,
    /// A part of a guest's superpage, from the frame on, with these permissions (R, W, X, U). Never global: a fence of any address in
    /// the superpage ends all of it, in all address spaces, and here only where it is known to be in pieces.
    Direct(PteFlags),
    /// A part of the identity map, from the frame on: the guest has paging off.
    Bare,
}

/// What a shadow page is found by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
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
            Role::Table => mirror.pfn(),
            Role::Direct(_) | Role::Bare => self.frame_below(index),
        }
    }
}

/// The mirror of entries that no guest entry stands behind.
pub(super) const NO_PTE: Pte = Pte(1);

/// An entry of a shadow page, or none; the form that lists are made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ref(pub u32);

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
pub(super) const MOST_PAGES: usize = 1 << 22;

/// Frames of one shadow page.
pub(super) const FRAMES_EACH: u64 = 3;

/// A shadow page's frames.
pub(super) struct Body {
    pub table: Run,
    pub mirror: Run,
    pub links: Run,
    /// What the lane finds of it (`lane`), in the frame before its table, if it may bring entries in step.
    pub header: Option<Run>,
}

impl Body {
    pub fn runs(self) -> impl Iterator<Item = Run> {
        [self.table, self.mirror, self.links].into_iter().chain(self.header)
    }
}

/// A shadow page.
pub(super) struct Page {
    pub key: Key,
    pub body: Body,
    /// Unlike its number, never used again.
    pub serial: u64,
    /// Where the guest's table is; `None` if that must be found out anew.
    pub guest: Option<Pfn<Hpa>>,
    live: [u64; ENTRIES / 64],
    /// Entries that are in the list that the header notes although they are not live ([`Page::park`]).
    parked: [u64; ENTRIES / 64],
    /// A bit for each eight mirrors that has been written since `settled` was found.
    written: u64,
    /// A bit for each eight mirrors that are all global leaves. Those that neither has a bit for are all 0.
    settled: u64,
    /// A bit for each eight entries of which one has been a pointer to the shadow of a table: no other is.
    leading: u64,
    /// A bit for each entry that leads to a restless page ([`super::quiet`]).
    stirred: [u64; PARTS],
    /// The [`super::engine::Shadow::epoch`] of those bits: of another, they say nothing.
    pub epoch: u64,
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
    /// When it was synchronised last.
    pub compared: Compared,
    /// Whether it is worth while to compare it at wide fences.
    pub use_: Use,
    /// Where it translates, of a page of level 0 or 1.
    pub place: Place,
    /// The digest that it is a part of, if that holds.
    pub digest: Number,
    /// How often it has been compared since it had one.
    pub seen: u8,
    /// How calm its table is.
    pub calm: Calm,
    /// Whether a leaf of 2 MiB stands for it in all entries that led to it (`coalesce`).
    pub is_coalesced: bool,
    /// For how long its leaves have been as they are.
    pub stay: Stay,
}

/// For how long the leaves of a page of level 0 have been as they are, as far as has been looked at them (`gather`).
#[derive(Clone, Copy)]
pub(super) enum Stay {
    /// They may have changed since.
    Changed,
    /// At least since that time.
    Since(u64),
    /// For so long that what could be done about them has been done.
    Judged,
}

/// Where a shadow page translates, by all that it is linked below, or was: what fences there are about it. The lane does not say which
/// address it fenced; and a guest may have a table of level 1 at several places.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Nowhere,
    /// Always in the same part of address spaces ([`super::passed::Passed`]), that of this address.
    At(u64),
    /// In several.
    Various,
}

impl Place {
    /// It is linked for the translation of an address, too.
    pub fn add(&mut self, gva: u64, level: Level) {
        *self = match *self {
            Place::Nowhere => Place::At(gva),
            Place::At(known) if Passed::is_same_part(level, known, gva) => Place::At(known),
            Place::At(_) | Place::Various => Place::Various,
        };
    }
}

/// What is known of the use of a page of level 0, in `steered`: a wide fence that does not find one to be in use leaves it out, and
/// the next access brings it back. Hardware does not tell when a table was walked; so each is left out now and then, and the sooner
/// the longer ago it came back.
#[derive(Clone, Copy)]
pub(super) struct Use {
    /// Wide fences that it is kept for still.
    left: u8,
    /// Wide fences that it was kept for when it came last.
    kept: u8,
    /// When it was left out last, as wide fences are counted.
    out: u64,
}

impl Use {
    /// A page that comes is kept for so many wide fences at first, and for twice as many if it comes back soon, up to a limit.
    const FIRST: u8 = 2;
    const MOST: u8 = 64;
    /// Soon: within so many wide fences.
    const SOON: u64 = 4;

    const NEW: Self = Self { left: Self::FIRST, kept: Self::FIRST, out: 0 };

    /// It is linked, after that many wide fences.
    pub fn comes(&mut self, fences: u64) {
        if self.left == 0 {
            let is_soon = fences - self.out <= Self::SOON;
            self.kept = if is_soon { (2 * self.kept).min(Self::MOST) } else { Self::FIRST };
        }
        self.left = self.kept;
    }

    /// A wide fence happens, the one of that number. Says whether the page is kept.
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
            guest,
            live: [0; ENTRIES / 64],
            parked: [0; ENTRIES / 64],
            written: 0,
            settled: 0,
            leading: 0,
            stirred: [0; PARTS],
            epoch: 0,
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
            digest: NO_DIGEST,
            seen: 0,
            calm: Calm::NEW,
            is_coalesced: false,
            stay: Stay::Changed,
        }
    }

    /// The hardware table.
    pub const fn table(&self) -> Pfn<Hpa> {
        self.body.table.first()
    }

    pub const fn entry_at(&self, index: usize) -> Addr<Hpa> {
        self.table().at(8 * index as u64)
    }

    pub const fn mirror_at(&self, index: usize) -> Addr<Hpa> {
        self.body.mirror.first().at(8 * index as u64)
    }

    pub const fn links_at(&self, index: usize) -> Addr<Hpa> {
        self.body.links.first().at(8 * index as u64)
    }

    /// The guest's entry that a live entry was made from.
    #[inline(always)]
    pub fn mirror(&self, index: usize, mem: &impl PhysMem) -> Option<Pte> {
        self.is_live(index).then(|| Pte(mem.read_own(self.mirror_at(index))))
    }

    /// The guest's entry that an entry of a steered table was made from, whether it is live or not.
    pub fn made_from(&self, index: usize, mem: &impl PhysMem) -> Pte {
        Pte(mem.read_own(self.mirror_at(index)))
    }

    /// Makes `pte` what an entry was made from.
    #[inline(always)]
    pub fn set_mirror(&mut self, index: usize, pte: Pte, mem: &mut impl PhysMem) {
        self.written |= 1 << (index / 8);
        mem.write_own(self.mirror_at(index), pte.0);
    }

    /// The entry is live from now on, and its mirror is about to be written.
    #[inline(always)]
    pub fn enters(&mut self, index: usize) {
        debug_assert!(!self.is_listed(index));
        self.set_live(index, true);
        self.written |= 1 << (index / 8);
    }

    /// Of 64 entries, from number 64 * `part` on, those are live, those are parked, and the mirrors of those have been written: a bit for
    /// each.
    #[inline(always)]
    pub fn set_part(&mut self, part: usize, live: u64, parked: u64, written: u64) {
        (self.live[part], self.parked[part]) = (live, parked);
        self.written |= eights_of(written) << (8 * part);
    }

    /// Of 64 entries, from number 64 * `part` on, those are not live any more: a bit for each.
    pub const fn leave(&mut self, part: usize, those: u64) {
        self.live[part] &= !those;
    }

    /// A bit for each eight mirrors: those of others are 0.
    pub const fn written(&self) -> u64 {
        self.written | self.settled
    }

    /// A bit for each eight mirrors that a fence is about: not those that are global leaves, all eight, for one of an address space.
    pub const fn concerned(&self, mappings: Mappings) -> u64 {
        match mappings {
            Mappings::Private => !self.settled | self.written,
            Mappings::All | Mappings::Anew => u64::MAX,
        }
    }

    /// Finds out which of 64 mirrors, from number 64 * `part` on, are global leaves, and not reserved.
    pub fn settle(&mut self, part: usize, mem: &impl PhysMem) {
        // Svnapot, Svpbmt, and what has no meaning: the guest has none of them.
        const RESERVED: u32 = 54;
        const GLOBAL: u64 = PteFlags::V.union(PteFlags::R).union(PteFlags::G).union(PteFlags::A).bits();
        for group in 8 * part..8 * part + 8 {
            if self.written >> group & 1 == 0 {
                continue;
            }
            let mirrors = (8 * group..8 * group + 8).map(|index| self.made_from(index, mem).0);
            let (all, any) = mirrors.fold((GLOBAL, 0), |(all, any), mirror| (all & mirror, any | mirror));
            if all == GLOBAL && any >> RESERVED == 0 {
                self.settled |= 1 << group;
                self.written &= !(1 << group);
            } else {
                self.settled &= !(1 << group);
            }
        }
    }

    /// The entry becomes a pointer to the shadow of a table.
    pub fn leads_at(&mut self, index: usize) {
        self.leading |= 1 << (index / 8);
    }

    /// A bit for each live entry of the 64 from number 64 * `part` on that may be a pointer to the shadow of a table. Most tables
    /// of large pages have hundreds of leaves and no pointer.
    pub fn leading_in(&self, part: usize) -> u64 {
        let groups = self.leading >> (8 * part) & 0xff;
        // Each bit in a byte of its own, then at its lower end, then in all of it.
        let apart = groups.wrapping_mul(0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let low = (apart + 0x7f7f_7f7f_7f7f_7f7f) >> 7 & 0x0101_0101_0101_0101;
        self.live[part] & (low * 0xff)
    }

    /// The entry leads to a restless page.
    pub fn stir(&mut self, index: usize) {
        self.stirred[index / 64] |= 1 << (index % 64);
    }

    /// It leads to none.
    pub fn calm_at(&mut self, index: usize) {
        self.stirred[index / 64] &= !(1 << (index % 64));
    }

    /// Of 64 entries, from number 64 * `part` on, those that lead to restless pages: a bit for each.
    pub fn stirred_in(&self, part: usize) -> u64 {
        self.stirred[part]
    }

    /// Whether an entry leads to a restless page.
    pub fn is_any_stirred(&self) -> bool {
        self.stirred.iter().any(|part| *part != 0)
    }

    /// All entries that lead to tables may lead to restless ones.
    pub fn stir_all(&mut self, epoch: u64) {
        self.epoch = epoch;
        for part in 0..PARTS {
            self.stirred[part] = self.leading_in(part);
        }
    }

    #[cfg(feature = "sabotage")]
    pub fn is_stirred(&self, index: usize) -> bool {
        self.stirred[index / 64] >> (index % 64) & 1 == 1
    }

    /// Whether the entry, live and as it stands in the table, is a pointer, or stands in place of one.
    pub fn is_pointer(&self, entry: Pte) -> bool {
        let flags = entry.flags();
        self.key.level > Level::PAGE && (!flags.intersects(PteFlags::R | PteFlags::X) || flags.contains(COALESCED))
    }

    /// Whether all entries are live.
    pub fn is_full(&self) -> bool {
        self.live.iter().all(|part| *part == u64::MAX)
    }

    /// Whether the page is one whose entries may be out of step with the guest's.
    pub fn may_lag(&self) -> bool {
        self.key.role == Role::Table && self.is_unsync
    }

    /// The first live entry at or after `index`.
    pub fn next_live(&self, index: usize) -> Option<usize> {
        let mut word = index / 64;
        let mut bits = self.live.get(word)? & u64::MAX << (index % 64);
        loop {
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            word += 1;
            bits = *self.live.get(word)?;
        }
    }

    /// A bit for each 64 entries of which some are live.
    pub fn live_parts(&self) -> u8 {
        self.live.iter().rev().fold(0, |parts, live| parts << 1 | u8::from(*live != 0))
    }

    /// The first 64 entries of which some are live, from number 64 * `part` on, and a bit for each that is.
    pub const fn live_part(&self, mut part: usize) -> Option<(usize, u64)> {
        while part < PARTS {
            if self.live[part] != 0 {
                return Some((part, self.live[part]));
            }
            part += 1;
        }
        None
    }

    /// A bit for each live entry of the 64 from number 64 * `part` on.
    pub fn live_in(&self, part: usize) -> u64 {
        self.live[part]
    }

    pub fn is_live(&self, index: usize) -> bool {
        self.live[index / 64] >> (index % 64) & 1 == 1
    }

    pub fn set_live(&mut self, index: usize, live: bool) {
        let bit = 1 << (index % 64);
        if live { self.live[index / 64] |= bit } else { self.live[index / 64] &= !bit }
    }

    pub fn is_parked(&self, index: usize) -> bool {
        self.parked[index / 64] >> (index % 64) & 1 == 1
    }

    /// A bit for each parked entry of the 64 from number 64 * `part` on.
    pub fn parked_in(&self, part: usize) -> u64 {
        self.parked[part]
    }

    /// Whether it is in a list: live or parked.
    pub fn is_listed(&self, index: usize) -> bool {
        self.listed_in(index / 64) >> (index % 64) & 1 == 1
    }

    /// A bit for each entry that is in a list of the 64 from number 64 * `part` on.
    #[inline(always)]
    pub fn listed_in(&self, part: usize) -> u64 {
        self.live[part] | self.parked[part]
    }

    pub fn set_parked(&mut self, index: usize, parked: bool) {
        let bit = 1 << (index % 64);
        if parked { self.parked[index / 64] |= bit } else { self.parked[index / 64] &= !bit }
    }
}

/// What a guest's leaf allows, and in which of its address spaces (G), as hardware would have it that never sets A or D: without D
/// no W. To be asked about leaves with A only.
pub(super) fn permissions(flags: PteFlags) -> PteFlags {
    let all = PteFlags::R | PteFlags::W | PteFlags::X | PteFlags::U | PteFlags::G;
    let mut allowed = flags & all;
    allowed.set(PteFlags::W, flags.contains(PteFlags::W | PteFlags::D));
    allowed
}

#[cfg(test)]
mod tests {
    use super::eights_of;

    #[test]
    fn eights_are_those_of_which_a_bit_is_set() {
        for bits in (0..64).map(|n| 1 << n).chain([0, u64::MAX, 0x8000_0000_0100_00ff, 0x7f00_fe00_1001_0000]) {
            let expected = (0..8).filter(|n| bits >> (8 * n) & 0xff != 0).map(|n| 1 << n).sum();
            assert_eq!(eights_of(bits), expected, "{bits:#x}");
        }
    }
}
