//! Shadow pages by their numbers, and the pages of a root.

use crate::frames::Run;
use crate::shadow::pages::{Body, Id, Page};
use crate::shadow::{Root, Shadowed};
use alloc::vec::Vec;
use rv::Addr;
use rv::format::SV57X4;

/// Frames of the largest root.
const MOST_FRAMES: usize = SV57X4.root_pages() as usize;

/// All shadow pages of a VM.
pub struct Arena {
    pages: Vec<Option<Page>>,
    free: Vec<Id>,
}

impl Arena {
    /// An arena without pages. `pages` has room for all that there will ever be.
    pub const fn new(pages: Vec<Option<Page>>) -> Self {
        Self { pages, free: Vec::new() }
    }

    #[inline(always)]
    pub fn page(&self, id: Id) -> &Page {
        self.pages[id as usize].as_ref().expect("the number of a shadow page")
    }

    #[inline(always)]
    pub fn page_mut(&mut self, id: Id) -> &mut Page {
        self.pages[id as usize].as_mut().expect("the number of a shadow page")
    }

    /// The page, if there is one of that number now.
    pub fn get(&self, id: Id) -> Option<&Page> {
        self.pages.get(id as usize)?.as_ref()
    }

    /// All pages, with their numbers.
    #[cfg(feature = "sabotage")]
    pub fn all(&self) -> impl Iterator<Item = (Id, &Page)> {
        (0..).zip(&self.pages).filter_map(|(id, page)| Some((id, page.as_ref()?)))
    }

    /// Numbers that are or were in use: all are below this.
    pub fn end(&self) -> Id {
        self.pages.len() as Id
    }

    pub fn is_empty(&self) -> bool {
        self.pages.len() == self.free.len()
    }

    /// Gives a page a number.
    pub fn add(&mut self, page: Page) -> Id {
        match self.free.pop() {
            Some(id) => {
                self.pages[id as usize] = Some(page);
                id
            }
            None => {
                self.pages.push(Some(page));
                self.end() - 1
            }
        }
    }

    /// Ends a page.
    pub fn take(&mut self, id: Id) -> Body {
        let page = self.pages[id as usize].take().expect("the number of a shadow page");
        self.free.push(id);
        page.body
    }

    /// Ends the arena: the frames of its pages.
    pub fn into_frames(self) -> impl Iterator<Item = Run> {
        self.pages.into_iter().flatten().flat_map(|page| page.body.runs())
    }

    /// The shadow pages of a root that is whole, by the number of the first.
    #[inline(always)]
    pub fn parts<S: Shadowed>(&self, first: Id) -> impl Iterator<Item = Id> + use<S> {
        let mut parts = [first; MOST_FRAMES];
        for n in 1..S::ROOT_FRAMES {
            parts[n] = self.page(parts[n - 1]).sibling.expect("a root has a page for each frame");
        }
        parts.into_iter().take(S::ROOT_FRAMES)
    }

    /// The shadow page of the root's frame that decides about `gva`.
    #[inline(always)]
    pub fn part<S: Shadowed>(&self, root: &Root<S>, gva: Addr<S>) -> Id {
        if S::ROOT_FRAMES == 1 {
            return root.id;
        }
        self.parts::<S>(root.id).nth(root.format.root_frame(gva)).expect("a root has a page for each frame")
    }

    /// Returns whether the page, of that serial, is the first of a root, and all others of it are there as well.
    #[inline(always)]
    pub fn is_whole<S: Shadowed>(&self, first: Id, serial: u64) -> bool {
        let mut next = Some(first);
        (serial..).take(S::ROOT_FRAMES).all(|serial| {
            let page = next.and_then(|id| self.get(id)).filter(|page| page.serial == serial);
            next = page.and_then(|page| page.sibling);
            page.is_some()
        })
    }
}
