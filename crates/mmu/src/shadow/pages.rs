//! Shadow pages: what they are, where their entries stand, and the lists that lead back to them.
//!
//! A shadow page is three frames: the *table* that hardware walks; the *mirror*, which keeps for each
//! entry the guest's entry that it was made from; and the *links*, by which the entry is a member of
//! one doubly linked list. Rules:
//!
//! - `mirror != 0` says that the entry is *live*: a member of exactly one list. The entry in the table
//!   may be invalid all the same, because a fence has passed over it (a level-0 entry; the lane writes
//!   there without any lock). Entries above level 0 change under the caller's lock only: a live one
//!   is valid.
//! - A live leaf is in the list of the guest frame that it leads to, or, a 2 MiB one, of the 2 MiB. A live pointer is in the list of parents of the shadow page that it leads to.
//! - An upper entry that is not live is 0.
//! - Pointers from one shadowed table to another carry [`MARK`]; others do not, and so the lane stays out of
//!   what is not a shadow of a guest's table.

use super::{Sabotage, Shadow};
use crate::frames::{Frames, Run};
use alloc::vec::Vec;
use rv::{Addr, Caps, Entry, Gpa, Hpa, Level, Pfn, PhysMem, Pte, PteFlags};

/// The software bit of pointers between shadows of guest tables.
pub const MARK: PteFlags = PteFlags::RSW0;

/// The guest's entries are read without Svnapot and Svpbmt: the guest is not offered them.
pub(super) const CAPS: Caps = Caps { svnapot: false, svpbmt: false };

/// Number of a shadow page: index into the arena. Reused, unlike a page's serial.
pub(super) type Id = u32;

/// What a shadow page is a shadow of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Role {
    /// The guest's table in the frame.
    Table,
    /// A part of a guest's superpage, from the frame on, with these permissions (R, W, X, U).
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

/// The mirror of entries that no guest entry stands behind.
pub(super) const NO_PTE: Pte = Pte(1);

/// An entry of a shadow page, or none; the form that lists are made of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Ref(u32);

impl Ref {
    const NONE: Ref = Ref(0);

    const fn new(id: Id, index: usize) -> Self {
        Ref((id << 9 | index as u32) + 1)
    }

    pub const fn entry(self) -> Option<(Id, usize)> {
        match self.0.checked_sub(1) {
            Some(packed) => Some((packed >> 9, packed as usize & 511)),
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
}

impl Body {
    pub fn runs(self) -> [Run; 3] {
        [self.table, self.mirror, self.links]
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
    live: [u64; 8],
    parents: Ref,
    /// The next shadow of the same guest frame.
    pub next: Option<Id>,
    /// vCPUs that have it as their root.
    pub users: u32,
    /// Used since the last search for victims.
    pub is_recent: bool,
    /// The guest may write the table without an exit (always, in `lazy`).
    pub is_unsync: bool,
    /// Writes in a row that no table would see.
    pub flood: u8,
    /// The operation that last synchronised it.
    pub stamp: u64,
}

impl Page {
    pub fn new(key: Key, body: Body, serial: u64, guest: Option<Pfn<Hpa>>) -> Self {
        Self {
            key,
            body,
            serial,
            guest,
            live: [0; 8],
            parents: Ref::NONE,
            next: None,
            users: 0,
            is_recent: true,
            is_unsync: false,
            flood: 0,
            stamp: 0,
        }
    }

    /// The hardware table.
    pub fn table(&self) -> Pfn<Hpa> {
        self.body.table.first()
    }

    pub fn has_parents(&self) -> bool {
        self.parents != Ref::NONE
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

    pub fn is_live(&self, index: usize) -> bool {
        self.live[index / 64] >> (index % 64) & 1 == 1
    }

    fn set_live(&mut self, index: usize, live: bool) {
        let bit = 1 << (index % 64);
        if live { self.live[index / 64] |= bit } else { self.live[index / 64] &= !bit }
    }
}

/// Where a list begins.
#[derive(Clone, Copy)]
enum List {
    /// Leaves of 4 KiB that lead to a guest frame.
    Frame(Pfn<Gpa>),
    /// Leaves of 2 MiB that lead to this frame and those after it.
    Mega(Pfn<Gpa>),
    /// Pointers that lead to a shadow page.
    Parents(Id),
}

/// For each frame of guest RAM: its leaves, and its shadows as a table.
///
/// A word of 8 bytes each, in frames of the VM's: the head of the list of leaves in the low half, the first
/// shadow page's number plus 1 in the high half.
pub(super) struct Heads {
    first: Pfn<Gpa>,
    pages: u64,
    chunks: Vec<Run>,
    /// For each 2 MiB, the head of the list of leaves that lead to all of it.
    megas: Vec<Ref>,
    /// For each 2 MiB, how many frames are write-protected tables.
    protected: Vec<u16>,
}

impl Heads {
    /// Frames that [`Heads::new`] needs.
    pub const fn frames_for(pages: u64) -> u64 {
        pages.div_ceil(512)
    }

    pub fn new(first: Pfn<Gpa>, pages: u64, chunks: Vec<Run>, mem: &mut impl PhysMem) -> Self {
        assert!(first.is_aligned(512), "{first:?}: guest RAM begins at a multiple of 2 MiB");
        chunks.iter().for_each(|chunk| mem.zero_frames(chunk.first(), 1));
        let (megas, protected) = (alloc::vec![Ref::NONE; chunks.len()], alloc::vec![0; chunks.len()]);
        Self { first, pages, chunks, megas, protected }
    }

    pub fn contains(&self, gfn: Pfn<Gpa>) -> bool {
        gfn.raw().wrapping_sub(self.first.raw()) < self.pages
    }

    fn at(&self, gfn: Pfn<Gpa>) -> Addr<Hpa> {
        let offset = gfn.raw() - self.first.raw();
        self.chunks[(offset / 512) as usize].first().at(offset % 512 * 8)
    }

    fn leaves(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> Ref {
        Ref(mem.read_u64(self.at(gfn)) as u32)
    }

    fn set_leaves(&self, gfn: Pfn<Gpa>, head: Ref, mem: &mut impl PhysMem) {
        let at = self.at(gfn);
        mem.write_u64(at, mem.read_u64(at) >> 32 << 32 | u64::from(head.0));
    }

    fn tables(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> Option<Id> {
        ((mem.read_u64(self.at(gfn)) >> 32) as u32).checked_sub(1)
    }

    fn set_tables(&self, gfn: Pfn<Gpa>, first: Option<Id>, mem: &mut impl PhysMem) {
        let at = self.at(gfn);
        let high = first.map_or(0, |id| u64::from(id) + 1);
        mem.write_u64(at, high << 32 | mem.read_u64(at) & 0xffff_ffff);
    }

    fn chunk(&self, gfn: Pfn<Gpa>) -> usize {
        ((gfn.raw() - self.first.raw()) / 512) as usize
    }

    /// Protected tables in the 2 MiB around `gfn`.
    pub fn protected_around(&mut self, gfn: Pfn<Gpa>) -> &mut u16 {
        let chunk = self.chunk(gfn);
        &mut self.protected[chunk]
    }

    pub fn release(&mut self, frames: &Frames) {
        self.chunks.drain(..).for_each(|chunk| frames.free(chunk));
    }
}

impl Shadow {
    pub(super) fn page(&self, id: Id) -> &Page {
        self.arena[id as usize].as_ref().expect("the number of a shadow page")
    }

    pub(super) fn page_mut(&mut self, id: Id) -> &mut Page {
        self.arena[id as usize].as_mut().expect("the number of a shadow page")
    }

    pub(super) fn entry_at(&self, id: Id, index: usize) -> Addr<Hpa> {
        self.page(id).table().at(8 * index as u64)
    }

    fn mirror_at(&self, id: Id, index: usize) -> Addr<Hpa> {
        self.page(id).body.mirror.first().at(8 * index as u64)
    }

    fn links_at(&self, id: Id, index: usize) -> Addr<Hpa> {
        self.page(id).body.links.first().at(8 * index as u64)
    }

    /// The guest's entry that a live entry was made from.
    pub(super) fn mirror(&self, id: Id, index: usize, mem: &impl PhysMem) -> Option<Pte> {
        self.page(id).is_live(index).then(|| Pte(mem.read_u64(self.mirror_at(id, index))))
    }

    /// Whether [`Heads`] leads to pages of that key: the shadows of tables, unless they are not in RAM.
    pub(super) fn is_by_frame(&self, key: Key) -> bool {
        key.role == Role::Table && self.heads.contains(key.gfn)
    }

    /// The shadow page for `key`, if there is one.
    pub(super) fn find(&self, key: Key, mem: &impl PhysMem) -> Option<Id> {
        if !self.is_by_frame(key) {
            return self.direct.get(&key).copied();
        }
        self.tables_of(key.gfn, mem).find(|id| self.page(*id).key.level == key.level)
    }

    /// The shadows of `gfn` as a table.
    pub(super) fn tables_of(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> impl Iterator<Item = Id> + '_ {
        let first = if self.heads.contains(gfn) { self.heads.tables(gfn, mem) } else { None };
        core::iter::successors(first, |id| self.page(*id).next)
    }

    /// Makes a shadow page known by its key.
    pub(super) fn enlist(&mut self, id: Id, mem: &mut impl PhysMem) {
        let key = self.page(id).key;
        if self.is_by_frame(key) {
            self.page_mut(id).next = self.heads.tables(key.gfn, mem);
            self.heads.set_tables(key.gfn, Some(id), mem);
        } else {
            self.direct.insert(key, id);
        }
    }

    /// The opposite of [`Shadow::enlist`].
    pub(super) fn delist(&mut self, id: Id, mem: &mut impl PhysMem) {
        let (key, next) = (self.page(id).key, self.page(id).next);
        if !self.is_by_frame(key) {
            self.direct.remove(&key);
            return;
        }
        let before = self.tables_of(key.gfn, mem).find(|other| self.page(*other).next == Some(id));
        match before {
            Some(other) => self.page_mut(other).next = next,
            None => self.heads.set_tables(key.gfn, next, mem),
        }
    }

    /// The guest frame that entry `index` maps from, by its place (roles `Direct` and `Bare`).
    pub(super) fn frame_below(key: Key, index: usize) -> Pfn<Gpa> {
        key.gfn.add(index as u64 * key.level.pages())
    }

    /// The key of what a pointer made from `pte` leads to.
    pub(super) fn child_key(key: Key, index: usize, pte: Pte) -> Option<Key> {
        let level = key.level.down()?;
        match key.role {
            Role::Table => match pte.decode::<Gpa>(key.level, CAPS) {
                Entry::Table(gfn) => Some(Key { gfn, level, role: Role::Table }),
                Entry::Leaf(leaf) => Some(Key { gfn: leaf.pfn, level, role: Role::Direct(permissions(leaf.flags)) }),
                Entry::Invalid | Entry::Reserved(_) => None,
            },
            role => Some(Key { gfn: Self::frame_below(key, index), level, role }),
        }
    }

    /// Where the live entry is listed. `is_pointer` says what it is.
    fn list_of(&self, id: Id, index: usize, mirror: Pte, is_pointer: bool, mem: &impl PhysMem) -> List {
        let key = self.page(id).key;
        if is_pointer {
            let child = Self::child_key(key, index, mirror).and_then(|child| self.find(child, mem));
            return List::Parents(child.expect("a live pointer's shadow page exists"));
        }
        let gfn = match key.role {
            Role::Table => match mirror.decode::<Gpa>(key.level, CAPS) {
                Entry::Leaf(leaf) => leaf.pfn,
                other => unreachable!("a live leaf was made from {other:?}"),
            },
            Role::Direct(_) | Role::Bare => Self::frame_below(key, index),
        };
        if key.level == Level::PAGE { List::Frame(gfn) } else { List::Mega(gfn) }
    }

    fn head(&self, list: List, mem: &impl PhysMem) -> Ref {
        match list {
            List::Frame(gfn) => self.heads.leaves(gfn, mem),
            List::Mega(gfn) => self.heads.megas[self.heads.chunk(gfn)],
            List::Parents(id) => self.page(id).parents,
        }
    }

    fn set_head(&mut self, list: List, head: Ref, mem: &mut impl PhysMem) {
        match list {
            List::Frame(gfn) => self.heads.set_leaves(gfn, head, mem),
            List::Mega(gfn) => {
                let chunk = self.heads.chunk(gfn);
                self.heads.megas[chunk] = head;
            }
            List::Parents(id) => self.page_mut(id).parents = head,
        }
    }

    /// Puts the entry at the front of `list`: it is live from now on.
    fn insert(&mut self, id: Id, index: usize, mirror: Pte, list: List, mem: &mut impl PhysMem) {
        debug_assert!(!self.page(id).is_live(index) && mirror.0 != 0);
        let (this, next) = (Ref::new(id, index), self.head(list, mem));
        mem.write_u64(self.links_at(id, index), u64::from(next.0));
        if let Some((id, index)) = next.entry() {
            let at = self.links_at(id, index);
            mem.write_u64(at, mem.read_u64(at) & 0xffff_ffff | u64::from(this.0) << 32);
        }
        self.set_head(list, this, mem);
        mem.write_u64(self.mirror_at(id, index), mirror.0);
        self.page_mut(id).set_live(index, true);
    }

    /// Takes the entry out of `list`: it is not live any more.
    fn remove(&mut self, id: Id, index: usize, list: List, mem: &mut impl PhysMem) {
        let links = mem.read_u64(self.links_at(id, index));
        let (before, next) = (Ref((links >> 32) as u32), Ref(links as u32));
        match before.entry() {
            Some((id, index)) => {
                let at = self.links_at(id, index);
                mem.write_u64(at, mem.read_u64(at) >> 32 << 32 | u64::from(next.0));
            }
            None => self.set_head(list, next, mem),
        }
        if let Some((id, index)) = next.entry() {
            let at = self.links_at(id, index);
            mem.write_u64(at, mem.read_u64(at) & 0xffff_ffff | u64::from(before.0) << 32);
        }
        self.page_mut(id).set_live(index, false);
    }

    /// Whether the entry, live and as it stands in the table, is a pointer.
    pub(super) fn is_pointer(&self, id: Id, entry: Pte) -> bool {
        self.page(id).key.level > Level::PAGE && !entry.flags().intersects(PteFlags::R | PteFlags::X)
    }

    /// Forgets an entry: it is invalid and not live. TLBs may remember it.
    pub(super) fn drop_entry(&mut self, id: Id, index: usize, mem: &mut impl PhysMem) {
        let Some(mirror) = self.mirror(id, index, mem) else { return };
        let at = self.entry_at(id, index);
        let is_pointer = self.is_pointer(id, Pte(mem.read_u64(at)));
        let list = self.list_of(id, index, mirror, is_pointer, mem);
        mem.write_u64(at, 0);
        self.remove(id, index, list, mem);
        self.tlbs_are_dirty = true;
        self.pointers_are_dirty |= is_pointer;
    }

    /// Makes entry `index`, not live now, a pointer to `child`.
    pub(super) fn set_pointer(&mut self, id: Id, index: usize, mirror: Pte, child: Id, mem: &mut impl PhysMem) {
        let mut pte = Entry::Table(self.page(child).table()).encode();
        if self.page(child).key.role == Role::Table {
            pte.0 |= MARK.bits();
        }
        self.insert(id, index, mirror, List::Parents(child), mem);
        mem.write_u64(self.entry_at(id, index), pte.0);
    }

    /// Makes entry `index` the leaf `new`, made from `mirror`, unless it is no longer `old`: then the lane has
    /// passed over it meanwhile, and what `mirror` was read from may have changed. Says whether it did.
    pub(super) fn set_leaf(
        &mut self,
        (id, index): (Id, usize),
        (old, new): (Pte, Pte),
        mirror: Pte,
        mem: &mut impl PhysMem,
    ) -> bool {
        let list = self.list_of(id, index, mirror, false, mem);
        match self.mirror(id, index, mem) {
            Some(known) if known == mirror && !self.is_pointer(id, old) => {}
            Some(known) => {
                let was = self.list_of(id, index, known, self.is_live_pointer(id, old), mem);
                self.remove(id, index, was, mem);
                self.insert(id, index, mirror, list, mem);
            }
            None => self.insert(id, index, mirror, list, mem),
        }
        // Somebody's TLB may still have what the old one allowed.
        let was_pointer = self.is_live_pointer(id, old);
        self.pointers_are_dirty |= was_pointer;
        let was_writable = was_pointer || old.flags().contains(PteFlags::V | PteFlags::W);
        self.tlbs_are_dirty |= was_writable && old != new;
        let at = self.entry_at(id, index);
        if self.is_sabotaged(Sabotage::StoresBlindly) {
            mem.write_u64(at, new.0);
            return true;
        }
        mem.compare_exchange_u64(at, old.0, new.0).is_ok()
    }

    fn is_live_pointer(&self, id: Id, entry: Pte) -> bool {
        entry.flags().contains(PteFlags::V) && self.is_pointer(id, entry)
    }

    /// A leaf of 4 KiB that leads to `gfn`.
    pub(super) fn first_leaf(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> Option<(Id, usize)> {
        self.heads.leaves(gfn, mem).entry()
    }

    /// A leaf of 2 MiB that leads to `gfn` among others.
    pub(super) fn first_mega(&self, gfn: Pfn<Gpa>) -> Option<(Id, usize)> {
        self.heads.megas[self.heads.chunk(gfn)].entry()
    }

    /// The leaf that is listed after this one.
    pub(super) fn next_leaf(&self, (id, index): (Id, usize), mem: &impl PhysMem) -> Option<(Id, usize)> {
        Ref(mem.read_u64(self.links_at(id, index)) as u32).entry()
    }

    /// Whether a live entry is in the list that it belongs to.
    #[cfg(feature = "sabotage")]
    pub(super) fn is_listed(&self, id: Id, index: usize, mem: &impl PhysMem) -> bool {
        let mirror = self.mirror(id, index, mem).expect("it is live");
        let is_pointer = self.is_pointer(id, Pte(mem.read_u64(self.entry_at(id, index))));
        let mut at = self.head(self.list_of(id, index, mirror, is_pointer, mem), mem);
        while let Some((other, i)) = at.entry() {
            if (other, i) == (id, index) {
                return true;
            }
            at = Ref(mem.read_u64(self.links_at(other, i)) as u32);
        }
        false
    }

    /// A pointer that leads to the page.
    pub(super) fn a_parent(&self, id: Id) -> Option<(Id, usize)> {
        self.page(id).parents.entry()
    }
}

/// What a guest's leaf allows, as hardware would have it that never sets A or D: without D no W. To be
/// asked about leaves with A only.
pub(super) fn permissions(flags: PteFlags) -> PteFlags {
    let all = PteFlags::R | PteFlags::W | PteFlags::X | PteFlags::U;
    let mut allowed = flags & all;
    allowed.set(PteFlags::W, flags.contains(PteFlags::W | PteFlags::D));
    allowed
}
