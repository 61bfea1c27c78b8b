//! The coverage of each kind of fence, with live translations of many address spaces: switches between spaces with
//! edits in between, reused ASIDs, global pages, ranges, and harts that are elsewhere when their translations change.
#![no_std]
#![no_main]

mod hammer;
mod spaces;

use core::sync::atomic::Ordering::Relaxed;
use guests::fences::{self, Fence};
use guests::paging::{self, Page, RO, RW, Space, TEST_VA, leaf, page};
use guests::sbi::{ALL_HARTS, SUCCESS, remote_fence};
use guests::{Check, Text, access, board, ensure, ensure_eq, run};
use metal::fence;
use rv::{Format, Level, PteFlags};
use sbi_spec::rfnc::{REMOTE_SFENCE_VMA, REMOTE_SFENCE_VMA_ASID};

guests::entry_point!(main);

const PAGE: u64 = rv::PAGE_BYTES;

/// A check in one paging format.
type InFormat = fn(&'static Format) -> Check;

fn main() {
    for format in Space::formats() {
        let checks: [(&str, InFormat); 9] = [
            ("every-kind", every_kind),
            ("global", global),
            ("rights", rights),
            ("ranges", ranges),
            ("superpages", superpages),
            ("there-and-back", spaces::there_and_back),
            ("asid-reused", spaces::asid_reused),
            ("same-asid", spaces::same_asid),
            ("many-roots", spaces::many_roots),
        ];
        for (name, check) in checks {
            named(format, name, check);
        }
        if board().hart_count > 1 {
            named(format, "elsewhere", hammer::elsewhere);
            named(format, "hammer", hammer::hammer);
            named(format, "write-protect", hammer::write_protect);
        }
    }
    if board().hart_count > 1 {
        run("fences/on-all-harts", || guests::hart::everywhere(|| every_kind(&rv::format::SV39)));
    }
}

fn named(format: &'static Format, name: &str, check: InFormat) {
    let name = Text::of(format_args!("fences/{}-{name}", format.name));
    run(name.as_str(), || {
        let outcome = check(format);
        paging::leave();
        outcome
    });
}

/// A page whose first word is the number.
fn marked(number: u64) -> &'static Page {
    let page = page();
    page.0[0].store(number, Relaxed);
    page
}

/// Loads from `at`: the number of the page there.
fn ensure_shows(at: u64, number: u64, fence: &Fence, what: &str) -> Check {
    ensure_eq!(access::ld(at), Ok(number), "{at:#x}, {what}, {}", fence.name);
    Ok(())
}

/// Nothing is mapped at `at`.
fn ensure_gone(at: u64, fence: &Fence, what: &str) -> Check {
    let found = access::ld(at);
    let is_gone = found.is_err_and(|trap| trap.cause == guests::expect::LOAD_PAGE && trap.tval == at);
    ensure!(is_gone, "{at:#x}, {what}, {}: {found:x?}", fence.name);
    Ok(())
}

/// An entry changes its frame, goes, and comes back, each followed by every kind of fence.
fn every_kind(format: &'static Format) -> Check {
    const ASID: u64 = 3;
    let (space, pages) = (Space::new(format, ASID), [marked(10), marked(11)]);
    let slot = space.slot(TEST_VA, Level::PAGE);
    space.enter();
    for fence in fences::all() {
        for round in 0..6 {
            let number = round % 2;
            slot.store(leaf(pages[number as usize].address(), RW), Relaxed);
            fence.make(TEST_VA, ASID);
            ensure_shows(TEST_VA, 10 + number, &fence, "mapped")?;
            if round >= 4 {
                slot.store(0, Relaxed);
                fence.make(TEST_VA, ASID);
                ensure_gone(TEST_VA, &fence, "unmapped")?;
            }
        }
    }
    paging::leave();
    Ok(())
}

/// Of a global page, a fence by ASID may leave the old translation; any other may not. The page beside
/// it, which is not global, is new after either.
fn global(format: &'static Format) -> Check {
    let (at, beside) = (TEST_VA, TEST_VA + PAGE);
    let spaces = [4, 5].map(|asid| Space::new(format, asid));
    let pages = [marked(20), marked(21)];
    for fence in fences::all() {
        for round in 0..6_usize {
            let new = pages[round % 2];
            for space in spaces {
                space.map(at, new.address(), RW | PteFlags::G);
                space.map(beside, new.address(), RW);
            }
            spaces[0].switch();
            fence.make(at, 4);
            fence.make(beside, 4);
            let number = 20 + round as u64 % 2;
            ensure_shows(beside, number, &fence, "beside the global page")?;
            let found = access::ld(at);
            if fence.is_by_asid {
                ensure!([Ok(20), Ok(21)].contains(&found), "a global page after {}: {found:x?}", fence.name);
                fence::sfence_all();
            }
            ensure_shows(at, number, &fence, "the global page")?;
            // Every ASID shares it.
            spaces[1].switch();
            ensure_shows(at, number, &fence, "the global page in the other space")?;
            fence::sfence_all();
        }
    }
    Ok(())
}

/// Rights that are taken away are gone after the fence, and those that are given are there.
fn rights(format: &'static Format) -> Check {
    const ASID: u64 = 6;
    let (space, target) = (Space::new(format, ASID), marked(30));
    let slot = space.slot(TEST_VA, Level::PAGE);
    space.enter();
    for fence in fences::all() {
        for (flags, is_writable, is_readable) in [
            (RW, true, true),
            (RO, false, true),
            (RW | PteFlags::U, false, false),
            (RW, true, true),
            (paging::XO, false, false),
        ] {
            slot.store(leaf(target.address(), flags), Relaxed);
            fence.make(TEST_VA, ASID);
            let found = (access::sd(TEST_VA + 8, 1).is_ok(), access::ld(TEST_VA).is_ok());
            ensure_eq!(found, (is_writable, is_readable), "writable, readable with {flags:?}, {}", fence.name);
        }
    }
    Ok(())
}

/// SBI's ranges reach every page within, however long they are and wherever they start; sizes of 0 (from
/// address 0) and -1 mean everything. Pages outside may be old or new.
fn ranges(format: &'static Format) -> Check {
    const ASID: u64 = 7;
    const PAGES: u64 = 520; // more than one table's
    let (space, pages) = (Space::new(format, ASID), [marked(40), marked(41)]);
    let base = TEST_VA + (2 << 20) - 4 * PAGE;
    let ranges = [
        (0, 0, 0..PAGES),
        (0, u64::MAX, 0..PAGES),
        (base + PAGE, u64::MAX, 0..PAGES),
        (base, PAGES * PAGE, 0..PAGES),
        (base, PAGE, 0..1),
        (base + 3 * PAGE, 2 * PAGE, 3..5), // over the border of two tables
        (base + 100 * PAGE, 65 * PAGE, 100..165),
        (base + 519 * PAGE, PAGE, 519..520),
        (0, 1 << 38, 0..PAGES),
        (TEST_VA, 1 << 30, 0..PAGES),
        (TEST_VA & !((1 << 30) - 1), 3 << 30, 0..PAGES),
        (base, 1, 0..1),
    ];
    let mut number = 0;
    space.enter();
    for fid in [REMOTE_SFENCE_VMA, REMOTE_SFENCE_VMA_ASID] {
        for (start, bytes, covered) in ranges.clone() {
            let old = number;
            number = 1 - number;
            for page in 0..PAGES {
                space.map(base + page * PAGE, pages[number].address(), RW);
            }
            let error = remote_fence(fid, 0, ALL_HARTS, start, bytes, ASID);
            ensure_eq!(error, SUCCESS, "fence {fid} of {bytes:#x} bytes at {start:#x}");
            for page in 0..PAGES {
                let found = access::ld(base + page * PAGE);
                let is_legal =
                    found == Ok(40 + number as u64) || !covered.contains(&page) && found == Ok(40 + old as u64);
                ensure!(is_legal, "page {page} after fence {fid} of {bytes:#x} bytes at {start:#x}: {found:x?}");
            }
            fence::sfence_all();
        }
    }
    Ok(())
}

/// A fence by any address of a superpage is one of the whole superpage.
fn superpages(format: &'static Format) -> Check {
    const ASID: u64 = 8;
    let space = Space::new(format, ASID);
    let blocks = [0, 1].map(|number| {
        let block = &guests::ram::pages(512);
        block.iter().for_each(|page| page.0[0].store(50 + number, Relaxed));
        block[0].address()
    });
    let at = TEST_VA + (1 << 30);
    let slot = space.slot(at, Level::MEGA);
    space.enter();
    for fence in fences::all() {
        for (round, page) in [0, 511, 77, 300].into_iter().enumerate() {
            slot.store(leaf(blocks[round % 2], RW), Relaxed);
            fence.make(at + page * PAGE, ASID);
            for looked_at in [0, 5, 77, 256, 511] {
                ensure_shows(at + looked_at * PAGE, 50 + round as u64 % 2, &fence, "in a superpage")?;
            }
        }
    }
    Ok(())
}
