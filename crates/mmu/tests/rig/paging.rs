//! Memory that goes for a time and comes back: what the engine says of idle pages and of pages that are out, beside a flat model.
//! The host does here what its pager does: it lets the page go only when all harts have forgotten it, keeps the contents, and brings
//! them back to whatever frame there is.

use super::world::{Blind, Mutant};
use super::{Map, Rig, VM};
use mmu::gstage::{Comes, Sight, SwapSlot};
use mmu::{Object, Run, Stale, Use};
use oracle::Mapping;
use rv::{Access, FenceScope, Gpa, Level, Pfn, PhysMem};
use std::collections::{BTreeMap, BTreeSet};

/// The software bit of leaves whose frames are the VM's.
const OWNED: u64 = 1 << 8;

/// A page of memory.
type Words = [u64; 512];

/// The state that should be kept of pages that hardware cannot use.
#[derive(Default)]
pub struct Paged {
    /// By guest page: where it still is.
    pub idle: Map,
    /// By guest page: where it is on the device, and the flags that its leaf had.
    pub out: BTreeMap<u64, (SwapSlot, u64)>,
    device: BTreeMap<SwapSlot, Box<Words>>,
    /// Frames that the device has not written yet. They are the VM's.
    leaving: BTreeMap<SwapSlot, Run>,
}

impl Paged {
    /// Frames that are the VM's and that no table of its leads to.
    pub fn frames_of_device(&self) -> u64 {
        self.leaving.len() as u64
    }

    fn unused(&self) -> SwapSlot {
        let is_used = |slot: &SwapSlot| self.device.contains_key(slot) || self.leaving.contains_key(slot);
        (0..).map(SwapSlot).find(|slot| !is_used(slot)).expect("there are more slots than pages")
    }
}

/// One of several.
fn nth<T>(mut all: impl ExactSizeIterator<Item = T>, n: u16) -> Option<T> {
    let count = all.len();
    if count == 0 { None } else { all.nth(usize::from(n) % count) }
}

impl Rig {
    /// The pages that the VM has in some way.
    fn known(&self) -> Vec<u64> {
        let all: BTreeSet<u64> = self
            .map()
            .into_keys()
            .chain(self.paged.idle.keys().copied())
            .chain(self.paged.out.keys().copied())
            .collect();
        all.into_iter().collect()
    }

    /// The hand of the clock comes by some entries, and makes idle what is mapped.
    pub(super) fn sweep(&mut self, from: u16, entries: u8) {
        let Some(mut page) = nth(self.known().into_iter(), from) else { return };
        for _ in 0..entries {
            let before = self.map();
            let (sight, next) = self.space.look(Pfn::new(page), &self.world);
            self.check_sight(page, sight, next.raw(), &before);
            match sight {
                Sight::Mapped(level) => self.rest(page, level, before),
                // Whether it is spared or not, it is where it was.
                Sight::Idle(_) => _ = self.space.spare(Pfn::new(page), &mut self.world),
                Sight::Nothing => assert!(!self.space.spare(Pfn::new(page), &mut self.world), "nothing is idle"),
            }
            page = next.raw();
        }
    }

    fn check_sight(&self, page: u64, sight: Sight, next: u64, map: &Map) {
        let level = |mapping: &Mapping| if mapping.level == 0 { Level::PAGE } else { Level::MEGA };
        let end = |level: Level| (page & !(level.pages() - 1)) + level.pages();
        let Paged { idle, out, .. } = &self.paged;
        let (expected, behind) = match (map.get(&page), idle.get(&page)) {
            (Some(mapped), None) if mapped.flags & OWNED != 0 => {
                (Sight::Mapped(level(mapped)), Some(end(level(mapped))))
            }
            (Some(image), None) => (Sight::Nothing, Some(end(level(image)))),
            (None, Some(there)) => (Sight::Idle(level(there)), Some(end(level(there)))),
            (None, None) => (Sight::Nothing, None),
            (Some(_), Some(_)) => panic!("{page:#x} is idle, and harts reach it"),
        };
        assert_eq!(sight, if self.space.is_wired() { Sight::Nothing } else { expected }, "what is seen at {page:#x}");
        assert!(behind.is_none_or(|behind| behind == next), "the hand goes from {page:#x} to {next:#x}");
        let passed = |page: &u64| map.contains_key(page) || idle.contains_key(page) || out.contains_key(page);
        assert!(
            next > page && (behind.is_some() || !(page + 1..next).any(|page| passed(&page))),
            "the hand passes a page"
        );
        let gpa = Pfn::<Gpa>::new(page);
        let there = map.get(&page).or(idle.get(&page)).map(|there| there.page);
        let resident = self.space.resident(gpa.base(), &self.world).map(|there| there.hpa.pfn().raw());
        assert_eq!(resident, there, "where {page:#x} is");
        assert_eq!(
            self.space.is_out(gpa, &self.world),
            out.get(&page).map(|(slot, _)| *slot),
            "where {page:#x} is out"
        );
    }

    fn rest(&mut self, page: u64, level: Level, mut before: Map) {
        let (owned, usage) = (self.owned(), self.frames.usage(VM));
        let stale = self.space.rest(Pfn::new(page), &mut self.world);
        let first = page & !(level.pages() - 1);
        let pages = first..first + level.pages();
        let scope = FenceScope::Range { start: Pfn::<Gpa>::new(first).base(), bytes: level.bytes() };
        assert!(stale.scope() == Some(scope) && stale.retired().is_empty(), "what is idle is to be fenced: {stale:?}");
        for page in pages {
            let rested = before.remove(&page).expect("it was mapped");
            self.paged.idle.insert(page, rested);
        }
        assert_eq!(before, self.map(), "exactly what is made idle is gone");
        assert_eq!((owned, usage), (self.owned(), self.frames.usage(VM)), "what is idle is the VM's");
        if self.world.mutant == Mutant::RestsWithoutFence {
            return;
        }
        self.owe(stale);
        self.check_ownership(&before);
    }

    /// Checks that idle pages that are mapped again are mapped as they were, and counts them as idle no more.
    pub(super) fn woken(&mut self, map: &Map) {
        self.paged.idle.retain(|page, was| {
            let Some(now) = map.get(page) else { return true };
            assert_eq!((now.page, now.flags), (was.page, was.flags), "{page:#x} is mapped again as it was");
            false
        });
    }

    /// Splits idle 2 MiB around the page into idle pages. Returns whether they are pages now.
    fn split(&mut self, page: u64) -> bool {
        if self.paged.idle[&page].level == 0 {
            return true;
        }
        let (map, usage) = (self.map(), self.frames.usage(VM));
        let Some(table) = self.frames.take_ahead(0) else { return false };
        self.space.split_idle(Pfn::new(page), table, &self.frames, &mut self.world);
        assert_eq!(map, self.map(), "harts see nothing of a split of idle pages");
        let pages = page & !511..(page | 511) + 1;
        for page in pages {
            let split = self.paged.idle.get_mut(&page).expect("2 MiB are idle as one");
            split.level = 0;
            let frame =
                self.space.resident(Pfn::<Gpa>::new(page).base(), &self.world).map(|there| there.hpa.pfn().raw());
            assert_eq!(frame, Some(split.page), "a split of idle pages loses none");
        }
        let now = self.frames.usage(VM);
        assert_eq!((usage.guest, usage.table + 1), (now.guest, now.table), "the VM pays for the table");
        self.check_ownership(&map);
        true
    }

    /// An idle page is split.
    pub(super) fn split_one(&mut self, n: u16) {
        if let Some(page) = nth(self.paged.idle.keys().copied(), n) {
            _ = self.split(page);
        }
    }

    /// An idle page goes: to the device, or to nowhere if that is the same to the guest.
    pub(super) fn take_out(&mut self, n: u16, prefers_device: bool) {
        let Some(page) = nth(self.paged.idle.keys().copied(), n) else { return };
        if !self.split(page) {
            return;
        }
        if self.world.mutant != Mutant::TakesBeforeTheFence {
            self.flush();
        }
        let gpa = Pfn::new(page);
        let was = self.paged.idle[&page];
        let words = *self.world.model.machine.frame(Pfn::new(was.page));
        assert_eq!([words[0], words[511]], self.contents(page), "contents of {page:#x}, which goes");
        assert_eq!(self.space.frame_of_idle(gpa, &self.world).raw(), was.page);
        let is_zero = words.iter().all(|word| *word == 0) && self.is_anonymous(page);
        assert_eq!(self.space.begins_as_zeroes(gpa), self.is_anonymous(page));
        let to = (prefers_device || !is_zero).then(|| self.paged.unused());
        let (map, owned) = (self.map(), self.owned());
        let run = self.space.take_out(gpa, to, &mut self.world);
        assert_eq!((run.first().raw(), run.pages()), (was.page, 1));
        assert_eq!((map, owned), (self.map(), self.owned()), "harts see nothing of a page that goes");
        self.paged.idle.remove(&page);
        match to {
            Some(slot) => {
                self.paged.out.insert(page, (slot, was.flags));
                self.paged.device.insert(slot, Box::new(words));
                self.paged.leaving.insert(slot, run);
            }
            None => self.release(run),
        }
        self.check_ownership(&self.map());
    }

    fn is_anonymous(&self, page: u64) -> bool {
        self.space.region_of(Pfn::new(page)).is_some_and(|region| region.object == Object::Anonymous)
    }

    fn release(&mut self, run: Run) {
        (0..run.pages()).for_each(|i| self.world.model.free(run.first().add(i)));
        self.frames.free(run);
    }

    /// The device has written all that it was to write.
    pub(super) fn written_out(&mut self) {
        for (_, run) in std::mem::take(&mut self.paged.leaving) {
            self.release(run);
        }
        self.check_ownership(&self.map());
    }

    /// The guest comes back to a page that is idle or out.
    pub(super) fn come_back(&mut self, n: u16, access: Access) {
        let away: Vec<u64> = self.paged.idle.keys().chain(self.paged.out.keys()).copied().collect();
        if let Some(page) = nth(away.into_iter(), n) {
            self.touch(page, access);
        }
    }

    /// Brings a page in that is out: to the frame that the device has not written yet, or to another one. Whether there was one.
    pub(super) fn bring_in(&mut self, page: u64) -> bool {
        let (slot, flags) = self.paged.out[&page];
        let (mut expected, usage) = (self.map(), self.frames.usage(VM));
        let (frame, is_new) = match self.paged.leaving.remove(&slot) {
            Some(frame) => (frame, 0),
            None => match self.frames.alloc(VM, Use::Guest, 0) {
                Ok(frame) => (frame, 1),
                Err(_) => return false,
            },
        };
        let words = self.paged.device.remove(&slot).expect("the device has what is out");
        if is_new == 1 && self.world.mutant != Mutant::BringsNothing {
            (0..).zip(*words).for_each(|(n, word)| self.world.model.machine.write_u64(frame.first().at(8 * n), word));
        }
        // What is not out there does not come from there.
        let elsewhere = SwapSlot(slot.0 + 1);
        let frame = self
            .space
            .bring_in(Pfn::new(page), elsewhere, (frame, Comes::Unwritten), &mut self.world)
            .expect_err("it is elsewhere");
        let first = frame.first().raw();
        let stale =
            self.space.bring_in(Pfn::new(page), slot, (frame, Comes::Unwritten), &mut self.world).expect("it is out");
        let fence = FenceScope::Range { start: Pfn::<Gpa>::new(page).base(), bytes: 4096 };
        assert!(stale.scope() == Some(fence) && stale.retired().is_empty(), "code may have come in: {stale:?}");
        self.paged.out.remove(&page);
        expected.insert(page, Mapping { page: first, flags, level: 0 });
        assert_eq!(expected, self.map(), "exactly the page that is brought in is there again");
        let now = self.frames.usage(VM);
        assert_eq!((usage.guest + is_new, usage.table), (now.guest, now.table), "the VM pays for what comes in");
        self.owe(stale);
        self.check_ownership(&expected);
        true
    }

    /// The engine unmaps pages, with what it forgets on purpose.
    pub(super) fn unmap_blindly(&mut self, start: u64, pages: u64) -> Result<Stale<Gpa>, mmu::AllocError> {
        self.world.blind = match self.world.mutant {
            Mutant::ForgetsIdle => Blind::Idle,
            Mutant::ForgetsSlots => Blind::Out,
            _ => Blind::No,
        };
        let unmapped = self.space.unmap(Pfn::new(start), pages, &self.frames, &mut self.world);
        self.world.blind = Blind::No;
        unmapped
    }

    /// Pages are untouched again: the pages of the device that they were on are free, and no others.
    pub(super) fn forgone(&mut self, range: &std::ops::Range<u64>) {
        let forgone: Vec<SwapSlot> = self.space.take_forgone();
        let mut expected = BTreeSet::new();
        self.paged.out.retain(|page, (slot, _)| {
            let stays = !range.contains(page);
            if !stays {
                expected.insert(*slot);
            }
            stays
        });
        assert_eq!(forgone.len(), expected.len(), "as many slots are forgone as pages were out");
        assert_eq!(forgone.iter().copied().collect::<BTreeSet<_>>(), expected, "exactly those slots are forgone");
        expected.iter().for_each(|slot| _ = self.paged.device.remove(slot));
        self.paged.idle.retain(|page, _| !range.contains(page));
        if self.world.mutant == Mutant::None {
            for page in range.clone().take(2) {
                let (sight, _) = self.space.look(Pfn::new(page), &self.world);
                assert_eq!((sight, self.space.is_out(Pfn::new(page), &self.world)), (Sight::Nothing, None));
            }
        }
    }

    /// At the end: what is kept of pages that harts do not reach is right.
    pub(super) fn check_paged(&self) {
        for (page, there) in &self.paged.idle {
            assert_eq!(self.found(there.page), self.contents(*page), "contents of idle page {page:#x} at the end");
        }
        for (page, (slot, _)) in &self.paged.out {
            let words = &self.paged.device[slot];
            assert_eq!(
                [words[0], words[511]],
                self.contents(*page),
                "contents of page {page:#x}, which is out, at the end"
            );
        }
    }
}
