//! Originals of the image that go and come back. The host does here what its pager does: it takes one from the guest,
//! waits until no hart remembers it, and gives its frame another use.

use super::world::Mutant;
use super::{Rig, VM, image_contents};
use mmu::frames::Original;
use mmu::{Owner, Use};
use rv::{FenceScope, Gpa, Hpa, Level, Pfn, PhysMem};

impl Rig {
    /// Homes of the originals that harts reach, those first that have come back.
    fn shown(&self) -> Vec<u64> {
        let is_image = |frame: u64| self.frames.owner_of(Pfn::new(frame)) == Some((Owner::Host, Use::Image));
        let shown = self.map().into_iter().filter(|(_, mapping)| is_image(mapping.page));
        let home = |page: u64| {
            let region = self.space.region_of(Pfn::new(page)).expect("it is mapped");
            let mmu::Object::Image { first } = region.object else { panic!("{page:#x} is no image's") };
            first.raw() + page - region.start.raw()
        };
        let mut shown: Vec<_> = shown.map(|(page, mapping)| (home(page) == mapping.page, home(page))).collect();
        shown.sort_unstable();
        shown.into_iter().map(|(_, home)| home).collect()
    }

    /// An original goes, one that harts reach, if there is one, or any. Now and then the guest comes back to it at once.
    pub(super) fn let_original_go(&mut self, n: u16) {
        // An edit of the G-stage is fenced before others may look at it: what was unmapped before is not found any
        // more.
        self.flush();
        let shown = self.shown();
        let home = match shown.len() {
            0 => self.image.raw() + u64::from(n) % super::IMAGE_PAGES,
            count => shown[if n.is_multiple_of(2) { 0 } else { usize::from(n) % count }],
        };
        let number = self.frames.originals().number(Pfn::new(home));
        if self.frames.originals().state(number) == Original::Used {
            self.frames.originals().lapse(number);
            self.withdraw(home);
            self.frames.originals().settle(number);
        }
        let Original::Idle(frame) = self.frames.originals().state(number) else { return };
        let run = self.frames.originals().release(number).expect("it is idle");
        assert_eq!((run.first(), run.pages()), (frame, 1));
        self.world.model.free(frame);
        self.frames.free(run);
        self.check_ownership(&self.map());
        // The frame's next owner writes to it.
        self.world.model.machine.write_u64(frame.base(), 0x666);
        let page = self.space.pages_of(home..home + 1).next().map(|(_, pages)| pages.start);
        if let Some(page) = page.filter(|_| n % 4 < 2) {
            self.touch(page, rv::Access::Load);
        }
    }

    /// Takes an original from the guest, wherever it has it.
    fn withdraw(&mut self, home: u64) {
        let pieces: Vec<_> = self.space.pages_of(home..home + 1).collect();
        for (before, pages) in pieces {
            assert_eq!((before, pages.end - pages.start), (0, 1));
            let gpa = Pfn::<Gpa>::new(pages.start);
            let (mut map, owned, usage) = (self.map(), self.owned(), self.frames.usage(VM));
            let (level, _) = self.space.look_for_original(gpa, &self.world);
            let is_shown = map.get(&pages.start).is_some_and(|mapping| !owned.contains(&mapping.page));
            assert_eq!(level.is_some(), is_shown, "whether harts reach the original at {gpa:?}");
            let Some(level) = level else { continue };
            let stale = self.space.rest(gpa, &mut self.world);
            let first = gpa.align_down(level.pages());
            let scope = FenceScope::Range { start: first.base(), bytes: level.bytes() };
            assert!(stale.scope() == Some(scope) && stale.retired().is_empty(), "it is to be fenced: {stale:?}");
            map.retain(|page, _| !(first.raw()..first.raw() + level.pages()).contains(page));
            assert_eq!(map, self.map(), "exactly the leaf of the original is gone");
            assert_eq!((owned, usage), (self.owned(), self.frames.usage(VM)), "it had no owner");
            if self.world.mutant != Mutant::WithdrawsWithoutFence {
                self.owe(stale);
                self.flush();
            }
        }
    }

    /// Brings in an original that is out and that the guest needs. Returns whether it is in memory now.
    pub(super) fn bring_original(&mut self, page: u64, home: Pfn<Hpa>) -> bool {
        let number = self.frames.originals().number(home);
        assert!(self.space.pages_of(home.raw()..home.raw() + 1).any(|(_, pages)| pages.start == page));
        assert_eq!(self.frames.originals().state(number), Original::Out);
        let Ok(run) = self.frames.alloc(Owner::Host, Use::Image, 0) else { return false };
        let [head, tail] = image_contents(number);
        self.world.model.machine.write_u64(run.first().base(), head);
        self.world.model.machine.write_u64(run.first().at(Level::PAGE.bytes() - 8), tail);
        self.frames.originals().restore(number, run);
        true
    }

    /// At the end: those that are in memory are as they were.
    pub(super) fn check_originals(&self) {
        for number in 0..super::IMAGE_PAGES {
            let originals = self.frames.originals();
            let Some(frame) = originals.find(originals.home(number)) else { continue };
            assert_eq!(self.found(frame.raw()), image_contents(number), "the image was written");
            assert_eq!(self.frames.owner_of(frame), Some((Owner::Host, Use::Image)));
        }
    }
}
