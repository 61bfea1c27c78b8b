//! Stamps of builds: the state of all that something was built from, so that what is current is used without the compiler.
//!
//! The `gnomon` script does the same for this command.

use crate::host::place;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The time after which a stamp goes that was not written again, such as that of former arguments.
const KEPT: Duration = Duration::from_secs(60 * 24 * 3600);

/// A moment, in seconds and nanoseconds of a file system's clock.
type Moment = (i64, i64);

/// The state of a file. A file that was changed, or replaced by another one, has another state, whichever of both is older.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct FileState {
    modified: Moment,
    changed: Moment,
    size: u64,
    inode: u64,
}

impl FileState {
    fn of(path: &Path) -> Option<Self> {
        let there = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some(Self {
            modified: (there.mtime(), there.mtime_nsec()),
            changed: (there.ctime(), there.ctime_nsec()),
            size: there.size(),
            inode: there.ino(),
        })
    }
}

/// The state of files by their paths.
type States = BTreeMap<PathBuf, FileState>;

/// The contents of a stamp.
#[derive(Debug, Serialize, Deserialize)]
struct Contents {
    /// Files, and directories with all below. One that is absent is watched for, too.
    watched: BTreeSet<PathBuf>,
    /// The files that were there.
    sources: States,
    /// The files that were built, by name.
    built: BTreeMap<String, PathBuf>,
    /// Their state.
    results: States,
}

/// The stamp of one build: the same arguments in the same environment.
#[derive(Debug)]
pub(super) struct Stamp {
    root: PathBuf,
    path: PathBuf,
}

impl Stamp {
    /// Returns the stamp that is kept in `dir` for a build of sources below `root`. `words` are all that decides about the build
    /// beside files: arguments and variables.
    pub(super) fn of(root: &Path, dir: &Path, words: &[String]) -> Self {
        let digest = Sha256::digest(words.join("\0"));
        let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { root: root.to_owned(), path: dir.join(format!("{name}.json")) }
    }

    fn read(&self) -> Option<Contents> {
        serde_json::from_slice(&fs::read(&self.path).ok()?).ok()
    }

    /// Returns what was built if it is there, and all that it was built from is as it was.
    pub(super) fn current(&self) -> Option<BTreeMap<String, PathBuf>> {
        let Contents { watched, sources, built, results } = self.read()?;
        (found(&watched) == sources && states(built.values()) == results).then_some(built)
    }

    /// Marks sources as modified now that were replaced by older ones: cargo takes these for unchanged.
    pub(super) fn freshen(&self) {
        let Some(before) = self.read() else { return };
        let Some(written) = FileState::of(&self.path) else { return };
        for (path, now) in found(&before.watched) {
            let was = before.sources.get(&path);
            let is_same = was.is_some_and(|was| (was.modified, was.size) == (now.modified, now.size));
            if !is_same && now.modified <= written.modified && path.starts_with(&self.root) {
                // A file that cannot be written is built as cargo sees it.
                let _ =
                    fs::File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
            }
        }
    }

    /// Returns the moment from which on a change may not be in a build that starts now; `None` if no stamp can be written.
    pub(super) fn begin(&self) -> Option<Moment> {
        fs::create_dir_all(self.path.parent()?).ok()?;
        place::prune(self.path.parent()?, KEPT);
        let mark = self.path.with_extension(format!("{}", std::process::id()));
        fs::write(&mark, "").ok()?;
        let begun = FileState::of(&mark).map(|state| state.changed);
        let _ = fs::remove_file(&mark);
        begun
    }

    /// Writes the stamp of a build that began at `begun`, unless a source has changed since. `watched` are files and directories beside the
    /// sources that the compiler has listed.
    pub(super) fn write(&self, begun: Moment, built: &BTreeMap<String, PathBuf>, watched: BTreeSet<PathBuf>) {
        let lists = built.iter().filter_map(|(name, path)| Some((name, path, sources_of(path)?)));
        let lists: Vec<_> = lists.collect();
        if lists.is_empty() {
            return;
        }
        let Some(packages) = self.packages(lists.iter().flat_map(|(_, _, sources)| sources)) else { return };
        let watched = watched.into_iter().chain(packages).collect();
        let sources = found(&watched);
        if sources.values().any(|state| state.changed > begun) {
            return;
        }
        let built: BTreeMap<_, _> = lists.iter().map(|(name, path, _)| ((*name).clone(), (*path).clone())).collect();
        let results = states(built.values());
        let contents = Contents { watched, sources, built, results };
        // Without a stamp, the next build asks cargo.
        let _ = serde_json::to_vec(&contents).map(|text| place::write_whole(&self.path, &text));
    }

    /// Returns the directories of the packages that these sources belong to, since a new file may matter there, and the sources that
    /// belong to none; `None` if one is gone.
    fn packages<'a>(&self, sources: impl Iterator<Item = &'a PathBuf>) -> Option<BTreeSet<PathBuf>> {
        let mut packages = BTreeSet::new();
        for source in sources {
            let source = fs::canonicalize(source).ok()?;
            let is_package = |dir: &&Path| *dir != self.root && dir.join("Cargo.toml").is_file();
            let package = source.ancestors().skip(1).take_while(|dir| dir.starts_with(&self.root)).find(is_package);
            packages.insert(package.unwrap_or(&source).to_owned());
        }
        Some(packages)
    }
}

/// Returns the state of all files that are watched and there.
fn found(watched: &BTreeSet<PathBuf>) -> States {
    let mut states = States::new();
    let mut open: Vec<PathBuf> = watched.iter().cloned().collect();
    while let Some(path) = open.pop() {
        match fs::read_dir(&path) {
            Ok(entries) => {
                // An editor's files are hidden, or end like this.
                let is_source = |name: &str| !name.starts_with('.') && !name.ends_with('~');
                let entries = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_source));
                // A link to a directory may lead in a circle.
                let is_link = |path: &PathBuf| path.is_symlink() && path.is_dir();
                open.extend(entries.map(|entry| entry.path()).filter(|path| !is_link(path)));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => states.extend(FileState::of(&path).map(|state| (path, state))),
        }
    }
    states
}

fn states<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> States {
    paths.filter_map(|path| Some((path.clone(), FileState::of(path)?))).collect()
}

/// Reads the list of sources that cargo has left beside what it built; `None` if there is none.
fn sources_of(built: &Path) -> Option<Vec<PathBuf>> {
    let list = fs::read_to_string(built.with_extension("d")).ok()?;
    let (_, sources) = list.lines().next()?.split_once(": ")?;
    // A space in a name has a backslash before it.
    let sources = sources.replace("\\ ", "\0");
    Some(sources.split(' ').filter(|name| !name.is_empty()).map(|name| name.replace('\0', " ").into()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// A package `a b` that was built, and a file elsewhere that it contains.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            let tree = Self(tempfile::tempdir().expect("a directory"));
            for (name, text) in [("a b/Cargo.toml", ""), ("a b/src/main.rs", "1"), ("texts/page", "1"), ("out/a", "1")]
            {
                tree.put(name, text);
            }
            tree.put("out/a.d", &format!("{0}/out/a: {0}/a\\ b/src/main.rs {0}/texts/page\n", tree.root().display()));
            tree
        }

        fn root(&self) -> PathBuf {
            fs::canonicalize(self.0.path()).expect("a directory")
        }

        fn put(&self, name: &str, text: &str) {
            let path = self.root().join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("it can be made");
            fs::write(path, text).expect("it can be written");
        }

        fn stamp(&self, words: &[&str]) -> Stamp {
            let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
            Stamp::of(&self.root(), &self.root().join("stamps"), &words)
        }

        /// Builds, with something in the meantime.
        fn build(&self, meanwhile: impl FnOnce()) -> Stamp {
            let stamp = self.stamp(&["build"]);
            // Files' clocks have ticks of some milliseconds.
            std::thread::sleep(Duration::from_millis(30));
            let begun = stamp.begin().expect("a moment");
            std::thread::sleep(Duration::from_millis(30));
            meanwhile();
            let watched = ["Cargo.lock", "config.toml"].map(|name| self.root().join(name));
            let built = [("a", "out/a"), ("liba.rlib", "out/liba.rlib")];
            let built = built.map(|(name, path)| (name.to_owned(), self.root().join(path))).into();
            stamp.write(begun, &built, watched.into());
            stamp
        }
    }

    #[test]
    fn a_build_is_current_until_something_changes() {
        let tree = Tree::new();
        let built = tree.build(|| {}).current().expect("it is current");
        assert_eq!(built, [("a".to_owned(), tree.root().join("out/a"))].into());
        assert_eq!(tree.build(|| {}).current(), Some(built));
        assert!(tree.stamp(&["build", "--other"]).current().is_none());

        let remove = |name: &str| fs::remove_file(tree.root().join(name)).expect("it is there");
        let changes: [(&str, &dyn Fn()); 8] = [
            ("an edit", &|| tree.put("a b/src/main.rs", "2")),
            ("a file outside of the package", &|| tree.put("texts/page", "2")),
            ("a new file", &|| tree.put("a b/build.rs", "")),
            ("a file that goes", &|| remove("a b/build.rs")),
            ("a new configuration", &|| tree.put("config.toml", "")),
            ("a result that goes", &|| remove("out/a")),
            ("another result", &|| tree.put("out/a", "2")),
            ("a file replaced by an older one", &|| {
                let path = tree.root().join("a b/src/older.rs");
                let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
                File::create(&path).and_then(|file| file.set_modified(old)).expect("it can be made");
                fs::rename(path, tree.root().join("a b/src/main.rs")).expect("it can be renamed");
            }),
        ];
        for (what, change) in changes {
            tree.put("out/a", "1");
            let stamp = tree.build(|| {});
            assert!(stamp.current().is_some(), "before {what}");
            change();
            assert!(stamp.current().is_none(), "{what}");
        }
    }

    #[test]
    fn other_files_change_nothing() {
        let tree = Tree::new();
        let stamp = tree.build(|| {});
        for name in ["a b/src/.main.rs.swp", "a b/src/main.rs~", "texts/other", "other/src/main.rs"] {
            tree.put(name, "");
        }
        assert!(stamp.current().is_some());
    }

    #[test]
    fn a_change_during_the_build_is_not_in_it() {
        let tree = Tree::new();
        assert!(tree.build(|| tree.put("a b/src/main.rs", "2")).current().is_none());
        assert!(tree.build(|| tree.put("a b/src/new.rs", "")).current().is_none());
        // The compiler has read it before it went.
        let gone = || fs::remove_file(tree.root().join("texts/page")).expect("it is there");
        assert!(tree.build(gone).current().is_none());
    }

    #[test]
    fn older_sources_are_made_new_for_cargo() {
        let tree = Tree::new();
        let stamp = tree.build(|| {});
        let path = tree.root().join("a b/src/main.rs");
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        tree.put("a b/src/main.rs", "22");
        File::options().append(true).open(&path).and_then(|file| file.set_modified(old)).expect("it can be set");
        let untouched = FileState::of(&tree.root().join("a b/Cargo.toml"));
        stamp.freshen();
        assert!(fs::metadata(&path).and_then(|file| file.modified()).expect("a time") > old + Duration::from_secs(1));
        assert_eq!(FileState::of(&tree.root().join("a b/Cargo.toml")), untouched);
    }

    #[test]
    fn what_is_no_stamp_is_none() {
        let tree = Tree::new();
        let stamp = tree.build(|| {});
        fs::write(&stamp.path, "nonsense").expect("it can be written");
        assert!(stamp.current().is_none());
        stamp.freshen();
        fs::remove_file(tree.root().join("out/a.d")).expect("it is there");
        fs::remove_file(&stamp.path).expect("it is there");
        // Nothing is known of its sources.
        assert_eq!(tree.build(|| {}).current(), None);
    }
}
