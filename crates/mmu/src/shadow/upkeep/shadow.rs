//! `shadow`: each store to a guest table is an exit, which performs and mirrors it. What cannot be emulated lets the
//! table go until the next wide fence.

use super::super::config::{Host, Machine};
use super::super::engine::Shadow;
use super::super::page::{At, Id};
use rv::PhysMem;

pub(super) struct Rules;

impl super::Rules for Rules {
    const PROTECTS: bool = true;
    const HAS_LANE: bool = false;

    fn lets_go(_: bool) -> bool {
        false
    }

    fn fence_entry<M: PhysMem, H: Machine>(shadow: &mut Shadow, at: At, host: &mut Host<'_, M, H>) {
        shadow.catch_up_entry(at, host);
    }

    fn fence_root<M: PhysMem, H: Machine>(shadow: &mut Shadow, _: Id, host: &mut Host<'_, M, H>) {
        shadow.catch_up_all(host);
    }
}
