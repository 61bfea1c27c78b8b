//! The latest fences: a shadow page that has been compared since need not be compared again when it is linked once
//! more, as all tables of a kernel are for each process.
//!
//! Times are values of [`Passed::stamp`], from 1 on.

use alloc::boxed::Box;
use alloc::vec::Vec;
use rv::Level;

/// The mappings that a fence is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mappings {
    /// One address space: whatever a hart has of global mappings it may keep (norm:sfence-vma_ordering_semantics).
    Private,
    /// All, global ones too.
    All,
    /// All, of tables that are linked where they were not: what was compared before has been so for another place, whose fences need
    /// not be this one's.
    Anew,
}

/// The time at which a shadow page was compared last, with all that it leads to.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    all: u64,
    /// The time for mappings that are not global. Not before `all`.
    private: u64,
}

impl Compared {
    pub const NEVER: Self = Self { all: 0, private: 0 };

    pub const fn new(stamp: u64) -> Self {
        Self { all: stamp, private: stamp }
    }

    pub const fn of(self, mappings: Mappings) -> u64 {
        match mappings {
            Mappings::Private => self.private,
            Mappings::All | Mappings::Anew => self.all,
        }
    }

    pub const fn set(&mut self, mappings: Mappings, stamp: u64) {
        self.private = stamp;
        if !matches!(mappings, Mappings::Private) {
            self.all = stamp;
        }
    }
}

/// The times of the latest fences of all vCPUs, by the mappings that they are about.
pub struct Passed {
    /// The time: it grows with every fence, and every comparison that begins.
    pub stamp: u64,
    /// The last fence of more than pages: what was compared before that may be out of date.
    wide: u64,
    /// The last of those that was about global mappings, too.
    wide_of_all: u64,
    /// The number of fences of all addresses.
    fences: u64,
    /// The last fence by address.
    page: u64,
    /// The last one of which the address is not known.
    any_page: u64,
    /// The last one in each part of the address space, which is what a table of level 0 translates. Some share a place.
    parts: Box<[u64; PLACES]>,
}

const PLACES: usize = 512;

/// Which place a part has. It is the same wherever a guest's table of level 2 is.
const fn place(gva: u64) -> usize {
    (gva >> Level::MEGA.shift() ^ gva >> Level::GIGA.shift()) as usize % PLACES
}

impl Passed {
    /// `None` if there is no room on the heap.
    pub fn new() -> Option<Self> {
        let mut parts = Vec::new();
        parts.try_reserve_exact(PLACES).ok()?;
        parts.resize(PLACES, 0);
        let parts = parts.into_boxed_slice().try_into().ok()?;
        Some(Self { stamp: 1, wide: 1, wide_of_all: 1, fences: 0, page: 0, any_page: 0, parts })
    }

    /// A fence of all addresses happens.
    pub const fn all(&mut self, mappings: Mappings) {
        self.wide = self.stamp;
        self.fences += 1;
        if !matches!(mappings, Mappings::Private) {
            self.wide_of_all = self.stamp;
        }
    }

    /// Returns the number of fences of all addresses.
    pub const fn fences(&self) -> u64 {
        self.fences
    }

    /// Fences by address are about to happen.
    #[inline(always)]
    pub const fn some_pages(&mut self) {
        self.stamp += 1;
        self.page = self.stamp;
    }

    /// One of them is of the page at `gva`.
    #[inline(always)]
    pub const fn page(&mut self, gva: u64) {
        self.parts[place(gva)] = self.stamp;
    }

    /// Notes that the page of one of them is not known.
    pub const fn any_page(&mut self) {
        self.any_page = self.stamp;
    }

    /// Returns whether what a table of that level, 0 or 1, translates has the same places wherever it is of two addresses.
    pub const fn is_same_part(level: Level, one: u64, other: u64) -> bool {
        if level.number() == 0 {
            place(one) == place(other)
        } else {
            ((one ^ other) >> Level::GIGA.shift()).is_multiple_of(PLACES as u64)
        }
    }

    /// Returns whether a page is up to date in so far, with all that it leads to, that translates nothing but the part of `gva`; many
    /// parts, if `None`.
    pub fn is_fresh(&self, compared: Compared, mappings: Mappings, gva: Option<u64>) -> bool {
        let page = gva.map_or(self.page, |gva| self.parts[place(gva)].max(self.any_page));
        let wide = match mappings {
            Mappings::Private => self.wide,
            Mappings::All => self.wide_of_all,
            Mappings::Anew => return false,
        };
        compared.private >= self.wide && compared.of(mappings) >= wide.max(page)
    }
}
