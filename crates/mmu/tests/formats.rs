//! All 15 combinations of VS-stage and G-stage formats: on random tables, legal and not, the engine
//! and the oracle agree; and a full walk makes as many memory references as the formats say.

use mmu::{AdPolicy, ReadPte, Stage, Stages, UpdatePte, two_stage};
use oracle::{Ad, Context, Machine, Raised, Table, translate};
use rv::format::{SV39, SV39X4, SV48, SV48X4, SV57, SV57X4};
use rv::{Access, Addr, Caps, Format, Gva, Hpa, Mode, Pfn, Pte, Request};
use std::collections::BTreeMap;

type Combination = (Option<&'static Format>, Option<&'static Format>);

fn combinations() -> Vec<Combination> {
    let vs = [None, Some(&SV39), Some(&SV48), Some(&SV57)];
    let g = [None, Some(&SV39X4), Some(&SV48X4), Some(&SV57X4)];
    let all = vs.iter().flat_map(|v| g.iter().map(move |g| (*v, *g)));
    all.filter(|(v, g)| v.is_some() || g.is_some()).collect()
}

/// splitmix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// RAM as the engine sees it; counts the references.
struct Engine<'a>(&'a mut Machine, u64);

impl ReadPte<Hpa> for Engine<'_> {
    type Error = ();
    fn read(&mut self, at: Addr<Hpa>) -> Result<Pte, ()> {
        self.1 += 1;
        self.0.peek(at.raw()).map(Pte).ok_or(())
    }
}

impl UpdatePte<Hpa> for Engine<'_> {
    fn update(&mut self, at: Addr<Hpa>, old: Pte, new: Pte) -> Result<bool, ()> {
        let same = self.0.peek(at.raw()).ok_or(())? == old.0;
        if same {
            self.0.poke(at.raw(), new.0);
        }
        Ok(same)
    }
}

/// A table under construction. Its pages are numbered in its own space; `host` says where they are.
struct Tree {
    levels: u32,
    entries_of_root: u64,
    root: u64,
    host: BTreeMap<u64, u64>,
}

impl Tree {
    /// The host address of the entry for `page` at level `i`, tables made on the way by `table`, which
    /// yields (page in the tree's space, host page). `None` below a leaf, or garbage.
    fn entry(
        &mut self,
        machine: &mut Machine,
        page: u64,
        i: u32,
        mut table: impl FnMut(&mut Machine) -> (u64, u64),
    ) -> Option<u64> {
        let mut at = self.root;
        for level in (i..self.levels).rev() {
            let entries = if level == self.levels - 1 { self.entries_of_root } else { 512 };
            let index = page >> (9 * level) & (entries - 1);
            // A leaf whose random flags make it a pointer leads to no table of ours.
            let slot = (self.host.get(&(at + index / 512))? << 12) + index % 512 * 8;
            if level == i {
                return Some(slot);
            }
            let pte = machine.peek(slot)?;
            if pte & 1 == 0 {
                let (page, host) = table(machine);
                self.host.insert(page, host);
                machine.poke(slot, page << 10 | 1);
                at = page;
            } else if pte & 0xe == 0 {
                at = pte >> 10;
            } else {
                return None;
            }
        }
        None
    }
}

/// Two stages of tables, and guest addresses worth trying.
struct World {
    machine: Machine,
    g: Option<Tree>,
    vs: Option<Tree>,
    next_host: u64,
    tries: Vec<u64>,
}

fn new_host(machine: &mut Machine, next: &mut u64) -> u64 {
    *next += 1;
    machine.poke(*next << 12, 0);
    *next
}

impl World {
    fn new(random: &mut Random, (vs, g): Combination) -> World {
        let mut world = World { machine: Machine::new(), g: None, vs: None, next_host: 0x1003, tries: vec![] };
        world.g = g.map(|format| {
            let host: BTreeMap<u64, u64> = (0x1000..0x1004).map(|page| (page, page)).collect();
            host.keys().for_each(|page| world.machine.poke(page << 12, 0));
            Tree { levels: u32::from(format.levels), entries_of_root: 2048, root: 0x1000, host }
        });
        if let Some(format) = vs {
            let (root, at) = world.guest_page(random, 0xdf);
            let host = [(root, at)].into();
            world.vs = Some(Tree { levels: u32::from(format.levels), entries_of_root: 512, root, host });
        }
        world
    }

    /// A guest page that the G-stage maps with `flags`, and its host page; by a leaf of any level.
    fn guest_page(&mut self, random: &mut Random, flags: u64) -> (u64, u64) {
        let Some(g) = &mut self.g else {
            let host = new_host(&mut self.machine, &mut self.next_host);
            return (host, host);
        };
        loop {
            let page = random.next() & ((1 << (9 * g.levels + 2)) - 1) & ((1 << 44) - 1);
            let i = if random.one_in(3) { random.below(u64::from(g.levels)) as u32 } else { 0 };
            let mask = (1u64 << (9 * i)) - 1;
            let next = &mut self.next_host;
            let slot = g.entry(&mut self.machine, page, i, |m| {
                let host = new_host(m, next);
                (host, host)
            });
            // Another leaf or table is there already: try elsewhere.
            let Some(slot) = slot.filter(|slot| self.machine.peek(*slot) == Some(0)) else { continue };
            let host = if i == 0 {
                new_host(&mut self.machine, &mut self.next_host)
            } else {
                // Far from the tables, and as aligned as the superpage.
                let host = ((random.next() & 0xff_ffff_ffff) | 1 << 41) & !mask | page & mask;
                self.machine.poke(host << 12, 0);
                host
            };
            self.machine.poke(slot, (host & !mask) << 10 | flags);
            return (page, host);
        }
    }

    /// Maps some page of the guest, by a leaf of any level, rightly or wrongly.
    fn map_something(&mut self, random: &mut Random) {
        let g_flags = if random.one_in(4) { random.below(256) | 1 } else { 0xdf };
        let (gpa, _) = self.guest_page(random, g_flags);
        let Some(mut vs) = self.vs.take() else {
            self.tries.push(gpa << 12);
            return;
        };
        let bits = 9 * vs.levels;
        let page = random.next() & ((1 << bits) - 1);
        let i = if random.one_in(3) { random.below(u64::from(vs.levels)) as u32 } else { 0 };
        let mut tables: Vec<(u64, u64)> = (0..vs.levels).map(|_| self.guest_page(random, 0xdf)).collect();
        let slot = vs.entry(&mut self.machine, page, i, |_| tables.pop().expect("one for each level"));
        if let Some(slot) = slot {
            let aligned = gpa & !((1u64 << (9 * i)) - 1);
            let target = if random.one_in(8) { gpa } else { aligned };
            let flags = if random.one_in(3) { random.below(256) } else { 0xcf | random.below(2) << 4 };
            self.machine.poke(slot, target << 10 | flags | 1);
            if i == 0 && random.one_in(8) {
                self.machine.poke(slot, 1 << 63 | (gpa & !15 | 8) << 10 | flags | 1);
            }
        }
        self.vs = Some(vs);
        let sign = if page >> (bits - 1) & 1 == 1 { !0 << (bits + 12) } else { 0 };
        self.tries.push(page << 12 | sign);
        self.tries.push((page << 12 | sign) ^ 1 << random.below(64));
    }

    /// Flips a bit of an entry of some table.
    fn corrupt(&mut self, random: &mut Random) {
        let hosts: Vec<u64> =
            [&self.g, &self.vs].into_iter().flatten().flat_map(|tree| tree.host.values().copied()).collect();
        let frame = hosts[random.below(hosts.len() as u64) as usize];
        let used: Vec<u64> =
            (0..512).map(|i| (frame << 12) + 8 * i).filter(|at| self.machine.peek(*at) != Some(0)).collect();
        if !used.is_empty() {
            let at = used[random.below(used.len() as u64) as usize];
            let old = self.machine.peek(at).unwrap_or(0);
            self.machine.poke(at, old ^ 1 << random.below(64));
        }
    }
}

fn raised(trap: rv::Trap) -> Raised {
    Raised { cause: trap.exception.code(), tval: trap.tval, htval: trap.tval2, htinst: trap.tinst }
}

/// Tries everything in `world` by engine and oracle; says how many translations succeeded.
fn agree(random: &mut Random, world: World, (vs, g): Combination) -> (u64, u64) {
    let World { machine, g: g_tree, vs: vs_tree, tries, .. } = world;
    let caps = Caps { svnapot: random.one_in(2), svpbmt: random.one_in(2) };
    let ad = |random: &mut Random| if random.one_in(2) { AdPolicy::Svade } else { AdPolicy::Svadu };
    let (vs_ad, g_ad) = (ad(random), ad(random));
    let stages = Stages {
        vs: vs.zip(vs_tree.as_ref()).map(|(format, t)| Stage { format, root: Pfn::new(t.root), caps, ad: vs_ad }),
        g: g.zip(g_tree.as_ref()).map(|(format, t)| Stage { format, root: Pfn::new(t.root), caps, ad: g_ad }),
    };
    let table = |tree: &Tree, ad| Table {
        levels: tree.levels,
        root: tree.root << 12,
        ad: if ad == AdPolicy::Svade { Ad::Fault } else { Ad::Hardware },
        svnapot: caps.svnapot,
        svpbmt: caps.svpbmt,
    };
    let (mut ours, mut theirs) = (machine.clone(), machine);
    let (mut passed, mut trapped) = (0, 0);
    for base in tries {
        for access in [Access::Load, Access::Store, Access::Fetch, Access::LoadExec] {
            // Mostly in the page, sometimes nearby (the rest of a Svnapot range).
            let reach = if random.one_in(4) { 1 << 16 } else { 1 << 12 };
            let gva = base ^ random.below(reach);
            let user = random.one_in(2);
            let (sum, vs_mxr, hs_mxr) = (random.one_in(2), random.one_in(4), random.one_in(4));
            let mode = if user { Mode::User } else { Mode::Supervisor };
            let req = Request { access, mode, sum, mxr: vs_mxr, hs_mxr };
            let ctx = Context {
                vs: vs_tree.as_ref().map(|t| table(t, vs_ad)),
                g: g_tree.as_ref().map(|t| table(t, g_ad)),
                access,
                user,
                sum,
                vs_mxr,
                hs_mxr,
            };
            let got = two_stage(&stages, Addr::<Gva>::new(gva), &req, &mut Engine(&mut ours, 0));
            let got = got.map(|arrival| arrival.hpa.raw()).map_err(raised);
            assert_eq!(got, translate(&mut theirs, &ctx, gva), "{gva:#x}, {ctx:?}");
            if got.is_ok() { passed += 1 } else { trapped += 1 }
        }
    }
    assert!(ours == theirs, "other entries were written back");
    (passed, trapped)
}

#[test]
fn random_tables_of_all_formats() {
    for (number, combination) in combinations().into_iter().enumerate() {
        let (mut passed, mut trapped) = (0, 0);
        for seed in 0..150 {
            let mut random = Random((number as u64) << 32 | seed);
            let mut world = World::new(&mut random, combination);
            for _ in 0..12 {
                world.map_something(&mut random);
            }
            for _ in 0..random.below(4) {
                world.corrupt(&mut random);
            }
            let (p, t) = agree(&mut random, world, combination);
            (passed, trapped) = (passed + p, trapped + t);
        }
        // The tables are neither all wrong nor all right.
        assert!(passed > 1000 && trapped > 1000, "{combination:?}: {passed} passed, {trapped} trapped");
    }
}

/// A full walk to a 4 KiB page by v and g levels makes (v+1)(g+1)-1 references.
#[test]
fn references_of_a_full_walk() {
    for (vs, g) in combinations() {
        let mut random = Random(7);
        let mut machine = Machine::new();
        let mut next = 0x1003;
        let mut g_tree = g.map(|format| {
            let host: BTreeMap<u64, u64> = (0x1000..0x1004).map(|page| (page, page)).collect();
            host.keys().for_each(|page| machine.poke(page << 12, 0));
            Tree { levels: u32::from(format.levels), entries_of_root: 2048, root: 0x1000, host }
        });
        // Guest pages mapped to host pages by 4 KiB leaves.
        let mut guest_page = |machine: &mut Machine| {
            let host = new_host(machine, &mut next);
            let Some(tree) = &mut g_tree else { return (host, host) };
            let page = random.below(1 << 29);
            let slot = tree.entry(machine, page, 0, |m| {
                let host = new_host(m, &mut next);
                (host, host)
            });
            machine.poke(slot.expect("no superpages here"), host << 10 | 0xdf);
            (page, host)
        };
        let (target, host) = guest_page(&mut machine);
        let mut gva = target << 12;
        let vs_tree = vs.map(|format| {
            let (root, at) = guest_page(&mut machine);
            let mut tree =
                Tree { levels: u32::from(format.levels), entries_of_root: 512, root, host: [(root, at)].into() };
            let page = 0x123_4567;
            let slot = tree.entry(&mut machine, page, 0, &mut guest_page).expect("no superpages here");
            machine.poke(slot, target << 10 | 0xdf);
            gva = page << 12;
            tree
        });
        let (caps, ad) = (Caps::default(), AdPolicy::Svade);
        let stages = Stages {
            vs: vs.zip(vs_tree.as_ref()).map(|(format, t)| Stage { format, root: Pfn::new(t.root), caps, ad }),
            g: g.map(|format| Stage { format, root: Pfn::new(0x1000), caps, ad }),
        };
        let mut engine = Engine(&mut machine, 0);
        let arrival = two_stage(&stages, Addr::<Gva>::new(gva), &Request::user(Access::Load), &mut engine);
        assert_eq!(arrival.map(|a| a.hpa.raw()), Ok(host << 12));
        let levels = |format: Option<&Format>| format.map_or(0, |f| u64::from(f.levels));
        assert_eq!(engine.1, (levels(vs) + 1) * (levels(g) + 1) - 1, "{vs:?} on {g:?}");
    }
}
