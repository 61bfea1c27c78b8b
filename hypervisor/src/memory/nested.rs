//! The guests of a guest that is a hypervisor (L1): their physical memory. L1 has a G-stage table for each, which no hart walks: a hart
//! walks the shadow of it, which leads to where L1's memory is. The engine is the one of shadow paging ([`mmu::shadow`]), with L2's
//! physical addresses in the place of virtual ones, and VMIDs in the place of ASIDs.
//!
//! A vCPU has a root for L1's `hgatp` from the first entry to L2 by it until L1 enters another. Roots and tables are shared by the VM's vCPUs.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::collapsed::{self, Fenced, ad, paging};
use crate::memory::engine::{lend, with_memory};
use crate::memory::shadow;
use crate::vm::outcome::{Faulted, Outcome};
use crate::vm::vcpu::nested::HypervisorCsrs;
use crate::vm::vcpu::{Nested, VcpuRun};
use crate::vm::{Unreachable, Vm};
use abi::bundle::VmConfig;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use mmu::frames::Frames;
use mmu::gstage::Ready;
use mmu::ids::IdSlot;
use mmu::shadow::{Answer, Config, Counters, Forget, GuestFence, Lists, Shadow, Upkeep};
use mmu::two_stage::access_fault;
use mmu::walk::{self, AdPolicy, ReadPte, Reason, UpdatePte};
use rv::csr::atp::{Hgatp, Satp};
use rv::{Access, Addr, Asid, Caps, Gpa, Gva, Hpa, L2Gpa, PAGE_BYTES, PhysMem, Pte, PteFlags, Request, Trap, Vmid};

/// The upkeep of the tables: a hypervisor fences each entry that it changes.
const UPKEEP: Upkeep = Upkeep::Lazy;

/// Returns the frames that the tables of a VM's own guests may take.
///
/// # Errors
/// A message, if it is given too little for them.
pub(crate) fn frames(config: &VmConfig) -> Result<u64, String> {
    shadow::frames(UPKEEP, config)
}

/// Makes the engine for a VM's own guests.
///
/// # Errors
/// A message, if there is no memory for it.
pub(crate) fn build(vm: &Vm, lists: Lists, frames: &Frames) -> Result<Shadow<L2Gpa>, String> {
    let pages = match shadow::pages(UPKEEP, &vm.config) {
        Ok(pages) => pages,
        Err(message) => {
            lists.release(frames);
            return Err(message);
        }
    };
    let first_serial = vm.past.lock().serials;
    let config = Config { upkeep: UPKEEP, ad: ad(vm), globals: false, pages, first_serial, quiet_after: 0 };
    let engine = Shadow::new(config, vm.owner(), lists, frames);
    let mut engine = engine.map_err(|e| format!("no memory for the tables of its guests: {e}"))?;
    engine.keep_least(Config::ONE_INSTRUCTION * vm.vcpus.len() as u32);
    Ok(engine)
}

/// Returns the counters of the tables of a VM's guests, those of earlier lives included.
pub(crate) fn counters(vm: &Vm) -> Counters {
    let mut counters = vm.past.lock().nested;
    if let Some(memory) = vm.memory.lock().as_ref() {
        memory.nested.iter().for_each(|engine| counters += *engine.counters());
        memory.collapsed.iter().for_each(|engine| counters += *engine.counters());
    }
    counters
}

/// Forgets everything of the life of a vCPU that is about to be parked.
pub(crate) fn forget(run: &mut VcpuRun) {
    run.unmap_shared();
    let Some(nested) = &mut run.nested else { return };
    let root = nested.root.take();
    let mut memory = run.vm.memory.lock();
    if let Some(engine) = memory.as_mut().and_then(|memory| memory.nested.as_mut()) {
        engine.detach_all(root.as_ref(), &mut nested.views, &nested.log);
    }
    drop(memory);
    collapsed::detach(&run.vm, nested);
    **nested = Nested::new(run.shared.id, nested.environment, run.vm.collapses());
}

/// Gives the vCPU the root that L1's `hgatp` asks for. Returns whether the vCPU has it: if that would take too long at once, each attempt
/// does a part.
///
/// # Errors
/// How the vCPU goes on instead, if there is no memory for it.
pub(crate) fn attach<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<bool, Outcome> {
    if let Some(Nested { collapsed: Some(_), other, .. }) = run.nested.as_deref() {
        return collapsed::attach(g, run, other.vsatp, env);
    }
    let VcpuRun { vm, nested: Some(nested), ready, .. } = run else { unreachable!("it has no H extension") };
    let nested = &mut **nested;
    let (hgatp, what) = (nested.csrs.hgatp, paging(nested.csrs.hgatp));
    if nested.root.is_some() && nested.root_of == hgatp {
        return Ok(true);
    }
    let Nested { root: present, views, log, .. } = nested;
    let attached =
        with_memory::<L2Gpa, _, _>(g, vm, ready, env, |engine, host| engine.attach(present, what, views, log, host));
    match attached {
        Ok(Some(loaded)) => {
            nested.root_of = hgatp;
            if loaded.fence {
                // What the hart remembers of it is out of date: it gets another VMID there.
                *nested.views.id() = IdSlot::new();
            }
            Ok(true)
        }
        Ok(None) => Ok(false),
        Err(why) => match shadow::helped(g, &Arc::clone(vm), why, env) {
            Faulted::Fatal(message) => Err(Outcome::kill(message)),
            _ => Ok(false),
        },
    }
}

/// A vCPU comes to this hart, in whichever world.
pub(crate) fn come<E: Env>(run: &mut VcpuRun, env: &E) {
    if run.last_hart != env.hart()
        && let Some(nested) = &mut run.nested
    {
        // Elsewhere L1 did fences that translations here have not seen, those of the world that does not run included.
        nested.views.forget_ids();
        nested.collapsed.iter_mut().for_each(|collapsed| collapsed.views.forget_ids());
        run.shadow.views.forget_ids();
        run.vmid = IdSlot::new();
    }
}

/// Puts L2 on this hart: its tables translate from now on.
pub(crate) fn load<E: Env>(run: &mut VcpuRun, env: &mut E) {
    let (root, memory) = (&mut run.g_root, &run.vm.memory);
    // For when L1 goes on.
    *root = root.or_else(|| memory.lock().as_ref().map(|memory| memory.space.root()));
    env.load_nested(run);
}

/// Handles a guest-page fault of L2's.
pub(crate) fn fault<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (at, request): (Addr<L2Gpa>, &Request),
    env: &mut E,
) -> Faulted {
    let VcpuRun { vm, nested: Some(nested), ready, .. } = run else { unreachable!("it has no H extension") };
    let Some(root) = nested.root else { unreachable!("L2 runs without a root") };
    let answer = with_memory::<L2Gpa, _, _>(g, vm, ready, env, |engine, host| {
        engine.fault(&root, at, &request.at_g_stage(), host)
    });
    match answer {
        Ok(Answer::Filled { forget, .. }) => {
            match forget {
                Forget::Nothing => {}
                Forget::Page => env.fence_nested(nested, Some(at.align_down(PAGE_BYTES))),
                Forget::Root => env.fence_nested(nested, None),
            }
            if request.access == Access::Fetch {
                // An earlier owner's code may still be cached.
                env.fence_instructions();
            }
            Faulted::Settled
        }
        Ok(Answer::Inject(trap)) => Faulted::Inject(trap),
        Ok(Answer::Device { gpa }) => Faulted::NoRam { access: request.access, gpa },
        // No table of L1's is write-protected.
        Ok(Answer::Retry | Answer::TableWrite { .. }) => Faulted::Settled,
        Err(why) => shadow::helped(g, &Arc::clone(vm), why, env),
    }
}

/// Makes Gnomon's table ready for an access that L1's G-stage may allow now, before L2 makes it. If it cannot be at once, L2's fault is to.
pub(crate) fn fill<E: Env>(g: &Gnomon, run: &mut VcpuRun, (at, request): (Addr<L2Gpa>, &Request), env: &mut E) {
    let VcpuRun { vm, nested: Some(nested), .. } = run else { unreachable!("it has no H extension") };
    let Some(root) = nested.root else { return };
    let (frames, mut mem, vm) = (&g.harts[env.hart()].frames, env.mem(), Arc::clone(vm));
    let answer = lend::<L2Gpa, _, _>(
        (g, &vm, vm.memory.lock()),
        (frames, &mut Ready::Nothing),
        &mut mem,
        env,
        |engine, host| engine.fault(&root, at, &request.at_g_stage(), host),
    );
    if let Some(Ok(Answer::Filled { forget, .. })) = answer {
        run.shared.of_guests().filled.bump();
        if forget != Forget::Nothing {
            env.fence_nested(nested, None);
        }
        if request.access == Access::Fetch {
            env.fence_instructions();
        }
    }
}

/// Does a fence of L1's for translations of its guests' physical addresses (HFENCE.GVMA): of a range, with its length in bytes, or all; of a
/// VMID or all. Returns whether nothing of the vCPU's guests is out of date any more by L1's tables.
pub(crate) fn fence<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (range, vmid): (Option<(Addr<L2Gpa>, u64)>, Option<Vmid>),
    env: &mut E,
) -> bool {
    if run.vm.collapses() {
        return collapsed::fence(g, run, &Fenced::Below(range, vmid), env);
    }
    let VcpuRun { vm, nested: Some(nested), .. } = run else { unreachable!("it has no H extension") };
    let nested = &mut **nested;
    let Some(root) = nested.root else {
        // It has no translation of any. Roots that it knows are brought up to date when it gets one.
        nested.views.outdate_others(None, &mut nested.log);
        return true;
    };
    let fence = GuestFence { range, asid: vmid.map(|vmid| Asid(vmid.0)) };
    let Nested { views, log, .. } = &mut *nested;
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let vm = Arc::clone(vm);
    lend::<L2Gpa, _, _>((g, &vm, vm.memory.lock()), (frames, &mut Ready::Nothing), &mut mem, env, |engine, host| {
        engine.fence(&fence, root, views, log, host);
    });
    if fence.asid.is_none_or(|asid| asid == root.asid) {
        match fence.pages() {
            Some(pages) => pages.for_each(|page| env.fence_nested(nested, Some(page))),
            None => env.fence_nested(nested, None),
        }
    }
    range.is_none() && vmid.is_none()
}

/// The reason why an access of L1's to L2's memory (HLV, HSV) fails.
pub(crate) enum Failed {
    /// L1 gets this trap.
    Trap(Trap),
    /// L1's memory is to be made ready first.
    Reach(Addr<Gpa>, Access),
}

/// Calls `act` with where accesses of L2's arrive in host RAM, as its `vsatp` and L1's `hgatp` say now. Changes no mapping. The VM's lock is
/// held meanwhile, so the frames stay the VM's.
pub(crate) fn with_translated<E: Env, T>(
    run: &VcpuRun,
    vsatp: u64,
    (places, request): ([Option<Addr<Gva>>; 2], &Request),
    env: &E,
    act: impl FnOnce([Option<Addr<Hpa>>; 2], &mut E::Mem) -> T,
) -> Result<T, Failed> {
    let Some(nested) = &run.nested else { unreachable!("it has no H extension") };
    let guard = run.vm.memory.lock();
    let mem = &mut env.mem();
    let mut found = [None; 2];
    for (gva, found) in places.into_iter().zip(&mut found) {
        let Some(gva) = gva else { continue };
        let Some(memory) = guard.as_ref() else {
            return Err(Failed::Trap(Trap::new(access_fault(request.access), gva.raw())));
        };
        let hgatp = Hgatp::decode(nested.csrs.hgatp);
        let mut walker = Walker { space: &memory.space, hgatp, ad: ad(&run.vm), mem: &mut *mem };
        *found = Some(walker.walk(vsatp, &nested.csrs, (gva, request))?);
    }
    Ok(act(found, mem))
}

/// The walker honours what L1's machine has.
const CAPS: Caps = Caps { svnapot: true, svpbmt: false };

/// The reason why a step of such a walk fails.
enum Astray {
    /// L1's G-stage refuses it: the address, and the `htinst`.
    Refused(Addr<L2Gpa>, u64),
    /// No memory there.
    Nowhere,
    /// L1's memory is not ready for it.
    Away(Addr<Gpa>, Access),
}

fn failed(why: Astray, access: Access, gva: Addr<Gva>) -> Failed {
    match why {
        Astray::Refused(at, tinst) => Failed::Trap(Trap {
            exception: mmu::two_stage::guest_page_fault(access),
            tval: gva.raw(),
            tval2: at.raw() >> 2,
            tinst,
        }),
        Astray::Nowhere => Failed::Trap(Trap::new(access_fault(access), gva.raw())),
        Astray::Away(gpa, access) => Failed::Reach(gpa, access),
    }
}

/// The tables of L2 and of L1's G-stage, as they are in L1's memory.
struct Walker<'a, M> {
    space: &'a mmu::AddressSpace,
    hgatp: Hgatp,
    ad: AdPolicy,
    mem: &'a mut M,
}

impl<M: PhysMem> Walker<'_, M> {
    /// Returns the host address of an access of L2's to its virtual memory.
    fn walk(
        &mut self,
        vsatp: u64,
        csrs: &HypervisorCsrs,
        (gva, request): (Addr<Gva>, &Request),
    ) -> Result<Addr<Hpa>, Failed> {
        let fail = |why| failed(why, request.access, gva);
        let at = match Satp::decode(vsatp).table() {
            None => Addr::new(gva.raw()),
            Some((format, root)) => {
                // VS-stage A and D are set for L2 as L1 lets them be (henvcfg.ADUE).
                let is_set = csrs.henvcfg & rv::csr::envcfg::ADUE != 0;
                let ad = if is_set { AdPolicy::Svadu } else { AdPolicy::Svade };
                match walk::translate(format, root, gva, request, (CAPS, ad), self) {
                    Ok(walk) => walk.out,
                    Err(walk::Fault { reason: Reason::Memory(why), .. }) => return Err(fail(why)),
                    Err(_) => {
                        return Err(Failed::Trap(Trap::new(mmu::two_stage::page_fault(request.access), gva.raw())));
                    }
                }
            }
        };
        self.host(at, &request.at_g_stage(), 0).map_err(fail)
    }

    /// Returns the host address of an access to L1's memory, if that is ready.
    fn own(&self, gpa: Addr<Gpa>, access: Access) -> Result<Addr<Hpa>, Astray> {
        if self.space.region_of(gpa.pfn()).is_none() {
            return Err(Astray::Nowhere);
        }
        let needed = if access == Access::Store { PteFlags::R | PteFlags::W | PteFlags::D } else { PteFlags::R };
        let there = self.space.translate(gpa, self.mem).filter(|there| there.flags.contains(needed));
        there.map(|there| there.hpa).ok_or(Astray::Away(gpa, access))
    }

    /// Returns the host address of an access to L2's memory.
    fn host(&mut self, at: Addr<L2Gpa>, request: &Request, tinst: u64) -> Result<Addr<Hpa>, Astray> {
        let gpa = match self.hgatp.table() {
            None => Addr::new(at.raw()),
            Some((format, root)) => {
                let ad = self.ad;
                match walk::translate(format, root, at, request, (CAPS, ad), &mut Own(self)) {
                    Ok(walk) => walk.out,
                    Err(walk::Fault { reason: Reason::Memory(why), .. }) => return Err(why),
                    Err(_) => return Err(Astray::Refused(at, tinst)),
                }
            }
        };
        self.own(gpa, if request.access == Access::Store { Access::Store } else { Access::Load })
    }
}

/// L1's memory, for walks of its G-stage.
struct Own<'w, 'a, M>(&'w mut Walker<'a, M>);

impl<M: PhysMem> ReadPte<Gpa> for Own<'_, '_, M> {
    type Error = Astray;
    fn read(&mut self, at: Addr<Gpa>) -> Result<Pte, Astray> {
        self.0.own(at, Access::Load).map(|hpa| Pte(self.0.mem.read_u64(hpa)))
    }
}

impl<M: PhysMem> UpdatePte<Gpa> for Own<'_, '_, M> {
    fn update(&mut self, at: Addr<Gpa>, old: Pte, new: Pte) -> Result<bool, Astray> {
        let hpa = self.0.own(at, Access::Store)?;
        Ok(self.0.mem.compare_exchange_u64(hpa, old.0, new.0).is_ok())
    }
}

impl<M: PhysMem> ReadPte<L2Gpa> for Walker<'_, M> {
    type Error = Astray;
    fn read(&mut self, at: Addr<L2Gpa>) -> Result<Pte, Astray> {
        let hpa = self.host(at, &Request::user(Access::Load), mmu::two_stage::TINST_PTE_READ)?;
        Ok(Pte(self.mem.read_u64(hpa)))
    }
}

impl<M: PhysMem> UpdatePte<L2Gpa> for Walker<'_, M> {
    fn update(&mut self, at: Addr<L2Gpa>, old: Pte, new: Pte) -> Result<bool, Astray> {
        let hpa = self.host(at, &Request::user(Access::Store), mmu::two_stage::TINST_PTE_WRITE)?;
        Ok(self.mem.compare_exchange_u64(hpa, old.0, new.0).is_ok())
    }
}

/// Makes L1's memory ready for what a walk found missing.
pub(crate) fn reach<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    what: (Addr<Gpa>, Access),
    env: &mut E,
) -> Result<(), Unreachable> {
    let vm = Arc::clone(&run.vm);
    vm.reach(g, what, &mut run.ready, env).map(|_| ())
}
