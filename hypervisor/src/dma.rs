//! A guest's memory, as its devices reach it.

use crate::device::{GuestMemory, Unreached};
use crate::env::Env;
use crate::memory::by_page;
use crate::serial::Reach;
use crate::vm::Unreachable;
use mmu::gstage::{Ready, Returned, Span};
use rv::{Access, Addr, Gpa, Hpa, PhysMem};

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
        made.map_err(|why| {
            // A VM without memory is on its way to start over: before it has some again, its devices are reset.
            if why.is_for_now() || matches!(why, Unreachable::Gone) { Unreached::Later } else { Unreached::Nowhere }
        })
    }
}

/// The aligned doubleword around `hpa`, and by how many bits what is there is shifted in it.
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

    fn give_back(&mut self, spans: &[Span]) -> Returned {
        self.vm.translation.give_back(self.g, self.vm, spans, self.env)
    }
}
