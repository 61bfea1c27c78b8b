//! Why guest memory cannot be used.

use crate::gstage::Unresolved;

/// Why guest memory cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// There is none, or not for this.
    Nothing,
    /// It is not ready yet, or there is no frame for it.
    Not(Unresolved),
    /// The budget is spent before it could be made ready: more is done the next time.
    Later,
}
