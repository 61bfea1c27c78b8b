//! `gnomon api` and `gnomon events`.

use super::control::say;
use super::script::printed;
use crate::api::call::{Caller, Method};
use crate::api::methods::schema;
use crate::api::serve::{is_unread, serve_input, serve_socket};
use crate::api::verbs::Subscribe;
use crate::control::journal::{Cause, Event, Happening};
use crate::host::words::shown;
use clap::Args;
use std::cell::RefCell;
use std::io::{Error, Write, stdout};
use std::path::PathBuf;

/// Serve requests of other programs about runs and VMs, as lines of JSON (see docs/api.md).
///
/// Requests come on standard input, replies go to standard output; or both on a socket.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ApiArgs {
    /// Serve clients at a socket, which is made for this user alone, until SIGTERM or SIGINT
    #[arg(long, value_name = "unix:PATH", value_parser = socket)]
    listen: Option<PathBuf>,
    /// Print the JSON schema of requests and replies
    #[arg(long, conflicts_with = "listen")]
    schema: bool,
}

fn socket(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix:").filter(|path| !path.is_empty());
    path.map(PathBuf::from).ok_or_else(|| "it is unix:PATH".into())
}

impl ApiArgs {
    /// Serves them.
    pub fn run(self) -> miette::Result<u8> {
        match self.listen {
            _ if self.schema => {
                say(&[serde_json::to_string_pretty(&schema()).unwrap_or_default()])?;
                Ok(0)
            }
            Some(path) => serve_socket(&path),
            None => serve_input().map(|()| 0),
        }
    }
}

/// Print what happens to runs and VMs, as it happens (see docs/control.md).
///
/// Begins with the past events of active runs. With a run, ends when the run has ended.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct EventsArgs {
    /// The run; by default all of them, also those that start later
    #[arg(value_name = "RUN")]
    name: Option<String>,
    /// Print a line of JSON for each event
    #[arg(long)]
    json: bool,
}

/// Prints events.
struct Printer {
    is_json: bool,
    /// The error of standard output.
    error: RefCell<Option<Error>>,
}

impl Caller<Event> for Printer {
    fn notify(&self, event: Event) -> bool {
        let line = if self.is_json { serde_json::to_string(&event).unwrap_or_default() } else { line(&event) };
        let mut out = stdout().lock();
        let written = writeln!(out, "{}", shown(&line)).and_then(|()| out.flush());
        written.map_err(|why| self.error.replace(Some(why))).is_ok()
    }

    fn is_cancelled(&self) -> bool {
        is_unread(&stdout())
    }
}

impl EventsArgs {
    /// Prints them.
    pub fn run(self) -> miette::Result<u8> {
        let printer = Printer { is_json: self.json, error: RefCell::default() };
        let followed = Subscribe { run: self.name }.carry_out(&printer);
        match printer.error.take() {
            Some(why) => printed(Err(why))?,
            // A reader that has closed the pipe is not an error.
            None if printer.is_cancelled() => {}
            None => _ = followed?,
        }
        Ok(0)
    }
}

/// The time of day of an event (UTC), its run, and the event in words.
fn line(event: &Event) -> String {
    let (ms, seconds) = (event.time_ms % 1000, event.time_ms / 1000 % 86400);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{ms:03}Z {}: {}", event.run, words(&event.what))
}

fn words(what: &Happening) -> String {
    match what {
        Happening::RunStarted { vms } => format!("the run has started, with {}", vms.join(", ")),
        Happening::RunBooted => "its machine has booted".into(),
        Happening::VmCreated { vm } => format!("VM {vm} is created"),
        Happening::VmStarting { vm } => format!("VM {vm} is starting"),
        Happening::VmArriving { vm } => format!("VM {vm} is arriving"),
        Happening::VmRunning { vm } => format!("VM {vm} is running"),
        Happening::VmPaused { vm } => format!("VM {vm} is paused"),
        Happening::VmResumed { vm } => format!("VM {vm} is resumed"),
        Happening::VmGivenAway { vm } => format!("VM {vm} is given away"),
        Happening::VmReset { vm } => format!("VM {vm} is reset"),
        Happening::VmEnding { vm } => format!("VM {vm} is ending"),
        Happening::VmEnded { vm, status, cause, message } => {
            let cause = match cause {
                Cause::PowerOff => "powered off",
                Cause::Requested => "stopped by request",
                Cause::SystemFailure => "system failure",
                Cause::Killed => "stopped by Gnomon",
                Cause::NotStarted => "not started",
            };
            let message = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
            format!("VM {vm} has ended, status {status}: {cause}{message}")
        }
        Happening::DeviceLost { vm, device } => format!("VM {vm} has lost its {device}"),
        Happening::Message { text } => text.clone(),
        Happening::RunEnded { status: Some(status) } => format!("the run has ended, status {status}"),
        Happening::RunEnded { status: None } => "the run was killed before it could say how it ended".into(),
        Happening::Lost { count } => format!("{count} events are missing here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_when_and_what() {
        let what = Happening::VmEnded {
            vm: "a".into(),
            status: 3,
            cause: Cause::Killed,
            message: Some("its guest did x".into()),
        };
        let event = Event { run: "work".into(), number: 1, time_ms: (86_400 * 9 + 3_723) * 1000 + 45, what };
        assert_eq!(line(&event), "01:02:03.045Z work: VM a has ended, status 3: stopped by Gnomon: its guest did x");
    }
}
