//! Pages in another order than their addresses, two tables full of them, which the guest stores to long enough for Gnomon to move them
//! together; and then whatever it may do to some of them. What it has written is there, by all addresses that lead to it.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "sstatus")]

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use guests::expect::{LOAD_PAGE, STORE_PAGE, ensure_trap};
use guests::paging::{self, Page, RO, RW, Space, TEST_VA, fence_page, fence_page_asid, leaf, page};
use guests::{Check, access, board, ensure_eq, hart, ram, run};
use metal::csr;
use rv::csr::status;
use rv::format::SV39;
use rv::{Level, PteFlags};

guests::entry_point!(main);

const PAGE: u64 = rv::PAGE_BYTES;
/// Pages of a hart: two tables of them.
const PAGES: u64 = 1024;
const ASID: u64 = 9;
const OTHER: u64 = 10;
const USER: PteFlags = RW.union(PteFlags::U);
/// The time until pages are moved, in milliseconds, with much to spare.
const LONG: u64 = 400;

/// The state of a hart.
struct Scattered {
    space: Space,
    pages: &'static [Page],
    /// The number of writes to each page.
    rounds: Cell<u64>,
}

fn main() {
    run("scattered/pages", || hart::everywhere(on_this_hart));
}

fn on_this_hart() -> Check {
    // SAFETY: what is reached by it are pages under test.
    unsafe { csr::sstatus::set(status::SUM) };
    let outcome = check();
    paging::leave();
    // SAFETY: as it was.
    unsafe { csr::sstatus::clear(status::SUM) };
    outcome
}

fn check() -> Check {
    let all = Scattered::new();
    all.space.enter();
    all.work(LONG)?;
    all.change_one()?;
    all.work(LONG)?;
    all.change_many()?;
    all.share_tables()?;
    all.work(LONG / 2)?;
    all.take_table_away()?;
    all.work(LONG / 2)
}

impl Scattered {
    fn new() -> Self {
        let all = Self { space: Space::new(&SV39, ASID), pages: ram::pages(PAGES as usize), rounds: Cell::new(0) };
        for n in 0..PAGES {
            all.put_back(n);
            all.word(n).store(value(n, 0), Relaxed);
        }
        all
    }

    /// Page `n` by its address, as it lies in memory.
    fn page(&self, n: u64) -> &'static Page {
        &self.pages[((n * 387 + 91) % PAGES) as usize]
    }

    fn word(&self, n: u64) -> &core::sync::atomic::AtomicU64 {
        &self.page(n).0[(n % 512) as usize]
    }

    /// Maps it as it belongs, without a fence.
    fn put_back(&self, n: u64) {
        self.space.map(address(n), self.page(n).address(), USER);
    }

    /// Stores to all pages again and again, and looks each time whether what was stored the time before is there.
    fn work(&self, milliseconds: u64) -> Check {
        let end = metal::time() + board().ticks(milliseconds);
        while metal::time() < end {
            let round = self.rounds.get();
            for n in 0..PAGES {
                let at = address(n) + 8 * (n % 512);
                ensure_eq!(access::peek(at), value(n, round), "page {n} in round {round}");
                access::poke(at, value(n, round + 1));
            }
            self.rounds.set(round + 1);
        }
        self.all_are_there("after some work")
    }

    /// By their addresses, and by those of the memory itself.
    fn all_are_there(&self, when: &str) -> Check {
        for n in 0..PAGES {
            ensure_eq!(self.word(n).load(Relaxed), value(n, self.rounds.get()), "page {n} in memory, {when}");
            self.is_there(n, when)?;
        }
        Ok(())
    }

    fn is_there(&self, n: u64, when: &str) -> Check {
        let found = access::ld(address(n) + 8 * (n % 512));
        ensure_eq!(found, Ok(value(n, self.rounds.get())), "page {n}, {when}");
        Ok(())
    }

    /// Entries change one by one, each with a fence of its page.
    fn change_one(&self) -> Check {
        let spare = page();
        spare.0[7].store(0x1234, Relaxed);
        for (n, fence) in [(7, true), (700, false)] {
            let at = address(n);
            let fence = || if fence { fence_page(at) } else { fence_page_asid(at, ASID) };
            self.space.map(at, spare.address(), USER);
            fence();
            ensure_eq!(access::ld(at + 56), Ok(0x1234), "another page");
            self.is_there(n + 1, "beside another page")?;
            self.space.map(at, self.page(n).address(), RO | PteFlags::U);
            fence();
            ensure_trap(access::sd(at, 1), STORE_PAGE, at, "a store to a page that may be read")?;
            self.is_there(n, "it may be read")?;
            ensure_eq!(access::sd(at + PAGE, access::peek(at + PAGE)), Ok(()), "a store beside it");
            self.space.slot(at, Level::PAGE).store(0, Relaxed);
            fence();
            ensure_trap(access::ld(at), LOAD_PAGE, at, "nothing is there")?;
            self.put_back(n);
            fence();
            self.is_there(n, "it is back")?;
        }
        Ok(())
    }

    /// Some change at once, with one fence of all.
    fn change_many(&self) -> Check {
        let some = || (0..PAGES).step_by(37);
        for n in some() {
            self.space.slot(address(n), Level::PAGE).store(leaf(self.page(n).address(), RO | PteFlags::U), Relaxed);
        }
        metal::fence::sfence_all();
        for n in some() {
            ensure_trap(access::sd(address(n), 1), STORE_PAGE, address(n), "a store to some pages")?;
            self.is_there(n, "some may be read")?;
        }
        some().for_each(|n| self.put_back(n));
        metal::fence::sfence_all();
        self.all_are_there("after many have changed")
    }

    /// Another address space has the same tables.
    fn share_tables(&self) -> Check {
        let other = Space::new(&SV39, OTHER);
        for n in [0, PAGES / 2] {
            let table = self.space.slot(address(n), Level::MEGA).load(Relaxed);
            other.slot(address(n), Level::MEGA).store(table, Relaxed);
        }
        other.enter();
        self.all_are_there("in another address space")?;
        let (n, end) = (20, metal::time() + board().ticks(LONG));
        while metal::time() < end {
            self.all_are_there("in another address space, again")?;
        }
        self.space.slot(address(n), Level::PAGE).store(0, Relaxed);
        fence_page(address(n));
        ensure_trap(access::ld(address(n)), LOAD_PAGE, address(n), "it is gone in one")?;
        self.space.switch();
        ensure_trap(access::ld(address(n)), LOAD_PAGE, address(n), "it is gone in both")?;
        self.put_back(n);
        fence_page(address(n));
        self.all_are_there("where they were before")
    }

    /// The pointer to a table changes.
    fn take_table_away(&self) -> Check {
        let slot = self.space.slot(address(0), Level::MEGA);
        let table = slot.swap(0, Relaxed);
        metal::fence::sfence_all();
        ensure_trap(access::ld(address(3)), LOAD_PAGE, address(3), "no table")?;
        self.is_there(PAGES - 1, "the other table")?;
        slot.store(table, Relaxed);
        metal::fence::sfence_all();
        self.all_are_there("with both tables")
    }
}

/// The address of page `n`.
const fn address(n: u64) -> u64 {
    TEST_VA + n * PAGE
}

/// The page's contents after so many rounds.
const fn value(n: u64, round: u64) -> u64 {
    round << 16 | n
}
