//! Guests on shadow tables: their page faults, `satp`, fences, and stores to their tables.
//!
//! The engine is [`mmu::shadow`]; here are the exits that drive it. A vCPU owns its root (`ShadowState::root`) from
//! when it is first put on a hart until it is parked, and never enters its guest without one: with no
//! G-stage behind it, Bare would be all of memory.

pub(crate) mod brief;
pub(crate) mod roots;
pub(crate) mod steered;
mod steering;
mod store;
pub(crate) mod way;

use crate::device::offer::Offer;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::machine::isa::Isa;
use crate::memory::engine::{lend, with_memory};
use crate::memory::shootdown::Tlbs;
use crate::vm::chores::Remains;
use crate::vm::fetch;
use crate::vm::outcome::{Faulted, Known};
use crate::vm::vcpu::{ANY_SPACE, Concern, NO_SPACE, ShadowState, Vcpu, VcpuRun};
use crate::vm::{Memory, Translation, Unreachable, Vm};
use abi::bundle::{GUEST_RAM_BASE, LEAST_SHADOW_BYTES_PER_VCPU, VmConfig, default_shadow_bytes};
use abi::tunable::Id;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use mmu::frames::{Frames, MEGA_ORDER, Owner};
use mmu::gstage::{AddressSpace, Ready, in_portions};
use mmu::shadow::{Answer, Beside, Config, Counters, Forget, Gathered, GuestFence, Lists, Root, Shadow, Upkeep};
use mmu::walk::AdPolicy;
use rv::csr::atp::Satp;
use rv::csr::{envcfg, status};
use rv::insn::is_cache_block_management;
use rv::{Access, Addr, Exception, Gpa, Gva, Hpa, Mode, PAGE_BYTES, Pfn, PhysMem, Request, Trap};
use store::Store;

/// Comparisons after which a table becomes quiet. To become so and to wake costs some ten of them.
const QUIET_AFTER: u16 = 16;

/// Returns the most shadow pages of a VM.
pub(crate) fn pages(upkeep: Upkeep, config: &VmConfig) -> Result<u32, String> {
    let bytes = config.shadow_bytes.unwrap_or_else(|| default_shadow_bytes(config.memory_bytes));
    let least = LEAST_SHADOW_BYTES_PER_VCPU * u64::from(config.vcpus);
    if bytes < least {
        return Err(format!("{bytes} bytes for its shadow tables: at least {least} are needed for its vCPUs"));
    }
    // A bound: what is more than the VM's own memory it would never have, and the list of it would fill Gnomon's heap.
    let bytes = bytes.min(config.memory_bytes.max(default_shadow_bytes(config.memory_bytes)).max(least));
    Ok((bytes / Config::bytes_each(upkeep)).min(Config::MOST_PAGES.into()) as u32)
}

/// Returns the frames that a VM's shadow tables may take.
///
/// # Errors
/// A message, if it is given too little for them.
pub(crate) fn frames(upkeep: Upkeep, config: &VmConfig) -> Result<u64, String> {
    let ram = (Addr::new(GUEST_RAM_BASE).pfn(), config.memory_bytes / PAGE_BYTES);
    Ok(Config::frames(upkeep, pages(upkeep, config)?, ram))
}

/// Returns the ISA that a VM's harts are told to have.
pub(crate) fn isa(upkeep: Upkeep, config: &VmConfig, offer: &Offer) -> Isa {
    // Steering relies on the fence after an entry has become valid.
    let isa = offer.isa.shadowed(config.svvptc && upkeep != Upkeep::Steered);
    isa.with_svadu(offer.svadu(config)).with_hypervisor(config.nested)
}

/// Checks whether a VM can be shadowed with that upkeep.
///
/// # Errors
/// A message, if not.
pub(crate) fn check(upkeep: Upkeep, config: &VmConfig, offer: &Offer) -> Result<(), String> {
    if upkeep != Upkeep::Steered { Ok(()) } else { steering::check(config, offer) }
}

/// Makes the lists for a VM's engine.
pub(crate) fn lists(config: &VmConfig) -> Lists {
    Lists::new(Addr::new(GUEST_RAM_BASE).pfn(), config.memory_bytes / PAGE_BYTES)
}

/// Returns whether leaves are global if a guest's are. A hart that goes from one vCPU to another forgets everything
/// then, so that is so only if each vCPU on shadow tables can have a hart of its own.
fn keeps_globals(g: &Gnomon) -> bool {
    let shadowed = g.vms.all().filter(|vm| matches!(vm.translation, Translation::Shadow(_) | Translation::Adaptive));
    let vcpus: u64 = shadowed.map(|vm| u64::from(vm.config.vcpus)).sum();
    g.tunables.is_on(Id::Globals) && vcpus <= g.harts.len() as u64
}

/// Makes a VM's engine.
///
/// # Errors
/// A message, if there is no memory for it.
pub(crate) fn build(
    g: &Gnomon,
    vm: &Vm,
    (upkeep, lists): (Upkeep, Lists),
    (space, owner, frames): (&mut AddressSpace, Owner, &Frames),
    mem: &mut impl PhysMem,
) -> Result<Shadow, String> {
    let config = &vm.config;
    let ad = if vm.svadu { AdPolicy::Svadu } else { AdPolicy::Svade };
    let first_serial = vm.past.lock().serials;
    let pages = match pages(upkeep, config) {
        Ok(pages) => pages,
        Err(message) => {
            lists.release(frames);
            return Err(message);
        }
    };
    // Stores of a vCPU on the G-stage are not seen.
    let may_be_quiet = vm.translation != Translation::Adaptive;
    let quiet_after = if may_be_quiet && g.tunables.is_on(Id::Track) { QUIET_AFTER } else { 0 };
    let config = Config { upkeep, ad, globals: keeps_globals(g), pages, first_serial, quiet_after };
    let shadow = Shadow::new(config, owner, lists, frames);
    let mut shadow = shadow.map_err(|e| format!("no memory for its shadow tables: {e}"))?;
    if vm.config.lane {
        let end = Addr::new(GUEST_RAM_BASE + vm.config.memory_bytes).pfn();
        shadow.begin_lane(space, end, frames, mem);
    }
    shadow.keep_least(Config::ONE_INSTRUCTION * vm.vcpus.len() as u32);
    if vm.vcpus.len() > 1 {
        shadow.begin_sharing(vm.vcpus.len());
    }
    Ok(shadow)
}

/// Takes the VM's memory away. None of its vCPUs is on a hart.
pub(crate) fn tear_down<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    Memory { space, shadow, nested: _, collapsed }: Memory,
    env: &mut E,
) -> Remains {
    let mut past = vm.past.lock();
    past.space += space.counters();
    if let Some(shadow) = &shadow {
        past.shadow += *shadow.counters();
        past.serials = shadow.next_serial();
    }
    if let Some(collapsed) = &collapsed {
        past.nested += *collapsed.counters();
        past.serials = past.serials.max(collapsed.next_serial());
    }
    drop(past);
    let shadow = shadow.map(|mut shadow| {
        shadow.stop_moving(&g.harts[env.hart()].frames);
        shadow
    });
    // TLBs still hold the VM's translations: the fence makes every hart forget them before it enters this VM again, and
    // its roots' ASIDs are never loaded again.
    let space = space.destroy(&mut Tlbs { g, vm, env });
    let own = shadow.into_iter().flat_map(Shadow::destroy);
    Remains::of(space, own.chain(collapsed.into_iter().flat_map(Shadow::destroy)))
}

/// Returns the counters of the VM's engines.
pub(crate) fn counters(vm: &Vm) -> Counters {
    let mut counters = vm.past.lock().shadow;
    if let Some(shadow) = vm.memory.lock().as_ref().and_then(|memory| memory.shadow.as_ref()) {
        counters += *shadow.counters();
    }
    counters
}

/// Makes `gpa` ready for `access`.
pub(crate) fn reach<E: Env>(
    g: &Gnomon,
    vm: &Vm,
    (gpa, access): (Addr<Gpa>, Access),
    ready: &mut Ready,
    env: &mut E,
) -> Result<Addr<Hpa>, Unreachable> {
    with_memory::<Gva, _, _>(g, vm, ready, env, |shadow, host| shadow.resolve(gpa, access, host))?
        .ok_or(Unreachable::Hole)
}

/// Notes that Gnomon has written to the guest's memory. A guest table would not notice: its shadow looks at the next
/// fence.
pub(crate) fn host_wrote<E: Env>(vm: &Vm, gfn: Pfn<Gpa>, env: &E) {
    if let Some(shadow) = vm.memory.lock().as_mut().and_then(|memory| memory.shadow.as_mut()) {
        shadow.host_wrote(gfn, &mut env.mem());
    }
}

/// Returns whether a hart in the guest must leave it for this fence at once. One whose root the fence is not about need
/// not: to use one that it is about, the guest writes `satp`. In the lane or at an exit, that is published before it is
/// looked at what is posted.
pub(crate) fn is_urgent(vcpu: &Vcpu, fence: &GuestFence) -> bool {
    let present = vcpu.satp.load(Ordering::SeqCst);
    match fence.asid {
        _ if present == NO_SPACE => false,
        _ if present == ANY_SPACE => true,
        Some(asid) => Satp::decode(present).asid == asid,
        None => true,
    }
}

/// Returns the result of a fault that did not get the memory which it takes.
#[cold]
#[inline(never)]
pub(crate) fn helped<E: Env>(g: &Gnomon, vm: &Vm, why: Unreachable, env: &mut E) -> Faulted {
    match g.pager.help(g, vm, why, env) {
        Ok(()) | Err(Unreachable::Later) => Faulted::Settled,
        Err(Unreachable::Waits { since }) => Faulted::Waits { since },
        Err(error) => Faulted::Fatal(no_memory(error)),
    }
}

fn no_memory(error: Unreachable) -> String {
    format!("no memory for the guest or its shadow tables: {error}")
}

/// Handles an access that the guest's tables refuse: the guest gets the trap, unless it was not the store that it was
/// reported as. Cleaning, flushing or invalidating a cache block is allowed where a load is, too, but faults as a store
/// (CMO specification, 2.5).
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
    let (Some(root), true) = (run.shadow.root, may_manage) else { return Faulted::Inject(trap) };
    let access = Access::Load;
    let as_load = Request { access, ..*request };
    let (satp, pc) = (run.bank.csrs.vsatp, run.context.pc);
    let answer = with_memory::<Gva, _, _>(g, &run.vm, &mut run.ready, env, |shadow, host| {
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

/// Ends a fault whose entries let the access through now: this hart forgets the older ones.
#[inline(always)]
pub(crate) fn filled<E: Env>(gva: Addr<Gva>, access: Access, (forget, known): (Forget, bool), env: &mut E) -> Faulted {
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

/// Handles a page fault of the guest's.
// Within the handling of all exits, its frame would be theirs.
#[inline(never)]
pub(crate) fn page_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Faulted {
    // Before this call it would cost each fault five instructions more.
    run.follow_lane();
    run.shared.counters.exits_page_fault.bump();
    let access = match exception {
        Exception::FetchPage => Access::Fetch,
        Exception::LoadPage => Access::Load,
        _ => Access::Store,
    };
    fault(g, run, access, env)
}

/// Handles a page fault, or an access fault of a steered guest's.
#[inline(always)]
fn fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, env: &mut E) -> Faulted {
    let gva = Addr::new(run.context.exit.tval);
    let request = request_of(access, env);
    if run.shadow.shares
        && run.shadow.is_to_share()
        && let Some(faulted) = fault_beside(g, run, (gva, &request), env)
    {
        return faulted;
    }
    let Some(root) = &run.shadow.root else { unreachable!("a guest without a root") };
    let mut memory = run.vm.memory.lock();
    match by_known_tables(memory.as_mut(), root, (gva, &request), &mut env.mem()) {
        Some(Answer::Filled { forget, known }) => {
            drop(memory);
            filled(gva, access, (forget, known), env)
        }
        Some(Answer::Device { gpa }) => Faulted::NoRam { access, gpa },
        Some(Answer::Retry) => Faulted::Settled,
        Some(Answer::TableWrite { gpa, hpa }) => {
            let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
            let mut store = Store { gva, satp: run.bank.csrs.vsatp, mode: request.mode, context: &mut run.context };
            // While the tables are as they were for the fault.
            lend::<Gva, _, _>((g, &run.vm, memory), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, host| {
                store.carry_out((gpa, hpa), shadow, host);
            });
            Faulted::Settled
        }
        Some(Answer::Inject(_)) | None => {
            drop(memory);
            fault_from_root(g, run, (gva, &request), env)
        }
    }
}

/// Returns the request of a guest's access that has faulted.
#[inline(always)]
fn request_of<E: Env>(access: Access, env: &E) -> Request {
    let (status, mode) = (env.status(), env.privilege());
    let has = |bit| status & bit != 0;
    Request { access, mode, sum: has(status::SUM), mxr: has(status::MXR), hs_mxr: false }
}

/// Resolves a fault by the existing tables, if they can: all that most faults take.
// As a closure it would cost each 34 instructions.
#[inline(always)]
fn by_known_tables<M: PhysMem>(
    memory: Option<&mut Memory>,
    root: &Root,
    (gva, request): (Addr<Gva>, &Request),
    mem: &mut M,
) -> Option<Answer> {
    let Memory { space, shadow: Some(shadow), .. } = memory? else { return None };
    shadow.close(mem);
    let answer = shadow.fault_in_known_tables(root, gva, request, space, mem);
    shadow.open(mem);
    answer
}

/// Handles a fault of which that is known.
#[inline(always)]
fn known_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, known: Known, env: &mut E) -> Faulted {
    if let Known::NoRam(gpa) = known {
        return Faulted::NoRam { access, gpa };
    }
    run.follow_lane();
    let gva = Addr::new(run.context.exit.tval);
    let request = request_of(access, env);
    if run.shadow.shares
        && let Some(faulted) = fault_beside(g, run, (gva, &request), env)
    {
        return faulted;
    }
    fault_from_root(g, run, (gva, &request), env)
}

/// Answers a fault with a share of the VM's lock, if it only fills an entry of known tables: so vCPUs of one VM fault at once. Returns `None` if it takes
/// the lock exclusively.
#[inline(never)]
fn fault_beside<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (gva, request): (Addr<Gva>, &Request),
    env: &mut E,
) -> Option<Faulted> {
    let VcpuRun { vm, ready, shadow: ShadowState { root: Some(root), .. }, shared, .. } = run else { return None };
    let frames = &g.harts[env.hart()].frames;
    let done = in_portions(frames, &mut env.mem(), ready, |ready, mem| {
        let guard = vm.memory.share_soon();
        let Some(Memory { space, shadow: Some(shadow), .. }) = guard.as_deref().and_then(Option::as_ref) else {
            return Ok(Beside::NotNow);
        };
        let vcpu = (&*root, shared.id as usize);
        let done = shadow.fault_beside(vcpu, gva, request, space, Some((frames, ready)), mem);
        drop(guard);
        done.map_err(|why| g.unresolved(why, env))
    });
    let answer = match done {
        Ok(Some(Beside::Answered(answer))) => answer,
        Ok(Some(Beside::NotNow)) => return None,
        Ok(Some(Beside::WantsMemory | Beside::Elsewhere)) => {
            run.shadow.has_shared(false);
            return None;
        }
        Ok(None) => return Some(helped(g, &Arc::clone(vm), Unreachable::Later, env)),
        Err(why) => return Some(helped(g, &Arc::clone(vm), why, env)),
    };
    run.shadow.has_shared(true);
    if g.pager.is_on() {
        g.pager.look(frames, env);
    }
    match answer {
        Answer::Filled { forget, known } => Some(filled(gva, request.access, (forget, known), env)),
        _ => Some(Faulted::Settled),
    }
}

/// Handles a fault that the existing tables do not answer. A store to a guest's table is carried out.
#[inline(never)]
fn fault_from_root<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (gva, request): (Addr<Gva>, &Request),
    env: &mut E,
) -> Faulted {
    let access = request.access;
    let Some(root) = &run.shadow.root else { unreachable!("a guest without a root") };
    let mut store = Store { gva, satp: run.bank.csrs.vsatp, mode: request.mode, context: &mut run.context };
    let answer = with_memory::<Gva, _, _>(g, &run.vm, &mut run.ready, env, |shadow, host| {
        let answer = shadow.fault_from_root(root, gva, request, host)?;
        if let Answer::TableWrite { gpa, hpa } = answer {
            store.carry_out((gpa, hpa), shadow, host);
        }
        Ok(answer)
    });
    match answer {
        Ok(Answer::Filled { forget, known }) => filled(gva, access, (forget, known), env),
        Ok(Answer::Inject(trap)) => refused(g, run, (gva, request), trap, env),
        Ok(Answer::Device { gpa }) => Faulted::NoRam { access, gpa },
        Ok(Answer::TableWrite { .. } | Answer::Retry) => Faulted::Settled,
        Err(why) => {
            let vm = Arc::clone(&run.vm);
            helped(g, &vm, why, env)
        }
    }
}

/// Does a portion of the search for leaves to coalesce below a root, and of moving pages for that, `when` as for
/// [`Shadow::gather`].
#[cold]
#[inline(never)]
pub(crate) fn gather<E: Env>(g: &Gnomon, vm: &Vm, root: &Root, when: (u64, u64), env: &mut E) -> Gathered {
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    // If memory is short, the vCPUs that wait for frames need them more.
    let is_short = g.pager.has_work();
    let take = || if is_short { None } else { frames.take_ahead(MEGA_ORDER) };
    let gathered =
        lend::<Gva, _, _>((g, vm, vm.memory.lock()), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, host| {
            if is_short {
                shadow.stop_moving(frames);
            }
            shadow.gather(root, when, take, host)
        });
    gathered.unwrap_or(Gathered::NOTHING)
}

/// Returns the time that it takes to see whether wide fences are many, in ticks of the timebase.
const fn relax_interval(g: &Gnomon) -> u64 {
    g.offer.timebase / 200
}

/// Makes leaves that are in pieces whole, some time after a wide fence, if there are few: so wide fences have less to
/// do.
#[cold]
#[inline(never)]
pub(crate) fn relax<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    let (now, interval, vm) = (env.now(), relax_interval(g), Arc::clone(&run.vm));
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let is_strained =
        lend::<Gva, _, _>((g, &vm, vm.memory.lock()), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, host| {
            shadow.relax(now, interval, host);
            shadow.is_strained()
        });
    if is_strained == Some(true) {
        run.watch.begin(Concern::Fences, now + interval);
    }
}

/// Does a fence of the guest's on the vCPU that is on this hart: its own, or one that another vCPU asked for.
pub(crate) fn fence<E: Env>(g: &Gnomon, run: &mut VcpuRun, fence: &GuestFence, env: &mut E) {
    run.forget_way();
    let logged = run.context.lane.log.count();
    let Some(root) = run.shadow.root else { unreachable!("a guest without a root") };
    let vm = Arc::clone(&run.vm);
    let (views, log) = (&mut run.shadow.views, &mut run.context.lane.log);
    let (frames, mut mem) = (&g.harts[env.hart()].frames, env.mem());
    let (now, interval) = (if fence.pages().is_none() { env.now() } else { 0 }, relax_interval(g));
    let done =
        lend::<Gva, _, _>((g, &vm, vm.memory.lock()), (frames, &mut Ready::Nothing), &mut mem, env, |shadow, host| {
            if now != 0 {
                shadow.tell_time(now, interval);
            }
            shadow.fence(fence, root, views, log, host);
            now != 0 && shadow.is_strained()
        });
    if done.expect("the VM of a loaded vCPU has memory") {
        run.watch.begin(Concern::Fences, now + interval);
    }
    run.has_logged(logged);
    match (fence.pages(), fence.asid) {
        (Some(pages), _) => pages.for_each(|page| env.fence_guest(Some(page), None)),
        // Several roots may have none, and each has an ASID of its own on the hart.
        (None, Some(named)) if named == root.asid && named.0 != 0 => env.fence_guest_root(),
        (None, _) => env.fence_guest(None, None),
    }
}
