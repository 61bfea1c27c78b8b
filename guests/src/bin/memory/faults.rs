//! All harts at once touch memory for the first time, fence by address, map again, and make copies on write, each by tables of its
//! own: what one of these costs, in ticks of all harts together. Under QEMU's `-icount` every instruction advances `time`, whichever
//! hart executes it: so the figures show what harts do only because others do the same.
//!
//! A hart that is done before others sleeps.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use guests::paging::{self, Page, RO, RW, Space, TEST_VA, leaf, pointer};
use guests::{Check, access, board, console, ensure, ensure_eq, hart, run, sbi, trap};
use rv::format::SV39;
use rv::{Exception, Interrupt, Level, PAGE_BYTES};

guests::entry_point!(main);

/// Pages of a table, and the bytes that they map.
const PAGES: u64 = 512;
const MEGA: u64 = PAGES * PAGE_BYTES;
/// Blocks of 2 MiB that each hart touches alone. Its pages change from one to the other.
const BLOCKS: u64 = 2;
/// Rounds through all pages.
const ROUNDS: u64 = 4;
/// The ASID of a child is its parent's and so many.
const CHILD: u64 = 32;

/// A phase: an action of all harts at once.
#[derive(Clone, Copy)]
enum Phase {
    /// First touches, each hart of 2 MiB of its own.
    Apart,
    /// First touches of pages side by side.
    Together,
    /// Fences of entries that are as they were.
    Fence,
    /// Pages are unmapped, and mapped to other frames: two fences and a load each.
    Remap,
    /// A table is copied without the right to write; then each page is stored to, and gets a frame of its own.
    Fork,
}

/// The figures: ticks, and how many such things all harts did in them, of which each hart did so many.
const FIGURES: [(&str, &str, u64); 5] = [
    ("apart", "apart_count", BLOCKS * PAGES),
    ("together", "together_count", PAGES),
    ("fence", "fence_count", ROUNDS * PAGES),
    ("remap", "remap_count", ROUNDS * PAGES),
    ("fork", "fork_count", ROUNDS * PAGES),
];

/// The progress of all harts in a phase.
struct Progress {
    arrived: AtomicU64,
    begun: AtomicU64,
    done: AtomicU64,
    /// Ticks that it took, and one.
    took: AtomicU64,
}

static PROGRESS: [Progress; FIGURES.len()] = [const {
    Progress { arrived: AtomicU64::new(0), begun: AtomicU64::new(0), done: AtomicU64::new(0), took: AtomicU64::new(0) }
}; FIGURES.len()];

fn main() {
    run("faults/all-at-once", || {
        hart::everywhere(work)?;
        for ((ticks, count, each), progress) in FIGURES.iter().zip(&PROGRESS) {
            console::figure(ticks, progress.took.load(Relaxed) - 1);
            console::figure(count, each * harts());
        }
        Ok(())
    });
}

fn harts() -> u64 {
    board().hart_count as u64
}

/// Does `act` on all harts at once, and measures how long it is until the last one is done.
fn at_once(phase: Phase, act: impl FnOnce() -> Check) -> Check {
    let progress = &PROGRESS[phase as usize];
    if progress.arrived.fetch_add(1, SeqCst) + 1 == harts() {
        progress.begun.store(metal::time(), SeqCst);
    }
    while progress.begun.load(SeqCst) == 0 {
        core::hint::spin_loop();
    }
    let outcome = act();
    if progress.done.fetch_add(1, SeqCst) + 1 == harts() {
        progress.took.store(metal::time() - progress.begun.load(SeqCst) + 1, SeqCst);
        board().other_harts().for_each(|other| _ = sbi::send_ipi(1, other));
        return outcome;
    }
    trap::enable(Interrupt::SSoft.bit());
    let is_over = hart::sleep_until(|| progress.took.load(SeqCst) != 0);
    trap::disable(Interrupt::SSoft.bit());
    trap::clear_ipi();
    ensure!(is_over, "other harts are not done");
    outcome
}

/// An address space whose pages at [`TEST_VA`] are of one table.
struct Tables {
    space: Space,
    asid: u64,
    leaves: &'static Page,
}

impl Tables {
    fn new(asid: u64) -> Self {
        let (space, leaves) = (Space::new(&SV39, asid), paging::page());
        space.slot(TEST_VA, Level::MEGA).store(pointer(leaves.address()), Relaxed);
        Self { space, asid, leaves }
    }

    fn slot(&self, page: u64) -> &AtomicU64 {
        &self.leaves.0[page as usize]
    }

    fn set(&self, page: u64, entry: u64) {
        self.slot(page).store(entry, Relaxed);
        paging::fence_page_asid(address(page), self.asid);
    }
}

fn address(page: u64) -> u64 {
    TEST_VA + page * PAGE_BYTES
}

/// The frame of a page on a side, in the blocks from `own` on.
fn frame(own: u64, page: u64, side: u64) -> u64 {
    own + side % BLOCKS * MEGA + page * PAGE_BYTES
}

/// The work of each hart.
fn work() -> Check {
    let me = hart::id();
    let (from, to) = board().largest_free();
    let first = from.next_multiple_of(MEGA);
    let (own, shared) = (first + me * BLOCKS * MEGA, first + harts() * BLOCKS * MEGA);
    ensure!(shared + harts() * MEGA <= to, "not enough RAM: {} bytes", board().ram_bytes);
    let (parent, child) = (Tables::new(1 + me), Tables::new(1 + me + CHILD));
    parent.space.enter();
    let mut outcome = at_once(Phase::Apart, || touch(own, PAGE_BYTES, BLOCKS * PAGES));
    let together = || touch(shared + me * PAGE_BYTES, harts() * PAGE_BYTES, PAGES);
    outcome = outcome.and(at_once(Phase::Together, together));
    for page in 0..PAGES {
        parent.set(page, leaf(frame(own, page, 0), RW));
        core::hint::black_box(access::peek(address(page)));
    }
    let fences = || {
        (0..ROUNDS).flat_map(|_| 0..PAGES).for_each(|page| paging::fence_page_asid(address(page), parent.asid));
        Ok(())
    };
    outcome = outcome.and(at_once(Phase::Fence, fences));
    let each = |act: &dyn Fn(u64) -> Check| (1..=ROUNDS).try_for_each(act);
    outcome = outcome.and(at_once(Phase::Remap, || each(&|round| remap(&parent, own, round))));
    outcome = outcome.and(at_once(Phase::Fork, || each(&|round| fork(&parent, &child, own, round))));
    paging::leave();
    outcome
}

/// First touches of so many pages.
fn touch(from: u64, step: u64, count: u64) -> Check {
    let pages = (0..count).map(|page| from + page * step);
    for at in pages.clone() {
        access::poke(at, at);
    }
    pages.clone().try_for_each(|at| {
        ensure_eq!(access::peek(at), at, "what was stored at {at:#x}");
        Ok(())
    })
}

/// Each page gets its frame on the other side.
fn remap(tables: &Tables, own: u64, round: u64) -> Check {
    for page in 0..PAGES {
        let to = frame(own, page, round);
        tables.set(page, 0);
        tables.set(page, leaf(to, RW));
        ensure_eq!(access::peek(address(page)), to, "page {page}");
    }
    Ok(())
}

/// A child gets all pages, and its parent copies those that it stores to.
fn fork(parent: &Tables, child: &Tables, own: u64, round: u64) -> Check {
    for page in 0..PAGES {
        let shared = leaf(frame(own, page, round - 1), RO);
        child.slot(page).store(shared, Relaxed);
        parent.slot(page).store(shared, Relaxed);
    }
    paging::fence_asid(parent.asid);
    paging::fence_asid(child.asid);
    for page in 0..PAGES {
        let (at, copy) = (address(page), frame(own, page, round));
        let value = round << 32 | page;
        let Err(trap) = access::sd(at, value) else { guests::fail!("page {page} can be written") };
        ensure_eq!(trap.cause, Exception::StorePage.code(), "cause");
        access::poke(copy, access::peek(at));
        parent.set(page, leaf(copy, RW));
        ensure!(access::sd(at, value).is_ok(), "page {page} cannot be written");
    }
    child.space.switch();
    let of_child = (0..PAGES).try_for_each(|page| {
        let value = access::peek(address(page));
        let was = if round == 1 { frame(own, page, 0) } else { (round - 1) << 32 | page };
        ensure_eq!(value, was, "page {page} of the child");
        Ok(())
    });
    parent.space.switch();
    of_child
}
