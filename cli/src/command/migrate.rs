//! `gnomon migrate`.

use super::control::Which;
use super::script::{STATUS_INPUT, complain_of};
use crate::api::call::{Command, Method, call};
use crate::api::verbs::{self as api, MigrateProgress};
use crate::control::migrate::Address;
use crate::host::progress::Step;
use crate::host::size::{PAGE, Size};
use crate::host::tty;
use clap::Args;
use std::cell::OnceCell;

/// Move a VM to another run while it runs: the other side is started first, by gnomon run --incoming ADDRESS (see docs/migration.md).
#[derive(Debug, Args)]
pub struct MigrateArgs {
    #[command(flatten)]
    which: Which,
    /// The VM
    vm: String,
    /// The place at which the other side waits: unix:PATH or tcp:HOST:PORT
    address: Address,
    /// Say whether the VM can go there, and move nothing. The other side ends
    #[arg(long)]
    dry_run: bool,
}

impl MigrateArgs {
    /// Moves it.
    pub fn run(self) -> miette::Result<u8> {
        if self.dry_run {
            let step = Step::spinner(&format!("waiting for a machine at {}", self.address));
            let (run, address) = (self.which.name(), self.address.to_string());
            let checked = call(api::CheckMigration { run, vm: self.vm, address });
            drop(step);
            tty::say(&format!("gnomon: {} can go to {}", checked?.vm, self.address));
            return Ok(0);
        }
        let step = OnceCell::new();
        let caller = Command::new(|MigrateProgress { vm, round, sent_bytes, left_bytes }| {
            let step = step.get_or_init(|| Step::spinner(&format!("{vm} moves to {}", self.address)));
            if round > 0 {
                step.note(format!("round {round}, {} sent, {} left", Size(sent_bytes), Size(left_bytes)));
            }
            true
        });
        let request = api::Migrate { run: self.which.name(), vm: self.vm, address: self.address.to_string() };
        let moved = request.carry_out(&caller);
        drop(step);
        let moved = moved?;
        tty::say(&format!(
            "gnomon: {} runs at {} now: {} of memory in {} rounds, {:.2} times what it uses; it stood still for {} ms",
            moved.vm,
            self.address,
            Size(moved.sent_bytes),
            moved.rounds,
            moved.sent_bytes as f64 / moved.used_bytes.max(PAGE) as f64,
            moved.still_ms
        ));
        moved.remains.iter().for_each(complain_of);
        Ok(if moved.remains.is_some() { STATUS_INPUT } else { 0 })
    }
}
