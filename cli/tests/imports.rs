//! How the source hangs together: no file uses another that uses it, and each can be read in one sitting.

#[path = "imports/graph.rs"]
mod graph;

use graph::Imports;
use std::path::{Path, PathBuf};

/// Most lines of a file.
const MOST_LINES: usize = 600;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is in the repository").into()
}

/// All .rs files below `dir`, but for what is built or fetched.
fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            if !name.starts_with('.') && name != "target" {
                sources(&path, into);
            }
        } else if name.ends_with(".rs") {
            into.push(path);
        }
    }
}

#[test]
fn no_file_uses_one_that_uses_it() {
    let repository = repository();
    let mut roots = vec!["hypervisor/src/lib.rs".into(), "hypervisor/src/bin/gnomon/main.rs".into()];
    for krate in std::fs::read_dir(repository.join("crates")).unwrap().map(Result::unwrap) {
        roots.push(Path::new("crates").join(krate.file_name()).join("src/lib.rs"));
    }
    assert!(roots.len() >= 7, "the hypervisor's two crates, and five below them: {roots:?}");
    let mut complaint = String::new();
    for root in roots {
        let read = |path: &Path| std::fs::read_to_string(repository.join(path)).ok();
        let imports = Imports::of(&root, &read).unwrap();
        for circle in imports.circles() {
            complaint += &format!("a circle in the crate of {}:\n", root.display());
            for file in &circle {
                complaint += &format!("  {file} uses {}\n", imports.used_by(file, &circle).join(", "));
            }
        }
    }
    assert!(complaint.is_empty(), "{complaint}");
}

#[test]
fn every_file_can_be_read_in_one_sitting() {
    let mut files = Vec::new();
    sources(&repository(), &mut files);
    assert!(files.len() > 100, "the sources are here: {files:?}");
    for file in files {
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= MOST_LINES, "{} has {lines} lines, over {MOST_LINES}", file.display());
    }
}

/// The circles in a crate of these files; the first is its root.
fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let read = |path: &Path| files.iter().find(|file| Path::new(file.0) == path).map(|file| file.1.to_string());
    let imports = Imports::of(Path::new(files[0].0), &read).unwrap();
    imports.circles().into_iter().map(|files| files.into_iter().map(String::from).collect()).collect()
}

/// What cargo does not find by itself is compiled only if it is named: a file of tests that nobody names would never fail.
#[test]
fn no_file_of_tests_is_left_out() {
    for krate in ["hypervisor", "crates/mmu"] {
        let dir = repository().join(krate);
        let [all, manifest] =
            ["tests/all.rs", "Cargo.toml"].map(|name| std::fs::read_to_string(dir.join(name)).unwrap());
        let names = std::fs::read_dir(dir.join("tests")).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<_> = names.map(|name| name.into_string().unwrap().trim_end_matches(".rs").to_owned()).collect();
        assert!(names.len() > 10, "the tests are here: {names:?}");
        for name in names {
            let is_named = all.lines().any(|line| line == format!("mod {name};"))
                || manifest.split("[[test]]").skip(1).any(|test| test.contains(&format!("name = \"{name}\"")));
            assert!(is_named, "{krate}/tests/{name} is neither in all.rs there nor a [[test]] of {krate}/Cargo.toml");
        }
    }
}

#[test]
fn circles_are_found() {
    let root = ("lib.rs", "mod a; mod b; mod c;");
    let c = ("c.rs", "pub struct C;");
    // What `a` says, which has an item A, so that `b`, which uses that one, is in a circle with it.
    let ways = [
        "use crate::b::B; pub struct A(B);",
        "use super::b::{B as Other, B2}; pub struct A;",
        "use crate::b; pub struct A(b::B);",
        "use crate::{b as other, c}; pub struct A; fn f() { other::g(c::C) }",
        "use crate::b::*; pub struct A(B);",
        "pub struct A; fn f() -> u32 { crate::b::N }",
        "pub struct A; fn f() { println!(\"{}\", crate::b::N) }",
        "pub mod inner { use crate::b::B; } pub struct A;",
        "pub struct A; impl crate::b::T for A {}",
        "use crate::b::Made; pub struct A(Made);",
    ];
    for a in ways {
        let b = "use crate::a::A; pub struct B; pub struct B2; pub fn g(_: A) {} pub const N: u32 = 1; pub trait T {} make! { Made }";
        let found = circles(&[root, ("a.rs", a), ("b.rs", b), c]);
        assert_eq!(found, [["a.rs", "b.rs"]], "{a}");
        assert!(
            circles(&[root, ("a.rs", a), ("b.rs", &b.replace("use crate::a::A;", "struct A;")), c]).is_empty(),
            "{a}"
        );
    }
}

#[test]
fn a_circle_of_many_names_them_all() {
    let files = [
        ("src/lib.rs", "mod a; mod b; mod c; pub use a::A;"),
        ("src/a.rs", "use crate::b::B; pub struct A(B);"),
        ("src/b.rs", "use crate::c::C; pub struct B(C);"),
        ("src/c.rs", "pub struct C; fn f(_: crate::A) {}"),
    ];
    assert_eq!(circles(&files), [["src/a.rs", "src/b.rs", "src/c.rs"]]);
}

#[test]
fn a_parent_that_only_declares_its_children_is_in_no_circle() {
    let siblings = [
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod b; mod c; pub use b::B;"),
        ("a/b.rs", "pub struct B;"),
        ("a/c.rs", "use super::B; use super::b::B as Same;"),
    ];
    assert!(circles(&siblings).is_empty());
    // What is re-exported is used where it is, not at the sign.
    let behind =
        [siblings[0], siblings[1], ("a/b.rs", "pub struct B(super::c::C);"), ("a/c.rs", "pub struct C(super::B);")];
    assert_eq!(circles(&behind), [["a/b.rs", "a/c.rs"]]);
    // One with an item of its own is a file as any other.
    for uses in ["use b::B;", "pub use b::B;", "fn f() -> b::B { b::B }"] {
        let parent = format!("mod b; {uses} pub struct A;");
        let own = [("lib.rs", "mod a;"), ("a.rs", &parent), ("a/b.rs", "pub struct B; fn f(_: super::A) {}")];
        assert_eq!(circles(&own), [["a.rs", "a/b.rs"]], "{uses}");
    }
}

#[test]
fn tests_in_a_file_and_other_crates_do_not_count() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; use other::a::X; pub struct A(B);"),
        ("b.rs", "pub struct B; fn f(_: other::a::A) {} #[cfg(test)] mod tests { use crate::a::A; }"),
    ];
    assert!(circles(&files).is_empty());
}
