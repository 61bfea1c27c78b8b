//! Reading the guest's instructions by a software walk.

use mmu::gstage::AddressSpace;
use mmu::walk::{ReadPte, walk};
use rv::{Access, Addr, Caps, Format, Gpa, Gva, Hpa, Mode, PAGE_BYTES, Pfn, PhysMem, Pte, PteFlags, Request};

/// Reads the instruction at `pc` through the guest's own tables (`satp`), as a fetch from `mode`. Changes no mapping.
/// `None` if it cannot be fetched: the guest changed its tables since the trap. Of a compressed one, the upper half
/// is zero.
pub fn instruction<M: PhysMem>(space: &AddressSpace, satp: u64, mode: Mode, pc: u64, mem: &M) -> Option<u32> {
    let guest = GuestMemory { space, mem };
    let low = guest.fetch(satp, mode, pc)?;
    // Both halves at once, unless a page ends between them.
    let both = pc & (PAGE_BYTES - 1) <= PAGE_BYTES - 4;
    let length = if both { 4 } else { 2 };
    let mut bytes = [0; 4];
    mem.read_bytes(low, &mut bytes[..length]);
    if bytes[0] & 3 == 3 && !both {
        mem.read_bytes(guest.fetch(satp, mode, pc.wrapping_add(2))?, &mut bytes[2..]);
    }
    let insn = u32::from_le_bytes(bytes);
    Some(if insn & 3 == 3 { insn } else { insn & 0xffff })
}

/// A guest's memory as it is mapped now.
struct GuestMemory<'a, M> {
    space: &'a AddressSpace,
    mem: &'a M,
}

impl<M: PhysMem> ReadPte<Gpa> for &GuestMemory<'_, M> {
    type Error = ();
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, ()> {
        self.space.translate(at, self.mem).map(|there| Pte(self.mem.read_u64(there.hpa))).ok_or(())
    }
}

impl<M: PhysMem> GuestMemory<'_, M> {
    /// Where a fetch of `pc` arrives.
    fn fetch(&self, satp: u64, mode: Mode, pc: u64) -> Option<Addr<Hpa>> {
        let gpa = match Format::of_vs_mode(satp >> rv::csr::atp::MODE_SHIFT) {
            None => Addr::new(pc),
            Some(format) => {
                let root = Pfn::new(satp & rv::csr::atp::PPN);
                let request = Request { mode, ..Request::supervisor(Access::Fetch) };
                // Whatever the guest is offered: the hart has executed the instruction's fetch.
                let caps = Caps { svnapot: true, svpbmt: true };
                let walk = walk(format, root, Addr::<Gva>::new(pc), &request, caps, &mut &*self).ok()?;
                // A was set when the hart fetched it, whatever the guest has done since.
                walk.out
            }
        };
        let there = self.space.translate(gpa, self.mem)?;
        there.flags.contains(PteFlags::X).then_some(there.hpa)
    }
}
