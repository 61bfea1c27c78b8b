//! The memory of a kernel, read page by page as far as it is looked at.

use std::collections::HashMap;

/// The bytes of a page.
pub const PAGE: u64 = 4096;

/// The most work: no guest can make a search last for long. A byte that is looked at is 1, also if it is looked at again.
const MOST_WORK: u64 = 1 << 28;
/// The work of a look at any number of bytes.
const LOOK: u64 = 64;

/// Reads the page at that virtual address; `None` if there is none.
pub type Fetch<'a> = dyn FnMut(u64) -> Option<Vec<u8>> + 'a;

/// A kernel in memory. Its addresses are counted from its base.
pub struct Image<'a> {
    base: u64,
    bytes: u64,
    fetch: &'a mut Fetch<'a>,
    pages: HashMap<u64, Option<Vec<u8>>>,
    /// The rest of [`MOST_WORK`].
    work: u64,
}

impl<'a> Image<'a> {
    /// An image of so many bytes from the virtual address `base` on, a multiple of [`PAGE`].
    pub fn new(base: u64, bytes: u64, fetch: &'a mut Fetch<'a>) -> Self {
        Self { base, bytes, fetch, pages: HashMap::new(), work: MOST_WORK }
    }

    /// The virtual address of its first byte.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn page(&mut self, number: u64, bytes: u64) -> Option<&[u8]> {
        self.work = self.work.checked_sub(LOOK + bytes)?;
        let at = self.base.checked_add(number.checked_mul(PAGE)?)?;
        let page = self.pages.entry(number);
        let page = page.or_insert_with(|| (self.fetch)(at).filter(|page| page.len() == PAGE as usize));
        page.as_deref()
    }

    /// Returns `count` bytes from `at` on, if all are in the image and can be read.
    pub fn read(&mut self, at: u64, count: u64) -> Option<Vec<u8>> {
        let end = at.checked_add(count).filter(|end| *end <= self.bytes)?;
        let (mut from, mut all) = (at, Vec::new());
        while from < end {
            let (offset, part) = (from % PAGE, (end - from).min(PAGE - from % PAGE));
            let page = self.page(from / PAGE, part)?;
            all.extend_from_slice(page.get(offset as usize..(offset + part) as usize)?);
            from += part;
        }
        Some(all)
    }

    /// Returns the byte at `at`.
    pub fn byte(&mut self, at: u64) -> Option<u8> {
        if at >= self.bytes {
            return None;
        }
        self.page(at / PAGE, 1)?.get((at % PAGE) as usize).copied()
    }

    /// Returns the 32 bits at `at`.
    pub fn u32(&mut self, at: u64) -> Option<u32> {
        self.read(at, 4)?.try_into().ok().map(u32::from_le_bytes)
    }

    /// Returns the 64 bits at `at`.
    pub fn u64(&mut self, at: u64) -> Option<u64> {
        self.read(at, 8)?.try_into().ok().map(u64::from_le_bytes)
    }
}
