//! The address spaces of a guest's that can be shadowed, each translated by tables in its memory.

use crate::shadow::lower::{Lower, Stage};
use crate::two_stage;
use rv::format::{SV39, SV39X4};
use rv::{Access, Addr, Format, Gva, L2Gpa, L2Gva, Space, Trap};

/// An address space that shadow tables translate. One engine's tables are all of one.
pub trait Shadowed: Space {
    /// The format of the identity map, while the guest's own translation is off.
    const IDENTITY: &'static Format;
    /// Frames of a root, of every format that the space can have.
    const ROOT_FRAMES: usize = Self::IDENTITY.root_pages() as usize;
    /// Set if the lane may take fences: it knows `sfence.vma`, and roots of one frame.
    const HAS_LANE: bool;
    /// Set if leaves of its tables may serve in all address spaces (G).
    const HAS_GLOBALS: bool;
    /// Set if there is a stage below its tables: they lead to, and lie in, an address space that another table translates to the VM's.
    const COMPOSES: bool = Self::Lower::COMPOSES;
    /// The stage below.
    type Lower: Lower;

    /// The trap where the guest's tables refuse an access.
    fn page_fault(at: Addr<Self>, access: Access) -> Trap;

    /// The trap where they lead, or lie, where there is no memory.
    fn access_fault(at: Addr<Self>, access: Access) -> Trap;
}

impl Shadowed for Gva {
    type Lower = ();
    const IDENTITY: &'static Format = &SV39;
    const HAS_LANE: bool = true;
    const HAS_GLOBALS: bool = true;

    fn page_fault(at: Addr<Self>, access: Access) -> Trap {
        Trap::new(two_stage::page_fault(access), at.raw())
    }

    fn access_fault(at: Addr<Self>, access: Access) -> Trap {
        Trap::new(two_stage::access_fault(access), at.raw())
    }
}

/// A guest that is a hypervisor has a G-stage for its own guests: requests are as that sees them
/// ([`rv::Request::at_g_stage`]), an ASID is its VMID. Traps have a `tval` of 0, for only the caller knows the GVA.
impl Shadowed for L2Gpa {
    type Lower = ();
    const IDENTITY: &'static Format = &SV39X4;
    const HAS_LANE: bool = false;
    // Reserved there.
    const HAS_GLOBALS: bool = false;

    fn page_fault(at: Addr<Self>, access: Access) -> Trap {
        Trap { tval2: at.raw() >> 2, ..Trap::new(two_stage::guest_page_fault(access), 0) }
    }

    fn access_fault(_: Addr<Self>, access: Access) -> Trap {
        Trap::new(two_stage::access_fault(access), 0)
    }
}

/// The virtual addresses of a guest of a guest that is a hypervisor, by that one's G-stage table as well: one table leads from there to where the
/// hypervisor's memory is. Roots ([`crate::shadow::Paging`]) are named by that guest's own physical addresses, as its `vsatp` has them.
impl Shadowed for L2Gva {
    type Lower = Stage;
    const IDENTITY: &'static Format = &SV39;
    const HAS_LANE: bool = false;
    const HAS_GLOBALS: bool = false;

    fn page_fault(at: Addr<Self>, access: Access) -> Trap {
        Trap::new(two_stage::page_fault(access), at.raw())
    }

    fn access_fault(at: Addr<Self>, access: Access) -> Trap {
        Trap::new(two_stage::access_fault(access), at.raw())
    }
}
