//! What is asked for by the control channel and is not done, or not yet.

use crate::vm::Unreachable;
use abi::control::Answer;
use alloc::string::ToString;

/// Why something was not done.
pub(crate) enum Undone {
    /// It will be at some time.
    Later,
    /// It cannot be.
    Refused(Answer),
}

/// What has come of it.
pub(crate) type Done<T> = Result<T, Undone>;

/// It cannot be done.
pub(crate) fn refuse<T>(why: &str) -> Done<T> {
    Err(Undone::Refused(Answer::Refused(why.into())))
}

/// What is answered.
pub(crate) fn answer(done: Done<Answer>) -> Answer {
    match done {
        Ok(answer) => answer,
        Err(Undone::Later) => Answer::Later,
        Err(Undone::Refused(answer)) => answer,
    }
}

impl From<Unreachable> for Undone {
    fn from(why: Unreachable) -> Self {
        if why.is_for_now() { Self::Later } else { Self::Refused(Answer::Refused(why.to_string())) }
    }
}
