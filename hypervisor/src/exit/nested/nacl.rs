//! The SBI extension NACL (SBI 2.0, chapter 15): L1 and Gnomon share memory, by which L1 reads and writes hypervisor CSRs, asks for fences and
//! enters L2 with one call for many of them.
//!
//! | offset | what it holds |
//! |---|---|
//! | 0x000 | x1 to x31, which `SYNC_SRET` loads |
//! | 0x200 | flags and values of CSRs that are swapped at entries and exits |
//! | 0x800 | fences, 32 bytes each |
//! | 0xf80 | a bit for each CSR that L1 has written |
//! | 0x1000 | the CSRs, 8 bytes each |
//!
//! L1 may write there at any time, from any hart. Each value is read once, and then judged as if L1 had written the CSR itself.

use super::instruction::{limits, vvma};
use super::{interrupt, state, world};
use crate::exit::sbi::Answer;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::nested;
use crate::vm::Unreachable;
use crate::vm::outcome::Outcome;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::{Nested, VcpuRun, request};
use core::sync::atomic::Ordering;
use rv::csr::atp::{ASID_BITS, VMID_BITS};
use rv::system::number;
use rv::{Access, Addr, Gpa, Hpa, PAGE_BYTES, PhysMem, Vmid};
use sbi_spec::nacl::{PROBE_FEATURE, SET_SHMEM, SYNC_CSR, SYNC_HFENCE, SYNC_SRET, feature_id, shmem_size};

const SWAP_AT: u64 = 0x200;
const SWAPPED_HSTATUS: u64 = 1;
const FENCES_AT: u64 = 0x800;
const FENCE_BYTES: u64 = 32;
const FENCES: u64 = 60;
const WRITTEN_AT: u64 = 0xf80;
const CSRS_AT: u64 = 0x1000;
/// All of them, where a call names one.
const ALL: u64 = u64::MAX;

/// The CSRs of the extension that there are, by their numbers. Of `hgeip`, which is 0, the shared memory never has anything else.
const CSRS: [u16; 22] = [
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
    number::HSTATUS,
    number::HEDELEG,
    number::HIDELEG,
    // Before what is a view of it.
    number::HIE,
    number::HTIMEDELTA,
    number::HCOUNTEREN,
    number::HGEIE,
    number::HENVCFG,
    number::HTVAL,
    number::HVIP,
    number::HTINST,
    number::HGATP,
];

/// The place of a CSR in the shared memory.
const fn index(csr: u16) -> u64 {
    ((csr & 0xc00) >> 2 | csr & 0xff) as u64
}

/// Handles a call of a vCPU that has the H extension; `pc` is already past the `ecall`. `None` if there is no such function.
pub(in crate::exit) fn call<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    function: usize,
    args: [u64; 6],
    env: &mut E,
) -> Option<Result<Answer, Unreachable>> {
    let shared = state(run).shared;
    let reply = |reply| Some(Ok(Answer::Reply(reply)));
    match (function, shared) {
        (PROBE_FEATURE, _) => {
            // The argument has 32 bits.
            let is_one = (args[0] as u32) <= feature_id::AUTOSWAP_CSR as u32;
            reply(Ok(is_one.into()))
        }
        (SET_SHMEM, _) => match named(run, args) {
            Ok(at) => {
                state(run).shared = at;
                Some(publish(g, run, env).map(|()| Answer::Reply(Ok(0))))
            }
            Err(error) => reply(Err(error)),
        },
        (SYNC_CSR | SYNC_HFENCE | SYNC_SRET, None) => reply(Err(Error::NoShmem)),
        (SYNC_CSR, Some(at)) => match args[0] {
            ALL => Some(sync_csrs(g, run, (at, None), env).map(|()| Answer::Reply(Ok(0)))),
            csr => match CSRS.into_iter().find(|it| u64::from(*it) == csr) {
                Some(csr) => Some(sync_csrs(g, run, (at, Some(csr)), env).map(|()| Answer::Reply(Ok(0)))),
                None => reply(Err(Error::InvalidParam)),
            },
        },
        (SYNC_HFENCE, Some(at)) => match args[0] {
            ALL => Some(sync_fences(g, run, (at, 0..FENCES), env).map(|()| Answer::Reply(Ok(0)))),
            n if n < FENCES => Some(sync_fences(g, run, (at, n..n + 1), env).map(|()| Answer::Reply(Ok(0)))),
            _ => reply(Err(Error::InvalidParam)),
        },
        (SYNC_SRET, Some(at)) => Some(sync_sret(g, run, at, env).map(Answer::Outcome)),
        _ => None,
    }
}

/// Returns the memory that a call names; `None` if it is to be shared no more.
fn named(run: &VcpuRun, [low, high, flags, ..]: [u64; 6]) -> Result<Option<Addr<Gpa>>, Error> {
    if (low, high) == (ALL, ALL) && flags == 0 {
        return Ok(None);
    }
    if flags != 0 || low % PAGE_BYTES != 0 {
        return Err(Error::InvalidParam);
    }
    if high != 0 || !run.vm.in_ram(low, shmem_size::RV64 as u64) {
        return Err(Error::InvalidAddress);
    }
    Ok(Some(Addr::new(low)))
}

/// Calls `act` on a page of the shared memory.
fn with<E: Env, T>(
    g: &Gnomon,
    run: &mut VcpuRun,
    at: Addr<Gpa>,
    env: &mut E,
    act: impl FnOnce(Addr<Hpa>, &mut E::Mem) -> T,
) -> Result<T, Unreachable> {
    run.vm.with_page(g, (at, Access::Store), &mut run.ready, env, act)
}

/// The place of the bit that says whether L1 has written a CSR: its word in the page, and the bit.
fn written_bit(page: Addr<Hpa>, csr: u16) -> (Addr<Hpa>, u64) {
    (page.wrapping_add(WRITTEN_AT + index(csr) / 64 * 8), 1 << (index(csr) % 64))
}

/// Writes all CSRs to the shared memory, if there is any, except those that L1 has written there and that are still to be taken up.
fn publish<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<(), Unreachable> {
    let time = run.vm.guest_time(env.now());
    let Nested { shared: Some(at), .. } = *state(run) else { return Ok(()) };
    let limits = limits(g, run.vm.svadu, time);
    let nested = &*state(run);
    let values = CSRS.map(|csr| nested.read(csr, &limits).unwrap_or(0));
    let keeps = with(g, run, at, env, |page, mem| {
        CSRS.map(|csr| {
            let (word, bit) = written_bit(page, csr);
            mem.read_u64(word) & bit != 0
        })
    })?;
    with(g, run, at.wrapping_add(CSRS_AT), env, |page, mem| {
        for ((csr, value), _) in CSRS.into_iter().zip(values).zip(keeps).filter(|(_, keeps)| !keeps) {
            mem.write_u64(page.wrapping_add(8 * index(csr)), value);
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

/// Pays what is owed to L1, before L1 goes on. Returns whether nothing is owed.
pub fn settle<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> bool {
    if run.nested.as_ref().is_none_or(|nested| !nested.owes) {
        return true;
    }
    let paid = swap_hstatus(g, run, env).and_then(|()| publish(g, run, env)).is_ok();
    state(run).owes = !paid;
    paid
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
fn swap_hstatus<E: Env>(g: &Gnomon, run: &mut VcpuRun, env: &mut E) -> Result<(), Unreachable> {
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

/// Writes a CSR for L1.
fn write<E: Env>(g: &Gnomon, run: &mut VcpuRun, (csr, value): (u16, u64), env: &mut E) {
    let limits = limits(g, run.vm.svadu, run.vm.guest_time(env.now()));
    let nested = state(run);
    let world = nested.world();
    nested.write(csr, value, &limits);
    if nested.world() != world {
        env.set_world(run);
    }
}

/// Takes up the CSRs that L1 has written, or one of them, and tells L1 of what all have then.
fn sync_csrs<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (at, only): (Addr<Gpa>, Option<u16>),
    env: &mut E,
) -> Result<(), Unreachable> {
    // Both pages are there from now on, or nothing has happened.
    with(g, run, at.wrapping_add(CSRS_AT), env, |_, _| ())?;
    let is_meant = |csr: &u16| only.is_none_or(|only| only == *csr);
    let written = with(g, run, at, env, |page, mem| {
        let mut written = [false; CSRS.len()];
        for (csr, written) in CSRS.iter().zip(&mut written).filter(|(csr, _)| is_meant(csr)) {
            let (word, bit) = written_bit(page, *csr);
            let old = mem.read_u64(word);
            *written = old & bit != 0 && mem.compare_exchange_u64(word, old, old & !bit).is_ok();
        }
        written
    })?;
    let values = with(g, run, at.wrapping_add(CSRS_AT), env, |page, mem| {
        CSRS.map(|csr| mem.read_u64(page.wrapping_add(8 * index(csr))))
    })?;
    for ((csr, value), _) in CSRS.into_iter().zip(values).zip(written).filter(|(_, written)| *written) {
        write(g, run, (csr, value), env);
    }
    publish(g, run, env)?;
    interrupt(g, run, env);
    Ok(())
}

/// A fence that L1 asks for.
#[derive(Clone, Copy)]
struct Wanted {
    config: u64,
    first: u64,
    count: u64,
}

/// Does the fences of those numbers that L1 asks for.
fn sync_fences<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (at, numbers): (Addr<Gpa>, core::ops::Range<u64>),
    env: &mut E,
) -> Result<(), Unreachable> {
    const PENDING: u64 = 1 << 63;
    for n in numbers {
        let wanted = with(g, run, at, env, |page, mem| {
            let entry = page.wrapping_add(FENCES_AT + n * FENCE_BYTES);
            let config = mem.read_u64(entry);
            (config & PENDING != 0).then(|| {
                let (first, count) = (mem.read_u64(entry.wrapping_add(8)), mem.read_u64(entry.wrapping_add(24)));
                mem.write_u64(entry, config & !PENDING);
                Wanted { config, first, count }
            })
        })?;
        if let Some(wanted) = wanted {
            run.shared.counters.nested_fences.bump();
            fence(g, run, wanted, env);
        }
    }
    Ok(())
}

/// Does a fence.
fn fence<E: Env>(g: &Gnomon, run: &mut VcpuRun, Wanted { config, first, count }: Wanted, env: &mut E) {
    /// Pages beyond which a fence is one of all addresses.
    const MOST: u64 = 64;
    const TYPE_SHIFT: u32 = 56;
    const ORDER_SHIFT: u32 = 48;
    const VMID_SHIFT: u32 = 16;
    let (kind, order) = (config >> TYPE_SHIFT & 15, 12 + (config >> ORDER_SHIFT & 0x7f));
    let vmid = Vmid((config >> VMID_SHIFT & VMID_BITS) as u16);
    let _ = config & ASID_BITS;
    let of_vmid = (kind & 2 != 0).then_some(vmid);
    if kind >= 8 {
        return;
    }
    if kind >= 4 {
        return vvma(run, Some(vmid), env);
    }
    // Odd kinds are of all addresses.
    let bytes = if order < 64 { count.checked_shl(order as u32) } else { None };
    let pages =
        bytes.map(|bytes| bytes.div_ceil(PAGE_BYTES)).filter(|pages| kind & 1 == 0 && (1..=MOST).contains(pages));
    match pages {
        Some(pages) => {
            let start = first.wrapping_shl(order as u32);
            for n in 0..pages {
                nested::fence(g, run, (Some(Addr::new(start.wrapping_add(n * PAGE_BYTES))), of_vmid), env);
            }
        }
        None => nested::fence(g, run, (None, of_vmid), env),
    }
}

/// Takes up CSRs and fences, loads L2's registers, and executes `sret`.
fn sync_sret<E: Env>(g: &Gnomon, run: &mut VcpuRun, at: Addr<Gpa>, env: &mut E) -> Result<Outcome, Unreachable> {
    sync_csrs(g, run, (at, None), env)?;
    sync_fences(g, run, (at, 0..FENCES), env)?;
    // Before anything is changed that cannot be done again.
    match nested::attach(g, run, env) {
        Ok(true) => {}
        Ok(false) => return Err(Unreachable::Later),
        Err(outcome) => return Ok(outcome),
    }
    let x = with(g, run, at, env, |page, mem| core::array::from_fn(|n| mem.read_u64(page.wrapping_add(8 * n as u64))))?;
    state(run).swaps = true;
    swap_hstatus(g, run, env)?;
    run.context.x = x;
    run.context.x[0] = 0;
    Ok(world::sret(g, run, env))
}
