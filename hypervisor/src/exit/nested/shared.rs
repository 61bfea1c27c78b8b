//! The memory that L1 shares with Gnomon by NACL (SBI 2.0, chapter 15): its layout, and the values of CSRs in it.
//!
//! | offset | contents |
//! |---|---|
//! | 0x000 | x1 to x31, which `SYNC_SRET` loads |
//! | 0x200 | flags and values of CSRs that are swapped at entries and exits |
//! | 0x800 | fences, 32 bytes each |
//! | 0xf80 | a bit for each CSR that L1 has written |
//! | 0x1000 | the CSRs, 8 bytes each |

use super::state::{limits, state, write};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::hart::harts::each;
use crate::vm::Unreachable;
use crate::vm::vcpu::{Nested, VcpuRun, request};
use core::sync::atomic::Ordering;
use rv::system::number;
use rv::{Addr, Gpa, Hpa, PhysMem};

pub(super) const SWAP_AT: u64 = 0x200;
pub(super) const SWAPPED_HSTATUS: u64 = 1;
pub(super) const FENCES_AT: u64 = 0x800;
pub(super) const FENCE_BYTES: u64 = 32;
pub(super) const FENCES: u64 = 60;
pub(super) const WRITTEN_AT: u64 = 0xf80;
pub(super) const CSRS_AT: u64 = 0x1000;

/// The CSRs of the extension that there are, by their numbers. Of `hgeip`, which is 0, the shared memory never has anything else.
///
/// They are taken up in this order: a CSR follows those that it is a view of, and those that say which of its fields can be written. KVM writes `hideleg`
/// and `vsie` for one entry, the first one of a vCPU on a hart: the other way round, the vCPU would lose its `vsie`.
pub(super) const CSRS: [u16; 22] = [
    number::HSTATUS,
    number::HEDELEG,
    number::HIDELEG,
    number::HIE,
    number::HTIMEDELTA,
    number::HCOUNTEREN,
    number::HGEIE,
    number::HENVCFG,
    number::HTVAL,
    number::HVIP,
    number::HTINST,
    number::HGATP,
    number::VSSTATUS,
    number::VSIE,
    number::VSTVEC,
    number::VSSCRATCH,
    number::VSEPC,
    number::VSCAUSE,
    number::VSTVAL,
    number::VSIP,
    number::VSTIMECMP,
    number::VSATP,
];

/// Returns the place of a CSR in the shared memory.
pub(super) const fn index(csr: u16) -> u64 {
    ((csr & 0xc00) >> 2 | csr & 0xff) as u64
}

/// The bits that say which of [`CSRS`] L1 has written: the offset of each one's word in the page, and the bit there.
const WRITTEN: [(u64, u64); CSRS.len()] = {
    let (mut places, mut n) = ([(0, 0); CSRS.len()], 0);
    while n < CSRS.len() {
        let at = index(CSRS[n]);
        places[n] = (WRITTEN_AT + at / 64 * 8, 1 << (at % 64));
        n += 1;
    }
    places
};

/// Returns which of [`CSRS`] L1 has written, as that page says: a bit for each, in their order.
fn written(page: Addr<Hpa>, mem: &impl PhysMem) -> u64 {
    let is_set = |(word, bit): (u64, u64)| mem.read_u64(page.wrapping_add(word)) & bit != 0;
    (0..).zip(WRITTEN).fold(0, |all, (n, place)| all | u64::from(is_set(place)) << n)
}

/// Returns which of `meant`, a bit for each of [`CSRS`], L1 has written, as that page says. They are not written any more then.
pub(super) fn take_written(page: Addr<Hpa>, meant: u64, mem: &mut impl PhysMem) -> u64 {
    let mut taken = written(page, mem) & meant;
    for n in each(taken) {
        let (word, bit) = (page.wrapping_add(WRITTEN[n].0), WRITTEN[n].1);
        let old = mem.read_u64(word);
        // L1 may write meanwhile. It is taken up the next time then.
        if mem.compare_exchange_u64(word, old, old & !bit).is_err() {
            taken &= !(1 << n);
        }
    }
    taken
}

/// Calls `act` on a page of the shared memory. `act` takes no lock.
pub(super) fn with<E: Env, T>(
    g: &Gnomon,
    run: &mut VcpuRun,
    at: Addr<Gpa>,
    env: &mut E,
    act: impl FnOnce(Addr<Hpa>, &mut E::Mem) -> T,
) -> Result<T, Unreachable> {
    let VcpuRun { vm, shared, ready, .. } = run;
    vm.with_mapped(g, (shared, at), ready, env, act)
}

/// Writes all CSRs to the shared memory, if there is any, except those that L1 has written there and that are still to be taken up.
pub(super) fn publish<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<(), Unreachable> {
    let time = run.vm.guest_time(env.now());
    let VcpuRun { vm, shared, ready, nested: Some(nested), .. } = run else { unreachable!("it has the H extension") };
    let Some(at) = nested.shared else { return Ok(()) };
    let limits = limits(g, nested, time);
    let keeps = vm.with_mapped(g, (shared, at), ready, env, |page, mem| written(page, mem))?;
    vm.with_mapped(g, (shared, at.wrapping_add(CSRS_AT)), ready, env, |page, mem| {
        for csr in each(!keeps & ((1 << CSRS.len()) - 1)).map(|n| CSRS[n]) {
            mem.write_u64(page.wrapping_add(8 * index(csr)), nested.read(csr, &limits).unwrap_or(0));
        }
    })
}

/// Tells L1 by the shared memory of what has changed: after an exit of L2, or a write of L1's own to a CSR.
pub(super) fn tell<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    if state(run).shared.is_some() {
        let told = publish(g, run, env);
        if told.is_err() {
            state(run).owes = true;
            run.shared.posted.fetch_or(request::FENCE_I, Ordering::SeqCst);
        }
    }
}

/// Tells L1 of the last exit of L2's, if it has not been told.
pub(super) fn pay<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<(), Unreachable> {
    if run.nested.as_ref().is_some_and(|nested| nested.owes) {
        swap_hstatus(g, run, env)?;
        publish(g, run, env)?;
        state(run).owes = false;
    }
    Ok(())
}

/// An exit of L2's is over: swaps what is to be swapped, and tells L1 of all.
pub(super) fn left<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) {
    if state(run).shared.is_some() {
        state(run).swaps = true;
        let told = swap_hstatus(g, run, env).and_then(|()| publish(g, run, env));
        if told.is_err() {
            state(run).owes = true;
            // So that the hart does not enter L1 at once.
            run.shared.posted.fetch_or(request::FENCE_I, Ordering::SeqCst);
        }
    }
}

/// Swaps `hstatus` with its value in the shared memory, if L1 wants that and it has not been done.
pub(super) fn swap_hstatus<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<(), Unreachable> {
    let Nested { shared: Some(at), swaps: true, csrs, .. } = *state(run) else { return Ok(()) };
    let own = csrs.hstatus | rv::csr::hstatus::VSXL_64;
    let other = with(g, run, at, env, |page, mem| {
        let flags = mem.read_u64(page.wrapping_add(SWAP_AT));
        (flags & SWAPPED_HSTATUS != 0).then(|| mem.exchange_u64(page.wrapping_add(SWAP_AT + 8), own))
    })?;
    state(run).swaps = false;
    if let Some(value) = other {
        write(g, run, (number::HSTATUS, value), env);
    }
    Ok(())
}
