//! The tags of a hart's TLB: VMIDs, and ASIDs of shadow roots.

use crate::guest::HOLE_VMID;
use abi::bundle::MAX_VMS;
use alloc::vec::Vec;
use mmu::globals::Globals;
use mmu::ids::{Group, Ids};

/// The VM that has a slot, or that the hart saw there last. An entry finds it by a shift.
#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// Its number; `u64::MAX` if none was seen there.
    pub(super) vm: u64,
    /// Its vCPUs' VMIDs on this hart.
    pub(super) vmids: Group,
    /// The TLB generation that this hart has fenced for.
    pub(super) fenced: u64,
}

impl View {
    /// Makes the tags of a VM that has not been on this hart.
    pub(super) const fn of(vm: u64, generation: u64) -> Self {
        Self { vm, vmids: Group::new(), fenced: generation }
    }
}

/// The tags of the hart's TLB.
pub(super) struct Tags {
    /// VMIDs, of vCPUs behind a G-stage.
    pub(super) vmids: Ids,
    /// The VMs, by slot.
    pub(super) views: Vec<View>,
    /// ASIDs of shadow roots: each vCPU has its own.
    pub(super) asids: Ids,
    /// Bits of ASIDs that the hart's registers have.
    pub(super) asid_bits: u32,
    /// Global translations by shadow tables.
    pub(super) globals: Globals,
}

impl Tags {
    /// Makes the tags of a hart that has run no guest. `vmid_bits` and `asid_bits` are those of its registers, of which
    /// `id_bits` are used.
    pub(super) fn new(vmid_bits: u32, asid_bits: u32, id_bits: u32) -> Self {
        Self {
            // Lower ones are those of guests on shadow tables.
            vmids: Ids::new(HOLE_VMID.0 + 1, vmid_bits),
            asids: Ids::new(1, asid_bits.min(id_bits)),
            asid_bits,
            globals: Globals::new(),
            views: alloc::vec![View::of(u64::MAX, 0); MAX_VMS],
        }
    }
}
