//! The ownership of memory: each word of tagged memory contains its place and its VM. All harts edit tables at random,
//! which lead to tagged memory, to tables, to devices, to nowhere and to where other VMs may be, and make loads,
//! stores, AMOs and fetches through them, with and without fences. Every result of an access has to be one that the
//! tables allowed since the hart's fences.
//!
//! Boot arguments: this VM's number (1 if missing), which its secret and its random numbers come from; steps of each hart
//! (else [`STEPS`]); for how many milliseconds more are to follow (else none).
//!
//! It wants a machine of two harts or more: where QEMU has only one, an AMO is a load and a store, which may go by two translations.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "sstatus")]

mod check;
mod tables;
mod tag;

use check::{Access, IMAGE_AT, Kind, Search};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use guests::console::line;
use guests::fences::{self, Fence, Reach};
use guests::paging::{self, AD, AdBits, Page, RW, RWX, Space, XO, leaf, page, pointer};
use guests::random::Random;
use guests::{Check, access, board, ensure, hart, run, sbi};
use metal::csr;
use rv::PteFlags;
use rv::csr::status;
use spin::Once;
use tables::{PAGES, SPACES, TABLES, Tables};
use tag::Bits;

guests::entry_point!(main);

/// Steps of each hart.
const STEPS: u64 = 4000;

/// The state that all harts share.
struct World {
    tables: Tables,
    spaces: [Space; SPACES],
    /// A table without entries.
    empty: &'static Page,
    /// The words that stores may have reached.
    reached: Bits,
    ad_bits: AdBits,
}

static WORLD: Once<World> = Once::new();
/// Accesses that reached tagged memory, and those that trapped.
static REACHED: AtomicU64 = AtomicU64::new(0);
static TRAPPED: AtomicU64 = AtomicU64::new(0);

fn argument(index: usize, otherwise: u64) -> u64 {
    board().bootargs.split_whitespace().nth(index).and_then(|word| word.parse().ok()).unwrap_or(otherwise)
}

fn main() {
    tag::set_owner(argument(0, 1));
    tag::write_all();
    let ad_bits = AdBits::of_this_machine();
    let formats = || Space::formats();
    let (Some(first), Some(last)) = (formats().next(), formats().last()) else { panic!("no format") };
    let spaces = [Space::new(first, tables::asid(0)), Space::new(last, tables::asid(1))];
    let tables = Tables::under(&spaces);
    WORLD.call_once(|| World { tables, spaces, empty: page(), reached: Bits::none(), ad_bits });
    run("ownership/only-what-tables-allow", || hart::everywhere(|| Attacker::new().attack()));
    run("ownership/nothing-else-is-stored-to", || {
        let damaged = tag::first_damaged(|at| world().reached.is_set(at));
        ensure!(damaged.is_none(), "address and value: {damaged:#x?}");
        Ok(())
    });
    let (reached, trapped) = (REACHED.load(Relaxed), TRAPPED.load(Relaxed));
    line(format_args!(
        "guest: ownership {} reached tagged memory {reached} times, trapped {trapped} times",
        argument(0, 1)
    ));
    run("ownership/many-accesses-reach-memory", || {
        // A quarter to a third do, by chance as few as 18 %; of nothing that is mapped, none.
        ensure!(16 * reached > trapped, "{reached} did, {trapped} trapped");
        Ok(())
    });
}

fn world() -> &'static World {
    WORLD.get().expect("made before harts start")
}

/// A hart.
struct Attacker {
    random: Random,
    /// The space that it is in.
    space: usize,
    may_use_users: bool,
    /// The page that it comes back to for a while.
    focus: u64,
}

impl Attacker {
    fn new() -> Self {
        Self { random: Random::of(argument(0, 1)), space: 0, may_use_users: false, focus: 0 }
    }

    /// A page to do something with: most often the one that something was done with before.
    fn page(&mut self) -> u64 {
        if self.random.below(16) == 0 {
            self.focus = self.random.below(PAGES);
        }
        if self.random.below(4) == 0 { self.random.below(PAGES) } else { self.focus }
    }

    fn attack(&mut self) -> Check {
        let end = metal::time() + board().ticks(argument(2, 0));
        let everything = wide(Reach::Local);
        world().spaces[self.space].enter();
        metal::fence::instruction();
        tables::make(&everything, self.space, 0);
        let mut steps = argument(1, STEPS);
        let outcome = loop {
            if steps == 0 && metal::time() >= end {
                break Ok(());
            }
            steps = steps.saturating_sub(1);
            if let Err(why) = self.step() {
                break Err(why);
            }
        };
        tables::end();
        // SAFETY: user mode can access none of Rust's memory.
        unsafe { csr::sstatus::clear(status::SUM) };
        paging::leave();
        outcome
    }

    fn step(&mut self) -> Check {
        tables::forget();
        match self.random.below(32) {
            0..=6 => self.edit(),
            7..=10 => {
                let kind = self.random.below(64) as usize;
                let mut kinds = fences::all();
                let count = kinds.clone().count();
                // Those that reach all harts take long.
                let fence = kinds.nth(kind % count).filter(|fence| fence.reach == Reach::Local || kind < count);
                if let Some(fence) = fence {
                    tables::make(&fence, self.space, self.page());
                }
            }
            11 => {
                self.space = self.random.below(SPACES as u64) as usize;
                world().spaces[self.space].switch();
            }
            12 => {
                self.may_use_users = !self.may_use_users;
                // SAFETY: user mode can access none of Rust's memory.
                unsafe {
                    match self.may_use_users {
                        true => csr::sstatus::set(status::SUM),
                        false => csr::sstatus::clear(status::SUM),
                    }
                }
            }
            _ => return self.access(),
        }
        Ok(())
    }

    fn edit(&mut self) {
        let table = self.random.below(TABLES as u64) as usize;
        let slot = tables::index(self.page(), tables::level(table));
        let entry = if self.random.below(3) == 0 { self.wild_entry() } else { self.good_entry(tables::level(table)) };
        if !world().tables.edit(table, slot, entry) {
            tables::make(&wide(Reach::Everybody), self.space, 0);
        }
    }

    /// A page of tagged memory.
    fn tagged_page(&mut self) -> u64 {
        tag::arena() + (self.random.below(tag::ARENA_BYTES) & !0xfff)
    }

    /// A table that is good at a level, or any.
    fn table(&mut self, level: Option<u32>) -> u64 {
        let is_good = |index: &usize| level.is_none_or(|level| tables::level(*index) == level);
        let count = (0..TABLES).filter(is_good).count();
        let chosen = (0..TABLES).filter(is_good).nth(self.random.below(count as u64) as usize);
        world().tables.all()[chosen.expect("each level has some")].page.address()
    }

    /// The rights of a random leaf; of eight one is the user's, and one global.
    fn flags(&mut self) -> PteFlags {
        let rights = self.random.any(&[PteFlags::R, RW, RW, RWX, RWX, PteFlags::R | PteFlags::X, XO]);
        let more = self.random.any(&[PteFlags::U, PteFlags::G]);
        rights | AD | if self.random.below(4) == 0 { more } else { PteFlags::empty() }
    }

    /// An entry that leads to tagged memory, if its table is reached on that level.
    fn good_entry(&mut self, level: u32) -> u64 {
        if level > 0 && self.random.below(4) > 0 {
            return pointer(self.table(Some(level - 1)));
        }
        let at = match level {
            2 => board().ram_start,
            1 => tag::arena() + (self.random.below(tag::ARENA_BYTES) & !0x1f_ffff),
            _ => self.tagged_page(),
        };
        leaf(at, self.flags())
    }

    /// Anything that an entry may be.
    fn wild_entry(&mut self) -> u64 {
        let (flags, table, tagged) = (self.flags(), self.table(None), self.tagged_page());
        let (start, end) = (board().ram_start, board().ram_end());
        match self.random.below(8) {
            0 => pointer(table),
            1 => {
                let level = self.random.below(3) as u32;
                self.good_entry(level)
            }
            // Where the image or a device is, only loads may go.
            2 => {
                let at = self.random.any(&[table, start + IMAGE_AT, 0x1000_0000, 0x0c00_0000, 0x0200_0000, 0]);
                leaf(at, PteFlags::R | AD)
            }
            3 => {
                let beyond = end + (self.random.below(4 << 30) & !0xfff);
                leaf(self.random.any(&[beyond, beyond & !0x1f_ffff, 1 << 45]), flags)
            }
            // A bare QEMU takes for entries what a device's registers hold.
            4 if sbi::is_gnomon() => pointer(self.random.any(&[end, 0x1000_0000, 0x0c00_0000, 1 << 45])),
            4 | 5 => pointer(self.random.any(&[tagged, world().empty.address(), end, 1 << 45])),
            6 if world().ad_bits == AdBits::Software => {
                leaf(tagged, self.random.any(&[flags - PteFlags::A, flags - PteFlags::D]))
            }
            // A store without a load, a reserved bit, what only a leaf has.
            _ => {
                let malformed =
                    [leaf(tagged, PteFlags::W | AD), leaf(tagged, flags) | 1 << 54, pointer(table) | 1 << 6, 0];
                self.random.any(&malformed)
            }
        }
    }

    fn access(&mut self) -> Check {
        let kind = self.random.any(&[Kind::Load, Kind::Load, Kind::Reserve, Kind::Add, Kind::Store, Kind::Fetch]);
        let page = self.page();
        let (space, may_use_users, found) = (self.space, self.may_use_users, Ok(0));
        let mut access = Access { kind, space, page, offset: 8 * self.random.below(512), may_use_users, found };
        let (at, mark) = (access.address(), self.random.any_bits());
        let since = tables::since(self.space, page);
        access.found = match kind {
            Kind::Load => access::ld(at),
            Kind::Reserve => access::lr(at),
            Kind::Add => access::amoadd(at, 1 << 56),
            Kind::Store => access::sb(at, mark).map(|()| 0),
            Kind::Fetch => access::call(at, 0),
        };
        if access.found.is_err() { &TRAPPED } else { &REACHED }.fetch_add(1, Relaxed);
        let found = access.found.map_err(|trap| (trap.cause, trap.tval));
        let is_explained = Search::explains(&world().tables, access, since, &world().reached);
        ensure!(!found.is_ok_and(tag::is_anothers), "{kind:?} at {at:#x} finds another's {found:x?}");
        ensure!(is_explained, "{kind:?} at {at:#x}, space {space}: {found:x?}");
        Ok(())
    }
}

/// The fence of everything.
fn wide(reach: Reach) -> Fence {
    let mut kinds = fences::all();
    kinds.find(|fence| fence.reach == reach && !fence.is_by_address && !fence.is_by_asid).expect("each machine has it")
}
