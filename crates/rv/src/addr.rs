//! Addresses and frame numbers, typed by the space they belong to.
//!
//! A number of one space never becomes a number of another by accident: there is no conversion
//! between `Addr<Gpa>` and `Addr<Hpa>`; only an address space translates.

use core::fmt;
use core::hash::Hash;
use core::marker::PhantomData;

/// log2 of the base page size (privileged spec, "Sv39: Page-Based 39-bit Virtual-Memory System").
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a base page (a *frame*, when it is host RAM).
pub const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;

/// A space of addresses. Implemented by uninhabited marker types only.
pub trait Space: Copy + Ord + Hash + fmt::Debug + Send + Sync + 'static {
    /// The abbreviation of the space in messages: `GVA`, `GPA`, `HPA`.
    const NAME: &'static str;
}

macro_rules! spaces {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $name {}
        impl Space for $name { const NAME: &'static str = $text; }
    )*};
}

spaces! {
    /// Guest virtual: what the guest's own page tables translate.
    Gva = "GVA",
    /// Guest physical: what the G-stage translates.
    Gpa = "GPA",
    /// Host physical: what the memory bus sees.
    Hpa = "HPA",
    /// Guest physical of a nested (L2) guest.
    L2Gpa = "L2GPA",
    /// Virtual of a nested (L2) guest.
    L2Gva = "L2GVA",
}

/// A byte address in space `S`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr<S: Space> {
    raw: u64,
    space: PhantomData<S>,
}

impl<S: Space> Addr<S> {
    /// Names the byte at `raw`. Any value is an address; whether it is canonical or backed by
    /// anything is for a walk or an address space to say.
    #[must_use]
    pub const fn new(raw: u64) -> Self {
        Self { raw, space: PhantomData }
    }

    /// The number itself.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.raw
    }

    /// The page that holds this byte.
    #[must_use]
    pub const fn pfn(self) -> Pfn<S> {
        Pfn::new(self.raw >> PAGE_SHIFT)
    }

    /// The offset within the base page, in bytes, 0..4096.
    #[must_use]
    pub const fn page_offset(self) -> u64 {
        self.raw & (PAGE_BYTES - 1)
    }

    /// Returns whether the address is a multiple of `bytes`, a power of two.
    #[must_use]
    pub const fn is_aligned(self, bytes: u64) -> bool {
        self.raw & (bytes - 1) == 0
    }

    /// The greatest multiple of `bytes`, a power of two, that is not above this address.
    #[must_use]
    pub const fn align_down(self, bytes: u64) -> Self {
        Self::new(self.raw & !(bytes - 1))
    }

    /// The address `bytes` further on, or `None` past the end of the space.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.raw.checked_add(bytes) {
            Some(raw) => Some(Self::new(raw)),
            None => None,
        }
    }

    /// The address `bytes` further on, wrapping as the hardware's adder does.
    #[must_use]
    pub const fn wrapping_add(self, bytes: u64) -> Self {
        Self::new(self.raw.wrapping_add(bytes))
    }
}

impl<S: Space> fmt::Debug for Addr<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}", S::NAME, self.raw)
    }
}

impl<S: Space> fmt::Display for Addr<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The number of a 4 KiB page in space `S`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pfn<S: Space> {
    raw: u64,
    space: PhantomData<S>,
}

impl<S: Space> Pfn<S> {
    /// Names page number `raw`.
    #[must_use]
    pub const fn new(raw: u64) -> Self {
        Self { raw, space: PhantomData }
    }

    /// The number itself.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.raw
    }

    /// The first byte of the page.
    #[must_use]
    pub const fn base(self) -> Addr<S> {
        Addr::new(self.raw << PAGE_SHIFT)
    }

    /// The byte `offset` bytes into the page (or beyond it, for a run of pages).
    #[must_use]
    pub const fn at(self, offset: u64) -> Addr<S> {
        Addr::new((self.raw << PAGE_SHIFT).wrapping_add(offset))
    }

    /// The page `pages` further on.
    #[must_use]
    pub const fn add(self, pages: u64) -> Self {
        Self::new(self.raw.wrapping_add(pages))
    }

    /// Returns whether the page starts a naturally aligned run of `pages`, a power of two.
    #[must_use]
    pub const fn is_aligned(self, pages: u64) -> bool {
        self.raw & (pages - 1) == 0
    }

    /// The greatest page aligned to `pages`, a power of two, that is not above this one.
    #[must_use]
    pub const fn align_down(self, pages: u64) -> Self {
        Self::new(self.raw & !(pages - 1))
    }
}

impl<S: Space> fmt::Debug for Pfn<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} page {:#x}", S::NAME, self.raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_and_its_addresses_agree() {
        let a = Addr::<Gpa>::new(0x8020_0123);
        assert_eq!(a.pfn().base().raw(), 0x8020_0000);
        assert_eq!(a.pfn().at(a.page_offset()), a);
        assert!(a.align_down(0x20_0000).is_aligned(0x20_0000));
        assert_eq!(Addr::<Gpa>::new(u64::MAX).checked_add(1), None);
        assert!(Pfn::<Hpa>::new(512).is_aligned(512));
        assert_eq!(Pfn::<Hpa>::new(513).align_down(512), Pfn::new(512));
    }
}
