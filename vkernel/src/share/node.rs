//! Nodes of a share, and their cached pages.
//!
//! A file of the host is one node as long as the node is used: the share finds it by the server's number of the file.

use super::client::{Client, Fid};
use super::ledger::{Key, Output, perform};
use super::operation::{self, Attributes, MOST_READ};
use crate::errno::{Errno, Result};
use crate::fs::{Attribute, Entry, Kind, New, Node, Status, Stream, System, device, new_id, pipe};
use crate::memory::frames::{Frame, PAGE};
use crate::memory::object::{NoPage, Object};
use crate::sync::{Mutex, Once};
use crate::task::credentials::Birth;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use linux_raw_sys::general as linux;

/// Names of a path that are looked up at once, at most.
const MOST_AHEAD: usize = 64;
const PAGE_U64: u64 = PAGE as u64;

/// A share's session, and its nodes.
#[derive(Debug)]
struct Session {
    client: Arc<Client>,
    /// The number of the file system.
    system: u64,
    /// Nodes by the server's numbers.
    nodes: Mutex<BTreeMap<u64, Weak<ShareNode>>>,
}

/// File numbers by which a file is open.
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    pub(super) read: Option<Arc<Fid>>,
    pub(super) write: Option<Arc<Fid>>,
    pub(super) append: Option<Arc<Fid>>,
}

/// A node of a share.
pub struct ShareNode {
    session: Arc<Session>,
    own: Weak<Self>,
    /// The kernel's number of the node, unique as long as the kernel runs.
    pub(super) number: u64,
    /// The number that names the file. It is never opened.
    pub(super) fid: Fid,
    /// The description that the server has given last.
    status: Mutex<Status>,
    pub(super) files: Mutex<Files>,
    pages: Mutex<BTreeMap<u64, Frame>>,
    /// The pipe that a pipe with a name stands for: the kernel's own.
    pipe: Once<Arc<pipe::Pipe>>,
}

impl fmt::Debug for ShareNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShareNode").field("fid", &self.fid.number).finish_non_exhaustive()
    }
}

impl Drop for ShareNode {
    fn drop(&mut self) {
        let identity = self.status.get_mut().id.1;
        let mut nodes = self.session.nodes.lock();
        // Another node may have taken the place.
        if nodes.get(&identity).is_some_and(|known| known.strong_count() == 0) {
            nodes.remove(&identity);
        }
    }
}

impl ShareNode {
    /// Begins a session, and returns the root directory. Polls the device.
    pub(super) fn attach(client: &Arc<Client>) -> Result<Arc<dyn Node>> {
        let session = Arc::new(Session { client: Arc::clone(client), system: new_id(), nodes: Mutex::default() });
        let begin = async move {
            let fid = session.client.begin().await?;
            let unknown = Status::plain((session.system, 0), Kind::Directory, 0);
            let root = Self::make(&session, fid, unknown);
            let attributes = operation::get_attributes(&root, &root.fid).await?;
            root.update(attributes)?;
            root.status.lock().id.1 = attributes.0;
            session.nodes.lock().insert(attributes.0, Arc::downgrade(&root));
            Ok(Output::Node(root))
        };
        match super::ledger::poll_until_done(&mut (Box::pin(begin) as super::ledger::Operation))? {
            Output::Node(root) => Ok(root),
            _ => Err(Errno::IO),
        }
    }

    fn make(session: &Arc<Session>, fid: Fid, status: Status) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            session: Arc::clone(session),
            own: Weak::clone(own),
            number: new_id(),
            fid,
            status: Mutex::new(status),
            files: Mutex::default(),
            pages: Mutex::default(),
            pipe: Once::new(),
        })
    }

    pub(super) fn client(&self) -> &Arc<Client> {
        &self.session.client
    }

    /// Returns the node of a file of the same share: the one that is there, or a new one with this number.
    pub(super) fn neighbour(&self, fid: Fid, (identity, status): Attributes) -> Result<Arc<Self>> {
        let session = &self.session;
        let known = session.nodes.lock().get(&identity).and_then(Weak::upgrade);
        if let Some(known) = known
            && known.update((identity, status)).is_ok()
        {
            return Ok(known);
        }
        let new = Self::make(session, fid, Status { id: (session.system, identity), ..status });
        let mut nodes = session.nodes.lock();
        // Another thread may have been faster.
        let known = nodes.get(&identity).and_then(Weak::upgrade);
        let is_same = known.as_ref().is_some_and(|known| known.kind() == status.kind);
        if !is_same {
            nodes.insert(identity, Arc::downgrade(&new));
        }
        // A node that is dropped takes this lock.
        drop(nodes);
        Ok(known.filter(|_| is_same).unwrap_or(new))
    }

    /// Records the description that the server gives.
    ///
    /// # Errors
    /// `EIO` if the file has become one of another kind.
    pub(super) fn update(&self, (_, new): Attributes) -> Result<()> {
        let mut status = self.status.lock();
        if status.kind != new.kind {
            return Err(Errno::IO);
        }
        let has_changed = (status.bytes, status.times[1]) != (new.bytes, new.times[1]);
        *status = Status { id: status.id, ..new };
        drop(status);
        if has_changed {
            let before = core::mem::take(&mut *self.pages.lock());
            drop(before);
        }
        Ok(())
    }

    pub(super) fn kind(&self) -> Kind {
        self.status.lock().kind
    }

    /// Returns the size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.status.lock().bytes
    }

    /// Keeps pages that were read: whole ones, and the last one of the file. `needed` is kept even if others find no memory.
    pub(super) fn add_pages(&self, first: u64, bytes: &[u8], needed: u64) -> Result<()> {
        for (number, content) in (first..).zip(bytes.chunks(PAGE)) {
            if self.pages.lock().contains_key(&number) {
                continue;
            }
            let Some(frame) = Frame::zeroed() else {
                if number > needed {
                    return Ok(());
                }
                if number == needed {
                    return Err(Errno::NOMEM);
                }
                continue;
            };
            frame.write(0, content);
            self.pages.lock().entry(number).or_insert(frame);
        }
        Ok(())
    }

    /// Changes the cached pages of what was written, and the size.
    pub(super) fn has_written(&self, offset: u64, bytes: &[u8]) {
        let pages = self.pages.lock();
        let mut done = 0;
        while !pages.is_empty() && done < bytes.len() {
            let at = offset + done as u64;
            let within = (at % PAGE_U64) as usize;
            let part = &bytes[done..done + (bytes.len() - done).min(PAGE - within)];
            if let Some(frame) = pages.get(&(at / PAGE_U64)) {
                frame.write(within, part);
            }
            done += part.len();
        }
        drop(pages);
        let mut status = self.status.lock();
        status.bytes = status.bytes.max(offset.saturating_add(bytes.len() as u64)).min(i64::MAX as u64);
    }

    /// Drops the cached pages behind a new size.
    pub(super) fn has_resized(&self, bytes: u64) {
        let mut pages = self.pages.lock();
        let behind = pages.split_off(&bytes.div_ceil(PAGE_U64));
        if !bytes.is_multiple_of(PAGE_U64)
            && let Some(last) = pages.get(&(bytes / PAGE_U64))
        {
            last.clear_from((bytes % PAGE_U64) as usize);
        }
        drop(pages);
        drop(behind);
    }

    fn own(&self) -> Result<Arc<Self>> {
        self.own.upgrade().ok_or(Errno::IO)
    }

    /// A directory of the same share.
    fn same_share(&self, node: &Arc<dyn Node>) -> Result<Arc<Self>> {
        let node = node.as_share().filter(|node| Arc::ptr_eq(&node.session, &self.session)).ok_or(Errno::XDEV)?;
        node.own()
    }

    /// Makes an operation that returns nothing.
    fn change(&self, key: Key, make: impl FnOnce() -> super::ledger::Operation) -> Result<()> {
        perform(key, make).map(drop)
    }

    fn check_directory(&self) -> Result<Arc<Self>> {
        if self.kind() == Kind::Directory { self.own() } else { Err(Errno::NOTDIR) }
    }

    fn check_file(&self) -> Result<Arc<Self>> {
        match self.kind() {
            Kind::File => self.own(),
            Kind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }
}

impl Node for ShareNode {
    fn status(&self) -> Status {
        *self.status.lock()
    }

    fn refresh(&self) -> Result<()> {
        let own = self.own()?;
        self.change(Key::Refresh(self.number), || Box::pin(operation::refresh(own)))
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn as_share(&self) -> Option<&Self> {
        Some(self)
    }

    fn set(&self, attribute: Attribute) -> Result<()> {
        if matches!(attribute, Attribute::Bytes(_)) {
            self.check_file()?;
        }
        let own = self.own()?;
        // The present time is another one when the call is made again.
        let key = match attribute {
            Attribute::Times(access, change) => Attribute::Times(access.map(|_| 0), change.map(|_| 0)),
            other => other,
        };
        self.change(Key::Set(self.number, key), || Box::pin(operation::set(own, attribute)))
    }

    fn lookup(&self, name: &str) -> Result<Arc<dyn Node>> {
        self.lookup_ahead(name, &mut core::iter::empty())
    }

    fn lookup_ahead(&self, name: &str, rest: &mut dyn Iterator<Item = &str>) -> Result<Arc<dyn Node>> {
        let own = self.check_directory()?;
        let key = Key::Lookup(self.number, name.to_string());
        let walk = || {
            // A call with a long path is then not made again for each of its names.
            let rest = rest.take_while(|name| !matches!(*name, "." | "..")).take(MOST_AHEAD);
            let names = core::iter::once(name.to_string()).chain(rest.map(ToString::to_string)).collect();
            Box::pin(operation::walk(own, names)) as super::ledger::Operation
        };
        let mut found = perform(key, walk)?;
        // Without a ledger the steps are the result.
        if let Output::Walk(steps) = found {
            found = steps.into_iter().next().ok_or(Errno::IO)?.1?;
        }
        match found {
            Output::Node(node) => Ok(node),
            _ => Err(Errno::IO),
        }
    }

    fn entries(&self) -> Result<Vec<Entry>> {
        let own = self.check_directory()?;
        match perform(Key::List(self.number), || Box::pin(operation::list(own)))? {
            Output::Entries(entries) => Ok(Arc::unwrap_or_clone(entries)),
            _ => Err(Errno::IO),
        }
    }

    fn create(&self, name: &str, new: New, birth: Birth) -> Result<Arc<dyn Node>> {
        let own = self.check_directory()?;
        let key = Key::Create(self.number, name.to_string());
        match perform(key, || Box::pin(operation::create(own, name.to_string(), new, birth)))? {
            Output::Node(node) => Ok(node),
            _ => Err(Errno::IO),
        }
    }

    fn link(&self, name: &str, node: &Arc<dyn Node>) -> Result<()> {
        let (own, node) = (self.check_directory()?, self.same_share(node)?);
        if node.kind() == Kind::Directory {
            return Err(Errno::PERM);
        }
        let key = Key::Link(self.number, name.to_string());
        self.change(key, || Box::pin(operation::link(own, name.to_string(), node)))
    }

    fn unlink(&self, name: &str, is_directory: bool) -> Result<()> {
        let own = self.check_directory()?;
        let key = Key::Unlink(self.number, name.to_string());
        self.change(key, || Box::pin(operation::unlink(own, name.to_string(), is_directory)))
    }

    fn rename(&self, name: &str, to: &Arc<dyn Node>, new_name: &str, flags: u32) -> Result<()> {
        let (own, to) = (self.check_directory()?, self.same_share(to)?.check_directory()?);
        // The protocol has none, as Linux says too.
        if flags != 0 {
            return Err(Errno::INVAL);
        }
        let (name, new_name): (String, String) = (name.into(), new_name.into());
        let key = Key::Rename(self.number, name.clone(), to.number, new_name.clone());
        self.change(key, || Box::pin(operation::rename(own, name, to, new_name)))
    }

    fn target(&self) -> Result<String> {
        if self.kind() != Kind::Link {
            return Err(Errno::INVAL);
        }
        let own = self.own()?;
        match perform(Key::Target(self.number), || Box::pin(operation::target(own)))? {
            Output::Text(target) => Ok(target),
            _ => Err(Errno::IO),
        }
    }

    fn open(&self, flags: u32) -> Result<Option<Arc<dyn Stream>>> {
        match self.kind() {
            Kind::File => {
                let own = self.own()?;
                let access = flags & linux::O_ACCMODE;
                let writes = access != linux::O_RDONLY || flags & linux::O_TRUNC != 0;
                let reads = access != linux::O_WRONLY;
                let key = Key::Open(self.number, u32::from(reads) | u32::from(writes) << 1);
                self.change(key, || Box::pin(operation::open(own, reads, writes)))?;
                Ok(None)
            }
            Kind::Pipe => Ok(Some(self.pipe.call_once(pipe::Pipe::new).open(flags))),
            Kind::Device => device::open(self.status().device).map(Some),
            Kind::Socket => Err(Errno::NXIO),
            Kind::Directory | Kind::Link => Ok(None),
        }
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let own = self.check_file()?;
        let bytes = to.len().min(MOST_READ);
        match perform(Key::Read(self.number, offset, bytes), || Box::pin(operation::read(own, offset, bytes)))? {
            Output::Bytes(found) => {
                let count = found.len().min(bytes);
                to[..count].copy_from_slice(&found[..count]);
                Ok(count)
            }
            _ => Err(Errno::IO),
        }
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<usize> {
        let own = self.check_file()?;
        if from.is_empty() {
            return Ok(0);
        }
        let room = (i64::MAX as u64).saturating_sub(offset).min(MOST_READ as u64) as usize;
        let from = &from[..from.len().min(room)];
        if from.is_empty() {
            return Err(Errno::FBIG);
        }
        let key = Key::Write(self.number, offset, from.len());
        match perform(key, || Box::pin(operation::write(own, offset, from.to_vec())))? {
            Output::Written(_, count) => Ok(count),
            _ => Err(Errno::IO),
        }
    }

    fn append(&self, from: &[u8]) -> Result<(u64, usize)> {
        let own = self.check_file()?;
        if from.is_empty() {
            return Ok((self.bytes(), 0));
        }
        let from = &from[..from.len().min(MOST_READ)];
        let key = Key::Append(self.number, from.len());
        match perform(key, || Box::pin(operation::append(own, from.to_vec())))? {
            Output::Written(end, count) => Ok((end, count)),
            _ => Err(Errno::IO),
        }
    }

    fn flush(&self, only_data: bool) -> Result<()> {
        let own = self.own()?;
        self.change(Key::Flush(self.number), || Box::pin(operation::flush(own, only_data)))
    }

    fn system(&self) -> Result<Option<System>> {
        let own = self.own()?;
        match perform(Key::System(self.number), || Box::pin(operation::system(own)))? {
            Output::System(system) => Ok(Some(system)),
            _ => Err(Errno::IO),
        }
    }

    fn object(&self) -> Option<Arc<dyn Object>> {
        self.check_file().ok().map(|own| own as Arc<dyn Object>)
    }
}

impl Object for ShareNode {
    fn page(&self, number: u64) -> core::result::Result<Frame, NoPage> {
        if let Some(frame) = self.present(number) {
            return Ok(frame);
        }
        if number >= self.bytes().div_ceil(PAGE_U64) {
            return Err(NoPage::Behind);
        }
        let own = self.own().map_err(|_| NoPage::Behind)?;
        match perform(Key::Fill(self.number, number), || Box::pin(operation::fill(own, number))) {
            // The file may have become shorter.
            Ok(_) => self.present(number).ok_or(NoPage::Behind),
            Err(Errno::HOST) => Err(NoPage::Host),
            Err(Errno::NOMEM) => Err(NoPage::Memory),
            Err(_) => Err(NoPage::Behind),
        }
    }

    fn present(&self, number: u64) -> Option<Frame> {
        self.pages.lock().get(&number).cloned()
    }

    fn is_cache(&self) -> bool {
        true
    }
}
