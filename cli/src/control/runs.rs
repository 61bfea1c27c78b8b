//! The directory of runs' sockets: private to the user, with a socket for each active run.

use super::journal::Journal;
use super::{ControlError, MOST_NAME, MOST_PATH};
use crate::host::place::identity;
use crate::host::words::is_name_char;
use crate::machine::disk::Lock;
use abi::agent;
use abi::control::DiskUse;
use rustix::fs::{FlockOperation, flock};
use rustix::net::sockopt::socket_peercred;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// The name of the socket for commands.
const SOCKET: &str = "sock";
/// The name of the socket for QEMU.
const MACHINE: &str = "machine";
/// The directory with those of its VMs' ports: one for each VM that has any.
const PORTS: &str = "ports";
/// The journal of its events.
const EVENTS: &str = "events";

/// The directory.
#[derive(Clone, Debug)]
pub struct Runs(PathBuf);

/// A run's name, and its sockets.
#[derive(Debug)]
pub struct Claim {
    /// The name.
    pub name: String,
    /// Commands connect here.
    pub commands: UnixListener,
    /// QEMU connects here.
    pub machine: UnixListener,
    /// The sockets of the VMs' ports.
    pub ports: Vec<PortSocket>,
    /// The journal of the run.
    pub journal: Journal,
    /// The disks that VMs write to, in their order.
    pub disks: Vec<VmDisk>,
    paths: [PathBuf; 2],
    /// The file of the journal.
    events: PathBuf,
    /// The directory with the ports' sockets.
    dir: PathBuf,
}

/// The socket of a VM's port.
#[derive(Debug)]
pub struct PortSocket {
    /// The VM's number.
    pub vm: u64,
    /// The port's among those of the VM, from 0.
    pub port: u32,
    /// Its name.
    pub name: String,
    /// The listening socket.
    pub listener: UnixListener,
}

/// A disk that a VM writes to.
#[derive(Debug)]
pub struct VmDisk {
    /// The disk, for commands.
    pub described: DiskUse,
    /// The locks of all its files. They are the run's.
    pub locks: Vec<Weak<Lock>>,
}

impl VmDisk {
    /// The locks that are there.
    pub(super) fn locks(&self) -> impl Iterator<Item = Arc<Lock>> {
        self.locks.iter().filter_map(Weak::upgrade)
    }
}

impl Claim {
    /// Returns the path of the socket that QEMU is to connect to.
    #[must_use]
    pub fn machine_path(&self) -> &Path {
        &self.paths[1]
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Before the socket, while no other run can have the name.
        let _ = fs::remove_file(&self.events);
        for path in &self.paths {
            // Gone already, or the next command removes it.
            let _ = fs::remove_file(path);
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn place(path: &Path, why: impl ToString) -> ControlError {
    ControlError::Place { path: path.into(), why: why.to_string() }
}

/// Returns whether a run can have that name.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MOST_NAME && !name.starts_with('.') && name.chars().all(is_name_char)
}

/// A socket that is the user's alone.
fn bind(path: &Path) -> Result<UnixListener, ControlError> {
    let listener = UnixListener::bind(path).map_err(|why| place(path, why))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(|why| place(path, why))?;
    Ok(listener)
}

impl Runs {
    /// The user's directory, made if it is not there: `gnomon` in `XDG_RUNTIME_DIR`, or `gnomon-UID` in the place for scratch files.
    ///
    /// # Errors
    /// [`ControlError::Place`]: if it cannot be made, or is not the user's alone.
    pub fn open() -> Result<Self, ControlError> {
        let own = rustix::process::getuid().as_raw();
        let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
        let path = match given {
            Some(dir) => dir.join("gnomon"),
            None => std::env::temp_dir().join(format!("gnomon-{own}")),
        };
        Self::at(path)
    }

    /// Opens the directory at that path.
    ///
    /// # Errors
    /// As [`Runs::open`].
    pub fn at(path: PathBuf) -> Result<Self, ControlError> {
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(why) if why.kind() != ErrorKind::AlreadyExists => return Err(place(&path, why)),
            _ => {}
        }
        // Others may make what they like in the place for scratch files.
        let there = fs::symlink_metadata(&path).map_err(|why| place(&path, why))?;
        let own = rustix::process::getuid().as_raw();
        if !there.is_dir() {
            return Err(place(&path, "it is not a directory"));
        }
        if there.uid() != own {
            return Err(place(&path, "it belongs to another user"));
        }
        if there.permissions().mode() & 0o077 != 0 {
            return Err(place(&path, "other users have access to it"));
        }
        Ok(Self(path))
    }

    fn file(&self, name: &str, kind: &str) -> PathBuf {
        self.0.join(format!("{name}.{kind}"))
    }

    /// Keeps others from making and removing sockets for as long as the file lives.
    fn lock(&self) -> Result<File, ControlError> {
        let path = self.0.join("lock");
        let file = File::create(&path).map_err(|why| place(&path, why))?;
        flock(&file, FlockOperation::LockExclusive).map_err(|why| place(&path, why))?;
        Ok(file)
    }

    /// Takes a name for a run: the one that is wanted, or one that is free and looks like the `usual` one.
    ///
    /// # Errors
    /// [`ControlError`], if it is taken or cannot be one.
    pub fn claim(&self, wanted: Option<&str>, usual: &str) -> Result<Claim, ControlError> {
        let _lock = self.lock()?;
        let running = self.sweep()?;
        let name = match wanted {
            Some(name) if !is_name(name) => return Err(ControlError::Name(name.into())),
            Some(name) if running.iter().any(|other| other == name) => return Err(ControlError::Taken(name.into())),
            Some(name) => name.to_owned(),
            None => {
                let usual = if is_name(usual) { usual } else { "run" };
                let short = &usual[..usual.len().min(MOST_NAME - 4)];
                let mut names = std::iter::once(usual.to_owned()).chain((2..).map(|n| format!("{short}-{n}")));
                names.find(|name| !running.contains(name)).unwrap_or_else(|| usual.into())
            }
        };
        let paths = [SOCKET, MACHINE].map(|kind| self.file(&name, kind));
        if paths.iter().any(|path| path.as_os_str().len() > MOST_PATH) {
            return Err(place(&self.0, format!("the path of a socket in it would be over {MOST_PATH} bytes long")));
        }
        let events = self.journal_path(&name);
        let journal = Journal::begin(&name, events.clone()).map_err(|why| place(&events, why))?;
        let (commands, machine) = (bind(&paths[0])?, bind(&paths[1])?);
        let dir = self.file(&name, PORTS);
        let (ports, disks) = (Vec::new(), Vec::new());
        Ok(Claim { name, commands, machine, ports, journal, disks, paths, events, dir })
    }

    /// Makes the sockets of VMs' ports: those of each VM by its name, in the order of their numbers.
    ///
    /// # Errors
    /// [`ControlError`], if one cannot be made.
    pub fn open_ports(&self, claim: &mut Claim, vms: &[(String, Vec<String>)]) -> Result<(), ControlError> {
        let make = |path: &Path| match DirBuilder::new().mode(0o700).create(path) {
            Err(why) if why.kind() != ErrorKind::AlreadyExists => Err(place(path, why)),
            _ => Ok(()),
        };
        for (number, (vm, ports)) in (0..).zip(vms).filter(|(_, (_, ports))| !ports.is_empty()) {
            make(&claim.dir)?;
            make(&claim.dir.join(vm))?;
            for (port, name) in (0..).zip(ports) {
                let path = self.port_path(&claim.name, vm, name);
                if path.as_os_str().len() > MOST_PATH {
                    // VMs have that one without being asked for it.
                    if name == agent::PORT {
                        continue;
                    }
                    return Err(ControlError::LongPath { vm: vm.clone(), port: name.clone(), path });
                }
                claim.ports.push(PortSocket { vm: number, port, name: name.clone(), listener: bind(&path)? });
            }
        }
        Ok(())
    }

    /// Returns the path of a run's journal.
    #[must_use]
    pub(super) fn journal_path(&self, run: &str) -> PathBuf {
        self.file(run, EVENTS)
    }

    /// The names of the runs that have a journal, in the order of the alphabet: active ones, and those that were killed and whose files
    /// were not removed yet. Does not connect to any.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub(super) fn journals(&self) -> Result<Vec<String>, ControlError> {
        let entries = fs::read_dir(&self.0).map_err(|why| place(&self.0, why))?;
        let mut names = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_journal = path.extension().and_then(OsStr::to_str) == Some(EVENTS);
            let name = path.file_stem().and_then(OsStr::to_str).filter(|name| is_journal && is_name(name));
            names.extend(name.map(String::from));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the path of a port's socket.
    #[must_use]
    pub fn port_path(&self, run: &str, vm: &str, port: &str) -> PathBuf {
        self.file(run, PORTS).join(vm).join(port)
    }

    /// The names of a VM's ports, in the order of the alphabet. That of `gnomon shell` is not among them.
    #[must_use]
    pub fn ports(&self, run: &str, vm: &str) -> Vec<String> {
        let entries = fs::read_dir(self.file(run, PORTS).join(vm));
        let mut names: Vec<_> =
            entries.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| name != agent::PORT);
        names.sort_unstable();
        names
    }

    /// Connects to a port of a VM's.
    ///
    /// # Errors
    /// If it has none of that name.
    pub fn connect_port(&self, run: &str, vm: &str, port: &str) -> Result<UnixStream, ControlError> {
        let known = self.ports(run, vm);
        let (run, vm, name) = (run.to_owned(), vm.to_owned(), port.to_owned());
        if !known.contains(&name) {
            return Err(ControlError::UnknownPort { run, vm, name, known });
        }
        UnixStream::connect(self.port_path(&run, &vm, port)).map_err(|source| ControlError::Socket { run, source })
    }

    /// Connects to the sessions of a VM's agent.
    ///
    /// # Errors
    /// [`ControlError::NoShell`] if the VM has no port for them.
    pub fn connect_shell(&self, run: &str, vm: &str) -> Result<UnixStream, ControlError> {
        UnixStream::connect(self.port_path(run, vm, agent::PORT)).map_err(|source| match source.kind() {
            ErrorKind::NotFound => ControlError::NoShell(vm.into()),
            _ => ControlError::Socket { run: run.into(), source },
        })
    }

    /// The names of the active runs. Files of dead runs are removed.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn names(&self) -> Result<Vec<String>, ControlError> {
        let _lock = self.lock()?;
        self.sweep()
    }

    fn sweep(&self) -> Result<Vec<String>, ControlError> {
        let mut running = Vec::new();
        let (mut machines, mut ports) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.0).map_err(|why| place(&self.0, why))? {
            let path = entry.map_err(|why| place(&self.0, why))?.path();
            let Some(name) = path.file_stem().and_then(OsStr::to_str).filter(|name| is_name(name)) else { continue };
            let name = name.to_owned();
            match path.extension().and_then(OsStr::to_str) {
                Some(SOCKET) => match UnixStream::connect(&path) {
                    // No process listens there any more.
                    Err(why) if why.kind() == ErrorKind::ConnectionRefused => drop(fs::remove_file(&path)),
                    Err(why) if why.kind() == ErrorKind::NotFound => {}
                    _ => running.push(name),
                },
                Some(MACHINE | EVENTS) => machines.push((name, path)),
                Some(PORTS) => ports.push((name, path)),
                _ => {}
            }
        }
        for (_, path) in machines.into_iter().filter(|(name, _)| !running.contains(name)) {
            let _ = fs::remove_file(path);
        }
        for (_, path) in ports.into_iter().filter(|(name, _)| !running.contains(name)) {
            let _ = fs::remove_dir_all(path);
        }
        running.sort_unstable();
        Ok(running)
    }

    /// Connects to a run.
    ///
    /// # Errors
    /// If no run of that name is active.
    pub fn connect(&self, name: &str) -> Result<UnixStream, ControlError> {
        if !is_name(name) {
            return Err(ControlError::Name(name.into()));
        }
        UnixStream::connect(self.file(name, SOCKET)).map_err(|source| match source.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                let known = self.names().unwrap_or_default();
                ControlError::UnknownRun { name: name.into(), known }
            }
            _ => ControlError::Socket { run: name.into(), source },
        })
    }

    /// The run that is meant: that of the name, or the only one.
    ///
    /// # Errors
    /// If there is none, or several.
    pub fn choose(&self, name: Option<&str>) -> Result<String, ControlError> {
        let mut names = self.names()?;
        match name {
            Some(name) if names.iter().any(|other| other == name) => Ok(name.into()),
            Some(name) => Err(ControlError::UnknownRun { name: name.into(), known: names }),
            None if names.len() > 1 => Err(ControlError::WhichRun(names)),
            None => names.pop().ok_or(ControlError::NoRun),
        }
    }
}

/// The name of the run that has a file open, if another command can reach that run.
#[must_use]
pub fn holder(file: &Path) -> Option<String> {
    let wanted = identity(file)?;
    let runs = Runs::open().ok()?;
    let has_it = |name: &String| {
        let process = runs.connect(name).ok().and_then(|socket| socket_peercred(socket).ok());
        let files = process.and_then(|process| fs::read_dir(format!("/proc/{}/fd", process.pid.as_raw_nonzero())).ok());
        files.into_iter().flatten().flatten().any(|open| identity(&open.path()) == Some(wanted))
    };
    runs.names().ok()?.into_iter().find(has_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> (tempfile::TempDir, Runs) {
        let dir = tempfile::tempdir().expect("a directory");
        let runs = Runs::at(dir.path().join("gnomon")).expect("a directory in it");
        (dir, runs)
    }

    #[test]
    fn two_runs_have_two_names_and_leave_nothing() {
        let (dir, runs) = runs();
        let first = runs.claim(None, "linux").expect("a name");
        let second = runs.claim(None, "linux").expect("another name");
        assert_eq!((first.name.as_str(), second.name.as_str()), ("linux", "linux-2"));
        assert!(matches!(runs.claim(Some("linux"), "x"), Err(ControlError::Taken(_))));
        for name in ["", "../x", ".x", "a b", &"x".repeat(41)] {
            assert!(matches!(runs.claim(Some(name), "x"), Err(ControlError::Name(_))), "{name}");
        }
        assert_eq!(runs.names().expect("names"), ["linux", "linux-2"]);
        assert!(matches!(runs.choose(None), Err(ControlError::WhichRun(_))));
        drop(first);
        assert_eq!(runs.choose(None).expect("the only one"), "linux-2");
        assert!(matches!(runs.choose(Some("linux")), Err(ControlError::UnknownRun { .. })));
        drop(second);
        assert!(matches!(runs.choose(None), Err(ControlError::NoRun)));
        let left: Vec<_> = fs::read_dir(dir.path().join("gnomon")).expect("it is there").collect();
        assert_eq!(left.len(), 1, "the lock only: {left:?}");
    }

    #[test]
    fn what_dead_runs_have_left_is_removed() {
        let (dir, runs) = runs();
        let Claim { commands, machine, paths, .. } = &runs.claim(Some("dead"), "x").expect("a name");
        let copies = [SOCKET, MACHINE].map(|kind| dir.path().join(kind));
        // As after SIGKILL: the files are there, and no process listens.
        let _ = (commands, machine);
        for (path, copy) in paths.iter().zip(&copies) {
            fs::rename(path, copy).expect("a file");
            drop(UnixListener::bind(path).expect("a socket"));
        }
        assert_eq!(runs.names().expect("names"), [""; 0]);
        assert!(paths.iter().all(|path| !path.exists()));
    }

    #[test]
    fn a_directory_for_everybody_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("open");
        fs::create_dir(&path).expect("a directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its rights");
        assert!(matches!(Runs::at(path), Err(ControlError::Place { .. })));
        let file = dir.path().join("file");
        fs::write(&file, "").expect("a file");
        assert!(matches!(Runs::at(file), Err(ControlError::Place { .. })));
        assert!(matches!(Runs::at(dir.path().join("no/where")), Err(ControlError::Place { .. })));
        let made = dir.path().join("made");
        Runs::at(made.clone()).expect("a directory");
        assert_eq!(fs::metadata(made).expect("it").permissions().mode() & 0o777, 0o700);
    }
}
