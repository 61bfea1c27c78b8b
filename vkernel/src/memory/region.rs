//! Regions: ranges of a space with one content and one set of rights.

use super::frames::PAGE;
use super::object::{Object, Store};
use super::table::Rights;
use alloc::sync::Arc;

const PAGE_U64: u64 = PAGE as u64;

/// The content of a region.
#[derive(Clone, Debug)]
pub enum Source {
    /// Zero until it is written.
    Anonymous,
    /// An object, from one of its pages on.
    Object(Arc<dyn Object>, u64),
}

/// A range of addresses with one content and one set of rights.
#[derive(Clone, Debug)]
pub struct Region {
    /// The address behind it.
    pub end: u64,
    /// Rights of the program.
    pub rights: Rights,
    /// True if stores reach the object, and other spaces that map it.
    pub is_shared: bool,
    /// True if the program may get the right to store.
    pub may_store: bool,
    /// The content.
    pub source: Source,
    /// The name in `/proc/PID/maps`.
    pub name: Name,
}

/// The use of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Name {
    /// None.
    Anonymous,
    /// The program's heap.
    Heap,
    /// The first thread's stack.
    Stack,
    /// Code of the kernel's.
    Vdso,
    /// A file.
    File(Arc<str>),
}

impl Region {
    /// A private region of zeroes.
    #[must_use]
    pub fn anonymous(bytes: u64, rights: Rights) -> Self {
        Self { end: bytes, rights, is_shared: false, may_store: true, source: Source::Anonymous, name: Name::Anonymous }
    }

    /// Returns the rest of the region from a later address on.
    pub(super) fn from(&self, bytes: u64) -> Self {
        let mut rest = self.clone();
        if let Source::Object(_, first) = &mut rest.source {
            *first += bytes / PAGE_U64;
        }
        rest
    }

    /// Returns whether another region that follows can be one with it.
    pub(super) fn joins(&self, next: &Self) -> bool {
        let are_anonymous = matches!((&self.source, &next.source), (Source::Anonymous, Source::Anonymous));
        are_anonymous && self.rights == next.rights && self.is_shared == next.is_shared && self.name == next.name
    }

    /// The rights of the leaf for a frame that the region's own stores must not reach.
    pub(super) fn without_stores(&self) -> Rights {
        self.rights - Rights::W
    }
}

/// Makes the content of a region of shared anonymous memory.
#[must_use]
pub fn shared_memory(bytes: u64) -> Source {
    Source::Object(Store::new(bytes.next_multiple_of(PAGE_U64)), 0)
}
