//! What a guest's `satp` says, and the root that a vCPU has for it.

use super::page::Id;
use rv::{Asid, Format, Gpa, Hpa, Pfn};

/// What the guest's `satp` says, but for the ASID.
#[derive(Clone, Copy, Debug)]
pub enum Paging {
    /// Off: guest virtual is guest physical.
    Bare,
    /// Tables.
    Tables {
        /// Their format.
        format: &'static Format,
        /// The root.
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

/// A root in use by a vCPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
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
}
