//! What is asked of an upkeep.

use super::super::config::Host;
use super::super::engine::Shadow;
use super::super::page::At;
use super::super::passed::Mappings;
use super::super::root::Root;
use super::super::shadowed::Shadowed;
use rv::{Fence, Gpa, PhysMem};

/// An upkeep.
pub(super) trait Rules {
    /// Whether a guest table is write-protected from its first shadow on. If not, none ever is.
    const PROTECTS: bool;
    /// Whether the lane may take fences.
    const HAS_LANE: bool;
    /// Whether the first store to a protected table lets it go, where it could be emulated. `are_leaves`: it is a table of
    /// leaves wherever it is used.
    fn lets_go(are_leaves: bool) -> bool;
    /// A fence by address arrives at a live entry that is no pointer to a table.
    fn fence_entry<S: Shadowed, M: PhysMem, H: Fence<Gpa>>(shadow: &mut Shadow<S>, at: At, host: &mut Host<'_, M, H>);
    /// A fence of everything that a root leads to.
    fn fence_root<S: Shadowed, M: PhysMem, H: Fence<Gpa>>(
        shadow: &mut Shadow<S>,
        root: &Root<S>,
        mappings: Mappings,
        host: &mut Host<'_, M, H>,
    );
}
