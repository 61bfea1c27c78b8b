//! `gnomon migrate`.

use super::control::Which;
use crate::control::migrate::{Address, Line, check, send};
use crate::host::progress::Step;
use crate::host::size::{PAGE, Size};
use crate::host::tty;
use abi::control::Request;
use clap::Args;

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
        let (mut client, vm) = self.which.find(Some(&self.vm))?;
        let mut line = Line::to(&self.address)?;
        if self.dry_run {
            let step = Step::spinner(&format!("waiting for a machine at {}", self.address));
            check(&mut client, (vm.number, &vm.name), &mut line)?;
            drop(step);
            tty::say(&format!("gnomon: {} can go to {}", vm.name, self.address));
            return Ok(0);
        }
        let step = Step::spinner(&format!("{} moves to {}", vm.name, self.address));
        let tell = |now: crate::control::migrate::Progress| {
            step.note(format!(
                "round {}, {} sent, {} left",
                now.round,
                Size(now.sent * PAGE),
                Size(now.left as u64 * PAGE)
            ));
        };
        let moved = send(&mut client, (vm.number, &vm.name), &mut line, tell)?;
        // It runs there: whatever is left of it here ends.
        let ended =
            client.tell(&format!("cannot stop VM `{}`, which runs elsewhere now", vm.name), &Request::Stop(vm.number));
        drop(step);
        tty::say(&format!(
            "gnomon: {} runs at {} now: {} of memory in {} rounds, {:.2} times what it uses; it stood still for {} ms",
            vm.name,
            self.address,
            Size(moved.sent * PAGE),
            moved.rounds + 1,
            moved.sent as f64 / moved.used.max(1) as f64,
            moved.still.as_millis()
        ));
        ended?;
        Ok(0)
    }
}
