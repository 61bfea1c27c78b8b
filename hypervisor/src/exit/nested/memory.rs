//! L2's guest-page faults, and L1's accesses to L2's memory.

use super::state::state;
use super::world::{Reflected, own_or_reflect, reflect};
use crate::exit::inject::inject;
use crate::exit::memory::wait_for_memory;
use crate::exit::mmio;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::nested::{self, Failed};
use crate::vm::Unreachable;
use crate::vm::outcome::{Faulted, Outcome};
use crate::vm::vcpu::VcpuRun;
use crate::vm::vcpu::nested::Refused;
use alloc::format;
use mmu::two_stage::{TINST_PTE_READ, TINST_PTE_WRITE, access_fault, guest_page_fault as exception_of};
use rv::csr::{hstatus, status};
use rv::insn::MemInsn;
use rv::{Access, Addr, Exception, Mode, PAGE_BYTES, PhysMem, Request, Trap};

/// Handles a guest-page fault of L2's: Gnomon's table does not have the page (yet), or L1's does not.
pub(super) fn guest_page_fault<E: Env>(g: &Gnomon, run: &mut VcpuRun, access: Access, env: &mut E) -> Outcome {
    let exit = run.context.exit;
    let is_implicit = matches!(exit.tinst, TINST_PTE_READ | TINST_PTE_WRITE);
    // norm:mtval2_htval_virtaddr: bits 1:0 of the address are those of the virtual address, except for implicit accesses.
    let at = Addr::new(exit.tval2 << 2 | if is_implicit { 0 } else { exit.tval & 3 });
    let needed = match exit.tinst {
        TINST_PTE_READ => Access::Load,
        TINST_PTE_WRITE => Access::Store,
        _ => access,
    };
    let hs_mxr = state(run).other.vsstatus & status::MXR != 0;
    let request = Request { hs_mxr, ..Request::user(needed) };
    let original = exception_of(access);
    match nested::fault(g, run, (at, &request), env) {
        Faulted::Settled | Faulted::Known => {
            run.shared.of_guests().faults.bump();
            if state(run).told.take() == Some(at.pfn()) {
                run.shared.of_guests().second_faults.bump();
            }
            Outcome::Resume
        }
        Faulted::Waits { since } => wait_for_memory(g, run, since),
        Faulted::Inject(trap) if trap.tval2 != 0 || is_guest_page_fault(trap.exception) => {
            let pc = run.context.pc;
            state(run).reflected = Some(Refused { pc, at, request });
            state(run).told = Some(at.pfn());
            let trap = Reflected { cause: original.code(), tval: exit.tval, tval2: trap.tval2, tinst: exit.tinst };
            reflect(g, run, trap, env)
        }
        Faulted::Inject(_) => own_or_reflect(g, run, Reflected::of(access_fault(access), &exit), env),
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

/// Carries out an access of L1's to L2's memory of some bytes at `at`, by `act`, which returns the value of a load. The instruction is over then.
///
/// # Errors
/// How L1 goes on instead.
pub(super) fn access<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (at, bytes, access): (u64, u8, Access),
    env: &mut E,
    act: impl Fn(&Parts, &mut E::Mem) -> u64,
) -> Result<u64, Outcome> {
    let (nested, own) = (state(run), env.status());
    let (vs, hs) = (nested.other.vsstatus, nested.csrs.hstatus);
    let mode = if hs & hstatus::SPVP != 0 { Mode::Supervisor } else { Mode::User };
    let has = |bit| vs & bit != 0;
    let request =
        Request { access, mode, sum: has(status::SUM), mxr: has(status::MXR), hs_mxr: own & status::MXR != 0 };
    let vsatp = nested.other.vsatp;
    // It may lie in two pages.
    let first = (PAGE_BYTES - (at & (PAGE_BYTES - 1))).min(bytes.into());
    let places = [Some(at), (first < bytes.into()).then(|| at.wrapping_add(first))].map(|at| at.map(Addr::new));
    /// Tables of both stages, and the pages, may each be missing.
    const ATTEMPTS: usize = 64;
    for _ in 0..ATTEMPTS {
        let done = nested::with_translated(run, vsatp, (places, &request), env, |at, mem| {
            act(&Parts { at, split: first as usize, bytes: bytes.into() }, mem)
        });
        let what = match done {
            Ok(value) => {
                run.shared.of_guests().accesses.bump();
                run.context.skip(4);
                return Ok(value);
            }
            Err(Failed::Trap(trap)) => return Err(refused(run, &trap, env)),
            Err(Failed::Reach(gpa, access)) => (gpa, access),
        };
        match nested::reach(g, run, what, env) {
            Ok(()) => {}
            Err(Unreachable::Gone | Unreachable::Later) => return Err(Outcome::Resume),
            Err(Unreachable::Waits { since }) => return Err(wait_for_memory(g, run, since)),
            Err(Unreachable::Hole | Unreachable::Denied) => {
                let trap = Trap::new(access_fault(request.access), at);
                return Err(refused(run, &trap, env));
            }
            Err(why) => return Err(Outcome::kill(format!("no memory for an access to its guest's memory: {why}"))),
        }
    }
    Err(Outcome::Resume)
}

/// Reads L2's present instruction, on harts that do not report the one that trapped. `None` if it is not to be had at once.
pub(super) fn fetch<E: Env>(run: &mut VcpuRun, env: &E) -> Option<u64> {
    let (pc, mode) = (run.context.pc, env.privilege());
    let vsatp = if run.collapses() { run.bank.csrs.vsatp } else { env.vsatp() };
    let request = Request { mode, ..Request::supervisor(Access::Fetch) };
    let first = (PAGE_BYTES - (pc & (PAGE_BYTES - 1))).min(4);
    let places = [Some(pc), (first < 4).then(|| pc.wrapping_add(first))].map(|at| at.map(Addr::new));
    let read = |at, mem: &mut E::Mem| Parts { at, split: first as usize, bytes: 4 }.read(mem);
    nested::with_translated(run, vsatp, (places, &request), env, read).ok()
}

/// The places of an access in host RAM, while the VM's lock is held.
pub(super) struct Parts {
    at: [Option<Addr<rv::Hpa>>; 2],
    split: usize,
    bytes: usize,
}

impl Parts {
    /// Reads the bytes.
    pub(super) fn read(&self, mem: &impl PhysMem) -> u64 {
        let mut value = [0; 8];
        let (low, high) = value[..self.bytes].split_at_mut(self.split);
        for (at, part) in self.at.iter().zip([low, high]) {
            at.iter().for_each(|at| mem.read_bytes(*at, part));
        }
        u64::from_le_bytes(value)
    }

    /// Writes the bytes.
    pub(super) fn write(&self, value: u64, mem: &mut impl PhysMem) {
        let value = value.to_le_bytes();
        let (low, high) = value[..self.bytes].split_at(self.split);
        for (at, part) in self.at.iter().zip([low, high]) {
            at.iter().for_each(|at| mem.write_bytes(*at, part));
        }
    }
}

/// Gives L1 the trap of its own access to L2's memory: its V was 0, and the address is a guest virtual one.
fn refused<E: Env>(run: &mut VcpuRun, trap: &Trap, env: &mut E) -> Outcome {
    let outcome = inject(run, trap, env);
    let csrs = &mut state(run).csrs;
    csrs.hstatus |= hstatus::GVA;
    (csrs.htval, csrs.htinst) = (trap.tval2, trap.tinst);
    outcome
}
