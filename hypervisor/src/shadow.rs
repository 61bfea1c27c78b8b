//! Guests on shadow tables: their page faults, `satp`, fences, and stores to their tables.
//!
//! The engine is [`mmu::shadow`]; here are the exits that drive it. A vCPU owns its root (`VcpuRun::root`) from
//! when it is first put on a hart until it is parked, and never enters its guest without one: with no
//! G-stage behind it, Bare would be all of memory.

pub(crate) mod paging;
pub(crate) mod steered;
mod steering;
mod store;
pub(crate) mod way;

use crate::chores::Remains;
use crate::env::Env;
use crate::exit::{Faulted, Outcome};
use crate::fetch;
use crate::gnomon::Gnomon;
use crate::isa::Isa;
use crate::offer::Offer;
use crate::shootdown::shoot_down;
use crate::vcpu::{NO_SPACE, Vcpu, VcpuRun};
use crate::vm::{Locked, Memory, Unreachable, Vm};
use abi::bundle::{GUEST_RAM_BASE, LEAST_SHADOW_BYTES_PER_VCPU, VmConfig, default_shadow_bytes};
use abi::tunable::Id;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use mmu::frames::{Frames, Owner};
use mmu::gstage::{Ready, Unresolved, in_portions};
use mmu::shadow::{
    Answer, Config, Counters, Forget, GuestFence, Host, Lists, Loaded, Paging, Root, Shadow, Upkeep, Views,
};
use mmu::walk::AdPolicy;
use rv::csr::atp::Satp;
use rv::csr::{envcfg, status};
use rv::insn::is_cache_block_management;
use rv::{
    Access, Addr, Asid, Elide, Exception, Fence, FenceScope, Gpa, Gva, Hpa, Lane, LaneRoot, Mode, PAGE_BYTES, Pfn,
    PhysMem, Request, Trap,
};
use store::Store;

/// The paging that a guest's `satp` asks for, or `None` if that is not offered.
fn paging(satp: &Satp, offer: &Offer) -> Option<Paging> {
    match satp.table() {
        None => (satp.mode == 0).then_some(Paging::Bare),
        Some((format, root)) => {
            let is_offered = offer.formats.iter().any(|offered| offered.mode == format.mode);
            is_offered.then_some(Paging::Tables { format, root })
        }
    }
}

/// Lends the VM's engine and what it needs, until the lock is given back. `None` if the VM has no memory any more.
fn lend<E: Env, R>(
    (g, vm, mut guard): (&Gnomon, &Vm, Locked<'_>),
    from: (&Frames, &mut Ready),
    mem: &mut E::Mem,
    env: &mut E,
    to: impl FnOnce(&mut Shadow, &mut Host<'_, E::Mem, ShadowFence<'_, E>>) -> R,
) -> Option<R> {
    let Memory { space, shadow: Some(shadow) } = guard.as_mut()? else { return None };
    let mut hw = ShadowFence { g, vm, env };
    let result = shadow.alone(mem, |shadow, mem| to(shadow, &mut Host::new(space, from, mem, &mut hw)));
    g.pager.forgo_all(space);
    Some(result)
}

/// The same for what takes memory: for an attempt. Where 2 MiB are to be made ready first, a portion of them is, and the caller
/// comes back.
fn with_memory<E: Env, R>(
    g: &Gnomon,
    vm: &Vm,
    ready: &mut Ready,
    env: &mut E,
    mut attempt: impl FnMut(&mut Shadow, &mut Host<'_, E::Mem, ShadowFence<'_, E>>) -> Result<R, Unresolved>,
) -> Result<R, Unreachable> {
    let frames = &g.harts[env.hart()].frames;
    let mut is_first = true;
    let done = in_portions(frames, &mut env.mem(), ready, |ready, mem| {
        // To make 2 MiB ready takes as long as an exit may: what they are for comes in another.
        if !core::mem::take(&mut is_first) {
            return Err(Unresolved::Later);
        }
        let attempted = lend((g, vm, vm.memory.lock()), (frames, ready), mem, env, &mut attempt);
        let attempted = attempted.ok_or(Unresolved::For(Unreachable::Gone))?;
        attempted.map_err(|why| g.unresolved(why, env))
    });
    let done = done?;
    if g.pager.is_on() {
        g.pager.look(frames, env);
    }
    done.ok_or(Unreachable::Later)
}

/// Most shadow pages of a VM.
fn pages(upkeep: Upkeep, config: &VmConfig) -> Result<u32, String> {
    let bytes = config.shadow_bytes.unwrap_or_else(|| default_shadow_bytes(config.memory_bytes));
    let least = LEAST_SHADOW_BYTES_PER_VCPU * u64::from(config.vcpus);
    if bytes < least {
        return Err(format!("{bytes} bytes for its shadow tables: at least {least} are needed for its vCPUs"));
    }
    Ok((bytes / Config::bytes_each(upkeep)).min(Config::MOST_PAGES.into()) as u32)
}

/// The frames that a VM's shadow tables may take.
///
/// # Errors
/// A message, if it is given too little for them.
pub(crate) fn frames(upkeep: Upkeep, config: &VmConfig) -> Result<u64, String> {
    let ram = (Addr::new(GUEST_RAM_BASE).pfn(), config.memory_bytes / PAGE_BYTES);
    Ok(Config::frames(upkeep, pages(upkeep, config)?, ram))
}

/// What a VM's harts are told to have.
pub(crate) fn isa(upkeep: Upkeep, config: &VmConfig, offer: &Offer) -> Isa {
    // Who steers lives by the fence after an entry has become valid.
    offer.isa.shadowed(config.svvptc && upkeep != Upkeep::Steered).with_svadu(config.svadu)
}

/// Whether a VM can be shadowed so.
///
/// # Errors
/// A message, if not.
pub(crate) fn check(upkeep: Upkeep, config: &VmConfig, offer: &Offer) -> Result<(), String> {
    if upkeep != Upkeep::Steered { Ok(()) } else { steering::check(config, offer) }
}

/// The lists for a VM's engine.
pub(crate) fn lists(config: &VmConfig) -> Lists {
    Lists::new(Addr::new(GUEST_RAM_BASE).pfn(), config.memory_bytes / PAGE_BYTES)
}

/// Makes a VM's engine.
///
/// # Errors
/// A message, if there is no memory for it.
pub(crate) fn build(
    vm: &Vm,
    upkeep: Upkeep,
    lists: Lists,
    (owner, frames): (Owner, &Frames),
    mem: &mut impl PhysMem,
) -> Result<Shadow, String> {
    let config = &vm.config;
    let ad = if config.svadu { AdPolicy::Svadu } else { AdPolicy::Svade };
    let first_serial = vm.past.lock().serials;
    let pages = match pages(upkeep, config) {
        Ok(pages) => pages,
        Err(message) => {
            lists.release(frames);
            return Err(message);
        }
    };
    let config = Config { upkeep, ad, pages, first_serial };
    let shadow = Shadow::new(config, owner, lists, frames);
    let mut shadow = shadow.map_err(|e| format!("no memory for its shadow tables: {e}"))?;
    if vm.config.lane {
        let end = Addr::new(GUEST_RAM_BASE + vm.config.memory_bytes).pfn();
        shadow.begin_lane(end, frames, mem);
    }
    Ok(shadow)
}

/// Takes the VM's memory away. None of its vCPUs is on a hart.
pub(crate) fn tear_down<E: Env>(g: &Gnomon, vm: &Vm, Memory { space, shadow }: Memory, env: &mut E) -> Remains {
    let mut past = vm.past.lock();
    past.space += *space.counters();
    if let Some(shadow) = &shadow {
        past.shadow += *shadow.counters();
        past.serials = shadow.next_serial();
    }
    drop(past);
    // TLBs still hold the VM's translations: the fence makes every hart forget them before it enters this VM again, and
    // its roots' ASIDs are never loaded again.
    let space = space.destroy(&mut ShadowFence { g, vm, env });
    Remains::of(space, shadow.into_iter().flat_map(Shadow::destroy))
}

/// What the VM's engines have counted.
pub(crate) fn counters(vm: &Vm) -> Counters {
    let mut counters = vm.past.lock().shadow;
    if let Some(shadow) = vm.memory.lock().as_ref().and_then(|memory| memory.shadow.as_ref()) {
        counters += *shadow.counters();
    }
    counters
}

/// Puts a vCPU on this hart, on its root. If that takes too long at once it has none yet, and a part is done.
///
/// # Errors
/// How the vCPU goes on instead, if there is no memory for one.
pub(crate) fn load<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<(), Outcome> {
    env.load_shadow(run);
    if run.last_hart != env.hart() {
        // Elsewhere it did fences that its translations here have not seen.
        run.views.forget_ids();
    }
    match run.root {
        Some(root) => {
            put_on(g, run, &root, false, env);
            Ok(())
        }
        None => attach(g, run, env).map(|_| ()),
    }
}

/// What the vCPU's guest has written to `satp`.
pub(crate) fn satp(run: &VcpuRun) -> u64 {
    let lane = &run.context.lane;
    if lane.changes() == run.changes { run.csrs.vsatp } else { run.views.key(lane.place()) }
}

/// Makes `gpa` ready for `access`.
pub(crate) fn reach<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    (gpa, access): (Addr<Gpa>, Access),
    ready: &mut Ready,
    env: &mut E,
) -> Result<Addr<Hpa>, Unreachable> {
    with_memory(g, vm, ready, env, |shadow, host| shadow.resolve(gpa, access, host))?.ok_or(Unreachable::Hole)
}

/// Gnomon has written to the guest's memory. A guest table would not notice: its shadow looks at the next fence.
pub(crate) fn host_wrote<E: Env>(vm: &Vm, gfn: Pfn<Gpa>, env: &E) {
    if let Some(shadow) = vm.memory.lock().as_mut().and_then(|memory| memory.shadow.as_mut()) {
        shadow.host_wrote(gfn, &env.mem());
    }
}

/// Whether a hart in the guest must leave it for this fence at once. One whose root the fence is not about need not: to use
/// one that it is about, the guest writes `satp`. In the lane or at an exit, that is published before it is looked at what is posted.
pub(crate) fn is_urgent(vcpu: &Vcpu, fence: &GuestFence) -> bool {
    let present = vcpu.satp.load(Ordering::SeqCst);
    match fence.asid {
        _ if present == NO_SPACE => false,
        Some(asid) => Satp::decode(present).asid == asid,
        None => true,
    }
}

/// What a fault comes to that did not get the memory which it takes.
#[cold]
#[inline(never)]
fn helped<E: Env>(g: &Gnomon, vm: &Vm, why: Unreachable, env: &mut E) -> Faulted {
    match g.pager.help(g, vm, why, env) {
        Ok(()) | Err(Unreachable::Later) => Faulted::Settled,
        Err(Unreachable::Waits { since }) => Faulted::Waits { since },
        Err(error) => Faulted::Fatal(no_memory(error)),
    }
}

fn no_memory(error: Unreachable) -> String {
    format!("no memory for the guest or its shadow tables: {error}")
}

/// All harts' TLBs, when shadow or G-stage tables of one VM change: what they hold leads from virtual to host addresses at
/// once, so no scope of guest physical addresses tells what to forget.
struct ShadowFence<'a, E> {
    g: &'a Gnomon,
    vm: &'a Vm,
    /// The hart that edits.
    env: &'a mut E,
}

impl<E: Env> Fence<Gpa> for ShadowFence<'_, E> {
    fn fence(&mut self, _: FenceScope<Gpa>) {
        self.vm.edits.fetch_add(1, Ordering::SeqCst);
        shoot_down(self.g, self.vm, self.env);
        self.env.fence_guest(None, None);
        // Pages may have been copied, as data; code may be among them. The others do the same when they enter.
        self.env.fence_instructions();
    }

    fn note_elided(&mut self, _: FenceScope<Gpa>, _: Elide) {}
}

/// Gives the vCPU the root that its `satp` asks for, in place of the one that it has. Says whether it has: if it would take
/// too long at once, it has the old one, and each attempt does a part.
fn attach<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<bool, Outcome> {
    let satp = Satp::decode(run.csrs.vsatp);
    // A write of anything else had no effect.
    let (paging, asid) = (paging(&satp, &g.offer).unwrap_or(Paging::Bare), satp.asid);
    let VcpuRun { vm, root: present, views, ready, .. } = run;
    let lane = &mut run.context.lane;
    lane.turn_off();
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let known = lend((g, vm, vm.memory.lock()), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, host| {
        shadow.attach_known(present, (paging, asid), views, &lane.log, host)
    });
    let loaded = match known.flatten() {
        Some(loaded) => loaded,
        None => match attach_other((g, vm), (present, ready), (paging, asid), (views, lane), env)? {
            Some(loaded) => loaded,
            None => return Ok(false),
        },
    };
    // Published before the next entry: whoever sends a fence after that knows whether it is urgent.
    let published = if paging == Paging::Bare { NO_SPACE } else { run.csrs.vsatp };
    run.shared.satp.store(published, Ordering::SeqCst);
    let Some(root) = *present else { unreachable!("it has been loaded") };
    put_on(g, run, &root, loaded.fence, env);
    Ok(true)
}

/// Gives this hart the vCPU's root, and the lane what it needs. `forget`: what the hart remembers of the root is out of date.
#[inline(always)]
fn put_on<E: Env>(g: &Gnomon, run: &mut VcpuRun, root: &Root, forget: bool, env: &mut E) {
    let VcpuRun { vm, views, shared, .. } = run;
    let lane = &mut run.context.lane;
    let satp = env.load_root(root, views.id(), forget);
    if !root.has_lane || !vm.config.lane {
        lane.turn_off();
        return;
    }
    let named = (!views.others_have(root.asid)).then_some(root.asid);
    lane.turn_on(root.table, named, env.lane_table(root));
    if g.tunables.is_on(Id::Roots)
        && let Some(place) = views.arm(run.csrs.vsatp, satp)
    {
        let table = views.lane_roots().as_mut_ptr().expose_provenance() as u64;
        lane.change_roots(table, place, (&raw const shared.satp).expose_provenance() as u64);
    }
}

/// The roots that are held for a vCPU's lane: a sixteenth of its share of the VM's shadow pages, beside what no vCPU can do without.
/// A guest's processes that have ended are among them, so with more there is less room for those that there are.
pub(crate) fn held(upkeep: Upkeep, config: &VmConfig) -> usize {
    /// Of a vCPU: [`LEAST_SHADOW_BYTES_PER_VCPU`] for `lazy`.
    const LEAST: u32 = 32;
    if !config.lane {
        return 0;
    }
    let pages = pages(upkeep, config).unwrap_or(0);
    ((pages / config.vcpus).saturating_sub(LEAST) as usize / 16).clamp(1, LaneRoot::PLACES)
}

/// A root that the vCPU does not know.
#[inline(never)]
fn attach_other<E: Env>(
    (g, vm): (&Gnomon, &Vm),
    (present, ready): (&mut Option<Root>, &mut Ready),
    what: (Paging, Asid),
    (views, lane): (&mut Views, &mut Lane),
    env: &mut E,
) -> Result<Option<Loaded>, Outcome> {
    let attached = with_memory(g, vm, ready, env, |shadow, host| {
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
    let root = run.root.take();
    let vm = Arc::clone(&run.vm);
    let mut memory = vm.memory.lock();
    if let Some(shadow) = memory.as_mut().and_then(|memory| memory.shadow.as_mut()) {
        shadow.detach_all(root.as_ref(), &mut run.views, &run.context.lane.log);
    }
}

/// The vCPU is about to be parked: nothing of its life remains.
pub(crate) fn forget(run: &mut VcpuRun) {
    detach(run);
    run.views = Views::new(run.vm.translation.held(&run.vm.config));
    run.forget_way();
    run.shared.satp.store(NO_SPACE, Ordering::SeqCst);
}

/// An access that the guest's tables refuse: the guest gets the trap, unless it was not the store that it was reported as.
/// Cleaning, flushing or invalidating a cache block is allowed where a load is, too, but faults as a store (CMO specification,
/// 2.5).
#[cold]
fn refused<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (gva, request): (Addr<Gva>, &Request),
    trap: Trap,
    env: &mut E,
) -> Faulted {
    // Most such stores are for copies on write, of user modes that may not manage caches.
    let may_manage = request.access == Access::Store
        && run.context.exit.tinst == 0
        && (request.mode == Mode::Supervisor || env.user_environment() & envcfg::USER_CBO != 0)
        && g.offer.isa.has("zicbom");
    let (Some(root), true) = (run.root, may_manage) else { return Faulted::Inject(trap) };
    let access = Access::Load;
    let as_load = Request { access, ..*request };
    let (satp, pc) = (run.csrs.vsatp, run.context.pc);
    let answer = with_memory(g, &run.vm, &mut run.ready, env, |shadow, host| {
        let insn = fetch::instruction(host.space, satp, request.mode, pc, &*host.mem);
        match insn {
            Some(insn) if is_cache_block_management(insn) => shadow.fault(&root, gva, &as_load, host),
            Some(_) => Ok(Answer::Inject(trap)),
            // It has gone meanwhile: the guest fetches it again.
            None => Ok(Answer::Retry),
        }
    });
    match answer {
        Ok(Answer::Filled { forget, known }) => filled(gva, access, (forget, known), env),
        Ok(Answer::Retry) => Faulted::Settled,
        Ok(_) => Faulted::Inject(trap),
        Err(why) => {
            let vm = Arc::clone(&run.vm);
            helped(g, &vm, why, env)
        }
    }
}

/// The entries that a fault was about let the access through now; what this hart has to forget of older ones.
#[inline(always)]
fn filled<E: Env>(gva: Addr<Gva>, access: Access, (forget, known): (Forget, bool), env: &mut E) -> Faulted {
    match forget {
        Forget::Nothing => {}
        Forget::Page => env.fence_guest(Some(gva.align_down(PAGE_BYTES)), None),
        Forget::Root => env.fence_guest_root(),
    }
    if access == Access::Fetch {
        // An earlier owner's code may still be cached.
        env.fence_instructions();
    }
    if known { Faulted::Known } else { Faulted::Settled }
}

/// A page fault of the guest's.
// Within the handling of all exits, its frame would be theirs.
#[inline(never)]
pub(crate) fn page_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Faulted {
    run.follow_lane();
    run.shared.counters.exits_page_fault.bump();
    let access = match exception {
        Exception::FetchPage => Access::Fetch,
        Exception::LoadPage => Access::Load,
        _ => Access::Store,
    };
    fault(g, run, access, env)
}

/// The same, or an access fault of a steered guest's.
#[inline(always)]
fn fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, env: &mut E) -> Faulted {
    let gva = Addr::new(run.context.exit.tval);
    let (status, mode) = (env.status(), env.privilege());
    let has = |bit| status & bit != 0;
    let request = Request { access, mode, sum: has(status::SUM), mxr: has(status::MXR), hs_mxr: false };
    let Some(root) = &run.root else { unreachable!("a guest without a root") };
    let mut memory = run.vm.memory.lock();
    let Some(Memory { space, shadow: Some(shadow) }) = memory.as_mut() else {
        return Faulted::Fatal(no_memory(Unreachable::Gone));
    };
    // All that most faults take. As a closure it would cost each 34 instructions.
    let mut mem = env.mem();
    shadow.close(&mut mem);
    let known = shadow.fault_in_known_tables(root, gva, &request, space, &mut mem);
    shadow.open(&mut mem);
    let mut store = Store { gva, satp: run.csrs.vsatp, mode, context: &mut run.context };
    let answer = match known {
        Some(Answer::Filled { forget, known }) => {
            drop(memory);
            return filled(gva, access, (forget, known), env);
        }
        Some(Answer::Device { gpa }) => return Faulted::NoRam { access, gpa },
        Some(Answer::Retry) => return Faulted::Settled,
        Some(Answer::TableWrite { gpa, hpa }) => {
            let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
            // While the tables are as they were for the fault.
            lend((g, &run.vm, memory), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, host| {
                store.carry_out((gpa, hpa), shadow, host);
            });
            return Faulted::Settled;
        }
        _ => {
            drop(memory);
            other_fault(g, (&run.vm, root), store, (&request, &mut run.ready), env)
        }
    };
    match answer {
        Ok(Answer::Filled { forget, known }) => filled(gva, access, (forget, known), env),
        Ok(Answer::Inject(trap)) => refused(g, run, (gva, &request), trap, env),
        Ok(Answer::Device { gpa }) => Faulted::NoRam { access, gpa },
        Ok(Answer::TableWrite { .. } | Answer::Retry) => Faulted::Settled,
        Err(why) => {
            let vm = Arc::clone(&run.vm);
            helped(g, &vm, why, env)
        }
    }
}

/// A page fault that is not answered by what is known. A store to a guest's table is carried out.
#[inline(never)]
fn other_fault<E: Env>(
    g: &Gnomon,
    (vm, root): (&Vm, &Root),
    mut store: Store<'_>,
    (request, ready): (&Request, &mut Ready),
    env: &mut E,
) -> Result<Answer, Unreachable> {
    with_memory(g, vm, ready, env, |shadow, host| {
        let answer = shadow.fault_from_root(root, store.gva, request, host)?;
        if let Answer::TableWrite { gpa, hpa } = answer {
            store.carry_out((gpa, hpa), shadow, host);
        }
        Ok(answer)
    })
}

/// A fence of the guest's on the vCPU that is on this hart: its own, or one that another vCPU asked for.
pub(crate) fn fence<E: Env>(g: &Gnomon, run: &mut VcpuRun, fence: &GuestFence, env: &mut E) {
    run.count_lane();
    run.follow_lane();
    run.forget_way();
    let Some(root) = run.root else { unreachable!("a guest without a root") };
    let vm = Arc::clone(&run.vm);
    let (views, log) = (&mut run.views, &mut run.context.lane.log);
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let done = lend((g, &vm, vm.memory.lock()), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, host| {
        shadow.fence(fence, root, views, log, host);
    });
    done.expect("the VM of a loaded vCPU has memory");
    run.logged = run.context.lane.log.count();
    match (fence.pages(), fence.asid) {
        (Some(pages), _) => pages.for_each(|page| env.fence_guest(Some(page), None)),
        (None, Some(named)) if named == root.asid => env.fence_guest_root(),
        (None, _) => env.fence_guest(None, None),
    }
}

/// An instruction about translation that trapped in the mode `from`: an access to `satp`, or a fence. `None` if it is
/// neither, or not for the guest's user mode.
pub(crate) fn instruction<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (insn, from): (u64, Mode),
    env: &mut E,
) -> Option<Outcome> {
    const SYSTEM: u64 = 0x73;
    const SATP: u64 = 0x180;
    const FENCE_MASK: u64 = 0xfe00_7fff;
    const SFENCE_VMA: u64 = 0x1200_0073;
    const SINVAL_VMA: u64 = 0x1600_0073;
    const SFENCE_W_INVAL: u64 = 0x1800_0073;
    const SFENCE_INVAL_IR: u64 = 0x1810_0073;
    if from != Mode::Supervisor {
        return None;
    }
    run.follow_lane();
    let has_svinval = || g.offer.isa.has("svinval");
    let outcome = match (insn, insn & FENCE_MASK) {
        (_, SFENCE_VMA) => own_fence(g, run, insn, env),
        (_, SINVAL_VMA) if has_svinval() => own_fence(g, run, insn, env),
        // Each SINVAL.VMA is a whole fence here.
        (SFENCE_W_INVAL | SFENCE_INVAL_IR, _) if has_svinval() => Outcome::Resume,
        _ if insn & 0x7f == SYSTEM && insn >> 20 == SATP => return access_satp(g, run, insn, env),
        _ => return None,
    };
    run.context.skip(4);
    Some(outcome)
}

fn own_fence<E: Env>(g: &Gnomon, run: &mut VcpuRun, insn: u64, env: &mut E) -> Outcome {
    let (rs1, rs2) = ((insn >> 15 & 31) as usize, (insn >> 20 & 31) as usize);
    let range = (rs1 != 0).then(|| (Addr::new(run.context.x[rs1]), 1));
    let asid = (rs2 != 0).then(|| Asid(run.context.x[rs2] as u16));
    let counters = &run.shared.counters;
    match (range, asid) {
        (Some(_), Some(_)) => counters.fences_page.bump(),
        (Some(_), None) => counters.fences_page_global.bump(),
        (None, Some(_)) => counters.fences_asid.bump(),
        (None, None) => counters.fences_all.bump(),
    }
    if let Some((gva, _)) = range
        && steering::fence_page(run, gva, asid, env)
    {
        return Outcome::Resume;
    }
    fence(g, run, &GuestFence { range, asid }, env);
    Outcome::Resume
}

/// CSRRW and its like on `satp`. `None` if it is no such instruction.
fn access_satp<E: Env>(g: &Gnomon, run: &mut VcpuRun, insn: u64, env: &mut E) -> Option<Outcome> {
    let (rd, source, funct3) = ((insn >> 7 & 31) as u8, (insn >> 15 & 31) as usize, insn >> 12 & 7);
    let operand = if funct3 & 4 != 0 { source as u64 } else { run.context.x[source] };
    let old = run.csrs.vsatp;
    let new = match (funct3 & 3, source) {
        (0, _) => return None,
        (1, _) => operand,
        // Without a source they only read.
        (_, 0) => old,
        (2, _) => old | operand,
        _ => old & !operand,
    };
    // "Implementations are not required to support all MODE settings, and if satp is written with an unsupported
    // MODE, the entire write has no effect" (norm:satp-mode_op_unsupported).
    if new != old && paging(&Satp::decode(new), &g.offer).is_some() {
        run.csrs.vsatp = new;
        match attach(g, run, env) {
            Ok(true) => {}
            Ok(false) => {
                // The guest tries again, and interrupts have their turn in between.
                run.csrs.vsatp = old;
                return Some(Outcome::Resume);
            }
            Err(outcome) => return Some(outcome),
        }
    }
    run.context.set(rd, old);
    run.context.skip(4);
    run.shared.counters.satp_accesses.bump();
    Some(Outcome::Resume)
}
