//! Page tables as memory: pages that become tables of another kind and data in between, tables that
//! are linked twice or to themselves, every way of storing to one, superpages split and merged, tables and
//! leaves at the edges of RAM.
#![no_std]
#![no_main]

mod edits;
mod life;
mod links;
mod places;

use core::sync::atomic::Ordering::Relaxed;
use guests::paging::{self, Page, Space};
use guests::trap::Trap;
use guests::{Check, Text, access, board, ensure, ensure_eq, expect, hart, ram, run};
use rv::{Format, Level};
use spin::Once;

guests::entry_point!(main);

const PAGE: u64 = rv::PAGE_BYTES;
/// The ASID of the spaces under test.
const ASID: u64 = 31;

/// A check in one paging format.
type InFormat = fn(&'static Format) -> Check;

fn main() {
    // With several harts what one alone can see is left to machines that have one.
    if board().hart_count > 1 {
        return run("tables/on-all-harts", || hart::everywhere(on_this_hart));
    }
    for format in Space::formats() {
        let checks: [(&str, InFormat); 13] = [
            ("edits", edits::every_way),
            ("edits-over-borders", edits::over_borders),
            ("cbo-zero", edits::cbo_zero),
            ("linked-twice", links::twice),
            ("linked-to-itself", links::recursive),
            ("live-pointers", links::live_pointers),
            ("recycled", life::recycled),
            ("split-and-merged", life::split_and_merged),
            ("many", life::many),
            ("gigapages", places::gigapages),
            ("first-and-last-page", places::first_and_last),
            ("past-the-end", places::past_the_end),
            ("devices", places::devices),
        ];
        let is_made = |name: &str| name != "cbo-zero" || board().has("zicboz");
        for (name, check) in checks.into_iter().filter(|(name, _)| is_made(name)) {
            let name = Text::of(format_args!("tables/{}-{name}", format.name));
            run(name.as_str(), || {
                let outcome = check(format);
                paging::leave();
                outcome
            });
        }
    }
}

/// The work of several harts at once, each with tables of its own.
fn on_this_hart() -> Check {
    let checks: [InFormat; 6] = [
        edits::every_way,
        links::twice,
        links::recursive,
        links::live_pointers,
        life::recycled,
        life::split_and_merged,
    ];
    let outcome = checks.into_iter().try_for_each(|check| check(&rv::format::SV39));
    paging::leave();
    outcome
}

/// Two superpages of RAM for the calling hart, zeroed: 2 times 512 pages.
fn scratch() -> &'static [Page] {
    static SCRATCH: [Once<&'static [Page]>; hart::MAX] = [const { Once::new() }; hart::MAX];
    let pages = *SCRATCH[hart::id() as usize].call_once(|| ram::pages(1024));
    pages.iter().flat_map(|page| &page.0).for_each(|word| word.store(0, Relaxed));
    pages
}

/// An address whose walk shares no table, the root aside, with the mapping of the machine to itself.
fn far(format: &Format) -> u64 {
    3 << format.root_level().shift().max(Level::GIGA.shift() + 5)
}

/// Makes the first word of the page a number.
fn mark(page: &Page, number: u64) {
    page.0[0].store(number, Relaxed);
}

/// Loads from `at`: the number of the page there.
fn ensure_shows(at: u64, number: u64, what: &str) -> Check {
    ensure_eq!(access::ld(at), Ok(number), "{at:#x}, {what}");
    Ok(())
}

/// A load page fault at `at`.
fn ensure_gone(at: u64, what: &str) -> Check {
    ensure_cause(access::ld(at), expect::LOAD_PAGE, at, what)
}

fn ensure_cause(found: Result<u64, Trap>, cause: u64, at: u64, what: &str) -> Check {
    let is_it = found.is_err_and(|trap| (trap.cause, trap.tval) == (cause, at));
    ensure!(is_it, "{at:#x}, {what}: {found:x?}, not cause {cause}");
    Ok(())
}
