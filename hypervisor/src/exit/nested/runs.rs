//! Runs: after an instruction of L1's that trapped, Gnomon goes on in L1's code in software, up to L1's next instruction that would trap, and
//! executes that in the same exit (Agesen, Mattson, Rugina and Sheldon, "Software Techniques for Avoiding Hardware Virtualization Exits",
//! USENIX ATC 2012).
//!
//! A stretch between two such instructions is announced like an entry (ANNOUNCED), and its accesses are the hart's own, by L1's tables and
//! rights ([`crate::hart::emulation::Emulation`]). A run ends before the first instruction that is not simple: L1 resumes there, and the hart
//! executes it. So a run has no effects but those of L1's own execution, wherever it ends.

use super::instruction::execute;
use super::state::state;
use crate::device::offer::GuestMode;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::VcpuRun;
use abi::tunable::Id;
use rv::Mode;
use rv::csr::{hstatus, status};
use rv::insn::MemOp;
use rv::plain::{Effect, Plain};
use rv::system::{CsrInsn, FenceKind, System, number};

/// Instructions that one exit executes in software, at most.
const MOST_PLAIN: u64 = 512;
/// Trapping instructions that one exit executes, besides the one that trapped.
const MOST_TRAPPING: usize = 16;

/// Goes on in L1's code, which is about to be resumed. `was_long`: the exit may have taken long already, so that it does no fence and enters no
/// L2.
pub(super) fn run_on<E: Env>(g: &Gnomon, run: &mut VcpuRun, was_long: bool, env: &mut E) -> Outcome {
    let bound = g.tunables.get(Id::NestedRun);
    // Without the H extension, the hart has no loads and stores by the guest's tables.
    if bound == 0 || g.offer.guest == GuestMode::Supervisor {
        return Outcome::Resume;
    }
    let (mut left, mut is_long) = (MOST_PLAIN, was_long);
    for _ in 0..MOST_TRAPPING {
        let start = run.context.pc;
        if !may_run(run, env) || state(run).misses.leaves_out(start) {
            break;
        }
        let (done, next) = stretch(run, bound.min(left), env);
        left -= done;
        run.shared.of_guests().run_instructions.add(done);
        if next.is_none() && done != 0 {
            state(run).misses.note(start);
        }
        let Some(insn) = next.filter(|insn| !(is_long && may_take_long(*insn))) else { break };
        is_long |= may_take_long(insn);
        // If it is illegal, the hart is to find that.
        let Some(outcome) = execute(g, run, (insn, Mode::Supervisor), env) else { break };
        run.shared.of_guests().run_hits.bump();
        if outcome != Outcome::Resume {
            return outcome;
        }
    }
    Outcome::Resume
}

/// Returns whether L1 is in a state in which runs are made. With SUM set, the hart's loads of code would reach pages of user mode. An
/// interrupt that is pending and that L1 has enabled is taken before. With NACL, L1 makes one call in place of many trapping instructions.
fn may_run<E: Env>(run: &VcpuRun, env: &E) -> bool {
    let Some(nested) = run.nested.as_deref().filter(|nested| !nested.runs_l2 && nested.shared.is_none()) else {
        return false;
    };
    let sstatus = env.status();
    let is_interrupted = || {
        let time = run.vm.guest_time(env.now());
        env.interrupt_pending() || nested.undelegated(time) != 0
    };
    sstatus & status::SUM == 0
        && env.privilege() == Mode::Supervisor
        && !run.vm.breaks.is_on()
        && (sstatus & status::SIE == 0 || !is_interrupted())
}

/// Returns whether an instruction may make an exit long.
const fn may_take_long(insn: System) -> bool {
    !matches!(insn, System::Csr(_))
}

/// Executes L1's instructions from `pc` on, up to `most` of them, in software. Returns their number, and the next
/// instruction if that is one of the H extension, which traps on the hart.
fn stretch<E: Env>(run: &mut VcpuRun, most: u64, env: &mut E) -> (u64, Option<System>) {
    if !env.begin_emulation(run) {
        return (0, None);
    }
    let (mut code, mut done) = (Code::NONE, 0);
    let next = loop {
        let Some(insn) = code.at(run.context.pc, env) else { break None };
        let is_system = insn & 0x7f == rv::system::OPCODE;
        if is_system && let Some(insn) = trapping(run, insn) {
            break Some(insn);
        }
        if done == most {
            break None;
        }
        match if is_system { csr(run, insn, env) } else { plain(run, insn, env) } {
            Step::Done => done += 1,
            Step::Last => {
                done += 1;
                break None;
            }
            Step::NotSimple => break None,
        }
    };
    env.end_emulation();
    (done, next)
}

/// The code that a stretch executes.
struct Code {
    /// The address of the word that was read last, a multiple of 4.
    at: u64,
    word: u32,
}

impl Code {
    /// Nothing that has been read.
    const NONE: Self = Self { at: 1, word: 0 };

    /// Returns the instruction at `pc`; of a compressed one, the upper half is any. `None` if the hart could not fetch it.
    #[inline(always)]
    fn at<E: Env>(&mut self, pc: u64, env: &mut E) -> Option<u32> {
        let at = pc & !3;
        let word = self.word_at(at, env)?;
        if pc & 2 == 0 {
            return Some(word);
        }
        let low = word >> 16;
        if low & 3 != 3 { Some(low) } else { Some(low | self.word_at(at.wrapping_add(4), env)? << 16) }
    }

    #[inline(always)]
    fn word_at<E: Env>(&mut self, at: u64, env: &mut E) -> Option<u32> {
        if self.at != at {
            self.word = env.fetch_code(at)?;
            self.at = at;
        }
        Some(self.word)
    }
}

/// The outcome of an instruction that may be simple.
enum Step {
    /// The instruction is executed.
    Done,
    /// The instruction is executed, and the hart goes on after it.
    Last,
    /// Nothing is executed: the instruction is left to the hart.
    NotSimple,
}

/// Decodes an instruction of the opcode SYSTEM that would trap because it concerns the H extension. `None` for others, and for accesses to L2's
/// memory, which are not made in runs.
fn trapping(run: &mut VcpuRun, insn: u32) -> Option<System> {
    /// The bits of a CSR's number for the lowest mode that may access it, and their value for those of the hypervisor.
    const MODE: u16 = 3 << 8;
    const HYPERVISOR: u16 = 2 << 8;
    let decoded = System::decode(insn)?;
    let traps = match decoded {
        System::Csr(CsrInsn { csr, .. }) => csr & MODE == HYPERVISOR,
        System::Fence(fence) => !matches!(fence.kind, FenceKind::Sfence | FenceKind::Sinval),
        System::Sret => state(run).csrs.hstatus & hstatus::SPV != 0,
        _ => false,
    };
    traps.then_some(decoded)
}

/// Executes a plain instruction.
#[inline(always)]
fn plain<E: Env>(run: &mut VcpuRun, insn: u32, env: &mut E) -> Step {
    let context = &mut run.context;
    let Some(Plain { effect, length }) = Plain::of(insn, context.pc, &context.x) else { return Step::NotSimple };
    match effect {
        Effect::Value { rd, value } => context.set(rd, value),
        Effect::Jump { rd, to } => {
            context.set(rd, context.pc.wrapping_add(length.into()));
            context.pc = to;
            return Step::Done;
        }
        Effect::Access { op, at } if at & (u64::from(op.width()) - 1) == 0 => match op {
            MemOp::Load { rd, width, .. } => {
                let Some(value) = env.load_data(at, width) else { return Step::NotSimple };
                context.set(rd, op.extend(value));
            }
            MemOp::Store { rs, width } => {
                if !env.store_data(at, width, context.x[usize::from(rs)]) {
                    return Step::NotSimple;
                }
            }
        },
        Effect::Access { .. } => return Step::NotSimple,
        Effect::Fence => env.fence_memory(),
    }
    context.skip(length.into());
    Step::Done
}

/// Executes an access to a supervisor CSR that does not trap.
fn csr<E: Env>(run: &mut VcpuRun, insn: u32, env: &mut E) -> Step {
    let Some(insn) = CsrInsn::of(insn) else { return Step::NotSimple };
    let Some(old) = env.supervisor_csr(insn.csr).and_then(|old| shown(insn.csr, old)) else { return Step::NotSimple };
    let mut step = Step::Done;
    if insn.writes() {
        let Some(value) = written(insn.csr, insn.apply(old, &run.context.x)) else { return Step::NotSimple };
        env.set_supervisor_csr(insn.csr, value);
        if insn.csr == number::SSTATUS && value & (status::SIE | status::SUM) != 0 {
            // An interrupt may be taken now, or code may be fetched in another way.
            step = Step::Last;
        }
    }
    run.context.set(insn.rd, old);
    run.context.skip(4);
    step
}

const SD: u64 = 1 << 63;
/// The fields of `sstatus` that code executed in software may find set, besides SD and UXL, which is 64 bits. Others change what instructions do.
const SSTATUS: u64 = status::SIE | status::SPIE | status::SPP | status::VS | status::FS | status::SUM | status::MXR;

/// Returns a CSR as L1 reads it, if the hart's register holds `raw`. `None` if a field is set that is not known here.
fn shown(csr: u16, raw: u64) -> Option<u64> {
    match csr {
        number::SSTATUS => {
            // QEMU 10 does not keep SD of `vsstatus` up to date.
            let is_dirty = raw & status::FS == status::FS || raw & status::VS == status::VS;
            let sd = if is_dirty { SD } else { 0 };
            (raw & !(SD | SSTATUS) == status::UXL_64).then_some(raw & !SD | sd)
        }
        _ => Some(raw),
    }
}

/// Returns the value that a CSR takes which L1 writes. `None` if the field's legal values are the hart's to know.
fn written(csr: u16, value: u64) -> Option<u64> {
    /// Bit 1 of `stvec`: its modes 2 and 3 are reserved.
    const RESERVED: u64 = 2;
    match csr {
        // UXL stays what it is, 64 bits, or is set to that.
        number::SSTATUS => {
            let rest = value & !(SD | SSTATUS);
            (rest == 0 || rest == status::UXL_64).then_some(value & SSTATUS | status::UXL_64)
        }
        number::STVEC => (value & RESERVED == 0).then_some(value),
        _ => Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sstatus_is_executed_with_known_fields_only() {
        const MPRV: u64 = 1 << 17;
        let fs = status::FS | status::UXL_64;
        assert_eq!((shown(number::SSTATUS, fs), shown(number::SSTATUS, fs | 1 << 24)), (Some(fs | SD), None));
        assert_eq!(
            (shown(number::SSTATUS, 1 << 32), written(number::SSTATUS, 1 << 32)),
            (None, None),
            "UXL of 32 bits"
        );
        assert_eq!(written(number::SSTATUS, SD | status::SPP), Some(status::SPP | status::UXL_64));
        assert_eq!(written(number::SSTATUS, MPRV), None);
        assert_eq!((written(number::STVEC, 0x1001), written(number::STVEC, 0x1002)), (Some(0x1001), None));
    }
}
