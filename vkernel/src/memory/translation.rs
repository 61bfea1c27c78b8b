//! The translation of programs' spaces on harts: by the kernel itself, or by calls of Gnomon's ([`abi::vmspace`]).
//!
//! | way | a space has | a change of spaces | an edit |
//! |---|---|---|---|
//! | `direct` | an ASID | `satp` | `sfence.vma`, and a call of the firmware for other harts |
//! | `nested` | a handle | SWITCH | INVALIDATE |
//! | `soft` | a handle | none: RUN names the space | INVALIDATE |

use super::frames::PAGE;
use super::space::Space;
use crate::machine::{self, MAX_HARTS};
use crate::sync::Mutex;
use abi::vmspace::Way;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

static WAY: AtomicU8 = AtomicU8::new(Way::Direct as u8);
/// The number of the space that each hart has; 0 is none.
static CURRENT: [AtomicU64; MAX_HARTS] = [const { AtomicU64::new(0) }; MAX_HARTS];
/// Those spaces: one stays while a hart has it.
static HELD: [Mutex<Option<Arc<Space>>>; MAX_HARTS] = [const { Mutex::new(None) }; MAX_HARTS];
/// Harts that translate at all: a bit for each index.
static ONLINE: AtomicU64 = AtomicU64::new(0);
/// The handle of the kernel's own table.
static KERNEL: AtomicU64 = AtomicU64::new(0);
static ASIDS: Mutex<Asids> = Mutex::new(Asids { mask: 0, next: 0, used: Vec::new(), clean: Vec::new() });
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns the way in which programs' spaces are translated.
#[must_use]
pub fn way() -> Way {
    Way::from_number(WAY.load(Ordering::Relaxed)).unwrap_or_default()
}

/// Sets the way, before there is a space.
pub fn choose(way: Way) {
    WAY.store(way as u8, Ordering::Relaxed);
    if way == Way::Nested {
        KERNEL.store(machine::create_space(machine::kernel_root()).unwrap_or(0), Ordering::Relaxed);
    }
}

/// ASIDs. One that a space has given back may have translations on any hart until all harts are fenced.
#[derive(Debug)]
struct Asids {
    mask: u16,
    next: u16,
    used: Vec<u16>,
    clean: Vec<u16>,
}

/// Says that this hart runs programs, and with which ASIDs.
pub fn go_online(asid_mask: u16) {
    ONLINE.fetch_or(1 << machine::hart_index(), Ordering::SeqCst);
    ASIDS.lock().mask = asid_mask;
}

impl Asids {
    /// Returns an ASID without translations; 0 if the harts have none.
    fn take(&mut self) -> u16 {
        if self.next < self.mask {
            self.next += 1;
            return self.next;
        }
        if self.clean.is_empty() && !self.used.is_empty() {
            machine::fence_all();
            let others = ONLINE.load(Ordering::SeqCst) & !own();
            for asid in &self.used {
                machine::fence_harts(others, *asid, 0, u64::MAX);
            }
            self.clean.append(&mut self.used);
        }
        self.clean.pop().unwrap_or(0)
    }
}

/// The bit of this hart.
fn own() -> u64 {
    1 << machine::hart_index()
}

/// A space, as harts know it.
#[derive(Debug)]
pub struct Translation {
    /// Never 0, never used again.
    id: u64,
    asid: u16,
    handle: u64,
    root: u64,
    /// Harts that may have translations of the space: a bit for each index.
    harts: AtomicU64,
}

impl Translation {
    /// Makes one of a table; `None` if there are as many as there may be.
    #[must_use]
    pub fn new(root: u64) -> Option<Self> {
        let (asid, handle) = match way() {
            Way::Direct => (ASIDS.lock().take(), 0),
            _ => (0, machine::create_space(root)?),
        };
        let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Some(Self { id, asid, handle, root, harts: AtomicU64::new(0) })
    }

    /// Returns a number that no other space has or had.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the handle by which Gnomon knows the space.
    #[must_use]
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns the harts, by index, that may have translations of the space.
    #[must_use]
    pub fn harts(&self) -> u64 {
        self.harts.load(Ordering::SeqCst)
    }

    /// Makes a page usable on this hart that had fewer rights, or none. Others see it by a fault.
    pub fn renew(&self, va: u64) {
        match way() {
            Way::Direct => machine::fence(Some(self.asid), Some(va)),
            // The ASID is Gnomon's.
            Way::Nested => machine::fence(None, Some(va)),
            // Gnomon looks at the tables before it lets a program fault.
            Way::Soft => {}
        }
    }

    /// Fences a range on all harts that may have translations of it. A space that only this hart runs needs no other one.
    pub fn fence(&self, start: u64, end: u64) {
        const FEW: u64 = 32;
        if way() != Way::Direct {
            machine::invalidate_space(self.handle, start, end - start);
            return;
        }
        let pages = (end - start) / PAGE as u64;
        if pages <= FEW {
            (0..pages).for_each(|page| machine::fence(Some(self.asid), Some(start + page * PAGE as u64)));
        } else {
            machine::fence(Some(self.asid), None);
        }
        let others = self.harts() & !own();
        if others == 0 {
            return;
        }
        let mut left = others;
        while left != 0 {
            let hart = left.trailing_zeros() as usize;
            left &= left - 1;
            // A hart that runs other spaces has nothing left after this fence. One that turns to this space meanwhile sets its bit behind
            // the store that is read here.
            if CURRENT[hart].load(Ordering::SeqCst) != self.id {
                self.harts.fetch_and(!(1 << hart), Ordering::SeqCst);
                if CURRENT[hart].load(Ordering::SeqCst) == self.id {
                    self.harts.fetch_or(1 << hart, Ordering::SeqCst);
                }
            }
        }
        machine::fence_harts(others, self.asid, start, end - start);
    }
}

impl Drop for Translation {
    fn drop(&mut self) {
        if self.handle != 0 {
            machine::destroy_space(self.handle);
        }
        if self.asid != 0 {
            ASIDS.lock().used.push(self.asid);
        }
    }
}

/// Makes this hart translate by a space.
pub fn activate(space: &Arc<Space>) {
    let hart = machine::hart_index();
    let translation = space.translation();
    if CURRENT[hart].load(Ordering::Relaxed) == translation.id {
        return;
    }
    // In this order: see `fence`.
    CURRENT[hart].store(translation.id, Ordering::SeqCst);
    translation.harts.fetch_or(1 << hart, Ordering::SeqCst);
    match way() {
        Way::Direct => {
            load(translation.root, translation.asid);
            if translation.asid == 0 {
                machine::fence_all();
            }
        }
        Way::Nested => machine::switch_space(translation.handle),
        Way::Soft => {}
    }
    let before = HELD[hart].lock().replace(Arc::clone(space));
    drop(before);
}

/// Makes this hart translate by the kernel's own table, if it has a space.
pub fn leave() {
    let hart = machine::hart_index();
    if CURRENT[hart].swap(0, Ordering::SeqCst) == 0 {
        return;
    }
    match way() {
        Way::Direct => load(machine::kernel_root(), 0),
        Way::Nested => machine::switch_space(KERNEL.load(Ordering::Relaxed)),
        Way::Soft => {}
    }
    let before = HELD[hart].lock().take();
    drop(before);
}

#[cfg(feature = "machine")]
#[expect(unsafe_code, reason = "what translates changes")]
fn load(root: u64, asid: u16) {
    // SAFETY: each table of a space maps the kernel, as the kernel's own does, and `HELD` keeps the space.
    unsafe { machine::set_space(root, asid) };
}

#[cfg(not(feature = "machine"))]
fn load(_root: u64, _asid: u16) {}
