//! The services that the exit path needs from its hart for guests that are hypervisors (L1), and their guests (L2).

use crate::vm::vcpu::{Nested, VcpuRun};
use rv::{Addr, L2Gpa};

/// The hart that handles an exit, as far as it runs L1 and L2 by turns. A part of [`crate::hart::env::Env`].
pub trait Worlds {
    /// Prepares for L2 of the loaded vCPU, which is a hypervisor: L2's tables translate, behind the shadow of its G-stage that the vCPU has
    /// a root of, and its `vsatp` is loaded. Nothing that is not L2's stays in the TLB under its tags.
    fn load_nested(&mut self, run: &mut VcpuRun);
    /// Removes translations of L2 by the vCPU's present root from this hart's TLB: those of one page, or all.
    fn fence_nested(&mut self, nested: &mut Nested, page: Option<Addr<L2Gpa>>);
    /// Removes translations by L2's own tables from this hart's TLB, for L1's VMID of them or for all.
    fn forget_nested(&mut self, nested: &mut Nested);
    /// Gives the hart the vCPU's root of collapsed tables for L2, which is loaded.
    fn load_collapsed(&mut self, run: &mut VcpuRun);
    /// Leaves the hart without L2's root, which is collapsed tables': L2 is not entered before it has another.
    fn leave_root(&mut self);
    /// Exchanges the loaded guest's CSRs, root included, for those of its other world; `scounteren` and `senvcfg` are common to both. The
    /// hart runs the guest for `world` from now on.
    fn change_world(&mut self, run: &mut VcpuRun);
    /// Makes the hart run the loaded guest's world as [`Nested::world`] says now: its rights have changed, not the world.
    fn set_world(&mut self, run: &VcpuRun);
    /// Returns whether L2 runs, and its comparator is Gnomon's to watch: where guests run in S mode.
    fn watches_l2(&self) -> bool;
    /// Returns L2's comparator, in L2's time, where Gnomon watches that.
    fn watched_comparator(&self) -> u64;
    /// Sets it.
    fn set_watched_comparator(&mut self, at: u64);
    /// Raises or lowers L2's timer interrupt, where Gnomon watches its comparator.
    fn set_timer_of_l2(&mut self, high: bool);
    /// Returns L1's interrupts that are pending while L2 runs, whether or not they are enabled, by their bits in `hvip`.
    fn held_interrupts(&self) -> u64;
    /// Returns L2's pending interrupts, while it runs, by their bits in `hip`.
    fn undelegated_interrupts(&self) -> u64;
}
