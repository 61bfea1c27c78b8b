//! `gnomon console`.

use super::control::Whom;
use crate::control::attach::{Console, End, Form, typed};
use clap::Args;
use std::io::{stderr, stdout};

/// Attach this terminal to a VM's console (see docs/console.md).
///
/// Ctrl-A d leaves; the VM keeps running.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ConsoleArgs {
    #[command(flatten)]
    whom: Whom,
}

impl ConsoleArgs {
    /// Shows the console until the user leaves it, or the VM ends.
    pub fn run(self) -> miette::Result<u8> {
        let (mut client, vm) = self.whom.find()?;
        let run = client.run().to_owned();
        let end = {
            let (form, _raw) = Form::enter()?;
            let mut console = Console::new(&mut client, &vm, (form, stdout()), stderr());
            if form == Form::Terminal {
                console.say(&format!("console of {} in run {run}; Ctrl-A d leaves, Ctrl-A h helps", vm.name));
            }
            let end = console.follow(&typed());
            match end {
                Ok(End::Left) if form == Form::Terminal => console.say(&format!("left the console of {}", vm.name)),
                Ok(End::Left | End::Command(_)) | Err(_) => {}
                Ok(End::Vm) => console.say(&format!("{} has ended", vm.name)),
                Ok(End::Run) => console.say(&format!("run {run} has ended")),
            }
            end
        };
        end?;
        Ok(0)
    }
}
