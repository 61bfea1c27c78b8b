//! The harts: what each records, starting and stopping them, waiting.

use crate::{Check, Text, board, ensure, ensure_eq, sbi, trap};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use rv::Interrupt;
use sbi_spec::hsm::hart_state;
use spin::Mutex;

/// Harts that a guest can have: ids 0 to MAX - 1.
pub const MAX: usize = 8;

/// A job for a hart.
type Job = fn(u64);

/// A hart's own block.
#[derive(Debug)]
pub struct Hart {
    /// a0, a1, `sstatus` and `satp` at the first instruction after an HSM start.
    pub entry: [AtomicU64; 4],
    /// The number of times that the hart was started by HSM.
    pub starts: AtomicU64,
    /// Which exceptions are expected, for the trap handler.
    pub expecting: AtomicU64,
    /// Exceptions recorded since `expecting` was set.
    pub trapped: AtomicU64,
    /// Cause, value, epc and `sstatus` of the first of them.
    pub first: [AtomicU64; 4],
    /// Interrupts taken, by code.
    pub interrupts: [AtomicU64; 16],
    /// `time` at the last interrupt.
    pub interrupted_at: AtomicU64,
    job: Mutex<Option<(Job, u64)>>,
}

static HARTS: [Hart; MAX] = [const {
    Hart {
        entry: [const { AtomicU64::new(0) }; 4],
        starts: AtomicU64::new(0),
        expecting: AtomicU64::new(0),
        trapped: AtomicU64::new(0),
        first: [const { AtomicU64::new(0) }; 4],
        interrupts: [const { AtomicU64::new(0) }; 16],
        interrupted_at: AtomicU64::new(0),
        job: Mutex::new(None),
    }
}; MAX];

/// This hart's id.
#[must_use]
#[expect(unsafe_code, reason = "the id is kept in tp")]
pub fn id() -> u64 {
    let tp: u64;
    // SAFETY: reading a register, which the entry code set for ever.
    unsafe { asm!("mv {}, tp", out(reg) tp, options(nomem, nostack, preserves_flags)) };
    tp
}

/// This hart's block.
#[must_use]
pub fn this() -> &'static Hart {
    of(id())
}

/// A hart's block.
#[must_use]
pub fn of(hart: u64) -> &'static Hart {
    &HARTS[hart as usize]
}

impl Hart {
    /// Interrupts of a kind taken so far.
    #[must_use]
    pub fn count(&self, interrupt: Interrupt) -> u64 {
        self.interrupts[interrupt as usize].load(Relaxed)
    }
}

/// The address at which started harts enter the runtime.
#[must_use]
pub fn entry_address() -> u64 {
    #[expect(unsafe_code, reason = "an assembly label")]
    unsafe extern "C" {
        safe fn guest_secondary();
    }
    guest_secondary as *const () as u64
}

/// Starts a hart on a job; when the job returns, the hart stops.
///
/// # Errors
/// If HSM does not start it.
pub fn start(hart: u64, job: Job, argument: u64) -> Check {
    *of(hart).job.lock() = Some((job, argument));
    ensure_eq!(sbi::hart_start(hart, entry_address(), argument), sbi::SUCCESS, "hart_start of {hart}");
    Ok(())
}

/// The job of harts that are started without one, as by [`sbi::hart_start`] itself.
static COMMON: Mutex<Option<Job>> = Mutex::new(None);

/// Names it; they get the opaque value.
pub fn on_start(job: Option<Job>) {
    *COMMON.lock() = job;
}

/// Waits until a hart has stopped.
///
/// # Errors
/// If it does not within a long time.
pub fn join(hart: u64) -> Check {
    let stopped = || sbi::hart_status(hart) == (sbi::SUCCESS, hart_state::STOPPED as u64);
    ensure!(wait_for(PATIENCE_MS, stopped), "hart {hart} does not stop");
    Ok(())
}

/// Runs a job on every other hart, with the argument, and waits for all of them.
///
/// # Errors
/// If one does not start or stop.
pub fn on_others(job: Job, argument: u64) -> Check {
    board().other_harts().try_for_each(|hart| start(hart, job, argument))?;
    board().other_harts().try_for_each(join)
}

/// Runs a job on every hart at once, this one included, and waits for all of them.
///
/// # Errors
/// If one does not start or stop; else that of the first job that failed, with its hart's id.
pub fn everywhere(job: fn() -> Check) -> Check {
    static JOB: Mutex<fn() -> Check> = Mutex::new(|| Ok(()));
    static OUTCOME: Mutex<Check> = Mutex::new(Ok(()));
    static BUSY: AtomicU64 = AtomicU64::new(0);
    fn run(_: u64) {
        let job = *JOB.lock();
        if let Err(why) = job() {
            let why = Text::of(format_args!("hart {}: {}", id(), why.as_str()));
            let mut outcome = OUTCOME.lock();
            *outcome = outcome.and(Err(why));
        }
        BUSY.fetch_sub(1, Relaxed);
        // OpenSBI 1.5.1 waits for ever for a hart that stops while it is being fenced.
        while BUSY.load(Relaxed) != 0 {
            core::hint::spin_loop();
        }
    }
    *JOB.lock() = job;
    *OUTCOME.lock() = Ok(());
    BUSY.store(board().hart_count as u64, Relaxed);
    board().other_harts().try_for_each(|hart| start(hart, run, 0))?;
    run(0);
    board().other_harts().try_for_each(join)?;
    *OUTCOME.lock()
}

/// Milliseconds after which something that should happen at once is held to have failed. Long: four
/// vCPUs may share one hart of a slow emulator.
pub const PATIENCE_MS: u64 = 20_000;

/// Spins until the condition holds; says whether it did in time.
pub fn wait_for(milliseconds: u64, condition: impl Fn() -> bool) -> bool {
    let end = metal::time() + board().ticks(milliseconds);
    loop {
        if condition() {
            return true;
        }
        if metal::time() > end {
            return false;
        }
        core::hint::spin_loop();
    }
}

/// Sleeps until the condition, which an interrupt enabled in `sie` brings about, holds; says whether it
/// did in time. Interrupts are not taken meanwhile, and the SBI timer is used up.
pub fn sleep_until(condition: impl Fn() -> bool) -> bool {
    let end = metal::time() + board().ticks(PATIENCE_MS);
    sbi::set_timer(end);
    trap::enable(Interrupt::STimer.bit());
    while !condition() && metal::time() < end {
        metal::wait_for_interrupt();
    }
    trap::disable(Interrupt::STimer.bit());
    sbi::set_timer(u64::MAX);
    condition()
}

/// The entry of a hart that HSM started.
pub(crate) extern "C" fn secondary(hart: u64, opaque: u64, sstatus: u64, satp: u64) -> ! {
    let own = of(hart);
    for (field, value) in own.entry.iter().zip([hart, opaque, sstatus, satp]) {
        field.store(value, Relaxed);
    }
    own.starts.fetch_add(1, Relaxed);
    let job = own.job.lock().take();
    let common = *COMMON.lock();
    if let Some((job, argument)) = job.or(common.map(|job| (job, opaque))) {
        job(argument);
    }
    let error = sbi::hart_stop();
    panic!("hart_stop returned {error}");
}
