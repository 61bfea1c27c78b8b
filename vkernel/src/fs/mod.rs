//! Files: nodes of file systems, and what programs have open.

pub mod archive;
pub mod descriptors;
pub mod device;
pub mod event;
pub mod handle;
pub mod lock;
pub mod memory;
pub mod path;
pub mod pipe;
pub mod process;
pub mod signal;
pub mod socket;
pub mod text;

use crate::errno::{Errno, Result};
use crate::memory::object::Object;
use crate::task::Task;
use crate::task::credentials::Birth;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Waker;
use linux_raw_sys::general as linux;

/// The kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A character device.
    Device,
    /// A pipe, with a name or without.
    Pipe,
    /// A socket.
    Socket,
}

impl Kind {
    /// Returns the bits in `st_mode`.
    #[must_use]
    pub const fn mode(self) -> u32 {
        match self {
            Self::File => linux::S_IFREG,
            Self::Directory => linux::S_IFDIR,
            Self::Link => linux::S_IFLNK,
            Self::Device => linux::S_IFCHR,
            Self::Pipe => linux::S_IFIFO,
            Self::Socket => linux::S_IFSOCK,
        }
    }

    /// Returns the type in a directory's entry.
    #[must_use]
    pub const fn entry(self) -> u8 {
        (self.mode() >> 12) as u8
    }
}

/// The description of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// The file system and the node's number there.
    pub id: (u64, u64),
    /// The kind.
    pub kind: Kind,
    /// Permissions, with set-user-id and the like.
    pub mode: u32,
    /// Names that lead to it.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The number of a device.
    pub device: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes that it takes.
    pub used: u64,
    /// Nanoseconds since 1970 of the last access, change of content, and change of this description.
    pub times: [u64; 3],
}

impl Status {
    /// Returns that of a node which is not in a file system of its own.
    #[must_use]
    pub const fn plain(id: (u64, u64), kind: Kind, mode: u32) -> Self {
        Self { id, kind, mode, links: 1, uid: 0, gid: 0, device: 0, bytes: 0, used: 0, times: [0; 3] }
    }
}

/// A change of a node's description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attribute {
    /// Permissions.
    Mode(u32),
    /// Owner and group, as far as they change.
    Owner(Option<u32>, Option<u32>),
    /// Times of access and of change, in nanoseconds since 1970, as far as they change.
    Times(Option<u64>, Option<u64>),
    /// The size.
    Bytes(u64),
}

/// A node that is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum New {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link to a path.
    Link(String),
    /// A pipe.
    Pipe,
    /// A device with this number.
    Device(u64),
    /// The name of a socket.
    Socket,
}

/// The description of a file system, in its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct System {
    /// Its kind, by Linux's number.
    pub kind: u64,
    /// Bytes of a block.
    pub block: u64,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks that a user may fill.
    pub available: u64,
    /// Nodes that there can be.
    pub files: u64,
    /// Nodes that can be made.
    pub free_files: u64,
    /// Bytes of the longest name.
    pub name: u64,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// The node's number.
    pub node: u64,
    /// The kind.
    pub kind: Kind,
}

/// A node of a file system. What a kind does not have is an error.
pub trait Node: Debug + Send + Sync {
    /// Returns the description.
    fn status(&self) -> Status;

    /// Asks for the description again, if the node is one of another computer's.
    ///
    /// # Errors
    /// The server's.
    fn refresh(&self) -> Result<()> {
        Ok(())
    }

    /// Returns whether reads and writes may have to wait for another computer ([`Errno::HOST`]).
    fn is_remote(&self) -> bool {
        false
    }

    /// Changes the description.
    ///
    /// # Errors
    /// `EPERM` for nodes that the kernel makes.
    fn set(&self, _attribute: Attribute) -> Result<()> {
        Err(Errno::PERM)
    }

    /// Finds the node of a name in a directory.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOENT`.
    fn lookup(&self, _name: &str) -> Result<Arc<dyn Node>> {
        Err(Errno::NOTDIR)
    }

    /// Finds the node of a name in a directory, of a path that goes on with other names.
    ///
    /// # Errors
    /// As [`Node::lookup`].
    fn lookup_ahead(&self, name: &str, _rest: &mut dyn Iterator<Item = &str>) -> Result<Arc<dyn Node>> {
        self.lookup(name)
    }

    /// Returns the entries of a directory, without `.` and `..`.
    ///
    /// # Errors
    /// `ENOTDIR`.
    fn entries(&self) -> Result<Vec<Entry>> {
        Err(Errno::NOTDIR)
    }

    /// Makes a node in a directory.
    ///
    /// # Errors
    /// `EEXIST`; `EPERM` in directories of the kernel's.
    fn create(&self, _name: &str, _new: New, _birth: Birth) -> Result<Arc<dyn Node>> {
        Err(Errno::PERM)
    }

    /// Gives a node another name, in this directory.
    ///
    /// # Errors
    /// `EEXIST`, `EXDEV`, `EPERM`.
    fn link(&self, _name: &str, _node: &Arc<dyn Node>) -> Result<()> {
        Err(Errno::PERM)
    }

    /// Removes a name from a directory.
    ///
    /// # Errors
    /// `ENOENT`; `EISDIR` or `ENOTDIR` for the other kind; `ENOTEMPTY`.
    fn unlink(&self, _name: &str, _is_directory: bool) -> Result<()> {
        Err(Errno::PERM)
    }

    /// Moves a name to another directory, or exchanges both.
    ///
    /// # Errors
    /// As `rename(2)`.
    fn rename(&self, _name: &str, _to: &Arc<dyn Node>, _new_name: &str, _flags: u32) -> Result<()> {
        Err(Errno::PERM)
    }

    /// Returns where a symbolic link leads.
    ///
    /// # Errors
    /// `EINVAL` for other kinds.
    fn target(&self) -> Result<String> {
        Err(Errno::INVAL)
    }

    /// Returns the node that a link leads to, if it leads there without a path.
    fn destination(&self) -> Option<Arc<path::Place>> {
        None
    }

    /// Opens a node that is not read by position.
    ///
    /// # Errors
    /// `ENXIO`, `ENODEV`.
    fn open(&self, _flags: u32) -> Result<Option<Arc<dyn Stream>>> {
        Ok(None)
    }

    /// Reads from an offset on.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL`.
    fn read_at(&self, _offset: u64, _to: &mut [u8]) -> Result<usize> {
        Err(if self.status().kind == Kind::Directory { Errno::ISDIR } else { Errno::INVAL })
    }

    /// Writes from an offset on.
    ///
    /// # Errors
    /// `EINVAL`, `ENOSPC`.
    fn write_at(&self, _offset: u64, _from: &[u8]) -> Result<usize> {
        Err(Errno::INVAL)
    }

    /// Writes at the end. Returns the offset behind what was written, and its bytes.
    ///
    /// # Errors
    /// As [`Node::write_at`].
    fn append(&self, from: &[u8]) -> Result<(u64, usize)> {
        let end = self.status().bytes;
        let count = self.write_at(end, from)?;
        Ok((end + count as u64, count))
    }

    /// Writes to stable storage what was written: the content alone, if only that is wanted.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`.
    fn flush(&self, _only_data: bool) -> Result<()> {
        Ok(())
    }

    /// Returns the description of the file system, if it is not in memory.
    ///
    /// # Errors
    /// The server's.
    fn system(&self) -> Result<Option<System>> {
        Ok(None)
    }

    /// Returns the content as memory that spaces map.
    fn object(&self) -> Option<Arc<dyn Object>> {
        None
    }

    /// Returns this node as one of a share's.
    fn as_share(&self) -> Option<&crate::share::Node> {
        None
    }

    /// Returns this node as one of the file systems in memory.
    fn as_memory(&self) -> Option<&memory::MemoryNode> {
        None
    }
}

/// The operations that a stream is ready for: bits as `poll` has them.
pub type Ready = u32;
/// Something can be read.
pub const IN: Ready = linux::POLLIN;
/// Something can be written.
pub const OUT: Ready = linux::POLLOUT;
/// The other side has gone.
pub const HUP: Ready = linux::POLLHUP;
/// Writing fails.
pub const ERR: Ready = linux::POLLERR;

/// An open file that is not read by position.
pub trait Stream: Debug + Send + Sync {
    /// Reads bytes; 0 is the end.
    ///
    /// # Errors
    /// `EAGAIN` if there is nothing yet.
    fn read(&self, _to: &mut [u8]) -> Result<usize> {
        Err(Errno::BADF)
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// `EAGAIN` if there is no room yet; `EPIPE`.
    fn write(&self, _from: &[u8]) -> Result<usize> {
        Err(Errno::BADF)
    }

    /// Returns for what it is ready. The waker is called when that changes.
    fn ready(&self, waker: Option<&Waker>) -> Ready;

    /// Returns the description.
    fn status(&self) -> Status;

    /// Handles an `ioctl`.
    ///
    /// # Errors
    /// `ENOTTY`.
    fn ioctl(&self, _task: &mut Task, _request: u32, _argument: u64) -> Result<u64> {
        Err(Errno::NOTTY)
    }

    /// Returns this stream as a set of events, if it is one.
    fn as_events(&self) -> Option<&event::Events> {
        None
    }

    /// Returns this stream as a timer, if it is one.
    fn as_timer(&self) -> Option<Arc<event::Timer>> {
        None
    }

    /// Returns this stream as a file of signals, if it is one.
    fn as_signals(&self) -> Option<&signal::Signals> {
        None
    }

    /// Returns the process that this stream stands for, if it stands for one.
    fn as_process(&self) -> Option<&Arc<crate::task::Process>> {
        None
    }

    /// Returns this stream as a socket, if it is one.
    fn as_socket(&self) -> Option<&socket::Socket> {
        None
    }

    /// Returns this stream as a pipe's end, if it is one.
    fn as_pipe(&self) -> Option<&pipe::End> {
        None
    }
}

/// Numbers of nodes and streams that the kernel makes.
static LAST_ID: AtomicU64 = AtomicU64::new(1);

/// Returns a number for a node.
#[must_use]
pub fn new_id() -> u64 {
    LAST_ID.fetch_add(1, Ordering::Relaxed) + 1
}

/// The most bytes of a name.
pub const MOST_NAME: usize = 255;
/// The most bytes of a path.
pub const MOST_PATH: usize = 4096;

#[cfg(test)]
mod tests;
