//! The permission matrix: every combination of a leaf's flags, at every level, against every kind of
//! access from S and U mode under every SUM and MXR; and entries that no walk may accept. What must
//! come of each is computed by a model of this guest's own (`model`).
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "sstatus")]

mod model;

use core::sync::atomic::Ordering::Relaxed;
use guests::expect::{FETCH_PAGE, LOAD_PAGE, STORE_PAGE, ensure_trap};
use guests::paging::{self, AdBits, Page, RWX, Space, TEST_VA, leaf, page, pointer};
use guests::trap::Trap;
use guests::user::User;
use guests::{Check, Text, access, board, ensure, ensure_eq, hart, ram, run};
use metal::{csr, fence};
use model::{Access, KINDS, Kind, Mode, Outcome};
use rv::csr::status;
use rv::{Level, PteFlags};

guests::entry_point!(main);

fn main() {
    // With several harts what one alone can see is left to machines that have one.
    if board().hart_count > 1 {
        return run("perms/on-all-harts", || hart::everywhere(on_this_hart));
    }
    for format in Space::formats() {
        let world = World::new(format);
        // Each level in full where it is the root's, and all of them in the first format. What a wider one adds to a lower level is the way
        // to it: a third of the flags shows that, another one in each.
        let all_or_third = |level| {
            let is_new = format.levels == 3 || level == format.root_level();
            let (first, step) = if is_new { (0, 1) } else { (usize::from(format.levels), 3) };
            entries_flags().skip(first % step).step_by(step)
        };
        for level in format.levels_down() {
            world.run(format_args!("flags-at-level-{}", level.number()), |world| {
                world.matrix(place(level), level, all_or_third(level))
            });
        }
        world.run(format_args!("flags-in-the-upper-half"), |world| {
            world.matrix(upper_half(format), Level::PAGE, all_or_third(Level::PAGE))
        });
        world.run(format_args!("reserved-leaves"), reserved_leaves);
        world.run(format_args!("pointers"), pointers);
        world.run(format_args!("not-canonical"), not_canonical);
    }
}

/// A third of all flags on each of several harts, of which three have all of them.
fn on_this_hart() -> Check {
    let world = World::new(&rv::format::SV39);
    world.space.enter();
    let levels = [Level::PAGE, Level::MEGA].into_iter();
    let outcome = levels.zip(hart::id()..).try_for_each(|(level, at)| {
        let third = entries_flags().skip(at as usize % 3).step_by(3);
        world.matrix(place(level), level, third)
    });
    world.leave();
    outcome
}

/// The flags of all leaves and pointers, and of some invalid entries.
fn entries_flags() -> impl Iterator<Item = u64> {
    (0..256).filter(|flags| flags & 1 == 1 || flags % 16 == 0)
}

/// The address of a level's test leaf: in a slot of its own, away from what is mapped to itself.
fn place(level: Level) -> u64 {
    TEST_VA.next_multiple_of(level.bytes()) + level.bytes()
}

/// The lowest address of the upper half.
fn upper_half(format: &rv::Format) -> u64 {
    u64::MAX << (format.input_bits() - 1)
}

/// The page that is accessed, by byte offsets: `ret`, `ecall`, what is loaded, what is stored to.
const RET: u64 = 0;
const ECALL: u64 = 0x40;
const LOADED: u64 = 0x100;
const STORED: u64 = 0x200;
const MARK: u64 = 0x0123_4567_89ab_cdef;

/// User programs, one a kind of access; each is at its index times this many bytes.
const PROGRAM_BYTES: u64 = 32;
const PROGRAMS: [[u32; 4]; 6] = [
    [0x0005_b503, 0x0000_0073, 0, 0],                     // ld a0, (a1); ecall
    [0x00c5_b023, 0x0000_0073, 0, 0],                     // sd a2, (a1); ecall
    [0x00c5_b52f, 0x0000_0073, 0, 0],                     // amoadd.d a0, a2, (a1); ecall
    [0x1005_b52f, 0x0000_0073, 0, 0],                     // lr.d a0, (a1); ecall
    [0x1005_b52f, 0x18c5_b6af, 0xfe06_9ce3, 0x0000_0073], // 1: lr.d a0, (a1); sc.d a3, a2, (a1); bnez a3, 1b; ecall
    [0x0005_8067, 0, 0, 0],                               // jr a1
];

/// An address space with user programs, and a page to access through entries of all sorts.
struct World {
    space: Space,
    target: &'static Page,
    ad: AdBits,
}

const USER_CODE: u64 = TEST_VA;

impl World {
    fn new(format: &'static rv::Format) -> Self {
        let (space, code, target) = (Space::new(format, 1), page(), &ram::pages(1)[0]);
        space.map(USER_CODE, code.address(), RWX | PteFlags::U);
        for (index, program) in PROGRAMS.iter().enumerate() {
            for (half, pair) in program.as_chunks::<2>().0.iter().enumerate() {
                let word = u64::from(pair[1]) << 32 | u64::from(pair[0]);
                code.0[index * (PROGRAM_BYTES / 8) as usize + half].store(word, Relaxed);
            }
        }
        for (at, value) in [(RET, 0x8067), (ECALL, 0x73), (LOADED, MARK)] {
            target.0[(at / 8) as usize].store(value, Relaxed);
        }
        fence::instruction();
        Self { space, target, ad: AdBits::of_this_machine() }
    }

    fn run(&self, name: core::fmt::Arguments<'_>, check: impl FnOnce(&World) -> Check) {
        let name = Text::of(format_args!("perms/{}-{name}", self.space.format().name));
        run(name.as_str(), || {
            self.space.enter();
            let outcome = check(self);
            self.leave();
            outcome
        });
    }

    fn leave(&self) {
        set_status(false, false);
        paging::leave();
    }

    /// These flags of the leaf for `at` at the level, against all accesses.
    fn matrix(&self, at: u64, level: Level, all_flags: impl Iterator<Item = u64>) -> Check {
        let inside = self.target.address() & (level.bytes() - 1);
        let frame = leaf(self.target.address() - inside, PteFlags::empty()) & !1;
        let slot = self.space.slot(at, level);
        for flags in all_flags {
            let is_pointer = flags & 0b1111 == 1 && level != Level::PAGE;
            if is_pointer && flags & 0b1101_0000 == 0 {
                continue; // a good pointer, to what is no table
            }
            let entry = frame | flags;
            slot.store(entry, Relaxed);
            if flags % 32 == 1 {
                fence::sfence_all()
            } else {
                paging::fence_page(at)
            }
            for (sum, mxr) in [(false, false), (true, false), (false, true), (true, true)] {
                set_status(sum, mxr);
                for mode in [Mode::Supervisor, Mode::User] {
                    for kind in KINDS {
                        let access = Access { kind, mode, sum, mxr };
                        let wanted = model::access(entry, u32::from(level.number()), access, self.ad);
                        self.ensure_outcome(at + inside, access, wanted, entry)?;
                        let found = slot.load(Relaxed);
                        // "The A bit may be set speculatively", whatever comes of the access.
                        let is_early = self.ad == AdBits::Hardware && wanted.cause.is_some();
                        let is_right = found == wanted.entry || is_early && found == wanted.entry | model::A;
                        ensure!(is_right, "{access:?}: entry {entry:#x} becomes {found:#x}, not {:#x}", wanted.entry);
                        if found != entry {
                            slot.store(entry, Relaxed);
                            paging::fence_page(at);
                        }
                    }
                }
            }
        }
        set_status(false, false);
        slot.store(0, Relaxed);
        fence::sfence_all();
        Ok(())
    }

    /// Makes the access to the page at `at` and compares.
    fn ensure_outcome(&self, at: u64, access: Access, wanted: Outcome, entry: u64) -> Check {
        let place = match access {
            Access { kind: Kind::Load | Kind::LoadReserved, .. } => LOADED,
            Access { kind: Kind::Fetch, mode: Mode::Supervisor, .. } => RET,
            Access { kind: Kind::Fetch, mode: Mode::User, .. } => ECALL,
            _ => STORED,
        };
        let at = at + place;
        let found = match access.mode {
            Mode::Supervisor => supervisor(access.kind, at),
            Mode::User => user(access.kind, at),
        };
        let found = found.map(|value| if place == LOADED { value } else { MARK });
        let found = found.map_err(|trap| (trap.cause, trap.tval));
        let wanted = wanted.cause.map_or(Ok(MARK), |cause| Err((cause, at)));
        ensure_eq!(found, wanted, "{access:?}, entry {entry:#x}");
        Ok(())
    }
}

fn set_status(sum: bool, mxr: bool) {
    let bits = if sum { status::SUM } else { 0 } | if mxr { status::MXR } else { 0 };
    // SAFETY: they only widen what this code may touch.
    unsafe {
        csr::sstatus::clear(status::SUM | status::MXR);
        csr::sstatus::set(bits);
    }
}

/// The access from S mode; its value.
fn supervisor(kind: Kind, at: u64) -> Result<u64, Trap> {
    match kind {
        Kind::Load => access::ld(at),
        Kind::Store => access::sd(at, 1).map(|()| 0),
        Kind::Amo => access::amoadd(at, 1),
        Kind::LoadReserved => access::lr(at),
        Kind::Pair => access::lr_sc(at, 2).map(|()| 0),
        Kind::Fetch => access::call(at, 0),
    }
}

/// The access from U mode; its value.
fn user(kind: Kind, at: u64) -> Result<u64, Trap> {
    let mut user = User::at(USER_CODE + kind as u64 * PROGRAM_BYTES);
    user.x[11] = at;
    let trap = user.run();
    let is_done = trap.cause == guests::expect::ECALL_U && (kind != Kind::Fetch || trap.epc == at);
    if is_done { Ok(user.x[10]) } else { Err(trap) }
}

/// Load, store and fetch must each fault, in both modes.
fn ensure_faults(at: u64, what: core::fmt::Arguments<'_>) -> Check {
    let text = Text::of(what);
    ensure_trap(access::ld(at), LOAD_PAGE, at, text.as_str())?;
    ensure_trap(access::sd(at, 1), STORE_PAGE, at, text.as_str())?;
    ensure_trap(access::call(at, 0), FETCH_PAGE, at, text.as_str())?;
    for (kind, cause) in [(Kind::Load, LOAD_PAGE), (Kind::Store, STORE_PAGE), (Kind::Fetch, FETCH_PAGE)] {
        let found = user(kind, at).map_err(|trap| (trap.cause, trap.tval));
        ensure_eq!(found.err(), Some((cause, at)), "U mode, {kind:?}, {what}");
    }
    Ok(())
}

/// The bits of entries, from 54 up, that nothing on this machine gives a meaning.
fn reserved_bits() -> impl Iterator<Item = u32> {
    (54..64).filter(|bit| match bit {
        61 | 62 => !board().has("svpbmt"),
        63 => !board().has("svnapot"),
        _ => true,
    })
}

/// Leaves with a reserved bit, and superpages whose frame is not aligned.
fn reserved_leaves(world: &World) -> Check {
    for level in world.space.format().levels_down() {
        let at = place(level);
        let inside = world.target.address() & (level.bytes() - 1);
        let (slot, good) = (world.space.slot(at, level), leaf(world.target.address() - inside, RWX));
        for bit in reserved_bits().chain(10..10 + 9 * u32::from(level.number())) {
            slot.store(good, Relaxed);
            paging::fence_page(at);
            ensure_eq!(access::ld(at + inside + LOADED), Ok(MARK), "the good leaf, level {}", level.number());
            slot.store(good ^ 1 << bit, Relaxed);
            paging::fence_page(at);
            ensure_faults(at + inside + LOADED, format_args!("a leaf of level {} with bit {bit}", level.number()))?;
        }
        slot.store(0, Relaxed);
        fence::sfence_all();
    }
    Ok(())
}

/// Pointers with bits that only leaves have, at every level; and those bits that software may use.
fn pointers(world: &World) -> Check {
    // No pointer on the way leads to this code.
    let at = place(world.space.format().root_level()) + 0x5000;
    world.space.map(at, world.target.address(), RWX);
    let last = world.space.slot(at, Level::PAGE);
    let good_leaf = last.load(Relaxed);
    last.store(pointer(world.target.address()), Relaxed);
    fence::sfence_all();
    ensure_faults(at + LOADED, format_args!("a pointer at level 0"))?;
    last.store(good_leaf, Relaxed);
    for level in world.space.format().levels_down().filter(|level| *level != Level::PAGE) {
        let slot = world.space.slot(at, level);
        let good = slot.load(Relaxed);
        // W, U, A, D, and all from 54: in a pointer, Svnapot and Svpbmt give none a meaning.
        for bit in [2, 4, 6, 7].into_iter().chain(54..64) {
            slot.store(good | 1 << bit, Relaxed);
            fence::sfence_all();
            let outcome =
                ensure_faults(at + LOADED, format_args!("a pointer of level {} with bit {bit}", level.number()));
            slot.store(good, Relaxed);
            fence::sfence_all();
            outcome?;
        }
        for bits in [PteFlags::G, PteFlags::RSW0, PteFlags::RSW1] {
            slot.store(good | bits.bits(), Relaxed);
            fence::sfence_all();
            let found = access::ld(at + LOADED);
            slot.store(good, Relaxed);
            fence::sfence_all();
            ensure_eq!(found, Ok(MARK), "a pointer of level {} with {bits:?}", level.number());
        }
    }
    Ok(())
}

/// Addresses whose upper bits do not repeat the format's highest, beside those that do.
fn not_canonical(world: &World) -> Check {
    let bits = world.space.format().input_bits();
    let upper = upper_half(world.space.format());
    let (low, high) = (TEST_VA + (5 << 30) + LOADED, upper + (5 << 30) + LOADED);
    for at in [low, high] {
        world.space.map(at & !0xfff, world.target.address(), RWX);
        fence::sfence_all();
        ensure_eq!(access::ld(at), Ok(MARK), "the canonical {at:#x}");
    }
    for bit in bits..64 {
        for at in [low | 1 << bit, high & !(1 << bit)] {
            ensure_faults(at, format_args!("bit {bit} differs"))?;
        }
    }
    // The first address above the lower half, and the last below the upper.
    for at in [1 << (bits - 1), upper - 8] {
        ensure_faults(at, format_args!("the edge {at:#x}"))?;
    }
    Ok(())
}
