#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test program uses a part")]
//! A client that sends raw messages to a server in this process, with a directory of its own and a canary beside it.

use abi::share::HEAD;
use rustix::fs::{Mode, OFlags};
use share::files::Descriptors;
use share::server::Server;
use share::wire::{Put, RLERROR, kind};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// The content of the file beside the share, which no client may see or change.
pub const SECRET: &[u8] = b"secret";
/// Errors, as Linux numbers them.
pub const EPERM: u32 = 1;
pub const ENOENT: u32 = 2;
pub const ENXIO: u32 = 6;
pub const EBADF: u32 = 9;
pub const EEXIST: u32 = 17;
pub const ENOTDIR: u32 = 20;
pub const EINVAL: u32 = 22;
pub const EMFILE: u32 = 24;
pub const EROFS: u32 = 30;
pub const ELOOP: u32 = 40;
pub const EOPNOTSUPP: u32 = 95;

/// The file number of the share's directory.
pub const ROOT: u32 = 0;

pub struct Client {
    pub server: Server,
    _outside: TempDir,
    /// The share.
    pub dir: PathBuf,
    /// The file beside it.
    pub secret: PathBuf,
}

/// The fields of a message.
#[derive(Default)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn u8(mut self, value: u8) -> Self {
        self.0.put_u8(value);
        self
    }
    pub fn u16(mut self, value: u16) -> Self {
        self.0.put_u16(value);
        self
    }
    pub fn u32(mut self, value: u32) -> Self {
        self.0.put_u32(value);
        self
    }
    pub fn u64(mut self, value: u64) -> Self {
        self.0.put_u64(value);
        self
    }
    pub fn text(mut self, text: &[u8]) -> Self {
        self.0.put_text(text);
        self
    }
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

/// Begins the fields of a message with a number.
pub fn with(value: u32) -> Message {
    Message::default().u32(value)
}

impl Client {
    /// Makes a client that has attached.
    pub fn new(readonly: bool, most: usize) -> Self {
        let outside = tempfile::tempdir().unwrap();
        let (dir, secret) = (outside.path().join("share"), outside.path().join("secret"));
        fs::create_dir(&dir).unwrap();
        fs::write(&secret, SECRET).unwrap();
        let root = rustix::fs::open(&dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let server = Server::new(root, Descriptors::open().unwrap(), readonly, most).unwrap();
        let mut client = Self { server, _outside: outside, dir, secret };
        let version = client.ask(kind::VERSION, with(128 << 10).text(b"9P2000.L"));
        assert_eq!(version, Ok([&(128_u32 << 10).to_le_bytes()[..], &[8, 0], b"9P2000.L"].concat()));
        client.attach(ROOT).unwrap();
        client
    }

    /// Sends a message. Returns the fields of its answer, or the error.
    pub fn ask(&mut self, of: u8, fields: Message) -> Result<Vec<u8>, u32> {
        let length = (HEAD + fields.0.len()) as u32;
        let message = [&length.to_le_bytes()[..], &[of, 0x34, 0x12], &fields.0].concat();
        let mut answer = Vec::new();
        self.server.answer(&message, &mut answer);
        assert_eq!(answer[..4], (answer.len() as u32).to_le_bytes(), "its length");
        assert_eq!(answer[5..7], [0x34, 0x12], "its tag");
        let fields = answer.split_off(HEAD);
        if answer[4] == RLERROR {
            return Err(u32::from_le_bytes(fields.try_into().unwrap()));
        }
        assert_eq!(answer[4], of + 1, "its type");
        Ok(fields)
    }

    pub fn attach(&mut self, fid: u32) -> Result<Vec<u8>, u32> {
        self.ask(kind::ATTACH, with(fid).u32(u32::MAX).text(b"root").text(b"").u32(u32::MAX))
    }
    pub fn walk(&mut self, from: u32, to: u32, names: &[&[u8]]) -> Result<Vec<u8>, u32> {
        let message = with(from).u32(to).u16(names.len() as u16);
        self.ask(kind::WALK, names.iter().fold(message, |message, name| message.text(name)))
    }
    pub fn clunk(&mut self, fid: u32) -> Result<Vec<u8>, u32> {
        self.ask(kind::CLUNK, with(fid))
    }
    pub fn open(&mut self, fid: u32, flags: u32) -> Result<Vec<u8>, u32> {
        self.ask(kind::LOPEN, with(fid).u32(flags))
    }
    pub fn create(&mut self, fid: u32, name: &[u8], flags: u32) -> Result<Vec<u8>, u32> {
        self.ask(kind::LCREATE, with(fid).text(name).u32(flags).u32(0o644).u32(u32::MAX))
    }
    pub fn mkdir(&mut self, fid: u32, name: &[u8]) -> Result<Vec<u8>, u32> {
        self.ask(kind::MKDIR, with(fid).text(name).u32(0o755).u32(u32::MAX))
    }
    pub fn symlink(&mut self, fid: u32, name: &[u8], target: &[u8]) -> Result<Vec<u8>, u32> {
        self.ask(kind::SYMLINK, with(fid).text(name).text(target).u32(u32::MAX))
    }
    pub fn mknod(&mut self, fid: u32, name: &[u8], mode: u32) -> Result<Vec<u8>, u32> {
        self.ask(kind::MKNOD, with(fid).text(name).u32(mode).u32(1).u32(3).u32(u32::MAX))
    }
    pub fn link(&mut self, dir: u32, fid: u32, name: &[u8]) -> Result<Vec<u8>, u32> {
        self.ask(kind::LINK, with(dir).u32(fid).text(name))
    }
    pub fn rename(&mut self, from: u32, old: &[u8], to: u32, new: &[u8]) -> Result<Vec<u8>, u32> {
        self.ask(kind::RENAMEAT, with(from).text(old).u32(to).text(new))
    }
    pub fn unlink(&mut self, dir: u32, name: &[u8], flags: u32) -> Result<Vec<u8>, u32> {
        self.ask(kind::UNLINKAT, with(dir).text(name).u32(flags))
    }
    pub fn set_size(&mut self, fid: u32, size: u64) -> Result<Vec<u8>, u32> {
        self.ask(kind::SETATTR, with(fid).u32(1 << 3).u32(0).u32(0).u32(0).u64(size).u64(0).u64(0).u64(0).u64(0))
    }
    pub fn set_mode(&mut self, fid: u32, mode: u32) -> Result<Vec<u8>, u32> {
        self.ask(kind::SETATTR, with(fid).u32(1).u32(mode).u32(0).u32(0).u64(0).u64(0).u64(0).u64(0).u64(0))
    }
    /// Returns what was read.
    pub fn read(&mut self, fid: u32, offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        self.ask(kind::READ, with(fid).u64(offset).u32(count)).map(|answer| answer[4..].to_vec())
    }
    pub fn write(&mut self, fid: u32, offset: u64, bytes: &[u8]) -> Result<Vec<u8>, u32> {
        self.ask(kind::WRITE, with(fid).u64(offset).u32(bytes.len() as u32).bytes(bytes))
    }
    /// Returns a file's size.
    pub fn size(&mut self, fid: u32) -> Result<u64, u32> {
        let answer = self.ask(kind::GETATTR, with(fid).u64(0x7ff))?;
        Ok(u64::from_le_bytes(answer[8 + 13 + 12 + 16..][..8].try_into().unwrap()))
    }
    /// Lists a directory that is open, in pieces of `count` bytes.
    pub fn list(&mut self, fid: u32, count: u32) -> Result<Vec<Vec<u8>>, u32> {
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let answer = self.ask(kind::READDIR, with(fid).u64(offset).u32(count))?;
            let mut rest = &answer[4..];
            assert!(rest.len() <= count as usize);
            if rest.is_empty() {
                return Ok(names);
            }
            while !rest.is_empty() {
                offset = u64::from_le_bytes(rest[13..21].try_into().unwrap());
                let length = usize::from(u16::from_le_bytes(rest[22..24].try_into().unwrap()));
                names.push(rest[24..24 + length].to_vec());
                rest = &rest[24 + length..];
            }
        }
    }

    /// Checks that the file beside the share is as it was.
    pub fn check(&self) {
        assert_eq!(fs::read(&self.secret).unwrap(), SECRET, "the file outside of the share");
        assert_eq!(fs::read_dir(self.secret.parent().unwrap()).unwrap().count(), 2, "what is outside of the share");
    }
}
