//! DMA: a guest's memory, as its devices reach it. The engine hears of each store ([`crate::vm::Translation::host_wrote`]).

use crate::device::{GuestMemory, Unreached};
use crate::hart::env::Env;
use crate::io::outside::Reach;
use crate::memory::edits;
use crate::memory::reach::by_page;
use crate::vm::Unreachable;
use mmu::frames::Loan;
use mmu::gstage::{Ready, Returned, Span};
use rv::{Access, Addr, Gpa, Hpa, PhysMem, PteFlags};

impl<E: Env> Reach<'_, E> {
    /// Makes an access to what is at `gpa`, within a page.
    fn access<T>(
        &mut self,
        gpa: Addr<Gpa>,
        access: Access,
        make: impl FnOnce(Addr<Hpa>, &mut E::Mem) -> T,
    ) -> Result<T, Unreached> {
        // What a device touches first comes by 4 KiB, at once: 2 MiB would take portions.
        let made = self.vm.with_page(self.g, (gpa, access), &mut Ready::Never, self.env, make);
        made.map_err(unreached)
    }
}

/// Converts the reason why memory cannot be reached, for a device.
fn unreached(why: Unreachable) -> Unreached {
    // A VM without memory is on its way to start over: before it has some again, its devices are reset.
    if why.is_for_now() || matches!(why, Unreachable::Gone) { Unreached::Later } else { Unreached::Nowhere }
}

/// Returns the aligned doubleword around `hpa`, and the number of bits by which the value at `hpa` is shifted in it.
fn word(hpa: Addr<Hpa>) -> (Addr<Hpa>, u32) {
    (hpa.align_down(8), 8 * (hpa.raw() % 8) as u32)
}

impl<E: Env> GuestMemory for Reach<'_, E> {
    fn read(&mut self, gpa: u64, into: &mut [u8]) -> Result<(), Unreached> {
        for (at, part) in by_page(Addr::new(gpa), into.len()) {
            self.access(at, Access::Load, |hpa, mem| mem.read_bytes(hpa, &mut into[part]))?;
        }
        Ok(())
    }

    fn write(&mut self, gpa: u64, from: &[u8]) -> Result<(), Unreached> {
        for (at, part) in by_page(Addr::new(gpa), from.len()) {
            self.access(at, Access::Store, |hpa, mem| mem.write_bytes(hpa, &from[part]))?;
            self.vm.translation.host_wrote(self.vm, at.pfn(), self.env);
        }
        Ok(())
    }

    fn load_u16(&mut self, gpa: u64) -> Result<u16, Unreached> {
        self.access(Addr::new(gpa), Access::Load, |hpa, mem| {
            let (word, shift) = word(hpa);
            (mem.read_u64(word) >> shift) as u16
        })
    }

    fn store_u16(&mut self, gpa: u64, value: u16) -> Result<(), Unreached> {
        self.access(Addr::new(gpa), Access::Store, |hpa, mem| {
            let (word, shift) = word(hpa);
            let with = |old: u64| old & !(0xffff << shift) | u64::from(value) << shift;
            let mut old = mem.read_u64(word);
            // What stands beside it may be the guest's, which stores there meanwhile: each time that this fails it has.
            while let Err(found) = mem.compare_exchange_u64(word, old, with(old)) {
                old = found;
            }
        })?;
        self.vm.translation.host_wrote(self.vm, Addr::<Gpa>::new(gpa).pfn(), self.env);
        Ok(())
    }

    fn loan(&self, most: usize) -> Loan {
        self.g.harts[self.env.hart()].frames.lend(most)
    }

    fn lend(
        &mut self,
        places: &mut dyn Iterator<Item = (u64, usize)>,
        loan: &mut Loan,
    ) -> (usize, Result<(), Unreached>) {
        /// Pages that are faulted in at once.
        const FAULTS: usize = 16;
        let mut next = places.next();
        for fault in 0..=FAULTS {
            // While the lock is held, the memory cannot be taken away before it is lent.
            let guard = self.vm.memory.lock();
            let Some(memory) = guard.as_ref() else { return (fault, Err(Unreached::Later)) };
            let mem = self.env.mem();
            // The leaf that was found last: where it begins in the guest and in the host, and its bytes.
            let mut leaf = (0, Addr::new(0), 0);
            while let Some((gpa, bytes)) = next {
                if gpa.wrapping_sub(leaf.0) >= leaf.2 {
                    let there = memory.space.translate(Addr::new(gpa), &mem);
                    let Some(there) = there.filter(|there| there.flags.contains(PteFlags::R)) else { break };
                    let of_leaf = there.level.bytes();
                    leaf = (gpa & !(of_leaf - 1), there.hpa.align_down(of_leaf), of_leaf);
                }
                let at = gpa - leaf.0;
                let part = bytes.min((leaf.2 - at) as usize);
                if !loan.add(leaf.1.wrapping_add(at), part) {
                    return (fault, Ok(()));
                }
                next = if part < bytes { Some((gpa + part as u64, bytes - part)) } else { places.next() };
            }
            drop(guard);
            match next {
                Some((gpa, _)) if fault < FAULTS => {
                    let what = (Addr::new(gpa), Access::Load);
                    if let Err(why) = self.vm.reach(self.g, what, &mut Ready::Never, self.env) {
                        return (fault, Err(unreached(why)));
                    }
                }
                _ => return (fault, Ok(())),
            }
        }
        (FAULTS, Ok(()))
    }

    fn give_back(&mut self, spans: &[Span]) -> Returned {
        edits::give_back(self.g, self.vm, spans, self.env)
    }
}
