//! Runs QEMU: its console goes through pipes, its records are gathered.

use crate::host::output::OutputError;
use crate::host::place::IoError;
use crate::host::processors;
use crate::host::sandbox::{self, SandboxError};
use crate::machine::confine;
use crate::machine::group::{self, Group};
use crate::machine::monitor::{self, Follower};
use crate::machine::passt::UplinkError;
use crate::machine::qemu::{self, MachineSpec, QEMU};
use crate::machine::relay::{self, Relay};
use crate::machine::said::last_messages;
use crate::machine::scratch::Scratch;
use crate::machine::servers::{ServerError, Servers};
use crate::machine::share;
use crate::machine::stream::{Piece, RecordFilter, Trouble};
use abi::record::{Boot, Record, Stats, VmEnd};
use command_fds::{CommandFdExt, FdMapping, FdMappingCollision};
use miette::Diagnostic;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Chunks of console output that wait to be handled, and most bytes of each. While there are so many no more is read, and then the machine
/// waits: QEMU's UART sends nothing into a full pipe.
const CHUNKS: usize = 8;
const CHUNK: usize = 64 << 10;

/// The time limit for QEMU to exit after Gnomon's last record.
const GRACE: Duration = Duration::from_secs(5);

/// The reason why a machine cannot be run.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum MachineError {
    /// QEMU could not be started, or its pipes broke.
    #[error("cannot run {QEMU}: {0}")]
    #[diagnostic(help("see that {QEMU} works by itself: {QEMU} --version"))]
    Qemu(#[from] std::io::Error),
    /// The server of a share.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Server(#[from] ServerError),
    /// QEMU cannot be confined.
    #[error("cannot run {QEMU} in a sandbox: {0}")]
    #[diagnostic(transparent)]
    Sandbox(#[from] SandboxError),
    /// There is no directory or file for QEMU to write to.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Scratch(#[from] IoError),
    /// The meter's report could not be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Report(#[from] OutputError),
    /// A VM could not be connected with the world.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Uplink(#[from] UplinkError),
}

/// A running machine.
#[derive(Debug)]
pub struct Machine {
    child: Child,
    /// The process group of a program that is a script and may have children.
    group: Option<Group>,
    events: Receiver<Event>,
    /// One for each chunk of output that was read and is not handled.
    chunks: Receiver<()>,
    input: Input,
    stderr: Option<JoinHandle<String>>,
    scratch: Option<Scratch>,
    _follower: Option<Follower>,
    /// Ended after QEMU, which would report their end otherwise.
    _servers: Servers,
    _relay: Option<Relay>,
}

/// The way to a machine's console. Can be cloned and used from any thread.
#[derive(Clone, Debug)]
pub struct Input(Arc<Mutex<ChildStdin>>);

#[derive(Debug)]
enum Event {
    /// A chunk of console output.
    Output(Vec<Piece>),
    Piece(Piece),
    End,
    Stop(Stopped),
}

/// Has a machine stopped from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Sender<Event>);

/// The reason why a machine was stopped from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// The machine has exceeded the time limit.
    Timeout,
    /// The observer had seen enough.
    Enough,
    /// The machine did not react to the user's request to end it.
    Deaf,
    /// Its output could not be passed on.
    OutputClosed,
    /// This program got a signal that ends it: its number.
    Signal(i32),
}

/// The next action after a piece of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Continue.
    Continue,
    /// Stop the machine now.
    Stop(Stopped),
    /// Stop the machine if it has not ended by itself at this time, and nothing else is said until then.
    StopAt(Instant, Stopped),
    /// Continue, without the time limit set before.
    Revoke,
    /// Continue; this time replaces the deadline.
    Until(Instant),
}

/// The output of a machine, and how it ended.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Gnomon's first record.
    pub boot: Option<Boot>,
    /// The last counters.
    pub stats: Option<Stats>,
    /// The VMs that have ended, in that order.
    pub ends: Vec<VmEnd>,
    /// Set if Gnomon has reported that it is done.
    pub has_halted: bool,
    /// Gnomon's own failure.
    pub failed: Option<String>,
    /// The reason why the machine was stopped from outside, if it was.
    pub stopped: Option<Stopped>,
    /// QEMU's exit status.
    pub status: Option<ExitStatus>,
    /// QEMU's standard error.
    pub stderr: String,
    /// Processor time that QEMU took, of all its threads.
    pub cpu: Duration,
}

impl Input {
    /// Types.
    ///
    /// # Errors
    /// If the machine is gone.
    pub fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pipe.write_all(bytes)?;
        pipe.flush()
    }
}

impl Stopper {
    /// Stops the machine.
    pub fn stop(&self, why: Stopped) {
        // A machine that is gone needs no stopping.
        let _ = self.0.send(Event::Stop(why));
    }
}

impl Machine {
    /// Starts QEMU.
    ///
    /// # Errors
    /// [`MachineError`].
    pub fn start(spec: &MachineSpec) -> Result<(Self, Stopper), MachineError> {
        if spec.sandbox {
            sandbox::check()?;
        }
        let (mut servers, sockets) = Servers::start(&spec.shares, spec.sandbox)?;
        let control = spec.control.as_ref().map(UnixStream::connect).transpose()?;
        let (scratch, spec) = Scratch::of(spec)?;
        confine::make_logs(&spec)?;
        let (sender, events) = channel();
        let (places, chunks) = sync_channel(CHUNKS);
        let reporter = sender.clone();
        // Without a receiver of events, the machine is about to end.
        let report = move |end| _ = reporter.send(Event::Piece(Piece::Trouble(Trouble::Uplink(end))));
        let relay = spec.net.as_ref().map(|net| Relay::start(net, report)).transpose()?;
        let reporter = sender.clone();
        let report = move |error| reporter.send(Event::Piece(Piece::Trouble(Trouble::File(error)))).is_ok();
        // Without files there are no errors of files.
        let has_files = spec.swap.is_some() || !spec.disks.is_empty();
        let follower = has_files.then(|| Follower::start(report)).transpose()?;
        let shares = sockets.into_iter().enumerate().map(|(number, socket)| (socket, share::descriptor(number)));
        let (monitor, follower) = follower.unzip();
        let (card, relay) = relay.unzip();
        let control = control.map(|socket| (OwnedFd::from(socket), qemu::CONTROL));
        let others = monitor.map(|socket| (socket, monitor::DESCRIPTOR)).into_iter();
        let others = others.chain(card.map(|socket| (socket, relay::DESCRIPTOR))).chain(control);
        let mappings = shares.chain(others).map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
        let mappings: Vec<_> = mappings.collect();
        let kept = mappings.iter().map(|mapping| mapping.child_fd);
        let mut command = confine::command(&spec, scratch.as_ref().map(Scratch::path), kept);
        command.args(spec.args());
        command.args(follower.iter().flat_map(|_| monitor::ARGS)).args(relay.iter().flat_map(|_| relay::ARGS));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.fd_mappings(mappings).map_err(|_: FdMappingCollision| std::io::Error::from(ErrorKind::Other))?;
        let is_script = group::is_script(&qemu::program());
        if is_script {
            command.process_group(0);
        }
        let child = command.spawn();
        // QEMU's ends of the sockets are QEMU's alone, also if there is no QEMU: their readers here end with it.
        drop(command);
        let mut child = child?;
        let group = is_script.then(|| Group::of(&child)).transpose()?;
        let gone = || MachineError::Qemu(std::io::Error::from(ErrorKind::BrokenPipe));
        let stdout = child.stdout.take().ok_or_else(gone)?;
        let stderr = child.stderr.take().ok_or_else(gone)?;
        let input = Input(Arc::new(Mutex::new(child.stdin.take().ok_or_else(gone)?)));
        let stopper = Stopper(sender.clone());
        let reporter = sender.clone();
        // If nothing runs any more, there is nothing to be told.
        servers.watch(move |lost| _ = reporter.send(Event::Piece(Piece::Trouble(Trouble::Share(lost)))));
        std::thread::spawn(move || read_console(stdout, &sender, &places));
        let stderr = Some(std::thread::spawn(move || last_messages(stderr)));
        let machine = Self {
            child,
            group,
            events,
            chunks,
            input,
            stderr,
            scratch,
            _follower: follower,
            _relay: relay,
            _servers: servers,
        };
        Ok((machine, stopper))
    }

    /// The way to its console.
    #[must_use]
    pub fn input(&self) -> Input {
        self.input.clone()
    }

    /// The number of QEMU's process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Runs it to its end. `on_piece` sees all output, records included.
    ///
    /// # Errors
    /// [`MachineError`] if QEMU cannot be waited for.
    pub fn run(
        mut self,
        deadline: Option<Instant>,
        mut on_piece: impl FnMut(&Piece) -> Next,
    ) -> Result<Outcome, MachineError> {
        let mut outcome = Outcome::default();
        let mut deadline = deadline.map(|at| (at, Stopped::Timeout));
        let mut wish = None;
        let mut pieces = VecDeque::new();
        loop {
            let event = match deadline.into_iter().chain(wish).min_by_key(|(at, _)| *at) {
                _ if !pieces.is_empty() => pieces.pop_front().map_or(Event::End, Event::Piece),
                None => self.events.recv().unwrap_or(Event::End),
                // First, since a guest may print without end.
                Some((at, why)) if at <= Instant::now() => Event::Stop(why),
                Some((at, why)) => match self.events.recv_timeout(at.saturating_duration_since(Instant::now())) {
                    Ok(event) => event,
                    Err(RecvTimeoutError::Timeout) => Event::Stop(why),
                    Err(RecvTimeoutError::Disconnected) => Event::End,
                },
            };
            let next = match event {
                Event::Output(chunk) => {
                    pieces.extend(chunk);
                    let _ = self.chunks.try_recv();
                    continue;
                }
                Event::Piece(piece) => {
                    if let Piece::Record(record) = &piece {
                        outcome.note(record);
                    }
                    on_piece(&piece)
                }
                Event::Stop(why) => Next::Stop(why),
                Event::End => break,
            };
            let has_ended = outcome.has_halted || outcome.failed.is_some();
            match next {
                Next::Continue if has_ended && outcome.stopped.is_none() => {
                    let soon = Instant::now() + GRACE;
                    deadline = Some(deadline.map_or((soon, Stopped::Enough), |(at, why)| (at.min(soon), why)));
                }
                Next::Continue => {}
                Next::StopAt(at, why) => wish = Some((at, why)),
                Next::Revoke => wish = None,
                Next::Until(at) => deadline = Some((at, Stopped::Timeout)),
                Next::Stop(why) => {
                    // Gnomon's last word is said: stopping QEMU then is no event of its own.
                    if !has_ended {
                        outcome.stopped = Some(why);
                    }
                    break;
                }
            }
        }
        // It may have ended by itself; killing it is for when it has not.
        if outcome.stopped.is_some() || outcome.has_halted || outcome.failed.is_some() {
            self.wait_or_kill(if outcome.stopped.is_some() { Duration::ZERO } else { GRACE })?;
        }
        outcome.cpu = processors::wait(&self.child)?;
        self.group.take().into_iter().for_each(Group::end);
        outcome.status = Some(self.child.wait()?);
        outcome.stderr = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        self.scratch.as_ref().map_or(Ok(()), Scratch::publish)?;
        Ok(outcome)
    }

    fn wait_or_kill(&mut self, grace: Duration) -> std::io::Result<()> {
        let end = Instant::now() + grace;
        while !processors::has_ended(&self.child)? {
            if Instant::now() >= end {
                return processors::end_with_children(&self.child);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // One that was waited for has no number any more. It may be a script that has started QEMU.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = processors::end_with_children(&self.child);
            self.group.take().into_iter().for_each(Group::end);
            let _ = self.child.wait();
        }
    }
}

impl Outcome {
    fn note(&mut self, record: &Record) {
        match record {
            Record::Boot(boot) => self.boot = Some(boot.clone()),
            Record::VmEnd(end) => self.ends.push(end.clone()),
            Record::Stats(stats) => self.stats = Some(stats.clone()),
            Record::Halt => self.has_halted = true,
            Record::Failed { message } => self.failed = Some(message.clone()),
        }
    }
}

/// Reads the console to its end. `places` has room for the chunks that may wait.
fn read_console(mut pipe: impl Read, events: &Sender<Event>, places: &SyncSender<()>) {
    let mut filter = RecordFilter::default();
    let mut buffer = vec![0; CHUNK];
    loop {
        // Without a receiver the machine is about to end.
        if places.send(()).is_err() {
            return;
        }
        let pieces = match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => filter.push(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => Vec::new(),
            Err(_) => break,
        };
        if events.send(Event::Output(pieces)).is_err() {
            return;
        }
    }
    if let Some(piece) = filter.finish() {
        let _ = events.send(Event::Piece(piece));
    }
    let _ = events.send(Event::End);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A console that prints without end, and counts what was read.
    struct Endless(Arc<AtomicUsize>);

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            buffer.fill(b'x');
            self.0.fetch_add(buffer.len(), Ordering::SeqCst);
            Ok(buffer.len())
        }
    }

    #[test]
    fn no_more_is_read_than_is_handled() {
        let read = Arc::new(AtomicUsize::new(0));
        let (sender, events) = channel();
        let (places, chunks) = sync_channel(CHUNKS);
        let console = Endless(Arc::clone(&read));
        let thread = std::thread::spawn(move || read_console(console, &sender, &places));
        for handled in 0..100 {
            let Ok(Event::Output(pieces)) = events.recv() else { panic!("it has no end") };
            assert_eq!(pieces, [Piece::Text(vec![b'x'; CHUNK])]);
            let most = (handled + CHUNKS) * CHUNK;
            assert!(
                read.load(Ordering::SeqCst) <= most,
                "{} bytes, {handled} chunks handled",
                read.load(Ordering::SeqCst)
            );
            chunks.recv().expect("its place");
        }
        drop(chunks);
        thread.join().expect("it ends without a receiver");
    }
}
