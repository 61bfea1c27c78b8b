//! The guests (L2) of a guest that is a hypervisor (L1) on collapsed tables: one table leads from L2's virtual addresses to where L1's memory is.
//! The engine is the one of shadow paging ([`mmu::shadow`]), with L1's G-stage table as the stage below.
//!
//! While L2 runs, `hgatp` is Bare, as for every guest on shadow tables, and `vsatp` is the root that the vCPU has for L2's own `vsatp`. Its page
//! faults, fences and accesses to `satp` come to Gnomon. Roots and tables are shared by the VM's vCPUs; what a vCPU knows of roots ends
//! when L1's `hgatp` changes.

pub(crate) mod brief;

use crate::device::offer::GuestMode;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::engine::{lend, with_memory};
use crate::memory::shadow;
use crate::vm::Vm;
use crate::vm::outcome::{Faulted, Outcome};
use crate::vm::vcpu::nested::Collapsed;
use crate::vm::vcpu::{Nested, VcpuRun};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use mmu::frames::Frames;
use mmu::gstage::Ready;
use mmu::ids::IdSlot;
use mmu::shadow::{
    Answer, Config, Forget, GuestFence, Host, Lists, Paging, Shadow, Upkeep, fence_below, go_by, is_current,
};
use mmu::walk::AdPolicy;
use rv::csr::atp::{Hgatp, Satp};
use rv::csr::{envcfg, status};
use rv::{Access, Addr, Asid, Fence, Gpa, L2Gpa, L2Gva, PAGE_BYTES, PhysMem, Request, Vmid};

/// The upkeep of the tables: the only one that needs no more than fences.
const UPKEEP: Upkeep = Upkeep::Lazy;

/// Makes the engine for a VM's own guests.
///
/// # Errors
/// A message, if there is no memory for it.
pub(crate) fn build(vm: &Vm, lists: Lists, frames: &Frames) -> Result<Shadow<L2Gva>, String> {
    let pages = match shadow::pages(UPKEEP, &vm.config) {
        Ok(pages) => pages,
        Err(message) => {
            lists.release(frames);
            return Err(message);
        }
    };
    let least = Config::least_pages::<L2Gva>(vm.vcpus.len() as u32);
    let (pages, first_serial) = (Config::pages_composed(pages).max(least), vm.past.lock().serials);
    let config = Config { upkeep: UPKEEP, ad: ad(vm), globals: false, pages, first_serial, quiet_after: 0 };
    let engine = Shadow::new(config, vm.owner(), lists, frames);
    let mut engine = engine.map_err(|e| format!("no memory for the tables of its guests: {e}"))?;
    engine.keep_least(Config::ONE_INSTRUCTION * vm.vcpus.len() as u32);
    Ok(engine)
}

/// Returns the setter of A and D in L1's G-stage tables: its machine's (`menvcfg.ADUE`).
pub(crate) const fn ad(vm: &Vm) -> AdPolicy {
    if vm.svadu { AdPolicy::Svadu } else { AdPolicy::Svade }
}

/// Returns the paging that a value of `hgatp` asks for, and its VMID.
pub(crate) fn paging(hgatp: u64) -> (Paging, Asid) {
    let hgatp = Hgatp::decode(hgatp);
    let paging = hgatp.table().map_or(Paging::Bare, |(format, root)| Paging::Tables { format, root });
    (paging, Asid(hgatp.vmid.0))
}

/// Returns the paging that a value of L2's `vsatp` asks for, and its ASID.
fn own(vsatp: u64) -> (Paging, Asid) {
    let satp = Satp::decode(vsatp);
    (satp.table().map_or(Paging::Bare, |(format, root)| Paging::Tables { format, root }), satp.asid)
}

/// The setter of A and D in L2's own tables: as L1 lets them be set (`henvcfg.ADUE`).
const fn vs_ad(henvcfg: u64) -> AdPolicy {
    if henvcfg & envcfg::ADUE != 0 { AdPolicy::Svadu } else { AdPolicy::Svade }
}

/// Returns the conditions of an access of L2's, which runs and has faulted.
pub(crate) fn request<E: Env>(g: &Gnomon, nested: &Nested, access: Access, env: &E) -> Request {
    let (own, mode) = (env.status(), env.privilege());
    let has = |bit| own & bit != 0;
    // In S mode no register holds it while L2 runs.
    let hs_mxr = g.offer.guest == GuestMode::Virtual && nested.other.vsstatus & status::MXR != 0;
    Request { access, mode, sum: has(status::SUM), mxr: has(status::MXR), hs_mxr }
}

/// Returns the fence that an `sfence.vma` of L2's asks for.
#[inline(always)]
pub(crate) fn fenced(run: &VcpuRun, insn: u64) -> GuestFence<L2Gva> {
    let (rs1, rs2) = ((insn >> 15 & 31) as usize, (insn >> 20 & 31) as usize);
    let range = (rs1 != 0).then(|| (Addr::new(run.context.x[rs1]), 1));
    GuestFence { range, asid: (rs2 != 0).then(|| Asid(run.context.x[rs2] as u16)) }
}

/// Takes the vCPU's roots from it.
pub(crate) fn detach(vm: &Vm, nested: &mut Nested) {
    let Some(collapsed) = &mut nested.collapsed else { return };
    let root = collapsed.root.take();
    let mut memory = vm.memory.lock();
    if let Some(engine) = memory.as_mut().and_then(|memory| memory.collapsed.as_mut()) {
        engine.detach_all(root.as_ref(), &mut collapsed.views, &collapsed.log);
    }
}

/// Gives the vCPU the root for that `vsatp` of L2's and L1's present `hgatp`. Returns whether the vCPU has it: if that would take too long at
/// once, each attempt does a part. If not, the vCPU may have none, and L2 must not go on.
///
/// # Errors
/// How the vCPU goes on instead, if there is no memory for it.
pub(crate) fn attach<E: Env>(g: &Gnomon, run: &mut VcpuRun, vsatp: u64, env: &mut E) -> Result<bool, Outcome> {
    let VcpuRun { vm, nested: Some(nested), ready, .. } = run else { unreachable!("it has no H extension") };
    let (hgatp, henvcfg) = (nested.csrs.hgatp, nested.csrs.henvcfg);
    let is_same = |collapsed: &Collapsed| collapsed.root.is_some() && collapsed.root_of == (hgatp, vsatp);
    if nested.collapsed.as_deref().is_some_and(is_same) {
        return Ok(true);
    }
    if nested.collapsed.as_deref().is_some_and(|collapsed| collapsed.root_of.0 != hgatp) {
        detach(vm, nested);
        nested.forget_collapsed(hgatp);
    }
    let Some(Collapsed { root: present, views, log, root_of, .. }) = nested.collapsed.as_deref_mut() else {
        unreachable!("it has no such tables")
    };
    let (below, what) = (paging(hgatp).0, own(vsatp));
    let attached = with_memory::<L2Gva, _, _>(g, vm, ready, env, |engine, host| {
        go_by(engine, below, vs_ad(henvcfg));
        engine.attach(present, what, views, log, host)
    });
    let has_none = present.is_none();
    if has_none && nested.runs_l2 {
        // The hart has one still, whose frames may have another use soon.
        env.leave_root();
    }
    match attached {
        Ok(Some(loaded)) => {
            *root_of = (hgatp, vsatp);
            if loaded.fence {
                // What the hart remembers of it is out of date: it gets another ASID there.
                *views.id() = IdSlot::new();
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

/// Makes sure that L2, which runs, has a root, before the hart enters it. Returns how the vCPU goes on instead, if it cannot have one now.
pub(crate) fn settle<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Option<Outcome> {
    let collapsed = run.nested.as_deref().filter(|nested| nested.runs_l2)?.collapsed.as_deref()?;
    if collapsed.root.is_some() {
        return None;
    }
    match attach(g, run, run.bank.csrs.vsatp, env) {
        Ok(true) => {
            env.load_collapsed(run);
            None
        }
        Ok(false) => Some(Outcome::Resume),
        Err(outcome) => Some(outcome),
    }
}

/// Answers a fault of L2's by the tables; `None` if the vCPU's root is the shadow of a table that is elsewhere by now.
fn answer<M: PhysMem, H: Fence<Gpa>>(
    engine: &mut Shadow<L2Gva>,
    (root, below, henvcfg): (&mmu::shadow::Root<L2Gva>, Paging, u64),
    (gva, request): (Addr<L2Gva>, &Request),
    host: &mut Host<'_, M, H>,
) -> Result<Option<Answer>, mmu::gstage::Unresolved> {
    go_by(engine, below, vs_ad(henvcfg));
    match engine.fault_in_known_tables(root, gva, request, host.space, host.mem) {
        Some(answer) => Ok(Some(answer)),
        None if !is_current(engine, root, host) => Ok(None),
        None => engine.fault_from_root(root, gva, request, host).map(Some),
    }
}

/// Handles a page fault of L2's, which runs.
pub(crate) fn fault<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (gva, request): (Addr<L2Gva>, &Request),
    env: &mut E,
) -> Faulted {
    let VcpuRun { vm, nested: Some(nested), ready, .. } = run else { unreachable!("it has no H extension") };
    let Some(root) = nested.collapsed.as_ref().and_then(|collapsed| collapsed.root) else {
        unreachable!("L2 runs without a root")
    };
    let by = (&root, paging(nested.csrs.hgatp).0, nested.csrs.henvcfg);
    let answered =
        with_memory::<L2Gva, _, _>(g, vm, ready, env, |engine, host| answer(engine, by, (gva, request), host));
    match answered {
        Ok(Some(Answer::Filled { forget, known })) => {
            shadow::filled(Addr::new(gva.raw()), request.access, (forget, known), env)
        }
        Ok(Some(Answer::Inject(trap))) => Faulted::Inject(trap),
        Ok(Some(Answer::Device { gpa })) => Faulted::NoRam { access: request.access, gpa },
        // No table is write-protected.
        Ok(Some(Answer::Retry | Answer::TableWrite { .. })) => Faulted::Settled,
        Ok(None) => {
            // The hart makes another before it enters L2 again ([`settle`]).
            detach(&Arc::clone(vm), nested);
            env.leave_root();
            Faulted::Settled
        }
        Err(why) => shadow::helped(g, &Arc::clone(vm), why, env),
    }
}

/// Makes the tables ready for the access that L1 was told of last, which L1's G-stage may allow now, before L2 makes it at `pc`. If it cannot be at
/// once, L2's fault is to.
pub(crate) fn fill<E: Env>(g: &Gnomon, run: &mut VcpuRun, pc: u64, env: &mut E) {
    let VcpuRun { vm, nested: Some(nested), .. } = run else { unreachable!("it has no H extension") };
    let (below, henvcfg) = (paging(nested.csrs.hgatp).0, nested.csrs.henvcfg);
    let Some(collapsed) = nested.collapsed.as_deref_mut() else { return };
    let (Some(refused), Some(root)) = (collapsed.refused.take().filter(|refused| refused.pc == pc), collapsed.root)
    else {
        return;
    };
    let (frames, mut mem, vm) = (&g.harts[env.hart()].frames, env.mem(), Arc::clone(vm));
    let answered = lend::<L2Gva, _, _>(
        (g, &vm, vm.memory.lock()),
        (frames, &mut Ready::Nothing),
        &mut mem,
        env,
        |engine, host| answer(engine, (&root, below, henvcfg), (refused.at, &refused.request), host),
    );
    if let Some(Ok(Some(Answer::Filled { forget, .. }))) = answered {
        run.shared.of_guests().filled.bump();
        if forget != Forget::Nothing {
            *collapsed.views.id() = IdSlot::new();
        }
        if refused.request.access == Access::Fetch {
            env.fence_instructions();
        }
    }
}

/// The translations that a fence of L1's or L2's is about.
pub(crate) enum Fenced {
    /// Those by L1's G-stage (HFENCE.GVMA): of a range, with its length in bytes, or all; of a VMID or all.
    Below(Option<(Addr<L2Gpa>, u64)>, Option<Vmid>),
    /// Those by L2's own tables.
    Own(GuestFence<L2Gva>),
}

/// Does a fence, on the vCPU of this hart. The hart forgets what it ends. Returns whether it was one of both stages, so that nothing of the
/// vCPU's guests is out of date any more.
pub(crate) fn fence<E: Env>(g: &Gnomon, run: &mut VcpuRun, what: &Fenced, env: &mut E) -> bool {
    let VcpuRun { vm, nested: Some(nested), .. } = run else { unreachable!("it has no H extension") };
    let (runs_l2, henvcfg) = (nested.runs_l2, nested.csrs.henvcfg);
    let Some(Collapsed { root, views, log, root_of, .. }) = nested.collapsed.as_deref_mut() else {
        unreachable!("it has no such tables")
    };
    // It knows roots of that `hgatp` only.
    let (below, known) = paging(root_of.0);
    if let Fenced::Below(_, Some(vmid)) = what
        && Asid(vmid.0) != known
    {
        return false;
    }
    let Some(root) = *root else {
        // Roots that it knows are brought up to date when it gets one.
        views.outdate_others(None, log);
        return true;
    };
    let (frames, mut mem, vm) = (&g.harts[env.hart()].frames, env.mem(), Arc::clone(vm));
    let ends = lend::<L2Gva, _, _>(
        (g, &vm, vm.memory.lock()),
        (frames, &mut Ready::Nothing),
        &mut mem,
        env,
        |engine, host| {
            go_by(engine, below, vs_ad(henvcfg));
            match what {
                Fenced::Below(range, _) => fence_below(engine, *range, (root, views, log), host),
                Fenced::Own(fence) => {
                    engine.fence(fence, root, views, log, host);
                    true
                }
            }
        },
    );
    if ends != Some(true) {
        return false;
    }
    let page = match what {
        Fenced::Own(GuestFence { range: Some((at, 1)), .. }) => Some(Addr::new(at.align_down(PAGE_BYTES).raw())),
        _ => None,
    };
    if runs_l2 {
        env.fence_guest(page, None);
        if page.is_none() {
            let present = *views.id();
            views.forget_ids();
            *views.id() = present;
        }
    } else {
        views.forget_ids();
    }
    matches!(what, Fenced::Below(..))
}
