//! Guests on shadow tables: their page faults, `satp`, fences, and stores to their tables.
//!
//! The engine is [`mmu::shadow`]; here are the exits that drive it. A vCPU owns its root (`VcpuRun::root`) from
//! when it is first put on a hart until it is parked, and never enters its guest without one: with no
//! G-stage behind it, Bare would be all of memory (limits.md, F5).

use crate::env::Env;
use crate::exit::{self, Outcome};
use crate::fetch;
use crate::gnomon::Gnomon;
use crate::memory::VmFence;
use crate::offer::Offer;
use crate::vcpu::{NO_ASID, VcpuRun};
use crate::vm::Vm;
use abi::bundle::MmuMode;
use alloc::format;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use mmu::gstage::{ResolveError, Unresolved, with_ready};
use mmu::shadow::{Answer, GuestFence, Host, Paging, Shadow, Upkeep, Wrote};
use rv::csr::{atp, status};
use rv::insn::WordStore;
use rv::{Access, Addr, Asid, Mode, PAGE_BYTES, Pfn, Request};

/// How shadow tables are kept in step in each of the modes; `None` for two-stage tables.
#[must_use]
pub const fn upkeep(mode: MmuMode) -> Option<Upkeep> {
    match mode {
        MmuMode::Nested => None,
        MmuMode::Shadow => Some(Upkeep::Shadow),
        MmuMode::Unsync => Some(Upkeep::Unsync),
        MmuMode::Lazy => Some(Upkeep::Lazy),
    }
}

/// What a guest's `satp` says.
fn decode(satp: u64, offer: &Offer) -> (Paging, Asid) {
    let mode = satp >> atp::MODE_SHIFT;
    let asid = Asid((satp >> atp::ID_SHIFT & atp::ASID_BITS) as u16);
    match offer.formats.iter().find(|format| u64::from(format.mode) == mode) {
        Some(format) => (Paging::Tables { format, root: Pfn::new(satp & atp::PPN) }, asid),
        None => (Paging::Bare, asid),
    }
}

impl Vm {
    /// Lends the VM's engine, and what it needs, for an attempt, or for several where 2 MiB are to be made ready first.
    ///
    /// # Errors
    /// The attempt's.
    ///
    /// # Panics
    /// If it has none: it is not shadowed, or has lost its memory while one of its vCPUs was on a hart.
    fn with_shadow<E: Env, R>(
        &self,
        g: &Gnomon,
        env: &mut E,
        mut attempt: impl FnMut(&mut Shadow, &mut Host<'_, E::Mem, VmFence<'_, E>>) -> Result<R, Unresolved>,
    ) -> Result<R, ResolveError> {
        let frames = &g.harts[env.hart()].frames;
        with_ready(frames, &mut env.mem(), |ready, mem| {
            let mut guard = self.memory.lock();
            let Some((space, shadow)) = guard.as_mut().and_then(|m| Some((&mut m.space, m.shadow.as_mut()?))) else {
                unreachable!("{} has no shadow tables, but a vCPU that runs on some", self.config.name)
            };
            let mut hw = VmFence { g, vm: self, env };
            attempt(shadow, &mut Host::new(space, (frames, ready), mem, &mut hw))
        })
    }
}

fn no_memory(error: ResolveError) -> Outcome {
    match error {
        ResolveError::OutOfFrames(error) => {
            Outcome::kill(format!("no memory for the guest or its shadow tables: {error}"))
        }
        ResolveError::Denied => unreachable!("a table that may not be read is an access fault"),
    }
}

/// Puts a vCPU that has just been loaded on this hart on its root.
///
/// # Errors
/// How the vCPU goes on instead, if there is no memory for one.
pub fn load<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<(), Outcome> {
    match run.root {
        Some(root) => {
            env.load_root(run.vm.index, &root, false);
            Ok(())
        }
        None => attach(g, run, env),
    }
}

/// Gives the vCPU the root that its `satp` asks for, in place of the one that it has.
fn attach<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<(), Outcome> {
    let (paging, asid) = decode(run.csrs.vsatp, &g.offer);
    let vm = Arc::clone(&run.vm);
    let mut old = run.root.take();
    run.context.lane.turn_off();
    let log = &run.context.lane.log;
    let loaded = vm
        .with_shadow(g, env, |shadow, host| shadow.attach(&mut old, (paging, asid), &mut run.views, log, host))
        .map_err(no_memory)?;
    run.root = Some(loaded.root);
    // Published before the next entry: whoever sends a fence after that knows whether it is urgent.
    let published = if paging == Paging::Bare { NO_ASID } else { asid.0.into() };
    run.shared.asid.store(published, Ordering::SeqCst);
    if loaded.root.has_lane && vm.config.lane {
        let named = (!run.views.others_have(asid)).then_some(asid);
        run.context.lane.turn_on(loaded.root.table, named, env.lane_table(loaded.root.format));
    } else {
        run.context.lane.turn_off();
    }
    env.load_root(vm.index, &loaded.root, loaded.fence);
    Ok(())
}

/// Takes the vCPU's root from it.
fn detach(run: &mut VcpuRun) {
    let Some(root) = run.root.take() else { return };
    run.context.lane.turn_off();
    let vm = Arc::clone(&run.vm);
    let mut memory = vm.memory.lock();
    if let Some(shadow) = memory.as_mut().and_then(|memory| memory.shadow.as_mut()) {
        shadow.detach(root, &mut run.views, &run.context.lane.log);
    }
}

/// The vCPU is about to be parked: nothing of its life remains.
pub fn forget(run: &mut VcpuRun) {
    detach(run);
    run.views = mmu::shadow::Views::new();
    run.shared.asid.store(NO_ASID, Ordering::SeqCst);
}

/// A page fault of a guest on shadow tables.
pub fn page_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, env: &mut E) -> Outcome {
    let gva = Addr::new(run.context.exit.tval);
    let (status, mode) = (env.status(), env.privilege());
    let has = |bit| status & bit != 0;
    let request = Request { access, mode, sum: has(status::SUM), mxr: has(status::MXR), hs_mxr: false };
    let Some(root) = run.root else { unreachable!("a guest without a root") };
    let vm = Arc::clone(&run.vm);
    let satp = run.csrs.vsatp;
    let context = &mut run.context;
    let answer = vm.with_shadow(g, env, |shadow, host| {
        let answer = shadow.fault(root, gva, &request, host);
        let Ok(Answer::TableWrite { gpa, hpa }) = answer else { return answer };
        // Its instruction, while the tables are as they were for the fault.
        let insn = WordStore::from_tinst(context.exit.tinst, gva.raw()).or_else(|| {
            let insn = fetch::instruction(host.space, satp, mode, context.pc, &*host.mem)?;
            WordStore::decode(insn, &context.x, gva.raw())
        });
        let insn = insn.filter(|insn| insn.is_aligned(gpa.raw() % 8));
        let Some(insn) = insn else {
            let _ = shadow.table_write((gpa, hpa), None, host);
            return answer;
        };
        let operand = context.x[usize::from(insn.rs)];
        let store = |old| insn.apply(old, gpa.raw() % 8, operand);
        if let Wrote::Done { old } = shadow.table_write((gpa, hpa), Some(&store), host) {
            context.set(insn.rd, insn.result(old, gpa.raw() % 8));
            context.skip(insn.length.into());
        }
        answer
    });
    match answer {
        Ok(Answer::Filled { fence }) => {
            if fence {
                env.fence_guest(Some(gva.align_down(PAGE_BYTES)));
            }
            if access == Access::Fetch {
                // An earlier owner's code may still be cached.
                env.fence_instructions();
            }
            Outcome::Resume
        }
        Ok(Answer::Inject(trap)) => exit::inject(run, &trap, env),
        Ok(Answer::Device { gpa }) => exit::outside_ram(g, run, access, gpa, env),
        Ok(Answer::TableWrite { .. } | Answer::Retry) => Outcome::Resume,
        Err(error) => no_memory(error),
    }
}

/// A fence of the guest's on the vCPU that is on this hart: its own, or one that another vCPU asked for.
pub fn fence<E: Env>(g: &Gnomon, run: &mut VcpuRun, fence: &GuestFence, env: &mut E) {
    run.count_lane();
    let Some(root) = run.root else { unreachable!("a guest without a root") };
    let vm = Arc::clone(&run.vm);
    let (views, log) = (&mut run.views, &mut run.context.lane.log);
    let done = vm.with_shadow(g, env, |shadow, host| {
        shadow.fence(fence, root, views, log, host);
        Ok(())
    });
    done.expect("a fence takes no memory");
    run.logged = run.context.lane.log.count();
    match (fence.pages(), fence.asid) {
        (Some(pages), _) => pages.for_each(|page| env.fence_guest(Some(page))),
        (None, Some(named)) if named == root.asid => env.fence_guest_root(),
        (None, _) => env.fence_guest(None),
    }
}

/// An instruction about translation that trapped in the mode `from`: an access to `satp`, or a fence. `None` if it is
/// neither, or not for the guest's user mode.
pub fn translation_instruction<E: Env>(
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
    if run.root.is_none() || from != Mode::Supervisor {
        return None;
    }
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
    run.context.set(rd, old);
    run.context.skip(4);
    run.shared.counters.satp_accesses.bump();
    let mode = new >> atp::MODE_SHIFT;
    // "Implementations are not required to support all MODE settings, and if satp is written with an unsupported
    // MODE, the entire write has no effect" (norm:satp_mode_unsupported).
    let is_supported = mode == 0 || g.offer.formats.iter().any(|format| u64::from(format.mode) == mode);
    if new == old || !is_supported {
        return Some(Outcome::Resume);
    }
    run.csrs.vsatp = new;
    Some(attach(g, run, env).err().unwrap_or(Outcome::Resume))
}
