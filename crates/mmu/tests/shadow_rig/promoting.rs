//! The host makes one leaf of the G-stage of small ones, while harts run: some portions in a step.

use super::hardware::{AllHarts, Mem};
use super::subject::Subject;
use super::{RAM, Rig};
use mmu::{Promoted, Ready, ResolveError, Unresolved};
use rv::{Access, Gpa, Level, Pfn};

impl<S: Subject> Rig<S> {
    /// Begins, or goes on: some portions.
    pub(super) fn promote(&mut self) {
        if self.promoting.is_none() {
            return self.begin();
        }
        for _ in 0..1 + self.pick(16) {
            self.portion();
        }
    }

    fn portion(&mut self) {
        let Some(mut promotion) = self.promoting.take() else { return };
        let budget = if self.pick(4) == 0 { 1 + self.pick(30) as u32 } else { self.budget };
        let promoted = host!(self, (&mut Ready::Nothing, budget), |shadow, host| mmu::Edits {
            shadow: Some(shadow),
            nested: None,
            collapsed: None,
            host
        }
        .promote(&mut promotion));
        match promoted {
            Promoted::More => self.promoting = Some(promotion),
            Promoted::Whole => {
                let there = self.space.translate(promotion.first().base(), &Mem(&self.bus));
                assert_eq!(there.map(|there| there.level), Some(Level::MEGA), "one leaf maps all");
                self.promoted += 1;
                promotion.discard(&self.frames);
            }
            Promoted::Not => promotion.discard(&self.frames),
        }
        self.learn();
    }

    fn begin(&mut self) {
        let first = RAM.add(512 * self.pick(3));
        let is_small = |at: u64, rig: &Self| {
            let there = rig.space.resident(first.add(at).base(), &Mem(&rig.bus));
            there.is_some_and(|there| there.level == Level::PAGE)
        };
        // All of it is to be there, and its own.
        if (0..512).any(|at| is_small(at, self)) {
            for at in 0..512 {
                self.own(first.add(at));
            }
        }
        let mem = Mem(&self.bus);
        self.promoting = self.space.begin_promotion(first, || self.frames.take_ahead(9), &mem);
    }

    pub(super) fn own(&mut self, page: Pfn<Gpa>) {
        loop {
            let reached = host!(self, (&mut Ready::Never, self.budget), |shadow, host| {
                shadow.resolve(page.base(), Access::Store, host)
            });
            match reached {
                Err(Unresolved::For(ResolveError::Out { page, slot })) => self.bring_in(page, slot),
                // Some more of it is done.
                Err(Unresolved::Later) => {}
                reached => {
                    reached.expect("there are frames");
                    return self.learn();
                }
            }
        }
    }
}
