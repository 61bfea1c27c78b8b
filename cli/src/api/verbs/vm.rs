//! Methods that change the state of a VM.

use crate::api::call::{Caller, Method, Never};
use crate::control::client::Client;
use crate::control::power;
use abi::control::{Power, Request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The time limit of a shutdown if none is given, in seconds.
const TIMEOUT: u32 = 30;

const fn timeout() -> u32 {
    TIMEOUT
}

/// The VM that a request was about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct Target {
    /// The run.
    pub run: String,
    /// The VM.
    pub vm: String,
}

/// Finds the VM, and sends a request whose answer is only that it was carried out.
fn tell(
    (run, vm): (Option<&str>, Option<&str>),
    what: &str,
    request: impl FnOnce(u64) -> Request,
) -> miette::Result<Target> {
    let (mut client, vm) = Client::reach(run, vm)?;
    client.tell(&format!("cannot {what} VM `{}`", vm.name), &request(vm.number))?;
    Ok(Target { run: client.run().into(), vm: vm.name })
}

/// Finds the VM, and asks its guest.
fn ask(
    (run, vm): (Option<&str>, Option<&str>),
    (wish, seconds): (Power, u32),
    caller: &dyn Caller<Never>,
) -> miette::Result<Target> {
    let (mut client, vm) = Client::reach(run, vm)?;
    let limit = Duration::from_secs(seconds.into());
    power::ask(&mut client, &vm, (wish, limit), &|| caller.is_cancelled())?;
    Ok(Target { run: client.run().into(), vm: vm.name })
}

/// Defines methods that send one request about a VM.
macro_rules! simple {
    ($($(#[$about:meta])* $name:ident = $method:literal: $request:expr;)*) => { $(
        $(#[$about])*
        #[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The run; optional if there is only one, or only one has that VM.
            pub run: Option<String>,
            /// The VM; optional if the run has only one.
            pub vm: Option<String>,
        }

        impl Method for $name {
            const NAME: &'static str = $method;
            type Reply = Target;
            type Notice = Never;

            fn carry_out(self, _: &dyn Caller<Never>) -> miette::Result<Target> {
                tell((self.run.as_deref(), self.vm.as_deref()), $method, $request)
            }
        }
    )* };
}

simple! {
    /// Pauses a VM: its vCPUs leave their harts until it is resumed.
    Pause = "pause": Request::Pause;
    /// Resumes a VM that was paused.
    Resume = "resume": Request::Resume;
    /// Resets a VM at once. Its guest is not asked.
    Reset = "reset": |vm| Request::Power(vm, Power::Reset);
    /// Ends a VM at once. Its guest is not asked.
    Destroy = "destroy": Request::Stop;
}

/// Defines methods that ask the guest of a VM, and wait.
macro_rules! asking {
    ($($(#[$about:meta])* $name:ident = $method:literal: $wish:expr;)*) => { $(
        $(#[$about])*
        #[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The run; optional if there is only one, or only one has that VM.
            pub run: Option<String>,
            /// The VM; optional if the run has only one.
            pub vm: Option<String>,
            /// The longest time to wait, in seconds; 0: ask, and do not wait.
            #[serde(default = "timeout")]
            pub timeout: u32,
        }

        impl Method for $name {
            const NAME: &'static str = $method;
            const IS_LONG: bool = true;
            type Reply = Target;
            type Notice = Never;

            fn carry_out(self, caller: &dyn Caller<Never>) -> miette::Result<Target> {
                ask((self.run.as_deref(), self.vm.as_deref()), ($wish, self.timeout), caller)
            }
        }
    )* };
}

asking! {
    /// Asks the guest of a VM to shut down, and replies when the VM has ended. Can be cancelled: then the guest is not asked again.
    Shutdown = "shutdown": Power::Off;
    /// Asks the guest of a VM to shut down, and replies when the VM starts over. Can be cancelled: then a shutdown ends the VM.
    Reboot = "reboot": Power::Restart;
}
