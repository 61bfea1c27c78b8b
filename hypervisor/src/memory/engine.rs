//! The engines of a VM's memory, lent with what they need: one translates the guest's own addresses, another the physical addresses of a
//! guest of its own.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::shootdown::Tlbs;
use crate::vm::{Locked, Memory, Unreachable, Vm};
use mmu::frames::Frames;
use mmu::gstage::{AddressSpace, Ready, Unresolved, in_portions};
use mmu::shadow::{Companion, Host, Shadow, Shadowed, companion};
use rv::{Access, Addr, Fence, FenceScope, Gpa, Gva, Hpa, L2Gpa, L2Gva, PAGE_BYTES, PhysMem};

/// An address space for which a VM's memory may have an engine.
pub(crate) trait Engine: Shadowed {
    /// The guest physical memory, the engine if there is one, and the engine beside it.
    fn of<M: PhysMem, H: Fence<Gpa>>(memory: &mut Memory) -> Parts<'_, Self, M, H>;
}

type Parts<'a, S, M, H> = (&'a mut AddressSpace, Option<&'a mut Shadow<S>>, Option<&'a mut dyn Companion<M, H>>);

impl Engine for Gva {
    #[inline(always)]
    fn of<M: PhysMem, H: Fence<Gpa>>(memory: &mut Memory) -> Parts<'_, Self, M, H> {
        (&mut memory.space, memory.shadow.as_mut(), memory.collapsed.as_mut().map(companion))
    }
}

impl Engine for L2Gpa {
    #[inline(always)]
    fn of<M: PhysMem, H: Fence<Gpa>>(memory: &mut Memory) -> Parts<'_, Self, M, H> {
        (&mut memory.space, memory.nested.as_mut(), None)
    }
}

impl Engine for L2Gva {
    #[inline(always)]
    fn of<M: PhysMem, H: Fence<Gpa>>(memory: &mut Memory) -> Parts<'_, Self, M, H> {
        (&mut memory.space, memory.collapsed.as_mut(), memory.shadow.as_mut().map(companion))
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
    let (space, Some(engine), companion) = S::of(guard.as_mut()?) else { return None };
    let mut hw = Tlbs { g, vm, env };
    let result = engine.alone(mem, |engine, mem| {
        let companion = companion.map(|companion| companion as _);
        Host::new(space, from, mem, &mut hw).beside(companion, |host| to(engine, host))
    });
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
