//! Memory of guests on shadow tables that goes for a time, and comes back.

use super::lend;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::pager::{Pageable, Portion};
use crate::vm::{Locked, Vm};
use core::ops::Range;
use mmu::frames::Run;
use mmu::gstage::{AddressSpace, Comes, Ready, Returned, Span, SwapSlot, settle};
use mmu::shadow::{Budget, Host, Shadow};
use mmu::stale::Stale;
use mmu::{Promoted, Promotion};
use rv::{Fence, Gpa, Level, Pfn, PhysMem};

/// Does a part of a sweep through the VM's memory.
pub(crate) fn sweep<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    from: (&mut Pfn<Gpa>, Pfn<Gpa>),
    portion: &mut Portion,
    env: &mut E,
) -> bool {
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let (at, end) = from;
    let swept = lend((g, vm, vm.memory.lock()), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, host| {
        g.pager.sweep(vm, &mut Swept { shadow, host }, (&mut *at, end), portion, frames)
    });
    swept.unwrap_or_else(|| {
        *at = end;
        true
    })
}

/// Takes originals from the VM.
pub(crate) fn rest_originals<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    homes: Range<u64>,
    portion: &mut Portion,
    env: &mut E,
) -> u64 {
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let stay = lend((g, vm, vm.memory.lock()), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, host| {
        g.pager.rest_shown(&mut Swept { shadow, host }, homes, portion)
    });
    stay.unwrap_or(0)
}

/// A VM's memory, under its lock, and what shadows it.
struct Swept<'a, 'h, M, H> {
    shadow: &'a mut Shadow,
    host: &'a mut Host<'h, M, H>,
}

impl<M: PhysMem, H: Fence<Gpa>> Pageable for Swept<'_, '_, M, H> {
    type Mem = M;

    fn space(&mut self) -> (&mut AddressSpace, &mut M) {
        (self.host.space, self.host.mem)
    }

    fn rest(&mut self, page: Pfn<Gpa>, level: Level, leaves: &mut Budget) -> Option<Stale<Gpa>> {
        self.host.sharing(leaves, |host| self.shadow.rest(page, level, host))
    }

    fn may_go(&mut self, page: Pfn<Gpa>) -> bool {
        !self.shadow.is_shadowed(page, self.host.mem)
    }

    fn settle(&mut self, stale: Stale<Gpa>) {
        self.shadow.rested(stale, self.host);
    }
}

/// Does a portion of making one large page of small ones.
pub(crate) fn promote<E: Env>(g: &Gnomon, vm: &Vm, promotion: &mut Promotion, env: &mut E) -> Promoted {
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let from = (frames, &mut Ready::Nothing);
    let done = lend((g, vm, vm.memory.lock()), from, &mut mem, env, |shadow, host| shadow.promote(promotion, host));
    done.unwrap_or(Promoted::Not)
}

/// Makes one leaf of 1 GiB of those around a page. Shadow tables say the same after that.
pub(crate) fn join<E: Env>(g: &Gnomon, vm: &Vm, page: Pfn<Gpa>, env: &mut E) {
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let _ = lend((g, vm, vm.memory.lock()), (frames, &mut Ready::Nothing), &mut mem, env, |_, host| {
        if let Some((stale, publish)) = host.space.join(page, host.mem) {
            settle(stale, Some(publish), host.hw, host.mem).release(frames);
        }
    });
}

/// Maps a page that has been brought in.
pub(crate) fn bring_in<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    (guard, page, from): (Locked<'_>, Pfn<Gpa>, SwapSlot),
    frame: (Run, Comes),
    env: &mut E,
) -> Result<(), Run> {
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let mut left = Some(frame);
    lend((g, vm, guard), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, host| {
        let Some((frame, comes)) = left.take() else { return };
        match host.space.bring_in(page, from, (frame, comes), host.mem) {
            Ok(stale) => {
                host.space.keep_copies(g.pager.most_copies(g));
                shadow.rested(stale, host);
            }
            Err(frame) => left = Some((frame, comes)),
        }
    });
    left.map_or(Ok(()), |(frame, _)| Err(frame))
}

/// Makes pages untouched again, a portion of them.
pub(crate) fn give_back<E: Env>(g: &Gnomon, vm: &Vm, spans: &[Span], env: &mut E) -> Returned {
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let lent = (frames, &mut Ready::Nothing);
    let returned = lend((g, vm, vm.memory.lock()), lent, &mut mem, env, |shadow, host| shadow.give_back(spans, host));
    returned.unwrap_or(Returned::nothing_of(spans))
}
