//! Exits of L2 that are brief ([`crate::exit::handle_brief`]): faults that the existing tables resolve, and fences of one page.

use super::{fenced, paging, request, vs_ad};
use crate::device::offer::Offer;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::shadow;
use crate::vm::Memory;
use crate::vm::outcome::Brief;
use crate::vm::vcpu::VcpuRun;
use crate::vm::vcpu::nested::Collapsed;
use lane::BriefCauses;
use mmu::shadow::{Answer, GuestFence, go_by};
use rv::csr::hstatus;
use rv::system::is_fence_of_page;
use rv::{Access, Addr, Exception, Mode, PAGE_BYTES};

/// Returns the causes by which exits of L2 on collapsed tables may be brief.
#[must_use]
pub fn causes(offer: &Offer) -> BriefCauses {
    let causes = BriefCauses::NONE.and(offer.guest.privileged().code()).and(Exception::FetchPage.code());
    causes.and(Exception::LoadPage.code()).and(Exception::StorePage.code())
}

/// Handles a page fault of L2's, if the tables that are there answer it.
#[inline(always)]
pub(crate) fn fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Brief {
    const FETCH: u64 = Exception::FetchPage.code();
    const LOAD: u64 = Exception::LoadPage.code();
    const STORE: u64 = Exception::StorePage.code();
    let access = match run.context.exit.cause {
        FETCH => Access::Fetch,
        LOAD => Access::Load,
        STORE => Access::Store,
        _ => return Brief::NO,
    };
    let Some(nested) = run.nested.as_deref().filter(|nested| nested.runs_l2) else { return Brief::NO };
    let Some(Collapsed { root: Some(root), root_of, .. }) = nested.collapsed.as_deref() else { return Brief::NO };
    let (gva, request) = (Addr::new(run.context.exit.tval), request(g, nested, access, env));
    // The lock's holder may wait for this hart.
    let Some(mut memory) = run.vm.memory.try_lock() else { return Brief::NO };
    let Some(Memory { space, collapsed: Some(engine), .. }) = memory.as_mut() else { return Brief::NO };
    go_by(engine, paging(root_of.0).0, vs_ad(nested.csrs.henvcfg));
    let answer = engine.fault_in_known_tables(root, gva, &request, space, &mut env.mem());
    drop(memory);
    let Some(Answer::Filled { forget, known }) = answer else { return Brief::NO };
    shadow::filled(Addr::new(gva.raw()), access, (forget, known), env);
    let (own, counters) = (&run.shared.counters, run.shared.of_guests());
    own.exits.bump();
    counters.exits.bump();
    counters.exits_page_fault.bump();
    counters.faults.bump();
    Brief::OVER
}

/// Handles an instruction of L2's that trapped, if it is a fence of one page of the present root, about one entry at most.
#[inline(always)]
pub(crate) fn fence<E: Env>(run: &mut VcpuRun, env: &mut E) -> Brief {
    let insn = run.context.exit.tval;
    if !is_fence_of_page(insn) || env.privilege() != Mode::Supervisor {
        return Brief::NO;
    }
    let GuestFence { range: Some((gva, _)), asid } = fenced(run, insn) else { return Brief::NO };
    let gva = gva.align_down(PAGE_BYTES);
    let Some(nested) = run.nested.as_deref_mut().filter(|nested| nested.runs_l2) else { return Brief::NO };
    let is_l1s = nested.csrs.hstatus & hstatus::VTVM != 0;
    let henvcfg = nested.csrs.henvcfg;
    let Some(Collapsed { root: Some(root), root_of, views, log, .. }) = nested.collapsed.as_deref_mut() else {
        return Brief::NO;
    };
    if is_l1s || asid.is_some_and(|asid| asid != root.asid) {
        return Brief::NO;
    }
    // The lock's holder may wait for this hart.
    let Some(mut memory) = run.vm.memory.try_lock() else { return Brief::NO };
    let Some(Memory { space, collapsed: Some(engine), .. }) = memory.as_mut() else { return Brief::NO };
    go_by(engine, paging(root_of.0).0, vs_ad(henvcfg));
    if !engine.fence_in_known_table(root, gva, space, &mut env.mem()) {
        return Brief::NO;
    }
    drop(memory);
    // Other roots catch up when they are loaded.
    match asid {
        None => log.push(gva),
        Some(asid) => views.outdate_others(Some(asid), log),
    }
    env.fence_guest(Some(Addr::new(gva.raw())), None);
    let (own, counters) = (&run.shared.counters, run.shared.of_guests());
    own.exits.bump();
    counters.exits.bump();
    if run.context.exit.cause == Exception::VirtualInstruction.code() {
        counters.exits_virtual.bump();
    } else {
        counters.exits_other.bump();
    }
    counters.own_fences.bump();
    run.context.skip(4);
    Brief::OVER
}
