//! File systems in memory, paths, pipes, and the terminal's lines.

use super::memory::MemoryNode;
use super::path::{Last, Place, Position, Target};
use super::pipe::Pipe;
use super::{Attribute, HUP, IN, Kind, New, OUT, Stream};
use crate::errno::Errno;
use crate::memory::tests::ram;
use crate::task::credentials::Birth;
use alloc::sync::Arc;
use alloc::vec::Vec;

fn position() -> Position {
    let root = Place::root(MemoryNode::root(0o755));
    Position { current: Arc::clone(&root), root, mask: 0o022, user: Arc::default() }
}

/// Makes directories `/a/b`, and the file `/a/f` with the text "text".
fn tree() -> Position {
    let position = position();
    let a = position.root.node.create("a", New::Directory, Birth::root(0o755)).expect("made");
    a.create("b", New::Directory, Birth::root(0o755)).expect("made");
    a.create("f", New::File, Birth::root(0o644)).expect("made").write_at(0, b"text").expect("written");
    position
}

fn find(position: &Position, path: &str) -> Result<alloc::string::String, Errno> {
    position.present(&position.current, path, Last::Follow).map(|place| place.path(&position.root))
}

#[test]
fn paths_lead_where_they_say() {
    let _ram = ram();
    let mut position = tree();
    for (path, found) in [
        ("/", Ok("/")),
        ("/a/b", Ok("/a/b")),
        ("a//./b/../f", Ok("/a/f")),
        ("/../../a/", Ok("/a")),
        ("/a/f/", Err(Errno::NOTDIR)),
        ("/a/f/x", Err(Errno::NOTDIR)),
        ("/a/f/.", Err(Errno::NOTDIR)),
        ("/a/x", Err(Errno::NOENT)),
        ("/x/y", Err(Errno::NOENT)),
        ("", Err(Errno::NOENT)),
    ] {
        assert_eq!(find(&position, path).as_deref().map_err(|why| *why), found, "{path}");
    }
    assert_eq!(find(&position, &"x".repeat(256)), Err(Errno::NAMETOOLONG));
    position.current = position.present(&position.root, "/a", Last::Follow).expect("there");
    assert_eq!(find(&position, "b/../f"), Ok("/a/f".into()));
    // A root of its own: nothing leads out of it.
    position.root = Arc::clone(&position.current);
    assert_eq!(find(&position, "/../../f"), Ok("/f".into()));
}

#[test]
fn links_are_followed_and_end() {
    let _ram = ram();
    let position = tree();
    let root = &position.root.node;
    for (name, target) in [("up", "/a/b/.."), ("loop", "loop"), ("new", "a/new"), ("far", "/x/y")] {
        root.create(name, New::Link(target.into()), Birth::root(0o777)).expect("made");
    }
    assert_eq!(find(&position, "/up/f"), Ok("/a/f".into()));
    assert_eq!(find(&position, "/loop"), Err(Errno::LOOP));
    let kept = position.present(&position.root, "/loop", Last::Keep).expect("the link itself");
    assert_eq!(kept.node.target(), Ok("loop".into()));
    let found = position.find(&position.root, "/new", Last::Follow);
    assert!(matches!(&found, Ok(Target::Absent(place, name)) if place.name == "a" && name == "new"), "{found:?}");
    assert_eq!(find(&position, "/far"), Err(Errno::NOENT));
    assert!(matches!(position.absent(&position.root, "/up"), Err(Errno::EXIST)));
    let named = |path| position.name(&position.root, path).map(|(place, name)| (place.name.clone(), name)).ok();
    assert_eq!(named("/a/b/"), Some(("a".into(), "b".into())));
    assert_eq!([named("/"), named("/a/."), named("/a/.."), named("/a/x")], [None, None, None, None]);
}

#[test]
fn names_come_and_go() {
    let _ram = ram();
    let position = tree();
    let root = Arc::clone(&position.root.node);
    let a = root.lookup("a").expect("there");
    assert_eq!(a.unlink("b", false), Err(Errno::ISDIR));
    assert_eq!(a.unlink("f", true), Err(Errno::NOTDIR));
    assert_eq!(root.unlink("a", true), Err(Errno::NOTEMPTY));
    let file = a.lookup("f").expect("there");
    root.link("g", &file).expect("linked");
    assert_eq!(file.status().links, 2);
    assert_eq!(root.link("h", &a), Err(Errno::PERM));
    assert_eq!(root.link("h", &MemoryNode::root(0)), Err(Errno::XDEV));
    a.unlink("f", false).expect("removed");
    assert_eq!(file.status().links, 1);
    let mut bytes = [0; 8];
    assert_eq!((root.lookup("g").expect("there").read_at(1, &mut bytes), &bytes[..3]), (Ok(3), &b"ext"[..]));
    // Renames replace, exchange, or refuse.
    let b = a.lookup("b").expect("there");
    assert_eq!(root.rename("g", &a, "b", 0), Err(Errno::ISDIR));
    assert_eq!(root.rename("g", &b, "g", 0), Ok(()));
    assert_eq!(a.rename("b", &root, "a", 0), Err(Errno::NOTEMPTY));
    assert_eq!(b.rename("g", &root, "a", linux_raw_sys::general::RENAME_NOREPLACE), Err(Errno::EXIST));
    assert_eq!(b.rename("g", &root, "a", linux_raw_sys::general::RENAME_EXCHANGE), Ok(()));
    assert_eq!(
        (root.lookup("a").map(|node| node.status().kind), b.lookup("g").map(|node| node.status().kind)),
        (Ok(Kind::File), Ok(Kind::Directory))
    );
    // A directory that was removed takes no names.
    let gone = root.create("gone", New::Directory, Birth::root(0o755)).expect("made");
    root.unlink("gone", true).expect("removed");
    assert!(matches!(gone.create("x", New::File, Birth::root(0o644)), Err(Errno::NOENT)));
    assert_eq!(gone.status().links, 0);
}

#[test]
fn sizes_and_descriptions_change() {
    let _ram = ram();
    let position = tree();
    let file = position.present(&position.root, "/a/f", Last::Follow).expect("there");
    file.node.set(Attribute::Bytes(2)).expect("set");
    file.node.set(Attribute::Mode(0o4711)).expect("set");
    file.node.set(Attribute::Owner(None, Some(5))).expect("set");
    file.node.set(Attribute::Times(Some(1), None)).expect("set");
    let status = file.node.status();
    assert_eq!((status.bytes, status.mode, status.uid, status.gid, status.times[0]), (2, 0o4711, 0, 5, 1));
    assert_eq!(position.root.node.set(Attribute::Bytes(0)), Err(Errno::INVAL));
    let names: Vec<_> =
        position.root.node.entries().expect("a directory").into_iter().map(|entry| (entry.name, entry.kind)).collect();
    assert_eq!(names, [("a".into(), Kind::Directory)]);
}

#[test]
fn a_pipe_has_an_end_and_no_more_than_its_room() {
    let (reader, writer) = Pipe::pair();
    let mut bytes = [0; 8];
    assert_eq!(reader.read(&mut bytes), Err(Errno::AGAIN));
    assert_eq!(
        (writer.write(b"hello"), reader.read(&mut bytes[..2]), reader.read(&mut bytes[2..])),
        (Ok(5), Ok(2), Ok(3))
    );
    assert_eq!(&bytes[..5], b"hello");
    assert_eq!((reader.ready(None), writer.ready(None)), (0, OUT));
    // Small writes are whole, large ones are as much as there is room for.
    let large = alloc::vec![1; 100_000];
    assert_eq!(writer.write(&large), Ok(65_536));
    assert_eq!((writer.write(&[1]), writer.ready(None)), (Err(Errno::AGAIN), 0));
    let mut much = alloc::vec![0; 1000];
    assert_eq!(reader.read(&mut much), Ok(1000));
    assert_eq!((writer.write(&[2; 1001]), writer.write(&[2; 1000])), (Err(Errno::AGAIN), Ok(1000)));
    drop(writer);
    assert_eq!(reader.ready(None), IN | HUP);
    let mut rest = alloc::vec![0; 100_000];
    assert_eq!((reader.read(&mut rest), reader.read(&mut rest)), (Ok(65_536), Ok(0)));
    let (reader, writer) = Pipe::pair();
    drop(reader);
    assert_eq!(writer.write(b"x"), Err(Errno::PIPE));
    assert_eq!((writer.read(&mut bytes), Stream::write(&*Pipe::pair().0, b"x")), (Err(Errno::BADF), Err(Errno::BADF)));
}

#[test]
fn the_terminal_edits_lines() {
    let terminal = crate::terminal::terminal();
    let read = || {
        let mut bytes = [0; 64];
        terminal.read(&mut bytes).map(|count| bytes[..count].to_vec())
    };
    crate::terminal::input(b"ab");
    assert_eq!(read(), Err(Errno::AGAIN));
    crate::terminal::input(b"\x7fc\rnext\n");
    assert_eq!((read(), read(), read()), (Ok(b"ac\n".to_vec()), Ok(b"next\n".to_vec()), Err(Errno::AGAIN)));
    crate::terminal::input("xö\x7fy\x15one two\x17three\n".as_bytes());
    assert_eq!(read(), Ok(b"one three\n".to_vec()));
    // The end of the input is an empty read; in a line it hands the line over.
    crate::terminal::input(b"end\x04\x04");
    assert_eq!((read(), read(), read()), (Ok(b"end".to_vec()), Ok(Vec::new()), Err(Errno::AGAIN)));
    crate::terminal::input(b"lost\x03kept\n");
    assert_eq!(read(), Ok(b"kept\n".to_vec()));
    assert_eq!(terminal.ready(None), OUT);
}
