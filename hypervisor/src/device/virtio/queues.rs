//! A device's queues, as the driver sets them up.

use super::queue::{Agreed, Layout, Queue};
use abi::snapshot::device::QueueState;
use alloc::vec::Vec;

/// A queue, and its layout while it is not ready.
#[derive(Clone, Debug, Default)]
struct Slot {
    layout: Layout,
    /// Once it is ready.
    queue: Option<Queue>,
}

/// Them all, by number.
#[derive(Debug)]
pub struct Queues {
    slots: Vec<Slot>,
    /// Most entries of one.
    most: usize,
}

impl Queues {
    /// Makes `count` queues with `most` entries at most, none of which is ready.
    pub(super) fn new(count: usize, most: usize) -> Self {
        Self { slots: alloc::vec![Slot::default(); count], most }
    }

    /// Resets the queues: none is ready any more.
    pub(super) fn reset(&mut self) {
        self.slots.fill(Slot::default());
    }

    /// Returns whether there is a queue of that number.
    pub(super) fn has(&self, at: usize) -> bool {
        at < self.slots.len()
    }

    /// Returns the queue of that number, if it is ready.
    pub fn ready(&mut self, at: usize) -> Option<&mut Queue> {
        self.slots.get_mut(at)?.queue.as_mut()
    }

    /// Returns the queues that are ready.
    pub(super) fn all_ready(&mut self) -> impl Iterator<Item = &mut Queue> {
        self.slots.iter_mut().filter_map(|slot| slot.queue.as_mut())
    }

    /// Returns whether a queue is ready.
    pub(super) fn is_ready(&self, at: usize) -> bool {
        self.slots.get(at).is_some_and(|slot| slot.queue.is_some())
    }

    /// Changes the layout of a queue, as the driver may while it is not ready.
    pub(super) fn set(&mut self, at: usize, set: impl FnOnce(&mut Layout)) {
        if let Some(Slot { layout, queue: None }) = self.slots.get_mut(at) {
            set(layout);
        }
    }

    /// Makes a queue ready, with the features that were agreed on, or not ready, as the driver says. Returns whether
    /// that can be.
    pub(super) fn set_ready(&mut self, at: usize, agreed: Option<Agreed>) -> bool {
        let Some(slot) = self.slots.get_mut(at) else { return true };
        match agreed {
            None => slot.queue = None,
            Some(agreed) if slot.queue.is_none() && usize::from(slot.layout.size) <= self.most => {
                slot.queue = Queue::new(slot.layout, agreed);
            }
            Some(_) => {}
        }
        agreed.is_none() || slot.queue.is_some()
    }

    /// Returns the state for a snapshot. `begun` returns the number of chains of each queue that are begun anew where
    /// they go on.
    pub(super) fn save(&self, begun: impl Fn(usize) -> u16) -> Vec<QueueState> {
        let save =
            |(at, slot): (usize, &Slot)| slot.layout.save(slot.queue.as_ref().map(|queue| queue.save(begun(at))));
        self.slots.iter().enumerate().map(save).collect()
    }

    /// Resumes from a saved state. There may be fewer queues in it: the others are as after a reset. Returns whether
    /// they can be so.
    pub(super) fn resume(&mut self, states: &[QueueState], agreed: Agreed) -> bool {
        for (slot, state) in self.slots.iter_mut().zip(states) {
            slot.layout = Layout::of(state);
            let ready = state.ready.filter(|_| usize::from(state.size) <= self.most);
            slot.queue = ready.and_then(|counts| Queue::resume(slot.layout, agreed, counts));
            if slot.queue.is_none() && state.ready.is_some() {
                return false;
            }
        }
        (1..=self.slots.len()).contains(&states.len())
    }
}
