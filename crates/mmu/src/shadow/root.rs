//! The contents of a guest's `satp` (or `hgatp`), and the root that a vCPU has for them.

use crate::shadow::Shadowed;
use crate::shadow::pages::Id;
use core::marker::PhantomData;
use rv::{Asid, Format, Gpa, Gva, Hpa, L2Gva, Pfn};

/// The contents of the guest's `satp` (or `hgatp`), except the ASID (or VMID).
#[derive(Clone, Copy, Debug)]
pub enum Paging {
    /// Off: guest virtual is guest physical.
    Bare,
    /// Tables.
    Tables {
        /// Their format.
        format: &'static Format,
        /// The root's first frame. Where a root has several, its number is taken as aligned to that (norm:hgatp-ppn_op).
        root: Pfn<Gpa>,
    },
}

impl PartialEq for Paging {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Paging::Bare, Paging::Bare) => true,
            // A format is known by its mode: `satp` has nothing else.
            (Paging::Tables { format, root }, Paging::Tables { format: other, root: others }) => {
                root == others && format.mode == other.mode
            }
            _ => false,
        }
    }
}

impl Eq for Paging {}

impl Paging {
    /// Returns the same paging with the root aligned, as the register has it.
    #[inline(always)]
    pub(super) fn aligned<S: Shadowed>(self) -> Self {
        match self {
            Paging::Tables { format, root } => Paging::Tables { format, root: root.align_down(S::ROOT_FRAMES as u64) },
            Paging::Bare => self,
        }
    }
}

/// A root in use by a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root<S: Shadowed = Gva> {
    /// The shadow page of its first frame.
    pub(super) id: Id,
    /// Names the root among all that the VM ever had.
    pub serial: u64,
    /// The table that `satp` is to name.
    pub table: Pfn<Hpa>,
    /// The format by which hardware is to walk it.
    pub format: &'static Format,
    /// The paging that the guest asked for.
    pub paging: Paging,
    /// The guest's ASID for it.
    pub asid: Asid,
    /// Set if its entries are shadows of a guest's table, so that the lane may walk it.
    pub has_lane: bool,
    /// Set if page faults are to be delegated to the guest while this is its root.
    pub steers: bool,
    /// Set if leaves below it may be global.
    pub globals: bool,
    pub(super) space: PhantomData<S>,
}

impl Root<L2Gva> {
    /// Returns the root as hardware has it, which knows of one stage only.
    #[must_use]
    pub const fn as_guest_virtual(&self) -> Root {
        let Self { id, serial, table, format, paging, asid, has_lane, steers, globals, .. } = *self;
        Root { id, serial, table, format, paging, asid, has_lane, steers, globals, space: PhantomData }
    }
}
