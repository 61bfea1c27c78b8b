//! Runs in the background: `gnomon run -d`, `wait`, `logs`, `rm`.

use super::script::{STATUS_INPUT, complain};
use crate::control::ControlError;
use crate::control::client::Client;
use crate::control::kept::Kept;
use crate::host::place::IoError;
use crate::host::tty;
use crate::run::LET_GO;
use abi::control::VmState;
use clap::Args;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write, stdout};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// The time between two looks at something that changes.
const LOOK: Duration = Duration::from_millis(100);
/// The status of a run that was killed before it could say how it ended.
const STATUS_KILLED: u8 = 4;

/// The hidden option of a run that another command has started.
pub(super) const SUPERVISED: &str = "--supervised";

/// Starts this command line again as a run in the background; returns when its VMs have started, with status 0, or when it has ended.
pub(super) fn start() -> miette::Result<u8> {
    // Behind the subcommand: what comes first in its options cannot be the value of another one.
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    words.insert(words.len().min(1), SUPERVISED.into());
    let program = std::env::current_exe().map_err(IoError::at("find", "gnomon"))?;
    let (mut near, far) = UnixStream::pair().map_err(IoError::at("make", "a socket"))?;
    let mut command = Command::new(&program);
    command.args(words).stdin(Stdio::from(OwnedFd::from(far))).stdout(Stdio::null());
    let mut child = command.spawn().map_err(IoError::at("start", &program))?;
    // The other end is the child's alone.
    drop(command);
    let mut name = String::new();
    let read = BufReader::new(&near).read_line(&mut name);
    let Some(name) = read.ok().and_then(|_| name.strip_suffix('\n')).map(String::from) else {
        return ended(&mut child);
    };
    let has_started = wait_for_start(&name);
    // It may have ended meanwhile.
    let is_let_go = near.write_all(&[LET_GO]).is_ok();
    let _ = near.read_to_end(&mut Vec::new());
    if !has_started || !is_let_go {
        let status = ended(&mut child)?;
        if status != 0 {
            return Ok(status);
        }
    }
    super::control::say(&[name])?;
    Ok(0)
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

/// Returns the status of a run that has ended, or ends.
fn ended(child: &mut Child) -> miette::Result<u8> {
    let status = child.wait().map_err(IoError::at("wait for", "the run"))?;
    if let Some(signal) = status.signal() {
        tty::say(&format!("gnomon: the run was killed by signal {signal}"));
        return Ok(tty::signal_status(signal));
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(STATUS_KILLED))
}

/// Wait until a VM, or a whole run in the background, has ended.
///
/// Exit status: that of `gnomon run`; of a VM, that of a run with this VM alone; 4 if the run was killed.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct WaitArgs {
    /// The VM [default: all VMs of the run]
    vm: Option<String>,
    /// The run
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
}

impl WaitArgs {
    /// Waits.
    pub fn run(self) -> miette::Result<u8> {
        let kept = Kept::find(self.run.as_deref(), self.vm.as_deref())?;
        let Some(vm) = &self.vm else { return Ok(status_of(&kept, kept.wait()?)) };
        let vm = kept.vm(Some(vm))?;
        loop {
            // In this order: what a run says, it says while it lives.
            let lives = kept.lives();
            match kept.vm_status(&vm) {
                Some(status) => return Ok(status),
                None if lives => sleep(LOOK),
                // It ended without a word of this VM.
                None => return Ok(status_of(&kept, kept.status().filter(|status| *status != 0))),
            }
        }
    }
}

/// The exit status for a run that has ended in that way.
pub(super) fn status_of(kept: &Kept, status: Option<u8>) -> u8 {
    if status.is_none() {
        tty::say(&format!("gnomon: run `{}` was killed before it could say how it ended", kept.name));
    }
    status.unwrap_or(STATUS_KILLED)
}

/// Print the log of a VM of a run in the background.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The VM; optional if there is only one
    vm: Option<String>,
    /// The run
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Print what is added, until the run has ended
    #[arg(long, short)]
    follow: bool,
    /// Print the messages of the run itself
    #[arg(long, conflicts_with = "vm")]
    messages: bool,
}

impl LogsArgs {
    /// Prints it.
    pub fn run(self) -> miette::Result<u8> {
        let kept = Kept::find(self.run.as_deref(), self.vm.as_deref())?;
        let vm = if self.messages { None } else { Some(kept.vm(self.vm.as_deref())?) };
        let [path, aside] = kept.log_paths(vm.as_deref());
        let is_over = || !self.follow || !kept.lives() || vm.as_deref().is_some_and(|vm| kept.vm_status(vm).is_some());
        match follow(&path, &aside, is_over) {
            // A reader that has closed the pipe is not an error.
            Err(why) if why.kind() == ErrorKind::BrokenPipe => Ok(0),
            followed => followed.map(|()| 0).map_err(|why| IoError::at("print", &path)(why).into()),
        }
    }
}

/// Copies a log to standard output: first the part that was put aside, then what there is, and what is added until it is over.
fn follow(path: &Path, aside: &Path, is_over: impl Fn() -> bool) -> std::io::Result<()> {
    let open = |path: &Path| match File::open(path) {
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    };
    let mut out = stdout().lock();
    // The log first, so that nothing is missed if it is put aside in between.
    let (mut log, before) = (open(path)?, open(aside)?);
    if let Some(mut before) = before.filter(|before| !is_same(Some(before), log.as_ref())) {
        std::io::copy(&mut before, &mut out)?;
    }
    loop {
        let was_over = is_over();
        if let Some(file) = &mut log {
            std::io::copy(file, &mut out)?;
        }
        let now = open(path)?;
        if !is_same(now.as_ref(), log.as_ref()) && now.is_some() {
            // What came just before it was put aside.
            if let Some(file) = &mut log {
                std::io::copy(file, &mut out)?;
            }
            log = now;
            continue;
        }
        out.flush()?;
        if was_over {
            return Ok(());
        }
        sleep(LOOK);
    }
}

fn is_same(one: Option<&File>, other: Option<&File>) -> bool {
    let id = |file: Option<&File>| file.and_then(|file| file.metadata().ok()).map(|data| (data.dev(), data.ino()));
    id(one) == id(other)
}

/// Remove what is kept of runs in the background that have ended: logs and statuses.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// The runs
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<String>,
}

impl RmArgs {
    /// Removes them; the status is 1 if one cannot be removed.
    pub fn run(self) -> miette::Result<u8> {
        let mut status = 0;
        for run in &self.runs {
            if let Err(why) = Kept::find(Some(run), None).and_then(Kept::remove) {
                complain(&why.into());
                status = STATUS_INPUT;
            }
        }
        Ok(status)
    }
}
