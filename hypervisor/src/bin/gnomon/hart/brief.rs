//! Exits that may be brief: the trap vectors call their handler, and go on elsewhere only if that says so.

use super::unplain::Aside;
use super::{Hart, this_hart};
use ::lane::Context;
use hypervisor::exit;
use hypervisor::vm::outcome::{Brief, Kind, Known};
use hypervisor::vm::vcpu::VcpuRun;
use metal::world;

impl Hart {
    /// Sends a byte by the UART, if nothing else comes of the exit.
    #[inline(always)]
    fn send_byte(&mut self) -> Brief {
        let Self { current, guest, ram, is_plain: true, .. } = self else { return Brief::NO };
        current.as_deref_mut().map_or(Brief::NO, |run| exit::send_byte(run, || guest.privilege(), ram))
    }

    /// Returns the vCPU on this hart, if its exits may be brief.
    #[inline(always)]
    fn plain(&self) -> Option<&VcpuRun> {
        self.current.as_deref().filter(|_| self.is_plain)
    }

    /// Handles the exit, if it is a brief one of that kind.
    #[inline(always)]
    fn attempt(&mut self, kind: Kind) -> Brief {
        let Some(mut run) = self.current.take() else { return Brief::NO };
        let brief = exit::handle_brief(kind, self.g, &mut run, self);
        self.current = Some(run);
        brief
    }

    // Each has a frame of its own.

    #[inline(never)]
    fn brief_timer(&mut self) -> Brief {
        self.attempt(Kind::Timer)
    }

    #[inline(never)]
    fn brief_ipi(&mut self) -> Brief {
        self.attempt(Kind::Ipi)
    }

    #[inline(never)]
    fn brief_base(&mut self) -> Brief {
        self.attempt(Kind::Base)
    }

    #[inline(never)]
    fn brief_fault(&mut self) -> Brief {
        self.attempt(Kind::Fault)
    }

    #[inline(never)]
    fn brief_fence(&mut self) -> Brief {
        self.attempt(Kind::Fence)
    }

    #[inline(never)]
    fn brief_satp(&mut self) -> Brief {
        self.attempt(Kind::Satp)
    }

    #[inline(never)]
    fn brief_fault_of_l2(&mut self) -> Brief {
        self.attempt(Kind::FaultOfL2)
    }

    #[inline(never)]
    fn brief_fence_of_l2(&mut self) -> Brief {
        self.attempt(Kind::FenceOfL2)
    }

    /// Handles a page fault of a program's like one of its kernel's, if it is over then.
    #[inline(never)]
    fn brief_fault_of_program(&mut self, cause: u64) -> Brief {
        let is_fault = self.current.as_deref().is_some_and(|run| exit::kind_of(run, cause) == Some(Kind::Fault));
        if is_fault && self.attempt(Kind::Fault) == Brief::OVER { Brief::OVER } else { Brief::NO }
    }

    /// Handles an exit of which that is known.
    #[inline(always)]
    fn known_exit(&mut self, known: Known) -> *mut Context {
        let Some(mut run) = self.current.take() else { unreachable!("an exit without a vCPU") };
        self.shared.left();
        let outcome = exit::go_on(self.g, &mut run, known, self);
        self.leave_exit(run, outcome)
    }
}

/// Handles an exit that may send a byte; returns the result, a [`Brief`]. The trap vectors call it on the hart's empty
/// stack.
#[unsafe(no_mangle)]
extern "C" fn gnomon_byte() -> u64 {
    // SAFETY: the vector has set `tp` and emptied the stack.
    unsafe { this_hart(world::thread_pointer()) }.send_byte().0
}

/// Handles an exit by a cause that may be brief, except instructions; returns the result, a [`Brief`]. The trap vectors
/// call it on the hart's empty stack.
#[unsafe(no_mangle)]
extern "C" fn gnomon_brief(_: *mut Context, cause: u64) -> u64 {
    // SAFETY: the vector has set `tp` and emptied the stack.
    let hart = unsafe { this_hart(world::thread_pointer()) };
    let Some(run) = hart.plain() else {
        return match hart.unplain.aside {
            Some(Aside::L2) => hart.brief_fault_of_l2().0,
            Some(Aside::Program) => hart.brief_fault_of_program(cause).0,
            None => Brief::NO.0,
        };
    };
    let brief = match exit::kind_of(run, cause) {
        Some(Kind::Timer) => hart.brief_timer(),
        Some(Kind::Ipi) => hart.brief_ipi(),
        Some(Kind::Base) => hart.brief_base(),
        Some(Kind::Fault) => hart.brief_fault(),
        _ => Brief::NO,
    };
    brief.0
}

/// Handles an exit by an instruction that may be brief. The guest's registers are all in its context. Nothing is known
/// of one that is not brief.
#[unsafe(no_mangle)]
extern "C" fn gnomon_instruction() -> u64 {
    // SAFETY: the vector has set `tp` and emptied the stack.
    let hart = unsafe { this_hart(world::thread_pointer()) };
    let Some(run) = hart.plain() else {
        return if hart.unplain.aside == Some(Aside::L2) { hart.brief_fence_of_l2().0 } else { Brief::NO.0 };
    };
    let brief = match exit::kind_of_instruction(run) {
        Some(Kind::Fence) => hart.brief_fence(),
        Some(Kind::Satp) => hart.brief_satp(),
        _ => Brief::NO,
    };
    brief.0
}

/// Handles an exit of which something is known, by the result of [`gnomon_byte`] or [`gnomon_brief`]; else like
/// `gnomon_exit`.
#[unsafe(no_mangle)]
extern "C" fn gnomon_known(_: *mut Context, resume: usize, brief: u64) -> ! {
    // SAFETY: the vector has set `tp` and emptied the stack.
    let hart = unsafe { this_hart(world::thread_pointer()) };
    let Some(known) = Brief(brief).known() else { unreachable!("nothing is known of the exit") };
    let context = hart.known_exit(known);
    // SAFETY: prepared by `enter`; nothing of this stack is needed any more.
    unsafe { world::resume(context, resume) }
}
