//! The places where the boot loader has put images.

use abi::bundle::Segment;
use alloc::vec::Vec;
use core::ops::Range;
use rv::{Hpa, PAGE_BYTES, Pfn};

/// Returns the frames of a piece of an image, in a bundle of `bytes` bytes; `None` if it is not in there: its VM is not
/// started.
pub(crate) fn home(segment: &Segment, bundle: Pfn<Hpa>, bytes: u64) -> Option<Range<u64>> {
    let end = segment.offset.checked_add(segment.bytes)?.checked_next_multiple_of(PAGE_BYTES)?;
    let first = bundle.raw() + segment.offset / PAGE_BYTES;
    (segment.bytes != 0 && end <= bytes).then(|| first..bundle.raw() + end / PAGE_BYTES)
}

/// Returns the homes of all pieces together, in order, for [`mmu::Frames::add_images`].
#[must_use]
pub fn homes_of_all<'a>(segments: impl Iterator<Item = &'a Segment>, bundle: Pfn<Hpa>, bytes: u64) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = segments.filter_map(|segment| home(segment, bundle, bytes)).collect();
    all.sort_unstable_by_key(|range| range.start);
    all.dedup_by(|next, known| {
        let is_one = next.start <= known.end;
        if is_one {
            known.end = known.end.max(next.end);
        }
        is_one
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[test]
    fn images_that_touch_are_one_range_and_what_is_not_in_the_bundle_is_none() {
        let segment = |offset, bytes| Segment { gpa: 0, offset, bytes, label: String::new() };
        let page = PAGE_BYTES;
        let segments = [
            segment(2 * page, page + 1),
            segment(9 * page, page),
            segment(7 * page, 0),
            segment(2 * page, page + 1),
            segment(4 * page, 5),
            segment(19 * page, page + 1),
            segment(u64::MAX, page),
            segment(page, u64::MAX),
        ];
        assert_eq!(homes_of_all(segments.iter(), Pfn::new(100), 20 * page), [102..105, 109..110]);
    }
}
