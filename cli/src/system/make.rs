//! Makes a root: a guest of Gnomon's own installs Debian on a disk.

use super::archives;
use crate::guest::debian::{Files, Suite, System, Wanted};
use crate::host::place::IoError;
use crate::host::progress::Step;
use crate::host::size::Size;
use crate::host::words::quoted;
use crate::machine::disk::{DiskSpec, Format};
use crate::machine::net::seen_by_guest;
use crate::system::errand;
use crate::vm::file::VmFile;
use miette::Diagnostic;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The guest's script.
pub(super) const SCRIPT: &str = include_str!("make.sh");
/// The disk's size. Its file is sparse.
pub(super) const SIZE: Size = Size(16 << 30);
/// RAM of the guest, which has all packages in it.
const MEMORY: Size = Size(1 << 30);
/// Makes the file system.
const MKE2FS: &str = "usr/sbin/mke2fs";

/// The guest could not do it.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("Debian could not be installed on {}; the last output was: {said}", image.display())]
#[diagnostic(help(
    "see that the disk of that file has 1 GiB of room, or set GNOMON_CACHE to a directory on another one; then start again. If it fails \
     again, the archive may be changing: try later"
))]
pub(super) struct MakeError {
    image: PathBuf,
    said: String,
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Makes the root in a file that is there, and empty.
pub(super) fn make(system: &System, image: &Path, dir: &Path) -> miette::Result<()> {
    let base = archives::base(system, dir)?;
    let packages = archives::packages(system, dir)?;
    let tools = Files::provide(Suite::Trixie, "e2fsprogs", Wanted::Program(MKE2FS))?;
    let file = std::fs::File::options().write(true).open(image).and_then(|file| file.set_len(SIZE.0));
    file.map_err(IoError::at("enlarge", image))?;
    let disk = |file: &Path, readonly| DiskSpec {
        file: file.to_owned(),
        readonly,
        format: Some(Format::Raw),
        ..DiskSpec::default()
    };
    let vm = VmFile {
        name: Some("debian".into()),
        memory: Some(MEMORY),
        vcpus: Some(2),
        add: Some(tools.files.into_iter().map(|(_, file)| file).collect()),
        disks: Some(vec![disk(image, false), disk(base.path(), true), disk(packages.path(), true)]),
        ..VmFile::default()
    };
    let step = Step::percent("installing Debian, once: it takes some minutes");
    // Each is unpacked, and set up.
    let (mut done, all) = (0, system.packages.len() * 2);
    let said = errand::run(vm, script(system), |line| {
        if line.starts_with("Unpacking ") || line.starts_with("Setting up ") {
            done += 1;
            step.set((done * 100 / all) as u64);
            // A log has a line for each quarter.
            match done * 4 % all {
                0..4 => step.report(&format!("installing Debian: {} of {all} steps", done)),
                _ => step.note(line.trim_end_matches('.')),
            }
        }
    })?;
    said.map_or(Ok(()), |said| Err(MakeError { image: image.to_owned(), said }.into()))
}

/// The commands, with what they refer to.
fn script(system: &System) -> String {
    let names = |is_essential: bool| {
        let packages = system.packages.iter().filter(|package| package.is_essential == is_essential);
        packages.map(|package| package.name.as_str()).collect::<Vec<_>>().join(" ")
    };
    let values = [
        ("now", now().to_string()),
        ("release", system.kernel.name.trim_start_matches("linux-image-").to_owned()),
        ("essential", names(true)),
        ("packages", names(false)),
        ("mirror", seen_by_guest(&system.mirror)),
        ("suite", system.suite.to_owned()),
        ("proxies", seen_by_guest(&system.proxies)),
    ];
    assignments(&values) + SCRIPT
}

/// Lines that give a shell's variables these values.
fn assignments(values: &[(&str, String)]) -> String {
    values.iter().map(|(name, value)| format!("{name}={}\n", quoted(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Output, Stdio};

    fn sh(args: &[&str], script: &str) -> Output {
        let mut command = Command::new("sh");
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        child.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("written");
        child.wait_with_output().expect("its output")
    }

    #[test]
    fn a_shell_can_read_what_the_guest_does() {
        // Which is two scripts, one within the other.
        let (_, rest) = SCRIPT.split_once("install.sh <<'END'\n").expect("the inner one");
        let (inner, _) = rest.split_once("\nEND\n").expect("its end");
        for script in [SCRIPT, inner] {
            let output = sh(&["-n"], script);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        assert!(!sh(&["-n"], "if true; then").status.success());
    }

    #[test]
    fn values_are_what_the_shell_reads() {
        let values = [("mirror", "http://a.example/it's $HOME;".to_owned()), ("proxies", "one \"x\";\ntwo".to_owned())];
        let script = assignments(&values) + "printf '%s|%s' \"$mirror\" \"$proxies\"";
        assert_eq!(sh(&[], &script).stdout, b"http://a.example/it's $HOME;|one \"x\";\ntwo");
    }
}
