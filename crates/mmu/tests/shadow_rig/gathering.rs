//! The guest has tables of 512 user pages, in order and not; and the host coalesces what it can, and moves pages for that.

use super::hardware::{AllHarts, Mem};
use super::subject::Subject;
use super::{INDICES, PAGES, RAM, Rig};
use mmu::Ready;
use mmu::shadow::{GuestFence, Paging};
use rv::{Access, Addr, Gpa, Level, Pfn, PhysMem, Request};

/// The 512 pages that a table leads to.
#[derive(Clone, Copy)]
enum Order {
    /// Those of 2 MiB.
    Theirs,
    /// Others, one after another.
    Turned,
    /// Others, from here and there.
    Scattered,
}

impl<S: Subject> Rig<S> {
    /// One of the two.
    pub(super) fn lay_out_or_gather(&mut self, n: usize) {
        match self.pick(3) {
            0 => self.lay_out(n),
            _ => self.gather(n),
        }
    }

    /// vCPU `n` fills a table with leaves of user pages, fences, and goes to some of them.
    fn lay_out(&mut self, n: usize) {
        let Paging::Tables { format, root } = self.vcpus[n].paging else { return };
        if !Self::is_root(root.raw().wrapping_sub(RAM.raw())) {
            return;
        }
        let any_of = |level: usize| {
            let tables: Vec<_> = S::TABLES.into_iter().skip(level).step_by(usize::from(format.levels) - 1).collect();
            RAM.add(self.any(&tables))
        };
        let table = any_of(0);
        // The way there.
        let (mut above, mut gva, mut way) = (root, 0, Vec::new());
        for level in format.levels_down().filter(|level| *level > Level::PAGE) {
            let index = self.any(&[0, 1, 5]);
            let next = if level == Level::MEGA { table } else { any_of(usize::from(level.number()) - 1) };
            way.push((above.at(8 * index), next.raw() << 10 | 1));
            gva |= index << level.shift();
            above = next;
        }
        let order = [Order::Theirs, Order::Turned, Order::Scattered, Order::Scattered][self.pick(4) as usize];
        // A table that is shadowed does not move.
        let plain: Vec<u64> = (0..PAGES).filter(|page| !Self::is_table(*page)).collect();
        let (first, many) = (self.pick(PAGES), plain.len() as u64);
        let step = if many.is_multiple_of(7) { 11 } else { 7 };
        let page = |at: u64| match order {
            Order::Theirs => first / 512 * 512 + at,
            Order::Turned => plain[((first + at) % many) as usize],
            Order::Scattered => plain[((first + step * at) % many) as usize],
        };
        let flags = S::LEAF | 0x10 | self.any(&[0x4, 0x4, 0x4, 0]);
        let value = |at: u64| (RAM.raw() + page(at)) << 10 | flags;
        for at in 0..512 {
            let page = Pfn::new(value(at) >> 10);
            self.own(page);
            if !Self::is_table(page.raw() - RAM.raw()) {
                let there = self.space.translate(page.at(4088), &self.bus.0.borrow().machine).expect("its own");
                self.bus.0.borrow_mut().machine.write_u64(there.hpa, page.raw());
            }
        }
        let request = S::request(Request { sum: true, ..Request::supervisor(Access::Store) });
        // Once it is there for the guest it stays.
        for (at, value) in way.into_iter().chain([(table.base(), value(0))]) {
            if !self.access(n, self.through(n, at), &request, Some(value)) {
                return;
            }
        }
        self.learn();
        for at in 1..512 {
            let gpa = table.at(8 * at);
            let there = self.space.translate(gpa, &self.bus.0.borrow().machine).expect("it was written a moment ago");
            self.bus.0.borrow_mut().store(gpa, there.hpa, value(at));
        }
        self.learn();
        self.fence_all(n);
        for index in INDICES.into_iter().chain([self.pick(512)]) {
            let gva = Addr::new(gva | index << 12);
            self.recent.borrow_mut().pop();
            self.recent.borrow_mut().push(gva);
            let request = S::request(Request { sum: true, ..Request::supervisor(Access::Load) });
            self.access(n, gva, &request, None);
        }
    }

    /// Returns whether a page is, or may be, one of the guest's tables.
    fn is_table(page: u64) -> bool {
        page < 16 || Self::is_root(page) || S::TABLES.contains(&page)
    }

    fn fence_all(&mut self, n: usize) {
        let time = self.bus.0.borrow_mut().history.fence();
        let log = std::rc::Rc::clone(&self.bus.0.borrow().harts[n].log);
        let vcpu = &mut self.vcpus[n];
        let fence = GuestFence { range: None, asid: None };
        host!(self, |shadow, host| shadow.fence(&fence, vcpu.root, &mut vcpu.views, &mut log.borrow_mut(), host));
        vcpu.fences.add(None, None, time);
        self.bus.0.borrow_mut().harts[n].forget_all();
    }

    /// Some portions of looking, and moving; nothing that the guest has is different after it.
    fn gather(&mut self, n: usize) {
        let before = self.contents();
        for portion in 0..1 + self.pick(40) {
            let root = self.vcpus[n].root;
            let may_take = self.pick(16) != 0;
            let budget = if self.pick(4) == 0 { 1 + self.pick(400) as u32 } else { self.budget };
            let frames = &self.frames;
            let take = || if may_take { frames.take_ahead(9) } else { None };
            let settled = u64::from(self.pick(16) == 0);
            host!(self, (&mut Ready::Nothing, budget), |shadow, host| shadow.gather(
                &root,
                (portion, settled),
                take,
                host
            ));
            self.learn();
        }
        assert!(before == self.contents(), "MOVED: a page holds something else");
        if self.pick(8) == 0 {
            let shadow = self.shadow.as_mut().expect("until the end");
            shadow.stop_moving(&self.frames);
        }
    }

    /// Returns the pages that are none of the guest's tables, with some words of each.
    fn contents(&self) -> Vec<(u64, [u64; 3])> {
        let machine = &self.bus.0.borrow().machine;
        let word = |page: Pfn<Gpa>, at: u64| {
            self.space.resident(page.at(at), machine).map_or(0, |there| machine.read_u64(there.hpa))
        };
        let pages = (0..PAGES).filter(|page| !Self::is_table(*page));
        pages.map(|page| (page, [0, 8, 4088].map(|at| word(RAM.add(page), at)))).collect()
    }
}
