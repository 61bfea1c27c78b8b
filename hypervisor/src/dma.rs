//! A guest's memory, as its devices reach it.

use crate::device::{GuestMemory, Unreached};
use crate::env::Env;
use crate::serial::Reach;
use mmu::gstage::{Ready, Returned, Span};
use rv::{Access, Addr, Gpa, Hpa, PhysMem};

impl<E: Env> Reach<'_, E> {
    /// The aligned doubleword around `gpa`, ready for an access: where it is, and by how many bits what is at `gpa` is shifted in it.
    fn word(&mut self, gpa: u64, access: Access) -> Result<(Addr<Hpa>, u32), Unreached> {
        let hpa = self.vm.reach(self.g, (Addr::<Gpa>::new(gpa), access), &mut Ready::Denied, self.env);
        let hpa = hpa.map_err(|_| Unreached)?;
        Ok((hpa.align_down(8), 8 * (hpa.raw() % 8) as u32))
    }
}

/// What a device touches first comes by 4 KiB, at once ([`Ready::Denied`]): 2 MiB would take portions.
impl<E: Env> GuestMemory for Reach<'_, E> {
    fn read(&mut self, gpa: u64, into: &mut [u8]) -> Result<(), Unreached> {
        self.vm.read(self.g, Addr::new(gpa), into, &mut Ready::Denied, self.env).map_err(|_| Unreached)
    }

    fn write(&mut self, gpa: u64, from: &[u8]) -> Result<(), Unreached> {
        self.vm.write(self.g, Addr::new(gpa), from, &mut Ready::Denied, self.env).map_err(|_| Unreached)
    }

    fn load_u16(&mut self, gpa: u64) -> Result<u16, Unreached> {
        let (word, shift) = self.word(gpa, Access::Load)?;
        Ok((self.env.mem().read_u64(word) >> shift) as u16)
    }

    fn store_u16(&mut self, gpa: u64, value: u16) -> Result<(), Unreached> {
        let (word, shift) = self.word(gpa, Access::Store)?;
        let mut mem = self.env.mem();
        let mut old = mem.read_u64(word);
        // What stands beside it may be the guest's, which stores there meanwhile: each time that this fails it has.
        while let Err(found) = mem.compare_exchange_u64(word, old, old & !(0xffff << shift) | u64::from(value) << shift)
        {
            old = found;
        }
        self.vm.translation.host_wrote(self.vm, Addr::<Gpa>::new(gpa).pfn(), self.env);
        Ok(())
    }

    fn give_back(&mut self, spans: &[Span]) -> Returned {
        self.vm.translation.give_back(self.g, self.vm, spans, self.env)
    }
}
