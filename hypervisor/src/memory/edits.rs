//! Gnomon's own edits of a VM's memory ([`mmu::edits`]): memory that goes for a time and comes back, and small pages that become large ones. They are the
//! same whatever translates the VM's addresses.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::shootdown::Tlbs;
use crate::pager::Portion;
use crate::vm::{Locked, Memory, Vm};
use core::ops::Range;
use mmu::frames::Run;
use mmu::gstage::{Comes, Ready, Returned, Span, SwapSlot};
use mmu::shadow::Host;
use mmu::{Collected, Edits, Promoted, Promotion};
use rv::{Gpa, Pfn};

/// Lends the VM's memory until the lock is given back. `None` if the VM has no memory any more.
fn edit<E: Env, R>(
    (g, vm, mut guard): (&Gnomon, &Vm, Locked<'_>),
    env: &mut E,
    to: impl FnOnce(&mut Edits<'_, '_, E::Mem, Tlbs<'_, E>>) -> R,
) -> Option<R> {
    let Memory { space, shadow, nested, collapsed } = guard.as_mut()?;
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    // The lane is kept out.
    shadow.iter_mut().for_each(|shadow| shadow.close(&mut mem));
    nested.iter_mut().for_each(|nested| nested.close(&mut mem));
    collapsed.iter_mut().for_each(|collapsed| collapsed.close(&mut mem));
    let (mut ready, mut hw) = (Ready::Nothing, Tlbs { g, vm, env });
    let host = &mut Host::new(space, (frames, &mut ready), &mut mem, &mut hw);
    let (shadow_of, nested_of, collapsed_of) = (shadow.as_mut(), nested.as_mut(), collapsed.as_mut());
    let result = to(&mut Edits { shadow: shadow_of, nested: nested_of, collapsed: collapsed_of, host });
    shadow.iter_mut().for_each(|shadow| shadow.open(&mut mem));
    nested.iter_mut().for_each(|nested| nested.open(&mut mem));
    collapsed.iter_mut().for_each(|collapsed| collapsed.open(&mut mem));
    g.pager.forgo_all(space);
    Some(result)
}

/// Does a part of a sweep through the VM's memory, from a page on up to another. Returns whether more pages can go.
pub(crate) fn sweep<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    (at, end): (&mut Pfn<Gpa>, Pfn<Gpa>),
    portion: &mut Portion,
    env: &mut E,
) -> bool {
    let swept = edit((g, vm, vm.memory.lock()), env, |edits| g.pager.sweep(vm, edits, (&mut *at, end), portion));
    swept.unwrap_or_else(|| {
        *at = end;
        true
    })
}

/// Takes those originals that have these homes from the VM, which gets them again at the next touch. Returns which it keeps, a
/// bit for each.
pub(crate) fn rest_originals<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    homes: Range<u64>,
    portion: &mut Portion,
    env: &mut E,
) -> u64 {
    edit((g, vm, vm.memory.lock()), env, |edits| g.pager.rest_shown(edits, homes, portion)).unwrap_or(0)
}

/// Collects pages that have changed, so many runs of them at most. `None` if the VM has no memory any more.
pub(crate) fn collect<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    range: (Pfn<Gpa>, Pfn<Gpa>),
    is_first: bool,
    most: usize,
    env: &mut E,
) -> Option<Collected> {
    edit((g, vm, vm.memory.lock()), env, |edits| edits.collect(range, is_first, most))
}

/// Does a portion of making one large page of small ones.
pub(crate) fn promote<E: Env>(g: &Gnomon, vm: &Vm, promotion: &mut Promotion, env: &mut E) -> Promoted {
    edit((g, vm, vm.memory.lock()), env, |edits| edits.promote(promotion)).unwrap_or(Promoted::Not)
}

/// Makes one leaf of 1 GiB of those around `page`, if it can be.
pub(crate) fn join<E: Env>(g: &Gnomon, vm: &Vm, page: Pfn<Gpa>, env: &mut E) {
    edit((g, vm, vm.memory.lock()), env, |edits| edits.join(page));
}

/// Maps a page that has been brought in from the swap device, to that frame. The VM's memory is locked.
///
/// # Errors
/// The frame, if the page is not out there any more.
pub(crate) fn bring_in<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    (guard, page, from): (Locked<'_>, Pfn<Gpa>, SwapSlot),
    frame: (Run, Comes),
    env: &mut E,
) -> Result<(), Run> {
    let mut left = Some(frame);
    let done = edit((g, vm, guard), env, |edits| {
        let done = left.take().map_or(Ok(()), |frame| edits.bring_in(page, from, frame));
        if done.is_ok() {
            edits.host.space.keep_copies(g.pager.most_copies(g));
        }
        done
    });
    done.unwrap_or_else(|| left.map_or(Ok(()), |(frame, _)| Err(frame)))
}

/// Makes pages of the VM's RAM untouched again, as many as may be done at once, and every hart forget them. Their
/// frames are free when this returns.
pub(crate) fn give_back<E: Env>(g: &Gnomon, vm: &Vm, spans: &[Span], env: &mut E) -> Returned {
    let returned = edit((g, vm, vm.memory.lock()), env, |edits| edits.give_back(spans));
    let returned = returned.unwrap_or(Returned::nothing_of(spans));
    if returned.freed != 0 && g.pager.is_on() {
        g.pager.wake_waiting(g, env);
    }
    returned
}
