//! The host takes memory away: for good, or for a time, as its pager does. It makes idle what is mapped, lets go what is idle still
//! when it comes by again, and brings it back to another frame when it is asked for.

use super::audit::Away;
use super::hardware::{AllHarts, Mem};
use super::subject::Subject;
use super::{PAGES, RAM, Rig, VM};
use mmu::gstage::{Comes, Sight, SwapSlot};
use mmu::{Ready, Run, Span, Stale, Use};
use rv::{Gpa, Level, Pfn, PhysMem};
use std::collections::BTreeSet;

/// The word in all of a frame that was given back: a leaf to memory that no guest is to see. A walk that still reads
/// the frame as a table is found out.
const GARBAGE: u64 = 0x10 << 10 | 0xcf;

impl<S: Subject> Rig<S> {
    /// The host takes pages away.
    pub(super) fn unmap(&mut self) {
        let start = 16 + self.pick(480) + 512 * self.pick(3);
        let pages = if self.pick(4) == 0 { 500 } else { 1 + self.pick(40) };
        let end = S::ROOTS.into_iter().find(|root| *root > start).expect("the last page is a root").min(start + pages);
        if Self::is_root(start) || end <= start {
            return;
        }
        // Those that were out of date before are another matter.
        let _ = self.space.take_forgone();
        let mut at = start;
        while at < end {
            let spans = [Span { start: RAM.add(at), pages: end - at }];
            let returned =
                host!(self, |shadow, host| mmu::Edits { shadow: Some(shadow), nested: None, collapsed: None, host }
                    .give_back(&spans));
            assert_eq!(returned.kept, 0, "frames");
            at += returned.passed;
        }
        self.learn();
        let forgone: BTreeSet<SwapSlot> = self.space.take_forgone().into_iter().collect();
        let lost = self.away.split_off(&RAM.add(start));
        self.away.extend(
            lost.iter().filter(|(gfn, _)| gfn.raw() >= RAM.raw() + end).map(|(gfn, away)| (*gfn, away.clone())),
        );
        let lost: BTreeSet<SwapSlot> =
            lost.into_iter().filter(|(gfn, _)| gfn.raw() < RAM.raw() + end).map(|(_, away)| away.slot).collect();
        // Of pages that were in memory, the device had copies, unless they have been written to since.
        let range = RAM.add(start)..RAM.add(end);
        let copies = self.copies.range(range.clone()).map(|(_, copy)| copy.slot);
        let most: BTreeSet<SwapSlot> = lost.iter().copied().chain(copies).collect();
        self.copies.retain(|page, _| !range.contains(page));
        assert!(lost.is_subset(&forgone) && forgone.is_subset(&most), "slots that are forgone");
        let gone = BTreeSet::from(S::TABLES).into_iter().filter(|t| (start..end).contains(t));
        for at in gone.flat_map(|t| (0..512).map(move |i| RAM.add(t).at(8 * i))) {
            let present = self.guest_word(at).expect("RAM");
            let mut hardware = self.bus.0.borrow_mut();
            let last = hardware.history.since(at, u64::MAX - 1).first().map_or(present, |(_, value)| *value);
            if last != present {
                hardware.history.record(at, last, present);
            }
        }
    }

    /// The hand of the clock comes by.
    pub(super) fn sweep(&mut self) {
        let mut at = match self.pick(3) {
            0 => RAM.add(self.any(&S::TABLES)),
            1 => RAM.add(self.any(&S::ROOTS)),
            _ => RAM.add(self.pick(PAGES)),
        };
        let end = RAM.add(PAGES).min(at.add(1 + self.pick(40)));
        let budget = if self.pick(4) == 0 { 1 + self.pick(30) as u32 } else { self.budget };
        let mut idle = Vec::new();
        host!(self, (&mut Ready::Nothing, budget), |shadow, host| {
            let (mut stale, mut edits) =
                (Stale::none(), mmu::Edits { shadow: Some(shadow), nested: None, collapsed: None, host });
            while at < end {
                let (sight, next) = edits.host.space.look(at, edits.host.mem);
                match sight {
                    Sight::Nothing => {}
                    // If it cannot be now, it can be another time.
                    Sight::Mapped(level) => match edits.rest(at, level) {
                        Some(owed) => stale = stale.join(owed),
                        None => self.postponed += 1,
                    },
                    Sight::Idle(level) => idle.push((at, level)),
                }
                at = next;
            }
            edits.settle(stale);
        });
        self.learn();
        for (page, level) in idle {
            if level == Level::PAGE {
                self.take_out(page);
            } else if self.pick(3) == 0 {
                let table = self.frames.take_ahead(0).expect("frames");
                self.space.split_idle(page, table, &self.frames, &mut Mem(&self.bus));
                // Some of them go at once.
                for _ in 0..self.pick(4) {
                    self.take_out(page.align_down(level.pages()).add(self.pick(level.pages())));
                }
            }
        }
    }

    fn take_out(&mut self, page: Pfn<Gpa>) {
        let mut mem = Mem(&self.bus);
        let shadow = self.shadow.as_ref().expect("until the end");
        let is_idle = matches!(self.space.look(page, &mem).0, Sight::Idle(_));
        if !is_idle || shadow.is_shadowed(page, &mem) {
            return;
        }
        let frame = self.space.frame_of_idle(page, &mem);
        let words = Box::new(*self.bus.0.borrow().machine.frame(frame));
        let is_zero = self.space.begins_as_zeroes(page) && words.iter().all(|word| *word == 0);
        // If the page was not written to, the device's copy is equal to it.
        if let Some(copy) = self.copies.remove(&page) {
            if let Some(run) = self.space.take_out_clean(page, &mut mem) {
                assert_eq!(copy.words, words, "a write to {page:?} was missed");
                self.away.insert(page, copy);
                return self.let_go(run);
            }
            let _ = self.space.take_forgone();
        }
        let used = |slot: &SwapSlot| self.away.values().chain(self.copies.values()).any(|away| away.slot == *slot);
        let slot = (0..).map(SwapSlot).find(|slot| !used(slot));
        let slot = slot.filter(|_| !is_zero || self.pick(2) == 0);
        let run = self.space.take_out(page, slot, &mut mem);
        if let Some(slot) = slot {
            self.away.insert(page, Away { slot, words });
        }
        self.let_go(run);
    }

    fn let_go(&mut self, run: Run) {
        let first = run.first();
        (0..512).for_each(|n| self.bus.0.borrow_mut().machine.write_u64(first.at(8 * n), GARBAGE));
        self.frames.free(run);
    }

    /// Brings in a page that is needed.
    pub(super) fn bring_in(&mut self, page: Pfn<Gpa>, slot: SwapSlot) {
        let away = self.away.remove(&page).filter(|away| away.slot == slot).expect("it is out there");
        let comes = [Comes::Wanted, Comes::Ahead, Comes::Unwritten][self.pick(3) as usize];
        let frame: Run = self.frames.alloc(VM, Use::Guest, 0).expect("frames");
        for (n, word) in (0..).zip(*away.words.clone()) {
            self.bus.0.borrow_mut().machine.write_u64(frame.first().at(8 * n), word);
        }
        host!(self, |shadow, host| {
            let mut edits = mmu::Edits { shadow: Some(shadow), nested: None, collapsed: None, host };
            edits.bring_in(page, slot, (frame, comes)).expect("it is out");
        });
        if comes != Comes::Unwritten {
            self.copies.insert(page, away);
        }
        self.learn();
    }
}
