//! Work of a hart that has no vCPU to run, in portions: for as long as there is some, the hart does not wait.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::life::lifecycle;
use crate::vm::Departure;
use abi::record::EndReason;
use abi::tunable::Id;
use core::sync::atomic::Ordering::Relaxed;

/// Does a portion of whatever there is. Returns whether the hart is to call it again before it waits.
pub fn go_on<E: Env>(g: &Gnomon, env: &mut E) -> bool {
    let others = lifecycle::go_on(g, env) | page(g, env) | g.promoter.go_on(g, env);
    others || make_zeroes(g, env)
}

/// Does a portion of paging ([`Pager::go_on`]), and ends the VMs for which there is no memory. Returns whether there was anything to do.
///
/// [`Pager::go_on`]: crate::pager::Pager::go_on
pub fn page<E: Env>(g: &Gnomon, env: &mut E) -> bool {
    let did_some = g.pager.go_on(g, env);
    for (vm, message) in g.pager.take_doomed() {
        if let Some(vm) = g.vms.get(vm) {
            lifecycle::depart(g, &vm, Departure::End(EndReason::Killed { message }), env);
        }
    }
    did_some
}

/// Keeps 2 MiB of zeroes ready for guests' first touches, unless memory is being taken back, or given by whole GiB.
fn make_zeroes<E: Env>(g: &Gnomon, env: &mut E) -> bool {
    let is_unwanted = g.pager.has_work() || g.chores.gigapages.load(Relaxed) != 0;
    !is_unwanted && g.harts[env.hart()].frames.make_zeroed(g.tunables.get(Id::ZeroPool), &mut env.mem())
}
