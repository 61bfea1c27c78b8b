//! Guests behind a G-stage: the hart walks their own tables and their VM's, which is made as they touch their memory.

use crate::device::offer::{GuestMode, Offer};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::machine::isa::Isa;
use crate::memory::own_tables;
use crate::memory::shootdown::Tlbs;
use crate::vm::chores::Remains;
use crate::vm::outcome::Faulted;
use crate::vm::vcpu::VcpuRun;
use crate::vm::{Memory, Unreachable, Vm};
use abi::bundle::VmConfig;
use alloc::format;
use alloc::string::String;
use mmu::frames::Frames;
use mmu::gstage::{Filled, How, Images, Ready, Resolved, Unresolved, in_portions};
use mmu::ids::IdSlot;
use mmu::shadow::GuestFence;
use rv::csr::status;
use rv::{Access, Addr, Caps, Exception, FenceScope, Gpa, Gva, Hpa, PAGE_BYTES, Request, Trap};

/// Checks whether this machine can put such a VM behind a G-stage; the error is a message.
pub(crate) fn check(config: &VmConfig, offer: &Offer) -> Result<(), String> {
    if offer.guest == GuestMode::Supervisor {
        let modes = "use mmu = shadow, unsync, lazy or steered instead";
        return Err(format!("mmu = two-stage needs the H extension, which this machine's harts lack: {modes}"));
    }
    if offer.svadu(config) && !offer.two_stage_svadu {
        let modes = "use mmu = shadow, unsync or lazy, or leave svadu off";
        return Err(format!(
            "svadu with mmu = two-stage needs harts and firmware that grant it (henvcfg.ADUE): {modes}"
        ));
    }
    Ok(())
}

/// Returns the ISA that its harts are told to have. The setter of A and D is known if the hart lets Gnomon choose
/// (`henvcfg.ADUE`).
pub(crate) fn isa(config: &VmConfig, offer: &Offer) -> Isa {
    let isa = offer.isa.with_svvptc(config.svvptc).with_hypervisor(config.nested);
    if offer.two_stage_svadu { isa.with_svadu(offer.svadu(config)) } else { isa }
}

/// Returns the way in which its images are mapped: hardware that sets A and D in a guest's table does not ask the
/// G-stage everywhere.
pub(crate) fn images(config: &VmConfig, offer: &Offer) -> Images {
    if offer.svadu(config) { Images::Private } else { Images::Shared }
}

/// Takes the VM's memory away. None of its vCPUs is on a hart.
pub(crate) fn tear_down<E: Env>(g: &Gnomon, vm: &Vm, memory: Memory, env: &mut E) -> Remains {
    {
        let mut past = vm.past.lock();
        past.space += memory.space.counters();
        if let Some(nested) = &memory.nested {
            past.nested += *nested.counters();
            past.serials = nested.next_serial();
        }
        if let Some(collapsed) = &memory.collapsed {
            past.nested += *collapsed.counters();
            past.serials = collapsed.next_serial();
        }
    }
    // TLBs still hold the VM's translations: the fence makes every hart forget them before it enters this VM again, and
    // no other VM's VMID reaches them.
    let space = memory.space.destroy(&mut Tlbs { g, vm, env });
    match (memory.nested, memory.collapsed) {
        (Some(nested), _) => Remains::of(space, nested.destroy()),
        (None, Some(collapsed)) => Remains::of(space, collapsed.destroy()),
        (None, None) => Remains::of_space(space),
    }
}

/// Puts a vCPU on this hart.
pub(crate) fn load<E: Env>(run: &mut VcpuRun, env: &mut E) {
    if run.g_root.is_none() {
        run.g_root = run.vm.memory.lock().as_ref().map(|memory| memory.space.root());
    }
    // A VM loses its tables only when all its vCPUs are parked; Bare would be all of memory.
    let Some(table) = run.g_root else { unreachable!("{} has no memory, but a vCPU to run", run.vm.config.name) };
    env.load_two_stage(run, table);
}

/// Does one fence that another vCPU, or Gnomon, asked of the loaded one.
pub(crate) fn fence<E: Env>(run: &mut VcpuRun, fence: &GuestFence, env: &mut E) {
    if run.runs_l2() {
        // The hart has the VMID of its guest: by the one that it had itself it finds nothing again.
        run.vmid = IdSlot::new();
        return;
    }
    match fence.pages() {
        Some(pages) => pages.for_each(|page| env.fence_guest(Some(page), fence.asid)),
        None => env.fence_guest(None, fence.asid),
    }
}

/// Makes `gpa` ready for `access`.
pub(crate) fn reach<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    what: (Addr<Gpa>, Access),
    ready: &mut Ready,
    env: &mut E,
) -> Result<Addr<Hpa>, Unreachable> {
    let frames = &g.harts[env.hart()].frames;
    let done =
        in_portions(frames, &mut env.mem(), ready, |ready, mem| try_reach(g, vm, what, (frames, ready), mem, env));
    let done = done?;
    look(g, env);
    done.ok_or(Unreachable::Later)
}

/// Resolves a G-stage fault of the loaded vCPU with a share of the lock, so that vCPUs of one VM fault at once. Returns `None` if the fault takes the
/// whole lock, because it is held, or because more is to be done than to fill an invalid entry.
pub(crate) fn touch<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (gpa, access): (Addr<Gpa>, Access),
    env: &mut E,
) -> Option<Result<Addr<Hpa>, Unreachable>> {
    let VcpuRun { vm, ready, .. } = run;
    let frames = &g.harts[env.hart()].frames;
    let done = in_portions(frames, &mut env.mem(), ready, |ready, mem| {
        let shared = vm.memory.share_soon();
        let Some(Memory { space, .. }) = shared.as_deref().and_then(Option::as_ref) else {
            return Ok(Filled::Elsewhere);
        };
        let filled = space.fill(gpa, access, ready, frames, mem);
        drop(shared);
        filled.map_err(|why| g.unresolved(why, env))
    });
    match done {
        Ok(Some(Filled::Elsewhere)) => None,
        Ok(Some(Filled::Mapped { hpa, how })) => {
            forget_older(g, vm, (gpa, access), how, env);
            look(g, env);
            Some(Ok(hpa))
        }
        Ok(None) => {
            look(g, env);
            Some(Err(Unreachable::Later))
        }
        Err(error) => Some(Err(error)),
    }
}

/// Starts to reclaim memory if too little is free.
fn look<E: Env>(g: &Gnomon, env: &mut E) {
    if g.pager.is_on() {
        g.pager.look(&g.harts[env.hart()].frames, env);
    }
}

/// Does the fences that a resolved fault owes on this hart.
fn forget_older<E: Env>(g: &Gnomon, vm: &Vm, (gpa, access): (Addr<Gpa>, Access), how: How, env: &mut E) {
    if how == How::Spurious {
        // The entry is right although this hart has faulted: another hart was faster, or this TLB holds the older
        // entry. It is fenced on this hart only.
        let page = FenceScope::Range { start: gpa.align_down(PAGE_BYTES), bytes: PAGE_BYTES };
        g.harts[env.hart()].counters.fences.bump();
        env.fence_g_stage(vm.slot(), page);
    }
    if how == How::Copied || access == Access::Fetch {
        // Code may be behind it that Gnomon has copied, or an earlier owner's still cached.
        env.fence_instructions();
    }
}

/// Makes one attempt, under the VM's lock.
fn try_reach<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    (gpa, access): (Addr<Gpa>, Access),
    (frames, ready): (&Frames, &mut Ready),
    mem: &mut E::Mem,
    env: &mut E,
) -> Result<Addr<Hpa>, Unresolved<Unreachable>> {
    let mut guard = vm.memory.lock();
    let Memory { space, .. } = guard.as_mut().ok_or(Unresolved::For(Unreachable::Gone))?;
    let resolved = space.resolve_with(gpa, access, ready, frames, mem);
    let resolved = resolved.map_err(|why| g.unresolved(why, env))?;
    g.pager.forgo_all(space);
    let Resolved::Mapped { hpa, how, stale, publish } = resolved else {
        return Err(Unresolved::For(Unreachable::Hole));
    };
    forget_older(g, vm, (gpa, access), how, env);
    // The VM's own lock stays held: no hart may resolve this page meanwhile and have its
    // translation overtaken by this fence, or see the copy before all others have left.
    space.settle(stale, publish, &mut Tlbs { g, vm, env }, mem).release(frames);
    Ok(hpa)
}

/// Handles a page fault behind a G-stage. It is the guest's own, on harts that cannot delegate them (`medeleg` and `hedeleg` are WARL); or hardware
/// would have set A or D, and Gnomon does that in its place ([`Tlb::sets_ad`](crate::vm::Tlb::sets_ad)).
#[cold]
pub(crate) fn page_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Faulted {
    run.shared.counters.exits_other.bump();
    let gva = Addr::<Gva>::new(run.context.exit.tval);
    let trap = Trap::new(exception, gva.raw());
    let access = match exception {
        Exception::LoadPage => Access::Load,
        Exception::StorePage => Access::Store,
        _ => Access::Fetch,
    };
    if !env.sets_ad() || run.runs_l2() {
        return Faulted::Inject(trap);
    }
    let has = |bit| env.status() & bit != 0;
    let (sum, mxr) = (has(status::SUM), has(status::MXR));
    let request = Request { access, mode: env.privilege(), sum, mxr, hs_mxr: false };
    let root = run.vm.translation.satp(run, env);
    let caps = Caps { svnapot: g.offer.isa.has("svnapot"), svpbmt: g.offer.isa.has("svpbmt") };
    match own_tables::place(g, run, (root, gva, request), caps, env) {
        Ok(Some(_)) => {
            env.fence_guest(Some(gva), None);
            Faulted::Settled
        }
        Ok(None) => Faulted::Inject(trap),
        Err(Unreachable::Waits { since }) => Faulted::Waits { since },
        // The VM is leaving, or the guest faults again for the rest.
        Err(Unreachable::Gone | Unreachable::Later) => Faulted::Settled,
        Err(why) => Faulted::Fatal(format!("no memory for a table: {why}")),
    }
}
