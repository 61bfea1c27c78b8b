//! Spells that a vCPU is nested for: its own tables translate, behind the G-stage, and its guest's stores and fences
//! are not seen. The translations that it finds then, and when it is back on shadow tables, must be ones that its
//! tables gave since its fences, seen or not.

use super::hardware::{AllHarts, Mem};
use super::subject::Subject;
use super::{Mutant, RAM, Rig};
use mmu::ResolveError;
use mmu::shadow::{Host, Paging, Upkeep};
use mmu::with_ready;
use rv::{Access, Addr, Asid, Caps, Entry, Gpa, Level, Pte, PteFlags};
use std::rc::Rc;

impl<S: Subject> Rig<S> {
    /// Returns whether there are such spells in this life: where tables may be quiet, they may not be written unseen.
    pub(super) fn has_spells(&self) -> bool {
        self.setup.upkeep == Upkeep::Steered && self.setup.seed % 4 == 2
    }

    /// vCPU `n` is nested for a while, and comes back.
    pub(super) fn spell(&mut self, n: usize) {
        self.bus.0.borrow_mut().harts[n].lane = (false, false);
        let log = Rc::clone(&self.bus.0.borrow().harts[n].log);
        let mut views = core::mem::take(&mut self.vcpus[n].views);
        let root = self.vcpus[n].root;
        host!(self, |shadow, _host| shadow.leave_root(&root, &mut views, &log.borrow()));
        if self.setup.mutant != Mutant::KeepsVmid {
            // Its VMID is a new one.
            self.bus.0.borrow_mut().harts[n].nested.clear();
        }
        for _ in 0..2 + self.pick(12) {
            match self.pick(8) {
                0..=2 => self.store_nested(),
                3 => self.fence_nested(n),
                4 => self.switch_nested(n),
                _ => {
                    let gva = self.address();
                    self.access_nested(n, gva);
                }
            }
            self.learn();
        }
        // What the hypervisor does when it comes back.
        views.forget_ids();
        {
            let (mut hardware, count) = (self.bus.0.borrow_mut(), self.vcpus.len() as u64);
            let hart = &mut hardware.harts[n];
            hart.stay += count;
            hart.forget_all();
        }
        host!(self, |shadow, _host| shadow.came_back(&mut log.borrow_mut()));
        let (paging, asid) = (self.vcpus[n].paging, self.vcpus[n].asid);
        let root = self.load(n, None, paging, asid, &mut views);
        let vcpu = &mut self.vcpus[n];
        let place = if root.has_lane { views.arm(Self::key(paging, asid), root.serial) } else { None };
        (vcpu.root, vcpu.views, vcpu.place) = (root, views, place);
        self.spells += 1;
    }

    fn store_nested(&mut self) {
        let (gpa, value, _) = self.edit();
        if self.space.region_of(gpa.pfn()).is_none() {
            return;
        }
        if let Some(hpa) = ready!(self, |shadow, host| shadow.resolve(gpa, Access::Store, host)) {
            self.learn();
            self.bus.0.borrow_mut().store(gpa, hpa, value);
        }
    }

    fn fence_nested(&mut self, n: usize) {
        let page = (self.pick(3) != 0).then(|| self.address());
        let asid = (self.pick(2) == 0).then_some(self.vcpus[n].asid);
        let mut hardware = self.bus.0.borrow_mut();
        let time = hardware.history.fence();
        self.vcpus[n].fences.add(page, asid, time);
        hardware.harts[n].nested.retain(|known| page.is_some_and(|page| known.1 != page.pfn().raw()));
    }

    fn switch_nested(&mut self, n: usize) {
        let root = RAM.add(self.any(&S::ROOTS[..3])).align_down(S::ROOT_FRAMES as u64);
        let paging = match self.pick(6) {
            0 => Paging::Bare,
            _ => Paging::Tables { format: self.format, root },
        };
        // Each has an ASID of its own here: what TLBs mix up by equal ones is the guest's own affair.
        let asid = Asid(if paging == Paging::Bare { 0 } else { root.raw() % 3 } as u16);
        let now = self.bus.0.borrow().history.now();
        let vcpu = &mut self.vcpus[n];
        vcpu.leave(now);
        (vcpu.paging, vcpu.asid) = (paging, asid);
    }

    /// A load by the guest's own tables, or by what the hart remembers of them under this VMID.
    fn access_nested(&mut self, n: usize, gva: Addr<S>) {
        let Paging::Tables { format, root } = self.vcpus[n].paging else { return };
        if !format.fits(gva) {
            return;
        }
        let (id, page) = (root.raw() << 16 | u64::from(self.vcpus[n].asid.0), gva.pfn().raw());
        let known = self.bus.0.borrow().harts[n].nested.iter().find(|known| (known.0, known.1) == (id, page)).copied();
        let Some((gpa, flags)) = known.map(|(.., gpa, flags)| (gpa, flags)).or_else(|| self.walk_nested(n, gva)) else {
            return;
        };
        if self.space.region_of(gpa.pfn()).is_none() {
            return;
        }
        let Some(hpa) = ready!(self, |shadow, host| shadow.resolve(gpa, Access::Load, host)) else { return };
        self.learn();
        let there = self.space.translate(gpa, &self.bus.0.borrow().machine).expect("it was made ready");
        let mut most = flags - PteFlags::G;
        most.set(PteFlags::W, flags.contains(PteFlags::W | PteFlags::D) && there.flags.contains(PteFlags::W));
        let _ = self.check(n, gva.align_down(4096), (most, Level::PAGE), hpa.align_down(4096), false);
        if known.is_none() {
            self.bus.0.borrow_mut().harts[n].nested.push((id, page, gpa.align_down(4096), flags));
        }
        self.tally[0] += 1;
    }

    /// Returns the address that the guest's tables lead to now, and with what flags, if they allow any access.
    fn walk_nested(&self, n: usize, gva: Addr<S>) -> Option<(Addr<Gpa>, PteFlags)> {
        let Paging::Tables { format, root } = self.vcpus[n].paging else { return None };
        let mut table = root.add(format.root_frame(gva) as u64);
        for level in format.levels_down() {
            let word = self.guest_word(table.at(8 * format.index_in_frame(gva, level) as u64))?;
            match Pte(word).decode::<Gpa>(level, Caps::default()) {
                Entry::Table(next) => table = next,
                Entry::Leaf(leaf) if leaf.flags.contains(PteFlags::A) => {
                    let gpa: Addr<Gpa> = leaf.pfn.at(gva.raw() & (level.bytes() - 1));
                    return Some((gpa, leaf.flags));
                }
                _ => return None,
            }
        }
        None
    }
}
