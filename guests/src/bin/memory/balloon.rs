//! The memory balloon: what is reported and inflated reads as zero and is the guest's again when it touches it; whatever pages it
//! names, and whatever it writes into the rings.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use guests::access::{self, in32, peek, poke};
use guests::balloon::{
    self as driver, DEFLATE, Driver, INDIRECT, INFLATE, LIVE, NEEDS_RESET, NEXT, REPORT, SIZE, STATUS, WRITE,
};
use guests::balloon::{describe, get, get16, put16, set};
use guests::paging::{self, Page, RW, Space, TEST_VA};
use guests::random::Random;
use guests::{Check, board, ensure, ensure_eq, hart, ram, run};
use rv::format::SV39;
use rv::{Level, PAGE_BYTES};
use spin::Mutex;

guests::entry_point!(main);

const BLOCK: u64 = 2 << 20;

/// The driver, from check to check.
static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);

fn with(check: impl FnOnce(&mut Driver) -> Check) -> Check {
    let mut driver = DRIVER.lock();
    if driver.is_none() {
        *driver = Some(Driver::start()?);
    }
    let driver = driver.as_mut().expect("it has just been started");
    driver.start_over()?;
    check(driver)
}

fn main() {
    run("balloon/identity", identity);
    run("balloon/features", features);
    run("balloon/report-blocks", || with(report_blocks));
    run("balloon/report-parts", || with(report_parts));
    run("balloon/report-pages", || with(report_pages));
    run("balloon/report-many", || with(report_many));
    run("balloon/report-nothing", || with(report_nothing));
    run("balloon/inflate", || with(inflate));
    run("balloon/deflate", || with(deflate));
    run("balloon/random", || with(random));
    run("balloon/interrupt", || with(interrupt));
    run("balloon/own-tables", || with(own_tables));
    run("balloon/own-table-of-tables", || with(own_root));
    run("balloon/many-leaves", || with(many_leaves));
    run("balloon/own-image", || with(own_image));
    run("balloon/own-rings", || with(own_rings));
    run("balloon/wild-buffers", || with(wild_buffers));
    run("balloon/wild-rings", || with(wild_rings));
    run("balloon/wild-lists", || with(wild_lists));
    run("balloon/other-harts", || with(other_harts));
    run("balloon/reset-meanwhile", || with(reset_meanwhile));
    run("balloon/own-device-tree", || with(own_tree));
}

/// `count` blocks of 2 MiB of free RAM, the `n`th such piece from the end.
fn blocks(n: u64, count: u64) -> u64 {
    let (from, to) = board().largest_free();
    let at = (to & !(BLOCK - 1)) - (4 * n + count) * BLOCK;
    assert!(at >= from + (8 << 20) && count <= 4, "not enough RAM");
    at
}

/// A value that depends on the address and nothing else, and is not 0.
fn pattern(at: u64) -> u64 {
    (at ^ 0x6a09_e667_f3bc_c908).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn fill(from: u64, to: u64) {
    (from..to).step_by(PAGE_BYTES as usize).for_each(|at| poke(at + 0x448, pattern(at)));
}

/// Each page in the range is zero if `is_gone`, else as it was filled.
fn expect(from: u64, to: u64, is_gone: bool) -> Check {
    for at in (from..to).step_by(PAGE_BYTES as usize) {
        let expected = if is_gone { 0 } else { pattern(at) };
        ensure_eq!(peek(at + 0x448), expected, "the page at {at:#x}");
    }
    Ok(())
}

fn identity() -> Check {
    ensure!(driver::is_there(), "no {} in the device tree", driver::NODE);
    ensure_eq!([0x000, 0x004, 0x008].map(get), [0x7472_6976, 2, 5], "magic, version, device");
    ensure_eq!(get(0x0fc), get(0x0fc), "generation");
    ensure_eq!(get(0x104), 0, "pages in the balloon");
    for register in (0..0x200).step_by(4) {
        ensure!(access::lwu(driver::DEVICE + register).is_ok(), "register {register:#x} traps");
    }
    for (register, is_byte) in [(0x000, false), (0x0fc, false), (0x100, true), (0x107, true)] {
        ensure_eq!(access::lbu(driver::DEVICE + register).is_ok(), is_byte, "a byte of register {register:#x}");
    }
    ensure!(access::ld(driver::DEVICE + 0x100).is_err(), "eight bytes at once");
    Ok(())
}

fn features() -> Check {
    driver::reset()?;
    set(0x014, 1);
    ensure_eq!(get(0x010), 1, "VERSION_1");
    set(0x014, 0);
    ensure_eq!(get(0x010), 1 << 2 | 1 << 5 | 1 << 28 | 1 << 29, "features");
    for (low, high) in [(0, 0), (1 << 1, 1), (0, 3)] {
        driver::reset()?;
        set(STATUS, 3);
        for (half, features) in [(0, low), (1, high)] {
            set(0x024, half);
            set(0x020, features);
        }
        set(STATUS, 11);
        ensure_eq!(get(STATUS), 3, "features {low:#x}, {high:#x} are not agreed on");
    }
    Ok(())
}

/// 2 MiB that one leaf may map.
fn report_blocks(driver: &mut Driver) -> Check {
    let at = blocks(0, 4);
    fill(at, at + 4 * BLOCK);
    driver.give(REPORT, &[(at + BLOCK, 2 * BLOCK)], WRITE)?;
    expect(at, at + BLOCK, false)?;
    expect(at + BLOCK, at + 3 * BLOCK, true)?;
    expect(at + 3 * BLOCK, at + 4 * BLOCK, false)?;
    // And once more, now that they were touched by loads.
    fill(at, at + 4 * BLOCK);
    driver.give(REPORT, &[(at, 4 * BLOCK)], WRITE)?;
    expect(at, at + 4 * BLOCK, true)
}

/// Parts of 2 MiB, and of pages: only whole pages go.
fn report_parts(driver: &mut Driver) -> Check {
    let at = blocks(1, 2);
    fill(at, at + 2 * BLOCK);
    driver.give(REPORT, &[(at + 0x3800, 0x5000), (at + BLOCK - 0x2000, 0x4000)], WRITE)?;
    expect(at, at + 0x4000, false)?;
    expect(at + 0x4000, at + 0x8000, true)?;
    expect(at + 0x8000, at + BLOCK - 0x2000, false)?;
    expect(at + BLOCK - 0x2000, at + BLOCK + 0x2000, true)?;
    expect(at + BLOCK + 0x2000, at + 2 * BLOCK, false)?;
    driver.give(REPORT, &[(at, 2 * BLOCK)], WRITE)?;
    expect(at, at + 2 * BLOCK, true)
}

/// 2 MiB that are mapped page by page, every other page of them.
fn report_pages(driver: &mut Driver) -> Check {
    let at = blocks(2, 1);
    fill(at, at + BLOCK);
    // It is split, and touched again by 4 KiB.
    driver.give(REPORT, &[(at, PAGE_BYTES)], WRITE)?;
    fill(at, at + BLOCK);
    for odd in (at + PAGE_BYTES..at + BLOCK).step_by(2 * PAGE_BYTES as usize).take(8) {
        driver.give(REPORT, &[(odd, PAGE_BYTES)], WRITE)?;
        expect(odd - PAGE_BYTES, odd, false)?;
        expect(odd, odd + PAGE_BYTES, true)?;
    }
    driver.give(REPORT, &[(at, BLOCK)], WRITE)?;
    expect(at, at + BLOCK, true)
}

/// A report of as many buffers as Linux uses, by a table of descriptors; and one of as many as there can be, one behind
/// the other.
fn report_many(driver: &mut Driver) -> Check {
    let at = blocks(3, 4);
    fill(at, at + 4 * BLOCK);
    let mut pieces = [(0, 0); SIZE as usize];
    for (n, piece) in (0..).zip(&mut pieces) {
        *piece = (at + n * (BLOCK / 16), BLOCK / 16 - PAGE_BYTES);
    }
    for _ in 0..2 {
        driver.give(REPORT, &pieces, WRITE)?;
        for (gpa, bytes) in pieces {
            expect(gpa, gpa + bytes, true)?;
            expect(gpa + bytes, gpa + bytes + PAGE_BYTES, false)?;
        }
        fill(at, at + 4 * BLOCK);
    }
    let mut buffers = [(0, 0); 32];
    for (n, buffer) in (0..).zip(&mut buffers) {
        *buffer = (at + n * (BLOCK / 8), BLOCK / 16);
    }
    driver.give_by_table(REPORT, ram::pages(1)[0].address(), &buffers, WRITE)?;
    for (gpa, bytes) in buffers {
        expect(gpa, gpa + bytes, true)?;
        expect(gpa + bytes, gpa + 2 * bytes, false)?;
    }
    Ok(())
}

fn report_nothing(driver: &mut Driver) -> Check {
    let at = blocks(4, 1);
    poke(at, 1);
    driver.give(REPORT, &[(at, 0), (at + 0x800, 0x800), (at + 0x800, 0x400)], WRITE)?;
    driver.give(REPORT, &[(at, 4095)], WRITE)?;
    ensure_eq!(peek(at), 1, "a part of a page");
    Ok(())
}

/// Writes a list of pages: every other one of a range.
fn list(at: u64, count: u64) -> (u64, u64) {
    let list = ram::pages(1)[0].address();
    let page = |n: u64| (at / PAGE_BYTES + 2 * n) & 0xffff_ffff;
    for n in 0..count / 2 {
        poke(list + 8 * n, page(2 * n) | page(2 * n + 1) << 32);
    }
    (list, 4 * count)
}

fn inflate(driver: &mut Driver) -> Check {
    let at = blocks(5, 1);
    fill(at, at + BLOCK);
    driver.give(INFLATE, &[list(at, 256)], 0)?;
    for even in (at..at + BLOCK).step_by(2 * PAGE_BYTES as usize) {
        expect(even, even + PAGE_BYTES, true)?;
        expect(even + PAGE_BYTES, even + 2 * PAGE_BYTES, false)?;
    }
    Ok(())
}

/// Deflating changes nothing, and what comes back is as good as any other.
fn deflate(driver: &mut Driver) -> Check {
    let at = blocks(6, 1);
    fill(at, at + BLOCK);
    let list = list(at, 64);
    driver.give(INFLATE, &[list], 0)?;
    driver.give(DEFLATE, &[list], 0)?;
    set(0x104, 64);
    ensure_eq!(get(0x104), 64, "pages in the balloon");
    expect(at + 128 * PAGE_BYTES, at + BLOCK, false)?;
    fill(at, at + BLOCK);
    expect(at, at + BLOCK, false)
}

/// Many pieces of any size, beside a map of what is there.
fn random(driver: &mut Driver) -> Check {
    let (at, mut random) = (blocks(7, 2), Random::of(9));
    const PAGES: usize = 1024;
    let mut is_filled = [false; PAGES];
    for _ in 0..120 {
        let start = random.below(PAGES as u64);
        let pages = random.any(&[1, 1, 3, 64, 512, 1024]).min(PAGES as u64 - start);
        let (from, range) = (at + start * PAGE_BYTES, start as usize..(start + pages) as usize);
        if random.below(2) == 0 {
            fill(from, from + pages * PAGE_BYTES);
            is_filled[range].fill(true);
        } else {
            driver.give(REPORT, &[(from, pages * PAGE_BYTES)], WRITE)?;
            is_filled[range].fill(false);
        }
        for _ in 0..8 {
            let page = random.below(PAGES as u64);
            let from = at + page * PAGE_BYTES;
            expect(from, from + PAGE_BYTES, !is_filled[page as usize])?;
        }
    }
    Ok(())
}

/// Its line reaches the PLIC, and follows what the driver acknowledges.
fn interrupt(driver: &mut Driver) -> Check {
    const PENDING: u64 = 0x0c00_1000;
    let is_pending = || in32(PENDING) & 2 != 0;
    ensure!(!is_pending(), "pending at the start");
    describe(driver.rings[2].table, 0, (blocks(8, 1), PAGE_BYTES), WRITE, 0);
    driver.publish(REPORT, 0);
    ensure!(is_pending(), "not pending");
    // The driver wants none.
    set(0x064, 1);
    poke(driver.rings[2].driver, peek(driver.rings[2].driver) | 1);
    driver.publish(REPORT, 0);
    ensure_eq!(get(driver::INTERRUPTS), 0, "an unwanted interrupt");
    Ok(())
}

/// The page at `TEST_VA`, mapped by tables one of which is about to go.
fn mapped() -> Result<(Space, &'static Page), guests::Text> {
    let (space, page) = (Space::rooted(&ram::pages(1)[0], &SV39, 0), &ram::pages(1)[0]);
    // The tables come from free RAM, not from the image.
    let middle = ram::pages(1)[0].address();
    space.slot(TEST_VA, Level::GIGA).store(paging::pointer(middle), Relaxed);
    space.slot(TEST_VA, Level::MEGA).store(paging::pointer(ram::pages(1)[0].address()), Relaxed);
    space.map(TEST_VA, page.address(), RW);
    space.enter();
    ensure_eq!(access::ld(TEST_VA), Ok(0), "through the tables");
    ensure_eq!(access::sd(TEST_VA, 5), Ok(()), "through the tables");
    Ok((space, page))
}

/// A table of the guest's own is gone: its entries are zero.
fn own_tables(driver: &mut Driver) -> Check {
    let (space, page) = mapped()?;
    let leaves = rv::Pte(space.slot(TEST_VA, Level::MEGA).load(Relaxed)).pfn::<rv::Hpa>().base().raw();
    let given = driver.give(REPORT, &[(leaves, PAGE_BYTES)], WRITE);
    paging::fence_page(TEST_VA);
    let found = access::ld(TEST_VA);
    // The table is as good as a new one.
    space.map(TEST_VA, page.address(), RW);
    paging::fence_page(TEST_VA);
    let again = access::ld(TEST_VA);
    paging::leave();
    given?;
    ensure!(found.is_err_and(|trap| trap.cause == 13), "with a table of zeros: {found:x?}");
    ensure_eq!(again, Ok(5), "with a new entry");
    Ok(())
}

/// A table of tables goes, and what it led to is as it was.
fn own_root(driver: &mut Driver) -> Check {
    let (space, page) = mapped()?;
    let leaves = space.slot(TEST_VA, Level::MEGA).load(Relaxed);
    let middle = rv::Pte(space.slot(TEST_VA, Level::GIGA).load(Relaxed)).pfn::<rv::Hpa>().base().raw();
    let given = driver.give(REPORT, &[(middle, PAGE_BYTES)], WRITE);
    metal::fence::sfence_all();
    let found = access::ld(TEST_VA);
    space.slot(TEST_VA, Level::MEGA).store(leaves, Relaxed);
    metal::fence::sfence_all();
    let again = access::ld(TEST_VA);
    paging::leave();
    given?;
    ensure!(found.is_err_and(|trap| trap.cause == 13), "with a table of zeros: {found:x?}");
    ensure_eq!((again, page.0[0].load(Relaxed)), (Ok(5), 5), "with the old entry");
    Ok(())
}

/// A page that thousands of leaves lead to goes, and then a table whose entries are all in use.
fn many_leaves(driver: &mut Driver) -> Check {
    const TABLES: u64 = 8;
    let (space, page) = (Space::rooted(&ram::pages(1)[0], &SV39, 0), &ram::pages(1)[0]);
    let tables = ram::pages(TABLES as usize);
    space.slot(TEST_VA, Level::GIGA).store(paging::pointer(ram::pages(1)[0].address()), Relaxed);
    for (n, table) in (0..).zip(tables) {
        space.slot(TEST_VA + n * BLOCK, Level::MEGA).store(paging::pointer(table.address()), Relaxed);
    }
    let all = || (TEST_VA..TEST_VA + TABLES * BLOCK).step_by(PAGE_BYTES as usize);
    all().for_each(|at| space.map(at, page.address(), RW));
    page.0[0].store(7, Relaxed);
    space.enter();
    let seen = all().filter(|at| peek(*at) == 7).count();
    let given = driver.give(REPORT, &[(page.address(), PAGE_BYTES)], WRITE);
    let gone = all().filter(|at| peek(*at) == 0).count();
    let given = given.and_then(|()| driver.give(REPORT, &[(tables[3].address(), PAGE_BYTES)], WRITE));
    metal::fence::sfence_all();
    let traps = all().filter(|at| access::ld(*at).is_err()).count();
    paging::leave();
    given?;
    ensure_eq!(
        (seen, gone, traps),
        (4096, 4096, 512),
        "leaves that led to the page, and no more, and those of the table"
    );
    Ok(())
}

static IMAGE: Page = Page([const { AtomicU64::new(0x1111_2222_3333_4444) }; 512]);

/// A page of the image is the image's again.
fn own_image(driver: &mut Driver) -> Check {
    for round in 0..3 {
        ensure_eq!(IMAGE.0[7].load(Relaxed), 0x1111_2222_3333_4444, "the image, round {round}");
        IMAGE.0[7].store(round, Relaxed);
        ensure_eq!(IMAGE.0[7].load(Relaxed), round, "a store, round {round}");
        driver.give(REPORT, &[(IMAGE.address(), PAGE_BYTES)], WRITE)?;
    }
    Ok(())
}

/// The rings are gone, and all that they said: the device can make nothing of them.
fn own_rings(driver: &mut Driver) -> Check {
    let rings = driver.rings[2];
    describe(rings.table, 0, (rings.table, 0x3000), WRITE, 0);
    driver.publish(REPORT, 0);
    // What was given back was written after that.
    ensure_eq!((peek(rings.table), get16(rings.device + 2)), (0, 1), "after it went");
    ensure_eq!(get(STATUS), LIVE | NEEDS_RESET, "an index that went back");
    driver.start_over()?;
    driver.give(REPORT, &[(blocks(8, 1), BLOCK)], WRITE)
}

fn wild_buffers(driver: &mut Driver) -> Check {
    let (start, end, own) = (board().ram_start, board().ram_end(), blocks(9, 1));
    fill(own, own + BLOCK);
    for (gpa, bytes) in [
        (0, BLOCK),
        (driver::DEVICE, PAGE_BYTES),
        (start - BLOCK, 2 * BLOCK),
        (end - PAGE_BYTES, 2 * PAGE_BYTES),
        (end, 0xffff_ffff),
        (start, 0xffff_ffff),
        (u64::MAX - 4095, 0xffff_ffff),
        (u64::MAX, 1),
        (1 << 63, BLOCK),
        (own, 0),
    ] {
        driver.give(REPORT, &[(gpa, bytes), (gpa, bytes)], WRITE)?;
        // A list that is all of RAM would be read to its end.
        let is_ram = (start..end).contains(&gpa);
        driver.give(INFLATE, &[(gpa, if is_ram { bytes.min(64) } else { bytes })], 0)?;
        driver.give(DEFLATE, &[(gpa, bytes)], 0)?;
    }
    // Not to be read, and not to be written.
    driver.give(REPORT, &[(own, BLOCK)], 0)?;
    driver.give(INFLATE, &[(own, PAGE_BYTES)], WRITE)?;
    expect(own, own + BLOCK, false)
}

fn wild_rings(driver: &mut Driver) -> Check {
    type Wild = fn(&driver::Rings);
    let ways: [Wild; 12] = [
        // The index runs ahead by more than there is.
        |rings| put16(rings.driver + 2, SIZE as u16 + 1),
        |rings| put16(rings.driver + 2, 0xffff),
        // No such descriptor, at the head and behind it.
        |rings| put16(rings.driver + 4, SIZE as u16),
        |rings| put16(rings.driver + 4, 0xffff),
        |rings| describe(rings.table, 0, (0x8000_0000, 0), NEXT, SIZE),
        // Loops, of one and of two.
        |rings| describe(rings.table, 0, (0x8000_0000, 0), NEXT, 0),
        |rings| {
            describe(rings.table, 0, (0x8000_0000, 0), NEXT, 1);
            describe(rings.table, 1, (0x8000_0000, 0), NEXT, 0);
        },
        // One to be read after one to be written.
        |rings| describe(rings.table, 0, (0x8000_0000, 0), NEXT | WRITE, 1),
        // Tables of half a descriptor, of none, of too many, and one that is to be followed.
        |rings| describe(rings.table, 0, (rings.table + 0x800, 24), INDIRECT, 0),
        |rings| describe(rings.table, 0, (rings.table + 0x800, 0), INDIRECT, 0),
        |rings| describe(rings.table, 0, (rings.table + 0x800, 16 * (SIZE + 1)), INDIRECT, 0),
        |rings| describe(rings.table, 0, (rings.table + 0x800, 16), INDIRECT | NEXT, 1),
    ];
    let more: [Wild; 3] = [
        // A table in a table, one that goes round, and one where there is no memory.
        |rings| {
            describe(rings.table, 0, (rings.table + 0x800, 32), INDIRECT, 0);
            describe(rings.table + 0x800, 0, (rings.table + 0x800, 32), INDIRECT, 0);
        },
        |rings| {
            describe(rings.table, 0, (rings.table + 0x800, 16), INDIRECT, 0);
            describe(rings.table + 0x800, 0, (0x8000_0000, 0), NEXT, 0);
        },
        |rings| describe(rings.table, 0, (board().ram_end() - 16, 32), INDIRECT, 0),
    ];
    for queue in [INFLATE, DEFLATE, REPORT] {
        for (way, wild) in ways.iter().chain(&more).enumerate() {
            driver.start_over()?;
            let rings = driver.rings[queue as usize];
            put16(rings.driver + 2, 1);
            wild(&rings);
            set(0x050, queue);
            ensure_eq!(get(STATUS), LIVE | NEEDS_RESET, "way {way} of queue {queue}");
            ensure_eq!(get(driver::INTERRUPTS), 2, "the driver is told of way {way}");
            set(0x050, queue);
            ensure_eq!(get16(rings.device + 2), 0, "nothing comes back by way {way}");
        }
    }
    // Where there is no memory, or none that can be a ring.
    for queue in [INFLATE, DEFLATE, REPORT] {
        for place in [0x1000, driver::DEVICE, board().ram_end(), 1 << 62, u64::MAX - 0xfff] {
            for part in 0..3 {
                driver.start_over()?;
                let mut rings = driver.rings[queue as usize];
                put16(rings.driver + 2, 1);
                *[&mut rings.table, &mut rings.driver, &mut rings.device][part] = place;
                set(0x030, queue);
                set(0x044, 0);
                driver::set_queue(queue, &rings);
                set(0x050, queue);
                ensure_eq!(get(STATUS), LIVE | NEEDS_RESET, "part {part} of queue {queue} at {place:#x}");
            }
        }
    }
    driver.start_over()?;
    driver.give(REPORT, &[(blocks(8, 1), BLOCK)], WRITE)
}

/// Lists of pages that are none, and lists that are none.
fn wild_lists(driver: &mut Driver) -> Check {
    let list = ram::pages(1)[0].address();
    let own = blocks(9, 1);
    for n in 0..256 {
        poke(list + 8 * n, 0x0012_3456_ffff_ffff ^ n << 40);
    }
    driver.give(INFLATE, &[(list, 2048), (list + 1, 7), (list + 2047, 5), (list, 3)], 0)?;
    // More of a list than there is memory, with one page of it over and over.
    poke(list, own >> 12 | (own >> 12) << 32);
    driver.give(INFLATE, &[(list, 8), (board().ram_end() - 8, 64), (board().ram_end() - 4096, 8192)], 0)?;
    expect(own, own + PAGE_BYTES, true)
}

static STOP: AtomicU64 = AtomicU64::new(0);
static TROUBLE: AtomicU64 = AtomicU64::new(0);

/// Other harts use the pages that go: what they read there is what they have stored, or nothing.
fn other_harts(driver: &mut Driver) -> Check {
    fn job(at: u64) {
        let (at, mut random) = (at + 8 * hart::id(), Random::of(3));
        while STOP.load(Relaxed) == 0 {
            let page = at + random.below(2 * BLOCK / PAGE_BYTES) * PAGE_BYTES;
            let value = peek(page);
            if value != 0 && value != pattern(page) {
                TROUBLE.store(page, Relaxed);
            }
            poke(page, pattern(page));
        }
    }
    let at = blocks(10, 2);
    STOP.store(0, Relaxed);
    board().other_harts().try_for_each(|other| hart::start(other, job, at))?;
    let mut random = Random::of(4);
    let done = (0..60).try_for_each(|_| {
        let (start, pages) = (random.below(1024), random.any(&[1, 16, 512, 1024]).min(1024));
        let pages = pages.min(1024 - start);
        driver.give(REPORT, &[(at + start * PAGE_BYTES, pages * PAGE_BYTES)], WRITE)
    });
    STOP.store(1, Relaxed);
    board().other_harts().try_for_each(hart::join)?;
    done?;
    ensure_eq!(TROUBLE.load(Relaxed), 0, "a page that held what was never stored");
    // Reported memory that is no longer used stays away.
    driver.give(REPORT, &[(at, 2 * BLOCK)], WRITE)?;
    let found = (at..at + 2 * BLOCK).step_by(PAGE_BYTES as usize).find(|page| peek(*page) != 0);
    ensure_eq!(found, None, "a page that is not zero");
    Ok(())
}

/// Other harts reset the device while it works.
fn reset_meanwhile(driver: &mut Driver) -> Check {
    fn job(_: u64) {
        while STOP.load(Relaxed) == 0 {
            set(STATUS, 0);
            core::hint::spin_loop();
        }
    }
    let at = blocks(11, 4);
    STOP.store(0, Relaxed);
    board().other_harts().try_for_each(|other| hart::start(other, job, 0))?;
    for _ in 0..30 {
        fill(at, at + BLOCK);
        // Whatever comes of it: it may have been reset before, in between, and after.
        let _ = driver.start_over();
        let _ = driver.give(REPORT, &[(at, 4 * BLOCK)], WRITE);
    }
    STOP.store(1, Relaxed);
    board().other_harts().try_for_each(hart::join)?;
    driver.start_over()?;
    fill(at, at + BLOCK);
    driver.give(REPORT, &[(at, 4 * BLOCK)], WRITE)?;
    expect(at, at + 4 * BLOCK, true)
}

/// The device tree is memory as any other.
fn own_tree(driver: &mut Driver) -> Check {
    let at = board().tree_at;
    ensure!(at.is_multiple_of(PAGE_BYTES) && peek(at) != 0, "the tree at {at:#x}");
    driver.give(REPORT, &[(at, PAGE_BYTES)], WRITE)?;
    ensure_eq!(peek(at), 0, "the tree");
    Ok(())
}
