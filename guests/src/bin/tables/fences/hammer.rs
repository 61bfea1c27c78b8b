//! One hart edits and fences while the others use what it edits.

use super::marked;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use guests::expect::{LOAD_PAGE, STORE_PAGE};
use guests::fences::{self, Fence};
use guests::paging::{self, Page, RO, RW, Space, TEST_VA, leaf};
use guests::trap::Trap;
use guests::{Check, access, board, ensure, ensure_eq, hart, ram};
use metal::{csr, fence};
use rv::{Format, Level};

const ASID: u64 = 21;
const OTHER_ASID: u64 = 22;

/// `satp` of the space that is edited, and of another one.
static SATP: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Ends the others.
static IS_OVER: AtomicU64 = AtomicU64::new(0);
/// Others that have started.
static READY: AtomicU64 = AtomicU64::new(0);
/// The number of wrong findings of other harts, and one of them.
static WRONG: AtomicU64 = AtomicU64::new(0);
static EXAMPLE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Useful turns of all the others.
static TURNS: AtomicU64 = AtomicU64::new(0);

fn wrong(found: u64, wanted: u64) {
    WRONG.fetch_add(1, SeqCst);
    EXAMPLE[0].store(found, SeqCst);
    EXAMPLE[1].store(wanted, SeqCst);
}

#[expect(unsafe_code, reason = "satp")]
fn switch(which: usize) {
    // SAFETY: every space maps Rust's memory to itself.
    unsafe { csr::satp::write(SATP[which].load(SeqCst)) };
}

/// Runs `check` while every other hart does `turn` over and over, in the space given first.
fn beside_others(spaces: [Space; 2], turn: fn(), check: impl FnOnce() -> Check) -> Check {
    static TURN: spin::Mutex<fn()> = spin::Mutex::new(|| ());
    fn others(_: u64) {
        let turn = *TURN.lock();
        switch(0);
        fence::sfence_all();
        READY.fetch_add(1, SeqCst);
        while IS_OVER.load(SeqCst) == 0 {
            turn();
            TURNS.fetch_add(1, SeqCst);
        }
        paging::leave();
    }
    *TURN.lock() = turn;
    SATP.iter().zip(spaces).for_each(|(to, space)| to.store(space.satp(), SeqCst));
    [&IS_OVER, &READY, &WRONG, &TURNS].into_iter().for_each(|counter| counter.store(0, SeqCst));
    spaces[0].enter();
    board().other_harts().try_for_each(|other| hart::start(other, others, 0))?;
    let all = board().hart_count as u64 - 1;
    let are_ready = hart::wait_for(hart::PATIENCE_MS, || READY.load(SeqCst) == all);
    let outcome = check();
    IS_OVER.store(1, SeqCst);
    board().other_harts().try_for_each(hart::join)?;
    ensure!(are_ready, "the other harts do not start");
    outcome?;
    let [found, wanted] = EXAMPLE.each_ref().map(|value| value.load(SeqCst));
    ensure_eq!(WRONG.load(SeqCst), 0, "wrong looks; at one, {found:#x} where {wanted:#x} was wanted");
    ensure!(TURNS.load(SeqCst) >= all, "the other harts have done nothing");
    Ok(())
}

/// Lets the others do some turns, wherever they are.
fn let_others_work() -> Check {
    let before = TURNS.load(SeqCst);
    let wanted = before + 2 * (board().hart_count as u64 - 1);
    ensure!(hart::wait_for(hart::PATIENCE_MS, || TURNS.load(SeqCst) >= wanted), "the other harts stand still");
    Ok(())
}

/// The newest number whose fence has returned. The number that a look finds must be no older.
static PUBLISHED: AtomicU64 = AtomicU64::new(0);

/// Pages that the edited entry shows in turn; each is told its number before it is mapped.
const SHOWN: usize = 16;

fn publish(space: &Space, pages: &[&'static Page], number: u64, fence: &Fence) {
    let page = pages[number as usize % SHOWN];
    page.0[0].store(number, SeqCst);
    space.slot(TEST_VA, Level::PAGE).store(leaf(page.address(), RW), SeqCst);
    fence.make(TEST_VA, ASID);
    PUBLISHED.store(number, SeqCst);
}

fn look() {
    let least = PUBLISHED.load(SeqCst);
    let found = access::peek(TEST_VA);
    if found < least {
        wrong(found, least);
    }
}

/// The rounds of a check in a format: all of them in the first. The wider ones have other walks, but the same races, and make do with a
/// third.
fn rounds(format: &Format, all: u64) -> u64 {
    if format.levels == 3 { all } else { all / 3 }
}

/// Frames change under harts that read through them without a pause.
pub fn hammer(format: &'static Format) -> Check {
    let (space, pages) = (Space::new(format, ASID), [(); SHOWN].map(|()| marked(0)));
    PUBLISHED.store(0, SeqCst);
    space.map(TEST_VA, pages[0].address(), RW);
    beside_others([space, space], look, || {
        let mut number = 0;
        for fence in fences::remotes() {
            for _ in 0..rounds(format, 12) {
                number += 1;
                publish(&space, &pages, number, &fence);
            }
            let_others_work()?;
        }
        Ok(())
    })
}

/// Harts that are in another space when the first one's tables change come back to what is new.
pub fn elsewhere(format: &'static Format) -> Check {
    fn turn() {
        look();
        switch(1);
        if access::peek(TEST_VA) != 7 {
            wrong(access::peek(TEST_VA), 7);
        }
        let before = PUBLISHED.load(SeqCst);
        // Stay until something has changed, but not for ever.
        for _ in 0..2000 {
            if PUBLISHED.load(SeqCst) != before {
                break;
            }
            core::hint::spin_loop();
        }
        switch(0);
    }
    let (space, other) = (Space::new(format, ASID), Space::new(format, OTHER_ASID));
    let pages = [(); SHOWN].map(|()| marked(0));
    PUBLISHED.store(0, SeqCst);
    space.map(TEST_VA, pages[0].address(), RW);
    other.map(TEST_VA, marked(7).address(), RW);
    beside_others([space, other], turn, || {
        let mut number = 0;
        for fence in fences::remotes() {
            for _ in 0..rounds(format, 9) {
                number += 1;
                publish(&space, &pages, number, &fence);
                // The editor, too, moves about.
                if number % 3 == 0 {
                    other.switch();
                    space.switch();
                }
            }
            let_others_work()?;
        }
        Ok(())
    })
}

/// The words to which the other harts store without a pause: each its own, ever growing.
fn store() {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let at = TEST_VA + 8 * hart::id();
    let trap: Result<(), Trap> = access::sd(at, COUNT.fetch_add(1, Relaxed));
    if let Err(trap) = trap
        && (trap.cause != STORE_PAGE || trap.tval != at)
    {
        wrong(trap.cause << 56 | trap.tval, STORE_PAGE << 56 | at);
    }
}

/// After rights were taken away and the fence has returned, no store gets through any more: as
/// copy-on-write and the freeing of pages need it.
pub fn write_protect(format: &'static Format) -> Check {
    let (space, frames) = (Space::new(format, ASID), ram::pages(2));
    let slot = space.slot(TEST_VA, Level::PAGE);
    let words = |frame: &'static Page| frame.0[..hart::MAX].iter().map(|word| word.load(SeqCst));
    space.map(TEST_VA, frames[0].address(), RW);
    beside_others([space, space], store, || {
        for (first, fence) in (0..).zip(fences::remotes()) {
            for round in first..first + rounds(format, 3) {
                let frame = &frames[round as usize % 2];
                slot.store(leaf(frame.address(), RW), SeqCst);
                fence.make(TEST_VA, ASID);
                let_others_work()?;
                ensure!(words(frame).any(|word| word != 0), "no store arrives");
                let (entry, what) = match round % 3 {
                    0 => (leaf(frame.address(), RO), "read-only"),
                    1 => (0, "unmapped"),
                    _ => (leaf(frames[(round as usize + 1) % 2].address(), RW), "elsewhere"),
                };
                slot.store(entry, SeqCst);
                fence.make(TEST_VA, ASID);
                // The frame is unowned now: as if it was freed.
                frame.0.iter().for_each(|word| word.store(0, SeqCst));
                let_others_work()?;
                ensure!(words(frame).all(|word| word == 0), "a store arrives in a page made {what}, {}", fence.name);
                if entry == 0 {
                    let found = access::ld(TEST_VA).map_err(|trap| trap.cause);
                    ensure_eq!(found, Err(LOAD_PAGE), "the page unmapped, on the hart that did it");
                }
            }
        }
        Ok(())
    })
}
