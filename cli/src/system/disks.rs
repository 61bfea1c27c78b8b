//! The disk of each VM that has a root, and the ssh keys for logging in.

use super::image;
use crate::host::home::home;
use crate::host::place::{IoError, cache};
use crate::host::words::quoted_path;
use crate::machine::disk::{DiskSpec, Format, Snapshot};
use crate::vm::root::Root;
use crate::vm::spec::VmSpec;
use miette::Diagnostic;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The port that ssh comes to.
const SSH: u16 = 22;

/// The reason why a VM has no root.
#[derive(Debug, thiserror::Error, Diagnostic)]
enum DiskError {
    /// The image could not be copied.
    #[error("cannot make the disk {file}: {message}")]
    #[diagnostic(help(
        "check that the directory exists, that you may write to it, and that its disk has 1 GiB of room; or name another file: --debian=FILE"
    ))]
    Copy { file: PathBuf, message: String },
    /// The file has something else on it.
    #[error("there is no Debian on {0}: it has no ext4 file system")]
    #[diagnostic(help(
        "name a file that does not exist yet, and a Debian is made there: --debian=FILE; to give the VM this disk: --disk {}",
        quoted_path(.0)
    ))]
    NoDebian(PathBuf),
    /// There is no directory for the disk.
    #[error("this user has no home directory for the disk of a Debian")]
    #[diagnostic(help("name a file for it: --debian=FILE"))]
    NoHome,
}

/// A VM's disk.
pub(super) struct RootDisk {
    pub(super) spec: DiskSpec,
    /// A note for the user.
    pub(super) note: String,
}

/// Provides a VM's disk: the file that is there, else a copy of the image. What is thrown away needs no copy.
pub(super) fn provide(vm: &VmSpec, root: &Root, snapshot: Snapshot) -> miette::Result<RootDisk> {
    let file = match &root.file {
        Some(file) => file.clone(),
        None => home().disks().ok_or(DiskError::NoHome)?.join(format!("{}.img", vm.name)),
    };
    let is_there = file.exists();
    if is_there && !may_be_root(&file) {
        Err(DiskError::NoDebian(file.clone()))?;
    }
    let name = &vm.name;
    let (file, note) = match (snapshot, is_there) {
        (Snapshot::Yes, true) => {
            let note = format!("{name}: a Debian on {}; changes are discarded at the end", file.display());
            (file, note)
        }
        (Snapshot::Yes, false) => {
            (image::provide()?, format!("{name}: a new Debian; changes are discarded at the end"))
        }
        (Snapshot::No, _) => {
            if !is_there {
                // Making an image takes minutes: what cannot be is told before.
                check_writable(&file)?;
                copy(&image::provide()?, &file)?;
            }
            let which = if is_there { "" } else { ", a new one" };
            let note = format!(
                "{name}: a Debian on {}{which}; changes are kept, and removing the file starts afresh",
                file.display()
            );
            (file, note)
        }
    };
    Ok(RootDisk { spec: DiskSpec { file, format: Some(Format::Raw), ..DiskSpec::default() }, note })
}

/// Returns whether a root can be on a disk: it has the mark of ext4 (`s_magic`). One that cannot be read is refused later.
fn may_be_root(disk: &Path) -> bool {
    let mut magic = [0; 2];
    let Ok(file) = fs::File::open(disk) else { return true };
    file.read_exact_at(&mut magic, 0x438).is_ok() && magic == [0x53, 0xef]
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Finds out whether a file can be made there.
fn check_writable(file: &Path) -> Result<(), DiskError> {
    let failed = |error: std::io::Error| DiskError::Copy { file: file.to_owned(), message: error.to_string() };
    let dir = folder_of(file);
    // Gnomon's own is made; one that the user has named is there, or misspelt.
    if home().disks().is_some_and(|own| dir == own) {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    tempfile::tempfile_in(dir).map(drop).map_err(failed)
}

/// Copies an image, whole or not at all. What is empty in it takes no room in the copy.
fn copy(image: &Path, to: &Path) -> Result<(), DiskError> {
    let failed = |message: String| DiskError::Copy { file: to.to_owned(), message };
    let dir = folder_of(to);
    let own = fs::Permissions::from_mode(0o600);
    let copy = tempfile::Builder::new().permissions(own).prefix(".new-").tempfile_in(dir);
    let copy = copy.map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new("cp");
    command.args(["--sparse=always", "--reflink=auto", "--"]).arg(image).arg(copy.path()).stdin(Stdio::null());
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    copy.persist_noclobber(to).map(drop).map_err(|error| failed(error.error.to_string()))
}

/// The ssh keys for logging in.
pub(super) struct Keys {
    /// Their keys, a line each.
    pub(super) lines: String,
    /// The file of a key that was made for it.
    own: Option<PathBuf>,
}

impl Keys {
    /// Returns a line about logging in to a VM from this host, if a port leads to its ssh server.
    pub(super) fn login(&self, vm: &VmSpec) -> Option<String> {
        let forwards = vm.net.iter().flat_map(|card| &card.forwards);
        let forward = forwards.into_iter().find(|forward| forward.guest.get() == SSH)?;
        let name = &vm.name;
        Some(match &self.own {
            Some(key) => {
                format!("{name}: ssh -i {} -p {} root@{}", quoted_path(key), forward.host, forward.at)
            }
            None if self.lines.is_empty() => {
                format!("{name}: you have no SSH key, and ssh-keygen is not installed: the VM will refuse ssh")
            }
            None => format!("{name}: ssh -p {} root@{}", forward.host, forward.at),
        })
    }
}

/// The user's public keys, and one that is made for this.
pub(super) fn keys() -> Result<Keys, IoError> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let mut lines = public_keys(&home.join(".ssh"));
    let own = cache("debian")?.join("id_ed25519");
    if !own.is_file() {
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-C", "gnomon", "-f"]).arg(&own);
        // Without that program there is none to log in by, either.
        let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
    let public = fs::read_to_string(own.with_extension("pub")).ok();
    lines.extend(public.iter().flat_map(|text| text.lines().map(str::to_owned)));
    let lines = lines.iter().map(|line| format!("{line}\n")).collect();
    Ok(Keys { lines, own: public.map(|_| own) })
}

fn public_keys(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "pub")).collect();
    files.sort();
    let texts = files.into_iter().filter_map(|path| fs::read_to_string(path).ok());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_copy_is_whole_sparse_and_replaces_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let image = File::create(path("image")).expect("a file");
        image.set_len(64 << 20).expect("longer");
        std::os::unix::fs::FileExt::write_all_at(&image, b"root", 32 << 20).expect("written");
        copy(&path("image"), &path("disk")).expect("copied");
        let disk = fs::metadata(path("disk")).expect("there");
        assert_eq!((disk.len(), disk.permissions().mode() & 0o777), (64 << 20, 0o600));
        assert!(std::os::unix::fs::MetadataExt::blocks(&disk) < 4096, "sparse");
        assert!(fs::read(path("disk")).expect("readable")[32 << 20..].starts_with(b"root"));
        for (from, to) in [("image", "disk"), ("missing", "other"), ("image", "no/such")] {
            assert!(matches!(copy(&path(from), &path(to)), Err(DiskError::Copy { .. })), "{from} {to}");
        }
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 2, "nothing is left");
    }

    #[test]
    fn a_root_is_on_ext4() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk");
        for (content, may) in [(vec![], false), (vec![0; 4096], false), (vec![0x53; 0x439], false)] {
            fs::write(&path, content).expect("a file");
            assert_eq!(may_be_root(&path), may);
        }
        let superblock = [vec![0; 0x438], vec![0x53, 0xef, 0, 0]].concat();
        fs::write(&path, superblock).expect("a file");
        assert!(may_be_root(&path) && may_be_root(&dir.path().join("missing")));
        let vm = VmSpec::settle(vec![], &crate::vm::file::VmFile::default(), false).expect("a VM").remove(0);
        fs::write(&path, vec![0; 4096]).expect("a file");
        let root = Root { file: Some(path.clone()) };
        for snapshot in [Snapshot::Yes, Snapshot::No] {
            let why = provide(&vm, &root, snapshot).err().expect("refused").to_string();
            assert!(why.contains("no Debian on /") && why.contains("ext4"), "{why}");
        }
    }

    #[test]
    fn public_keys_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in [("id_a.pub", "ssh-ed25519 AAAA me\n"), ("id_a", "secret"), ("b.pub", "ssh-rsa BBBB\n\n")] {
            fs::write(dir.path().join(name), text).expect("a file");
        }
        assert_eq!(public_keys(dir.path()), ["ssh-rsa BBBB", "ssh-ed25519 AAAA me"]);
        assert!(public_keys(&dir.path().join("missing")).is_empty());
    }
}
