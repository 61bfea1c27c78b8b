//! A command's interface to the `gnomon` script and the shell: required packages, exit status, errors.

use crate::api::failure::Failure;
use crate::host::place::IoError;
use crate::host::tty;
use std::io::{ErrorKind, Write, stdout};

/// The exit status for bad input, or for a missing resource.
pub(super) const STATUS_INPUT: u8 = 1;

/// A package that the `gnomon` script installs on demand: a function of its own, `need_NAME`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// Debian's archive keys.
    Keys,
    /// QEMU.
    Qemu,
    /// passt, for VMs with a network. If it cannot be installed, other VMs run.
    Passt,
    /// A browser, for the tests.
    Browser,
    /// A C++ compiler, for the fuzzer.
    Cxx,
    /// An SMT solver, for the proof of the lane.
    Solver,
    /// A gdb that knows RISC-V, for its tests.
    Debugger,
}

impl Need {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Qemu => "qemu",
            Self::Passt => "passt",
            Self::Browser => "browser",
            Self::Cxx => "cxx",
            Self::Solver => "solver",
            Self::Debugger => "debugger",
        }
    }

    /// The packages that guests need.
    pub(super) const GUESTS: [Self; 3] = [Self::Keys, Self::Qemu, Self::Passt];
}

/// Prints text on standard output.
///
/// # Errors
/// If it cannot be written. A reader that has closed the pipe is not an error.
pub(super) fn print(text: &str) -> Result<(), IoError> {
    printed(stdout().lock().write_all(text.as_bytes()))
}

/// Flushes standard output, to which text was written with that result.
///
/// # Errors
/// As [`print`].
pub(super) fn printed(written: std::io::Result<()>) -> Result<(), IoError> {
    match written.and_then(|()| stdout().flush()) {
        Err(why) if why.kind() != ErrorKind::BrokenPipe => Err(IoError::at("write", "/dev/stdout")(why)),
        _ => Ok(()),
    }
}

/// Prints an error and its remedy.
pub(super) fn complain(report: &miette::Report) {
    complain_of(&report.into());
}

/// Prints an error and its remedy.
pub(super) fn complain_of(failure: &Failure) {
    tty::say(&format!("gnomon: error: {}", failure.message));
    if let Some(remedy) = &failure.remedy {
        tty::say(&format!("gnomon: remedy: {remedy}"));
    }
}
