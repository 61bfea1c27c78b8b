//! A disk with a queue for each hart: all harts use theirs at once, and whatever one of them writes into its rings or does to the device,
//! requests come back or the device says that it has to be reset.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use guests::access::{in32, peek, poke};
use guests::random::Random;
use guests::virtio::{Device, INDIRECT, INDIRECT_DESC, LIVE, NEEDS_RESET, NEXT, Rings, SIZE, STATUS, WRITE};
use guests::virtio::{describe, get16, put16};
use guests::{Check, board, ensure, ensure_eq, hart, ram, run};
use spin::Mutex;

guests::entry_point!(main);

const DISK: Device = Device(0x1000_2000);
/// The device has several queues.
const MQ: u32 = 1 << 12;
/// The address of the number of queues in the configuration.
const NUM_QUEUES: u64 = DISK.0 + 0x100 + 34;
/// Most queues.
const MOST: usize = 8;

/// Types of requests: to read, and to write.
const READ: u64 = 0;
const OUT: u64 = 1;
/// Requests that a hart makes at once, of a page each.
const REQUESTS: u64 = 8;
/// Pages of a queue: its rings, one of headers and statuses, data.
const PAGES: usize = 4 + REQUESTS as usize;
/// Sectors of the disk that a hart has for itself.
const SECTORS: u64 = 1024;

/// The address of the first queue's pages.
static PLACE: AtomicU64 = AtomicU64::new(0);
/// True if harts are to stop that disturb others.
static STOP: AtomicU64 = AtomicU64::new(0);

fn main() {
    run("disk/identity", identity);
    run("disk/all-harts", || with(|| hart::everywhere(write_and_read)));
    run("disk/one-for-all", || with(one_for_all));
    run("disk/fewer-queues", fewer_queues);
    run("disk/wild-rings", || with(wild_rings));
    run("disk/wild-buffers", || with(wild_buffers));
    run("disk/queue-goes", || with(queue_goes));
    run("disk/reset-meanwhile", || with(reset_meanwhile));
}

/// Makes a check with all queues set up, and sees that the disk still works behind it.
fn with(check: impl FnOnce() -> Check) -> Check {
    start(count())?;
    check()?;
    start(count())?;
    hart::everywhere(write_and_read)
}

/// The number of queues.
fn count() -> usize {
    (in32(NUM_QUEUES & !3) >> 16) as usize
}

/// A queue, and the pages of its requests.
#[derive(Clone, Copy)]
struct Queue {
    number: u32,
    at: u64,
}

impl Queue {
    fn of(number: usize) -> Self {
        if PLACE.load(Relaxed) == 0 {
            PLACE.store(ram::pages(PAGES * MOST)[0].address(), Relaxed);
        }
        Self { number: number as u32, at: PLACE.load(Relaxed) + 4096 * (PAGES * number) as u64 }
    }

    /// The queue of this hart.
    fn own() -> Self {
        Self::of(hart::id() as usize % count())
    }

    const fn rings(self) -> Rings {
        Rings::at(self.at)
    }

    const fn header(self, n: u64) -> u64 {
        self.at + 0x3000 + 64 * n
    }

    const fn data(self, n: u64) -> u64 {
        self.at + 0x4000 + 4096 * n
    }

    /// Makes request number `n` available: a page of the sectors from that one on.
    fn ask(self, n: u64, kind: u64, sector: u64) {
        let header = self.header(n);
        poke(header, kind);
        poke(header + 8, sector);
        poke(header + 16, 0xff);
        let (table, flag) = (self.rings().table, if kind == READ { WRITE } else { 0 });
        describe(table, 3 * n, (header, 16), NEXT, 3 * n + 1);
        describe(table, 3 * n + 1, (self.data(n), 4096), NEXT | flag, 3 * n + 2);
        describe(table, 3 * n + 2, (header + 16, 1), WRITE, 0);
        self.rings().offer(get16(self.rings().driver + 2), (3 * n) as u16);
    }

    fn notify(self) {
        DISK.set(0x050, self.number);
    }

    /// The number of descriptor chains that were made available and have not been returned.
    fn missing(self) -> u16 {
        get16(self.rings().driver + 2).wrapping_sub(get16(self.rings().device + 2))
    }

    /// Waits until all is back.
    fn wait(self) -> Check {
        let is_back = || self.missing() == 0 || DISK.get(STATUS) != LIVE;
        ensure!(hart::wait_for(hart::PATIENCE_MS, is_back), "{} of queue {} are missing", self.missing(), self.number);
        ensure_eq!(DISK.get(STATUS), LIVE, "the device is well");
        Ok(())
    }

    /// Returns whether all requests were done.
    fn is_done(self) -> bool {
        (0..REQUESTS).all(|n| peek(self.header(n) + 16) & 0xff == 0)
    }
}

/// Resets the device, and sets so many queues up.
fn start(queues: usize) -> Check {
    let all: [Rings; MOST] = core::array::from_fn(|number| Queue::of(number).rings());
    all.iter().for_each(Rings::clear);
    DISK.set_up(INDIRECT_DESC | if queues > 1 { MQ } else { 0 }, &all[..queues])
}

fn identity() -> Check {
    ensure_eq!([0x000, 0x004, 0x008].map(|at| DISK.get(at)), [0x7472_6976, 2, 2], "magic, version, device");
    ensure_eq!(count(), board().hart_count.min(MOST), "as many queues as harts, or 8");
    DISK.reset()?;
    DISK.set(0x014, 0);
    ensure_eq!(DISK.get(0x010) & MQ != 0, count() > 1, "it says that there are several");
    for queue in 0..40 {
        DISK.set(0x030, queue);
        ensure_eq!(DISK.get(0x034) != 0, (queue as usize) < count(), "queue {queue} is there");
    }
    Ok(())
}

/// Each hart reads what it has written by its queue, at a place of the disk that no other one uses. In other words each
/// time.
fn write_and_read() -> Check {
    /// One hart at a time uses a queue.
    static TURNS: [Mutex<()>; MOST] = [const { Mutex::new(()) }; MOST];
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    let (queue, own) = (Queue::own(), SECTORS * hart::id());
    let _turn = TURNS[queue.number as usize].lock();
    for _ in 0..6 {
        let seed = ROUNDS.fetch_add(1, Relaxed) << 32 | own;
        let pattern = |at: u64| (seed + at - queue.at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = || (queue.data(0)..queue.data(REQUESTS)).step_by(8);
        words().for_each(|at| poke(at, pattern(at)));
        (0..REQUESTS).for_each(|n| {
            queue.ask(n, OUT, own + 8 * n);
            queue.notify();
        });
        queue.wait()?;
        ensure!(queue.is_done(), "something was not written");
        words().for_each(|at| poke(at, 0));
        (0..REQUESTS).for_each(|n| queue.ask(n, READ, own + 8 * n));
        queue.notify();
        queue.wait()?;
        ensure!(queue.is_done(), "something was not read");
        if let Some(at) = words().find(|at| peek(*at) != pattern(*at)) {
            guests::fail!("word {:#x} is {:#x}, not {:#x}", at - queue.data(0), peek(at), pattern(at));
        }
    }
    Ok(())
}

/// One hart asks by all queues before it waits for any, and is interrupted for all of them.
fn one_for_all() -> Check {
    for number in 0..count() {
        (0..REQUESTS).for_each(|n| Queue::of(number).ask(n, READ, n));
    }
    // The last ones first.
    (0..count()).rev().for_each(|number| Queue::of(number).notify());
    for number in 0..count() {
        Queue::of(number).wait()?;
        ensure!(Queue::of(number).is_done(), "queue {number}");
    }
    ensure_eq!(DISK.get(0x060), 1, "an interrupt of a queue");
    DISK.set(0x064, 1);
    ensure_eq!(DISK.get(0x060), 0, "after it was acknowledged");
    Ok(())
}

/// A driver that knows of one queue only uses that one; what it says of others is nothing.
fn fewer_queues() -> Check {
    start(1)?;
    let queue = Queue::of(0);
    (0..REQUESTS).for_each(|n| queue.ask(n, READ, n));
    for number in [1, 7, 8, 0xffff_ffff] {
        DISK.set(0x050, number);
    }
    ensure_eq!(queue.missing() as u64, REQUESTS, "they are not notified of yet");
    queue.notify();
    queue.wait()?;
    ensure!(queue.is_done(), "something was not read");
    Ok(())
}

/// Whichever queue's rings are wild, while the others have requests in flight: the device says so, and does nothing more.
fn wild_rings() -> Check {
    for number in 0..count() {
        let rings = Queue::of(number).rings();
        let ways: [&dyn Fn(); 6] = [
            &|| put16(rings.driver + 2, SIZE as u16 + 1),
            &|| put16(rings.driver + 4, SIZE as u16),
            &|| describe(rings.table, 0, (0x8000_0000, 0), NEXT, 0),
            &|| describe(rings.table, 0, (0x8000_0000, 0), NEXT | WRITE, 1),
            &|| describe(rings.table, 0, (0x8000_0000, 0), NEXT, SIZE),
            &|| describe(rings.table, 0, (rings.table, 17), INDIRECT, 0),
        ];
        for (way, wild) in ways.iter().enumerate() {
            start(count())?;
            let others = (0..count()).filter(|other| *other != number);
            others.clone().for_each(|other| {
                (0..REQUESTS).for_each(|n| Queue::of(other).ask(n, READ, n));
                Queue::of(other).notify();
            });
            put16(rings.driver + 2, 1);
            wild();
            DISK.set(0x050, number as u32);
            let is_noticed = || DISK.get(STATUS) == LIVE | NEEDS_RESET;
            ensure!(hart::wait_for(hart::PATIENCE_MS, is_noticed), "way {way} of queue {number} is not noticed");
            others.for_each(|other| Queue::of(other).notify());
        }
    }
    Ok(())
}

/// Buffers that are none, in all queues at once: each comes back.
fn wild_buffers() -> Check {
    let end = board().ram_end();
    let mut random = Random::of(7);
    for _ in 0..40 {
        for number in 0..count() {
            let queue = Queue::of(number);
            (0..REQUESTS).for_each(|n| queue.ask(n, READ, random.any(&[n, u64::MAX - n, SECTORS << 20])));
            for n in 0..REQUESTS {
                let gpa = random.any(&[0, DISK.0, end - 8, end, u64::MAX - 8, queue.rings().device, queue.data(n)]);
                let bytes = random.any(&[0, 1, 511, 512, 4096, 0xffff_ffff]);
                let (at, flags, next) = random.any(&[(0, NEXT, 1), (1, NEXT | WRITE, 2), (2, WRITE, 0)]);
                // What is written over the ring is not looked at.
                if gpa != queue.rings().device || flags & WRITE == 0 {
                    describe(queue.rings().table, 3 * n + at, (gpa, bytes), flags, 3 * n + next);
                }
            }
        }
        (0..count()).for_each(|number| Queue::of(number).notify());
        (0..count()).try_for_each(|number| Queue::of(number).wait())?;
    }
    Ok(())
}

/// A queue is taken away while it has requests in flight; the others go on.
fn queue_goes() -> Check {
    for number in (0..count()).cycle().take(20) {
        start(count())?;
        for other in 0..count() {
            (0..REQUESTS).for_each(|n| Queue::of(other).ask(n, READ, n));
            Queue::of(other).notify();
        }
        DISK.set(0x030, number as u32);
        DISK.set(0x044, 0);
        ensure_eq!(DISK.get(0x044), 0, "queue {number} is gone");
        (0..count()).filter(|other| *other != number).try_for_each(|other| Queue::of(other).wait())?;
    }
    Ok(())
}

/// Other harts use the device, and one of them resets it again and again.
fn reset_meanwhile() -> Check {
    fn job(_: u64) {
        while STOP.load(Relaxed) == 0 {
            let queue = Queue::own();
            (0..REQUESTS).for_each(|n| queue.ask(n, READ, n));
            queue.notify();
            if hart::id() == 1 {
                DISK.set(STATUS, 0);
            }
        }
    }
    STOP.store(0, Relaxed);
    board().other_harts().try_for_each(|other| hart::start(other, job, 0))?;
    for _ in 0..30 {
        // Whatever comes of it: it may be reset before, in between, and after.
        let _ = start(count());
        let queue = Queue::own();
        (0..REQUESTS).for_each(|n| queue.ask(n, READ, n));
        queue.notify();
    }
    STOP.store(1, Relaxed);
    board().other_harts().try_for_each(hart::join)
}
