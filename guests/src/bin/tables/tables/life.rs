//! Pages that are tables of one kind, then data, then tables of another kind; superpages that become
//! tables and superpages again; more tables than a hypervisor may want to shadow.

use super::{ASID, PAGE, ensure_gone, ensure_shows, far, mark, scratch};
use core::sync::atomic::Ordering::Relaxed;
use guests::fences::{self, Fence};
use guests::paging::{self, Page, RO, RW, RWX, Space, leaf, pointer};
use guests::{Check, access, ensure, ensure_eq, ram};
use metal::fence;
use rv::{Format, Level};
use spin::Once;

/// The role of a page for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Leaves,
    Middle,
    Root,
    Data,
}

const ROLES: [Role; 4] = [Role::Leaves, Role::Middle, Role::Root, Role::Data];

/// A page in every role after every other, with the fences that order pointers in turn.
pub fn recycled(format: &'static Format) -> Check {
    let (space, pages) = (Space::new(format, ASID), scratch());
    let life =
        Life { space, page: &pages[40], leaves: &pages[41], targets: [&pages[512], &pages[601]], at: far(format) };
    life.targets.iter().zip([50, 51]).for_each(|(page, number)| mark(page, number));
    // A second view, for the data that is in it at times.
    space.map(life.window(), life.page.address(), RW);
    space.enter();
    let mut fences = fences::wide().cycle();
    for before in ROLES {
        for after in ROLES {
            let fence = fences.next().expect("endless");
            life.live(before, &fence)?;
            life.live(after, &fence)?;
        }
    }
    Ok(())
}

/// The page that is recycled, a table for below it, two targets (the first superpage-aligned) and where all
/// this happens.
struct Life {
    space: Space,
    page: &'static Page,
    leaves: &'static Page,
    targets: [&'static Page; 2],
    at: u64,
}

impl Life {
    fn window(&self) -> u64 {
        self.at + (64 << 20)
    }

    fn live(&self, role: Role, fence: &Fence) -> Check {
        self.page.0.iter().for_each(|word| word.store(0, Relaxed));
        match role {
            Role::Leaves => self.as_leaves(fence),
            Role::Middle => self.as_middle(fence),
            Role::Root => self.as_root(fence),
            Role::Data => self.as_data(),
        }
    }

    /// Unlinked and fenced, the page is no longer a table.
    fn unlink(&self, level: Level, at: u64, fence: &Fence) -> Check {
        self.space.slot(at, level).store(0, Relaxed);
        fence.make(at, ASID);
        ensure_gone(at, fence.name)
    }

    fn as_leaves(&self, fence: &Fence) -> Check {
        self.page.0[0].store(leaf(self.targets[0].address(), RW), Relaxed);
        self.space.slot(self.at, Level::MEGA).store(pointer(self.page.address()), Relaxed);
        fence.make(self.at, ASID);
        ensure_shows(self.at, 50, "through a table of leaves")?;
        self.page.0[0].store(leaf(self.targets[1].address(), RW), Relaxed);
        paging::fence_page(self.at);
        ensure_shows(self.at, 51, "through a table of leaves")?;
        self.unlink(Level::MEGA, self.at, fence)
    }

    fn as_middle(&self, fence: &Fence) -> Check {
        let at = self.at + (1 << 30);
        self.leaves.0[0].store(leaf(self.targets[1].address(), RW), Relaxed);
        self.page.0[0].store(pointer(self.leaves.address()), Relaxed);
        self.space.slot(at, Level::GIGA).store(pointer(self.page.address()), Relaxed);
        fence.make(at, ASID);
        ensure_shows(at, 51, "through a middle table")?;
        self.page.0[0].store(leaf(self.targets[0].address(), RW), Relaxed);
        fence.make(at, ASID);
        ensure_shows(at, 50, "through a superpage of a middle table")?;
        self.unlink(Level::GIGA, at, fence)
    }

    fn as_root(&self, fence: &Fence) -> Check {
        const OTHER: u64 = ASID + 1;
        let root = self.space.root();
        self.leaves.0[0].store(leaf(self.targets[0].address(), RW), Relaxed);
        self.space.slot(self.at, Level::MEGA).store(pointer(self.leaves.address()), Relaxed);
        let space = Space::rooted(self.page, self.space.format(), OTHER);
        self.page.0.iter().zip(&root.0).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        fence.make(self.at, OTHER);
        fence.make(self.at, ASID);
        space.switch();
        ensure_shows(self.at, 50, "under a root")?;
        // The root's own entry goes, and this shows in this root only.
        let slot = space.slot(self.at, space.format().root_level());
        slot.store(0, Relaxed);
        fence.make(self.at, OTHER);
        ensure_gone(self.at, fence.name)?;
        self.space.switch();
        ensure_shows(self.at, 50, "under the other root")?;
        self.unlink(Level::MEGA, self.at, fence)
    }

    /// Numbers that look like all sorts of entries stay as they were written.
    fn as_data(&self) -> Check {
        let pattern = |index: usize| {
            let frame = self.targets[index % 2].address() >> 12 << 10;
            (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 54 | frame | (index as u64 & 0xff)
        };
        for (index, word) in self.page.0.iter().enumerate() {
            let at =
                if index % 3 == 0 { self.window() + 8 * index as u64 } else { self.page.address() + 8 * index as u64 };
            ensure_eq!(access::sd(at, pattern(index)), Ok(()), "storing data");
            ensure_eq!(word.load(Relaxed), pattern(index), "data just stored");
        }
        for index in 0..512 {
            let found = access::ld(self.window() + 8 * index as u64);
            ensure_eq!(found, Ok(pattern(index)), "data in doubleword {index}");
        }
        Ok(())
    }
}

/// A superpage becomes 512 pages and one again: by way of a hole, or directly, which changes nothing for
/// those who use it meanwhile.
pub fn split_and_merged(format: &'static Format) -> Check {
    let (space, pages) = (Space::new(format, ASID), scratch());
    let (block, other) = pages.split_at(512);
    for (number, page) in pages.iter().enumerate() {
        mark(page, number as u64);
    }
    let table = paging::page();
    let at = far(format);
    let slot = space.slot(at, Level::MEGA);
    let ensure_all_show = |number: &dyn Fn(u64) -> u64, what: &str| {
        (0..512).step_by(5).chain([511]).try_for_each(|page| ensure_shows(at + page * PAGE, number(page), what))
    };
    let fill = |frames: &mut dyn Iterator<Item = &'static Page>, flags| {
        table.0.iter().zip(frames).for_each(|(entry, page)| entry.store(leaf(page.address(), flags), Relaxed));
    };
    space.enter();
    for fence in fences::wide() {
        slot.store(leaf(block[0].address(), RW), Relaxed);
        fence.make(at, ASID);
        ensure_all_show(&|page| page, "as a superpage")?;
        fill(&mut block.iter(), RW);
        slot.store(pointer(table.address()), Relaxed);
        ensure_all_show(&|page| page, "split, before the fence")?;
        fence.make(at, ASID);
        ensure_all_show(&|page| page, "split")?;
        // A page of its own, with fewer rights.
        table.0[77].store(leaf(block[77].address(), RO), Relaxed);
        paging::fence_page(at + 77 * PAGE);
        let stored = [76, 77, 78].map(|page| access::sd(at + page * PAGE + 8, page).is_ok());
        ensure_eq!(stored, [true, false, true], "stores around the read-only page, {}", fence.name);
        fill(&mut other.iter().rev(), RW);
        fence.make(at, ASID);
        ensure_all_show(&|page| 1023 - page, "as other pages in reverse")?;
        // Back by way of a hole.
        slot.store(0, Relaxed);
        fence.make(at, ASID);
        ensure_gone(at + 77 * PAGE, fence.name)?;
        slot.store(leaf(other[0].address(), RW), Relaxed);
        fence.make(at, ASID);
        ensure_all_show(&|page| 512 + page, "as another superpage")?;
        // Directly to and fro.
        fill(&mut block.iter(), RW);
        slot.store(pointer(table.address()), Relaxed);
        fence.make(at, ASID);
        ensure_all_show(&|page| page, "split into other pages")?;
        slot.store(leaf(block[0].address(), RW), Relaxed);
        ensure_all_show(&|page| page, "merged, before the fence")?;
        fence.make(at, ASID);
        ensure_all_show(&|page| page, "merged")?;
        // What was the table is not any more: to change it changes nothing.
        fill(&mut other.iter(), RWX);
        ensure_all_show(&|page| page, "merged, and the former table changed")?;
        fence.make(at, ASID);
        ensure_all_show(&|page| page, "merged, and the former table changed, fenced")?;
    }
    Ok(())
}

/// The number of leaf tables: more than the 2 MiB hold that `tests.toml` gives to shadow tables.
const TABLES: usize = 600;

/// Hundreds of tables of one page each, in several orders, some of them changed in between.
pub fn many(format: &'static Format) -> Check {
    static FRAMES: Once<&'static [Page]> = Once::new();
    let frames = *FRAMES.call_once(|| ram::pages(TABLES));
    let (space, pages) = (Space::new(format, ASID), scratch());
    for (number, page) in pages.iter().enumerate() {
        mark(page, 1000 + number as u64);
    }
    let base = far(format);
    let place = |table: usize| base + table as u64 * (2 << 20) + (table as u64 * 5 % 512) * PAGE;
    let set = |table: usize, shift: usize| {
        let frame = leaf(pages[(table + shift) % 1024].address(), RW);
        frames[table].0[table * 5 % 512].store(frame, Relaxed);
    };
    let ensure_shows = |table: usize, shift: usize| {
        let found = access::ld(place(table));
        ensure_eq!(found, Ok(1000 + (table + shift) as u64 % 1024), "table {table} with shift {shift}");
        Ok(())
    };
    for (table, frame) in frames.iter().enumerate() {
        frame.0.iter().for_each(|entry| entry.store(0, Relaxed));
        set(table, 0);
        space.slot(place(table), Level::MEGA).store(pointer(frame.address()), Relaxed);
    }
    space.enter();
    (0..TABLES).try_for_each(|table| ensure_shows(table, 0))?;
    (0..TABLES).try_for_each(|step| ensure_shows(step * 1013 % TABLES, 0))?;
    // Some change, each with a fence of its own, long after they were last used.
    for table in (0..TABLES).step_by(7) {
        set(table, 3);
        paging::fence_page(place(table));
        ensure_shows(table, 3)?;
    }
    (0..TABLES).rev().try_for_each(|table| ensure_shows(table, if table % 7 == 0 { 3 } else { 0 }))?;
    // All change, with one fence.
    (0..TABLES).for_each(|table| set(table, 9));
    fence::sfence_all();
    (0..TABLES).try_for_each(|table| ensure_shows(table, 9))?;
    // All are unlinked at once, and are untouched data.
    for table in 0..TABLES {
        space.slot(place(table), Level::MEGA).store(0, Relaxed);
    }
    fence::sfence_all();
    (0..TABLES).step_by(11).try_for_each(|table| ensure_gone(place(table), "unlinked"))?;
    frames.iter().flat_map(|frame| &frame.0).for_each(|word| word.store(0x5555, Relaxed));
    let is_intact = frames.iter().flat_map(|frame| &frame.0).all(|word| word.load(Relaxed) == 0x5555);
    ensure!(is_intact, "data in former tables changed");
    Ok(())
}
