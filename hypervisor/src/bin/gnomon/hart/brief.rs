//! Exits that may be brief: the trap vectors call their handler, and go on elsewhere only if that says so.

use super::{Hart, this_hart};
use hypervisor::exit::{self, Brief};
use metal::world;
use rv::Context;

impl Hart {
    /// Handles the exit, if it is a brief one.
    #[inline(always)]
    fn brief_exit(&mut self) -> Brief {
        let Self { current, guest, ram, is_plain: true, .. } = self else { return Brief::NO };
        current.as_deref_mut().map_or(Brief::NO, |run| exit::handle_brief(run, || guest.privilege(), ram))
    }

    /// Handles an exit of which it is known that it sends a byte.
    fn sending_exit(&mut self, brief: Brief) -> *mut Context {
        let Some(mut run) = self.current.take() else { unreachable!("an exit without a vCPU") };
        self.shared.left();
        let outcome = exit::send(self.g, &mut run, brief, self);
        self.go_on(run, outcome)
    }
}

/// An exit that may be brief; returns what has come of it, a [`Brief`]. The trap vectors call it on the hart's empty stack.
#[unsafe(no_mangle)]
extern "C" fn gnomon_brief() -> u64 {
    // SAFETY: the vector has set `tp` and emptied the stack.
    unsafe { this_hart(world::thread_pointer()) }.brief_exit().0
}

/// An exit that is known to send a byte, by what [`gnomon_brief`] has returned; else as [`gnomon_exit`].
#[unsafe(no_mangle)]
extern "C" fn gnomon_send(_: *mut Context, resume: usize, brief: u64) -> ! {
    // SAFETY: the vector has set `tp` and emptied the stack.
    let hart = unsafe { this_hart(world::thread_pointer()) };
    let context = hart.sending_exit(Brief(brief));
    // SAFETY: prepared by `enter`; nothing of this stack is needed any more.
    unsafe { world::resume(context, resume) }
}
