//! Programs that a kernel runs by call until they trap, on shadow tables.
//!
//! While a program runs, the vCPU's registers, mode and root are the program's, and the kernel's are aside ([`Program`]). A run ends when the context page
//! is written, and the vCPU has its kernel's root. If either takes longer, nothing has changed: the program executes the instruction that trapped
//! once more.

use super::refusal::{error, refuse};
use crate::control::debug;
use crate::device::offer::{GuestMode, GuestTimer};
use crate::exit::code;
use crate::exit::memory::wait_for_memory;
use crate::exit::misaligned;
use crate::exit::sbi::encoding::{Answer, at_once, unreached};
use crate::exit::{counters, time};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::spaces;
use crate::vm::Unreachable;
use crate::vm::outcome::{Faulted, Outcome};
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::{Program, VcpuRun, request};
use abi::vmspace::{CAUSE_AT, CONTEXT_BYTES, FLAGS_AT, INSTRUCTION_AT, PC_AT, TVAL_AT};
use alloc::format;
use core::sync::atomic::Ordering;
use mmu::two_stage::access_fault;
use rv::system::WRS_NTO;
use rv::{Access, Addr, Cause, Exception, Interrupt, Mode, PAGE_BYTES, PhysMem, Trap};

const INTERRUPT: u64 = 1 << 63;
/// Words of the context page that are used.
const WORDS: usize = CONTEXT_BYTES as usize / 8;
/// The instruction `ecall`.
const ECALL: u64 = 0x73;

/// The end of a run, as the kernel is told.
#[derive(Clone, Copy, Default, Debug)]
struct Ending {
    /// The cause, in the format of `scause`.
    cause: u64,
    /// The trap value, in the format of `stval`.
    tval: u64,
    /// The instruction that trapped, or 0.
    insn: u64,
}

impl From<Trap> for Ending {
    fn from(trap: Trap) -> Self {
        Self { cause: trap.exception.code(), tval: trap.tval, insn: 0 }
    }
}

/// The result of an exit of a program's.
enum Handled {
    /// The vCPU goes on so.
    Outcome(Outcome),
    /// The run ends.
    Ends(Ending),
}

/// Handles RUN: the vCPU goes on in the program whose registers are in the context page at `page`.
pub(super) fn begin<E: Env>(g: &Gnomon, run: &mut VcpuRun, handle: u64, page: u64, env: &mut E) -> Answer {
    if !page.is_multiple_of(PAGE_BYTES) {
        return refuse(Error::InvalidParam);
    }
    if !run.vm.in_ram(page, PAGE_BYTES) {
        return refuse(Error::InvalidAddress);
    }
    // Before the page is read and posted fences are looked at: from now on the space stays, and changes of it are fenced.
    let entry = run.vm.tlb.spaces.lock().enter(handle, run.shared.id);
    let entry = match entry {
        Ok(entry) => entry,
        Err(why) => return refuse(error(why)),
    };
    match try_begin(g, run, ((entry.slot, entry.root), page), env) {
        Ok(()) => Answer::Outcome(interrupted(g, run, env).unwrap_or(Outcome::Resume)),
        Err(answer) => {
            run.vm.tlb.spaces.lock().leave(run.shared.id);
            answer
        }
    }
}

fn try_begin<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (space, page): ((u8, u64), u64),
    env: &mut E,
) -> Result<(), Answer> {
    // By words: a copy of bytes to any alignment takes a thousand instructions more.
    let mut words = [0; WORDS];
    let read = run.vm.with_page(g, (Addr::new(page), Access::Load), &mut run.ready, env, |at, mem| {
        (0..).zip(&mut words).for_each(|(n, word)| *word = mem.read_u64(at.wrapping_add(8 * n)));
    });
    if let Err(why) = read {
        return Err(unreached(g, run, why, Error::InvalidAddress));
    }
    if words[FLAGS_AT as usize / 8] != 0 {
        return Err(refuse(Error::InvalidParam));
    }
    run.follow_lane();
    let satp = run.bank.csrs.vsatp;
    match spaces::change_root(g, run, spaces::satp_of(run, space, env), env) {
        Ok(true) => {}
        Ok(false) => return Err(Answer::Outcome(at_once(run))),
        Err(outcome) => return Err(Answer::Outcome(outcome)),
    }
    let sie = env.begin_program();
    let kernel = run.program.get_or_insert_default();
    (kernel.runs, kernel.waits_events) = (true, false);
    (kernel.pc, kernel.satp, kernel.sie, kernel.page) = (run.context.pc, satp, sie, page);
    kernel.x.copy_from_slice(&run.context.x);
    run.context.x.copy_from_slice(&words[..32]);
    run.context.x[0] = 0;
    run.context.pc = words[PC_AT as usize / 8] & !1;
    env.set_privilege(Mode::User);
    watch_timer(g, run, env);
    Ok(())
}

/// Lets Gnomon's timer stand in for the kernel's comparator, which raises no interrupt while its program runs.
fn watch_timer<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &E) {
    if g.offer.timer == GuestTimer::Sstc {
        run.deadline = deadline(g, run, env).map_or(u64::MAX, |at| run.vm.host_time(at, env.now()));
    }
}

/// Returns the guest time at which the kernel's comparator ends the run of its program, if the kernel has enabled its interrupt.
fn deadline<E: Env>(g: &Gnomon, run: &VcpuRun, env: &E) -> Option<u64> {
    let is_enabled = run.program.as_deref().is_some_and(|program| program.sie & Interrupt::STimer.bit() != 0);
    (g.offer.timer == GuestTimer::Sstc && is_enabled).then(|| env.guest_deadline())
}

/// Ends the run of the vCPU's program if an interrupt is pending that the kernel is to take. Returns how the vCPU goes on instead, if that cannot
/// be done now: its program must not be entered then.
pub fn settle<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Option<Outcome> {
    if !run.runs_program() {
        return None;
    }
    match interrupted(g, run, env) {
        None => {
            watch_timer(g, run, env);
            None
        }
        Some(Outcome::Resume) if !run.runs_program() => None,
        outcome => outcome,
    }
}

/// Ends the run if an interrupt is pending that the kernel is to take, or a software event of the kernel's waits.
fn interrupted<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Option<Outcome> {
    /// From the first to the last (privileged spec, "Supervisor Interrupt Registers").
    const PRIORITIES: [Interrupt; 3] = [Interrupt::SExternal, Interrupt::SSoft, Interrupt::STimer];
    let is_due = deadline(g, run, env).is_some_and(|at| at <= run.vm.guest_time(env.now()));
    let pending = env.program_interrupts() | if is_due { Interrupt::STimer.bit() } else { 0 };
    if let Some(first) = PRIORITIES.into_iter().find(|interrupt| pending & interrupt.bit() != 0) {
        let ending = Ending { cause: INTERRUPT | first as u64, tval: 0, insn: 0 };
        return Some(end(g, run, Some(ending), env));
    }
    let waits = run.program.as_deref().is_some_and(|program| program.waits_events);
    waits.then(|| end(g, run, None, env))
}

/// Handles an exit of a program.
pub fn handle<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Outcome {
    run.shared.counters.exits.bump();
    match exit(g, run, env) {
        Handled::Outcome(outcome) => outcome,
        Handled::Ends(ending) => end(g, run, Some(ending), env),
    }
}

fn exit<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Handled {
    let (exit, counters) = (run.context.exit, &run.shared.counters);
    let exception = match Cause::from_register(exit.cause) {
        Cause::Exception(exception) => exception,
        Cause::Interrupt(Interrupt::MTimer | Interrupt::STimer) => {
            counters.exits_timer.bump();
            return Handled::Outcome(Outcome::Timer);
        }
        Cause::Interrupt(Interrupt::MSoft | Interrupt::SSoft) => {
            counters.exits_kick.bump();
            return Handled::Outcome(Outcome::Kicked);
        }
        Cause::Interrupt(Interrupt::MExternal | Interrupt::SExternal) => {
            counters.exits_external.bump();
            return Handled::Outcome(Outcome::External);
        }
        cause @ (Cause::Interrupt(_) | Cause::Unknown(_)) => {
            let (vcpu, pc) = (run.shared.id, run.context.pc);
            let message = format!(
                "vCPU {vcpu} trapped with {cause:?} at {pc:#x} in a program, which Gnomon does not know how to handle"
            );
            return Handled::Outcome(Outcome::kill(message));
        }
    };
    match exception {
        Exception::EcallFromU => {
            counters.exits_other.bump();
            Handled::Ends(Ending { cause: exception.code(), tval: 0, insn: ECALL })
        }
        Exception::FetchPage | Exception::LoadPage | Exception::StorePage => {
            let faulted = run.vm.translation.page_fault(g, run, exception, env);
            by_fault(g, run, faulted)
        }
        Exception::FetchAccess | Exception::LoadAccess | Exception::StoreAccess => {
            let faulted = run.vm.translation.access_fault(g, run, exception, env);
            by_fault(g, run, faulted)
        }
        Exception::FetchGuestPage | Exception::LoadGuestPage | Exception::StoreGuestPage => {
            denied(g, run, exception, env)
        }
        Exception::IllegalInstruction | Exception::VirtualInstruction => instruction(g, run, exception, env),
        Exception::LoadMisaligned | Exception::StoreMisaligned => {
            counters.exits_other.bump();
            misaligned(g, run, exception, env)
        }
        Exception::Breakpoint if debug::stops(g, run, env) => Handled::Outcome(Outcome::Resume),
        exception => {
            counters.exits_other.bump();
            Handled::Ends(Trap::new(exception, exit.tval).into())
        }
    }
}

/// Handles a guest-page fault, which is one of a frame that a steered guest is denied: there is no other G-stage behind shadow tables.
fn denied<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Handled {
    let access = match exception {
        Exception::FetchGuestPage => Access::Fetch,
        Exception::LoadGuestPage => Access::Load,
        _ => Access::Store,
    };
    match run.vm.translation.denied_frame(g, run, access, env) {
        Some(faulted) => by_fault(g, run, faulted),
        None => Handled::Ends(Trap::new(access_fault(access), run.context.exit.tval).into()),
    }
}

/// Handles the result of a fault. A program reaches RAM alone.
fn by_fault(g: &Gnomon, run: &VcpuRun, faulted: Faulted) -> Handled {
    match faulted {
        Faulted::Settled | Faulted::Known => Handled::Outcome(Outcome::Resume),
        Faulted::Waits { since } => Handled::Outcome(wait_for_memory(g, run, since)),
        Faulted::Inject(trap) => Handled::Ends(trap.into()),
        Faulted::NoRam { access, .. } => Handled::Ends(Trap::new(access_fault(access), run.context.exit.tval).into()),
        Faulted::Fatal(message) => Handled::Outcome(Outcome::kill(message)),
    }
}

/// Handles an instruction that is illegal in user mode, or that Gnomon carries out there.
fn instruction<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Handled {
    match (exception, g.offer.guest) {
        (Exception::VirtualInstruction, GuestMode::Virtual) => run.shared.counters.exits_virtual.bump(),
        _ => run.shared.counters.exits_illegal.bump(),
    }
    let Some(insn) = code::trapped(run, env) else { return Handled::Outcome(code::refetch(g, run, env)) };
    if insn == WRS_NTO && exception.code() == g.offer.guest.privileged().code() {
        run.context.skip(4);
        run.shared.counters.wrs_ntos.bump();
        return Handled::Outcome(Outcome::Yield);
    }
    let done = time::read(run, insn, Mode::User, env).or_else(|| counters::read(g, run, insn, Mode::User, env));
    if let Some(outcome) = done {
        return Handled::Outcome(outcome);
    }
    // As for any guest: to it a virtual instruction is an illegal one, and one that was illegal to begin with is so with the hart's own `tval`.
    let is_virtual = exception == Exception::VirtualInstruction;
    let tval = if is_virtual { insn } else { run.context.exit.tval };
    Handled::Ends(Ending { cause: Exception::IllegalInstruction.code(), tval, insn })
}

/// Handles a misaligned access that the hart traps.
fn misaligned<E: Env>(g: &Gnomon, run: &mut VcpuRun, exception: Exception, env: &mut E) -> Handled {
    match misaligned::attempt(g, run, exception, env) {
        misaligned::Attempt::Outcome(outcome) => Handled::Outcome(outcome),
        misaligned::Attempt::Own(trap) => Handled::Ends(trap.into()),
        // The exit is now that of the byte.
        misaligned::Attempt::Faulted => match Exception::from_code(run.context.exit.cause) {
            Some(Exception::LoadMisaligned | Exception::StoreMisaligned) | None => {
                Handled::Ends(Trap::new(exception, run.context.exit.tval).into())
            }
            Some(_) => exit(g, run, env),
        },
    }
}

/// Ends the run of the vCPU's program; without an ending, the kernel makes the same call again. If that cannot be done now, the program goes on as the
/// outcome says, and traps again.
fn end<E: Env>(g: &Gnomon, run: &mut VcpuRun, ending: Option<Ending>, env: &mut E) -> Outcome {
    let Some(&Program { pc, satp, page, .. }) = run.program.as_deref() else { unreachable!("it runs no program") };
    if let Err(why) = tell(g, run, page, ending.unwrap_or_default(), env) {
        return match why {
            Unreachable::Waits { since } => wait_for_memory(g, run, since),
            Unreachable::Later | Unreachable::Gone => Outcome::Resume,
            why => Outcome::kill(format!("no memory for the context page of a program: {why}")),
        };
    }
    match spaces::change_root(g, run, satp, env) {
        Ok(true) => {}
        Ok(false) => return Outcome::Resume,
        Err(outcome) => return outcome,
    }
    if let Some(program) = run.program.as_deref_mut() {
        program.runs = false;
        run.context.x.copy_from_slice(&program.x);
        if core::mem::take(&mut program.waits_events) {
            run.shared.posted.fetch_or(request::EVENTS, Ordering::SeqCst);
        }
    }
    run.context.pc = pc;
    match ending {
        Some(_) => (run.context.x[10], run.context.x[11]) = (0, 0),
        None => run.context.pc = pc.wrapping_sub(4),
    }
    env.end_program();
    env.set_privilege(Mode::Supervisor);
    if g.offer.timer == GuestTimer::Sstc {
        run.deadline = u64::MAX;
        // Gnomon's timer may have come before the one by which QEMU 10.0 raises the comparator's interrupt; a write raises it at once.
        if ending.is_some_and(|ending| ending.cause == INTERRUPT | Interrupt::STimer as u64) {
            env.set_guest_deadline(env.guest_deadline());
        }
    }
    let mut all = run.vm.tlb.spaces.lock();
    all.counts.run += 1;
    all.leave(run.shared.id);
    drop(all);
    Outcome::Resume
}

/// Writes the program's registers and the cause to the context page.
fn tell<E: Env>(g: &Gnomon, run: &mut VcpuRun, page: u64, ending: Ending, env: &mut E) -> Result<(), Unreachable> {
    const { assert!(PC_AT == 256 && CAUSE_AT == PC_AT + 8 && TVAL_AT == CAUSE_AT + 8 && INSTRUCTION_AT == TVAL_AT + 8) };
    let VcpuRun { vm, context, ready, .. } = run;
    let page = Addr::new(page);
    vm.with_page(g, (page, Access::Store), ready, env, |at, mem| {
        let others = [context.pc, ending.cause, ending.tval, ending.insn];
        (0..).zip(context.x.iter().chain(&others)).for_each(|(n, word)| mem.write_u64(at.wrapping_add(8 * n), *word));
    })?;
    vm.translation.host_wrote(vm, page.pfn(), env);
    Ok(())
}
