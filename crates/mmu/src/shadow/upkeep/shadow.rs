//! `shadow`: each store to a guest table is an exit, which performs and mirrors it. What cannot be emulated lets the
//! table go until the next wide fence.

use super::super::config::Host;
use super::super::engine::Shadow;
use super::super::page::At;
use super::super::passed::Mappings;
use super::super::root::Root;
use super::super::shadowed::Shadowed;
use super::rules;
use rv::{Fence, Gpa, PhysMem};

pub(super) struct Rules;

impl rules::Rules for Rules {
    const PROTECTS: bool = true;
    const HAS_LANE: bool = false;

    fn lets_go(_: bool) -> bool {
        false
    }

    fn fence_entry<S: Shadowed, M: PhysMem, H: Fence<Gpa>>(shadow: &mut Shadow<S>, at: At, host: &mut Host<'_, M, H>) {
        shadow.catch_up_entry(at, host);
    }

    fn fence_root<S: Shadowed, M: PhysMem, H: Fence<Gpa>>(
        shadow: &mut Shadow<S>,
        root: &Root<S>,
        _: Mappings,
        host: &mut Host<'_, M, H>,
    ) {
        shadow.catch_up_all(root, host);
    }
}
