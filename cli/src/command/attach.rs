//! `gnomon attach`.

use super::background::status_of;
use super::control::Which;
use crate::control::ControlError;
use crate::control::attach::{Console, End, Form, typed};
use crate::control::client::Client;
use crate::control::kept::Kept;
use crate::host::tty;
use abi::control::{Request, VmInfo, VmState};
use clap::Args;
use std::io::{stderr, stdout};
use std::sync::mpsc::Receiver;

/// The keys, after Ctrl-A, that are about the run and not about one console.
const COMMANDS: &[u8] = b"hnxpk123456789";
const HELP: &str = "Ctrl-A d leaves while the VMs keep running; n: next VM; 1 to 9: that VM; p: pause or resume the VM; k: end the VM; x: end all \
                    VMs; Ctrl-A: send Ctrl-A to the VM";

/// Attach this terminal to the consoles of a run, one at a time (see docs/control.md).
///
/// Ctrl-A d leaves; the run goes on. Exit status: 0 if the user left; else that of the run.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct AttachArgs {
    /// The run; optional if only one is active
    #[arg(value_name = "RUN")]
    name: Option<String>,
}

/// An attachment to a run.
struct Attachment {
    client: Client,
    form: Form,
    typed: Receiver<Vec<u8>>,
}

/// The VM that is to be shown after another.
enum Choice {
    /// The first one.
    First,
    /// The one with this number.
    Number(u64),
    /// The one after the VM with this number.
    After(u64),
}

impl AttachArgs {
    /// Shows the consoles until the user leaves, or the run has ended.
    pub fn run(self) -> miette::Result<u8> {
        let client = Which::of(self.name).client()?;
        let run = client.run().to_owned();
        let end = {
            let (form, _raw) = Form::enter()?;
            Attachment { client, form, typed: typed() }.follow()
        };
        if end? == End::Left {
            return Ok(0);
        }
        tty::say(&format!("gnomon: run {run} has ended"));
        // A run on another terminal tells its status there.
        match Kept::find(Some(&run), None) {
            Ok(kept) => Ok(status_of(&kept.name, kept.wait()?)),
            Err(_) => Ok(0),
        }
    }
}

impl Attachment {
    /// Shows one VM after the other. Returns [`End::Left`] or [`End::Run`].
    fn follow(&mut self) -> Result<End, ControlError> {
        let mut next = Choice::First;
        loop {
            let Some((vm, count)) = self.choose(&next)? else { return Ok(End::Run) };
            let mut console =
                Console::new(&mut self.client, &vm, (self.form, stdout()), stderr()).with_commands(COMMANDS);
            if self.form == Form::Terminal {
                let others = if count > 1 { ", Ctrl-A n shows the next VM" } else { "" };
                console.say(&format!("console of {}; Ctrl-A d leaves{others}, Ctrl-A h helps", vm.name));
            }
            next = match console.follow(&self.typed)? {
                End::Vm => {
                    console.say(&format!("{} has ended", vm.name));
                    Choice::After(vm.number)
                }
                End::Command(b'h') => {
                    console.say(HELP);
                    Choice::Number(vm.number)
                }
                End::Command(b'n') => Choice::After(vm.number),
                End::Command(digit @ b'1'..=b'9') => Choice::Number(u64::from(digit - b'1')),
                End::Command(key) => {
                    self.command(key, &vm);
                    Choice::Number(vm.number)
                }
                end @ (End::Left | End::Run) => return Ok(end),
            };
        }
    }

    /// Carries out a command about VMs. What is refused is said by the state that `gnomon ps` shows.
    fn command(&mut self, key: u8, vm: &VmInfo) {
        match key {
            b'p' if self.client.tell("resume", &Request::Resume(vm.number)).is_err() => {
                let _ = self.client.tell("pause", &Request::Pause(vm.number));
            }
            b'k' => _ = self.client.tell("destroy", &Request::Stop(vm.number)),
            b'x' => {
                // The last ones first: those that wait for others never start.
                for vm in self.client.vms().map(|vms| vms.vms).unwrap_or_default().iter().rev() {
                    let _ = self.client.tell("destroy", &Request::Stop(vm.number));
                }
            }
            _ => {}
        }
    }

    /// Returns the VM that is to be shown, and how many there are. While all of them wait for others, so does this. `None`: the run has
    /// ended.
    fn choose(&mut self, choice: &Choice) -> Result<Option<(VmInfo, usize)>, ControlError> {
        loop {
            let vms = match self.client.vms() {
                Ok(vms) => vms.vms,
                Err(ControlError::Gone(_)) => return Ok(None),
                Err(ControlError::Silent(_) | ControlError::Refused { .. }) => Vec::new(),
                Err(why) => return Err(why),
            };
            let shown = |vm: &&VmInfo| !matches!(vm.state, VmState::Waiting | VmState::Ended);
            let vms: Vec<VmInfo> = vms.iter().filter(shown).cloned().collect();
            let found = match *choice {
                Choice::First => None,
                Choice::Number(number) => vms.iter().find(|vm| vm.number == number),
                Choice::After(number) => vms.iter().find(|vm| vm.number > number),
            };
            if let Some(vm) = found.or(vms.first()) {
                return Ok(Some((vm.clone(), vms.len())));
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
