//! A guest's memory, as its devices reach it.

use crate::device::{GuestMemory, Unreached};
use crate::env::Env;
use crate::memory::by_page;
use crate::serial::Reach;
use mmu::gstage::{Ready, Returned, Span};
use rv::{Access, Addr, Gpa, Hpa, PhysMem, PteFlags};

impl<E: Env> Reach<'_, E> {
    /// Where an access goes. Who calls this holds the lock of the devices, without which no page that is there goes away.
    fn place(&mut self, gpa: Addr<Gpa>, access: Access) -> Result<Addr<Hpa>, Unreached> {
        // Mostly it is there: the guest has written its rings.
        let memory = self.vm.memory.lock();
        let found = memory.as_ref().and_then(|memory| memory.space.translate(gpa, &self.env.mem()));
        drop(memory);
        match found.filter(|there| access != Access::Store || there.flags.contains(PteFlags::W)) {
            Some(there) => Ok(there.hpa),
            // What a device touches first comes by 4 KiB, at once: 2 MiB would take portions.
            None => self.vm.reach(self.g, (gpa, access), &mut Ready::Denied, self.env).map_err(|_| Unreached),
        }
    }

    /// The aligned doubleword around `gpa`: where it is, and by how many bits what is at `gpa` is shifted in it.
    fn word(&mut self, gpa: u64, access: Access) -> Result<(Addr<Hpa>, u32), Unreached> {
        let hpa = self.place(Addr::new(gpa), access)?;
        Ok((hpa.align_down(8), 8 * (hpa.raw() % 8) as u32))
    }
}

impl<E: Env> GuestMemory for Reach<'_, E> {
    fn read(&mut self, gpa: u64, into: &mut [u8]) -> Result<(), Unreached> {
        for (at, part) in by_page(Addr::new(gpa), into.len()) {
            let hpa = self.place(at, Access::Load)?;
            self.env.mem().read_bytes(hpa, &mut into[part]);
        }
        Ok(())
    }

    fn write(&mut self, gpa: u64, from: &[u8]) -> Result<(), Unreached> {
        for (at, part) in by_page(Addr::new(gpa), from.len()) {
            let hpa = self.place(at, Access::Store)?;
            self.env.mem().write_bytes(hpa, &from[part]);
            self.vm.translation.host_wrote(self.vm, at.pfn(), self.env);
        }
        Ok(())
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
