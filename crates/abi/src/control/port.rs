//! What whoever is connected to a port of a VM's says to the guest, and hears of it.
//!
//! Bytes of a connection have places, from 0 on in each direction. So whatever is lost on the way can be said again: what was taken is not
//! taken twice, and what was given is kept until the next request says that it has come.

use crate::snapshot::bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Most bytes for the guest in a request.
pub const MOST_SENT: usize = 3968;
/// Most bytes for the guest that Gnomon keeps, and most of the guest's: an answer has room for so many.
pub const MOST_KEPT: usize = 8 << 10;

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Wish {
    /// Say and hear something: [`super::Answer::Heard`], or [`super::Answer::Later`] if the VM is not there yet. The guest sees a connection
    /// begin with a number that is not that of the one before, which ends there.
    Exchange(Exchange),
    /// The connection of that number is over, if it was not already: [`super::Answer::Done`]. What the guest has not taken is dropped.
    Close(u32),
}

/// Something that is said, and what is to be heard.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Exchange {
    /// The connection, by a number that the one before did not have.
    pub connection: u32,
    /// The place of the first of the bytes. Those that were taken before are passed over.
    pub at: u64,
    /// Bytes for the guest, up to [`MOST_SENT`].
    pub bytes: Bytes,
    /// The place of the first of the guest's bytes that is wanted: those before have come, and are not kept any more.
    pub from: u64,
    /// How many are wanted at most.
    pub most: u32,
}

/// What there is to hear, and what came of what was said.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Heard {
    /// How many bytes of this connection were taken for the guest: the place of the next.
    pub taken: u64,
    /// How many of those the guest does not have yet.
    pub waiting: u32,
    /// Bytes that the guest has sent, from the place that was asked for on; up to [`MOST_KEPT`].
    pub bytes: Bytes,
    /// Whether the guest has the port open.
    pub is_open: bool,
}
