//! Reading the guest's instructions by a software walk.

use mmu::gstage::AddressSpace;
use mmu::two_stage::{GuestTables, through_g};
use mmu::walk::{Ram, walk};
use rv::csr::atp::Satp;
use rv::{Access, Addr, Caps, Gva, Hpa, Mode, PAGE_BYTES, PhysMem, Request};

/// Reads the instruction at `pc` through the guest's own tables (`satp`), as a fetch from `mode`. Changes no mapping.
/// `None` if it cannot be fetched: the guest changed its tables since the trap. Of a compressed one, the upper half
/// is zero.
pub fn instruction<M: PhysMem>(space: &AddressSpace, satp: u64, mode: Mode, pc: u64, mem: &mut M) -> Option<u32> {
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

/// Where a fetch of `pc` arrives, by the tables as they are now.
fn fetched<M: PhysMem>(space: &AddressSpace, (satp, mode): (&Satp, Mode), pc: u64, mem: &mut M) -> Option<Addr<Hpa>> {
    let g = Some(space.stage());
    let request = Request { mode, ..Request::supervisor(Access::Fetch) };
    let mem = &mut Ram(mem);
    let gpa = match satp.table() {
        None => Addr::new(pc),
        Some((format, root)) => {
            // Whatever the guest is offered: the hart has executed the instruction's fetch.
            let caps = Caps { svnapot: true, svpbmt: true };
            let mut tables = GuestTables { g, mem };
            // A was set when the hart fetched it, whatever the guest has done since.
            walk(format, root, Addr::<Gva>::new(pc), &request, caps, &mut tables).ok()?.out
        }
    };
    through_g(&g, gpa, &request.at_g_stage(), mem).ok()
}
