//! The SBI extension NACL (SBI 2.0, chapter 15): L1 and Gnomon share memory, by which L1 reads and writes hypervisor CSRs, asks for fences and
//! enters L2 with one call for many of them ([`super::shared`]).
//!
//! L1 may write there at any time, from any hart. Each value is read once, and then judged as if L1 had written the CSR itself.

use super::fences::vvma;
use super::shared::{
    CSRS, CSRS_AT, FENCE_BYTES, FENCES, FENCES_AT, index, publish, swap_hstatus, take_written, tell, with,
};
use super::state::{state, write};
use super::world::{self, interrupt};
use crate::exit::sbi::encoding::{Answer, answer};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::hart::harts::each;
use crate::memory::nested;
use crate::vm::Unreachable;
use crate::vm::outcome::Outcome;
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::VcpuRun;
use rv::csr::atp::VMID_BITS;
use rv::{Addr, Gpa, Hpa, PAGE_BYTES, PhysMem, Vmid};
use sbi_spec::nacl::{PROBE_FEATURE, SET_SHMEM, SYNC_CSR, SYNC_HFENCE, SYNC_SRET, feature_id, shmem_size};

/// All of them, where a call names one.
const ALL: u64 = u64::MAX;

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
                run.unmap_shared();
                state(run).shared = at;
                Some(publish(g, run, env).map(|()| Answer::Reply(Ok(0))))
            }
            Err(error) => reply(Err(error)),
        },
        (SYNC_CSR | SYNC_HFENCE | SYNC_SRET, None) => reply(Err(Error::NoShmem)),
        (SYNC_CSR, Some(at)) => match args[0] {
            ALL => Some(csrs_now(g, run, (at, None), env)),
            csr => match CSRS.into_iter().find(|it| u64::from(*it) == csr) {
                Some(csr) => Some(csrs_now(g, run, (at, Some(csr)), env)),
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

/// Takes up the CSRs that L1 has written, or one of them.
fn take_csrs<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (at, only): (Addr<Gpa>, Option<u16>),
    env: &mut E,
) -> Result<(), Unreachable> {
    // Both pages are there from now on, or nothing has happened.
    with(g, run, at.wrapping_add(CSRS_AT), env, |_, _| ())?;
    let meant =
        only.map_or(u64::MAX, |only| (0..).zip(CSRS).fold(0, |all, (n, csr)| all | u64::from(csr == only) << n));
    let taken = with(g, run, at, env, |page, mem| take_written(page, meant, mem))?;
    let mut values = [0; CSRS.len()];
    if taken != 0 {
        with(g, run, at.wrapping_add(CSRS_AT), env, |page, mem| {
            each(taken).for_each(|n| values[n] = mem.read_u64(page.wrapping_add(8 * index(CSRS[n]))));
        })?;
    }
    each(taken).for_each(|n| write(g, run, (CSRS[n], values[n]), env));
    Ok(())
}

/// Synchronises CSRs for a call that does nothing else.
fn csrs_now<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    what: (Addr<Gpa>, Option<u16>),
    env: &mut E,
) -> Result<Answer, Unreachable> {
    take_csrs(g, run, what, env)?;
    publish(g, run, env)?;
    // Before an interrupt is taken, which the call's end may let through.
    answer(run, Ok(0));
    interrupt(g, run, env);
    Ok(Answer::Outcome(Outcome::Resume))
}

/// A fence that L1 asks for.
#[derive(Clone, Copy)]
struct Wanted {
    config: u64,
    first: u64,
    count: u64,
}

/// The steps that the fences of one call may take: pages, or [`WIDE`] for a fence of all addresses. With more, L1 makes the call again.
const STEPS: u64 = 128;
/// The steps of a fence of all addresses.
const WIDE: u64 = 64;

/// The work that a fence has made.
enum Done {
    /// A number of steps.
    Steps(u64),
    /// All that there is for fences: nothing of L1's guests is out of date any more.
    All,
}

/// Does the fences of those numbers that L1 asks for.
///
/// # Errors
/// [`Unreachable::Later`] if there are too many for one exit: those that are done are asked for no more.
fn sync_fences<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (at, numbers): (Addr<Gpa>, core::ops::Range<u64>),
    env: &mut E,
) -> Result<(), Unreachable> {
    const PENDING: u64 = 1 << 63;
    let entry = |page: Addr<Hpa>, n: u64| page.wrapping_add(FENCES_AT + n * FENCE_BYTES);
    let pending = with(g, run, at, env, |page, mem| {
        numbers.filter(|n| mem.read_u64(entry(page, *n)) & PENDING != 0).fold(0_u64, |all, n| all | 1 << n)
    })?;
    let (mut steps, mut is_all_done) = (0, false);
    for n in each(pending) {
        if steps >= STEPS {
            return Err(Unreachable::Later);
        }
        let wanted = with(g, run, at, env, |page, mem| {
            let entry = entry(page, n as u64);
            let config = mem.read_u64(entry);
            let (first, count) = (mem.read_u64(entry.wrapping_add(8)), mem.read_u64(entry.wrapping_add(24)));
            mem.write_u64(entry, config & !PENDING);
            (config & PENDING != 0).then_some(Wanted { config, first, count })
        })?;
        let Some(wanted) = wanted else { continue };
        run.shared.of_guests().fences.bump();
        match fence(g, run, (wanted, is_all_done), env) {
            Done::Steps(more) => steps += more,
            Done::All => (is_all_done, steps) = (true, steps + WIDE),
        }
    }
    Ok(())
}

/// Does a fence, unless another one has done all that there is to do.
fn fence<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (Wanted { config, first, count }, is_all_done): (Wanted, bool),
    env: &mut E,
) -> Done {
    const TYPE_SHIFT: u32 = 56;
    const ORDER_SHIFT: u32 = 48;
    const VMID_SHIFT: u32 = 16;
    let (kind, order) = (config >> TYPE_SHIFT & 15, 12 + (config >> ORDER_SHIFT & 0x7f));
    let vmid = (kind & 2 != 0).then_some(Vmid((config >> VMID_SHIFT & VMID_BITS) as u16));
    match kind {
        0..4 if is_all_done => return Done::Steps(0),
        0..4 => {}
        // On collapsed tables, what is compared is by both stages.
        4..8 if is_all_done && run.vm.collapses() => return Done::Steps(0),
        4..8 => {
            vvma(g, run, env);
            return Done::Steps(if run.vm.collapses() { STEPS } else { 1 });
        }
        _ => return Done::Steps(0),
    }
    // Odd kinds are of all addresses.
    let unit = 1_u64.checked_shl(order as u32).filter(|_| kind & 1 == 0);
    let range = unit.and_then(|unit| Some((first.checked_mul(unit)?, count.checked_mul(unit)?)));
    let range = range.filter(|(_, bytes)| (1..=WIDE * PAGE_BYTES).contains(bytes));
    let is_all = nested::fence(g, run, (range.map(|(start, bytes)| (Addr::new(start), bytes)), vmid), env);
    match range {
        _ if is_all => Done::All,
        Some((_, bytes)) => Done::Steps(bytes.div_ceil(PAGE_BYTES)),
        None => Done::Steps(WIDE),
    }
}

/// Takes up CSRs and fences, loads L2's registers, and executes `sret`. L1 is told of its CSRs after the exit of L2's that follows.
fn sync_sret<E: Env>(g: &Gnomon, run: &mut VcpuRun, at: Addr<Gpa>, env: &mut E) -> Result<Outcome, Unreachable> {
    take_csrs(g, run, (at, None), env)?;
    sync_fences(g, run, (at, 0..FENCES), env)?;
    // Before anything is changed that cannot be done again.
    match nested::attach(g, run, env) {
        Ok(true) => {}
        Ok(false) => return Err(Unreachable::Later),
        Err(outcome) => return Ok(outcome),
    }
    let mut x = [0; 32];
    with(g, run, at, env, |page, mem| {
        (0..).zip(&mut x).skip(1).for_each(|(n, x)| *x = mem.read_u64(page.wrapping_add(8 * n)));
    })?;
    state(run).swaps = true;
    swap_hstatus(g, run, env)?;
    run.context.x = x;
    let outcome = world::sret(g, run, env);
    if !state(run).runs_l2 {
        // It is L1 that goes on.
        tell(g, run, env);
    }
    Ok(outcome)
}
