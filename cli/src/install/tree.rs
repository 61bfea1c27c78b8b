//! The files of an installation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The directory of all builds, below the prefix.
pub(super) const BUILDS: &str = "lib/gnomon";

/// The conventions for directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Those of `/usr/local`.
    Plain,
    /// Those of Debian's packages.
    Debian,
}

/// Files by their paths, relative to the prefix.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// A file of an installation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A file that is read.
    Data(Vec<u8>),
    /// A program for this host.
    Program(Vec<u8>),
    /// A symbolic link, and where it leads.
    Link(PathBuf),
}

impl Entry {
    /// Returns the file's mode. The user's mask takes nothing from it: an installation is for all users.
    #[must_use]
    pub const fn mode(&self) -> u32 {
        match self {
            Self::Data(_) => 0o644,
            Self::Program(_) => 0o755,
            Self::Link(_) => 0o777,
        }
    }

    /// Returns the file's content; nothing for a link.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Data(bytes) | Self::Program(bytes) => bytes,
            Self::Link(_) => &[],
        }
    }
}

/// Returns the directories that a tree's files are in, each after the one that it is in.
#[must_use]
pub fn directories(tree: &Tree) -> Vec<&Path> {
    let all = tree.keys().flat_map(|path| path.ancestors().skip(1)).filter(|dir| !dir.as_os_str().is_empty());
    let all: std::collections::BTreeSet<_> = all.collect();
    all.into_iter().collect()
}
