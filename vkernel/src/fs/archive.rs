//! Archives (cpio, `newc`): the files that a VM begins with.

use super::path::{Last, Place, Position, Target};
use super::{Attribute, New};
use crate::errno::{Errno, Result};
use crate::task::credentials::Birth;
use alloc::sync::Arc;
use core::str::from_utf8;
use linux_raw_sys::general as linux;

/// Unpacks an archive, whose bytes stay in RAM for ever, into the root directory. Files' contents stay where they are until they change.
///
/// # Errors
/// `EINVAL` for an archive that is none; others if a file cannot be made.
pub fn unpack(archive: &'static [u8], root: &Arc<Place>) -> Result<()> {
    if !archive.starts_with(b"07070") {
        return Err(Errno::INVAL);
    }
    let position = Position { current: Arc::clone(root), root: Arc::clone(root), mask: 0, user: Arc::default() };
    for entry in cpio_reader::iter_files(archive) {
        let name = entry.name().trim_start_matches("./").trim_matches('/');
        if name.is_empty() || name == "." || name == "TRAILER!!!" {
            continue;
        }
        let mode = entry.mode().bits();
        let (directory, name) = parent(&position, root, name)?;
        let node = match mode & linux::S_IFMT {
            linux::S_IFDIR => directory.node.create(&name, New::Directory, Birth::root(mode)),
            linux::S_IFLNK => {
                let target = from_utf8(entry.file()).map_err(|_| Errno::INVAL)?;
                directory.node.create(&name, New::Link(target.trim_end_matches('\0').into()), Birth::root(mode))
            }
            linux::S_IFCHR => {
                let part = |part: Option<u32>| u64::from(part.unwrap_or(0));
                let number = super::device::number(part(entry.rdevmajor()), part(entry.rdevminor()));
                directory.node.create(&name, New::Device(number), Birth::root(mode))
            }
            linux::S_IFIFO => directory.node.create(&name, New::Pipe, Birth::root(mode)),
            _ => {
                let memory = directory.node.as_memory().ok_or(Errno::ROFS)?;
                memory.add_static(&name, entry.file(), mode)?;
                directory.node.lookup(&name)
            }
        };
        match node {
            Err(Errno::EXIST) if mode & linux::S_IFMT == linux::S_IFDIR => continue,
            Err(why) => return Err(why),
            Ok(node) => {
                let time = entry.mtime() * crate::task::timers::SECOND;
                node.set(Attribute::Owner(Some(entry.uid()), Some(entry.gid())))?;
                node.set(Attribute::Times(Some(time), Some(time)))?;
            }
        }
    }
    Ok(())
}

/// Finds the directory of a path, and makes those that are missing.
fn parent(position: &Position, root: &Arc<Place>, path: &str) -> Result<(Arc<Place>, alloc::string::String)> {
    let Some((directory, name)) = path.rsplit_once('/') else { return Ok((Arc::clone(root), path.into())) };
    let mut at = Arc::clone(root);
    for part in directory.split('/') {
        at = match position.find(&at, part, Last::Follow)? {
            Target::Present(place) => place,
            Target::Absent(place, name) => {
                place.node.create(&name, New::Directory, Birth::root(0o755))?;
                place.child(&name)?
            }
        };
    }
    Ok((at, name.into()))
}
