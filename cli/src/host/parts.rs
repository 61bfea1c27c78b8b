//! The programs that the command runs, and does not download: the hypervisor, kernels and programs for guests, and the meter. A checkout
//! builds them, an installation has them.

use super::build::{self, BuildError, Files, TARGET};
use super::home::{Home, PARTS, home};
use super::place::IoError;
use std::fs;
use std::path::{Path, PathBuf};

/// The name of the hypervisor's binary.
pub const HYPERVISOR: &str = "gnomon-hypervisor";
const VKERNEL: &str = "gnomon-vkernel";
const METER: &str = "libgnomon_meter.so";

/// A group of programs that are built together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// The hypervisor, for both seats.
    Hypervisor,
    /// The vkernel.
    Vkernel,
    /// The test guests. Benchmarks run them, too.
    Guests,
    /// The programs that run under Linux in guests.
    Programs,
    /// The meter's plugin, for this host.
    Meter,
}

impl Group {
    /// All groups.
    pub const ALL: [Self; 5] = [Self::Hypervisor, Self::Vkernel, Self::Guests, Self::Programs, Self::Meter];

    /// The group in messages.
    const fn what(self) -> &'static str {
        match self {
            Self::Hypervisor => "the hypervisor",
            Self::Vkernel => "the vkernel",
            Self::Guests => "the test guests",
            Self::Programs => "the programs for Linux",
            Self::Meter => "the meter",
        }
    }

    /// The group's directory in an installation's [`PARTS`].
    #[must_use]
    pub const fn dir(self) -> &'static str {
        match self {
            Self::Hypervisor => "hypervisor",
            Self::Vkernel => "vkernel",
            Self::Guests => "guests",
            Self::Programs => "programs",
            Self::Meter => "meter",
        }
    }

    /// The arguments of cargo's build.
    const fn args(self) -> &'static [&'static str] {
        match self {
            Self::Hypervisor => &["--target", TARGET, "-p", "hypervisor", "--features", "machine", "--bin", HYPERVISOR],
            Self::Vkernel => &["--target", TARGET, "-p", "vkernel", "--features", "machine", "--bin", VKERNEL],
            Self::Guests => &["--target", TARGET, "-p", "guests", "--bins"],
            Self::Programs => &["--target", TARGET, "-p", "programs", "--features", "machine", "--bins"],
            Self::Meter => &["-p", "meter-plugin"],
        }
    }

    /// Provides the group's files, by name.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn files(self) -> Result<Files, BuildError> {
        match home() {
            Home::Checkout(_) => build::build(self.what(), self.args()),
            Home::Installation(dir) => Ok(listed(&dir.join(PARTS).join(self.dir()))?),
        }
    }

    fn file(self, name: &str) -> Result<PathBuf, BuildError> {
        let no_program = || BuildError::NoProgram { what: self.what(), name: name.into() };
        self.files()?.remove(name).ok_or_else(no_program)
    }
}

/// The files in a directory of an installation.
fn listed(dir: &Path) -> Result<Files, IoError> {
    let read = || IoError::at("read", dir);
    let names = fs::read_dir(dir).map_err(read())?.map(|entry| {
        let entry = entry.map_err(read())?;
        Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
    });
    names.collect()
}

/// Builds an optimised command, in a checkout.
///
/// # Errors
/// [`BuildError`].
pub fn command() -> Result<PathBuf, BuildError> {
    let (what, name) = ("the command", "gnomon");
    let mut files = build::build(what, &["-p", name, "--bin", name])?;
    files.remove(name).ok_or_else(|| BuildError::NoProgram { what, name: name.into() })
}

/// Provides the hypervisor's ELF file.
///
/// # Errors
/// [`BuildError`].
pub fn hypervisor() -> Result<PathBuf, BuildError> {
    Group::Hypervisor.file(HYPERVISOR)
}

/// Provides the vkernel's ELF file.
///
/// # Errors
/// [`BuildError`].
pub fn vkernel() -> Result<PathBuf, BuildError> {
    Group::Vkernel.file(VKERNEL)
}

/// Provides the test guests' ELF files, by name.
///
/// # Errors
/// [`BuildError`].
pub fn guests() -> Result<Files, BuildError> {
    Group::Guests.files()
}

/// Provides the ELF files of all programs that run under Linux in guests, by name.
///
/// # Errors
/// [`BuildError`].
pub fn programs() -> Result<Files, BuildError> {
    Group::Programs.files()
}

/// Provides one of [`programs`].
///
/// # Errors
/// [`BuildError`].
pub fn program(name: &str) -> Result<PathBuf, BuildError> {
    Group::Programs.file(name)
}

/// Provides the program that sets the meter's markers in a Linux guest.
///
/// # Errors
/// [`BuildError`].
pub fn mark() -> Result<PathBuf, BuildError> {
    program("mark")
}

/// Provides the meter's plugin, for this host.
///
/// # Errors
/// [`BuildError`].
pub fn meter() -> Result<PathBuf, BuildError> {
    Group::Meter.file(METER)
}
