//! The session of a client, and the answer to each message.

use crate::fids::{Fid, Fids, State};
use crate::files::{self, Descriptors, MOST_ATTRIBUTE, Owner, Time, Times};
use crate::identity::Numbers;
use crate::wire::{DIALECT, Fields, HEAD, MOST_MESSAGE, MOST_NAMES, Put, READ_HEAD, RLERROR, kind, set};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::{self, Errno};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// Bytes that a client leaves for heads, at most (Linux's `P9_IOHDRSZ`).
const IO_HEAD: u32 = 24;
/// The shortest `msize` that a session can have.
const LEAST_MESSAGE: u32 = 4096;
/// The attributes of files that answers to `Tgetattr` have (`P9_GETATTR_BASIC`).
const BASIC: u64 = 0x7ff;
/// The flag of `Tunlinkat` for directories (`P9_DOTL_AT_REMOVEDIR`).
const REMOVE_DIR: u32 = 0x200;

/// Flags of `Tlopen` and `Tlcreate` that mean something here, with Linux's. Others are ignored, as by QEMU: the file is
/// already there, and its cache is not the client's.
const FLAGS: [(u32, OFlags); 5] = [
    (0o1_000, OFlags::TRUNC),
    (0o2_000, OFlags::APPEND),
    (0o10_000, OFlags::DSYNC),
    (0o200_000, OFlags::DIRECTORY),
    (0o4_000_000, OFlags::SYNC),
];
/// The flag of a file that must not be there yet.
const EXCLUSIVE: u32 = 0o200;

/// The server of a share.
#[derive(Debug)]
pub struct Server {
    root: OwnedFd,
    descriptors: Descriptors,
    readonly: bool,
    fids: Fids,
    numbers: Numbers,
    msize: u32,
    /// For entries of directories.
    entries: Box<[MaybeUninit<u8>]>,
}

impl Server {
    /// Makes the server of the directory `root`, of which the client changes nothing if `readonly`. There are at most
    /// `most_fids` file numbers, each of which is a descriptor.
    ///
    /// # Errors
    /// If the directory's attributes cannot be read.
    pub fn new(root: OwnedFd, descriptors: Descriptors, readonly: bool, most_fids: usize) -> io::Result<Self> {
        let numbers = Numbers::new(rustix::fs::fstat(&root)?.st_dev);
        let entries = vec![MaybeUninit::uninit(); 64 << 10].into();
        let fids = Fids::new(most_fids);
        Ok(Self { root, descriptors, readonly, fids, numbers, msize: LEAST_MESSAGE, entries })
    }

    /// Answers a message, whose first four bytes are its length. The answer replaces the content of `answer`, and has at
    /// most [`MOST_MESSAGE`] bytes.
    pub fn answer(&mut self, message: &[u8], answer: &mut Vec<u8>) {
        let head = message.first_chunk::<HEAD>().copied().unwrap_or_default();
        let [_, _, _, _, of, tag @ ..] = head;
        answer.clear();
        answer.put_u32(0);
        answer.put_u8(of.wrapping_add(1));
        answer.extend(tag);
        if let Err(error) = self.serve(of, Fields::of(message), answer) {
            answer.truncate(HEAD);
            answer[4] = RLERROR;
            answer.put_u32(error.raw_os_error().cast_unsigned());
        }
        let length = answer.len() as u32;
        answer[..4].copy_from_slice(&length.to_le_bytes());
    }

    fn serve(&mut self, of: u8, mut fields: Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let fields = &mut fields;
        match of {
            kind::VERSION => self.version(fields, answer),
            kind::ATTACH => self.attach(fields, answer),
            kind::WALK => self.walk(fields, answer),
            kind::CLUNK => self.clunk(fields.u32()?),
            // A file may have several names: the client says by `Tunlinkat` which one goes.
            kind::REMOVE => self.fids.take(fields.u32()?).and(Err(Errno::OPNOTSUPP)),
            // Answers come in order, so the message that it is about has been answered.
            kind::FLUSH => Ok(()),
            kind::LOPEN => self.open(fields, answer),
            kind::LCREATE => self.create(fields, answer),
            kind::READ => self.read(fields, answer),
            kind::READDIR => self.list(fields, answer),
            kind::WRITE => self.write(fields, answer),
            kind::FSYNC => self.sync(fields),
            kind::GETATTR => self.get_attributes(fields, answer),
            kind::SETATTR => self.set_attributes(fields),
            kind::STATFS => self.file_system(fields, answer),
            kind::READLINK => {
                let fid = self.fids.get(fields.u32()?)?;
                answer.put_text(&self.descriptors.target(&fid.file)?);
                Ok(())
            }
            kind::MKDIR | kind::MKNOD | kind::SYMLINK => self.make(of, fields, answer),
            kind::LINK => self.link(fields),
            kind::RENAMEAT => self.rename(fields),
            kind::UNLINKAT => self.unlink(fields),
            kind::XATTRWALK => self.read_attribute(fields, answer),
            kind::XATTRCREATE => self.write_attribute(fields),
            kind::LOCK | kind::GETLOCK => self.lock(of, fields, answer),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.readonly { Err(Errno::ROFS) } else { Ok(()) }
    }

    fn version(&mut self, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let (msize, version) = (fields.u32()?, fields.text()?);
        if msize < LEAST_MESSAGE {
            return Err(Errno::MSGSIZE);
        }
        self.fids.clear();
        self.msize = msize.min(MOST_MESSAGE as u32);
        answer.put_u32(self.msize);
        answer.put_text(if version == DIALECT { DIALECT } else { b"unknown" });
        Ok(())
    }

    fn attach(&mut self, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let (fid, _, _, _, user) = (fields.u32()?, fields.u32()?, fields.text()?, fields.text()?, fields.u32()?);
        self.fids.check_new(fid)?;
        let file = io::fcntl_dupfd_cloexec(&self.root, 0)?;
        self.numbers.put(&rustix::fs::fstat(&file)?, answer);
        self.fids.put(fid, Fid { file, file_type: FileType::Directory, user, state: State::Named })
    }

    fn walk(&mut self, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let (from, to, count) = (fields.u32()?, fields.u32()?, fields.u16()?);
        if count > MOST_NAMES {
            return Err(Errno::INVAL);
        }
        if from != to {
            self.fids.check_new(to)?;
        }
        let start = self.fids.get(from)?;
        let (user, mut file_type) = (start.user, start.file_type);
        let mut found = None;
        answer.put_u16(0);
        for step in 0..count {
            let name = fields.name()?;
            let next = files::find(found.as_ref().unwrap_or(&start.file), name);
            let next = next.and_then(|next| Ok((rustix::fs::fstat(&next)?, next)));
            let (stat, next) = match next {
                Ok(next) => next,
                Err(error) if step == 0 => return Err(error),
                // The answer says how far it went, and the new number is nothing's.
                Err(_) => return Ok(()),
            };
            self.numbers.put(&stat, answer);
            answer[HEAD..HEAD + 2].copy_from_slice(&(step + 1).to_le_bytes());
            file_type = files::type_of(&stat);
            found = Some(next);
        }
        let file = match found {
            Some(file) => file,
            None if matches!(start.state, State::Open | State::Listing(_)) => {
                // What is shared by a duplicate, such as the place in a directory, must not be shared.
                self.descriptors.reopen(&start.file, OFlags::PATH)?
            }
            None => io::fcntl_dupfd_cloexec(&start.file, 0)?,
        };
        self.fids.put(to, Fid { file, file_type, user, state: State::Named })
    }

    fn clunk(&mut self, fid: u32) -> io::Result<()> {
        let fid = self.fids.take(fid)?;
        match fid.state {
            State::NewAttribute { name, value, length, flags } if value.len() == length => {
                self.descriptors.set_attribute(&fid.file, &name, &value, flags)
            }
            State::NewAttribute { .. } => Err(Errno::INVAL),
            _ => Ok(()),
        }
    }

    fn open(&mut self, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let (fid, flags) = (fields.u32()?, open_flags(fields.u32()?)?);
        if flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC) {
            self.check_writable()?;
        }
        let found = self.fids.get_mut(fid)?;
        if !matches!(found.state, State::Named) {
            return Err(Errno::BADF);
        }
        let state = match found.file_type {
            FileType::Directory => State::Listing(0),
            FileType::RegularFile => State::Open,
            FileType::Symlink => return Err(Errno::LOOP),
            // Pipes, sockets and devices are the guest's own: opened here they would be the host's.
            _ => return Err(Errno::NXIO),
        };
        found.file = self.descriptors.reopen(&found.file, flags)?;
        found.state = state;
        let stat = rustix::fs::fstat(&found.file)?;
        self.put_opened(&stat, answer);
        Ok(())
    }

    fn create(&mut self, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let (fid, name, asked, mode, group) =
            (fields.u32()?, fields.name()?, fields.u32()?, fields.u32()?, fields.u32()?);
        self.check_writable()?;
        let flags = open_flags(asked)?;
        let dir = self.fids.dir(fid)?;
        if !matches!(dir.state, State::Named) {
            return Err(Errno::BADF);
        }
        let user = dir.user;
        let (file, stat) = match files::create(&dir.file, name, flags, mode) {
            Ok(file) => {
                let stat = files::adopt(&self.descriptors, &file, Owner { user, group }, mode)?;
                (file, stat)
            }
            Err(Errno::EXIST) if asked & EXCLUSIVE == 0 => {
                let there = files::find(&dir.file, name)?;
                if files::type_of(&rustix::fs::fstat(&there)?) != FileType::RegularFile {
                    return Err(Errno::EXIST);
                }
                let file = self.descriptors.reopen(&there, flags)?;
                let stat = rustix::fs::fstat(&file)?;
                (file, stat)
            }
            Err(error) => return Err(error),
        };
        self.put_opened(&stat, answer);
        self.fids.put(fid, Fid { file, file_type: FileType::RegularFile, user, state: State::Open })
    }

    /// Appends a file's identity, and how much is best read and written at a time.
    fn put_opened(&mut self, stat: &Stat, answer: &mut Vec<u8>) {
        self.numbers.put(stat, answer);
        answer.put_u32(self.best_size(stat));
    }

    /// The largest multiple of the file's own block size that a message has room for.
    fn best_size(&self, stat: &Stat) -> u32 {
        let room = self.msize - IO_HEAD;
        let block = u32::try_from(stat.st_blksize).unwrap_or(0);
        match room.checked_rem(block) {
            Some(rest) if block <= room => room - rest,
            _ => room,
        }
    }

    /// The bytes that an answer may have for what is read.
    fn room(&self, count: u32) -> usize {
        (count as usize).min(self.msize as usize - READ_HEAD)
    }

    fn read(&mut self, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let (fid, offset, count) = (fields.u32()?, fields.u64()?, fields.u32()?);
        let room = self.room(count);
        let fid = self.fids.get(fid)?;
        let length = match &fid.state {
            State::Attribute(bytes) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let part = &bytes[from..][..room.min(bytes.len() - from)];
                answer.put_u32(0);
                answer.extend(part);
                part.len()
            }
            State::Open => {
                answer.resize(READ_HEAD + room, 0);
                io::pread(&fid.file, &mut answer[READ_HEAD..], offset)?
            }
            State::Listing(_) => return Err(Errno::ISDIR),
            State::Named | State::NewAttribute { .. } => return Err(Errno::BADF),
        };
        answer.truncate(READ_HEAD + length);
        answer[HEAD..READ_HEAD].copy_from_slice(&(length as u32).to_le_bytes());
        Ok(())
    }

    fn list(&mut self, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let (fid, offset, count) = (fields.u32()?, fields.u64()?, fields.u32()?);
        let end = READ_HEAD + self.room(count);
        let fid = self.fids.get_mut(fid)?;
        let State::Listing(at) = fid.state else { return Err(Errno::NOTDIR) };
        if at != offset {
            rustix::fs::seek(&fid.file, SeekFrom::Start(offset))?;
        }
        let device = rustix::fs::fstat(&fid.file)?.st_dev;
        answer.put_u32(0);
        let (mut next, mut is_full) = (offset, false);
        // The kernel gives out no more than the client has room for, as far as that can be said in its own format.
        let most = self.entries.len().min((end - READ_HEAD).max(1 << 10));
        let mut entries = RawDir::new(&fid.file, &mut self.entries[..most]);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let start = answer.len();
            let (mut file_type, mut file) = (entry.file_type(), (device, entry.ino()));
            if file_type == FileType::Unknown
                && let Ok(stat) = rustix::fs::statat(&fid.file, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            {
                (file_type, file) = (files::type_of(&stat), (stat.st_dev, stat.st_ino));
            }
            self.numbers.put_entry(file_type, file, answer);
            answer.put_u64(entry.next_entry_cookie());
            answer.put_u8(type_number(file_type));
            answer.put_text(name);
            if answer.len() > end {
                answer.truncate(start);
                is_full = true;
                break;
            }
            next = entry.next_entry_cookie();
            if entries.is_buffer_empty() && answer.len() + (1 << 10) > end {
                break;
            }
        }
        // A further entry was taken from the kernel: the next message looks for it again.
        fid.state = State::Listing(if is_full { u64::MAX } else { next });
        let length = (answer.len() - READ_HEAD) as u32;
        answer[HEAD..READ_HEAD].copy_from_slice(&length.to_le_bytes());
        if is_full && length == 0 { Err(Errno::INVAL) } else { Ok(()) }
    }

    fn write(&mut self, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let (fid, offset, count) = (fields.u32()?, fields.u64()?, fields.u32()?);
        let bytes = fields.bytes(count as usize)?;
        let fid = self.fids.get_mut(fid)?;
        let written = match &mut fid.state {
            State::Open => io::pwrite(&fid.file, bytes, offset)?,
            State::NewAttribute { value, length, .. } => {
                if offset != value.len() as u64 || bytes.len() > *length - value.len() {
                    return Err(Errno::INVAL);
                }
                value.extend(bytes);
                bytes.len()
            }
            State::Named | State::Listing(_) | State::Attribute(_) => return Err(Errno::BADF),
        };
        answer.put_u32(written as u32);
        Ok(())
    }

    fn sync(&self, fields: &mut Fields<'_>) -> io::Result<()> {
        let (fid, only_data) = (self.fids.get(fields.u32()?)?, fields.u32()?);
        match only_data {
            0 => rustix::fs::fsync(&fid.file),
            _ => rustix::fs::fdatasync(&fid.file),
        }
    }

    fn get_attributes(&mut self, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let stat = rustix::fs::fstat(&self.fids.get(fields.u32()?)?.file)?;
        answer.put_u64(BASIC);
        self.numbers.put(&stat, answer);
        [stat.st_mode, stat.st_uid, stat.st_gid].into_iter().for_each(|value| answer.put_u32(value));
        let (links, size, block) = (stat.st_nlink as u64, stat.st_size as u64, self.best_size(&stat).into());
        [links, stat.st_rdev, size, block, stat.st_blocks as u64].into_iter().for_each(|value| answer.put_u64(value));
        let accessed = [stat.st_atime as u64, stat.st_atime_nsec as u64];
        let modified = [stat.st_mtime as u64, stat.st_mtime_nsec as u64];
        let changed = [stat.st_ctime as u64, stat.st_ctime_nsec as u64];
        // The last four are the birth's time, a generation, and a version: unknown.
        [accessed, modified, changed, [0; 2], [0; 2]].into_iter().flatten().for_each(|value| answer.put_u64(value));
        Ok(())
    }

    fn set_attributes(&self, fields: &mut Fields<'_>) -> io::Result<()> {
        let (fid, valid) = (self.fids.get(fields.u32()?)?, fields.u32()?);
        let (mode, user, group, size) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u64()?);
        let (accessed, modified) = ((fields.u64()?, fields.u64()?), (fields.u64()?, fields.u64()?));
        self.check_writable()?;
        let has = |bit: u32| valid & bit != 0;
        if has(set::UID | set::GID) {
            let (user, group) = (has(set::UID).then_some(user), has(set::GID).then_some(group));
            self.descriptors.set_owner(&fid.file, user, group)?;
        }
        if has(set::MODE) {
            self.descriptors.set_mode(&fid.file, mode)?;
        }
        if has(set::SIZE) {
            self.set_size(fid, size)?;
        }
        if has(set::ATIME | set::MTIME) {
            let time = |(seconds, nanoseconds), change, exact| match (has(change), has(exact)) {
                (false, _) => None,
                (true, false) => Some(Time::Now),
                (true, true) => Some(Time::At(seconds, nanoseconds)),
            };
            let accessed = time(accessed, set::ATIME, set::ATIME_SET);
            let modified = time(modified, set::MTIME, set::MTIME_SET);
            self.descriptors.set_times(&fid.file, Times { accessed, modified })?;
        }
        if valid & (set::MODE | set::UID | set::GID | set::SIZE | set::ATIME | set::MTIME | set::CTIME) == set::CTIME {
            self.descriptors.set_owner(&fid.file, None, None)?;
        }
        Ok(())
    }

    fn set_size(&self, fid: &Fid, size: u64) -> io::Result<()> {
        match (fid.file_type, &fid.state) {
            (FileType::Directory, _) => Err(Errno::ISDIR),
            // It may be open for reading only, by a client that has it open for writing by another number.
            (FileType::RegularFile, State::Open) => match rustix::fs::ftruncate(&fid.file, size) {
                Err(Errno::INVAL | Errno::BADF) => self.set_size_anew(fid, size),
                done => done,
            },
            (FileType::RegularFile, _) => self.set_size_anew(fid, size),
            _ => Err(Errno::INVAL),
        }
    }

    fn set_size_anew(&self, fid: &Fid, size: u64) -> io::Result<()> {
        rustix::fs::ftruncate(self.descriptors.reopen(&fid.file, OFlags::WRONLY)?, size)
    }

    fn file_system(&self, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let file = &self.fids.get(fields.u32()?)?.file;
        let (found, id) = (rustix::fs::fstatfs(file)?, rustix::fs::fstatvfs(file)?.f_fsid);
        answer.put_u32(found.f_type as u32);
        answer.put_u32(found.f_bsize as u32);
        let blocks = [found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree];
        blocks.into_iter().for_each(|value| answer.put_u64(value));
        answer.put_u64(id);
        answer.put_u32(found.f_namelen as u32);
        Ok(())
    }

    fn make(&mut self, of: u8, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let (fid, name) = (fields.u32()?, fields.name()?);
        self.check_writable()?;
        let dir = self.fids.dir(fid)?;
        let mut mode = 0o777;
        match of {
            kind::MKDIR => {
                mode = fields.u32()?;
                rustix::fs::mkdirat(&dir.file, name, Mode::from_raw_mode(mode & 0o1777))?;
            }
            kind::SYMLINK => rustix::fs::symlinkat(fields.text()?, &dir.file, name)?,
            _ => {
                mode = fields.u32()?;
                let _device = (fields.u32()?, fields.u32()?);
                let file_type = FileType::from_raw_mode(mode);
                // A device in a directory of the host's would be the host's.
                if !matches!(file_type, FileType::RegularFile | FileType::Fifo | FileType::Socket) {
                    return Err(Errno::PERM);
                }
                rustix::fs::mknodat(&dir.file, name, file_type, Mode::from_raw_mode(mode & 0o7777), 0)?;
            }
        }
        let group = fields.u32()?;
        let made = files::find(&dir.file, name)?;
        let stat = files::adopt(&self.descriptors, made.as_fd(), Owner { user: dir.user, group }, mode)?;
        self.numbers.put(&stat, answer);
        Ok(())
    }

    fn link(&self, fields: &mut Fields<'_>) -> io::Result<()> {
        let (dir, file, name) = (self.fids.dir(fields.u32()?)?, self.fids.get(fields.u32()?)?, fields.name()?);
        self.check_writable()?;
        self.descriptors.link(&file.file, &dir.file, name)
    }

    fn rename(&self, fields: &mut Fields<'_>) -> io::Result<()> {
        let (from, old) = (self.fids.dir(fields.u32()?)?, fields.name()?);
        let (to, new) = (self.fids.dir(fields.u32()?)?, fields.name()?);
        self.check_writable()?;
        rustix::fs::renameat(&from.file, old, &to.file, new)
    }

    fn unlink(&self, fields: &mut Fields<'_>) -> io::Result<()> {
        let (dir, name, flags) = (self.fids.dir(fields.u32()?)?, fields.name()?, fields.u32()?);
        self.check_writable()?;
        let flags = if flags & REMOVE_DIR == 0 { AtFlags::empty() } else { AtFlags::REMOVEDIR };
        rustix::fs::unlinkat(&dir.file, name, flags)
    }

    fn read_attribute(&mut self, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        let (fid, new, name) = (fields.u32()?, fields.u32()?, fields.text()?);
        self.fids.check_new(new)?;
        let found = self.fids.get(fid)?;
        let bytes = match name {
            b"" => self.descriptors.attributes(&found.file)?,
            name => self.descriptors.attribute(&found.file, name)?,
        };
        answer.put_u64(bytes.len() as u64);
        let file = io::fcntl_dupfd_cloexec(&found.file, 0)?;
        let (file_type, user) = (found.file_type, found.user);
        self.fids.put(new, Fid { file, file_type, user, state: State::Attribute(bytes) })
    }

    fn write_attribute(&mut self, fields: &mut Fields<'_>) -> io::Result<()> {
        let (fid, name, length, flags) = (fields.u32()?, fields.text()?, fields.u64()?, fields.u32()?);
        self.check_writable()?;
        let length = usize::try_from(length).ok().filter(|length| *length <= MOST_ATTRIBUTE).ok_or(Errno::TOOBIG)?;
        if !matches!(self.fids.get(fid)?.state, State::Named) {
            return Err(Errno::BADF);
        }
        self.fids.set_state(fid, State::NewAttribute { name: name.into(), value: Vec::new(), length, flags })
    }

    /// Locks hold within the client only, which keeps them itself. It is always told that it has them.
    fn lock(&self, of: u8, fields: &mut Fields<'_>, answer: &mut Vec<u8>) -> io::Result<()> {
        /// The type of a lock that says that nothing else has one.
        const UNLOCKED: u8 = 2;
        let (fid, _) = (self.fids.get(fields.u32()?)?, fields.u8()?);
        if !matches!(fid.state, State::Open | State::Listing(_)) {
            return Err(Errno::BADF);
        }
        if of == kind::LOCK {
            answer.put_u8(0);
            return Ok(());
        }
        let (start, length, process, client) = (fields.u64()?, fields.u64()?, fields.u32()?, fields.text()?);
        answer.put_u8(UNLOCKED);
        answer.put_u64(start);
        answer.put_u64(length);
        answer.put_u32(process);
        answer.put_text(client);
        Ok(())
    }
}

/// Linux's flags for those of a message.
fn open_flags(asked: u32) -> io::Result<OFlags> {
    let access = match asked & 3 {
        0 => OFlags::RDONLY,
        1 => OFlags::WRONLY,
        2 => OFlags::RDWR,
        _ => return Err(Errno::INVAL),
    };
    Ok(FLAGS.into_iter().filter(|(bit, _)| asked & bit == *bit).fold(access, |flags, (_, flag)| flags | flag))
}

/// The type of an entry (`DT_*`).
fn type_number(file_type: FileType) -> u8 {
    match file_type {
        FileType::Unknown => 0,
        other => (other.as_raw_mode() >> 12) as u8,
    }
}
