//! Archives of guests that mean well, and of guests that do not.

use super::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use tar::Header;
use tempfile::TempDir;

/// An entry: its kind, name, link and content.
type Entry<'a> = (EntryType, &'a str, &'a str, &'a [u8]);

const FILE: EntryType = EntryType::Regular;
const DIR: EntryType = EntryType::Directory;
const LINK: EntryType = EntryType::Symlink;
const SAME: EntryType = EntryType::Link;

fn header(kind: EntryType, name: &str, link: &str, bytes: u64) -> Header {
    let mut header = Header::new_gnu();
    // As they are: the library would refuse some.
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name.as_bytes());
    old.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(if kind == DIR { 0o2750 } else { 0o4640 });
    header.set_mtime(1_000_000_000);
    header.set_size(bytes);
    header.set_cksum();
    header
}

fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (kind, name, link, content) in entries {
        archive.append(&header(*kind, name, link, content.len() as u64), *content).expect("in memory");
    }
    archive.into_inner().expect("in memory")
}

/// A directory with the target's directory in it, `in`, and `out` beside it, with a file that must stay.
fn scratch() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["in", "out"] {
        fs::create_dir(dir.path().join(name)).expect("a directory");
    }
    fs::write(dir.path().join("out/file"), "stays").expect("a file");
    dir
}

fn unpack_in(dir: &TempDir, wanted: Wanted, archive: &[u8]) -> Result<Option<LeftOut>, UnpackError> {
    let result = unpack(archive, &dir.path().join("in/target"), wanted);
    let names = |path: &str| {
        let all = fs::read_dir(dir.path().join(path)).expect("a directory").flatten();
        all.map(|entry| entry.file_name().into_string().expect("text")).collect::<Vec<_>>()
    };
    assert_eq!(names("out"), ["file"]);
    assert_eq!(fs::read(dir.path().join("out/file")).expect("a file"), b"stays");
    assert!(names("in").iter().all(|name| name == "target"), "{:?}", names("in"));
    result
}

#[test]
fn a_file_has_its_content_rights_and_time() {
    let dir = scratch();
    let path = dir.path().join("in/target");
    fs::write(&path, "before").expect("a file");
    let content = vec![7; 200_000];
    let left_out = unpack_in(&dir, Wanted::File, &archive(&[(FILE, "./other", "", &content)])).expect("unpacked");
    assert_eq!(left_out, None);
    let about = fs::metadata(&path).expect("a file");
    assert_eq!((about.mode() & 0o7777, about.mtime()), (0o640, 1_000_000_000), "and not for another user");
    assert_eq!(fs::read(&path).expect("a file"), content);
}

#[test]
fn a_file_is_whole_or_as_before() {
    let dir = scratch();
    let path = dir.path().join("in/target");
    fs::write(&path, "before").expect("a file");
    let whole = archive(&[(FILE, "x", "", &[7; 3000])]);
    for length in [0, 100, 512, 600, 3511] {
        assert!(matches!(unpack_in(&dir, Wanted::File, &whole[..length]), Err(UnpackError::Archive(_))), "{length}");
        assert_eq!(fs::read(&path).expect("a file"), b"before");
    }
}

#[test]
fn a_tree_has_its_links_and_times() {
    let dir = scratch();
    let entries: [Entry<'_>; 8] = [
        (DIR, "./", "", b""),
        (DIR, "./sub", "", b""),
        (FILE, "./sub/a b", "", b"a"),
        (LINK, "./link", "/nowhere", b""),
        (SAME, "./same", "./sub/a b", b""),
        (EntryType::Fifo, "./pipe", "", b""),
        (EntryType::Char, "./device", "", b""),
        (FILE, "./link", "", b"in its place"),
    ];
    let left_out = unpack_in(&dir, Wanted::Tree, &archive(&entries)).expect("unpacked");
    assert_eq!(left_out, Some(LeftOut { first: "./pipe".into(), count: 2 }));
    let path = |name: &str| dir.path().join("in/target").join(name);
    assert_eq!(fs::read(path("same")).expect("a copy"), b"a");
    assert_eq!(fs::metadata(path("same")).expect("a copy").nlink(), 1);
    assert_eq!(fs::read(path("link")).expect("a file"), b"in its place");
    let about = fs::metadata(path("sub")).expect("a directory");
    assert_eq!((about.mode() & 0o7777, about.mtime()), (0o750, 1_000_000_000));
    // What is there is kept, and what comes is added.
    fs::set_permissions(path("sub"), fs::Permissions::from_mode(0o700)).expect("its rights");
    unpack_in(&dir, Wanted::Tree, &archive(&[entries[0], entries[1], (FILE, "./sub/new", "", b"n")])).expect("again");
    assert_eq!(fs::metadata(path("sub")).expect("a directory").mode() & 0o777, 0o700);
    assert!(path("sub/new").exists() && path("sub/a b").exists());
}

#[test]
fn nothing_is_written_outside_of_the_target() {
    let root: Entry<'_> = (DIR, ".", "", b"");
    let outside = "../../out";
    for entries in [
        &[root, (FILE, "../../out/file", "", b"x")][..],
        &[root, (FILE, "../x", "", b"x")],
        &[root, (FILE, "/x", "", b"x")],
        &[root, (DIR, "a", "", b""), (FILE, "a/../../x", "", b"x")],
        &[root, (DIR, "..", "", b"")],
        // Through a link that came before.
        &[root, (LINK, "l", outside, b""), (FILE, "l/file", "", b"x")],
        &[root, (LINK, "l", outside, b""), (DIR, "l", "", b""), (FILE, "l/new", "", b"x")],
        &[root, (LINK, "l", outside, b""), (LINK, "l/new", "/", b"")],
        &[root, (LINK, "l", "..", b""), (LINK, "l/l", "..", b"")],
        // By another name of a file.
        &[root, (SAME, "a", "../../out/file", b"")],
        &[root, (LINK, "l", "../../out/file", b""), (SAME, "a", "l", b"")],
        &[root, (SAME, "a", "/etc/passwd", b"")],
        // Not what was asked for.
        &[(LINK, "x", outside, b"")],
        &[(SAME, "x", "/etc/passwd", b"")],
        &[(DIR, "a", "", b"")],
        &[(FILE, "a", "", b"x"), (FILE, "b", "", b"x")],
        &[(FILE, "..", "", b"x")],
        &[],
    ] {
        let dir = scratch();
        assert!(unpack_in(&dir, Wanted::Tree, &archive(entries)).is_err(), "{entries:?}");
    }
    let dir = scratch();
    assert!(unpack_in(&dir, Wanted::File, &archive(&[root])).is_err(), "no directory was asked for");
}

#[test]
fn links_that_were_there_lead_nowhere() {
    let dir = scratch();
    symlink("../out", dir.path().join("in/target")).expect("a link");
    let tree = archive(&[(DIR, ".", "", b""), (FILE, "file", "", b"x")]);
    assert!(unpack_in(&dir, Wanted::Tree, &tree).is_err());
    unpack_in(&dir, Wanted::File, &archive(&[(FILE, "x", "", b"x")])).expect("the link is replaced");
    assert!(fs::symlink_metadata(dir.path().join("in/target")).expect("a file").is_file());
}

#[test]
fn long_names_have_a_bound() {
    let dir = scratch();
    let name = |bytes: usize| vec![b'n'; bytes];
    let with = |name: &[u8]| {
        let entries: [Entry<'_>; 3] =
            [(DIR, ".", "", b""), (EntryType::GNULongName, "././@LongLink", "", name), (FILE, "short", "", b"x")];
        archive(&entries)
    };
    unpack_in(&dir, Wanted::Tree, &with(&[&name(200)[..], b"\0"].concat())).expect("unpacked");
    assert!(dir.path().join("in/target").join(OsString::from_vec(name(200))).exists());
    assert!(unpack_in(&dir, Wanted::Tree, &with(&name(100_000))).is_err());
}
