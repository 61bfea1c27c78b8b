//! Runs in the background, their logs and their events.

use crate::api::call::{Caller, Method, Never};
use crate::api::failure::ApiError;
use crate::api::start::{StartEnd, Starting};
use crate::api::wire::Lines;
use crate::control::journal::Event;
use crate::control::kept::Kept;
use crate::control::logs::{self, Until};
use crate::control::{ControlError, watch};
use crate::host::place::IoError;
use crate::host::tty::signal_status;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Messages of a start that wait for the client.
const MOST_MESSAGES: usize = 64;
/// The time for the last messages of a run that has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The most bytes of a log in one notification.
const MOST_TEXT: usize = 8 << 10;

/// Starts a run in the background, and replies when its VMs have started. Can be cancelled until its machine has booted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The arguments, as those of `gnomon run`; `-d` is implied. Paths are relative to the directory in which `gnomon api` was started.
    #[serde(default)]
    pub args: Vec<String>,
}

/// A message of a run that is being started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Messages {
    /// The message, one line.
    pub text: String,
}

/// A run that was started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Started {
    /// Its name.
    pub run: String,
    /// Its exit status, if it ended before all of its VMs had started; otherwise null.
    pub status: Option<u8>,
}

/// News of a start, from its threads.
enum News {
    Message(String),
    Over(Result<StartEnd, IoError>),
    Silence,
}

/// Passes on lines until the stream ends. They are read in any case, so that the run does not wait for a reader.
fn pass_lines(mut stream: impl Read, news: &SyncSender<News>) {
    let (mut lines, mut buffer) = (Lines::default(), [0; 4096]);
    while let Ok(count) = stream.read(&mut buffer)
        && count > 0
    {
        lines.push(&buffer[..count], |line| {
            if let Some(line) = line {
                let _ = news.send(News::Message(String::from_utf8_lossy(line).into_owned()));
            }
        });
    }
    let _ = news.send(News::Silence);
}

/// The status of a process, as shells have it.
#[must_use]
pub fn status_of(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, signal) => signal.map_or(u8::MAX, signal_status),
    }
}

impl Method for Run {
    const NAME: &'static str = "run";
    const IS_LONG: bool = true;
    type Reply = Started;
    type Notice = Messages;

    fn carry_out(self, caller: &dyn Caller<Messages>) -> miette::Result<Started> {
        start(self.args, None, caller)
    }
}

/// Starts a run in the background, by the arguments of `gnomon run`.
pub(super) fn start(args: Vec<String>, dir: Option<&Path>, caller: &dyn Caller<Messages>) -> miette::Result<Started> {
    let mut words: Vec<OsString> = vec!["run".into()];
    if !args.iter().any(|word| word == "-d" || word == "--detach") {
        words.push("-d".into());
    }
    words.extend(args.into_iter().map(OsString::from));
    let mut starting = Starting::spawn(words, dir, Stdio::piped())?;
    let (sender, news) = sync_channel(MOST_MESSAGES);
    if let Some(stderr) = starting.child().stderr.take() {
        let sender = sender.clone();
        thread::spawn(move || pass_lines(stderr, &sender));
    }
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_cancelled);
    thread::spawn(move || {
        let _ = sender.send(News::Over(starting.finish(&|| flag.load(Ordering::Relaxed))));
        // The process must be waited for when it ends, or an entry of it stays.
        let _ = starting.child().wait();
    });
    let (mut last, mut end) = (String::new(), None);
    loop {
        let next = match end {
            None => {
                is_cancelled.store(caller.is_cancelled(), Ordering::Relaxed);
                match news.recv_timeout(logs::LOOK) {
                    Err(RecvTimeoutError::Timeout) => continue,
                    next => next.ok(),
                }
            }
            // Only one that has ended has last words.
            Some(Ok(StartEnd { status: None, .. })) => None,
            Some(_) => news.recv_timeout(LAST_WORDS).ok(),
        };
        match next {
            Some(News::Message(text)) => {
                last.clone_from(&text);
                let _ = caller.notify(Messages { text });
            }
            Some(News::Over(over)) => end = Some(over),
            Some(News::Silence) if end.is_none() => {}
            Some(News::Silence) | None => break,
        }
    }
    let end = end.ok_or_else(|| miette::miette!(help = "try again", "the start was interrupted"))??;
    let status = end.status.map(status_of);
    match end.run {
        Some(run) => Ok(Started { run, status }),
        None if is_cancelled.load(Ordering::Relaxed) => {
            Err(ControlError::Cancelled("the start of a run".into()).into())
        }
        None => Err(ApiError::NotStarted { status: status.unwrap_or(u8::MAX), last }.into()),
    }
}

/// Waits until a VM, or a whole run in the background, has ended. Can be cancelled.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// The run; optional if there is only one, or only one has that VM.
    pub run: Option<String>,
    /// The VM; by default all VMs of the run.
    pub vm: Option<String>,
}

/// A VM or a run that has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Waited {
    /// The run.
    pub run: String,
    /// The VM, if one was waited for.
    pub vm: Option<String>,
    /// The exit status: that of the run, or of a run with this VM alone; null if the run was killed.
    pub status: Option<u8>,
}

impl Method for Wait {
    const NAME: &'static str = "wait";
    const IS_LONG: bool = true;
    type Reply = Waited;
    type Notice = Never;

    fn carry_out(self, caller: &dyn Caller<Never>) -> miette::Result<Waited> {
        let kept = Kept::find(self.run.as_deref(), self.vm.as_deref())?;
        let status = logs::wait(&kept, self.vm.as_deref(), &|| caller.is_cancelled())?;
        Ok(Waited { run: kept.name, vm: self.vm, status })
    }
}

/// Sends the log of a VM of a run in the background, in notifications. Can be cancelled.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Logs {
    /// The run; optional if there is only one, or only one has that VM.
    pub run: Option<String>,
    /// The VM; optional if the run has only one.
    pub vm: Option<String>,
    /// Goes on until the VM has ended.
    #[serde(default)]
    pub follow: bool,
    /// Sends the messages of the run itself, in place of a VM's log.
    #[serde(default)]
    pub messages: bool,
}

/// A part of a log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct LogText {
    /// The text. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: String,
}

/// A log that was sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Log {
    /// The run.
    pub run: String,
    /// The VM, if it was a VM's log.
    pub vm: Option<String>,
    /// The length of the log, in bytes.
    pub bytes: u64,
}

/// Writes text as notifications.
struct Texts<'a> {
    caller: &'a dyn Caller<LogText>,
    /// The beginning of a character that is not complete.
    rest: Vec<u8>,
    bytes: u64,
}

impl Texts<'_> {
    fn send(&mut self, count: usize) -> io::Result<()> {
        let bytes: Vec<u8> = self.rest.drain(..count).collect();
        if bytes.is_empty() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let is_read = self.caller.notify(LogText { text }) && !self.caller.is_cancelled();
        if is_read { Ok(()) } else { Err(ErrorKind::BrokenPipe.into()) }
    }
}

/// Returns the length of the bytes without a character at their end that is not complete.
fn whole(bytes: &[u8]) -> usize {
    let size = |lead: u8| match lead {
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
        _ => 1,
    };
    let last = (1..=bytes.len().min(3)).find(|back| bytes[bytes.len() - back] >= 0xc0);
    match last {
        Some(back) if size(bytes[bytes.len() - back]) > back => bytes.len() - back,
        _ => bytes.len(),
    }
}

impl Write for Texts<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(MOST_TEXT)];
        self.rest.extend_from_slice(bytes);
        self.bytes += bytes.len() as u64;
        self.send(whole(&self.rest))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Method for Logs {
    const NAME: &'static str = "logs";
    const IS_LONG: bool = true;
    type Reply = Log;
    type Notice = LogText;

    fn carry_out(self, caller: &dyn Caller<LogText>) -> miette::Result<Log> {
        if self.messages && self.vm.is_some() {
            let why = "either `vm` or `messages`".into();
            Err(ApiError::BadParams { method: Self::NAME, why })?;
        }
        let kept = Kept::find(self.run.as_deref(), self.vm.as_deref())?;
        let vm = if self.messages { None } else { Some(kept.vm(self.vm.as_deref())?) };
        let until = if self.follow { Until::Ended } else { Until::Now };
        let mut texts = Texts { caller, rest: Vec::new(), bytes: 0 };
        logs::copy(&kept, vm.as_deref(), (until, &|| caller.is_cancelled()), &mut texts)?;
        let left = texts.rest.len();
        // A reader that is gone does not miss it.
        let _ = texts.send(left);
        let bytes = texts.bytes;
        if caller.is_cancelled() {
            Err(ControlError::Cancelled("the copy of a log".into()))?;
        }
        Ok(Log { run: kept.name, vm, bytes })
    }
}

/// Sends the events of a run from its start on, in notifications, and replies when it has ended. Without a run, sends those of all runs,
/// also of later ones. Can be cancelled.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Subscribe {
    /// The run; by default all of them.
    pub run: Option<String>,
}

/// The end of a subscription.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Subscribed {
    /// The run that has ended.
    pub run: Option<String>,
}

impl Method for Subscribe {
    const NAME: &'static str = "subscribe";
    const IS_LONG: bool = true;
    type Reply = Subscribed;
    type Notice = Event;

    fn carry_out(self, caller: &dyn Caller<Event>) -> miette::Result<Subscribed> {
        let is_cancelled = || caller.is_cancelled();
        watch::watch(self.run.as_deref(), &is_cancelled, &mut |event| caller.notify(event))?;
        if caller.is_cancelled() {
            Err(ControlError::Cancelled("the subscription".into()))?;
        }
        Ok(Subscribed { run: self.run })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::call::Command;
    use std::cell::RefCell;

    #[test]
    fn characters_are_not_torn_by_pieces() {
        let text = "aäß€𐍈b\u{fffd}";
        for size in 1..8 {
            let found = RefCell::new(String::new());
            let caller = Command::new(|part: LogText| {
                found.borrow_mut().push_str(&part.text);
                true
            });
            let mut texts = Texts { caller: &caller, rest: Vec::new(), bytes: 0 };
            text.as_bytes().chunks(size).for_each(|piece| texts.write_all(piece).expect("it is read"));
            let left = texts.rest.len();
            texts.send(left).expect("it is read");
            assert_eq!(*found.borrow(), text, "in pieces of {size}");
        }
        assert_eq!(whole(b"\xff"), 0, "it waits for more");
        assert_eq!(whole(b"\x80\x80\x80\x80\x80"), 5, "and not for ever");
    }
}
