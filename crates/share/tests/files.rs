//! The promises of Linux about files, kept by a share.

mod client;

use client::*;
use share::wire::kind;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

#[test]
fn a_file_that_is_replaced_stays_itself() {
    let mut c = Client::new(false, 100);
    fs::write(c.dir.join("f"), "old content").unwrap();
    fs::write(c.dir.join("g"), "new").unwrap();
    // One number that is open, one that is not.
    for fid in [1, 2] {
        c.walk(ROOT, fid, &[b"f"]).unwrap();
    }
    c.open(1, 2).unwrap();
    c.rename(ROOT, b"g", ROOT, b"f").unwrap();
    c.set_size(1, 3).unwrap();
    assert_eq!((c.size(1), c.size(2)), (Ok(3), Ok(3)));
    c.set_size(2, 2).unwrap();
    c.set_mode(2, 0o600).unwrap();
    assert_eq!((c.read(1, 0, 100), c.size(1)), (Ok(b"ol".to_vec()), Ok(2)));
    assert_eq!(fs::read(c.dir.join("f")).unwrap(), b"new", "the file that took its name");
    assert_eq!(fs::metadata(c.dir.join("f")).unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn a_file_without_a_name_works_on() {
    let mut c = Client::new(false, 100);
    c.walk(ROOT, 1, &[]).unwrap();
    c.create(1, b"f", 0o102).unwrap();
    c.walk(ROOT, 2, &[b"f"]).unwrap();
    c.unlink(ROOT, b"f", 0).unwrap();
    c.write(1, 0, b"content").unwrap();
    c.set_mode(2, 0o640).unwrap();
    c.set_size(2, 5).unwrap();
    // It is opened, read and measured by its number.
    c.open(2, 0).unwrap();
    assert_eq!((c.read(2, 0, 100), c.size(1), c.size(2)), (Ok(b"conte".to_vec()), Ok(5), Ok(5)));
    c.ask(kind::FSYNC, with(1).u32(0)).unwrap();
    assert_eq!(c.walk(ROOT, 3, &[b"f"]), Err(ENOENT));
    // A directory is removed while it is open.
    c.mkdir(ROOT, b"d").unwrap();
    c.walk(ROOT, 4, &[b"d"]).unwrap();
    c.walk(ROOT, 5, &[b"d"]).unwrap();
    c.open(4, 0).unwrap();
    c.unlink(ROOT, b"d", 0x200).unwrap();
    assert!(c.list(4, 4096).unwrap_or_default().len() <= 2);
    assert_eq!(c.create(5, b"f", 0o102), Err(ENOENT));
}

#[test]
fn files_under_a_directory_that_is_renamed_stay_themselves() {
    let mut c = Client::new(false, 100);
    c.mkdir(ROOT, b"a").unwrap();
    c.walk(ROOT, 1, &[b"a"]).unwrap();
    c.walk(1, 2, &[]).unwrap();
    c.create(2, b"f", 0o102).unwrap();
    c.mkdir(ROOT, b"sub").unwrap();
    c.walk(ROOT, 3, &[b"sub"]).unwrap();
    c.rename(ROOT, b"a", 3, b"b").unwrap();
    c.mkdir(ROOT, b"a").unwrap();
    c.write(2, 0, b"x").unwrap();
    c.mkdir(1, b"inner").unwrap();
    assert_eq!(fs::read(c.dir.join("sub/b/f")).unwrap(), b"x");
    assert!(c.dir.join("sub/b/inner").is_dir() && fs::read_dir(c.dir.join("a")).unwrap().next().is_none());
}

#[test]
fn names_are_any_bytes_and_lists_are_whole() {
    let mut c = Client::new(false, 100);
    let mut expected: BTreeSet<Vec<u8>> = [b".".to_vec(), b"..".to_vec()].into();
    for n in 0..500_u32 {
        let name = [&b"\xff\xfe "[..], n.to_string().as_bytes(), &vec![b'x'; n as usize % 200]].concat();
        fs::write(c.dir.join(std::ffi::OsStr::from_bytes(&name)), "").unwrap();
        expected.insert(name);
    }
    for count in [300, 1000, 4096, 100_000] {
        c.walk(ROOT, 1, &[]).unwrap();
        c.open(1, 0o200_000).unwrap();
        for _ in 0..2 {
            let names = c.list(1, count).unwrap();
            assert_eq!(names.len(), expected.len(), "none is missing, and none is there twice");
            assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), expected, "{count}");
        }
        c.clunk(1).unwrap();
    }
}

#[test]
fn large_messages_are_read_and_written() {
    let mut c = Client::new(false, 100);
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n >> 3) as u8 ^ n as u8).collect();
    c.walk(ROOT, 1, &[]).unwrap();
    c.create(1, b"f", 0o102).unwrap();
    for (at, part) in bytes.chunks(131_000).enumerate() {
        assert_eq!(c.write(1, at as u64 * 131_000, part), Ok((part.len() as u32).to_le_bytes().to_vec()));
    }
    let most = (128 << 10) - 11;
    assert_eq!(c.read(1, 0, u32::MAX), Ok(bytes[..most].to_vec()));
    assert_eq!(c.read(1, most as u64, 100), Ok(bytes[most..][..100].to_vec()));
    assert_eq!(c.read(1, u64::MAX, 100), Err(EINVAL));
    assert_eq!(c.write(1, u64::MAX, b"x"), Err(EINVAL));
    assert_eq!(fs::read(c.dir.join("f")).unwrap(), bytes);
    // More than the message has.
    assert_eq!(c.ask(kind::WRITE, with(1).u64(0).u32(1000).bytes(b"few")), Err(EINVAL));
    assert_eq!(c.size(1), Ok(300_000));
}

#[test]
fn rights_owners_and_times_are_the_hosts() {
    let mut c = Client::new(false, 100);
    c.walk(ROOT, 1, &[]).unwrap();
    c.create(1, b"f", 0o102).unwrap();
    c.set_mode(1, 0o4751).unwrap();
    // An owner that nobody but root may set, and then the time alone.
    let owner = |c: &mut Client, valid: u32| {
        c.ask(kind::SETATTR, with(1).u32(valid).u32(0).u32(1234).u32(1234).u64(0).u64(0).u64(0).u64(0).u64(0))
    };
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(owner(&mut c, 6).is_ok(), is_root);
    owner(&mut c, 1 << 6).unwrap();
    let times = with(1).u32(0x1b0).u32(0).u32(0).u32(0).u64(0).u64(7).u64(8).u64(9).u64(10);
    c.ask(kind::SETATTR, times).unwrap();
    let meta = fs::metadata(c.dir.join("f")).unwrap();
    assert_eq!((meta.atime(), meta.atime_nsec(), meta.mtime(), meta.mtime_nsec()), (7, 8, 9, 10));
    assert_eq!(meta.uid() == 1234, is_root);
    c.mkdir(ROOT, b"d").unwrap();
    c.walk(ROOT, 2, &[b"d"]).unwrap();
    c.set_mode(2, 0o2775).unwrap();
    c.mkdir(2, b"sub").unwrap();
    assert_eq!(fs::metadata(c.dir.join("d/sub")).unwrap().permissions().mode() & 0o7777, 0o2755);
}

#[test]
fn attributes_of_users_are_kept() {
    let mut c = Client::new(false, 100);
    c.walk(ROOT, 1, &[]).unwrap();
    c.create(1, b"f", 0o102).unwrap();
    let set = |c: &mut Client, name: &[u8], value: &[u8], flags: u32| {
        c.walk(ROOT, 2, &[b"f"])?;
        let begun = c.ask(kind::XATTRCREATE, with(2).text(name).u64(value.len() as u64).u32(flags));
        let written = if value.is_empty() { Ok(Vec::new()) } else { c.write(2, 0, value) };
        let done = c.clunk(2);
        begun.and(written).and(done)
    };
    let get = |c: &mut Client, name: &[u8]| {
        c.ask(kind::XATTRWALK, with(1).u32(3).text(name))?;
        let value = c.read(3, 0, 1000);
        c.clunk(3)?;
        value
    };
    if set(&mut c, b"user.a", b"value", 0) == Err(EOPNOTSUPP) {
        // A tmpfs of an older kernel.
        return assert_eq!(get(&mut c, b"user.a"), Err(EOPNOTSUPP));
    }
    assert_eq!(get(&mut c, b"user.a"), Ok(b"value".to_vec()));
    assert_eq!(get(&mut c, b""), Ok(b"user.a\0".to_vec()));
    assert_eq!(set(&mut c, b"user.a", b"other", 1), Err(EEXIST));
    assert_eq!(set(&mut c, b"user.a", b"", 2).map(drop), Ok(()));
    assert_eq!(get(&mut c, b""), Ok(Vec::new()));
    for other in [&b"security.capability"[..], b"trusted.x", b"system.posix_acl_access"] {
        assert_eq!(set(&mut c, other, b"x", 0), Err(EOPNOTSUPP));
        assert_eq!(get(&mut c, other), Err(EOPNOTSUPP));
    }
}

#[test]
fn what_is_no_message_is_refused() {
    let mut c = Client::new(false, 100);
    for of in 0..=u8::MAX {
        for length in 0..70 {
            for byte in [0, 1, 0xff] {
                let message = Message::default().bytes(&vec![byte; length]);
                if ![kind::VERSION, kind::ATTACH].contains(&of) {
                    let _ = c.ask(of, message);
                }
            }
        }
    }
    c.ask(kind::VERSION, with(8192).text(b"9P2000")).unwrap();
    c.attach(ROOT).unwrap();
    c.check();
    let mut answer = Vec::new();
    for length in 0..7 {
        c.server.answer(&vec![0xff; length], &mut answer);
        assert_eq!((answer.len(), answer[4]), (11, 7));
    }
}
