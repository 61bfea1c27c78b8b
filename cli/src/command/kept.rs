//! Runs that are kept by name: `gnomon create`, `list`, `start`, `rm`.

use super::control::say;
use super::run::RunArgs;
use super::script::{STATUS_INPUT, complain, print};
use crate::api::call::{Command, Method, call};
use crate::api::verbs::{Create, KeptRun, List, Messages, Remove, Start};
use crate::host::table;
use crate::host::tty;
use crate::host::words::quoted_for_bash;
use clap::Args;
use miette::miette;
use std::ffi::OsString;

/// Keep a run by a name, to be started by `gnomon start`: its VM files and options, which are those of `gnomon run`.
///
/// VM files stay where they are, and are read again at each start. The run's name is that of its first VM, or the one of --as.
#[derive(Debug, Args)]
pub struct CreateArgs {
    #[command(flatten)]
    run: Box<RunArgs>,
}

impl CreateArgs {
    /// Keeps it.
    pub fn run(self) -> miette::Result<u8> {
        let words = std::env::args_os().skip(2).map(OsString::into_string);
        let args = words.collect::<Result<Vec<_>, _>>().map_err(|word| {
            miette!(help = "give files names of UTF-8", "`{}` cannot be kept: it is no UTF-8", word.to_string_lossy())
        })?;
        let name = self.run.kept_name()?;
        let created = call(Create { run: name, args })?;
        say(&[created.run])?;
        Ok(0)
    }
}

/// List the runs that are kept by name, whether or not they are active.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    /// Lists them.
    pub fn run(self) -> miette::Result<u8> {
        let list = call(List {})?;
        if self.json {
            print(&format!("{}\n", serde_json::json!(list.runs)))?;
            return Ok(0);
        }
        let row = |run: &KeptRun| {
            let status = run.status.map_or("-".into(), |status| status.to_string());
            let words: Vec<_> = run.args.iter().map(|word| quoted_for_bash(word)).collect();
            [run.run.clone(), run.state.name().into(), status, run.dir.clone(), words.join(" ")]
        };
        let heading = ["RUN", "STATE", "STATUS", "DIRECTORY", "ARGUMENTS"].map(String::from);
        let rows: Vec<_> = std::iter::once(heading).chain(list.runs.iter().map(row)).collect();
        say(&table::lines(&rows, |column| column == 2))?;
        Ok(0)
    }
}

/// Start runs that are kept by name, in the background, and return when their VMs have started.
#[derive(Debug, Args)]
pub struct StartArgs {
    /// The runs
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<String>,
}

impl StartArgs {
    /// Starts them, in order; the status is that of the last one that could not be started.
    pub fn run(self) -> miette::Result<u8> {
        let mut status = 0;
        for run in self.runs {
            let caller = Command::new(|Messages { text }| {
                tty::say(&text);
                true
            });
            match (Start { run }).carry_out(&caller) {
                Ok(started) => {
                    say(&[started.run])?;
                    status = started.status.filter(|ended| *ended != 0).unwrap_or(status);
                }
                Err(why) => {
                    complain(&why);
                    status = STATUS_INPUT;
                }
            }
        }
        Ok(status)
    }
}

/// Remove runs that are not active: what `gnomon create` keeps, logs and statuses.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// The runs
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<String>,
}

impl RmArgs {
    /// Removes them; the status is 1 if one cannot be removed.
    pub fn run(self) -> miette::Result<u8> {
        let mut status = 0;
        for run in self.runs {
            if let Err(why) = call(Remove { run }) {
                complain(&why);
                status = STATUS_INPUT;
            }
        }
        Ok(status)
    }
}
