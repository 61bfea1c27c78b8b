//! Coalescing: shadow tables get leaves of 2 MiB where a guest has mapped 4 KiB ([`mmu::shadow::Gathered`]). The timer
//! of the vCPU whose root it is does that, while the root is loaded. So neither faults nor fences look for anything.
//!
//! - A root that is not the same for 100 ms is left alone: most processes are over by then.
//! - Tables of which a leaf has changed within 150 ms are left as they are. If a root was behind the G-stage before
//!   (mode `adaptive`), its tables are half as old as it is, on average: they are taken to be, without its youth, if
//!   they are seen to stay for 20 ms.
//! - What a look does, and moving pages above all, takes no more than a share of the vCPU's time (the tunable
//!   `coalesce-share`).
//! - Where nothing comes of a round, the next comes after twice as long, or when what it has found to be new is so no
//!   more.
//! - While the guest is found where it was, which is where it is idle, looks are rarer and rarer: some one a second.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::shadow;
use crate::vm::vcpu::{Concern, Looks, VcpuRun};
use abi::tunable::Id;
use alloc::sync::Arc;
use mmu::shadow::Gathered;

/// Microseconds between two looks at which root there is. They take some 1,000 instructions each.
const LOOK: u64 = 20_000;
/// Microseconds for which a root is to have been there before anything is done for it.
const OLD: u64 = 100_000;
/// Microseconds for which the leaves of a table are to have been as they are before one comes in their place. To move what they lead to
/// takes a millisecond, and most of what programs do not keep is gone by then.
const SETTLED: u64 = 150_000;
/// Like [`SETTLED`], for leaves that may have been so for long before they were seen.
const SEEN: u64 = 20_000;
/// Microseconds in which a program is about to begin, and changes most of what it has.
const YOUNG: u64 = 300_000;
/// Microseconds between two rounds, two to the power of [`MOST_IN_VAIN`] times as many where nothing has come of the last ones.
const ROUND: u64 = 5000;
const MOST_IN_VAIN: u32 = 7;
/// Two to the power of this is as many times [`LOOK`] as there are at most between two looks at a guest that is where it was.
const MOST_STILL: u32 = 6;

const fn ticks(g: &Gnomon, microseconds: u64) -> u64 {
    let ticks = microseconds * g.offer.timebase / 1_000_000;
    if ticks == 0 { 1 } else { ticks }
}

/// Begins the looks at a vCPU that continues by steered tables on this hart.
pub(crate) fn begin<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &E) {
    run.watch.begin(Concern::Pages, env.now() + ticks(g, LOOK));
}

/// Begins the looks at a vCPU that continues by steered tables on this hart, with a root that has been there for `age`,
/// in ticks, most of it unseen. Mappings of that time are taken to be half as old as it is, on average, without the
/// root's youth.
pub(crate) fn begin_again<E: Env>(g: &Gnomon, run: &mut VcpuRun, age: u64, env: &E) {
    let (now, before) = (env.now(), age.saturating_sub(ticks(g, YOUNG)) / 2);
    let Some(root) = run.shadow.root else { return };
    let due = now + ticks(g, OLD).saturating_sub(before).max(ticks(g, ROUND));
    let until = now + ticks(g, SETTLED);
    run.looks = Looks { root: root.serial, due, before, until, in_vain: 0, ..run.looks };
    run.watch.begin(Concern::Pages, due.min(now + ticks(g, LOOK)));
}

/// Looks at the root of the vCPU on this hart, at host time `now`, and schedules the next look.
pub(crate) fn look<E: Env>(g: &Gnomon, run: &mut VcpuRun, now: u64, env: &mut E) {
    run.follow_lane();
    let pc = run.context.pc;
    run.looks.still = if run.looks.pc == pc { (run.looks.still + 1).min(MOST_STILL) } else { 0 };
    run.looks.pc = pc;
    let look = ticks(g, LOOK) << run.looks.still;
    let (share, again) = (g.tunables.get(Id::CoalesceShare), now + look);
    let is_on = g.tunables.is_on(Id::Coalesce) && share != 0;
    let Some(root) = run.shadow.root.filter(|_| is_on) else { return run.watch.again(Concern::Pages, again) };
    if run.looks.root != root.serial {
        run.looks = Looks { root: root.serial, due: now + ticks(g, OLD), before: 0, in_vain: 0, ..run.looks };
    }
    if now < run.looks.due {
        return run.watch.again(Concern::Pages, again.min(run.looks.due));
    }
    let vm = Arc::clone(&run.vm);
    let before = if now < run.looks.until { run.looks.before } else { 0 };
    let settled = ticks(g, SETTLED).saturating_sub(before).max(ticks(g, SEEN));
    let gathered = shadow::gather(g, &vm, &root, (now, settled), env);
    let end = env.now();
    let wait = match gathered {
        Gathered::More => (end - now).max(1) * (1000 - share) / share,
        Gathered::Round { has_found, settles } => {
            run.looks.in_vain = if has_found { 0 } else { (run.looks.in_vain + 1).min(MOST_IN_VAIN) };
            let settles = settles.map_or(u64::MAX, |time| time.saturating_sub(end).max(ticks(g, ROUND)));
            (ticks(g, ROUND) << run.looks.in_vain).min(settles)
        }
    };
    run.looks.due = end + wait.max(1);
    run.watch.again(Concern::Pages, run.looks.due.min(end + look));
}
