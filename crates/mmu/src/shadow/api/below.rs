//! The stage below the tables of an engine that has one ([`crate::shadow::lower`]).

use crate::shadow::lower::{Below, Stage};
use crate::shadow::{GuestFence, Host, Lower, Paging, Root, Sabotage, Shadow, Shadowed, Views};
use crate::walk::AdPolicy;
use lane::FenceLog;
use rv::{Addr, Fence, Gpa, L2Gpa, Pfn, PhysMem};

/// Sets the stage below of the engine's next operations, as the vCPU that they are for has it; and the setter of A and D in the tables above.
pub fn go_by<S: Shadowed<Lower = Stage>>(engine: &mut Shadow<S>, stage: Paging, vs_ad: AdPolicy) {
    let tables = &mut engine.filler.syncer.cache.tables;
    let table = match stage {
        Paging::Bare => None,
        Paging::Tables { format, root } => Some((format, root.align_down(format.root_pages()))),
    };
    let below = Below { table };
    let mistakes = tables.rules.is_sabotaged(Sabotage::MistakesContexts);
    tables.index.context = if mistakes { 1 } else { below.context() };
    tables.lower.begin(below, vs_ad, tables.rules.is_sabotaged(Sabotage::KeepsNear));
}

/// Returns whether the root is the shadow of the table to which its paging leads by the stage below, as that is now. If not, the vCPU needs
/// another.
#[must_use]
pub fn is_current<S: Shadowed<Lower = Stage>, M: PhysMem, H>(
    engine: &Shadow<S>,
    root: &Root<S>,
    host: &Host<'_, M, H>,
) -> bool {
    engine.filler.is_current(root, host)
}

/// Does a fence of the stage below, on the vCPU whose root this is: of a range of its addresses, with its length in bytes, or all. Returns whether
/// TLBs of its hart may have something that it ends.
pub fn fence_below<S: Shadowed<Lower = Stage>, M: PhysMem, H: Fence<Gpa>>(
    engine: &mut Shadow<S>,
    range: Option<(Addr<L2Gpa>, u64)>,
    (root, views, log): (Root<S>, &mut Views<S>, &mut FenceLog<S>),
    host: &mut Host<'_, M, H>,
) -> bool {
    let pages = GuestFence { range, asid: None };
    let tables = &engine.filler.syncer.cache.tables;
    let forgets = tables.rules.is_sabotaged(Sabotage::ForgetsUses);
    let is_used = |page: Addr<L2Gpa>| !forgets && tables.lower.has_used(page.pfn(), tables.index.context);
    let is_about_others = pages.pages().is_some_and(|mut pages| !pages.any(is_used));
    if is_about_others || tables.rules.is_sabotaged(Sabotage::ForgetsBelow) {
        return false;
    }
    if let Some(pages) = pages.pages()
        && ends_by_frames(engine, pages.map(Addr::pfn), host)
    {
        return true;
    }
    let tables = &engine.filler.syncer.cache.tables;
    if !tables.rules.is_sabotaged(Sabotage::ForgetsChanges) {
        engine.cache().tables.lower.change();
    }
    engine.fence(&GuestFence { range: None, asid: None }, root, views, log, host);
    if !engine.filler.is_current(&root, host) && !engine.rules().is_sabotaged(Sabotage::KeepsMovedRoots) {
        engine.filler.empty_root(&root, host);
        engine.cache().conclude(host);
    }
    true
}

/// Ends what was made by the stage's entries for these pages, if it is known where they were and no table of L2's was there: that is found by the
/// frame. Returns whether that was all.
fn ends_by_frames<S: Shadowed<Lower = Stage>, M: PhysMem, H: Fence<Gpa>>(
    engine: &mut Shadow<S>,
    mut pages: impl Iterator<Item = Pfn<L2Gpa>>,
    host: &mut Host<'_, M, H>,
) -> bool {
    let cache = engine.cache();
    let is_all = pages.all(|page| {
        let (lower, context) = (&cache.tables.lower, cache.tables.index.context);
        if !lower.has_used(page, context) {
            return true;
        }
        let frame = lower.frame_used(page, context).filter(|frame| !cache.is_shadowed(*frame, host.mem));
        let leaves = cache.tables.rules.is_sabotaged(Sabotage::LeavesFrames);
        frame.is_some_and(|frame| leaves || cache.forget_ahead(frame, host))
    });
    cache.conclude(host);
    is_all
}
