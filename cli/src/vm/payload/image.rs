//! The result of reading a kernel's file: a flat image with its place, or the reason that the file is unfit.

/// Something to boot, flat, with its place in guest RAM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Payload {
    /// The kind of file.
    pub kind: Kind,
    /// The bytes that are placed.
    pub bytes: Vec<u8>,
    /// The address of those bytes; page-aligned.
    pub gpa: u64,
    /// The address at which the guest is entered.
    pub entry_gpa: u64,
    /// The RAM that it needs from `gpa` on before it manages memory itself, in bytes.
    pub span_bytes: u64,
}

/// The kinds of payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A RISC-V Linux Image: it has the header, and Linux's banner.
    Linux,
    /// A file that has the header, and is not Linux.
    Image,
    /// An ELF executable.
    Elf,
    /// Anything else: placed and entered at [`abi::bundle::GUEST_ENTRY`].
    Raw,
}

/// The reason that a payload is unfit: a predicate ("is ..."), and a remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfit {
    /// The reason.
    pub what: String,
    /// The remedy.
    pub remedy: String,
}

impl Unfit {
    pub(super) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

/// A little-endian number in a file.
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}
