//! The exchange of bytes between a port's guest and the program of the host that is connected there.
//!
//! Bytes of a connection have places, from 0 on in each direction. So bytes that are lost on the way can be sent again:
//! those that were taken are not taken twice, and those that were sent are kept until the next request acknowledges
//! them.

use crate::snapshot::bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Most bytes for the guest in a request.
pub const MOST_SENT: usize = 3968;
/// Most bytes for the guest that Gnomon keeps, and most of the guest's: an answer has room for so many.
pub const MOST_KEPT: usize = 8 << 10;

/// A request about a port.
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
    /// The most bytes that are wanted.
    pub most: u32,
}

/// The guest's bytes, and the number of the program's bytes that were taken.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Heard {
    /// The number of this connection's bytes that were taken for the guest: the place of the next.
    pub taken: u64,
    /// The number of those that the guest has not read yet.
    pub waiting: u32,
    /// Bytes that the guest has sent, from the place that was asked for on; up to [`MOST_KEPT`].
    pub bytes: Bytes,
    /// True if the guest has the port open.
    pub is_open: bool,
}
