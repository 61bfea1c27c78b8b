//! Programs that run by call.

use super::{CODE, DATA, ECALL, INTERRUPT, LOAD, SPIN, STORE, World};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use guests::access::{peek, poke};
use guests::expect::{BREAKPOINT, ECALL_U, FETCH_PAGE, ILLEGAL, LOAD_ACCESS, LOAD_PAGE, STORE_PAGE, hole_addresses};
use guests::paging::{self, RO, RW, Space, page};
use guests::user::COUNTS;
use guests::vmspace::{Handle, Program};
use guests::{Check, board, ensure, ensure_eq, hart, run, sbi, trap};
use rv::format::SV39;
use rv::{Interrupt, PAGE_BYTES, PteFlags};

pub fn all() {
    run("vmspace/calls", || calls(None));
    run("vmspace/calls-paging", || {
        let kernel = Space::new(&SV39, 7);
        kernel.enter();
        let outcome = calls(Some(kernel.satp()));
        paging::leave();
        outcome
    });
    run("vmspace/registers", registers);
    run("vmspace/faults", faults);
    run("vmspace/instructions", instructions);
    run("vmspace/interrupts", interrupts);
    run("vmspace/invalidate", invalidate);
    run("vmspace/many", many);
    if board().hart_count > 1 {
        run("vmspace/everywhere", || hart::everywhere(|| calls(None)));
        run("vmspace/other-runs", other_runs);
    }
}

/// System calls, and what the kernel has afterwards.
fn calls(satp: Option<u64>) -> Check {
    const CALLS: u64 = 200;
    let w = World::new(&COUNTS)?;
    let program = w.program();
    for call in 1..=CALLS {
        ensure_eq!(program.run(w.handle), Ok((ECALL_U, 0, ECALL.into())), "call {call}");
        ensure_eq!((program.pc(), program.x(10), program.x(11)), (CODE + 12, call, DATA), "pc and a0 of call {call}");
        program.go_to(CODE + 16);
    }
    ensure_eq!(peek(w.data.address()), CALLS, "the program's count");
    if let Some(satp) = satp {
        ensure_eq!(metal::csr::satp::read(), satp, "the kernel's satp");
    }
    w.end()
}

/// Every register comes from the page, and goes there.
fn registers() -> Check {
    let mut code = [0; 32];
    for n in 1..32 {
        // addi xn, xn, n
        code[n as usize - 1] = n << 20 | n << 15 | n << 7 | 0x13;
    }
    code[31] = ECALL;
    let w = World::new(&code)?;
    let program = w.program();
    for round in 0..3u64 {
        (0..32).for_each(|n| program.set(n, 0x1111_0000_0000 * round + ((n as u64) << 32)));
        program.go_to(CODE);
        ensure_eq!(program.run(w.handle), Ok((ECALL_U, 0, ECALL.into())), "round {round}");
        for n in 1..32 {
            ensure_eq!(program.x(n), 0x1111_0000_0000 * round + ((n as u64) << 32) + n as u64, "x{n}");
        }
        ensure_eq!(program.x(0), 0, "x0");
    }
    w.end()
}

/// Faults of all kinds, and the page after each.
fn faults() -> Check {
    const AWAY: u64 = DATA + PAGE_BYTES;
    let w = World::new(&[LOAD, STORE, ECALL])?;
    let (program, list, new) = (w.program(), page(), page());
    let ends = |cause, tval, pc, what: &str| {
        let found = program.run(w.handle).map(|(cause, tval, _)| (cause, tval));
        ensure_eq!(found, Ok((cause, tval)), "cause and value, {what}");
        ensure_eq!(program.pc(), pc, "pc, {what}");
        Ok(())
    };
    program.set(11, AWAY);
    ends(LOAD_PAGE, AWAY, CODE, "an unmapped page")?;
    w.space.map(AWAY, new.address(), RO | PteFlags::U);
    poke(new.address(), 42);
    ensure_eq!(w.handle.invalidate(list, &[(AWAY, 8)]), sbi::SUCCESS, "INVALIDATE");
    ends(STORE_PAGE, AWAY, CODE + 4, "a read-only page")?;
    ensure_eq!(program.x(10), 42, "what was loaded");
    w.space.map(AWAY, new.address(), RW | PteFlags::U);
    ensure_eq!(w.handle.invalidate(list, &[(AWAY, 8)]), sbi::SUCCESS, "INVALIDATE");
    program.set(10, 43);
    ends(ECALL_U, 0, CODE + 8, "a writable page")?;
    ensure_eq!(peek(new.address()), 43, "what was stored");
    // Of the kernel's pages it has none.
    program.set(11, w.data.address());
    program.go_to(CODE);
    ends(LOAD_PAGE, w.data.address(), CODE, "a page of the kernel's")?;
    program.go_to(AWAY);
    ends(FETCH_PAGE, AWAY, AWAY, "code in a page without X")?;
    for hole in hole_addresses().filter(|hole| hole % 8 == 0 && hole >> 44 == 0) {
        w.space.map(AWAY, hole & !(PAGE_BYTES - 1), RW | PteFlags::U);
        ensure_eq!(w.handle.invalidate_all(), sbi::SUCCESS, "INVALIDATE");
        program.set(11, AWAY + hole % PAGE_BYTES);
        program.go_to(CODE);
        ends(LOAD_ACCESS, AWAY + hole % PAGE_BYTES, CODE, "no memory")?;
    }
    w.space.map(AWAY, guests::console::UART, RW | PteFlags::U);
    ensure_eq!(w.handle.invalidate_all(), sbi::SUCCESS, "INVALIDATE");
    program.set(11, AWAY);
    ends(LOAD_ACCESS, AWAY, CODE, "a device")?;
    w.end()
}

/// Instructions that a program may not execute, or that Gnomon may have to carry out.
fn instructions() -> Check {
    const RDTIME: u32 = 0xc010_2573;
    let w = World::new(&[0x0010_0073])?;
    let program = w.program();
    ensure_eq!(program.run(w.handle).map(|end| end.0), Ok(BREAKPOINT), "ebreak");
    // csrr a0, sstatus; sret; wfi; sfence.vma; hlv.d; csrw satp, a0; 0.
    for insn in [0x1000_2573, 0x1020_0073, 0x1050_0073, 0x1200_0073, 0x6c05_c573, 0x1805_1073, 0] {
        w.does(&[insn]);
        ensure_eq!(w.handle.invalidate_all(), sbi::SUCCESS, "INVALIDATE");
        let Ok((cause, tval, found)) = program.run(w.handle) else { guests::fail!("{insn:#x} is refused") };
        ensure_eq!((cause, program.pc()), (ILLEGAL, CODE), "{insn:#x}");
        ensure!([0, insn.into()].contains(&tval) && found == u64::from(insn), "{insn:#x}: {tval:#x}, {found:#x}");
    }
    w.does(&[RDTIME, ECALL]);
    let before = metal::time();
    ensure_eq!(program.run(w.handle).map(|end| end.0), Ok(ECALL_U), "rdtime");
    ensure!(program.x(10) >= before && program.x(10) <= metal::time(), "the time in a program");
    w.end()
}

/// Interrupts that the kernel has enabled end the run, and stay pending; others do not.
fn interrupts() -> Check {
    let w = World::new(&[SPIN])?;
    let program = w.program();
    let (soft, timer) = (Interrupt::SSoft, Interrupt::STimer);
    let of = |interrupt: Interrupt| Ok((INTERRUPT | interrupt as u64, 0, 0));
    let soon = || metal::time() + board().ticks(5);
    // Before the run.
    ensure_eq!(sbi::send_ipi(1 << hart::id(), 0), sbi::SUCCESS, "an IPI");
    trap::enable(soft.bit());
    ensure_eq!(program.run(w.handle), of(soft), "an IPI before");
    ensure_eq!((program.pc(), trap::pending() & soft.bit()), (CODE, soft.bit()), "pc, and the IPI is pending");
    ensure_eq!(metal::csr::sie::read(), soft.bit(), "sie");
    ensure_eq!(hart::this().count(soft), 0, "interrupts taken");
    trap::disable(soft.bit());
    // During it.
    trap::enable(timer.bit());
    sbi::set_timer(soon());
    ensure_eq!(program.run(w.handle), of(timer), "the timer");
    ensure_eq!(program.pc(), CODE, "pc");
    ensure!(trap::pending() & timer.bit() != 0, "the timer's interrupt is gone");
    // One of higher priority.
    trap::enable(soft.bit());
    ensure_eq!(program.run(w.handle), of(soft), "both");
    trap::clear_ipi();
    sbi::set_timer(u64::MAX);
    trap::disable(soft.bit());
    for round in 0..20 {
        sbi::set_timer(soon());
        ensure_eq!(program.run(w.handle), of(timer), "the timer, round {round}");
        sbi::set_timer(u64::MAX);
        ensure_eq!(trap::pending() & timer.bit(), 0, "the timer is off");
    }
    // With interrupts on, the kernel takes it after the call.
    let before = hart::this().count(timer);
    sbi::set_timer(soon());
    ensure_eq!(trap::with_interrupts(|| program.run(w.handle)), of(timer), "the timer, interrupts on");
    sbi::set_timer(u64::MAX);
    ensure_eq!(hart::this().count(timer), before + 1, "interrupts taken");
    trap::disable(timer.bit());
    w.end()
}

/// A program sees changes of its tables.
fn invalidate() -> Check {
    let w = World::new(&[LOAD, ECALL])?;
    let (program, list, pages) = (w.program(), page(), [page(), page(), page()]);
    let sees = || {
        program.go_to(CODE);
        program.run(w.handle).map(|end| (end.0, program.x(10)))
    };
    pages.iter().zip(100..).for_each(|(page, mark)| poke(page.address(), mark));
    for round in 0..12u64 {
        let n = round % 3;
        w.space.map(DATA, pages[n as usize].address(), RW | PteFlags::U);
        let done = match round % 4 {
            0 => w.handle.invalidate(list, &[(DATA, 1)]),
            1 => w.handle.invalidate_all(),
            2 => w.handle.invalidate(list, &[(0, 0), (DATA + 100, 8), (DATA, PAGE_BYTES), (u64::MAX, 0)]),
            _ => w.handle.invalidate(list, &[(CODE, 1 << 30)]),
        };
        ensure_eq!((done, sees()), (sbi::SUCCESS, Ok((ECALL_U, 100 + n))), "round {round}");
    }
    // Of several pages, each is a range's.
    let other = DATA + (64 << 20);
    for (n, page) in (0..).zip(&pages) {
        w.space.map(other + n * PAGE_BYTES, page.address(), RW | PteFlags::U);
    }
    for n in [0, 1, 2, 1] {
        program.set(11, other + n * PAGE_BYTES);
        ensure_eq!(sees(), Ok((ECALL_U, 100 + n)), "page {n}");
    }
    for n in 0..3 {
        w.space.map(other + n * PAGE_BYTES, pages[2 - n as usize].address(), RW | PteFlags::U);
    }
    let ranges = [(other + 2 * PAGE_BYTES, 8), (other, 8), (other + PAGE_BYTES, 8)];
    ensure_eq!(w.handle.invalidate(list, &ranges), sbi::SUCCESS, "INVALIDATE of three");
    for n in 0..3 {
        program.set(11, other + n * PAGE_BYTES);
        ensure_eq!(sees(), Ok((ECALL_U, 102 - n)), "page {n}, changed");
    }
    // Other tables in its place.
    let next = World::new(&[ECALL])?;
    poke(next.data.address(), 7);
    next.does(&[LOAD, ECALL]);
    program.set(11, DATA);
    ensure_eq!(w.handle.set_root(&next.space), sbi::SUCCESS, "SET_ROOT");
    ensure_eq!(sees(), Ok((ECALL_U, 7)), "by the other root");
    ensure_eq!(w.handle.set_root(&w.space), sbi::SUCCESS, "SET_ROOT");
    ensure_eq!(sees(), Ok((ECALL_U, 102)), "by its own again");
    // A space that comes in another's place, with the same root.
    next.end()?;
    w.end()?;
    w.space.map(DATA, pages[0].address(), RW | PteFlags::U);
    let Ok(handle) = Handle::of(&w.space) else { guests::fail!("CREATE fails") };
    program.go_to(CODE);
    ensure_eq!(program.run(handle).map(|end| (end.0, program.x(10))), Ok((ECALL_U, 100)), "a new space");
    ensure_eq!(handle.destroy(), sbi::SUCCESS, "DESTROY");
    Ok(())
}

/// Many spaces by turns.
fn many() -> Check {
    const SPACES: usize = 8;
    let mut worlds = [None; SPACES];
    for (n, world) in (0..).zip(&mut worlds) {
        let w = World::new(&[LOAD, ECALL])?;
        poke(w.data.address(), n);
        *world = Some((w, w.program()));
    }
    for round in 0..40u64 {
        let n = round * 5 % SPACES as u64;
        let Some((w, program)) = worlds[n as usize] else { continue };
        program.go_to(CODE);
        ensure_eq!(program.run(w.handle).map(|end| end.0), Ok(ECALL_U), "space {n}");
        ensure_eq!(program.x(10), n, "what space {n} sees");
    }
    worlds.iter().flatten().try_for_each(|(w, _)| w.end())
}

/// The space that the other hart runs, and the address of the context page.
static RUNS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The number of ends of its runs; how the last one ended.
static ENDED: AtomicU64 = AtomicU64::new(0);
static CAUSE: AtomicU64 = AtomicU64::new(0);

/// Runs the space until an IPI ends it.
fn run_for_other(_: u64) {
    trap::enable(Interrupt::SSoft.bit());
    let program = Program { page: guests::ram::page_at(RUNS[1].load(Acquire)) };
    let found = program.run(Handle(RUNS[0].load(Acquire)));
    CAUSE.store(found.map_or(0, |end| end.0), Relaxed);
    trap::disable(Interrupt::SSoft.bit());
    trap::clear_ipi();
    ENDED.fetch_add(1, Release);
}

/// Changes in a space that another hart runs reach that, and it ends only when no hart runs it.
fn other_runs() -> Check {
    let Some(other) = board().other_harts().next() else { return Ok(()) };
    // 1: ld a0, (a1); addi a0, a0, 1; sd a0, (a1); j 1b
    let w = World::new(&[COUNTS[0], COUNTS[1], COUNTS[2], 0xff5f_f06f])?;
    let (program, list) = (w.program(), page());
    RUNS[0].store(w.handle.0, Release);
    RUNS[1].store(program.page.address(), Release);
    let ended = ENDED.load(Acquire);
    hart::start(other, run_for_other, 0)?;
    let count = |at: u64| peek(at);
    let moves = |at: u64| {
        let before = count(at);
        hart::wait_for(hart::PATIENCE_MS, || count(at) != before)
    };
    ensure!(moves(w.data.address()), "the program does not run");
    ensure_eq!(w.handle.destroy(), sbi::ALREADY_STARTED, "DESTROY of a space that runs");
    ensure_eq!(w.handle.set_root(&w.space), sbi::ALREADY_STARTED, "SET_ROOT of a space that runs");
    let mut at = w.data.address();
    for round in 0..20 {
        let next = page();
        w.space.map(DATA, next.address(), RW | PteFlags::U);
        let done = if round % 2 == 0 { w.handle.invalidate(list, &[(DATA, 8)]) } else { w.handle.invalidate_all() };
        ensure_eq!(done, sbi::SUCCESS, "INVALIDATE, round {round}");
        let left = count(at);
        ensure!(moves(next.address()), "the program does not go on in round {round}");
        ensure_eq!(count(at), left, "the page that was taken away in round {round}");
        at = next.address();
    }
    ensure_eq!(ENDED.load(Acquire), ended, "runs that have ended");
    ensure_eq!(sbi::send_ipi(1 << other, 0), sbi::SUCCESS, "an IPI");
    ensure!(hart::wait_for(hart::PATIENCE_MS, || ENDED.load(Acquire) > ended), "the IPI does not end the run");
    ensure_eq!(CAUSE.load(Relaxed), INTERRUPT | Interrupt::SSoft as u64, "how the run ended");
    hart::join(other)?;
    w.end()?;
    ensure_eq!(w.handle.destroy(), sbi::INVALID_PARAM, "DESTROY of a space that has ended");
    ensure_eq!(program.run(w.handle), Err(sbi::INVALID_PARAM), "RUN of a space that has ended");
    Ok(())
}

/// Each hart has spaces of its own, which no other runs: no fence of one reaches another.
pub fn alone() -> Check {
    hart::everywhere(|| {
        let w = World::new(&[LOAD, ECALL])?;
        let (program, list, pages) = (w.program(), page(), [page(), page()]);
        for round in 0..200u64 {
            let page = pages[round as usize % 2];
            poke(page.address(), round);
            w.space.map(DATA, page.address(), RW | PteFlags::U);
            let done = if round % 8 == 0 { w.handle.invalidate_all() } else { w.handle.invalidate(list, &[(DATA, 8)]) };
            program.go_to(CODE);
            ensure_eq!((done, program.run(w.handle).map(|end| end.0)), (sbi::SUCCESS, Ok(ECALL_U)), "round {round}");
            ensure_eq!(program.x(10), round, "what round {round} sees");
        }
        w.end()
    })
}
