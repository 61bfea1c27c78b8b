//! The client's file numbers.

use rustix::fs::FileType;
use rustix::io::{self, Errno};
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// The bytes of extended attributes that file numbers may hold together: those that are being read or written.
const MOST_ATTRIBUTES: usize = 4 << 20;

/// A file of the client's.
#[derive(Debug)]
pub(crate) struct Fid {
    /// The file: open if `state` says so, otherwise `O_PATH`.
    pub(crate) file: OwnedFd,
    pub(crate) file_type: FileType,
    /// The client's user who has attached: the owner of new files.
    pub(crate) user: u32,
    pub(crate) state: State,
}

/// The purpose of a file number.
#[derive(Debug)]
pub(crate) enum State {
    /// The number names a file.
    Named,
    /// The file is open.
    Open,
    /// The directory is open; its next entry is at that offset.
    Listing(u64),
    /// An extended attribute, or the list of them, is read.
    Attribute(Vec<u8>),
    /// An extended attribute is written. It is set when the number is given back.
    NewAttribute {
        /// Its name.
        name: Vec<u8>,
        /// The part of the value that has come.
        value: Vec<u8>,
        /// The length of the value.
        length: usize,
        /// The flags of `setxattr`.
        flags: u32,
    },
}

impl State {
    /// The bytes that are held for it.
    fn held(&self) -> usize {
        match self {
            Self::Attribute(bytes) => bytes.capacity(),
            Self::NewAttribute { length, .. } => *length,
            Self::Named | Self::Open | Self::Listing(_) => 0,
        }
    }
}

/// All file numbers of a session.
#[derive(Debug)]
pub(crate) struct Fids {
    all: HashMap<u32, Fid>,
    most: usize,
    held: usize,
}

impl Fids {
    /// Makes none, of which there may be `most`.
    pub(crate) fn new(most: usize) -> Self {
        Self { all: HashMap::new(), most, held: 0 }
    }

    pub(crate) fn get(&self, fid: u32) -> io::Result<&Fid> {
        self.all.get(&fid).ok_or(Errno::BADF)
    }

    pub(crate) fn get_mut(&mut self, fid: u32) -> io::Result<&mut Fid> {
        self.all.get_mut(&fid).ok_or(Errno::BADF)
    }

    /// Returns a directory.
    pub(crate) fn dir(&self, fid: u32) -> io::Result<&Fid> {
        let found = self.get(fid)?;
        if found.file_type == FileType::Directory { Ok(found) } else { Err(Errno::NOTDIR) }
    }

    /// Checks that a number is free, and that there may be one more.
    pub(crate) fn check_new(&self, fid: u32) -> io::Result<()> {
        match self.all.contains_key(&fid) {
            true => Err(Errno::BADF),
            false if self.all.len() >= self.most => Err(Errno::MFILE),
            false => Ok(()),
        }
    }

    /// Gives a file its number, in place of one that it names so far.
    pub(crate) fn put(&mut self, fid: u32, file: Fid) -> io::Result<()> {
        let before = self.all.get(&fid).map_or(0, |fid| fid.state.held());
        let held = self.held - before + file.state.held();
        if held > MOST_ATTRIBUTES {
            return Err(Errno::NOMEM);
        }
        self.held = held;
        self.all.insert(fid, file);
        Ok(())
    }

    /// Changes the purpose of a number.
    pub(crate) fn set_state(&mut self, fid: u32, state: State) -> io::Result<()> {
        let found = self.all.get_mut(&fid).ok_or(Errno::BADF)?;
        let held = self.held - found.state.held() + state.held();
        if held > MOST_ATTRIBUTES {
            return Err(Errno::NOMEM);
        }
        self.held = held;
        found.state = state;
        Ok(())
    }

    /// Takes a number back.
    pub(crate) fn take(&mut self, fid: u32) -> io::Result<Fid> {
        let taken = self.all.remove(&fid).ok_or(Errno::BADF)?;
        self.held -= taken.state.held();
        Ok(taken)
    }

    /// Takes all back.
    pub(crate) fn clear(&mut self) {
        self.all = HashMap::new();
        self.held = 0;
    }
}
