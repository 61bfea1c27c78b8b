//! Mappings of guest pages that Gnomon keeps: pages that a vCPU's kernel shares with it and that exits use again and again (after KVM's
//! `gfn_to_pfn_cache`, *KVM nVMX: gfn_to_pfn_cache*).
//!
//! A mapping is used without the VM's lock and without a walk. It ends when the page's entry in the G-stage table changes: the
//! [notifier](Notifier) hears of each edit after the table is changed and before the frame is free, finds the vCPUs that have a mapping of
//! those pages, and waits for a use that goes on.
//!
//! Only Gnomon uses them. What a hart uses of guest memory while a guest runs it finds by tables alone, which edits fence (TOLD).

use crate::sync::Mutex;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use mmu::Mapper;
use rv::{Addr, FenceScope, Gpa, Hpa, Pfn, PhysMem};

/// A page, and where it lies in the host's RAM.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    page: Pfn<Gpa>,
    at: Addr<Hpa>,
}

/// The mappings of a VM's pages that its vCPUs have.
///
/// A vCPU's list is locked after the VM's memory; while one is used, no other lock is taken.
#[derive(Debug)]
pub struct Mappings {
    /// Those of each vCPU, by its hart id. There are few.
    of: Vec<Mutex<Vec<Mapping>>>,
    /// Each page that a vCPU has a mapping of, with the vCPU. Locked after the VM's memory, and before a list.
    pages: Mutex<BTreeSet<(Pfn<Gpa>, u32)>>,
    /// Mappings that edits have ended.
    ended: AtomicU64,
}

impl Mappings {
    /// Makes the mappings of a VM with so many vCPUs: none.
    #[must_use]
    pub fn new(vcpus: u32) -> Self {
        let of = (0..vcpus).map(|_| Mutex::new(Vec::new())).collect();
        Self { of, pages: Mutex::new(BTreeSet::new()), ended: AtomicU64::new(0) }
    }

    /// Calls `act` with where the page lies, if that vCPU has a mapping of it, which stays until `act` is over. `act` takes no lock.
    ///
    /// # Errors
    /// `act`, if there is no mapping.
    #[inline]
    pub fn with<T, F: FnOnce(Addr<Hpa>) -> T>(&self, vcpu: u32, page: Pfn<Gpa>, act: F) -> Result<T, F> {
        let list = self.of[vcpu as usize].lock();
        match list.iter().find(|mapping| mapping.page == page) {
            Some(mapping) => Ok(act(mapping.at)),
            None => Err(act),
        }
    }

    /// Keeps a mapping for that vCPU, which has none of that page. The VM's memory is locked since it was found in its table, with W and D.
    pub fn keep(&self, vcpu: u32, page: Pfn<Gpa>, at: Addr<Hpa>) {
        self.pages.lock().insert((page, vcpu));
        self.of[vcpu as usize].lock().push(Mapping { page, at });
    }

    /// Ends all mappings of a vCPU, whose kernel shares those pages no more. The vCPU is the caller's.
    pub fn release(&self, vcpu: u32) {
        let mut pages = self.pages.lock();
        for mapping in core::mem::take(&mut *self.of[vcpu as usize].lock()) {
            pages.remove(&(mapping.page, vcpu));
        }
    }

    /// Ends all mappings of those pages.
    fn end(&self, first: Pfn<Gpa>, last: Pfn<Gpa>) {
        let mut pages = self.pages.lock();
        while let Some(&(page, vcpu)) = pages.range((first, 0)..=(last, u32::MAX)).next() {
            pages.remove(&(page, vcpu));
            self.of[vcpu as usize].lock().retain(|mapping| mapping.page != page);
            self.ended.fetch_add(1, Relaxed);
        }
    }
}

/// The mapper that ends mappings of pages whose entries change.
#[derive(Debug)]
pub struct Notifier(Arc<Mappings>);

impl Notifier {
    /// Makes the notifier of a memory that all of the mappings lead to.
    #[must_use]
    pub const fn new(mappings: Arc<Mappings>) -> Self {
        Self(mappings)
    }
}

impl Mapper for Notifier {
    fn changed(&mut self, scope: FenceScope<Gpa>, _: &mut dyn PhysMem) {
        match scope {
            FenceScope::Range { start, bytes } => self.0.end(start.pfn(), start.wrapping_add(bytes - 1).pfn()),
            FenceScope::Everything => self.0.end(Pfn::new(0), Pfn::new(u64::MAX)),
        }
    }

    fn counters(&self, report: &mut dyn FnMut(&'static str, u64)) {
        report("mappings.ended", self.0.ended.load(Relaxed));
    }
}

/// The memory goes: no mapping outlives it.
impl Drop for Notifier {
    fn drop(&mut self) {
        self.0.end(Pfn::new(0), Pfn::new(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 0x8_0000;

    fn place(mappings: &Mappings, vcpu: u32, page: u64) -> Option<u64> {
        mappings.with(vcpu, Pfn::new(page), Addr::raw).ok()
    }

    #[test]
    fn an_edit_ends_the_mappings_of_its_pages_and_no_others() {
        let (mappings, mut mem) = (Arc::new(Mappings::new(2)), oracle::Machine::new());
        let mut notifier = Notifier::new(Arc::clone(&mappings));
        for (vcpu, page) in [(0, PAGE), (0, PAGE + 1), (1, PAGE + 1), (1, PAGE + 2)] {
            assert_eq!(place(&mappings, vcpu, page), None);
            mappings.keep(vcpu, Pfn::new(page), Addr::new(page << 13));
            assert_eq!(place(&mappings, vcpu, page), Some(page << 13));
        }
        notifier.changed(FenceScope::Range { start: Addr::new((PAGE + 1) << 12), bytes: 1 }, &mut mem);
        let all =
            [(0, PAGE), (0, PAGE + 1), (1, PAGE + 1), (1, PAGE + 2)].map(|(v, p)| place(&mappings, v, p).is_some());
        assert_eq!(all, [true, false, false, true]);
        mappings.release(0);
        assert_eq!((place(&mappings, 0, PAGE), place(&mappings, 1, PAGE + 2).is_some()), (None, true));
        notifier.changed(FenceScope::Everything, &mut mem);
        assert_eq!(place(&mappings, 1, PAGE + 2), None);
        mappings.keep(0, Pfn::new(PAGE), Addr::new(0));
        drop(notifier);
        assert_eq!(place(&mappings, 0, PAGE), None, "the memory is gone");
        assert!(mappings.pages.lock().is_empty());
        assert_eq!(mappings.ended.load(Relaxed), 4, "but those that were released");
    }
}
