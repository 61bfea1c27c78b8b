//! `gnomon gdb`.

use super::control::Which;
use super::script::STATUS_INPUT;
use crate::control::ControlError;
use crate::control::gdb::Debugged;
use crate::control::gdb::symbols::{Kernel, MARK};
use crate::host::output::Kind;
use crate::host::socket::PrivateSocket;
use crate::host::tty;
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tempfile::NamedTempFile;

/// Debug a VM with gdb, its kernel and its programs (see docs/debugging.md). Its vCPUs are threads.
#[derive(Debug, Args)]
pub struct GdbArgs {
    #[command(flatten)]
    which: Which,
    /// The VM; optional if there is only one
    vm: Option<String>,
    /// The gdb to start: one that supports RISC-V
    #[arg(long, value_name = "PROGRAM", default_value = "gdb-multiarch")]
    gdb: String,
    /// Start no gdb, but wait for one at this address, such as 127.0.0.1:1234; every program that can connect there controls the VM
    #[arg(long, value_name = "ADDRESS", conflicts_with = "gdb")]
    listen: Option<String>,
    /// Write the symbols that the VM's Linux has of itself to this ELF file, and keep it
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    /// Further arguments for gdb, such as the file with the kernel's symbols
    #[arg(last = true, value_name = "ARGUMENT", conflicts_with = "listen")]
    arguments: Vec<OsString>,
}

impl GdbArgs {
    /// Attaches to the VM, and serves one gdb.
    pub fn run(self) -> miette::Result<u8> {
        let (client, vm) = self.which.find(self.vm.as_deref())?;
        Ok(match &self.listen {
            Some(at) => {
                let why = |source| ControlError::Listen { at: at.clone(), source };
                let listener = TcpListener::bind(at).map_err(why)?;
                let own = listener.local_addr().map_err(why)?;
                let mut debugged = Debugged::attach(client, vm)?;
                let symbols = self.symbols(&mut debugged)?;
                if let Some(symbols) = &symbols {
                    tty::say(&format!("gnomon: in gdb: symbol-file {}", symbols.path().display()));
                }
                tty::say(&format!("gnomon: waiting for gdb: target remote {own}"));
                let (stream, _) = listener.accept().map_err(why)?;
                finish(&mut debugged, |debugged| debugged.serve(stream))?;
                0
            }
            None => self.start(&mut Debugged::attach(client, vm)?)?,
        })
    }

    /// Makes a file with the symbols that the VM's Linux has of itself, unless the user gives one.
    fn symbols(&self, debugged: &mut Debugged) -> miette::Result<Option<SymbolFile>> {
        if let Some(path) = &self.symbols {
            SYMBOLS.check(path)?;
        } else if self.arguments.iter().any(is_elf) {
            return Ok(None);
        }
        match debugged.kernel() {
            Kernel::NoLinux if self.symbols.is_some() => {
                tty::say("gnomon: no Linux kernel with address translation was found: no file with symbols is written");
                Ok(None)
            }
            Kernel::NoLinux => Ok(None),
            Kernel::NoTables => {
                tty::say(
                    "gnomon: the guest's Linux has no table of its symbols (kallsyms) that can be read: gdb needs a file with them",
                );
                Ok(None)
            }
            Kernel::Found { base, count, modules, file } => {
                let symbols = match &self.symbols {
                    Some(path) => SYMBOLS.write(path, &file).map(|()| SymbolFile::Kept(path.clone()))?,
                    None => match made(&file).and_then(|made| self.remove_at_signals(made.path()).map(|()| made)) {
                        Ok(made) => SymbolFile::Made(made),
                        Err(why) => {
                            let why = format!("gnomon: gdb gets no symbols, since their file cannot be written: {why}");
                            tty::say(&why);
                            return Ok(None);
                        }
                    },
                };
                tty::say(&format!(
                    "gnomon: the guest's Linux is at {base:#x}, and says {count} symbols of itself and its {modules} modules"
                ));
                Ok(Some(symbols))
            }
        }
    }

    /// From now on, a signal that ends this program removes that file first.
    fn remove_at_signals(&self, path: &Path) -> std::io::Result<()> {
        // Ctrl-C is gdb's, if this program has started one.
        let keys = [SIGINT, SIGQUIT].into_iter().filter(|_| self.listen.is_some());
        let mut signals = Signals::new(keys.chain([SIGHUP, SIGTERM]))?;
        let path = path.to_owned();
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                let _ = std::fs::remove_file(&path);
                tty::give_up(signal);
            }
        });
        Ok(())
    }

    /// Starts gdb at a private socket; returns its status.
    fn start(&self, debugged: &mut Debugged) -> miette::Result<u8> {
        let at = |source| ControlError::Listen { at: "a socket of its own".into(), source };
        let socket = PrivateSocket::listen().map_err(at)?;
        let symbols = self.symbols(debugged)?;
        // Ctrl-C is gdb's.
        let interrupted = Arc::new(AtomicBool::new(false));
        let _ = signal_hook::flag::register(SIGINT, interrupted);
        let mut gdb = Command::new(&self.gdb);
        // Debian's gdb takes GNU/Linux for its default, and then steps by breakpoints of its own.
        gdb.args(["-ex", "set architecture riscv:rv64", "-ex", "set osabi none"]);
        gdb.args(["-ex", "set can-use-hw-watchpoints 0", "-ex"]);
        gdb.arg(format!("target remote {}", socket.path().display()));
        // gdb reads the last file that is named: one in the user's arguments is read in place of this one.
        if let Some(symbols) = &symbols {
            gdb.arg("-s").arg(symbols.path());
        }
        gdb.args(&self.arguments);
        let started = gdb.spawn();
        let mut gdb = match started {
            Ok(gdb) => gdb,
            Err(source) => {
                let _ = debugged.detach();
                return Err(ControlError::Debugger { program: self.gdb.clone(), source }.into());
            }
        };
        let has_ended = || !matches!(gdb.try_wait(), Ok(None));
        finish(debugged, |debugged| match socket.accept(has_ended) {
            Ok(stream) => debugged.serve(stream),
            // It ended without a connection.
            Err(_) => Ok(()),
        })?;
        let status = gdb.wait().map_err(at)?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(STATUS_INPUT))
    }
}

/// Files with a kernel's symbols.
const SYMBOLS: Kind = Kind { what: "a file with symbols that gnomon gdb has written", mark: MARK };

/// A file with a kernel's symbols.
#[derive(Debug)]
enum SymbolFile {
    /// One that is removed at the end.
    Made(NamedTempFile),
    /// The user's.
    Kept(PathBuf),
}

impl SymbolFile {
    fn path(&self) -> &Path {
        match self {
            Self::Made(file) => file.path(),
            Self::Kept(path) => path,
        }
    }
}

fn made(bytes: &[u8]) -> std::io::Result<NamedTempFile> {
    let mut made = tempfile::Builder::new().prefix("gnomon-kernel-").tempfile()?;
    made.write_all(bytes)?;
    Ok(made)
}

/// Returns whether an argument names a program or a kernel with symbols.
fn is_elf(argument: &OsString) -> bool {
    // A pipe with gdb's commands is gdb's to read.
    if !Path::new(argument).is_file() {
        return false;
    }
    let mut magic = [0; 4];
    let read = File::open(argument).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}

/// Lets gdb do its work, and takes it out of the VM afterwards.
fn finish(debugged: &mut Debugged, work: impl FnOnce(&mut Debugged) -> Result<(), String>) -> Result<(), ControlError> {
    let done = work(debugged);
    if let Err(why) = done {
        tty::say(&format!("gnomon: the connection to gdb broke: {why}"));
    }
    match debugged.detach() {
        // The VM is gone, and so is all that was in it.
        Err(ControlError::Refused { .. } | ControlError::Gone(_)) => Ok(()),
        detached => detached,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn only_programs_take_the_place_of_a_kernels_symbols() {
        let dir = tempfile::tempdir().expect("a directory");
        let (pipe, script) = (dir.path().join("pipe"), dir.path().join("script"));
        // A pipe without a writer, which would hold up the command for ever.
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        std::fs::write(&script, "bt\n").expect("a file");
        let own = std::env::current_exe().expect("this program");
        let found = [own.into(), pipe.into(), script.into(), "-nx".into(), dir.path().into()].map(|one| is_elf(&one));
        assert_eq!(found, [true, false, false, false, false]);
    }
}
