//! Logs of dirty pages and searches for idle ones. For a log, the hypervisor write-protects leaves with a fence, splits large ones, and gives W back
//! without a fence. For a search, it clears A.

use crate::guest::{ALL, CODE, DATA, machine, run as run_guest};
use crate::reset;
use core::sync::atomic::Ordering::Relaxed;
use guests::paging::{AdBits, leaf, page};
use guests::user::User;
use guests::{Check, ensure_eq, ram, run};
use metal::{csr, fence};
use rv::{Addr, Mode, PteFlags, Vmid};

pub fn run_all() {
    run("nested/dirty-page", dirty_page);
    run("nested/dirty-superpage", dirty_superpage);
    run("nested/idle-page", idle_page);
}

crate::code! {
    store_of_a0: "sd a0, (a1)", "ecall";
    load_to_a0: "ld a0, (a1)", "ecall";
}

/// Causes of traps of the guest's.
const CALL: u64 = 10;
const LOAD: u64 = 21;
const STORE: u64 = 23;

const RO: PteFlags = ALL.difference(PteFlags::W);
const MEGA: u64 = 2 << 20;

/// Lets the guest store the value at the address. Returns the cause of the trap that follows.
fn store(at: u64, value: u64) -> u64 {
    let mut user = User::at(CODE);
    (user.x[10], user.x[11]) = (value, at);
    let trap = run_guest(&mut user, Mode::Supervisor);
    if trap.cause == STORE && csr::htval::read() != at >> 2 { 0 } else { trap.cause }
}

/// Lets the guest load from the address. Returns the cause of the trap that follows.
fn load(at: u64) -> u64 {
    let mut user = User::at(CODE);
    user.x[11] = at;
    run_guest(&mut user, Mode::Supervisor).cause
}

fn dirty_page() -> Check {
    reset();
    let (stage, data) = machine(store_of_a0(), 30);
    ensure_eq!(store(DATA, 0), CALL, "a store at first");
    for n in 1..=20 {
        stage.map(DATA, data.address(), RO);
        fence::gvma_page(Addr::new(DATA), Vmid(30));
        ensure_eq!(store(DATA, n), STORE, "a store without W, round {n}");
        ensure_eq!(store(DATA, n), STORE, "the same once more, round {n}");
        ensure_eq!(data.0[0].load(Relaxed), n - 1, "what is there, round {n}");
        stage.map(DATA, data.address(), ALL);
        ensure_eq!(store(DATA, n), CALL, "a store with W, without a fence, round {n}");
        ensure_eq!(data.0[0].load(Relaxed), n, "what it stored, round {n}");
    }
    Ok(())
}

/// Fences the large leaf that is or was there.
fn fence_mega(at: u64) {
    fence::gvma_page(Addr::new(at), Vmid(31));
}

fn dirty_superpage() -> Check {
    const AT: u64 = CODE + MEGA;
    const PAGES: [usize; 3] = [0, 77, 511];
    reset();
    let (stage, _) = machine(store_of_a0(), 31);
    let (frames, table) = (ram::pages(512), page());
    let at = |page: usize| AT + ((page as u64) << 12);
    let first = |page: usize| frames[page].0[0].load(Relaxed);
    for n in (10..100).step_by(10) {
        // The log is off. In place of a table, no fence by address suffices.
        stage.map_mega(AT, frames[0].address(), ALL);
        fence::gvma_vmid(Vmid(31));
        for page in PAGES {
            ensure_eq!(store(at(page), n), CALL, "a store by the large leaf to page {page}, round {n}");
        }
        // It is on: the first store splits the leaf.
        stage.map_mega(AT, frames[0].address(), RO);
        fence_mega(AT);
        for page in PAGES {
            ensure_eq!(store(at(page), 0), STORE, "a store by the large leaf without W to page {page}, round {n}");
        }
        table.0.iter().zip(frames).for_each(|(entry, frame)| entry.store(leaf(frame.address(), RO), Relaxed));
        stage.link_mega(AT, table);
        fence_mega(AT);
        for page in PAGES {
            ensure_eq!(store(at(page), 0), STORE, "a store by a leaf without W to page {page}, round {n}");
            ensure_eq!(first(page), n, "what is in page {page}, round {n}");
            table.0[page].store(leaf(frames[page].address(), ALL), Relaxed);
            ensure_eq!(store(at(page), n + 1), CALL, "a store by a leaf with W to page {page}, round {n}");
            ensure_eq!(store(at(page ^ 2), 0), STORE, "a store to a page beside page {page}, round {n}");
            ensure_eq!(first(page), n + 1, "what was stored in page {page}, round {n}");
        }
    }
    Ok(())
}

/// A of the stage's leaves is set as the machine promises: by itself (Svadu), or by the hypervisor (Svade), which gets each access until then.
fn idle_page() -> Check {
    reset();
    let ad = AdBits::of_this_machine();
    let (stage, data) = machine(load_to_a0(), 32);
    ensure_eq!(load(DATA), CALL, "a load at first");
    for n in 0..20 {
        stage.map(DATA, data.address(), ALL.difference(PteFlags::A));
        fence::gvma_page(Addr::new(DATA), Vmid(32));
        let causes = [load(DATA), load(DATA)];
        let is_set = stage.entry(DATA) & PteFlags::A.bits() != 0;
        match ad {
            AdBits::Software => ensure_eq!((causes, is_set), ([LOAD; 2], false), "loads without A, round {n}"),
            AdBits::Hardware => ensure_eq!((causes, is_set), ([CALL; 2], true), "loads without A, round {n}"),
        }
        stage.map(DATA, data.address(), ALL);
        ensure_eq!(load(DATA), CALL, "a load with A, without a fence, round {n}");
    }
    Ok(())
}
