//! The server of a share: it answers 9P2000.L messages with the files of one directory of the host.
//!
//! A file number (*fid*) of the client is a descriptor of this process. Each operation starts from such a descriptor and
//! a single name in it, never from a path. So no path can be too long, a file that is renamed or removed stays the same
//! file, and a symbolic link is never followed here: the guest's kernel follows links within its own mount.
//!
//! The modules, from bottom to top:
//!
//! 1. [`wire`]: the format of messages and answers.
//! 2. [`files`]: operations on files by descriptors.
//! 3. [`identity`]: numbers of files that are unique across file systems.
//! 4. [`fids`]: the client's file numbers, and the bounds of what they may hold.
//! 5. [`server`]: the answer to each message.
//! 6. [`link`]: the loop that serves a socket, and its packets.
#![forbid(unsafe_code)]

pub mod fids;
pub mod files;
pub mod identity;
pub mod link;
pub mod server;
pub mod wire;
