//! The record of an installation: its files, by which a later one knows what it may replace, and a removal what to remove.

use super::tree::{BUILDS, Entry, Tree, directories};
use crate::host::place::{IoError, write_whole};
use crate::host::words::sha256;
use crate::host::written::explain_json;
use miette::Diagnostic;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The record's file, in [`BUILDS`].
const FILE: &str = "installed.json";

/// The record. Paths are relative to the prefix.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// Each file with its fingerprints: one, or while an installation replaces another, both.
    pub(super) files: BTreeMap<PathBuf, BTreeSet<String>>,
    /// Files that are being written and will get other names.
    pub(super) unfinished: BTreeSet<PathBuf>,
    /// Directories that were made.
    pub(super) directories: BTreeSet<PathBuf>,
}

/// A record that cannot be used.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum RecordError {
    /// Its file cannot be read or written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Io(#[from] IoError),
    /// Its file has something else in it.
    #[error("{path} is not the record of an installation: {why}")]
    #[diagnostic(help(
        "find out what has changed the file; without it, the installed files have to be removed by hand"
    ))]
    Broken {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// Returns the fingerprint of a file that is to be installed.
pub(super) fn fingerprint(entry: &Entry) -> String {
    match entry {
        Entry::Link(to) => format!("link:{}", to.display()),
        Entry::Data(bytes) | Entry::Program(bytes) => format!("sha256:{}", sha256(bytes)),
    }
}

/// Returns the fingerprint of what is at a path; `None` if nothing is there. Neither a file nor a link has one that no record has.
pub(super) fn fingerprint_at(path: &Path) -> Result<Option<String>, IoError> {
    let read = || IoError::at("read", path);
    let there = match fs::symlink_metadata(path) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        there => there.map_err(read())?,
    };
    Ok(Some(if there.is_symlink() {
        format!("link:{}", fs::read_link(path).map_err(read())?.display())
    } else if there.is_file() {
        format!("sha256:{}", sha256(&fs::read(path).map_err(read())?))
    } else {
        "other".into()
    }))
}

impl Record {
    /// The record of a tree.
    pub(super) fn of(tree: &Tree) -> Self {
        let files = tree.iter().map(|(path, entry)| (path.clone(), [fingerprint(entry)].into())).collect();
        Self { files, ..Self::default() }
    }

    /// Returns the path of the record below a prefix.
    pub(super) fn path(base: &Path) -> PathBuf {
        base.join(BUILDS).join(FILE)
    }

    /// Reads the record below a prefix; `None` if there is none.
    pub(super) fn read(base: &Path) -> Result<Option<Self>, RecordError> {
        let path = Self::path(base);
        let text = match fs::read_to_string(&path) {
            Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.map_err(IoError::at("read", &path))?,
        };
        let record: Self = serde_json::from_str(&text)
            .map_err(|why| RecordError::Broken { path: path.clone(), why: explain_json(&why) })?;
        let paths = record.files.keys().chain(&record.unfinished).chain(&record.directories);
        let is_inside = |path: &Path| path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        match paths.into_iter().find(|path| !is_inside(path)) {
            Some(outside) => Err(RecordError::Broken { path, why: format!("{} is outside", outside.display()) }),
            None => Ok(Some(record)),
        }
    }

    /// Writes it, whole or not at all.
    pub(super) fn write(&self, base: &Path) -> Result<(), IoError> {
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        write_whole(&Self::path(base), &text)
    }

    /// Returns whether a file with that fingerprint is one of the record's.
    pub(super) fn has(&self, path: &Path, fingerprint: &str) -> bool {
        self.files.get(path).is_some_and(|known| known.contains(fingerprint))
    }

    /// Adds what another record has.
    pub(super) fn add(&mut self, other: &Self) {
        for (path, fingerprints) in &other.files {
            self.files.entry(path.clone()).or_default().extend(fingerprints.iter().cloned());
        }
        self.unfinished.extend(other.unfinished.iter().cloned());
        self.directories.extend(other.directories.iter().cloned());
    }

    /// The directories of a tree that are not there yet below a prefix.
    pub(super) fn missing_directories(base: &Path, tree: &Tree) -> Vec<PathBuf> {
        directories(tree).into_iter().filter(|dir| !base.join(dir).exists()).map(Path::to_owned).collect()
    }
}
