//! A VM's memory, as Gnomon reaches it.

use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::harts;
use crate::vm::{Memory, Unreachable, Vm};
use core::ops::Range;
use core::sync::atomic::Ordering;
use mmu::frames::Frames;
use mmu::gstage::{How, Ready, Resolved, Unresolved, with_ready};
use mmu::shadow::Host;
use rv::{Access, Addr, Elide, Fence, FenceScope, Gpa, Hpa, PAGE_BYTES, PhysMem};

impl Vm {
    /// Makes `gpa` ready for `access`, faulting it in, with whatever fences that takes.
    ///
    /// # Errors
    /// [`Unreachable`]; nothing has changed then.
    pub fn reach<E: Env>(
        &self,
        g: &Gnomon,
        gpa: Addr<Gpa>,
        access: Access,
        env: &mut E,
    ) -> Result<Addr<Hpa>, Unreachable> {
        let frames = &g.harts[env.hart()].frames;
        with_ready(frames, &mut env.mem(), |ready, mem| self.try_reach(g, (gpa, access), (frames, ready), mem, env))
    }

    /// One attempt, under the VM's lock.
    fn try_reach<E: Env>(
        &self,
        g: &Gnomon,
        (gpa, access): (Addr<Gpa>, Access),
        (frames, ready): (&Frames, &mut Ready),
        mem: &mut E::Mem,
        env: &mut E,
    ) -> Result<Addr<Hpa>, Unresolved<Unreachable>> {
        let mut guard = self.memory.lock();
        let Memory { space, shadow } = guard.as_mut().ok_or(Unresolved::For(Unreachable::Gone))?;
        let because = |unresolved: Unresolved| unresolved.map(Unreachable::from);
        if let Some(shadow) = shadow {
            let mut hw = VmFence { g, vm: self, env };
            let mut host = Host::new(space, (frames, ready), mem, &mut hw);
            let resolved = shadow.resolve(gpa, access, &mut host).map_err(because)?;
            return resolved.ok_or(Unresolved::For(Unreachable::Hole));
        }
        let resolved = space.resolve_with(gpa, access, ready, frames, mem).map_err(because)?;
        let Resolved::Mapped { hpa, how, stale, publish } = resolved else {
            return Err(Unresolved::For(Unreachable::Hole));
        };
        let mut fence = VmFence { g, vm: self, env };
        if how == How::Spurious {
            // The entry is right and this hart faulted all the same: another hart was
            // faster, or this TLB remembers the older entry. Forget it, here only.
            let page = FenceScope::Range { start: gpa.align_down(PAGE_BYTES), bytes: PAGE_BYTES };
            fence.here(page);
        }
        if how == How::Copied || access == Access::Fetch {
            // Code may be behind it that Gnomon has copied, or an earlier owner's still cached.
            fence.env.fence_instructions();
        }
        // The VM's own lock stays held: no hart may resolve this page meanwhile and have its
        // translation overtaken by this fence, or see the copy before all others have left.
        let retired = stale.fence(&mut fence);
        if let Some(publish) = publish {
            publish.publish(mem);
        }
        retired.release(frames);
        Ok(hpa)
    }

    /// Copies bytes out of guest memory, faulting it in.
    ///
    /// # Errors
    /// As for [`Vm::reach`]; `into` may be partly filled.
    pub fn read<E: Env>(&self, g: &Gnomon, gpa: Addr<Gpa>, into: &mut [u8], env: &mut E) -> Result<(), Unreachable> {
        for (at, part) in by_page(gpa, into.len()) {
            let hpa = self.reach(g, at, Access::Load, env)?;
            env.mem().read_bytes(hpa, &mut into[part]);
        }
        Ok(())
    }

    /// Copies bytes into guest memory, faulting it in.
    ///
    /// # Errors
    /// As for [`Vm::reach`]; a part may have been written.
    pub fn write<E: Env>(&self, g: &Gnomon, gpa: Addr<Gpa>, from: &[u8], env: &mut E) -> Result<(), Unreachable> {
        for (at, part) in by_page(gpa, from.len()) {
            let hpa = self.reach(g, at, Access::Store, env)?;
            env.mem().write_bytes(hpa, &from[part]);
            if let Some(shadow) = self.memory.lock().as_mut().and_then(|memory| memory.shadow.as_mut()) {
                // A guest table would not notice: its shadow looks at the next fence.
                shadow.host_wrote(at.pfn(), &env.mem());
            }
        }
        Ok(())
    }
}

/// The pieces of `bytes` from `gpa` on that lie in one page each: where, and which of the bytes.
fn by_page(gpa: Addr<Gpa>, bytes: usize) -> impl Iterator<Item = (Addr<Gpa>, Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let at = gpa.wrapping_add(done as u64);
        let part = done..bytes.min(done + (PAGE_BYTES - at.page_offset()) as usize);
        done = part.end;
        (!part.is_empty()).then_some((at, part))
    })
}

/// Fences of one VM's G-stage table, as the harts of the machine need them.
pub struct VmFence<'a, E> {
    /// All that is shared.
    pub g: &'a Gnomon,
    /// The VM.
    pub vm: &'a Vm,
    /// The hart that edits.
    pub env: &'a mut E,
}

impl<E: Env> VmFence<'_, E> {
    fn here(&mut self, scope: FenceScope<Gpa>) {
        self.g.harts[self.env.hart()].counters.fences.bump();
        self.env.fence_here(self.vm.index, scope);
    }
}

impl<E: Env> Fence<Gpa> for VmFence<'_, E> {
    fn fence(&mut self, scope: FenceScope<Gpa>) {
        let me = self.env.hart();
        let others = self.vm.live_on.load(Ordering::SeqCst) & !(1 << me);
        if others != 0 {
            let generation = self.vm.tlb_generation.fetch_add(1, Ordering::SeqCst) + 1;
            self.env.fenced_for(self.vm.index, generation);
            self.g.harts[me].counters.shootdowns.bump();
            // Whoever is in this VM's guest leaves it; whoever enters it fences first.
            harts::drive_out(&self.g.harts, self.vm.index, self.env, |hart| others >> hart & 1 == 1);
        }
        self.here(scope);
        // Pages may have been copied, as data; code may be among them. The others do the same when they enter.
        self.env.fence_instructions();
    }

    fn note_elided(&mut self, _: FenceScope<Gpa>, _: Elide) {}
}
