//! `lazy`: no table is protected. A fence by address invalidates an entry, which the next access fills from what the
//! guest's table says then; a wide fence compares all that the root leads to, at once.

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
    const PROTECTS: bool = false;
    const HAS_LANE: bool = true;

    fn lets_go(_: bool) -> bool {
        true
    }

    fn fence_entry<S: Shadowed, M: PhysMem, H: Fence<Gpa>>(shadow: &mut Shadow<S>, at: At, host: &mut Host<'_, M, H>) {
        shadow.invalidate(at, host);
    }

    fn fence_root<S: Shadowed, M: PhysMem, H: Fence<Gpa>>(
        shadow: &mut Shadow<S>,
        root: &Root<S>,
        _: Mappings,
        host: &mut Host<'_, M, H>,
    ) {
        shadow.sync_root(root, Mappings::All, host);
    }
}
