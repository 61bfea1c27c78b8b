//! Which VM each VMID may still stand for in a hart's TLB.

use crate::fences::Hart;
use std::collections::BTreeMap;

/// A VMID names a VM in a TLB that may hold translations of another under the same VMID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmidReused {
    /// The hart.
    pub hart: Hart,
    /// The VMID.
    pub vmid: u16,
    /// The VM whose translations may still be there.
    pub old: u32,
}

/// The harts' TLBs, as far as VMIDs go.
#[derive(Clone, Debug)]
pub struct VmidModel {
    harts: Vec<Tlb>,
}

#[derive(Clone, Default, Debug)]
struct Tlb {
    tags: BTreeMap<u16, u32>,
    running: Option<(u32, u16)>,
}

impl VmidModel {
    /// Harts with empty TLBs, running no guest.
    #[must_use]
    pub fn new(harts: usize) -> Self {
        Self { harts: vec![Tlb::default(); harts] }
    }

    /// The hart runs VM `vm` under `vmid` until it leaves.
    ///
    /// # Errors
    /// If translations of another VM may carry that VMID.
    pub fn enter(&mut self, hart: Hart, vm: u32, vmid: u16) -> Result<(), VmidReused> {
        let tlb = &mut self.harts[hart];
        tlb.running = Some((vm, vmid));
        match tlb.tags.insert(vmid, vm) {
            Some(old) if old != vm => Err(VmidReused { hart, vmid, old }),
            _ => Ok(()),
        }
    }

    /// The hart leaves its guest. Its TLB forgets nothing.
    pub fn leave(&mut self, hart: Hart) {
        self.harts[hart].running = None;
    }

    /// The hart fences all VMIDs. If it still runs a guest, that one's come back at once.
    pub fn fence_all(&mut self, hart: Hart) {
        let tlb = &mut self.harts[hart];
        tlb.tags.clear();
        tlb.tags.extend(tlb.running.map(|(vm, vmid)| (vmid, vm)));
    }

    /// Whether the hart runs a guest.
    #[must_use]
    pub fn is_running(&self, hart: Hart) -> bool {
        self.harts[hart].running.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_vmid_reused_after_a_fence() {
        let mut model = VmidModel::new(2);
        model.enter(0, 7, 1).unwrap();
        model.enter(1, 8, 1).unwrap();
        model.leave(0);
        model.fence_all(0);
        model.enter(0, 8, 1).unwrap();
    }

    #[test]
    fn bad_vmid_reused_without_a_fence() {
        let mut model = VmidModel::new(1);
        model.enter(0, 7, 1).unwrap();
        model.leave(0);
        assert_eq!(model.enter(0, 8, 1), Err(VmidReused { hart: 0, vmid: 1, old: 7 }));
    }

    #[test]
    fn bad_vmid_reused_after_a_fence_while_the_guest_ran() {
        let mut model = VmidModel::new(1);
        model.enter(0, 7, 1).unwrap();
        model.fence_all(0);
        model.leave(0);
        assert!(model.enter(0, 8, 1).is_err());
    }
}
