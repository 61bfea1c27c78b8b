//! Takes a VM that arrives from another machine: its memory and its state come by the control channel, and it goes on when all is there.
//!
//! ```text
//!  built, not started ──► Load::Pages, Load::Zero, any number of times ──► Load::State ──► Load::Check ──► Load::Start ──► running
//!           └──► stop: as any VM that was created and has not started
//! ```
//!
//! The sender knows by the answer to [`Load::Check`] that nothing is left that could fail here but the line.

use super::check::check_state;
use super::put::put;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::life::undone::{Done, Undone, answer, refuse};
use crate::vm::{Phase, Vm};
use abi::bundle::GUEST_RAM_BASE;
use abi::control::Answer;
use abi::control::save::{Load, MOST_PAGES, MOST_STATE, Pages};
use abi::snapshot::bytes::Bytes;
use abi::snapshot::{MOST_STATE_BYTES, State};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use mmu::gstage::Ready;
use rv::{Addr, Gpa, PAGE_BYTES};

/// Does what is asked for.
pub(crate) fn ask<E: Env>(g: &Gnomon, vm: &Vm, wish: Load, env: &mut E) -> Answer {
    let is_built = vm.memory.lock().is_some();
    let waits = vm.config.incoming && *vm.phase.lock() == Phase::Created;
    if !is_built || !waits {
        return Answer::Refused("it does not arrive: it has started, has ended, or is still being built".into());
    }
    answer(match wish {
        Load::Pages(pages) => load(g, vm, &pages, env).map(|()| Answer::Done),
        Load::Zero { from, end } => zero(g, vm, (from, end), env).map(Answer::Pages),
        Load::State { from, bytes } => keep(vm, from, &bytes.0).map(|()| Answer::Done),
        Load::Check => state(g, vm, env).map(|_| Answer::Done),
        Load::Start => start(g, vm, env).map(|()| Answer::Done),
    })
}

/// Returns the GPA of a page, by its number in RAM.
fn gpa(vm: &Vm, page: u64) -> Done<Addr<Gpa>> {
    if page >= pages(vm) {
        return refuse("it has not so many pages");
    }
    Ok(Addr::new(GUEST_RAM_BASE + page * PAGE_BYTES))
}

fn pages(vm: &Vm) -> u64 {
    vm.config.memory_bytes / PAGE_BYTES
}

fn load<E: Env>(g: &Gnomon, vm: &Vm, pages: &Pages, env: &mut E) -> Done<()> {
    let bytes = pages.bytes.0.chunks_exact(PAGE_BYTES as usize);
    if pages.first.len() > MOST_PAGES || bytes.len() != pages.first.len() || !bytes.remainder().is_empty() {
        return refuse("those are no whole pages, or too many");
    }
    for (page, bytes) in pages.first.iter().zip(bytes) {
        vm.write(g, gpa(vm, *page)?, bytes, &mut Ready::Never, env)?;
    }
    Ok(())
}

/// Makes pages zero that are not. Returns how far it has come.
fn zero<E: Env>(g: &Gnomon, vm: &Vm, (from, end): (u64, u64), env: &mut E) -> Done<Pages> {
    const MOST_STEPS: usize = 64;
    let base = Addr::<Gpa>::new(GUEST_RAM_BASE).pfn();
    let (first, end) = (gpa(vm, from)?.pfn(), base.add(end.min(pages(vm))));
    let mut page = first;
    for _ in 0..MOST_STEPS {
        if page >= end {
            break;
        }
        let next = {
            let guard = vm.memory.lock();
            let Some(memory) = guard.as_ref() else { return refuse("it has no memory now") };
            let mem = env.mem();
            let is_there =
                memory.space.resident(page.base(), &mem).is_some() || memory.space.is_out(page, &mem).is_some();
            (!is_there).then(|| memory.space.look(page, &mem).1)
        };
        page = match next {
            Some(next) => next,
            None => match vm.write(g, page.base(), &[0; PAGE_BYTES as usize], &mut Ready::Never, env) {
                Ok(()) => page.add(1),
                // The pages before it are done.
                Err(why) if why.is_for_now() && page > first => break,
                Err(why) => return Err(why.into()),
            },
        };
    }
    Ok(Pages { next: page.min(end).raw() - base.raw(), first: Vec::new(), bytes: Bytes::default() })
}

fn keep(vm: &Vm, from: u32, bytes: &[u8]) -> Done<()> {
    let mut savings = vm.savings.lock();
    let kept = &mut savings.arrived;
    if bytes.len() > MOST_STATE || from as usize > kept.len() || from as usize + bytes.len() > MOST_STATE_BYTES {
        return refuse("the state is too long, or a part of it is missing");
    }
    kept.truncate(from as usize);
    kept.extend_from_slice(bytes);
    Ok(())
}

/// Returns the state that has arrived, if the VM can go on from it here.
fn state<E: Env>(g: &Gnomon, vm: &Vm, env: &E) -> Done<State> {
    let arrived = vm.savings.lock().arrived.clone();
    let checked = check_state(&arrived, &vm.config, &g.offer);
    let state = checked.map_err(|why| Undone::Refused(Answer::Refused(why)))?;
    if g.offer.shows_host_time() && env.now() < state.told.time {
        return refuse("its clock is ahead of this machine's, which its guest would read: its first state is too old");
    }
    Ok(state)
}

fn start<E: Env>(g: &Gnomon, vm: &Vm, env: &mut E) -> Done<()> {
    let state = state(g, vm, env)?;
    // Held until its vCPUs are started: an end comes before this, or finds them.
    let mut phase = vm.phase.lock();
    if *phase != Phase::Created {
        return refuse("it has ended");
    }
    let started = put(g, vm, &state, env).map_err(|why| Undone::Refused(Answer::Refused(why)))?;
    vm.savings.lock().arrived = Vec::new();
    vm.since.store(env.now().max(1), Ordering::Relaxed);
    *phase = Phase::Running;
    started.into_iter().for_each(|run| g.start(run, env));
    Ok(())
}
