//! Processes, and pipes between them.

use super::{Failure, call, exit, number};
use core::ffi::CStr;
use core::ptr::null;

/// The process's parent.
#[must_use]
pub fn parent() -> usize {
    // This call cannot fail.
    call("getppid", number::GETPPID, [0; 6]).unwrap_or_default()
}

/// A process that was started here.
#[derive(Debug)]
pub struct Child(usize);

/// The end of a process, as `wait` reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(u32);

impl Status {
    /// Returns whether the process has exited with status 0.
    #[must_use]
    pub fn succeeded(self) -> bool {
        self.0 == 0
    }
}

impl Child {
    /// Returns its number.
    #[must_use]
    pub fn number(&self) -> usize {
        self.0
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// [`Failure::Call`].
    pub fn wait(self) -> Result<Status, Failure> {
        let mut status = 0u32;
        call("wait4", number::WAIT4, [self.0, (&raw mut status).expose_provenance(), 0, 0, 0, 0])?;
        Ok(Status(status))
    }
}

/// Copies the process; the copy does `work` and ends, with status 1 if that fails.
///
/// # Errors
/// [`Failure::Call`].
pub fn start(work: impl FnOnce() -> Result<(), Failure>) -> Result<Child, Failure> {
    const SIGCHLD: usize = 17;
    match call("clone", number::CLONE, [SIGCHLD, 0, 0, 0, 0, 0])? {
        0 => exit(usize::from(work().is_err())),
        child => Ok(Child(child)),
    }
}

/// Like [`start`], and waits for the process's end.
///
/// # Errors
/// [`Failure::Call`].
pub fn run(work: impl FnOnce() -> Result<(), Failure>) -> Result<Status, Failure> {
    start(work)?.wait()
}

/// Becomes another program, without arguments.
///
/// # Errors
/// [`Failure::Call`]; else it does not return.
pub fn exec(path: &CStr) -> Result<(), Failure> {
    let nothing = [null::<u8>()];
    let args = [path.as_ptr(), null()];
    let [path, args, nothing] =
        [path.as_ptr().expose_provenance(), args.as_ptr().expose_provenance(), nothing.as_ptr().expose_provenance()];
    call("execve", number::EXECVE, [path, args, nothing, 0, 0, 0]).map(drop)
}

/// A pipe that carries numbers.
#[derive(Debug)]
pub struct Pipe {
    ends: [u32; 2],
}

impl Pipe {
    /// A new one. Both ends stay open in each process.
    ///
    /// # Errors
    /// [`Failure::Call`].
    pub fn new() -> Result<Self, Failure> {
        let mut ends = [0; 2];
        call("pipe2", number::PIPE2, [ends.as_mut_ptr().expose_provenance(), 0, 0, 0, 0, 0])?;
        Ok(Self { ends })
    }

    /// Takes the next number; waits for it.
    ///
    /// # Errors
    /// [`Failure::Call`].
    pub fn read(&self) -> Result<u32, Failure> {
        let mut value = 0u32;
        let args = [self.ends[0] as usize, (&raw mut value).expose_provenance(), size_of::<u32>(), 0, 0, 0];
        call("read", number::READ, args).map(|_| value)
    }

    /// Sends a number.
    ///
    /// # Errors
    /// [`Failure::Call`].
    pub fn write(&self, value: u32) -> Result<(), Failure> {
        let args = [self.ends[1] as usize, (&raw const value).expose_provenance(), size_of::<u32>(), 0, 0, 0];
        call("write", number::WRITE, args).map(drop)
    }
}
