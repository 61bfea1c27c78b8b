//! Exits of L2 on collapsed tables: its page faults, fences and accesses to `satp`.

use super::state::state;
use super::world::{Reflected, own_or_reflect, reflect};
use crate::exit::memory::wait_for_memory;
use crate::exit::mmio;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::collapsed::{self, Fenced};
use crate::vm::outcome::{Faulted, Outcome};
use crate::vm::vcpu::VcpuRun;
use crate::vm::vcpu::nested::RefusedOwn;
use mmu::two_stage::access_fault;
use rv::csr::atp::Satp;
use rv::csr::hstatus;
use rv::insn::MemInsn;
use rv::system::{FenceInsn, FenceKind, System, accessed, is_fence, names_csr, number};
use rv::{Access, Addr, Exception, Mode};

/// Handles a page fault of L2's: Gnomon's table does not have the page (yet), or L2's own or L1's does not.
pub(super) fn page_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, env: &mut E) -> Outcome {
    let exit = run.context.exit;
    let request = collapsed::request(g, state(run), access, env);
    let at = Addr::new(exit.tval);
    match collapsed::fault(g, run, (at, &request), env) {
        Faulted::Settled | Faulted::Known => {
            run.shared.of_guests().faults.bump();
            Outcome::Resume
        }
        Faulted::Waits { since } => wait_for_memory(g, run, since),
        Faulted::Inject(trap) if is_guest_page_fault(trap.exception) => {
            let pc = run.context.pc;
            if let Some(collapsed) = &mut state(run).collapsed {
                collapsed.refused = Some(RefusedOwn { pc, at, request });
            }
            // For an access to a table the pseudoinstruction; for the access itself what the hart says of the instruction.
            let tinst = if trap.tinst != 0 { trap.tinst } else { exit.tinst };
            let trap = Reflected { cause: trap.exception.code(), tval: exit.tval, tval2: trap.tval2, tinst };
            reflect(g, run, trap, env)
        }
        Faulted::Inject(trap) => own_or_reflect(g, run, Reflected::of(trap.exception, &exit), env),
        Faulted::NoRam { gpa, .. } => match run.vm.device_at(gpa.raw()) {
            // L1 has given L2 a device of its own; the hart says what the instruction is, or it cannot be emulated.
            Some(there) if access != Access::Fetch && MemInsn::from_tinst(exit.tinst, exit.tval).is_some() => {
                mmio::access(g, run, access, there, env)
            }
            _ => own_or_reflect(g, run, Reflected::of(access_fault(access), &exit), env),
        },
        Faulted::Fatal(message) => Outcome::kill(message),
    }
}

const fn is_guest_page_fault(exception: Exception) -> bool {
    matches!(exception, Exception::FetchGuestPage | Exception::LoadGuestPage | Exception::StoreGuestPage)
}

/// Executes a fence of L2's kernel, or an access to `satp`, which trap only since L2 is on collapsed tables. `None` if it is neither, or if it
/// traps to L1.
pub(super) fn instruction<E: Env>(g: &Gnomon, run: &mut VcpuRun, insn: u64, env: &mut E) -> Option<Outcome> {
    let is_l1s = state(run).csrs.hstatus & hstatus::VTVM != 0;
    if !run.collapses() || is_l1s || env.privilege() != Mode::Supervisor {
        return None;
    }
    let has_svinval = || g.offer.isa.has("svinval");
    if names_csr(insn, number::SATP) {
        return access_satp(g, run, insn, env);
    }
    if !is_fence(insn) {
        match System::decode(u32::try_from(insn).ok()?)? {
            System::Fence(FenceInsn { kind: FenceKind::Sinval, .. }) if has_svinval() => {}
            // Each SINVAL.VMA is a whole fence here.
            System::SfenceWInval | System::SfenceInvalIr if has_svinval() => {
                run.context.skip(4);
                return Some(Outcome::Resume);
            }
            _ => return None,
        }
    }
    collapsed::fence(g, run, &Fenced::Own(collapsed::fenced(run, insn)), env);
    run.shared.of_guests().own_fences.bump();
    run.context.skip(4);
    Some(Outcome::Resume)
}

/// Executes CSRRW and its like on `satp`. `None` if it is no such instruction.
fn access_satp<E: Env>(g: &Gnomon, run: &mut VcpuRun, insn: u64, env: &mut E) -> Option<Outcome> {
    let old = run.bank.csrs.vsatp;
    let (rd, new) = accessed(insn, old, &run.context.x)?;
    let mode = Satp::decode(new).mode;
    // norm:satp-mode_op_unsupported: with an unsupported MODE, the entire write has no effect.
    let is_taken = mode == 0 || g.offer.formats.iter().any(|format| u64::from(format.mode) == mode);
    if new != old && is_taken {
        match collapsed::attach(g, run, new, env) {
            Ok(true) => {}
            // L2 executes it again, by the root that it has or gets before it is entered.
            Ok(false) => return Some(Outcome::Resume),
            Err(outcome) => return Some(outcome),
        }
        run.bank.csrs.vsatp = new;
        env.load_collapsed(run);
    }
    run.context.set(rd, old);
    run.context.skip(4);
    run.shared.of_guests().satp_accesses.bump();
    Some(Outcome::Resume)
}
