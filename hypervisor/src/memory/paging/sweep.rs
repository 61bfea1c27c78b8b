//! The sweep: a hand that goes through the memory of all VMs, and takes pages that were not used since it came by last.

use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::edits;
use crate::pager::clock::{Clock, FIRST, Goal, Portion};
use crate::pager::{Inner, NotBegun, Pager, Request, Way, Whose};
use crate::vm::Vm;
use abi::bundle::MAX_VMS;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::SeqCst;
use mmu::Edits;
use mmu::frames::{Ahead, Frames};
use mmu::gstage::{Comes, Sight};
use mmu::shadow::Host;
use mmu::stale::Stale;
use rv::{Fence, Gpa, Hpa, Level, PAGE_BYTES, Pfn, PhysMem};

/// Rounds without a page that went after which none will.
pub(super) const FRUITLESS: u32 = 4;
/// Rounds without a page that went after which mapped ones go as well: in the first, all may have become idle; in the second, all
/// that had may have been used.
const UNFORCED: u32 = 2;

/// The place where the sweep may take something.
enum Stop {
    Vm(Arc<Vm>),
    Images,
}

/// Moves the hand to the next stop where something may be taken for that goal, at its first page unless it is there
/// already.
fn find(clock: &mut Clock, g: &Gnomon, frames: &Frames, goal: Goal) -> Option<Stop> {
    for _ in 0..MAX_VMS + 2 {
        if clock.is_at_images() {
            // Originals count against no VM's limit.
            if goal == Goal::Free && frames.originals().count() != 0 {
                return Some(Stop::Images);
            }
        } else if let Some(vm) = g.vms.at(clock.slot).filter(|vm| may_give(vm, frames, goal)) {
            return Some(Stop::Vm(vm));
        }
        clock.pass();
    }
    None
}

/// Returns whether a frame holds zeroes.
fn is_zero(frame: Pfn<Hpa>, mem: &impl PhysMem) -> bool {
    (0..PAGE_BYTES / 8).all(|word| mem.read_u64(frame.at(8 * word)) == 0)
}

/// The result for an idle page.
#[derive(PartialEq, Eq)]
pub(super) enum Went {
    Gone,
    /// There is no room for it: on the device, or among its requests.
    NoRoom,
    Stays,
}

impl Pager {
    /// Takes a portion of memory back. Returns whether another one would get on with it now.
    pub(super) fn reclaim<E: Env>(&self, g: &Gnomon, env: &mut E) -> bool {
        let Some(mut clock) = self.clock.try_lock() else { return false };
        let frames = &g.harts[env.hart()].frames;
        let goal = self.goal(g, frames, env);
        if clock.goal != goal {
            // That nothing has gone of some VMs says nothing about others, or about the same another time.
            (clock.goal, clock.rounds) = (goal, 0);
        }
        if goal == Goal::Nothing {
            return false;
        }
        if goal == Goal::Free && g.give_back_ahead(frames) {
            return true;
        }
        self.counters.portions.fetch_add(1, SeqCst);
        // Otherwise tries that fail would look like progress, and a VM that needs a frame would wait for ever.
        let is_given_up = self.try_writes_again(env.now());
        if core::mem::replace(&mut clock.is_given_up, is_given_up) && !is_given_up {
            clock.rounds = 0;
        }
        self.refill(frames);
        let mut portion = Portion::new(clock.rounds >= UNFORCED);
        let mut has_room = true;
        while !portion.is_spent() && clock.rounds < FRUITLESS {
            let is_through = match find(&mut clock, g, frames, goal) {
                None => {
                    clock.rounds = FRUITLESS;
                    break;
                }
                Some(Stop::Images) => {
                    has_room = self.sweep_originals(g, &mut clock, &mut portion, env);
                    clock.original >= frames.originals().end()
                }
                Some(Stop::Vm(vm)) => {
                    let end = FIRST.add(vm.config.memory_bytes / PAGE_BYTES);
                    let Clock { page, .. } = &mut *clock;
                    portion.keeps = keeps(&vm, goal);
                    has_room = edits::sweep(g, &vm, (page, end), &mut portion, env);
                    *page >= end
                }
            };
            if is_through {
                clock.pass();
            }
            if !has_room {
                break;
            }
        }
        if portion.gone > 0 && self.aim.load(SeqCst) != 0 {
            self.gone_for_it.fetch_add(portion.gone, SeqCst);
        }
        if portion.gone > 0 && !is_given_up {
            clock.rounds = 0;
        } else if clock.rounds >= FRUITLESS && self.in_flight.load(SeqCst) == 0 {
            clock.rounds = 0;
            drop(clock);
            self.give_up(g, goal, env);
            return false;
        }
        has_room && clock.rounds < FRUITLESS
    }

    /// Copies of pages in memory that a VM may have on the device. Each takes some 40 bytes of Gnomon's heap, which is a 256th of RAM
    /// or more: all VMs together take a sixth of that.
    pub(crate) fn most_copies(&self, g: &Gnomon) -> u64 {
        g.frames().total_count() / 16 / (g.vms.most() as u64).max(1)
    }

    /// Returns whether the time has come to disturb guests again.
    pub(super) fn is_time_to_shake<E: Env>(&self, g: &Gnomon, env: &E) -> bool {
        let (now, due) = (env.now(), self.shaken_at.load(SeqCst));
        due <= now && self.shaken_at.compare_exchange(due, now + g.offer.timebase / 1000, SeqCst, SeqCst).is_ok()
    }

    /// Makes so many pages idle, in pieces at random places of random VMs: everything that can fault does. A test.
    pub(super) fn shake<E: Env>(&self, g: &Gnomon, pages: u64, env: &mut E) {
        let mut random = self.shaken_at.load(SeqCst) | 1;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below.max(1)
        };
        /// Pages of a piece.
        const PIECE: u64 = 16;
        let mut portion = Portion { only_rests: true, ..Portion::new(false) };
        for _ in 0..pages.div_ceil(PIECE) {
            let count = g.vms.all().count() as u64;
            let Some(vm) = g.vms.all().nth(draw(count) as usize) else { return };
            let all = vm.config.memory_bytes / PAGE_BYTES;
            let first = FIRST.add(draw(all));
            let end = first.add(pages.min(PIECE)).min(FIRST.add(all));
            let mut at = first;
            edits::sweep(g, &vm, (&mut at, end), &mut portion, env);
        }
    }

    /// Does a part of the sweep in one VM, whose memory's lock is held. Returns whether more pages can go.
    pub(crate) fn sweep<M: PhysMem, H: Fence<Gpa>>(
        &self,
        vm: &Vm,
        edits: &mut Edits<'_, '_, M, H>,
        (at, end): (&mut Pfn<Gpa>, Pfn<Gpa>),
        portion: &mut Portion,
    ) -> bool {
        let frames = edits.host.frames;
        let mut stale = Stale::none();
        let mut has_room = true;
        while *at < end && !portion.is_spent() && has_room {
            portion.spend(Portion::LOOK);
            let page = *at;
            let Host { space, mem, .. } = &mut *edits.host;
            let (sight, next) = space.look(page, *mem);
            if let Sight::Mapped(level) = sight
                && level > Level::MEGA
            {
                portion.spend(Portion::SPLIT);
                match self.table_for_split(frames) {
                    // The smaller ones are looked at from here on.
                    Some(table) => stale = stale.join(space.break_giga(page, table, frames, *mem)),
                    None => *at = next,
                }
                continue;
            }
            let mut is_idle = matches!(sight, Sight::Idle(_)) && !portion.only_rests;
            if let Sight::Mapped(level) = sight {
                portion.spend(Portion::REST * level.pages() as u32 / 4 + Portion::REST);
                let before = portion.leaves;
                let owed = edits.sharing(&mut portion.leaves, |edits| edits.rest(page, level));
                if owed.is_none() && portion.is_to_come_again(before) {
                    break;
                }
                if let Some(owed) = owed {
                    stale = stale.join(owed);
                    if portion.is_forced {
                        edits.settle(core::mem::replace(&mut stale, Stale::none()));
                        // Where A is the hardware's, only that is cleared.
                        is_idle = matches!(edits.host.space.look(page, edits.host.mem).0, Sight::Idle(_));
                    }
                }
            }
            if is_idle && !portion.is_forced {
                is_idle = !edits.host.space.spare(page, edits.host.mem);
            }
            if is_idle && next.raw() - page.raw() > 1 {
                portion.spend(Portion::SPLIT);
                // The pages are looked at one by one from here on.
                if self.split(page, edits.host) {
                    continue;
                }
            } else if is_idle && !edits.is_kept(page) && !self.wanted[vm.slot()].has(page) {
                portion.spend(Portion::GO);
                match self.let_go(vm, page, edits.host, portion.keeps) {
                    Went::Gone => portion.gone += 1,
                    Went::NoRoom => has_room = false,
                    Went::Stays => {}
                }
            }
            if has_room {
                *at = next;
            }
        }
        // Even if nothing has become idle: leaves may have been forgotten for a page that has not (SPENT).
        edits.settle(stale);
        has_room
    }

    fn table_for_split(&self, frames: &Frames) -> Option<Ahead> {
        self.inner.lock().stock.pop().or_else(|| frames.take_ahead(0))
    }

    fn split<M: PhysMem, H>(&self, page: Pfn<Gpa>, host: &mut Host<'_, M, H>) -> bool {
        let Some(table) = self.table_for_split(host.frames) else { return false };
        host.space.split_idle(page, table, host.frames, host.mem);
        true
    }

    /// Lets an idle page go.
    fn let_go<M: PhysMem, H>(&self, vm: &Vm, page: Pfn<Gpa>, host: &mut Host<'_, M, H>, keeps: u64) -> Went {
        let Host { space, frames, mem, .. } = host;
        // What is on its way is the VM's still, but will not be.
        let leaves = |request: &&Request| request.whose.is_of(vm.handle) && request.way == Way::Out && !request.is_moot;
        let leaving = self.inner.lock().requests.iter().filter(leaves).count() as u64;
        if frames.usage(vm.owner()).guest <= keeps + leaving {
            return Went::Stays;
        }
        if let Some(frame) = space.take_out_clean(page, *mem) {
            frames.free(frame);
            return Went::Gone;
        }
        let frame = space.frame_of_idle(page, *mem);
        // An image's page that the guest has cleared would be the image's again.
        if space.begins_as_zeroes(page) && is_zero(frame, *mem) {
            frames.free(space.take_out(page, None, *mem));
            return Went::Gone;
        }
        let mut inner = self.inner.lock();
        let Inner { disk: Some(disk), slots, requests, writes, .. } = &mut *inner else { return Went::Stays };
        if !writes.may_begin() {
            return Went::Stays;
        }
        let Some(slot) = slots.take().or_else(|| space.give_up_copy()) else { return Went::Stays };
        if let Some(request) = requests.iter_mut().find(|request| request.slot == slot) {
            // Its page has just come in, and its request is about to end: then it is free.
            request.is_moot = true;
            return Went::Stays;
        }
        match disk.begin(Way::Out, slot, frame) {
            Ok(token) => {
                self.counters.writes.fetch_add(1, SeqCst);
                self.in_flight.fetch_add(1, SeqCst);
                self.leaving.fetch_add(1, SeqCst);
                let (frame, comes) = (Some(space.take_out(page, Some(slot), *mem)), Comes::Unwritten);
                requests.push(Request {
                    token: Some(token),
                    way: Way::Out,
                    whose: Whose::Vm { vm: vm.handle, page },
                    slot,
                    frame,
                    comes,
                    is_moot: false,
                });
                Went::Gone
            }
            Err(why) => {
                slots.give(slot);
                if why == NotBegun::Busy {
                    return Went::NoRoom;
                }
                self.counters.errors.fetch_add(1, SeqCst);
                Went::Stays
            }
        }
    }
}

/// Returns the frames of guest memory that a sweep leaves to a VM.
fn keeps(vm: &Vm, goal: Goal) -> u64 {
    match goal {
        Goal::Free => vm.config.reserve_bytes / PAGE_BYTES,
        Goal::Nothing | Goal::Limits(_) => 0,
    }
}

/// Returns whether memory may be taken from a VM.
fn may_give(vm: &Vm, frames: &Frames, goal: Goal) -> bool {
    if vm.config.wired {
        return false;
    }
    match goal {
        Goal::Nothing => false,
        Goal::Limits(slots) => slots >> vm.slot() & 1 == 1,
        Goal::Free => frames.usage(vm.owner()).guest > keeps(vm, goal),
    }
}
