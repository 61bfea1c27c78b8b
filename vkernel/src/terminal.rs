//! The VM's terminal: line editing, signals by keys, and the group of processes in the foreground.

use crate::errno::{Errno, Result};
use crate::fs::{IN, Kind, OUT, Ready, Status, Stream, device};
use crate::sync::{Mutex, Once};
use crate::task::signal::{self, Info, number};
use crate::task::wait::WaitQueue;
use crate::task::{Process, Task};
use crate::{link, machine};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Waker;
use linux_raw_sys::{general as linux, ioctl};

/// Bytes of input that wait at most.
const MOST_INPUT: usize = 4096;

/// Settings, as `tcgetattr` has them.
#[derive(Clone, Copy, Debug)]
struct Settings {
    input: u32,
    output: u32,
    control: u32,
    local: u32,
    line: u8,
    keys: [u8; linux::NCCS as usize],
}

impl Settings {
    const DEFAULT: Self = Self {
        input: linux::ICRNL | linux::IXON,
        output: linux::OPOST | linux::ONLCR,
        control: linux::B38400 | linux::CS8 | linux::CREAD | linux::HUPCL,
        local: linux::ISIG
            | linux::ICANON
            | linux::ECHO
            | linux::ECHOE
            | linux::ECHOK
            | linux::ECHOCTL
            | linux::ECHOKE
            | linux::IEXTEN,
        line: 0,
        // INTR, QUIT, ERASE, KILL, EOF, TIME, MIN, SWTC, START, STOP, SUSP, EOL, REPRINT, DISCARD, WERASE, LNEXT, EOL2.
        keys: [3, 28, 127, 21, 4, 0, 1, 0, 17, 19, 26, 0, 18, 15, 23, 22, 0, 0, 0],
    };

    fn is_local(&self, flag: u32) -> bool {
        self.local & flag != 0
    }

    /// `struct termios`, or `struct termios2` with its speeds.
    fn encode(&self) -> [u8; 44] {
        let mut bytes = [0; 44];
        for (n, word) in [self.input, self.output, self.control, self.local].iter().enumerate() {
            bytes[4 * n..4 * n + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[16] = self.line;
        bytes[17..36].copy_from_slice(&self.keys);
        bytes[36..40].copy_from_slice(&38400u32.to_le_bytes());
        bytes[40..44].copy_from_slice(&38400u32.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; 36]) -> Self {
        let word = |n: usize| u32::from_le_bytes([bytes[4 * n], bytes[4 * n + 1], bytes[4 * n + 2], bytes[4 * n + 3]]);
        let mut keys = [0; linux::NCCS as usize];
        keys.copy_from_slice(&bytes[17..36]);
        Self { input: word(0), output: word(1), control: word(2), local: word(3), line: bytes[16], keys }
    }
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    /// Input that can be read.
    ready: VecDeque<u8>,
    /// Ends of lines in `ready`, each as the number of bytes up to it.
    lines: VecDeque<usize>,
    /// The line that is being edited.
    edited: Vec<u8>,
    /// Rows, columns.
    size: (u16, u16),
    /// The group in the foreground, and the session; 0 is none.
    foreground: u32,
    session: u32,
}

/// A terminal.
#[derive(Debug)]
pub struct Terminal {
    inner: Mutex<Inner>,
    changed: WaitQueue,
}

static TERMINAL: Once<Arc<Terminal>> = Once::new();

fn the_terminal() -> &'static Arc<Terminal> {
    TERMINAL.call_once(make)
}

fn make() -> Arc<Terminal> {
    let inner = Inner {
        settings: Settings::DEFAULT,
        ready: VecDeque::new(),
        lines: VecDeque::new(),
        edited: Vec::new(),
        size: (24, 80),
        foreground: 0,
        session: 0,
    };
    Arc::new(Terminal { inner: Mutex::new(inner), changed: WaitQueue::new() })
}

/// Returns the VM's terminal.
#[must_use]
pub fn terminal() -> Arc<dyn Stream> {
    let terminal: Arc<Terminal> = Arc::clone(the_terminal());
    terminal
}

/// Hands input over, as keys are pressed.
pub fn input(bytes: &[u8]) {
    bytes.iter().for_each(|byte| the_terminal().key(*byte));
}

/// Prints where the terminal is: at the host's side of the port, or on the VM's console.
fn put(bytes: &[u8]) {
    if link::is_terminal() { link::print(bytes) } else { machine::put(bytes) }
}

/// Ends the session: the host's terminal is gone.
pub fn hang_up() {
    let foreground = the_terminal().inner.lock().foreground;
    signal::send_to_group(foreground, Info::kernel(number::HUP));
}

/// Returns whether there is room for input.
#[must_use]
pub fn has_room() -> bool {
    let inner = the_terminal().inner.lock();
    // Of a line that is longer than all that may wait, the rest is lost.
    inner.ready.is_empty() || inner.edited.len() + inner.ready.len() < MOST_INPUT
}

/// Sets the size, in rows and columns.
pub fn resize(rows: u16, columns: u16) {
    let foreground = {
        let mut inner = the_terminal().inner.lock();
        if core::mem::replace(&mut inner.size, (rows, columns)) == (rows, columns) {
            return;
        }
        inner.foreground
    };
    signal::send_to_group(foreground, Info::kernel(number::WINCH));
}

/// Makes a session's group the one in the foreground.
pub fn begin_session(session: u32) {
    let mut inner = the_terminal().inner.lock();
    (inner.session, inner.foreground) = (session, session);
}

/// Takes the terminal from the session of a process that has ended, if it was its leader.
pub fn session_ends(leader: &Process) {
    let foreground = {
        let mut inner = the_terminal().inner.lock();
        if inner.session != leader.pid {
            return;
        }
        inner.session = 0;
        core::mem::take(&mut inner.foreground)
    };
    signal::send_to_group(foreground, Info::kernel(number::HUP));
}

impl Terminal {
    fn key(&self, byte: u8) {
        let mut inner = self.inner.lock();
        let settings = inner.settings;
        let byte = match byte {
            b'\r' if settings.input & linux::ICRNL != 0 => b'\n',
            b'\n' if settings.input & linux::INLCR != 0 => b'\r',
            byte => byte,
        };
        let is_key = |key: u32| byte != 0 && settings.keys[key as usize] == byte;
        if settings.is_local(linux::ISIG) {
            let keys = [(linux::VINTR, number::INT), (linux::VQUIT, number::QUIT), (linux::VSUSP, number::TSTP)];
            if let Some((_, signal)) = keys.into_iter().find(|(key, _)| is_key(*key)) {
                inner.edited.clear();
                let foreground = inner.foreground;
                drop(inner);
                self.echo(&settings, &[byte]);
                signal::send_to_group(foreground, Info::kernel(signal));
                return;
            }
        }
        if !settings.is_local(linux::ICANON) {
            if inner.ready.len() < MOST_INPUT {
                inner.ready.push_back(byte);
            }
            drop(inner);
            self.echo(&settings, &[byte]);
            self.changed.wake();
            return;
        }
        if is_key(linux::VERASE) || is_key(linux::VKILL) || is_key(linux::VWERASE) {
            let before = inner.edited.len();
            let kept = if is_key(linux::VERASE) {
                // The last character, which may have several bytes.
                let mut kept = before.saturating_sub(1);
                while kept > 0 && inner.edited[kept] & 0xc0 == 0x80 {
                    kept -= 1;
                }
                kept
            } else if is_key(linux::VKILL) {
                0
            } else {
                let word = inner.edited.iter().rposition(|byte| *byte != b' ').unwrap_or(0);
                inner.edited[..word].iter().rposition(|byte| *byte == b' ').map_or(0, |space| space + 1)
            };
            let characters = inner.edited[kept..].iter().filter(|byte| **byte & 0xc0 != 0x80).count();
            inner.edited.truncate(kept);
            drop(inner);
            if settings.is_local(linux::ECHO) {
                (0..characters).for_each(|_| put(b"\x08 \x08"));
            }
            return;
        }
        let is_end = is_key(linux::VEOF);
        if !is_end && inner.edited.len() + inner.ready.len() < MOST_INPUT {
            inner.edited.push(byte);
        }
        if is_end || byte == b'\n' || is_key(linux::VEOL) {
            let line = core::mem::take(&mut inner.edited);
            inner.lines.push_back(line.len());
            inner.ready.extend(line);
        }
        drop(inner);
        if !is_end {
            self.echo(&settings, &[byte]);
        }
        self.changed.wake();
    }

    fn echo(&self, settings: &Settings, bytes: &[u8]) {
        if !settings.is_local(linux::ECHO) {
            return;
        }
        for byte in bytes {
            match byte {
                b'\n' | b'\t' => self.print(settings, &[*byte]),
                byte if *byte < 32 && settings.is_local(linux::ECHOCTL) => put(&[b'^', byte + 64]),
                byte => put(&[*byte]),
            }
        }
    }

    #[expect(clippy::unused_self, reason = "an operation of the terminal's")]
    fn print(&self, settings: &Settings, bytes: &[u8]) {
        if settings.output & (linux::OPOST | linux::ONLCR) != linux::OPOST | linux::ONLCR {
            return put(bytes);
        }
        for (n, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if n > 0 {
                put(b"\r\n");
            }
            put(line);
        }
    }

    fn set(&self, task: &mut Task, argument: u64, discards: bool) -> Result<u64> {
        let settings = Settings::decode(&task.space.get(argument)?);
        let mut inner = self.inner.lock();
        if discards {
            inner.ready.clear();
            inner.lines.clear();
            inner.edited.clear();
        }
        // A line that was being edited can be read at once if lines are no longer edited.
        if inner.settings.is_local(linux::ICANON) && !settings.is_local(linux::ICANON) {
            let edited = core::mem::take(&mut inner.edited);
            inner.ready.extend(edited);
            inner.lines.clear();
        }
        inner.settings = settings;
        drop(inner);
        crate::device::go_on();
        self.changed.wake();
        Ok(0)
    }
}

impl Stream for Terminal {
    fn read(&self, to: &mut [u8]) -> Result<usize> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let most = if inner.settings.is_local(linux::ICANON) {
            let Some(line) = inner.lines.front_mut() else { return Err(Errno::AGAIN) };
            let most = to.len().min(*line);
            *line -= most;
            if *line == 0 {
                inner.lines.pop_front();
            }
            most
        } else if inner.ready.is_empty() && inner.settings.keys[linux::VMIN as usize] != 0 {
            return Err(Errno::AGAIN);
        } else {
            to.len().min(inner.ready.len())
        };
        for to in &mut to[..most] {
            *to = inner.ready.pop_front().unwrap_or(0);
        }
        drop(guard);
        crate::device::go_on();
        Ok(most)
    }

    fn write(&self, from: &[u8]) -> Result<usize> {
        let settings = self.inner.lock().settings;
        if link::is_terminal() && !link::has_room() {
            return Err(Errno::AGAIN);
        }
        self.print(&settings, from);
        Ok(from.len())
    }

    fn ready(&self, waker: Option<&Waker>) -> Ready {
        if let Some(waker) = waker {
            self.changed.add(waker);
        }
        let inner = self.inner.lock();
        let has_input =
            if inner.settings.is_local(linux::ICANON) { !inner.lines.is_empty() } else { !inner.ready.is_empty() };
        drop(inner);
        if link::is_terminal() {
            if let Some(waker) = waker {
                link::watch(waker);
            }
            let output = if link::has_room() { OUT } else { 0 };
            return if has_input { IN | output } else { output };
        }
        if has_input { IN | OUT } else { OUT }
    }

    fn status(&self) -> Status {
        Status { device: device::CONSOLE, ..Status::plain((0, device::CONSOLE), Kind::Device, 0o620) }
    }

    fn ioctl(&self, task: &mut Task, request: u32, argument: u64) -> Result<u64> {
        match request {
            ioctl::TCGETS => {
                let bytes = self.inner.lock().settings.encode();
                task.space.put_bytes(argument, &bytes[..36])?;
                Ok(0)
            }
            ioctl::TCGETS2 => {
                let bytes = self.inner.lock().settings.encode();
                task.space.put_bytes(argument, &bytes)?;
                Ok(0)
            }
            ioctl::TCSETS | ioctl::TCSETSW | ioctl::TCSETS2 | ioctl::TCSETSW2 => self.set(task, argument, false),
            ioctl::TCSETSF | ioctl::TCSETSF2 => self.set(task, argument, true),
            ioctl::TIOCGWINSZ => {
                let (rows, columns) = self.inner.lock().size;
                task.space.put(argument, &[rows, columns, 0, 0])?;
                Ok(0)
            }
            ioctl::TIOCSWINSZ => {
                let [rows, columns, ..] = task.space.get::<[u16; 4]>(argument)?;
                resize(rows, columns);
                Ok(0)
            }
            ioctl::TIOCGPGRP => {
                let foreground = self.inner.lock().foreground;
                task.space.put(argument, &foreground)?;
                Ok(0)
            }
            ioctl::TIOCSPGRP => {
                let group = task.space.get::<u32>(argument)?;
                let mut inner = self.inner.lock();
                if inner.session != task.thread.process.session() {
                    return Err(Errno::NOTTY);
                }
                inner.foreground = group;
                Ok(0)
            }
            ioctl::TIOCGSID => {
                let session = self.inner.lock().session;
                task.space.put(argument, &session)?;
                Ok(0)
            }
            ioctl::TIOCSCTTY => {
                let process = &task.thread.process;
                if process.session() != process.pid {
                    return Err(Errno::PERM);
                }
                begin_session(process.pid);
                Ok(0)
            }
            ioctl::TIOCNOTTY => Ok(0),
            ioctl::TCFLSH => {
                let mut inner = self.inner.lock();
                inner.ready.clear();
                inner.lines.clear();
                drop(inner);
                crate::device::go_on();
                Ok(0)
            }
            ioctl::FIONREAD => {
                let count = self.inner.lock().ready.len() as u32;
                task.space.put(argument, &count)?;
                Ok(0)
            }
            ioctl::TCSBRK | ioctl::TCXONC | ioctl::TCSBRKP => Ok(0),
            _ => Err(Errno::NOTTY),
        }
    }
}
