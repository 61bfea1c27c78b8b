//! `gnomon snapshot`.

use super::control::Which;
use crate::control::save::{Held, Unsaved};
use crate::host::place::IoError;
use crate::host::progress::Step;
use crate::host::size::{PAGE, Size};
use abi::control::Request;
use clap::Args;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
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
        let mut client = self.which.client()?;
        let vm = client.choose(self.vm.as_deref())?;
        let (started, step) = (Instant::now(), Step::percent(&format!("a snapshot of {}", vm.name)));
        let mut held = Held::begin(&mut client, (vm.number, &vm.name))?;
        // Another command may be writing that file for the same VM: it was begun first. If there can be none, the run lets the VM go on.
        let part = Part::create(&self.output)?;
        let written = held.write(BufWriter::with_capacity(1 << 20, &part.file), |percent| step.set(percent));
        let saved = match written {
            Ok(saved) => saved,
            Err(why) => {
                // The VM resumes in any case.
                let _ = held.end();
                return match why {
                    Unsaved::Control(why) => Err(why.into()),
                    Unsaved::Io(why) => Err(IoError::at("write", &part.path)(why).into()),
                };
            }
        };
        // The VM stands still until the file is safe, and ends without having gone on.
        part.keep(&self.output)?;
        if self.stop {
            client.tell(&format!("cannot stop VM `{}`", vm.name), &Request::Stop(vm.number))?;
        } else if let Err(why) = held.end() {
            let _ = fs::remove_file(&self.output);
            Err(why)?;
        }
        drop(step);
        let (all, some) = (Size(vm.memory_bytes), Size(saved.pages * PAGE));
        let (seconds, path) = (started.elapsed().as_secs_f64(), self.output.display());
        eprintln!("gnomon: {}: {all} of memory, {some} of it not zero, in {seconds:.1} s: {path}", vm.name);
        Ok(0)
    }
}

/// A file that is not whole yet. It goes with this, unless it is kept.
struct Part {
    path: PathBuf,
    file: File,
}

impl Part {
    fn create(output: &Path) -> Result<Self, IoError> {
        let mut name = output.file_name().map_or_else(OsString::new, OsString::from);
        name.push(".part");
        let path = output.with_file_name(name);
        let file = File::create(&path).map_err(IoError::at("write", &path))?;
        Ok(Self { path, file })
    }

    /// Makes the file durable, and gives it its final name.
    fn keep(self, output: &Path) -> Result<(), IoError> {
        self.file.sync_all().and_then(|()| fs::rename(&self.path, output)).map_err(IoError::at("write", output))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // One that was kept is not there any more.
        let _ = fs::remove_file(&self.path);
    }
}
