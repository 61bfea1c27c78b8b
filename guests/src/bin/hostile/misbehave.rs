//! Guests that do what no guest should. The first word of `/chosen/bootargs` says what; in
//! `docs/test-guests.md` stands how each must end: in a trap that the guest reports, or in the end of
//! this VM and no other.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "wild CSR values, stvec")]

use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;
use guests::console::line;
use guests::expect::{
    FETCH_ACCESS, ILLEGAL, LOAD_ACCESS, STORE_ACCESS, ensure_trap, execute, hole_addresses, read_csr,
};
use guests::paging::{self, Page, Space, TEST_VA, page};
use guests::sbi::{self, INVALID_PARAM, NOT_SUPPORTED, SUCCESS};
use guests::{Check, access, board, ensure, ensure_eq, event, hart, run, trap};
use metal::{csr, fence};
use rv::Level;
use rv::csr::{atp, status};
use sbi_spec::{base, dbcn, fwft, hsm, rfnc, spi, srst, sse, time};

guests::entry_point!(main);

fn main() {
    let what = board().bootargs.split_whitespace().next().unwrap_or("");
    line(format_args!("guest: misbehave {what}"));
    match what {
        "jump-nowhere" => run("misbehave/jump-nowhere", jump_nowhere),
        "trap-loop" => trap_loop(0x4000_0000),
        "trap-loop-inside" => trap_loop_inside(),
        "wild-sbi" => run("misbehave/wild-sbi", wild_sbi),
        "wild-hfence" => run("misbehave/wild-hfence", wild_hfence),
        "wild-csr" => run("misbehave/wild-csr", wild_csr),
        "wild-tables" => run("misbehave/wild-tables", wild_tables),
        "mmio-nothing" => run("misbehave/mmio-nothing", mmio_nothing),
        "mmio-wild" => run("misbehave/mmio-wild", mmio_wild),
        "stop-all-harts" => stop_all_harts(),
        "panic-reset" => {
            sbi::reset(srst::RESET_TYPE_SHUTDOWN, srst::RESET_REASON_SYSTEM_FAILURE);
        }
        "panic" => panic!("as asked"),
        "spin" => spin(),
        "eat-memory" => run("misbehave/eat-memory", eat_memory),
        _ => run("misbehave/bootargs", || guests::fail!("bootargs say {what:?}")),
    }
}

/// Pseudo-random numbers: the same on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0.rotate_left(29)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.next() as usize % from.len()]
    }
}

/// The trap comes to the guest, wherever it jumped from and however often.
fn jump_nowhere() -> Check {
    for at in hole_addresses().chain([0x4000_0000; 20]).filter(|at| sbi::is_gnomon() || *at >= board().ram_end()) {
        ensure_trap(access::call(at, 0), FETCH_ACCESS, at, "a jump")?;
    }
    Ok(())
}

/// The trap vector itself cannot be fetched: each trap causes the next, and the guest never again
/// executes an instruction.
fn trap_loop(vector: u64) {
    // SAFETY: this is the end.
    unsafe {
        csr::stvec::write(vector);
        asm!("unimp");
    }
}

/// A loop of traps within the guest's own page tables: page faults that no hypervisor sees.
fn trap_loop_inside() {
    let space = Space::new(&rv::format::SV39, 0);
    space.enter();
    trap_loop(TEST_VA);
}

/// Values that are no RAM address, but look like all sorts of things.
fn wild_values() -> [u64; 14] {
    let end = board().ram_end();
    [0, 1, 2, 7, 63, 64, 0x1000_0000, 0x4000_0000, end, end + 4096, 1 << 56, 1 << 63, u64::MAX - 7, u64::MAX]
}

/// Thousands of calls with wild arguments: each returns, with success or one of SBI's errors.
fn wild_sbi() -> Check {
    let guard = guard_pages();
    let values = wild_values();
    let extensions = [
        base::EID_BASE,
        time::EID_TIME,
        spi::EID_SPI,
        rfnc::EID_RFNC,
        hsm::EID_HSM,
        srst::EID_SRST,
        dbcn::EID_DBCN,
        fwft::EID_FWFT,
        sse::EID_SSE,
        0x0a00_0000,
        usize::MAX,
    ];
    let mut random = Random(1);
    for _ in 0..5000 {
        let (eid, fid) = (random.pick(&extensions), random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, usize::MAX]));
        let mut args = [0; 6].map(|_| random.pick(&values));
        if eid == sse::EID_SSE {
            args[0] = random.pick(&[args[0], event::LOCAL, event::GLOBAL]);
        }
        let is_meant = match eid {
            // Stopping or suspending itself, resetting, printing a device: these might well work.
            hsm::EID_HSM => fid == hsm::HART_STOP || fid == hsm::HART_SUSPEND,
            srst::EID_SRST => fid == srst::SYSTEM_RESET && args[0] as u32 <= 2 && args[1] as u32 <= 1,
            dbcn::EID_DBCN => fid == dbcn::CONSOLE_WRITE_BYTE || !sbi::is_gnomon(),
            // Nor is a handler to be anywhere.
            sse::EID_SSE => fid == sse::REGISTER || !sbi::is_gnomon(),
            _ => false,
        };
        if is_meant {
            continue;
        }
        let (error, _) = sbi::call(eid, fid, args);
        ensure!((-14..=SUCCESS).contains(&error), "extension {eid:#x}, function {fid}: error {error}");
    }
    sbi::set_timer(u64::MAX);
    // SAFETY: a pending bit of this hart's.
    unsafe { csr::sip::clear(rv::Interrupt::SSoft.bit()) };
    ensure_eq!(sbi::base(base::GET_SBI_SPEC_VERSION), (SUCCESS, 0x0200_0000), "spec version");
    ensure_eq!(sbi::call(0x0a00_0000, 0, [0; 6]).0, NOT_SUPPORTED, "an unknown extension");
    ensure_eq!(sbi::hart_status(u64::MAX).0, INVALID_PARAM, "an unknown hart");
    ensure_guard(guard)
}

/// Pages without a reason to be written.
fn guard_pages() -> [&'static Page; 4] {
    let guard = [page(), page(), page(), page()];
    guard.iter().flat_map(|page| &page.0).enumerate().for_each(|(i, slot)| slot.store(!(i as u64), Relaxed));
    guard
}

fn ensure_guard(guard: [&'static Page; 4]) -> Check {
    for (i, slot) in guard.iter().flat_map(|page| &page.0).enumerate() {
        ensure_eq!(slot.load(Relaxed), !(i as u64), "guard word {i}");
    }
    Ok(())
}

/// The H extension's instructions with wild operands, thousands of times: each is illegal.
fn wild_hfence() -> Check {
    if board().has("h") {
        return Ok(()); // a bare machine with H: these are legal there
    }
    let guard = guard_pages();
    let mut random = Random(2);
    let mut values = wild_values().map(|value| value & !7);
    values[0] = guard[0].address();
    let plain = [0x6200_0073, 0x2200_0073, 0x6205_0073, 0x2205_0073, 0x62a5_0073, 0x22a5_0073];
    let memory = [0x6005_4573, 0x6405_4573, 0x6435_4573, 0x6805_4573, 0x6c05_4573, 0x62a5_4073, 0x6ea5_4073];
    let csrs = [0x680, 0x600, 0x602, 0x603, 0x605, 0x606, 0x645, 0x60a, 0x280, 0x200, 0x205, 0x24d];
    for _ in 0..3000 {
        let number: u32 = random.pick(&csrs);
        let write = number << 20 | 0x5_1073;
        let instruction = match random.next() % 4 {
            0 => random.pick(&plain),
            1 => random.pick(&memory),
            2 => write,
            _ => read_csr(number),
        };
        // OpenSBI emulates htimedelta.
        if number == 0x605 && !sbi::is_gnomon() {
            continue;
        }
        let found = execute(instruction, random.pick(&values));
        ensure!(found.is_err_and(|t| t.cause == ILLEGAL), "{instruction:#010x}: {found:x?}");
    }
    ensure_guard(guard)
}

/// Every supervisor CSR takes wild values; what sticks is the hart's business, not the hypervisor's
/// health.
fn wild_csr() -> Check {
    let mut random = Random(3);
    let kept = (csr::sstatus::read(), csr::sie::read());
    for _ in 0..500 {
        let value = random.next();
        // SAFETY: interrupts stay off (SIE is cleared in the value), and stvec and satp end as they
        // were before anything can trap.
        unsafe {
            csr::sstatus::write(value & !(status::SIE | status::FS | status::VS));
            csr::sie::write(value);
            csr::sip::write(value);
            csr::scounteren::write(value);
            csr::sscratch::write(value);
            csr::sepc::write(value);
            csr::scause::write(value);
            csr::stval::write(value);
            csr::stvec::write(value);
            csr::stvec::write(trap::vector());
        }
        let stored = trap::catch(|| {
            // SAFETY: as above; these may be missing.
            unsafe { csr::senvcfg::write(value) };
        });
        ensure!(stored.is_none_or(|t| t.cause == ILLEGAL), "senvcfg: {stored:x?}");
        if board().has("sstc") {
            // SAFETY: its interrupt is not taken.
            unsafe { csr::stimecmp::write(value) };
        }
        // Modes that do not exist leave satp as it is.
        for mode in [1, 2, 7, 11, 15] {
            // SAFETY: writes that the hart must ignore.
            unsafe { csr::satp::write(mode << atp::MODE_SHIFT | value & atp::PPN) };
            ensure_eq!(csr::satp::read(), 0, "satp after mode {mode}");
        }
    }
    // SAFETY: the runtime's values.
    unsafe {
        csr::sip::clear(rv::Interrupt::SSoft.bit());
        csr::senvcfg::write(0);
        csr::scounteren::write(0);
        csr::sstatus::write(kept.0);
        csr::sie::write(kept.1);
    }
    sbi::set_timer(u64::MAX);
    Ok(())
}

/// Page tables full of random entries, of which some point to each other, to themselves, to holes
/// and to devices.
fn wild_tables() -> Check {
    let guard = guard_pages();
    let mut random = Random(4);
    for format in Space::formats() {
        let space = Space::new(format, 0);
        let at = TEST_VA + (32 << 30);
        // A table that is its own child, at every level below the root.
        let own = page();
        own.0.iter().for_each(|slot| slot.store(paging::pointer(own.address()), Relaxed));
        space.slot(at, Level::GIGA).store(paging::pointer(own.address()), Relaxed);
        space.enter();
        let found = access::ld(at);
        ensure!(found.is_err_and(|t| t.cause == 13), "a table of itself: {found:x?}");
        let targets = [own.address(), guard[0].address(), 0x1000_0000, 0x4000_0000, board().ram_end(), 0, 1 << 50];
        for _ in 0..3000 {
            let target = random.pick(&targets);
            // Sometimes with sensible flags, sometimes with any; rarely a high bit.
            let flags =
                if random.next().is_multiple_of(2) { random.next() & 0x3ff } else { random.pick(&[0x01, 0xc3, 0xcf]) };
            let high = if random.next().is_multiple_of(8) { random.next() << 54 } else { 0 };
            let slot = random.next() as usize % 512;
            own.0[slot].store(target >> 2 & ((1 << 54) - 1) & !0x3ff | flags | high, Relaxed);
            fence::sfence_all();
            let at = at & !0x3fff_ffff | (slot as u64) << random.pick(&[12, 21]) | random.next() & 0x1f_f000;
            let found = access::ld(at);
            let is_known = found.is_ok_and(|_| true) || found.is_err_and(|t| t.cause == 13 || t.cause == LOAD_ACCESS);
            ensure!(is_known, "a load: {found:x?}");
        }
        paging::leave();
    }
    ensure_guard(guard)
}

/// Loads and stores of every width to nothing, in the thousands: each traps to the guest.
fn mmio_nothing() -> Check {
    let mut random = Random(5);
    for hole in hole_addresses() {
        for _ in 0..100 {
            let at = (hole & !0xfff) + random.next() % 0x1000 / 8 * 8;
            let loads = [access::lb, access::lbu, access::lh, access::lhu, access::lw, access::lwu, access::ld];
            ensure_trap(random.pick(&loads)(at), LOAD_ACCESS, at, "a load")?;
            let stores = [access::sb, access::sh, access::sw, access::sd];
            ensure_trap(random.pick(&stores)(at, random.next()), STORE_ACCESS, at, "a store")?;
        }
    }
    Ok(())
}

/// Any offset in the devices' windows, any width, aligned or not: a value or a trap.
fn mmio_wild() -> Check {
    let mut random = Random(6);
    for round in 0..6000 {
        // The first window of the PLIC is 64 MiB; the UART's is a page for all that can be mapped.
        let at =
            if round % 3 == 0 { 0x1000_0008 + random.next() % 0xff8 } else { 0x0c00_0000 + random.next() % 0x60_0000 };
        let loads = [access::lb, access::lbu, access::lh, access::lhu, access::lw, access::lwu, access::ld];
        let stores = [access::sb, access::sh, access::sw, access::sd];
        let load = random.pick(&loads)(at);
        let store = random.pick(&stores)(at, random.next());
        ensure!(load.is_ok_and(|_| true) || load.is_err_and(|t| [4, LOAD_ACCESS].contains(&t.cause)), "{load:x?}");
        ensure!(store.is_ok() || store.is_err_and(|t| [6, STORE_ACCESS].contains(&t.cause)), "{store:x?}");
    }
    // And back to order.
    for id in board().harts() {
        for context in [2 * id, 2 * id + 1] {
            (0..4).for_each(|word| _ = access::sw(0x0c00_2000 + 0x80 * context + 4 * word, 0));
            _ = access::sw(0x0c20_0000 + 0x1000 * context, 0);
        }
    }
    (1..128).for_each(|source| _ = access::sw(0x0c00_0000 + 4 * source, 0));
    Ok(())
}

/// Stops all harts: none is left to start another one.
fn stop_all_harts() {
    fn job(_: u64) {}
    let others = board().other_harts().try_for_each(|other| hart::start(other, job, 0));
    assert!(others.is_ok(), "the others do not start");
    let error = sbi::hart_stop();
    panic!("hart_stop returned {error}");
}

/// Interrupts off, no exits, for ever, on every hart.
fn spin() {
    fn forever(_: u64) {
        loop {
            core::hint::spin_loop();
        }
    }
    let others = board().other_harts().try_for_each(|other| hart::start(other, forever, 0));
    assert!(others.is_ok(), "the others do not start");
    forever(0);
}

/// All of RAM, written and read again. Fails only if the memory is wrong; where the hypervisor has
/// not that much, it ends the VM.
fn eat_memory() -> Check {
    for (from, to) in board().free_ram() {
        (from..to).step_by(4096).for_each(|at| access::poke(at, at ^ 0x5555));
    }
    line(format_args!("guest: all of {} MiB written", board().ram_bytes >> 20));
    for (from, to) in board().free_ram() {
        for at in (from..to).step_by(4096) {
            ensure_eq!(access::peek(at), at ^ 0x5555, "at {at:#x}");
        }
    }
    Ok(())
}
