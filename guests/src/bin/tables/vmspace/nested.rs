//! Spaces that the hart walks, and that a kernel switches to by call.

use super::{CODE, DATA, LOAD, World};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Release};
use guests::access::{ld, peek, poke};
use guests::expect::{ECALL_U, LOAD_PAGE, ensure_trap};
use guests::paging::{self, RW, page};
use guests::user::{COUNTS, User};
use guests::vmspace::Handle;
use guests::{Check, board, ensure, ensure_eq, hart, run, sbi};
use rv::PAGE_BYTES;

pub fn all() {
    run("vmspace/switch", switch);
    run("vmspace/programs", programs);
    run("vmspace/changes", changes);
    if board().hart_count > 1 {
        run("vmspace/other-is-in", other_is_in);
        run("vmspace/everywhere", || hart::everywhere(alone_here));
    }
}

/// A space whose data is for its kernel as well.
fn world(mark: u64) -> Result<World, guests::Text> {
    let w = World::new(&[LOAD])?;
    w.space.map(DATA, w.data.address(), RW);
    poke(w.data.address(), mark);
    Ok(w)
}

/// Spaces by turns, each with its own page at the same address.
fn switch() -> Check {
    let worlds = [world(0)?, world(1)?, world(2)?];
    for round in 0..60u64 {
        let n = round * 2 % 3;
        ensure_eq!(worlds[n as usize].handle.switch(), sbi::SUCCESS, "SWITCH");
        ensure_eq!(ld(DATA), Ok(n), "what space {n} has");
    }
    // A space that comes in another's place has nothing of it.
    ensure_eq!(worlds[1].handle.switch(), sbi::SUCCESS, "SWITCH");
    ensure_eq!(ld(DATA), Ok(1), "what space 1 has");
    worlds[1].end()?;
    let next = world(5)?;
    ensure_eq!(next.handle.switch(), sbi::SUCCESS, "SWITCH");
    ensure_eq!(ld(DATA), Ok(5), "what the next space in its place has");
    ensure_eq!(worlds[1].handle.switch(), sbi::INVALID_PARAM, "SWITCH to one that has ended");
    ensure_eq!(ld(DATA), Ok(5), "what the present space has");
    paging::leave();
    [worlds[0], worlds[2], next].iter().try_for_each(|w| w.end())
}

/// Programs, which the kernel enters by its own `sret`.
fn programs() -> Check {
    let worlds = [World::new(&COUNTS)?, World::new(&COUNTS)?];
    let mut users = [User::at(CODE), User::at(CODE)];
    for round in 0..40u64 {
        let n = (round % 2) as usize;
        ensure_eq!(worlds[n].handle.switch(), sbi::SUCCESS, "SWITCH");
        users[n].x[11] = DATA;
        let trap = users[n].run();
        ensure_eq!((trap.cause, users[n].x[10]), (ECALL_U, round / 2 + 1), "call of program {n}");
        users[n].pc += 4;
    }
    paging::leave();
    worlds.iter().try_for_each(|w| w.end())
}

/// Changes are seen: of the present space, and of one that is switched to later.
fn changes() -> Check {
    let (w, other, list, pages) = (world(0)?, world(1)?, page(), [page(), page()]);
    for round in 0..16u64 {
        let page = pages[round as usize % 2];
        poke(page.address(), 100 + round);
        ensure_eq!(w.handle.switch(), sbi::SUCCESS, "SWITCH");
        let _ = ld(DATA);
        if round & 2 != 0 {
            ensure_eq!(other.handle.switch(), sbi::SUCCESS, "SWITCH");
        }
        w.space.map(DATA, page.address(), RW);
        let done = if round & 4 != 0 { w.handle.invalidate_all() } else { w.handle.invalidate(list, &[(DATA, 8)]) };
        ensure_eq!(done, sbi::SUCCESS, "INVALIDATE");
        if round & 2 != 0 {
            ensure_eq!(ld(DATA), Ok(1), "what the other space has");
            ensure_eq!(w.handle.switch(), sbi::SUCCESS, "SWITCH");
        }
        ensure_eq!(ld(DATA), Ok(100 + round), "round {round}");
    }
    w.space.slot(DATA, rv::Level::PAGE).store(0, core::sync::atomic::Ordering::Relaxed);
    ensure_eq!(w.handle.invalidate(list, &[(DATA, PAGE_BYTES)]), sbi::SUCCESS, "INVALIDATE");
    ensure_trap(ld(DATA), LOAD_PAGE, DATA, "a page that is gone")?;
    // The present space gets another root.
    ensure_eq!(w.handle.set_root(&other.space), sbi::SUCCESS, "SET_ROOT");
    ensure_eq!(ld(DATA), Ok(1), "what the other root has");
    paging::leave();
    w.end()?;
    other.end()
}

/// The space that another hart is in, the value that it sees, and what it is to do.
static SPACE: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);
static STOPS: AtomicU64 = AtomicU64::new(0);

fn stay_in(_: u64) {
    let handle = Handle(SPACE.load(Acquire));
    if handle.switch() == sbi::SUCCESS {
        while STOPS.load(Acquire) == 0 {
            SEEN.store(ld(DATA).unwrap_or(u64::MAX), Release);
        }
    }
    paging::leave();
}

/// Changes in a space reach a hart that is in it; the space ends only when none is.
fn other_is_in() -> Check {
    let Some(other) = board().other_harts().next() else { return Ok(()) };
    let (w, list) = (world(1)?, page());
    SPACE.store(w.handle.0, Release);
    hart::start(other, stay_in, 0)?;
    let sees = |mark: u64| hart::wait_for(hart::PATIENCE_MS, || SEEN.load(Acquire) == mark);
    ensure!(sees(1), "the other hart does not run");
    ensure_eq!(w.handle.destroy(), sbi::ALREADY_STARTED, "DESTROY");
    let mut old = w.data.address();
    for round in 0..20u64 {
        let next = page();
        poke(next.address(), 50 + round);
        w.space.map(DATA, next.address(), RW);
        let done = if round % 2 == 0 { w.handle.invalidate(list, &[(DATA, 8)]) } else { w.handle.invalidate_all() };
        ensure_eq!(done, sbi::SUCCESS, "INVALIDATE");
        // Nothing of it is seen from now on.
        poke(old, 1000 + round);
        ensure!(sees(50 + round), "round {round}: {}", SEEN.load(Acquire));
        old = next.address();
    }
    ensure_eq!(peek(old), 69, "the last page");
    STOPS.store(1, Release);
    hart::join(other)?;
    // A hart that stops is in no space.
    w.end()
}

fn alone_here() -> Check {
    let (w, other, list, pages) = (world(0)?, world(1)?, page(), [page(), page()]);
    for round in 0..200u64 {
        let page = pages[round as usize % 2];
        poke(page.address(), round);
        ensure_eq!(w.handle.switch(), sbi::SUCCESS, "SWITCH");
        w.space.map(DATA, page.address(), RW);
        let done = if round % 8 == 0 { w.handle.invalidate_all() } else { w.handle.invalidate(list, &[(DATA, 8)]) };
        ensure_eq!((done, ld(DATA)), (sbi::SUCCESS, Ok(round)), "round {round}");
        ensure_eq!((other.handle.switch(), ld(DATA)), (sbi::SUCCESS, Ok(1)), "the other space in round {round}");
    }
    paging::leave();
    w.end()?;
    other.end()
}

/// Each hart has spaces of its own: no fence of one reaches another.
pub fn alone() -> Check {
    hart::everywhere(alone_here)
}
