//! Roots, and the harts that have them: what the guest writes to `satp`, and what the hypervisor does about it.

use super::hardware::{AllHarts, Hardware, Hart, Mem};
use super::lane;
use super::subject::Subject;
use super::{Mutant, RAM, Rig};
use ::lane::{Lane, LaneRoot};
use mmu::shadow::{Host, Paging, Root, Views};
use mmu::{ResolveError, with_ready};
use rv::csr::atp;
use rv::{Addr, Asid, Pfn};
use std::rc::Rc;

impl<S: Subject> Rig<S> {
    pub(super) fn load(
        &mut self,
        n: usize,
        old: Option<Root<S>>,
        paging: Paging,
        asid: Asid,
        views: &mut Views<S>,
    ) -> Root<S> {
        let log = Rc::clone(&self.bus.0.borrow().harts[n].log);
        let mut old = old;
        // As the hypervisor does, in an exit that is brief if it can be.
        let is_up_to_date =
            host!(self, |shadow, _host| shadow.attach_up_to_date(&mut old, (paging, asid), views, &log.borrow()));
        let fence = loop {
            if is_up_to_date {
                break false;
            }
            let attached =
                ready!(self, |shadow, host| shadow.attach(&mut old, (paging, asid), views, &log.borrow(), host));
            if let Some(loaded) = attached {
                break loaded.fence;
            }
        };
        let mut hardware = self.bus.0.borrow_mut();
        let root = old.expect("it is loaded");
        let hart = &mut hardware.harts[n];
        if fence && self.setup.mutant != Mutant::KeepsOwn {
            hart.forget_root(&root);
        }
        self.put_on(hart, &root);
        hart.lane = (root.has_lane, views.named(&root).is_some());
        root
    }

    /// Makes a root a hart's, as the hypervisor does.
    fn put_on(&self, hart: &mut Hart<S>, root: &Root<S>) {
        if hart.globals.go_by(root.globals.then_some(root.format.mode)) && self.setup.mutant != Mutant::KeepsGlobals {
            hart.forget_all();
        }
        hart.load(root);
    }

    /// Two vCPUs change harts.
    pub(super) fn change_harts(&mut self, n: usize) {
        let other = self.pick(self.vcpus.len() as u64) as usize;
        let (mut hardware, count) = (self.bus.0.borrow_mut(), self.vcpus.len() as u64);
        if let Ok([one, two]) = hardware.harts.get_disjoint_mut([n, other]) {
            one.swap(two);
        }
        // Alone, one comes back from elsewhere.
        let both = if other == n { vec![n] } else { vec![n, other] };
        for &n in &both {
            let vcpu = &mut self.vcpus[n];
            vcpu.views.forget_ids();
            let hart = &mut hardware.harts[n];
            hart.stay += count;
            hart.nested.clear();
            if hart.globals.come((2, n as u32), false) && self.setup.mutant != Mutant::KeepsGlobals {
                hart.forget_all();
            }
        }
        for n in both {
            self.put_on(&mut hardware.harts[n], &self.vcpus[n].root);
            let vcpu = &mut self.vcpus[n];
            let key = Self::key(vcpu.paging, vcpu.asid);
            vcpu.place = if vcpu.root.has_lane { vcpu.views.arm(key, vcpu.root.serial) } else { None };
        }
    }

    /// Returns the value that the guest writes to `satp` for that.
    pub(super) fn key(paging: Paging, asid: Asid) -> u64 {
        match paging {
            Paging::Tables { format, root } => atp::satp(format, asid, root),
            Paging::Bare => 0,
        }
    }

    /// The guest writes `satp`, and the lane changes to that root: one of those that it may.
    fn change_in_lane(&mut self, n: usize) -> bool {
        let mut hardware = self.bus.0.borrow_mut();
        let (nth, now) = (hardware.pick(64) as usize, hardware.history.now());
        let Hardware { harts, machine, .. } = &mut *hardware;
        let hart = &mut harts[n];
        let (vcpu, token) = (&mut self.vcpus[n], hart.log.borrow().token());
        let Some(present) = vcpu.place else { return false };
        let roots = vcpu.views.lane_roots();
        let places = roots.len();
        let sync = hart.sync;
        let rests = |root: &LaneRoot| {
            sync.is_some_and(|inputs| lane::rests(machine, &inputs, Addr::new(root.root() - Lane::POINTER_FLAGS)))
        };
        let may_load = |(place, root): &(usize, &LaneRoot)| {
            let written = atp::Satp::decode(root.key());
            LaneRoot::place(written.asid, written.ppn, places) == place - place % LaneRoot::PAIR
                && (root.head() == token || rests(root) || self.setup.mutant == Mutant::ChangesBlindly)
        };
        let those: Vec<_> = roots.iter().enumerate().filter(may_load).map(|(at, root)| (at, root.key())).collect();
        if those.is_empty() {
            return false;
        }
        let (place, key) = those[nth % those.len()];
        self.changed_at_rest += u64::from(roots[place].head() != token);
        roots[present].set_head(token);
        let (root, written) = vcpu.views.follow(place);
        assert_eq!((written, Self::key(root.paging, root.asid)), (key, key));
        assert!(!hart.globals.go_by(root.globals.then_some(root.format.mode)), "the lane changes formats");
        hart.load(&root);
        vcpu.leave(now);
        hart.lane = (true, vcpu.views.named(&root).is_some());
        (vcpu.paging, vcpu.asid, vcpu.root, vcpu.place) = (root.paging, root.asid, root, Some(place));
        self.changed_in_lane += 1;
        true
    }

    /// The guest writes `satp`.
    pub(super) fn switch(&mut self, n: usize) {
        if self.pick(3) != 0 && self.change_in_lane(n) {
            return;
        }
        let paging = match self.pick(12) {
            0 => Paging::Bare,
            1 => Paging::Tables { format: self.format, root: Pfn::new(self.any(&[0x10, 0x7_ffff, 0x8_0600])) },
            _ => Paging::Tables { format: self.format, root: RAM.add(self.any(&S::ROOTS[..3])) },
        };
        // Mostly, a root has an ASID of its own.
        let own = match paging {
            Paging::Tables { root, .. } => root.raw() % 3,
            Paging::Bare => 0,
        };
        let asid = Asid(if self.pick(4) == 0 { self.pick(3) } else { own } as u16);
        let mut views = core::mem::take(&mut self.vcpus[n].views);
        // Whatever meddles from here on fences for the new root or not at all.
        self.bus.0.borrow_mut().harts[n].lane = (false, false);
        let root = self.load(n, Some(self.vcpus[n].root), paging, asid, &mut views);
        // The lowest bits of a root's number are not there where it has several frames (norm:hgatp-ppn_op).
        let paging = match paging {
            Paging::Tables { format, root } => Paging::Tables { format, root: root.align_down(S::ROOT_FRAMES as u64) },
            Paging::Bare => paging,
        };
        let now = self.bus.0.borrow().history.now();
        let vcpu = &mut self.vcpus[n];
        vcpu.leave(now);
        let place = if root.has_lane { views.arm(Self::key(paging, asid), root.serial) } else { None };
        (vcpu.paging, vcpu.asid, vcpu.root, vcpu.views, vcpu.place) = (paging, asid, root, views, place);
    }
}
