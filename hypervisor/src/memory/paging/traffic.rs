//! Requests to the swap device: pages that are read back (swap in), the end of requests of both ways, and the vCPUs that wait for
//! pages or frames. Writes begin in the sweep ([`super::sweep`]).

use super::originals::Read;
use crate::gnomon::Gnomon;
use crate::hart::env::Env;
use crate::memory::edits;
use crate::pager::clock::Goal;
use crate::pager::{Fetched, Inner, IoError, NotBegun, Pager, Request, Way, Whose};
use crate::vm::{Departure, Phase, Unreachable, Vm};
use abi::tunable::Id;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::SeqCst;
use mmu::frames::{AllocError, Frames, Owner, Run, Use};
use mmu::gstage::{AddressSpace, Comes, SwapSlot};
use rv::{Gpa, PAGE_BYTES, Pfn, PhysMem};

/// The number of requests whose end is handled at a time: some 40,000 instructions.
const AT_ONCE: usize = 16;

impl Pager {
    /// Tries to make guest memory reachable that could not be reached. `Ok`: the access is to be attempted anew.
    ///
    /// # Errors
    /// [`Unreachable`], if that cannot be done, or not yet.
    #[cold]
    #[inline(never)]
    pub fn help<E: Env>(&self, g: &Gnomon, vm: &Vm, error: Unreachable, env: &mut E) -> Result<(), Unreachable> {
        // The count is read first: the state is checked again below, or a sweep wakes the vCPU.
        let since = self.events();
        match error {
            Unreachable::Out { page, slot } => {
                self.poll(g, env);
                let fetched = self.begin_in(g, vm, (page, slot), env);
                self.fetched(g, vm, (page, fetched, since), env)
            }
            Unreachable::OriginalOut { page, home } => {
                self.poll(g, env);
                let fetched = self.fetch_original(g, vm, (page, home), env);
                self.fetched(g, vm, (page, fetched, since), env)
            }
            Unreachable::OutOfFrames(AllocError::OutOfMemory) if g.give_back_ahead(&g.harts[env.hart()].frames) => {
                Ok(())
            }
            Unreachable::OutOfFrames(error) => Err(self.short_of(g, vm, (error, since), env)),
            other => Err(other),
        }
    }

    /// Brings in a page that is out and is needed. `Ok`: the access is to be attempted anew.
    ///
    /// # Errors
    /// [`Unreachable`]: most often the page has to be waited for.
    fn fetched<E: Env>(
        &self,
        g: &Gnomon,
        vm: &Vm,
        (page, fetched, since): (Pfn<Gpa>, Fetched, u64),
        env: &mut E,
    ) -> Result<(), Unreachable> {
        match fetched {
            Fetched::Again => Ok(()),
            Fetched::Waits => {
                self.wanted[vm.slot()].note(page);
                self.counters.waits.fetch_add(1, SeqCst);
                env.go_on_soon();
                Err(Unreachable::Waits { since })
            }
            Fetched::NoFrame(error) => Err(self.short_of(g, vm, (error, since), env)),
            Fetched::Lost => Err(Unreachable::Lost(page)),
        }
    }

    fn begin_in<E: Env>(&self, g: &Gnomon, vm: &Vm, (page, slot): (Pfn<Gpa>, SwapSlot), env: &mut E) -> Fetched {
        let frames = &g.harts[env.hart()].frames;
        let guard = vm.memory.lock();
        let Some(memory) = guard.as_ref() else { return Fetched::Again };
        if memory.space.is_out(page, &env.mem()) != Some(slot) {
            return Fetched::Again;
        }
        let mut inner = self.inner.lock();
        if let Some(known) = inner.requests.iter_mut().find(|request| request.slot == slot) {
            // On its way out, the guest has it back: what is written is forgotten.
            let Some(frame) = (known.way == Way::Out).then(|| known.frame.take()).flatten() else {
                return Fetched::Waits;
            };
            known.is_moot = true;
            drop(inner);
            self.counters.rescues.fetch_add(1, SeqCst);
            // The VM's lock is held all the time: another page may soon get that page of the device, and this one must
            // not be read from there.
            if let Err(frame) = edits::bring_in(g, vm, (guard, page, slot), (frame, Comes::Unwritten), env) {
                frames.free(frame);
            }
            return Fetched::Again;
        }
        let whose = Whose::Vm { vm: vm.handle, page };
        match self.begin_read((whose, vm.owner(), slot), Comes::Wanted, &mut inner, frames) {
            Ok(()) => self.read_ahead(g, vm, (page, slot), (&memory.space, &mut inner), (frames, &env.mem())),
            // For whatever request is finished next, another VM's most likely.
            Err(Fetched::Waits) => _ = self.waiting.fetch_or(1 << vm.slot(), SeqCst),
            Err(other) => return other,
        }
        Fetched::Waits
    }

    /// Begins to read a page; says why not, if it cannot.
    pub(super) fn begin_read(
        &self,
        (whose, owner, slot): (Whose, Owner, SwapSlot),
        comes: Comes,
        inner: &mut Inner,
        frames: &Frames,
    ) -> Result<(), Fetched> {
        let for_ = match whose {
            Whose::Vm { .. } => Use::Guest,
            Whose::Image { .. } => Use::Image,
        };
        let frame = match frames.alloc(owner, for_, 0) {
            Ok(frame) => frame,
            Err(error) => return Err(Fetched::NoFrame(error)),
        };
        let begun = match &mut inner.disk {
            Some(disk) => disk.begin(Way::In, slot, frame.first()),
            None => Err(NotBegun::Failed),
        };
        match begun {
            Ok(token) => {
                self.in_flight.fetch_add(1, SeqCst);
                self.counters.reads.fetch_add(1, SeqCst);
                let (token, frame) = (Some(token), Some(frame));
                inner.requests.push(Request { token, way: Way::In, whose, slot, frame, comes, is_moot: false });
                Ok(())
            }
            Err(why) => {
                frames.free(frame);
                Err(if why == NotBegun::Busy { Fetched::Waits } else { Fetched::Lost })
            }
        }
    }

    /// Reads ahead: pages that went out together are likely to be needed together. Begins to read the pages behind one
    /// that is needed, as far as they follow it on the device as well, and memory is not short.
    fn read_ahead<M: PhysMem>(
        &self,
        g: &Gnomon,
        vm: &Vm,
        (page, slot): (Pfn<Gpa>, SwapSlot),
        (space, inner): (&AddressSpace, &mut Inner),
        (frames, mem): (&Frames, &M),
    ) {
        for n in 1..=g.tunables.get(Id::ReadAhead) {
            let (page, slot) = (page.add(n), SwapSlot(slot.0 + n));
            let is_known = || inner.requests.iter().any(|request| request.slot == slot);
            if space.is_out(page, mem) != Some(slot) || !Self::has_enough(frames) || is_known() {
                return;
            }
            let whose = Whose::Vm { vm: vm.handle, page };
            if self.begin_read((whose, vm.owner(), slot), Comes::Ahead, inner, frames).is_err() {
                return;
            }
        }
    }

    /// Handles the lack of a frame that a VM needs: there is none, or none that it may have. Returns the reason why the
    /// access waits or fails.
    fn short_of<E: Env>(&self, g: &Gnomon, vm: &Vm, (error, since): (AllocError, u64), env: &mut E) -> Unreachable {
        // Without a limit of its own, all of its RAM and its tables fit what it may have.
        if vm.config.limit_bytes.is_none() && matches!(error, AllocError::OverLimit { .. }) {
            return Unreachable::OutOfFrames(error);
        }
        if !self.is_on() {
            // There was to be enough for all; but tables have taken it.
            self.turn_on(&g.harts[env.hart()].frames);
        }
        if self.is_exhausted_for(vm, &error) || !g.tunables.is_on(Id::Reclaim) {
            return self.make_room_for(g, vm, (error, since), env);
        }
        let bit = 1 << vm.slot();
        self.waiting.fetch_or(bit, SeqCst);
        match error {
            AllocError::OverLimit { .. } => _ = self.over_limit.fetch_or(bit, SeqCst),
            AllocError::OutOfMemory => self.is_short.store(true, SeqCst),
        }
        self.counters.waits.fetch_add(1, SeqCst);
        self.go_on(g, env);
        env.go_on_soon();
        Unreachable::Waits { since }
    }

    /// Gives up the sweep's goal, because nothing can be taken for it, and tells the vCPUs that wait for that.
    pub(super) fn give_up<E: Env>(&self, g: &Gnomon, goal: Goal, env: &mut E) {
        let is_waited_for = match goal {
            Goal::Nothing => false,
            Goal::Limits(slots) => self.over_limit.fetch_and(!slots, SeqCst) != 0,
            // It may have been for a VM that is to need some only later: what can be taken then is another matter.
            // A vCPU that needs contiguous frames has been woken for each frame that came.
            Goal::Free => {
                let is_waited_for = self.waiting.load(SeqCst) != 0 || self.aim.load(SeqCst) != 0;
                self.is_short.swap(false, SeqCst) && is_waited_for
            }
        };
        let event = self.events.fetch_add(1, SeqCst) + 1;
        *self.exhausted.lock() = is_waited_for.then_some((event, goal));
        self.release_waiting(g, env);
    }

    /// Returns whether the last sweep was for that VM's need, found nothing, and nothing has happened since. It returns
    /// that once: the next need starts a new sweep, since something is about to happen.
    fn is_exhausted_for(&self, vm: &Vm, error: &AllocError) -> bool {
        let mut exhausted = self.exhausted.lock();
        let Some((event, goal)) = *exhausted else { return false };
        let is_its_own = match (goal, error) {
            (Goal::Limits(slots), AllocError::OverLimit { .. }) => slots >> vm.slot() & 1 == 1,
            (Goal::Free, AllocError::OutOfMemory) => true,
            _ => false,
        };
        if is_its_own {
            *exhausted = None;
        }
        is_its_own && event == self.events()
    }

    /// Ends a VM when a VM needs a frame and nothing can be taken. A VM that has more than what is reserved for it has
    /// to end: the one that asks, or else the one that has most.
    fn make_room_for<E: Env>(
        &self,
        g: &Gnomon,
        vm: &Vm,
        (error, since): (AllocError, u64),
        env: &mut E,
    ) -> Unreachable {
        let frames = &g.harts[env.hart()].frames;
        let excess = |vm: &Vm| frames.usage(vm.owner()).guest.saturating_sub(vm.promised_bytes() / PAGE_BYTES);
        if matches!(error, AllocError::OverLimit { .. }) {
            return Unreachable::OutOfFrames(error);
        }
        // Late frames become free when a disk ends their loans. That wakes no vCPU, so the access is retried until
        // then.
        if frames.late_count() != 0 {
            return Unreachable::Later;
        }
        // One that ends already gives back what it has.
        let ends = |other: &Vm| {
            matches!(*other.phase.lock(), Phase::Leaving(Departure::End(_))) && frames.usage(other.owner()).total() > 0
        };
        if g.vms.all().any(|other| other.handle != vm.handle && ends(&other)) {
            self.waiting.fetch_or(1 << vm.slot(), SeqCst);
            return Unreachable::Waits { since };
        }
        // A VM that is about to start, and has nothing reserved, ends no other.
        if excess(vm) > 0 || vm.promised_bytes() == 0 {
            return Unreachable::OutOfFrames(error);
        }
        let Some(other) = g.vms.all().filter(|other| excess(other) > 0).max_by_key(|other| excess(other)) else {
            return Unreachable::OutOfFrames(error);
        };
        let message =
            format!("its memory is needed for what is reserved for {}, and none can be swapped", vm.config.name);
        self.doom(&other, message);
        env.go_on_soon();
        self.waiting.fetch_or(1 << vm.slot(), SeqCst);
        Unreachable::Waits { since }
    }

    /// Completes finished requests, and takes a portion of memory back if it is short. Returns whether there was anything to do.
    /// VMs for which there is no memory are left for [`Pager::take_doomed`]. The caller holds no lock.
    pub fn go_on<E: Env>(&self, g: &Gnomon, env: &mut E) -> bool {
        let shaken = g.tunables.get(Id::UnmapAtRandom);
        if shaken == 0 && !self.has_work() {
            return false;
        }
        let finished = self.poll(g, env);
        let more = g.tunables.is_on(Id::Reclaim) && self.reclaim(g, env);
        if shaken != 0 && self.is_time_to_shake(g, env) {
            self.shake(g, shaken, env);
        }
        if shaken != 0 || self.has_work() {
            env.go_on_soon();
        }
        finished || more
    }

    /// Handles requests that are finished. Returns whether there were some.
    pub fn poll<E: Env>(&self, g: &Gnomon, env: &mut E) -> bool {
        let mut read = Vec::new();
        let mut count = 0;
        while count < AT_ONCE && self.in_flight.load(SeqCst) != 0 {
            let mut inner = self.inner.lock();
            let Some((token, result)) = inner.disk.as_mut().and_then(|disk| disk.finished()) else { break };
            let Some(request) = inner.requests.iter_mut().find(|request| request.token == Some(token)) else {
                unreachable!("the device has finished what was not begun")
            };
            // The request stays in the list until all is done: until then its VM exists, and that page of the device is
            // not requested.
            request.token = None;
            let Request { way, whose, slot, comes, is_moot, .. } = *request;
            let frame = request.frame.take();
            drop(inner);
            count += 1;
            if result.is_err() {
                self.counters.errors.fetch_add(1, SeqCst);
            }
            let vm = match whose {
                Whose::Vm { vm, page } => {
                    let Some(vm) = g.vms.get(vm) else { unreachable!("a VM has gone before its pages") };
                    let frames = &g.harts[env.hart()].frames;
                    match (way, frame, result.is_ok()) {
                        // It stays where it is. That page of the device is used no more.
                        (Way::Out, Some(frame), false) if !is_moot => {
                            self.bring_in(g, &vm, (page, slot), (frame, comes), env)
                        }
                        (Way::In, Some(frame), true) => self.bring_in(g, &vm, (page, slot), (frame, comes), env),
                        (_, frame, is_ok) => {
                            frame.into_iter().for_each(|frame| frames.free(frame));
                            // A page that was only read ahead may be asked for later.
                            if way == Way::In && !is_ok && !is_moot && comes == Comes::Wanted {
                                self.doom(&vm, format!("{}", Unreachable::Lost(page)));
                            }
                        }
                    }
                    Some(vm)
                }
                Whose::Image { number, wanted } => {
                    match (frame, result.is_ok()) {
                        (None, true) => self.written(g, number, slot, env),
                        (Some(frame), true) => {
                            read.push(Read { number, frame, slot, is_wanted: wanted.is_some() });
                            continue;
                        }
                        // It stays where it is: in memory, or on the device.
                        (None, false) => {}
                        (Some(frame), false) => {
                            g.harts[env.hart()].frames.free(frame);
                            // Others that need it ask anew.
                            if let Some((vm, page)) = wanted.and_then(|(vm, page)| Some((g.vms.get(vm)?, page))) {
                                self.doom(&vm, format!("{}", Unreachable::Lost(page)));
                            }
                        }
                    }
                    None
                }
            };
            self.is_over(g, (way, slot, result), vm, env);
        }
        self.restore(g, read, env);
        count != 0
    }

    /// Handles the end of a request, completely.
    pub(super) fn is_over<E: Env>(
        &self,
        g: &Gnomon,
        (way, slot, result): (Way, SwapSlot, Result<(), IoError>),
        vm: Option<Arc<Vm>>,
        env: &mut E,
    ) {
        let mut inner = self.inner.lock();
        let at = inner.requests.iter().position(|request| request.slot == slot);
        let Some(at) = at else { unreachable!("it is there until now") };
        let Request { is_moot, .. } = inner.requests.swap_remove(at);
        if result.is_err() {
            inner.slots.spoil(slot, way);
        }
        let news = match (way, result) {
            (Way::Out, Err(_)) => inner.writes.fail(env.now(), g.offer.timebase).then_some(
                "the swap device fails: writes to it pause for a second, and longer if it fails again, up to 16 s",
            ),
            (Way::Out, Ok(())) => inner.writes.succeed().then_some("the swap device takes pages again"),
            (Way::In, _) => None,
        };
        // Else it is in an entry, or a copy of a page that is in memory, and forgone some time.
        if is_moot {
            inner.slots.give(slot);
        }
        drop(inner);
        news.into_iter().for_each(|news| g.console.say(news));
        // Counted as long as a vCPU may still begin to wait for it.
        self.in_flight.fetch_sub(1, SeqCst);
        self.leaving.fetch_sub(usize::from(way == Way::Out), SeqCst);
        vm.into_iter().for_each(|vm| self.wake(g, &vm, env));
        // There is a frame, or at least room for another request.
        self.wake_waiting(g, env);
    }

    /// Brings a page in, unless it is not out there any more: then its frame is free.
    fn bring_in<E: Env>(
        &self,
        g: &Gnomon,
        vm: &Vm,
        (page, slot): (Pfn<Gpa>, SwapSlot),
        frame: (Run, Comes),
        env: &mut E,
    ) {
        if let Err(frame) = edits::bring_in(g, vm, (vm.memory.lock(), page, slot), frame, env) {
            g.harts[env.hart()].frames.free(frame);
        }
    }

    /// Returns the goal of the sweep.
    pub(super) fn goal<E: Env>(&self, g: &Gnomon, frames: &Frames, env: &mut E) -> Goal {
        /// Frames with which it is worth while to try again.
        const SOME: u64 = 16;
        if self.is_short.load(SeqCst) {
            // Cleared first: a hart that finds no frames after that sets it again.
            self.is_short.store(false, SeqCst);
            let (free, high) = (frames.at_hand(), Self::marks(frames).1.max(self.aim.load(SeqCst)));
            if free < high {
                self.is_short.store(true, SeqCst);
            }
            if free >= SOME {
                self.wake_waiting(g, env);
            }
            if free + (self.leaving.load(SeqCst) as u64) < high {
                return Goal::Free;
            }
        }
        let over = self.over_limit.load(SeqCst);
        /// Frames that a VM at its limit gets at once.
        const ROOM: u64 = 64;
        let has_room = |slot: &u32| frames.has_room(Owner::Vm(*slot as u16), ROOM);
        let served = (0..u64::BITS).filter(|slot| over >> slot & 1 == 1).filter(has_room);
        let served = served.fold(0, |all, slot| all | 1 << slot);
        if served != 0 {
            self.over_limit.fetch_and(!served, SeqCst);
            self.wake_waiting(g, env);
        }
        match over & !served {
            0 => Goal::Nothing,
            slots => Goal::Limits(slots),
        }
    }

    /// Wakes those that wait for a frame, or for the device: there may be some.
    pub fn wake_waiting<E: Env>(&self, g: &Gnomon, env: &mut E) {
        // Counted first: a vCPU that only now begins to wait, and so is not released here, reads the count after that.
        self.events.fetch_add(1, SeqCst);
        self.release_waiting(g, env);
    }

    /// Releases the vCPUs that wait, when the event is counted already.
    fn release_waiting<E: Env>(&self, g: &Gnomon, env: &mut E) {
        let waiting = self.waiting.swap(0, SeqCst);
        for vm in (0..u64::BITS as usize).filter(|slot| waiting >> slot & 1 == 1).filter_map(|slot| g.vms.at(slot)) {
            g.release_held(&vm, env);
        }
    }

    /// Wakes a VM's vCPUs that wait: they try again.
    fn wake<E: Env>(&self, g: &Gnomon, vm: &Vm, env: &mut E) {
        self.events.fetch_add(1, SeqCst);
        g.release_held(vm, env);
    }
}
