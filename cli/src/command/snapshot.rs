//! `gnomon snapshot`.

use super::control::Which;
use crate::api::call::{Command, Method};
use crate::api::verbs::{self as api, SnapshotProgress};
use crate::host::progress::Step;
use crate::host::size::Size;
use crate::host::tty;
use clap::Args;
use std::cell::OnceCell;
use std::path::PathBuf;

/// Write a VM's state and memory to a file, from which another run can restore it (gnomon run --restore FILE; see docs/snapshots.md).
/// The VM is paused meanwhile, and resumed afterwards if it was running.
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    #[command(flatten)]
    which: Which,
    /// The VM; optional if there is only one
    vm: Option<String>,
    /// The file; an existing file is replaced when the new one is complete
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// End the VM when the file is complete
    #[arg(long)]
    stop: bool,
}

impl SnapshotArgs {
    /// Takes it.
    pub fn run(self) -> miette::Result<u8> {
        let step = OnceCell::new();
        let caller = Command::new(|SnapshotProgress { vm, percent }| {
            step.get_or_init(|| Step::percent(&format!("a snapshot of {vm}"))).set(percent);
            true
        });
        let request = api::Snapshot { run: self.which.name(), vm: self.vm, output: self.output, stop: self.stop };
        let taken = request.carry_out(&caller);
        drop(step);
        let taken = taken?;
        let (all, some) = (Size(taken.memory_bytes), Size(taken.used_bytes));
        let (seconds, path) = (taken.seconds, taken.output.display());
        tty::say(&format!("gnomon: {}: {all} of memory, {some} of it not zero, in {seconds:.1} s: {path}", taken.vm));
        Ok(0)
    }
}
