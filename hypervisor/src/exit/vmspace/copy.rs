//! Copies between the user memory of a space and the kernel's RAM.

use super::refusal::{error, refuse};
use crate::exit::sbi::encoding::{Answer, unreached};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::outcome::Outcome;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::VcpuRun;
use crate::vm::{Unreachable, Vm};
use abi::vmspace::MOST_BYTES;
use alloc::sync::Arc;
use mmu::AddressSpace;
use mmu::walk::{self, AdPolicy, Fault, ReadPte, Reason, UpdatePte};
use rv::csr::atp::Satp;
use rv::{Access, Addr, Caps, Gpa, Gva, Hpa, PAGE_BYTES, PhysMem, Pte, PteFlags, Request};

/// Bytes that are copied at a time.
const PART: u64 = 256;
/// The most times that tables and pages are made ready for one page.
const ATTEMPTS: usize = 64;

/// The tables are as any machine of Gnomon's has them.
const CAPS: Caps = Caps { svnapot: true, svpbmt: false };

/// Handles READ (`access` is a load of the space's) or WRITE (a store): `length` bytes between `va` of the space and `gpa`.
pub(super) fn copy<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (handle, access): (u64, Access),
    (va, gpa, length): (u64, u64, u64),
    env: &mut E,
) -> Answer {
    if length > MOST_BYTES {
        return refuse(Error::InvalidParam);
    }
    if length != 0 && !run.vm.in_ram(gpa, length) {
        return refuse(Error::InvalidAddress);
    }
    let root = {
        let mut all = run.vm.tlb.spaces.lock();
        all.counts.copy += 1;
        match all.root(handle) {
            Ok((_, root)) => root,
            Err(why) => return refuse(error(why)),
        }
    };
    let (vm, mut done) = (Arc::clone(&run.vm), 0);
    while done < length {
        let (at, own) = (va.wrapping_add(done), Addr::new(gpa + done));
        let there = match place(g, run, (root, Addr::new(at), access), env) {
            Ok(there) => there.filter(|there| vm.in_ram(there.raw(), 1)),
            Err(why) => return unreached(g, run, why, Error::Failed),
        };
        let Some(there) = there else {
            (run.context.x[10], run.context.x[11]) = (Error::Denied as i64 as u64, done);
            return Answer::Outcome(Outcome::Resume);
        };
        let part = (length - done).min(PART).min(PAGE_BYTES - at % PAGE_BYTES);
        let (from, to) = if access == Access::Load { (there, own) } else { (own, there) };
        let mut bytes = [0; PART as usize];
        let bytes = &mut bytes[..part as usize];
        let copied = vm.read(g, from, bytes, &mut run.ready, env);
        if let Err(why) = copied.and_then(|()| vm.write(g, to, bytes, &mut run.ready, env)) {
            return unreached(g, run, why, Error::Failed);
        }
        done += part;
    }
    Answer::Reply(Ok(done))
}

/// Returns the address that user mode reaches in a space, by its tables as they are now; `None` if they do not allow the access.
fn place<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (root, at, access): (u64, Addr<Gva>, Access),
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
            walk::translate(format, root, at, &Request::user(access), (CAPS, ad), &mut tables)
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

/// The kernel's tables, as they are in its memory.
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
