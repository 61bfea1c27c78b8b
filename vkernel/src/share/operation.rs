//! Operations on nodes: what each sends to the server, and receives.

use super::client::Fid;
use super::ledger::{Key, Output};
use super::node::{Files, ShareNode};
use super::wire::{Builder, Fields, READ_HEAD, kind, set};
use crate::errno::{Errno, Result};
use crate::fs::{Attribute, Entry, Kind, MOST_NAME, MOST_PATH, New, Status, System};
use crate::memory::frames::{self, PAGE};
use crate::task::credentials::Birth;
use crate::task::timers::SECOND;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as linux;

/// Bytes that a message reads or writes at most: whole pages, and a head, in one packet.
pub const MOST_READ: usize = 15 * PAGE;
/// Entries of a directory at most.
const MOST_ENTRIES: usize = 1 << 20;
/// The attributes that are asked for (`P9_GETATTR_BASIC`).
const BASIC: u64 = 0x7ff;
/// The flag of `Tunlinkat` for directories.
const REMOVE_DIRECTORY: u32 = 0x200;
/// Flags of `Tlopen` and `Tlcreate`: Linux's on most machines.
const EXCLUSIVE: u32 = 0o200;
const APPEND: u32 = 0o2000;

/// The attributes of a file: its number on the server, and its description without the file system.
pub(super) type Attributes = (u64, Status);

fn kind_of(mode: u32) -> Result<Kind> {
    match mode & linux::S_IFMT {
        linux::S_IFREG => Ok(Kind::File),
        linux::S_IFDIR => Ok(Kind::Directory),
        linux::S_IFLNK => Ok(Kind::Link),
        linux::S_IFCHR | linux::S_IFBLK => Ok(Kind::Device),
        linux::S_IFIFO => Ok(Kind::Pipe),
        linux::S_IFSOCK => Ok(Kind::Socket),
        _ => Err(Errno::IO),
    }
}

/// Reads the answer to `Tgetattr`.
fn attributes(answer: &[u8]) -> Result<Attributes> {
    let mut fields = Fields::of(answer);
    let _valid = fields.u64()?;
    let identity = fields.identity()?;
    let (mode, uid, gid) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let (links, device, bytes, _block, blocks) =
        (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
    let mut times = [0; 3];
    for time in &mut times {
        *time = fields.u64()?.saturating_mul(SECOND).saturating_add(fields.u64()?);
    }
    let status = Status {
        id: (0, identity),
        kind: kind_of(mode)?,
        mode: mode & 0o7777,
        links: links.try_into().unwrap_or(u32::MAX),
        uid,
        gid,
        device,
        bytes: bytes.min(i64::MAX as u64),
        used: blocks.saturating_mul(512),
        times,
    };
    Ok((identity, status))
}

/// Asks for the attributes of a file number.
pub(super) async fn get_attributes(node: &ShareNode, fid: &Fid) -> Result<Attributes> {
    let message = Builder::new(kind::GETATTR).u32(fid.number).u64(BASIC);
    attributes(&node.client().send(message).answer().await?)
}

async fn renew(node: &ShareNode) -> Result<()> {
    let attributes = get_attributes(node, &node.fid).await?;
    node.update(attributes)
}

pub(super) async fn refresh(node: Arc<ShareNode>) -> Result<Output> {
    renew(&node).await.map(|()| Output::Done)
}

/// Finds a name in a directory.
async fn find(directory: &ShareNode, name: &str) -> Result<Arc<ShareNode>> {
    let client = directory.client();
    let fid = client.new_fid()?;
    let walk = Builder::new(kind::WALK).u32(directory.fid.number).u32(fid.number).u16(1).text(name);
    let walk = client.send(walk);
    // Both are on their way at once. A server that answers the second one first refuses it.
    let early = client.send(Builder::new(kind::GETATTR).u32(fid.number).u64(BASIC));
    let (walked, early) = (walk.answer().await, early.answer().await);
    let count = walked.and_then(|answer| Fields::of(&answer).u16());
    match count {
        Ok(1) => {}
        // A walk that does not reach its end gives the number no file.
        Ok(_) => {
            fid.forget();
            return Err(Errno::NOENT);
        }
        Err(why) => {
            fid.forget();
            return Err(why);
        }
    }
    let found = match early {
        Ok(answer) => attributes(&answer)?,
        Err(_) => get_attributes(directory, &fid).await?,
    };
    directory.neighbour(fid, found)
}

/// Finds names in each other, as far as they are directories.
pub(super) async fn walk(directory: Arc<ShareNode>, names: Vec<String>) -> Result<Output> {
    let (mut at, mut steps) = (directory, Vec::new());
    for name in names {
        let found = find(&at, &name).await;
        let next = found.as_ref().ok().filter(|node| node.kind() == Kind::Directory).cloned();
        steps.push((Key::Lookup(at.number, name), found.map(Output::Node)));
        match next {
            Some(next) => at = next,
            None => break,
        }
    }
    Ok(Output::Walk(steps))
}

/// Makes another number of a node's file, which may be opened.
async fn duplicate(node: &ShareNode) -> Result<Fid> {
    let client = node.client();
    let fid = client.new_fid()?;
    let walk = Builder::new(kind::WALK).u32(node.fid.number).u32(fid.number).u16(0);
    client.send(walk).answer().await.inspect_err(|_| fid.forget())?;
    Ok(fid)
}

async fn open_as(node: &ShareNode, flags: u32) -> Result<Arc<Fid>> {
    let fid = duplicate(node).await?;
    node.client().send(Builder::new(kind::LOPEN).u32(fid.number).u32(flags)).answer().await?;
    Ok(Arc::new(fid))
}

/// Opens the file for reading, for writing, or both, as far as it is not.
async fn open_for(node: &ShareNode, reads: bool, writes: bool) -> Result<()> {
    let has = node.files.lock().clone();
    let (reads, writes) = (reads && has.read.is_none(), writes && has.write.is_none());
    let access = match (reads, writes) {
        (false, false) => return Ok(()),
        (true, false) => linux::O_RDONLY,
        (false, true) => linux::O_WRONLY,
        (true, true) => linux::O_RDWR,
    };
    let fid = open_as(node, access).await?;
    let mut files = node.files.lock();
    // Numbers of another thread's that was faster are dropped without the lock.
    let before = files.clone();
    if reads {
        files.read = Some(Arc::clone(&fid));
    }
    if writes {
        files.write = Some(fid);
    }
    drop(files);
    drop(before);
    Ok(())
}

pub(super) async fn open(node: Arc<ShareNode>, reads: bool, writes: bool) -> Result<Output> {
    open_for(&node, reads, writes).await.map(|()| Output::Done)
}

async fn reader(node: &ShareNode) -> Result<Arc<Fid>> {
    open_for(node, true, false).await?;
    node.files.lock().read.clone().ok_or(Errno::BADF)
}

/// The bytes that are read at once: less while memory is short.
fn most(bytes: usize) -> usize {
    bytes.min(if frames::is_short() { PAGE } else { MOST_READ })
}

async fn read_from(node: &ShareNode, offset: u64, bytes: usize) -> Result<Vec<u8>> {
    let fid = reader(node).await?;
    let message = Builder::new(kind::READ).u32(fid.number).u64(offset).u32(bytes as u32);
    let mut answer = node.client().send_for(message, READ_HEAD + bytes).answer().await?;
    let count = Fields::of(&answer).data(bytes)?.len();
    answer.truncate(READ_HEAD + count);
    answer.drain(..READ_HEAD);
    Ok(answer)
}

pub(super) async fn read(node: Arc<ShareNode>, offset: u64, bytes: usize) -> Result<Output> {
    Ok(Output::Bytes(Arc::new(read_from(&node, offset, most(bytes)).await?)))
}

/// Reads pages of a file, the given one among them.
pub(super) async fn fill(node: Arc<ShareNode>, page: u64) -> Result<Output> {
    const PAGES: u64 = (MOST_READ / PAGE) as u64;
    let is_short = frames::is_short();
    let first = if is_short { page } else { page / PAGES * PAGES };
    let bytes = read_from(&node, first * PAGE as u64, if is_short { PAGE } else { MOST_READ }).await?;
    node.add_pages(first, &bytes, page)?;
    Ok(Output::Done)
}

async fn write_by(node: &ShareNode, fid: &Fid, offset: u64, bytes: &[u8]) -> Result<usize> {
    let message = Builder::new(kind::WRITE).u32(fid.number).u64(offset).data(bytes);
    let answer = node.client().send(message).answer().await?;
    let count = Fields::of(&answer).u32()? as usize;
    if count > bytes.len() || count == 0 && !bytes.is_empty() { Err(Errno::IO) } else { Ok(count) }
}

pub(super) async fn write(node: Arc<ShareNode>, offset: u64, bytes: Vec<u8>) -> Result<Output> {
    open_for(&node, false, true).await?;
    let fid = node.files.lock().write.clone().ok_or(Errno::BADF)?;
    let count = write_by(&node, &fid, offset, &bytes).await?;
    node.has_written(offset, &bytes[..count]);
    Ok(Output::Written(offset + count as u64, count))
}

pub(super) async fn append(node: Arc<ShareNode>, bytes: Vec<u8>) -> Result<Output> {
    let known = node.files.lock().append.clone();
    let fid = match known {
        Some(fid) => fid,
        None => {
            let fid = open_as(&node, linux::O_WRONLY | APPEND).await?;
            let before = node.files.lock().append.replace(Arc::clone(&fid));
            drop(before);
            fid
        }
    };
    let count = write_by(&node, &fid, 0, &bytes).await?;
    renew(&node).await?;
    // Another writer may have appended since; the pages are read again when they are used next.
    let end = node.bytes();
    node.has_written(end.saturating_sub(count as u64), &bytes[..count]);
    Ok(Output::Written(end, count))
}

pub(super) async fn set(node: Arc<ShareNode>, attribute: Attribute) -> Result<Output> {
    let time = |time: Option<u64>| time.map_or((0, 0), |time| (time / SECOND, time % SECOND));
    let (mut mode, mut owner, mut bytes, mut times) = (0, (0, 0), 0, (None, None));
    let valid = match attribute {
        Attribute::Mode(new) => {
            mode = new;
            set::MODE
        }
        Attribute::Owner(uid, gid) => {
            owner = (uid.unwrap_or(0), gid.unwrap_or(0));
            uid.map_or(0, |_| set::UID) | gid.map_or(0, |_| set::GID)
        }
        Attribute::Times(access, change) => {
            times = (access, change);
            access.map_or(0, |_| set::ATIME | set::ATIME_SET) | change.map_or(0, |_| set::MTIME | set::MTIME_SET)
        }
        Attribute::Bytes(new) => {
            bytes = new;
            set::SIZE
        }
    };
    // An open number can change the size of a file that may not be opened for writing any more.
    let open = node.files.lock().write.clone().filter(|_| valid == set::SIZE);
    let number = open.as_ref().map_or(node.fid.number, |fid| fid.number);
    let (access, change) = (time(times.0), time(times.1));
    let message = Builder::new(kind::SETATTR).u32(number).u32(valid).u32(mode).u32(owner.0).u32(owner.1).u64(bytes);
    let message = message.u64(access.0).u64(access.1).u64(change.0).u64(change.1);
    node.client().send(message).answer().await?;
    if let Attribute::Bytes(bytes) = attribute {
        node.has_resized(bytes);
    }
    renew(&node).await?;
    Ok(Output::Done)
}

/// Makes a file, and opens it for reading and writing: its mode may forbid that later.
async fn create_file(directory: &ShareNode, name: &str, birth: Birth) -> Result<Arc<ShareNode>> {
    let fid = duplicate(directory).await?;
    let message = Builder::new(kind::LCREATE).u32(fid.number).text(name).u32(linux::O_RDWR | EXCLUSIVE);
    directory.client().send(message.u32(birth.mode).u32(birth.gid)).answer().await?;
    let fid = Arc::new(fid);
    let node = find(directory, name).await?;
    let files = Files { read: Some(Arc::clone(&fid)), write: Some(fid), append: None };
    let before = core::mem::replace(&mut *node.files.lock(), files);
    drop(before);
    Ok(node)
}

pub(super) async fn create(directory: Arc<ShareNode>, name: String, new: New, birth: Birth) -> Result<Output> {
    let number = directory.fid.number;
    let special = |kind: Kind, device: u64| {
        let message = Builder::new(kind::MKNOD).u32(number).text(&name).u32(birth.mode | kind.mode());
        message.u32((device >> 8 & 0xfff) as u32).u32((device & 0xff) as u32)
    };
    let message = match &new {
        New::File => None,
        New::Directory => Some(Builder::new(kind::MKDIR).u32(number).text(&name).u32(birth.mode)),
        New::Link(target) => Some(Builder::new(kind::SYMLINK).u32(number).text(&name).text(target)),
        New::Pipe => Some(special(Kind::Pipe, 0)),
        New::Socket => Some(special(Kind::Socket, 0)),
        New::Device(device) => Some(special(Kind::Device, *device)),
    };
    let node = match message {
        None => create_file(&directory, &name, birth).await?,
        Some(message) => {
            directory.client().send(message.u32(birth.gid)).answer().await?;
            find(&directory, &name).await?
        }
    };
    if birth.uid != 0 {
        // The host's files keep their owner where it may not be changed.
        let _ = set(Arc::clone(&node), Attribute::Owner(Some(birth.uid), None)).await;
    }
    Ok(Output::Node(node))
}

pub(super) async fn link(directory: Arc<ShareNode>, name: String, node: Arc<ShareNode>) -> Result<Output> {
    let message = Builder::new(kind::LINK).u32(directory.fid.number).u32(node.fid.number).text(&name);
    node.client().send(message).answer().await?;
    renew(&node).await?;
    Ok(Output::Done)
}

pub(super) async fn unlink(directory: Arc<ShareNode>, name: String, is_directory: bool) -> Result<Output> {
    let flags = if is_directory { REMOVE_DIRECTORY } else { 0 };
    let message = Builder::new(kind::UNLINKAT).u32(directory.fid.number).text(&name).u32(flags);
    directory.client().send(message).answer().await?;
    Ok(Output::Done)
}

pub(super) async fn rename(from: Arc<ShareNode>, name: String, to: Arc<ShareNode>, new: String) -> Result<Output> {
    let message = Builder::new(kind::RENAMEAT).u32(from.fid.number).text(&name).u32(to.fid.number).text(&new);
    from.client().send(message).answer().await?;
    Ok(Output::Done)
}

pub(super) async fn target(node: Arc<ShareNode>) -> Result<Output> {
    let message = Builder::new(kind::READLINK).u32(node.fid.number);
    let answer = node.client().send_for(message, READ_HEAD + MOST_PATH).answer().await?;
    let text = Fields::of(&answer).text()?;
    if text.is_empty() || text.contains('\0') { Err(Errno::IO) } else { Ok(Output::Text(text)) }
}

pub(super) async fn flush(node: Arc<ShareNode>, only_data: bool) -> Result<Output> {
    let files = node.files.lock().clone();
    let fids = [files.write, files.append, files.read];
    if let Some(fid) = fids.into_iter().flatten().next() {
        let message = Builder::new(kind::FSYNC).u32(fid.number).u32(only_data.into());
        node.client().send(message).answer().await?;
    }
    Ok(Output::Done)
}

pub(super) async fn system(node: Arc<ShareNode>) -> Result<Output> {
    let answer = node.client().send(Builder::new(kind::STATFS).u32(node.fid.number)).answer().await?;
    let mut fields = Fields::of(&answer);
    let (_type, block) = (fields.u32()?, fields.u32()?);
    Ok(Output::System(System {
        // Linux names the protocol, whatever the server says.
        kind: linux::V9FS_MAGIC.into(),
        block: block.into(),
        blocks: fields.u64()?,
        free: fields.u64()?,
        available: fields.u64()?,
        files: fields.u64()?,
        free_files: fields.u64()?,
        name: (fields.u64()?, fields.u32()?).1.into(),
    }))
}

/// Reads the entries of an answer to `Treaddir`. Returns the offset behind the last one; `None` if there are none.
fn entries(answer: &[u8], bytes: usize, all: &mut Vec<Entry>) -> Result<Option<u64>> {
    const DIRECTORY: u8 = 0x80;
    const LINK: u8 = 0x02;
    let data = Fields::of(answer).data(bytes)?;
    let (mut fields, mut offset) = (Fields::raw(data), None);
    while !fields.is_empty() {
        let kind = fields.u8()?;
        let _version = fields.u32()?;
        let node = fields.u64()?;
        offset = Some(fields.u64()?);
        let kind = match (fields.u8()?, kind) {
            (0, kind) if kind & DIRECTORY != 0 => Kind::Directory,
            (0, kind) if kind & LINK != 0 => Kind::Link,
            (kind, _) => kind_of(u32::from(kind) << 12).unwrap_or(Kind::File),
        };
        let name = fields.text()?;
        let is_name = !matches!(&*name, "" | "." | "..") && name.len() <= 3 * MOST_NAME && !name.contains(['/', '\0']);
        if is_name {
            all.push(Entry { name, node, kind });
        }
    }
    Ok(offset)
}

pub(super) async fn list(node: Arc<ShareNode>) -> Result<Output> {
    let fid = open_as(&node, linux::O_RDONLY).await?;
    let (mut all, mut offset) = (Vec::new(), 0);
    loop {
        if frames::is_short() || all.len() > MOST_ENTRIES {
            return Err(Errno::NOMEM);
        }
        let message = Builder::new(kind::READDIR).u32(fid.number).u64(offset).u32(MOST_READ as u32);
        let answer = node.client().send_for(message, READ_HEAD + MOST_READ).answer().await?;
        let count = all.len();
        match entries(&answer, MOST_READ, &mut all)? {
            // Entries without names would go on for ever.
            Some(next) if next != offset && (all.len() > count || offset == 0) => offset = next,
            _ => return Ok(Output::Entries(Arc::new(all))),
        }
    }
}
