//! The `gnomon` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    gnomon::command::main()
}
