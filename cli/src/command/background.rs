//! Runs in the background: `gnomon run -d`, `wait`, `logs`.

use crate::api::call::call;
use crate::api::start::{StartEnd, Starting};
use crate::api::verbs as api;
use crate::control::kept::Kept;
use crate::control::logs::{self, Until};
use crate::host::tty;
use clap::Args;
use std::io::stdout;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

/// The status of a run that was killed before it could say how it ended.
const STATUS_KILLED: u8 = 4;

/// Starts this command line again as a run in the background; returns when its VMs have started, with status 0, or when it has ended.
pub(super) fn start() -> miette::Result<u8> {
    let words = std::env::args_os().skip(1).collect();
    let StartEnd { run, status } = Starting::spawn(words, None, Stdio::inherit())?.finish(&|| false)?;
    if let Some(signal) = status.and_then(|status| status.signal()) {
        tty::say(&format!("gnomon: the run was killed by signal {signal}"));
    }
    match (run, status.map_or(0, api::status_of)) {
        (Some(name), 0) => {
            super::control::say(&[name])?;
            Ok(0)
        }
        (_, status) => Ok(status),
    }
}

/// Wait until a VM, or a whole run in the background, has ended.
///
/// Exit status: that of `gnomon run`; of a VM, that of a run with this VM alone; 4 if the run was killed.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct WaitArgs {
    /// The VM [default: all VMs of the run]
    vm: Option<String>,
    /// The run
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
}

impl WaitArgs {
    /// Waits.
    pub fn run(self) -> miette::Result<u8> {
        let ended = call(api::Wait { run: self.run, vm: self.vm })?;
        Ok(status_of(&ended.run, ended.status))
    }
}

/// The exit status for a run that has ended in that way.
pub(super) fn status_of(run: &str, status: Option<u8>) -> u8 {
    if status.is_none() {
        tty::say(&format!("gnomon: run `{run}` was killed before it could say how it ended"));
    }
    status.unwrap_or(STATUS_KILLED)
}

/// Print the log of a VM of a run in the background.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The VM; optional if there is only one
    vm: Option<String>,
    /// The run
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Print what is added, until the run has ended
    #[arg(long, short)]
    follow: bool,
    /// Print the messages of the run itself
    #[arg(long, conflicts_with = "vm")]
    messages: bool,
}

impl LogsArgs {
    /// Prints it.
    pub fn run(self) -> miette::Result<u8> {
        let kept = Kept::find(self.run.as_deref(), self.vm.as_deref())?;
        let vm = if self.messages { None } else { Some(kept.vm(self.vm.as_deref())?) };
        let until = if self.follow { Until::Ended } else { Until::Now };
        logs::copy(&kept, vm.as_deref(), (until, &|| false), &mut stdout().lock())?;
        Ok(0)
    }
}
