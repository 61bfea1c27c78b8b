//! An image whose pages go to the host's swap device when the guest does not touch them: they come back with what they held, for
//! reading, for writing, for execution, and for the next boot. Reboots when told so, as `reboot` does.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "stores into the image")]

use guests::console::{key_of, line};
use guests::{Check, access, board, ensure_eq, run, sbi};
use sbi_spec::srst;

guests::entry_point!(main);

const PAGE: u64 = 4096;
const WORDS: usize = 512;
/// Pages that are in the image only to be read.
const COUNT: usize = 1024;

#[repr(C, align(4096))]
struct Pages([[u64; WORDS]; COUNT]);

/// The contents of a page's first word and of its last one.
const fn contents(page: u64) -> [u64; 2] {
    [0x1111_0000_0000 + page, 0x2222_0000_0000 + page * 7]
}

static PAGES: Pages = {
    let mut pages = [[0; WORDS]; COUNT];
    let mut n = 0;
    while n < COUNT {
        [pages[n][0], pages[n][WORDS - 1]] = contents(n as u64);
        n += 1;
    }
    Pages(pages)
};

fn at(page: u64) -> u64 {
    &raw const PAGES as u64 + page * PAGE
}

fn main() {
    line(format_args!("guest: boot"));
    run("images/as-built", || find(|_| None));
    use_up_memory();
    run("images/gone-and-back", || (0..COUNT as u64 / 2).try_for_each(|n| find_one(n * 389 % COUNT as u64, None)));
    run("images/copied", copied);
    line(format_args!("guest: press r or q"));
    if key_of(b"rq") == b'r' {
        let error = sbi::reset(srst::RESET_TYPE_COLD_REBOOT, srst::RESET_REASON_NO_REASON);
        panic!("cold reboot returned {error}");
    }
}

/// Touches all free memory, which is more than the host has, until the hand of the sweep has come round several times. It stays
/// zeroes, so that this takes no time of the device.
fn use_up_memory() {
    let (from, to) = board().largest_free();
    for _ in 0..3 {
        (from..to).step_by(PAGE as usize).for_each(|at| _ = access::peek(at));
    }
}

fn find_one(n: u64, written: Option<u64>) -> Check {
    let [first, last] = contents(n);
    ensure_eq!(access::peek(at(n)), written.unwrap_or(first), "first word of page {n}");
    ensure_eq!(access::peek(at(n) + PAGE - 8), last, "last word of page {n}");
    Ok(())
}

fn find(written: impl Fn(u64) -> Option<u64>) -> Check {
    (0..COUNT as u64).try_for_each(|n| find_one(n, written(n)))
}

/// Stores to some pages, half of which are out: the others stay as they are.
fn copied() -> Check {
    let written = |n: u64| n.is_multiple_of(5).then_some(n ^ 0x5555);
    for n in 0..COUNT as u64 {
        // SAFETY: RAM like any other without paging, and read as such only.
        written(n).into_iter().for_each(|value| unsafe { (at(n) as *mut u64).write_volatile(value) });
    }
    find(written)
}
