//! Images' own pages ([`mmu::frames::Originals`]), which VMs share: the sweep takes those that no VM has touched since
//! it came by last, and they come back into any frame.
//!
//! Pages that a VM may use without a fault are unmapped, so that its next access shows. No bit has to be kept for that,
//! since regions say what is to be mapped there. An original is written to the device when it goes for the first time,
//! and never again.

use super::sweep::Went;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::edits;
use crate::memory::shootdown::shoot_down;
use crate::pager::clock::{Clock, Portion, Taking};
use crate::pager::disk::Shelf;
use crate::pager::homes::home;
use crate::pager::{Fetched, Inner, NotBegun, Pager, Request, Way, Whose};
use crate::vm::Vm;
use abi::bundle::MAX_VMS;
use abi::tunable::Id;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::SeqCst;
use mmu::Edits;
use mmu::frames::{Frames, Original, Owner, Run};
use mmu::gstage::{Comes, SwapSlot};
use mmu::stale::Stale;
use rv::{Fence, Gpa, Hpa, Pfn, PhysMem};

/// Originals that are taken from VMs at a time: a bit for each in a word.
const CHUNK: u64 = 64;

/// An original that has been read, by a request that is not over yet.
pub(super) struct Read {
    pub number: u64,
    pub frame: Run,
    /// The page of the device that it is read from.
    pub slot: SwapSlot,
    /// Set if a VM waits for it.
    pub is_wanted: bool,
}

/// Returns whether a VM has one of these homes in its memory.
fn has_some_of(vm: &Vm, g: &Gnomon, of: &Range<u64>) -> bool {
    let meets = |home: Range<u64>| home.start < of.end && of.start < home.end;
    vm.config.segments.iter().filter_map(|segment| home(segment, g.bundle, g.bundle_bytes)).any(meets)
}

/// Returns the VMs that have one of these homes in their memory.
fn users(g: &Gnomon, of: Range<u64>) -> impl Iterator<Item = Arc<Vm>> {
    g.vms.all().filter(move |vm| has_some_of(vm, g, &of))
}

/// Returns a word with these bits.
fn bits(of: impl Iterator<Item = u64>) -> u64 {
    of.fold(0, |all, n| all | 1 << n)
}

/// Returns the originals of a chunk whose bit is set.
fn named(chunk: &Range<u64>, bits: u64) -> impl Iterator<Item = u64> + use<> {
    let start = chunk.start;
    chunk.clone().filter(move |number| bits >> (number - start) & 1 == 1)
}

impl Pager {
    /// Does a part of the sweep in the images' pages. Returns whether more pages can go.
    pub(super) fn sweep_originals<E: Env>(
        &self,
        g: &Gnomon,
        clock: &mut Clock,
        portion: &mut Portion,
        env: &mut E,
    ) -> bool {
        let originals = g.frames().originals();
        while clock.original < originals.end() && !portion.is_spent() {
            let chunk = clock.original..(clock.original + CHUNK).min(originals.end());
            let homes = originals.home(chunk.start).raw()..originals.home(chunk.end).raw();
            let taking = match clock.taking.take() {
                Some(taking) => Some(taking),
                None => {
                    portion.spend(Portion::LOOK * (CHUNK as u32 / 4 + g.vms.most() as u32));
                    // What is wired stays.
                    let may_go = !users(g, homes.clone()).any(|vm| vm.config.wired);
                    if may_go && !self.let_originals_go(g, chunk.clone(), portion, env) {
                        return false;
                    }
                    if may_go { Self::begin_to_take(g, chunk.clone()) } else { None }
                }
            };
            if let Some(mut taking) = taking {
                if !self.take_from_all(g, &mut taking, homes, portion, env) {
                    clock.taking = Some(taking);
                    break;
                }
                named(&chunk, taking.stay & taking.which).for_each(|number| originals.keep(number));
                named(&chunk, taking.which).for_each(|number| originals.settle(number));
                if portion.is_forced && !self.let_originals_go(g, chunk.clone(), portion, env) {
                    return false;
                }
            }
            clock.original = chunk.end;
        }
        true
    }

    /// Lets originals go that no VM has touched. Returns whether more can.
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
        let Inner { disk: Some(disk), slots, shelf, requests, writes, .. } = &mut *inner else { return Went::Stays };
        if shelf.of(number).is_some() {
            drop(inner);
            return if self.release(number, frames) { Went::Gone } else { Went::Stays };
        }
        if !writes.may_begin() || requests.iter().any(|request| request.whose.is_original(number)) {
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
                // The frame stays where it is until its write is done: an original is never stored to.
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

    /// Frees the frame of an original that the device has, unless a VM has touched it.
    fn release(&self, number: u64, frames: &Frames) -> bool {
        let Some(frame) = frames.originals().release(number) else { return false };
        frames.free(frame);
        self.counters.image_drops.fetch_add(1, SeqCst);
        true
    }

    /// Notes that an original has been written: the device keeps it for ever.
    pub(super) fn written<E: Env>(&self, g: &Gnomon, number: u64, slot: SwapSlot, env: &E) {
        self.inner.lock().shelf.put(number, slot);
        _ = self.release(number, &g.harts[env.hart()].frames);
    }

    /// Makes the used originals of a chunk lapse, if there are some: they are to be taken from all VMs.
    fn begin_to_take(g: &Gnomon, chunk: Range<u64>) -> Option<Taking> {
        let originals = g.frames().originals();
        let used = chunk.clone().filter(|number| originals.state(*number) == Original::Used);
        let which = bits(used.map(|number| number - chunk.start));
        // First this, then the VMs' locks: a VM that touches one from now on is seen, a VM that has done so before has
        // mapped it.
        named(&chunk, which).for_each(|number| originals.lapse(number));
        (which != 0).then_some(Taking { which, stay: 0, slot: 0 })
    }

    /// Takes originals from the VMs whose turn it is, as far as the portion goes. Returns whether all have had theirs:
    /// then those originals are idle, except those that a VM has touched meanwhile, or cannot do without now.
    fn take_from_all<E: Env>(
        &self,
        g: &Gnomon,
        taking: &mut Taking,
        homes: Range<u64>,
        portion: &mut Portion,
        env: &mut E,
    ) -> bool {
        while taking.slot < MAX_VMS {
            if let Some(vm) = g.vms.at(taking.slot).filter(|vm| has_some_of(vm, g, &homes)) {
                if portion.is_spent() {
                    return false;
                }
                portion.spend(Portion::VISIT);
                let before = portion.leaves;
                let stay = match vm.config.wired {
                    // It has come meanwhile.
                    true => u64::MAX,
                    false => edits::rest_originals(g, &vm, homes.clone(), portion, env),
                };
                if portion.is_to_come_again(before) {
                    return false;
                }
                taking.stay |= stay;
            }
            taking.slot += 1;
        }
        true
    }

    /// Takes originals from a VM whose memory's lock is held. Returns which it keeps, a bit for each.
    pub(crate) fn rest_shown<M: PhysMem, H: Fence<Gpa>>(
        &self,
        edits: &mut Edits<'_, '_, M, H>,
        homes: Range<u64>,
        portion: &mut Portion,
    ) -> u64 {
        let pieces: Vec<(u64, Range<u64>)> = edits.host.space.pages_of(homes).collect();
        let (mut stale, mut stay) = (Stale::none(), 0);
        for (before, pages) in pieces {
            let mut page = Pfn::<Gpa>::new(pages.start);
            while page.raw() < pages.end {
                portion.spend(Portion::LOOK);
                let (level, next) = edits.host.space.look_for_original(page, edits.host.mem);
                let next = Pfn::new(next.raw().min(pages.end));
                if let Some(level) = level {
                    portion.spend(Portion::REST * level.pages() as u32 / 4 + Portion::REST);
                    let first = page.align_down(level.pages());
                    let may_go = (0..level.pages()).all(|n| !edits.is_kept(first.add(n)));
                    let owed = match may_go {
                        true => edits.sharing(&mut portion.leaves, |edits| edits.rest(page, level)),
                        false => None,
                    };
                    match owed {
                        Some(owed) => stale = stale.join(owed),
                        None => stay |= bits(before + page.raw() - pages.start..before + next.raw() - pages.start),
                    }
                }
                page = next;
            }
        }
        edits.settle(stale);
        stay
    }

    /// Brings in an original that a VM needs, or begins to.
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
            // Most reads are sequential.
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

    /// Restores originals that have been read. Code may be in them: harts in VMs that may map one leave their guests
    /// before they can, once for all, and fetch anew.
    pub(super) fn restore<E: Env>(&self, g: &Gnomon, read: Vec<Read>, env: &mut E) {
        let originals = g.frames().originals();
        let homes = || read.iter().map(|read| originals.home(read.number).raw());
        let (Some(first), Some(last)) = (homes().min(), homes().max()) else { return };
        for vm in users(g, first..last + 1) {
            let memory = vm.memory.lock();
            if memory.is_some() {
                shoot_down(g, &vm, env);
            }
        }
        env.fence_instructions();
        for Read { number, frame, slot, is_wanted } in read {
            originals.restore(number, frame);
            if is_wanted {
                // The vCPU that waits for it is to find it: the hand spares it once.
                originals.keep(number);
            }
            self.is_over(g, (Way::In, slot, Ok(())), None, env);
        }
    }
}
