//! The guest's memory: accesses of the hypervisor's to it, and fences after its tables have changed.

use crate::guest::{ALL, CODE, DATA, HOLE, machine, run as run_guest};
use crate::reset;
use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;
use guests::paging::{RWX, leaf, page};
use guests::user::User;
use guests::{Check, ensure, ensure_eq, ram, run, trap};
use metal::{csr, fence};
use rv::csr::hstatus;
use rv::{Addr, Mode, PteFlags, Vmid};

pub fn run_all() {
    run("nested/loads", loads);
    run("nested/stores", stores);
    run("nested/fence-page", fence_page);
    run("nested/fence-vmid", fence_vmid);
    run("nested/fence-superpage", fence_superpage);
    run("nested/rights", rights);
    run("nested/two-vmids", two_vmids);
    run("nested/no-stage", no_stage);
    run("nested/moved-root", moved_root);
}

crate::code! {
    reads: "ld a0, (a1)", "ecall";
    writes: "sd a0, (a1)", "ecall";
    jumps: "jr a1";
}

/// Loads 8 bytes of the guest's.
fn hlv(at: u64) -> Result<u64, trap::Trap> {
    let mut value = 0;
    let trap = trap::catch(|| {
        // SAFETY: a load of the guest's memory.
        unsafe {
            asm!(".option push", ".option arch, +h", "hlv.d {}, ({})", ".option pop", inout(reg) 0_u64 => value, in(reg) at);
        }
    });
    trap.map_or(Ok(value), Err)
}

/// Loads 4 bytes of the guest's that it may execute.
fn hlvx(at: u64) -> Result<u64, trap::Trap> {
    let mut value = 0;
    let trap = trap::catch(|| {
        // SAFETY: a load of the guest's memory.
        unsafe {
            asm!(".option push", ".option arch, +h", "hlvx.wu {}, ({})", ".option pop", inout(reg) 0_u64 => value, in(reg) at);
        }
    });
    trap.map_or(Ok(value), Err)
}

/// Stores a byte of the guest's.
fn hsv(at: u64, value: u64) -> Option<trap::Trap> {
    trap::catch(|| {
        // SAFETY: a store to the guest's memory.
        unsafe { asm!(".option push", ".option arch, +h", "hsv.b {}, ({})", ".option pop", in(reg) value, in(reg) at) };
    })
}

fn loads() -> Check {
    reset();
    let (stage, data) = machine(reads(), 1);
    data.0[3].store(0x8877_6655_4433_2211, Relaxed);
    ensure_eq!(hlv(DATA + 24).ok(), Some(0x8877_6655_4433_2211), "hlv.d");
    ensure_eq!(hlvx(DATA + 24).ok(), Some(0x4433_2211), "hlvx.wu");
    let Err(trap) = hlv(HOLE + 8) else { guests::fail!("hlv.d of a hole does not trap") };
    ensure_eq!((trap.cause, trap.tval, csr::htval::read()), (21, HOLE + 8, (HOLE + 8) >> 2), "hlv.d of a hole");
    let status = csr::hstatus::read();
    ensure_eq!(status & (hstatus::GVA | hstatus::SPV), hstatus::GVA, "GVA and SPV after hlv.d of a hole");
    // By tables of the guest's, in its user mode: SPVP is clear, so pages of its kernel are not its.
    let root = page();
    stage.map(DATA + 0x1000, root.address(), ALL);
    root.0[(CODE >> 30) as usize].store(leaf(CODE, RWX), Relaxed);
    // SAFETY: the guest's own.
    unsafe { csr::vsatp::write(8 << 60 | (DATA + 0x1000) >> 12) };
    let found = hlv(DATA + 24);
    ensure!(found.is_err_and(|trap| trap.cause == 13), "hlv.d of a page of the kernel's: {found:x?}");
    // SAFETY: concerns such accesses only.
    unsafe { csr::hstatus::set(hstatus::SPVP) };
    ensure_eq!(hlv(DATA + 24).ok(), Some(0x8877_6655_4433_2211), "hlv.d as its kernel");
    reset();
    Ok(())
}

fn stores() -> Check {
    reset();
    let (stage, data) = machine(reads(), 1);
    ensure_eq!(hsv(DATA + 9, 0xab), None, "hsv.b");
    ensure_eq!(data.0[1].load(Relaxed), 0xab00, "what it stored");
    stage.map(DATA, data.address(), ALL.difference(PteFlags::W));
    fence::gvma_all();
    let trap = hsv(DATA + 9, 1);
    ensure_eq!(trap.map(|trap| (trap.cause, trap.tval)), Some((23, DATA + 9)), "hsv.b where W is clear");
    Ok(())
}

/// Returns the word that the guest reads at [`DATA`].
fn seen(user: &mut User) -> u64 {
    (user.pc, user.x[11]) = (CODE, DATA);
    let trap = run_guest(user, Mode::Supervisor);
    if trap.cause == 10 { user.x[10] } else { u64::MAX - trap.cause }
}

const REFUSED: u64 = u64::MAX - 21;

fn fence_page() -> Check {
    reset();
    let (stage, first) = machine(reads(), 9);
    let (second, mut user) = (page(), User::default());
    first.0[0].store(1, Relaxed);
    second.0[0].store(2, Relaxed);
    for n in 0..20 {
        let (to, value) = if n % 2 == 0 { (second, 2) } else { (first, 1) };
        stage.map(DATA, to.address(), ALL);
        fence::gvma_page(Addr::new(DATA), Vmid(9));
        ensure_eq!(seen(&mut user), value, "after fence {n}");
    }
    stage.map(DATA, 0, PteFlags::empty());
    fence::gvma_page(Addr::new(DATA), Vmid(9));
    ensure_eq!(seen(&mut user), REFUSED, "without a mapping");
    stage.map(DATA, second.address(), ALL);
    ensure_eq!(seen(&mut user), 2, "with one, without a fence");
    Ok(())
}

fn fence_vmid() -> Check {
    reset();
    let (stage, first) = machine(reads(), 10);
    let (second, mut user) = (page(), User::default());
    first.0[0].store(1, Relaxed);
    second.0[0].store(2, Relaxed);
    ensure_eq!(seen(&mut user), 1, "at first");
    stage.map(DATA, second.address(), ALL);
    fence::gvma_vmid(Vmid(10));
    ensure_eq!(seen(&mut user), 2, "after a fence of the VMID");
    stage.map(DATA, first.address(), ALL);
    fence::gvma_all();
    ensure_eq!(seen(&mut user), 1, "after a fence of everything");
    Ok(())
}

/// A fence of any address in 2 MiB is one of the leaf that maps them.
fn fence_superpage() -> Check {
    const MEGA: u64 = 2 << 20;
    reset();
    let (stage, _) = machine(reads(), 11);
    let (first, second) = (ram::pages(512), ram::pages(512));
    let mut user = User::default();
    let mut seen_at = |offset: u64| {
        (user.pc, user.x[11]) = (CODE, CODE + MEGA + offset);
        let trap = run_guest(&mut user, Mode::Supervisor);
        if trap.cause == 10 { user.x[10] } else { u64::MAX - trap.cause }
    };
    for page in [0, 77, 511] {
        first[page].0[0].store(100 + page as u64, Relaxed);
        second[page].0[0].store(200 + page as u64, Relaxed);
    }
    for (to, base) in [(first, 100), (second, 200), (first, 100)] {
        stage.map_mega(CODE + MEGA, to[0].address(), ALL);
        fence::gvma_page(Addr::new(CODE + MEGA + (5 << 12)), Vmid(11));
        for page in [0, 77, 511] {
            ensure_eq!(seen_at(page << 12), base + page, "page {page} of the leaf");
        }
    }
    Ok(())
}

fn rights() -> Check {
    reset();
    let (stage, data) = machine(writes(), 12);
    let mut user = User::default();
    let mut cause = |code: u64, flags: PteFlags| {
        stage.map(DATA, data.address(), flags);
        fence::gvma_page(Addr::new(DATA), Vmid(12));
        (user.pc, user.x[11]) = (code, DATA);
        run_guest(&mut user, Mode::Supervisor).cause
    };
    ensure_eq!(cause(CODE, ALL), 10, "a store where all is allowed");
    ensure_eq!(cause(CODE, ALL.difference(PteFlags::W)), 23, "a store where W is clear");
    ensure_eq!(cause(CODE, ALL.difference(PteFlags::U)), 23, "a store where U is clear");
    ensure_eq!(
        cause(CODE, PteFlags::X | PteFlags::U | PteFlags::A | PteFlags::D),
        23,
        "a store where there is X alone"
    );
    let text = page();
    text.fill(jumps());
    stage.map(CODE + 0x2000, text.address(), ALL);
    fence::gvma_all();
    ensure_eq!(cause(CODE + 0x2000, ALL.difference(PteFlags::X)), 20, "a fetch where X is clear");
    Ok(())
}

/// Two guests, by turns, and one stage with two VMIDs.
fn two_vmids() -> Check {
    reset();
    let (one, first) = machine(reads(), 20);
    let (other, second) = machine(reads(), 21);
    let third = one.with_vmid(22);
    first.0[0].store(1, Relaxed);
    second.0[0].store(2, Relaxed);
    let mut user = User::default();
    for n in 0..10 {
        for (stage, value) in [(&one, 1), (&other, 2), (&third, 1)] {
            stage.switch();
            ensure_eq!(seen(&mut user), value, "what is read by VMID {}, round {n}", stage.hgatp() >> 44 & 0x3fff);
        }
    }
    Ok(())
}

/// Without a G-stage, the guest's physical addresses are this hypervisor's.
fn no_stage() -> Check {
    reset();
    let (code, data) = (page(), page());
    code.fill(reads());
    data.0[0].store(99, Relaxed);
    let mut user = User::at(code.address());
    user.x[11] = data.address();
    // SAFETY: the guest's code reads one word.
    unsafe { csr::hgatp::write(0) };
    fence::gvma_all();
    let trap = run_guest(&mut user, Mode::Supervisor);
    ensure_eq!((trap.cause, user.x[10]), (10, 99), "cause and a0 without a G-stage");
    Ok(())
}

/// The guest's root table is moved to another page of this hypervisor's, which says the same, and at last to one that maps nothing.
fn moved_root() -> Check {
    const ROOT: u64 = DATA + 0x1000;
    reset();
    let (stage, data) = machine(reads(), 23);
    let (roots, empty) = ([page(), page()], page());
    roots.iter().for_each(|root| root.0[(CODE >> 30) as usize].store(leaf(CODE, RWX), Relaxed));
    data.0[0].store(7, Relaxed);
    // SAFETY: the guest's own.
    unsafe { csr::vsatp::write(8 << 60 | ROOT >> 12) };
    let mut user = User::default();
    for n in 0..20 {
        stage.map(ROOT, roots[n % 2].address(), ALL);
        fence::gvma_page(Addr::new(ROOT), Vmid(23));
        ensure_eq!(seen(&mut user), 7, "by the root table in place {n}");
    }
    stage.map(ROOT, empty.address(), ALL);
    fence::gvma_vmid(Vmid(23));
    fence::vvma_all();
    ensure_eq!(seen(&mut user), u64::MAX - 12, "by an empty root table");
    reset();
    Ok(())
}
