//! The index: shadow pages by their numbers and by what they are shadows of, and the lists that lead from a guest frame
//! or a shadow page back to the entries that lead to it. It knows nothing of what entries may say.

use crate::frames::Run;
use crate::shadow::Shadowed;
use crate::shadow::lane::ID_AT;
use crate::shadow::lower;
use crate::shadow::pages::{Arena, At, Heads, Id, Key, Page, Ref, Role};
use alloc::collections::BTreeMap;
use core::marker::PhantomData;
use rv::{Addr, Gpa, Hpa, Level, Pfn, PhysMem, Pte, PteFlags};

/// A list of the reverse map, by its head.
#[derive(Clone, Copy)]
pub enum List {
    /// Leaves of 4 KiB that lead to a guest frame.
    Frame(Pfn<Gpa>),
    /// Leaves of 2 MiB that lead to this frame and those around it.
    Mega(Pfn<Gpa>),
    /// Pointers that lead to a shadow page.
    Parents(Id),
}

/// All shadow pages of a VM, and how they are found.
pub struct Index<S: Shadowed> {
    pub arena: Arena,
    /// Pages of the roles that [`Heads`] does not lead to.
    direct: BTreeMap<Key, Id>,
    pub heads: Heads,
    /// A bit for each digest that says what the tables do ([`super::super::sync::digest`]).
    pub digests: u8,
    /// The stage below of the present operation, if the engine has one: shadows that were made by another are not found.
    pub context: u32,
    space: PhantomData<S>,
}

impl<S: Shadowed> Index<S> {
    /// An empty index.
    pub const fn new(arena: Arena, heads: Heads) -> Self {
        Self { arena, direct: BTreeMap::new(), heads, digests: 0, context: 0, space: PhantomData }
    }

    #[inline(always)]
    pub fn page(&self, id: Id) -> &Page {
        self.arena.page(id)
    }

    #[inline(always)]
    pub fn page_mut(&mut self, id: Id) -> &mut Page {
        self.arena.page_mut(id)
    }

    /// Ends the index: all frames.
    pub fn into_frames(self) -> impl Iterator<Item = Run> {
        self.heads.into_frames().chain(self.arena.into_frames())
    }

    /// Returns whether [`Heads`] leads to pages of that key: the shadows of tables, unless they are not in RAM.
    pub fn is_by_frame(&self, key: Key) -> bool {
        key.role == Role::Table && self.heads.contains(key.gfn)
    }

    /// The shadow page for `key`, if there is one.
    #[inline]
    pub fn find(&self, key: Key, mem: &impl PhysMem) -> Option<Id> {
        self.find_in(self.context, key, mem)
    }

    /// The shadow page for `key` that was made by that stage below, if there is one.
    #[inline]
    fn find_in(&self, context: u32, key: Key, mem: &impl PhysMem) -> Option<Id> {
        if !self.is_by_frame(key) {
            return self.direct.get(&key).copied();
        }
        let is_of = |id: &Id| !S::COMPOSES || self.page(*id).origin.context == context;
        self.tables_of(key.gfn, mem).find(|id| self.page(*id).key.level == key.level && is_of(id))
    }

    /// The key of what a pointer at that entry leads to, if it is made from `pte`.
    #[inline(always)]
    pub fn key_below(&self, (id, index): At, pte: Pte) -> Option<Key> {
        let page = self.page(id);
        if S::COMPOSES && page.key.role == Role::Table && lower::is_in_pieces(pte) {
            return Some(lower::first_piece(page.origin.context, page.key.level.down()?, pte));
        }
        page.key.child(index, pte)
    }

    /// One of the pages by which 2 MiB from `gfn` on are in pieces, of a guest's superpage or of the identity, if one is linked.
    pub fn linked_pieces(&self, gfn: Pfn<Gpa>) -> Option<Id> {
        let key = |role| Key { gfn, level: Level::PAGE, role };
        let all = key(Role::Direct(PteFlags::empty()))..=key(Role::Bare);
        self.direct.range(all).map(|(_, id)| *id).find(|id| self.page(*id).parents.entry().is_some())
    }

    /// The shadows of `gfn` as a table.
    pub fn tables_of(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> impl Iterator<Item = Id> + '_ {
        core::iter::successors(self.heads.tables(gfn, mem), |id| self.page(*id).next)
    }

    /// Makes a shadow page known by its key.
    pub fn enlist(&mut self, id: Id, mem: &mut impl PhysMem) {
        let key = self.page(id).key;
        if self.is_by_frame(key) {
            self.page_mut(id).next = self.heads.tables(key.gfn, mem);
            self.heads.set_tables(key.gfn, Some(id), mem);
        } else {
            self.direct.insert(key, id);
        }
    }

    /// The opposite of [`Index::enlist`].
    pub fn delist(&mut self, id: Id, mem: &mut impl PhysMem) {
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

    /// Returns the list that a live leaf of `key` is in.
    pub fn list_of_leaf(key: Key, index: usize, mirror: Pte) -> List {
        let gfn = key.frame_of(index, mirror);
        if key.level == Level::PAGE { List::Frame(gfn) } else { List::Mega(gfn) }
    }

    /// Returns the list that a live entry is in. `is_pointer` says what it is.
    pub fn list_of(&self, (id, index): At, mirror: Pte, is_pointer: bool, mem: &impl PhysMem) -> List {
        let key = self.page(id).key;
        if is_pointer {
            List::Parents(self.child_of((id, index), mirror, mem))
        } else {
            Self::list_of_leaf(key, index, mirror)
        }
    }

    /// The shadow page that a live pointer leads to.
    pub fn child_of(&self, (id, index): At, mirror: Pte, mem: &impl PhysMem) -> Id {
        let key = self.key_below((id, index), mirror);
        let context = if S::COMPOSES { self.page(id).origin.context } else { 0 };
        key.and_then(|key| self.find_in(context, key, mem)).expect("a live pointer's shadow page exists")
    }

    /// The shadow page that a live entry leads to, if it is a pointer. A leaf of the guest's leads to no table, whatever stands for it.
    pub fn table_below(&self, (id, index): At, mem: &impl PhysMem) -> Option<Id> {
        let mirror = self.page(id).mirror(index, mem).filter(|mirror| mirror.is_pointer())?;
        Some(self.child_of((id, index), mirror, mem))
    }

    /// The first entry of a list.
    pub fn first(&self, list: List, mem: &impl PhysMem) -> Option<At> {
        self.head(list, mem).entry()
    }

    /// The entry that is listed after this one.
    pub fn next(&self, (id, index): At, mem: &impl PhysMem) -> Option<At> {
        Ref(mem.read_own(self.page(id).links_at(index)) as u32).entry()
    }

    fn head(&self, list: List, mem: &impl PhysMem) -> Ref {
        match list {
            List::Frame(gfn) => self.heads.leaves(gfn, mem),
            List::Mega(gfn) => self.heads.megas(gfn),
            List::Parents(id) => self.page(id).parents,
        }
    }

    /// Makes `head` the first of the list, and returns the old one.
    #[inline(always)]
    fn swap_head(&mut self, list: List, head: Ref, mem: &mut impl PhysMem) -> Ref {
        match list {
            List::Frame(gfn) => self.heads.swap_leaves(gfn, head, mem),
            List::Mega(gfn) => self.heads.swap_megas(gfn, head),
            List::Parents(id) => core::mem::replace(&mut self.page_mut(id).parents, head),
        }
    }

    /// An entry is to be in a list, or no more: a digest says something else then.
    #[inline(always)]
    fn changes(&mut self, (id, _): At, list: List) {
        // Digests are of pages above level 0.
        if !matches!(list, List::Frame(_)) {
            self.end_digest_of(id);
        }
    }

    /// The digest that a page is a part of, if any, does not hold any more.
    #[inline(always)]
    pub fn end_digest_of(&mut self, id: Id) {
        self.digests &= !(1 << self.page(id).digest.number);
    }

    /// Puts an entry that is in none at the front of `list`: it is live from now on.
    #[inline(always)]
    pub fn insert(&mut self, at: At, mirror: Pte, list: List, mem: &mut impl PhysMem) {
        let next = self.put_first(Ref::new(at), list, mem);
        self.changes(at, list);
        let (id, index) = at;
        let page = self.page_mut(id);
        debug_assert!(!page.marks.is_listed(index) && mirror.0 != 0);
        page.marks.set_live(index, true);
        mem.write_own(page.links_at(index), u64::from(next.0));
        if S::COMPOSES {
            page.origin.own.forget(index);
        }
        page.set_mirror(index, mirror, mem);
    }

    /// Makes an entry the first of a list. Returns which is the next one there: that is its link.
    #[inline(always)]
    pub fn put_first(&mut self, own: Ref, list: List, mem: &mut impl PhysMem) -> Ref {
        let next = self.swap_head(list, own, mem);
        self.set_before(next, own, mem);
        next
    }

    /// Says of an entry, if it is one, which is before it in its list.
    #[inline(always)]
    fn set_before(&self, entry: Ref, before: Ref, mem: &mut impl PhysMem) {
        if let Some((id, index)) = entry.entry() {
            let at = self.page(id).links_at(index);
            mem.write_own(at, mem.read_own(at) & 0xffff_ffff | u64::from(before.0) << 32);
        }
    }

    /// Takes the entry out of `list`: it is not live any more.
    pub fn remove(&mut self, (id, index): At, list: List, mem: &mut impl PhysMem) {
        self.changes((id, index), list);
        let page = self.page_mut(id);
        page.marks.set_live(index, false);
        if !matches!(list, List::Frame(_)) {
            page.calm_at(index);
        }
        let links = page.links_at(index);
        self.unlink(links, list, mem);
    }

    /// Takes an entry out of the list that it is in, live or parked. `is_pointer` says what it is.
    // Each call in the way of a fault costs it some thirty instructions: this is one for all that may be to do.
    #[inline(never)]
    pub fn unlist(&mut self, at: At, is_pointer: bool, mem: &mut impl PhysMem) {
        match self.page(at.0).mirror(at.1, mem) {
            Some(mirror) => {
                let list = self.list_of(at, mirror, is_pointer, mem);
                self.remove(at, list, mem);
            }
            None => self.unpark(at, mem),
        }
    }

    /// Takes the entry whose links are at that place out of the list that it is in.
    #[inline(always)]
    pub fn unlink(&mut self, links: Addr<Hpa>, list: List, mem: &mut impl PhysMem) {
        let links = mem.read_own(links);
        let (before, next) = (Ref((links >> 32) as u32), Ref(links as u32));
        match before.entry() {
            Some((id, index)) => {
                let at = self.page(id).links_at(index);
                mem.write_own(at, mem.read_own(at) >> 32 << 32 | u64::from(next.0));
            }
            None => _ = self.swap_head(list, next, mem),
        }
        self.set_before(next, before, mem);
    }

    /// A parked entry is to be in no list.
    pub fn unpark(&mut self, (id, index): At, mem: &mut impl PhysMem) {
        let page = self.page_mut(id);
        page.marks.set_parked(index, false);
        let (list, links) = (List::Frame(page.parked_at(index, mem)), page.links_at(index));
        self.unlink(links, list, mem);
    }

    /// The shadow page of that table, which has a header.
    #[inline(always)]
    pub fn id_of(&self, table: Addr<Hpa>, mem: &impl PhysMem) -> Id {
        let id = mem.read_own(Addr::new(table.raw() - ID_AT)) as Id;
        debug_assert!(self.page(id).table().base() == table);
        id
    }

    /// The first shadow of the frame as a table.
    pub fn first_table(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> Option<Id> {
        self.tables_of(gfn, mem).next()
    }

    /// Returns whether stores to the frame are kept out: it is a table whose shadows are always up to date.
    pub fn is_synced_table(&self, gfn: Pfn<Gpa>, mem: &impl PhysMem) -> bool {
        self.tables_of(gfn, mem).any(|id| !self.page(id).is_unsync)
    }

    /// Notes of all shadows of the frame as a table whether its stores pass unseen.
    pub fn set_unsync(&mut self, gfn: Pfn<Gpa>, is_unsync: bool, mem: &impl PhysMem) {
        let mut next = self.first_table(gfn, mem);
        while let Some(id) = next {
            let page = self.page_mut(id);
            page.is_unsync = is_unsync;
            next = page.next;
        }
    }

    /// Checks the rules of the structure (`page`): every page is found, every entry that is live or parked is in the list that it
    /// belongs to, and no other is.
    ///
    /// # Panics
    /// If one is not.
    #[cfg(feature = "sabotage")]
    pub fn audit(&self, mem: &impl PhysMem) {
        for (id, page) in self.arena.all() {
            assert_eq!(self.find_in(page.origin.context, page.key, mem), Some(id), "{:?} is not found", page.key);
            for index in (0..rv::format::ENTRIES).filter(|index| page.marks.is_live(*index)) {
                let mirror = page.mirror(index, mem).expect("it is live");
                let is_pointer = page.is_pointer(page.slot(index).read(mem));
                let may_lead = page.marks.leading_in(index / 64) >> (index % 64) & 1 == 1;
                let leads = is_pointer && page.key.role == Role::Table && mirror.is_pointer();
                assert!(may_lead || !leads, "a pointer is not known to lead to a table");
                let mut at = self.first(self.list_of((id, index), mirror, is_pointer, mem), mem);
                while at.is_some_and(|at| at != (id, index)) {
                    at = at.and_then(|at| self.next(at, mem));
                }
                assert!(at.is_some(), "entry {index} of {:?} is in no list", page.key);
            }
            for index in (0..rv::format::ENTRIES).filter(|index| page.marks.is_parked(*index)) {
                assert!(!page.marks.is_live(index) && page.key.level == Level::PAGE && page.key.role == Role::Table);
                let mut at = self.first(List::Frame(page.parked_at(index, mem)), mem);
                while at.is_some_and(|at| at != (id, index)) {
                    at = at.and_then(|at| self.next(at, mem));
                }
                assert!(at.is_some(), "parked entry {index} of {:?} is in no list", page.key);
            }
        }
        for gfn in self.heads.all() {
            let mut next = self.first(List::Frame(gfn), mem);
            while let Some((id, index)) = next {
                let page = self.page(id);
                let leads_to = match page.mirror(index, mem) {
                    Some(mirror) => page.key.frame_of(index, mirror),
                    None => page.parked_at(index, mem),
                };
                assert!(
                    page.marks.is_listed(index) && leads_to == gfn,
                    "entry {index} of {:?} is in a wrong list",
                    page.key
                );
                next = self.next((id, index), mem);
            }
        }
    }
}
