//! Errands: commands for the shell of a guest that Gnomon starts for itself, with files as its disks.

use crate::machine::process::{Machine, Next};
use crate::machine::stream::{Part, Piece};
use crate::run::console::{ExecDemux, ExecEvent, Tail};
use crate::run::{self, RunSpec};
use crate::vm::file::VmFile;
use std::time::{Duration, Instant};

/// The guest says something more often than that, or has come to its end.
const SILENCE: Duration = Duration::from_secs(600);
/// The number of the guest's last lines that are reported if it fails.
const LAST: usize = 5;

/// Runs the commands in such a VM, which has a name. `said` is told each line that the guest prints. Returns the last lines if a command
/// has failed, or the VM has not come to its end.
///
/// # Errors
/// Whatever kept the VM from starting.
pub fn run(vm: VmFile, commands: String, mut said: impl FnMut(&str)) -> miette::Result<Option<String>> {
    let spec = RunSpec { exec: Some(commands), ..RunSpec::of(vec![vm]) };
    let prepared = run::prepare(&spec, None)?;
    let mut demux = ExecDemux::new(prepared.vms.iter().map(String::as_str));
    let mut tail = Tail::default();
    let (machine, _) = Machine::start(&prepared.machine)?;
    let outcome = machine.run(Some(Instant::now() + SILENCE), |piece| {
        let Piece::Text(bytes) = piece else { return Next::Continue };
        for event in demux.push(bytes) {
            let (ExecEvent::Output(line) | ExecEvent::Other(Part { bytes: line, .. })) = event;
            let line = line.strip_prefix(b"\n").unwrap_or(&line);
            let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line)).into_owned();
            said(&text);
            tail.push(text.as_bytes());
        }
        Next::Until(Instant::now() + SILENCE)
    })?;
    if demux.statuses().all(|(_, status)| status == Some(0)) {
        return Ok(None);
    }
    let lines: Vec<_> = tail.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(LAST)..];
    let last: Vec<&str> = last.iter().map(AsRef::as_ref).chain([outcome.stderr.as_str()]).collect();
    Ok(Some(last.join("\n").trim().to_owned()))
}
