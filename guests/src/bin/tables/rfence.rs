//! Fences: after one, no hart it covers uses what stood in the tables (or the code) before.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use guests::paging::{self, Page, RO, RW, RWX, Space, TEST_VA, leaf, page};
use guests::sbi::{ALL_HARTS, SUCCESS, remote_fence};
use guests::trap::{disable, enable, pending};
use guests::{Check, Named, access, board, ensure, ensure_eq, hart, run, sbi};
use metal::{csr, fence};
use rv::Interrupt::STimer;
use rv::csr::atp;
use rv::{Format, Level, PteFlags};
use sbi_spec::rfnc::{REMOTE_FENCE_I, REMOTE_SFENCE_VMA, REMOTE_SFENCE_VMA_ASID};

guests::entry_point!(main);

const ASID: u64 = 5;
const PAGE: u64 = rv::PAGE_BYTES;

fn main() {
    for format in Space::formats() {
        let test = Test::new(format);
        let run = |name: &str, check: &dyn Fn(&Test) -> Check| {
            let name = guests::Text::of(format_args!("rfence/{}-{name}", test.format.name));
            run(name.as_str(), || {
                test.space.enter();
                let outcome = check(&test);
                paging::leave();
                outcome
            });
        };
        run("local", &local);
        run("asids", &asids);
        run("global-pages", &global_pages);
        run("split", &split);
        // Each call costs a round trip to every hart, so the wider formats make do with two kinds.
        let is_first = test.format.levels == 3;
        for (name, how) in REMOTE.into_iter().filter(|(name, _)| is_first || name.ends_with("-page")) {
            run(name, &|test| remote(test, how));
        }
        run("remote-permissions", &remote_permissions);
        run("own-asid-on-every-hart", &own_tables_on_every_hart);
        run("between-roots", &between_roots);
    }
    run("rfence/fence-i", fence_i);
    run("rfence/bad-function", bad_function);
    if board().hart_count > 1 {
        run("rfence/crossfire", crossfire);
        if sbi::is_gnomon() {
            run("rfence/while-stopping", while_stopping);
        }
    }
}

/// An address space with a test page, and two pages that it can show.
struct Test {
    format: &'static Format,
    space: Space,
    pages: [&'static Page; 2],
}

impl Test {
    fn new(format: &'static Format) -> Self {
        let pages = [page(), page()];
        for (value, page) in pages.iter().enumerate() {
            page.0[0].store(1000 + value as u64, Relaxed);
        }
        Self { format, space: Space::new(format, ASID), pages }
    }

    /// Makes the test address show one of the pages. No fence.
    fn show(&self, at: u64, which: u64) {
        self.space.map(at, self.pages[which as usize % 2].address(), RW);
    }
}

fn ensure_shows(at: u64, which: u64, how: &str) -> Check {
    ensure_eq!(access::ld(at), Ok(1000 + which % 2), "{at:#x} after {how}");
    Ok(())
}

fn local(test: &Test) -> Check {
    let fences: [Named<fn(u64)>; 4] = [
        ("sfence.vma", |_| fence::sfence_all()),
        ("sfence.vma va", paging::fence_page),
        ("sfence.vma asid", |_| paging::fence_asid(ASID)),
        ("sfence.vma va, asid", |at| paging::fence_page_asid(at, ASID)),
    ];
    for (how, fence) in fences {
        for round in 0..20 {
            test.show(TEST_VA, round);
            fence(TEST_VA);
            ensure_shows(TEST_VA, round, how)?;
            // Gone, and back: a fault that was remembered would show.
            test.space.slot(TEST_VA, Level::PAGE).store(0, Relaxed);
            fence(TEST_VA);
            let gone = access::ld(TEST_VA);
            ensure!(gone.is_err_and(|t| t.cause == 13 && t.tval == TEST_VA), "unmapped by {how}: {gone:x?}");
        }
    }
    Ok(())
}

/// Two spaces that differ at one address, switched without fences.
fn asids(test: &Test) -> Check {
    // ASIDLEN: the bits that stick.
    let wanted = test.space.satp() | 0xffff << atp::ID_SHIFT;
    // Through the runtime's own space: everything stays mapped.
    #[expect(unsafe_code, reason = "satp")]
    // SAFETY: the same tables.
    let bits = unsafe {
        csr::satp::write(wanted);
        csr::satp::read() >> atp::ID_SHIFT & 0xffff
    };
    test.space.enter();
    ensure!(bits & (bits + 1) == 0, "ASID bits {bits:#x}");
    if bits < 8 {
        return Ok(()); // too few ASIDs to tell spaces apart
    }
    let spaces = [6, 7].map(|asid| Space::new(test.format, asid));
    for (space, page) in spaces.iter().zip(test.pages) {
        space.map(TEST_VA, page.address(), RW);
        space.enter();
    }
    for round in 0..50 {
        spaces[round % 2].switch();
        ensure_shows(TEST_VA, round as u64, "a switch of ASIDs")?;
    }
    // A fence of one ASID is enough for its space, and does not disturb the other.
    spaces[0].map(TEST_VA, test.pages[1].address(), RW);
    paging::fence_asid(6);
    spaces[0].switch();
    ensure_shows(TEST_VA, 1, "a fence of an ASID that was not current")?;
    spaces[1].map(TEST_VA, test.pages[0].address(), RW);
    paging::fence_page_asid(TEST_VA, 7);
    spaces[1].switch();
    ensure_shows(TEST_VA, 0, "a fence of a page of an ASID that was not current")
}

/// A global page is the same in every ASID; a fence without ASID reaches it.
fn global_pages(test: &Test) -> Check {
    let at = TEST_VA + 16 * PAGE;
    let spaces = [8, 9].map(|asid| Space::new(test.format, asid));
    for round in 0..10 {
        for space in &spaces {
            space.slot(at, Level::PAGE).store(leaf(test.pages[round % 2].address(), RW | PteFlags::G), Relaxed);
        }
        paging::fence_page(at);
        for space in &spaces {
            space.switch();
            ensure_shows(at, round as u64, "a fence of a global page")?;
        }
    }
    Ok(())
}

/// A 2 MiB leaf becomes a table, and a leaf again.
fn split(test: &Test) -> Check {
    const BLOCK: u64 = 2 << 20;
    let (from, _) = board().largest_free();
    let (block, at) = (from.next_multiple_of(BLOCK), TEST_VA + (1 << 30));
    let (first, last) = (at, at + BLOCK - PAGE);
    access::poke(block, 1);
    access::poke(block + BLOCK - PAGE, 2);
    let entry = test.space.slot(at, Level::MEGA);
    for _ in 0..5 {
        entry.store(leaf(block, RW), Relaxed);
        fence::sfence_all();
        ensure_eq!((access::ld(first), access::ld(last)), (Ok(1), Ok(2)), "as one leaf");
        entry.store(0, Relaxed);
        test.space.map(first, block + BLOCK - PAGE, RW);
        test.space.map(last, block, RW);
        fence::sfence_all();
        ensure_eq!((access::ld(first), access::ld(last)), (Ok(2), Ok(1)), "as a table");
    }
    access::poke(block, 0);
    access::poke(block + BLOCK - PAGE, 0);
    Ok(())
}

/// A remote fence: the function, then start, size and ASID.
type How = (usize, u64, u64, u64);

const REMOTE: [(&str, How); 7] = [
    ("remote-all", (REMOTE_SFENCE_VMA, 0, 0, 0)),
    ("remote-all-by-size", (REMOTE_SFENCE_VMA, 0, u64::MAX, 0)),
    ("remote-page", (REMOTE_SFENCE_VMA, TEST_VA, PAGE, 0)),
    ("remote-range", (REMOTE_SFENCE_VMA, TEST_VA - 64 * PAGE, 128 * PAGE, 0)),
    ("remote-asid", (REMOTE_SFENCE_VMA_ASID, 0, 0, ASID)),
    ("remote-asid-page", (REMOTE_SFENCE_VMA_ASID, TEST_VA, PAGE, ASID)),
    ("remote-asid-range", (REMOTE_SFENCE_VMA_ASID, TEST_VA - 1000 * PAGE, 2000 * PAGE, ASID)),
];

/// `satp` for watchers.
static WATCH_SATP: AtomicU64 = AtomicU64::new(0);
/// The watchers' turn, as a sequence number; 0 ends them.
static TURN: AtomicU64 = AtomicU64::new(0);
/// The number of watchers that have done their turn.
static DONE: AtomicU64 = AtomicU64::new(0);
/// The watchers' job in each turn.
static WORK: AtomicU64 = AtomicU64::new(LOAD);
/// The finding of each watcher.
static FOUND: [AtomicU64; hart::MAX] = [const { AtomicU64::new(0) }; hart::MAX];

const LOAD: u64 = 0;
const STORE: u64 = 1;
const CALL: u64 = 2;

/// A watcher keeps translations warm and reports, in each turn, what it finds. It makes no calls, so that only the
/// fence can have told it of a change.
#[expect(unsafe_code, reason = "satp")]
fn watch(code: u64) {
    let satp = WATCH_SATP.load(SeqCst);
    // SAFETY: every space maps Rust's memory to itself.
    unsafe { csr::satp::write(satp) };
    fence::sfence_all();
    let mut turn = 1;
    DONE.fetch_add(1, SeqCst);
    loop {
        let now = TURN.load(SeqCst);
        if now == 0 {
            break;
        }
        if now != turn {
            core::hint::spin_loop();
            continue;
        }
        let found = match WORK.load(SeqCst) {
            STORE => access::sd(TEST_VA + 8, turn).map(|()| 0),
            CALL => access::call(code, 0),
            _ => access::ld(TEST_VA),
        };
        FOUND[hart::id() as usize].store(found.unwrap_or_else(|trap| trap.cause), SeqCst);
        turn += 1;
        DONE.fetch_add(1, SeqCst);
    }
    paging::leave();
}

/// Runs `check` with a watcher on every other hart.
fn with_watchers(satp: u64, code: u64, check: impl FnOnce() -> Check) -> Check {
    WATCH_SATP.store(satp, SeqCst);
    DONE.store(0, SeqCst);
    TURN.store(u64::MAX, SeqCst);
    board().other_harts().try_for_each(|other| hart::start(other, watch, code))?;
    let outcome = all_done().and_then(|()| check());
    TURN.store(0, SeqCst);
    board().other_harts().try_for_each(hart::join)?;
    outcome
}

fn all_done() -> Check {
    let all = board().hart_count as u64 - 1;
    let in_time = hart::wait_for(hart::PATIENCE_MS, || DONE.load(SeqCst) == all);
    ensure!(in_time, "{} of {all} watchers answer", DONE.load(SeqCst));
    Ok(())
}

/// Lets every watcher look, and compares what it finds.
fn ensure_all_find(turn: u64, work: u64, expected: u64, how: &str) -> Check {
    DONE.store(0, SeqCst);
    WORK.store(work, SeqCst);
    TURN.store(turn, SeqCst);
    all_done()?;
    for other in board().other_harts() {
        ensure_eq!(FOUND[other as usize].load(SeqCst), expected, "hart {other}, turn {turn}, {how}");
    }
    Ok(())
}

/// The mask forms in turn: all, each hart by its bit, from a base.
fn fence_everybody(turn: u64, (fid, start, bytes, asid): How) -> Check {
    let send = |mask: u64, mask_base: u64| {
        let error = remote_fence(fid, mask, mask_base, start, bytes, asid);
        ensure_eq!(error, SUCCESS, "fence {fid} of {mask:#x} from {mask_base:#x}");
        Ok(())
    };
    let all = (1 << board().hart_count) - 1;
    match turn % 4 {
        0 => send(0, ALL_HARTS),
        1 => send(all, 0),
        2 if all > 1 => send(all >> 1, 1).and_then(|()| send(1, 0)),
        _ => board().harts().iter().try_for_each(|id| send(1, *id)),
    }
}

fn remote(test: &Test, how: How) -> Check {
    test.show(TEST_VA, 0);
    with_watchers(test.space.satp(), 0, || {
        for turn in 1..=8 {
            test.show(TEST_VA, turn);
            fence_everybody(turn, how)?;
            ensure_shows(TEST_VA, turn, "a remote fence that includes the caller")?;
            ensure_all_find(turn, LOAD, 1000 + turn % 2, "after the fence")?;
        }
        Ok(())
    })
}

/// Taking rights away: a page becomes read-only, then unmapped, then comes back.
fn remote_permissions(test: &Test) -> Check {
    test.show(TEST_VA, 0);
    let slot = test.space.slot(TEST_VA, Level::PAGE);
    let frame = test.pages[0].address();
    let fence = |turn| fence_everybody(turn, (REMOTE_SFENCE_VMA, TEST_VA, PAGE, 0));
    with_watchers(test.space.satp(), 0, || {
        for turn in (1..=16).step_by(4) {
            slot.store(leaf(frame, RW), Relaxed);
            fence(turn)?;
            ensure_all_find(turn, STORE, 0, "storing to a writable page")?;
            slot.store(leaf(frame, RO), Relaxed);
            fence(turn + 1)?;
            ensure_all_find(turn + 1, STORE, 15, "storing to a page made read-only")?;
            ensure_all_find(turn + 2, LOAD, 1000, "loading from it")?;
            slot.store(0, Relaxed);
            fence(turn + 3)?;
            ensure_all_find(turn + 3, LOAD, 13, "loading from a page unmapped")?;
        }
        Ok(())
    })
}

/// Spaces between which harts change without a fence, each with an ASID of its own; of two the lower bits are the same.
const CHANGING: [u64; 4] = [8, 9, 8 | 1 << 8, 0];
/// The number of changes of each page's mapping, and the number of those that every hart knows of.
static MADE: [AtomicU64; CHANGING.len()] = [const { AtomicU64::new(0) }; CHANGING.len()];
static KNOWN: [AtomicU64; CHANGING.len()] = [const { AtomicU64::new(0) }; CHANGING.len()];
static SATPS: [AtomicU64; CHANGING.len()] = [const { AtomicU64::new(0) }; CHANGING.len()];

/// Fences of one address space reach a hart also while it changes from one to another: it finds no more what was there before, in
/// whichever it comes to next.
fn between_roots(test: &Test) -> Check {
    #[expect(unsafe_code, reason = "satp")]
    fn job(_: u64) {
        DONE.fetch_add(1, SeqCst);
        while TURN.load(SeqCst) != 0 {
            for which in 0..CHANGING.len() {
                // SAFETY: every space maps Rust's memory to itself.
                unsafe { csr::satp::write(SATPS[which].load(SeqCst)) };
                let known = KNOWN[which].load(SeqCst);
                let found = access::ld(TEST_VA);
                let made = MADE[which].load(SeqCst);
                if !(known..=made).any(|times| found == Ok(1000 + times % 2)) {
                    FAILED.store(true, SeqCst);
                }
            }
        }
        paging::leave();
    }
    if paging::asid_bits() < 9 {
        return Ok(());
    }
    // A fence of each space, by its address and of all, several times; where others change meanwhile, often enough to meet them at each
    // point of a change. That point is the same in every format.
    let turns = match (board().hart_count, test.format.levels) {
        (1, _) => 26,
        (_, 3) => 160,
        _ => 52,
    };
    let spaces = CHANGING.map(|asid| Space::new(test.format, asid));
    for (which, space) in spaces.iter().enumerate() {
        space.map(TEST_VA, test.pages[0].address(), RW);
        [&MADE, &KNOWN].iter().for_each(|counts| counts[which].store(0, SeqCst));
        SATPS[which].store(space.satp(), SeqCst);
    }
    fence::sfence_all();
    DONE.store(0, SeqCst);
    TURN.store(1, SeqCst);
    board().other_harts().try_for_each(|other| hart::start(other, job, 0))?;
    let outcome = all_done().and_then(|()| {
        for turn in 0..turns {
            let which = (turn * 7 % 13) as usize % CHANGING.len();
            let made = MADE[which].fetch_add(1, SeqCst) + 1;
            spaces[which].map(TEST_VA, test.pages[made as usize % 2].address(), RW);
            let bytes = if turn % 3 == 0 { 0 } else { PAGE };
            fence_everybody(0, (REMOTE_SFENCE_VMA_ASID, TEST_VA, bytes, CHANGING[which]))?;
            KNOWN[which].store(made, SeqCst);
            // Its own, too.
            spaces[which].switch();
            ensure_shows(TEST_VA, made, "a fence of the space that it changes to")?;
        }
        Ok(())
    });
    TURN.store(0, SeqCst);
    board().other_harts().try_for_each(hart::join)?;
    test.space.enter();
    outcome?;
    ensure!(!FAILED.load(SeqCst), "a hart finds what was there before a fence");
    Ok(())
}

static FORMAT_MODE: AtomicU64 = AtomicU64::new(0);

/// ASIDs are a hart's own: each hart uses the same ASID and address for tables of its own, changes
/// them with local fences only, and sleeps in between. Where vCPUs move between harts, or share one,
/// each must still see its own pages.
fn own_tables_on_every_hart(test: &Test) -> Check {
    fn job(_: u64) {
        let mode = FORMAT_MODE.load(SeqCst);
        let format = Format::of_vs_mode(mode).expect("a format that is there");
        let test = Test::new(format);
        let mark = hart::id() << 32;
        for (value, page) in test.pages.iter().enumerate() {
            page.0[0].store(mark + 1000 + value as u64, Relaxed);
        }
        test.show(TEST_VA, 0);
        test.space.enter();
        let mut wrong = 0;
        for round in 0..25 {
            test.show(TEST_VA, round);
            paging::fence_page(TEST_VA);
            let expected = mark + 1000 + round % 2;
            wrong += u64::from(access::peek(TEST_VA) != expected);
            sleep_a_little();
            wrong += u64::from(access::peek(TEST_VA) != expected);
        }
        paging::leave();
        FOUND[hart::id() as usize].store(wrong, SeqCst);
    }
    FORMAT_MODE.store(u64::from(test.format.mode), SeqCst);
    board().other_harts().try_for_each(|other| hart::start(other, job, 0))?;
    job(0);
    test.space.enter();
    board().other_harts().try_for_each(hart::join)?;
    for id in board().harts() {
        ensure_eq!(FOUND[*id as usize].load(SeqCst), 0, "wrong values on hart {id}");
    }
    Ok(())
}

/// A millisecond's WFI: a chance for the hypervisor to run another vCPU here.
fn sleep_a_little() {
    let end = metal::time() + board().ticks(1);
    sbi::set_timer(end);
    enable(STimer.bit());
    while pending() & STimer.bit() == 0 {
        metal::wait_for_interrupt();
    }
    disable(STimer.bit());
    sbi::set_timer(u64::MAX);
}

/// Code changed on one hart runs as changed on every hart that was fenced.
fn fence_i() -> Check {
    let code = page();
    let write = |value: u64| {
        // li a0, value; ret
        let li = 0x0000_0513 | (value & 0x7ff) << 20;
        code.0[0].store(0x8067 << 32 | li, Relaxed);
    };
    write(0);
    let test = Test::new(&rv::format::SV39);
    test.space.map(TEST_VA + PAGE, code.address(), RWX);
    for (satp, at) in [(0, code.address()), (test.space.satp(), TEST_VA + PAGE)] {
        with_watchers(satp, at, || {
            for turn in 1..=8 {
                write(turn);
                fence_everybody(turn, (REMOTE_FENCE_I, 0, 0, 0))?;
                ensure_eq!(access::call(code.address(), 0), Ok(turn), "on the hart that wrote");
                ensure_all_find(turn, CALL, turn, "running changed code")?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The fences of guests are a hypervisor's: a guest without the H extension has no such calls.
fn bad_function() -> Check {
    let (error, _) = sbi::call(sbi_spec::rfnc::EID_RFNC, 77, [0; 6]);
    ensure_eq!(error, sbi::NOT_SUPPORTED, "function 77");
    if !board().has("h") {
        for fid in 3..=6 {
            let error = remote_fence(fid, 1, hart::id(), 0, 0, 0);
            ensure_eq!(error, sbi::NOT_SUPPORTED, "function {fid}");
        }
    }
    Ok(())
}

static FAILED: AtomicBool = AtomicBool::new(false);

/// All harts fence all harts at once: no hart may wait for ever for one that waits.
fn crossfire() -> Check {
    fn job(_: u64) {
        for turn in 0..60 {
            let how = (REMOTE_SFENCE_VMA, TEST_VA, (turn % 3) * PAGE, 0);
            if fence_everybody(turn, how).is_err() {
                FAILED.store(true, SeqCst);
            }
        }
        DONE.fetch_add(1, SeqCst);
        // OpenSBI 1.5.1 waits for ever for a hart that stops while it is being fenced.
        while DONE.load(SeqCst) < board().hart_count as u64 {
            core::hint::spin_loop();
        }
    }
    DONE.store(0, SeqCst);
    board().other_harts().try_for_each(|other| hart::start(other, job, 0))?;
    job(0);
    board().other_harts().try_for_each(hart::join)?;
    ensure!(!FAILED.load(SeqCst), "a fence returned an error");
    Ok(())
}

/// Harts stop and start under the fences of another.
fn while_stopping() -> Check {
    fn job(_: u64) {}
    for turn in 0..20 {
        board().other_harts().try_for_each(|other| hart::start(other, job, 0))?;
        (0..4).try_for_each(|more| fence_everybody(turn + more, (REMOTE_SFENCE_VMA, 0, 0, 0)))?;
        board().other_harts().try_for_each(hart::join)?;
        // All stopped: there is no hart left to wait for.
        fence_everybody(turn, (REMOTE_SFENCE_VMA, 0, 0, 0))?;
    }
    Ok(())
}
