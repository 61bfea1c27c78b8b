use super::*;

fn tree(files: &[(&str, &str)]) -> Tree {
    let entry = |text: &str| match text.strip_prefix("->") {
        Some(to) => Entry::Link(to.into()),
        None => Entry::Data(text.into()),
    };
    files.iter().map(|(path, text)| (path.into(), entry(text))).collect()
}

fn first() -> Tree {
    tree(&[
        ("lib/gnomon/1/gnomon", "one"),
        ("bin/gnomon", "->../lib/gnomon/1/gnomon"),
        ("share/a", "a"),
        ("share/b", "b"),
    ])
}

fn second() -> Tree {
    tree(&[("lib/gnomon/2/gnomon", "two"), ("bin/gnomon", "->../lib/gnomon/2/gnomon"), ("share/a", "new")])
}

/// All that is below a directory, with the content of files.
fn all(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if entry.file_type().expect("a type").is_dir() {
            found.push((path.clone(), String::new()));
            found.extend(all(&path));
        } else {
            found.push((path.clone(), fs::read_to_string(&path).unwrap_or_default()));
        }
    }
    found.sort();
    found
}

struct Scratch(#[expect(dead_code, reason = "it is removed at the end")] tempfile::TempDir, Place);

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Place::new(dir.path().join("a prefix"));
        fs::create_dir(place.base()).expect("a directory");
        Self(dir, place)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.1.base().join(path);
        fs::create_dir_all(path.parent().expect("one")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.1.base().join(path)).ok()
    }
}

#[test]
fn an_upgrade_replaces_what_was_installed_and_a_removal_removes_it() {
    let scratch = Scratch::new();
    let place = &scratch.1;
    scratch.write("share/mine", "mine");
    let before = all(place.base());
    for tree in [first(), first(), second(), first(), second()] {
        assert_eq!(place.put(&tree).expect("installed"), Left::new());
        for (path, entry) in &tree {
            let to = place.base().join(path);
            assert!(!fs::read(&to).expect("a file").is_empty(), "{path:?}");
            assert!(matches!(entry, Entry::Link(_)) || fs::read(&to).expect("a file") == entry.bytes(), "{path:?}");
        }
    }
    assert_eq!([scratch.text("share/b"), scratch.text("lib/gnomon/1/gnomon")], [None, None], "the first one's");
    assert!(!place.base().join("lib/gnomon/1").exists());
    assert_eq!(scratch.text("bin/gnomon").as_deref(), Some("two"));
    assert_eq!(place.remove().expect("removed"), Left::new());
    assert_eq!(all(place.base()), before);
    assert!(matches!(place.remove(), Err(PlaceError::Absent(_))));
}

#[test]
fn files_of_others_are_neither_replaced_nor_removed() {
    for foreign in ["bin/gnomon", "share/a", "lib/gnomon/1/gnomon", "lib/gnomon", "share", "share/.a.gnomon-new"] {
        let scratch = Scratch::new();
        scratch.write(foreign, "one");
        let before = all(scratch.1.base());
        let refused = scratch.1.put(&first()).expect_err(foreign);
        assert!(matches!(&refused, PlaceError::Foreign(files) if files.len() == 1), "{foreign}: {refused}");
        assert_eq!(all(scratch.1.base()), before, "{foreign}");
    }
    // A link to nowhere is a file, too.
    let scratch = Scratch::new();
    fs::create_dir(scratch.1.base().join("bin")).expect("a directory");
    symlink("/nowhere", scratch.1.base().join("bin/gnomon")).expect("a link");
    assert!(matches!(scratch.1.put(&first()), Err(PlaceError::Foreign(_))));
}

#[test]
fn a_changed_file_stays() {
    let scratch = Scratch::new();
    let place = &scratch.1;
    place.put(&first()).expect("installed");
    scratch.write("share/a", "changed");
    let before = all(place.base());
    assert!(matches!(place.put(&second()), Err(PlaceError::Foreign(_))));
    assert_eq!(all(place.base()), before);
    // One that the next installation does not have is none of its business.
    scratch.write("share/a", "a");
    scratch.write("share/b", "changed");
    let own = [place.base().join("share/b")];
    assert_eq!(place.put(&second()).expect("installed"), own);
    assert_eq!(place.remove().expect("removed"), own);
    assert_eq!(scratch.text("share/b").as_deref(), Some("changed"));
}

#[test]
fn an_interrupted_installation_is_replaced() {
    let scratch = Scratch::new();
    let place = &scratch.1;
    place.put(&first()).expect("installed");
    // It was killed after it had written two files and named one of them.
    let known = Record::read(place.base()).expect("readable").expect("a record");
    let mut both = Record::of(&second());
    both.add(&known);
    both.directories.insert("lib/gnomon/2".into());
    both.unfinished = second().keys().map(|path| unfinished(path)).collect();
    both.write(place.base()).expect("written");
    scratch.write("lib/gnomon/2/.gnomon.gnomon-new", "tw");
    scratch.write("share/a", "new");
    assert_eq!(place.put(&second()).expect("installed"), Left::new());
    assert_eq!((scratch.text("share/a").as_deref(), scratch.text("share/b")), (Some("new"), None));
    assert_eq!(scratch.text("lib/gnomon/2/.gnomon.gnomon-new"), None);
    place.remove().expect("removed");
    assert_eq!(all(place.base()), []);
}

#[test]
fn what_cannot_be_written_changes_nothing() {
    let scratch = Scratch::new();
    let place = &scratch.1;
    // Its name is too long when it is written: root is refused, too.
    let long = format!("share/{}", "x".repeat(250));
    let with_long = |mut tree: Tree| {
        tree.insert(long.clone().into(), Entry::Data(Vec::new()));
        tree
    };
    for _ in 0..2 {
        let before = all(place.base());
        let refused = place.put(&with_long(second())).expect_err("its name is too long");
        assert!(refused.to_string().contains("xxx"), "{refused}");
        assert_eq!(all(place.base()), before);
        place.put(&first()).expect("installed");
    }
    fs::write(Record::path(place.base()), "{}").expect("a file");
    assert!(matches!(place.put(&first()), Err(PlaceError::Record(RecordError::Broken { .. }))));
    let outside = r#"{"files":{"../x":["link:x"]},"unfinished":[],"directories":[]}"#;
    fs::write(Record::path(place.base()), outside).expect("a file");
    assert!(matches!(place.remove(), Err(PlaceError::Record(RecordError::Broken { .. }))));
}

#[test]
fn installations_wait_for_each_other() {
    let scratch = Scratch::new();
    let place = &scratch.1;
    std::thread::scope(|scope| {
        for tree in [first(), second(), first(), second()] {
            scope.spawn(move || place.put(&tree).expect("installed"));
        }
    });
    place.remove().expect("removed");
    assert_eq!(all(place.base()), []);
}
