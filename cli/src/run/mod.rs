//! `gnomon run`: from descriptions of VMs to their end.

mod background;
pub mod console;
mod input;
mod prepare;
pub mod program;
mod recorder;
mod report;
mod show;
mod spec;
mod trouble;
mod waiting;

use crate::control::ControlError;
use crate::control::bridge::Bridge;
use crate::control::client::Client;
use crate::control::journal::Happening;
use crate::control::migrate::{Incoming, MigrateError};
use crate::control::runs::{Claim, Runs};
use crate::host::tty;
use crate::host::words::quoted_path;
use crate::machine::process::{Machine, MachineError};
use crate::machine::qemu::{Boot, MachineSpec};
use crate::machine::stream::Piece;
use crate::run::console::{ExecDemux, PanicWatch};
use abi::agent;
use abi::bundle::ConsoleMode;
use abi::control::Request;
use abi::record::Record;
pub use background::{Background, LET_GO};
pub use prepare::{Prepared, Versions, nested, prepare};
use recorder::Recorder;
pub use report::{RunEnd, STATS};
use show::Show;
pub use spec::{Reach, RunSpec, ShowSpec};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;
use waiting::Waiting;

/// Takes a name for the run, and makes its sockets.
fn claim(prepared: &Prepared, name: Option<&str>, usual: &str) -> Result<Claim, ControlError> {
    let runs = Runs::open()?;
    let mut claim = runs.claim(name, usual)?;
    let ports: Vec<_> = prepared.vms.iter().cloned().zip(prepared.ports.iter().cloned()).collect();
    runs.open_ports(&mut claim, &ports)?;
    claim.disks = prepared.written_disks();
    Ok(claim)
}

/// Lets other commands reach a run, if that can be. Only a name that was asked for must be had, and the way to ports.
fn reach(prepared: &Prepared, machine: &mut MachineSpec, how: &Reach) -> miette::Result<Option<Bridge>> {
    // That of `gnomon shell` is there by default.
    let has_ports = prepared.ports.iter().flatten().any(|port| port != agent::PORT);
    let Reach::As(name) = how else { return Ok(None) };
    let usual = prepared.vms.first().map_or("run", String::as_str);
    let claim = if machine.has_place() {
        claim(prepared, name.as_deref(), usual).map_err(miette::Report::from)
    } else {
        Err(miette::miette!(help = "give the VMs fewer disks", "the board has no free slot for the control channel"))
    };
    match claim {
        Ok(claim) => {
            claim.journal.started(&prepared.vms);
            machine.control = Some(claim.machine_path().to_owned());
            Ok(Some(Bridge::start(claim)))
        }
        Err(why) if name.is_some() || has_ports => Err(why),
        Err(why) => {
            tty::say(&format!("gnomon: warning: no other command can reach this run: {why}"));
            Ok(None)
        }
    }
}

/// A VM that comes, until a thread takes it.
pub type Arrival = Arc<Mutex<Option<Incoming>>>;

/// Takes a VM that comes, when the machine is there: in a thread of its own.
fn await_vm(arrival: &Arrival, run: &str) -> Result<(), ControlError> {
    let Some(incoming) = arrival.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
    let mut client = Client::of(Some(run))?;
    thread::spawn(move || match incoming.take(&mut client) {
        Ok(()) => tty::say("gnomon: the VM runs here now"),
        Err(why @ MigrateError::Unknown(_)) => tty::say(&format!("gnomon: {why}")),
        Err(why) => {
            tty::say(&format!("gnomon: the VM did not come: {why}"));
            // The run ends with its only VM.
            let _ = client.tell("cannot end what came of the VM", &Request::Stop(0));
        }
    });
    Ok(())
}

/// Returns the machine of a run, in its sandbox unless the user wants none, which is said loudly.
fn machine_of(prepared: &Prepared, show: &ShowSpec) -> MachineSpec {
    let mut spec = prepared.machine.clone();
    spec.sandbox = !show.is_unconfined;
    trouble::unconfined(&spec).iter().for_each(|line| tty::say(line));
    spec
}

/// Runs what was prepared, on the user's terminal, to its end.
///
/// # Errors
/// If QEMU cannot be run at all, or the counters not be written; everything else is told in [`RunEnd`].
pub fn run(
    prepared: &Prepared,
    exec: Option<&str>,
    (show, incoming): (&ShowSpec, Option<Arrival>),
) -> miette::Result<RunEnd> {
    let mut spec = machine_of(prepared, show);
    let bridge = reach(prepared, &mut spec, &show.reach)?;
    if let Some(arrival) = incoming {
        let Some(bridge) = &bridge else {
            return Err(miette::miette!(
                help = "see the message before",
                "the VM cannot come: no command can reach this run"
            ));
        };
        await_vm(&arrival, bridge.name())?;
    }
    let mut recorder = match (&show.background, &bridge) {
        (Some(background), Some(bridge)) => Some(Recorder::begin(background, bridge.name(), prepared)?),
        (Some(_), None) => Err(miette::miette!(
            help = "leave out -d, or what keeps commands from reaching the run",
            "a run in the background must be reachable by other commands"
        ))?,
        (None, _) => None,
    };
    let (machine, stopper) = Machine::start(&spec)?;
    if let (Some(port), Boot::Gnomon { hypervisor, .. }) = (show.gdb, &prepared.machine.boot) {
        tty::say(&format!(
            "gnomon: waiting for gdb: gdb-multiarch {} -ex 'target remote :{port}'",
            quoted_path(hypervisor)
        ));
    }
    input::handle_signals(stopper.clone()).map_err(MachineError::from)?;
    let raw = match prepared.console {
        ConsoleMode::Attached => {
            tty::say("gnomon: Ctrl-A x ends the run, Ctrl-A h shows the other keys");
            Some(tty::RawMode::enter(tty::Screen::SAME).map_err(MachineError::from)?)
        }
        ConsoleMode::Lines => None,
    };
    let has_input = exec.is_none() && recorder.is_none();
    let mut input = has_input.then(|| input::forward_input(machine.input(), stopper));
    // With --verbose the boot is shown.
    let mut waiting = exec.filter(|_| !show.is_verbose).map(|_| Waiting::start(prepared.vms.clone()));
    let demux = exec.map(|_| ExecDemux::new(prepared.vms.iter().map(String::as_str)));
    // If one of several consoles is attached, the VM of a line is unknown.
    let is_watched = prepared.console == ConsoleMode::Lines || prepared.vms.len() == 1;
    // With a debugger at hand, a kernel that has panicked is there to be looked at.
    let is_watched = is_watched && show.gdb.is_none();
    let vms = prepared.vms.iter().map(String::as_str).zip(prepared.after.iter().copied());
    let watch = is_watched.then(|| PanicWatch::new(vms));
    let mut view = Show::new(prepared.console, demux, watch, show.is_verbose);
    let journal = bridge.as_ref().map(Bridge::journal);
    let started = Instant::now();
    let deadline = show.timeout.and_then(|timeout| started.checked_add(timeout));
    let outcome = machine.run(deadline, |piece| {
        if let Piece::Record(Record::Boot(_)) = piece
            && let Some(begin) = input.take()
        {
            // If the input thread is gone, there is no input to forward.
            let _ = begin.send(());
        }
        if let Piece::Trouble(trouble) = piece {
            for line in trouble::lines(prepared, trouble) {
                view.say(&line);
                if let Some(journal) = journal {
                    journal.message(&line);
                }
            }
            if let (Some(bridge), Some((vm, device))) = (&bridge, trouble::lost(prepared, trouble)) {
                bridge.lost(vm, device);
            }
        }
        if let Some(journal) = journal {
            match piece {
                Piece::Record(Record::Boot(_)) => journal.note(Happening::RunBooted),
                Piece::Record(Record::VmEnd(end)) => journal.vm_ended(end, report::status_of(end)),
                _ => {}
            }
        }
        if let Some(recorder) = &mut recorder {
            match piece {
                Piece::Text(bytes) => recorder.text(bytes),
                Piece::Record(Record::Boot(_)) => recorder.booted(),
                Piece::Record(Record::VmEnd(end)) => recorder.vm_ended(end),
                Piece::Record(_) | Piece::Trouble(_) => {}
            }
        }
        let next = view.piece(piece);
        if let (Some(waits), Some(demux)) = (&mut waiting, view.demux()) {
            waits.update(demux.waiting());
        }
        next
    })?;
    drop(waiting);
    drop(raw);
    view.finish();
    let end = report::judge(prepared, &outcome, &view, started.elapsed());
    for line in end.details(&view) {
        tty::say(&line);
    }
    if let Some(recorder) = &recorder {
        recorder.ended(end.status);
    }
    if let Some(journal) = journal {
        end.lines.iter().for_each(|line| journal.message(&format!("gnomon: {line}")));
        journal.ended(end.status);
    }
    if let Some(path) = &show.stats {
        end.write_stats(path, prepared, &outcome)?;
    }
    Ok(end)
}
