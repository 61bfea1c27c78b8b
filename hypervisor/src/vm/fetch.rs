//! Reading the guest's instructions by a software walk.

use mmu::gstage::AddressSpace;
use mmu::walk::{Fault, ReadPte, Reason, walk};
use rv::csr::atp::Satp;
use rv::{Access, Addr, Caps, Gpa, Gva, Hpa, Mode, PAGE_BYTES, PhysMem, Pte, PteFlags, Request};

/// Reads the instruction at `pc` through the guest's own tables (`satp`), as a fetch from `mode`. Changes no mapping.
/// `None` if it cannot be fetched: the guest changed its tables since the trap. Of a compressed one, the upper half
/// is zero.
pub fn instruction<M: PhysMem>(space: &AddressSpace, satp: u64, mode: Mode, pc: u64, mem: &M) -> Option<u32> {
    let from = (&Satp::decode(satp), mode);
    let low = fetched(space, from, pc, mem)?;
    // Both halves at once, unless a page ends between them.
    let both = pc & (PAGE_BYTES - 1) <= PAGE_BYTES - 4;
    let length = if both { 4 } else { 2 };
    let mut bytes = [0; 4];
    mem.read_bytes(low, &mut bytes[..length]);
    if bytes[0] & 3 == 3 && !both {
        let high = fetched(space, from, pc.wrapping_add(2), mem)?;
        mem.read_bytes(high, &mut bytes[2..]);
    }
    let insn = u32::from_le_bytes(bytes);
    Some(if insn & 3 == 3 { insn } else { insn & 0xffff })
}

/// Returns the address of the instruction at `pc`; see [`instruction`].
pub fn place<M: PhysMem>(space: &AddressSpace, satp: u64, mode: Mode, pc: u64, mem: &M) -> Option<Addr<Hpa>> {
    fetched(space, (&Satp::decode(satp), mode), pc, mem)
}

/// Returns the address that a fetch of `pc` reaches, by the tables as they are now.
fn fetched<M: PhysMem>(space: &AddressSpace, (satp, mode): (&Satp, Mode), pc: u64, mem: &M) -> Option<Addr<Hpa>> {
    let request = Request { mode, ..Request::supervisor(Access::Fetch) };
    let there = space.resident(walked(space, satp, Addr::new(pc), &request, mem).ok()?, mem)?;
    there.flags.contains(PteFlags::X).then_some(there.hpa)
}

/// Translates an access of the guest's to a guest physical address, through its own tables (`satp`) as they are now.
/// Changes no mapping.
///
/// # Errors
/// If the access is not allowed, or a table is not in memory; the error has that table's address.
pub fn guest_physical<M: PhysMem>(
    space: &AddressSpace,
    satp: u64,
    gva: Addr<Gva>,
    request: &Request,
    mem: &M,
) -> Result<Addr<Gpa>, Astray> {
    walked(space, &Satp::decode(satp), gva, request, mem)
}

/// The reason why a walk of a guest's tables fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Astray {
    /// The tables do not allow the access.
    Refused,
    /// One of them is not in memory: it is here.
    Away(Addr<Gpa>),
}

fn walked<M: PhysMem>(
    space: &AddressSpace,
    satp: &Satp,
    gva: Addr<Gva>,
    request: &Request,
    mem: &M,
) -> Result<Addr<Gpa>, Astray> {
    let Some((format, root)) = satp.table() else { return Ok(Addr::new(gva.raw())) };
    // Whatever the guest is offered: the hart has executed the instruction's fetch.
    let caps = Caps { svnapot: true, svpbmt: true };
    // A was set when the hart fetched it, whatever the guest has done since.
    match walk(format, root, gva, request, caps, &mut MappedTables { space, mem }) {
        Ok(walk) => Ok(walk.out),
        Err(Fault { reason: Reason::Memory(at), .. }) => Err(Astray::Away(at)),
        Err(_) => Err(Astray::Refused),
    }
}

/// A guest's tables in memory that is mapped. It judges no permissions, since all of that memory can be read, and costs half of what
/// [`mmu::two_stage::GuestTables`] does: in some modes each store to a table comes by here.
struct MappedTables<'a, M> {
    space: &'a AddressSpace,
    mem: &'a M,
}

impl<M: PhysMem> ReadPte<Gpa> for MappedTables<'_, M> {
    type Error = Addr<Gpa>;
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, Addr<Gpa>> {
        self.space.resident(at, self.mem).map(|there| Pte(self.mem.read_u64(there.hpa))).ok_or(at)
    }
}
