//! Images' own pages ([`mmu::frames::Originals`]), which VMs share: the sweep takes those that no VM has touched since it came by
//! last, and they come back into any frame.
//!
//! What a VM may use without a fault is taken from it, so that its next touch shows; no bit has to be kept for that, since regions
//! say what is to be mapped there. An original is written to the device when it goes for the first time, and never again.

use super::clock::{Pageable, Portion};
use super::disk::Shelf;
use super::homes::home;
use super::sweep::Went;
use super::traffic::Fetched;
use super::{Inner, MOST_FAILED, NotBegun, Pager, Request, Way, Whose};
use crate::env::Env;
use crate::gnomon::Gnomon;
use crate::shootdown::shoot_down;
use crate::vm::Vm;
use abi::tunable::Id;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;
use mmu::frames::{Frames, Original, Owner, Run};
use mmu::gstage::{Comes, SwapSlot};
use mmu::stale::Stale;
use rv::{Gpa, Hpa, Pfn};

/// Originals that are taken from VMs at a time: a bit for each in a word.
const CHUNK: u64 = 64;

/// The VMs that have one of these homes in their memory.
fn users(g: &Gnomon, of: Range<u64>) -> impl Iterator<Item = Arc<Vm>> {
    let meets = move |home: Range<u64>| home.start < of.end && of.start < home.end;
    g.vms.all().filter(move |vm| {
        vm.config.segments.iter().filter_map(|segment| home(segment, g.bundle, g.bundle_bytes)).any(&meets)
    })
}

/// A word with these bits.
fn bits(of: impl Iterator<Item = u64>) -> u64 {
    of.fold(0, |all, n| all | 1 << n)
}

impl Pager {
    /// A part of the sweep in the images' pages. Returns whether pages can go on to go.
    pub(super) fn sweep_originals<E: Env>(&self, g: &Gnomon, at: &mut u64, portion: &mut Portion, env: &mut E) -> bool {
        let originals = g.frames().originals();
        while *at < originals.end() && !portion.is_spent() {
            let homes_of = |chunk: &Range<u64>| originals.home(chunk.start).raw()..originals.home(chunk.end).raw();
            let mut chunk = *at..(*at + CHUNK).min(originals.end());
            let users: Vec<_> = users(g, homes_of(&chunk)).collect();
            // The more VMs there are to take them from, the fewer at a time (BOUNDED).
            chunk.end = chunk.end.min(chunk.start + (CHUNK / users.len().max(1) as u64).max(1));
            portion.spend(Portion::LOOK * (CHUNK as u32 / 4 + g.vms.most() as u32));
            let homes = homes_of(&chunk);
            // What is wired stays.
            if !users.iter().any(|vm| vm.config.wired) {
                if !self.let_originals_go(g, chunk.clone(), portion, env) {
                    return false;
                }
                let has_lapsed = self.rest_originals(g, (chunk.clone(), homes), portion, env);
                if has_lapsed && portion.is_forced && !self.let_originals_go(g, chunk.clone(), portion, env) {
                    return false;
                }
            }
            *at = chunk.end;
        }
        true
    }

    /// Lets those go that nobody has touched. Returns whether more can.
    fn let_originals_go<E: Env>(&self, g: &Gnomon, chunk: Range<u64>, portion: &mut Portion, env: &mut E) -> bool {
        let frames = &g.harts[env.hart()].frames;
        for number in chunk {
            let Original::Idle(frame) = frames.originals().state(number) else { continue };
            portion.spend(Portion::REST);
            match self.let_original_go((number, frame), frames) {
                Went::Gone => portion.gone += 1,
                Went::NoRoom => return false,
                Went::Stays => {}
            }
        }
        true
    }

    fn let_original_go(&self, (number, frame): (u64, Pfn<Hpa>), frames: &Frames) -> Went {
        let mut inner = self.inner.lock();
        let Inner { disk: Some(disk), slots, shelf, requests, failed, .. } = &mut *inner else { return Went::Stays };
        if shelf.of(number).is_some() {
            drop(inner);
            return if self.release(number, frames) { Went::Gone } else { Went::Stays };
        }
        if *failed >= MOST_FAILED || requests.iter().any(|request| request.whose.is_original(number)) {
            return Went::Stays;
        }
        let Some(slot) = slots.take() else { return Went::Stays };
        let begun = if Shelf::may_have(slot) { disk.begin(Way::Out, slot, frame) } else { Err(NotBegun::Failed) };
        match begun {
            Ok(token) => {
                self.counters.writes.fetch_add(1, SeqCst);
                self.in_flight.fetch_add(1, SeqCst);
                self.leaving.fetch_add(1, SeqCst);
                let whose = Whose::Image { number, wanted: None };
                // It stays where it is until it is written: nobody writes to it.
                let (token, frame, comes) = (Some(token), None, Comes::Unwritten);
                requests.push(Request { token, way: Way::Out, whose, slot, frame, comes, is_moot: false });
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

    /// Frees the frame of an original that the device has, if nobody has touched it.
    fn release(&self, number: u64, frames: &Frames) -> bool {
        let Some(frame) = frames.originals().release(number) else { return false };
        frames.free(frame);
        self.counters.image_drops.fetch_add(1, SeqCst);
        true
    }

    /// An original has been written: the device keeps it for ever.
    pub(super) fn written<E: Env>(&self, g: &Gnomon, number: u64, slot: SwapSlot, env: &E) {
        self.inner.lock().shelf.put(number, slot);
        _ = self.release(number, &g.harts[env.hart()].frames);
    }

    /// Takes originals from all VMs: they are idle when this returns, but for those that some VM has touched meanwhile, or cannot do
    /// without now. Returns whether there may be some.
    fn rest_originals<E: Env>(
        &self,
        g: &Gnomon,
        (chunk, homes): (Range<u64>, Range<u64>),
        portion: &mut Portion,
        env: &mut E,
    ) -> bool {
        let originals = g.frames().originals();
        let used = chunk.clone().filter(|number| originals.state(*number) == Original::Used);
        let used = bits(used.map(|number| number - chunk.start));
        if used == 0 {
            return false;
        }
        let named = |bits: u64| chunk.clone().filter(move |number| bits >> (number - chunk.start) & 1 == 1);
        // First this, then the locks: whoever touches one from now on is seen, whoever has done so before has mapped it.
        named(used).for_each(|number| originals.lapse(number));
        let mut stay = 0;
        for vm in users(g, homes.clone()) {
            stay |= vm.translation.rest_originals(g, &vm, homes.clone(), portion, env);
        }
        named(stay & used).for_each(|number| originals.keep(number));
        named(used).for_each(|number| originals.settle(number));
        true
    }

    /// Takes originals from a VM whose memory's lock is held. Returns which it keeps, a bit for each.
    pub(crate) fn rest_shown<P: Pageable>(&self, memory: &mut P, homes: Range<u64>, portion: &mut Portion) -> u64 {
        let pieces: Vec<(u64, Range<u64>)> = memory.space().0.pages_of(homes).collect();
        let (mut stale, mut stay) = (Stale::none(), 0);
        for (before, pages) in pieces {
            let mut page = Pfn::<Gpa>::new(pages.start);
            while page.raw() < pages.end {
                portion.spend(Portion::LOOK);
                let (space, mem) = memory.space();
                let (level, next) = space.look_for_original(page, mem);
                let next = Pfn::new(next.raw().min(pages.end));
                if let Some(level) = level {
                    portion.spend(Portion::REST * level.pages() as u32 / 4 + Portion::REST);
                    let first = page.align_down(level.pages());
                    let may_go = (0..level.pages()).all(|n| memory.may_go(first.add(n)));
                    let owed = if may_go { memory.rest(page, level) } else { None };
                    match owed {
                        Some(owed) => stale = stale.join(owed),
                        None => stay |= bits(before + page.raw() - pages.start..before + next.raw() - pages.start),
                    }
                }
                page = next;
            }
        }
        memory.settle(stale);
        stay
    }

    /// A VM needs an original that is out: it is brought in, or that is begun.
    pub(super) fn fetch_original<E: Env>(
        &self,
        g: &Gnomon,
        vm: &Vm,
        (page, home): (Pfn<Gpa>, Pfn<Hpa>),
        env: &mut E,
    ) -> Fetched {
        let frames = &g.harts[env.hart()].frames;
        let originals = frames.originals();
        let number = originals.number(home);
        let mut inner = self.inner.lock();
        if originals.state(number) != Original::Out {
            return Fetched::Again;
        }
        let is_coming = |inner: &Inner, number| inner.requests.iter().any(|request| request.whose.is_original(number));
        if !is_coming(&inner, number) {
            let Some(slot) = inner.shelf.of(number) else { unreachable!("original {number} is nowhere") };
            let whose = Whose::Image { number, wanted: Some((vm.handle, page)) };
            match self.begin_read((whose, Owner::Host, slot), Comes::Wanted, &mut inner, frames) {
                Ok(()) => _ = self.counters.image_reads.fetch_add(1, SeqCst),
                Err(Fetched::Waits) => {}
                Err(other) => return other,
            }
            // Who reads one reads on, most often.
            for number in number + 1..(number + 1 + g.tunables.get(Id::ReadAhead)).min(originals.end()) {
                let is_away = originals.state(number) == Original::Out && !is_coming(&inner, number);
                let Some(slot) = inner.shelf.of(number).filter(|_| is_away) else { break };
                let whose = Whose::Image { number, wanted: None };
                if !Self::has_enough(frames)
                    || self.begin_read((whose, Owner::Host, slot), Comes::Ahead, &mut inner, frames).is_err()
                {
                    break;
                }
                self.counters.image_reads.fetch_add(1, SeqCst);
            }
        }
        // For that one, or for room among the requests.
        self.waiting.fetch_or(1 << vm.slot(), SeqCst);
        Fetched::Waits
    }

    /// An original has been read. Code may be in it: harts in VMs that may map it are told before one can.
    pub(super) fn restore<E: Env>(&self, g: &Gnomon, number: u64, frame: Run, env: &mut E) {
        let originals = g.frames().originals();
        let home = originals.home(number).raw();
        for vm in users(g, home..home + 1) {
            let memory = vm.memory.lock();
            if memory.is_some() {
                shoot_down(g, &vm, env);
            }
        }
        env.fence_instructions();
        originals.restore(number, frame);
    }
}
