//! The root cache (docs/root-cache.md): a kernel without ASIDs, which shares a page with Gnomon for it, goes through its address spaces at
//! random and fences only as the page says. What the page says, and what is refused. On a bare machine, and beside a Gnomon that has none,
//! it fences as any such kernel. Boot argument: how many steps, else [`STEPS`].
#![no_std]
#![no_main]

use abi::root_cache::{EXTENSION, FLAGS_AT, MOST_PLACES, PLACES_AT, SET_PAGE, TAGGED, VERSION, bytes};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use guests::access::{ld, peek, poke};
use guests::expect::{LOAD_PAGE, ensure_trap};
use guests::paging::{self, Page, RW, Space, TEST_VA, fence_asid, fence_page, fence_page_asid, page};
use guests::random::Random;
use guests::root_cache::RootCache;
use guests::sbi::{ALL_HARTS, INVALID_ADDRESS, INVALID_PARAM, NOT_SUPPORTED, SUCCESS, remote_fence};
use guests::{Check, board, console, ensure, ensure_eq, hart, ram, run, sbi};
use metal::fence;
use rv::format::SV39;
use rv::{Format, PAGE_BYTES};
use sbi_spec::rfnc::{REMOTE_SFENCE_VMA, REMOTE_SFENCE_VMA_ASID};
use spin::Once;

guests::entry_point!(main);

/// Address spaces of each hart: more than the paper's four places, and than one pair of the lane's.
const SPACES: usize = 12;
/// The number of changes that each hart makes, if the boot arguments name none.
const STEPS: u64 = 1500;
/// Each space's own page, and what it changes to lead to another.
const OWN: u64 = TEST_VA;
const CHANGES: u64 = TEST_VA + PAGE_BYTES;
/// The offset of marks in those pages.
const MARK: usize = 77;

/// The number of changes to roots that the page had, and to roots that it had not.
static FOUND: AtomicU64 = AtomicU64::new(0);
static MISSED: AtomicU64 = AtomicU64::new(0);

fn main() {
    let is_there = sbi::probe(EXTENSION);
    if sbi::is_gnomon() {
        run("rootcache/is-there", || {
            ensure!(is_there, "Gnomon has no root cache");
            Ok(())
        });
    }
    if is_there {
        run("rootcache/versions", versions);
        run("rootcache/refused", refused);
        run("rootcache/page", what_the_page_says);
    }
    run("rootcache/changes", || hart::everywhere(|| changes(MOST_PLACES)));
    if board().hart_count > 1 {
        run("rootcache/together", together);
    }
    if is_there {
        run("rootcache/four-places", || hart::everywhere(|| changes(4)));
        run("rootcache/no-longer", no_longer);
        run("rootcache/in-a-table", in_a_table);
    }
    if let Ok(shared) = RootCache::share(page(), VERSION, bytes(1) as u32) {
        let (needs, places) = (if shared.is_tagged() { "no fence" } else { "fences" }, shared.places());
        console::line(format_args!("guest: changes need {needs}, and there are {places} places"));
    }
    console::line(format_args!("guest: {} changes by the page, {} without", FOUND.load(Relaxed), MISSED.load(Relaxed)));
    if FOUND.load(Relaxed) > MISSED.load(Relaxed) {
        console::line(format_args!("guest: most roots were in the page"));
    }
}

/// A kernel of a version that Gnomon does not know is told which it has.
fn versions() -> Check {
    for version in [0, VERSION + 1, u32::MAX] {
        let page = page();
        ensure_eq!(RootCache::share(page, version, bytes(4) as u32).err(), Some(NOT_SUPPORTED), "version {version}");
        ensure_eq!(RootCache::host_version(page), VERSION, "what a kernel of version {version} is told");
        let is_untouched = page.0[2..].iter().all(|word| word.load(Relaxed) == 0);
        ensure!(page.0[1].load(Relaxed) == bytes(4) && is_untouched, "a page that is not shared has something");
    }
    for version in 1..=VERSION {
        ensure_eq!(RootCache::share(page(), version, bytes(4) as u32).err(), None, "version {version}");
    }
    Ok(())
}

/// No page, no size, no flag, no function.
fn refused() -> Check {
    let page = page();
    for size in [0, bytes(0), bytes(1) - 1, PAGE_BYTES + 1, u64::from(u32::MAX)] {
        ensure_eq!(RootCache::share(page, VERSION, size as u32).err(), Some(INVALID_PARAM), "{size} bytes");
    }
    let at = page.address();
    let end = board().ram_end();
    for (arguments, error) in [
        ([at + 8, 0, 0], INVALID_PARAM),
        ([at + PAGE_BYTES / 2, 0, 0], INVALID_PARAM),
        ([at, 0, 1], INVALID_PARAM),
        ([u64::MAX, 0, 0], INVALID_PARAM),
        ([at, 1, 0], INVALID_ADDRESS),
        ([at, u64::MAX, 0], INVALID_ADDRESS),
        ([0, 0, 0], INVALID_ADDRESS),
        ([console::UART, 0, 0], INVALID_ADDRESS),
        ([end, 0, 0], INVALID_ADDRESS),
        ([board().ram_start - PAGE_BYTES, 0, 0], INVALID_ADDRESS),
        ([u64::MAX - (PAGE_BYTES - 1), 0, 0], INVALID_ADDRESS),
        ([1 << 55, 0, 0], INVALID_ADDRESS),
    ] {
        ensure_eq!(RootCache::ask(arguments), error, "arguments {arguments:x?}");
    }
    for function in [SET_PAGE + 1, usize::MAX] {
        ensure_eq!(sbi::call(EXTENSION, function, [at, 0, 0, 0, 0, 0]).0, NOT_SUPPORTED, "function {function:#x}");
    }
    Ok(())
}

/// All that Gnomon has to write it writes, and nothing else.
fn what_the_page_says() -> Check {
    const JUNK: u64 = 0x6a75_6e6b_6a75_6e6b;
    for (size, places) in [(bytes(1), 1), (bytes(4) + 8, 4), (PAGE_BYTES, MOST_PLACES)] {
        let page = page();
        page.0.iter().for_each(|word| word.store(JUNK, Relaxed));
        let Ok(shared) = RootCache::share(page, VERSION, size as u32) else {
            guests::fail!("{size} bytes are refused")
        };
        // None at all where the lane changes no roots.
        let places = if shared.places() == 0 { 0 } else { places };
        ensure_eq!(shared.places(), places, "places in {size} bytes");
        ensure_eq!(shared.flags() & !TAGGED, 0, "flags that are not known");
        ensure_eq!(RootCache::host_version(page), VERSION, "Gnomon's version");
        let word = |at: u64| page.0[at as usize / 8].load(Relaxed);
        ensure_eq!((word(0) as u32, word(8) as u32), (VERSION, size as u32), "what the kernel has written");
        let end = bytes(places) as usize / 8;
        let is_zero = page.0[PLACES_AT as usize / 8 + 1..end].iter().all(|word| word.load(Relaxed) == 0);
        ensure!(is_zero && word(FLAGS_AT + 4) == places as u64, "a page that was just shared has something");
        ensure!(page.0[end..].iter().all(|word| word.load(Relaxed) == JUNK), "what is not shared was written");
    }
    Ok(())
}

/// An address space, its page, and those that it changes between.
struct Process {
    space: Space,
    asid: u64,
    tables: Tables,
}

/// The tables below a root.
struct Tables {
    mark: u64,
    others: [&'static Page; 2],
    leads_to: usize,
}

impl Process {
    fn new(format: &'static Format, asid: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let [own, first, second] = [(); 3].map(|()| page());
        let mark = NEXT.fetch_add(1, Relaxed) << 32;
        own.0[MARK].store(mark, Relaxed);
        [first, second].iter().zip(1..).for_each(|(page, n)| page.0[MARK].store(mark | n, Relaxed));
        let space = Space::new(format, asid);
        space.map(OWN, own.address(), RW);
        space.map(CHANGES, first.address(), RW);
        Self { space, asid, tables: Tables { mark, others: [first, second], leads_to: 0 } }
    }

    /// Leads to the other page, and says so in one of the ways that cover it.
    fn change(&mut self, random: &mut Random) {
        self.tables.leads_to ^= 1;
        self.space.map(CHANGES, self.tables.others[self.tables.leads_to].address(), RW);
        let (own, all) = (1 << hart::id(), u64::MAX);
        match random.below(8) {
            0 => fence::sfence_all(),
            1 => fence_asid(self.asid),
            2 => fence_page_asid(CHANGES, self.asid),
            3 => _ = remote_fence(REMOTE_SFENCE_VMA, own, 0, CHANGES, PAGE_BYTES, 0),
            4 => _ = remote_fence(REMOTE_SFENCE_VMA_ASID, own, 0, CHANGES, PAGE_BYTES, self.asid),
            5 => _ = remote_fence(REMOTE_SFENCE_VMA_ASID, own, 0, 0, all, self.asid),
            _ => fence_page(CHANGES),
        }
    }

    /// The root's frame gets another's use, and the other way round.
    fn exchange(&mut self, other: &mut Self) {
        let slot = |space: &Space| space.slot(OWN, space.format().root_level());
        let (own, its) = (slot(&self.space), slot(&other.space));
        own.store(its.swap(own.load(Relaxed), Relaxed), Relaxed);
        fence::sfence_all();
        core::mem::swap(&mut self.tables, &mut other.tables);
    }

    /// In that space, what is where.
    fn check(&self) -> Check {
        let Tables { mark, leads_to, .. } = self.tables;
        let marks = [OWN, CHANGES].map(|at| peek(at + 8 * MARK as u64));
        ensure_eq!(marks, [mark, mark | (leads_to as u64 + 1)], "what the space has");
        Ok(())
    }
}

/// A hart's kernel, which shares a page if it can.
struct Kernel(Option<RootCache>);

impl Kernel {
    fn new(places: usize) -> Self {
        Self(RootCache::share(page(), VERSION, bytes(places) as u32).ok())
    }

    fn change(&self, root: u64) {
        match self.0 {
            Some(shared) => {
                let which = if shared.change(root) { &FOUND } else { &MISSED };
                which.fetch_add(1, Relaxed);
            }
            None => paging::change(root),
        }
    }

    fn end(&self) -> Check {
        paging::leave();
        if self.0.is_some() {
            ensure_eq!(RootCache::end(), SUCCESS, "the end of sharing");
        }
        Ok(())
    }
}

/// Goes through address spaces, most of which have ASID 0, and changes them, from within and from elsewhere.
fn changes(places: usize) -> Check {
    let kernel = Kernel::new(places);
    let mut random = Random::of(29);
    // The first, and whichever there are beside it.
    let mut formats = [&SV39; 3];
    formats.iter_mut().zip(Space::formats()).for_each(|(format, found)| *format = found);
    let mut processes: [Process; SPACES] = core::array::from_fn(|n| {
        // Most are of one format; one has an ASID.
        let format = if n < 9 { formats[0] } else { formats[n - 9] };
        Process::new(format, u64::from(n == 8) * (5 + hart::id()))
    });
    let mut present = 0;
    processes[present].space.enter();
    let outcome = (0..board().number().unwrap_or(STEPS)).try_for_each(|_| {
        let other = random.below(SPACES as u64) as usize;
        match random.below(64) {
            0..8 => processes[present].change(&mut random),
            8..16 => processes[other].change(&mut random),
            16 => {
                let next = (other + 1) % 9;
                if let Ok([one, another]) = processes.get_disjoint_mut([other, next])
                    && one.space.format().mode == another.space.format().mode
                {
                    one.exchange(another);
                }
            }
            17 => {
                paging::go_bare();
                kernel.change(processes[present].space.satp());
            }
            // A kernel turns to the same few ones most often.
            kind => {
                present = if kind < 48 { other % 3 } else { other };
                kernel.change(processes[present].space.satp());
            }
        }
        processes[present].check()
    });
    kernel.end()?;
    outcome
}

/// Address spaces of all harts', and which version each one's page has at least.
static TOGETHER: Once<[Space; 4]> = Once::new();
static PUBLISHED: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// One hart changes what all use, and tells the others by remote fences of each kind. These change between the spaces all the time.
fn together() -> Check {
    TOGETHER.call_once(|| {
        let spaces = [(); 4].map(|()| Space::new(&SV39, 0));
        spaces.iter().for_each(|space| space.map(OWN, page().address(), RW));
        spaces
    });
    IS_OVER.store(false, Relaxed);
    hart::everywhere(|| {
        let (kernel, spaces) = (Kernel::new(4), TOGETHER.get().expect("made before"));
        let outcome = if hart::id() == board().boot_hart {
            let told = tell(spaces);
            IS_OVER.store(true, Release);
            told
        } else {
            look(&kernel, spaces)
        };
        kernel.end()?;
        outcome
    })
}

fn tell(spaces: &[Space; 4]) -> Check {
    let pages = [(); 16].map(|()| page());
    for version in 1..=240u64 {
        let (page, which) = (pages[version as usize % 16], version as usize % 4);
        page.0[MARK].store(version, Release);
        spaces[which].map(OWN, page.address(), RW);
        let (fid, at, length) = match version / 4 % 4 {
            0 => (REMOTE_SFENCE_VMA, OWN, PAGE_BYTES),
            1 => (REMOTE_SFENCE_VMA_ASID, OWN, PAGE_BYTES),
            2 => (REMOTE_SFENCE_VMA, 0, u64::MAX),
            _ => (REMOTE_SFENCE_VMA_ASID, 0, u64::MAX),
        };
        ensure_eq!(remote_fence(fid, 0, ALL_HARTS, at, length, 0), SUCCESS, "remote fence {version}");
        PUBLISHED[which].store(version, Release);
        // At another moment of the others' loops each time.
        (0..version % 61 * 7).for_each(|n| _ = core::hint::black_box(n));
    }
    Ok(())
}

fn look(kernel: &Kernel, spaces: &[Space; 4]) -> Check {
    let mut random = Random::of(31);
    while !IS_OVER.load(Acquire) {
        let which = random.below(4) as usize;
        kernel.change(spaces[which].satp());
        let least = PUBLISHED[which].load(Acquire);
        let found = peek(OWN + 8 * MARK as u64);
        ensure!(found >= least, "space {which} has version {found} after {least} was told");
    }
    Ok(())
}

/// A page that is not shared any more is the kernel's alone.
fn no_longer() -> Check {
    let spaces: [_; 3] = core::array::from_fn(|_| Space::new(&SV39, 0));
    let [first, second] = [(); 2].map(|()| page());
    let walk = || spaces.iter().cycle().take(9).for_each(|space| paging::change(space.satp()));
    let set = |page: &Page| page.0.iter().for_each(|word| word.store(7, Relaxed));
    let is_as_set = |page: &Page| page.0.iter().all(|word| word.load(Relaxed) == 7);
    for page in [first, second] {
        ensure_eq!(RootCache::share(page, VERSION, bytes(4) as u32).err(), None, "sharing");
    }
    set(first);
    walk();
    paging::leave();
    ensure!(is_as_set(first), "a page that another has taken the place of was written");
    ensure_eq!(RootCache::end(), SUCCESS, "the end of sharing");
    set(second);
    walk();
    paging::leave();
    ensure!(is_as_set(second), "a page that is not shared was written");
    Ok(())
}

/// The page is a table in use. A kernel that makes this mistake gets what the table then says, and no other VM is
/// affected.
fn in_a_table() -> Check {
    let spaces: [_; 2] = core::array::from_fn(|_| Space::new(&SV39, 0));
    let table = &ram::pages(1)[0];
    let (marked, at) = (page(), TEST_VA + (1 << 30));
    marked.0[0].store(0x7ab1e, Relaxed);
    for space in &spaces {
        space.slot(at, rv::Level::MEGA).store(paging::pointer(table.address()), Relaxed);
        (0..512).for_each(|n| space.map(at + n * PAGE_BYTES, marked.address(), RW));
    }
    let go = |space: &Space| paging::change(space.satp());
    go(&spaces[0]);
    (0..512).for_each(|n| poke(at + n * PAGE_BYTES, peek(at + n * PAGE_BYTES)));
    let outcome = (|| {
        let Ok(shared) = RootCache::share(table, VERSION, PAGE_BYTES as u32) else { guests::fail!("it is refused") };
        spaces.iter().cycle().take(20).for_each(go);
        let entries = (0..512u64).map(|n| (n, table.0[n as usize].load(Relaxed)));
        for (n, entry) in entries {
            let (va, found) = (at + n * PAGE_BYTES, ld(at + n * PAGE_BYTES));
            if n >= bytes(shared.places()) / 8 {
                ensure_eq!(found.ok(), Some(0x7ab1e), "what the table's entry {n} leads to");
            } else if entry & 1 == 0 || entry >> 54 != 0 {
                ensure_trap(found, LOAD_PAGE, va, "an entry that Gnomon has written")?;
            }
        }
        Ok(())
    })();
    let ended = RootCache::end();
    paging::leave();
    ensure_eq!(ended, SUCCESS, "the end of sharing");
    outcome
}
