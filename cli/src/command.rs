//! The command line.

mod bench;
mod run;
mod test;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Bad input, or something that is needed is not there.
const STATUS_INPUT: u8 = 1;

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
    Bench(bench::BenchArgs),
    Test(test::TestArgs),
}

/// Runs the command line that this process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Command::parse().action {
        Action::Run(args) => args.run(),
        Action::Bench(args) => args.run(),
        Action::Test(args) => args.run(),
    };
    match result {
        Ok(status) => status.into(),
        Err(report) => {
            complain(&report);
            STATUS_INPUT.into()
        }
    }
}

/// Says what is wrong, and what to do.
fn complain(report: &miette::Report) {
    eprintln!("gnomon: error: {report}");
    if let Some(help) = report.help() {
        eprintln!("gnomon: remedy: {help}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Command::command().debug_assert();
    }
}
