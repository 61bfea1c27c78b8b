//! `gnomon cp`.

use super::control::Which;
use super::shell::How;
use crate::control::session::{Outcome, Session};
use crate::host::place::IoError;
use crate::host::unpack::{self, LeftOut, UnpackError, Wanted};
use crate::host::words::shown;
use abi::agent::{End, Open};
use abi::snapshot::bytes::Bytes;
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufReader, Read, Write, pipe, stdin, stdout};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The guest's part: a script for its shell, with the operands as arguments.
const SCRIPT: &str = include_str!("cp.sh");
/// The name of what is sent, in its archive.
const SENT: &str = "x";
/// Most bytes that are kept of the script's messages.
const MOST_SAID: usize = 2 << 10;
/// Bytes of an archive at a time, and pieces that wait.
const PIECE: usize = 64 << 10;
const PIECES: usize = 4;

/// Copy files from or to a VM (see docs/shell.md).
///
/// One of the two is VM:PATH, or :PATH of the only VM; a relative path begins at the user's home directory. `-` is
/// standard input or output. A local file whose name has a colon is written with a slash: ./a:b.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CpArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
    /// Copy directories with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// The file or directory to copy
    source: OsString,
    /// The copy, or a directory for it
    target: OsString,
}

/// One of the two names.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    /// Standard input or output.
    Stream,
    /// A file of this host.
    Here(PathBuf),
    /// A file of a VM's guest.
    Guest { vm: Option<String>, path: Vec<u8> },
}

impl Place {
    fn of(name: &OsStr) -> Self {
        let bytes = name.as_bytes();
        match bytes.iter().position(|byte| matches!(byte, b':' | b'/')) {
            _ if bytes == b"-" => Self::Stream,
            Some(at) if bytes[at] == b':' => {
                let vm = String::from_utf8_lossy(&bytes[..at]).into_owned();
                let path = if bytes[at + 1..].is_empty() { b"." } else { &bytes[at + 1..] };
                Self::Guest { vm: Some(vm).filter(|vm| !vm.is_empty()), path: path.into() }
            }
            _ => Self::Here(name.into()),
        }
    }
}

/// Divides a path into a directory and a name in it.
fn divide(path: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    match path.iter().rposition(|byte| *byte == b'/') {
        None if path.is_empty() => (b"/".into(), b".".into()),
        None => (b".".into(), path.into()),
        Some(0) => (b"/".into(), path[1..].into()),
        Some(at) => (path[..at].into(), path[at + 1..].into()),
    }
}

/// Messages of the script, up to a bound.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST_SAID.saturating_sub(all.len());
        all.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Said {
    fn text(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shown(String::from_utf8_lossy(&all).trim()).replace('\n', "; ")
    }
}

/// An archive on its way to the guest. Its reader fails if the writer has not ended it.
struct Sending(SyncSender<Vec<u8>>);

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        self.0.send(piece.into()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The other end of [`Sending`]. An empty piece is the end.
struct Sent {
    pieces: Receiver<Vec<u8>>,
    rest: Vec<u8>,
}

impl Read for Sent {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            self.rest = self.pieces.recv().map_err(|_| io::Error::other("the archive is not complete"))?;
        }
        let count = buffer.len().min(self.rest.len());
        buffer[..count].copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        Ok(count)
    }
}

/// A task of the script.
fn task(how: &How, words: &[&[u8]]) -> Open {
    let command = [b"sh", &b"-c"[..], SCRIPT.as_bytes(), b"gnomon cp"];
    let words = command.iter().chain(words).map(|word| Bytes(word.to_vec())).collect();
    Open { words, user: Some(how.user()), ..Open::default() }
}

/// Checks the end of a task.
fn check(vm: &str, done: Outcome, said: &Said) -> miette::Result<()> {
    const HELP: &str = "gnomon shell -- ls -la DIRECTORY shows the files of the guest";
    let said = said.text();
    if let Some(why) = done.lost {
        Err(IoError::at("write", "/dev/stdout")(why))?;
    }
    match done.end {
        End::Exited(0) => Ok(()),
        End::Exited(status) if said.is_empty() => {
            Err(miette::miette!(help = HELP, "VM `{vm}`: the copy failed with status {status}"))
        }
        End::Exited(_) => Err(miette::miette!(help = HELP, "VM `{vm}`: {said}")),
        End::Killed(_) | End::Lost => Err(miette::miette!(
            help = "try again, as long as the VM is running",
            "VM `{vm}`: the copy was interrupted"
        )),
    }
}

impl CpArgs {
    /// Copies.
    pub fn run(self) -> miette::Result<u8> {
        match (Place::of(&self.source), Place::of(&self.target)) {
            (Place::Guest { vm, path }, to @ (Place::Here(_) | Place::Stream)) => self.fetch(vm.as_deref(), &path, &to),
            (from @ (Place::Here(_) | Place::Stream), Place::Guest { vm, path }) => {
                self.send(&from, vm.as_deref(), &path)
            }
            (Place::Guest { .. }, Place::Guest { .. }) => Err(miette::miette!(
                help = "copy to this host first, or join two of them: gnomon cp a:FILE - | gnomon cp - b:FILE",
                "gnomon cp copies between this host and one VM"
            )),
            _ => Err(miette::miette!(
                help = "write VM:PATH, or :PATH if only one VM is running",
                "neither of the two names is in a VM"
            )),
        }
    }

    fn connect(&self, vm: Option<&str>) -> miette::Result<(Session, String)> {
        let session = self.how.connect(&self.which, vm)?;
        let vm = session.vm().to_owned();
        Ok((session, vm))
    }

    /// Copies from a guest.
    fn fetch(&self, vm: Option<&str>, path: &[u8], to: &Place) -> miette::Result<u8> {
        let said = Said::default();
        let Place::Here(target) = to else {
            let (session, vm) = self.connect(vm)?;
            let done = session.run(task(&self.how, &[b"cat", path]), io::empty(), stdout(), said.clone())?;
            return check(&vm, done, &said).map(|()| 0);
        };
        let (directory, name) = divide(path);
        let target = self.local_target(target, &name)?;
        let (session, vm) = self.connect(vm)?;
        let recursive: &[u8] = if self.recursive { b"r" } else { b"" };
        let open = task(&self.how, &[b"get", &directory, &name, recursive]);
        let (reader, writer) = pipe().map_err(IoError::at("make", "a pipe"))?;
        let wanted = if self.recursive { Wanted::Tree } else { Wanted::File };
        let unpacking = thread::spawn(move || unpack::unpack(BufReader::new(reader), &target, wanted));
        let done = session.run(open, io::empty(), writer, said.clone());
        let unpacked = unpacking.join().unwrap_or_else(|_| Err(io::Error::other("it cannot be read").into()));
        let done = done?;
        let left_out = match (unpacked, &done.end) {
            (Ok(left_out), _) => left_out,
            // The guest says more.
            (Err(UnpackError::Archive(_)), End::Exited(1..)) if !said.text().is_empty() => None,
            (Err(why), _) => {
                Err(miette::miette!(help = "choose another target, or make room", "{}", shown(&why.to_string())))?
            }
        };
        check(&vm, done, &said)?;
        if let Some(LeftOut { first, count }) = left_out {
            let first = shown(&first);
            Err(miette::miette!(
                help = "all the rest was copied",
                "{count} that are neither files, directories nor links were left out, such as {first}"
            ))?;
        }
        Ok(0)
    }

    /// Returns the path of the copy. Its directory exists.
    fn local_target(&self, given: &Path, name: &[u8]) -> miette::Result<PathBuf> {
        let name = OsStr::from_bytes(name);
        if given.is_dir() {
            if matches!(name.as_bytes(), b"" | b"." | b"..") {
                return Err(miette::miette!(
                    help = "name the copy, by a name that does not exist yet",
                    "{} is a directory, and the copy has no name in it",
                    given.display()
                ));
            }
            return Ok(given.join(name));
        }
        let about = given.metadata();
        if about.as_ref().is_ok_and(|about| !about.is_file()) {
            return Err(miette::miette!(
                help = "redirect standard output: gnomon cp VM:PATH - > FILE",
                "{} is neither a file nor a directory",
                given.display()
            ));
        }
        // A link to a file of the user's stays, and that file is replaced.
        let path = if about.is_ok() { given.canonicalize().map_err(IoError::at("find", given))? } else { given.into() };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if path.file_name().is_none() || given.as_os_str().as_bytes().ends_with(b"/") || !parent.is_dir() {
            return Err(miette::miette!(
                help = "make it first: mkdir -p",
                "there is no directory for {}",
                given.display()
            ));
        }
        Ok(path)
    }

    /// Copies to a guest.
    fn send(&self, from: &Place, vm: Option<&str>, path: &[u8]) -> miette::Result<u8> {
        let said = Said::default();
        let Place::Here(source) = from else {
            let (session, vm) = self.connect(vm)?;
            let open = task(&self.how, &[b"put", path, b"stdin", b"bytes"]);
            let done = session.run(open, stdin(), io::sink(), said.clone())?;
            return check(&vm, done, &said).map(|()| 0);
        };
        let about = source.metadata().map_err(IoError::at("read", source))?;
        if about.is_dir() && !self.recursive {
            return Err(miette::miette!(help = "copy it with -r", "{} is a directory", source.display()));
        }
        if !about.is_dir() && !about.is_file() {
            return Err(miette::miette!(
                help = "redirect standard input: gnomon cp - VM:PATH < FILE",
                "{} is neither a file nor a directory",
                source.display()
            ));
        }
        // `.` and `..` have names, too.
        let full = source.canonicalize().map_err(IoError::at("find", source))?;
        let name = source.file_name().or(full.file_name()).unwrap_or(OsStr::new("root")).to_owned();
        let (session, vm) = self.connect(vm)?;
        let open = task(&self.how, &[b"put", path, name.as_bytes(), b"tar"]);
        let (sender, pieces) = sync_channel(PIECES);
        let packing = thread::spawn(move || pack(&full, sender));
        let done = session.run(open, Sent { pieces, rest: Vec::new() }, io::sink(), said.clone());
        let packed = packing.join().unwrap_or_else(|_| Err(io::Error::other("it cannot be read")));
        match packed {
            // The guest has ended before, and says why.
            Err(why) if why.kind() == io::ErrorKind::BrokenPipe => {}
            packed => packed.map_err(IoError::at("read", source))?,
        }
        check(&vm, done?, &said).map(|()| 0)
    }
}

/// Writes the archive of a file, or of a directory with all that is in it.
fn pack(path: &Path, to: SyncSender<Vec<u8>>) -> io::Result<()> {
    let end = to.clone();
    let mut archive = tar::Builder::new(io::BufWriter::with_capacity(PIECE, Sending(to)));
    archive.follow_symlinks(false);
    if path.is_dir() {
        archive.append_dir_all(SENT, path)?;
    } else {
        archive.append_path_with_name(path, SENT)?;
    }
    archive.into_inner()?.flush()?;
    end.send(Vec::new()).map_err(|_| io::ErrorKind::BrokenPipe.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_before_any_slash_names_a_vm() {
        let guest = |vm: Option<&str>, path: &str| Place::Guest { vm: vm.map(Into::into), path: path.into() };
        let place = |name: &str| Place::of(OsStr::new(name));
        assert_eq!(place("a:/etc/x:y"), guest(Some("a"), "/etc/x:y"));
        assert_eq!(place(":x"), guest(None, "x"));
        assert_eq!(place("a:"), guest(Some("a"), "."));
        assert_eq!(place("-"), Place::Stream);
        for name in ["./a:b", "/a:b", "a", "a/b:c", ""] {
            assert_eq!(place(name), Place::Here(name.into()), "{name}");
        }
    }

    #[test]
    fn paths_of_guests_are_divided() {
        let divide = |path: &str| {
            let (directory, name) = divide(path.as_bytes());
            (String::from_utf8(directory).expect("text"), String::from_utf8(name).expect("text"))
        };
        for (path, directory, name) in [
            ("/etc/passwd", "/etc", "passwd"),
            ("/etc//", "/", "etc"),
            ("a", ".", "a"),
            ("a/b/", "a", "b"),
            ("/", "/", "."),
            (".", ".", "."),
            ("a\nb", ".", "a\nb"),
        ] {
            assert_eq!(divide(path), (directory.to_owned(), name.to_owned()), "{path}");
        }
    }

    #[test]
    fn an_archive_that_is_not_complete_cannot_be_read_to_its_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let read = |path: &Path| {
            let (sender, pieces) = sync_channel(1000);
            let packed = pack(path, sender);
            let mut all = Vec::new();
            (packed.is_ok(), Sent { pieces, rest: Vec::new() }.read_to_end(&mut all).is_ok())
        };
        std::fs::write(dir.path().join("a"), vec![1; 300_000]).expect("a file");
        assert_eq!(read(dir.path()), (true, true));
        assert_eq!(read(&dir.path().join("b")), (false, false));
    }
}
