//! `gnomon run`: from descriptions of VMs to their end.

pub mod console;
mod prepare;
mod report;
mod show;

use crate::control::ControlError;
use crate::control::bridge::Bridge;
use crate::control::runs::{Claim, Runs};
use crate::host::size::Size;
use crate::host::tty::{self, TerminalSize};
use crate::machine::disk::Snapshot;
use crate::machine::meter::MeterSpec;
use crate::machine::net::ForwardTo;
use crate::machine::process::{Machine, MachineError};
use crate::machine::qemu::{Boot, Clock, HExtension, MachineSpec, Seat};
use crate::machine::stream::Piece;
use crate::machine::swap::SwapSpec;
use crate::run::console::{ExecDemux, PanicWatch};
use crate::vm::file::VmFile;
use crate::vm::root::Roots;
use abi::bundle::ConsoleMode;
use abi::record::Record;
pub use prepare::{Prepared, Versions, prepare};
pub use report::RunEnd;
use show::Show;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The most harts that are chosen without being asked for.
const MOST_DEFAULT_HARTS: u32 = 8;

/// What to run, and how.
#[derive(Clone, PartialEq, Debug)]
pub struct RunSpec {
    /// What the VM files say.
    pub files: Vec<VmFile>,
    /// What the options say, for all VMs.
    pub options: VmFile,
    /// RAM of the machine; else enough for all VMs.
    pub host_memory: Option<Size>,
    /// What Gnomon pages to.
    pub swap: Option<SwapSpec>,
    /// Whether what guests write to their disks is thrown away.
    pub snapshot: Snapshot,
    /// Ports of the host's that lead to VMs, beside those in VM files.
    pub forwards: Vec<ForwardTo>,
    /// What VMs are given that have a whole system as their root: [`crate::system::provide`].
    pub roots: Roots,
    /// Tunables that are set, `name=value`.
    pub settings: Vec<String>,
    /// Harts of the machine; else as many as the widest VM has vCPUs.
    pub harts: Option<u32>,
    /// Whether those have the H extension.
    pub h: HExtension,
    /// Where Gnomon sits.
    pub seat: Seat,
    /// Commands to run in every VM.
    pub exec: Option<String>,
    /// The machine's time.
    pub clock: Clock,
    /// What is counted, if anything.
    pub meter: Option<MeterSpec>,
    /// Further arguments for QEMU.
    pub qemu_args: Vec<String>,
    /// How the guests share the console.
    pub console: ConsoleMode,
    /// The size of the terminal that shells run on, if it is one.
    pub terminal: Option<TerminalSize>,
}

/// How a run is shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShowSpec {
    /// With `--exec`: show everything, not just the commands' output.
    pub is_verbose: bool,
    /// Where the counters go.
    pub stats: Option<PathBuf>,
    /// The longest that the run may take.
    pub timeout: Option<Duration>,
    /// The port on which QEMU waits for a debugger.
    pub gdb: Option<NonZeroU16>,
    /// Whether other commands can reach it.
    pub reach: Reach,
}

/// Whether other commands can reach a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Reach {
    /// None can.
    #[default]
    None,
    /// They can, by this name, or by one that is free.
    As(Option<String>),
}

impl RunSpec {
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

/// Takes a name for the run, and makes its sockets.
fn claim(prepared: &Prepared, name: Option<&str>, usual: &str) -> Result<Claim, ControlError> {
    let runs = Runs::open()?;
    let mut claim = runs.claim(name, usual)?;
    let ports: Vec<_> = prepared.vms.iter().cloned().zip(prepared.ports.iter().cloned()).collect();
    runs.open_ports(&mut claim, &ports)?;
    Ok(claim)
}

/// Lets other commands reach a run, if that can be. Only a name that was asked for must be had, and the way to ports.
fn reach(prepared: &Prepared, machine: &mut MachineSpec, how: &Reach) -> miette::Result<Option<Bridge>> {
    let has_ports = prepared.ports.iter().any(|ports| !ports.is_empty());
    let Reach::As(name) = how else { return Ok(None) };
    let usual = prepared.vms.first().map_or("run", String::as_str);
    let claim = if machine.has_place() {
        claim(prepared, name.as_deref(), usual).map_err(miette::Report::from)
    } else {
        Err(miette::miette!(help = "give the VMs fewer disks", "the board has no place left for the control channel"))
    };
    match claim {
        Ok(claim) => {
            machine.control = Some(claim.machine_path().to_owned());
            Ok(Some(Bridge::start(claim)))
        }
        Err(why) if name.is_some() || has_ports => Err(why),
        Err(why) => {
            eprintln!("gnomon: warning: no other command can reach this run: {why}");
            Ok(None)
        }
    }
}

/// Runs what was prepared, on the user's terminal, to its end.
///
/// # Errors
/// If QEMU cannot be run at all, or the counters not be written; everything else is told in [`RunEnd`].
pub fn run(prepared: &Prepared, exec: Option<&str>, show: &ShowSpec) -> miette::Result<RunEnd> {
    let mut spec = prepared.machine.clone();
    let _bridge = reach(prepared, &mut spec, &show.reach)?;
    let (machine, stopper) = Machine::start(&spec)?;
    if let (Some(port), Boot::Gnomon { hypervisor, .. }) = (show.gdb, &prepared.machine.boot) {
        tty::say(&format!(
            "gnomon: waiting for gdb: gdb-multiarch {} -ex 'target remote :{port}'",
            hypervisor.display()
        ));
    }
    tty::handle_signals(stopper.clone()).map_err(MachineError::from)?;
    let raw = match prepared.console {
        ConsoleMode::Attached => {
            tty::say("gnomon: Ctrl-A x ends the run, Ctrl-A h shows the other keys");
            Some(tty::RawMode::enter().map_err(MachineError::from)?)
        }
        ConsoleMode::Lines => None,
    };
    let mut input = exec.is_none().then(|| tty::forward_input(machine.input(), stopper));
    let demux = exec.map(|_| ExecDemux::new(prepared.vms.iter().map(String::as_str)));
    // Whose a line is on the attached one of several consoles, nobody can tell.
    let is_watched = prepared.console == ConsoleMode::Lines || prepared.vms.len() == 1;
    // With a debugger at hand, a kernel that has panicked is there to be looked at.
    let is_watched = is_watched && show.gdb.is_none();
    let vms = prepared.vms.iter().map(String::as_str).zip(prepared.after.iter().copied());
    let watch = is_watched.then(|| PanicWatch::new(vms));
    let mut view = Show::new(prepared.console, demux, watch, show.is_verbose);
    let started = Instant::now();
    let deadline = show.timeout.and_then(|timeout| started.checked_add(timeout));
    let outcome = machine.run(deadline, |piece| {
        if let Piece::Record(Record::Boot(_)) = piece
            && let Some(begin) = input.take()
        {
            // If nobody is left to begin, nobody is left to type for.
            let _ = begin.send(());
        }
        view.piece(piece)
    })?;
    drop(raw);
    view.finish();
    let end = report::judge(prepared, &outcome, &view, started.elapsed());
    for line in end.details(&view) {
        tty::say(&line);
    }
    if let Some(path) = &show.stats {
        end.write_stats(path, prepared, &outcome)?;
    }
    Ok(end)
}
