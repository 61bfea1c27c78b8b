//! Errors of the host's files, as QEMU's monitor reports them (QMP, the event `BLOCK_IO_ERROR`).

use serde::Deserialize;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

/// The request after which events are reported.
const BEGIN: &[u8] = b"{\"execute\": \"qmp_capabilities\"}\n";

/// Most bytes of a line, and most errors that are told.
const MOST_LINE: u64 = 64 << 10;
const MOST_ERRORS: usize = 256;

/// The reason of an error if the file system is full (ENOSPC). QEMU does not translate it.
const FULL: &str = "No space left on device";

/// A request of a guest's that failed because of a file of the host's.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileError {
    /// The name of the block device in QEMU.
    pub drive: String,
    /// The kind of the request.
    pub operation: Operation,
    /// Set if the file system is full.
    pub is_full: bool,
    /// The operating system's error.
    pub reason: String,
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// The file was to be read.
    Read,
    /// The file was to be written, or space in it to be freed.
    Write,
}

/// A line of QEMU's with an event. Other lines are not read.
#[derive(Deserialize)]
#[serde(tag = "event", content = "data")]
enum Line {
    #[serde(rename = "BLOCK_IO_ERROR")]
    Error { device: String, operation: Operation, reason: String },
}

/// The descriptor by which QEMU has its end of the monitor's socket.
pub(super) const DESCRIPTOR: i32 = 8;
/// QEMU's arguments for a monitor.
pub(super) const ARGS: [&str; 4] = ["-chardev", "socket,id=monitor,fd=8", "-mon", "chardev=monitor,mode=control"];

/// The reader of a monitor. Dropping it waits until QEMU has ended.
#[derive(Debug)]
pub struct Follower(Option<JoinHandle<()>>);

impl Follower {
    /// Passes each error on, once for each device and kind, until QEMU ends or `report` returns false. Returns QEMU's end of the socket as
    /// well, which must be closed here before this is dropped.
    ///
    /// # Errors
    /// If there are no sockets.
    pub fn start(report: impl FnMut(FileError) -> bool + Send + 'static) -> Result<(OwnedFd, Self)> {
        let (mut ours, qemu) = UnixStream::pair()?;
        let thread = std::thread::spawn(move || {
            if ours.write_all(BEGIN).is_ok() {
                read(BufReader::new(ours), report);
            }
        });
        Ok((qemu.into(), Self(Some(thread))))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // A panic of it has been reported.
        let _ = self.0.take().map(JoinHandle::join);
    }
}

fn read(mut lines: impl BufRead, mut report: impl FnMut(FileError) -> bool) {
    let mut known = BTreeSet::new();
    let mut line = Vec::new();
    // A longer line, or more errors, are not QEMU's: a guest may have taken it over.
    while known.len() < MOST_ERRORS
        && lines.by_ref().take(MOST_LINE).read_until(b'\n', &mut line).is_ok()
        && line.ends_with(b"\n")
    {
        let parsed = serde_json::from_slice(&line);
        line.clear();
        let Ok(Line::Error { device: drive, operation, reason }) = parsed else { continue };
        // The event's `nospace` is absent where errors are reported to the guest.
        let error = FileError { drive, operation, is_full: reason == FULL, reason };
        if known.insert(error.clone()) && !report(error) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_is_told_the_descriptor() {
        assert!(ARGS[1].ends_with(&format!("fd={DESCRIPTOR}")));
    }

    #[test]
    fn errors_are_reported_once() {
        let error = |device: &str, is_full: bool| {
            let reason = if is_full { FULL } else { "Input/output error" };
            serde_json::json!({
                "timestamp": { "seconds": 1, "microseconds": 2 },
                "event": "BLOCK_IO_ERROR",
                "data": {
                    "device": device, "node-name": "#block1", "qom-path": "/machine", "reason": reason, "operation": "write",
                    "action": "report",
                },
            })
        };
        let mut lines = vec![serde_json::json!({ "QMP": {} }), serde_json::json!({ "return": {} })];
        lines.push(serde_json::json!({ "event": "RESUME", "timestamp": { "seconds": 1, "microseconds": 2 } }));
        lines.extend([error("disk0", true), error("disk0", true), error("swap", true), error("disk0", false)]);
        let text: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let mut found = Vec::new();
        read(text.as_bytes(), |error| {
            found.push((error.drive, error.is_full));
            true
        });
        assert_eq!(found, [("disk0".to_owned(), true), ("swap".into(), true), ("disk0".into(), false)]);
    }
}
