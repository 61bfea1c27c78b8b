//! The model against one that is as simple as can be: lists in the order of use, a walk for every miss,
//! no filter and no hint.

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
    Use { how: How, page: u64 },
    Fence { page: Option<u64>, asid: Option<u64> },
    Switch { space: u64 },
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
    prop_oneof![
        40 => (how, page.clone()).prop_map(|(how, page)| Step::Use { how, page }),
        1 => (proptest::option::of(page), proptest::option::of(0..SPACES)).prop_map(|(page, asid)| Step::Fence { page, asid }),
        2 => (0..SPACES).prop_map(|space| Step::Switch { space }),
    ]
}

fn is_mega(page: u64) -> bool {
    page >= PAGES
}

/// The number of the base page.
fn base_page(page: u64) -> u64 {
    if is_mega(page) {
        FIRST_PAGE + 512 * (1 + (page - PAGES) / 3) + 100 * ((page - PAGES) % 3)
    } else {
        FIRST_PAGE + page
    }
}

/// What a TLB knows a page by.
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

    /// What serves a page of the new entry, too, goes first.
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
}

fn naive(steps: &[Step]) -> Counted {
    let (mut l1i, mut l1d) = (List(vec![], 2), List(vec![], 4));
    let mut l2 = [List(vec![], 3), List(vec![], 3)];
    let (mut counted, mut space) = (Counted::default(), 0);
    for step in steps {
        match *step {
            Step::Switch { space: next } => space = next,
            Step::Fence { page, asid } => {
                let unit = page.map(unit);
                let stays = |entry: &Entry| {
                    let is_asid = asid.is_none_or(|asid| entry.asid == Some(asid));
                    // Pieces of 2 MiB pages in the L2 go with their leaf.
                    let is_unit = unit.is_none_or(|unit| leaf_of(unit) == leaf_of(entry.unit));
                    !(is_asid && is_unit)
                };
                let [low, high] = &mut l2;
                [&mut l1i, &mut l1d, low, high].into_iter().for_each(|list| list.0.retain(stays));
            }
            Step::Use { how, page } => {
                let asid = (!is_global(page)).then_some(space);
                let l1 = if how == How::Fetch { &mut l1i } else { &mut l1d };
                if l1.hit(&[unit(page), PIECE | base_page(page)], space) {
                    continue;
                }
                *(if how == How::Fetch { &mut counted.fetch } else { &mut counted.data }) += 1;
                let piece = PIECE | base_page(page);
                let set = &mut l2[(base_page(page) % 2) as usize];
                let has_piece = set.hit(&[piece], space);
                if has_piece {
                    counted.l2_hits += 1;
                } else {
                    counted.walks += 1;
                    counted.refs += if is_mega(page) { 2 } else { 3 };
                    set.fill(Entry { unit: piece, asid });
                }
                // What comes out of the L2 TLB is the piece that it holds.
                let held = if has_piece && is_mega(page) { piece } else { unit(page) };
                l1.fill(Entry { unit: held, asid });
            }
        }
    }
    counted
}

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

fn modelled(steps: &[Step]) -> Counted {
    let core = Core::parse("small", CORE).expect("valid");
    let shared = Shared::new(&Args { cores: vec![core], level: Level::Tlb, ..Args::default() });
    shared.set_ram(BASE, BYTES);
    let (fake, mut hart, mut board) = (Fake::default(), Hart::new(&shared), Scoreboard::default());
    let satp: Vec<u64> = (0..SPACES).map(|space| root(&SV39, tables(&fake), space)).collect();
    let switch = |space: u64, hart: &mut Hart, board: &mut Scoreboard| {
        fake.set(Register::Satp, satp[space as usize]);
        hart.before(Special::CsrWrite(Csr::Satp), Mode::M, 4, board, &shared, &fake);
        hart.reach(4, &shared, &fake);
    };
    switch(0, &mut hart, &mut board);
    for step in steps {
        match *step {
            Step::Switch { space } => switch(space, &mut hart, &mut board),
            Step::Fence { page, asid } => {
                fake.set(Register::X(10), page.map_or(0, |page| base_page(page) << 12));
                fake.set(Register::X(11), asid.unwrap_or(0));
                let (rs1, rs2) = (if page.is_some() { 10 } else { 0 }, if asid.is_some() { 11 } else { 0 });
                let fence = Special::Fence { kind: FenceKind::Sfence, rs1, rs2 };
                hart.before(fence, Mode::S, 4, &mut board, &shared, &fake);
                hart.reach(4, &shared, &fake);
            }
            Step::Use { how: How::Fetch, page } => {
                fake.set(Register::Pc, base_page(page) << 12);
                let block = Block { page, mode: mode_of(page), crosses: false };
                // As QEMU does: only where the place is another.
                if board.place != block.place() {
                    hart.enter_block(block, &mut board, &shared, &fake);
                }
            }
            Step::Use { how, page } => {
                let at = base_page(page) << 12;
                let mode = mode_of(page);
                let memory = if how == How::Store { Memory::Store } else { Memory::Load };
                let site = AccessSite::new(memory, mode);
                let access = MemoryAccess { at, shift: 3, mmu_index: mode.mmu_index(), site };
                if hart.access(access, &shared) == Seen::Never {
                    hart.access_anew(access, &mut board, &shared, &fake);
                }
            }
        }
    }
    let counts = hart.counts(&board).1;
    let misses = &counts.cores[0].misses;
    let sum = |of: fn(&meter::counts::Misses) -> u64| misses.iter().map(of).sum();
    assert_eq!(sum(|misses| misses.vanished + misses.dirty_walks), 0);
    Counted {
        fetch: sum(|misses| misses.fetch),
        data: sum(|misses| misses.data),
        l2_hits: sum(|misses| misses.l2_hits),
        walks: sum(|misses| misses.walks),
        refs: sum(|misses| misses.refs_first),
    }
}

/// Some pages are the user's.
fn mode_of(page: u64) -> Mode {
    let is_user = if is_mega(page) { (page - PAGES) / 3 == 1 } else { page % 2 == 1 };
    if is_user { Mode::U } else { Mode::S }
}

fn flags_of(page: u64) -> u64 {
    if mode_of(page) == Mode::U { USER_LEAF } else { LEAF }
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
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_model_agrees_with_the_naive_one(steps in proptest::collection::vec(step(), 1..300)) {
        prop_assert_eq!(modelled(&steps), naive(&steps));
    }
}
