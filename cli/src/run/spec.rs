//! The description of a run, and how it is shown.

use super::background::Background;
use crate::host::size::Size;
use crate::host::tty::{self, TerminalSize};
use crate::machine::board::{Clock, HExtension, Seat};
use crate::machine::disk::Snapshot;
use crate::machine::meter::MeterSpec;
use crate::machine::net::ForwardTo;
use crate::machine::swap::SwapSpec;
use crate::vm::file::VmFile;
use crate::vm::root::Roots;
use abi::bundle::ConsoleMode;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

/// The most harts that are chosen without being asked for.
const MOST_DEFAULT_HARTS: u32 = 8;

/// The VMs of a run, and its machine.
#[derive(Clone, PartialEq, Debug)]
pub struct RunSpec {
    /// The VM files.
    pub files: Vec<VmFile>,
    /// The options, for all VMs.
    pub options: VmFile,
    /// RAM of the machine; else enough for all VMs.
    pub host_memory: Option<Size>,
    /// The file that Gnomon pages to.
    pub swap: Option<SwapSpec>,
    /// The treatment of guests' writes to their disks.
    pub snapshot: Snapshot,
    /// Ports of the host's that lead to VMs, beside those in VM files.
    pub forwards: Vec<ForwardTo>,
    /// The disks of VMs with a Debian system as their root: [`crate::system::provide`].
    pub roots: Roots,
    /// Tunables that are set, `name=value`.
    pub settings: Vec<String>,
    /// Harts of the machine; else as many as the widest VM has vCPUs.
    pub harts: Option<u32>,
    /// The H extension of those harts.
    pub h: HExtension,
    /// The privilege mode of Gnomon.
    pub seat: Seat,
    /// Commands to run in every VM.
    pub exec: Option<String>,
    /// The machine's time.
    pub clock: Clock,
    /// The meter's settings, if it is used.
    pub meter: Option<MeterSpec>,
    /// Further arguments for QEMU.
    pub qemu_args: Vec<String>,
    /// The way in which the guests share the console.
    pub console: ConsoleMode,
    /// The size of the terminal that shells run on, if it is one.
    pub terminal: Option<TerminalSize>,
    /// True if `gnomon shell` may reach VMs whose files do not say otherwise.
    pub has_shells: bool,
    /// The device and inode of each file of a disk that the VM writes to, if it arrives from another run. Its snapshot only describes it.
    pub incoming: Option<Vec<(u64, u64)>>,
}

/// The settings by which a run is shown and reached.
#[derive(Clone, Debug, Default)]
pub struct ShowSpec {
    /// With `--exec`: show everything, not just the commands' output.
    pub is_verbose: bool,
    /// The file for the counters.
    pub stats: Option<PathBuf>,
    /// The longest that the run may take.
    pub timeout: Option<Duration>,
    /// The port on which QEMU waits for a debugger.
    pub gdb: Option<NonZeroU16>,
    /// The reachability by other commands.
    pub reach: Reach,
    /// Set if the processes that serve guests do not confine themselves.
    pub is_unconfined: bool,
    /// The link to the command that has started the run, if it is in the background.
    pub background: Option<Background>,
}

/// The reachability of a run by other commands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Reach {
    /// Other commands cannot reach the run.
    #[default]
    None,
    /// Other commands can reach the run by this name, or by one that is free.
    As(Option<String>),
}

impl RunSpec {
    /// A run of these VMs that nothing else is said of: in the firmware seat, on harts with H, in real time, without commands and a terminal.
    #[must_use]
    pub fn of(files: Vec<VmFile>) -> Self {
        Self {
            files,
            options: VmFile::default(),
            host_memory: None,
            swap: None,
            snapshot: Snapshot::No,
            forwards: Vec::new(),
            roots: Roots::default(),
            settings: Vec::new(),
            harts: None,
            h: HExtension::Present,
            seat: Seat::Firmware,
            exec: None,
            clock: Clock::Real,
            meter: None,
            qemu_args: Vec::new(),
            console: ConsoleMode::Lines,
            terminal: None,
            has_shells: false,
            incoming: None,
        }
    }

    /// The console mode that suits: attached if a person sits there and no commands are given.
    #[must_use]
    pub fn console_mode(exec: Option<&str>) -> ConsoleMode {
        if exec.is_none() && tty::is_interactive() { ConsoleMode::Attached } else { ConsoleMode::Lines }
    }

    /// The number of harts, given the widest VM's vCPUs.
    #[must_use]
    pub fn harts_for(&self, most_vcpus: u32) -> u32 {
        self.harts.unwrap_or(most_vcpus.clamp(1, MOST_DEFAULT_HARTS))
    }
}
