//! Quiet tables, in `steered`: cases that random guests hardly come to.

use crate::engine::steered::{Steered, gva, leaf, pointer};
use crate::shadow_rig::lane;
use mmu::shadow::{Answer, GuestFence};
use mmu::table::is_poison;
use rv::format::{SV39, SV48};
use rv::{Addr, Asid, Gva};

fn all_addresses() -> GuestFence {
    GuestFence { range: None, asid: None }
}

const fn read_only(page: u64) -> u64 {
    leaf(page) & !0x84
}

/// Root 0, a table of level 1 at 1, tables of leaves from 2 on.
fn small(tables: u64) -> Steered {
    let mut vm = Steered::sized(1, (2048, 128, 3), 0..200, None);
    vm.store(0, 0, pointer(1));
    for n in 0..tables {
        vm.store(1, n, pointer(2 + n));
        vm.store(2 + n, 7, read_only(100));
    }
    vm.load((&SV39, 0, Asid(0)));
    vm
}

/// A table that waits for others is found as it was often enough twice, and is a candidate twice.
#[test]
fn a_table_that_waits_becomes_quiet_once() {
    let mut vm = small(1);
    for _ in 0..100 {
        vm.access(gva([0, 0, 7]));
        vm.fence(all_addresses());
        vm.shadow.audit(&vm.mem);
    }
    vm.end();
}

/// One frame that is a table at all levels: each of its shadows makes it a candidate.
#[test]
fn a_table_at_several_levels_becomes_quiet_once() {
    let mut vm = small(8);
    vm.store(0, 511, pointer(0));
    for _ in 0..100 {
        (0..8).for_each(|n| _ = vm.access(gva([0, n, 7])));
        let _ = vm.access(gva([511, 511, 0]));
        vm.fence(all_addresses());
        vm.shadow.audit(&vm.mem);
    }
    vm.end();
}

/// The lane takes away a leaf by which a table was written. Another hart's TLB still has it: the guest has not fenced there yet. The
/// table must not be believed to be quiet before that TLB is flushed.
#[test]
fn a_tlb_that_the_lane_has_not_fenced_writes_to_no_quiet_table() {
    const WINDOW: u64 = 60;
    let mut vm = small(8);
    vm.store(0, 3, pointer(61));
    vm.store(61, 0, pointer(WINDOW));
    let window: Addr<Gva> = gva([3, 0, 5]);
    let mut times = 0;
    for round in 0..400 {
        (0..8).for_each(|n| _ = vm.access(gva([0, n, 7])));
        // The guest maps the first table, and a hart loads that into its TLB.
        vm.store(WINDOW, 5, leaf(2));
        vm.fence(GuestFence { range: Some((window, 1)), asid: None });
        assert!(matches!(vm.access(window), Answer::Filled { .. }));
        let in_tlb = vm.entry(window).is_some_and(|entry| entry.pfn() == vm.there(2));
        // Another one takes it away, and fences for itself, in the lane.
        let flushes = vm.shadow.counters().flushes;
        vm.store(WINDOW, 5, 0);
        let inputs = vm.shadow.lane_inputs().expect("a lane");
        let root = vm.root.expect("a root");
        let done = lane::sync::<Gva>(&mut vm.mem, &inputs, (root.table, root.format), window);
        let quieted = vm.shadow.counters().quieted;
        vm.fence(all_addresses());
        let is_quiet = vm.shadow.counters().quieted > quieted;
        times += u64::from(in_tlb && done && is_quiet);
        if !(in_tlb && done && is_quiet && vm.shadow.counters().flushes == flushes) {
            continue;
        }
        // The first one has it still, and stores to the table.
        let data = 101 + round;
        vm.store(2, 7, read_only(data % 50 + 100));
        vm.fence(all_addresses());
        let found = vm.entry(gva([0, 0, 7])).filter(|found| !is_poison(*found)).map(|found| found.pfn());
        assert!(found.is_none_or(|found| found == vm.there(data % 50 + 100)), "TLB-LIKE: round {round}");
    }
    assert!(times > 0);
    vm.end();
}

/// Two roots share a table of level 2 that is quiet, above one that is not: there is a digest of it. Says what is found where it is
/// changed, when it is quiet no more, after so many fences.
fn digest_of_a_quiet_table(fences: usize) -> bool {
    const UPPER: u64 = 2;
    const MIDDLES: [u64; 2] = [3, 4];
    const TABLE: u64 = 5;
    const TOGGLED: [u64; 2] = [6, 7];
    const OTHER: u64 = 8;
    const WINDOW: [u64; 3] = [10, 11, 12];
    let mut vm = Steered::sized(1, (2048, 128, 16), 0..200, None);
    for root in 0..2 {
        vm.store(root, 3, pointer(UPPER));
        vm.store(root, 5, pointer(WINDOW[0]));
    }
    vm.store(WINDOW[0], 0, pointer(WINDOW[1]));
    vm.store(WINDOW[1], 0, pointer(WINDOW[2]));
    vm.store(WINDOW[2], 0, leaf(UPPER));
    vm.store(UPPER, 0, pointer(MIDDLES[0]));
    vm.store(MIDDLES[0], 0, pointer(TABLE));
    vm.store(MIDDLES[1], 0, pointer(OTHER));
    vm.store(TABLE, 7, leaf(100));
    vm.store(OTHER, 7, leaf(101));
    TOGGLED.into_iter().for_each(|table| vm.store(table, 7, leaf(102)));
    let (data, window) = (gva([3, 0, 0, 7]), gva([5, 0, 0, 0]));
    for round in 0..400 {
        vm.load((&SV48, round % 2, Asid(round as u16 % 2 + 1)));
        vm.store(MIDDLES[0], 5, pointer(TOGGLED[round as usize / 2 % 2]));
        vm.access(data);
        vm.access(gva([3, 0, 5, 7]));
        if round < 4 {
            vm.access(gva([5, 0, 0, 1]));
        }
        vm.fence(all_addresses());
    }
    for _ in 0..fences {
        vm.access(data);
        vm.fence(all_addresses());
    }
    let woken = vm.shadow.counters().woken;
    assert!(matches!(vm.access(window), Answer::Filled { .. }));
    let was_quiet = vm.shadow.counters().woken > woken;
    vm.store(UPPER, 0, pointer(MIDDLES[1]));
    let digests = vm.shadow.counters().digests;
    vm.fence(all_addresses());
    let by_digest = vm.shadow.counters().digests - digests;
    let found = vm.entry(data).filter(|found| !is_poison(*found)).map(|found| found.pfn());
    let is_right = found.is_none_or(|found| found == vm.there(101));
    println!("{fences} fences: quiet {was_quiet}, digests {by_digest}, right {is_right}");
    vm.end();
    is_right
}

#[test]
fn a_digest_ends_when_its_top_is_quiet_no_more() {
    let wrong: Vec<usize> = (0..40).filter(|fences| !digest_of_a_quiet_table(*fences)).collect();
    assert!(wrong.is_empty(), "TLB-LIKE: after {wrong:?} fences");
}

/// Leaves of 2 MiB get whole again: however many tables are quiet there, an operation is bounded.
#[test]
fn to_relax_is_bounded() {
    const CHUNKS: u64 = 16;
    const DIRECT: u64 = 20;
    const DATA: u64 = 100;
    const INTERVAL: u64 = 1000;
    crate::engine::IS_MEGA.set(true);
    let mut vm = Steered::sized(CHUNKS as usize + 1, (60_000, 12_000, 2), (0..=CHUNKS).map(|n| 512 * n), None);
    for chunk in 0..CHUNKS {
        vm.store(0, chunk, pointer(1 + chunk));
        for n in 0..512 {
            let table = 512 * (chunk + 1) + n;
            vm.store(1 + chunk, n, pointer(table));
            vm.store(table, 7, read_only(DATA));
        }
    }
    vm.store(0, 100, pointer(DIRECT));
    (0..=CHUNKS).for_each(|n| vm.store(DIRECT, n, leaf(512 * n)));
    vm.load((&SV39, 0, Asid(0)));
    for n in 1..=CHUNKS {
        assert!(matches!(vm.access(gva([100, n, 5])), Answer::Filled { .. }));
    }
    println!("{} leaves of 2 MiB", vm.shadow.counters().filled_2m);
    let mut now = 0;
    let address = |n: u64| gva([n / 512, n % 512, 7]);
    for _ in 0..3 {
        for first in (0..CHUNKS * 512).step_by(32) {
            for _ in 0..6 {
                now += INTERVAL / 40;
                vm.shadow.tell_time(now, INTERVAL);
                (first..first + 32).for_each(|n| _ = vm.access(address(n)));
                vm.fence(all_addresses());
            }
        }
    }
    let counters = *vm.shadow.counters();
    println!("{} quieted, {} woken, {} split", counters.quieted, counters.woken, counters.split);
    assert!(vm.shadow.is_strained());
    now += 10 * INTERVAL;
    vm.relax(now, INTERVAL);
    let woken = vm.shadow.counters().woken - counters.woken;
    // Each takes some 200 instructions, and the budget of an operation is for 90,000.
    assert!((1..=500).contains(&woken), "BOUNDED: {woken} tables were woken by one operation");
    let mut calls = 1;
    while vm.shadow.is_strained() {
        (now, calls) = (now + 10 * INTERVAL, calls + 1);
        vm.relax(now, INTERVAL);
        assert!(calls < 1000, "PROGRESS");
    }
    assert_eq!(vm.shadow.counters().rejoined, vm.shadow.counters().split);
    vm.end();
}

/// Gives back pages that are quiet tables, with thousands of entries that lead there. Returns the numbers of tables
/// that are woken, and of entries that are looked at.
fn giving_back(pages: u64) -> (u64, u64) {
    const TABLES: u64 = 32;
    const PARENTS: u64 = 2560;
    const FIRST: u64 = 300;
    const LEAVES: u64 = 290;
    const OTHER: u64 = 280;
    const DATA: u64 = 270;
    let mut vm = Steered::sized(1, (4096, 400, 2), 0..400, None);
    let uppers = TABLES * PARENTS / 512;
    for upper in 0..uppers {
        vm.store(0, upper, pointer(1 + upper));
        (0..512).for_each(|n| vm.store(1 + upper, n, pointer(FIRST + (n + upper) % TABLES)));
    }
    vm.store(OTHER, 1, pointer(OTHER + 1));
    for n in 0..TABLES {
        vm.store(OTHER + 1, n, pointer(FIRST + n));
        vm.store(FIRST + n, 0, pointer(LEAVES));
    }
    vm.store(LEAVES, 7, read_only(DATA));
    let rest = |vm: &mut Steered| {
        vm.load((&SV48, OTHER, Asid(0)));
        for _ in 0..200 {
            (0..TABLES).for_each(|n| _ = vm.access(gva([1, n, 0, 7])));
            vm.fence(all_addresses());
        }
    };
    rest(&mut vm);
    vm.load((&SV48, 0, Asid(0)));
    for n in 0..uppers * 512 {
        let _ = vm.access(gva([n / 512, n % 512, 0, 7]));
    }
    rest(&mut vm);
    let before = *vm.shadow.counters();
    vm.give_back(FIRST, pages);
    let after = *vm.shadow.counters();
    vm.end();
    (after.woken - before.woken, after.stirred - before.stirred)
}

#[test]
fn to_give_quiet_tables_back_is_bounded() {
    let (woken, entries) = giving_back(32);
    assert!(woken >= 16, "{woken} tables were woken");
    assert!((1..=2048).contains(&entries), "BOUNDED: {entries} entries were looked at by one operation");
}

/// Makes a table restless to which more entries lead than are marked for that. One page that leads there has been
/// compared since the last fence, so another that leads to that one gets a digest without looking there. Returns
/// whether the change is found. `loads`: how often the guest changes its root before.
fn digest_of_another_epoch(loads: u64) -> bool {
    const P: [u64; 2] = [2, 3];
    const C: u64 = 4;
    const T: u64 = 5;
    const X: u64 = 6;
    const W: u64 = 7;
    const DATA: u64 = 100;
    let mut vm = Steered::sized(1, (4096, 256, 2), 0..200, None);
    for (root, upper) in (0..).zip(P) {
        vm.store(root, 3, pointer(upper));
        vm.store(root, 4, pointer(upper));
        vm.store(upper, 0, pointer(C));
    }
    vm.store(C, 0, pointer(T));
    vm.store(C, 1, pointer(W));
    vm.store(T, 7, read_only(DATA));
    vm.store(W, 8, read_only(DATA));
    vm.store(W, 9, read_only(T));
    vm.store(1, 6, pointer(X));
    for n in 0..5 {
        vm.store(X, n, pointer(10 + n));
        (0..512).for_each(|index| vm.store(10 + n, index, pointer(T)));
    }
    let (data, toggled, window) = (gva([3, 0, 0, 7]), gva([3, 0, 1, 8]), gva([3, 0, 1, 9]));
    let load = |vm: &mut Steered, root: u64| vm.load((&SV48, root, Asid(root as u16 + 1)));
    load(&mut vm, 0);
    vm.access(data);
    vm.access(gva([4, 0, 0, 7]));
    load(&mut vm, 1);
    let mut round = 0;
    let mut fence = |vm: &mut Steered| {
        round += 1;
        vm.access(data);
        vm.access(toggled);
        vm.store(W, 8, read_only(DATA + 10 + round % 2));
        vm.fence(all_addresses());
    };
    (0..100).for_each(|_| fence(&mut vm));
    for n in 0..5 * 512 {
        vm.access(gva([6, n / 512, n % 512, 7]));
    }
    (0..100).for_each(|_| fence(&mut vm));
    for _ in 0..loads {
        load(&mut vm, 0);
        load(&mut vm, 1);
        fence(&mut vm);
    }
    vm.access(data);
    vm.access(toggled);
    let woken = vm.shadow.counters().woken;
    assert!(matches!(vm.access(window), Answer::Filled { .. }));
    let was_quiet = vm.shadow.counters().woken > woken;
    load(&mut vm, 0);
    vm.store(T, 7, read_only(DATA + 1));
    let digests = vm.shadow.counters().digests;
    vm.fence(all_addresses());
    let by_digest = vm.shadow.counters().digests - digests;
    let found = vm.entry(data).filter(|found| !is_poison(*found)).map(|found| found.pfn());
    let is_right = found.is_none_or(|found| found == vm.there(DATA + 1));
    println!("{loads} loads: quiet {was_quiet}, digests {by_digest}, linked {}, right {is_right}", found.is_some());
    vm.end();
    is_right
}

#[test]
fn a_digest_has_what_is_restless_by_another_epoch() {
    let wrong: Vec<u64> = (0..12).filter(|loads| !digest_of_another_epoch(*loads)).collect();
    assert!(wrong.is_empty(), "TLB-LIKE: after {wrong:?} loads");
}

/// In `lazy`, nothing wakes a table: none is to be quiet.
#[test]
fn in_lazy_no_table_becomes_quiet() {
    use crate::engine::{self, HOST, Hardware, RAM};
    use ::lane::FenceLog;
    use mmu::shadow::{Config, Host, Upkeep, Views};
    use mmu::{AdPolicy, Frames, Object, Prot, Ready, with_ready};
    use rv::{Access, PhysMem, Request};
    let mut mem = oracle::Machine::with_ram(HOST, 2048);
    let mut frames = Frames::new();
    frames.add(HOST, 2048);
    let mut space = engine::space(&[(Prot::RWX, Object::Anonymous)], &frames, &mut mem);
    // As the hypervisor configures it.
    let config = Config {
        upkeep: Upkeep::Lazy,
        ad: AdPolicy::Svade,
        globals: true,
        pages: 128,
        first_serial: 1,
        quiet_after: 16,
    };
    let mut shadow = engine::shadow(config, 512, &frames, &mut mem);
    let (mut views, mut log, mut root) = (Views::default(), FenceLog::new(0), None);
    for (page, index, value) in [(0, 0, pointer(1)), (1, 0, pointer(2)), (2, 7, leaf(100)), (2, 8, leaf(101))] {
        let at = RAM.add(page).at(8 * index);
        let hpa = with_ready(&frames, &mut mem, |ready, mem| {
            shadow.resolve(at, Access::Store, &mut Host::new(&mut space, (&frames, ready), mem, &mut Hardware))
        });
        mem.write_u64(hpa.expect("frames").expect("RAM"), value);
    }
    engine::attach(&mut shadow, &mut root, (&SV39, 0, Asid(0)), (&mut views, &log), (&mut space, &frames), &mut mem);
    let root = root.expect("it is loaded");
    for _ in 0..100 {
        let request = Request::supervisor(Access::Load);
        let _ = with_ready(&frames, &mut mem, |ready, mem| {
            let mut hw = Hardware;
            let host = &mut Host::new(&mut space, (&frames, ready), mem, &mut hw);
            shadow.fault(&root, gva([0, 0, 7]), &request, host)
        });
        let (mut ready, mut hw) = (Ready::Nothing, Hardware);
        let host = &mut Host::new(&mut space, (&frames, &mut ready), &mut mem, &mut hw);
        shadow.fence(&all_addresses(), root, &mut views, &mut log, host);
    }
    assert_eq!(shadow.counters().quieted, 0, "a table is quiet in lazy");
    shadow.destroy().for_each(|run| frames.free(run));
}
