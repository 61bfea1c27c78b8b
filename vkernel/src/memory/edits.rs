//! Edits of spaces: the calls by which programs map, protect and move memory, and the copy of a space for a fork.

use super::frames::PAGE;
use super::region::{Name, Region};
use super::space::{Edit, Inner, LEAST, Space, TOP};
use super::table::{NoTable, Rights, USER_END};
use crate::errno::{Errno, Result};
use alloc::sync::Arc;
use alloc::vec::Vec;

const PAGE_U64: u64 = PAGE as u64;

impl Space {
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
    /// `EACCES` for the right to store to what may only be read.
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
                if rights.contains(Rights::W) && !region.may_store {
                    return Err(Errno::ACCES);
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
                let but = if region.is_shared { Rights::empty() } else { Rights::W };
                match table.share((*begin, region.end), but, &mut new.table) {
                    Ok(None) => {}
                    Ok(Some((first, last))) => (start, end) = (start.min(first), end.max(last + PAGE_U64)),
                    Err(NoTable) => {
                        // Some may have lost the right.
                        (start, end) = (start.min(*begin), end.max(region.end));
                        no_memory = true;
                        break;
                    }
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

/// The addresses that a region may move to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remap {
    /// The region stays.
    InPlace,
    /// To any free address.
    Anywhere,
    /// To this address.
    To(u64),
}

fn range_end(start: u64, bytes: u64) -> Result<u64> {
    if !start.is_multiple_of(PAGE_U64) {
        return Err(Errno::INVAL);
    }
    let end = start.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE_U64));
    end.filter(|end| *end <= USER_END).ok_or(Errno::INVAL)
}
