//! `gnomon shutdown`, `reboot`, `reset` and `destroy`.

use super::control::Whom;
use crate::api::call::call;
use crate::api::verbs as api;
use clap::Args;

/// Ask the guest of a VM to shut down, and wait until the VM has ended.
#[derive(Debug, Args)]
pub struct ShutdownArgs {
    #[command(flatten)]
    whom: Whom,
    /// The longest time to wait; 0: ask, and return at once
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u32,
}

/// Ask the guest of a VM to shut down, and let the VM start over then.
#[derive(Debug, Args)]
pub struct RebootArgs {
    #[command(flatten)]
    whom: Whom,
    /// The longest time to wait; 0: ask, and return at once
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u32,
}

/// Reset a VM at once, as by the reset button. Its guest is not asked.
#[derive(Debug, Args)]
pub struct ResetArgs {
    #[command(flatten)]
    whom: Whom,
}

/// End a VM at once. Its guest is not asked.
#[derive(Debug, Args)]
pub struct DestroyArgs {
    #[command(flatten)]
    whom: Whom,
}

impl ShutdownArgs {
    /// Shuts it down.
    pub fn run(self) -> miette::Result<u8> {
        let (run, vm) = self.whom.names();
        call(api::Shutdown { run, vm, timeout: self.timeout })?;
        Ok(0)
    }
}

impl RebootArgs {
    /// Reboots it.
    pub fn run(self) -> miette::Result<u8> {
        let (run, vm) = self.whom.names();
        call(api::Reboot { run, vm, timeout: self.timeout })?;
        Ok(0)
    }
}

impl ResetArgs {
    /// Resets it.
    pub fn run(self) -> miette::Result<u8> {
        let (run, vm) = self.whom.names();
        call(api::Reset { run, vm })?;
        Ok(0)
    }
}

impl DestroyArgs {
    /// Ends it.
    pub fn run(self) -> miette::Result<u8> {
        let (run, vm) = self.whom.names();
        call(api::Destroy { run, vm })?;
        Ok(0)
    }
}
