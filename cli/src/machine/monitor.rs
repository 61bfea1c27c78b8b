//! Errors of the host's files, as QEMU's monitor reports them (QMP, the event `BLOCK_IO_ERROR`).

use crate::host::socket::PrivateSocket;
use crate::host::words::option_value;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Result, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The request after which events are reported.
const BEGIN: &[u8] = b"{\"execute\": \"qmp_capabilities\"}\n";

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

/// A monitor that QEMU is to connect to.
#[derive(Debug)]
pub struct Monitor(PrivateSocket);

impl Monitor {
    /// Makes its socket.
    ///
    /// # Errors
    /// If the place for scratch files cannot be written.
    pub fn listen() -> Result<Self> {
        PrivateSocket::listen().map(Self)
    }

    /// QEMU's arguments.
    pub(crate) fn args(&self) -> [OsString; 4] {
        let mut chardev = OsString::from("socket,id=monitor,server=off,path=");
        chardev.push(option_value(self.0.path()));
        ["-chardev".into(), chardev, "-mon".into(), "chardev=monitor,mode=control".into()]
    }

    /// Passes each error on, once for each device and kind, until QEMU ends or `report` returns false.
    #[must_use]
    pub fn follow(self, report: impl FnMut(FileError) -> bool + Send + 'static) -> Follower {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let Ok(mut stream) = self.0.accept(|| over.load(Ordering::Relaxed)) else { return };
            // No other connection is accepted, and nothing is left of the socket.
            drop(self);
            if stream.write_all(BEGIN).is_ok() {
                read(BufReader::new(stream), report);
            }
        });
        Follower { is_over, thread: Some(thread) }
    }
}

/// The reader of a monitor. Dropping it waits until QEMU has ended, if QEMU has connected.
#[derive(Debug)]
pub struct Follower {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A panic of it has been reported.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn read(lines: impl BufRead, mut report: impl FnMut(FileError) -> bool) {
    let mut known = BTreeSet::new();
    for line in lines.lines().map_while(Result::ok) {
        let Ok(Line::Error { device: drive, operation, reason }) = serde_json::from_str(&line) else { continue };
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
