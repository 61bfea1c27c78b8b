//! What a hart does that has no vCPU to run, in portions: for as long as there is something, it does not wait.

use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::lifecycle;
use abi::tunable::Id;
use core::sync::atomic::Ordering::Relaxed;

/// Does a portion of whatever there is. Returns whether the hart is to call it again before it waits.
pub fn go_on<E: Env>(g: &Gnomon, env: &mut E) -> bool {
    let others = lifecycle::go_on(g, env) | g.pager.go_on(g, env) | g.promoter.go_on(g, env);
    others || make_zeroes(g, env)
}

/// Keeps 2 MiB of zeroes ready for guests' first touches, unless memory is being taken back, or given by whole GiB.
fn make_zeroes<E: Env>(g: &Gnomon, env: &mut E) -> bool {
    let is_unwanted = g.pager.has_work() || g.chores.gigapages.load(Relaxed) != 0;
    !is_unwanted && g.harts[env.hart()].frames.make_zeroed(g.tunables.get(Id::ZeroPool), &mut env.mem())
}
