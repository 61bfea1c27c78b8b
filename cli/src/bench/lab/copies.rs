//! Copies of what is measured.

use crate::host::place::IoError;
use crate::host::tty;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

/// Copies of the measured programs, so that a build during the benchmark does not change them.
#[derive(Debug)]
pub(super) struct Copies {
    dir: TempDir,
    known: Mutex<BTreeMap<PathBuf, PathBuf>>,
}

impl Copies {
    /// A place for copies, which a signal that ends this program removes.
    pub(super) fn new() -> std::io::Result<Self> {
        let copies = Self { dir: tempfile::tempdir()?, known: Mutex::default() };
        stop_at_signals(copies.dir.path().to_owned())?;
        Ok(copies)
    }

    /// The copy of a file, as that was when it was first asked for.
    pub(super) fn of(&self, file: &Path) -> Result<PathBuf, IoError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = known.get(file) {
            return Ok(copy.clone());
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let copy = self.dir.path().join(format!("{}-{name}", known.len()));
        std::fs::copy(file, &copy).map_err(IoError::at("copy", file))?;
        known.insert(file.to_owned(), copy.clone());
        Ok(copy)
    }
}

/// From now on, a signal that ends this program removes the copies, and is reported with what is kept.
fn stop_at_signals(copies: PathBuf) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            tty::say("gnomon: interrupted: the runs that have ended are kept, and the same command goes on after them");
            // A shell in the place of this program: without its threads, which would fail for want of the copies.
            let mut shell = Command::new("sh");
            shell.args(["-c", "rm -rf -- \"$0\"; exit $1"]).arg(&copies).arg(tty::signal_status(signal).to_string());
            let _ = shell.exec();
            tty::give_up(signal);
        }
    });
    Ok(())
}
