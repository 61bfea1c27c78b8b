//! What a guest's `satp` (or `hgatp`) says, and the root that a vCPU has for it.

use crate::shadow::Shadowed;
use crate::shadow::pages::Id;
use core::marker::PhantomData;
use rv::{Asid, Format, Gpa, Gva, Hpa, Pfn};

/// What the guest's `satp` (or `hgatp`) says, but for the ASID (or VMID).
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
    /// The same with the root aligned, as the register has it.
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
    /// What `satp` is to lead to.
    pub table: Pfn<Hpa>,
    /// How hardware is to walk it.
    pub format: &'static Format,
    /// What the guest asked for.
    pub paging: Paging,
    /// The guest's ASID for it.
    pub asid: Asid,
    /// Whether its entries are shadows of a guest's table, so that the lane may walk it.
    pub has_lane: bool,
    /// Whether the guest is to get its page faults itself while this is its root.
    pub steers: bool,
    /// Whether leaves below it may be global.
    pub globals: bool,
    pub(super) space: PhantomData<S>,
}
