//! Instructions about translation that trap are emulated: accesses to `satp`, and fences. A vCPU gets the root that its `satp` names,
//! by such an access or when it comes to a hart.

use super::{fence, helped, pages};
use crate::device::offer::Offer;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::engine::{lend, with_memory};
use crate::memory::root_cache;
use crate::vm::outcome::{Faulted, Outcome};
use crate::vm::vcpu::{NO_SPACE, ShadowState, VcpuRun};
use crate::vm::{Memory, Vm};
use abi::bundle::VmConfig;
use abi::tunable::Id;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use lane::{Context, Lane, LaneRoot};
use mmu::gstage::Ready;
use mmu::shadow::{GuestFence, Loaded, Paging, Root, Upkeep, Views};
use rv::csr::atp::{self, Satp};
use rv::system::{FenceInsn, FenceKind, System, accessed, is_fence, names_csr, number};
use rv::{Addr, Asid, Gva, Mode};

/// Returns the paging that a guest's `satp` asks for, or `None` if that is not offered.
fn paging(satp: &Satp, offer: &Offer) -> Option<Paging> {
    match satp.table() {
        None => (satp.mode == 0).then_some(Paging::Bare),
        Some((format, root)) => {
            let is_offered = offer.formats.iter().any(|offered| offered.mode == format.mode);
            is_offered.then_some(Paging::Tables { format, root })
        }
    }
}

/// Puts a vCPU on this hart, on its root. If that takes too long at once it has none yet, and a part is done.
///
/// # Errors
/// How the vCPU goes on instead, if there is no memory for one.
pub(crate) fn load<E: Env>(g: &Gnomon, run: &mut VcpuRun, upkeep: Upkeep, env: &mut E) -> Result<(), Outcome> {
    env.load_shadow(run, upkeep == Upkeep::Steered);
    if run.last_hart != env.hart() {
        // Elsewhere it did fences that its translations here have not seen.
        run.shadow.views.forget_ids();
    }
    match run.shadow.root {
        Some(root) => {
            put_on(g, run, &root, false, env);
            Ok(())
        }
        None => attach(g, run, env).map(|_| ()),
    }
}

/// Gives the vCPU the root that its `satp` asks for, in place of the one that it has. Returns whether the vCPU has it:
/// if that would take too long at once, the vCPU keeps the old one, and each attempt does a part.
fn attach<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<bool, Outcome> {
    let satp = Satp::decode(run.bank.csrs.vsatp);
    // A write of anything else had no effect.
    let (paging, asid) = (paging(&satp, &g.offer).unwrap_or(Paging::Bare), satp.asid);
    let VcpuRun { vm, shadow: ShadowState { root: present, views, .. }, ready, .. } = run;
    let lane = &mut run.context.lane;
    lane.turn_off();
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let known =
        lend::<Gva, _, _>((g, vm, vm.memory.lock()), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, host| {
            shadow.attach_known(present, (paging, asid), views, &lane.log, host)
        });
    let loaded = match known.flatten() {
        Some(loaded) => loaded,
        None => match attach_other((g, vm), (present, ready), (paging, asid), (views, lane), env)? {
            Some(loaded) => loaded,
            None => return Ok(false),
        },
    };
    // Published before the next entry: by it, the sender of a later fence decides whether the fence is urgent.
    let published = if paging == Paging::Bare { NO_SPACE } else { run.bank.csrs.vsatp };
    run.shared.satp.store(published, Ordering::SeqCst);
    let Some(root) = *present else { unreachable!("it has been loaded") };
    put_on(g, run, &root, loaded.fence, env);
    Ok(true)
}

/// Gives this hart the vCPU's root, and the lane what it needs. `forget`: what the hart remembers of the root is out of date.
#[inline(always)]
fn put_on<E: Env>(g: &Gnomon, run: &mut VcpuRun, root: &Root, forget: bool, env: &mut E) {
    let VcpuRun { vm, shadow: ShadowState { views, .. }, shared, .. } = run;
    let lane = &mut run.context.lane;
    let satp = env.load_root(root, views.id(), forget);
    // What it may have loaded on this hart before may be others' by now.
    lane.turn_off();
    if !root.has_lane || !vm.config.lane {
        return;
    }
    lane.turn_on(root.table, views.named(root), env.lane_table(root));
    if !g.tunables.is_on(Id::Roots) {
        views.disarm();
    } else if let Some(place) = views.arm(run.bank.csrs.vsatp, satp) {
        let table = views.lane_roots();
        let table = (table.as_mut_ptr().expose_provenance() as u64, table.len());
        lane.change_roots(table, place, (&raw const shared.satp).expose_provenance() as u64);
    }
}

/// Makes a vCPU's memory of roots: of as many as it could have in its share of the VM's shadow pages. A sixteenth of
/// those, beside the ones that every vCPU needs, is held for its lane: a guest's processes that have ended are among
/// those, so with more there would be less room for others.
pub(crate) fn views(upkeep: Upkeep, config: &VmConfig) -> Views {
    /// Pages that no vCPU can do without.
    const LEAST: usize = 32;
    let pages = (pages(upkeep, config).unwrap_or(0) / config.vcpus) as usize;
    let held = if config.lane { (pages.saturating_sub(LEAST) / 16).clamp(1, LaneRoot::MOST) } else { 0 };
    Views::new(pages.next_power_of_two().clamp(LEAST, LaneRoot::MOST), held)
}

/// Attaches a root that the vCPU does not know.
#[inline(never)]
fn attach_other<E: Env>(
    (g, vm): (&Gnomon, &Vm),
    (present, ready): (&mut Option<Root>, &mut Ready),
    what: (Paging, Asid),
    (views, lane): (&mut Views, &mut Lane),
    env: &mut E,
) -> Result<Option<Loaded>, Outcome> {
    let attached = with_memory::<Gva, _, _>(g, vm, ready, env, |shadow, host| {
        Ok((shadow.attach(present, what, views, &lane.log, host)?, shadow.lane_inputs()))
    });
    match attached {
        Ok((loaded, inputs)) => {
            if let Some(inputs) = inputs {
                lane.syncs_by(inputs);
            }
            Ok(loaded)
        }
        Err(why) => match helped(g, vm, why, env) {
            Faulted::Fatal(message) => Err(Outcome::kill(message)),
            _ => Ok(None),
        },
    }
}

/// Takes the vCPU's roots from it.
fn detach(run: &mut VcpuRun) {
    run.context.lane.turn_off();
    let root = run.shadow.root.take();
    let vm = Arc::clone(&run.vm);
    let mut memory = vm.memory.lock();
    if let Some(shadow) = memory.as_mut().and_then(|memory| memory.shadow.as_mut()) {
        shadow.detach_all(root.as_ref(), &mut run.shadow.views, &run.context.lane.log);
    }
}

/// Leaves the vCPU's root while it is behind its G-stage for a while: it has no root, and those that it knows stay.
pub(crate) fn leave(run: &mut VcpuRun) {
    run.context.lane.turn_off();
    let Some(root) = run.shadow.root.take() else { return };
    let mut memory = run.vm.memory.lock();
    if let Some(shadow) = memory.as_mut().and_then(|memory| memory.shadow.as_mut()) {
        shadow.leave_root(&root, &mut run.shadow.views, &run.context.lane.log);
    }
}

/// Makes the vCPU on this hart come back from there. Returns whether it has the root that its `satp` asks for: it has
/// none if there is no memory for it, or if that would take too long at once.
pub(crate) fn come_back<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> bool {
    let vm = Arc::clone(&run.vm);
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let logged = run.context.lane.log.count();
    let log = &mut run.context.lane.log;
    let done =
        lend::<Gva, _, _>((g, &vm, vm.memory.lock()), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, _| {
            shadow.came_back(log);
        });
    run.has_logged(logged);
    done.is_some() && matches!(attach(g, run, env), Ok(true))
}

/// Forgets everything of the life of a vCPU that is about to be parked.
pub(crate) fn forget(run: &mut VcpuRun) {
    detach(run);
    run.shadow.views = run.vm.translation.views(&run.vm.config);
    run.forget_way();
    run.shared.satp.store(NO_SPACE, Ordering::SeqCst);
}

/// Returns the address and the ASID that a fence names.
#[inline(always)]
pub(super) fn fenced(run: &VcpuRun, insn: u64) -> (Option<Addr<Gva>>, Option<Asid>) {
    let (rs1, rs2) = ((insn >> 15 & 31) as usize, (insn >> 20 & 31) as usize);
    let gva = (rs1 != 0).then(|| Addr::new(run.context.x[rs1]));
    let asid = (rs2 != 0).then(|| Asid((run.context.x[rs2] & !run.asids_beyond) as u16));
    (gva, asid)
}

/// Counts a fence of the vCPU's own.
#[inline(always)]
pub(super) fn count_fence(run: &VcpuRun, what: (Option<Addr<Gva>>, Option<Asid>)) {
    let counters = &run.shared.counters;
    match what {
        (Some(_), Some(_)) => counters.fences_page.bump(),
        (Some(_), None) => counters.fences_page_global.bump(),
        (None, Some(_)) => counters.fences_asid.bump(),
        (None, None) => counters.fences_all.bump(),
    }
}

/// Emulates an instruction about translation that trapped in the mode `from`: an access to `satp`, or a fence. `None` if it is
/// neither, or not for the guest's user mode.
// Each call on this path saves registers: 30 instructions an exit, which the compiler took or left as its callers changed.
#[inline(always)]
pub(crate) fn instruction<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (insn, from): (u64, Mode),
    env: &mut E,
) -> Option<Outcome> {
    if from != Mode::Supervisor {
        return None;
    }
    let has_svinval = || g.offer.isa.has("svinval");
    // First the instructions that guests execute often.
    let outcome = if is_fence(insn) {
        own_fence(g, run, insn, env)
    } else if names_csr(insn, number::SATP) {
        return access_satp(g, run, insn, env);
    } else {
        match System::decode(u32::try_from(insn).ok()?)? {
            System::Fence(FenceInsn { kind: FenceKind::Sinval, .. }) if has_svinval() => own_fence(g, run, insn, env),
            // Each SINVAL.VMA is a whole fence here.
            System::SfenceWInval | System::SfenceInvalIr if has_svinval() => Outcome::Resume,
            _ => return None,
        }
    };
    run.context.skip(4);
    Some(outcome)
}

fn own_fence<E: Env>(g: &Gnomon, run: &mut VcpuRun, insn: u64, env: &mut E) -> Outcome {
    let (gva, asid) = fenced(run, insn);
    count_fence(run, (gva, asid));
    // Those of one page whose tables are known are brief, but where another hart had the VM's lock.
    fence(g, run, &GuestFence { range: gva.map(|gva| (gva, 1)), asid }, env);
    Outcome::Resume
}

/// Decodes CSRRW and its like on `satp`: the register that gets the guest's present value, and the new value. `None` if
/// it is no such instruction.
#[inline(always)]
fn written(run: &VcpuRun, insn: u64) -> Option<(u8, u64)> {
    let (rd, new) = accessed(insn, run.bank.csrs.vsatp, &run.context.x)?;
    Some((rd, new & !(run.asids_beyond << atp::ID_SHIFT)))
}

/// Executes an instruction that trapped in the mode `from`, like hardware, if it changes `satp` to a value that
/// `is_wanted`. The caller changes the translation. Returns whether the instruction was executed.
pub(crate) fn writes_satp(
    g: &Gnomon,
    run: &mut VcpuRun,
    (insn, from): (u64, Mode),
    is_wanted: impl FnOnce(&mut VcpuRun, u64) -> bool,
) -> bool {
    let old = run.bank.csrs.vsatp;
    let Some((rd, new)) =
        (from == Mode::Supervisor && names_csr(insn, number::SATP)).then(|| written(run, insn)).flatten()
    else {
        return false;
    };
    if new == old || paging(&Satp::decode(new), &g.offer).is_none() || !is_wanted(run, new) {
        return false;
    }
    run.bank.csrs.vsatp = new;
    satp_accessed(run, rd, old);
    true
}

/// Returns whether such an instruction may leave the guest's `satp` as it is, or lead to a root that the lane would not
/// have found.
#[inline(always)]
pub(super) fn may_be_brief(run: &VcpuRun, insn: u64) -> bool {
    const WRITES: u64 = 0x1073;
    let source = (insn >> 15 & 31) as usize;
    let is_same = insn & 0x707f == WRITES && run.context.x[source] == run.shared.satp.load(Ordering::Relaxed);
    is_same || !run.context.lane.changes_roots()
}

/// Executes such an instruction if it leaves the guest's `satp` as it is, or leads to a root that is up to date, and
/// that the lane would not have found. Returns whether it was executed.
#[inline(always)]
pub(super) fn access_satp_briefly<E: Env>(g: &Gnomon, run: &mut VcpuRun, insn: u64, env: &mut E) -> bool {
    let old = run.bank.csrs.vsatp;
    let Some((rd, new)) = written(run, insn).filter(|(rd, _)| !Context::is_preserved(*rd)) else { return false };
    // Of an adaptive vCPU, another root may be two-stage.
    let may_attach = |run: &VcpuRun| !run.context.lane.changes_roots() && run.adapts.is_none();
    if new != old && !(may_attach(run) && attach_briefly(g, run, new, env)) {
        return false;
    }
    satp_accessed(run, rd, old);
    true
}

/// Gives the vCPU the root that `satp` asks for, if it knows that, and no fence has passed over it since. Returns
/// whether the vCPU has the root.
#[inline(never)]
fn attach_briefly<E: Env>(g: &Gnomon, run: &mut VcpuRun, satp: u64, env: &mut E) -> bool {
    let decoded = Satp::decode(satp);
    let (Some(paging @ Paging::Tables { .. }), asid) = (paging(&decoded, &g.offer), decoded.asid) else { return false };
    let VcpuRun { vm, shadow: ShadowState { root: present, views, .. }, shared, .. } = run;
    let log = &run.context.lane.log;
    if !views.is_up_to_date(paging, asid, log) {
        return false;
    }
    // The lock's holder may wait for this hart.
    let Some(mut memory) = vm.memory.try_lock() else { return false };
    let Some(Memory { shadow: Some(shadow), .. }) = memory.as_mut() else { return false };
    // The root is published before `posted` is read; the sender of a fence posts it before it reads the published root.
    let published = shared.satp.swap(satp, Ordering::SeqCst);
    let is_attached = shared.posted.load(Ordering::SeqCst) == 0
        && shadow.alone(&mut env.mem(), |shadow, _| shadow.attach_up_to_date(present, (paging, asid), views, log));
    if !is_attached {
        shared.satp.store(published, Ordering::SeqCst);
        return false;
    }
    drop(memory);
    run.bank.csrs.vsatp = satp;
    let Some(root) = run.shadow.root else { unreachable!("it has been loaded") };
    put_on(g, run, &root, false, env);
    true
}

/// Gives the vCPU the root of another `satp`, by a call of its kernel. Returns whether the vCPU has it: if that takes too long at once, the vCPU keeps what
/// it had, and each attempt does a part.
pub(crate) fn change<E: Env>(g: &Gnomon, run: &mut VcpuRun, satp: u64, env: &mut E) -> Result<bool, Outcome> {
    let old = run.bank.csrs.vsatp;
    if satp == old || attach_briefly(g, run, satp, env) {
        return Ok(true);
    }
    run.bank.csrs.vsatp = satp;
    let is_attached = attach(g, run, env);
    if !matches!(is_attached, Ok(true)) {
        run.bank.csrs.vsatp = old;
    }
    is_attached
}

/// Ends such an instruction, after which its `rd` has what `satp` had before.
#[inline(always)]
fn satp_accessed(run: &mut VcpuRun, rd: u8, old: u64) {
    run.context.set(rd, old);
    run.context.skip(4);
    run.shared.counters.satp_accesses.bump();
}

/// Executes CSRRW and its like on `satp`. `None` if it is no such instruction.
// As [`instruction`].
#[inline(always)]
fn access_satp<E: Env>(g: &Gnomon, run: &mut VcpuRun, insn: u64, env: &mut E) -> Option<Outcome> {
    let (rd, new) = written(run, insn)?;
    let old = run.bank.csrs.vsatp;
    // "Implementations are not required to support all MODE settings, and if satp is written with an unsupported
    // MODE, the entire write has no effect" (norm:satp-mode_op_unsupported).
    if new != old && paging(&Satp::decode(new), &g.offer).is_some() {
        run.bank.csrs.vsatp = new;
        match attach(g, run, env) {
            Ok(true) => {}
            Ok(false) => {
                // The guest tries again, and interrupts have their turn in between.
                run.bank.csrs.vsatp = old;
                return Some(Outcome::Resume);
            }
            Err(outcome) => return Some(outcome),
        }
    }
    satp_accessed(run, rd, old);
    if run.root_cache.is_some() {
        root_cache::note(g, run, env);
    }
    Some(Outcome::Resume)
}
