//! Walks of a guest's own tables as its hardware makes them: A and D are set there, if the guest was promised that (Svadu).

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::vcpu::VcpuRun;
use crate::vm::{Unreachable, Vm};
use alloc::sync::Arc;
use mmu::AddressSpace;
use mmu::walk::{self, AdPolicy, Fault, ReadPte, Reason, UpdatePte};
use rv::csr::atp::Satp;
use rv::{Access, Addr, Caps, Gpa, Gva, Hpa, PhysMem, Pte, PteFlags, Request};

/// The most times that tables are made ready for one page.
const ATTEMPTS: usize = 64;

/// Returns the address that an access reaches by the tables of a root, a value of `satp`, as they are now; `None` if they do not allow the access.
///
/// # Errors
/// [`Unreachable`], if a table is not in memory now.
pub(crate) fn place<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (root, at, request): (u64, Addr<Gva>, Request),
    caps: Caps,
    env: &mut E,
) -> Result<Option<Addr<Gpa>>, Unreachable> {
    let Some((format, root)) = Satp::decode(root).table() else { return Ok(None) };
    let ad = if run.vm.svadu { AdPolicy::Svadu } else { AdPolicy::Svade };
    for _ in 0..ATTEMPTS {
        let found = {
            let vm: &Vm = &run.vm;
            let (guard, mut mem) = (vm.memory.lock(), env.mem());
            let memory = guard.as_ref().ok_or(Unreachable::Gone)?;
            let mut tables = Tables { space: &memory.space, mem: &mut mem };
            walk::translate(format, root, at, &request, (caps, ad), &mut tables)
        };
        let away = match found {
            Ok(walk) => return Ok(Some(walk.out)),
            Err(Fault { reason: Reason::Memory(away), .. }) => away,
            Err(_) => return Ok(None),
        };
        if !run.vm.in_ram(away.0.raw(), 8) {
            return Ok(None);
        }
        let vm = Arc::clone(&run.vm);
        vm.reach(g, away, &mut run.ready, env)?;
        if away.1 == Access::Store {
            vm.translation.host_wrote(&vm, away.0.pfn(), env);
        }
    }
    Err(Unreachable::Later)
}

/// A guest's tables, as they are in its memory.
struct Tables<'a, M> {
    space: &'a AddressSpace,
    mem: &'a mut M,
}

/// Memory that is to be made ready for an access.
type Away = (Addr<Gpa>, Access);

impl<M: PhysMem> Tables<'_, M> {
    fn own(&self, at: Addr<Gpa>, access: Access) -> Result<Addr<Hpa>, Away> {
        let needed = if access == Access::Store { PteFlags::R | PteFlags::W | PteFlags::D } else { PteFlags::R };
        let there = self.space.translate(at, self.mem).filter(|there| there.flags.contains(needed));
        there.map(|there| there.hpa).ok_or((at, access))
    }
}

impl<M: PhysMem> ReadPte<Gpa> for Tables<'_, M> {
    type Error = Away;
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, Away> {
        self.own(at, Access::Load).map(|hpa| Pte(self.mem.read_u64(hpa)))
    }
}

impl<M: PhysMem> UpdatePte<Gpa> for Tables<'_, M> {
    fn update(&mut self, at: Addr<Gpa>, old: Pte, new: Pte) -> Result<bool, Away> {
        let hpa = self.own(at, Access::Store)?;
        Ok(self.mem.compare_exchange_u64(hpa, old.0, new.0).is_ok())
    }
}
