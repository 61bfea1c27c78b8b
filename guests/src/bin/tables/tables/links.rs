//! Tables that are linked more than once, to themselves, and from pointers that change.

use super::{ASID, PAGE, ensure_gone, ensure_shows, far, mark, scratch};
use core::sync::atomic::Ordering::Relaxed;
use guests::fences;
use guests::paging::{Page, RW, Space, leaf, pointer};
use guests::{Check, access, ensure_eq, expect};
use metal::fence;
use rv::{Format, Level};

/// One table at two places of a root, in two roots, and at two levels: an edit shows in all.
pub fn twice(format: &'static Format) -> Check {
    let spaces = [Space::new(format, ASID), Space::new(format, ASID + 1)];
    let pages = scratch();
    let table = &pages[3];
    // Where the table's entry maps a superpage's first page, it maps the whole of it one level up.
    let blocks = [&pages[0..512], &pages[512..1024]];
    for (number, block) in blocks.iter().enumerate() {
        mark(&block[0], 10 + number as u64);
        mark(&block[400], 20 + number as u64);
    }
    let base = far(format);
    let (one, two, above) = (base, base + (6 << 20), base + (1 << 30));
    for space in &spaces {
        space.slot(one, Level::MEGA).store(pointer(table.address()), Relaxed);
        space.slot(two, Level::MEGA).store(pointer(table.address()), Relaxed);
    }
    spaces[0].slot(above, Level::GIGA).store(pointer(table.address()), Relaxed);
    spaces[0].enter();
    const INDEX: u64 = 9;
    let in_pages = [one + INDEX * PAGE, two + INDEX * PAGE];
    let in_superpage = above + (INDEX << Level::MEGA.shift());
    for fence in fences::all() {
        let fence_all = || {
            for at in in_pages.into_iter().chain([in_superpage]) {
                [ASID, ASID + 1].into_iter().for_each(|asid| fence.make(at, asid));
            }
        };
        for round in 0..4 {
            let number = round % 2;
            table.0[INDEX as usize].store(leaf(blocks[number][0].address(), RW), Relaxed);
            fence_all();
            for space in &spaces {
                space.switch();
                for at in in_pages {
                    ensure_shows(at, 10 + number as u64, fence.name)?;
                }
            }
            spaces[0].switch();
            ensure_shows(in_superpage, 10 + number as u64, fence.name)?;
            ensure_shows(in_superpage + 400 * PAGE, 20 + number as u64, fence.name)?;
        }
        // Good as a page, misaligned as a superpage.
        table.0[INDEX as usize].store(leaf(blocks[1][400].address(), RW), Relaxed);
        fence_all();
        ensure_shows(in_pages[1], 21, fence.name)?;
        ensure_gone(in_superpage, fence.name)?;
        // A pointer one level up, reserved here: the superpage becomes pages.
        table.0[INDEX as usize].store(pointer(table.address()), Relaxed);
        table.0[INDEX as usize + 1].store(leaf(blocks[0][400].address(), RW), Relaxed);
        fence::sfence_all();
        ensure_gone(in_pages[0], fence.name)?;
        ensure_shows(in_superpage + (INDEX + 1) * PAGE, 20, fence.name)?;
        table.0[INDEX as usize + 1].store(0, Relaxed);
        table.0[INDEX as usize].store(0, Relaxed);
        fence::sfence_all();
        ensure_gone(in_superpage, fence.name)?;
    }
    Ok(())
}

/// The root's entry that points to the root.
const SELF: u64 = 300;
/// The entry of every table that maps the table itself, as a page.
const OWN: u64 = 301;

/// The address at which the table shows that a walk along `path` (indices, the root's first) leads to.
fn window(format: &Format, path: &[u64]) -> u64 {
    let turns = usize::from(format.levels) - 1 - path.len();
    let indices = core::iter::repeat_n(SELF, turns).chain(path.iter().copied()).chain([OWN]);
    let at = indices.fold(0, |at, index| at << 9 | index) << rv::PAGE_SHIFT;
    // Sign-extended: the root's entries in use lie in the upper half.
    let spare = 64 - format.input_bits();
    (((at << spare) as i64) >> spare) as u64
}

/// A root that points to itself shows all its tables, and all mapping is done through that.
pub fn recursive(format: &'static Format) -> Check {
    let (space, pages) = (Space::new(format, ASID), scratch());
    let root = space.root();
    mark(&pages[600], 30);
    mark(&pages[601], 31);
    root.0[SELF as usize].store(pointer(root.address()), Relaxed);
    root.0[OWN as usize].store(leaf(root.address(), RW), Relaxed);
    space.enter();
    let own_root = window(format, &[]);
    ensure_eq!(access::ld(own_root + 8 * SELF), Ok(pointer(root.address())), "the root's entry for itself");
    // The same entry is a superpage in the root itself, and not aligned.
    let spare = 64 - format.input_bits();
    let superpage = ((OWN << format.root_level().shift() << spare) as i64 >> spare) as u64;
    ensure_gone(superpage, "a misaligned superpage")?;
    for round in 0..4_u64 {
        // New tables, from the root down, each linked through the window of the one above.
        let path: [u64; 5] = core::array::from_fn(|step| 100 + round * 7 + step as u64);
        let depth = usize::from(format.levels) - 1;
        for step in 0..depth {
            let table: &Page = &pages[step];
            table.0.iter().for_each(|entry| entry.store(0, Relaxed));
            table.0[OWN as usize].store(leaf(table.address(), RW), Relaxed);
            let above = window(format, &path[..step]);
            ensure_eq!(access::sd(above + 8 * path[step], pointer(table.address())), Ok(()), "linking a table");
            fence::sfence_all();
        }
        let entry = window(format, &path[..depth]) + 8 * path[depth];
        let at = path[..=depth].iter().fold(0, |at, index| at << 9 | index) << rv::PAGE_SHIFT;
        for number in [30, 31, 30] {
            let page = &pages[570 + number as usize];
            ensure_eq!(access::sd(entry, leaf(page.address(), RW)), Ok(()), "mapping a page");
            guests::paging::fence_page(at);
            ensure_shows(at, number, "mapped through a window")?;
        }
        access::poke(entry, 0);
        guests::paging::fence_page(at);
        ensure_gone(at, "unmapped through a window")?;
        ensure_eq!(access::sd(own_root + 8 * path[0], 0), Ok(()), "unlinking all");
        fence::sfence_all();
        ensure_gone(entry, "the window of an unlinked table")?;
    }
    // The root closes its own window, and it is opened again from outside.
    access::poke(own_root + 8 * SELF, 0);
    fence::sfence_all();
    ensure_gone(own_root, "the window closed")?;
    root.0[SELF as usize].store(pointer(root.address()), Relaxed);
    fence::sfence_all();
    ensure_eq!(access::ld(own_root + 8 * SELF), Ok(pointer(root.address())), "the window opened again");
    Ok(())
}

/// At each level a pointer in use is bent to another table, made a hole, and bent back, followed by each
/// fence that orders pointers.
pub fn live_pointers(format: &'static Format) -> Check {
    let (space, pages) = (Space::new(format, ASID), scratch());
    let at = far(format) + (5 << 20);
    // Two chains of tables, from the leaf up, of which each could replace the other from any level on.
    let mut next_table = pages.iter();
    let mut chain = |number: u64| {
        let page = &pages[600 + number as usize];
        mark(page, 40 + number);
        let mut below = leaf(page.address(), RW);
        let mut entries = [0; 5];
        for level in 0..usize::from(format.levels) - 1 {
            let table = next_table.next().expect("there are hundreds");
            table.0[(at >> (12 + 9 * level)) as usize & 511].store(below, Relaxed);
            below = pointer(table.address());
            entries[level + 1] = below;
        }
        entries
    };
    let chains = [chain(0), chain(1)];
    space.enter();
    space.slot(at, format.root_level()).store(chains[0][usize::from(format.root_level().number())], Relaxed);
    fence::sfence_all();
    ensure_shows(at, 40, "at first")?;
    for fence in fences::wide() {
        for level in format.levels_down().filter(|level| *level != Level::PAGE) {
            let slot = space.slot(at, level);
            for number in [1, 0, 1, 0] {
                slot.store(chains[number][usize::from(level.number())], Relaxed);
                fence.make(at, ASID);
                ensure_shows(at, 40 + number as u64, fence.name)?;
            }
            slot.store(0, Relaxed);
            fence.make(at, ASID);
            let stored = access::sd(at, 1);
            let is_fault = stored.is_err_and(|trap| (trap.cause, trap.tval) == (expect::STORE_PAGE, at));
            ensure_eq!(is_fault, true, "a store below a hole of level {}, {}", level.number(), fence.name);
            slot.store(chains[0][usize::from(level.number())], Relaxed);
            fence.make(at, ASID);
            ensure_shows(at, 40, fence.name)?;
        }
    }
    Ok(())
}
