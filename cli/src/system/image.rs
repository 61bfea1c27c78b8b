//! The image that all roots begin as: made once, kept in the cache, and never there by halves.

use super::make;
use crate::guest::debian::{Software, System};
use crate::guest::modules::Needs;
use crate::host::place::{self, IoError, cache, write_whole};
use crate::host::words::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Packages of a root besides the essential ones. Packages that these only recommend are left out.
const PACKAGES: [&str; 18] = [
    "apt",
    "ca-certificates",
    "dbus",
    "e2fsprogs",
    "iproute2",
    "iputils-ping",
    "kmod",
    "less",
    "libpam-systemd",
    "login",
    "nano",
    "netbase",
    "openssh-server",
    "passwd",
    "procps",
    "sudo",
    "systemd-sysv",
    "udev",
];
/// The prefixes of names: of an image, and of one that is being made.
const PREFIX: &str = "root-";
const UNFINISHED: &str = "making-";
const RECORD: &str = "root.json";

/// The cache's record of its image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Record {
    /// The hash of the recipe.
    recipe: String,
    /// The kernel whose modules it has.
    kernel: String,
    /// Its name.
    file: String,
    /// Its packages: names and versions.
    packages: Vec<String>,
}

/// Provides the image: from the cache, else it is made, which takes some minutes.
pub(super) fn provide() -> miette::Result<PathBuf> {
    let dir = cache("debian")?;
    if let Some(image) = cached(&dir)? {
        return Ok(image);
    }
    let path = dir.join("lock");
    let lock = File::create(&path).map_err(IoError::at("create", &path))?;
    place::lock(&lock, "it makes a Debian").map_err(IoError::at("lock", &path))?;
    // Another run may have made it while this one waited.
    match cached(&dir)? {
        Some(image) => Ok(image),
        None => make_in(&dir),
    }
}

/// The one in the cache, if it is what would be made now, as far as can be known without a network.
fn cached(dir: &Path) -> miette::Result<Option<PathBuf>> {
    let Some(record) = read(dir) else { return Ok(None) };
    let image = dir.join(&record.file);
    if record.recipe != recipe() || !image.is_file() {
        return Ok(None);
    }
    let kernel = Software::Kernel.provide()?;
    Ok((record.kernel == format!("{} {}", kernel.name, kernel.version)).then_some(image))
}

/// An unreadable record is as good as none.
fn read(dir: &Path) -> Option<Record> {
    serde_json::from_str(&fs::read_to_string(dir.join(RECORD)).ok()?).ok()
}

/// A digest of all that is Gnomon's own in an image.
fn recipe() -> String {
    digest([make::SCRIPT, &make::SIZE.to_string()].into_iter().chain(PACKAGES))
}

fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    hex(&digest.finalize())
}

fn make_in(dir: &Path) -> miette::Result<PathBuf> {
    // A run that was making one was killed: this one holds the lock.
    remove(dir, UNFINISHED, None)?;
    let scratch = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(dir);
    let scratch = scratch.map_err(IoError::at("make a directory in", dir))?;
    let system = System::fetch(&PACKAGES, &Needs::ROOT.drivers(), scratch)?;
    let packages = system.packages.iter().map(|package| format!("{} {}", package.name, package.version));
    let packages: Vec<_> = packages.collect();
    let kernel = format!("{} {}", system.kernel.name, system.kernel.version);
    let recipe = recipe();
    let named = [&recipe, &kernel, &system.mirror].into_iter().chain(&packages).map(String::as_str);
    let file = format!("{PREFIX}{}.img", &digest(named)[..16]);
    let unfinished = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(dir);
    let unfinished = unfinished.map_err(IoError::at("create a file in", dir))?;
    make::make(&system, unfinished.path(), dir)?;
    finish(unfinished, dir, &Record { recipe, kernel, file, packages })
}

/// Gives an image that is whole its name, then says so in the record.
fn finish(image: tempfile::NamedTempFile, dir: &Path, record: &Record) -> miette::Result<PathBuf> {
    let path = dir.join(&record.file);
    image.as_file().sync_all().map_err(IoError::at("write", &path))?;
    image.persist(&path).map_err(|error| IoError::at("write", &path)(error.error))?;
    write_whole(&dir.join(RECORD), &serde_json::to_vec_pretty(record).unwrap_or_default())?;
    remove(dir, PREFIX, Some(&record.file))?;
    Ok(path)
}

/// Removes the files and directories whose names begin with `prefix`, except `but`. Open files stay readable.
fn remove(dir: &Path, prefix: &str, but: Option<&str>) -> Result<(), IoError> {
    for entry in fs::read_dir(dir).map_err(IoError::at("read", dir))? {
        let entry = entry.map_err(IoError::at("read", dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) && but != Some(&name) {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let removed = if is_dir { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
            removed.map_err(IoError::at("remove", entry.path()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(file: &str) -> Record {
        Record { recipe: recipe(), kernel: "linux 6".into(), file: file.into(), packages: vec!["apt 3".into()] }
    }

    #[test]
    fn an_image_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        assert_eq!(cached(dir).expect("readable"), None);
        // An unfinished one of a killed run, and one of another recipe.
        for name in ["making-x", "root-old.img"] {
            fs::write(dir.join(name), name).expect("a file");
        }
        fs::create_dir(dir.join("making-y")).expect("a directory");
        assert_eq!(cached(dir).expect("readable"), None);
        let other = Record { recipe: "another".into(), ..record("root-old.img") };
        fs::write(dir.join(RECORD), serde_json::to_vec(&other).expect("JSON")).expect("a file");
        assert_eq!(cached(dir).expect("readable"), None);
        // A record whose image is gone, and one that was cut off.
        fs::write(dir.join(RECORD), serde_json::to_vec(&record("root-gone.img")).expect("JSON")).expect("a file");
        assert_eq!(cached(dir).expect("readable"), None);
        fs::write(dir.join(RECORD), "{ \"recipe\"").expect("a file");
        assert_eq!((cached(dir).expect("readable"), read(dir)), (None, None));
        let image = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(dir).expect("a file");
        let path = finish(image, dir, &record("root-new.img")).expect("finished");
        assert!(path.is_file() && !dir.join("root-old.img").exists());
        assert_eq!(read(dir), Some(record("root-new.img")));
        remove(dir, UNFINISHED, None).expect("removed");
        let mut names: Vec<_> =
            fs::read_dir(dir).expect("readable").map(|entry| entry.expect("one").file_name()).collect();
        names.sort();
        assert_eq!(names, ["root-new.img", RECORD]);
    }

    #[test]
    fn the_recipe_is_all_that_it_is_made_by() {
        assert_ne!(digest(["a", "bc"]), digest(["ab", "c"]));
        assert_eq!(recipe(), recipe());
        assert!(PACKAGES.is_sorted(), "so that it is seen which there are");
    }
}
