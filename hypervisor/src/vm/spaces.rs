//! A VM's address spaces ([`abi::vmspace`]): the roots that its kernel has named, the vCPUs that run them, and those whose TLBs may hold
//! translations of them.
//!
//! | event | method |
//! |---|---|
//! | a space is made, gets another root, ends | [`Spaces::create`], [`Spaces::set_root`], [`Spaces::destroy`] |
//! | a vCPU begins to run a space (RUN, SWITCH), and no longer does | [`Spaces::enter`], [`Spaces::leave`] |
//! | entries of a space have changed | [`Spaces::invalidate`] |
//! | a snapshot | [`Spaces::save`], [`Spaces::restore`] |
//!
//! A vCPU that calls [`Spaces::enter`] does so before it looks at what is posted to it; fences are posted while the lock of the spaces is held.
//! So a vCPU enters a space either before a fence, which drives it out, or after it was posted.

use abi::bundle::MAX_VCPUS;
use abi::snapshot::SpaceState;
use abi::vmspace::MOST_SPACES;
use alloc::vec::Vec;

const _: () = assert!(MAX_VCPUS <= 32, "a set of vCPUs is a word of 32 bits");

/// Bits of a handle that are the slot; those above are the generation, from 1 on.
const SLOT_BITS: u32 = 8;
const _: () = assert!(MOST_SPACES == 1 << SLOT_BITS);
/// The most generations of a slot, so that a handle is below 2^63.
const MOST_GENERATION: u64 = (1 << 55) - 1;

/// The reason why a call for a space is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is no such space.
    Unknown,
    /// Another vCPU runs it.
    Runs,
    /// There are as many as there may be.
    Full,
}

/// A slot for a space.
#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    /// The generation of the space that it has, or had.
    generation: u64,
    /// The space's root: a `satp` value without an ASID. `None`: the slot is free.
    root: Option<u64>,
    /// The vCPUs (by bit) whose TLBs may hold translations of it.
    held: u32,
    /// Of these, the vCPUs that fence when they enter it.
    stale: u32,
    /// The vCPUs that run it.
    running: u32,
}

/// The fences that a change of a space takes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Fences {
    /// The vCPU that makes the call may hold translations of the space.
    pub own: bool,
    /// The other vCPUs (by bit) that a fence is posted to.
    pub posted: u32,
    /// Of these, the vCPUs (by bit) that run the space.
    pub running: u32,
}

/// The space that a vCPU begins to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The root: a `satp` value without an ASID.
    pub root: u64,
    /// The slot.
    pub slot: u8,
    /// Set if translations of it in this vCPU's TLB are out of date.
    pub fence: bool,
}

/// The way in which other vCPUs learn of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Each fences before it enters its guest again: shadow tables.
    Posted,
    /// One that does not run the space fences when it enters the space: two stages.
    AtEntry,
}

macro_rules! counts {
    ($($(#[$doc:meta])* $field:ident = $name:literal),* $(,)?) => {
        /// The counts of the calls of all vCPUs, and of their fences.
        #[derive(Clone, Copy, Default, Debug)]
        pub struct Counts { $($(#[$doc])* pub $field: u64),* }

        impl Counts {
            /// Returns every count with its name.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field)),*].into_iter()
            }
        }
    };
}

counts! {
    /// Calls of INFO.
    info = "vmspace.info",
    /// Spaces made.
    create = "vmspace.create",
    /// Spaces ended by a call.
    destroy = "vmspace.destroy",
    /// Calls of SET_ROOT.
    set_root = "vmspace.set_root",
    /// Calls of INVALIDATE.
    invalidate = "vmspace.invalidate",
    /// Runs of programs that have ended.
    run = "vmspace.run",
    /// Calls of SWITCH.
    switch = "vmspace.switch",
    /// Calls of READ and WRITE.
    copy = "vmspace.copy",
    /// Calls that were refused.
    refused = "vmspace.refused",
    /// Fences of SWITCH.
    fences_switch = "vmspace.fences_switch",
    /// Fences posted to other vCPUs.
    fences_posted = "vmspace.fences_posted",
    /// Of these, those that had to reach a vCPU that ran the space.
    fences_running = "vmspace.fences_running",
}

/// A VM's address spaces.
#[derive(Default, Debug)]
pub struct Spaces {
    /// By slot, as many as there were at a time.
    slots: Vec<Slot>,
    /// By vCPU, the slot of the space that it runs.
    current: [Option<u8>; MAX_VCPUS as usize],
    /// The counts of all its lives.
    pub counts: Counts,
}

impl Spaces {
    /// Ends all: the VM's life is over.
    pub fn clear(&mut self) {
        *self = Self { counts: self.counts, ..Self::default() };
    }

    /// Returns the number of spaces.
    #[must_use]
    pub fn alive(&self) -> usize {
        self.slots.iter().filter(|slot| slot.root.is_some()).count()
    }

    /// Makes a space. Returns its handle.
    ///
    /// # Errors
    /// [`Refusal::Full`].
    pub fn create(&mut self, root: u64) -> Result<u64, Refusal> {
        let is_free = |slot: &Slot| slot.root.is_none() && slot.generation < MOST_GENERATION;
        let at = match self.slots.iter().position(is_free) {
            Some(at) => at,
            None if self.slots.len() < MOST_SPACES => {
                self.slots.push(Slot::default());
                self.slots.len() - 1
            }
            None => return Err(Refusal::Full),
        };
        let slot = &mut self.slots[at];
        slot.generation += 1;
        slot.root = Some(root);
        self.counts.create += 1;
        Ok(slot.generation << SLOT_BITS | at as u64)
    }

    /// Returns the slot of a space.
    fn find(&self, handle: u64) -> Result<u8, Refusal> {
        let at = (handle as usize) & (MOST_SPACES - 1);
        let is_its_own = |slot: &&Slot| slot.root.is_some() && slot.generation == handle >> SLOT_BITS;
        self.slots.get(at).filter(is_its_own).map(|_| at as u8).ok_or(Refusal::Unknown)
    }

    /// Returns the slot and the root of a space.
    ///
    /// # Errors
    /// [`Refusal::Unknown`].
    pub fn root(&self, handle: u64) -> Result<(u8, u64), Refusal> {
        let at = self.find(handle)?;
        self.slots[usize::from(at)].root.map(|root| (at, root)).ok_or(Refusal::Unknown)
    }

    /// Returns the slot of a space that no vCPU but `vcpu` runs.
    fn find_idle(&self, handle: u64, vcpu: u32) -> Result<u8, Refusal> {
        let at = self.find(handle)?;
        if self.slots[usize::from(at)].running & !(1 << vcpu) == 0 { Ok(at) } else { Err(Refusal::Runs) }
    }

    /// Ends a space. Returns its slot, and the fences as for an invalidation of the whole space.
    ///
    /// # Errors
    /// [`Refusal::Unknown`], and [`Refusal::Runs`] if another vCPU runs it.
    pub fn destroy(&mut self, handle: u64, vcpu: u32, reach: Reach) -> Result<(u8, Fences), Refusal> {
        let at = self.find_idle(handle, vcpu)?;
        if self.current[vcpu as usize] == Some(at) {
            self.leave(vcpu);
        }
        let fences = self.change(at, vcpu, (true, reach));
        let slot = &mut self.slots[usize::from(at)];
        slot.root = None;
        // The next space there has the same ASID, and a vCPU that ends its own space still has the root in its register.
        slot.stale |= slot.held;
        self.counts.destroy += 1;
        Ok((at, fences))
    }

    /// Gives a space another root. Returns its slot, the fences as for an invalidation of the whole space, and whether `vcpu` runs it.
    ///
    /// # Errors
    /// As for [`Spaces::destroy`].
    pub fn set_root(
        &mut self,
        handle: u64,
        root: u64,
        (vcpu, reach): (u32, Reach),
    ) -> Result<(u8, Fences, bool), Refusal> {
        let at = self.find_idle(handle, vcpu)?;
        let fences = self.change(at, vcpu, (true, reach));
        self.slots[usize::from(at)].root = Some(root);
        self.counts.set_root += 1;
        Ok((at, fences, self.current[vcpu as usize] == Some(at)))
    }

    /// Notes that entries of a space have changed, all of them if `whole`. Returns its slot, and the fences that the caller does and posts before
    /// it gives the lock back.
    ///
    /// # Errors
    /// [`Refusal::Unknown`].
    pub fn invalidate(
        &mut self,
        handle: u64,
        vcpu: u32,
        (whole, reach): (bool, Reach),
    ) -> Result<(u8, Fences), Refusal> {
        let at = self.find(handle)?;
        self.counts.invalidate += 1;
        Ok((at, self.change(at, vcpu, (whole, reach))))
    }

    fn change(&mut self, at: u8, vcpu: u32, (whole, reach): (bool, Reach)) -> Fences {
        let (slot, own) = (&mut self.slots[usize::from(at)], 1 << vcpu);
        let running = slot.running;
        let others = slot.held & !own;
        let fences = match reach {
            Reach::Posted => Fences { own: true, posted: others, running: others & running },
            Reach::AtEntry => {
                // One that is stale already fences all of it when it enters.
                let running = others & running & !slot.stale;
                slot.stale |= others & !running;
                Fences { own: slot.held & own != 0 && slot.stale & own == 0, posted: running, running }
            }
        };
        if whole && reach == Reach::Posted {
            slot.held &= own | running;
        }
        self.counts.fences_posted += u64::from(fences.posted.count_ones());
        self.counts.fences_running += u64::from(fences.running.count_ones());
        fences
    }

    /// Notes that `vcpu` begins to run a space, in place of any other.
    ///
    /// # Errors
    /// [`Refusal::Unknown`].
    pub fn enter(&mut self, handle: u64, vcpu: u32) -> Result<Entry, Refusal> {
        let (slot, root) = self.root(handle)?;
        self.leave(vcpu);
        let (of, own) = (&mut self.slots[usize::from(slot)], 1 << vcpu);
        let fence = of.stale & own != 0;
        of.stale &= !own;
        of.held |= own;
        of.running |= own;
        self.current[vcpu as usize] = Some(slot);
        Ok(Entry { root, slot, fence })
    }

    /// Notes that `vcpu` runs no space any more.
    pub fn leave(&mut self, vcpu: u32) {
        if let Some(slot) = self.current[vcpu as usize].take() {
            self.slots[usize::from(slot)].running &= !(1 << vcpu);
        }
    }

    /// Returns whether `vcpu` runs a space.
    #[must_use]
    pub const fn runs(&self, vcpu: u32) -> bool {
        self.current[vcpu as usize].is_some()
    }

    /// Returns the state for a snapshot.
    #[must_use]
    pub fn save(&self) -> Vec<SpaceState> {
        let state = |it: &Slot| SpaceState { root: it.root, generation: it.generation, running: it.running };
        self.slots.iter().map(state).collect()
    }

    /// Restores the state of a VM with that many vCPUs, each of which fences before it uses a translation. Returns whether it is one that can be.
    #[must_use]
    pub fn restore(&mut self, saved: &[SpaceState], vcpus: u32) -> bool {
        self.clear();
        let is_wild =
            |slot: &SpaceState| slot.generation > MOST_GENERATION || slot.generation == 0 && slot.root.is_some();
        if saved.len() > MOST_SPACES || saved.iter().any(is_wild) {
            return false;
        }
        for (slot, it) in (0..=u8::MAX).zip(saved) {
            let (root, all) = (it.root, u32::MAX >> (u32::BITS - vcpus.clamp(1, MAX_VCPUS)));
            let mut running = 0;
            for (vcpu, current) in (0..vcpus).zip(&mut self.current) {
                if it.running >> vcpu & 1 != 0 && root.is_some() && current.is_none() {
                    *current = Some(slot);
                    running |= 1 << vcpu;
                }
            }
            self.slots.push(Slot { generation: it.generation, root, held: all, stale: all, running });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u64 = 8 << 60 | 0x8_0000;
    const POSTED: Reach = Reach::Posted;
    const AT_ENTRY: Reach = Reach::AtEntry;

    #[test]
    fn a_stale_handle_is_refused() {
        let mut spaces = Spaces::default();
        let first = spaces.create(ROOT).unwrap();
        assert_eq!((first, spaces.root(first), spaces.alive()), (0x100, Ok((0, ROOT)), 1));
        assert!(spaces.destroy(first, 0, POSTED).is_ok());
        let second = spaces.create(ROOT + 1).unwrap();
        assert_eq!((second, spaces.root(second)), (0x200, Ok((0, ROOT + 1))));
        for handle in [0, 1, first, second + 1, second | 1 << 63, u64::MAX] {
            assert_eq!(spaces.root(handle), Err(Refusal::Unknown), "{handle:#x}");
            assert_eq!(spaces.enter(handle, 0), Err(Refusal::Unknown), "{handle:#x}");
        }
        assert_eq!(spaces.alive(), 1);
    }

    #[test]
    fn there_is_a_bound() {
        let mut spaces = Spaces::default();
        let all: Vec<u64> = (0..256).map(|n| spaces.create(ROOT + n).unwrap()).collect();
        assert_eq!((spaces.create(ROOT), spaces.alive()), (Err(Refusal::Full), 256));
        assert!(all.iter().zip(0..).all(|(handle, n)| spaces.root(*handle) == Ok((n as u8, ROOT + n))));
        assert!(spaces.destroy(all[200], 0, POSTED).is_ok());
        assert_eq!(spaces.create(ROOT), Ok(2 << 8 | 200));
        spaces.clear();
        assert_eq!((spaces.alive(), spaces.root(all[0]), spaces.counts.create), (0, Err(Refusal::Unknown), 257));
    }

    #[test]
    fn a_space_that_another_vcpu_runs_stays() {
        let mut spaces = Spaces::default();
        let space = spaces.create(ROOT).unwrap();
        assert_eq!(spaces.enter(space, 3), Ok(Entry { root: ROOT, slot: 0, fence: false }));
        assert_eq!(spaces.destroy(space, 0, POSTED), Err(Refusal::Runs));
        assert_eq!(spaces.set_root(space, ROOT + 1, (0, POSTED)).map(|_| ()), Err(Refusal::Runs));
        assert!(spaces.set_root(space, ROOT + 1, (3, AT_ENTRY)).is_ok_and(|(_, _, runs)| runs), "its own");
        spaces.leave(3);
        assert!(spaces.destroy(space, 0, POSTED).is_ok());
        let own = spaces.create(ROOT).unwrap();
        let _ = spaces.enter(own, 1);
        assert!(spaces.destroy(own, 1, POSTED).is_ok() && !spaces.runs(1), "one's own");
    }

    #[test]
    fn a_space_that_one_vcpu_has_run_reaches_no_other() {
        for reach in [POSTED, AT_ENTRY] {
            let mut spaces = Spaces::default();
            let (space, other) = (spaces.create(ROOT).unwrap(), spaces.create(ROOT + 1).unwrap());
            let _ = spaces.enter(other, 1);
            let _ = spaces.enter(space, 0);
            for whole in [false, true] {
                let fences = Fences { own: true, posted: 0, running: 0 };
                assert_eq!(spaces.invalidate(space, 0, (whole, reach)), Ok((0, fences)), "{reach:?}");
            }
            assert_eq!((spaces.counts.fences_posted, spaces.counts.fences_running), (0, 0));
        }
    }

    #[test]
    fn on_shadow_tables_fences_are_posted_until_the_next_complete_one() {
        let mut spaces = Spaces::default();
        let space = spaces.create(ROOT).unwrap();
        (0..3).for_each(|vcpu| _ = spaces.enter(space, vcpu));
        spaces.leave(1);
        let posted = |posted, running| Ok((0, Fences { own: true, posted, running }));
        assert_eq!(spaces.invalidate(space, 0, (false, POSTED)), posted(6, 4));
        assert_eq!(spaces.invalidate(space, 0, (true, POSTED)), posted(6, 4));
        assert_eq!(spaces.invalidate(space, 0, (true, POSTED)), posted(4, 4), "vCPU 1 has fenced all of it");
        let _ = spaces.enter(space, 1);
        assert_eq!(spaces.invalidate(space, 0, (false, POSTED)), posted(6, 6));
        assert_eq!(spaces.enter(space, 5).map(|entry| entry.fence), Ok(false), "none is left for it");
    }

    #[test]
    fn behind_a_g_stage_a_vcpu_fences_when_it_enters() {
        let mut spaces = Spaces::default();
        let (space, other) = (spaces.create(ROOT).unwrap(), spaces.create(ROOT + 1).unwrap());
        (0..3).for_each(|vcpu| _ = spaces.enter(space, vcpu));
        let _ = spaces.enter(other, 1);
        let fences = |own, running| Ok((0, Fences { own, posted: running, running }));
        assert_eq!(spaces.invalidate(space, 0, (false, AT_ENTRY)), fences(true, 4));
        assert_eq!(spaces.invalidate(space, 1, (false, AT_ENTRY)), fences(false, 5), "its own is for its next entry");
        let fence = |entry: Result<Entry, Refusal>| entry.map(|entry| entry.fence);
        assert_eq!((fence(spaces.enter(space, 1)), fence(spaces.enter(space, 1))), (Ok(true), Ok(false)));
        // Another space in the slot has the same ASID.
        (0..3).for_each(|vcpu| spaces.leave(vcpu));
        assert!(spaces.destroy(space, 3, AT_ENTRY).is_ok());
        let next = spaces.create(ROOT).unwrap();
        assert_eq!([0, 2, 4].map(|vcpu| fence(spaces.enter(next, vcpu))), [Ok(true), Ok(true), Ok(false)]);
    }

    #[test]
    fn a_vcpu_that_ends_its_own_space_fences_before_it_runs_the_next_one_there() {
        let mut spaces = Spaces::default();
        let space = spaces.create(ROOT).unwrap();
        let _ = spaces.enter(space, 0);
        assert_eq!(spaces.destroy(space, 0, AT_ENTRY), Ok((0, Fences { own: true, posted: 0, running: 0 })));
        let next = spaces.create(ROOT + 1).unwrap();
        assert_eq!(spaces.enter(next, 0).map(|entry| entry.fence), Ok(true), "its root has stayed in the register");
    }

    #[test]
    fn a_snapshot_has_them() {
        let mut spaces = Spaces::default();
        let all: Vec<u64> = (0..3).map(|n| spaces.create(ROOT + n).unwrap()).collect();
        assert!(spaces.destroy(all[1], 0, POSTED).is_ok());
        let _ = spaces.enter(all[2], 1);
        let mut other = Spaces::default();
        assert!(other.restore(&spaces.save(), 8));
        assert_eq!([0, 1, 2].map(|n| other.root(all[n])), [0, 1, 2].map(|n| spaces.root(all[n])));
        assert_eq!(other.create(ROOT), Ok(2 << 8 | 1));
        assert_eq!(other.destroy(all[2], 0, POSTED), Err(Refusal::Runs));
        assert_eq!(other.enter(all[0], 7).map(|entry| entry.fence), Ok(true));
        let wild = SpaceState { root: Some(0), generation: u64::MAX, running: 0 };
        assert!(!other.restore(&[wild], 8) && !other.restore(&[SpaceState::default(); 257], 8));
    }
}
