//! Gnomon's access to a VM's memory.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::vcpu::Vcpu;
use crate::vm::{Unreachable, Vm};
use core::ops::Range;
use mmu::gstage::Ready;
use rv::{Access, Addr, Gpa, Hpa, PAGE_BYTES, PhysMem, PteFlags};

impl Vm {
    /// Makes `gpa` ready for `access`, faulting it in, with whatever fences that takes. Memory that was made ready
    /// before, and not used, is in `ready`, and left there if another attempt is needed.
    ///
    /// # Errors
    /// [`Unreachable`]; the guest sees no change then.
    pub fn reach<E: Env>(
        &self,
        g: &Gnomon,
        (gpa, access): (Addr<Gpa>, Access),
        ready: &mut Ready,
        env: &mut E,
    ) -> Result<Addr<Hpa>, Unreachable> {
        self.translation.reach(g, self, (gpa, access), ready, env)
    }

    /// Like [`Vm::reach`], for all pages of a range.
    ///
    /// # Errors
    /// As for [`Vm::reach`].
    pub fn reach_all<E: Env>(
        &self,
        g: &Gnomon,
        (gpa, bytes, access): (Addr<Gpa>, usize, Access),
        ready: &mut Ready,
        env: &mut E,
    ) -> Result<(), Unreachable> {
        by_page(gpa, bytes).try_for_each(|(at, _)| self.reach(g, (at, access), ready, env).map(|_| ()))
    }

    /// Calls `act` on a page of guest memory while it cannot be taken away: under the VM's lock.
    ///
    /// # Errors
    /// As for [`Vm::reach`]; `act` has not been called then.
    pub(crate) fn with_page<E: Env, T>(
        &self,
        g: &Gnomon,
        (gpa, access): (Addr<Gpa>, Access),
        ready: &mut Ready,
        env: &mut E,
        act: impl FnOnce(Addr<Hpa>, &mut E::Mem) -> T,
    ) -> Result<T, Unreachable> {
        /// Another hart may take it away in between, but not often.
        const ATTEMPTS: usize = 4;
        let needed = match access {
            Access::Store => PteFlags::W | PteFlags::D,
            _ => PteFlags::R,
        };
        let mut mem = env.mem();
        for _ in 0..ATTEMPTS {
            let guard = self.memory.lock();
            let memory = guard.as_ref().ok_or(Unreachable::Gone)?;
            if let Some(there) = memory.space.translate(gpa, &mem).filter(|there| there.flags.contains(needed)) {
                return Ok(act(there.hpa, &mut mem));
            }
            drop(guard);
            self.reach(g, (gpa, access), ready, env)?;
        }
        Err(Unreachable::Later)
    }

    /// Calls `act` on a page that a vCPU's kernel shares with Gnomon, in a VM that keeps mappings: by the vCPU's mapping, which stays for the next
    /// time. The page cannot be taken away meanwhile. `act` takes no lock.
    ///
    /// # Errors
    /// As for [`Vm::reach`]; `act` has not been called then.
    pub(crate) fn with_mapped<E: Env, T>(
        &self,
        g: &Gnomon,
        (vcpu, gpa): (&Vcpu, Addr<Gpa>),
        ready: &mut Ready,
        env: &mut E,
        act: impl FnOnce(Addr<Hpa>, &mut E::Mem) -> T,
    ) -> Result<T, Unreachable> {
        let mappings = self.tlb.mappings.as_deref().expect("a VM that keeps mappings");
        let (page, offset, counters) = (gpa.pfn(), gpa.raw() & (PAGE_BYTES - 1), vcpu.of_guests());
        let mut mem = env.mem();
        match mappings.with(vcpu.id, page, |at| act(at.wrapping_add(offset), &mut mem)) {
            Ok(done) => {
                counters.mappings_used.bump();
                Ok(done)
            }
            Err(act) => self.with_page(g, (gpa, Access::Store), ready, env, |hpa, _| {
                counters.mappings_made.bump();
                let at = hpa.align_down(PAGE_BYTES);
                mappings.keep(vcpu.id, page, at);
                act(at)
            }),
        }
    }

    /// Copies bytes out of guest memory, faulting it in.
    ///
    /// # Errors
    /// As for [`Vm::reach`]; `into` may be partly filled.
    pub fn read<E: Env>(
        &self,
        g: &Gnomon,
        gpa: Addr<Gpa>,
        into: &mut [u8],
        ready: &mut Ready,
        env: &mut E,
    ) -> Result<(), Unreachable> {
        for (at, part) in by_page(gpa, into.len()) {
            self.with_page(g, (at, Access::Load), ready, env, |hpa, mem| mem.read_bytes(hpa, &mut into[part]))?;
        }
        Ok(())
    }

    /// Copies bytes into guest memory, faulting it in.
    ///
    /// # Errors
    /// As for [`Vm::reach`]; a part may have been written.
    pub fn write<E: Env>(
        &self,
        g: &Gnomon,
        gpa: Addr<Gpa>,
        from: &[u8],
        ready: &mut Ready,
        env: &mut E,
    ) -> Result<(), Unreachable> {
        for (at, part) in by_page(gpa, from.len()) {
            let what = (at, Access::Store);
            self.with_page(g, what, ready, env, |hpa, mem| mem.write_bytes(hpa, &from[part]))?;
            self.translation.host_wrote(self, at.pfn(), env);
        }
        Ok(())
    }
}

/// Splits `bytes` bytes from `gpa` on into pieces that lie in one page each: the address, and the range of the bytes.
pub(crate) fn by_page(gpa: Addr<Gpa>, bytes: usize) -> impl Iterator<Item = (Addr<Gpa>, Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let at = gpa.wrapping_add(done as u64);
        let part = done..bytes.min(done + (PAGE_BYTES - at.page_offset()) as usize);
        done = part.end;
        (!part.is_empty()).then_some((at, part))
    })
}
