//! The bench's workloads under Linux: for each experiment one initramfs, the same for all subjects, with the
//! programs, their data and a script; and a table of what is marked in it.
//!
//! The script stops at the first command that fails, and ends with the figure `done 1`. Every program prints a
//! figure that says what it computed ([`abi::report::figure`]), by which the bench sees that all subjects have
//! computed the same. What is measured is between markers (docs/meter.md), either set by the program itself
//! around what follows its preparations, or around the whole program by `mark`: then starting and ending it,
//! and starting `mark` once more, belong to the region.

mod compiler;
mod fig7;
mod image;
mod kernel;
mod services;

pub use compiler::TOUCH;
pub use image::{DONE, Devices, HugePages, Region, SHARE, Scale, Workload};
use serde::Deserialize;
pub use services::{Service, Services};

/// The workloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Four programs that use much memory.
    Fig7,
    /// Random updates of a table.
    Gups,
    /// System calls, page faults, processes.
    Processes,
    /// Context switches and messages.
    Switching,
    /// Messages, with the time at the begin and at the end of each region.
    Timed,
    /// Compiler, assembler and linker as many processes.
    Build,
    /// A build after the first touch of much memory.
    Nested,
    /// System calls, page faults, processes, pipes, and a build by `make -j4`.
    Vkernel,
    /// Requests for a disk.
    Disk,
    /// Bytes over a network.
    Net,
    /// Messages to a share.
    Share,
}

impl Kind {
    /// Provides it: fetches and builds what it takes, and puts the initramfs into the cache.
    ///
    /// # Errors
    /// If a package or a program cannot be had.
    pub fn provide(self, scale: Scale, pages: HugePages) -> miette::Result<Workload> {
        match self {
            Self::Fig7 => fig7::fig7(scale, pages),
            Self::Gups => kernel::gups(scale, pages),
            Self::Processes => kernel::processes(scale, pages),
            Self::Switching => kernel::switching(scale, pages),
            Self::Timed => kernel::timed(scale, pages),
            Self::Build => compiler::build(scale, pages),
            Self::Nested => compiler::nested(scale, pages),
            Self::Vkernel => compiler::vkernel(scale, pages),
            Self::Disk => kernel::disk(scale, pages),
            Self::Net => kernel::net(scale, pages),
            Self::Share => kernel::share(scale, pages),
        }
    }
}
