//! Free GiB.

use rv::{Hpa, Pfn};

/// The order of a run of 1 GiB.
pub(super) const GIGA_ORDER: u8 = 18;

/// The result of a search for 1 GiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Giga {
    /// The first frame of a free GiB. Other harts may take a part of it at any time.
    Found(Pfn<Hpa>),
    /// None between that frame and the start of the search; the rest is still to be searched.
    Below(Pfn<Hpa>),
    /// No free GiB at all.
    None,
}
