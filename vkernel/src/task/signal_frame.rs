//! Delivery of signals: the frame on the program's stack, as Linux makes it on riscv64, and the return from a handler.

use super::process::ExitStatus;
use super::run::Task;
use super::signal::{self, Action, Effect, Info, bit};
use crate::errno::{Errno, Result};
use crate::machine::{self, reg};
use alloc::sync::Arc;
use alloc::vec;
use core::ops::ControlFlow;
use linux_raw_sys::general as linux;

/// Offsets in the frame (`struct rt_sigframe`, `arch/riscv/kernel/signal.c` and `uapi/asm` of Linux).
mod offset {
    /// `struct ucontext`, behind the `siginfo_t`.
    pub const CONTEXT: usize = 128;
    /// `uc_stack`.
    pub const STACK: usize = CONTEXT + 16;
    /// `uc_sigmask`.
    pub const MASK: usize = CONTEXT + 40;
    /// `uc_mcontext`: `pc`, then x1 to x31.
    pub const REGISTERS: usize = CONTEXT + 176;
    /// f0 to f31, then `fcsr`.
    pub const FLOAT: usize = REGISTERS + 256;
    /// The frame's size.
    pub const END: usize = FLOAT + 528;
}

/// Does what pending signals demand, until the program can run. Breaks if the thread is to end.
pub async fn deliver(task: &mut Task) -> ControlFlow<()> {
    loop {
        let process = Arc::clone(&task.thread.process);
        if process.is_ending() || task.thread.is_ending() {
            return ControlFlow::Break(());
        }
        if process.is_stopped() {
            task.leave_hart();
            process.moves.until(|| (!process.is_stopped() || process.is_ending()).then_some(())).await;
            continue;
        }
        let Some(info) = task.thread.take_signal() else { break };
        let action = process.action(info.signal);
        match signal::effect(info.signal, &action) {
            Effect::Ignore => {}
            Effect::Stop => process.stop(info.signal),
            Effect::End => process.end(ExitStatus::Killed(info.signal)),
            Effect::Handle(action) => {
                restart(task, Some(&action));
                if begin_handler(task, info, &action).is_err() {
                    process.end(ExitStatus::Killed(signal::number::SEGV));
                }
                return ControlFlow::Continue(());
            }
        }
    }
    restart(task, None);
    if let Some(mask) = task.saved_mask.take() {
        task.thread.set_mask(mask);
    }
    ControlFlow::Continue(())
}

/// Prepares a call that was interrupted to begin again, or to fail with `EINTR`, by the handler that runs now.
fn restart(task: &mut Task, handler: Option<&Action>) {
    let Some(first) = task.call.take() else { return };
    let result = task.context.x[reg::A0];
    let begins_again = if result == Errno::RESTART.to_register() {
        handler.is_none_or(|action| action.flags & u64::from(linux::SA_RESTART) != 0)
    } else if result == Errno::RESTART_UNHANDLED.to_register() {
        handler.is_none()
    } else {
        return;
    };
    if begins_again {
        task.context.pc -= 4;
        task.context.x[reg::A0] = first;
    } else {
        task.context.x[reg::A0] = Errno::INTR.to_register();
    }
}

fn begin_handler(task: &mut Task, info: Info, action: &Action) -> Result<()> {
    let has = |flag: u32| action.flags & u64::from(flag) != 0;
    let alt = *task.thread.alt_stack.lock();
    let sp = task.context.x[reg::SP];
    let is_on_alt = alt.has(sp);
    let top = if has(linux::SA_ONSTACK) && alt.flags & linux::SS_DISABLE == 0 && !is_on_alt {
        alt.at + alt.bytes
    } else {
        sp
    };
    let frame = top.checked_sub(offset::END as u64).ok_or(Errno::FAULT)? & !15;
    if is_on_alt && frame < alt.at {
        return Err(Errno::FAULT);
    }
    let mask = task.saved_mask.take().unwrap_or_else(|| task.thread.mask());
    let mut bytes = vec![0; offset::END];
    let mut set = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    set(offset::STACK, alt.at);
    set(offset::STACK + 8, u64::from(alt.flags | if is_on_alt { linux::SS_ONSTACK } else { 0 }));
    set(offset::STACK + 16, alt.bytes);
    set(offset::MASK, mask);
    set(offset::REGISTERS, task.context.pc);
    (1..32).for_each(|n| set(offset::REGISTERS + 8 * n, task.context.x[n]));
    let (f, fcsr) = machine::float_state(&mut task.float);
    f.iter().enumerate().for_each(|(n, f)| set(offset::FLOAT + 8 * n, *f));
    set(offset::FLOAT + 256, fcsr);
    bytes[..offset::CONTEXT].copy_from_slice(&info.encode());
    task.space.activate();
    task.space.put_bytes(frame, &bytes)?;
    let x = &mut task.context.x;
    x[reg::SP] = frame;
    x[reg::RA] = crate::task::exit::RETURN_FROM_HANDLER;
    x[reg::A0] = u64::from(info.signal);
    x[reg::A1] = frame;
    x[reg::A2] = frame + offset::CONTEXT as u64;
    task.context.pc = action.handler;
    let own = if has(linux::SA_NODEFER) { 0 } else { bit(info.signal) };
    task.thread.set_mask(task.thread.mask() | action.mask | own);
    if has(linux::SA_RESETHAND) {
        task.thread.process.actions.lock()[info.signal as usize - 1] = Action::default();
    }
    Ok(())
}

/// Restores the registers from before a handler. Returns a0.
///
/// # Errors
/// `EFAULT`: the frame cannot be read.
pub fn return_from_handler(task: &mut Task) -> Result<u64> {
    let frame = task.context.x[reg::SP];
    let mut bytes = vec![0; offset::END];
    task.space.get_bytes(frame, &mut bytes)?;
    let get = |at: usize| {
        let mut value = [0; 8];
        value.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(value)
    };
    task.thread.set_mask(get(offset::MASK));
    task.context.pc = get(offset::REGISTERS) & !1;
    (1..32).for_each(|n| task.context.x[n] = get(offset::REGISTERS + 8 * n));
    let f = core::array::from_fn(|n| get(offset::FLOAT + 8 * n));
    machine::set_float_state(&mut task.float, f, get(offset::FLOAT + 256));
    // No call begins again behind the handler.
    task.call = None;
    Ok(task.context.x[reg::A0])
}

/// The space of a program begins with code of the kernel's: `rt_sigreturn`.
pub const RETURN_CODE: [u32; 2] = [0x08b0_0893, 0x0000_0073];
const _: () = assert!(linux::__NR_rt_sigreturn == 139 || !cfg!(target_arch = "riscv64"));
