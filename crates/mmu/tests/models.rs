//! Models: harts that take and give frames at once, run by a model checker (shuttle), which decides at each access to
//! shared data which hart goes on. It tries orders of events, not weaker orders of memory: a frame is one bit, and the
//! hart that has changed it has it. The ledger checks that a frame has one owner, and panics otherwise.
//!
//! `MODEL_ROUNDS` says how many orders are tried of each (2000 or 400 if missing), and `MODEL_SEED` which (those of 1 if missing).

use mmu::frames::{Frames, MEGA_ORDER, Owner, PoolSabotage, Run, Use};
use mmu::gstage::Filled;
use mmu::sync::atomic::{AtomicU64, Ordering};
use mmu::{Ad, AddressSpace, Images, Object, Policy, Prot, Ready, Region, Residence, Superpages};
use oracle::Machine;
use rv::format::SV39X4;
use rv::{Access, Addr, Fence, FenceScope, Gpa, Hpa, Pfn, PhysMem};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner, thread};
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex};

/// Frames of 2 MiB.
const BLOCK: u64 = 512;

/// Harts that each take runs of these orders, one after another, and give each back when they have the next; and runs
/// of frames that are the RAM. At each moment there is a run for each hart that looks for one, so each has to find one.
#[derive(Clone, Copy)]
struct Model {
    harts: &'static [&'static [u8]],
    ram: &'static [(u64, u64)],
}

impl Model {
    fn run(self) {
        let mut frames = Frames::new();
        self.ram.iter().for_each(|(first, pages)| frames.add(Pfn::new(*first), *pages));
        let total = frames.total_count();
        let threads: Vec<_> = (frames.share(self.harts.len()).into_iter().zip(self.harts).enumerate())
            .map(|(hart, (frames, orders))| {
                thread::spawn(move || {
                    let mut before = None;
                    for order in *orders {
                        let owner = Owner::Vm(hart as u16);
                        let run = frames.alloc(owner, Use::Other, *order).expect("there is one at each moment");
                        let (first, last) = (run.first(), Pfn::new(run.first().raw() + run.pages() - 1));
                        for frame in [first, last] {
                            assert_eq!(frames.owner_of(frame).map(|(owner, _)| owner), Some(owner));
                        }
                        if let Some(run) = before.replace(run) {
                            frames.free(run);
                        }
                    }
                    before.into_iter().for_each(|run| frames.free(run));
                    frames
                })
            })
            .collect();
        let frames: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(frames[0].free_count(), total);
    }

    fn explore(self) {
        explore(move || self.run());
    }
}

/// Tries orders of what its harts do.
fn explore(run: impl Fn() + Copy + Send + Sync + 'static) {
    explore_some(2000, run);
}

/// Tries so many, if nothing else is asked for.
fn explore_some(rounds: u64, run: impl Fn() + Copy + Send + Sync + 'static) {
    let number = |name, otherwise| {
        std::env::var(name).map_or(otherwise, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let (rounds, seed) = (number("MODEL_ROUNDS", rounds) as usize, number("MODEL_SEED", 1));
    let schedulers: [Box<dyn Scheduler + Send>; 2] = [
        Box::new(RandomScheduler::new_from_seed(seed, rounds)),
        Box::new(PctScheduler::new_from_seed(seed, 5, rounds)),
    ];
    for scheduler in schedulers {
        let mut config = Config::new();
        (config.failure_persistence, config.silence_warnings) = (FailurePersistence::None, true);
        Runner::new(scheduler, config).run(run);
    }
}

/// Two frames of a block that no list has are given at once: the hart that has given one finds it, though the other
/// hart, which was first, has not put the block into the list yet.
#[test]
fn what_was_given_is_found_before_another_has_given() {
    explore(|| {
        let mut frames = Frames::new();
        [(0, 2), (BLOCK, 1)].iter().for_each(|(first, pages)| frames.add(Pfn::new(*first), *pages));
        let mut harts = frames.share(2);
        let (second, first) = (harts.pop().unwrap(), harts.pop().unwrap());
        let take = |hart: &Frames| hart.alloc(Owner::Host, Use::Other, 0);
        let (a, b, c) = (take(&first).unwrap(), take(&first).unwrap(), take(&second).unwrap());
        assert_eq!((a.first().raw(), b.first().raw(), c.first().raw()), (0, 1, BLOCK));
        assert!(take(&second).is_err());
        let other = thread::spawn(move || first.free(a));
        second.free(b);
        let d = take(&second).expect("it has given one itself");
        other.join().unwrap();
        [c, d].into_iter().for_each(|run| second.free(run));
    });
}

#[test]
fn a_frame_for_each_is_found_wherever_it_is_given() {
    let ram = &[(0, 1), (BLOCK, 1), (2 * BLOCK, 1), (3 * BLOCK, 1)];
    Model { harts: &[&[0, 0, 0, 0], &[0, 0, 0, 0]], ram }.explore();
}

#[test]
fn one_hart_opens_a_block_and_all_find_frames_in_it() {
    Model { harts: &[&[0, 0], &[0, 7], &[0]], ram: &[(0, BLOCK)] }.explore();
}

#[test]
fn a_block_that_was_used_up_is_found_again() {
    Model { harts: &[&[0, 0, 0], &[0, 0, 0], &[0, 0]], ram: &[(0, 2), (BLOCK, 2), (2 * BLOCK, 2)] }.explore();
}

#[test]
fn runs_of_words_are_found_beside_frames() {
    Model { harts: &[&[7, 0, 7], &[6, 0, 7]], ram: &[(0, BLOCK)] }.explore();
}

#[test]
fn whole_blocks_are_found_beside_parts() {
    Model { harts: &[&[9, 0, 9], &[8, 9, 0]], ram: &[(0, 4 * BLOCK)] }.explore();
}

/// RAM whose contents are not looked at.
struct NoMem;

impl PhysMem for NoMem {
    fn read_u64(&self, _: Addr<Hpa>) -> u64 {
        0
    }
    fn write_u64(&mut self, _: Addr<Hpa>, _: u64) {}
    fn exchange_u64(&mut self, _: Addr<Hpa>, _: u64) -> u64 {
        0
    }
    fn compare_exchange_u64(&mut self, _: Addr<Hpa>, _: u64, _: u64) -> Result<(), u64> {
        Ok(())
    }
    fn zero_frames(&mut self, _: Pfn<Hpa>, _: u64) {}
    fn copy_frames(&mut self, _: Pfn<Hpa>, _: Pfn<Hpa>, _: u64) {}
    fn read_bytes(&self, _: Addr<Hpa>, _: &mut [u8]) {}
    fn write_bytes(&mut self, _: Addr<Hpa>, _: &[u8]) {}
}

/// A hart makes 2 MiB of zeroes while another one takes all there is.
fn zeroes_beside_a_taker(sabotage: PoolSabotage) {
    explore(move || {
        // No less, or none would be kept so.
        const ORDER: u8 = MEGA_ORDER + 4;
        let mut frames = Frames::new();
        frames.add(Pfn::new(0), 1 << ORDER);
        frames.sabotage(sabotage);
        let mut harts = frames.share(2);
        let (second, first) = (harts.pop().unwrap(), harts.pop().unwrap());
        let makes = thread::spawn(move || (0..3).for_each(|_| _ = first.make_zeroed(1, &mut NoMem)));
        for _ in 0..2 {
            let run = second.alloc(Owner::Host, Use::Other, ORDER).expect("it is nobody's");
            second.free(run);
        }
        makes.join().unwrap();
    });
}

#[test]
fn what_is_being_cleared_is_had_before_memory_is_out() {
    zeroes_beside_a_taker(PoolSabotage::Sound);
}

#[test]
#[should_panic(expected = "it is nobody's")]
fn a_run_that_is_put_back_unsaid_is_missed() {
    zeroes_beside_a_taker(PoolSabotage::PutsBackUnsaid);
}

/// RAM that harts share. At each access the scheduler may switch harts. The mutant stores without a comparison.
#[derive(Clone)]
struct SharedMem(Arc<(AtomicU64, Mutex<Machine>)>, bool);

impl SharedMem {
    fn peek(&self, at: Addr<Hpa>) -> u64 {
        self.0.1.lock().unwrap().read_u64(at)
    }

    fn with<R>(&self, access: impl FnOnce(&mut Machine) -> R) -> R {
        self.0.0.fetch_add(1, Ordering::SeqCst);
        access(&mut self.0.1.lock().unwrap())
    }
}

impl PhysMem for SharedMem {
    fn read_u64(&self, at: Addr<Hpa>) -> u64 {
        self.with(|mem| mem.read_u64(at))
    }
    fn write_u64(&mut self, at: Addr<Hpa>, value: u64) {
        self.with(|mem| mem.write_u64(at, value));
    }
    fn exchange_u64(&mut self, at: Addr<Hpa>, value: u64) -> u64 {
        self.with(|mem| mem.exchange_u64(at, value))
    }
    fn compare_exchange_u64(&mut self, at: Addr<Hpa>, old: u64, new: u64) -> Result<(), u64> {
        self.with(|mem| {
            if self.1 {
                mem.write_u64(at, new);
                return Ok(());
            }
            mem.compare_exchange_u64(at, old, new)
        })
    }
    fn zero_frames(&mut self, first: Pfn<Hpa>, pages: u64) {
        self.with(|mem| mem.zero_frames(first, pages));
    }
    fn copy_frames(&mut self, from: Pfn<Hpa>, to: Pfn<Hpa>, pages: u64) {
        self.with(|mem| mem.copy_frames(from, to, pages));
    }
    fn read_bytes(&self, at: Addr<Hpa>, into: &mut [u8]) {
        self.with(|mem| mem.read_bytes(at, into));
    }
    fn write_bytes(&mut self, at: Addr<Hpa>, from: &[u8]) {
        self.with(|mem| mem.write_bytes(at, from));
    }
}

/// No TLB.
struct NoTlb;

impl Fence<Gpa> for NoTlb {
    fn fence(&mut self, _: FenceScope<Gpa>) {}
}

/// A VM whose vCPUs fill its table with a share of the lock, while another hart removes tables.
struct FilledVm {
    lock: shuttle::sync::RwLock<Option<AddressSpace>>,
    mem: SharedMem,
}

const VM: Owner = Owner::Vm(0);
const RAM: u64 = 0x8_0000;

impl FilledVm {
    fn new(frames: &Frames, mut mem: SharedMem) -> Self {
        let policy = Policy {
            superpages: Superpages::Never,
            images: Images::Shared,
            residence: Residence::Wired,
            ad: Ad::AsNeeded,
        };
        let mut space = AddressSpace::new(&SV39X4, VM, policy, frames, &mut mem).unwrap();
        let ram = Region { start: Pfn::new(0), pages: 1024, prot: Prot::RWX, object: Object::Anonymous };
        space.add_region(ram, &mem).unwrap();
        Self { lock: shuttle::sync::RwLock::new(Some(space)), mem }
    }

    /// Touches a page, with a share of the lock or with all of it.
    fn touch(&self, page: u64, frames: &Frames) {
        let (gpa, mut mem, mut ready) = (Pfn::<Gpa>::new(page).base(), self.mem.clone(), Ready::Nothing);
        if let Ok(space) = self.lock.try_read() {
            match space.as_ref().unwrap().fill(gpa, Access::Store, &mut ready, frames, &mut mem) {
                Ok(Filled::Mapped { .. }) => return,
                other => panic!("{other:?} of anonymous memory"),
            }
        }
        self.alone(|space| {
            let _ = space.resolve(gpa, Access::Store, frames, &mut mem).unwrap();
        });
    }

    fn alone<R>(&self, act: impl FnOnce(&mut AddressSpace) -> R) -> R {
        act(self.lock.write().unwrap().as_mut().unwrap())
    }

    /// Unmaps the first 2 MiB with their table. Returns frames that another owner has then allocated and cleared.
    fn unmap(&self, frames: &Frames) -> Vec<Run> {
        let mut mem = self.mem.clone();
        self.alone(|space| {
            let stale = space.unmap(Pfn::new(0), 512, frames, &mut mem).unwrap();
            space.tell(stale, &mut mem).flush(&mut NoTlb, frames);
        });
        let taken: Vec<Run> = (0..4).map(|_| frames.alloc(Owner::Host, Use::Other, 0).unwrap()).collect();
        taken.iter().for_each(|run| mem.zero_frames(run.first(), 1));
        taken
    }
}

/// Two harts touch pages of the same 2 MiB and of others, while a third one unmaps the first 2 MiB twice.
fn fills_beside_removals(is_blind: bool) {
    explore_some(400, move || {
        const FRAMES: u64 = 64;
        let mut frames = Frames::new();
        frames.add(Pfn::new(RAM), FRAMES);
        let mut harts = frames.share(3);
        let mem = Machine::with_ram(Pfn::new(RAM), FRAMES);
        let mem = SharedMem(Arc::new((AtomicU64::new(0), Mutex::new(mem))), is_blind);
        let vm = Arc::new(FilledVm::new(&harts[0], mem.clone()));
        let remover = harts.pop().unwrap();
        let touchers: Vec<_> = (harts.into_iter().enumerate())
            .map(|(hart, frames)| {
                let vm = Arc::clone(&vm);
                thread::spawn(move || {
                    [0, 512 + hart as u64, 1].iter().for_each(|page| vm.touch(*page, &frames));
                })
            })
            .collect();
        let taken: Vec<Run> = (0..2).flat_map(|_| vm.unmap(&remover)).collect();
        touchers.into_iter().for_each(|thread| thread.join().unwrap());
        let is_clear = |run: &Run| (0..512).all(|word| mem.peek(run.first().at(8 * word)) == 0);
        assert!(taken.iter().all(is_clear), "a frame of another owner was written");
        taken.into_iter().for_each(|run| remover.free(run));
        let space = vm.lock.write().unwrap().take().unwrap();
        let count = space.counters();
        assert!(count.anonymous_4k >= 2 && count.tables >= 2, "{count:?}");
        let mut remains = space.destroy(&mut NoTlb);
        while remains.release(1000, &remover, &mem, |_| ()) {}
        assert_eq!(remover.free_count(), FRAMES, "all frames are back");
    });
}

#[test]
fn a_table_is_freed_only_when_no_hart_fills_it() {
    fills_beside_removals(false);
}

#[test]
fn a_fill_that_does_not_compare_is_found() {
    assert!(catch_unwind(|| fills_beside_removals(true)).is_err(), "it goes unfound");
}
