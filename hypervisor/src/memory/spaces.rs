//! The roots of address spaces that a kernel has named ([`crate::vm::spaces`]): the `satp` by which a hart translates while its vCPU runs one, and the
//! fences after a change of a space's page tables.
//!
//! A space has an ASID of its own, by its slot: of the highest that there are, for kernels count theirs from the lowest on. On shadow tables, whose
//! ASIDs are virtual, each vCPU's view of the space has it. Behind a G-stage the hart's TLB has it; where the hart has too few ASIDs, a space has
//! none, and each entry to it fences.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::hart::harts;
use crate::memory::shadow::roots;
use crate::vm::Translation;
use crate::vm::outcome::Outcome;
use crate::vm::spaces::{Fences, Reach};
use crate::vm::vcpu::{NOWHERE, VcpuRun, request};
use abi::vmspace::{MOST_SPACES, Way};
use core::sync::atomic::Ordering;
use mmu::shadow::GuestFence;
use rv::csr::atp::{ID_SHIFT, Satp};
use rv::{Addr, Asid, Gpa, Gva};

/// The bits of ASIDs on shadow tables.
const VIRTUAL_ASID_BITS: u32 = 16;
/// The most fences that a vCPU is sent for one list; more are one of the whole space.
const MOST_POSTED: usize = 16;
/// The most pages of a list; more are the whole space.
pub(crate) const MOST_PAGES: u64 = 64;

/// A range of a space: its first address, and its length in bytes.
pub(crate) type Range = (Addr<Gva>, u64);

/// A change of a space's entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    /// The slot of the space.
    pub slot: u8,
    /// The changed ranges; `None`: all of the space.
    pub ranges: Option<&'a [Range]>,
    /// The fences that the change takes.
    pub fences: Fences,
}

impl Translation {
    /// Returns whether a kernel has that way to run its programs, whose VM is a hypervisor if `nested`.
    #[must_use]
    pub const fn has_way(self, way: Way, nested: bool) -> bool {
        match (way, self) {
            (Way::Direct, _) => true,
            (_, _) if nested => false,
            (Way::Nested, Self::TwoStage) | (Way::Soft, Self::Shadow(_)) => true,
            (Way::Nested | Way::Soft, _) => false,
        }
    }

    /// Returns the way in which other vCPUs learn of a change in a space.
    pub(crate) const fn reach_of_spaces(self) -> Reach {
        match self {
            Self::TwoStage => Reach::AtEntry,
            Self::Shadow(_) | Self::Adaptive => Reach::Posted,
        }
    }

    /// Returns the ASID of the space in that slot. `None`: there are too few.
    fn asid_of_space(self, slot: u8, hart_bits: u32) -> Option<Asid> {
        let bits = match self {
            Self::TwoStage => hart_bits.min(VIRTUAL_ASID_BITS),
            Self::Shadow(_) | Self::Adaptive => VIRTUAL_ASID_BITS,
        };
        // Half of them are left to the kernel.
        (1 << bits >= 2 * MOST_SPACES).then(|| Asid(((1u32 << bits) - 1 - u32::from(slot)) as u16))
    }
}

/// Returns the `satp` of the space in that slot, whose root is that.
pub(crate) fn satp_of<E: Env>(run: &VcpuRun, (slot, root): (u8, u64), env: &E) -> u64 {
    let asid = run.vm.translation.asid_of_space(slot, env.asid_bits()).unwrap_or(Asid(0));
    root | u64::from(asid.0) << ID_SHIFT
}

/// Returns the root that a kernel's `satp` value names, without its ASID. `None` if that is none: the format is not offered, or the table is not in
/// RAM.
pub(crate) fn root_of(g: &Gnomon, run: &VcpuRun, satp: u64) -> Option<u64> {
    let (format, root) = Satp::decode(satp).table::<Gpa>()?;
    let is_offered = g.offer.formats.iter().any(|offered| offered.mode == format.mode);
    let is_there = run.vm.in_ram(root.base().raw(), rv::PAGE_BYTES);
    (is_offered && is_there).then(|| rv::csr::atp::satp(format, Asid(0), root))
}

/// Gives a vCPU on shadow tables the root of that `satp`. Returns whether the vCPU has it: if that takes too long at once, the vCPU keeps the one that it
/// had, and each attempt does a part.
///
/// # Errors
/// How the vCPU goes on instead, if there is no memory for it.
pub(crate) fn change_root<E: Env>(g: &Gnomon, run: &mut VcpuRun, satp: u64, env: &mut E) -> Result<bool, Outcome> {
    run.follow_lane();
    roots::change(g, run, satp, env)
}

/// Gives a vCPU behind a G-stage the root of a space. `fence`: what its hart remembers of the space is out of date. Returns whether it has fenced.
pub(crate) fn switch<E: Env>(run: &VcpuRun, (slot, root): (u8, u64), fence: bool, env: &mut E) -> bool {
    let asid = run.vm.translation.asid_of_space(slot, env.asid_bits());
    env.set_guest_root(satp_of(run, (slot, root), env));
    // Only now: the hart may walk by the root at any time.
    let fence = fence || asid.is_none();
    if fence {
        env.fence_guest(None, Some(asid.unwrap_or(Asid(0))));
    }
    fence
}

/// Ends the run of a space by a vCPU that is about to be parked.
pub(crate) fn forget(run: &mut VcpuRun) {
    run.program = None;
    run.vm.tlb.spaces.lock().leave(run.shared.id);
}

/// Does the fences of a change: on this hart, and those of vCPUs that run the space.
pub(crate) fn fence<E: Env>(g: &Gnomon, run: &mut VcpuRun, change: &Change<'_>, env: &mut E) {
    let &Change { slot, ranges, fences } = change;
    if fences.own {
        each_fence(run.vm.translation, (slot, env.asid_bits()), ranges, |fence| {
            run.vm.translation.fence(g, run, &fence, env);
        });
    }
    let mut on_harts = 0u64;
    for vcpu in harts::each(fences.running.into()) {
        let hart = run.vm.vcpus[vcpu].hart.load(Ordering::SeqCst);
        if hart != NOWHERE {
            on_harts |= 1 << hart;
        }
    }
    if on_harts != 0 {
        harts::drive_out(&g.harts, run.vm.slot(), env, on_harts);
    }
}

/// Posts the fences of a change to the other vCPUs. The lock of the VM's spaces is held.
pub(crate) fn post<E: Env>(run: &VcpuRun, change: &Change<'_>, env: &E) {
    let ranges = change.ranges.filter(|ranges| ranges.len() <= MOST_POSTED);
    for vcpu in harts::each(change.fences.posted.into()) {
        let vcpu = &run.vm.vcpus[vcpu];
        let mut queue = vcpu.fences.lock();
        each_fence(run.vm.translation, (change.slot, env.asid_bits()), ranges, |fence| queue.push(fence));
        drop(queue);
        vcpu.posted.fetch_or(request::FENCES, Ordering::SeqCst);
    }
}

/// Calls `act` with each fence of the space in that slot.
fn each_fence(
    translation: Translation,
    (slot, hart_bits): (u8, u32),
    ranges: Option<&[Range]>,
    mut act: impl FnMut(GuestFence),
) {
    let asid = translation.asid_of_space(slot, hart_bits);
    let Some(ranges) = ranges else {
        return act(GuestFence { range: None, asid: Some(asid.unwrap_or(Asid(0))) });
    };
    // On shadow tables a fence by address and ASID puts all of another root out of date. One without an ASID is logged: the root catches up with
    // those pages.
    let asid = if translation == Translation::TwoStage { Some(asid.unwrap_or(Asid(0))) } else { None };
    for range in ranges {
        act(GuestFence { range: Some(*range), asid });
    }
}
