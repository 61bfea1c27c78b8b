//! Runs of 2 MiB of zeroes that harts make when they are idle, beside a model of the contents of each frame: runs that
//! are handed out hold zeroes, nothing is lost, and no request for a frame is refused while one is unowned.

use crate::random::Random;
use mmu::frames::{Ahead, Frames, MEGA_ORDER, MOST_ZEROED, Owner, PoolSabotage, Run, Use};
use rv::{Addr, Hpa, Pfn, PhysMem};

/// RAM: whether each frame holds zeroes.
struct Ram {
    is_zero: Vec<bool>,
    /// The most frames that were cleared at once.
    most: u64,
}

const FIRST: u64 = 0x8_0000;
const BLOCK: u64 = 512;
const PAGES: u64 = 80 * BLOCK;

impl Ram {
    fn at(&mut self, frame: u64) -> &mut bool {
        &mut self.is_zero[(frame - FIRST) as usize]
    }

    fn write(&mut self, run: &Run) {
        (0..run.pages()).for_each(|page| *self.at(run.first().raw() + page) = false);
    }
}

impl PhysMem for Ram {
    fn read_u64(&self, _: Addr<Hpa>) -> u64 {
        unreachable!("contents are not looked at")
    }
    fn write_u64(&mut self, _: Addr<Hpa>, _: u64) {
        unreachable!("nor written by words")
    }
    fn exchange_u64(&mut self, _: Addr<Hpa>, _: u64) -> u64 {
        unreachable!("nor written by words")
    }
    fn compare_exchange_u64(&mut self, _: Addr<Hpa>, _: u64, _: u64) -> Result<(), u64> {
        unreachable!("nor written by words")
    }
    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        self.most = self.most.max(pages);
        (0..pages).for_each(|page| *self.at(first.raw() + page) = true);
    }
    fn copy_frames(&mut self, _: Pfn<Hpa>, _: Pfn<Hpa>, _: u64) {
        unreachable!("nor copied")
    }
    fn read_bytes(&self, _: Addr<Hpa>, _: &mut [u8]) {
        unreachable!("nor read")
    }
    fn write_bytes(&mut self, _: Addr<Hpa>, _: &[u8]) {
        unreachable!("nor written by bytes")
    }
}

/// The counts of runs of zeroes that were handed out, and of frames that were had only because some were given back.
#[derive(Default)]
struct Seen {
    handed_out: u64,
    given_back: u64,
}

/// Three harts do this and that, in some order.
fn history(seed: u64, sabotage: PoolSabotage) -> Seen {
    let mut frames = Frames::new();
    frames.add(Pfn::new(FIRST), PAGES);
    frames.sabotage(sabotage);
    let harts = frames.share(3);
    let mut ram = Ram { is_zero: vec![false; PAGES as usize], most: 0 };
    let mut random = Random(seed);
    let (mut runs, mut ahead): (Vec<Run>, Vec<Ahead>) = (Vec::new(), Vec::new());
    let mut seen = Seen::default();
    for _ in 0..1000 {
        let hart = &harts[random.below(3) as usize];
        let ready = |hart: &Frames| hart.each_zeroed()[0].1;
        match random.below(20) {
            0..9 => {
                let most = random.below(MOST_ZEROED + 4);
                (0..random.below(20)).for_each(|_| _ = hart.make_zeroed(most, &mut ram));
                assert!(ready(hart) <= MOST_ZEROED);
            }
            9..13 => {
                if let Some(run) = hart.take_zeroed() {
                    seen.handed_out += 1;
                    assert_eq!((run.pages(), run.first().raw() % BLOCK), (BLOCK, 0));
                    let is_zero = |page| *ram.at(run.first().raw() + page);
                    assert!((0..BLOCK).all(is_zero), "2 MiB that were handed out as zeroes hold something else");
                    ahead.push(run);
                }
            }
            13 if !ahead.is_empty() => {
                let one = ahead.swap_remove(random.below(ahead.len() as u64) as usize);
                hart.put_back(one);
            }
            14 | 15 if !ahead.is_empty() => {
                let one = ahead.swap_remove(random.below(ahead.len() as u64) as usize);
                let run = hart.claim(one, Owner::Vm(1), Use::Guest).expect("there is no limit");
                ram.write(&run);
                runs.push(run);
            }
            16..19 => {
                // Now and then all there is.
                for _ in 0..if random.below(8) == 0 { PAGES } else { random.below(300) } {
                    let order = [0, 0, 3, MEGA_ORDER][random.below(4) as usize];
                    let before = ready(hart);
                    match hart.alloc(Owner::Vm(2), Use::Guest, order) {
                        Ok(run) => {
                            seen.given_back += before - ready(hart);
                            ram.write(&run);
                            runs.push(run);
                        }
                        Err(_) => {
                            assert!(order > 0 || hart.at_hand() == 0, "a frame is refused, and there are some");
                            assert!(order > MEGA_ORDER || ready(hart) == 0, "a run is refused, and some is kept");
                        }
                    }
                }
            }
            _ => runs.drain(runs.len() / 2..).for_each(|run| hart.free(run)),
        }
        assert!(hart.at_hand() <= hart.free_count());
    }
    assert!(ram.most <= 64, "no more than a portion at once");
    ahead.into_iter().for_each(|run| harts[0].put_back(run));
    runs.into_iter().for_each(|run| harts[1].free(run));
    harts[2].give_back_zeroed();
    assert_eq!((harts[0].at_hand(), harts[0].each_zeroed()[0].1), (PAGES, 0));
    let whole = (0..PAGES / BLOCK).map(|_| harts[0].alloc(Owner::Host, Use::Other, MEGA_ORDER));
    whole.collect::<Result<Vec<_>, _>>().expect("nothing is lost").into_iter().for_each(|run| harts[0].free(run));
    seen
}

#[test]
fn what_is_handed_out_as_zeroes_is_zeroes() {
    let all = (1..7).map(|seed| history(seed, PoolSabotage::Sound));
    let all = all.fold(Seen::default(), |all, one| Seen {
        handed_out: all.handed_out + one.handed_out,
        given_back: all.given_back + one.given_back,
    });
    assert!(all.handed_out > 200 && all.given_back > 20, "{} and {}", all.handed_out, all.given_back);
}

#[test]
#[should_panic(expected = "hold something else")]
fn a_run_that_is_cleared_in_part_is_found() {
    (1..7).for_each(|seed| _ = history(seed, PoolSabotage::HandsOutHalf));
}

/// Few are kept where little is free, and those that are too many are given back.
#[test]
fn what_is_kept_is_a_small_part_of_what_is_free() {
    let mut frames = Frames::new();
    frames.add(Pfn::new(FIRST), PAGES);
    let mut ram = Ram { is_zero: vec![false; PAGES as usize], most: 0 };
    let work = |frames: &Frames, most, ram: &mut Ram| (0..1000).take_while(|_| frames.make_zeroed(most, ram)).count();
    // A sixteenth of 80.
    assert!(frames.lacks_zeroed(16) && !frames.lacks_zeroed(0));
    assert_eq!(work(&frames, 16, &mut ram), 5 * 8);
    assert_eq!((frames.each_zeroed()[0].1, frames.lacks_zeroed(16), frames.lacks_zeroed(10)), (5, false, false));
    assert_eq!((work(&frames, 2, &mut ram), frames.each_zeroed()[0].1), (3, 2));
    assert!(!frames.make_zeroed(2, &mut ram), "nothing is left to be done");
    let most: Vec<Run> = (0..64).map(|_| frames.alloc(Owner::Host, Use::Other, MEGA_ORDER).unwrap()).collect();
    assert!(work(&frames, 2, &mut ram) == 1 && frames.each_zeroed()[0].1 == 1);
    most.into_iter().for_each(|run| frames.free(run));
    frames.give_back_zeroed();
    assert_eq!(frames.each_zeroed(), [("zeroed.ready", 0), ("zeroed.made", 5), ("zeroed.taken", 0)]);
}
