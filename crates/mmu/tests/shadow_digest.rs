//! What several roots share, and wide fences, in `steered`: global leaves that one of an address space leaves alone, and digests. A
//! guest of two roots edits, fences and comes and goes at random; after each fence, what hardware finds is compared with its tables.

use crate::engine::{self, HOST, Hardware, RAM, REGION};
use mmu::shadow::{Answer, Config, GuestFence, Host, MARK, Root, Sabotage, Shadow, Upkeep, Views};
use mmu::table::{State, is_poison};
use mmu::{AdPolicy, AddressSpace, Frames, Object, Prot, Ready, Unresolved, with_ready};
use oracle::Machine;
use rv::format::SV48;
use rv::{Access, Addr, Asid, FenceLog, Gpa, Gva, Hpa, Level, Pfn, PhysMem, Pte, PteFlags, Request};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Guest pages: two roots, the tables below both, and what leaves lead to.
const ROOTS: [u64; 2] = [0, 1];
const UPPER: u64 = 2;
const MIDDLE: [u64; 2] = [3, 4];
const TABLES: [u64; 4] = [5, 6, 7, 8];
const DATA: u64 = 16;
/// Entries of a table that are used: three times eight, and not the first.
const USED: std::ops::Range<u64> = 8..32;
/// Where `UPPER` is in both roots.
const PLACE: u64 = 3;

struct World {
    mem: Machine,
    frames: Frames,
    space: AddressSpace,
    shadow: Shadow,
    views: Views,
    log: FenceLog,
    root: Option<Root>,
    /// The global leaves that were somewhere since the last fence of all.
    global: BTreeSet<([u64; 4], Pfn<Hpa>)>,
    seed: u64,
}

const fn pointer(page: u64) -> u64 {
    (RAM.raw() + page) << 10 | 1
}

/// Readable, writable, with A and D.
const fn leaf(page: u64, global: bool) -> u64 {
    (RAM.raw() + page) << 10 | 0xc7 | (global as u64) << 5
}

fn gva(indices: [u64; 4]) -> Addr<Gva> {
    Addr::new(indices.into_iter().fold(0, |gva, index| gva << 9 | index) << 12)
}

impl World {
    fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let mut mem = Machine::with_ram(HOST, 2048);
        let mut frames = Frames::new();
        frames.add(HOST, 2048);
        let space = engine::space(&[(Prot::RWX, Object::Anonymous)], &frames, &mut mem);
        let config =
            Config { upkeep: Upkeep::Steered, ad: AdPolicy::Svade, globals: true, pages: 128, first_serial: 1 };
        let mut shadow = engine::shadow(config, REGION, &frames, &mut mem);
        if let Some(sabotage) = sabotage {
            shadow.sabotage(sabotage);
        }
        shadow.begin_lane(RAM.add(REGION), &frames, &mut mem);
        let (views, log) = (Views::default(), FenceLog::new(0));
        let mut world = Self { mem, frames, space, shadow, views, log, root: None, global: BTreeSet::new(), seed };
        for page in 0..DATA + 16 {
            let gpa = RAM.add(page).base();
            world.operate(|shadow, host| shadow.resolve(gpa, Access::Store, host)).expect("RAM");
        }
        ROOTS.into_iter().for_each(|root| world.store(root, PLACE, pointer(UPPER)));
        for (n, middle) in (0..).zip(MIDDLE) {
            world.store(UPPER, n, pointer(middle));
            for (n, table) in (0..).zip(&TABLES[2 * n as usize..][..2]) {
                world.store(middle, n, pointer(*table));
                USED.for_each(|index| world.store(*table, index, leaf(DATA + index % 16, true)));
            }
        }
        world.load(0);
        world
    }

    fn below(&mut self, n: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % n
    }

    fn operate<R>(
        &mut self,
        mut operation: impl FnMut(&mut Shadow, &mut Host<'_, Machine, Hardware>) -> Result<R, Unresolved>,
    ) -> R {
        let Self { mem, frames, space, shadow, .. } = self;
        let result = with_ready(frames, mem, |ready, mem| {
            shadow
                .alone(mem, |shadow, mem| operation(shadow, &mut Host::new(space, (frames, ready), mem, &mut Hardware)))
        });
        result.expect("frames")
    }

    fn there(&self, page: u64) -> Pfn<Hpa> {
        self.space.translate(RAM.add(page).base(), &self.mem).expect("it is mapped").hpa.pfn()
    }

    fn store(&mut self, page: u64, index: u64, value: u64) {
        let at = self.there(page).at(8 * index);
        self.mem.write_u64(at, value);
    }

    fn guests(&self, page: u64, index: u64) -> Pte {
        Pte(self.mem.read_u64(self.there(page).at(8 * index)))
    }

    /// The guest writes `satp`.
    fn load(&mut self, n: u64) {
        let (mut root, mut views, log) = (self.root, core::mem::take(&mut self.views), self.log.clone());
        let what = (&SV48, ROOTS[n as usize], Asid(n as u16 + 1));
        let Self { mem, frames, space, shadow, .. } = self;
        engine::attach(shadow, &mut root, what, (&mut views, &log), (space, frames), mem);
        (self.root, self.views) = (root, views);
    }

    fn fence(&mut self, fence: GuestFence) {
        let Self { mem, frames, space, shadow, views, log, root, .. } = self;
        let root = root.expect("one is loaded");
        shadow.alone(mem, |shadow, mem| {
            let (mut ready, mut hw) = (Ready::Nothing, Hardware);
            let mut host = Host::new(space, (frames, &mut ready), mem, &mut hw);
            shadow.fence(&fence, root, views, log, &mut host);
        });
    }

    /// The guest tries to get to an address.
    fn access(&mut self, gva: Addr<Gva>) {
        let root = self.root.expect("one is loaded");
        for _ in 0..10 {
            let request = Request::supervisor(Access::Load);
            if self.operate(|shadow, host| shadow.fault(&root, gva, &request, host)) != Answer::Retry {
                return;
            }
        }
        panic!("PROGRESS: {gva}");
    }

    /// The entry that hardware finds, if marked pointers lead to one.
    fn entry(&self, gva: Addr<Gva>) -> Option<Pte> {
        let mut table = self.root.expect("one is loaded").table;
        for level in [3, 2, 1] {
            let shift = Level::PAGE.shift() + 9 * level;
            let pte = Pte(self.mem.read_u64(table.at((gva.raw() >> shift & 511) * 8)));
            if is_poison(pte) || !pte.flags().contains(MARK) {
                return None;
            }
            table = pte.pfn();
        }
        Some(Pte(self.mem.read_u64(table.at((gva.raw() >> 12 & 511) * 8))))
    }

    /// What the guest's tables say of an address.
    fn walk(&self, [_, upper, middle, index]: [u64; 4]) -> Pte {
        let down = |page, index| {
            let pte = self.guests(page, index);
            pte.is_pointer().then(|| pte.pfn::<Gpa>().raw() - RAM.raw())
        };
        let table = down(UPPER, upper).and_then(|page| down(page, middle));
        table.map_or(Pte::INVALID, |page| self.guests(page, index))
    }

    /// After a fence of all addresses: whatever hardware finds is what the guest's tables say, or a global leaf that they said once,
    /// where the fence was about one address space.
    fn check(&self, about_all: bool) {
        for at in addresses() {
            let Some(found) = self.entry(gva(at)).filter(|found| !is_poison(*found)) else { continue };
            let is_leaf = State::of(found) == State::Leaf;
            let agrees = self.leaf(at).map_or(!is_leaf, |(leaf, _)| is_leaf && found.pfn() == leaf);
            let may_stay = !about_all && is_leaf && self.global.contains(&(at, found.pfn()));
            assert!(agrees || may_stay, "TLB-LIKE: {at:?}: {found:?}, and {:?}", self.walk(at));
        }
    }

    /// The leaf that the guest's tables have for an address, and whether it is global.
    fn leaf(&self, at: [u64; 4]) -> Option<(Pfn<Hpa>, bool)> {
        let says = self.walk(at);
        let is_leaf = says.flags().contains(PteFlags::V) && says.0 >> 54 == 0;
        is_leaf.then(|| (self.there(says.pfn::<Gpa>().raw() - RAM.raw()), says.flags().contains(PteFlags::G)))
    }

    /// What global leaves there are now.
    fn remember(&mut self) {
        for at in addresses() {
            if let Some((leaf, true)) = self.leaf(at) {
                self.global.insert((at, leaf));
            }
        }
    }

    fn step(&mut self) {
        let at = [PLACE, self.below(2), self.below(2), USED.start + self.below(USED.end - USED.start)];
        match self.below(16) {
            0 => {
                let page = TABLES[self.below(4) as usize];
                let value = match self.below(5) {
                    0 => 0,
                    4 => leaf(DATA + self.below(16), true) | 1 << 54,
                    1 => leaf(DATA + self.below(16), false),
                    _ => leaf(DATA + self.below(16), true),
                };
                self.store(page, at[3], value);
            }
            // Tables are whole again.
            1 => {
                let (page, first) = (TABLES[self.below(4) as usize], 8 * (1 + self.below(3)));
                (first..first + 8).for_each(|index| self.store(page, index, leaf(DATA + index % 16, true)));
            }
            2 if self.below(4) == 0 => {
                let (page, table) = (MIDDLE[self.below(2) as usize], TABLES[self.below(4) as usize]);
                self.store(page, at[2], pointer(table));
            }
            3 if self.below(4) == 0 => {
                let middle = MIDDLE[self.below(2) as usize];
                self.store(UPPER, at[1], pointer(middle));
            }
            4 | 5 => {
                let n = self.below(2);
                self.load(n);
            }
            6 => {
                self.fence(GuestFence { range: None, asid: None });
                self.check(true);
                self.global.clear();
            }
            7..10 => {
                let asid = self.root.map(|root| root.asid);
                self.fence(GuestFence { range: None, asid });
                self.check(false);
            }
            10 => self.fence(GuestFence { range: Some((gva(at), 1)), asid: None }),
            _ => self.access(gva(at)),
        }
        self.remember();
        self.shadow.audit(&self.mem);
    }
}

/// All that are used.
fn addresses() -> impl Iterator<Item = [u64; 4]> {
    (0..4).flat_map(|table| USED.map(move |index| [PLACE, table / 2, table % 2, index]))
}

/// Whether a life of so many steps ends well.
fn live(seed: u64, sabotage: Option<Sabotage>) -> Result<(u64, u64), String> {
    let life = AssertUnwindSafe(|| {
        let mut world = World::new(seed, sabotage);
        (0..2_000).for_each(|_| world.step());
        let counters = *world.shadow.counters();
        world.shadow.destroy().for_each(|run| world.frames.free(run));
        (counters.digests, counters.synced_pages)
    });
    catch_unwind(life).map_err(|why| {
        let text = why.downcast_ref::<String>().cloned();
        text.or_else(|| why.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
    })
}

#[test]
fn what_roots_share_is_in_step_after_wide_fences() {
    let (mut by_digest, mut in_all) = (0, 0);
    for seed in 0..20 {
        let (digests, pages) = live(seed, None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        by_digest += digests;
        in_all += pages;
    }
    println!("{by_digest} times by digest, {in_all} pages");
    assert!(by_digest >= 1_000);
}

#[test]
fn every_mutant_is_caught() {
    let mutants = [
        Sabotage::ForgetsWideFence,
        Sabotage::ForgetsGlobals,
        Sabotage::SettlesForEver,
        Sabotage::KeepsDigests,
        Sabotage::ForgetsPassed,
    ];
    for mutant in mutants {
        let why = (0..50).find_map(|seed| live(seed, Some(mutant)).err());
        let why = why.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
        assert!(["TLB-LIKE", "a shadow page"].iter().any(|check| why.contains(check)), "{mutant:?}: {why}");
    }
}

/// Eight global leaves of which one changes are linked at another address, too, before a fence that is not about global mappings: no
/// hart has had anything of that address.
#[test]
fn global_leaves_are_new_at_a_new_address() {
    for is_fenced in [true, false] {
        let mut world = World::new(1, None);
        let [old, new] = [[PLACE, 0, 0, 8], [PLACE, 1, 1, 8]];
        world.store(MIDDLE[1], 1, 0);
        world.fence(GuestFence { range: None, asid: None });
        world.access(gva(old));
        world.store(TABLES[0], 8, leaf(DATA + 15, true));
        world.store(MIDDLE[1], 1, pointer(TABLES[0]));
        if is_fenced {
            world.fence(GuestFence { range: None, asid: Some(Asid(1)) });
        }
        world.access(gva([PLACE, 1, 1, 9]));
        assert_eq!(world.entry(gva(new)).map(|found| found.pfn()), Some(world.there(DATA + 15)), "TLB-LIKE");
    }
}

/// A reserved entry is no global leaf, whatever its G says.
#[test]
fn reserved_entries_are_not_global() {
    let mut world = World::new(1, None);
    world.store(TABLES[0], 8, leaf(DATA + 8, true) | 1 << 54);
    world.fence(GuestFence { range: None, asid: None });
    world.access(gva([PLACE, 0, 0, 9]));
    world.store(TABLES[0], 8, leaf(DATA + 15, false));
    world.fence(GuestFence { range: None, asid: Some(Asid(1)) });
    let found = world.entry(gva([PLACE, 0, 0, 8]));
    assert_eq!(found.map(|found| found.pfn()), Some(world.there(DATA + 15)), "STEERED");
}
