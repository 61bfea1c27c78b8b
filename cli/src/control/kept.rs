//! The record of a run in the background: the logs of its VMs, and how it ended.
//!
//! ```text
//!  $XDG_STATE_HOME/gnomon/RUN/lock            held by the run while it lives
//!                             log, log.1      the run's own messages
//!                             end             its exit status
//!                             definition      the command line that `gnomon start` starts, if one is kept
//!                             vms/VM/log, log.1, end
//! ```
//!
//! A record stays when its run has ended, until a run of that name begins or the record is removed. A definition stays until the record is
//! removed.

use super::ControlError;
use super::runs::is_name;
use crate::host::home::state;
use crate::host::place::{IoError, write_whole};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The size at which a log is put aside, in bytes. The one that was put aside before is removed, so a log takes twice as much.
pub const MOST_LOG: u64 = 1 << 20;

const LOCK: &str = "lock";
const END: &str = "end";
const VMS: &str = "vms";
const DEFINITION: &str = "definition";
/// The name of a log, and of the part that was put aside.
const LOG: &str = "log";
const ASIDE: &str = "log.1";

/// The record of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The run's name.
    pub name: String,
    dir: PathBuf,
}

/// The command line of a run that is kept by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The directory that paths among the arguments are relative to.
    pub dir: PathBuf,
    /// The arguments of `gnomon run`.
    pub args: Vec<String>,
}

/// The lock of a run that lives. It ends with the process, however that ends.
#[derive(Debug)]
pub struct Life(#[expect(dead_code, reason = "the open file is the lock")] File);

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> ControlError {
    let path = path.to_owned();
    move |why| ControlError::Record { path, why }
}

/// Makes a directory for the user alone, and those above it.
fn make_dir(path: &Path) -> Result<(), ControlError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed(path))
}

/// The directory of all records.
fn root() -> Result<PathBuf, ControlError> {
    state().ok_or(ControlError::NoStateHome)
}

/// Makes the file for the status of an end, which is blank until then. The status takes its place, so it needs no room on a disk that is
/// full.
fn make_end(dir: &Path) -> Result<(), ControlError> {
    let path = dir.join(END);
    fs::write(&path, "   \n").map_err(failed(&path))
}

/// Writes the status of an end.
fn write_end(dir: &Path, status: u8) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(dir.join(END))?.write_all(format!("{status:3}").as_bytes())
}

fn read_end(dir: &Path) -> Option<u8> {
    fs::read_to_string(dir.join(END)).ok()?.trim().parse().ok()
}

impl Kept {
    /// Begins the record of a run that starts, with these VMs. An older one of that name is removed.
    ///
    /// # Errors
    /// [`ControlError`]: if a run of that name lives, or files cannot be made.
    pub fn begin(name: &str, vms: &[String]) -> Result<(Self, Life), ControlError> {
        Self::begin_in(&root()?, name, vms)
    }

    fn begin_in(root: &Path, name: &str, vms: &[String]) -> Result<(Self, Life), ControlError> {
        let kept = Self { name: name.into(), dir: root.join(name) };
        make_dir(&kept.dir)?;
        let Some(life) = kept.lock()? else { return Err(ControlError::Taken(name.into())) };
        kept.clear()?;
        make_end(&kept.dir)?;
        for vm in vms {
            make_dir(&kept.vm_dir(vm))?;
            make_end(&kept.vm_dir(vm))?;
        }
        Ok((kept, life))
    }

    /// Takes the lock, if the run does not live.
    fn lock(&self) -> Result<Option<Life>, ControlError> {
        let path = self.dir.join(LOCK);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed(&path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Life(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(why) => Err(failed(&path)(why.into())),
        }
    }

    /// Keeps a definition by a name.
    ///
    /// # Errors
    /// [`ControlError`]: if the name cannot be one, is a definition's or that of a run in the background that lives, or files cannot be
    /// made.
    pub fn define(name: &str, definition: &Definition) -> Result<Self, ControlError> {
        Self::define_in(&root()?, name, definition)
    }

    fn define_in(root: &Path, name: &str, definition: &Definition) -> Result<Self, ControlError> {
        if !is_name(name) {
            return Err(ControlError::Name(name.into()));
        }
        let kept = Self { name: name.into(), dir: root.join(name) };
        make_dir(&kept.dir)?;
        let Some(_life) = kept.lock()? else { return Err(ControlError::Lives(name.into())) };
        let path = kept.dir.join(DEFINITION);
        if path.exists() {
            return Err(ControlError::Defined(name.into()));
        }
        let text = serde_json::to_vec_pretty(definition).map_err(|why| failed(&path)(why.into()))?;
        write_whole(&path, &text).map_err(|IoError { source, .. }| failed(&path)(source))?;
        Ok(kept)
    }

    /// Returns whether a definition is kept.
    #[must_use]
    pub fn is_defined(&self) -> bool {
        self.dir.join(DEFINITION).exists()
    }

    /// The definition.
    ///
    /// # Errors
    /// [`ControlError::Record`] if it cannot be read.
    pub fn definition(&self) -> Result<Definition, ControlError> {
        let path = self.dir.join(DEFINITION);
        let text = fs::read(&path).map_err(failed(&path))?;
        serde_json::from_slice(&text).map_err(|why| failed(&path)(why.into()))
    }

    /// The definition of that name.
    ///
    /// # Errors
    /// [`ControlError::NoDefinition`].
    pub fn defined(name: &str) -> Result<Self, ControlError> {
        let mut all = Self::all()?;
        all.retain(Self::is_defined);
        Self::named(all, name, |name, known| ControlError::NoDefinition { name, known })
    }

    /// Returns whether a run of this name has begun since the definition was kept.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.dir.join(END).exists()
    }

    /// Removes what a run has left.
    fn clear(&self) -> Result<(), ControlError> {
        for entry in fs::read_dir(&self.dir).map_err(failed(&self.dir))? {
            let path = entry.map_err(failed(&self.dir))?.path();
            if path.file_name().is_some_and(|name| name == LOCK || name == DEFINITION) {
                continue;
            }
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(failed(&path))?;
        }
        Ok(())
    }

    fn vm_dir(&self, vm: &str) -> PathBuf {
        self.dir.join(VMS).join(vm)
    }

    /// All records, in the order of their names.
    ///
    /// # Errors
    /// [`ControlError::NoStateHome`].
    pub fn all() -> Result<Vec<Self>, ControlError> {
        let root = root()?;
        let names = fs::read_dir(&root).into_iter().flatten().flatten();
        let mut names: Vec<_> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| is_name(name) && root.join(name).join(LOCK).exists());
        names.sort_unstable();
        Ok(names.into_iter().map(|name| Self { dir: root.join(&name), name }).collect())
    }

    /// The record of that name, with a run or a definition.
    ///
    /// # Errors
    /// [`ControlError::NoRecord`].
    pub fn of(name: &str) -> Result<Self, ControlError> {
        Self::named(Self::all()?, name, |name, known| ControlError::NoRecord { name, known })
    }

    /// The one of that name among `all`, or an error with the name and those that there are.
    fn named(
        mut all: Vec<Self>,
        name: &str,
        none: impl FnOnce(String, Vec<String>) -> ControlError,
    ) -> Result<Self, ControlError> {
        match all.iter().position(|kept| kept.name == name) {
            Some(at) => Ok(all.swap_remove(at)),
            None => Err(none(name.into(), all.into_iter().map(|kept| kept.name).collect())),
        }
    }

    /// Finds the record of the run of that name, or the only one with that VM. Among several, one whose run lives is meant.
    ///
    /// # Errors
    /// [`ControlError`], if there is none, or several.
    pub fn find(run: Option<&str>, vm: Option<&str>) -> Result<Self, ControlError> {
        let mut all = Self::all()?;
        all.retain(Self::has_begun);
        let known: Vec<String> = all.iter().map(|kept| kept.name.clone()).collect();
        all.retain(|kept| run.is_none_or(|name| kept.name == name));
        if let (Some(name), true) = (run, all.is_empty()) {
            return Err(ControlError::NoRecord { name: name.into(), known });
        }
        if let Some(vm) = vm {
            all.retain(|kept| kept.vms().iter().any(|other| other == vm));
            if all.is_empty() {
                return Err(ControlError::NoVmRecord { vm: vm.into(), known });
            }
        }
        if all.len() > 1 && all.iter().any(Self::lives) {
            all.retain(Self::lives);
        }
        if all.len() > 1 {
            return Err(ControlError::WhichRun(all.into_iter().map(|kept| kept.name).collect()));
        }
        all.pop().ok_or(ControlError::NoRecords)
    }

    /// The VM of that name, or the only one.
    ///
    /// # Errors
    /// [`ControlError`], if there is none, or several.
    pub fn vm(&self, vm: Option<&str>) -> Result<String, ControlError> {
        let (run, mut known) = (self.name.clone(), self.vms());
        match vm {
            Some(name) if known.iter().any(|vm| vm == name) => Ok(name.into()),
            Some(name) => Err(ControlError::UnknownVm { run, name: name.into(), known }),
            None if known.len() > 1 => Err(ControlError::WhichVm { run, known }),
            None => known.pop().ok_or(ControlError::NoVm(run)),
        }
    }

    /// The names of its VMs, in the order of the alphabet.
    #[must_use]
    pub fn vms(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join(VMS)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    /// Returns whether the run lives.
    #[must_use]
    pub fn lives(&self) -> bool {
        matches!(self.lock(), Ok(None))
    }

    /// Waits until the run has ended, and returns its exit status; `None` if it was killed before it could say.
    ///
    /// # Errors
    /// [`ControlError::Record`].
    pub fn wait(&self) -> Result<Option<u8>, ControlError> {
        let path = self.dir.join(LOCK);
        let file = File::open(&path).map_err(failed(&path))?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockShared))
            .map_err(|why| failed(&path)(why.into()))?;
        Ok(self.status())
    }

    /// The exit status of the run, if it has ended and could say.
    #[must_use]
    pub fn status(&self) -> Option<u8> {
        read_end(&self.dir)
    }

    /// The status of a VM that has ended, as a run's with that VM alone.
    #[must_use]
    pub fn vm_status(&self, vm: &str) -> Option<u8> {
        read_end(&self.vm_dir(vm))
    }

    /// Notes the end of the run. If that cannot be written, the run seems to have been killed.
    pub fn end(&self, status: u8) {
        let _ = write_end(&self.dir, status);
    }

    /// Notes the end of a VM.
    pub fn end_vm(&self, vm: &str, status: u8) {
        let _ = write_end(&self.vm_dir(vm), status);
    }

    /// Removes the record.
    ///
    /// # Errors
    /// [`ControlError`]: if the run lives, or files cannot be removed.
    pub fn remove(self) -> Result<(), ControlError> {
        let Some(_life) = self.lock()? else { return Err(ControlError::Lives(self.name)) };
        self.clear()?;
        fs::remove_dir_all(&self.dir).map_err(failed(&self.dir))
    }

    /// The file to which the run writes its own messages.
    ///
    /// # Errors
    /// [`ControlError::Record`].
    pub fn messages(&self) -> Result<File, ControlError> {
        let path = self.dir.join(LOG);
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        file.map_err(failed(&path))
    }

    /// The path of a VM's log, or of the run's messages, and of the part that was put aside.
    #[must_use]
    pub fn log_paths(&self, vm: Option<&str>) -> [PathBuf; 2] {
        let dir = vm.map_or_else(|| self.dir.clone(), |vm| self.vm_dir(vm));
        [dir.join(LOG), dir.join(ASIDE)]
    }

    /// The log of a VM, to be written.
    #[must_use]
    pub fn log(&self, vm: &str) -> Log {
        let [path, aside] = self.log_paths(Some(vm));
        Log { path, aside, file: None, bytes: 0, lost: 0, most: MOST_LOG }
    }
}

/// A bounded log. A file that cannot be written loses bytes, and no more: the run goes on.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    aside: PathBuf,
    file: Option<File>,
    /// Bytes in the file.
    bytes: u64,
    /// Bytes that could not be written since.
    lost: u64,
    /// The size at which it is put aside.
    most: u64,
}

impl Log {
    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(usize::try_from(self.most).unwrap_or(usize::MAX)) {
            if let Err(why) = self.try_write(piece) {
                self.lost += piece.len() as u64;
                // Half a piece may be there: the next one is tried in the same file.
                if why.kind() == ErrorKind::NotFound {
                    self.file = None;
                }
            }
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        if self.file.is_some() && self.bytes + bytes.len() as u64 > self.most {
            fs::rename(&self.path, &self.aside)?;
            self.file = None;
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                self.bytes = 0;
                let new = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path)?;
                none.insert(new)
            }
        };
        if self.lost > 0 {
            let words = format!("\ngnomon: {} bytes of this log could not be written\n", self.lost);
            file.write_all(words.as_bytes())?;
            self.bytes += words.len() as u64;
            self.lost = 0;
        }
        file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn a_record_lives_as_long_as_its_run_and_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let vms = ["a".to_owned(), "b".to_owned()];
        let (kept, life) = Kept::begin_in(dir.path(), "work", &vms).expect("a record");
        assert!(kept.lives() && kept.status().is_none() && kept.vms() == vms);
        assert!(matches!(Kept::begin_in(dir.path(), "work", &vms), Err(ControlError::Taken(_))));
        kept.end_vm("a", 3);
        kept.log("a").write(b"hello\n");
        assert!(matches!(kept.clone().remove(), Err(ControlError::Lives(_))));
        assert!(kept.log_paths(Some("a"))[0].exists(), "nothing is removed");
        kept.end(3);
        drop(life);
        assert!(!kept.lives());
        assert_eq!((kept.wait().expect("no wait"), kept.vm_status("a"), kept.vm_status("b")), (Some(3), Some(3), None));
        // The next run of that name begins anew.
        let (kept, life) = Kept::begin_in(dir.path(), "work", &vms[..1]).expect("a record");
        assert_eq!((kept.status(), kept.vm_status("a"), kept.vms()), (None, None, vec!["a".to_owned()]));
        assert_eq!(text(&kept.log_paths(Some("a"))[0]), "");
        drop(life);
        kept.remove().expect("it has ended");
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }

    #[test]
    fn a_definition_outlives_its_runs() {
        let dir = tempfile::tempdir().expect("a directory");
        let definition =
            Definition { dir: "/home/a b".into(), args: vec!["--as".into(), "work".into(), "ä.toml".into()] };
        let kept = Kept::define_in(dir.path(), "work", &definition).expect("kept");
        assert!(!kept.has_begun() && !kept.lives());
        let again = Kept::define_in(dir.path(), "work", &definition);
        assert!(matches!(again, Err(ControlError::Defined(_))), "{again:?}");
        for name in ["", ".x", "a/b", "..", "a b"] {
            assert!(matches!(Kept::define_in(dir.path(), name, &definition), Err(ControlError::Name(_))), "{name}");
        }
        for _ in 0..2 {
            let (run, life) = Kept::begin_in(dir.path(), "work", &["a".to_owned()]).expect("a record");
            assert!(run.has_begun() && matches!(kept.clone().remove(), Err(ControlError::Lives(_))));
            run.end(0);
            drop(life);
            assert_eq!(kept.definition().expect("it can be read"), definition);
        }
        fs::write(kept.dir.join(DEFINITION), "{").expect("a file");
        assert!(matches!(kept.definition(), Err(ControlError::Record { .. })));
        kept.remove().expect("it has ended");
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0);
        // A run that was started otherwise has none, and its name can be kept when it has ended.
        let (run, life) = Kept::begin_in(dir.path(), "work", &[]).expect("a record");
        assert!(matches!(Kept::define_in(dir.path(), "work", &definition), Err(ControlError::Lives(_))));
        assert!(!run.is_defined());
        drop(life);
        Kept::define_in(dir.path(), "work", &definition).expect("kept");
    }

    #[test]
    fn a_log_is_bounded() {
        let dir = tempfile::tempdir().expect("a directory");
        let (kept, _life) = Kept::begin_in(dir.path(), "work", &["a".to_owned()]).expect("a record");
        let [path, aside] = kept.log_paths(Some("a"));
        let mut log = kept.log("a");
        log.most = 10;
        for n in 0..5 {
            log.write(format!("line{n}\n").as_bytes());
        }
        assert_eq!((text(&aside), text(&path)), ("line3\n".into(), "line4\n".into()));
        log.write(&[b'x'; 35]);
        assert_eq!((text(&aside).len(), text(&path).len()), (10, 5));
    }

    #[test]
    fn bytes_that_cannot_be_written_are_counted_and_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let (kept, _life) = Kept::begin_in(dir.path(), "work", &["a".to_owned()]).expect("a record");
        let [path, _] = kept.log_paths(Some("a"));
        let mut log = kept.log("a");
        // A disk that is full.
        log.file = Some(OpenOptions::new().write(true).open("/dev/full").expect("Linux has it"));
        log.write(b"lost\n");
        log.write(b"lost\n");
        log.file = None;
        log.write(b"kept\n");
        assert_eq!(text(&path), "\ngnomon: 10 bytes of this log could not be written\nkept\n");
    }
}
