//! Fences that are owed: told to mappers, done, and the frames freed.

use super::{Mutant, Rig};
use mmu::{Run, Stale};
use oracle::FenceModel;
use rv::Gpa;

impl Rig {
    pub(super) fn owe(&mut self, stale: Stale<Gpa>) {
        let owed = std::mem::replace(&mut self.owed, Stale::none());
        self.owed = owed.join(stale);
    }

    pub(super) fn flush(&mut self) {
        let owed = std::mem::replace(&mut self.owed, Stale::none());
        self.settle(owed);
        let known = self.map();
        self.check_ownership(&known);
        self.keeper.check_and_keep(known.into_keys().take(8), &self.space, &self.world);
    }

    pub(super) fn settle(&mut self, owed: Stale<Gpa>) {
        let free = |model: &mut FenceModel, runs: &[Run]| {
            runs.iter().for_each(|run| (0..run.pages()).for_each(|i| model.free(run.first().add(i))));
        };
        if self.world.mutant == Mutant::FreesBeforeTheFence {
            free(&mut self.world.model, owed.retired());
        }
        let retired = self.space.tell(owed, &mut self.world).fence(&mut self.world);
        free(&mut self.world.model, retired.runs());
        if self.world.mutant != Mutant::Leaks {
            retired.release(&self.frames);
        }
    }
}
