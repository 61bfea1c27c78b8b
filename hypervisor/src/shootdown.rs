//! Other harts' TLBs, when a VM's tables change.

use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::harts;
use crate::vm::Vm;
use core::sync::atomic::Ordering;

/// Makes all other harts forget translations of the VM: whoever is in its guest leaves it, whoever enters it fences first.
#[inline(never)]
pub fn shoot_down<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) {
    let me = env.hart();
    let others = vm.live_on.load(Ordering::SeqCst) & !(1 << me);
    if others != 0 {
        let generation = vm.tlb_generation.fetch_add(1, Ordering::SeqCst) + 1;
        env.fenced_for(vm.slot(), generation);
        g.harts[me].counters.shootdowns.bump();
        harts::drive_out(&g.harts, vm.slot(), env, others);
    }
    // This hart is about to forget them, too.
    g.harts[me].counters.fences.bump();
}
