//! The engines of a VM's memory, lent with what they need: one translates the guest's own addresses, another the physical addresses of a
//! guest of its own.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::shootdown::Tlbs;
use crate::vm::{Locked, Memory, Unreachable, Vm};
use mmu::frames::Frames;
use mmu::gstage::{AddressSpace, Ready, Unresolved, in_portions};
use mmu::shadow::{Host, Shadow, Shadowed};
use rv::{Access, Addr, FenceScope, Gpa, Gva, Hpa, L2Gpa, L2Gva, PAGE_BYTES};

/// An address space for which a VM's memory may have an engine.
pub(crate) trait Engine: Shadowed {
    /// The guest physical memory, and the engine if there is one.
    fn of(memory: &mut Memory) -> (&mut AddressSpace, Option<&mut Shadow<Self>>);
}

impl Engine for Gva {
    #[inline(always)]
    fn of(memory: &mut Memory) -> (&mut AddressSpace, Option<&mut Shadow>) {
        (&mut memory.space, memory.shadow.as_mut())
    }
}

impl Engine for L2Gpa {
    #[inline(always)]
    fn of(memory: &mut Memory) -> (&mut AddressSpace, Option<&mut Shadow<L2Gpa>>) {
        (&mut memory.space, memory.nested.as_mut())
    }
}

impl Engine for L2Gva {
    #[inline(always)]
    fn of(memory: &mut Memory) -> (&mut AddressSpace, Option<&mut Shadow<L2Gva>>) {
        (&mut memory.space, memory.collapsed.as_mut())
    }
}

/// Lends the VM's engine and what it needs, until the lock is given back. `None` if the VM has no memory any more.
// The guard stays in registers.
#[inline(always)]
pub(crate) fn lend<S: Engine, E: Env, R>(
    (g, vm, mut guard): (&Gnomon, &Vm, Locked<'_>),
    from: (&Frames, &mut Ready),
    mem: &mut E::Mem,
    env: &mut E,
    to: impl FnOnce(&mut Shadow<S>, &mut Host<'_, E::Mem, Tlbs<'_, E>>) -> R,
) -> Option<R> {
    let (space, Some(engine)) = S::of(guard.as_mut()?) else { return None };
    let mut hw = Tlbs { g, vm, env };
    let result = engine.alone(mem, |engine, mem| to(engine, &mut Host::new(space, from, mem, &mut hw)));
    g.pager.forgo_all(space);
    Some(result)
}

/// Lends the engine for an attempt that takes memory. If 2 MiB have to be made ready first, a portion of them is, and
/// the caller comes back.
///
/// # Errors
/// The attempt's; [`Unreachable::Later`] if more is to be done first.
pub(crate) fn with_memory<S: Engine, E: Env, R>(
    g: &Gnomon,
    vm: &Vm,
    ready: &mut Ready,
    env: &mut E,
    mut attempt: impl FnMut(&mut Shadow<S>, &mut Host<'_, E::Mem, Tlbs<'_, E>>) -> Result<R, Unresolved>,
) -> Result<R, Unreachable> {
    let frames = &g.harts[env.hart()].frames;
    let mut is_first = true;
    let done = in_portions(frames, &mut env.mem(), ready, |ready, mem| {
        // To make 2 MiB ready takes as long as an exit may: what they are for comes in another.
        if !core::mem::take(&mut is_first) {
            return Err(Unresolved::Later);
        }
        let attempted = lend((g, vm, vm.memory.lock()), (frames, ready), mem, env, &mut attempt);
        let attempted = attempted.ok_or(Unresolved::For(Unreachable::Gone))?;
        attempted.map_err(|why| g.unresolved(why, env))
    });
    let done = done?;
    if g.pager.is_on() {
        g.pager.look(frames, env);
    }
    done.ok_or(Unreachable::Later)
}

/// Makes `gpa` ready for `access`, where a hart may walk the G-stage as well as the engine's tables.
///
/// # Errors
/// As for [`Vm::reach`].
pub(crate) fn reach_in_both<S: Engine, E: Env>(
    g: &Gnomon,
    vm: &Vm,
    (gpa, access): (Addr<Gpa>, Access),
    ready: &mut Ready,
    env: &mut E,
) -> Result<Addr<Hpa>, Unreachable> {
    let reached = with_memory(g, vm, ready, env, |engine: &mut Shadow<S>, host| {
        let known = host.space.translate(gpa, &*host.mem);
        let hpa = engine.resolve(gpa, access, host)?;
        Ok((hpa, known.is_some_and(|known| Some(known.hpa) == hpa)))
    });
    let (hpa, was_there) = reached?;
    if was_there {
        // Another hart was faster, or this TLB remembers the older entry. Forget it, here only.
        let page = FenceScope::Range { start: gpa.align_down(PAGE_BYTES), bytes: PAGE_BYTES };
        g.harts[env.hart()].counters.fences.bump();
        env.fence_g_stage(vm.slot(), page);
    }
    if access == Access::Fetch {
        // Code may be behind it that Gnomon has copied, or an earlier owner's still cached.
        env.fence_instructions();
    }
    hpa.ok_or(Unreachable::Hole)
}
