//! Snapshots and migrations.

use super::vm::Target;
use crate::api::call::{Caller, Method, Never};
use crate::api::failure::{ApiError, Failure};
use crate::control::client::Client;
use crate::control::migrate::{self, Address, Line, send};
use crate::control::save::{self, Held, Unsaved};
use crate::host::place::IoError;
use crate::host::size::PAGE;
use abi::control::Request;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Instant;

/// Writes the state and memory of a VM to a file. The VM is paused meanwhile. Cannot be cancelled.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The run; optional if there is only one, or only one has that VM.
    pub run: Option<String>,
    /// The VM; optional if the run has only one.
    pub vm: Option<String>,
    /// The file; an existing snapshot is replaced when the new one is complete.
    pub output: PathBuf,
    /// Ends the VM when the file is complete.
    #[serde(default)]
    pub stop: bool,
}

/// The progress of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct SnapshotProgress {
    /// The VM.
    pub vm: String,
    /// The part of its RAM that is written, in percent.
    pub percent: u64,
}

/// A snapshot that was taken.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct SnapshotTaken {
    /// The run.
    pub run: String,
    /// The VM.
    pub vm: String,
    /// The file.
    pub output: PathBuf,
    /// The VM's RAM, in bytes.
    pub memory_bytes: u64,
    /// The part of it that is not zero, in bytes.
    pub used_bytes: u64,
    /// The time that it took, in seconds.
    pub seconds: f64,
}

impl Method for Snapshot {
    const NAME: &'static str = "snapshot";
    const IS_LONG: bool = true;
    type Reply = SnapshotTaken;
    type Notice = SnapshotProgress;

    fn carry_out(self, caller: &dyn Caller<SnapshotProgress>) -> miette::Result<SnapshotTaken> {
        // Another request may write that file for the same VM: each has a file of its own until it is complete.
        let part = save::FILE.begin_private(&self.output)?;
        let (mut client, vm) = Client::reach(self.run.as_deref(), self.vm.as_deref())?;
        let started = Instant::now();
        let mut last = None;
        let mut tell = |percent| {
            if last != Some(percent) {
                last = Some(percent);
                // The VM does not stand still for a caller that does not read.
                caller.hint(SnapshotProgress { vm: vm.name.clone(), percent });
            }
        };
        tell(0);
        let mut held = Held::begin(&mut client, (vm.number, &vm.name))?;
        let written = held.write(BufWriter::with_capacity(1 << 20, part.file()), tell);
        let saved = match written {
            Ok(saved) => saved,
            Err(why) => {
                // The VM resumes in any case.
                let _ = held.end();
                return match why {
                    Unsaved::Control(why) => Err(why.into()),
                    Unsaved::Io(why) => Err(IoError::at("write", &self.output)(why).into()),
                };
            }
        };
        // The VM stands still until the file is safe, and ends without having gone on.
        part.sync()?;
        if self.stop {
            part.keep()?;
            client.tell(&format!("cannot stop VM `{}`", vm.name), &Request::Stop(vm.number))?;
        } else {
            held.end()?;
            part.keep()?;
        }
        Ok(SnapshotTaken {
            run: client.run().into(),
            vm: vm.name,
            output: self.output,
            memory_bytes: vm.memory_bytes,
            used_bytes: saved.pages * PAGE,
            seconds: started.elapsed().as_secs_f64(),
        })
    }
}

/// Moves a VM to another run while it runs. The other side is started first, by `gnomon run --incoming`. Cannot be cancelled.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Migrate {
    /// The run; optional if there is only one, or only one has that VM.
    pub run: Option<String>,
    /// The VM.
    pub vm: String,
    /// The place at which the other side waits: `unix:PATH` or `tcp:HOST:PORT`.
    pub address: String,
}

/// The progress of a migration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct MigrateProgress {
    /// The VM.
    pub vm: String,
    /// The round, from 1; 0: the first one has not begun.
    pub round: u32,
    /// Memory that was sent in all rounds, in bytes.
    pub sent_bytes: u64,
    /// Memory that is left in this round, in bytes.
    pub left_bytes: u64,
}

/// A VM that was moved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Migrated {
    /// The run that it was in.
    pub run: String,
    /// The VM.
    pub vm: String,
    /// Memory that was sent in all rounds, in bytes.
    pub sent_bytes: u64,
    /// The part of its RAM that is not zero, in bytes.
    pub used_bytes: u64,
    /// Rounds, the last one included.
    pub rounds: u32,
    /// The time in which it stood still, in milliseconds.
    pub still_ms: u64,
    /// The reason why its remains could not be ended in the run that it was in; null if they were.
    pub remains: Option<Failure>,
}

/// Checks whether a VM can move to the run that waits at a place. Nothing moves, and the other side ends. Cannot be cancelled.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckMigration {
    /// The run; optional if there is only one, or only one has that VM.
    pub run: Option<String>,
    /// The VM.
    pub vm: String,
    /// The place at which the other side waits: `unix:PATH` or `tcp:HOST:PORT`.
    pub address: String,
}

impl Method for CheckMigration {
    const NAME: &'static str = "check-migration";
    const IS_LONG: bool = true;
    type Reply = Target;
    type Notice = Never;

    fn carry_out(self, _: &dyn Caller<Never>) -> miette::Result<Target> {
        let address = address(Self::NAME, &self.address)?;
        let (mut client, vm) = Client::reach(self.run.as_deref(), Some(&self.vm))?;
        migrate::check(&mut client, (vm.number, &vm.name), &mut Line::to(&address)?)?;
        Ok(Target { run: client.run().into(), vm: vm.name })
    }
}

fn address(method: &'static str, text: &str) -> Result<Address, ApiError> {
    text.parse().map_err(|why| ApiError::BadParams { method, why: format!("address: {why}") })
}

impl Method for Migrate {
    const NAME: &'static str = "migrate";
    const IS_LONG: bool = true;
    type Reply = Migrated;
    type Notice = MigrateProgress;

    fn carry_out(self, caller: &dyn Caller<MigrateProgress>) -> miette::Result<Migrated> {
        let address = address(Self::NAME, &self.address)?;
        let (mut client, vm) = Client::reach(self.run.as_deref(), Some(&self.vm))?;
        let mut line = Line::to(&address)?;
        let tell = |round, sent: u64, left: u64| {
            let (sent_bytes, left_bytes) = (sent * PAGE, left * PAGE);
            // The VM does not wait for a caller that does not read.
            caller.hint(MigrateProgress { vm: vm.name.clone(), round, sent_bytes, left_bytes });
        };
        tell(0, 0, 0);
        let step = |now: migrate::Progress| tell(now.round, now.sent, now.left as u64);
        let moved = send(&mut client, (vm.number, &vm.name), &mut line, step)?;
        // It runs there: the rest of it ends here.
        let what = format!("cannot stop VM `{}`, which runs elsewhere now", vm.name);
        let ended = client.tell(&what, &Request::Stop(vm.number));
        Ok(Migrated {
            run: client.run().into(),
            vm: vm.name,
            sent_bytes: moved.sent * PAGE,
            used_bytes: moved.used * PAGE,
            rounds: moved.rounds + 1,
            still_ms: u64::try_from(moved.still.as_millis()).unwrap_or(u64::MAX),
            remains: ended.err().map(|why| (&miette::Report::from(why)).into()),
        })
    }
}
