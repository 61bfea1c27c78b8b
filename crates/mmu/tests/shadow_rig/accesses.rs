//! The guest's accesses, with the faults that they take.

use super::hardware::{AllHarts, Event, Mem, Refusal};
use super::subject::Subject;
use super::{AMPLE, Mutant, RAM, Rig, WINDOW_TABLES};
use mmu::shadow::{Answer, Beside, Forget, Host, Root, Wrote};
use mmu::{ResolveError, with_ready};
use rv::{Access, Addr, Gpa, Mode, Pfn, Request};

impl<S: Subject> Rig<S> {
    pub(super) fn request(&self) -> Request {
        let access = [Access::Load, Access::Load, Access::Store, Access::Store, Access::Fetch][self.pick(5) as usize];
        let mode = if self.pick(3) == 0 { Mode::User } else { Mode::Supervisor };
        S::request(Request { access, mode, sum: self.pick(2) == 0, mxr: self.pick(4) == 0, hs_mxr: false })
    }

    /// An access of the guest's, with all that it takes; `store` is what it writes, if it does. Whether it came
    /// through.
    pub(super) fn access(&mut self, n: usize, gva: Addr<S>, request: &Request, store: Option<u64>) -> bool {
        let attempts = if self.budget == AMPLE { 8 } else { 8 + 20 * AMPLE / self.budget };
        for _ in 0..attempts {
            let found = self.bus.0.borrow_mut().translate(n, gva, request);
            if found == Err(Refusal::PageFault) && self.vcpus[n].root.steers {
                assert!(
                    self.may_fault(n, gva, request),
                    "STEERED: {gva} {request:?} faults by no table of the guest's"
                );
                self.tally[1] += 1;
                return false;
            }
            if let Ok(found) = found {
                let hpa = found.hpa(gva);
                let gpa = self.check(n, gva, (found.leaf.flags, found.level), hpa, true);
                if let Some(value) = store {
                    self.bus.0.borrow_mut().store(gpa, hpa, value);
                }
                self.tally[0] += 1;
                return true;
            }
            let root = self.vcpus[n].root;
            let meddled = self.bus.0.borrow().meddling.is_some();
            let was_there = self.bus.0.borrow().is_allowed(n, gva, request);
            let outcome = match self.beside((&root, n), gva, request) {
                Some(answer) => answer,
                None => ready!(self, |shadow, host| shadow.fault(&root, gva, request, host)),
            };
            self.learn();
            match outcome {
                Answer::Filled { forget, known } => {
                    assert!(!known || was_there || meddled, "KNOWN: {gva} {request:?} was denied by the tables");
                    let hardware = &mut self.bus.0.borrow_mut();
                    match forget {
                        _ if self.setup.mutant == Mutant::KeepsOwn => {}
                        Forget::Nothing => {}
                        Forget::Page => hardware.forget_page(n, gva),
                        Forget::Root => hardware.harts[n].forget_root(&root),
                    }
                    // What was there already denies nothing, so this hart remembers a pointer to poison.
                    let keeps = matches!(self.setup.mutant, Mutant::KeepsOwn | Mutant::KeepsPoison);
                    if known && found == Err(Refusal::AccessFault) && !keeps {
                        hardware.harts[n].forget_root(&root);
                    }
                }
                Answer::Retry => {}
                Answer::Inject(trap) => {
                    let happened = meddled && self.bus.0.borrow().meddling.is_none();
                    let expected = self.expected(n, gva, request);
                    assert!(
                        happened || expected == Err(trap.exception.code()),
                        "{gva} {request:?}: {trap:?} not {expected:?}"
                    );
                    assert_eq!(S::address_of(&trap, gva), gva.raw());
                    self.tally[1] += 1;
                    return false;
                }
                Answer::Device { gpa } => {
                    assert!(self.space.region_of(gpa.pfn()).is_none(), "{gpa} is RAM");
                    self.tally[2] += 1;
                    return false;
                }
                Answer::TableWrite { gpa, hpa } => {
                    assert_eq!(request.access, Access::Store);
                    let write = |old| store.unwrap_or(old);
                    // Some instructions are not emulated.
                    let store = if self.pick(8) == 0 { None } else { Some(&write as &dyn Fn(u64) -> u64) };
                    let wrote = host!(self, |shadow, host| shadow.table_write((gpa, hpa), store, host));
                    self.learn();
                    if let Wrote::Done { .. } = wrote {
                        self.tally[3] += 1;
                        return true;
                    }
                }
            }
        }
        panic!("PROGRESS: {gva} {request:?} faults for ever");
    }

    /// A fault that shares the lock, in two of three lives, if it can be answered so.
    fn beside(&mut self, root: (&Root<S>, usize), gva: Addr<S>, request: &Request) -> Option<Answer> {
        if self.setup.seed.is_multiple_of(3) {
            return None;
        }
        let Self { bus, shadow, space, frames, .. } = self;
        let (shadow, mut mem) = (shadow.as_ref().expect("until the end"), Mem(bus));
        let done = with_ready(frames, &mut mem, |ready, mem| {
            shadow.fault_beside(root, gva, request, space, Some((frames, ready)), mem)
        });
        match done {
            Ok(Beside::Answered(answer)) => {
                self.answered_beside += 1;
                Some(answer)
            }
            Ok(Beside::Elsewhere | Beside::NotNow) => None,
            done => panic!("{done:?}"),
        }
    }

    /// Adds the engine's changes of guest tables, and the lane's fences meanwhile, to the history.
    pub(super) fn learn(&mut self) {
        let mut hardware = self.bus.0.borrow_mut();
        for event in core::mem::take(&mut hardware.events) {
            match event {
                Event::Exchanged(hpa, old, new) => {
                    let tables = (0..WINDOW_TABLES).chain(Self::root_frames()).chain(S::TABLES).map(|t| RAM.add(t));
                    let is_at = |gfn: &Pfn<Gpa>| {
                        self.space.resident(gfn.base(), &hardware.machine).is_some_and(|t| t.hpa.pfn() == hpa.pfn())
                    };
                    if let Some(gfn) = tables.into_iter().find(is_at) {
                        hardware.history.record(gfn.at(hpa.page_offset()), old, new);
                    }
                }
                Event::Stored(gpa, old, new) => hardware.history.record(gpa, old, new),
                Event::Fenced(n, gva, by_asid) => {
                    let asid = by_asid.then_some(self.vcpus[n].asid);
                    self.vcpus[n].fences.add(Some(gva), asid, hardware.history.fence());
                }
            }
        }
    }
}
