//! Which hart is in which guest: the protocol by which one hart makes sure that another has left.
//!
//! Each hart counts its entries and exits in `sequence`: odd while in a guest. To enter, a hart
//! makes the count odd and *then* looks at what it must know (posted requests, TLB generations).
//! To change such a thing, a hart changes it and *then* looks at the counts. All of these are
//! sequentially consistent, so either the entering hart sees the change, or the changing hart sees
//! the entry; in the second case it sends an IPI and waits until the count moves on. A hart in
//! the hypervisor never has to be waited for, and a hart in a guest always leaves on an IPI, so
//! waiting is free of deadlock whatever locks the waiter holds.

use crate::hart::env::Env;
use crate::measure::counters::HartCounters;
use crate::measure::probe::Noted;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use mmu::frames::Frames;

/// Most harts that Gnomon uses; the rest stay parked.
pub const MAX_HARTS: usize = 64;

/// The state of a hart that all harts may see.
#[derive(Debug, Default)]
pub struct HartShared {
    sequence: AtomicU64,
    vm: AtomicUsize,
    /// Host RAM, with some at its hand.
    pub frames: Frames,
    /// Set while the hart waits for work.
    pub idle: AtomicBool,
    /// Set while a vCPU is loaded. Only the hart itself writes it.
    pub has_guest: AtomicBool,
    /// Set while the hart's vCPU keeps it although the vCPU waits for another one's store, because no other vCPU was
    /// ready.
    pub spins: AtomicBool,
    /// Devices of the host (by bit) that another hart has left to this one to handle. It is kicked after that.
    pub sources: AtomicU64,
    /// The hart's counters.
    pub counters: HartCounters,
    /// The hart's notes, for the probe.
    pub probe: Noted,
}

impl HartShared {
    /// Makes the state of a hart that takes its frames from there.
    #[must_use]
    pub fn new(frames: Frames) -> Self {
        Self { frames, ..Self::default() }
    }

    /// Announces that this hart is about to enter the guest in slot `vm`. The conditions for that are checked after
    /// this call.
    #[inline(always)]
    fn entering(&self, vm: usize) {
        self.vm.store(vm, Ordering::Relaxed);
        self.sequence.fetch_add(1, Ordering::SeqCst);
    }

    /// ANNOUNCED: announces that this hart is about to enter the guest in slot `vm`, *then* checks that nothing is to
    /// be done before. If something is, takes it back and returns false.
    #[inline(always)]
    #[must_use]
    pub fn announce(&self, vm: usize, is_ready: impl FnOnce() -> bool) -> bool {
        self.entering(vm);
        let is_ready = is_ready();
        if !is_ready {
            self.left();
        }
        is_ready
    }

    /// Announces that this hart has left its guest, or did not enter after all.
    pub fn left(&self) {
        self.sequence.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the hart's sequence number if it is in (or about to enter) the guest in slot `vm`.
    fn in_guest_of(&self, vm: usize) -> Option<u64> {
        let sequence = self.sequence.load(Ordering::SeqCst);
        (sequence & 1 == 1 && self.vm.load(Ordering::Relaxed) == vm).then_some(sequence)
    }
}

/// Returns the numbers of the members of a set, such as harts: one bit for each.
pub fn each(set: u64) -> impl Iterator<Item = usize> {
    let but_lowest = |left: &u64| Some(left & left.wrapping_sub(1));
    core::iter::successors(Some(set), but_lowest)
        .take_while(|left| *left != 0)
        .map(|left| left.trailing_zeros() as usize)
}

/// Returns those harts of a set (by bit) that are not in the guest in slot `vm`.
#[must_use]
pub fn outside(harts: &[HartShared], vm: usize, set: u64) -> u64 {
    each(set).filter(|hart| harts[*hart].in_guest_of(vm).is_none()).fold(0, |outside, hart| outside | 1 << hart)
}

/// Kicks every hart of the set `wanted` (by bit) but this one that is in the guest in slot `vm`, and waits until each has left
/// it at least once.
pub fn drive_out<E: Env>(harts: &[HartShared], vm: usize, env: &mut E, wanted: u64) {
    let me = env.hart();
    let (mut kicked, mut sequences) = (0, [0; MAX_HARTS]);
    for hart in each(wanted & !(1 << me)) {
        if let Some(sequence) = harts[hart].in_guest_of(vm) {
            env.send_ipi(hart);
            harts[me].counters.ipis.bump();
            kicked |= 1 << hart;
            sequences[hart] = sequence;
        }
    }
    for hart in each(kicked) {
        while harts[hart].sequence.load(Ordering::SeqCst) == sequences[hart] {
            env.relax();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hart_of_a_set_is_named() {
        for harts in [&[][..], &[0], &[63], &[0, 1, 31, 32, 63]] {
            let set = harts.iter().fold(0, |set, hart| set | 1 << hart);
            assert!(each(set).eq(harts.iter().copied()), "{set:#x}");
        }
        assert_eq!(each(u64::MAX).count(), MAX_HARTS);
    }

    #[test]
    fn a_hart_is_in_a_guest_between_entering_and_leaving() {
        let hart = HartShared::default();
        assert_eq!(hart.in_guest_of(0), None);
        hart.entering(3);
        assert_eq!(hart.in_guest_of(3), Some(1));
        assert_eq!(hart.in_guest_of(0), None);
        hart.left();
        assert_eq!(hart.in_guest_of(3), None);
    }
}
