//! The end of a run: exit status, last lines, counters.

use super::prepare::{Prepared, Versions};
use super::show::Show;
use crate::host::output::{Kind, OutputError};
use crate::host::tty;
use crate::machine::board::{HExtension, Seat};
use crate::machine::process::{Outcome, Stopped};
use crate::machine::qemu::QEMU;
use crate::run::console::{CANNOT_START, ExecDemux};
use abi::record::{Boot, EndReason, Stats, VmEnd};
use serde::Serialize;
use signal_hook::low_level::signal_name;
use std::path::Path;
use std::time::Duration;

/// A VM was stopped, failed, or never started.
pub const STATUS_VM: u8 = 3;
/// Gnomon or QEMU failed.
pub const STATUS_GNOMON: u8 = 4;

/// The exit status of a run with one VM that has ended in that way.
pub(super) const fn status_of(end: &VmEnd) -> u8 {
    if end.reason.is_wanted() { 0 } else { STATUS_VM }
}

/// The end of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunEnd {
    /// The exit status that tells of it.
    pub status: u8,
    /// The events, a line each.
    pub lines: Vec<String>,
    /// Set if the last lines of the consoles may help to understand the end.
    pub is_trouble: bool,
}

/// The `--stats` files.
pub const STATS: Kind = Kind { what: "a file of counters (--stats)", mark: b"{\n  \"versions\": {\n    \"gnomon\": " };

/// The content of a `--stats` file.
#[derive(Serialize)]
struct StatsFile<'a> {
    versions: &'a Versions,
    command_line: Vec<String>,
    qemu: String,
    seat: Seat,
    h: HExtension,
    harts: u32,
    boot: Option<&'a Boot>,
    stats: Option<&'a Stats>,
    ends: &'a [VmEnd],
    status: u8,
}

/// Judges how a run ended.
pub(super) fn judge(prepared: &Prepared, outcome: &Outcome, view: &Show, took: Duration) -> RunEnd {
    let mut end = RunEnd { status: 0, lines: Vec::new(), is_trouble: false };
    for VmEnd { vm, reason } in &outcome.ends {
        let how = match reason {
            EndReason::Poweroff => "powered off".to_owned(),
            EndReason::Requested => "was stopped by request".to_owned(),
            EndReason::SystemFailure => "ended with a system failure".to_owned(),
            EndReason::Killed { message } => format!("was stopped: {message}"),
            EndReason::NotStarted { message } => format!("could not be started: {message}"),
        };
        if !reason.is_wanted() {
            end.is_trouble = true;
            end.raise(STATUS_VM);
        }
        // Else Gnomon's own words on the console have said it.
        if !view.shows_consoles() {
            end.lines.push(format!("VM {vm} {how}"));
        }
    }
    if let Some(Stopped::Signal(signal)) = outcome.stopped {
        // The user's wish is no trouble, and nothing that did not happen for it is worth a word.
        end.lines.push(format!("ended by {}", signal_name(signal).unwrap_or("a signal")));
        end.status = tty::signal_status(signal);
        return end;
    }
    for (vm, status) in view.demux().into_iter().flat_map(ExecDemux::statuses) {
        let has_other_end = outcome.ends.iter().any(|end| end.vm == vm && !end.reason.is_wanted());
        match status {
            Some(0) => {}
            Some(status) => {
                end.lines.push(format!("the commands in VM {vm} ended with status {status}"));
                end.raise(u8::try_from(status).unwrap_or(u8::MAX));
            }
            None if has_other_end => {}
            None => end.trouble(STATUS_VM, format!("the commands in VM {vm} were interrupted")),
        }
    }
    for (vm, message) in view.panicked() {
        let what = match message.starts_with(CANNOT_START) {
            true => format!("VM {vm} {message}"),
            false => format!("the kernel of VM {vm} panicked: {message}"),
        };
        end.trouble(STATUS_VM, what);
    }
    if let Some(message) = &outcome.failed {
        end.trouble(STATUS_GNOMON, format!("Gnomon failed: {message}"));
    } else if !outcome.has_halted {
        let what = match outcome.stopped {
            Some(Stopped::Timeout) => format!("the time limit ended the run after {} s", took.as_secs()),
            Some(Stopped::Deaf) => "Gnomon did not respond and was stopped".into(),
            Some(Stopped::OutputClosed) => view.output_end(),
            Some(Stopped::Enough | Stopped::Signal(_)) => "the machine was stopped: no VM was running any more".into(),
            None => {
                let status = outcome.status.map_or_else(String::new, |status| format!(" ({status})"));
                let said = if outcome.stderr.is_empty() { "without a message" } else { outcome.stderr.as_str() };
                format!("{QEMU} ended unexpectedly{status}: {said}")
            }
        };
        let is_of_vms = matches!(outcome.stopped, Some(Stopped::Enough | Stopped::Timeout));
        let status = if is_of_vms { STATUS_VM } else { STATUS_GNOMON };
        end.trouble(status, what);
    }
    for vm in &prepared.vms {
        if outcome.has_halted && !outcome.ends.iter().any(|end| end.vm == *vm) {
            end.trouble(STATUS_GNOMON, format!("Gnomon did not report how VM {vm} ended"));
        }
    }
    end
}

impl RunEnd {
    fn raise(&mut self, status: u8) {
        // Gnomon's own failure outweighs what went wrong in a VM; else the first counts.
        if self.status == 0 || status == STATUS_GNOMON {
            self.status = status;
        }
    }

    fn trouble(&mut self, status: u8, line: String) {
        self.is_trouble = true;
        self.lines.push(line);
        self.raise(status);
    }

    /// The lines to show at the end.
    pub(super) fn details(&self, view: &Show) -> Vec<String> {
        let mut lines = Vec::new();
        if self.is_trouble && view.unshown_tail().next().is_some() {
            lines.push("gnomon: the last lines of the console were:".into());
            lines.extend(view.unshown_tail().map(|line| format!("  {line}")));
        }
        lines.extend(self.lines.iter().map(|line| format!("gnomon: {line}")));
        lines
    }

    pub(super) fn write_stats(&self, path: &Path, prepared: &Prepared, outcome: &Outcome) -> Result<(), OutputError> {
        let file = StatsFile {
            versions: &prepared.versions,
            command_line: std::env::args().collect(),
            qemu: prepared.machine.command_line(),
            seat: prepared.seat,
            h: prepared.machine.h,
            harts: prepared.machine.harts,
            boot: outcome.boot.as_ref(),
            stats: outcome.stats.as_ref(),
            ends: &outcome.ends,
            status: self.status,
        };
        let mut text = serde_json::to_vec_pretty(&file).unwrap_or_default();
        text.push(b'\n');
        STATS.write(path, &text)
    }
}
