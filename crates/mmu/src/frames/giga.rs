//! Free GiB.

use rv::{Hpa, Pfn};

/// The order of a run of 1 GiB.
pub(super) const GIGA_ORDER: u8 = 18;

/// What a search for 1 GiB has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Giga {
    /// It begins there. Others may take a part of it at any time.
    Found(Pfn<Hpa>),
    /// None is between that frame and where it was looked for: there is more to look at.
    Below(Pfn<Hpa>),
    /// There is none.
    None,
}
