//! Answers that are known without a model: the references that walks make, and what TLBs and walk caches save.

mod fake;

use fake::{BASE, FIRST, Fake, G, LEAF, PAGES_AT, Rig, USER_LEAF, VA, guest, leaf, root, tables};
use meter::args::Args;
use meter::core::Core;
use meter::insn::{FenceKind, Memory};
use meter::mode::Mode;
use meter::walk::{Roots, Space, Trace, permissive};
use rv::format::{SV39, SV39X4};
use rv::{Access, Format};

/// The walks and references of one load at `at`, and the table of walks by leaf.
fn one_load(fake: Fake, roots: Roots, at: u64) -> ((u64, u64), String) {
    let mut rig = Rig { fake, ..Rig::new(&["core=plain"]) };
    rig.set_roots(roots);
    rig.access(at, Mode::VS, Memory::Load);
    let misses = rig.misses(Mode::VS);
    let core = &rig.counts().cores[0];
    let refs = misses.refs_first + misses.refs_g;
    let by_leaf: Vec<_> = core.walks_by_leaf[Mode::VS.index()].iter().collect();
    assert_eq!((by_leaf[0].1.walks, by_leaf[0].1.refs, by_leaf.len()), (1, refs, 1));
    assert_eq!(core.walks_by_refs[Mode::VS.index()].0[refs as usize], 1);
    ((misses.walks, refs), by_leaf[0].0.clone())
}

fn levels(format: Option<&Format>) -> u64 {
    format.map_or(0, |format| u64::from(format.levels))
}

#[test]
fn references_of_all_combinations_of_formats() {
    let mut combinations = 0;
    for (first, g) in FIRST.into_iter().flat_map(|first| G.map(|g| (first, g))) {
        if first.is_none() && g.is_none() {
            continue;
        }
        let fake = Fake::default();
        let at = if first.is_some() { VA } else { BASE + 0x5000 };
        let roots = tables(&fake, first, g, 0);
        let space = Space::new(true, roots).expect("translated");
        let mut trace = Trace::default();
        trace.walk(&space, at, &permissive(Access::Load, rv::Mode::Supervisor), &fake);
        assert_eq!(trace.outcome.map(|mapping| mapping.page), Ok((BASE + 0x5000) >> 12));
        let expected = (levels(first) + 1) * (levels(g) + 1) - 1;
        assert_eq!(one_load(fake, roots, at).0, (1, expected), "{first:?} {g:?}");
        combinations += 1;
    }
    assert_eq!(combinations, 15);
}

#[test]
fn references_with_superpages_at_either_stage() {
    for (first, g) in FIRST.into_iter().flat_map(|first| G.map(|g| (first, g))) {
        // A larger leaf of the first stage would need more RAM than there is.
        for (first_level, g_level) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            if (first.is_none() && first_level > 0) || (g.is_none() && g_level > 0) || (first.is_none() && g.is_none())
            {
                continue;
            }
            let fake = Fake::default();
            let roots = tables(&fake, first, g, g_level);
            if let Some(format) = first.filter(|_| first_level == 1) {
                let table = (roots.vsatp & ((1 << 44) - 1)) << 12;
                fake.map(format, table, VA & !0x1f_ffff, 1, leaf(BASE, LEAF));
            }
            let at = if first.is_some() { VA } else { BASE + 0x5000 };
            let expected = (levels(first) - first_level + 1) * (levels(g) - u64::from(g_level) + 1) - 1;
            let size = |format: Option<&Format>, level: u64| match (format, level) {
                (None, _) => "-",
                (Some(_), 0) => "4K",
                (Some(_), _) => "2M",
            };
            let (first_size, g_size) = (size(first, first_level), size(g, u64::from(g_level)));
            let name = if g.is_some() { format!("{first_size}/{g_size}") } else { first_size.to_owned() };
            assert_eq!(one_load(fake, roots, at), ((1, expected), name), "{first:?} {g:?}");
        }
    }
}

#[test]
fn a_leaf_at_the_root_is_one_reference() {
    let fake = Fake::default();
    let (table, g_table) = (fake.frames(1), fake.frames(4));
    fake.map(&SV39, table, 0, 2, leaf(0, LEAF));
    fake.map(&SV39, table, BASE, 2, leaf(BASE, LEAF));
    fake.map(&SV39X4, g_table, BASE, 2, leaf(BASE, USER_LEAF));
    let roots = Roots { satp: 0, vsatp: root(&SV39, table, 0), hgatp: root(&SV39X4, g_table, 0) };
    assert_eq!(one_load(fake, roots, BASE + 0x5000), ((1, 3), "1G/1G".to_owned()));
}

#[test]
fn walk_caches_spare_what_they_hold() {
    let mut rig = guest(&["core=plain", "core=cached"], 0);
    for page in 0..64 {
        rig.access(0x10_0000_0000 + (page << 12), Mode::VS, Memory::Load);
    }
    let counts = rig.counts();
    let refs = |core: usize| {
        let misses = &counts.cores[core].misses[Mode::VS.index()];
        (misses.walks, misses.refs_first + misses.refs_g)
    };
    assert_eq!(refs(0), (64, 64 * 15));
    // The first: the tables are in the same 2 MiB, and cost 3, 1 and 1 of the G-stage; the pages are in
    // others, and cost 2. Then one entry of the guest's table each, and one G-stage leaf of the page.
    assert_eq!(refs(1), (64, 3 + 3 + 1 + 1 + 2 + 63 * 2));
    assert_eq!(counts.accesses_of(&[Memory::Load])[Mode::VS.index()], 64);
}

/// Loads one word of each page, and returns how many walks and references that made.
fn sweep(rig: &mut Rig, pages: std::ops::Range<u64>) -> (u64, u64) {
    let before = rig.misses(Mode::VS);
    pages.for_each(|page| rig.access(PAGES_AT + (page << 12), Mode::VS, Memory::Load));
    let now = rig.misses(Mode::VS);
    (now.walks - before.walks, now.refs_first + now.refs_g - before.refs_first - before.refs_g)
}

#[test]
fn pointers_go_with_fences_by_address_unless_they_survive() {
    // What G-stage entries are cached is not meant by these fences: of three references, and of one after
    // pointers survived, all are to the guest's tables.
    for (core, by_address) in [("cached", 1), ("kunminghu", 3)] {
        let mut rig = guest(&[&format!("core={core}")], 0);
        assert_eq!(sweep(&mut rig, 0..1).0, 1);
        rig.fence(FenceKind::Sfence, Mode::VS, Some(PAGES_AT));
        assert_eq!(sweep(&mut rig, 0..1), (1, by_address), "{core}");
        rig.fence(FenceKind::Sfence, Mode::VS, None);
        assert_eq!(sweep(&mut rig, 0..1), (1, 3), "{core}");
    }
}

#[test]
fn one_reference_may_bring_in_its_neighbours() {
    // Eight entries of the guest's table, and of the G-stage's, come with the first of them.
    let mut rig = guest(&["core=kunminghu"], 0);
    sweep(&mut rig, 0..1);
    assert_eq!(sweep(&mut rig, 1..8), (7, 0));
    assert_eq!(sweep(&mut rig, 8..9), (1, 2));
    let mut rig = guest(&["core=plain"], 0);
    assert_eq!(sweep(&mut rig, 0..8), (8, 120));
}

#[test]
fn the_l2_tlb_has_what_the_l1_dropped() {
    // 40 pages do not fit into 32 entries; by LRU none is left when its turn comes again.
    let mut rig = guest(&["core=plain", "core=cached"], 0);
    for _ in 0..3 {
        sweep(&mut rig, 0..40);
    }
    let cores = rig.counts().cores;
    let misses = |core: usize| cores[core].misses[Mode::VS.index()].clone();
    assert_eq!((misses(0).data, misses(0).walks, misses(0).l2_hits), (120, 120, 0));
    assert_eq!((misses(1).data, misses(1).walks, misses(1).l2_hits), (120, 40, 80));
    // 32 do fit.
    let mut rig = guest(&["core=plain"], 0);
    assert_eq!((sweep(&mut rig, 0..32).0, sweep(&mut rig, 0..32).0), (32, 0));
}

#[test]
fn pages_that_drive_each_other_out_are_all_missed() {
    // One way: going back and forth between two pages of a set misses each time; of two sets, never again.
    let text = include_str!("../cores/plain.toml").replacen("ways = 32", "sets = 2\nways = 1", 2);
    let core = Core::parse("direct", &text).expect("valid");
    let mut rig = Rig::with(&Args { cores: vec![core], ..Args::default() });
    let roots = tables(&rig.fake, Some(&SV39), Some(&SV39X4), 0);
    let table = (roots.vsatp & ((1 << 44) - 1)) << 12;
    for page in 0..3 {
        rig.fake.map(&SV39, table, PAGES_AT + (page << 12), 0, leaf(BASE, LEAF));
    }
    rig.set_roots(roots);
    for _ in 0..4 {
        sweep(&mut rig, 0..1);
        sweep(&mut rig, 2..3);
    }
    assert_eq!(rig.misses(Mode::VS).data, 8);
    for _ in 0..4 {
        sweep(&mut rig, 0..2);
    }
    assert_eq!(rig.misses(Mode::VS).data, 10);
}

#[test]
fn rocket_serves_no_single_stage_of_a_guest_from_its_l2_tlb() {
    // As its `s0_suitable` says; and of both stages only what is 4 KiB in each.
    let l2_hits = |first: Option<&Format>, g: Option<&Format>, g_level: u8| {
        let fake = Fake::default();
        let roots = tables(&fake, first, g, g_level);
        let mut rig = Rig { fake, ..Rig::new(&["core=rocket"]) };
        rig.set_roots(roots);
        let at = if first.is_some() { VA } else { BASE + 0x5000 };
        rig.access(at, Mode::VS, Memory::Load);
        // 4-KiB pages elsewhere take all of the L1 TLB's eight entries, each for four pages.
        for page in 0..9 {
            let table = (roots.vsatp & ((1 << 44) - 1)) << 12;
            let other = PAGES_AT + (page << 14);
            if first.is_some() {
                rig.fake.map(&SV39, table, other, 0, leaf(BASE + (page << 14), LEAF));
            }
            rig.access(if first.is_some() { other } else { BASE + 0x10_0000 + (page << 14) }, Mode::VS, Memory::Load);
        }
        rig.access(at, Mode::VS, Memory::Load);
        rig.misses(Mode::VS).l2_hits
    };
    assert_eq!(l2_hits(Some(&SV39), Some(&SV39X4), 0), 1);
    assert_eq!(l2_hits(Some(&SV39), Some(&SV39X4), 1), 0);
    assert_eq!(l2_hits(Some(&SV39), None, 0), 0);
    assert_eq!(l2_hits(None, Some(&SV39X4), 0), 0);
}

#[test]
fn napot_leaves_are_held_whole_where_there_is_room_for_them() {
    const NAPOT: u64 = 1 << 63 | 8 << 10;
    let mut rig = Rig::new(&["core=plain", "core=u74"]);
    let table = rig.fake.frames(1);
    for page in 0..16 {
        rig.fake.map(&SV39, table, PAGES_AT + (page << 12), 0, leaf(BASE, LEAF) | NAPOT);
    }
    rig.set_roots(Roots { satp: root(&SV39, table, 1), vsatp: 0, hgatp: 0 });
    (0..16).for_each(|page| rig.access(PAGES_AT + (page << 12), Mode::S, Memory::Load));
    let cores = rig.counts().cores;
    let walks = |core: usize| cores[core].misses[Mode::S.index()].walks;
    // `u74` has entries of 4 KiB, and holds pieces.
    assert_eq!((walks(0), walks(1)), (1, 16));
    assert_eq!(cores[0].walks_by_leaf[Mode::S.index()].iter().next().expect("a walk").0, "64K");
}
