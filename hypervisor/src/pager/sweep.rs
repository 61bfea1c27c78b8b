//! The sweep: a hand that goes through the memory of all VMs, and takes what nobody has used since it came by last.

use super::{Goal, Inner, Pager, Request, Way};
use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::vm::Vm;
use abi::bundle::{GUEST_RAM_BASE, MAX_VMS};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::SeqCst;
use mmu::frames::{Frames, Owner};
use mmu::gstage::{AddressSpace, Sight};
use mmu::stale::Stale;
use rv::{Addr, Gpa, Hpa, Level, PAGE_BYTES, Pfn, PhysMem};

/// Where the hand is.
#[derive(Debug)]
pub(super) struct Clock {
    /// The slot of the VM whose memory it is in.
    slot: usize,
    /// The page that it comes to next.
    page: Pfn<Gpa>,
    /// How often it has come round since a page went.
    pub rounds: u32,
    /// What it went round for.
    goal: Goal,
}

/// The first page of a VM's RAM.
const FIRST: Pfn<Gpa> = Addr::new(GUEST_RAM_BASE).pfn();

impl Default for Clock {
    fn default() -> Self {
        Self { slot: 0, page: FIRST, rounds: 0, goal: Goal::Nothing }
    }
}

/// Rounds without a page that went after which none will.
pub(super) const FRUITLESS: u32 = 4;
/// Rounds without a page that went after which mapped ones go as well: in the first, all may have become idle; in the second, all
/// that had may have been used.
const UNFORCED: u32 = 2;

impl Clock {
    /// The next VM from the hand on that `may_give`. The hand comes to it, at its first page unless it is there already.
    fn find(&mut self, g: &Gnomon, may_give: impl Fn(&Vm) -> bool) -> Option<Arc<Vm>> {
        for _ in 0..=MAX_VMS {
            if let Some(vm) = g.vms.at(self.slot).filter(|vm| may_give(vm)) {
                return Some(vm);
            }
            self.pass();
        }
        None
    }

    /// The hand goes on to the next slot.
    fn pass(&mut self) {
        self.page = FIRST;
        self.slot += 1;
        if self.slot == MAX_VMS {
            self.slot = 0;
            self.rounds += 1;
        }
    }
}

/// What one part of a sweep may do, in steps of some 10 instructions.
#[derive(Debug)]
pub struct Portion {
    steps: u32,
    /// Pages that went, or are on their way.
    pub(super) gone: u64,
    /// What is mapped goes as well: nothing else has.
    is_forced: bool,
    /// Frames of guest memory that the VM keeps, which the hand is in.
    keeps: u64,
}

impl Portion {
    /// Some 40,000 instructions.
    const STEPS: u32 = 4000;
    /// To look at an entry.
    const LOOK: u32 = 6;
    /// To make a page idle, with its part of the fence.
    const REST: u32 = 20;
    /// To let one go: to see whether it holds zeroes, most of all.
    const GO: u32 = 180;
    /// To split 2 MiB.
    const SPLIT: u32 = 1000;

    const fn new(is_forced: bool) -> Self {
        Self { steps: Self::STEPS, gone: 0, is_forced, keeps: 0 }
    }

    const fn spend(&mut self, steps: u32) {
        self.steps = self.steps.saturating_sub(steps);
    }

    const fn is_spent(&self) -> bool {
        self.steps == 0
    }
}

/// A VM's memory, under its lock, as a sweep needs it.
pub trait Pageable {
    /// How host RAM is reached.
    type Mem: PhysMem;
    /// The memory, and host RAM.
    fn space(&mut self) -> (&mut AddressSpace, &mut Self::Mem);
    /// Makes a page idle that is mapped; what that owes is collected for [`Pageable::settle`]. `None`: not now.
    fn rest(&mut self, page: Pfn<Gpa>, level: Level) -> Option<Stale<Gpa>>;
    /// Whether the page may go, which is idle.
    fn may_go(&mut self, page: Pfn<Gpa>) -> bool;
    /// Fences.
    fn settle(&mut self, stale: Stale<Gpa>);
}

/// Whether a frame holds zeroes.
fn is_zero(frame: Pfn<Hpa>, mem: &impl PhysMem) -> bool {
    (0..PAGE_BYTES / 8).all(|word| mem.read_u64(frame.at(8 * word)) == 0)
}

/// What came of an idle page.
#[derive(PartialEq, Eq)]
enum Went {
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
        self.counters.portions.fetch_add(1, SeqCst);
        self.refill(frames);
        let mut portion = Portion::new(clock.rounds >= UNFORCED);
        let may_give = |vm: &Vm| may_give(vm, frames, goal);
        let mut has_room = true;
        while !portion.is_spent() && clock.rounds < FRUITLESS {
            let Some(vm) = clock.find(g, may_give) else {
                clock.rounds = FRUITLESS;
                break;
            };
            let end = FIRST.add(vm.config.memory_bytes / PAGE_BYTES);
            let Clock { page, .. } = &mut *clock;
            portion.keeps = keeps(&vm, goal);
            has_room = vm.translation.sweep(g, &vm, (page, end), &mut portion, env);
            if *page >= end {
                clock.pass();
            }
            if !has_room {
                break;
            }
        }
        if portion.gone > 0 {
            clock.rounds = 0;
        } else if clock.rounds >= FRUITLESS && self.in_flight.load(SeqCst) == 0 {
            clock.rounds = 0;
            drop(clock);
            self.give_up(g, goal, env);
            return false;
        }
        has_room && clock.rounds < FRUITLESS
    }

    /// A part of the sweep in one VM, whose memory's lock is held. Returns whether pages can go on to go.
    pub(crate) fn sweep<P: Pageable>(
        &self,
        vm: &Vm,
        memory: &mut P,
        (at, end): (&mut Pfn<Gpa>, Pfn<Gpa>),
        portion: &mut Portion,
        frames: &Frames,
    ) -> bool {
        let mut stale = Stale::none();
        let mut has_room = true;
        while *at < end && !portion.is_spent() && has_room {
            portion.spend(Portion::LOOK);
            let page = *at;
            let (space, mem) = memory.space();
            let (sight, next) = space.look(page, mem);
            let mut is_idle = matches!(sight, Sight::Idle(_));
            if let Sight::Mapped(level) = sight {
                portion.spend(Portion::REST * level.pages() as u32 / 4 + Portion::REST);
                if let Some(owed) = memory.rest(page, level) {
                    stale = stale.join(owed);
                    if portion.is_forced {
                        memory.settle(core::mem::replace(&mut stale, Stale::none()));
                        is_idle = true;
                    }
                }
            }
            if is_idle && next.raw() - page.raw() > 1 {
                portion.spend(Portion::SPLIT);
                // The pages are looked at one by one from here on.
                if self.split(page, memory, frames) {
                    continue;
                }
            } else if is_idle && memory.may_go(page) {
                portion.spend(Portion::GO);
                match self.let_go(vm, page, memory, (frames, portion.keeps)) {
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
        memory.settle(stale);
        has_room
    }

    fn split<P: Pageable>(&self, page: Pfn<Gpa>, memory: &mut P, frames: &Frames) -> bool {
        let Some(table) = self.inner.lock().stock.pop().or_else(|| frames.take_ahead(0)) else { return false };
        let (space, mem) = memory.space();
        space.split_idle(page, table, frames, mem);
        true
    }

    /// Lets an idle page go.
    fn let_go<P: Pageable>(&self, vm: &Vm, page: Pfn<Gpa>, memory: &mut P, (frames, keeps): (&Frames, u64)) -> Went {
        // What is on its way is the VM's still, but will not be.
        let leaves = |request: &&Request| request.vm == vm.handle && request.way == Way::Out && !request.is_moot;
        let leaving = self.inner.lock().requests.iter().filter(leaves).count() as u64;
        if frames.usage(Owner::Vm(vm.slot() as u16)).guest <= keeps + leaving {
            return Went::Stays;
        }
        let (space, mem) = memory.space();
        let frame = space.frame_of_idle(page, mem);
        // An image's page that the guest has cleared would be the image's again.
        if space.begins_as_zeroes(page) && is_zero(frame, mem) {
            frames.free(space.take_out(page, None, mem));
            return Went::Gone;
        }
        let mut inner = self.inner.lock();
        let Inner { disk: Some(disk), slots, requests, .. } = &mut *inner else { return Went::Stays };
        let Some(slot) = slots.take() else { return Went::Stays };
        match disk.begin(Way::Out, slot, frame) {
            Ok(token) => {
                self.counters.writes.fetch_add(1, SeqCst);
                self.in_flight.fetch_add(1, SeqCst);
                let (token, frame) = (Some(token), Some(space.take_out(page, Some(slot), mem)));
                requests.push(Request { token, way: Way::Out, vm: vm.handle, page, slot, frame, is_moot: false });
                Went::Gone
            }
            Err(super::NotBegun::Busy) => {
                slots.give(slot);
                Went::NoRoom
            }
            Err(super::NotBegun::Failed) => {
                self.counters.errors.fetch_add(1, SeqCst);
                Went::Stays
            }
        }
    }
}

/// Frames of guest memory that a sweep leaves to a VM.
fn keeps(vm: &Vm, goal: Goal) -> u64 {
    match goal {
        Goal::Free => vm.config.reserve_bytes / PAGE_BYTES,
        Goal::Nothing | Goal::Limits(_) => 0,
    }
}

/// Whether memory may be taken from a VM.
fn may_give(vm: &Vm, frames: &Frames, goal: Goal) -> bool {
    if vm.config.wired {
        return false;
    }
    match goal {
        Goal::Nothing => false,
        Goal::Limits(slots) => slots >> vm.slot() & 1 == 1,
        Goal::Free => frames.usage(Owner::Vm(vm.slot() as u16)).guest > keeps(vm, goal),
    }
}
