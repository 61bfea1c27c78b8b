//! Address spaces of programs.
//!
//! A space is a list of *regions*, and tables with what programs have touched of them. A page fault maps a page ([`Space::fault`]):
//!
//! | region | a load or fetch maps | a store maps |
//! |---|---|---|
//! | private, anonymous | the frame of zeroes, without W | a frame of the space's own |
//! | private, of an object | the object's frame, without W | a copy of it |
//! | shared | the object's frame | the object's frame |
//!
//! A store to a private page without W copies it, unless the space's reference to the frame is the only one. So a fork shares all frames
//! and takes W from both spaces.
//!
//! An edit that unmaps pages or takes rights fences first the harts that have run the space, and gives the frames back afterwards
//! ([`Edit`]).

use super::frames::{Frame, Freed, PAGE};
use super::object::{NoPage, Object, Store};
use super::translation::{self, Translation};
pub use super::table::{Rights, Table, USER_END};
use crate::errno::{Errno, Result};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use spin::{Mutex, MutexGuard, Once};

const PAGE_U64: u64 = PAGE as u64;
/// The least address of a region: a null pointer with an offset stays a fault.
const LEAST: u64 = 0x1_0000;
/// The end of the addresses that are chosen for regions without one. The stack is above.
const TOP: u64 = USER_END - (1 << 30);
/// Pages of an object that a fault maps at most, if their frames are present.
const AROUND: u64 = 16;

/// The content of a region.
#[derive(Clone, Debug)]
pub enum Source {
    /// Zero until it is written.
    Anonymous,
    /// An object, from one of its pages on.
    Object(Arc<dyn Object>, u64),
}

/// A range of addresses with one content and one set of rights.
#[derive(Clone, Debug)]
pub struct Region {
    /// The address behind it.
    pub end: u64,
    /// Rights of the program.
    pub rights: Rights,
    /// True if stores reach the object, and other spaces that map it.
    pub is_shared: bool,
    /// The content.
    pub source: Source,
    /// The name in `/proc/PID/maps`.
    pub name: Name,
}

/// The use of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Name {
    /// None.
    Anonymous,
    /// The program's heap.
    Heap,
    /// The first thread's stack.
    Stack,
    /// Code of the kernel's.
    Vdso,
    /// A file.
    File(Arc<str>),
}

impl Region {
    /// A private region of zeroes.
    #[must_use]
    pub fn anonymous(bytes: u64, rights: Rights) -> Self {
        Self { end: bytes, rights, is_shared: false, source: Source::Anonymous, name: Name::Anonymous }
    }

    /// The same content from a later address on.
    fn from(&self, bytes: u64) -> Self {
        let mut rest = self.clone();
        if let Source::Object(_, first) = &mut rest.source {
            *first += bytes / PAGE_U64;
        }
        rest
    }

    /// Returns whether another region that follows can be one with it.
    fn joins(&self, next: &Self) -> bool {
        let are_anonymous = matches!((&self.source, &next.source), (Source::Anonymous, Source::Anonymous));
        are_anonymous && self.rights == next.rights && self.is_shared == next.is_shared && self.name == next.name
    }

    /// The rights of the leaf for a frame that the region's own stores must not reach.
    fn without_stores(&self) -> Rights {
        self.rights - Rights::W
    }
}

/// The reason why a program cannot access an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No region is there.
    NoRegion,
    /// The region has not the right.
    NoRight,
    /// The object is shorter.
    BehindObject,
    /// There is no free memory.
    NoMemory,
}

#[derive(Debug)]
struct Inner {
    table: Table,
    regions: BTreeMap<u64, Region>,
    /// The heap that `brk` sets: its start and its end.
    heap: (u64, u64),
}

/// An address space.
#[derive(Debug)]
pub struct Space {
    /// Before the tables, so that it is dropped before them.
    translation: Translation,
    inner: Mutex<Inner>,
}

static ZEROES: Once<Frame> = Once::new();

fn zeroes() -> Option<&'static Frame> {
    ZEROES.try_call_once(|| Frame::zeroed().ok_or(())).ok()
}

/// Pages that are to be fenced, and frames that are free afterwards.
struct Edit<'a> {
    space: &'a Space,
    inner: MutexGuard<'a, Inner>,
    freed: Freed,
    start: u64,
    end: u64,
}

impl Edit<'_> {
    /// Records a page that had a leaf.
    fn touch(&mut self, va: u64) {
        self.start = self.start.min(va);
        self.end = self.end.max(va + PAGE_U64);
    }

    fn unmap(&mut self, start: u64, end: u64) {
        let mut found = Vec::new();
        self.inner.table.each(start, end, |va, _| found.push(va));
        for va in found {
            self.touch(va);
            if let Some(frame) = self.inner.table.unmap(va) {
                self.freed.push(frame);
            }
        }
    }
}

impl Drop for Edit<'_> {
    fn drop(&mut self) {
        if self.start < self.end {
            self.space.translation.fence(self.start, self.end);
        }
        // The frames go behind the fence: fields are dropped after this.
    }
}

impl Space {
    /// Makes an empty space.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Self>> {
        let table = Table::new().ok_or(Errno::NOMEM)?;
        let translation = Translation::new(table.root()).ok_or(Errno::NOMEM)?;
        let inner = Mutex::new(Inner { table, regions: BTreeMap::new(), heap: (0, 0) });
        Ok(Arc::new(Self { translation, inner }))
    }

    /// Returns the space as harts know it.
    #[must_use]
    pub fn translation(&self) -> &Translation {
        &self.translation
    }

    fn edit(&self) -> Edit<'_> {
        Edit { space: self, inner: self.inner.lock(), freed: Vec::new(), start: u64::MAX, end: 0 }
    }

    /// Makes this hart translate by the space.
    pub fn activate(self: &Arc<Self>) {
        translation::activate(self);
    }

    /// Resolves a page fault: maps the page, and says nothing, or says why it cannot be.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn fault(&self, va: u64, access: Rights) -> core::result::Result<(), Refusal> {
        if va >= USER_END {
            return Err(Refusal::NoRegion);
        }
        let va = va & !(PAGE_U64 - 1);
        let mut edit = self.edit();
        let inner = &mut *edit.inner;
        let (start, region) = inner.regions.range(..=va).next_back().ok_or(Refusal::NoRegion)?;
        if va >= region.end {
            return Err(Refusal::NoRegion);
        }
        if !region.rights.contains(access) {
            return Err(Refusal::NoRight);
        }
        let is_store = access.contains(Rights::W);
        let known = inner.table.frame(va);
        if let Some((frame, rights)) = known {
            if rights.contains(access) {
                // Another hart was here before, or the hart has an old translation.
                self.translation.renew(va);
                return Ok(());
            }
            if region.is_shared || !is_store {
                inner.table.protect(va, if region.is_shared { region.rights } else { rights | region.without_stores() });
                self.translation.renew(va);
                return Ok(());
            }
            // Its own reference is one, and that of `known`.
            if frame.references() == 2 {
                inner.table.protect(va, region.rights);
                self.translation.renew(va);
                return Ok(());
            }
            let is_zero = zeroes().is_some_and(|zeroes| *zeroes == frame);
            let copy = if is_zero { Frame::zeroed() } else { Frame::copied(&frame) };
            let rights = region.rights;
            let old = inner.table.map(va, copy.ok_or(Refusal::NoMemory)?, rights).map_err(|_| Refusal::NoMemory)?;
            edit.touch(va);
            edit.freed.extend(old);
            return Ok(());
        }
        let (frame, rights) = match &region.source {
            Source::Anonymous if is_store => (Frame::zeroed().ok_or(Refusal::NoMemory)?, region.rights),
            Source::Anonymous => (zeroes().ok_or(Refusal::NoMemory)?.clone(), region.without_stores()),
            Source::Object(object, first) => {
                let (start, first, object) = (*start, *first, Arc::clone(object));
                let frame = object.page(first + (va - start) / PAGE_U64).map_err(|why| match why {
                    NoPage::Behind => Refusal::BehindObject,
                    NoPage::Memory => Refusal::NoMemory,
                })?;
                if region.is_shared {
                    (frame, region.rights)
                } else if is_store {
                    (Frame::copied(&frame).ok_or(Refusal::NoMemory)?, region.rights)
                } else {
                    let (region, rights) = (region.end, region.without_stores());
                    Self::map_around(&mut inner.table, va, (start, region), first, &*object, rights);
                    (frame, rights)
                }
            }
        };
        inner.table.map(va, frame, rights).map_err(|_| Refusal::NoMemory)?;
        // The hart may have kept that nothing was there.
        self.translation.renew(va);
        Ok(())
    }

    /// Returns whether a page has a frame.
    #[must_use]
    pub fn is_mapped(&self, va: u64) -> bool {
        va < USER_END && self.inner.lock().table.leaf(va).is_some()
    }

    /// Maps a page for an access, unless it is mapped with that right.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn ensure(&self, va: u64, access: Rights) -> core::result::Result<(), Refusal> {
        let is_mapped = self.inner.lock().table.leaf(va).is_some_and(|leaf| leaf.rights.contains(access));
        if is_mapped { Ok(()) } else { self.fault(va, access) }
    }

    /// Maps pages of an object around one that a program reads, if they are present, and not mapped yet.
    fn map_around(table: &mut Table, va: u64, region: (u64, u64), first: u64, object: &dyn Object, rights: Rights) {
        let block = AROUND * PAGE_U64;
        let (start, end) = ((va & !(block - 1)).max(region.0), ((va & !(block - 1)) + block).min(region.1));
        for at in (start..end).step_by(PAGE) {
            if at != va
                && table.leaf(at).is_none()
                && let Some(frame) = object.present(first + (at - region.0) / PAGE_U64)
                && table.map(at, frame, rights).is_err()
            {
                return;
            }
        }
    }

    /// Finds free addresses: those that are wished for, or the highest below [`TOP`].
    fn place(inner: &Inner, wish: u64, bytes: u64) -> Result<u64> {
        let is_free = |start: u64| {
            let Some(end) = start.checked_add(bytes).filter(|end| *end <= TOP) else { return false };
            start >= LEAST && inner.regions.range(..end).next_back().is_none_or(|(_, region)| region.end <= start)
        };
        if wish != 0 && is_free(wish) {
            return Ok(wish);
        }
        let mut top = TOP;
        for (start, region) in inner.regions.range(..TOP).rev() {
            if top.saturating_sub(region.end) >= bytes {
                break;
            }
            top = *start;
        }
        top.checked_sub(bytes).filter(|start| is_free(*start)).ok_or(Errno::NOMEM)
    }

    /// Makes a region boundary at an address.
    fn split(inner: &mut Inner, at: u64) {
        if let Some((start, region)) = inner.regions.range_mut(..at).next_back()
            && region.end > at
        {
            let rest = region.from(at - start);
            region.end = at;
            inner.regions.insert(at, rest);
        }
    }

    /// Removes the regions of a range, and what is mapped there.
    fn clear(edit: &mut Edit<'_>, start: u64, end: u64) {
        Self::split(&mut edit.inner, start);
        Self::split(&mut edit.inner, end);
        let gone: Vec<u64> = edit.inner.regions.range(start..end).map(|(start, _)| *start).collect();
        if gone.is_empty() {
            return;
        }
        for start in gone {
            edit.inner.regions.remove(&start);
        }
        edit.unmap(start, end);
    }

    fn insert(inner: &mut Inner, start: u64, mut region: Region) {
        if let Some((before, last)) = inner.regions.range_mut(..start).next_back()
            && last.end == start
            && last.joins(&region)
        {
            let before = *before;
            if let Some(joined) = inner.regions.get_mut(&before) {
                joined.end = region.end;
            }
            return;
        }
        if let Some(next) = inner.regions.get(&region.end)
            && region.joins(next)
        {
            let end = region.end;
            region.end = next.end;
            inner.regions.remove(&end);
        }
        inner.regions.insert(start, region);
    }

    /// Adds a region, whose `end` is its size in bytes, at an address that is free, or in place of what is there.
    ///
    /// # Errors
    /// `EINVAL` for a size or an address that cannot be, `ENOMEM` without free addresses, `EEXIST` if `place` is
    /// [`Place::IfFree`] and something is there.
    pub fn map(&self, place: Place, mut region: Region) -> Result<u64> {
        let bytes = region.end.checked_next_multiple_of(PAGE_U64).filter(|bytes| *bytes != 0).ok_or(Errno::INVAL)?;
        if bytes > USER_END {
            return Err(Errno::NOMEM);
        }
        let mut edit = self.edit();
        let start = match place {
            Place::Anywhere(wish) => Self::place(&edit.inner, wish & !(PAGE_U64 - 1), bytes)?,
            Place::Exactly(at) | Place::IfFree(at) => {
                if at % PAGE_U64 != 0 {
                    return Err(Errno::INVAL);
                }
                let end = at.checked_add(bytes).filter(|end| *end <= USER_END).ok_or(Errno::NOMEM)?;
                if at < LEAST {
                    return Err(Errno::PERM);
                }
                let has_any = edit.inner.regions.range(..end).next_back().is_some_and(|(_, last)| last.end > at);
                if has_any && matches!(place, Place::IfFree(_)) {
                    return Err(Errno::EXIST);
                }
                Self::clear(&mut edit, at, end);
                at
            }
        };
        region.end = start + bytes;
        Self::insert(&mut edit.inner, start, region);
        Ok(start)
    }

    /// Removes what is in a range.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn unmap(&self, start: u64, bytes: u64) -> Result<()> {
        let end = range_end(start, bytes)?;
        if start == end {
            return Err(Errno::INVAL);
        }
        Self::clear(&mut self.edit(), start, end);
        Ok(())
    }

    /// Sets the rights of a range.
    ///
    /// # Errors
    /// `EINVAL`; `ENOMEM` if a part of the range has no region.
    pub fn protect(&self, start: u64, bytes: u64, rights: Rights) -> Result<()> {
        let end = range_end(start, bytes)?;
        let mut edit = self.edit();
        Self::split(&mut edit.inner, start);
        Self::split(&mut edit.inner, end);
        let mut at = start;
        let mut pages = Vec::new();
        {
            let Inner { regions, table, .. } = &mut *edit.inner;
            for (begin, region) in regions.range_mut(start..end) {
                if *begin != at {
                    break;
                }
                at = region.end;
                region.rights = rights;
                let is_shared = region.is_shared;
                table.each(*begin, region.end, |va, leaf| {
                    // W comes back by a fault, where the page may be shared.
                    let new = if is_shared { rights } else { rights - (Rights::W - leaf.rights) };
                    if new != leaf.rights {
                        pages.push((va, new, leaf.rights));
                    }
                });
            }
        }
        for (va, new, old) in pages {
            edit.inner.table.protect(va, new);
            if !new.contains(old) || old.is_empty() {
                edit.touch(va);
            }
        }
        if at == end { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// Discards the private content of a range: it is as at first.
    ///
    /// # Errors
    /// `EINVAL`; `ENOMEM` if a part of the range has no region.
    pub fn discard(&self, start: u64, bytes: u64) -> Result<()> {
        let end = range_end(start, bytes)?;
        let mut edit = self.edit();
        let is_whole = Self::is_covered(&edit.inner, start, end);
        edit.unmap(start, end);
        if is_whole { Ok(()) } else { Err(Errno::NOMEM) }
    }

    fn is_covered(inner: &Inner, start: u64, end: u64) -> bool {
        let mut at = start;
        let first = inner.regions.range(..=start).next_back().map_or(start, |(begin, _)| *begin);
        for (begin, region) in inner.regions.range(first..end) {
            if *begin > at {
                return false;
            }
            at = at.max(region.end);
        }
        at >= end
    }

    /// Returns whether all of a range belongs to regions.
    #[must_use]
    pub fn has(&self, start: u64, bytes: u64) -> bool {
        range_end(start, bytes).is_ok_and(|end| Self::is_covered(&self.inner.lock(), start, end))
    }

    /// Moves or resizes a region, as `mremap` does. Returns its new address. If `keeps`, the old addresses stay a region, without pages.
    ///
    /// # Errors
    /// `EINVAL`; `EFAULT` if the old range is not in one region; `ENOMEM` if there is no room.
    pub fn remap(&self, start: u64, old_bytes: u64, new_bytes: u64, to: Remap, keeps: bool) -> Result<u64> {
        let old_end = range_end(start, old_bytes)?;
        let new_bytes = new_bytes.checked_next_multiple_of(PAGE_U64).filter(|bytes| *bytes != 0).ok_or(Errno::INVAL)?;
        let old_bytes = old_end - start;
        let mut edit = self.edit();
        let inner = &mut *edit.inner;
        let (begin, region) = inner.regions.range(..=start).next_back().ok_or(Errno::FAULT)?;
        if old_bytes == 0 || old_end > region.end {
            return Err(Errno::FAULT);
        }
        let mut moved = region.from(start - begin);
        if keeps && (region.is_shared || new_bytes != old_bytes) {
            return Err(Errno::INVAL);
        }
        if matches!(to, Remap::To(_)) || keeps {
        } else if new_bytes <= old_bytes {
            if new_bytes < old_bytes {
                Self::clear(&mut edit, start + new_bytes, old_end);
            }
            return Ok(start);
        } else {
            let new_end = start.checked_add(new_bytes).filter(|end| *end <= TOP.max(old_end));
            let has_next = |end: u64| inner.regions.range(old_end..end).next().is_some();
            if let Some(new_end) = new_end.filter(|end| region.end == old_end && !has_next(*end)) {
                let begin = *begin;
                if let Some(region) = inner.regions.get_mut(&begin) {
                    region.end = new_end;
                }
                return Ok(start);
            }
            if to == Remap::InPlace {
                return Err(Errno::NOMEM);
            }
        }
        let new_start = match to {
            Remap::To(at) => {
                let end = range_end(at, new_bytes)?;
                if at < LEAST || at < old_end && start < end {
                    return Err(Errno::INVAL);
                }
                Self::clear(&mut edit, at, end);
                at
            }
            _ => Self::place(inner, 0, new_bytes)?,
        };
        moved.end = new_start + new_bytes;
        let mut pages = Vec::new();
        edit.inner.table.each(start, start + old_bytes.min(new_bytes), |va, leaf| pages.push((va, leaf.rights)));
        for (va, rights) in pages {
            edit.touch(va);
            if let Some(frame) = edit.inner.table.unmap(va)
                && let Err(frame) = edit.inner.table.map(new_start + (va - start), frame, rights)
            {
                // Without memory for a table. The page is put back where it was, for which there is a table.
                let _ = edit.inner.table.map(va, frame, rights);
                return Err(Errno::NOMEM);
            }
        }
        if !keeps {
            Self::clear(&mut edit, start, old_end);
        }
        Self::insert(&mut edit.inner, new_start, moved);
        Ok(new_start)
    }

    /// Sets where the heap begins.
    pub fn start_heap(&self, at: u64) {
        self.inner.lock().heap = (at, at);
    }

    /// Sets the end of the heap, if that can be. Returns the end.
    pub fn set_heap_end(&self, wish: u64) -> u64 {
        let mut edit = self.edit();
        let (start, end) = edit.inner.heap;
        let (old, new) = (end.next_multiple_of(PAGE_U64), wish.checked_next_multiple_of(PAGE_U64).unwrap_or(0));
        if wish < start || new == 0 || new > TOP {
            return end;
        }
        if new > old {
            if edit.inner.regions.range(..new).next_back().is_some_and(|(_, region)| region.end > old) {
                return end;
            }
            let rights = Rights::R | Rights::W;
            Self::insert(&mut edit.inner, old, Region { name: Name::Heap, ..Region::anonymous(new, rights) });
        } else if new < old {
            Self::clear(&mut edit, new, old);
        }
        edit.inner.heap.1 = wish;
        wish
    }

    /// Makes a copy for a new process.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn fork(&self) -> Result<Arc<Self>> {
        let copy = Self::new()?;
        let mut edit = self.edit();
        {
            let mut new = copy.inner.lock();
            let Inner { table, regions, heap } = &mut *edit.inner;
            new.heap = *heap;
            let mut no_memory = false;
            let (mut start, mut end) = (u64::MAX, 0);
            for (begin, region) in &*regions {
                new.regions.insert(*begin, region.clone());
                let mut writable = Vec::new();
                table.each(*begin, region.end, |va, leaf| {
                    let rights = if region.is_shared { leaf.rights } else { leaf.rights - Rights::W };
                    if rights != leaf.rights {
                        writable.push((va, rights));
                    }
                    if let Some((frame, _)) = table.frame(va) {
                        no_memory |= new.table.map(va, frame, rights).is_err();
                    }
                });
                for (va, rights) in writable {
                    table.protect(va, rights);
                    (start, end) = (start.min(va), end.max(va + PAGE_U64));
                }
            }
            (edit.start, edit.end) = (start, end);
            if no_memory {
                return Err(Errno::NOMEM);
            }
        }
        drop(edit);
        Ok(copy)
    }

    /// Returns the regions with their starts.
    #[must_use]
    pub fn regions(&self) -> Vec<(u64, Region)> {
        self.inner.lock().regions.iter().map(|(start, region)| (*start, region.clone())).collect()
    }

    /// Returns the bytes of all regions, and those with frames.
    #[must_use]
    pub fn sizes(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let mut resident = 0;
        inner.table.each(0, USER_END, |_, _| resident += PAGE_U64);
        (inner.regions.iter().map(|(start, region)| region.end - start).sum(), resident)
    }

    /// Returns the object and the offset there of an address in shared memory.
    #[must_use]
    pub fn shared_place(&self, va: u64) -> Option<(usize, u64)> {
        let inner = self.inner.lock();
        let (start, region) = inner.regions.range(..=va).next_back()?;
        match &region.source {
            Source::Object(object, first) if va < region.end && region.is_shared => {
                Some((Arc::as_ptr(object).addr(), first * PAGE_U64 + (va - start)))
            }
            _ => None,
        }
    }

    /// Returns a reference to the frame of a page that the access may reach, mapped if it was not.
    pub(super) fn reach(&self, va: u64, access: Rights) -> Result<Frame> {
        loop {
            if let Some((frame, rights)) = self.inner.lock().table.frame(va)
                && rights.contains(access)
            {
                return Ok(frame);
            }
            self.fault(va, access).map_err(|_| Errno::FAULT)?;
        }
    }

    /// Writes bytes to a space that need not be this hart's, with the program's rights.
    ///
    /// # Errors
    /// `EFAULT`; the bytes before the first address that cannot be written are written.
    pub fn write(&self, va: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = va.checked_add(done as u64).filter(|at| *at < USER_END).ok_or(Errno::FAULT)?;
            let within = (at % PAGE_U64) as usize;
            let part = &bytes[done..done + (bytes.len() - done).min(PAGE - within)];
            self.reach(at, Rights::W)?.write(within, part);
            done += part.len();
        }
        Ok(())
    }

    /// Reads bytes of a space that need not be this hart's, with the program's rights.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn read(&self, va: u64, to: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < to.len() {
            let at = va.checked_add(done as u64).filter(|at| *at < USER_END).ok_or(Errno::FAULT)?;
            let within = (at % PAGE_U64) as usize;
            let count = (to.len() - done).min(PAGE - within);
            self.reach(at, Rights::R)?.read(within, &mut to[done..done + count]);
            done += count;
        }
        Ok(())
    }
}

/// The address of a new region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Any that is free; this one if it is.
    Anywhere(u64),
    /// This one, in place of what is there.
    Exactly(u64),
    /// This one, if nothing is there.
    IfFree(u64),
}

/// Where a region may move to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remap {
    /// It stays.
    InPlace,
    /// To any free address.
    Anywhere,
    /// To this address.
    To(u64),
}

fn range_end(start: u64, bytes: u64) -> Result<u64> {
    if start % PAGE_U64 != 0 {
        return Err(Errno::INVAL);
    }
    let end = start.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE_U64));
    end.filter(|end| *end <= USER_END).ok_or(Errno::INVAL)
}

/// Makes the content of a region of shared anonymous memory.
#[must_use]
pub fn shared_memory(bytes: u64) -> Source {
    Source::Object(Store::new(bytes.next_multiple_of(PAGE_U64)), 0)
}
