//! The host side of the control channel: commands find active runs by their sockets, and send requests there ([`abi::control`]).
//!
//! ```text
//!  gnomon ps ────┐                     one after the other
//!  gnomon top ───┼─► NAME.sock ─► gnomon run (bridge) ─► QEMU's virtio console ─► Gnomon
//!  gnomon pause ─┘   each its own    only what is a request
//! ```

pub mod attach;
pub mod bridge;
pub mod client;
pub mod gdb;
pub mod journal;
pub mod kept;
pub mod logs;
pub mod migrate;
mod ports;
pub mod power;
pub mod prometheus;
pub mod runs;
pub mod sample;
pub mod save;
pub mod screen;
pub mod session;
pub mod sessions;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod watch;

pub use ports::{CROWDED, SILENT};

use crate::host::written::did_you_mean;
use abi::control::Power;
use miette::Diagnostic;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The longest name of a run, in bytes.
const MOST_NAME: usize = 40;
/// The longest path of a socket, in bytes.
const MOST_PATH: usize = 107;

/// The reason why a run cannot be asked, or does not do what it is asked.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ControlError {
    /// The place for sockets cannot be used.
    #[error("cannot use {path} for runs' sockets: {why}")]
    #[diagnostic(help("{}name a directory of your own: XDG_RUNTIME_DIR=DIRECTORY", if path.exists() { "remove it, or " } else { "" }))]
    Place {
        /// The directory.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A name that a run cannot have.
    #[error("a run cannot be called `{0}`")]
    #[diagnostic(help(
        "choose a name of up to {most} letters, digits, `-`, `_` and `.`, which does not begin with `.`",
        most = MOST_NAME
    ))]
    Name(String),
    /// Another run has that name.
    #[error("a run called `{0}` is already active")]
    #[diagnostic(help("choose another name, or none: --as NAME"))]
    Taken(String),
    /// No run is active.
    #[error("no VM is running")]
    #[diagnostic(help("start one: ./gnomon run"))]
    NoRun,
    /// No run has that name.
    #[error("no run called `{name}` is active{}", others(name, .known))]
    #[diagnostic(help("gnomon ps lists the active runs"))]
    UnknownRun {
        /// The name.
        name: String,
        /// The active runs.
        known: Vec<String>,
    },
    /// Several runs are active.
    #[error("several runs are active: {}", .0.join(", "))]
    #[diagnostic(help("name one: --run NAME"))]
    WhichRun(Vec<String>),
    /// No VM has that name.
    #[error("run `{run}` has no VM `{name}`{}", others(name, .known))]
    #[diagnostic(help("gnomon ps lists the VMs that are running"))]
    UnknownVm {
        /// The run.
        run: String,
        /// The name.
        name: String,
        /// The existing ones.
        known: Vec<String>,
    },
    /// No run has a VM of that name.
    #[error("no run has a VM `{name}`: the runs are {}", .runs.join(", "))]
    #[diagnostic(help("gnomon ps lists the VMs that are running"))]
    NowhereVm {
        /// The name.
        name: String,
        /// The active runs.
        runs: Vec<String>,
    },
    /// Several runs have a VM of that name.
    #[error("several runs have a VM `{name}`: {}", .runs.join(", "))]
    #[diagnostic(help("name one of the runs: --run NAME"))]
    WhichOfRuns {
        /// The name.
        name: String,
        /// Those runs.
        runs: Vec<String>,
    },
    /// There are several VMs.
    #[error("run `{run}` has several VMs: {}", .known.join(", "))]
    #[diagnostic(help("name one of them"))]
    WhichVm {
        /// The run.
        run: String,
        /// The VMs.
        known: Vec<String>,
    },
    /// The run has none.
    #[error("all VMs of run `{0}` have ended")]
    #[diagnostic(help("gnomon ps lists the active runs and their VMs"))]
    NoVm(String),
    /// The run was started by another version of this program.
    #[error(
        "run `{run}` speaks version {theirs} of the control protocol, this command version {}",
        abi::control::VERSION
    )]
    #[diagnostic(help("use the `gnomon` that started the run"))]
    Version {
        /// The run.
        run: String,
        /// Its version.
        theirs: u16,
    },
    /// The run refuses the request.
    #[error("run `{run}`: {what}: {why}")]
    #[diagnostic(help("{}", if matches!(what.as_str(), "set" | "get") {
        "gnomon get lists the tunables and their values, docs/tunables.md explains them"
    } else {
        "gnomon ps lists the runs, their VMs and what state each is in"
    }))]
    Refused {
        /// The run.
        run: String,
        /// The request.
        what: String,
        /// The reason.
        why: String,
    },
    /// A guest that was asked to shut down, or to reboot, has not done so in time.
    #[error(
        "VM `{vm}` {} within {} s: its guest {}",
        if *wish == Power::Restart { "has not rebooted" } else { "has not shut down" },
        limit.as_secs(),
        if *has_asked { "was asked, and has not finished" } else { "does not listen to a power key" }
    )]
    #[diagnostic(help(
        "gnomon destroy {vm} ends it and gnomon reset {vm} resets it, both without asking; gnomon shutdown --timeout SECONDS waits longer"
    ))]
    Stays {
        /// The VM.
        vm: String,
        /// The wish.
        wish: Power,
        /// The longest time to wait.
        limit: Duration,
        /// True if its guest listens.
        has_asked: bool,
    },
    /// The program that asked does not wait any more.
    #[error("{0} was cancelled")]
    #[diagnostic(help("gnomon ps shows the state that the VM is in"))]
    Cancelled(String),
    /// The run has ended.
    #[error("run `{0}` has ended")]
    #[diagnostic(help("gnomon ps lists the active runs"))]
    Gone(String),
    /// The run exists, and does not answer.
    #[error("run `{0}` does not answer")]
    #[diagnostic(help("its machine may be stopped by a debugger or a signal; try again"))]
    Silent(String),
    /// The program that answers is not a run.
    #[error("the program at the socket of run `{0}` does not speak the control protocol")]
    #[diagnostic(help("use the `gnomon` that started the run"))]
    Nonsense(String),
    /// gdb is not there.
    #[error("cannot start {program}: {source}")]
    #[diagnostic(help(
        "install it (on Debian: apt-get install gdb-multiarch), name another gdb that supports RISC-V (--gdb PROGRAM), or start \
         one yourself (--listen ADDRESS)"
    ))]
    Debugger {
        /// The program.
        program: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// No gdb can connect.
    #[error("cannot wait for gdb at {at}: {source}")]
    #[diagnostic(help("choose a free address: --listen 127.0.0.1:PORT"))]
    Listen {
        /// The address.
        at: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The VM has no such port.
    #[error("VM `{vm}` of run `{run}` has no port `{name}`{}", others(name, .known))]
    #[diagnostic(help("gnomon ps lists them; `ports` in a VM file, or --port, gives one to a VM"))]
    UnknownPort {
        /// The run.
        run: String,
        /// The VM.
        vm: String,
        /// The name.
        name: String,
        /// The ports that it has.
        known: Vec<String>,
    },
    /// `gnomon shell` cannot reach the VM.
    #[error("VM `{0}` was started without an agent for gnomon shell and gnomon cp")]
    #[diagnostic(help(
        "Gnomon's own initrd and Debian roots have one, without --exec and --shell off; other guests have a console (gnomon console {0}), \
         ports, and ssh if they run a server (--forward 2222:22)"
    ))]
    NoShell(String),
    /// The VM's agent does not answer.
    #[error("VM `{vm}` has no agent that answers within {} s", limit.as_secs())]
    #[diagnostic(help(
        "if it is booting, wait: gnomon shell --timeout SECONDS; if its agent has ended or it runs another system, use its console: gnomon console {vm}"
    ))]
    NoAgent {
        /// The VM.
        vm: String,
        /// The longest time to wait.
        limit: Duration,
    },
    /// The VM's agent is of another version.
    #[error(
        "the agent in VM `{vm}` speaks version {theirs} of its protocol, this command version {}",
        abi::agent::VERSION
    )]
    #[diagnostic(help(
        "start the VM over, so that it gets this version: gnomon reboot {vm}; or use the `gnomon` that it was started with"
    ))]
    AgentVersion {
        /// The VM.
        vm: String,
        /// Its version.
        theirs: u16,
    },
    /// The agent cannot start the program.
    #[error("VM `{vm}` cannot run it: {why}")]
    #[diagnostic(help(
        "gnomon shell {vm} gives a shell, if that works; gnomon console {vm} shows what its system says"
    ))]
    Unstarted {
        /// The VM.
        vm: String,
        /// The agent's reason, without control characters.
        why: String,
    },
    /// The session has ended without the program's end.
    #[error("the session in VM `{0}` was cut off: the VM, its agent or the run has ended")]
    #[diagnostic(help("gnomon ps lists the VMs that are running"))]
    CutOff(String),
    /// A port's socket would have too long a path.
    #[error("the socket of port `{port}` of VM `{vm}` would have a path of over {most} bytes: {path}", most = MOST_PATH)]
    #[diagnostic(help("choose shorter names for the run (--as NAME), the VM (`name`) or the port (`ports`)"))]
    LongPath {
        /// The VM.
        vm: String,
        /// The port.
        port: String,
        /// The path.
        path: PathBuf,
    },
    /// Nothing says where records of runs are kept.
    #[error("neither XDG_STATE_HOME nor HOME names a directory for logs of runs")]
    #[diagnostic(help("name a directory of your own: XDG_STATE_HOME=DIRECTORY"))]
    NoStateHome,
    /// A file of a run's record cannot be used.
    #[error("cannot use {path}: {why}")]
    #[diagnostic(help("make room, or name another directory for logs: XDG_STATE_HOME=DIRECTORY"))]
    Record {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        why: io::Error,
    },
    /// No run was in the background.
    #[error("no run was started in the background")]
    #[diagnostic(help("start one: ./gnomon run -d"))]
    NoRecords,
    /// No run of that name was in the background.
    #[error("no run called `{name}` was started in the background{}", others(name, .known))]
    #[diagnostic(help("gnomon run -d --as NAME starts one; the end of another run is shown on its terminal"))]
    NoRecord {
        /// The name.
        name: String,
        /// The runs that were.
        known: Vec<String>,
    },
    /// No run in the background has or had that VM.
    #[error("no run in the background has, or had, a VM `{vm}`{}", others("", .known))]
    #[diagnostic(help("name a run: --run NAME"))]
    NoVmRecord {
        /// The VM.
        vm: String,
        /// The runs.
        known: Vec<String>,
    },
    /// A definition has that name.
    #[error("a run called `{0}` is kept already")]
    #[diagnostic(help("choose another name: --as NAME, or remove that one: gnomon rm {0}"))]
    Defined(String),
    /// No command line is kept by that name.
    #[error("no run called `{name}` is kept{}", others(name, .known))]
    #[diagnostic(help("gnomon list lists those that are; gnomon create keeps one"))]
    NoDefinition {
        /// The name.
        name: String,
        /// The runs that are kept.
        known: Vec<String>,
    },
    /// The directory of a definition is not there.
    #[error("run `{run}` was created in {}, which is no directory now", .dir.display())]
    #[diagnostic(help("make it again, or remove the run: gnomon rm {run}"))]
    NoDirectory {
        /// The run.
        run: String,
        /// The directory.
        dir: PathBuf,
    },
    /// The run lives.
    #[error("run `{0}` is active")]
    #[diagnostic(help("end it first: gnomon shutdown --run {0}, or gnomon destroy --run {0}"))]
    Lives(String),
    /// The terminal cannot be made raw.
    #[error("cannot use this terminal: {0}")]
    #[diagnostic(help(
        "start the command on another terminal, or redirect its input or output: then it needs no terminal"
    ))]
    Terminal(io::Error),
    /// The socket does not work.
    #[error("cannot reach run `{run}`: {source}")]
    #[diagnostic(help("the socket belongs to the user that started the run: connect as that user"))]
    Socket {
        /// The run.
        run: String,
        /// The operating system's error.
        source: io::Error,
    },
}

/// The existing names, as the end of a message about a wrong one.
fn others(name: &str, known: &[String]) -> String {
    let words: Vec<&str> = known.iter().map(String::as_str).collect();
    let meant = did_you_mean(name, &words);
    if known.is_empty() { String::new() } else { format!(" ({meant}known: {})", known.join(", ")) }
}
