//! Requests of the control channel that are not done, or not yet.

use crate::vm::Unreachable;
use abi::control::Answer;
use alloc::string::ToString;

/// The reason why a request was not done.
pub(crate) enum Undone {
    /// The request will be done at some time.
    Later,
    /// The request cannot be done.
    Refused(Answer),
}

/// The result of a request.
pub(crate) type Done<T> = Result<T, Undone>;

/// Refuses a request, with a message.
pub(crate) fn refuse<T>(why: &str) -> Done<T> {
    Err(Undone::Refused(Answer::Refused(why.into())))
}

/// Returns the answer to a request.
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
