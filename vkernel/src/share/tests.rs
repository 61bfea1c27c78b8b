//! The client against the real server, and against servers that lie.

use super::client::{Client, Transport};
use super::node::ShareNode;
use crate::errno::Errno;
use crate::fs::{Attribute, Kind, New, Node};
use crate::memory::tests::ram;
use crate::sync::Mutex;
use crate::task::credentials::Birth;
use linux_raw_sys::general as linux;
use proptest::prelude::*;
use share::files::Descriptors;
use share::server::Server;
use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use tempfile::TempDir;

/// A change of an answer before the client gets it.
type Lie = Box<dyn FnMut(&mut Vec<u8>) + Send>;

/// A server in this process.
struct Near {
    server: Mutex<Server>,
    lie: Mutex<Lie>,
}

impl fmt::Debug for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Near")
    }
}

impl Transport for Near {
    fn service(&self, client: &Client) {
        while let Some(message) = client.next() {
            let (bytes, mut answer) = (message.take(3), Vec::new());
            self.server.lock().answer(&bytes, &mut answer);
            (self.lie.lock())(&mut answer);
            assert!(answer.len() <= message.room, "{bytes:?}");
            message.complete(client, 3, answer);
        }
    }
}

fn share(readonly: bool, most: usize, lie: Lie) -> (TempDir, Arc<Near>, Arc<Client>) {
    let dir = tempfile::tempdir().expect("a directory");
    let root = fs::File::open(dir.path()).expect("opened").into();
    let server = Server::new(root, Descriptors::open().expect("descriptors"), readonly, most).expect("a server");
    let near = Arc::new(Near { server: Mutex::new(server), lie: Mutex::new(lie) });
    let client = Client::new(Arc::clone(&near) as Arc<dyn Transport>);
    (dir, near, client)
}

fn honest(readonly: bool) -> (TempDir, Arc<dyn Node>) {
    let (dir, _, client) = share(readonly, 1000, Box::new(|_| ()));
    let root = ShareNode::attach(&client).expect("a session");
    (dir, root)
}

fn content(node: &Arc<dyn Node>) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 100_000]);
    loop {
        match node.read_at(all.len() as u64, &mut buffer).expect("read") {
            0 => return all,
            count => all.extend(&buffer[..count]),
        }
    }
}

#[test]
fn files_are_made_written_read_and_removed() {
    let _ram = ram();
    let (dir, root) = honest(false);
    let file = root.create("f", New::File, Birth::root(0o444)).expect("made");
    assert!(file.open(linux::O_RDWR).expect("opened").is_none());
    let bytes: Vec<u8> = (0..200_000u32).map(|n| (n.wrapping_mul(n) >> 5) as u8).collect();
    let mut done = 0;
    while done < bytes.len() {
        done += file.write_at(done as u64, &bytes[done..]).expect("written");
    }
    assert!(fs::read(dir.path().join("f")).expect("there") == bytes && content(&file) == bytes);
    assert_eq!((file.status().bytes, file.status().mode, file.status().kind), (200_000, 0o444, Kind::File));
    assert_eq!(root.create("f", New::File, Birth::root(0o644)).map(drop), Err(Errno::EXIST));
    file.set(Attribute::Bytes(10)).expect("shorter");
    assert_eq!(file.append(b"end"), Ok((13, 3)));
    file.set(Attribute::Mode(0o600)).expect("changed");
    file.set(Attribute::Times(Some(1_500_000_000), Some(7_000_000_001))).expect("changed");
    let host = fs::metadata(dir.path().join("f")).expect("there");
    assert_eq!((host.len(), host.permissions().mode() & 0o7777, host.mtime_nsec()), (13, 0o600, 1));
    file.flush(false).expect("written");
    // One file is one node, with all of its names.
    root.link("g", &file).expect("linked");
    assert!(Arc::ptr_eq(&root.lookup("g").expect("there"), &file));
    assert_eq!(file.status().links, 2);
    root.unlink("f", false).expect("removed");
    root.unlink("g", false).expect("removed");
    assert_eq!(content(&file).len(), 13, "it is open");
    assert_eq!(root.lookup("f").map(drop), Err(Errno::NOENT));
}

#[test]
fn directories_and_links() {
    let _ram = ram();
    let (dir, root) = honest(false);
    let inner = root.create("d", New::Directory, Birth::root(0o750)).expect("made");
    for n in 0..3000 {
        fs::write(dir.path().join(format!("d/{n:04}-{}", "x".repeat(100))), "").expect("written");
    }
    let entries = inner.entries().expect("read");
    assert_eq!(entries.len(), 3000);
    assert!(entries.iter().all(|entry| entry.kind == Kind::File));
    assert_eq!(root.unlink("d", true), Err(Errno::NOTEMPTY));
    let link = root.create("l", New::Link("d/0".into()), Birth::root(0o777)).expect("made");
    assert_eq!((link.target(), link.status().kind), (Ok("d/0".into()), Kind::Link));
    assert_eq!(fs::read_link(dir.path().join("l")).expect("there").to_str(), Some("d/0"));
    inner.rename(&entries[7].name, &root, "moved", 0).expect("moved");
    assert!(dir.path().join("moved").exists());
    let pipe = root.create("p", New::Pipe, Birth::root(0o600)).expect("made");
    assert!(pipe.open(linux::O_RDONLY | linux::O_NONBLOCK).expect("opened").is_some());
    assert_eq!(root.create("n", New::Device(259), Birth::root(0o600)).map(drop), Err(Errno::PERM));
    assert_eq!(root.lookup("moved").expect("there").lookup("x").map(drop), Err(Errno::NOTDIR));
    assert!(root.system().expect("known").is_some_and(|system| system.block > 0));
    let other = crate::fs::memory::MemoryNode::root(0o755);
    assert_eq!(inner.rename(&entries[8].name, &other, "x", 0), Err(Errno::XDEV));
    assert_eq!(inner.link("x", &other), Err(Errno::XDEV));
}

#[test]
fn no_name_leads_out_of_a_share() {
    let _ram = ram();
    let (dir, root) = honest(false);
    symlink("/etc", dir.path().join("out")).expect("made");
    for name in ["..", ".", "", "a/b", "../..", "a\0b"] {
        assert!(root.lookup(name).is_err(), "{name:?}");
        assert!(root.create(name, New::File, Birth::root(0o644)).is_err(), "{name:?}");
        assert!(root.unlink(name, false).is_err(), "{name:?}");
    }
    let out = root.lookup("out").expect("there");
    assert_eq!(out.lookup("passwd").map(drop), Err(Errno::NOTDIR));
    assert_eq!(root.lookup(&"x".repeat(256)).map(drop), Err(Errno::NAMETOOLONG));
}

#[test]
fn a_readonly_share_is_not_changed() {
    let _ram = ram();
    let (dir, root) = honest(true);
    fs::write(dir.path().join("f"), "content").expect("written");
    let file = root.lookup("f").expect("there");
    assert_eq!(content(&file), b"content");
    assert_eq!(file.open(linux::O_WRONLY).map(drop), Err(Errno::ROFS));
    assert_eq!(file.write_at(0, b"x"), Err(Errno::ROFS));
    assert_eq!(file.set(Attribute::Mode(0)), Err(Errno::ROFS));
    assert_eq!(root.create("g", New::File, Birth::root(0o644)).map(drop), Err(Errno::ROFS));
    assert_eq!(root.create("d", New::Directory, Birth::root(0o755)).map(drop), Err(Errno::ROFS));
    assert_eq!(root.unlink("f", false), Err(Errno::ROFS));
    assert_eq!(root.rename("f", &root, "g", 0), Err(Errno::ROFS));
}

#[test]
fn pages_follow_the_file() {
    let _ram = ram();
    let (dir, root) = honest(false);
    let bytes: Vec<u8> = (0..150_000u32).map(|n| (n >> 4) as u8).collect();
    fs::write(dir.path().join("f"), &bytes).expect("written");
    let file = root.lookup("f").expect("there");
    let object = file.object().expect("an object");
    let page = |number: u64| {
        let mut content = [0; 4096];
        object.page(number).map(|frame| frame.read(0, &mut content)).map(|()| content)
    };
    assert_eq!(page(20).expect("there")[..], bytes[20 * 4096..21 * 4096]);
    let last = page(36).expect("there");
    assert!(
        last[..150_000 - 36 * 4096] == bytes[36 * 4096..] && last[150_000 - 36 * 4096..].iter().all(|byte| *byte == 0)
    );
    assert!(page(37).is_err() && page(u64::MAX / 4096).is_err());
    // A write of this VM is in the page; a change of the host is found by the next lookup.
    file.write_at(20 * 4096 + 5, b"new").expect("written");
    assert_eq!(&page(20).expect("there")[5..8], b"new");
    file.set(Attribute::Bytes(4096)).expect("shorter");
    assert!(page(20).is_err());
    fs::write(dir.path().join("f"), "host").expect("written");
    let again = root.lookup("f").expect("there");
    assert!(Arc::ptr_eq(&again, &file));
    assert_eq!(&page(0).expect("there")[..5], b"host\0");
}

#[test]
fn numbers_are_given_back() {
    let _ram = ram();
    let (dir, _, client) = share(false, 20, Box::new(|_| ()));
    let root = ShareNode::attach(&client).expect("a session");
    fs::write(dir.path().join("f"), "content").expect("written");
    for _ in 0..100 {
        let file = root.lookup("f").expect("there");
        assert_eq!(root.lookup("g").map(drop), Err(Errno::NOENT));
        assert_eq!(content(&file), b"content");
        root.entries().expect("read");
    }
    // The server has no more: an error, and all is well when some are given back.
    let mut held = Vec::new();
    let why = loop {
        let name = format!("{}", held.len());
        match root.create(&name, New::File, Birth::root(0o644)) {
            Ok(node) => held.push(node),
            Err(why) => break why,
        }
    };
    assert_eq!(why, Errno::MFILE);
    drop(held);
    assert_eq!(content(&root.lookup("f").expect("there")), b"content");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A server that cuts, lengthens and changes its answers gets errors or other content, and nothing else happens.
    #[test]
    fn a_server_that_lies(mut lies in prop::collection::vec((any::<u8>(), any::<prop::sample::Index>(), any::<u8>()), 1..40)) {
        let lie = move |answer: &mut Vec<u8>| {
            let Some((how, at, byte)) = lies.pop() else { return };
            match how % 8 {
                0 => answer.truncate(at.index(answer.len() + 1)),
                1 | 2 => {
                    let at = at.index(answer.len());
                    answer[at] = byte;
                }
                3 => {
                    // The length stays right.
                    let length = at.index(answer.len() + 1);
                    answer.truncate(length.max(7));
                    let length = answer.len() as u32;
                    answer[..4].copy_from_slice(&length.to_le_bytes());
                }
                4 if answer.len() > 11 => {
                    let at = 7 + at.index(answer.len() - 7);
                    answer[at..].fill(byte);
                }
                _ => {}
            }
        };
        let _ram = ram();
        let (dir, _, client) = share(false, 1000, Box::new(lie));
        fs::write(dir.path().join("f"), vec![7; 9000]).expect("written");
        fs::create_dir(dir.path().join("d")).expect("made");
        let Ok(root) = ShareNode::attach(&client) else { return Ok(()) };
        for _ in 0..3 {
            if let Ok(file) = root.lookup("f") {
                let _ = file.open(linux::O_RDWR);
                let mut buffer = [0; 5000];
                prop_assert!(file.read_at(0, &mut buffer).unwrap_or(0) <= 5000);
                let _ = (file.write_at(3, b"abc"), file.append(b"d"), file.refresh(), file.flush(true), file.status());
                let _ = file.object().map(|object| (object.page(0).is_ok(), object.page(2).is_ok()));
                let _ = file.set(Attribute::Bytes(100));
            }
            let _ = root.entries();
            let _ = root.create("l", New::Link("t".into()), Birth::root(0o777)).map(|link| link.target());
            let _ = root.create("n", New::File, Birth::root(0o644));
            let _ = (root.rename("n", &root, "m", 0), root.unlink("m", false), root.unlink("l", false), root.system());
        }
    }
}
