//! `gnomon snapshot`.

use super::control::Which;
use crate::control::save::{self, Held, Unsaved};
use crate::host::place::IoError;
use crate::host::progress::Step;
use crate::host::size::{PAGE, Size};
use crate::host::tty;
use abi::control::Request;
use clap::Args;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Instant;

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
        // Another command may write that file for the same VM: each has a file of its own until it is complete.
        let part = save::FILE.begin_private(&self.output)?;
        let (mut client, vm) = self.which.find(self.vm.as_deref())?;
        let (started, step) = (Instant::now(), Step::percent(&format!("a snapshot of {}", vm.name)));
        let mut held = Held::begin(&mut client, (vm.number, &vm.name))?;
        let written = held.write(BufWriter::with_capacity(1 << 20, part.file()), |percent| step.set(percent));
        let saved = match written {
            Ok(saved) => saved,
            Err(why) => {
                // The VM resumes in any case.
                let _ = held.end();
                return match why {
                    Unsaved::Control(why) => Err(why.into()),
                    Unsaved::Io(why) => Err(IoError::at("write", &self.output)(why).into()),
                };
            }
        };
        // The VM stands still until the file is safe, and ends without having gone on.
        part.sync()?;
        if self.stop {
            part.keep()?;
            client.tell(&format!("cannot stop VM `{}`", vm.name), &Request::Stop(vm.number))?;
        } else {
            held.end()?;
            part.keep()?;
        }
        drop(step);
        let (all, some) = (Size(vm.memory_bytes), Size(saved.pages * PAGE));
        let (seconds, path) = (started.elapsed().as_secs_f64(), self.output.display());
        tty::say(&format!("gnomon: {}: {all} of memory, {some} of it not zero, in {seconds:.1} s: {path}", vm.name));
        Ok(0)
    }
}
