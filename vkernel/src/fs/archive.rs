//! Archives (cpio, `newc`): the files that a VM begins with.

use super::path::{Last, Place, Position, Target};
use super::{Attribute, New};
use crate::errno::{Errno, Result};
use crate::task::credentials::Birth;
use alloc::sync::Arc;
use core::str::from_utf8;
use linux_raw_sys::general as linux;

/// A file of an archive.
struct Entry {
    name: &'static str,
    mode: u32,
    owner: (u32, u32),
    /// Seconds since 1970.
    time: u64,
    device: (u32, u32),
    content: &'static [u8],
}

/// The files of an archive, and of archives that follow. Contents are not looked at: they may be large, and not needed.
struct Entries {
    archive: &'static [u8],
    at: usize,
}

impl Entries {
    /// Reads the next entry; `None` at the end.
    ///
    /// # Errors
    /// `EINVAL` for what is no entry.
    fn read(&mut self) -> Result<Option<Entry>> {
        const MAGICS: [&[u8]; 2] = [b"070701", b"070702"];
        /// The magic, and 13 fields of 8 hexadecimal digits.
        const HEADER: usize = 110;
        let rest = self.archive.get(self.at..).unwrap_or_default();
        // Loaders fill up the last page.
        let Some(gap) = rest.iter().position(|byte| *byte != 0) else { return Ok(None) };
        self.at += gap;
        let rest = &rest[gap..];
        let header = rest.get(..HEADER).filter(|header| MAGICS.contains(&&header[..6])).ok_or(Errno::INVAL)?;
        let field = |n: usize| {
            let digits = from_utf8(&header[6 + 8 * n..14 + 8 * n]).ok()?;
            u32::from_str_radix(digits, 16).ok()
        };
        let word = |n| field(n).ok_or(Errno::INVAL);
        let (bytes, name_bytes) = (word(6)? as usize, word(11)? as usize);
        let name =
            rest.get(HEADER..HEADER + name_bytes).and_then(|name| name.strip_suffix(&[0])).ok_or(Errno::INVAL)?;
        // Both are followed by the next multiple of four bytes.
        let begin = (HEADER + name_bytes).next_multiple_of(4);
        let content = rest.get(begin..begin + bytes).ok_or(Errno::INVAL)?;
        self.at += (begin + bytes).next_multiple_of(4);
        Ok(Some(Entry {
            name: from_utf8(name).map_err(|_| Errno::INVAL)?,
            mode: word(1)?,
            owner: (word(2)?, word(3)?),
            time: word(5)?.into(),
            device: (word(9)?, word(10)?),
            content,
        }))
    }
}

/// Unpacks an archive, whose bytes stay in RAM for ever, into the root directory. Files' contents stay where they are until they change.
///
/// # Errors
/// `EINVAL` for an archive that is none; others if a file cannot be made.
pub fn unpack(archive: &'static [u8], root: &Arc<Place>) -> Result<()> {
    if archive.is_empty() {
        return Err(Errno::INVAL);
    }
    let position = Position { current: Arc::clone(root), root: Arc::clone(root), mask: 0, user: Arc::default() };
    let mut entries = Entries { archive, at: 0 };
    while let Some(entry) = entries.read()? {
        let name = entry.name.trim_start_matches("./").trim_matches('/');
        if name.is_empty() || name == "." || name == "TRAILER!!!" {
            continue;
        }
        let mode = entry.mode;
        let (directory, name) = parent(&position, root, name)?;
        let node = match mode & linux::S_IFMT {
            linux::S_IFDIR => directory.node.create(&name, New::Directory, Birth::root(mode)),
            linux::S_IFLNK => {
                let target = from_utf8(entry.content).map_err(|_| Errno::INVAL)?;
                directory.node.create(&name, New::Link(target.trim_end_matches('\0').into()), Birth::root(mode))
            }
            linux::S_IFCHR => {
                let number = super::device::number(entry.device.0.into(), entry.device.1.into());
                directory.node.create(&name, New::Device(number), Birth::root(mode))
            }
            linux::S_IFIFO => directory.node.create(&name, New::Pipe, Birth::root(mode)),
            _ => {
                let memory = directory.node.as_memory().ok_or(Errno::ROFS)?;
                memory.add_static(&name, entry.content, mode)?;
                directory.node.lookup(&name)
            }
        };
        match node {
            Err(Errno::EXIST) if mode & linux::S_IFMT == linux::S_IFDIR => continue,
            Err(why) => return Err(why),
            Ok(node) => {
                let time = entry.time * crate::task::timers::SECOND;
                node.set(Attribute::Owner(Some(entry.owner.0), Some(entry.owner.1)))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::memory::MemoryNode;
    use alloc::format;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn entry(to: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) {
        let fields = [1, mode, 7, 8, 1, 9, content.len() as u32, 0, 0, 5, 1, name.len() as u32 + 1, 0];
        let digits = fields.iter().map(|field| format!("{field:08x}")).collect::<alloc::string::String>();
        to.extend(format!("070701{digits}{name}\0").bytes());
        to.resize(to.len().next_multiple_of(4), 0);
        to.extend(content);
        to.resize(to.len().next_multiple_of(4), 0);
    }

    fn two_archives() -> Vec<u8> {
        let mut bytes = Vec::new();
        entry(&mut bytes, "./a/b", linux::S_IFREG | 0o640, b"hello");
        entry(&mut bytes, "l", linux::S_IFLNK | 0o777, b"a/b");
        entry(&mut bytes, "TRAILER!!!", 0, b"");
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        entry(&mut bytes, "n", linux::S_IFCHR | 0o600, b"");
        entry(&mut bytes, "TRAILER!!!", 0, b"");
        bytes
    }

    fn unpacked(bytes: Vec<u8>) -> Result<Arc<Place>> {
        let root = Place::root(MemoryNode::root(0o755));
        unpack(Vec::leak(bytes), &root).map(|()| root)
    }

    #[test]
    fn files_of_all_archives_are_there() {
        let root = unpacked(two_archives()).expect("two archives");
        let file = root.node.lookup("a").and_then(|a| a.lookup("b")).expect("the file");
        let mut content = [0; 9];
        assert_eq!(file.read_at(0, &mut content), Ok(5));
        assert_eq!(&content[..5], b"hello");
        let status = file.status();
        assert_eq!((status.mode & 0o7777, status.bytes), (0o640, 5));
        assert_eq!(root.node.lookup("n").expect("the device").status().device, super::super::device::number(5, 1));
        assert!(root.node.lookup("l").is_ok());
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let mut one = Vec::new();
        entry(&mut one, "a", linux::S_IFREG | 0o644, b"0123");
        for end in 0..one.len() {
            assert_eq!(unpacked(one[..end].to_vec()).err(), Some(Errno::INVAL), "{end}");
        }
        assert!(unpacked(one).is_ok());
        assert_eq!(unpacked(vec![0x1f, 0x8b, 8, 0]).err(), Some(Errno::INVAL));
    }

    proptest! {
        #[test]
        fn changed_bytes_are_files_or_refused(at in 0usize..900, byte: u8) {
            let mut bytes = two_archives();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = unpacked(bytes);
        }
    }
}
