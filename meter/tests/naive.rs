//! The model against one that is as simple as can be: lists in the order of use, a walk for every miss,
//! no filter and no hint. Some pages are read-only, some are not there; some accesses and some blocks reach into
//! the next page.

mod fake;

use fake::{BASE, BYTES, Fake, LEAF, USER_LEAF, leaf, root};
use meter::args::{Args, Level};
use meter::block::Block;
use meter::core::Core;
use meter::hart::{AccessSite, Hart, MemoryAccess, Register, Scoreboard, Seen};
use meter::insn::{Csr, FenceKind, Memory, Special};
use meter::mode::Mode;
use meter::shared::Shared;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rv::format::SV39;

/// Small, so that everything is evicted all the time.
const CORE: &str = r#"
name = "small"
about = "for this test"
l1i = [{ pages = ["4K", "2M"], ways = 2, source = "" }]
l1d = [{ pages = ["4K", "2M"], ways = 4, source = "" }]
l2 = [{ pages = ["4K"], sets = 2, ways = 3, source = "" }]
[cost]
instruction = 1
l2_hit = 1
trap = 1
fence = 1
root_switch = 1
memory = 1
cache = []
source = ""
"#;

const SPACES: u64 = 2;
/// Pages of 4 KiB, of which the last two are global; then of 2 MiB.
const PAGES: u64 = 12;
const MEGA_PAGES: u64 = 2;
const FIRST_PAGE: u64 = 0x10_0000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Use {
        how: How,
        page: u64,
    },
    /// An access, or a block, that reaches into the next page, of the first ones.
    Cross {
        how: How,
        page: u64,
    },
    /// A load of a page that is not there.
    Miss {
        page: u64,
    },
    Fence {
        page: Option<u64>,
        asid: Option<u64>,
    },
    Switch {
        space: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum How {
    Fetch,
    Load,
    Store,
}

fn step() -> impl Strategy<Value = Step> {
    let how = prop_oneof![1 => Just(How::Fetch), 3 => Just(How::Load), 2 => Just(How::Store)];
    // Pages in the 2 MiB ones count in thirds of those.
    let page = 0..PAGES + 3 * MEGA_PAGES;
    // The supervisor's, or the user's.
    let crossed = prop_oneof![0..PAGES / 2 - 1, PAGES / 2..PAGES - 1];
    prop_oneof![
        40 => (how, page.clone()).prop_map(|(how, page)| Step::Use { how, page }),
        3 => (how2(), crossed).prop_map(|(how, page)| Step::Cross { how, page }),
        2 => (0..PAGES).prop_map(|page| Step::Miss { page }),
        1 => (proptest::option::of(page), proptest::option::of(0..SPACES)).prop_map(|(page, asid)| Step::Fence { page, asid }),
        2 => (0..SPACES).prop_map(|space| Step::Switch { space }),
    ]
}

/// A fetch or a load, which may reach into any next page.
fn how2() -> impl Strategy<Value = How> {
    prop_oneof![Just(How::Fetch), Just(How::Load)]
}

/// Stores to it fault.
fn is_read_only(page: u64) -> bool {
    page % 5 == 2 && page < PAGES
}

fn is_mega(page: u64) -> bool {
    (PAGES..NO_PAGE).contains(&page)
}

/// The number of the base page.
fn base_page(page: u64) -> u64 {
    if is_mega(page) {
        FIRST_PAGE + 512 * (1 + (page - PAGES) / 3) + 100 * ((page - PAGES) % 3)
    } else if page >= NO_PAGE {
        FIRST_PAGE + PAGES + (page - NO_PAGE)
    } else {
        FIRST_PAGE + page
    }
}

/// The tags by which a TLB finds a page.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Entry {
    unit: u64,
    asid: Option<u64>,
}

/// The most recent last.
struct List(Vec<Entry>, usize);

impl List {
    fn hit(&mut self, units: &[u64], asid: u64) -> bool {
        let serves = |entry: &Entry| units.contains(&entry.unit) && entry.asid.is_none_or(|own| own == asid);
        let found = self.0.iter().position(serves);
        let Some(place) = found else { return false };
        let entry = self.0.remove(place);
        self.0.push(entry);
        true
    }

    /// Adds an entry. An old one that serves a page of the new one is removed first.
    fn fill(&mut self, entry: Entry) {
        self.0.retain(|old| leaf_of(old.unit) != entry.unit || old.asid != entry.asid);
        if self.0.len() == self.1 {
            self.0.remove(0);
        }
        self.0.push(entry);
    }
}

#[derive(Default, PartialEq, Debug)]
struct Counted {
    fetch: u64,
    data: u64,
    l2_hits: u64,
    walks: u64,
    refs: u64,
    failed: (u64, u64),
    refused: u64,
    crossings: u64,
}

struct Naive {
    l1i: List,
    l1d: List,
    l2: [List; 2],
    space: u64,
    counted: Counted,
}

/// True if the tables let an access pass.
#[derive(Clone, Copy, PartialEq)]
enum Tables {
    Allow,
    Refuse,
}

impl Naive {
    fn look(&mut self, how: How, page: u64, tables: Tables) {
        let asid = (!is_global(page)).then_some(self.space);
        let (l1, missed) = match how {
            How::Fetch => (&mut self.l1i, &mut self.counted.fetch),
            _ => (&mut self.l1d, &mut self.counted.data),
        };
        let piece = PIECE | base_page(page);
        if l1.hit(&[unit(page), piece], self.space) {
            self.counted.refused += u64::from(tables == Tables::Refuse);
            return;
        }
        *missed += 1;
        let set = &mut self.l2[(base_page(page) % 2) as usize];
        let has_piece = set.hit(&[piece], self.space);
        let refs = if is_mega(page) { 2 } else { 3 };
        self.counted.l2_hits += u64::from(has_piece);
        match (has_piece, tables) {
            (true, Tables::Refuse) => self.counted.refused += 1,
            (false, Tables::Refuse) => self.counted.failed = (self.counted.failed.0 + 1, self.counted.failed.1 + refs),
            (_, Tables::Allow) => {
                if !has_piece {
                    self.counted.walks += 1;
                    self.counted.refs += refs;
                    set.fill(Entry { unit: piece, asid });
                }
                // What comes out of the L2 TLB is the piece that it holds.
                let held = if has_piece && is_mega(page) { piece } else { unit(page) };
                l1.fill(Entry { unit: held, asid });
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Switch { space } => self.space = space,
            Step::Fence { page, asid } => {
                let unit = page.map(unit);
                let stays = |entry: &Entry| {
                    let is_asid = asid.is_none_or(|asid| entry.asid == Some(asid));
                    // Pieces of 2 MiB pages in the L2 go with their leaf.
                    let is_unit = unit.is_none_or(|unit| leaf_of(unit) == leaf_of(entry.unit));
                    !(is_asid && is_unit)
                };
                let [low, high] = &mut self.l2;
                [&mut self.l1i, &mut self.l1d, low, high].into_iter().for_each(|list| list.0.retain(stays));
            }
            Step::Use { how: How::Store, page } if is_read_only(page) => {
                self.look(How::Store, page, Tables::Refuse);
                self.look(How::Fetch, HANDLER_PAGE, Tables::Allow);
            }
            Step::Use { how, page } => self.look(how, page, Tables::Allow),
            Step::Cross { how, page } => {
                self.look(how, page, Tables::Allow);
                self.look(how, page + 1, Tables::Allow);
                self.counted.crossings += u64::from(how != How::Fetch);
            }
            Step::Miss { page } => {
                self.look(How::Load, missing(page), Tables::Refuse);
                self.look(How::Fetch, HANDLER_PAGE, Tables::Allow);
            }
        }
    }
}

fn naive(steps: &[Step]) -> Counted {
    let list = |room| List(vec![], room);
    let (l1i, l1d, l2) = (list(2), list(4), [list(3), list(3)]);
    let mut naive = Naive { l1i, l1d, l2, space: 0, counted: Counted::default() };
    steps.iter().for_each(|step| naive.step(*step));
    naive.counted
}

/// The page of the trap handler, and its address in the middle of it.
const HANDLER_PAGE: u64 = 0;
const HANDLER: u64 = (FIRST_PAGE << 12) + 0x800;

/// Pages that are not there are numbered behind all others.
fn missing(page: u64) -> u64 {
    NO_PAGE + page
}

const NO_PAGE: u64 = 1000;

/// Marks a base page, as opposed to a page of 2 MiB.
const PIECE: u64 = 1 << 60;

fn unit(page: u64) -> u64 {
    if is_mega(page) { base_page(page) >> 9 } else { PIECE | base_page(page) }
}

/// The leaf that a unit is of.
fn leaf_of(unit: u64) -> u64 {
    let page = unit & !PIECE;
    match unit & PIECE != 0 {
        true if page >> 9 > FIRST_PAGE >> 9 => page >> 9,
        _ => unit,
    }
}

fn is_global(page: u64) -> bool {
    (PAGES - 2..PAGES).contains(&page)
}

/// A hart with the small core, and the roots of its spaces.
struct Modelled {
    shared: Shared,
    fake: Fake,
    hart: Hart,
    board: Scoreboard,
    satp: Vec<u64>,
}

impl Modelled {
    fn new() -> Self {
        let core = Core::parse("small", CORE).expect("valid");
        let shared = Shared::new(&Args { cores: vec![core], level: Level::Tlb, ..Args::default() });
        shared.set_ram(BASE, BYTES);
        let (fake, hart) = (Fake::default(), Hart::new(&shared));
        let satp = (0..SPACES).map(|space| root(&SV39, tables(&fake), space)).collect();
        let mut modelled = Self { shared, fake, hart, board: Scoreboard::default(), satp };
        modelled.fake.set(Register::Stvec, HANDLER);
        modelled.execute(Special::CsrWrite(Csr::Stvec));
        modelled.step(Step::Switch { space: 0 });
        modelled
    }

    fn execute(&mut self, special: Special) {
        self.hart.before(special, Mode::S, 4, &mut self.board, &self.shared, &self.fake);
        self.hart.reach(4, &self.shared, &self.fake);
    }

    fn enter(&mut self, at: u64, block: Block) {
        self.fake.set(Register::Pc, at);
        // As QEMU does: only where the place is another, or the block is watched.
        if self.board.place != block.place() || block.crosses || at == HANDLER {
            self.hart.enter_block(block, &mut self.board, &self.shared, &self.fake);
        }
    }

    fn access(&mut self, at: u64, mode: Mode, memory: Memory) {
        let site = AccessSite::new(memory, mode);
        let access = MemoryAccess { at, shift: 3, mmu_index: mode.mmu_index(), site };
        if self.hart.access(access, &self.shared) == Seen::Never {
            self.hart.access_anew(access, &mut self.board, &self.shared, &self.fake);
        }
    }

    fn fault(&mut self, cause: u64, page: u64) {
        self.fake.set(Register::Scause, cause);
        self.fake.set(Register::Stval, base_page(page) << 12);
        self.fake.set(Register::Sstatus, u64::from(mode_of(page) == Mode::S) << 8);
        self.enter(HANDLER, Block { page: HANDLER_PAGE, mode: Mode::S, crosses: false });
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Switch { space } => {
                self.fake.set(Register::Satp, self.satp[space as usize]);
                self.execute(Special::CsrWrite(Csr::Satp));
            }
            Step::Fence { page, asid } => {
                self.fake.set(Register::X(10), page.map_or(0, |page| base_page(page) << 12));
                self.fake.set(Register::X(11), asid.unwrap_or(0));
                let (rs1, rs2) = (if page.is_some() { 10 } else { 0 }, if asid.is_some() { 11 } else { 0 });
                self.execute(Special::Fence { kind: FenceKind::Sfence, rs1, rs2 });
            }
            Step::Use { how: How::Fetch, page } => {
                self.enter(base_page(page) << 12, Block { page, mode: mode_of(page), crosses: false });
            }
            Step::Cross { how: How::Fetch, page } => {
                let at = (base_page(page) << 12) + 0xff0;
                self.enter(at, Block { page, mode: mode_of(page), crosses: true });
            }
            Step::Use { how: How::Store, page } if is_read_only(page) => self.fault(15, page),
            Step::Use { how: How::Store, page } => self.access(base_page(page) << 12, mode_of(page), Memory::Store),
            Step::Use { page, .. } => self.access(base_page(page) << 12, mode_of(page), Memory::Load),
            Step::Cross { page, .. } => self.access((base_page(page) << 12) + 0xffc, mode_of(page), Memory::Load),
            Step::Miss { page } => self.fault(13, missing(page)),
        }
    }

    fn counted(&self) -> Counted {
        let counts = self.hart.counts(&self.board).1;
        let misses = &counts.cores[0].misses;
        let sum = |of: fn(&meter::counts::Misses) -> u64| misses.iter().map(of).sum::<u64>();
        assert_eq!(sum(|misses| misses.vanished + misses.dirty_walks), 0);
        let counted = Counted {
            fetch: sum(|misses| misses.fetch),
            data: sum(|misses| misses.data),
            l2_hits: sum(|misses| misses.l2_hits),
            walks: sum(|misses| misses.walks),
            refs: sum(|misses| misses.refs_first),
            failed: (sum(|misses| misses.failed_walks), sum(|misses| misses.failed_refs)),
            refused: sum(|misses| misses.refused_without_walk),
            crossings: counts.crossings.iter().sum(),
        };
        assert_eq!(counted.fetch + counted.data, counted.l2_hits + counted.walks + counted.failed.0);
        counted
    }
}

fn modelled(steps: &[Step]) -> Counted {
    let mut modelled = Modelled::new();
    steps.iter().for_each(|step| modelled.step(*step));
    modelled.counted()
}

/// Some pages are the user's.
fn mode_of(page: u64) -> Mode {
    let is_user = if is_mega(page) { (page - PAGES) / 3 == 1 } else { (PAGES / 2..PAGES).contains(&page) };
    if is_user { Mode::U } else { Mode::S }
}

fn flags_of(page: u64) -> u64 {
    let all = if mode_of(page) == Mode::U { USER_LEAF } else { LEAF };
    // D and W, or neither: no store walks again to set D.
    if is_read_only(page) && !is_mega(page) { all & !0x4 } else { all }
}

fn tables(fake: &Fake) -> u64 {
    let table = fake.frames(1);
    for page in 0..PAGES {
        let flags = flags_of(page) | if is_global(page) { 0x20 } else { 0 };
        fake.map(&SV39, table, base_page(page) << 12, 0, leaf(BASE + (page << 12), flags));
    }
    for mega in 0..MEGA_PAGES {
        let at = base_page(PAGES + 3 * mega) << 12;
        fake.map(&SV39, table, at, 1, leaf(BASE + (mega << 21), flags_of(PAGES + 3 * mega)));
    }
    table
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]
    #[test]
    fn the_model_agrees_with_the_naive_one(steps in proptest::collection::vec(step(), 1..300)) {
        prop_assert_eq!(modelled(&steps), naive(&steps));
    }
}
