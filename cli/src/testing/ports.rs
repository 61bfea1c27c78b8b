//! The partner on the host that uses the first VM's two ports.
//!
//! By `there` the guest is sent a file, and hung up on. What it sends back by `back` is compared, and answered with `same`, or what was wrong
//! with it. Then it is called by `there` once more, hears `again`, and is hung up on. A guest that keeps nothing of what it hears is sent
//! the file again and again.

use crate::control::bridge::Bridge;
use crate::control::runs::Runs;
use crate::host::place::IoError;
use miette::IntoDiagnostic;
use sha2::{Digest, Sha256};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use tempfile::TempDir;

/// The ports.
const NAMES: [&str; 2] = ["there", "back"];
/// Bytes of the file: no whole number of whatever it is cut into.
const BYTES: usize = (2 << 20) + 77;

/// The partner and its connection, which live as long as this.
pub struct Partner {
    _bridge: Bridge,
    machine: PathBuf,
    /// A short path: that of a socket has not much room.
    _dir: TempDir,
}

impl Partner {
    /// Makes the sockets of a run with these VMs, and begins to speak: by `there` without end, if that is what is wanted.
    ///
    /// # Errors
    /// If there can be no sockets.
    pub fn start(vms: &[String], is_endless: bool) -> miette::Result<Self> {
        let at = std::env::temp_dir();
        let dir = tempfile::tempdir_in(&at).map_err(IoError::at("make a directory in", &at))?;
        let runs = Runs::at(dir.path().join("r"))?;
        let mut claim = runs.claim(Some("t"), "t")?;
        let first = vms.first().cloned().unwrap_or_default();
        runs.open_ports(&mut claim, &[(first.clone(), Self::names())])?;
        let machine = claim.machine_path().to_owned();
        let bridge = Bridge::start(claim);
        let [there, back] = NAMES.map(|name| runs.port_path("t", &first, name));
        let (call, hear) = (UnixStream::connect(&there), UnixStream::connect(back));
        let (call, hear) = (call.into_diagnostic()?, hear.into_diagnostic()?);
        // If the machine ends before, its test will tell.
        thread::spawn(move || if is_endless { say_always(call, &content()) } else { say(call, &content()) });
        thread::spawn(move || hear_back(hear, &there));
        Ok(Self { _bridge: bridge, machine, _dir: dir })
    }

    /// The names of the first VM's ports.
    #[must_use]
    pub fn names() -> Vec<String> {
        NAMES.map(String::from).to_vec()
    }

    /// Returns the path of the socket that QEMU is to connect to.
    #[must_use]
    pub fn machine_path(&self) -> &Path {
        &self.machine
    }
}

fn content() -> Vec<u8> {
    let blocks = (0..BYTES.div_ceil(32) as u64).map(|block| Sha256::digest((block + 1).to_le_bytes()));
    let mut content: Vec<u8> = blocks.flatten().collect();
    content.truncate(BYTES);
    content
}

/// Says that, and hangs up as soon as the guest has all of it.
fn say(mut call: UnixStream, what: &[u8]) -> io::Result<()> {
    call.write_all(what)?;
    call.shutdown(Shutdown::Write)?;
    call.read_to_end(&mut Vec::new()).map(drop)
}

/// Writes that until the peer closes the connection.
fn say_always(mut call: UnixStream, what: &[u8]) -> io::Result<()> {
    loop {
        call.write_all(what)?;
    }
}

fn hear_back(mut hear: UnixStream, there: &Path) -> io::Result<()> {
    let mut got = vec![0; BYTES];
    hear.read_exact(&mut got)?;
    hear.write_all(if got == content() { b"same\n" } else { b"another one\n" })?;
    say(UnixStream::connect(there)?, b"again\n")?;
    // More output than that is read, too.
    io::copy(&mut hear, &mut io::sink()).map(drop)
}
