//! Clients that want out of the share, or more than their due.

mod client;

use client::*;
use share::wire::kind;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn no_name_leads_out() {
    let mut c = Client::new(false, 100);
    c.mkdir(ROOT, b"d").unwrap();
    for name in [&b".."[..], b".", b"", b"../secret", b"d/..", b"/etc/passwd", b"a\0b"] {
        for names in [&[name][..], &[b"d", name], &[b"d", name, b"secret"]] {
            // It comes as far as there are names of entries.
            if let Ok(answer) = c.walk(ROOT, 9, names) {
                assert_eq!(answer[..2], [1, 0], "{names:?}");
                assert_eq!(c.clunk(9), Err(EBADF), "it is nothing's number");
            }
        }
        let says_no = |done: Result<Vec<u8>, u32>| assert!(matches!(done, Err(EINVAL | ENOENT)), "{name:?}: {done:?}");
        c.walk(ROOT, 5, &[b"d"]).unwrap();
        says_no(c.create(5, name, 0o102));
        says_no(c.mkdir(5, name));
        says_no(c.symlink(5, name, b"x"));
        says_no(c.mknod(5, name, 0o100_644));
        says_no(c.link(ROOT, 5, name));
        says_no(c.rename(ROOT, b"d", ROOT, name));
        says_no(c.rename(ROOT, name, ROOT, b"e"));
        says_no(c.unlink(ROOT, name, 0));
        says_no(c.unlink(ROOT, name, 0x200));
        c.clunk(5).unwrap();
    }
    c.check();
}

#[test]
fn no_link_is_followed() {
    let mut c = Client::new(false, 100);
    let (secret, outside) = (c.secret.clone(), c.secret.parent().unwrap().to_owned());
    let text = |path: &std::path::Path| path.to_str().unwrap().as_bytes().to_vec();
    c.symlink(ROOT, b"file", &text(&secret)).unwrap();
    c.symlink(ROOT, b"near", b"../secret").unwrap();
    c.symlink(ROOT, b"out", &text(&outside)).unwrap();
    c.symlink(ROOT, b"up", b"..").unwrap();
    c.symlink(ROOT, b"proc", b"/proc/self/root").unwrap();
    for link in [&b"file"[..], b"near", b"out", b"up", b"proc"] {
        c.walk(ROOT, 5, &[link]).unwrap();
        assert_eq!(c.walk(5, 6, &[b"secret"]), Err(ENOTDIR), "through the link");
        let further = c.walk(ROOT, 6, &[link, b"secret"]).unwrap();
        assert_eq!(further[..2], [1, 0], "through the link");
        for flags in [0, 1, 2, 0o1_002, 0o200_000] {
            assert_eq!(c.open(5, flags), Err(ELOOP));
        }
        assert_eq!(c.create(5, b"new", 0o102), Err(ENOTDIR));
        assert_eq!(c.mkdir(5, b"new"), Err(ENOTDIR));
        assert_eq!(c.symlink(5, b"new", b"x"), Err(ENOTDIR));
        assert_eq!(c.mknod(5, b"new", 0o100_644), Err(ENOTDIR));
        assert_eq!(c.link(5, ROOT, b"new"), Err(ENOTDIR));
        assert_eq!(c.rename(ROOT, b"up", 5, b"new"), Err(ENOTDIR));
        assert_eq!(c.rename(5, b"secret", ROOT, b"got"), Err(ENOTDIR));
        assert_eq!(c.unlink(5, b"secret", 0), Err(ENOTDIR));
        assert_eq!(c.set_size(5, 0), Err(EINVAL));
        // A link's own rights cannot be changed, and those of its target are not.
        assert_eq!(c.set_mode(5, 0o777), Err(EOPNOTSUPP));
        let times = with(5).u32(0x1b0).u32(0).u32(0).u32(0).u64(0).u64(1).u64(0).u64(1).u64(0);
        c.ask(kind::SETATTR, times).unwrap();
        assert!(c.ask(kind::XATTRCREATE, with(5).text(b"user.x").u64(1).u32(0)).is_ok());
        assert!(c.write(5, 0, b"x").is_ok() && c.clunk(5).is_err(), "an attribute of a link");
        // Over a link that is there, and without O_EXCL.
        c.walk(ROOT, 7, &[]).unwrap();
        assert_eq!(c.create(7, link, 0o1_102), Err(EEXIST));
        c.clunk(7).unwrap();
        // A further name of the link is one of the link.
        c.walk(ROOT, 5, &[link]).unwrap();
        c.link(ROOT, 5, b"again").unwrap();
        assert!(c.dir.join("again").is_symlink());
        c.unlink(ROOT, b"again", 0).unwrap();
        c.clunk(5).unwrap();
    }
    let meta = fs::metadata(&secret).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o644);
    assert!(meta.modified().unwrap().elapsed().unwrap().as_secs() < 600, "its time was not set to 1970");
    c.check();
}

/// QEMU's 9P keeps paths, and the length of one in 16 bits: deep below, another file is meant.
#[test]
fn paths_of_any_length_stay_inside() {
    let mut c = Client::new(false, 100);
    let name = [b'n'; 250];
    c.walk(ROOT, 1, &[]).unwrap();
    // 75,000 bytes.
    for depth in 0..300 {
        let (at, next) = (1 + depth % 2, 1 + (depth + 1) % 2);
        c.mkdir(at, &name).unwrap();
        c.walk(at, next, &[&name]).unwrap();
        c.clunk(at).unwrap();
    }
    c.walk(1, 5, &[]).unwrap();
    c.create(5, b"f", 0o102).unwrap();
    c.write(5, 0, b"deep").unwrap();
    assert_eq!((c.read(5, 0, 100), c.size(5)), (Ok(b"deep".to_vec()), Ok(4)));
    for name in [&b"secret"[..], b"etc", b".."] {
        assert!(matches!(c.walk(1, 6, &[name]), Err(ENOENT | EINVAL)));
    }
    // Upwards by names, the tree is removed again.
    c.clunk(5).unwrap();
    c.unlink(1, b"f", 0).unwrap();
    c.rename(ROOT, &name, ROOT, b"top").unwrap();
    c.create(1, b"g", 0o102).unwrap();
    assert_eq!(c.write(1, 0, b"still"), Ok(5_u32.to_le_bytes().to_vec()));
    c.check();
    // What would be too deep for `remove_dir_all` in one piece.
    let status = std::process::Command::new("rm").arg("-r").arg(c.dir.join("top")).status();
    assert!(status.is_ok_and(|status| status.success()));
}

#[test]
fn a_directory_that_leaves_the_share_takes_nobody_along() {
    let mut c = Client::new(false, 100);
    c.mkdir(ROOT, b"d").unwrap();
    c.walk(ROOT, 1, &[b"d"]).unwrap();
    let moved = c.secret.parent().unwrap().join("moved");
    fs::rename(c.dir.join("d"), &moved).unwrap();
    assert_eq!(c.walk(1, 2, &[b".."]), Err(EINVAL));
    assert_eq!(c.walk(1, 2, &[b"..", b"secret"]), Err(EINVAL));
    fs::remove_dir(moved).unwrap();
    c.check();
}

#[test]
fn files_that_are_not_the_guests_are_not_opened() {
    let mut c = Client::new(false, 100);
    c.mknod(ROOT, b"pipe", 0o010_644).unwrap();
    c.mknod(ROOT, b"socket", 0o140_644).unwrap();
    c.mknod(ROOT, b"plain", 0o100_644).unwrap();
    for (device, mode) in [(&b"char"[..], 0o020_666), (b"block", 0o060_666)] {
        assert_eq!(c.mknod(ROOT, device, mode), Err(EPERM));
    }
    for name in [&b"pipe"[..], b"socket"] {
        c.walk(ROOT, 1, &[name]).unwrap();
        assert_eq!((c.open(1, 0), c.open(1, 1)), (Err(ENXIO), Err(ENXIO)));
        c.clunk(1).unwrap();
        c.walk(ROOT, 1, &[]).unwrap();
        assert_eq!(c.create(1, name, 0o101), Err(EEXIST));
        c.clunk(1).unwrap();
    }
}

#[test]
fn file_numbers_and_attributes_are_bounded() {
    let mut c = Client::new(false, 200);
    c.mkdir(ROOT, &[b'n'; 255]).unwrap();
    let made = (1..1000).take_while(|fid| c.walk(ROOT, *fid, &[&[b'n'; 255]]).is_ok()).count();
    assert_eq!(made, 199);
    assert_eq!((c.walk(ROOT, 900, &[]), c.attach(900)), (Err(EMFILE), Err(EMFILE)));
    assert_eq!(c.ask(kind::XATTRWALK, with(1).u32(900).text(b"")), Err(EMFILE));
    // A number that is in use is no other one's.
    assert_eq!((c.walk(ROOT, 5, &[]), c.attach(5)), (Err(EBADF), Err(EBADF)));
    // Attributes that are being written: 4 MiB together.
    let begun =
        (1..200).take_while(|fid| c.ask(kind::XATTRCREATE, with(*fid).text(b"user.a").u64(64 << 10).u32(0)).is_ok());
    assert_eq!(begun.count(), 64);
    assert!(c.ask(kind::XATTRCREATE, with(150).text(b"user.a").u64((64 << 10) + 1).u32(0)).is_err());
    // A new session has all of it again.
    c.ask(kind::VERSION, with(8192).text(b"9P2000.L")).unwrap();
    c.attach(ROOT).unwrap();
    assert!((1..200).all(|fid| c.walk(ROOT, fid, &[]).is_ok()));
}

#[test]
fn nothing_is_changed_where_it_is_only_read() {
    let mut c = Client::new(true, 100);
    fs::write(c.dir.join("f"), "text").unwrap();
    c.walk(ROOT, 1, &[b"f"]).unwrap();
    c.walk(ROOT, 2, &[]).unwrap();
    for flags in [1, 2, 0o1_000, 0o1_001] {
        assert_eq!(c.open(1, flags), Err(EROFS));
    }
    assert_eq!(c.create(2, b"f", 0o100), Err(EROFS));
    assert_eq!(c.create(2, b"new", 0o102), Err(EROFS));
    assert_eq!(c.mkdir(ROOT, b"d"), Err(EROFS));
    assert_eq!(c.symlink(ROOT, b"l", b"f"), Err(EROFS));
    assert_eq!(c.mknod(ROOT, b"n", 0o100_644), Err(EROFS));
    assert_eq!(c.link(ROOT, 1, b"g"), Err(EROFS));
    assert_eq!(c.rename(ROOT, b"f", ROOT, b"g"), Err(EROFS));
    assert_eq!(c.unlink(ROOT, b"f", 0), Err(EROFS));
    assert_eq!((c.set_size(1, 0), c.set_mode(1, 0)), (Err(EROFS), Err(EROFS)));
    assert_eq!(c.ask(kind::XATTRCREATE, with(1).text(b"user.x").u64(1).u32(0)), Err(EROFS));
    c.open(1, 0).unwrap();
    assert_eq!(c.read(1, 0, 100), Ok(b"text".to_vec()));
    assert_eq!(c.write(1, 0, b"x"), Err(EBADF));
    assert_eq!(fs::read_dir(&c.dir).unwrap().count(), 1);
    c.check();
}
