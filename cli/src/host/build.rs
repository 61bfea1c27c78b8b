//! Compiles what runs on the machine, the hypervisor, the test guests, and programs for Linux guests; and the
//! meter, which watches it.

use crate::host::place;
use crate::host::progress::Step;
use crate::host::stamp::Stamp;
use miette::Diagnostic;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
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

/// Builds the vkernel; returns the ELF file.
///
/// # Errors
/// [`BuildError`].
pub fn vkernel() -> Result<PathBuf, BuildError> {
    const NAME: &str = "gnomon-vkernel";
    let what = "the vkernel";
    let programs = build(what, &["--target", TARGET, "-p", "vkernel", "--features", "machine", "--bin", NAME])?;
    programs.get(NAME).cloned().ok_or(BuildError::NoProgram { what, name: NAME.into() })
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
    let mut command = Command::new(cargo_program());
    command.current_dir(place::root()).stdin(Stdio::null());
    command
}

fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The directory that everything is built in, unless cargo's configuration names another one.
fn target_dir() -> PathBuf {
    place::root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Returns whether a variable of this name may change what cargo builds. Cargo sets further ones for programs that it starts.
fn decides(name: &str) -> bool {
    const PREFIXES: [&str; 9] = [
        "CARGO_BUILD_",
        "CARGO_PROFILE_",
        "CARGO_TARGET_",
        "CARGO_ENCODED_",
        "CARGO_UNSTABLE_",
        "CARGO_HOME",
        "RUSTC",
        "RUSTFLAGS",
        "RUSTUP_",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && name != "CARGO_TARGET_TMPDIR"
}

/// All that decides about a build beside files: the arguments, variables, and which programs are found.
fn words(args: &[&str]) -> Vec<String> {
    let variables = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(decides));
    let variables: BTreeMap<_, _> = variables.collect();
    let programs =
        [cargo_program(), "rustc".into(), "cc".into()].map(|program| (place::find_program(&program), program));
    // Another clone may build in the same place.
    let rest = [format!("{:?}", place::root()), format!("{variables:?}"), format!("{programs:?}")];
    args.iter().map(|&arg| arg.to_owned()).chain(rest).collect()
}

/// The files that decide about every build: manifests, cargo's configuration, and the toolchain.
fn common_files() -> BTreeSet<PathBuf> {
    let root = place::root();
    let home = std::env::var_os("HOME").map_or_else(|| "/root".into(), PathBuf::from);
    let dir = |variable: &str, name: &str| std::env::var_os(variable).map_or_else(|| home.join(name), PathBuf::from);
    let (cargo, rustup) = (dir("CARGO_HOME", ".cargo"), dir("RUSTUP_HOME", ".rustup"));
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).current_dir(&root).stdin(Stdio::null()).output();
    let sysroot =
        sysroot.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())).unwrap_or_default();
    let manifests = ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"].map(|name| root.join(name));
    let configurations = root.ancestors().map(|dir| dir.join(".cargo")).chain([cargo]);
    let configurations = configurations.flat_map(|dir| ["config", "config.toml"].map(|name| dir.join(name)));
    let toolchains = ["settings.toml", "update-hashes"].map(|name| rustup.join(name));
    let toolchain = ["bin/rustc", "lib/rustlib/components"].map(|name| sysroot.join(name));
    let programs = [cargo_program(), "rustc".into()];
    let programs = programs.iter().filter_map(|program| place::find_program(program));
    manifests.into_iter().chain(configurations).chain(toolchains).chain(toolchain).chain(programs).collect()
}

/// Shows what cargo says while it compiles, and in logs from time to time that it still does; returns all of it.
fn follow(what: &str, lines: impl Iterator<Item = String> + Send) -> String {
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        // The receiver is gone only if this thread panics.
        scope.spawn(move || lines.map(|line| sender.send(line)).all(|sent| sent.is_ok()));
        let (started, mut step, mut said) = (Instant::now(), None, String::new());
        loop {
            match receiver.recv_timeout(BEAT) {
                Ok(line) => {
                    if let Some(news) = news(line.trim(), &target_dir()) {
                        step.get_or_insert_with(|| Step::spinner(&format!("building {what}"))).report(&news);
                    }
                    said.push_str(&line);
                    said.push('\n');
                }
                Err(RecvTimeoutError::Timeout) => {
                    let step = step.get_or_insert_with(|| Step::spinner(&format!("building {what}")));
                    step.log(&format!("building {what}: {} s so far", started.elapsed().as_secs()));
                }
                Err(RecvTimeoutError::Disconnected) => return said,
            }
        }
    })
}

/// Returns what a line of cargo's says to the user. Where there is nothing to do, the end is all it says.
fn news(line: &str, dir: &Path) -> Option<String> {
    if line.starts_with("Blocking waiting for file lock") {
        return Some(format!("waiting for another build in {}", dir.display()));
    }
    (!line.starts_with("Finished")).then(|| line.to_owned())
}

/// Builds something, once in the life of this process: a test asks for the meter a hundred times.
fn build(what: &'static str, args: &[&str]) -> Result<Files, BuildError> {
    static BUILT: Mutex<BTreeMap<&str, Files>> = Mutex::new(BTreeMap::new());
    // Other callers would wait for cargo's own lock.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(files) = built.get(what) {
        return Ok(files.clone());
    }
    let args = [&["build", "--release", "--message-format=json-render-diagnostics"], args].concat();
    let stamp = Stamp::of(&place::root(), &target_dir().join("gnomon"), &words(&args));
    let files = match stamp.current() {
        Some(files) => files,
        None => {
            stamp.freshen();
            let begun = stamp.begin();
            let files = run(what, &args)?;
            begun.into_iter().for_each(|begun| stamp.write(begun, &files, common_files()));
            files
        }
    };
    built.insert(what, files.clone());
    Ok(files)
}

fn run(what: &'static str, args: &[&str]) -> Result<Files, BuildError> {
    let mut child =
        cargo().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(BuildError::NoCargo)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_a_process_that_cargo_starts_decide_nothing() {
        for name in ["RUSTFLAGS", "CARGO_PROFILE_RELEASE_LTO", "CARGO_TARGET_DIR", "RUSTC_WRAPPER", "RUSTUP_TOOLCHAIN"]
        {
            assert!(decides(name), "{name}");
        }
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_TARGET_TMPDIR", "RUST_BACKTRACE", "PATH", "CARGO"] {
            assert!(!decides(name), "{name}");
        }
    }

    #[test]
    fn waiting_for_another_build_is_said_in_plain_words() {
        let news = |line| news(line, Path::new("/target"));
        assert_eq!(news("Finished `release` profile"), None);
        assert_eq!(news("Compiling rv v0.1.0").as_deref(), Some("Compiling rv v0.1.0"));
        let waits = news("Blocking waiting for file lock on build directory");
        assert_eq!(waits.as_deref(), Some("waiting for another build in /target"));
    }
}
