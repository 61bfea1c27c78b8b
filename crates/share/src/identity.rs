//! Numbers of files, as the client sees them: one for each file, across all file systems of the share.

use crate::wire::Put;
use rustix::fs::{FileType, Stat};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

/// Bytes of a file's identity (*qid*): type (1), version (4), number (8).
pub const QID_BYTES: usize = 13;
/// The type of a directory in a qid.
const DIRECTORY: u8 = 0x80;
/// The type of a symbolic link in a qid.
const LINK: u8 = 0x02;
/// Inode numbers below this one are kept, below the number of their file system.
const INODE_BITS: u32 = 48;
/// Most file systems that have a number; those beyond it share the way of large inode numbers.
const MOST_FILE_SYSTEMS: usize = 1 << 12;

/// Assigns numbers to files. Files of the share's own file system keep their inode numbers.
#[derive(Debug)]
pub struct Numbers {
    own: u64,
    others: BTreeMap<u64, u64>,
    hash: RandomState,
}

impl Numbers {
    /// Makes the numbers of a share whose directory is on the file system `own` (`st_dev`).
    #[must_use]
    pub fn new(own: u64) -> Self {
        Self { own, others: BTreeMap::new(), hash: RandomState::new() }
    }

    /// Returns the number of the file with inode `inode` on the file system `device`.
    ///
    /// Other file systems are numbered from 1 on, above bit 48. An inode number that does not fit below becomes a hash with
    /// bit 63 set.
    pub fn number(&mut self, device: u64, inode: u64) -> u64 {
        if device == self.own && inode >> 63 == 0 && (self.others.is_empty() || inode >> INODE_BITS == 0) {
            return inode;
        }
        let next = self.others.len() as u64 + 1;
        if inode >> INODE_BITS == 0 && (self.others.contains_key(&device) || self.others.len() < MOST_FILE_SYSTEMS) {
            return *self.others.entry(device).or_insert(next) << INODE_BITS | inode;
        }
        self.hash.hash_one((device, inode)) | 1 << 63
    }

    /// Appends a file's identity.
    pub fn put(&mut self, stat: &Stat, answer: &mut Vec<u8>) {
        answer.put_u8(kind(FileType::from_raw_mode(stat.st_mode)));
        // A client without a cache ignores the version; one with a cache sees by it that the file has changed.
        answer.put_u32(stat.st_mtime as u32 ^ (stat.st_size as u32) << 8);
        answer.put_u64(self.number(stat.st_dev, stat.st_ino));
    }

    /// Appends the identity of a directory's entry: its version is unknown.
    pub fn put_entry(&mut self, file_type: FileType, (device, inode): (u64, u64), answer: &mut Vec<u8>) {
        answer.put_u8(kind(file_type));
        answer.put_u32(0);
        answer.put_u64(self.number(device, inode));
    }
}

fn kind(file_type: FileType) -> u8 {
    match file_type {
        FileType::Directory => DIRECTORY,
        FileType::Symlink => LINK,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn files_of_several_file_systems_keep_apart() {
        let mut numbers = Numbers::new(7);
        assert_eq!((numbers.number(7, 5), numbers.number(7, 1 << 50)), (5, 1 << 50));
        let files = [(7, 5), (8, 5), (9, 5), (8, 6), (8, 1 << 48 | 5), (9, u64::MAX), (7, 1 << 48 | 5), (7, u64::MAX)];
        let all: BTreeSet<u64> = files.iter().map(|(device, inode)| numbers.number(*device, *inode)).collect();
        assert_eq!(all.len(), files.len(), "{all:x?}");
        for (device, inode) in files {
            assert_eq!(numbers.number(device, inode), numbers.number(device, inode), "it stays");
        }
        assert_eq!(numbers.number(7, 5), 5, "the share's own file system keeps its numbers");
        for device in 100..100 + 2 * MOST_FILE_SYSTEMS as u64 {
            let _ = numbers.number(device, 1);
        }
        assert_eq!(numbers.others.len(), MOST_FILE_SYSTEMS);
    }
}
