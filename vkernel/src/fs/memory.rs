//! File systems in memory.

use super::{Attribute, Entry, Kind, MOST_NAME, New, Node, Status, Stream, new_id};
use super::{device, pipe};
use crate::errno::{Errno, Result};
use crate::memory::object::{Object, Store};
use crate::sync::Mutex;
use crate::task::credentials::Birth;
use crate::task::timers;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

/// The content of a node.
#[derive(Debug)]
enum Content {
    File(Arc<Store>),
    Directory(Mutex<Names>),
    Link(String),
    Pipe(Arc<pipe::Pipe>),
    Device(u64),
    Socket,
}

/// The names of a directory.
#[derive(Debug, Default)]
struct Names {
    all: BTreeMap<String, Arc<dyn Node>>,
    /// True if the directory itself has been removed.
    is_removed: bool,
}

/// The description of a node that can change.
#[derive(Clone, Copy, Debug)]
struct Meta {
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    times: [u64; 3],
}

/// A node in memory.
#[derive(Debug)]
pub struct MemoryNode {
    system: u64,
    number: u64,
    meta: Mutex<Meta>,
    content: Content,
}

impl MemoryNode {
    fn make(system: u64, content: Content, birth: Birth) -> Arc<Self> {
        let links = if matches!(content, Content::Directory(_)) { 2 } else { 1 };
        let Birth { mode, uid, gid } = birth;
        let meta = Meta { mode: mode & 0o7777, uid, gid, links, times: [timers::time_of_day(); 3] };
        Arc::new(Self { system, number: new_id(), meta: Mutex::new(meta), content })
    }

    /// Makes a file system, and returns its root.
    #[must_use]
    pub fn root(mode: u32) -> Arc<dyn Node> {
        Self::make(new_id(), Content::Directory(Mutex::default()), Birth::root(mode))
    }

    /// Makes a file without a name, in the file system of a directory or in none.
    #[must_use]
    pub fn unnamed(directory: Option<&Self>, birth: Birth) -> Arc<dyn Node> {
        let system = directory.map_or(0, |directory| directory.system);
        let file = Self::make(system, Content::File(Store::new(0)), birth);
        file.meta.lock().links = 0;
        file
    }

    /// Adds a file whose content stays in RAM for ever.
    ///
    /// # Errors
    /// As [`Node::create`].
    pub fn add_static(&self, name: &str, content: &'static [u8], mode: u32) -> Result<()> {
        let node = Self::make(self.system, Content::File(Store::from_static(content)), Birth::root(mode));
        self.add(name, node)
    }

    fn names(&self) -> Result<&Mutex<Names>> {
        match &self.content {
            Content::Directory(names) => Ok(names),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn add(&self, name: &str, node: Arc<dyn Node>) -> Result<()> {
        if name.len() > MOST_NAME {
            return Err(Errno::NAMETOOLONG);
        }
        let is_directory = node.status().kind == Kind::Directory;
        let mut names = self.names()?.lock();
        if names.is_removed {
            return Err(Errno::NOENT);
        }
        if names.all.contains_key(name) {
            return Err(Errno::EXIST);
        }
        names.all.insert(name.into(), node);
        self.changed(if is_directory { 1 } else { 0 });
        Ok(())
    }

    /// Records a change of a directory's names, and of the links to it.
    fn changed(&self, links: i32) {
        let mut meta = self.meta.lock();
        let now = timers::time_of_day();
        meta.links = meta.links.wrapping_add_signed(links);
        (meta.times[1], meta.times[2]) = (now, now);
    }

    fn add_links(&self, count: i32) {
        let mut meta = self.meta.lock();
        meta.links = meta.links.wrapping_add_signed(count);
        meta.times[2] = timers::time_of_day();
    }

    fn is_empty(&self) -> bool {
        self.names().is_ok_and(|names| names.lock().all.is_empty())
    }
}

/// Records that a name that led to a node is gone.
fn lost_name(node: &Arc<dyn Node>) {
    if let Some(memory) = node.as_memory() {
        match &memory.content {
            Content::Directory(names) => {
                names.lock().is_removed = true;
                memory.add_links(-2);
            }
            _ => memory.add_links(-1),
        }
    }
}

impl Node for MemoryNode {
    fn status(&self) -> Status {
        let meta = *self.meta.lock();
        let (kind, bytes, used, device) = match &self.content {
            Content::File(store) => (Kind::File, store.bytes(), store.frames() * 4096, 0),
            Content::Directory(names) => (Kind::Directory, 20 * names.lock().all.len() as u64, 0, 0),
            Content::Link(target) => (Kind::Link, target.len() as u64, 0, 0),
            Content::Pipe(_) => (Kind::Pipe, 0, 0, 0),
            Content::Device(device) => (Kind::Device, 0, 0, *device),
            Content::Socket => (Kind::Socket, 0, 0, 0),
        };
        Status {
            id: (self.system, self.number),
            kind,
            mode: meta.mode,
            links: meta.links,
            uid: meta.uid,
            gid: meta.gid,
            device,
            bytes,
            used,
            times: meta.times,
        }
    }

    fn set(&self, attribute: Attribute) -> Result<()> {
        let now = timers::time_of_day();
        if let Attribute::Bytes(bytes) = attribute {
            let Content::File(store) = &self.content else { return Err(Errno::INVAL) };
            store.resize(bytes);
            self.changed(0);
            return Ok(());
        }
        let mut meta = self.meta.lock();
        meta.times[2] = now;
        match attribute {
            Attribute::Mode(mode) => meta.mode = mode & 0o7777,
            Attribute::Owner(uid, gid) => {
                meta.uid = uid.unwrap_or(meta.uid);
                meta.gid = gid.unwrap_or(meta.gid);
            }
            Attribute::Times(access, change) => {
                meta.times[0] = access.unwrap_or(meta.times[0]);
                meta.times[1] = change.unwrap_or(meta.times[1]);
            }
            Attribute::Bytes(_) => {}
        }
        Ok(())
    }

    fn lookup(&self, name: &str) -> Result<Arc<dyn Node>> {
        self.names()?.lock().all.get(name).cloned().ok_or(Errno::NOENT)
    }

    fn entries(&self) -> Result<Vec<Entry>> {
        let nodes: Vec<_> =
            self.names()?.lock().all.iter().map(|(name, node)| (name.clone(), Arc::clone(node))).collect();
        let entry = |(name, node): (String, Arc<dyn Node>)| {
            let status = node.status();
            Entry { name, node: status.id.1, kind: status.kind }
        };
        Ok(nodes.into_iter().map(entry).collect())
    }

    fn create(&self, name: &str, new: New, birth: Birth) -> Result<Arc<dyn Node>> {
        let content = match new {
            New::File => Content::File(Store::new(0)),
            New::Directory => Content::Directory(Mutex::default()),
            New::Link(target) => Content::Link(target),
            New::Pipe => Content::Pipe(pipe::Pipe::new()),
            New::Device(number) => Content::Device(number),
            New::Socket => Content::Socket,
        };
        let node = Self::make(self.system, content, birth);
        let node: Arc<dyn Node> = node;
        self.add(name, Arc::clone(&node))?;
        Ok(node)
    }

    fn link(&self, name: &str, node: &Arc<dyn Node>) -> Result<()> {
        let memory = node.as_memory().filter(|node| node.system == self.system).ok_or(Errno::XDEV)?;
        if matches!(memory.content, Content::Directory(_)) {
            return Err(Errno::PERM);
        }
        self.add(name, Arc::clone(node))?;
        memory.add_links(1);
        Ok(())
    }

    fn unlink(&self, name: &str, is_directory: bool) -> Result<()> {
        let node = self.lookup(name)?;
        let has_directory = node.status().kind == Kind::Directory;
        match (has_directory, is_directory) {
            (true, false) => return Err(Errno::ISDIR),
            (false, true) => return Err(Errno::NOTDIR),
            (true, true) if node.as_memory().is_none_or(|node| !node.is_empty()) => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        let mut names = self.names()?.lock();
        // Another process may have been here first.
        if !names.all.get(name).is_some_and(|now| Arc::ptr_eq(now, &node)) {
            return Err(Errno::NOENT);
        }
        names.all.remove(name);
        drop(names);
        lost_name(&node);
        self.changed(if has_directory { -1 } else { 0 });
        Ok(())
    }

    fn rename(&self, name: &str, to: &Arc<dyn Node>, new_name: &str, flags: u32) -> Result<()> {
        let to = to.as_memory().filter(|to| to.system == self.system).ok_or(Errno::XDEV)?;
        if new_name.len() > MOST_NAME {
            return Err(Errno::NAMETOOLONG);
        }
        // One at a time: the names of two directories change as one.
        static RENAMES: Mutex<()> = Mutex::new(());
        let _one = RENAMES.lock();
        let node = self.lookup(name)?;
        let old = to.lookup(new_name).ok();
        if flags & linux::RENAME_NOREPLACE != 0 && old.is_some() {
            return Err(Errno::EXIST);
        }
        let is_directory = |node: &Arc<dyn Node>| node.status().kind == Kind::Directory;
        if flags & linux::RENAME_EXCHANGE != 0 {
            let old = old.ok_or(Errno::NOENT)?;
            self.names()?.lock().all.insert(name.into(), Arc::clone(&old));
            to.names()?.lock().all.insert(new_name.into(), Arc::clone(&node));
            let change = i32::from(is_directory(&old)) - i32::from(is_directory(&node));
            self.changed(change);
            to.changed(-change);
            return Ok(());
        }
        if let Some(old) = &old {
            if Arc::ptr_eq(old, &node) {
                return Ok(());
            }
            match (is_directory(&node), is_directory(old)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if old.as_memory().is_none_or(|old| !old.is_empty()) => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        self.names()?.lock().all.remove(name);
        let before = to.names()?.lock().all.insert(new_name.into(), Arc::clone(&node));
        let moved = i32::from(is_directory(&node));
        self.changed(-moved);
        to.changed(moved - before.as_ref().map_or(0, |old| i32::from(is_directory(old))));
        if let Some(before) = before {
            lost_name(&before);
        }
        if let Some(node) = node.as_memory() {
            node.add_links(0);
        }
        Ok(())
    }

    fn target(&self) -> Result<String> {
        match &self.content {
            Content::Link(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        }
    }

    fn open(&self, flags: u32) -> Result<Option<Arc<dyn Stream>>> {
        match &self.content {
            Content::Pipe(pipe) => Ok(Some(pipe.open(flags))),
            Content::Device(number) => device::open(*number).map(Some),
            Content::Socket => Err(Errno::NXIO),
            _ => Ok(None),
        }
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        match &self.content {
            Content::File(store) => Ok(store.read(offset, to)),
            Content::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<usize> {
        match &self.content {
            Content::File(store) => {
                let count = store.write(offset, from)?;
                self.changed(0);
                Ok(count)
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn object(&self) -> Option<Arc<dyn Object>> {
        match &self.content {
            Content::File(store) => Some(Arc::clone(store) as Arc<dyn Object>),
            _ => None,
        }
    }

    fn as_memory(&self) -> Option<&MemoryNode> {
        Some(self)
    }
}
