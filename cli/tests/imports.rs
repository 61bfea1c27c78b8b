//! Checks of the sources' structure: no file uses one that uses it, no folder uses one above it, each file can be
//! read in one sitting, and no type does everything.

#[path = "imports/graph.rs"]
mod graph;
#[path = "imports/sizes.rs"]
mod sizes;

use graph::Imports;
use sizes::Sizes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Most lines of a file.
const MOST_LINES: usize = 600;
/// Most methods of an `impl` block, and of all that a type has in one file.
const MOST_METHODS: usize = 40;
/// Most fields of a struct.
const MOST_FIELDS: usize = 20;

/// The root files that must state an order of their folders (see `graph.rs`). Others that state one keep to it, too.
const ORDERED: [&str; 2] = ["cli/src/lib.rs", "hypervisor/src/lib.rs"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is in the repository").into()
}

/// Collects all .rs files below `dir`, except those that are built or fetched.
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

/// The imports of each crate's files, with its root file.
static CRATES: LazyLock<Vec<(PathBuf, Imports)>> = LazyLock::new(|| {
    let repository = repository();
    let mut roots =
        ["cli/src/lib.rs", "hypervisor/src/lib.rs", "hypervisor/src/bin/gnomon/main.rs"].map(PathBuf::from).to_vec();
    for krate in std::fs::read_dir(repository.join("crates")).unwrap().map(Result::unwrap) {
        roots.push(Path::new("crates").join(krate.file_name()).join("src/lib.rs"));
    }
    assert!(roots.len() >= 8, "this crate, the hypervisor's two, and five below them: {roots:?}");
    let read = |path: &Path| std::fs::read_to_string(repository.join(path)).ok();
    let imports = |root: PathBuf| {
        let imports = Imports::of(&root, &read).unwrap();
        (root, imports)
    };
    roots.into_iter().map(imports).collect()
});

/// The features of each package that the selected ones are built with.
fn features(selection: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--prefix", "none", "--format", "{p}|{f}"]).args(selection);
    let output = cargo.current_dir(repository()).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut all = BTreeMap::<_, BTreeSet<_>>::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // Packages of the workspace are apart by lines without one.
        let Some((package, features)) = line.split_once('|') else { continue };
        let features = features.trim_end_matches(" (*)");
        all.entry(package.trim_end_matches(" (proc-macro)").to_owned()).or_default().insert(features.to_owned());
    }
    all
}

#[test]
fn what_the_command_is_built_from_serves_its_tests() {
    let (command, tests) = (features(&["--package", "gnomon", "--edges", "normal,build"]), features(&[]));
    assert!(command.len() >= 100 && tests.len() > command.len(), "{} and {}", command.len(), tests.len());
    let is_shared = |package: &String, with| tests.get(package).is_some_and(|others| others.is_superset(with));
    let twice: Vec<_> = command.iter().filter(|(package, with)| !is_shared(package, with)).collect();
    assert!(twice.is_empty(), "with these features, and compiled again with others for `cargo test`: {twice:?}");
}

#[test]
fn no_file_uses_one_that_uses_it() {
    let mut complaint = String::new();
    for (root, imports) in &*CRATES {
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
fn no_folder_uses_one_above_it() {
    let (mut complaint, mut ordered) = (String::new(), Vec::new());
    for (root, imports) in &*CRATES {
        if imports.order().is_empty() {
            continue;
        }
        for upward in imports.upward() {
            complaint += &format!("{}: {upward}\n", root.display());
        }
        ordered.push(root);
    }
    assert!(complaint.is_empty(), "{complaint}");
    for root in ORDERED {
        assert!(ordered.iter().any(|known| *known == Path::new(root)), "{root} states no order of its folders");
    }
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

#[test]
fn no_type_does_everything() {
    let repository = repository();
    let mut complaint = String::new();
    // The engine is one of parts: its types are counted in all of their files.
    let mut engine = BTreeMap::<String, usize>::new();
    let mut files = Vec::new();
    for source in ["crates/mmu/src", "hypervisor/src"] {
        sources(&repository.join(source), &mut files);
    }
    assert!(files.len() > 60, "the engines are here: {files:?}");
    for file in files {
        let sizes = Sizes::of(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let file = file.strip_prefix(&repository).unwrap();
        for (name, blocks) in sizes.methods {
            let methods: usize = blocks.iter().sum();
            if methods > MOST_METHODS {
                complaint += &format!("{name} has {methods} methods in {}, over {MOST_METHODS}\n", file.display());
            }
            if file.starts_with("crates/mmu/src/shadow") {
                *engine.entry(name).or_default() += methods;
            }
        }
        // A table of counters is no state.
        for (name, fields) in sizes.fields.iter().filter(|(name, _)| *name != "Counters") {
            if *fields > MOST_FIELDS {
                complaint += &format!("{name} in {} has {fields} fields, over {MOST_FIELDS}\n", file.display());
            }
        }
    }
    assert!(engine.len() > 20, "the shadow engine's types are here: {engine:?}");
    for (name, methods) in engine.into_iter().filter(|(_, methods)| *methods > MOST_METHODS) {
        complaint += &format!("{name} has {methods} methods in the shadow engine, over {MOST_METHODS}\n");
    }
    assert!(complaint.is_empty(), "{complaint}");
}

#[test]
fn methods_and_fields_are_counted() {
    let sizes = Sizes::of(
        "struct A<T> { a: T, b: u8 } struct B(u8); struct C;
         impl<T> A<T> { const N: u8 = 1; fn f() {} fn g(&self) {} } impl A<u8> { fn h() {} } impl Drop for A<B> { fn drop(&mut self) {} }
         mod inner { impl super::B { fn f() {} } } #[cfg(test)] mod tests { impl super::B { fn g() {} } }",
    )
    .unwrap();
    let count = |(name, count): (&str, &[usize])| (name.to_string(), count.to_vec());
    assert_eq!(sizes.methods, [("A", &[2, 1, 1][..]), ("B", &[1])].map(count).into());
    assert_eq!(sizes.fields, [("A", 2), ("B", 1), ("C", 0)].map(|(name, count)| (name.to_string(), count)).into());
}

/// Reads the imports of a crate's files, of which the first is its root.
fn imports(files: &[(&str, &str)]) -> Imports {
    let read = |path: &Path| files.iter().find(|file| Path::new(file.0) == path).map(|file| file.1.to_string());
    Imports::of(Path::new(files[0].0), &read).unwrap()
}

/// The circles in such a crate.
fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    imports(files).circles().into_iter().map(|files| files.into_iter().map(String::from).collect()).collect()
}

/// Cargo compiles a file of tests that it does not find by itself only if another one names it. Otherwise the tests
/// would never fail.
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

#[test]
fn upward_uses_are_found() {
    let root = ("src/lib.rs", "//! Folders:\n//!\n//! 1. [`a`]: below\n//! 2. `b`: above\npub mod a;\nmod b;");
    let b = ("src/b.rs", "use crate::a::inner::In; pub struct B(In); pub const N: u32 = 1;");
    let inner = "src/a/inner.rs";
    let clean = [root, ("src/a/mod.rs", "pub mod inner;"), (inner, "pub struct In;"), b];
    assert_eq!(imports(&clean).order(), ["a", "b"]);
    assert_eq!(imports(&clean).upward(), [""; 0]);
    for text in [
        "use crate::b::N; pub struct In;",
        "pub struct In; fn f() -> u32 { crate::b::N }",
        "pub struct In; fn f() { println!(\"{}\", crate::b::N) }",
        "use super::super::b; pub struct In; const N: u32 = b::N;",
        "mod deep { use crate::b::*; } pub struct In;",
        "pub use crate::b::B as In;",
    ] {
        let files = [root, ("src/a/mod.rs", "pub mod inner;"), (inner, text), b];
        let expected = ["src/a/inner.rs uses src/b.rs, and b is above it"];
        assert_eq!(imports(&files).upward(), expected, "{text}");
    }
    // A folder that only declares its files shows nothing of what is above it.
    let shown = [root, ("src/a/mod.rs", "pub mod inner; pub use crate::b::B;"), (inner, "pub struct In;"), b];
    assert_eq!(imports(&shown).upward(), ["src/a/mod.rs uses src/b.rs, and b is above it"]);
    // What is reached by a name below may be an item of a file above, and the root file is above all.
    let by_root = format!("{} pub use b::B; pub struct Own;", root.1);
    let used = [(root.0, by_root.as_str()), clean[1], (inner, "use crate::{B, Own}; pub struct In;"), b];
    let expected = [
        "src/a/inner.rs uses src/b.rs, and b is above it",
        "src/a/inner.rs uses src/lib.rs, and the root file is above it",
    ];
    assert_eq!(imports(&used).upward(), expected);
    // A macro that is exported is named by the root, and is where it is written.
    let made = (
        "src/b.rs",
        "crate::made! {} #[macro_export] macro_rules! up { () => {} } pub struct B; pub const N: u32 = 1;",
    );
    let by_macro = [root, clean[1], (inner, "#[macro_export] macro_rules! made { () => {} } crate::up! {}"), made];
    assert_eq!(imports(&by_macro).upward(), ["src/a/inner.rs uses src/b.rs, and b is above it"]);
}

#[test]
fn a_stated_order_names_each_folder_once() {
    let order = |order: &str| {
        let root = format!("{order}\nmod a;\nmod b;\nmod inline {{}}\n#[cfg(test)]\nmod tests;");
        imports(&[("lib.rs", &root), ("a.rs", "pub struct A;"), ("b.rs", "use crate::a::A;")]).upward()
    };
    assert_eq!(order("//! 1. `a`\n//! 2. `b`"), [""; 0]);
    assert_eq!(order("//! 1. `a`"), ["`b` has no place"]);
    assert_eq!(order("//! 1. `a`\n//! 2. `b`\n//! 3. `c`"), ["`c` is not a module of the root file"]);
    assert_eq!(order("//! 1. `a`\n//! 2. `b`\n//! 3. `a`"), ["a module has two places"]);
    assert_eq!(order("//! 1. `b`\n//! 2. `a`"), ["b.rs uses a.rs, and a is above it"]);
}
