//! Flushes of other harts' TLBs when a VM's tables change.
//!
//! A VM has a generation, and a set of harts where it is live; each hart remembers the generation that it has fenced
//! for. A hart that edits the tables takes those harts out of the set that are not in the guest, counts the generation
//! up, and drives the rest out. A hart that finds another generation than its own before it enters says that the VM is
//! live there again, and fences. So a VM that others have had to do with costs them something once, and a VM that is
//! live on one hart costs the others nothing.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::hart::harts;
use crate::vm::{Translation, Vm};
use core::sync::atomic::Ordering;
use rv::{Fence, FenceScope, Gpa};

/// Makes all other harts forget translations of the VM: a hart that is in its guest leaves it, and a hart that enters
/// it fences first. The caller holds the VM's memory, so that no other hart does the same meanwhile, or is the last to
/// have to do with it.
#[inline(never)]
pub fn shoot_down<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) {
    let me = env.hart();
    let others = vm.tlb.live_on.load(Ordering::SeqCst) & !(1 << me);
    if others != 0 {
        // In this order: a hart that enters between these two steps is seen in the guest, and driven out.
        vm.tlb.live_on.fetch_and(!harts::outside(&g.harts, vm.slot(), others), Ordering::SeqCst);
        let generation = vm.tlb.generation.fetch_add(1, Ordering::SeqCst) + 1;
        env.fenced_for(vm.slot(), generation);
        g.harts[me].counters.shootdowns.bump();
        harts::drive_out(&g.harts, vm.slot(), env, others);
    }
    // This hart is about to forget them, too.
    g.harts[me].counters.fences.bump();
}

/// The TLBs of all harts, as far as one VM's translations are in them.
pub(crate) struct Tlbs<'a, E> {
    pub g: &'a Gnomon,
    pub vm: &'a Vm,
    /// The hart that edits the tables.
    pub env: &'a mut E,
}

impl<E: Env> Fence<Gpa> for Tlbs<'_, E> {
    fn fence(&mut self, scope: FenceScope<Gpa>) {
        let Self { g, vm, env } = self;
        shoot_down(g, vm, *env);
        if vm.translation != Translation::TwoStage {
            // What they hold leads from virtual to host addresses at once, so no scope of guest physical addresses tells what to
            // forget. The loaded guest may be another VM's.
            env.fence_shadows();
        }
        match vm.translation {
            // A guest of its own has other physical addresses.
            Translation::TwoStage if vm.collapses() => {
                env.fence_shadows();
                env.fence_g_stage(vm.slot(), FenceScope::Everything);
            }
            Translation::TwoStage if vm.config.nested => env.fence_g_stage(vm.slot(), FenceScope::Everything),
            Translation::TwoStage => env.fence_g_stage(vm.slot(), scope),
            Translation::Adaptive => env.fence_g_stage(vm.slot(), FenceScope::Everything),
            Translation::Shadow(_) => {}
        }
        // Pages may have been copied, as data; code may be among them. The others do the same when they enter.
        env.fence_instructions();
    }
}

/// Marks the VM as live on a hart, before any walk can happen there. Returns the generation that a hart without any
/// translation of the VM has fenced for.
pub fn arrive(vm: &Vm, hart: usize) -> u64 {
    // In this order: a shootdown that then takes this hart out of the set increments the generation after it was read
    // here, and the entry notices that.
    let generation = vm.tlb.generation.load(Ordering::SeqCst);
    vm.tlb.live_on.fetch_or(1 << hart, Ordering::SeqCst);
    generation
}

/// Returns the VM's generation, if the hart has fenced for another: it is to fence before it enters. The VM is live
/// there from now on.
pub fn behind(vm: &Vm, hart: usize, fenced: u64) -> Option<u64> {
    (vm.tlb.generation.load(Ordering::SeqCst) != fenced).then(|| arrive(vm, hart))
}
