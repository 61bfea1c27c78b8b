//! What fences have passed over lately: so a shadow page that has been compared since need not be compared again when it is linked
//! once more, as all tables of a kernel are for each process.

use rv::Level;

/// Since when the fences of all vCPUs have passed over what.
pub(super) struct Passed {
    /// The last fence of more than pages: what was compared before that may be out of date. A value of [`super::engine::Shadow`]'s
    /// stamp.
    all: u64,
    /// How many of them there were.
    fences: u64,
    /// A bit for each part of the address space that has been fenced by address since. Some share a bit.
    parts: [u64; WORDS],
}

const WORDS: usize = 8;
/// A part is what a table of level 1 translates, whatever the format.
const PART_SHIFT: u32 = Level::GIGA.shift();

impl Passed {
    pub const fn new() -> Self {
        Self { all: 0, fences: 0, parts: [0; WORDS] }
    }

    /// A fence of all addresses happens, at that stamp.
    pub const fn all(&mut self, stamp: u64) {
        *self = Self { all: stamp, fences: self.fences + 1, parts: [0; WORDS] };
    }

    /// How many fences of all addresses there were.
    pub const fn fences(&self) -> u64 {
        self.fences
    }

    /// A fence of the page at `gva` happens.
    #[inline(always)]
    pub const fn page(&mut self, gva: u64) {
        let part = gva >> PART_SHIFT;
        self.parts[part as usize / 64 % WORDS] |= 1 << (part % 64);
    }

    /// A page is fenced, and it is not known which.
    pub const fn some_page(&mut self) {
        self.parts = [u64::MAX; WORDS];
    }

    /// Whether two addresses are in one part, or in parts that share a bit.
    pub const fn is_same_part(one: u64, other: u64) -> bool {
        ((one ^ other) >> PART_SHIFT).is_multiple_of(64 * WORDS as u64)
    }

    /// Whether a page is up to date, with all that it leads to, that was compared at `stamp` and translates nothing but the part
    /// of `gva`; of many parts, if `None`.
    pub fn is_fresh(&self, stamp: u64, gva: Option<u64>) -> bool {
        let is_fenced = match gva {
            Some(gva) => {
                let part = gva >> PART_SHIFT;
                self.parts[part as usize / 64 % WORDS] >> (part % 64) & 1 == 1
            }
            None => self.parts != [0; WORDS],
        };
        stamp >= self.all && !is_fenced
    }
}
