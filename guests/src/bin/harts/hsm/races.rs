//! All harts start, interrupt and fence each other at random, while they stop and suspend themselves. No start is lost, and none
//! comes twice: what was sent with those that succeeded is what arrived.

use super::{LOSES, is_anew, suspend};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use guests::paging::Space;
use guests::random::Random;
use guests::sbi::{ALL_HARTS, ALREADY_AVAILABLE, INVALID_PARAM, NOT_SUPPORTED, SUCCESS, hart_start, hart_status};
use guests::trap::{clear_ipi, disable, enable};
use guests::{Check, Text, board, ensure, ensure_eq, fail, hart, paging, sbi, sleep};
use rv::Interrupt::{SSoft, STimer};
use rv::csr::status;
use rv::format::SV39;
use sbi_spec::hsm::{hart_state, suspend_type};
use sbi_spec::rfnc::{REMOTE_FENCE_I, REMOTE_SFENCE_VMA};
use spin::{Mutex, Once};

/// The time of a race, in milliseconds.
const DURATION_MS: u64 = 100;
/// The number of actions of a hart before it stops.
const ACTIONS: u64 = 16;

/// Starts of a hart: how many, and the sum of their opaque values, which are all different.
struct Starts {
    count: AtomicU64,
    sum: AtomicU64,
}

impl Starts {
    const fn none() -> Self {
        Self { count: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }

    fn add(&self, opaque: u64) {
        self.sum.fetch_add(opaque, SeqCst);
        self.count.fetch_add(1, SeqCst);
    }

    fn get(&self) -> (u64, u64) {
        (self.count.load(SeqCst), self.sum.load(SeqCst))
    }
}

/// Those that succeeded, and those that arrived, by hart.
static SENT: [Starts; hart::MAX] = [const { Starts::none() }; hart::MAX];
static CAME: [Starts; hart::MAX] = [const { Starts::none() }; hart::MAX];
static TICKET: AtomicU64 = AtomicU64::new(0);
static IS_OVER: AtomicBool = AtomicBool::new(false);
static OUTCOME: Mutex<Check> = Mutex::new(Ok(()));
/// For translation to be on when a hart stops or sleeps.
static SPACE: Once<Space> = Once::new();

pub fn races() -> Check {
    SPACE.call_once(|| Space::new(&SV39, 0));
    hart::on_start(Some(racer));
    let duration = board().number().unwrap_or(DURATION_MS);
    let end = metal::time() + board().ticks(duration);
    let mut random = Random::of(1);
    let mut outcome = Ok(());
    while metal::time() < end && outcome.is_ok() {
        outcome = act(&mut random);
    }
    IS_OVER.store(true, SeqCst);
    outcome?;
    ensure!(hart::wait_for(hart::PATIENCE_MS, all_have_stopped), "not all stop: {:?}", states());
    hart::on_start(None);
    (*OUTCOME.lock())?;
    for other in board().other_harts() {
        let (sent, came) = (SENT[other as usize].get(), CAME[other as usize].get());
        ensure_eq!(came, sent, "starts of hart {other} that arrived, and their sum");
        ensure!(sent.0 > 0, "hart {other} was never started");
        // None is left in a state that it cannot be started from.
        hart::start(other, |_| {}, 0)?;
        hart::join(other)?;
    }
    Ok(())
}

fn states() -> [u64; hart::MAX] {
    core::array::from_fn(|id| hart_status(id as u64).1)
}

/// Returns whether all other harts have stopped for good: none was started while they were examined.
fn all_have_stopped() -> bool {
    let sent = || SENT.iter().map(|starts| starts.get().0).sum::<u64>();
    let (before, stopped) = (sent(), hart_state::STOPPED as u64);
    board().other_harts().all(|other| hart_status(other) == (SUCCESS, stopped)) && sent() == before
}

/// The job of a hart that was started.
fn racer(ticket: u64) {
    CAME[hart::id() as usize].add(ticket);
    let mut random = Random::of(ticket);
    let mut found = has_arrived(ticket);
    let actions = 1 + random.below(ACTIONS);
    for _ in 0..actions {
        if found.is_ok() && !IS_OVER.load(SeqCst) {
            found = act(&mut random);
        }
    }
    if let Err(why) = found {
        let mut outcome = OUTCOME.lock();
        *outcome = outcome.and(Err(Text::of(format_args!("hart {}: {}", hart::id(), why.as_str()))));
        IS_OVER.store(true, SeqCst);
    }
    // What is left behind must not matter to its next start.
    enable(STimer.bit() | SSoft.bit());
    SPACE.get().expect("made before").enter();
}

/// Opaque values name the hart that they are for.
fn has_arrived(ticket: u64) -> Check {
    let [a0, a1, sstatus, satp] = hart::this().entry.each_ref().map(|field| field.load(SeqCst));
    ensure_eq!((a0, a1, ticket & 0xff), (hart::id(), ticket, hart::id()), "a0, a1, for whom");
    ensure_eq!((sstatus & status::SIE, satp), (0, 0), "sstatus.SIE, satp");
    ensure_eq!(hart_status(hart::id()), (SUCCESS, hart_state::STARTED as u64), "own status");
    Ok(())
}

/// Any hart.
fn someone(random: &mut Random) -> u64 {
    random.any(board().harts())
}

fn act(random: &mut Random) -> Check {
    match random.below(16) {
        0..=5 => start(someone(random)),
        6..=7 => {
            let mask = random.any_bits() & ((1 << board().hart_count) - 1);
            ensure_eq!(sbi::send_ipi(mask, 0), SUCCESS, "send_ipi to {mask:#x}");
            Ok(())
        }
        // OpenSBI 1.5.1 waits for ever for a hart that stops while it is being fenced.
        8..=9 if sbi::is_gnomon() => {
            let fid = random.any(&[REMOTE_SFENCE_VMA, REMOTE_FENCE_I]);
            let one = (1, someone(random));
            let (mask, base) = random.any(&[(0, ALL_HARTS), one]);
            ensure_eq!(sbi::remote_fence(fid, mask, base, 0, 0, 0), SUCCESS, "fence {fid} of {mask:#x} from {base}");
            Ok(())
        }
        8..=11 => {
            let (error, state) = hart_status(someone(random));
            ensure!(error == SUCCESS && state <= hart_state::RESUME_PENDING as u64, "status: {error}, {state}");
            Ok(())
        }
        // In this race, OpenSBI 1.5.1 leaves a hart asleep for ever that has lost its state.
        14.. if sbi::is_gnomon() => rest(random, LOSES),
        _ => rest(random, suspend_type::RETENTIVE.into()),
    }
}

fn start(target: u64) -> Check {
    let ticket = TICKET.fetch_add(1, SeqCst) << 8 | target;
    match hart_start(target, hart::entry_address(), ticket) {
        SUCCESS if target == hart::id() => fail!("a hart starts itself"),
        SUCCESS => SENT[target as usize].add(ticket),
        ALREADY_AVAILABLE => {}
        // OpenSBI's word while a start is pending.
        INVALID_PARAM if !sbi::is_gnomon() => {}
        error => fail!("hart_start of {target}: {error}"),
    }
    Ok(())
}

/// Suspends this hart until its timer, or an IPI if it listens to them.
fn rest(random: &mut Random, kind: u64) -> Check {
    sbi::set_timer(metal::time() + random.below(board().ticks(1)));
    enable(STimer.bit() | random.any(&[0, SSoft.bit()]));
    let outcome = if kind == LOSES {
        SPACE.get().expect("made before").enter();
        let woken = sleep::suspend(kind);
        paging::leave();
        match woken {
            Ok(woken) => is_anew(&woken),
            Err(error) => Err(Text::of(format_args!("hart_suspend: {error}"))),
        }
    } else {
        let error = suspend(kind as u32);
        if [SUCCESS, NOT_SUPPORTED].contains(&error) {
            Ok(())
        } else {
            Err(Text::of(format_args!("hart_suspend: {error}")))
        }
    };
    disable(STimer.bit() | SSoft.bit());
    sbi::set_timer(u64::MAX);
    // An IPI that has come would end each later rest at once.
    clear_ipi();
    outcome
}
