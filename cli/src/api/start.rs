//! Starts runs in the background, for `gnomon run -d` and the API.

use crate::control::ControlError;
use crate::control::client::Client;
use crate::control::logs::LOOK;
use crate::host::place::IoError;
use crate::run::LET_GO;
use abi::control::VmState;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;

/// The hidden option of a run that another process has started.
pub const SUPERVISED: &str = "--supervised";

/// The hidden option with the name of a run that is kept by it.
pub const KEPT_AS: &str = "--kept-as";

/// The result of a start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartEnd {
    /// The run's name; `None` if it ended before its machine had booted.
    pub run: Option<String>,
    /// The exit status, if it ended before its VMs had started.
    pub status: Option<ExitStatus>,
}

/// A run in the background that is being started.
#[derive(Debug)]
pub struct Starting {
    child: Child,
    near: UnixStream,
}

impl Starting {
    /// Starts this program again, with the words of a command line that begin with a subcommand, in a directory, if one is given, or in
    /// this process's. Messages go to `stderr` until the run is let go.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn spawn(mut words: Vec<OsString>, dir: Option<&Path>, stderr: Stdio) -> Result<Self, IoError> {
        // Behind the subcommand: the first of its options cannot be the value of another one.
        words.insert(words.len().min(1), SUPERVISED.into());
        let program = std::env::current_exe().map_err(IoError::at("find", "gnomon"))?;
        let (near, far) = UnixStream::pair().map_err(IoError::at("make", "a socket"))?;
        let mut command = Command::new(&program);
        command.args(words).stdin(Stdio::from(OwnedFd::from(far))).stdout(Stdio::null()).stderr(stderr);
        if let Some(dir) = dir {
            command.current_dir(dir);
        }
        // With `command`, this process's copy of the other end is closed.
        let child = command.spawn().map_err(IoError::at("start", &program))?;
        Ok(Self { child, near })
    }

    /// Returns the process of the run.
    pub const fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until the VMs of the run have started, and lets it go, or until it has ended. Ends it if `is_cancelled` returns true before
    /// its machine has booted.
    ///
    /// # Errors
    /// [`IoError`] if the process cannot be waited for.
    pub fn finish(&mut self, is_cancelled: &dyn Fn() -> bool) -> Result<StartEnd, IoError> {
        let Some(name) = self.name(is_cancelled) else {
            // A run that is not let go ends with this connection.
            let _ = self.near.shutdown(Shutdown::Both);
            return Ok(StartEnd { run: None, status: Some(self.ended()?) });
        };
        let has_started = wait_for_start(&name);
        // It may have ended meanwhile.
        let is_let_go = self.near.write_all(&[LET_GO]).is_ok();
        let _ = self.near.read_to_end(&mut Vec::new());
        let status = if has_started && is_let_go { None } else { Some(self.ended()?) };
        Ok(StartEnd { run: Some(name), status })
    }

    /// Waits for the name of the run.
    fn name(&self, is_cancelled: &dyn Fn() -> bool) -> Option<String> {
        self.near.set_read_timeout(Some(LOOK)).ok()?;
        let (mut reader, mut line) = (BufReader::new(&self.near), Vec::new());
        while let Err(why) = reader.read_until(b'\n', &mut line) {
            if why.kind() != ErrorKind::WouldBlock || is_cancelled() {
                return None;
            }
        }
        self.near.set_read_timeout(None).ok()?;
        String::from_utf8(line).ok()?.strip_suffix('\n').map(String::from)
    }

    fn ended(&mut self) -> Result<ExitStatus, IoError> {
        self.child.wait().map_err(IoError::at("wait for", "the run"))
    }
}

/// Waits until no VM of a run is being started. Returns false if the run has ended before.
fn wait_for_start(name: &str) -> bool {
    loop {
        match Client::of(Some(name)).and_then(|mut client| client.vms()) {
            Ok(vms) if vms.vms.iter().any(|vm| matches!(vm.state, VmState::Starting | VmState::Arriving)) => {
                sleep(LOOK)
            }
            Ok(_) => return true,
            Err(ControlError::Silent(_) | ControlError::Refused { .. }) => sleep(LOOK),
            Err(_) => return false,
        }
    }
}
