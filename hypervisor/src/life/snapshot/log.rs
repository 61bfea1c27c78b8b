//! The dirty log of a VM that migrates while it runs ([`mmu::gstage::Change`]): pages are collected by the control channel in portions.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::life::lifecycle;
use crate::life::undone::{Done, Undone, refuse};
use crate::memory::edits;
use crate::vm::Vm;
use abi::bundle::GUEST_RAM_BASE;
use abi::control::save::{Changed, MOST_RUNS};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use mmu::gstage::Images;
use rv::{Addr, Gpa, PAGE_BYTES};

const OFF: &str = "its dirty log is not on: it has not begun, or the VM has started over";
const UNSEEN: &str = "its harts set A and D in its guests' tables without telling Gnomon, because it was promised Svadu behind a \
                      G-stage, and the H extension: start it with --svadu off";
const RUNS: &str = "its harts set A and D in its tables without telling Gnomon: the log of such a VM begins while it stands still for \
                    a snapshot";

/// Begins or ends the log.
pub(super) fn switch<E: Env>(g: &Gnomon, vm: &Vm, on: bool, env: &mut E) -> Done<()> {
    let is_unseen = vm.translation.images(&vm.config, &g.offer) == Images::Private;
    if on && is_unseen && vm.config.nested {
        return refuse(UNSEEN);
    }
    if on && is_unseen && !vm.is_frozen.load(SeqCst) {
        return refuse(RUNS);
    }
    match (vm.memory.lock().as_mut(), on) {
        (Some(memory), true) if memory.space.is_logged() => return refuse("another command moves it"),
        (Some(memory), true) => memory.space.begin_log(),
        (Some(memory), false) => memory.space.end_log(),
        (None, true) => return refuse("it has no memory now"),
        // It starts over, without a log.
        (None, false) => {}
    }
    if on {
        // Each vCPU is loaded anew when it goes on.
        vm.tlb.sets_ad.store(is_unseen, SeqCst);
        return Ok(());
    }
    if vm.tlb.sets_ad.swap(false, SeqCst) && lifecycle::pause(g, vm, env) {
        lifecycle::resume(g, vm, env);
    }
    // There may be 2 MiB that the log has split.
    g.promoter.in_vain.store(0, Relaxed);
    g.promoter.due.store(0, Relaxed);
    Ok(())
}

/// Checks that the log is on.
pub(super) fn check(vm: &Vm) -> Done<()> {
    match vm.memory.lock().as_ref() {
        Some(memory) if memory.space.is_logged() => Ok(()),
        _ => refuse(OFF),
    }
}

/// Collects pages from `from` on; all that are not zero if it `is_first`.
pub(super) fn changed<E: Env>(g: &Gnomon, vm: &Vm, (from, is_first): (u64, bool), env: &mut E) -> Done<Changed> {
    check(vm)?;
    let base = Addr::<Gpa>::new(GUEST_RAM_BASE).pfn();
    let end = base.add(vm.config.memory_bytes / PAGE_BYTES);
    if from > end.raw() - base.raw() {
        return refuse("it has not so many pages");
    }
    let range = (base.add(from), end);
    let Some(collected) = edits::collect(g, vm, range, is_first, MOST_RUNS, env) else { return refuse(OFF) };
    if collected.next == range.0 && range.0 < end {
        // What was made from the first page is let go in portions.
        return Err(Undone::Later);
    }
    let number = |page: u64| page - base.raw();
    let runs = |runs: Vec<Range<u64>>| runs.iter().map(|run| (number(run.start), run.end - run.start)).collect();
    let next = number(collected.next.raw());
    Ok(Changed { next, changed: runs(collected.changed), zero: runs(collected.zero) })
}
