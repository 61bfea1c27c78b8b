//! `gnomon shutdown`, `reboot`, `reset` and `destroy`.

use super::control::Whom;
use crate::control::power;
use abi::control::{Power, Request};
use clap::Args;
use std::time::Duration;

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

fn ask(whom: &Whom, wish: Power, seconds: u32) -> miette::Result<u8> {
    let (mut client, vm) = whom.find()?;
    power::ask(&mut client, &vm, wish, Duration::from_secs(seconds.into()))?;
    Ok(0)
}

impl ShutdownArgs {
    /// Shuts it down.
    pub fn run(self) -> miette::Result<u8> {
        ask(&self.whom, Power::Off, self.timeout)
    }
}

impl RebootArgs {
    /// Reboots it.
    pub fn run(self) -> miette::Result<u8> {
        ask(&self.whom, Power::Restart, self.timeout)
    }
}

impl ResetArgs {
    /// Resets it.
    pub fn run(self) -> miette::Result<u8> {
        self.whom.tell("reset", |vm| Request::Power(vm, Power::Reset))
    }
}

impl DestroyArgs {
    /// Ends it.
    pub fn run(self) -> miette::Result<u8> {
        self.whom.tell("destroy", Request::Stop)
    }
}
