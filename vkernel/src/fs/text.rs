//! Files and directories whose content the kernel makes when they are read.

use super::path::Place;
use super::{Entry, Kind, Node, Status};
use crate::errno::{Errno, Result};
use crate::task::credentials::Birth;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// A file with a content made at each read.
pub struct Text {
    id: (u64, u64),
    make: alloc::boxed::Box<dyn Fn() -> Vec<u8> + Send + Sync>,
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Text {
    /// Makes one with that number.
    #[must_use]
    pub fn node(id: (u64, u64), make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Arc<dyn Node> {
        Arc::new(Self { id, make: alloc::boxed::Box::new(make) })
    }
}

impl Node for Text {
    fn status(&self) -> Status {
        Status::plain(self.id, Kind::File, 0o444)
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let all = (self.make)();
        let rest = all.get(offset as usize..).unwrap_or(&[]);
        let count = rest.len().min(to.len());
        to[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, _offset: u64, _from: &[u8]) -> Result<usize> {
        Err(Errno::ACCES)
    }
}

/// A symbolic link with a target made when it is followed.
#[derive(Debug)]
pub struct Link {
    id: (u64, u64),
    target: String,
    place: Option<Arc<Place>>,
}

impl Link {
    /// Makes one to a path, and to a place if that is known.
    #[must_use]
    pub fn node(id: (u64, u64), target: String, place: Option<Arc<Place>>) -> Arc<dyn Node> {
        Arc::new(Self { id, target, place })
    }
}

impl Node for Link {
    fn status(&self) -> Status {
        Status { bytes: self.target.len() as u64, ..Status::plain(self.id, Kind::Link, 0o777) }
    }

    fn target(&self) -> Result<String> {
        Ok(self.target.clone())
    }

    fn destination(&self) -> Option<Arc<Place>> {
        self.place.clone()
    }
}

/// Finds an entry.
type Find = dyn Fn(&str) -> Option<Arc<dyn Node>> + Send + Sync;

/// A directory whose entries are made when it is read.
pub struct Directory {
    id: (u64, u64),
    find: alloc::boxed::Box<Find>,
    names: alloc::boxed::Box<dyn Fn() -> Vec<String> + Send + Sync>,
    owner: Birth,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Directory {
    /// Makes one with that number.
    #[must_use]
    pub fn node(
        id: (u64, u64),
        names: impl Fn() -> Vec<String> + Send + Sync + 'static,
        find: impl Fn(&str) -> Option<Arc<dyn Node>> + Send + Sync + 'static,
    ) -> Arc<dyn Node> {
        Self::owned(id, Birth::root(0o555), names, find)
    }

    /// Makes one with a mode and an owner.
    #[must_use]
    pub fn owned(
        id: (u64, u64),
        owner: Birth,
        names: impl Fn() -> Vec<String> + Send + Sync + 'static,
        find: impl Fn(&str) -> Option<Arc<dyn Node>> + Send + Sync + 'static,
    ) -> Arc<dyn Node> {
        Arc::new(Self { id, find: alloc::boxed::Box::new(find), names: alloc::boxed::Box::new(names), owner })
    }
}

impl Node for Directory {
    fn status(&self) -> Status {
        let Birth { mode, uid, gid } = self.owner;
        Status { links: 2, uid, gid, ..Status::plain(self.id, Kind::Directory, mode) }
    }

    fn lookup(&self, name: &str) -> Result<Arc<dyn Node>> {
        (self.find)(name).ok_or(Errno::NOENT)
    }

    fn entries(&self) -> Result<Vec<Entry>> {
        let entry = |name: String| {
            let status = (self.find)(&name)?.status();
            Some(Entry { name, node: status.id.1, kind: status.kind })
        };
        Ok((self.names)().into_iter().filter_map(entry).collect())
    }
}
