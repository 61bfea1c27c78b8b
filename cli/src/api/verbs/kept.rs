//! Runs that are kept by name, and what runs have left.

use super::background::{Messages, Started, start};
use crate::api::call::{Caller, Method, Never};
use crate::api::start::KEPT_AS;
use crate::control::ControlError;
use crate::control::kept::{Definition, Kept};
use crate::host::place::IoError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Keeps the arguments of a run by a name, to be started by `start`. They are read when the run starts.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// The name of the run.
    pub run: String,
    /// The arguments, as those of `gnomon run`; `--as` does not count. Paths are relative to the directory in which `gnomon api` was started.
    #[serde(default)]
    pub args: Vec<String>,
}

/// A run that was created.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Created {
    /// Its name.
    pub run: String,
}

impl Method for Create {
    const NAME: &'static str = "create";
    type Reply = Created;
    type Notice = Never;

    fn carry_out(self, _: &dyn Caller<Never>) -> miette::Result<Created> {
        let dir = std::env::current_dir().map_err(IoError::at("find", "the current directory"))?;
        let kept = Kept::define(&self.run, &Definition { dir, args: self.args })?;
        Ok(Created { run: kept.name })
    }
}

/// The state of a run that is kept by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeptState {
    /// Not started yet.
    Created,
    /// Active.
    Active,
    /// Ended, with a status.
    Ended,
    /// Killed before it could say how it ended.
    Killed,
    /// The file with its arguments cannot be read.
    Unreadable,
}

impl KeptState {
    /// The name of the state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Active => "active",
            Self::Ended => "ended",
            Self::Killed => "killed",
            Self::Unreadable => "unreadable",
        }
    }

    fn of(kept: &Kept) -> Self {
        // In this order: a run writes its status while it lives.
        match (kept.lives(), kept.has_begun(), kept.status()) {
            (true, ..) => Self::Active,
            (false, false, _) => Self::Created,
            (false, true, Some(_)) => Self::Ended,
            (false, true, None) => Self::Killed,
        }
    }
}

/// A run that is kept by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct KeptRun {
    /// Its name.
    pub run: String,
    /// Its state.
    pub state: KeptState,
    /// The exit status of the last time, if it has ended.
    pub status: Option<u8>,
    /// The directory that paths among the arguments are relative to.
    pub dir: String,
    /// The arguments of `gnomon run`.
    pub args: Vec<String>,
}

impl KeptRun {
    fn of(kept: Kept) -> Self {
        let (state, definition) = match kept.definition() {
            Ok(definition) => (KeptState::of(&kept), definition),
            Err(_) => (KeptState::Unreadable, Definition { dir: PathBuf::new(), args: Vec::new() }),
        };
        let status = kept.status().filter(|_| state == KeptState::Ended);
        let Definition { dir, args } = definition;
        Self { run: kept.name, state, status, dir: dir.to_string_lossy().into_owned(), args }
    }
}

/// Lists the runs that are kept by name, whether or not they are active.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {}

/// The runs that are kept by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct KeptRuns {
    /// In the order of their names.
    pub runs: Vec<KeptRun>,
}

impl Method for List {
    const NAME: &'static str = "list";
    type Reply = KeptRuns;
    type Notice = Never;

    fn carry_out(self, _: &dyn Caller<Never>) -> miette::Result<KeptRuns> {
        let runs = Kept::all()?.into_iter().filter(Kept::is_defined).map(KeptRun::of).collect();
        Ok(KeptRuns { runs })
    }
}

/// Starts a run that is kept by name, in the background, and replies when its VMs have started. Can be cancelled until its machine has
/// booted.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The run.
    pub run: String,
}

impl Method for Start {
    const NAME: &'static str = "start";
    const IS_LONG: bool = true;
    type Reply = Started;
    type Notice = Messages;

    fn carry_out(self, caller: &dyn Caller<Messages>) -> miette::Result<Started> {
        let run = self.run;
        let kept = Kept::defined(&run)?;
        let Definition { dir, args } = kept.definition()?;
        if kept.lives() {
            return Err(ControlError::Lives(run).into());
        }
        if !dir.is_dir() {
            return Err(ControlError::NoDirectory { run, dir }.into());
        }
        start([vec![KEPT_AS.into(), run], args].concat(), Some(&dir), caller)
    }
}

/// Removes what is kept of a run that is not active: the logs and the status of its last time, and what `create` keeps.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Remove {
    /// The run.
    pub run: String,
}

/// A run of which nothing is kept any more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Removed {
    /// The run.
    pub run: String,
}

impl Method for Remove {
    const NAME: &'static str = "remove";
    type Reply = Removed;
    type Notice = Never;

    fn carry_out(self, _: &dyn Caller<Never>) -> miette::Result<Removed> {
        Kept::of(&self.run)?.remove()?;
        Ok(Removed { run: self.run })
    }
}
