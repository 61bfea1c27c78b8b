//! Reading the guest's instructions by a software walk.

use mmu::gstage::AddressSpace;
use mmu::walk::{Fault, ReadPte, Reason, walk};
use rv::csr::atp::{Hgatp, Satp};
use rv::{
    Access, Addr, Caps, Format, Gpa, Gva, Hpa, L2Gpa, Mode, PAGE_BYTES, Pfn, PhysMem, Pte, PteFlags, Request, Space,
};

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
    let at = walked(satp.table(), Addr::<Gva>::new(pc), &request, &mut MappedTables { space, mem }).ok()?;
    let there = space.resident(at, mem)?;
    there.flags.contains(PteFlags::X).then_some(there.hpa)
}

/// The registers that say which tables of a guest's translate the virtual addresses of one of its worlds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Roots {
    /// `satp`, or L2's `vsatp`.
    pub satp: u64,
    /// L1's `hgatp`, of L2.
    pub hgatp: Option<u64>,
}

/// Translates an access of the guest's, or of its own guest's, to a guest physical address, through the tables as they are now. Changes no
/// mapping.
///
/// # Errors
/// If the access is not allowed, or a table is not in memory; the error has that table's address.
pub fn guest_physical<M: PhysMem>(
    space: &AddressSpace,
    roots: Roots,
    gva: Addr<Gva>,
    request: &Request,
    mem: &M,
) -> Result<Addr<Gpa>, Astray> {
    let (satp, mut own) = (Satp::decode(roots.satp), MappedTables { space, mem });
    let Some(hgatp) = roots.hgatp else { return walked(satp.table(), gva, request, &mut own) };
    let mut l2 = MemoryOfL2 { hgatp: Hgatp::decode(hgatp), own };
    let at = walked(satp.table(), gva, request, &mut l2)?;
    l2.translate(at, &request.at_g_stage())
}

/// The reason why a walk of a guest's tables fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Astray {
    /// The tables do not allow the access.
    Refused,
    /// One of them is not in memory: it is here.
    Away(Addr<Gpa>),
}

/// Translates by a stage's table, which is read there; without one the address passes unchanged.
fn walked<In: Space, Out: Space>(
    table: Option<(&'static Format, Pfn<Out>)>,
    at: Addr<In>,
    request: &Request,
    mem: &mut impl ReadPte<Out, Error = Astray>,
) -> Result<Addr<Out>, Astray> {
    let Some((format, root)) = table else { return Ok(Addr::new(at.raw())) };
    // A was set when the hart fetched it, whatever the guest has done since.
    match walk(format, root, at, request, CAPS, mem) {
        Ok(walk) => Ok(walk.out),
        Err(Fault { reason: Reason::Memory(why), .. }) => Err(why),
        Err(_) => Err(Astray::Refused),
    }
}

/// Whatever the guest is offered: the hart has executed the instruction's fetch.
const CAPS: Caps = Caps { svnapot: true, svpbmt: true };

/// A guest's tables in memory that is mapped. It judges no permissions, since all of that memory can be read, and costs half of what
/// [`mmu::two_stage::GuestTables`] does: in some modes each store to a table comes by here.
struct MappedTables<'a, M> {
    space: &'a AddressSpace,
    mem: &'a M,
}

impl<M: PhysMem> ReadPte<Gpa> for MappedTables<'_, M> {
    type Error = Astray;
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, Astray> {
        self.space.resident(at, self.mem).map(|there| Pte(self.mem.read_u64(there.hpa))).ok_or(Astray::Away(at))
    }
}

/// L2's memory, through L1's G-stage table.
struct MemoryOfL2<'a, M> {
    hgatp: Hgatp,
    own: MappedTables<'a, M>,
}

impl<M: PhysMem> MemoryOfL2<'_, M> {
    fn translate(&mut self, at: Addr<L2Gpa>, request: &Request) -> Result<Addr<Gpa>, Astray> {
        walked(self.hgatp.table(), at, request, &mut self.own)
    }
}

impl<M: PhysMem> ReadPte<L2Gpa> for MemoryOfL2<'_, M> {
    type Error = Astray;
    fn read(&mut self, at: Addr<L2Gpa>) -> Result<Pte, Astray> {
        let gpa = self.translate(at, &Request::user(Access::Load))?;
        self.own.read(gpa)
    }
}
