//! Wrong on purpose: changes entries that are in use, and goes on without the fence that they need. The
//! guest itself cannot see it, as QEMU forgets translations all the time; the meter's check mode has to.
//!
//! Boot argument: what is left unfenced: `leaf` (it maps another frame), `rights` (it no longer allows
//! stores), `pointer` (it leads to another table, and only the page's leaf is fenced), or `none`.
#![no_std]
#![no_main]

use core::sync::atomic::Ordering::Relaxed;
use guests::expect::STORE_PAGE;
use guests::paging::{self, RO, RW, Space, TEST_VA, fence_page, leaf, page, pointer};
use guests::{Check, access, board, ensure, fail, run};
use metal::fence;
use rv::Level;
use rv::format::SV39;

guests::entry_point!(main);

const OLD: u64 = 0x0123_4567;
const NEW: u64 = 0x89ab_cdef;

fn main() {
    run("stale/made", || {
        let (old, new) = (page(), page());
        old.0[0].store(OLD, Relaxed);
        new.0[0].store(NEW, Relaxed);
        let space = Space::new(&SV39, 1);
        space.map(TEST_VA, old.address(), RW);
        space.enter();
        let outcome = leave_out(&space, new.address());
        paging::leave();
        outcome
    });
}

fn leave_out(space: &Space, new: u64) -> Check {
    ensure!(access::ld(TEST_VA) == Ok(OLD), "the page is not mapped");
    let slot = space.slot(TEST_VA, Level::PAGE);
    // What the access finds is up to the hart: whatever it is, it may have been the other.
    match board().bootargs.trim() {
        "none" => {
            slot.store(leaf(new, RW), Relaxed);
            fence_page(TEST_VA);
            ensure!(access::ld(TEST_VA) == Ok(NEW), "the fence was of no use");
        }
        "leaf" => {
            slot.store(leaf(new, RW), Relaxed);
            ensure!(matches!(access::ld(TEST_VA), Ok(OLD | NEW)), "the page holds something else");
        }
        "rights" => {
            slot.store(leaf(slot.load(Relaxed) >> 10 << 12, RO), Relaxed);
            let store = access::sd(TEST_VA, NEW);
            ensure!(store.is_ok() || store.is_err_and(|trap| trap.cause == STORE_PAGE), "another trap");
        }
        "pointer" => {
            let table = page();
            table.0[0].store(leaf(new, RW), Relaxed);
            space.slot(TEST_VA, Level::MEGA).store(pointer(table.address()), Relaxed);
            fence_page(TEST_VA);
            ensure!(matches!(access::ld(TEST_VA), Ok(OLD | NEW)), "the page holds something else");
        }
        other => fail!("`{other}` is none of: none, leaf, rights, pointer"),
    }
    fence::sfence_all();
    Ok(())
}
