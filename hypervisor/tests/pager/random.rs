//! Random guests on random hosts.

use super::rig::{Done, IMAGE_PAGES, PAGES, Rig, Touch, USED, vm, vm_with_image};
use abi::bundle::MmuMode;
use hypervisor::vm::Departure;
use mmu::frames::Neglect;
use rv::PAGE_BYTES;

struct Dice(u64);

impl Dice {
    fn throw(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.throw(n) == 0
    }
}

/// Makes a host with `count` VMs. `is_ample`: there is room for all that they want.
fn host(dice: &mut Dice, is_ample: bool) -> Rig {
    let count = 2 + dice.throw(3);
    let vms = (0..count).map(|n| {
        let mode = MmuMode::ALL[dice.throw(MmuMode::ALL.len() as u64) as usize];
        let name = format!("vm{n}");
        let mut config = match dice.throw(3) {
            0 => vm(&name, mode),
            1 => vm_with_image(&name, mode, (0, 0, IMAGE_PAGES)),
            _ => {
                let (at, from) = (dice.throw(100), dice.throw(200));
                vm_with_image(&name, mode, (at, from, 1 + dice.throw(312)))
            }
        };
        config.superpages = !dice.one_in(3);
        if dice.one_in(3) {
            config.limit_bytes = Some((250 + dice.throw(500)) * PAGE_BYTES);
        }
        if dice.one_in(3) {
            config.reserve_bytes = dice.throw(150) * PAGE_BYTES;
        }
        config
    });
    let vms = vms.collect();
    let pages = if is_ample { count * PAGES + IMAGE_PAGES + 2 } else { dice.throw(300) };
    let frames = if is_ample { 700 + count * 150 } else { 600 + count * 120 } + dice.throw(400);
    let mut rig = Rig::new(frames, Some(pages), vms);
    rig.exits_per_turn = 1 + dice.throw(40);
    let mut disk = rig.disk().get();
    disk.depth = 1 + dice.throw(8) as usize;
    disk.delay = dice.throw(10);
    if dice.one_in(3) {
        disk.bad_writes = (0..pages).filter(|_| dice.one_in(30)).collect();
    }
    drop(disk);
    rig
}

/// Returns an access that a guest may want: near the pages that it has wanted.
fn wish(dice: &mut Dice, near: &mut u64) -> Touch {
    match dice.throw(20) {
        0 => *near = dice.throw(USED),
        _ => *near = (*near + dice.throw(9)) % USED,
    }
    let store = match dice.throw(5) {
        0 => None,
        1 => Some(0),
        _ => Some(1 + dice.throw(1 << 40)),
    };
    Touch { page: *near, store }
}

/// A fault that is made on purpose.
#[derive(Clone, Copy, Debug)]
enum Mutant {
    Originals(Neglect),
    DeviceMixesPages,
}

fn live(seed: u64, is_ample: bool, mutant: Option<Mutant>) -> [u64; 6] {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed + 1));
    let mut rig = host(&mut dice, is_ample);
    match mutant {
        None => {}
        Some(Mutant::Originals(what)) => rig.g.frames().originals().neglect(what),
        Some(Mutant::DeviceMixesPages) => rig.disk().get().mixes = true,
    }
    let count = rig.guests.len();
    let mut near: Vec<u64> = (0..count as u64).map(|n| n * 50).collect();
    for _ in 0..9000 {
        let n = dice.throw(count as u64) as usize;
        if rig.guests[n].wants.is_none() {
            // Now and then it comes back to what is just on its way out.
            let leaving = if dice.one_in(20) && !rig.is_over(n) { rig.leaving(n) } else { None };
            near[n] = leaving.unwrap_or(near[n]);
            let Touch { page, store } = wish(&mut dice, &mut near[n]);
            rig.guests[n].wants = Some(Touch { page: leaving.unwrap_or(page), store });
        }
        let done = rig.step(n);
        if done == Done::Waits || dice.one_in(rig.exits_per_turn) {
            rig.turn();
        }
        match dice.throw(1500) {
            0 if rig.runs(n) => {
                rig.disk().get().is_held = false;
                rig.depart(n, Departure::Reboot);
                rig.restarted(n);
            }
            1..=20 => rig.disk().get().is_held = true,
            21..=60 => rig.disk().get().is_held = false,
            _ => {}
        }
    }
    rig.disk().get().is_held = false;
    // Whatever they have touched, they find again.
    for n in 0..count {
        let pages: Vec<u64> = rig.guests[n].model.keys().copied().collect();
        rig.load(n, pages);
    }
    rig.check_slots();
    assert!(!is_ample || (0..count).all(|n| !rig.is_over(n)), "there was memory for all: {}", rig.said);
    let over = (0..count).filter(|n| rig.is_over(*n)).count() as u64;
    let [reads, writes, rescues] = ["swap.reads", "swap.writes", "swap.rescues"].map(|name| rig.count(name));
    let tally = [reads, writes, rescues, rig.count("swap.image_drops"), rig.count("swap.image_reads"), over];
    rig.end();
    tally
}

fn lives(seeds: std::ops::Range<u64>, is_ample: bool) -> [u64; 6] {
    let mut sum = [0; 6];
    for seed in seeds {
        let result = std::panic::catch_unwind(|| live(seed, is_ample, None));
        let tally = result.unwrap_or_else(|_| panic!("seed {seed}"));
        sum.iter_mut().zip(tally).for_each(|(sum, n)| *sum += n);
    }
    println!("reads, writes, rescues, originals dropped and read, VMs that ended: {sum:?}");
    sum
}

/// Returns the number of lives. A soak sets PAGER_LIVES.
fn count() -> u64 {
    std::env::var("PAGER_LIVES").ok().and_then(|n| n.parse().ok()).unwrap_or(40)
}

#[test]
fn what_guests_wrote_they_find_however_memory_comes_and_goes() {
    let [reads, writes, rescues, drops, image_reads, over] = lives(0..count(), true);
    assert!(reads > 1000 && writes > 1000 && rescues > 10 && drops > 1000 && image_reads > 1000 && over == 0);
}

#[test]
fn where_there_is_too_little_for_all_those_that_are_left_find_what_they_wrote() {
    let [.., over] = lives(1000..1000 + count() / 2, false);
    assert!(over > 0);
}

/// A check that nothing can trip checks nothing.
#[test]
fn originals_that_are_broken_are_caught() {
    let broken =
        [Mutant::Originals(Neglect::ForgetsUse), Mutant::Originals(Neglect::ComesHome), Mutant::DeviceMixesPages];
    let is_caught =
        |mutant: &Mutant| (0..20).any(|seed| std::panic::catch_unwind(|| live(seed, true, Some(*mutant))).is_err());
    let missed: Vec<Mutant> = broken.into_iter().filter(|mutant| !is_caught(mutant)).collect();
    assert!(missed.is_empty(), "no check notices {missed:?}");
}
