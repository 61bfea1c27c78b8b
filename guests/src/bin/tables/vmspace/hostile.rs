//! Calls that are refused, and calls at random.

use super::{CODE, DATA, ECALL, LOAD, World};
use abi::vmspace::{CREATE, DESTROY, INFO, INVALIDATE, MOST_SPACES, READ, RUN, SET_ROOT, SWITCH, WRITE};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use guests::expect::{ECALL_U, FETCH_PAGE, hole_addresses};
use guests::paging::{Page, Space, page, pointer};
use guests::random::Random;
use guests::sbi::{INVALID_ADDRESS, INVALID_PARAM, NOT_SUPPORTED, SUCCESS};
use guests::vmspace::{Handle, Program, call};
use guests::{Check, board, ensure, ensure_eq, hart, run, sbi};
use rv::format::SV39;
use rv::{Interrupt, PAGE_BYTES};

pub fn all(is_soft: bool) {
    run("vmspace/refused", if is_soft { || refused(RUN, SWITCH) } else { || refused(SWITCH, RUN) });
    run("vmspace/bound", bound);
    if is_soft {
        run("vmspace/contexts", contexts);
        run("vmspace/wild-tables", wild_tables);
    }
    run("vmspace/at-random", || hart::everywhere(at_random));
}

/// Handles, roots and lists that are none. `enters` is the call by which spaces run here, `other` is the other way's.
fn refused(enters: usize, other: usize) -> Check {
    let (w, list) = (World::new(&[ECALL])?, page());
    ensure_eq!(call(other, [w.handle.0, list.address(), 0, 0]), (NOT_SUPPORTED, 0), "the other way's call");
    for function in [1, INFO - 1, WRITE + 1, usize::MAX] {
        ensure_eq!(call(function, [0; 4]), (NOT_SUPPORTED, 0), "function {function:#x}");
    }
    for handle in [0, 1, w.handle.0 ^ 1, w.handle.0 + 0x100, w.handle.0 | 1 << 63, u64::MAX] {
        for function in [DESTROY, INVALIDATE, enters] {
            ensure_eq!(call(function, [handle, list.address(), 0, 0]), (INVALID_PARAM, 0), "{function} of {handle:#x}");
        }
        ensure_eq!(call(SET_ROOT, [handle, w.space.satp(), 0, 0]), (INVALID_PARAM, 0), "SET_ROOT of {handle:#x}");
        for function in [READ, WRITE] {
            let args = [handle, DATA, list.address(), 8];
            ensure_eq!(call(function, args), (INVALID_PARAM, 0), "{function} of {handle:#x}");
        }
    }
    let root = |mode: u64, ppn: u64| mode << 60 | ppn;
    let (own, end) = (w.space.root().address() >> 12, board().ram_end() >> 12);
    for satp in [
        0,
        root(0, own),
        root(1, own),
        root(11, own),
        root(15, own),
        root(8, 0),
        root(8, end),
        root(8, (board().ram_start >> 12) - 1),
        root(8, (1 << 44) - 1),
        u64::MAX,
    ] {
        ensure_eq!(call(CREATE, [satp, 0, 0, 0]), (INVALID_ADDRESS, 0), "CREATE of {satp:#x}");
        ensure_eq!(call(SET_ROOT, [w.handle.0, satp, 0, 0]), (INVALID_ADDRESS, 0), "SET_ROOT of {satp:#x}");
    }
    // An ASID in it does not matter.
    let Ok(other) = Handle::of(&w.space.with_asid(0x1ff)) else { guests::fail!("a root with an ASID is refused") };
    ensure_eq!(other.destroy(), SUCCESS, "DESTROY");
    for (at, count, error) in [
        (list.address(), 257, INVALID_PARAM),
        (list.address(), u64::MAX, INVALID_PARAM),
        (board().ram_end() - 8, 1, INVALID_ADDRESS),
        (u64::MAX - 7, 1, INVALID_ADDRESS),
    ] {
        ensure_eq!(call(INVALIDATE, [w.handle.0, at, count, 0]), (error, 0), "INVALIDATE of {count} at {at:#x}");
    }
    for at in hole_addresses() {
        ensure_eq!(call(INVALIDATE, [w.handle.0, at, 1, 0]), (INVALID_ADDRESS, 0), "INVALIDATE at {at:#x}");
    }
    // Whatever the ranges are.
    list.0.iter().for_each(|word| word.store(u64::MAX, Relaxed));
    for count in [1, 255, 256] {
        ensure_eq!(call(INVALIDATE, [w.handle.0, list.address(), count, 0]), (SUCCESS, 0), "{count} wild ranges");
    }
    // The list may lie anywhere, over the end of a page too.
    ensure_eq!(call(INVALIDATE, [w.handle.0, list.address() + 1, 255, 0]), (SUCCESS, 0), "at an odd address");
    w.end()
}

/// There are 256 at a time, and each is another's place again.
fn bound() -> Check {
    static HANDLES: [AtomicU64; MOST_SPACES] = [const { AtomicU64::new(0) }; MOST_SPACES];
    let space = Space::new(&SV39, 0);
    for round in 0..3 {
        for (n, slot) in (0..).zip(&HANDLES) {
            let Ok(handle) = Handle::of(&space) else { guests::fail!("space {n} in round {round}") };
            ensure!(handle.0 != 0 && handle.0 != slot.load(Relaxed), "a handle comes back: {:#x}", handle.0);
            slot.store(handle.0, Relaxed);
        }
        ensure_eq!(Handle::of(&space), Err(-1), "one more");
        for slot in &HANDLES {
            ensure_eq!(Handle(slot.load(Relaxed)).destroy(), SUCCESS, "DESTROY");
        }
        ensure_eq!(Handle(HANDLES[0].load(Relaxed)).destroy(), INVALID_PARAM, "DESTROY twice");
    }
    Ok(())
}

/// Context pages that are none.
fn contexts() -> Check {
    let w = World::new(&[ECALL])?;
    let program = w.program();
    let at = program.page.address();
    for (page, error) in
        [(at + 8, INVALID_PARAM), (at + 1, INVALID_PARAM), (board().ram_end(), INVALID_ADDRESS), (0, INVALID_ADDRESS)]
    {
        ensure_eq!(call(RUN, [w.handle.0, page, 0, 0]), (error, 0), "RUN with {page:#x}");
    }
    for page in hole_addresses().map(|hole| hole & !(PAGE_BYTES - 1)) {
        ensure_eq!(call(RUN, [w.handle.0, page, 0, 0]), (INVALID_ADDRESS, 0), "RUN with {page:#x}");
    }
    for flags in [1, 1 << 63, u64::MAX] {
        program.set_flags(flags);
        ensure_eq!(program.run(w.handle), Err(INVALID_PARAM), "flags {flags:#x}");
    }
    program.set_flags(0);
    ensure_eq!(program.run(w.handle).map(|end| end.0), Ok(ECALL_U), "the program");
    for pc in [0, 1, 2, u64::MAX, 1 << 38, 1 << 63] {
        program.go_to(pc);
        let Ok((cause, tval, _)) = program.run(w.handle) else { guests::fail!("pc {pc:#x} is refused") };
        ensure_eq!((cause, tval & !1), (FETCH_PAGE, pc & !1), "pc {pc:#x}");
    }
    // Its own root page, its own code page.
    program.go_to(CODE);
    w.does(&[ECALL]);
    let inside = Program { page: w.code };
    ensure!(inside.run(w.handle).is_ok(), "a context page that is the program's code");
    w.end()
}

/// Tables that are none.
fn wild_tables() -> Check {
    let (kernel, root): (_, &'static Page) = (page(), page());
    let program = Program { page: kernel };
    program.go_to(CODE);
    // A root that leads to itself; to memory that is none; anything.
    let mut random = Random::of(5);
    for round in 0..40 {
        for slot in &root.0 {
            slot.store(
                match round % 4 {
                    0 => pointer(root.address()),
                    1 => pointer(board().ram_end()),
                    2 => random.any_bits(),
                    _ => random.any_bits() & 0xff | (root.address() >> 12) << 10,
                },
                Relaxed,
            );
        }
        let (error, handle) = call(CREATE, [8 << 60 | root.address() >> 12, 0, 0, 0]);
        ensure_eq!(error, SUCCESS, "CREATE");
        program.go_to(random.any_bits() >> 26 << 1);
        // What it executes may be anything: it ends by a trap, or by the timer.
        sbi::set_timer(metal::time() + board().ticks(2));
        guests::trap::enable(Interrupt::STimer.bit());
        let ended = program.run(Handle(handle));
        guests::trap::disable(Interrupt::STimer.bit());
        sbi::set_timer(u64::MAX);
        // The kernel's own page may be the program's.
        program.set_flags(0);
        ensure!(ended.is_ok(), "round {round}: {ended:?}");
        let _ = Handle(handle).read(random.any_bits() >> 26, kernel.address(), 64);
        ensure_eq!(Handle(handle).destroy(), SUCCESS, "DESTROY");
    }
    Ok(())
}

/// All harts make calls at random, of each other's spaces as well.
fn at_random() -> Check {
    const SHARED: usize = 4;
    static HANDLES: [AtomicU64; SHARED] = [const { AtomicU64::new(0) }; SHARED];
    static SPACES: spin::Once<[Space; SHARED]> = spin::Once::new();
    let spaces = SPACES
        .call_once(|| [(); SHARED].map(|()| World::new(&[LOAD, ECALL]).map_or(Space::new(&SV39, 0), |w| w.space)));
    let mut random = Random::of(1000 + hart::id());
    let (program, list) = (Program::at(CODE), page());
    for _ in 0..600 {
        let n = random.below(SHARED as u64) as usize;
        let handle = Handle(HANDLES[n].load(Relaxed));
        match random.below(12) {
            0 | 1 => {
                if let Ok(next) = Handle::of(&spaces[n]) {
                    let old = HANDLES[n].swap(next.0, Relaxed);
                    if Handle(old).destroy() == sbi::ALREADY_STARTED {
                        // Whoever runs it knows another one now.
                        continue;
                    }
                }
            }
            2 => _ = handle.destroy(),
            3 => _ = handle.set_root(&spaces[random.below(SHARED as u64) as usize]),
            4 => _ = handle.invalidate_all(),
            5 => _ = handle.invalidate(list, &[(DATA, 8), (random.any_bits(), random.any_bits())]),
            6 => _ = handle.read(DATA, list.address(), 64),
            7 => _ = handle.write(DATA, list.address(), 64),
            8 => _ = handle.switch(),
            9 => {
                let function = INFO + random.below(9) as usize;
                let args = [handle.0, random.any_bits(), random.any_bits(), random.any_bits()];
                // Not a copy to memory of Rust's.
                if ![READ, RUN].contains(&function) {
                    let _ = call(function, args);
                }
            }
            _ => {
                program.go_to(CODE);
                program.set(11, DATA);
                if let Ok((cause, ..)) = program.run(handle) {
                    ensure_eq!(cause, ECALL_U, "how a program ended");
                }
            }
        }
    }
    guests::paging::leave();
    // Spaces whose harts ran them meanwhile end with the VM.
    HANDLES.iter().for_each(|slot| _ = Handle(slot.load(Relaxed)).destroy());
    Ok(())
}
