//! The lane's assembly, as it stands in the built hypervisor, executed on a hart of the test's own (`lane/hart.rs`) beside
//! what docs/lane.md says of it: every register, every word of memory, and what other harts and the TLB see, in its order.

#[path = "lane/hart.rs"]
mod hart;
#[path = "lane/image.rs"]
mod image;
#[path = "lane/insn.rs"]
mod insn;
#[path = "lane/memory.rs"]
mod memory;
#[path = "lane/roots.rs"]
mod roots;
#[path = "lane/scene.rs"]
mod scene;
#[path = "lane/steered.rs"]
mod steered;

use image::{Block, Image, SUPERVISOR_TO_MACHINE, VIRTUAL_TO_MACHINE, VIRTUAL_TO_SUPERVISOR};
use scene::{Random, Scene};
use std::collections::{BTreeMap, BTreeSet};

/// The results of traps: of all blocks, of those that invalidate, and of those that synchronise entries.
const OF_ALL: [&str; 7] = [
    "no fence",
    "no way down",
    "another root",
    "an unknown root",
    "a root that is out of date",
    "something is posted",
    "a read",
];
const OF_INVALIDATING: [&str; 1] = ["a token"];
const OF_SYNCING: [&str; 12] = [
    "emptied",
    "a whole leaf",
    "a leaf among others",
    "noted",
    "the gate is closed",
    "the log is full",
    "no RAM",
    "unknown memory",
    "a page with fewer rights",
    "another root, at rest",
    "all, at rest",
    "not at rest",
];

/// Instructions from the trap to the return, under Sv39 with Zba: with an ASID named, and with none. And the levels walked, and the
/// words whose address takes one instruction more without Zba.
const COSTS: [(&str, [u64; 2], u64, u64); 5] = [
    ("a token", [60, 59], 3, 0),
    ("emptied", [82, 81], 3, 1),
    ("a whole leaf", [91, 90], 3, 2),
    ("a leaf among others", [105, 104], 3, 2),
    ("noted", [69, 67], 1, 0),
];

/// The cost of a change to another root, by an ASID. One without takes one more, and the second of a pair three more.
const COST_OF_A_ROOT: u64 = 68;
/// More, where fences have passed over it which had nothing to do.
const COST_OF_A_LOOK: u64 = 7;
/// The cost of a fence of everything that has nothing to do, and of a read of `satp`.
const COST_OF_ALL: u64 = 51;
const COST_OF_A_READ: u64 = 44;

/// The cost by docs/lane.md, if the lane does it.
fn cost(scene: &Scene, what: &str) -> Option<u64> {
    if what == "a read" {
        return scene.read().map(|register| COST_OF_A_READ - u64::from(register == 0));
    }
    if what == "all, at rest" {
        return Some(COST_OF_ALL);
    }
    if what.starts_with("another root") {
        let looks = if what == "another root" { 0 } else { COST_OF_A_LOOK };
        let more = |satp: u64| u64::from(satp >> 44 & 0xffff == 0) + 3 * u64::from(scene.is_second(satp));
        return scene.written().map(|satp| COST_OF_A_ROOT + looks + more(satp));
    }
    let (_, [named, unnamed], levels, words) = COSTS.into_iter().find(|(its, ..)| *its == what)?;
    let (address, by_asid) = scene.fence()?;
    let walked = scene.levels_walked(address);
    let register = scene.hart.csrs[&scene.block.way.tval] >> 20 & 31;
    let is_moved = by_asid && [10, 29, 30, 31].contains(&register);
    let without_zba = if scene.block.zba == 1 { 0 } else { walked + words };
    Some(if by_asid { named } else { unnamed } + 7 * (walked - levels) + without_zba + u64::from(is_moved))
}

/// Traps for each block.
const TRAPS: u32 = 3000;

#[test]
fn the_lane_does_what_is_said_of_it() {
    let image = Image::read();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for block in image.blocks() {
        let mut came = BTreeMap::<&str, u32>::new();
        for number in 0..TRAPS {
            let scene = Scene::new(&block, &image, &mut random);
            let mut steps = 0;
            let result = scene.check(&image, |_| steps += 1);
            let what = result.unwrap_or_else(|what| panic!("{}, {number}: {what}", block.table()));
            let cost = cost(&scene, what).unwrap_or(steps);
            assert_eq!(steps, cost, "{}, {number}: the instructions of {what}", block.table());
            *came.entry(what).or_default() += 1;
        }
        let own: &[&str] = if block.syncs { &OF_SYNCING } else { &OF_INVALIDATING };
        let rare = OF_ALL.iter().chain(own).find(|what| came.get(*what).is_none_or(|times| *times < 3));
        assert_eq!(rare, None, "{}: of {TRAPS} traps came {came:?}", block.table());
    }
}

#[test]
fn each_entry_of_a_guests_is_brought_in_step() {
    let image = Image::read();
    let mut random = Random(0x1234_5678_9abc_def1);
    let block = Block { way: VIRTUAL_TO_MACHINE, levels: 3, zba: 1, syncs: true };
    let mut scenes = std::iter::repeat_with(|| Scene::new(&block, &image, &mut random));
    let scenes = scenes.find_map(Scene::with_each_entry).expect("one in so many");
    let mut came = BTreeMap::<&str, u32>::new();
    for scene in scenes {
        *came.entry(scene.check(&image, |_| ()).expect("as it is said")).or_default() += 1;
    }
    // Of 1024 low bits, those of leaves with A: such as have R, and such as have X alone.
    let leaves: u32 = 1024 / 8 + 1024 / 32;
    let emptied = 6 * (1024 - leaves);
    let expected = [
        ("a leaf among others", leaves),
        ("a page with fewer rights", 2 * leaves),
        ("a whole leaf", leaves),
        ("emptied", emptied),
        ("no RAM", leaves),
        ("unknown memory", leaves),
    ];
    assert_eq!(came, expected.into());
}

/// Traps that are tried for each turned bit.
const MOST_TRIED: usize = 60;

/// Leaves out each instruction that the lane executes, and flips each of its bits: the check above has to see it. All
/// that are left out are found, except jumps: the code behind some comes to the same. Of the flipped bits some change
/// nothing: those that mask what is zero anyway, and those that make a branch that passes the trap on another such branch.
#[test]
fn a_changed_instruction_is_found() {
    const NOTHING: [(u32, usize); 2] = [(0x13, 4), (1, 2)];
    let mut image = Image::read();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut needed = BTreeSet::new();
    for block in [
        Block { way: VIRTUAL_TO_MACHINE, levels: 3, zba: 1, syncs: false },
        Block { way: VIRTUAL_TO_SUPERVISOR, levels: 4, zba: 0, syncs: false },
        Block { way: SUPERVISOR_TO_MACHINE, levels: 5, zba: 1, syncs: false },
        Block { way: VIRTUAL_TO_MACHINE, levels: 3, zba: 1, syncs: true },
        Block { way: VIRTUAL_TO_SUPERVISOR, levels: 5, zba: 1, syncs: true },
        Block { way: SUPERVISOR_TO_MACHINE, levels: 4, zba: 0, syncs: true },
    ] {
        let name = block.table();
        let scenes: Vec<_> = (0..5_000).map(|_| Scene::new(&block, &image, &mut random)).collect();
        let mut executed = BTreeMap::<u64, Vec<usize>>::new();
        for (number, scene) in scenes.iter().enumerate() {
            scene.check(&image, |pc| executed.entry(pc).or_default().push(number)).expect("the lane is right");
        }
        let (mut turned, mut found) = (0, 0);
        for (pc, by) in executed {
            let (insn, bytes) = image.insn(pc);
            let mut is_found = |mutant, most| {
                image.set_insn(pc, mutant);
                let mut tried = by.iter().take(most);
                let is_found = tried.any(|number| scenes[*number].check(&image, |_| ()).is_err());
                image.set_insn(pc, (insn, bytes));
                is_found
            };
            let is_jump = bytes == 4 && insn & 0xfff == 0x6f;
            let nothing = NOTHING.into_iter().find(|(_, its)| *its == bytes).expect("both lengths");
            let is_needed = is_jump || is_found(nothing, usize::MAX);
            // Blocks of both kinds share what changes roots.
            assert!(is_needed || needed.contains(&pc), "{name}: the lane does not need {insn:#x} at {pc:#x}");
            if is_needed {
                needed.insert(pc);
            }
            turned += 8 * bytes;
            found += (0..8 * bytes).filter(|bit| is_found((insn ^ 1 << bit, bytes), MOST_TRIED)).count();
        }
        println!("{name}: of {turned} turned bits {found} are found");
        assert!(found * 20 >= turned * 19, "{name}: of {turned} turned bits only {found} are found");
    }
}
