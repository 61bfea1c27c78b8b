//! Errors as programs get them: a code, a message, a remedy.

use super::limits::{MOST_CLIENTS, MOST_LINE, MOST_LONG};
use crate::control::migrate::MigrateError;
use crate::control::{CROWDED, ControlError, SILENT};
use crate::host::output::OutputError;
use crate::host::place::IoError;
use miette::{Diagnostic, Report};
use schemars::JsonSchema;
use serde::Serialize;

/// An error, for a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Failure {
    /// The kind, for programs. Later versions may have further codes.
    pub code: Code,
    /// The message of the command for the same, for people.
    pub message: String,
    /// The remedy, for people.
    pub remedy: Option<String>,
}

/// The kind of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The line is not a request.
    BadRequest,
    /// The line is longer than a request may be.
    TooLong,
    /// No method has that name.
    UnknownMethod,
    /// The parameters are not those of the method.
    BadParams,
    /// A request that is not answered yet has the same `id`.
    IdInUse,
    /// No pending request has that `id`.
    NotPending,
    /// The request was cancelled, or its client is gone.
    Cancelled,
    /// Too many clients or commands are connected, or too many requests of a client are pending.
    Busy,
    /// No run or VM is the one that is meant: there is none of that name, or it has ended.
    NotFound,
    /// Several runs or VMs may be meant.
    Ambiguous,
    /// The name cannot be used, because it is taken or is not a name.
    BadName,
    /// The run refuses the request, for example in the VM's present state.
    Refused,
    /// The time is over.
    TimedOut,
    /// The run, or its machine, does not answer.
    Silent,
    /// The run was started by another version of Gnomon.
    Version,
    /// The run lives.
    Active,
    /// A run in the background has ended before it was started.
    NotStarted,
    /// The other side of a migration cannot be reached, refuses the VM, or is lost.
    Migration,
    /// A file or a socket cannot be used.
    Io,
    /// Another error.
    Other,
}

/// The errors of the API itself.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ApiError {
    /// The line is not JSON, or not of the form of a request.
    #[error("this line is not a request: {0}")]
    #[diagnostic(help(r#"send one JSON object in a line: {{"id": 1, "method": "ps", "params": {{}}}}"#))]
    BadRequest(String),
    /// The line is too long.
    #[error("this line is longer than {most} bytes", most = MOST_LINE)]
    #[diagnostic(help("split the request"))]
    TooLong,
    /// No method has that name.
    #[error("there is no method `{name}`: {meant}choose one of {}", .known.join(" "))]
    #[diagnostic(help("gnomon api --schema lists the methods, docs/api.md explains them"))]
    UnknownMethod {
        /// The name.
        name: String,
        /// A guess, or nothing.
        meant: String,
        /// All methods.
        known: Vec<&'static str>,
    },
    /// The parameters do not fit.
    #[error("the parameters do not fit `{method}`: {why}")]
    #[diagnostic(help("gnomon api --schema has the parameters of each method"))]
    BadParams {
        /// The method.
        method: &'static str,
        /// The reason.
        why: String,
    },
    /// The `id` is in use.
    #[error("a request with this `id` is not answered yet")]
    #[diagnostic(help("choose another `id` for each request"))]
    IdInUse,
    /// No pending request has the `id`.
    #[error("no request with this `id` is pending")]
    #[diagnostic(help("it was answered already, or never sent by this client"))]
    NotPending,
    /// Too many clients.
    #[error("{most} clients are connected", most = MOST_CLIENTS)]
    #[diagnostic(help("close another client, or start another gnomon api"))]
    Busy,
    /// Too many long requests.
    #[error("{most} requests of this client wait for VMs", most = MOST_LONG)]
    #[diagnostic(help("cancel one of them, or connect once more"))]
    TooMany,
    /// A run has ended before its VMs were started.
    #[error("the run ended with status {status} before it was started: {last}")]
    #[diagnostic(help("the notifications before have all of its messages"))]
    NotStarted {
        /// Its exit status.
        status: u8,
        /// Its last message.
        last: String,
    },
    /// The socket cannot be made.
    #[error("cannot listen at {path}: {why}")]
    #[diagnostic(help("name a file that does not exist yet, in a directory that you may write: --listen unix:PATH"))]
    Listen {
        /// The path.
        path: std::path::PathBuf,
        /// The reason.
        why: String,
    },
}

impl ApiError {
    const fn code(&self) -> Code {
        match self {
            Self::BadRequest(_) => Code::BadRequest,
            Self::TooLong => Code::TooLong,
            Self::UnknownMethod { .. } => Code::UnknownMethod,
            Self::BadParams { .. } => Code::BadParams,
            Self::IdInUse => Code::IdInUse,
            Self::NotPending => Code::NotPending,
            Self::Busy | Self::TooMany => Code::Busy,
            Self::NotStarted { .. } => Code::NotStarted,
            Self::Listen { .. } => Code::Io,
        }
    }
}

fn code(why: &ControlError) -> Code {
    match why {
        ControlError::NoRun
        | ControlError::UnknownRun { .. }
        | ControlError::UnknownVm { .. }
        | ControlError::NowhereVm { .. }
        | ControlError::NoVm(_)
        | ControlError::Gone(_)
        | ControlError::UnknownPort { .. }
        | ControlError::NoRecords
        | ControlError::NoRecord { .. }
        | ControlError::NoVmRecord { .. }
        | ControlError::NoDefinition { .. }
        | ControlError::NoDirectory { .. } => Code::NotFound,
        ControlError::WhichRun(_) | ControlError::WhichOfRuns { .. } | ControlError::WhichVm { .. } => Code::Ambiguous,
        ControlError::Name(_) | ControlError::Taken(_) | ControlError::Defined(_) => Code::BadName,
        // The run answers this for its machine.
        ControlError::Refused { why, .. } if why == SILENT => Code::Silent,
        ControlError::Refused { why, .. } if why == CROWDED => Code::Busy,
        ControlError::Version { .. } | ControlError::AgentVersion { .. } | ControlError::Nonsense(_) => Code::Version,
        ControlError::Refused { .. } | ControlError::NoShell(_) | ControlError::Unstarted { .. } => Code::Refused,
        ControlError::Stays { .. } => Code::TimedOut,
        ControlError::Cancelled(_) => Code::Cancelled,
        ControlError::Silent(_) | ControlError::NoAgent { .. } => Code::Silent,
        ControlError::Lives(_) => Code::Active,
        ControlError::Place { .. }
        | ControlError::LongPath { .. }
        | ControlError::NoStateHome
        | ControlError::Record { .. }
        | ControlError::Listen { .. }
        | ControlError::Socket { .. } => Code::Io,
        ControlError::CutOff(_) | ControlError::Debugger { .. } | ControlError::Terminal(_) => Code::Other,
    }
}

impl From<&Report> for Failure {
    fn from(report: &Report) -> Self {
        let code = if let Some(why) = report.downcast_ref::<ControlError>() {
            code(why)
        } else if let Some(why) = report.downcast_ref::<ApiError>() {
            why.code()
        } else if let Some(why) = report.downcast_ref::<MigrateError>() {
            match why {
                MigrateError::Control(why) => code(why),
                MigrateError::Io(_) | MigrateError::NoPlace { .. } => Code::Io,
                MigrateError::Disk { .. } => Code::Refused,
                _ => Code::Migration,
            }
        } else if report.downcast_ref::<IoError>().is_some() || report.downcast_ref::<OutputError>().is_some() {
            Code::Io
        } else {
            Code::Other
        };
        Self { code, message: report.to_string(), remedy: report.help().map(|help| help.to_string()) }
    }
}

impl From<ApiError> for Failure {
    fn from(why: ApiError) -> Self {
        (&Report::from(why)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_codes_of_their_reasons() {
        for (why, expected) in [(SILENT, Code::Silent), (CROWDED, Code::Busy), ("it is paused", Code::Refused)] {
            let refused = ControlError::Refused { run: "x".into(), what: "a pause".into(), why: why.into() };
            assert_eq!(Failure::from(&Report::from(refused)).code, expected, "{why}");
        }
    }
}
