//! The A and D bits of entries, as the device tree promises them: under Svade an access that finds its bit
//! clear faults and changes nothing; under Svadu it sets the bit and nothing else. In both, a bit that
//! was cleared is missed again after a fence, by every hart that the fence reached.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use guests::expect::{FETCH_PAGE, LOAD_PAGE, STORE_PAGE};
use guests::fences::{self, Fence};
use guests::paging::{self, AD, AdBits, Page, RO, RW, RWX, Space, TEST_VA, leaf};
use guests::sbi::{ALL_HARTS, SUCCESS, remote_fence};
use guests::trap::Trap;
use guests::{Check, Text, access, board, ensure, ensure_eq, hart, ram, run};
use metal::fence;
use rv::{Format, Level, PteFlags};
use sbi_spec::rfnc::REMOTE_SFENCE_VMA;

guests::entry_point!(main);

const PAGE: u64 = rv::PAGE_BYTES;
const ASID: u64 = 41;
const A: u64 = PteFlags::A.bits();
const D: u64 = PteFlags::D.bits();

/// A check in one address space.
type InWorld = fn(&World) -> Check;

fn main() {
    run("adbits/promise", promise);
    for format in Space::formats() {
        let world = World::new(format);
        let checks: [(&str, InWorld); 4] = [
            ("cleared", |world| cleared(world, Level::PAGE)),
            ("cleared-in-superpages", |world| cleared(world, Level::MEGA)),
            ("failed-accesses", failed_accesses),
            ("aging", aging),
        ];
        for (name, check) in checks {
            world.run(name, check);
        }
        // Waiting for others takes long, so the wider formats do without.
        if board().hart_count > 1 && format.levels == 3 {
            world.run("cleared-for-all-harts", cleared_for_all_harts);
            world.run("beside-software", beside_software);
        }
    }
}

/// The device tree's promise: if it names Svade or Svadu, an access behaves accordingly.
fn promise() -> Check {
    let is_named = board().has("svade") || board().has("svadu");
    let found = AdBits::probe();
    ensure!(!is_named || found == AdBits::of_this_machine(), "the machine does as with {found:?}, {}", board().isa);
    Ok(())
}

/// An address space, and a superpage of RAM of which each page begins with `ret`.
struct World {
    space: Space,
    pages: &'static [Page],
    ad: AdBits,
}

impl World {
    fn new(format: &'static Format) -> Self {
        static PAGES: spin::Once<&'static [Page]> = spin::Once::new();
        let pages = *PAGES.call_once(|| ram::pages(512));
        pages.iter().for_each(|page| page.0[0].store(0x8067, Relaxed));
        fence::instruction();
        Self { space: Space::new(format, ASID), pages, ad: AdBits::of_this_machine() }
    }

    fn run(&self, name: &str, check: InWorld) {
        let name = Text::of(format_args!("adbits/{}-{name}", self.space.format().name));
        run(name.as_str(), || {
            self.space.enter();
            let outcome = check(self);
            paging::leave();
            outcome
        });
    }

    /// The access at `at`, where `needed` of the entry's bits are or were missing: it must set them, or
    /// fault with the cause and leave the entry alone; in which case they are set here.
    fn ensure_missed(
        &self,
        slot: &AtomicU64,
        at: u64,
        cause: u64,
        needed: u64,
        fence: &Fence,
        access: fn(u64) -> Result<(), Trap>,
    ) -> Check {
        let before = slot.load(Relaxed);
        let is_missing = before & needed != needed;
        let found = access(at).map_err(|trap| (trap.cause, trap.tval));
        if self.ad == AdBits::Software && is_missing {
            ensure_eq!(found, Err((cause, at)), "entry {before:#x}, {}", fence.name);
            ensure_eq!(slot.load(Relaxed), before, "the entry after a fault");
            slot.fetch_or(needed, Relaxed);
            paging::fence_page(at);
            ensure_eq!(access(at), Ok(()), "the access again");
        } else {
            ensure_eq!(found, Ok(()), "entry {before:#x}, {}", fence.name);
        }
        ensure_eq!(slot.load(Relaxed), before | needed, "the entry after the access, before {before:#x}");
        Ok(())
    }
}

fn load(at: u64) -> Result<(), Trap> {
    access::ld(at + 8).map(drop).map_err(|trap| Trap { tval: trap.tval - 8, ..trap })
}

fn store(at: u64) -> Result<(), Trap> {
    access::sd(at + 8, 1).map_err(|trap| Trap { tval: trap.tval - 8, ..trap })
}

fn add(at: u64) -> Result<(), Trap> {
    access::amoadd(at + 8, 1).map(drop).map_err(|trap| Trap { tval: trap.tval - 8, ..trap })
}

fn fetch(at: u64) -> Result<(), Trap> {
    access::call(at, 0).map(drop)
}

/// A or D is cleared on an entry in use, followed by each kind of fence.
fn cleared(world: &World, level: Level) -> Check {
    let at = TEST_VA + 5 * level.bytes();
    let slot = world.space.slot(at, level);
    let full = leaf(world.pages[0].address(), RWX);
    slot.store(full, Relaxed);
    fence::sfence_all();
    for fence in fences::all() {
        for (access, cause, needed) in [
            (load as fn(u64) -> Result<(), Trap>, LOAD_PAGE, A),
            (store, STORE_PAGE, A | D),
            (add, STORE_PAGE, A | D),
            (fetch, FETCH_PAGE, A),
        ] {
            for cleared in [A, D, A | D, 0] {
                // In use with all rights, and then without.
                slot.store(full, Relaxed);
                fence.make(at, ASID);
                ensure_eq!((store(at), fetch(at)), (Ok(()), Ok(())), "with A and D");
                slot.fetch_and(!cleared, Relaxed);
                fence.make(at, ASID);
                world.ensure_missed(slot, at, cause, needed, &fence, access)?;
                // D alone never comes from a load or a fetch; a store still misses it.
                world.ensure_missed(slot, at, STORE_PAGE, A | D, &fence, store)?;
            }
        }
    }
    slot.store(0, Relaxed);
    fence::sfence_all();
    Ok(())
}

/// Accesses that fail set no D.
fn failed_accesses(world: &World) -> Check {
    let at = TEST_VA;
    let slot = world.space.slot(at, Level::PAGE);
    let frame = world.pages[1].address();
    for (flags, access, cause) in [
        (RO - AD, store as fn(u64) -> Result<(), Trap>, STORE_PAGE),
        (RO - PteFlags::D, store, STORE_PAGE),
        (RO - AD, add, STORE_PAGE),
        (RW - AD, fetch, FETCH_PAGE),
        ((RW - AD) | PteFlags::U, store, STORE_PAGE),
        (paging::XO - AD, load, LOAD_PAGE),
    ] {
        let entry = leaf(frame, flags);
        slot.store(entry, Relaxed);
        fence::sfence_all();
        for _ in 0..2 {
            let found = access(at).map_err(|trap| trap.cause);
            ensure_eq!(found, Err(cause), "entry {entry:#x}");
            // A may be set speculatively by hardware that sets it at all.
            let ignored = if world.ad == AdBits::Hardware { A } else { 0 };
            ensure_eq!(slot.load(Relaxed) | ignored, entry | ignored, "the entry");
        }
    }
    slot.store(0, Relaxed);
    Ok(())
}

/// A kernel's search for pages in use: it clears the bits of many, and later looks which came back. They are those of
/// the pages that were used, and no others.
fn aging(world: &World) -> Check {
    const PAGES: u64 = 128;
    let slot = |page: u64| world.space.slot(TEST_VA + page * PAGE, Level::PAGE);
    for fence in fences::wide() {
        for page in 0..PAGES {
            slot(page).store(leaf(world.pages[page as usize].address(), RW), Relaxed);
        }
        fence.make(TEST_VA, ASID);
        (0..PAGES).try_for_each(|page| store(TEST_VA + page * PAGE)).expect("mapped with all rights");
        for page in 0..PAGES {
            slot(page).fetch_and(!(A | D), Relaxed);
        }
        fence.make(TEST_VA, ASID);
        let is_loaded = |page: u64| page % 3 == 1;
        let is_stored = |page: u64| page % 5 == 2;
        for page in 0..PAGES {
            let at = TEST_VA + page * PAGE;
            for (is_used, cause, needed, access) in
                [(is_loaded(page), LOAD_PAGE, A, load as fn(u64) -> _), (is_stored(page), STORE_PAGE, A | D, store)]
            {
                if is_used {
                    world.ensure_missed(slot(page), at, cause, needed, &fence, access)?;
                }
            }
        }
        for page in 0..PAGES {
            let wanted = if is_stored(page) { A | D } else { u64::from(is_loaded(page)) * A };
            ensure_eq!(slot(page).load(Relaxed) & (A | D), wanted, "A and D of page {page}, {}", fence.name);
        }
    }
    Ok(())
}

/// The next turn of the other harts, as a number; 0 ends them.
static TURN: AtomicU64 = AtomicU64::new(0);
/// The number of harts that have done the turn.
static DONE: AtomicU64 = AtomicU64::new(0);
/// The cause of the trap that each met, or 0.
static FOUND: [AtomicU64; hart::MAX] = [const { AtomicU64::new(0) }; hart::MAX];
static SATP: AtomicU64 = AtomicU64::new(0);

/// Runs `check` while `job` runs on all other harts, in the world's space.
fn beside(world: &World, job: fn(u64), check: impl FnOnce() -> Check) -> Check {
    SATP.store(world.space.satp(), SeqCst);
    TURN.store(u64::MAX, SeqCst);
    board().other_harts().try_for_each(|other| hart::start(other, job, 0))?;
    let outcome = check();
    TURN.store(0, SeqCst);
    board().other_harts().try_for_each(hart::join)?;
    outcome
}

#[expect(unsafe_code, reason = "satp")]
fn enter_shared_space() {
    // SAFETY: every space maps Rust's memory to itself.
    unsafe { metal::csr::satp::write(SATP.load(SeqCst)) };
    fence::sfence_all();
}

/// Bits that one hart clears and fences are missed by the others.
fn cleared_for_all_harts(world: &World) -> Check {
    /// Loads in odd turns, stores in even ones.
    fn others(_: u64) {
        enter_shared_space();
        let mut next = 1;
        loop {
            match TURN.load(SeqCst) {
                0 => break,
                turn if turn == next => {
                    let found = if turn % 2 == 1 { load(TEST_VA) } else { store(TEST_VA) };
                    FOUND[hart::id() as usize].store(found.map_or_else(|trap| trap.cause, |()| 0), SeqCst);
                    next += 1;
                    DONE.fetch_add(1, SeqCst);
                }
                _ => core::hint::spin_loop(),
            }
        }
        paging::leave();
    }
    let slot = world.space.slot(TEST_VA, Level::PAGE);
    let full = leaf(world.pages[2].address(), RW);
    slot.store(full, Relaxed);
    let mut turn = 0;
    let mut all_do = |cause: u64, what: &str| {
        turn += 1;
        DONE.store(0, SeqCst);
        TURN.store(turn, SeqCst);
        let all = board().hart_count as u64 - 1;
        ensure!(hart::wait_for(hart::PATIENCE_MS, || DONE.load(SeqCst) == all), "the other harts do not answer");
        for other in board().other_harts() {
            ensure_eq!(FOUND[other as usize].load(SeqCst), cause, "cause on hart {other}, {what}");
        }
        Ok(())
    };
    beside(world, others, || {
        for fence in fences::remotes() {
            let is_hardware = world.ad == AdBits::Hardware;
            let faults = |cause| if is_hardware { 0 } else { cause };
            let ensure_entry = |by_hardware: u64, otherwise: u64| {
                let wanted = full & !(A | D) | if is_hardware { by_hardware } else { otherwise };
                ensure_eq!(slot.load(SeqCst), wanted, "the entry, {}", fence.name);
                Ok(())
            };
            let set = |bits: u64| {
                slot.store(full & !(A | D) | bits, SeqCst);
                fence.make(TEST_VA, ASID);
            };
            set(A | D);
            all_do(0, "loading with A and D")?;
            all_do(0, "storing with A and D")?;
            set(A);
            all_do(0, "loading with A alone")?;
            ensure_entry(A, A)?;
            all_do(faults(STORE_PAGE), "storing with A alone")?;
            ensure_entry(A | D, A)?;
            set(0);
            all_do(faults(LOAD_PAGE), "loading with neither")?;
            ensure_entry(A, 0)?;
            all_do(faults(STORE_PAGE), "storing with neither")?;
            ensure_entry(A | D, 0)?;
        }
        Ok(())
    })
}

/// While one hart changes other bits of an entry, and clears A and D, the others use it: no change of
/// software's is lost to hardware's.
fn beside_software(world: &World) -> Check {
    const ROUNDS: u64 = 1000;
    fn others(_: u64) {
        enter_shared_space();
        while TURN.load(SeqCst) != 0 {
            // Under Svade most of these fault.
            let _ = load(TEST_VA);
            let _ = store(TEST_VA);
        }
        paging::leave();
    }
    let slot = world.space.slot(TEST_VA, Level::PAGE);
    let first = leaf(world.pages[3].address(), RW);
    slot.store(first, Relaxed);
    let mut wanted = first & !(A | D);
    beside(world, others, || {
        for round in 0..ROUNDS {
            let flip = (1 + round % 3) * PteFlags::RSW0.bits();
            let before = slot.fetch_xor(flip, SeqCst);
            ensure_eq!(before & !(A | D), wanted, "all bits but A and D in round {round}");
            wanted ^= flip;
            let before = slot.fetch_and(!(A | D), SeqCst);
            ensure_eq!(before & !(A | D), wanted, "all bits but A and D in round {round}");
            if round % 16 != 0 {
                continue;
            }
            let error = remote_fence(REMOTE_SFENCE_VMA, 0, ALL_HARTS, TEST_VA, PAGE, 0);
            ensure_eq!(error, SUCCESS, "a fence of all harts");
            let is_used = || slot.load(SeqCst) & (A | D) == A | D;
            match world.ad {
                AdBits::Hardware => ensure!(hart::wait_for(hart::PATIENCE_MS, is_used), "A and D do not come back"),
                AdBits::Software => ensure!(!is_used(), "A and D come back by themselves"),
            }
        }
        Ok(())
    })
}
