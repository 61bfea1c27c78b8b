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

pub use super::edits::{Place, Remap};
use super::frames::{Frame, Freed, PAGE};
use super::object::{NoPage, Object};
pub use super::region::{Name, Region, Source, shared_memory};
pub use super::table::{Rights, Table, USER_END};
use super::translation::{self, Translation};
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, MutexGuard, Once};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

const PAGE_U64: u64 = PAGE as u64;
/// The least address of a region: a null pointer with an offset stays a fault.
pub(super) const LEAST: u64 = 0x1_0000;
/// The end of the addresses that are chosen for regions without one. The stack is above.
pub(super) const TOP: u64 = USER_END - (1 << 30);
/// Pages of an object that a fault maps at most, if their frames are present.
const AROUND: u64 = 16;

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
    /// The host has to be asked for the page first.
    Host,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) table: Table,
    pub(super) regions: BTreeMap<u64, Region>,
    /// The heap that `brk` sets: its start and its end.
    pub(super) heap: (u64, u64),
}

/// An address space.
#[derive(Debug)]
pub struct Space {
    /// Before the tables, so that it is dropped before them.
    translation: Translation,
    pub(super) inner: Mutex<Inner>,
}

static ZEROES: Once<Frame> = Once::new();

pub(super) fn zeroes() -> Option<&'static Frame> {
    ZEROES.try_call_once(|| Frame::zeroed().ok_or(())).ok()
}

/// Pages that are to be fenced, and frames that are free afterwards.
pub(super) struct Edit<'a> {
    space: &'a Space,
    pub(super) inner: MutexGuard<'a, Inner>,
    pub(super) freed: Freed,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Edit<'_> {
    /// Records a page that had a leaf.
    pub(super) fn touch(&mut self, va: u64) {
        self.start = self.start.min(va);
        self.end = self.end.max(va + PAGE_U64);
    }

    pub(super) fn unmap(&mut self, start: u64, end: u64) {
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

    pub(super) fn edit(&self) -> Edit<'_> {
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
                inner
                    .table
                    .protect(va, if region.is_shared { region.rights } else { rights | region.without_stores() });
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
                    NoPage::Host => Refusal::Host,
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

    /// Maps a page for an access of the kernel's, unless it is mapped with that right.
    ///
    /// # Errors
    /// As [`Space::fault_here`].
    pub(super) fn ensure_here(&self, va: u64, access: Rights) -> core::result::Result<(), Refusal> {
        match self.ensure(va, access) {
            Err(Refusal::Host) => self.fault_here(va, access),
            result => result,
        }
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
            self.fault_here(va, access).map_err(|_| Errno::FAULT)?;
        }
    }

    /// Resolves a page fault of the kernel's. It polls for a page of the host, since a call may not be able to begin again where it accesses the
    /// program's memory.
    ///
    /// # Errors
    /// [`Refusal`] other than [`Refusal::Host`].
    pub(super) fn fault_here(&self, va: u64, access: Rights) -> core::result::Result<(), Refusal> {
        loop {
            match self.fault(va, access) {
                Err(Refusal::Host) => crate::share::ledger::settle_here(),
                result => return result,
            }
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
