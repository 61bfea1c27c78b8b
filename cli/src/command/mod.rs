//! The command line.

mod api;
mod attach;
mod background;
mod bench;
mod console;
mod control;
mod cp;
mod exec;
mod gdb;
mod install;
mod kept;
mod migrate;
mod port;
mod power;
mod run;
mod script;
mod shell;
mod snapshot;
mod test;
mod watch;

use crate::host::home::home;
use crate::host::tty;
use clap::{CommandFactory, Parser, Subcommand};
use script::{Need, STATUS_INPUT, complain};
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs virtual machines on Gnomon, a hypervisor for RISC-V, in QEMU.
#[derive(Debug, Parser)]
#[command(version, name = "gnomon", max_term_width = 100, propagate_version = true)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Run(Box<run::RunArgs>),
    Exec(Box<exec::ExecArgs>),
    Create(kept::CreateArgs),
    List(kept::ListArgs),
    Start(kept::StartArgs),
    Ps(control::PsArgs),
    Attach(attach::AttachArgs),
    Wait(background::WaitArgs),
    Logs(background::LogsArgs),
    Rm(kept::RmArgs),
    Top(watch::TopArgs),
    Stats(control::StatsArgs),
    Get(control::GetArgs),
    Set(control::SetArgs),
    Pause(control::PauseArgs),
    Resume(control::ResumeArgs),
    Shutdown(power::ShutdownArgs),
    Reboot(power::RebootArgs),
    Reset(power::ResetArgs),
    #[command(visible_alias = "stop")]
    Destroy(power::DestroyArgs),
    Snapshot(snapshot::SnapshotArgs),
    Migrate(migrate::MigrateArgs),
    Console(console::ConsoleArgs),
    Port(port::PortArgs),
    Shell(shell::ShellArgs),
    Cp(cp::CpArgs),
    Gdb(gdb::GdbArgs),
    Trace(watch::TraceArgs),
    Events(api::EventsArgs),
    Api(api::ApiArgs),
    Bench(bench::BenchArgs),
    Test(test::TestArgs),
    Install(install::InstallArgs),
    Uninstall(install::UninstallArgs),
    /// Becomes QEMU in a sandbox, for the run that has started it.
    #[command(hide = true)]
    Confine(crate::machine::confine::ConfineArgs),
    /// Ends a group of processes when the run has ended that has started it.
    #[command(hide = true)]
    EndGroup(crate::machine::group::EndGroupArgs),
    /// Serves a share, for the run that has started it.
    #[command(hide = true)]
    ShareServer(crate::machine::server::ServerArgs),
    /// Says what a command line needs to be installed, for the script that installs it.
    #[command(hide = true)]
    Needs {
        /// The command line.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

impl Action {
    /// The programs and packages that it needs.
    fn needs(&self) -> Vec<Need> {
        match self {
            Self::Run(_) | Self::Exec(_) | Self::Start(_) => Need::GUESTS.to_vec(),
            Self::Bench(args) => args.needs(),
            Self::Test(args) => args.needs(),
            // They speak to what runs, or build.
            Self::Create(_)
            | Self::List(_)
            | Self::Ps(_)
            | Self::Attach(_)
            | Self::Wait(_)
            | Self::Logs(_)
            | Self::Rm(_)
            | Self::Top(_)
            | Self::Trace(_)
            | Self::Events(_)
            | Self::Api(_)
            | Self::Stats(_)
            | Self::Get(_)
            | Self::Set(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Shutdown(_)
            | Self::Reboot(_)
            | Self::Reset(_)
            | Self::Destroy(_)
            | Self::Snapshot(_)
            | Self::Migrate(_)
            | Self::Console(_)
            | Self::Port(_)
            | Self::Shell(_)
            | Self::Cp(_)
            | Self::Gdb(_)
            | Self::Install(_)
            | Self::Uninstall(_)
            | Self::Confine(_)
            | Self::EndGroup(_)
            | Self::ShareServer(_)
            | Self::Needs { .. } => Vec::new(),
        }
    }
}

/// The programs and packages that a command line needs: none if it is wrong, or asks for help.
fn needs(words: Vec<OsString>) -> Vec<Need> {
    let words = std::iter::once("gnomon".into()).chain(words);
    Command::try_parse_from(words).map(|command| command.action.needs()).unwrap_or_default()
}

/// Runs the command line that this process was started with.
#[must_use]
pub fn main() -> ExitCode {
    // An upgrade may replace an installed command while it runs.
    let _ = home();
    let command = Command::try_parse().unwrap_or_else(|why| wrong_usage(&why));
    let result = match command.action {
        Action::Run(args) => args.run(),
        Action::Exec(args) => args.run(),
        Action::Create(args) => args.run(),
        Action::List(args) => args.run(),
        Action::Start(args) => args.run(),
        Action::Ps(args) => args.run(),
        Action::Attach(args) => args.run(),
        Action::Wait(args) => args.run(),
        Action::Logs(args) => args.run(),
        Action::Rm(args) => args.run(),
        Action::Top(args) => args.run(),
        Action::Stats(args) => args.run(),
        Action::Get(args) => args.run(),
        Action::Set(args) => args.run(),
        Action::Pause(args) => args.run(),
        Action::Resume(args) => args.run(),
        Action::Shutdown(args) => args.run(),
        Action::Reboot(args) => args.run(),
        Action::Reset(args) => args.run(),
        Action::Destroy(args) => args.run(),
        Action::Snapshot(args) => args.run(),
        Action::Migrate(args) => args.run(),
        Action::Console(args) => args.run(),
        Action::Port(args) => args.run(),
        Action::Shell(args) => args.run(),
        Action::Cp(args) => args.run(),
        Action::Gdb(args) => args.run(),
        Action::Trace(args) => args.run(),
        Action::Events(args) => args.run(),
        Action::Api(args) => args.run(),
        Action::Bench(args) => args.run(),
        Action::Test(args) => args.run(),
        Action::Install(args) => args.run(&Command::command()),
        Action::Uninstall(args) => args.run(),
        Action::Confine(args) => Ok(args.run()),
        Action::EndGroup(args) => Ok(args.run()),
        Action::ShareServer(args) => Ok(args.run()),
        Action::Needs { words } => {
            let names: String = needs(words).into_iter().map(|need| format!("{}\n", need.name())).collect();
            script::print(&names).map(|()| 0).map_err(Into::into)
        }
    };
    match result {
        Ok(status) => status.into(),
        Err(report) => {
            complain(&report);
            STATUS_INPUT.into()
        }
    }
}

/// Ends with the message about a command line that is not valid, or with the help that was asked for.
fn wrong_usage(why: &clap::Error) -> ! {
    if !why.use_stderr() {
        let printed = script::printed(why.print());
        printed.unwrap_or_else(|lost| {
            complain(&lost.into());
            std::process::exit(STATUS_INPUT.into())
        });
        std::process::exit(why.exit_code())
    }
    tty::say(why.render().to_string().trim_end());
    std::process::exit(why.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Command::command().debug_assert();
    }

    #[test]
    fn only_what_is_run_needs_something() {
        let needs = |line: &str| needs(line.split_whitespace().map(OsString::from).collect());
        for line in [
            "",
            "--help",
            "--version",
            "run --help",
            "run --colour blue",
            "bench",
            "bench fig7 --help",
            "test --help",
            "test --list",
            "test --full --list linux",
            "test no-such-test",
            "test host/format",
            "needs test",
            "ps",
            "stop --run a b",
            "snapshot -o a",
            "set a=1",
        ] {
            assert_eq!(needs(line), [], "{line}");
        }
        for line in ["run", "run --exec --help", "bench fig7", "test --full linux/"] {
            assert_eq!(needs(line), Need::GUESTS, "{line}");
        }
        assert_eq!(
            needs("test"),
            [Need::Keys, Need::Qemu, Need::Passt, Need::Browser, Need::Solver, Need::Debugger, Need::Cxx]
        );
        assert_eq!(
            needs("test --jobs 1 host/tests"),
            [Need::Keys, Need::Qemu, Need::Passt, Need::Browser, Need::Solver, Need::Debugger]
        );
        assert_eq!(needs("test host/fuzz"), [Need::Cxx]);
    }
}
