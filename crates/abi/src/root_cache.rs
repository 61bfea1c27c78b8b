//! The root cache: a page that a kernel and Gnomon share, which says by what the kernel changes to an address space, and whether it has
//! to fence for it (`docs/root-cache.md`; *Paravirtualized KVM with a CR3 cache*). One for each hart of the kernel's.
//!
//! | offset | bytes | who writes | what |
//! |---|---|---|---|
//! | 0 | 4 | kernel | the version that it was made for, from 1 on |
//! | 4 | 4 | Gnomon | [`VERSION`] |
//! | 8 | 4 | kernel | how much of the page is shared: [`bytes`] of as many places as it wants |
//! | 12 | 4 | Gnomon | flags: [`TAGGED`] |
//! | 16 | 4 | Gnomon | how many places there are |
//! | 20 | 44 | Gnomon | 0 |
//! | 64 | 16 each | Gnomon | a place: the kernel's root, as it writes it to `satp`, and what it is to write instead; both 0 if it is free |

/// The SBI extension: of those that are an implementation's own (SBI 2.0, chapter 19), that with the lower 24 bits of Gnomon's id.
pub const EXTENSION: usize = 0x0a6e_6f6d;
/// Its function: shares a page from now on. Arguments: the page's GPA; its upper half, 0; flags, 0. Or [`NO_PAGE`] twice, and 0.
pub const SET_PAGE: usize = 0;
/// In place of an address: nothing is shared from now on.
pub const NO_PAGE: u64 = u64::MAX;

/// The newest version that Gnomon knows. It knows all before.
pub const VERSION: u32 = 1;
/// Flag: no translation of one root is ever used under another, but global ones, whatever ASID the kernel gives them. So a change of
/// address spaces needs no fence by itself.
pub const TAGGED: u32 = 1;

/// The offset of the kernel's version.
pub const GUEST_VERSION_AT: u64 = 0;
/// The offset of Gnomon's version.
pub const HOST_VERSION_AT: u64 = 4;
/// The offset of the size.
pub const SIZE_AT: u64 = 8;
/// The offset of the flags.
pub const FLAGS_AT: u64 = 12;
/// The offset of the number of places.
pub const PLACES_AT: u64 = 16;
/// The offset of the first place.
pub const FIRST_PLACE_AT: u64 = 64;
/// Bytes of a place.
pub const PLACE_BYTES: u64 = 16;
/// Most places that there are. None where the lane changes no roots.
pub const MOST_PLACES: usize = 64;

/// The size of the shared part of the page, with so many places.
#[must_use]
pub const fn bytes(places: usize) -> u64 {
    FIRST_PLACE_AT + places as u64 * PLACE_BYTES
}

/// The number of places for a kernel that names this size: none if there is no room for one, or if it is more than a
/// page.
#[must_use]
pub const fn places(size: u32) -> Option<usize> {
    const PAGE: u64 = 4096;
    let size = size as u64;
    if size < bytes(1) || size > PAGE {
        return None;
    }
    let places = ((size - FIRST_PLACE_AT) / PLACE_BYTES) as usize;
    Some(if places < MOST_PLACES { places } else { MOST_PLACES })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_gets_as_many_places_as_it_has_room_for() {
        assert_eq!([0, 79, 80, 95, 96].map(places), [None, None, Some(1), Some(1), Some(2)]);
        assert_eq!(places(bytes(MOST_PLACES) as u32), Some(MOST_PLACES));
        assert_eq!([4096, 4097, u32::MAX].map(places), [Some(MOST_PLACES), None, None]);
        assert_eq!(bytes(4), 128);
    }
}
