//! Looks at a steered vCPU by its timer: when pages are moved so that one leaf stands for them, and when they are not.

use crate::fake::{World, read_word as read, shadow_world, write_word as write};
use abi::bundle::{GUEST_RAM_BASE, MmuMode};
use hypervisor::exit::watch;
use hypervisor::vm::outcome::Outcome;
use rv::{Exception, Mode};

const VIRTUAL: u64 = Exception::VirtualInstruction as u64;
const LOAD: u64 = Exception::LoadAccess as u64;
/// The guest's root: the first page of RAM. Its entry 2 is a gigapage over RAM, its entry 3 leads to a table of level 1, and that to one of
/// user pages.
const ROOT: u64 = GUEST_RAM_BASE >> 12;
const SV39: u64 = 8 << 60;
/// `csrw satp, a0`.
const WRITE_SATP: u64 = 0x1805_1073;
/// The place of the user pages, by their addresses and in RAM.
const THERE: u64 = 3 << 30;
const DATA: u64 = ROOT + 1024;
/// A millisecond of the timebase, and the time between two looks for stuck guests.
const MS: u64 = 10_000;
const SECOND: u64 = 1000 * MS;

/// Returns the address of word `n` of a page.
const fn word(page: u64, n: u64) -> u64 {
    (page << 12) + 8 * n
}

/// Returns the address of the `n`th user page.
const fn page(n: u64) -> u64 {
    DATA + n * 387 % 512
}

fn scattered(settings: &[&str]) -> World {
    let mut w = shadow_world(MmuMode::Steered, 1);
    settings.iter().for_each(|set| w.g.tunables.set(set).expect("a tunable"));
    for (table, index, entry) in [(0, 2, ROOT << 10 | 0xcf), (0, 3, (ROOT + 1) << 10 | 1), (1, 0, (ROOT + 2) << 10 | 1)]
    {
        write(&mut w, word(ROOT + table, index), entry);
    }
    for n in 0..512 {
        write(&mut w, word(ROOT + 2, n), page(n) << 10 | 0xd7);
        write(&mut w, word(page(n), n), 0x1000 + n);
    }
    w.run.context.x[10] = SV39 | ROOT;
    assert_eq!(w.exit(VIRTUAL, WRITE_SATP, 0, 0), Outcome::Resume);
    w.hart.mode = Mode::User;
    for n in 0..512 {
        // The first may find that a table is to be filled before.
        for _ in 0..2 {
            assert_eq!(w.exit(LOAD, THERE + (n << 12), 0, 0), Outcome::Resume);
        }
    }
    let now = w.hart.time;
    w.run.watch.load(now, SECOND, 1);
    w
}

/// Lets so much time pass, with all looks that come.
fn pass(w: &mut World, milliseconds: u64) {
    let end = w.hart.time + milliseconds * MS;
    while w.run.watch.due() <= end {
        w.hart.time = w.hart.time.max(w.run.watch.due());
        let now = w.hart.time;
        assert_eq!(watch::look(&w.g, &mut w.run, (now, SECOND), &mut w.hart), None);
        assert!(w.run.watch.due() > now, "there is always time in between");
    }
    w.hart.time = end;
}

/// Returns the number of times that one leaf came to stand for pages, the number of times that it was split, and the
/// number of pages that were moved.
fn counts(w: &World) -> [u64; 3] {
    let c = w.run.vm.translation.counters(&w.run.vm).expect("shadow tables have some");
    [c.coalesced, c.coalesced_split, c.moved]
}

#[test]
fn pages_are_moved_where_a_root_stays_and_hold_what_they_held() {
    let mut w = scattered(&[]);
    pass(&mut w, 90);
    assert_eq!(counts(&w), [0; 3], "most processes are over by then");
    pass(&mut w, 150);
    assert_eq!(counts(&w), [0; 3], "it has not been seen for long");
    pass(&mut w, 100);
    assert_eq!(counts(&w), [1, 0, 512]);
    for n in 0..512 {
        assert_eq!(read(&mut w, word(page(n), n)), 0x1000 + n);
    }
    // Nothing is left to do, and it is looked for more and more rarely.
    pass(&mut w, 5000);
    assert_eq!(counts(&w), [1, 0, 512]);
}

#[test]
fn a_root_that_comes_and_goes_is_left_alone() {
    let mut w = scattered(&[]);
    for turn in 0..50 {
        pass(&mut w, 15);
        w.hart.mode = Mode::Supervisor;
        w.run.context.x[10] = SV39 | (turn % 2 + 1) << 44 | ROOT;
        assert_eq!(w.exit(VIRTUAL, WRITE_SATP, 0, 0), Outcome::Resume);
        let other = if turn % 2 == 0 { ROOT + 3 } else { ROOT };
        write(&mut w, word(ROOT + 3, 2), ROOT << 10 | 0xcf);
        w.run.context.x[10] = SV39 | other;
        assert_eq!(w.exit(VIRTUAL, WRITE_SATP, 0, 0), Outcome::Resume);
    }
    assert_eq!(counts(&w), [0; 3]);
}

#[test]
fn it_can_be_turned_off_and_on() {
    let mut w = scattered(&["coalesce=off"]);
    pass(&mut w, 3000);
    assert_eq!(counts(&w), [0; 3]);
    ["coalesce=on", "coalesce-share=500"].into_iter().for_each(|set| w.g.tunables.set(set).expect("a tunable"));
    // It is where it was, and so it is not looked at often.
    pass(&mut w, 3000);
    assert_eq!(counts(&w), [1, 0, 512]);
}
