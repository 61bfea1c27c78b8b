//! Guests that have both: a G-stage, and shadow tables that steer. Each vCPU runs its root one way or the other, as
//! [`mmu::adapt`] chooses by what the root has been found to cost.
//!
//! While a vCPU is *behind the G-stage*, nothing that the guest does about its translation comes to Gnomon, so no fence
//! has a price: that is the reason for the choice. Neither do writes of `satp`; so a look, each few milliseconds, finds
//! which root runs. While it is *steered*, the lane changes between steered roots, and any other write of `satp` comes
//! to Gnomon, which may go behind the G-stage at once.
//!
//! The state that is kept meanwhile, and the reasons why no guest sees a translation that is out of date (TLB-LIKE):
//! - The shadow stays as it is while the vCPU is behind the G-stage. When the vCPU comes back, that counts as a fence
//!   of everything on this vCPU ([`mmu::shadow::Shadow::came_back`]): all its roots are brought up to date before they
//!   are loaded. Its ASIDs are new ones.
//! - Fences of the guest while it is steered do not reach its VMID. So it gets a new one each time that it goes behind
//!   the G-stage.

use crate::device::offer::{GuestMode, Offer};
use crate::device::uart;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::measure::counters::{Counter, VcpuCounters};
use crate::memory::coalescing;
use crate::memory::shadow;
use crate::memory::shadow::roots;
use crate::memory::two_stage;
use crate::vm::outcome::Outcome;
use crate::vm::vcpu::{ANY_SPACE, Adapts, Concern, Tables, VcpuRun};
use abi::bundle::VmConfig;
use abi::tunable::Id;
use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering;
use lane::BriefExits;
use mmu::IdSlot;
use mmu::adapt::{Choice, Found, is_far_too_much};
use mmu::shadow::Upkeep;
use rv::Mode;
use rv::csr::atp::Satp;

/// The upkeep of the shadow tables.
pub(crate) const UPKEEP: Upkeep = Upkeep::Steered;

/// The number of fences since the last look from which on there are many: the lane comes to the end of its log some
/// time after.
const MANY: u64 = 200;

/// Checks whether a VM can be both behind the G-stage and steered.
///
/// # Errors
/// A message, if it cannot.
pub(crate) fn check(config: &VmConfig, offer: &Offer) -> Result<(), String> {
    if offer.guest == GuestMode::Supervisor {
        return Err(
            "mmu = adaptive needs the H extension, which this machine's harts lack: use mmu = steered instead".into()
        );
    }
    shadow::check(UPKEEP, config, offer).map_err(|message| format!("mmu = adaptive is steered at times: {message}"))
}

/// Estimates the cost of a steered vCPU's traps so far, in instructions or thereabouts, from their numbers: time itself
/// would depend on the hart, and differ each time.
fn spent(counters: &VcpuCounters) -> u64 {
    /// In the lane (docs/lane.md).
    const LANE: u64 = 85;
    /// In the lane, and when the engine learns of it.
    const FENCE: u64 = 150;
    /// A fault that is answered, or a fence by address.
    const EXIT: u64 = 900;
    /// A fence that compares tables; some take ten times as long.
    const WIDE: u64 = 6000;
    let sum = |of: &[&Counter]| of.iter().map(|counter| counter.get()).sum::<u64>();
    let c = counters;
    LANE * sum(&[&c.lane_satp, &c.lane_all, &c.lane_satp_read])
        + FENCE * sum(&[&c.lane_page, &c.lane_page_global])
        + EXIT * sum(&[&c.exits_page_fault, &c.exits_steered, &c.fences_page, &c.fences_page_global, &c.satp_accesses])
        + WIDE * sum(&[&c.fences_asid, &c.fences_all])
}

/// Returns the number of fences by address that the lane has done for the vCPU.
fn fences(counters: &VcpuCounters) -> u64 {
    counters.lane_page.get() + counters.lane_page_global.get()
}

/// Returns whether a steered vCPU on this hart has made so many fences that it is to be looked at before the next look
/// is due. Called for a fence that comes to Gnomon, as one of some hundred does that the lane has done. The exit
/// takes the full path then, for the look ([`instruction`]).
#[inline(always)]
pub(crate) fn is_busy(run: &mut VcpuRun) -> bool {
    run.adapts.is_some() && has_fenced_much(run)
}

#[inline(never)]
fn has_fenced_much(run: &mut VcpuRun) -> bool {
    run.count_lane();
    let adapts = run.adapts.as_deref().expect("an adaptive vCPU");
    fences(&run.shared.counters) >= adapts.busy_at
}

/// Schedules a look at the vCPU soon: at once, if the cost since the last look is far too much already. Else what
/// follows is measured by itself; if as much comes again, a look is due then, and if not, an interval later, for what
/// is measured must not be too short.
fn hasten<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &E) {
    let (now, spent, fences) = (env.now(), spent(&run.shared.counters), fences(&run.shared.counters));
    let (satp, limit) = (run.bank.csrs.vsatp, g.tunables.get(Id::AdaptShare));
    let adapts = run.adapts.as_deref_mut().expect("an adaptive vCPU");
    // Of a root that is new here, tables are made first: that is judged by a whole interval.
    let is_far = adapts.calm != 0 && is_far_too_much(adapts.share(spent, now, g.offer.timebase), limit);
    if adapts.is_measured || is_far {
        adapts.busy_at = u64::MAX;
        return run.watch.again(Concern::Root, now);
    }
    adapts.is_measured = true;
    adapts.chooser.suspect(satp);
    adapts.begin((spent, fences), now);
    run.watch.again(Concern::Root, now + interval(g));
}

/// Converts microseconds to ticks of the timebase, one at least.
fn ticks(g: &Gnomon, microseconds: u64) -> u64 {
    (microseconds * g.offer.timebase / 1_000_000).max(1)
}

/// Returns the interval between looks at a vCPU, in ticks.
fn interval(g: &Gnomon) -> u64 {
    ticks(g, g.tunables.get(Id::AdaptLook).max(100))
}

const fn present(run: &VcpuRun) -> Choice {
    match run.tables {
        Tables::TwoStage => Choice::TwoStage,
        Tables::Shadow => Choice::Steered,
    }
}

/// Puts a vCPU on this hart, as it was.
///
/// # Errors
/// As for [`roots::load`].
pub(crate) fn load<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<(), Outcome> {
    run.watch.begin(Concern::Root, env.now() + interval(g));
    if run.tables == Tables::TwoStage {
        run.shared.satp.store(ANY_SPACE, Ordering::SeqCst);
        two_stage::load(run, env);
        return Ok(());
    }
    roots::load(g, run, UPKEEP, env)
}

/// Takes it off this hart.
pub(crate) fn unload<E: Env>(run: &mut VcpuRun, env: &E) {
    if run.tables == Tables::TwoStage { run.bank.csrs.vsatp = env.vsatp() } else { run.follow_lane() }
}

/// Forgets everything of the vCPU's life: it begins behind the G-stage.
pub(crate) fn forget(run: &mut VcpuRun) {
    run.follow_lane();
    roots::forget(run);
    begin_two_stage(run);
    run.adapts.as_deref_mut().expect("an adaptive vCPU").forget();
}

/// Prepares a vCPU to go behind the G-stage, wherever it is. No shadow root is its own any more.
fn begin_two_stage(run: &mut VcpuRun) {
    run.tables = Tables::TwoStage;
    run.vmid = IdSlot::new();
    run.context.brief = BriefExits::of_guest_page(uart::START);
}

/// Returns whether a root that the guest of a steered vCPU asks for is to be behind the G-stage.
fn is_to_be_two_stage(g: &Gnomon, run: &mut VcpuRun, satp: u64) -> bool {
    let at_random = g.tunables.is_on(Id::AdaptAtRandom);
    let adapts = run.adapts.as_deref_mut().expect("an adaptive vCPU");
    let choice = match () {
        () if Satp::decode(satp).mode == 0 => Choice::TwoStage,
        () if at_random => adapts.random(),
        () => adapts.chooser.choice(satp),
    };
    choice == Choice::TwoStage
}

/// Handles an instruction that trapped while the vCPU on this hart is steered: like [`roots::instruction`], but a write
/// of `satp` may move it behind the G-stage.
pub(crate) fn instruction<E: Env>(g: &Gnomon, run: &mut VcpuRun, what: (u64, Mode), env: &mut E) -> Option<Outcome> {
    run.follow_lane();
    if is_busy(run) {
        hasten(g, run, env);
    }
    if roots::writes_satp(g, run, what, |run, satp| is_to_be_two_stage(g, run, satp)) {
        go_two_stage(run, env);
        return Some(Outcome::Resume);
    }
    roots::instruction(g, run, what, env)
}

/// Makes the vCPU on this hart continue behind its G-stage.
fn go_two_stage<E: Env>(run: &mut VcpuRun, env: &mut E) {
    run.follow_lane();
    run.count_lane();
    roots::leave(run);
    begin_two_stage(run);
    // Published before the next entry: any fence of others concerns it at once.
    run.shared.satp.store(ANY_SPACE, Ordering::SeqCst);
    env.leave_tables();
    two_stage::load(run, env);
    run.shared.counters.adapt_two_stage.bump();
}

/// Makes the vCPU on this hart continue by shadow tables. Returns whether it does: it does not if there is no memory
/// for a root, or not at once.
fn go_steered<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> bool {
    run.bank.csrs.vsatp = env.vsatp();
    env.leave_tables();
    run.tables = Tables::Shadow;
    // What its guest writes while it is steered is to be good behind the G-stage as well, where the hart's own register holds it.
    run.asids_beyond = 0xffff & !((1 << env.asid_bits()) - 1);
    run.forget_way();
    // What it did meanwhile, on whatever hart, its ASIDs have not seen; and global leaves have none.
    run.shadow.views.forget_ids();
    env.load_shadow(run, true);
    env.fence_shadows();
    if roots::come_back(g, run, env) {
        run.shared.counters.adapt_steered.bump();
        let age = run.adapts.as_deref().expect("an adaptive vCPU").chooser.age(run.bank.csrs.vsatp, env.now());
        coalescing::begin_again(g, run, age, env);
        return true;
    }
    begin_two_stage(run);
    run.shared.satp.store(ANY_SPACE, Ordering::SeqCst);
    env.leave_tables();
    two_stage::load(run, env);
    false
}

/// Looks at the vCPU on this hart, at host time `now`: at the cost of its root. Chooses the way in which it continues.
pub(crate) fn look<E: Env>(g: &Gnomon, run: &mut VcpuRun, now: u64, env: &mut E) {
    run.follow_lane();
    run.count_lane();
    let satp = if run.tables == Tables::TwoStage { env.vsatp() } else { run.bank.csrs.vsatp };
    let (was, interval, spent) = (present(run), interval(g), spent(&run.shared.counters));
    let (at_random, limit) = (g.tunables.is_on(Id::AdaptAtRandom), g.tunables.get(Id::AdaptShare));
    let adapts = run.adapts.as_deref_mut().expect("an adaptive vCPU");
    let share = adapts.share(spent, now, g.offer.timebase);
    let chosen = match () {
        // Without paging a walk behind a G-stage is no longer than one of shadow tables.
        () if Satp::decode(satp).mode == 0 => Choice::TwoStage,
        () if at_random => adapts.random(),
        () => adapts.chooser.looked(satp, was, Found { share, limit, now, interval }),
    };
    match was {
        Choice::TwoStage => run.shared.counters.adapt_looks_two_stage.bump(),
        Choice::Steered => run.shared.counters.adapt_looks_steered.bump(),
    }
    let has_gone = match (was, chosen) {
        (Choice::TwoStage, Choice::Steered) => go_steered(g, run, env),
        (Choice::Steered, Choice::TwoStage) => {
            go_two_stage(run, env);
            true
        }
        _ => true,
    };
    let adapts = run.adapts.as_deref_mut().expect("an adaptive vCPU");
    if !has_gone && !at_random {
        adapts.chooser.postpone(satp, now, now + 2 * interval);
    }
    let times = if at_random { 1 } else { adapts.calm(was != chosen, chosen) };
    // A change may take longer than an interval. Counted from before, the guest would make no step until a look finds nothing to
    // change, and a trial would be judged by time in which it has not run.
    let begun = env.now();
    adapts.is_measured = false;
    adapts.begin((spent, fences(&run.shared.counters)), begun);
    run.watch.again(Concern::Root, begun + interval * times);
}

impl Adapts {
    /// Returns the thousandths of the time since [`Adapts::begin`] that traps took, at an instruction each nanosecond.
    fn share(&self, spent: u64, now: u64, timebase: u64) -> u64 {
        let passed = (now.saturating_sub(self.since).max(1)).saturating_mul(1_000_000_000 / timebase.max(1)).max(1);
        (spent.saturating_sub(self.spent)).saturating_mul(1000) / passed
    }

    /// Starts to count the cost of traps, and the fences of the lane.
    const fn begin(&mut self, (spent, fences): (u64, u64), now: u64) {
        (self.spent, self.since, self.busy_at) = (spent, now, fences + MANY);
    }

    /// Returns the number of intervals until the next look.
    fn calm(&mut self, has_changed: bool, chosen: Choice) -> u64 {
        const MOST: u32 = 4;
        self.calm = if has_changed { 0 } else { (self.calm + 1).min(MOST) };
        // While it is behind the G-stage, a root that is to be steered may run unseen.
        let is_sought = chosen == Choice::TwoStage && self.chooser.steers_any();
        1 << if is_sought { self.calm.min(2) } else { self.calm }
    }

    /// Returns either choice, at random (xorshift64).
    const fn random(&mut self) -> Choice {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        if self.dice >> 20 & 1 == 0 { Choice::TwoStage } else { Choice::Steered }
    }
}
