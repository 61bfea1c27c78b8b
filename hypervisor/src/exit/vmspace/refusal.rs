//! The errors of calls that are refused.

use crate::exit::sbi::encoding::Answer;
use crate::vm::sbi_error::Error;
use crate::vm::spaces::Refusal;

/// Returns the error that a refused call returns.
pub(super) const fn error(why: Refusal) -> Error {
    match why {
        Refusal::Unknown => Error::InvalidParam,
        Refusal::Runs => Error::AlreadyStarted,
        Refusal::Full => Error::Failed,
    }
}

/// Refuses a call.
pub(super) const fn refuse(error: Error) -> Answer {
    Answer::Reply(Err(error))
}
