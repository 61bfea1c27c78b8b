//! The first program of a vkernel: a file in the archive that its VM starts with.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The name of the file, in the root directory.
pub const FILE: &str = ".vkernel";

/// The first program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The path of its file.
    pub program: Vec<u8>,
    /// Its arguments, from the name on.
    pub arguments: Vec<Vec<u8>>,
    /// Its environment, `NAME=value`.
    pub environment: Vec<Vec<u8>>,
    /// The directory that it starts in.
    pub directory: String,
}

impl Start {
    /// A program without further arguments.
    #[must_use]
    pub fn new(program: &[u8]) -> Self {
        let environment = [&b"PATH=/bin:/sbin:/usr/bin:/usr/sbin"[..], b"HOME=/root", b"TERM=linux"];
        Self {
            program: program.into(),
            arguments: alloc::vec![program.into()],
            environment: environment.map(<[u8]>::to_vec).into(),
            directory: "/".into(),
        }
    }

    /// Returns the bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Reads the file; `None` if it is not one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}
