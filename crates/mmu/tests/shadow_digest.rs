//! Tables that several roots share, and wide fences, in `steered`: global leaves that a fence of one address space
//! leaves alone, and digests. A guest of two roots edits, fences and comes and goes at random; after each fence, the
//! entries that hardware finds are compared with the guest's tables.

use crate::engine::RAM;
use crate::engine::steered::{Steered, gva, leaf, pointer};
use crate::random::Random;
use mmu::shadow::{GuestFence, Sabotage};
use mmu::table::{State, is_poison};
use rv::format::SV48;
use rv::{Asid, Gpa, Hpa, Pfn, Pte, PteFlags};
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
/// The index of the entries of both roots that lead to `UPPER`.
const PLACE: u64 = 3;

struct World {
    vm: Steered,
    /// The global leaves that were somewhere since the last fence of all.
    global: BTreeSet<([u64; 4], Pfn<Hpa>)>,
    random: Random,
}

/// A leaf that is global.
const fn global(page: u64) -> u64 {
    leaf(page) | PteFlags::G.bits()
}

impl World {
    fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let mut vm = Steered::new(0..DATA + 16, sabotage);
        ROOTS.into_iter().for_each(|root| vm.store(root, PLACE, pointer(UPPER)));
        for (n, middle) in (0..).zip(MIDDLE) {
            vm.store(UPPER, n, pointer(middle));
            for (n, table) in (0..).zip(&TABLES[2 * n as usize..][..2]) {
                vm.store(middle, n, pointer(*table));
                USED.for_each(|index| vm.store(*table, index, global(DATA + index % 16)));
            }
        }
        let mut world = Self { vm, global: BTreeSet::new(), random: Random(seed) };
        world.load(0);
        world
    }

    /// The guest changes to one of its roots.
    fn load(&mut self, n: u64) {
        self.vm.load((&SV48, ROOTS[n as usize], Asid(n as u16 + 1)));
    }

    /// Returns the entry that the guest's tables have for an address.
    fn walk(&self, [_, upper, middle, index]: [u64; 4]) -> Pte {
        let down = |page, index| {
            let pte = self.vm.guests(page, index);
            pte.is_pointer().then(|| pte.pfn::<Gpa>().raw() - RAM.raw())
        };
        let table = down(UPPER, upper).and_then(|page| down(page, middle));
        table.map_or(Pte::INVALID, |page| self.vm.guests(page, index))
    }

    /// After a fence of all addresses: whatever hardware finds is what the guest's tables say, or a global leaf that they said once,
    /// where the fence was about one address space.
    fn check(&self, about_all: bool) {
        for at in addresses() {
            let Some(found) = self.vm.entry(gva(at)).filter(|found| !is_poison(*found)) else { continue };
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
        is_leaf.then(|| (self.vm.there(says.pfn::<Gpa>().raw() - RAM.raw()), says.flags().contains(PteFlags::G)))
    }

    /// Remembers the global leaves that there are now.
    fn remember(&mut self) {
        for at in addresses() {
            if let Some((leaf, true)) = self.leaf(at) {
                self.global.insert((at, leaf));
            }
        }
    }

    fn step(&mut self) {
        let at =
            [PLACE, self.random.below(2), self.random.below(2), USED.start + self.random.below(USED.end - USED.start)];
        match self.random.below(16) {
            0 => {
                let page = TABLES[self.random.below(4) as usize];
                let value = match self.random.below(5) {
                    0 => 0,
                    4 => global(DATA + self.random.below(16)) | 1 << 54,
                    1 => leaf(DATA + self.random.below(16)),
                    _ => global(DATA + self.random.below(16)),
                };
                self.vm.store(page, at[3], value);
            }
            // Tables are whole again.
            1 => {
                let (page, first) = (TABLES[self.random.below(4) as usize], 8 * (1 + self.random.below(3)));
                (first..first + 8).for_each(|index| self.vm.store(page, index, global(DATA + index % 16)));
            }
            2 if self.random.below(4) == 0 => {
                let (page, table) = (MIDDLE[self.random.below(2) as usize], TABLES[self.random.below(4) as usize]);
                self.vm.store(page, at[2], pointer(table));
            }
            3 if self.random.below(4) == 0 => {
                let middle = MIDDLE[self.random.below(2) as usize];
                self.vm.store(UPPER, at[1], pointer(middle));
            }
            4 | 5 => {
                let n = self.random.below(2);
                self.load(n);
            }
            6 => {
                self.vm.fence(GuestFence { range: None, asid: None });
                self.check(true);
                self.global.clear();
            }
            7..10 => {
                let asid = self.vm.root.map(|root| root.asid);
                self.vm.fence(GuestFence { range: None, asid });
                self.check(false);
            }
            10 => self.vm.fence(GuestFence { range: Some((gva(at), 1)), asid: None }),
            _ => _ = self.vm.access(gva(at)),
        }
        self.remember();
        self.vm.shadow.audit(&self.vm.mem);
    }
}

/// All that are used.
fn addresses() -> impl Iterator<Item = [u64; 4]> {
    (0..4).flat_map(|table| USED.map(move |index| [PLACE, table / 2, table % 2, index]))
}

/// Runs a life of 2,000 steps. Returns the numbers of digests and of pages that were compared.
///
/// # Errors
/// The message of a check that failed.
fn live(seed: u64, sabotage: Option<Sabotage>) -> Result<(u64, u64), String> {
    let life = AssertUnwindSafe(|| {
        let mut world = World::new(seed, sabotage);
        (0..2_000).for_each(|_| world.step());
        let counters = *world.vm.shadow.counters();
        world.vm.end();
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
        world.vm.store(MIDDLE[1], 1, 0);
        world.vm.fence(GuestFence { range: None, asid: None });
        world.vm.access(gva(old));
        world.vm.store(TABLES[0], 8, global(DATA + 15));
        world.vm.store(MIDDLE[1], 1, pointer(TABLES[0]));
        if is_fenced {
            world.vm.fence(GuestFence { range: None, asid: Some(Asid(1)) });
        }
        world.vm.access(gva([PLACE, 1, 1, 9]));
        assert_eq!(world.vm.entry(gva(new)).map(|found| found.pfn()), Some(world.vm.there(DATA + 15)), "TLB-LIKE");
    }
}

/// A reserved entry is no global leaf, whatever its G says.
#[test]
fn reserved_entries_are_not_global() {
    let mut world = World::new(1, None);
    world.vm.store(TABLES[0], 8, global(DATA + 8) | 1 << 54);
    world.vm.fence(GuestFence { range: None, asid: None });
    world.vm.access(gva([PLACE, 0, 0, 9]));
    world.vm.store(TABLES[0], 8, leaf(DATA + 15));
    world.vm.fence(GuestFence { range: None, asid: Some(Asid(1)) });
    let found = world.vm.entry(gva([PLACE, 0, 0, 8]));
    assert_eq!(found.map(|found| found.pfn()), Some(world.vm.there(DATA + 15)), "STEERED");
}
