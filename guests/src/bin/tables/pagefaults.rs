//! Traps with page tables of the guest's own, in S and U mode: page faults with the right cause and
//! value, SUM and MXR, what U mode may not do, and holes behind and in the tables.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "sstatus, scounteren")]

use core::sync::atomic::Ordering::Relaxed;
use guests::expect::{
    ECALL_U, FETCH_ACCESS, FETCH_PAGE, ILLEGAL, LOAD_ACCESS, LOAD_PAGE, STORE_ACCESS, STORE_PAGE, ensure_trap, execute,
    hole_addresses, read_csr,
};
use guests::paging::{self, AD, Page, RO, RW, RWX, Space, TEST_VA, XO, leaf, page, pointer};
use guests::trap::Trap;
use guests::user::User;
use guests::{Check, Named, access, board, ensure, ensure_eq, run, sbi};
use metal::{csr, fence};
use rv::csr::status;
use rv::{Level, PteFlags};

guests::entry_point!(main);

fn main() {
    for format in Space::formats() {
        let world = World::new(format);
        let checks: [Named<InWorld>; 10] = [
            ("unmapped", unmapped),
            ("rights", rights),
            ("bad-entries", bad_entries),
            ("not-canonical", not_canonical),
            ("across-pages", across_pages),
            ("sum-and-mxr", sum_and_mxr),
            ("user-ecall", user_ecall),
            ("user-privileged", user_privileged),
            ("user-faults", user_faults),
            ("holes-mapped", holes_mapped),
        ];
        for (name, check) in checks {
            world.run(name, check);
        }
        if sbi::is_gnomon() {
            // QEMU's own walker makes page faults of these.
            world.run("tables-in-holes", tables_in_holes);
        }
    }
}

/// A check in one.
type InWorld = fn(&World) -> Check;

/// An address space with a page of user code and a page of user data.
struct World {
    name: &'static str,
    space: Space,
    code: &'static Page,
    data: &'static Page,
}

const USER_CODE: u64 = TEST_VA + (4 << 20);
const USER_DATA: u64 = USER_CODE + 0x1000;

impl World {
    fn new(format: &'static rv::Format) -> Self {
        let world = Self { name: format.name, space: Space::new(format, 1), code: page(), data: page() };
        world.space.map(USER_CODE, world.code.address(), RWX | PteFlags::U);
        world.space.map(USER_DATA, world.data.address(), RW | PteFlags::U);
        world.data.0[0].store(0x1122_3344_5566_7788, Relaxed);
        world
    }

    fn run(&self, name: &str, check: InWorld) {
        let name = guests::Text::of(format_args!("pagefaults/{}-{name}", self.name));
        run(name.as_str(), || {
            self.space.enter();
            let outcome = check(self);
            // SAFETY: back to the runtime's state.
            unsafe { csr::sstatus::clear(status::SUM | status::MXR) };
            paging::leave();
            outcome
        });
    }

    /// Runs one instruction in U mode with `a1` given, then an ecall.
    fn user(&self, instruction: u32, a1: u64) -> (User, Trap) {
        self.code.fill([instruction, 0x73].map(u32::to_le_bytes).as_flattened());
        let mut user = User::at(USER_CODE);
        user.x[11] = a1;
        let trap = user.run();
        (user, trap)
    }
}

fn unmapped(world: &World) -> Check {
    for at in [TEST_VA, TEST_VA + 0x128, TEST_VA + (1 << 30), TEST_VA + (7 << 30) + 0xff0] {
        ensure_trap(access::ld(at), LOAD_PAGE, at, "ld")?;
        ensure_trap(access::sd(at, 1), STORE_PAGE, at, "sd")?;
        ensure_trap(access::call(at, 0), FETCH_PAGE, at, "fetch")?;
        ensure_trap(execute(0x0005_352f, at), STORE_PAGE, at, "amoadd")?;
    }
    // It only takes an entry and a fence to make it good.
    world.space.map(TEST_VA, world.data.address(), RW);
    fence::sfence_all();
    ensure!(access::ld(TEST_VA).is_ok(), "mapped, but {:x?}", access::ld(TEST_VA));
    Ok(())
}

fn rights(world: &World) -> Check {
    let at = TEST_VA + 0x2000;
    let entry = world.space.slot(at, Level::PAGE);
    let ret = page();
    ret.fill(&0x8067_u32.to_le_bytes());
    let frame = ret.address();
    // Flags, then whether ld, sd and a fetch work.
    for (flags, works) in [
        (RO, [true, false, false]),
        (RW, [true, true, false]),
        (XO, [false, false, true]),
        (RO | PteFlags::X, [true, false, true]),
        (RWX, [true, true, true]),
        (RWX | PteFlags::G, [true, true, true]),
    ] {
        entry.store(leaf(frame, flags), Relaxed);
        fence::sfence_all();
        // The store writes beside the code.
        let found = [access::ld(at).map(|_| ()), access::sd(at + 8, 1), access::call(at, 0).map(|_| ())];
        let wanted = [(LOAD_PAGE, at), (STORE_PAGE, at + 8), (FETCH_PAGE, at)];
        for ((found, works), (cause, tval)) in found.into_iter().zip(works).zip(wanted) {
            if works {
                ensure_eq!(found, Ok(()), "with flags {flags:?}");
            } else {
                ensure_trap(found, cause, tval, "rights")?;
            }
        }
    }
    // Svade alone: A and D are the guest's to set.
    if board().has("svade") && !board().has("svadu") {
        for (flags, cause) in [(RW - AD, LOAD_PAGE), (RW - PteFlags::D, STORE_PAGE)] {
            entry.store(leaf(frame, flags), Relaxed);
            fence::sfence_all();
            let found = if cause == LOAD_PAGE { access::ld(at + 8).map(|_| ()) } else { access::sd(at + 8, 1) };
            ensure_trap(found, cause, at + 8, "without A or D")?;
            ensure_eq!(entry.load(Relaxed), leaf(frame, flags), "the entry");
        }
    }
    Ok(())
}

/// Entries that are reserved: writable but not readable, a pointer at the last level, a superpage
/// that is not aligned, reserved bits.
fn bad_entries(world: &World) -> Check {
    let at = TEST_VA + (2 << 30);
    let frame = world.data.address();
    let small = world.space.slot(at, Level::PAGE);
    for (entry, what) in [
        (leaf(frame, PteFlags::W | AD), "W without R"),
        (leaf(frame, PteFlags::W | PteFlags::X | AD), "WX without R"),
        (pointer(frame), "a pointer at level 0"),
        (leaf(frame, RW) | 1 << 54, "a reserved bit"),
        (leaf(frame, RW) & !1, "V=0"),
    ] {
        small.store(entry, Relaxed);
        fence::sfence_all();
        ensure_trap(access::ld(at), LOAD_PAGE, at, what)?;
        ensure_trap(access::sd(at, 0), STORE_PAGE, at, what)?;
        ensure_trap(access::call(at, 0), FETCH_PAGE, at, what)?;
    }
    let big = world.space.slot(at, Level::MEGA);
    let table = big.load(Relaxed);
    big.store(leaf(frame, RW), Relaxed); // 4 KiB-aligned only
    fence::sfence_all();
    let found = access::ld(at);
    big.store(table, Relaxed);
    fence::sfence_all();
    ensure!(frame.is_multiple_of(2 << 20) || found.is_err_and(|t| t.cause == LOAD_PAGE), "misaligned: {found:x?}");
    Ok(())
}

fn not_canonical(_: &World) -> Check {
    // Wrong at every size: bit 63 set alone, bit 62 set alone.
    for at in [1 << 63 | 0x8020_0000, 1 << 62 | 0x8020_0000, 0x7fff_ffff_ffff_f000] {
        ensure_trap(access::ld(at), LOAD_PAGE, at, "ld")?;
        ensure_trap(access::sd(at, 1), STORE_PAGE, at, "sd")?;
        ensure_trap(access::call(at, 0), FETCH_PAGE, at, "fetch")?;
    }
    Ok(())
}

/// Of an access over two pages, the value names the page that is missing.
fn across_pages(world: &World) -> Check {
    let at = TEST_VA + 0x1_0000;
    world.space.map(at, world.data.address(), RW);
    fence::sfence_all();
    let (inside, next) = (at + 0xffc, at + 0x1000);
    for found in [access::ld(inside).map(|_| ()), access::sd(inside, 0)] {
        let Err(trap) = found else { guests::fail!("no trap") };
        let is_right = [4, 6].contains(&trap.cause) && trap.tval == inside
            || [LOAD_PAGE, STORE_PAGE].contains(&trap.cause) && trap.tval == next;
        ensure!(is_right, "{trap:x?}");
    }
    // Four bytes of an instruction, the second half missing.
    ensure_eq!(access::sh(at + 0xffe, 0x0513), Ok(()), "sh");
    world.space.map(at, world.data.address(), RWX);
    fence::sfence_all();
    fence::instruction();
    let found = access::call(at + 0xffe, 0);
    ensure!(found.is_err_and(|t| t.epc == at + 0xffe), "epc: {found:x?}");
    ensure_trap(found, FETCH_PAGE, next, "a fetch over two pages")
}

fn with_status<T>(bits: u64, f: impl FnOnce() -> T) -> T {
    // SAFETY: SUM and MXR only widen what this code may touch.
    unsafe { csr::sstatus::set(bits) };
    let result = f();
    // SAFETY: as above.
    unsafe { csr::sstatus::clear(bits) };
    result
}

fn sum_and_mxr(world: &World) -> Check {
    ensure_trap(access::ld(USER_DATA), LOAD_PAGE, USER_DATA, "a user page without SUM")?;
    ensure_trap(access::sd(USER_DATA + 8, 1), STORE_PAGE, USER_DATA + 8, "a user page without SUM")?;
    ensure_eq!(with_status(status::SUM, || access::ld(USER_DATA)), Ok(0x1122_3344_5566_7788), "with SUM");
    ensure_eq!(with_status(status::SUM, || access::sd(USER_DATA + 8, 1)), Ok(()), "with SUM");
    world.code.fill(&0x8067_u32.to_le_bytes());
    let found = with_status(status::SUM, || access::call(USER_CODE, 0));
    ensure_trap(found, FETCH_PAGE, USER_CODE, "S mode fetching from a user page, even with SUM")?;
    let at = TEST_VA + 0x3000;
    world.space.map(at, world.data.address(), XO);
    fence::sfence_all();
    ensure_trap(access::ld(at), LOAD_PAGE, at, "an execute-only page without MXR")?;
    ensure_eq!(with_status(status::MXR, || access::ld(at)), Ok(0x1122_3344_5566_7788), "with MXR");
    let found = with_status(status::MXR, || access::sd(at, 1));
    ensure_trap(found, STORE_PAGE, at, "a store to an execute-only page with MXR")
}

fn ensure_user_trap((user, trap): (User, Trap), cause: u64, tval: u64, what: &str) -> Check {
    ensure_eq!((trap.cause, trap.tval), (cause, tval), "cause and value, {what}");
    ensure_eq!(trap.status & (status::SPP | status::SPIE | status::SIE), status::SPIE, "SPP, SPIE, SIE, {what}");
    ensure!(user.pc == USER_CODE || cause == FETCH_PAGE || cause == FETCH_ACCESS, "epc {:#x}, {what}", user.pc);
    Ok(())
}

/// An ecall from U goes to the guest's kernel: all registers arrive, and no SBI call is made.
fn user_ecall(world: &World) -> Check {
    world.code.fill([0x73, 0x73].map(u32::to_le_bytes).as_flattened());
    for eid in [0x10_u64, 0x5352_5354, 0x4442_434e, 8] {
        let mut user = User::at(USER_CODE);
        for (index, register) in user.x.iter_mut().enumerate() {
            *register = 0xabcd_0000 + index as u64;
        }
        user.x[17] = eid;
        let before = user.x;
        for step in 0..2 {
            let trap = user.run();
            ensure_eq!((trap.cause, trap.tval), (ECALL_U, 0), "cause and value");
            ensure_eq!(trap.epc, USER_CODE + 4 * step, "epc");
            ensure!(user.x[1..] == before[1..], "registers changed");
            user.pc += 4;
        }
    }
    Ok(())
}

/// U mode has no business with these.
fn user_privileged(world: &World) -> Check {
    // SAFETY: no counters for user mode.
    unsafe { csr::scounteren::write(0) };
    let mut instructions = [
        (0x1050_0073, "wfi"),
        (0x1020_0073, "sret"),
        (0x1200_0073, "sfence.vma"),
        (read_csr(0x180), "csrr satp"),
        (read_csr(0x100), "csrr sstatus"),
        (read_csr(0x14d), "csrr stimecmp"),
        (read_csr(0x300), "csrr mstatus"),
        (read_csr(0x680), "csrr hgatp"),
        (0x6200_0073, "hfence.gvma"),
        (0x6c05_4573, "hlv.d"),
        (read_csr(0xc00), "rdcycle without scounteren"),
        (read_csr(0xc02), "rdinstret without scounteren"),
        (read_csr(0xc03), "csrr hpmcounter3 without scounteren"),
        (0x0000_000b, "custom-0"),
    ];
    if board().has("h") {
        // hstatus.HU decides about hlv in U mode there.
        instructions[9] = (0x0000_000b, "custom-0");
    }
    for (instruction, what) in instructions {
        let (user, trap) = world.user(instruction, 0);
        ensure_eq!(trap.cause, ILLEGAL, "cause of {what}");
        ensure!([0, u64::from(instruction)].contains(&trap.tval), "{what}: stval {:#x}", trap.tval);
        ensure_eq!(user.pc, USER_CODE, "epc of {what}");
        ensure_eq!(trap.status & status::SPP, 0, "SPP of {what}");
    }
    // SAFETY: the guest's user mode is left for now.
    let decides = unsafe {
        csr::scounteren::write(0b010);
        let is_set = csr::scounteren::read() & 0b010 != 0;
        csr::scounteren::write(0);
        is_set
    };
    if sbi::is_gnomon() && decides {
        // OpenSBI emulates rdtime whatever scounteren says, and so does Gnomon where its bit cannot be set.
        let (_, trap) = world.user(read_csr(0xc01), 0);
        ensure_eq!(trap.cause, ILLEGAL, "cause of rdtime without scounteren");
    }
    // With scounteren, rdtime works.
    // SAFETY: as above.
    unsafe { csr::scounteren::write(0b010) };
    let before = csr::time::read();
    let (user, trap) = world.user(read_csr(0xc01), 0);
    // SAFETY: as above.
    unsafe { csr::scounteren::write(0) };
    ensure_eq!(trap.cause, ECALL_U, "cause after rdtime with scounteren");
    ensure!((before..=csr::time::read()).contains(&user.x[10]), "rdtime says {}", user.x[10]);
    // So does a counter of SBI PMU.
    // SAFETY: as above.
    let is_set = unsafe {
        csr::scounteren::write(0b1000);
        csr::scounteren::read() == 0b1000
    };
    if is_set && sbi::probe(sbi_spec::pmu::EID_PMU) {
        let (_, trap) = world.user(read_csr(0xc03), 0);
        ensure_eq!(trap.cause, ECALL_U, "cause after csrr hpmcounter3 with scounteren");
    }
    // SAFETY: as above.
    unsafe { csr::scounteren::write(0) };
    Ok(())
}

const USER_LD: u32 = 0x0005_b503; // ld a0, 0(a1)
const USER_SD: u32 = 0x00a5_b023; // sd a0, 0(a1)
const USER_JUMP: u32 = 0x0005_8067; // jr a1

fn user_faults(world: &World) -> Check {
    let (user, trap) = world.user(USER_LD, USER_DATA);
    ensure_eq!((trap.cause, user.x[10]), (ECALL_U, 0x1122_3344_5566_7788), "a load that works");
    for at in [TEST_VA + (5 << 30), 0x8020_0000] {
        ensure_user_trap(world.user(USER_LD, at), LOAD_PAGE, at, "ld")?;
        ensure_user_trap(world.user(USER_SD, at), STORE_PAGE, at, "sd")?;
        ensure_user_trap(world.user(USER_JUMP, at), FETCH_PAGE, at, "fetch")?;
    }
    ensure_user_trap(world.user(USER_JUMP, USER_DATA), FETCH_PAGE, USER_DATA, "fetch of data")
}

/// Holes behind the guest's own tables: the value is the virtual address.
fn holes_mapped(world: &World) -> Check {
    let (kernel, user) = (TEST_VA + 0x8000, TEST_VA + 0x9000);
    for hole in hole_addresses() {
        world.space.map(kernel, hole & !0xfff, RWX);
        world.space.map(user, hole & !0xfff, RWX | PteFlags::U);
        fence::sfence_all();
        let at = kernel + 0x120;
        ensure_trap(access::ld(at), LOAD_ACCESS, at, "ld")?;
        ensure_trap(access::sd(at, 1), STORE_ACCESS, at, "sd")?;
        ensure_trap(access::call(at, 0), FETCH_ACCESS, at, "fetch")?;
        let at = user + 0x120;
        ensure_user_trap(world.user(USER_LD, at), LOAD_ACCESS, at, "ld from U")?;
        ensure_user_trap(world.user(USER_SD, at), STORE_ACCESS, at, "sd from U")?;
        ensure_user_trap(world.user(USER_JUMP, at), FETCH_ACCESS, at, "fetch from U")?;
    }
    Ok(())
}

/// Tables that are not in RAM: an access fault of the access that was tried, not of the walk.
fn tables_in_holes(world: &World) -> Check {
    let at = TEST_VA + (9 << 30) + 0x5120;
    for hole in hole_addresses().map(|at| at & !0xfff).filter(|at| *at < 1 << 50).chain([0x1000_0000, 0x0c00_0000]) {
        for level in [Level::GIGA, Level::MEGA] {
            let entry = world.space.slot(at, level);
            let before = entry.load(Relaxed);
            entry.store(pointer(hole), Relaxed);
            fence::sfence_all();
            let found = [access::ld(at).map(|_| ()), access::sd(at, 1), access::call(at, 0).map(|_| ())];
            let user = world.user(USER_SD, at);
            entry.store(before, Relaxed);
            fence::sfence_all();
            for (found, cause) in found.into_iter().zip([LOAD_ACCESS, STORE_ACCESS, FETCH_ACCESS]) {
                ensure_trap(found, cause, at, "a table in a hole")?;
            }
            ensure_user_trap(user, STORE_ACCESS, at, "a table in a hole, from U")?;
        }
    }
    Ok(())
}
