//! System calls of the agent, by descriptors that close themselves.

use alloc::vec::Vec;
use core::ffi::CStr;
use programs::linux::{Failure, call};

mod number {
    pub const DUP3: usize = 24;
    pub const FCNTL: usize = 25;
    pub const IOCTL: usize = 29;
    pub const CHDIR: usize = 49;
    pub const FCHOWN: usize = 55;
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const PIPE2: usize = 59;
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const PPOLL: usize = 73;
    pub const SIGNALFD4: usize = 74;
    pub const NANOSLEEP: usize = 101;
    pub const CLOCK_GETTIME: usize = 113;
    pub const KILL: usize = 129;
    pub const RT_SIGACTION: usize = 134;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const SETRESUID: usize = 147;
    pub const SETRESGID: usize = 149;
    pub const SETSID: usize = 157;
    pub const SETGROUPS: usize = 159;
    pub const UMASK: usize = 166;
    pub const CLONE: usize = 220;
    pub const EXECVE: usize = 221;
    pub const WAIT4: usize = 260;
}

/// Errors, by Linux's numbers.
pub const ENOENT: usize = 2;
pub const EINTR: usize = 4;
pub const EIO: usize = 5;
pub const EAGAIN: usize = 11;
pub const EACCES: usize = 13;
pub const ENOTDIR: usize = 20;

/// Events of [`poll`].
pub const IN: i16 = 1;
pub const OUT: i16 = 4;
pub const HUP: i16 = 0x10;

/// Signals.
pub const SIGHUP: u8 = 1;
pub const SIGKILL: u8 = 9;
pub const SIGPIPE: u8 = 13;
pub const SIGCHLD: u8 = 17;
const SIGNALS: usize = 64;

const AT_FDCWD: usize = -100_isize as usize;
const RDWR: usize = 2;
const NOCTTY: usize = 0o400;
const NONBLOCK: usize = 0o4000;
const CLOEXEC: usize = 0o200_0000;

/// The number of a system call's error.
pub type Errno = usize;

fn sys(number: usize, args: [usize; 6]) -> Result<usize, Errno> {
    call("", number, args).map_err(|failure| match failure {
        Failure::Call(_, errno) => errno,
        Failure::Usage(_) | Failure::Wrong(_) => EIO,
    })
}

fn address<T: ?Sized>(value: &T) -> usize {
    core::ptr::from_ref(value).cast::<u8>().expose_provenance()
}

fn address_mut<T: ?Sized>(value: &mut T) -> usize {
    core::ptr::from_mut(value).cast::<u8>().expose_provenance()
}

/// An open file, which is closed with this value.
#[derive(Debug)]
pub struct Fd(usize);

impl Drop for Fd {
    fn drop(&mut self) {
        let _ = sys(number::CLOSE, [self.0, 0, 0, 0, 0, 0]);
    }
}

impl Fd {
    /// Opens a file that exists, for reading and writing, or for reading alone.
    pub fn open(path: &CStr, writes: bool) -> Result<Self, Errno> {
        let flags = CLOEXEC | NOCTTY | if writes { RDWR } else { 0 };
        sys(number::OPENAT, [AT_FDCWD, path.as_ptr().expose_provenance(), flags, 0, 0, 0]).map(Self)
    }

    /// Returns its number.
    pub fn raw(&self) -> i32 {
        self.0 as i32
    }

    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        sys(number::READ, [self.0, address_mut(buffer), buffer.len(), 0, 0, 0])
    }

    pub fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        sys(number::WRITE, [self.0, address(bytes), bytes.len(), 0, 0, 0])
    }

    /// Sets whether reads and writes wait.
    pub fn set_blocking(&self, waits: bool) -> Result<(), Errno> {
        const SETFL: usize = 4;
        sys(number::FCNTL, [self.0, SETFL, if waits { 0 } else { NONBLOCK }, 0, 0, 0]).map(drop)
    }

    fn ioctl(&self, request: usize, argument: usize) -> Result<usize, Errno> {
        sys(number::IOCTL, [self.0, request, argument, 0, 0, 0])
    }

    /// Gives a pseudo-terminal to a user.
    pub fn give_to(&self, uid: u32) {
        let _ = sys(number::FCHOWN, [self.0, uid as usize, u32::MAX as usize, 0, 0, 0]);
    }

    /// Sets a terminal's size.
    pub fn resize(&self, lines: u16, columns: u16) {
        const TIOCSWINSZ: usize = 0x5414;
        let _ = self.ioctl(TIOCSWINSZ, address(&[lines, columns, 0, 0]));
    }

    /// Makes it the terminal of this process's session.
    pub fn control(&self) -> Result<(), Errno> {
        const TIOCSCTTY: usize = 0x540e;
        self.ioctl(TIOCSCTTY, 0).map(drop)
    }

    /// Makes it the descriptor of that number, for programs that are started from here on.
    pub fn become_number(&self, number: usize) -> Result<(), Errno> {
        sys(number::DUP3, [self.0, number, 0, 0, 0, 0]).map(drop)
    }

    /// Reads the whole file, up to so many bytes.
    pub fn read_all(&self, most: usize) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
        while all.len() < most {
            match self.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => all.extend_from_slice(&buffer[..count]),
            }
        }
        all
    }
}

/// Makes a pipe: the end that is read, and the end that is written.
pub fn pipe() -> Result<(Fd, Fd), Errno> {
    let mut ends = [0_u32; 2];
    sys(number::PIPE2, [address_mut(&mut ends), CLOEXEC, 0, 0, 0, 0])?;
    Ok((Fd(ends[0] as usize), Fd(ends[1] as usize)))
}

/// Makes a pseudo-terminal: the agent's end, and the program's.
pub fn terminal() -> Result<(Fd, Fd), Errno> {
    const TIOCSPTLCK: usize = 0x4004_5431;
    const TIOCGPTPEER: usize = 0x5441;
    let own = Fd::open(c"/dev/ptmx", true)?;
    own.ioctl(TIOCSPTLCK, address(&0_u32))?;
    let other = own.ioctl(TIOCGPTPEER, RDWR | NOCTTY | CLOEXEC).map(Fd)?;
    Ok((own, other))
}

/// A descriptor to wait for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PollFd {
    pub fd: i32,
    pub events: i16,
    pub revents: i16,
}

/// Waits for events, for so many milliseconds at most if given.
pub fn poll(all: &mut [PollFd], timeout: Option<u64>) {
    let time = timeout.map(|ms| [ms / 1000, ms % 1000 * 1_000_000]);
    let time = time.as_ref().map_or(0, address);
    if sys(number::PPOLL, [address_mut(all), all.len(), time, 0, 0, 0]).is_err() {
        all.iter_mut().for_each(|polled| polled.revents = 0);
    }
}

/// Returns the time since the start of the machine, in milliseconds.
pub fn now() -> u64 {
    const MONOTONIC: usize = 1;
    let mut time = [0_u64; 2];
    let _ = sys(number::CLOCK_GETTIME, [MONOTONIC, address_mut(&mut time), 0, 0, 0, 0]);
    time[0] * 1000 + time[1] / 1_000_000
}

pub fn sleep_ms(ms: u64) {
    let time = [ms / 1000, ms % 1000 * 1_000_000];
    let _ = sys(number::NANOSLEEP, [address(&time), 0, 0, 0, 0, 0]);
}

fn set_mask(mask: u64) {
    const SETMASK: usize = 2;
    let _ = sys(number::RT_SIGPROCMASK, [SETMASK, address(&mask), 0, 8, 0, 0]);
}

/// Blocks the signals of ended children and broken pipes. Returns a descriptor that can be read when a child has ended.
pub fn child_signals() -> Result<Fd, Errno> {
    let bit = |signal: u8| 1_u64 << (signal - 1);
    set_mask(bit(SIGCHLD) | bit(SIGPIPE));
    let mask = bit(SIGCHLD);
    sys(number::SIGNALFD4, [usize::MAX, address(&mask), 8, NONBLOCK | CLOEXEC, 0, 0]).map(Fd)
}

/// Sets all signals to what programs expect at their start.
pub fn reset_signals() {
    let default = [0_u64; 3];
    for signal in 1..=SIGNALS {
        let _ = sys(number::RT_SIGACTION, [signal, address(&default), 0, 8, 0, 0]);
    }
    set_mask(0);
}

/// Sends a signal to a process group.
pub fn kill_group(group: usize, signal: u8) {
    let _ = sys(number::KILL, [group.wrapping_neg(), usize::from(signal), 0, 0, 0, 0]);
}

/// Returns a child that has ended, and its status as Linux encodes it.
pub fn ended_child() -> Option<(usize, u32)> {
    const NOHANG: usize = 1;
    let mut status = 0_u32;
    let any = usize::MAX;
    let child = sys(number::WAIT4, [any, address_mut(&mut status), NOHANG, 0, 0, 0]).ok()?;
    (child != 0).then_some((child, status))
}

/// Copies the process. Returns 0 in the copy, otherwise the copy's number.
pub fn fork() -> Result<usize, Errno> {
    sys(number::CLONE, [usize::from(SIGCHLD), 0, 0, 0, 0, 0])
}

/// Begins a session, without a terminal.
pub fn new_session() {
    let _ = sys(number::SETSID, [0; 6]);
}

/// Becomes a user, with these groups.
pub fn become_user(uid: u32, groups: &[u32]) -> Result<(), Errno> {
    let gid = groups.first().copied().unwrap_or_default() as usize;
    let uid = uid as usize;
    sys(number::SETGROUPS, [groups.len(), address(groups), 0, 0, 0, 0])?;
    sys(number::SETRESGID, [gid, gid, gid, 0, 0, 0])?;
    sys(number::SETRESUID, [uid, uid, uid, 0, 0, 0]).map(drop)
}

pub fn set_umask(mask: usize) {
    let _ = sys(number::UMASK, [mask, 0, 0, 0, 0, 0]);
}

pub fn change_directory(path: &CStr) -> Result<(), Errno> {
    sys(number::CHDIR, [path.as_ptr().expose_provenance(), 0, 0, 0, 0, 0]).map(drop)
}

/// Becomes another program. Returns why not. The lists are of addresses of strings, and end with 0.
pub fn exec(path: &CStr, arguments: &[usize], variables: &[usize]) -> Errno {
    let args = [path.as_ptr().expose_provenance(), address(arguments), address(variables), 0, 0, 0];
    sys(number::EXECVE, args).err().unwrap_or(EIO)
}
