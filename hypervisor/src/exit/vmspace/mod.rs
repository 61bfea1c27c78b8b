//! The address-space calls ([`abi::vmspace`], `docs/vmspace.md`), and the exits of programs that a kernel runs by them.
//!
//! | event | function |
//! |---|---|
//! | a call | [`call`] |
//! | RUN | `program::begin` |
//! | a trap of a program's | [`handle`] |
//! | an interrupt that the kernel has enabled, while its program runs | [`settle`] |
//! | READ, WRITE | `copy::copy` |

mod copy;
mod program;
mod refusal;

pub use program::{handle, settle};

use crate::exit::sbi::encoding::{Answer, Args, unreached};
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::spaces::{self, Change, MOST_PAGES, Range};
use crate::vm::sbi_error::Error;
use crate::vm::vcpu::VcpuRun;
use crate::vm::{Unreachable, Vm};
use abi::tunable::Id;
use abi::vmspace::{
    CREATE, DESTROY, INFO, INVALIDATE, MOST_RANGES, RANGE_BYTES, READ, RUN, SET_ROOT, SWITCH, WRITE, Way, info,
};
use arrayvec::ArrayVec;
use refusal::{error, refuse};
use rv::{Access, Addr, Gpa};

/// The changes of one list, if they are no more than [`MOST_PAGES`] pages.
type Ranges = ArrayVec<Range, { MOST_PAGES as usize }>;

/// Handles a call; `None` if there is no such function.
pub(super) fn call<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Option<Answer> {
    if !(INFO..=WRITE).contains(&function) || !g.tunables.is_on(Id::Vmspace) {
        return None;
    }
    let has = |way| run.vm.translation.has_way(way, run.vm.config.nested);
    let (has_nested, has_soft) = (has(Way::Nested), has(Way::Soft));
    let exists = match function {
        INFO => true,
        RUN => has_soft,
        SWITCH => has_nested,
        _ => has_nested || has_soft,
    };
    let answer = if exists { by_function(g, run, function, args, env) } else { refuse(Error::NotSupported) };
    if matches!(answer, Answer::Reply(Err(_))) {
        run.vm.tlb.spaces.lock().counts.refused += 1;
    }
    Some(answer)
}

fn by_function<E: Env>(g: &Gnomon, run: &mut VcpuRun, function: usize, args: Args, env: &mut E) -> Answer {
    let [handle, at, count, length, ..] = args;
    match function {
        INFO => {
            run.vm.tlb.spaces.lock().counts.info += 1;
            let has = |way| run.vm.translation.has_way(way, run.vm.config.nested);
            Answer::Reply(Ok(info(has(Way::Nested), has(Way::Soft), run.vm.config.vmspace)))
        }
        CREATE => match spaces::root_of(g, run, handle) {
            Some(root) => Answer::Reply(run.vm.tlb.spaces.lock().create(root).map_err(error)),
            None => refuse(Error::InvalidAddress),
        },
        DESTROY => destroy(g, run, handle, env),
        SET_ROOT => match spaces::root_of(g, run, at) {
            Some(root) => set_root(g, run, (handle, root), env),
            None => refuse(Error::InvalidAddress),
        },
        INVALIDATE => invalidate(g, run, handle, (at, count), env),
        RUN => program::begin(g, run, handle, at, env),
        SWITCH => switch(run, handle, env),
        READ => copy::copy(g, run, (handle, Access::Load), (at, count, length), env),
        _ => copy::copy(g, run, (handle, Access::Store), (at, count, length), env),
    }
}

fn destroy<E: Env>(g: &Gnomon, run: &mut VcpuRun, handle: u64, env: &mut E) -> Answer {
    let reach = run.vm.translation.reach_of_spaces();
    let mut all = run.vm.tlb.spaces.lock();
    match all.destroy(handle, run.shared.id, reach) {
        Ok((slot, fences)) => {
            let change = Change { slot, ranges: None, fences };
            spaces::post(run, &change, env);
            drop(all);
            done(g, run, &change, env)
        }
        Err(why) => refuse(error(why)),
    }
}

fn set_root<E: Env>(g: &Gnomon, run: &mut VcpuRun, (handle, root): (u64, u64), env: &mut E) -> Answer {
    let reach = run.vm.translation.reach_of_spaces();
    let mut all = run.vm.tlb.spaces.lock();
    match all.set_root(handle, root, (run.shared.id, reach)) {
        Ok((slot, fences, runs)) => {
            let change = Change { slot, ranges: None, fences };
            spaces::post(run, &change, env);
            drop(all);
            if runs && run.vm.translation.has_way(Way::Nested, run.vm.config.nested) {
                // It is the present root. The fence comes behind.
                spaces::switch(run, (slot, root), false, env);
            }
            done(g, run, &change, env)
        }
        Err(why) => refuse(error(why)),
    }
}

/// Does the fences that a change of a space takes.
fn done<E: Env>(g: &Gnomon, run: &mut VcpuRun, change: &Change<'_>, env: &mut E) -> Answer {
    spaces::fence(g, run, change, env);
    Answer::Reply(Ok(0))
}

fn invalidate<E: Env>(g: &Gnomon, run: &mut VcpuRun, handle: u64, (at, count): (u64, u64), env: &mut E) -> Answer {
    if count > MOST_RANGES {
        return refuse(Error::InvalidParam);
    }
    if count != 0 && !run.vm.in_ram(at, count * RANGE_BYTES) {
        return refuse(Error::InvalidAddress);
    }
    // Not returned by value: it is a KiB.
    let mut list = Ranges::new();
    let ranges = match read_ranges(g, run, (Addr::new(at), count), &mut list, env) {
        Ok(true) => Some(list.as_slice()),
        Ok(false) => None,
        Err(why) => return unreached(g, run, why, Error::InvalidAddress),
    };
    let reach = run.vm.translation.reach_of_spaces();
    let mut all = run.vm.tlb.spaces.lock();
    match all.invalidate(handle, run.shared.id, (ranges.is_none(), reach)) {
        Ok((slot, fences)) => {
            let change = Change { slot, ranges, fences };
            spaces::post(run, &change, env);
            drop(all);
            done(g, run, &change, env)
        }
        Err(why) => refuse(error(why)),
    }
}

/// Reads a list of ranges. Returns false if they are the whole space, or so many pages that they are treated so.
fn read_ranges<E: Env>(
    g: &Gnomon,
    run: &mut VcpuRun,
    (at, count): (Addr<Gpa>, u64),
    found: &mut Ranges,
    env: &mut E,
) -> Result<bool, Unreachable> {
    /// Ranges that are read at a time.
    const PART: usize = 8;
    let (mut pages, mut done) = (0u64, 0);
    while done < count {
        let mut bytes = [0; PART * RANGE_BYTES as usize];
        let part = (count - done).min(PART as u64);
        let bytes = &mut bytes[..(part * RANGE_BYTES) as usize];
        let vm: &Vm = &run.vm;
        vm.read(g, at.wrapping_add(done * RANGE_BYTES), bytes, &mut run.ready, env)?;
        for range in bytes.as_chunks::<{ RANGE_BYTES as usize }>().0 {
            let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|n| range[at + n]));
            let (start, length) = (word(0), word(8));
            if length == 0 {
                continue;
            }
            let Some(last) = start.checked_add(length - 1) else { return Ok(false) };
            pages = pages.saturating_add((last >> 12) - (start >> 12) + 1);
            if pages > MOST_PAGES || found.try_push((Addr::new(start), length)).is_err() {
                return Ok(false);
            }
        }
        done += part;
    }
    Ok(count != 0)
}

fn switch<E: Env>(run: &VcpuRun, handle: u64, env: &mut E) -> Answer {
    let mut all = run.vm.tlb.spaces.lock();
    match all.enter(handle, run.shared.id) {
        Ok(entry) => {
            all.counts.switch += 1;
            // By its ASID alone, other vCPUs have nothing of it here.
            all.counts.fences_switch += u64::from(entry.fence);
            drop(all);
            spaces::switch(run, (entry.slot, entry.root), entry.fence, env);
            Answer::Reply(Ok(0))
        }
        Err(why) => refuse(error(why)),
    }
}
