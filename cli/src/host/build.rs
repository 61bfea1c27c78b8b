//! Compiles what runs on the machine, the hypervisor, the test guests, and programs for Linux guests; and the
//! meter, which watches it.

use crate::host::place;
use crate::host::progress::Step;
use miette::Diagnostic;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The target of everything that runs on the machine.
pub const TARGET: &str = "riscv64imac-unknown-none-elf";
/// The name of the hypervisor's binary.
pub const HYPERVISOR: &str = "gnomon-hypervisor";
/// The name of the programs for Linux in messages.
const PROGRAMS: &str = "the programs for Linux";
/// No silence is longer.
const BEAT: Duration = Duration::from_secs(10);

/// Built files by name.
pub type Files = BTreeMap<String, PathBuf>;

/// The reason why there is no program to run.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum BuildError {
    /// cargo cannot be started.
    #[error("cannot run cargo: {0}")]
    #[diagnostic(help("start Gnomon by its ./gnomon script, which installs what it needs"))]
    NoCargo(std::io::Error),
    /// The compiler refused.
    #[error("building {what} failed:\n{output}")]
    #[diagnostic(help(
        "if the target {TARGET} is missing: rustup target add {TARGET}; otherwise see the compiler's messages"
    ))]
    Failed {
        /// The target of the build.
        what: &'static str,
        /// Cargo's output.
        output: String,
    },
    /// cargo made no program of the name.
    #[error("building {what} made no program `{name}`")]
    #[diagnostic(help("this is a bug of Gnomon's; please report it"))]
    NoProgram {
        /// The target of the build.
        what: &'static str,
        /// The name.
        name: String,
    },
}

/// Builds the hypervisor; returns the ELF file.
///
/// # Errors
/// [`BuildError`].
pub fn hypervisor() -> Result<PathBuf, BuildError> {
    let what = "the hypervisor";
    let programs =
        build(what, &["--target", TARGET, "-p", "hypervisor", "--features", "machine", "--bin", HYPERVISOR])?;
    let missing = BuildError::NoProgram { what, name: HYPERVISOR.into() };
    programs.get(HYPERVISOR).cloned().ok_or(missing)
}

/// Builds the test guests; returns the ELF files by name.
///
/// # Errors
/// [`BuildError`].
pub fn guests() -> Result<Files, BuildError> {
    build("the test guests", &["--target", TARGET, "-p", "guests", "--bins"])
}

/// Builds the programs that run under Linux in guests; returns the ELF files by name.
///
/// # Errors
/// [`BuildError`].
pub fn programs() -> Result<Files, BuildError> {
    build(PROGRAMS, &["--target", TARGET, "-p", "programs", "--features", "machine", "--bins"])
}

/// One of [`programs`].
///
/// # Errors
/// [`BuildError`].
pub fn program(name: &str) -> Result<PathBuf, BuildError> {
    programs()?.remove(name).ok_or_else(|| BuildError::NoProgram { what: PROGRAMS, name: name.into() })
}

/// Builds the program that sets the meter's markers in a Linux guest; returns the ELF file.
///
/// # Errors
/// [`BuildError`].
pub fn mark() -> Result<PathBuf, BuildError> {
    program("mark")
}

/// Builds the meter's plugin, for this host; returns the file.
///
/// # Errors
/// [`BuildError`].
pub fn meter() -> Result<PathBuf, BuildError> {
    const NAME: &str = "libgnomon_meter.so";
    let what = "the meter";
    let files = build(what, &["-p", "meter-plugin"])?;
    files.get(NAME).cloned().ok_or(BuildError::NoProgram { what, name: NAME.into() })
}

/// The line that cargo prints for something finished.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

/// The cargo that this process was started by, or the one in the path.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(place::root()).stdin(Stdio::null());
    command
}

/// Shows what cargo says while it compiles, and from time to time that it still does; returns all of it.
fn follow(what: &str, lines: impl Iterator<Item = String> + Send) -> String {
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        // The receiver is gone only if this thread panics.
        scope.spawn(move || lines.map(|line| sender.send(line)).all(|sent| sent.is_ok()));
        let (started, mut step, mut said) = (Instant::now(), None, String::new());
        loop {
            match receiver.recv_timeout(BEAT) {
                Ok(line) => {
                    // Where there is nothing to do, the end is all it says.
                    if !line.trim_start().starts_with("Finished") {
                        step.get_or_insert_with(|| Step::spinner(&format!("building {what}"))).report(line.trim());
                    }
                    said.push_str(&line);
                    said.push('\n');
                }
                Err(RecvTimeoutError::Timeout) => {
                    let step = step.get_or_insert_with(|| Step::spinner(&format!("building {what}")));
                    step.report(&format!("{} s so far", started.elapsed().as_secs()));
                }
                Err(RecvTimeoutError::Disconnected) => return said,
            }
        }
    })
}

/// Builds something, once in the life of this process: a test asks for the meter a hundred times.
fn build(what: &'static str, args: &[&str]) -> Result<Files, BuildError> {
    static BUILT: Mutex<BTreeMap<&str, Files>> = Mutex::new(BTreeMap::new());
    // Other callers would wait for cargo's own lock.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(files) = built.get(what) {
        return Ok(files.clone());
    }
    let files = run(what, args)?;
    built.insert(what, files.clone());
    Ok(files)
}

fn run(what: &'static str, args: &[&str]) -> Result<Files, BuildError> {
    let mut child = cargo()
        .args(["build", "--release", "--message-format=json-render-diagnostics"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(BuildError::NoCargo)?;
    let stdout = child.stdout.take();
    let messages = std::thread::spawn(move || {
        let mut text = String::new();
        // Unreadable messages name no program, which is reported.
        let _ = stdout.map(|mut pipe| pipe.read_to_string(&mut text));
        text
    });
    let lines = child.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines).map_while(Result::ok);
    let said = follow(what, lines);
    let messages = messages.join().unwrap_or_default();
    if !child.wait().map_err(BuildError::NoCargo)?.success() {
        return Err(BuildError::Failed { what, output: said });
    }
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    let files = artifacts.flat_map(|artifact| artifact.executable.into_iter().chain(artifact.filenames));
    Ok(files.filter_map(|file| Some((file.file_name()?.to_string_lossy().into_owned(), file.clone()))).collect())
}
