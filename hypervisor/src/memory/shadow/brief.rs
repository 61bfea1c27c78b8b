//! Exits of guests on shadow tables that are brief ([`crate::exit::handle_brief`]): faults that the existing tables resolve, a fence of
//! one page ([`steering::fence_page`]), and a write of `satp` that changes nothing or leads to a root that is up to date.

use super::{by_known_tables, filled, request_of, roots, steered, steering};
use crate::device::offer::{Denial, Offer};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::adaptive;
use crate::vm::Memory;
use crate::vm::outcome::{Brief, Faulted, Kind, Known};
use crate::vm::vcpu::VcpuRun;
use lane::BriefCauses;
use mmu::shadow::{Answer, Beside, Root, Upkeep};
use rv::system::{is_fence_of_page, names_csr, number};
use rv::{Access, Addr, Exception, Gva, Mode, Request};

/// The cause of a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The guest's tables, or Gnomon's.
    Tables,
    /// Poison, in `steered`.
    Poison,
}

/// Returns the cause of a fault, and the kind of access, if `cause` is a fault's.
#[inline(always)]
fn what(cause: u64) -> Option<(By, Access)> {
    const FETCH_PAGE: u64 = Exception::FetchPage.code();
    const LOAD_PAGE: u64 = Exception::LoadPage.code();
    const STORE_PAGE: u64 = Exception::StorePage.code();
    const FETCH: [u64; 2] = [Exception::FetchAccess.code(), Exception::FetchGuestPage.code()];
    const LOAD: [u64; 2] = [Exception::LoadAccess.code(), Exception::LoadGuestPage.code()];
    const STORE: [u64; 2] = [Exception::StoreAccess.code(), Exception::StoreGuestPage.code()];
    match cause {
        LOAD_PAGE => Some((By::Tables, Access::Load)),
        STORE_PAGE => Some((By::Tables, Access::Store)),
        FETCH_PAGE => Some((By::Tables, Access::Fetch)),
        cause if LOAD.contains(&cause) => Some((By::Poison, Access::Load)),
        cause if STORE.contains(&cause) => Some((By::Poison, Access::Store)),
        cause if FETCH.contains(&cause) => Some((By::Poison, Access::Fetch)),
        _ => None,
    }
}

/// Returns the causes of `others`, and those by which exits of guests with such tables may be brief.
pub(crate) fn causes(others: BriefCauses, upkeep: Upkeep, offer: &Offer) -> BriefCauses {
    let causes = others.and(offer.guest.privileged().code());
    let causes = causes.and(Exception::FetchPage.code()).and(Exception::LoadPage.code());
    match (upkeep, offer.denial) {
        // Most stores that fault are to tables, and carried out.
        (Upkeep::Shadow | Upkeep::Unsync, _) => causes,
        (Upkeep::Lazy, _) => causes.and(Exception::StorePage.code()),
        (Upkeep::Steered, Denial::Hole { .. }) => {
            let causes = causes.and(Exception::StorePage.code()).and(Exception::FetchGuestPage.code());
            causes.and(Exception::LoadGuestPage.code()).and(Exception::StoreGuestPage.code())
        }
        (Upkeep::Steered, Denial::Pmp | Denial::Nobody) => {
            let causes = causes.and(Exception::StorePage.code()).and(Exception::FetchAccess.code());
            causes.and(Exception::LoadAccess.code()).and(Exception::StoreAccess.code())
        }
    }
}

/// Returns the subject of an instruction that trapped, if it may be brief.
#[inline(always)]
pub(crate) fn kind_of_instruction(run: &VcpuRun) -> Option<Kind> {
    let insn = run.context.exit.tval;
    match () {
        () if is_fence_of_page(insn) => Some(Kind::Fence),
        () if names_csr(insn, number::SATP) && roots::may_be_brief(run, insn) => Some(Kind::Satp),
        () => None,
    }
}

/// Handles an exit of such a kind, if it is a brief one.
#[inline(always)]
pub(crate) fn handle<E: Env>(kind: Kind, g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Brief {
    match kind {
        Kind::Fault => fault(run, env),
        Kind::Fence => instruction(run, env, |run, insn, env| {
            if adaptive::is_busy(run) {
                return false;
            }
            let (gva, asid) = roots::fenced(run, insn);
            let is_done = gva.is_some_and(|gva| steering::fence_page(run, gva, asid, env));
            if is_done {
                roots::count_fence(run, (gva, asid));
                run.context.skip(4);
            }
            is_done
        }),
        Kind::Satp => instruction(run, env, |run, insn, env| roots::access_satp_briefly(g, run, insn, env)),
        _ => unreachable!("not about the guest's own translation"),
    }
}

/// Handles a fault: answers most of them.
#[inline(always)]
fn fault<E: Env>(run: &mut VcpuRun, env: &mut E) -> Brief {
    if run.shadow.shares {
        return fault_among_others(run, env);
    }
    let Some((by, access)) = what(run.context.exit.cause) else { return Brief::NO };
    run.follow_lane();
    let gva = Addr::new(run.context.exit.tval);
    let request = request_of(access, env);
    let Some(root) = &run.shadow.root else { return Brief::NO };
    // The lock's holder may wait for this hart.
    let Some(mut memory) = run.vm.memory.try_lock() else { return Brief::NO };
    let found = by_known_tables(memory.as_mut(), root, (gva, &request), &mut env.mem());
    drop(memory);
    ended(run, by, (gva, access), found, env)
}

/// Handles a fault of a vCPU that is not its VM's only one.
#[cold]
#[inline(never)]
fn fault_among_others<E: Env>(run: &mut VcpuRun, env: &mut E) -> Brief {
    let Some((by, access)) = what(run.context.exit.cause) else { return Brief::NO };
    run.follow_lane();
    let (gva, request) = (Addr::new(run.context.exit.tval), request_of(access, env));
    let Some(root) = run.shadow.root else { return Brief::NO };
    if run.shadow.is_to_share() {
        match beside(run, &root, (gva, &request), env) {
            Some(Beside::Answered(answer)) => {
                run.shadow.has_shared(true);
                return ended(run, by, (gva, access), Some(answer), env);
            }
            // It is shared soon, and memory is mapped then: not here, for the holder may wait for this hart.
            None | Some(Beside::WantsMemory | Beside::NotNow) => return Brief::not(Known::Fault),
            Some(Beside::Elsewhere) => run.shadow.has_shared(false),
        }
    }
    let Some(mut memory) = run.vm.memory.try_lock() else { return Brief::NO };
    let found = by_known_tables(memory.as_mut(), &root, (gva, &request), &mut env.mem());
    drop(memory);
    ended(run, by, (gva, access), found, env)
}

/// Ends a brief fault with the answer that was found.
#[inline(always)]
fn ended<E: Env>(
    run: &VcpuRun,
    by: By,
    (gva, access): (Addr<Gva>, Access),
    found: Option<Answer>,
    env: &mut E,
) -> Brief {
    let counters = &run.shared.counters;
    let counter = if by == By::Poison { &counters.exits_steered } else { &counters.exits_page_fault };
    match found {
        // What is to be done about it takes a look at more ([`steered`]).
        Some(Answer::Filled { known: true, .. }) if by == By::Poison => return Brief::NO,
        // It is carried out while the tables are as they were for the fault.
        Some(Answer::TableWrite { .. }) => return Brief::NO,
        Some(Answer::Filled { forget, known }) => _ = filled(gva, access, (forget, known), env),
        Some(Answer::Retry) => {}
        Some(Answer::Device { gpa }) => return Brief::not(Known::NoRam(gpa)),
        Some(Answer::Inject(_)) | None => return Brief::not(Known::Fault),
    }
    counters.exits.bump();
    counter.bump();
    Brief::OVER
}

/// Answers a fault with a share of the VM's lock, if it can be. `None`: the lock is held.
#[inline(never)]
fn beside<E: Env>(run: &VcpuRun, root: &Root, (gva, request): (Addr<Gva>, &Request), env: &E) -> Option<Beside> {
    let guard = run.vm.memory.share();
    let Memory { space, shadow: Some(shadow), .. } = guard.as_deref()?.as_ref()? else { return None };
    let vcpu = (root, run.shared.id as usize);
    shadow.fault_beside(vcpu, gva, request, space, None, &mut env.mem()).ok()
}

/// Handles a fault of which that is known.
pub(crate) fn known_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, known: Known, env: &mut E) -> Faulted {
    let Some((by, access)) = what(run.context.exit.cause) else { unreachable!("it is known to be a fault") };
    match by {
        By::Tables => {
            run.shared.counters.exits_page_fault.bump();
            super::known_fault(g, run, access, known, env)
        }
        By::Poison => steered::known_fault(g, run, access, known, env),
    }
}

/// Handles an instruction of the guest's kernel that trapped: `carry_out` returns whether it is done.
#[inline(always)]
fn instruction<E: Env>(
    run: &mut VcpuRun,
    env: &mut E,
    carry_out: impl FnOnce(&mut VcpuRun, u64, &mut E) -> bool,
) -> Brief {
    if env.privilege() != Mode::Supervisor {
        return Brief::NO;
    }
    run.follow_lane();
    if !carry_out(run, run.context.exit.tval, env) {
        return Brief::NO;
    }
    let counters = &run.shared.counters;
    counters.exits.bump();
    if run.context.exit.cause == Exception::VirtualInstruction.code() {
        counters.exits_virtual.bump();
    } else {
        counters.exits_illegal.bump();
    }
    Brief::OVER
}
