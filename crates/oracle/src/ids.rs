//! Which owner each id (a VMID, an ASID) may still stand for in a hart's TLB.

use crate::fences::Hart;
use std::collections::BTreeMap;

/// An id names an owner in a TLB that may hold translations of another under the same id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdReused {
    /// The hart.
    pub hart: Hart,
    /// The id.
    pub id: u16,
    /// The owner whose translations may still be there.
    pub old: u32,
}

/// The harts' TLBs, as far as ids go.
#[derive(Clone, Debug)]
pub struct IdModel {
    harts: Vec<Tlb>,
}

#[derive(Clone, Default, Debug)]
struct Tlb {
    tags: BTreeMap<u16, u32>,
    running: Option<(u32, u16)>,
}

impl IdModel {
    /// Harts with empty TLBs, running no guest.
    #[must_use]
    pub fn new(harts: usize) -> Self {
        Self { harts: vec![Tlb::default(); harts] }
    }

    /// The hart runs `owner` under `id` until it leaves.
    ///
    /// # Errors
    /// If translations of another owner may carry that id.
    pub fn enter(&mut self, hart: Hart, owner: u32, id: u16) -> Result<(), IdReused> {
        let tlb = &mut self.harts[hart];
        tlb.running = Some((owner, id));
        match tlb.tags.insert(id, owner) {
            Some(old) if old != owner => Err(IdReused { hart, id, old }),
            _ => Ok(()),
        }
    }

    /// The hart leaves its guest. Its TLB forgets nothing.
    pub fn leave(&mut self, hart: Hart) {
        self.harts[hart].running = None;
    }

    /// The hart fences all ids. If it still runs a guest, that one's come back at once.
    pub fn fence_all(&mut self, hart: Hart) {
        let tlb = &mut self.harts[hart];
        tlb.tags.clear();
        tlb.tags.extend(tlb.running.map(|(owner, id)| (id, owner)));
    }

    /// True while the hart runs a guest.
    #[must_use]
    pub fn is_running(&self, hart: Hart) -> bool {
        self.harts[hart].running.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_id_reused_after_a_fence() {
        let mut model = IdModel::new(2);
        model.enter(0, 7, 1).unwrap();
        model.enter(1, 8, 1).unwrap();
        model.leave(0);
        model.fence_all(0);
        model.enter(0, 8, 1).unwrap();
    }

    #[test]
    fn bad_id_reused_without_a_fence() {
        let mut model = IdModel::new(1);
        model.enter(0, 7, 1).unwrap();
        model.leave(0);
        assert_eq!(model.enter(0, 8, 1), Err(IdReused { hart: 0, id: 1, old: 7 }));
    }

    #[test]
    fn bad_id_reused_after_a_fence_while_the_guest_ran() {
        let mut model = IdModel::new(1);
        model.enter(0, 7, 1).unwrap();
        model.fence_all(0);
        model.leave(0);
        assert!(model.enter(0, 8, 1).is_err());
    }
}
