//! BOUNDED: the largest tables that a guest can make, and operations that concern all of them. Each does no more than its
//! budget lets, and in the end each is done.
//!
//! What an operation takes is counted in accesses to memory, of which each stands for some six instructions.

use crate::engine::{self, HOST, Hardware, RAM};
use ::lane::FenceLog;
use mmu::gstage::in_portions;
use mmu::shadow::{Answer, Config, GuestFence, Host, Root, Shadow, Upkeep, Views};
use mmu::{AdPolicy, AddressSpace, AllocError, Frames, Object, Owner, Prot, Ready, ResolveError, Unresolved, Use};
use oracle::Machine;
use rv::format::SV39;
use rv::{Access, Addr, Asid, Gva, Hpa, PAGE_BYTES, Pfn, PhysMem, Request};
use std::cell::Cell;

/// Most accesses of an operation.
const MOST: u64 = 18_000;

const HOST_PAGES: u64 = 4096;
const IMAGE: Pfn<Hpa> = Pfn::new(0x20_0000);
const PAGES: u64 = 1024;
/// Guest pages: the root, the table below it, and the tables of leaves.
const ROOT: u64 = 0;
const MIDDLE: u64 = 1;
const LEAVES: u64 = 2;
const TABLES: u64 = 200;
/// The page that all leaves lead to.
const DATA: u64 = 300;
const IMAGE_PAGE: u64 = 512;

/// Memory that counts accesses.
struct Counting {
    machine: Machine,
    accesses: Cell<u64>,
}

impl Counting {
    fn count(&self) {
        self.accesses.set(self.accesses.get() + 1);
    }
}

impl PhysMem for Counting {
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        self.count();
        self.machine.read_u64(at)
    }
    fn write_u64(&mut self, at: Addr<Hpa>, value: u64) {
        self.count();
        self.machine.write_u64(at, value);
    }
    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64 {
        self.count();
        self.machine.exchange_u64(at, value)
    }
    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        self.count();
        self.machine.compare_exchange_u64(at, old, new)
    }
    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        self.machine.zero_frames(first, pages);
    }
    fn copy_frames(&mut self, from: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64) {
        self.machine.copy_frames(from, to, pages);
    }
    fn read_bytes(&self, at: Addr<Hpa>, into: &mut [u8]) {
        self.machine.read_bytes(at, into);
    }
    fn write_bytes(&mut self, at: Addr<Hpa>, from: &[u8]) {
        self.machine.write_bytes(at, from);
    }
}

/// A guest with [`TABLES`] full tables of leaves, all of them shadowed where the bound lets it.
struct World {
    mem: Counting,
    frames: Frames,
    space: AddressSpace,
    shadow: Shadow,
    views: Views,
    log: FenceLog,
    root: Root,
    /// Most accesses of an operation so far.
    most: u64,
}

fn gva(table: u64, entry: u64) -> Addr<Gva> {
    Addr::new((table * 512 + entry) * PAGE_BYTES)
}

impl World {
    /// `target`: the page that all leaves lead to, with the permissions of `flags`.
    fn new(upkeep: Upkeep, pages: u32, target: u64, flags: u64) -> Self {
        let mut world = Self::untouched(upkeep, pages, target, flags);
        for table in 0..TABLES {
            (0..512).for_each(|entry| world.access(gva(table, entry), Access::Load));
        }
        world.most = 0;
        world
    }

    /// Likewise, but none of the guest's tables is shadowed yet.
    fn untouched(upkeep: Upkeep, pages: u32, target: u64, flags: u64) -> Self {
        let mut mem = Counting { machine: Machine::with_ram(HOST, HOST_PAGES), accesses: Cell::new(0) };
        mem.machine.add(IMAGE, 512);
        mem.zero_frames(IMAGE, 512);
        let mut frames = Frames::new();
        frames.add(HOST, HOST_PAGES);
        let regions = [(Prot::RWX, Object::Anonymous), (Prot::RWX, Object::Image { first: IMAGE })];
        let mut space = engine::space(&regions, &frames, &mut mem);
        let config = Config { upkeep, ad: AdPolicy::Svade, globals: true, pages, first_serial: 1, quiet_after: 0 };
        let mut shadow = engine::shadow(config, PAGES, &frames, &mut mem);
        let (mut views, log) = (Views::default(), FenceLog::new(0));
        let mut root = None;
        let what = (&SV39, ROOT, Asid(0));
        engine::attach(&mut shadow, &mut root, what, (&mut views, &log), (&mut space, &frames), &mut mem);
        let root = root.expect("it is loaded");
        let mut world = Self { mem, frames, space, shadow, views, log, root, most: 0 };
        let pointer = |page: u64| (RAM.raw() + page) << 10 | 1;
        world.poke(ROOT, 0, pointer(MIDDLE));
        for table in 0..TABLES {
            world.poke(MIDDLE, table, pointer(LEAVES + table));
            (0..512).for_each(|entry| world.poke(LEAVES + table, entry, (RAM.raw() + target) << 10 | flags));
        }
        world.fence();
        world
    }

    /// One operation of the engine, in as many portions as it takes.
    fn operate<R>(
        &mut self,
        mut operation: impl FnMut(&mut Shadow, Root, &mut Host<'_, Counting, Hardware>) -> Result<R, Unresolved>,
    ) -> R {
        let mut ready = Ready::Nothing;
        for _ in 0..1000 {
            let before = self.mem.accesses.get();
            let Self { mem, frames, space, shadow, root, .. } = self;
            let result = in_portions(frames, mem, &mut ready, |ready, mem| {
                operation(shadow, *root, &mut Host::new(space, (frames, ready), mem, &mut Hardware))
            });
            self.most = self.most.max(self.mem.accesses.get() - before);
            if let Some(result) = result.expect("frames") {
                ready.discard(&self.frames);
                return result;
            }
        }
        panic!("PROGRESS: an operation does not end");
    }

    /// A table's entry changes without that the engine sees it, as between two fences.
    fn poke(&mut self, page: u64, entry: u64, value: u64) {
        let hpa = self.operate(|shadow, _, host| shadow.resolve(RAM.add(page).base(), Access::Store, host));
        self.mem.write_u64(hpa.expect("RAM").pfn().at(8 * entry), value);
        self.shadow.host_wrote(RAM.add(page), &mut self.mem);
    }

    /// A fence of everything.
    fn fence(&mut self) {
        let before = self.mem.accesses.get();
        let (mut ready, mut hw) = (Ready::Nothing, Hardware);
        let mut host = Host::new(&mut self.space, (&self.frames, &mut ready), &mut self.mem, &mut hw);
        let fence = GuestFence { range: None, asid: None };
        self.shadow.fence(&fence, self.root, &mut self.views, &mut self.log, &mut host);
        self.most = self.most.max(self.mem.accesses.get() - before);
    }

    /// An access, with all the faults that it takes until it is possible.
    fn access(&mut self, gva: Addr<Gva>, access: Access) {
        let request = Request { sum: true, ..Request::supervisor(access) };
        for _ in 0..1000 {
            match self.operate(|shadow, root, host| shadow.fault(&root, gva, &request, host)) {
                Answer::Filled { .. } => return,
                Answer::Retry => {}
                other => panic!("{gva}: {other:?}"),
            }
        }
        panic!("PROGRESS: {gva}");
    }

    /// Like [`World::access`], but returns what the host lacks for it.
    fn try_access(&mut self, gva: Addr<Gva>) -> Result<(), ResolveError> {
        let request = Request { sum: true, ..Request::supervisor(Access::Load) };
        let mut ready = Ready::Nothing;
        for _ in 0..1000 {
            let Self { mem, frames, space, shadow, root, .. } = self;
            let answer = in_portions(frames, mem, &mut ready, |ready, mem| {
                shadow.fault(root, gva, &request, &mut Host::new(space, (frames, ready), mem, &mut Hardware))
            });
            match answer? {
                Some(Answer::Filled { .. }) => return Ok(()),
                Some(Answer::Retry) | None => {}
                other => panic!("{gva}: {other:?}"),
            }
        }
        panic!("PROGRESS: {gva}");
    }

    fn check(self, what: &str) {
        self.check_within(MOST, what);
    }

    /// With so many accesses at most.
    fn check_within(mut self, most: u64, what: &str) {
        let counters = *self.shadow.counters();
        assert!(self.most <= most, "BOUNDED: {what}: {} accesses in one operation", self.most);
        assert!(counters.postponed + counters.recycled > 0, "{what}: nothing was too much for one operation");
        // It goes on as before.
        self.access(gva(TABLES - 1, 511), Access::Load);
        println!("{what}: {} accesses at most, {} times postponed", self.most, counters.postponed);
        self.shadow.destroy().for_each(|run| self.frames.free(run));
    }
}

const ALL: [Upkeep; 4] = [Upkeep::Lazy, Upkeep::Unsync, Upkeep::Shadow, Upkeep::Steered];
const READ: u64 = 0xc3;
const READ_WRITE: u64 = 0xc7;

#[test]
fn a_fence_of_everything() {
    for upkeep in ALL {
        let mut world = World::new(upkeep, 512, DATA, READ_WRITE);
        // All tables say something else, and the upkeeps that protect have let them go.
        for table in 0..TABLES {
            for entry in 0..512 {
                world.poke(LEAVES + table, entry, (RAM.raw() + DATA + 1) << 10 | READ_WRITE);
            }
        }
        world.most = 0;
        world.fence();
        // A leaf that is made anew takes more for each access than what else there is to do.
        let most = if upkeep == Upkeep::Steered { 5500 } else { 11_500 };
        world.check_within(most, &format!("fence, {upkeep:?}"));
    }
}

#[test]
fn a_subtree_is_linked_again() {
    let mut world = World::new(Upkeep::Lazy, 512, DATA, READ_WRITE);
    world.poke(ROOT, 1, (RAM.raw() + MIDDLE) << 10 | 1);
    world.access(Addr::new(1 << 30), Access::Load);
    world.check("linked again");
}

#[test]
fn a_page_that_all_entries_lead_to_is_copied() {
    // `steered` copies a page at its first use, before so much leads there.
    for upkeep in [Upkeep::Lazy, Upkeep::Unsync, Upkeep::Shadow] {
        let mut world = World::new(upkeep, 512, IMAGE_PAGE, READ_WRITE);
        world.access(gva(0, 0), Access::Store);
        world.check(&format!("copied, {upkeep:?}"));
    }
}

#[test]
fn a_page_that_all_entries_lead_to_is_written_by_the_host() {
    for upkeep in ALL {
        let mut world = World::new(upkeep, 512, IMAGE_PAGE, READ);
        let store = RAM.add(IMAGE_PAGE).base();
        let there = world.operate(|shadow, _, host| shadow.resolve(store, Access::Store, host));
        assert!(there.is_some_and(|hpa| hpa.pfn() != IMAGE), "{upkeep:?}: {there:?} is the image's");
        world.check(&format!("written by the host, {upkeep:?}"));
    }
}

#[test]
fn a_page_that_all_entries_lead_to_becomes_a_table() {
    for upkeep in [Upkeep::Unsync, Upkeep::Shadow] {
        let mut world = World::new(upkeep, 512, DATA, READ_WRITE);
        world.poke(MIDDLE, TABLES, (RAM.raw() + DATA) << 10 | 1);
        world.poke(DATA, 0, (RAM.raw() + DATA + 1) << 10 | READ_WRITE);
        world.fence();
        world.access(gva(TABLES, 0), Access::Load);
        world.check(&format!("a table, {upkeep:?}"));
    }
}

#[test]
fn full_pages_are_recycled() {
    for upkeep in ALL {
        let mut world = World::new(upkeep, 128, DATA, READ_WRITE);
        for table in 0..TABLES {
            (0..512).for_each(|entry| world.access(gva(table, entry), Access::Load));
        }
        // No operation takes pages back and fills a whole one, too.
        world.check_within(5000, &format!("recycled, {upkeep:?}"));
    }
}

/// The guest has changed the first entry of all its tables, or all but the last, or all entries of some: a search for tables that are used
/// no more looks at much then, and finds none, or full ones.
#[test]
fn tables_that_seem_to_be_used_no_more_are_recycled() {
    for upkeep in ALL {
        for (of, entries) in [(1, 1), (1, 511), (2, 512), (1, 512)] {
            let mut world = World::new(upkeep, 128, DATA, READ_WRITE);
            for table in (0..TABLES).step_by(of) {
                (0..entries)
                    .for_each(|entry| world.poke(LEAVES + table, entry, (RAM.raw() + DATA + 1) << 10 | READ_WRITE));
            }
            world.most = 0;
            for table in 0..TABLES {
                (0..512).for_each(|entry| world.access(gva(table, entry), Access::Load));
            }
            // The search is part of what the operation may do. It compares whole tables where all but the last entry has changed.
            let most = if entries == 511 { 15_300 } else { 5_250 };
            world.check_within(most, &format!("recycled, {entries} entries of each {of}. table changed, {upkeep:?}"));
        }
    }
}

/// LEAST: where the host has no frames, an engine with few pages does not take them from itself.
#[test]
fn an_engine_that_lacks_its_least_asks_for_frames() {
    const LEAST: u32 = Config::ONE_INSTRUCTION;
    for upkeep in ALL {
        let mut world = World::untouched(upkeep, 64, DATA, READ_WRITE);
        world.shadow.keep_least(LEAST);
        let mut hoard: Vec<_> = std::iter::from_fn(|| world.frames.alloc(Owner::Host, Use::Other, 0).ok()).collect();
        let mut refusals = 0;
        for table in 0..TABLES {
            while let Err(why) = world.try_access(gva(table, 0)) {
                assert!(matches!(why, ResolveError::OutOfFrames(AllocError::OutOfMemory)), "{upkeep:?}: {why:?}");
                assert_eq!(world.shadow.counters().recycled, 0, "{upkeep:?}: it asks before it takes back any");
                refusals += 1;
                world.frames.free(hoard.pop().expect("it asks for its least only"));
            }
        }
        // Three frames or four for each page that it lacked, one after the other.
        assert!((LEAST..=4 * LEAST).contains(&refusals), "{upkeep:?}: {refusals} refusals");
        assert!(world.shadow.counters().recycled > 0, "{upkeep:?}: with its least it gets on");
        hoard.into_iter().for_each(|run| world.frames.free(run));
        world.shadow.destroy().for_each(|run| world.frames.free(run));
    }
}
