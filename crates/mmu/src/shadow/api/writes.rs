//! Stores to protected tables, and the life of quiet ones.

use crate::shadow::entries::STIRS;
use crate::shadow::{Host, Shadow, Shadowed};
use rv::{Addr, Fence, Gpa, Hpa, Level, Pfn, PhysMem, Pte};

/// The outcome of a store to a guest table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrote {
    /// The store is done, and the word held this before: the instruction is over.
    Done {
        /// The 8 bytes around the store, before it.
        old: u64,
    },
    /// The store is not done: the frame is no longer protected, and the guest stores itself.
    Retry,
}

impl<S: Shadowed> Shadow<S> {
    /// A store of the guest's to a protected table at `gpa`, which is at `hpa`. `store` is told what the 8 bytes
    /// around it hold and says what they shall hold; `None` if the instruction is none that is emulated.
    pub fn table_write<M: PhysMem, H: Fence<Gpa>>(
        &mut self,
        (gpa, hpa): (Addr<Gpa>, Addr<Hpa>),
        store: Option<&dyn Fn(u64) -> u64>,
        host: &mut Host<'_, M, H>,
    ) -> Wrote {
        let gfn = gpa.pfn();
        let index = &self.cache().tables.index;
        let are_leaves = index.tables_of(gfn, host.mem).all(|id| index.page(id).key.level == Level::PAGE);
        let store = match store {
            Some(store) if !self.rules().policy.lets_go.applies(are_leaves) => store,
            _ => {
                self.cache().unsync(gfn, host.mem);
                return Wrote::Retry;
            }
        };
        let word = hpa.align_down(8);
        let (old, new) = loop {
            let old = host.mem.read_u64(word);
            let new = store(old);
            if host.mem.compare_exchange_u64(word, old, new).is_ok() {
                break (old, new);
            }
        };
        let syncer = &mut self.filler.syncer;
        syncer.cache.tables.counters.table_writes += 1;
        let index = (gpa.page_offset() / 8) as usize;
        let (mut is_flooded, mut next) = (true, syncer.cache.tables.index.first_table(gfn, host.mem));
        while let Some(id) = next {
            next = syncer.page(id).next;
            is_flooded &= syncer.written(id, index, Pte(new), host);
        }
        if is_flooded {
            self.cache().give_up_table(gfn, host);
        }
        self.cache().conclude(host);
        Wrote::Done { old }
    }

    /// Tells the engine that Gnomon itself has written to guest memory: a table there is out of step.
    pub fn host_wrote(&mut self, gfn: Pfn<Gpa>, mem: &mut impl PhysMem) {
        self.cache().wake(gfn, mem);
        self.cache().unsync(gfn, mem);
    }

    /// Sets the time: `now` in any unit, and `interval`, the number of units in some 5 ms. The caller does so before it
    /// makes wide fences.
    pub const fn tell_time(&mut self, now: u64, interval: u64) {
        self.filler.syncer.rate.tell((now, interval), self.filler.syncer.cache.passed.fences());
    }

    /// Returns whether leaves of 2 MiB are in pieces for quiet tables: then [`Shadow::relax`] is to be called after an interval.
    #[must_use]
    pub fn is_strained(&self) -> bool {
        self.filler.syncer.candidates.next_split().is_some()
    }

    /// Ends what is not worth while any more, as far as the budget goes: where wide fences are few, leaves of 2 MiB get whole again,
    /// and the tables there are quiet no more.
    pub fn relax<M: PhysMem, H: Fence<Gpa>>(&mut self, now: u64, interval: u64, host: &mut Host<'_, M, H>) {
        self.tell_time(now, interval);
        let syncer = &mut self.filler.syncer;
        syncer.cache.tables.unrest.stirs = STIRS;
        while let Some(chunk) = syncer.candidates.next_split().filter(|_| !syncer.rate.is_high()) {
            if host.budget.is_spent() || !syncer.make_whole(chunk, host) {
                syncer.cache.tables.counters.postponed += 1;
                break;
            }
            syncer.candidates.is_whole();
            syncer.cache.tables.counters.rejoined += 1;
        }
        self.cache().conclude(host);
    }
}
