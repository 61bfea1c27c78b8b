//! Coalescing, in `steered`: what one leaf of 2 MiB stands for, when it does no more, and where pages are moved for it.

use crate::engine::IS_MEGA;
use crate::engine::steered::{Steered, gva, leaf, pointer};
use mmu::shadow::{Gathered, GuestFence};
use rv::format::SV39;
use rv::{Addr, Asid, Gva, Level, PhysMem, Pte, PteFlags};

/// Guest pages: a root, a table of level 1, two of level 0, and pages of data from the second 2 MiB on.
const ROOT: u64 = 0;
const MIDDLE: u64 = 1;
const TABLES: [u64; 2] = [2, 3];
const DATA: u64 = 512;
/// Another table of level 1 that leads to the first table.
const ALIAS: u64 = 4;
const USER: u64 = PteFlags::U.bits();

fn address(table: u64, index: u64) -> Addr<Gva> {
    gva([0, table, index])
}

/// A guest whose tables are full of user pages: the `n`th leads to page `order(n)` of the data, which has its number in each word that is
/// looked at.
fn vm(order: impl Fn(u64) -> u64) -> Steered {
    IS_MEGA.set(true);
    let mut vm = Steered::sized(4, (8192, 128, 0), (0..4).map(|n| 512 * n), None);
    for page in DATA..2048 {
        let at = vm.there(page);
        [0, 2048, 4088].into_iter().for_each(|offset| vm.mem.write_u64(at.at(offset), page));
    }
    vm.store(ROOT, 0, pointer(MIDDLE));
    vm.store(ROOT, 1, pointer(ALIAS));
    for (n, table) in (0..).zip(TABLES) {
        vm.store(MIDDLE, n, pointer(table));
        vm.store(ALIAS, n, pointer(table));
        (0..512).for_each(|index| vm.store(table, index, leaf(DATA + order(512 * n + index)) | USER));
    }
    vm.load((&SV39, ROOT, Asid(0)));
    // To fill a table takes more than one operation.
    (0..1024).for_each(|n| vm.access_as_user(address(n / 512, n % 512)));
    vm
}

/// Runs a round. Returns whether it had a result.
fn round(vm: &mut Steered) -> bool {
    round_at(vm, (0, 0))
}

/// Like [`round`]. `when`: the time, and for how long leaves must have been unchanged.
fn round_at(vm: &mut Steered, when: (u64, u64)) -> bool {
    for _ in 0..1000 {
        if let Gathered::Round { has_found, .. } = vm.gather_at(when) {
            return has_found;
        }
    }
    panic!("a round without end")
}

/// Returns the leaf that hardware finds for an address, and its level.
fn found(vm: &Steered, gva: Addr<Gva>) -> (Pte, Level) {
    vm.walk(gva)
}

/// Returns the number in the page that hardware finds there.
fn number(vm: &Steered, at: Addr<Gva>) -> u64 {
    let (leaf, level) = found(vm, at);
    let page = leaf.pfn().add(at.pfn().raw() % level.pages());
    let words = [0, 2048, 4088].map(|offset| vm.mem.read_u64(page.at(offset)));
    assert!(words.iter().all(|word| *word == words[0]), "{at}: {words:?}");
    words[0]
}

fn counts(vm: &Steered) -> [u64; 4] {
    let c = vm.shadow.counters();
    [c.coalesced, c.coalesced_split, c.gathered, c.moved]
}

fn page(at: Addr<Gva>) -> GuestFence {
    GuestFence { range: Some((at, 1)), asid: None }
}

const ALL: GuestFence = GuestFence { range: None, asid: None };

#[test]
fn what_follows_one_another_has_one_leaf() {
    let mut vm = vm(|n| n);
    assert!(round(&mut vm));
    assert_eq!(counts(&vm), [2, 0, 0, 0]);
    for (table, index) in [(0, 0), (0, 511), (1, 17)] {
        let at = address(table, index);
        let (leaf, level) = found(&vm, at);
        assert_eq!((level, leaf.flags().contains(PteFlags::U | PteFlags::W)), (Level::MEGA, true));
        assert_eq!(number(&vm, at), DATA + 512 * table + index);
    }
    assert!(!round(&mut vm), "nothing is left to do");
    // Fences that find all as it was leave it.
    vm.fence(page(address(0, 9)));
    vm.fence(ALL);
    assert_eq!(counts(&vm), [2, 0, 0, 0]);
    vm.end();
}

#[test]
fn one_entry_that_changes_splits_it() {
    for fence in [page(address(0, 9)), ALL] {
        let mut vm = vm(|n| n);
        round(&mut vm);
        vm.store(TABLES[0], 9, leaf(DATA + 1000) | USER);
        assert_eq!(found(&vm, address(0, 9)).1, Level::MEGA, "no fence has passed");
        vm.fence(fence);
        assert_eq!(counts(&vm), [2, 1, 0, 0]);
        assert_eq!(number(&vm, address(0, 9)), DATA + 1000);
        for index in (0..512).filter(|index| *index != 9) {
            assert_eq!(found(&vm, address(0, index)).1, Level::PAGE);
            assert_eq!(number(&vm, address(0, index)), DATA + index);
        }
        assert_eq!(found(&vm, address(1, 9)).1, Level::MEGA, "another table's");
        // When it is as it was, one leaf is enough again.
        vm.store(TABLES[0], 9, leaf(DATA + 9) | USER);
        vm.fence(page(address(0, 9)));
        assert!(round(&mut vm));
        assert_eq!(found(&vm, address(0, 9)).1, Level::MEGA);
        vm.end();
    }
}

#[test]
fn pages_in_another_order_are_moved() {
    let mut vm = vm(|n| n * 387 % 1024);
    assert!(round(&mut vm));
    assert_eq!(counts(&vm), [2, 0, 2, 1024]);
    for n in 0..1024 {
        let at = address(n / 512, n % 512);
        assert_eq!((number(&vm, at), found(&vm, at).1), (DATA + n * 387 % 1024, Level::MEGA));
        // The guest's own table leads to the same, by way of the G-stage.
        let there = vm.there(DATA + n * 387 % 1024);
        assert_eq!(vm.mem.read_u64(there.at(0)), DATA + n * 387 % 1024);
        assert_eq!(found(&vm, at).0.pfn().add(n % 512), there);
    }
    vm.shadow.audit(&vm.mem);
    vm.end();
}

#[test]
fn what_differs_has_none() {
    // One that may not be written, one of the kernel's, one without A, one that is global.
    for changed in [0x4, 0x10, 0x40, 0x20] {
        let mut vm = vm(|n| n);
        vm.store(TABLES[0], 300, (leaf(DATA + 300) | USER) ^ changed);
        vm.fence(page(address(0, 300)));
        (0..3).for_each(|_| _ = round(&mut vm));
        assert_eq!((found(&vm, address(0, 0)).1, counts(&vm)), (Level::PAGE, [1, 0, 0, 0]), "{changed:#x}");
        vm.end();
    }
}

#[test]
fn a_table_at_two_places_is_coalesced_at_both() {
    let mut vm = vm(|n| n);
    let there = gva([1, 0, 5]);
    vm.access_as_user(there);
    round(&mut vm);
    let levels = |vm: &Steered| [found(vm, there).1, found(vm, address(0, 5)).1];
    assert_eq!(levels(&vm), [Level::MEGA; 2]);
    vm.store(TABLES[0], 6, 0);
    vm.fence(page(gva([1, 0, 6])));
    assert_eq!(levels(&vm), [Level::PAGE; 2]);
    vm.end();
}

#[test]
fn what_the_host_takes_splits_it() {
    let mut vm = vm(|n| n);
    round(&mut vm);
    vm.give_back(DATA + 40, 1);
    assert_eq!(counts(&vm)[1], 1);
    assert_eq!(number(&vm, address(0, 41)), DATA + 41);
    vm.end();
}

#[test]
fn where_two_want_a_page_nothing_is_moved() {
    let mut vm = vm(|n| if n < 512 { 511 - n } else { n - 512 });
    (0..4).for_each(|_| _ = round(&mut vm));
    // The second has them in their order.
    assert_eq!(counts(&vm), [1, 0, 0, 0]);
    vm.end();
}

#[test]
fn only_what_is_as_it_was_for_long_enough_is_changed() {
    const SETTLED: u64 = 10;
    // The first table's leaves follow one another, the second's do not.
    let order = |n: u64| if n < 512 { n } else { 512 + n * 387 % 512 };
    // By which way the engine hears of a leaf that goes and comes back.
    let ways: [fn(&mut Steered, Addr<Gva>); 3] =
        [Steered::fence_in_lane, Steered::fence_in_known_table, |vm, gva| vm.fence(page(gva))];
    for fence in ways {
        let mut vm = vm(order);
        // So that the lane knows where its memory is.
        [0, 1].into_iter().for_each(|table| vm.fence_in_known_table(address(table, 4)));
        assert!(round_at(&mut vm, (100, SETTLED)), "seen for the first time");
        round_at(&mut vm, (109, SETTLED));
        assert_eq!(counts(&vm), [0; 4]);
        for (n, table) in (0..).zip(TABLES) {
            for entry in [0, leaf(DATA + order(512 * n + 3)) | USER] {
                vm.store(table, 3, entry);
                fence(&mut vm, address(n, 3));
            }
            vm.access_as_user(address(n, 3));
        }
        round_at(&mut vm, (110, SETTLED));
        round_at(&mut vm, (119, SETTLED));
        assert_eq!(counts(&vm), [0; 4], "they were gone, and there was no look meanwhile");
        assert!(round_at(&mut vm, (120, SETTLED)));
        assert_eq!(counts(&vm), [2, 0, 1, 512]);
        for n in 0..1024 {
            assert_eq!(number(&vm, address(n / 512, n % 512)), DATA + order(n));
        }
        assert!(!round_at(&mut vm, (200, SETTLED)), "nothing is left to do");
        vm.end();
    }
}

#[test]
fn a_round_says_when_the_first_leaves_have_been_as_they_are_for_long_enough() {
    let mut vm = vm(|n| n);
    let round =
        |vm: &mut Steered, now| (0..9).map(|_| vm.gather_at((now, 10))).find(|gathered| *gathered != Gathered::More);
    assert_eq!(round(&mut vm, 100), Some(Gathered::Round { has_found: true, settles: Some(110) }));
    vm.store(TABLES[0], 9, leaf(DATA + 1000) | USER);
    vm.fence(page(address(0, 9)));
    assert_eq!(round(&mut vm, 104), Some(Gathered::Round { has_found: true, settles: Some(110) }), "the other's");
    assert_eq!(round(&mut vm, 110), Some(Gathered::Round { has_found: true, settles: Some(114) }));
    // The page that both want is not moved.
    assert_eq!(round(&mut vm, 114), Some(Gathered::NOTHING));
    assert_eq!(round(&mut vm, 115), Some(Gathered::NOTHING));
    vm.end();
}

#[test]
fn a_leaf_that_comes_late_makes_its_table_one_that_is_looked_at_again() {
    let mut vm = vm(|n| n);
    vm.give_back(DATA + 40, 1);
    round_at(&mut vm, (100, 10));
    round_at(&mut vm, (110, 10));
    assert_eq!(counts(&vm), [1, 0, 0, 0], "one of its leaves is missing");
    // The page is there again before its user's access, which finds all that it needs.
    vm.bring(DATA + 40);
    vm.access_as_user(address(0, 40));
    assert!(round_at(&mut vm, (120, 10)));
    round_at(&mut vm, (129, 10));
    assert_eq!(counts(&vm), [1, 0, 0, 0], "it has changed lately");
    assert!(round_at(&mut vm, (130, 10)));
    assert_eq!(counts(&vm)[0], 2);
    vm.end();
}

#[test]
fn a_table_that_is_linked_once_more_has_the_leaves_that_it_had() {
    let mut vm = vm(|n| n);
    round_at(&mut vm, (100, 10));
    vm.access_as_user(gva([1, 0, 5]));
    assert!(round_at(&mut vm, (110, 10)));
    assert_eq!(counts(&vm), [2, 0, 0, 0]);
    vm.end();
}

#[test]
fn a_table_that_too_many_lead_to_is_left_as_it_is() {
    let mut vm = vm(|n| n);
    // At five places, with its first.
    (5..8).for_each(|index| vm.store(ALIAS, index, pointer(TABLES[0])));
    (5..8).for_each(|index| vm.access_as_user(gva([1, index, 5])));
    vm.access_as_user(gva([1, 0, 5]));
    round(&mut vm);
    assert_eq!(counts(&vm), [1, 0, 0, 0], "the other");
    assert!(!round(&mut vm), "nothing has come of it");
    vm.end();
}

#[test]
fn a_move_that_is_stopped_leaves_all_where_it_is() {
    let mut vm = vm(|n| n * 387 % 1024);
    for _ in 0..12 {
        assert_eq!(vm.gather(), Gathered::More);
    }
    let moved = counts(&vm)[3];
    assert!((1..512).contains(&moved), "{moved}");
    assert!(vm.stop_moving());
    for n in 0..1024 {
        assert_eq!(number(&vm, address(n / 512, n % 512)), DATA + n * 387 % 1024);
    }
    // It is begun once more, when this round has ended.
    assert!(round(&mut vm) && round(&mut vm));
    assert_eq!(counts(&vm)[0], 2);
    vm.end();
}

#[test]
fn what_the_guest_changes_between_two_portions_does_not_move() {
    // Another user's leaf, a kernel's, one that may not be written, none.
    let changes =
        [Some(leaf(DATA + 387) | USER), Some(leaf(DATA + 387)), Some((leaf(DATA + 3 * 387 % 1024) | USER) ^ 4), None];
    for change in changes {
        for portions in 0..22 {
            let mut vm = vm(|n| n * 387 % 1024);
            (0..portions).for_each(|_| _ = vm.gather());
            vm.store(TABLES[0], 3, change.unwrap_or(0));
            vm.fence(page(address(0, 3)));
            (0..3).for_each(|_| _ = round(&mut vm));
            vm.shadow.audit(&vm.mem);
            for n in (0..1024).filter(|n| *n != 3) {
                assert_eq!(
                    number(&vm, address(n / 512, n % 512)),
                    DATA + n * 387 % 1024,
                    "{n} after {portions} portions"
                );
            }
            assert_eq!(found(&vm, address(0, 2)).1, Level::PAGE);
            vm.end();
        }
    }
}
