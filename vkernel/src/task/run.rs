//! The life of a thread: its program runs, traps, and runs again.

use super::process::{ExitStatus, Thread};
use super::signal::{Info, force, number};
use super::{executor, exit, signal_frame, timers};
use crate::call;
use crate::errno::{Errno, Result};
use crate::machine::{self, Context, FloatUse, Trap};
use crate::memory::space::{Refusal, Rights, Space};
use crate::memory::translation;
use crate::share;
use abi::vmspace::Way;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU32, Ordering};
use core::task::{Context as TaskContext, Poll};
use linux_raw_sys::general as linux;

/// A thread with what belongs to its task alone.
#[derive(Debug)]
pub struct Task {
    /// The thread.
    pub thread: Arc<Thread>,
    /// The space of its process.
    pub space: Arc<Space>,
    /// The program's registers.
    pub context: Box<Context>,
    /// Its floating-point registers.
    pub float: Box<FloatUse>,
    /// The first argument of the system call that is being handled, so that it can begin again.
    pub call: Option<u64>,
    /// Bytes that a `write` has written before it has to wait.
    pub written: u64,
    /// The signal mask from before a call that waits with another one.
    pub saved_mask: Option<u64>,
}

/// Causes of traps, as in `scause`.
mod cause {
    use rv::{Exception, Interrupt};

    const INTERRUPT: u64 = 1 << 63;
    pub const IPI: u64 = INTERRUPT | Interrupt::SSoft as u64;
    pub const TIMER: u64 = INTERRUPT | Interrupt::STimer as u64;
    pub const EXTERNAL: u64 = INTERRUPT | Interrupt::SExternal as u64;
    pub const FETCH_MISALIGNED: u64 = Exception::FetchMisaligned.code();
    pub const FETCH_ACCESS: u64 = Exception::FetchAccess.code();
    pub const ILLEGAL: u64 = Exception::IllegalInstruction.code();
    pub const BREAKPOINT: u64 = Exception::Breakpoint.code();
    pub const LOAD_MISALIGNED: u64 = Exception::LoadMisaligned.code();
    pub const LOAD_ACCESS: u64 = Exception::LoadAccess.code();
    pub const STORE_MISALIGNED: u64 = Exception::StoreMisaligned.code();
    pub const STORE_ACCESS: u64 = Exception::StoreAccess.code();
    pub const CALL: u64 = Exception::EcallFromU.code();
    pub const FETCH_PAGE: u64 = Exception::FetchPage.code();
    pub const LOAD_PAGE: u64 = Exception::LoadPage.code();
    pub const STORE_PAGE: u64 = Exception::StorePage.code();
}

/// The number of the process that each hart runs; 0 is none.
static CURRENT: [AtomicU32; machine::MAX_HARTS] = [const { AtomicU32::new(0) }; machine::MAX_HARTS];

/// Returns the number of the process that this hart runs.
#[must_use]
pub fn current() -> Option<u32> {
    Some(CURRENT[machine::hart_index()].load(Ordering::Relaxed)).filter(|pid| *pid != 0)
}

/// A thread's future, with what the hart has to have ready for it.
struct Running {
    thread: Arc<Thread>,
    inner: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        self.thread.set_waker(cx.waker());
        self.thread.begin_turn();
        machine::set_thread(&self.thread);
        CURRENT[machine::hart_index()].store(self.thread.process.pid, Ordering::Relaxed);
        executor::begin_turn();
        let space = self.thread.process.space.lock().clone();
        if let Some(space) = space {
            space.activate();
        }
        if share::is_used() {
            share::ledger::enter(Some(Arc::clone(&self.thread.host)));
        }
        let begun = machine::ticks();
        let result = self.inner.as_mut().poll(cx);
        if share::is_used() {
            share::ledger::enter(None);
        }
        self.thread.process.ticks.fetch_add(machine::ticks() - begun, Ordering::Relaxed);
        self.thread.end_turn();
        result
    }
}

/// Starts a thread's task.
pub fn start(task: Task) {
    let thread = Arc::clone(&task.thread);
    executor::spawn(Running { thread, inner: Box::pin(run(task)) });
}

async fn run(mut task: Task) {
    loop {
        if task.thread.has_work() && signal_frame::deliver(&mut task).await.is_break() {
            break;
        }
        let turn_end = executor::turn_end();
        if turn_end.is_some_and(|end| end <= machine::ticks()) {
            task.leave_hart();
            executor::yield_now().await;
            continue;
        }
        let trap = task.enter(turn_end);
        match trap.cause {
            cause::CALL => {
                task.context.pc += 4;
                call::handle(&mut task).await;
            }
            cause::TIMER => {
                timers::expired();
                timers::expire();
            }
            cause::IPI => machine::clear_ipi(),
            cause::EXTERNAL => crate::device::poll(),
            _ => {
                if task.exception(trap).is_err() {
                    task.leave_hart();
                    // A signal comes first, and the program faults again.
                    let _ = task.thread.host.settle(&task.thread).await;
                }
            }
        }
    }
    exit::thread_ends(task).await;
}

impl Task {
    /// Runs the program until it traps, at the end of the turn at the latest.
    fn enter(&mut self, turn_end: Option<u64>) -> Trap {
        machine::take_float(&self.float);
        timers::arm(turn_end);
        match translation::way() {
            Way::Soft => machine::run_space(self.space.translation().handle(), &mut self.context),
            _ => machine::enter_user(&mut self.context),
        }
    }

    /// Stores what the hart has of the thread, before it waits.
    pub fn leave_hart(&mut self) {
        machine::leave_float(&mut self.float);
    }

    /// Handles an exception that is not a call.
    ///
    /// # Errors
    /// [`Errno::HOST`] if the program has to wait for a page, and to try again.
    fn exception(&mut self, trap: Trap) -> Result<()> {
        let access = match trap.cause {
            cause::LOAD_PAGE => Rights::R,
            cause::STORE_PAGE => Rights::W,
            cause::FETCH_PAGE => Rights::X,
            other => {
                self.fail(other, trap.value);
                return Ok(());
            }
        };
        let result = self.space.fault(trap.value, access);
        if share::is_used() && result != Err(Refusal::Host) {
            self.thread.host.clear();
        }
        match result {
            Ok(()) => {}
            Err(Refusal::Host) => return Err(Errno::HOST),
            Err(Refusal::NoRegion) => self.signal(number::SEGV, linux::SEGV_MAPERR, trap.value),
            Err(Refusal::NoRight) => self.signal(number::SEGV, linux::SEGV_ACCERR, trap.value),
            Err(Refusal::BehindObject) => self.signal(number::BUS, linux::BUS_ADRERR, trap.value),
            // The process that needs the memory is the one that ends.
            Err(Refusal::NoMemory) => {
                crate::report(format_args!("out of memory: process {} ends", self.thread.process.pid));
                self.thread.process.end(ExitStatus::Killed(number::KILL));
            }
        }
        Ok(())
    }

    /// Handles an exception that programs are told of by a signal.
    fn fail(&self, cause: u64, value: u64) {
        let pc = self.context.pc;
        match cause {
            cause::BREAKPOINT => self.signal(number::TRAP, linux::TRAP_BRKPT, pc),
            cause::FETCH_MISALIGNED | cause::LOAD_MISALIGNED | cause::STORE_MISALIGNED => {
                self.signal(number::BUS, linux::BUS_ADRALN, value);
            }
            cause::FETCH_ACCESS | cause::LOAD_ACCESS | cause::STORE_ACCESS => {
                self.signal(number::SEGV, linux::SEGV_ACCERR, value);
            }
            cause::ILLEGAL => self.signal(number::ILL, linux::ILL_ILLOPC, pc),
            _ => self.signal(number::ILL, linux::ILL_ILLTRP, pc),
        }
    }

    fn signal(&self, signal: u32, code: u32, at: u64) {
        force(&self.thread, Info::fault(signal, code, at));
    }
}
