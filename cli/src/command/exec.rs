//! `gnomon exec`.

use super::run::{Mmu, way};
use crate::guest::program;
use crate::host::parts;
use crate::host::place::IoError;
use crate::host::size::{MIB, Size};
use crate::machine::board::{Clock, HExtension, Seat};
use crate::machine::net::{Card, Forward};
use crate::machine::share::ShareSpec;
use crate::run::{self, Reach, RunSpec, ShowSpec};
use crate::vm::file::{Initrd, Kernel, VmFile};
use abi::exec::{PORT, Start};
use abi::vmspace::Way;
use clap::Args;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// Memory of the VM beside what its files take.
const MEMORY: Size = Size(256 * MIB);

/// Run a Linux program for riscv64 in a VM of its own, without Linux (see docs/vkernel.md).
///
/// PROGRAM is a file of this host that is statically linked, or `busybox`; with --root, a program of that directory. Its input, output and
/// signals are those of this command.
///
/// Exit status: the program's; 128 + N if signal N has ended it; 1 bad input; 2 wrong usage; 3 the VM failed; 4 Gnomon or QEMU failed; 127
/// the program cannot be started.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ExecArgs {
    /// The program
    program: PathBuf,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
    /// The directory that is copied into the VM as its root directory
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// A directory of this host to share with the program, as /mnt/NAME: `:ro` for a read-only one; can be given more than once
    #[arg(long, value_name = "DIR[:ro]")]
    share: Vec<ShareSpec>,
    /// Give the VM a network card, with access to the Internet (see docs/disks-and-networks.md)
    #[arg(long)]
    net: bool,
    /// A port of this host that leads to the VM: HOSTPORT:GUESTPORT; can be given more than once
    #[arg(long, value_name = "[ADDRESS:]HOSTPORT:GUESTPORT")]
    forward: Vec<Forward>,
    /// Set an environment variable of the program; can be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<String>,
    /// The directory that the program starts in
    #[arg(long, value_name = "DIR", default_value = "/")]
    directory: String,
    /// RAM of the VM [default: 256 MiB, and room for the files]
    #[arg(long, value_name = "SIZE", value_parser = Size::of_ram)]
    memory: Option<Size>,
    /// vCPUs of the VM
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    vcpus: u32,
    /// The mode in which the VM's memory is virtualized [default: the best one that the harts support]
    #[arg(long)]
    mmu: Option<Mmu>,
    /// The way in which the vkernel runs programs: by its own tables, or by calls of Gnomon's (see docs/vmspace.md)
    #[arg(long, value_name = "direct|nested|soft", value_parser = way)]
    vmspace: Option<Way>,
    /// The privilege mode of Gnomon: M mode, as the firmware, or HS mode, started by OpenSBI
    #[arg(long, default_value = "firmware")]
    seat: Seat,
    /// Run on harts without the H extension (firmware seat only)
    #[arg(long)]
    no_h: bool,
    /// Stop the machine if it has not ended by itself after this time
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Write all counters to a file at the end (JSON)
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Deterministic: time counts instructions, nothing depends on the host
    #[arg(long)]
    icount: bool,
    /// Show what the machine prints, on standard error
    #[arg(long)]
    verbose: bool,
    /// Go on without the sandbox of QEMU (see docs/machines.md)
    #[arg(long)]
    no_sandbox: bool,
}

/// Reads an environment variable.
fn variable(text: &str) -> Result<String, String> {
    let has_name = text.split_once('=').is_some_and(|(name, _)| !name.is_empty());
    if has_name { Ok(text.into()) } else { Err("it has the form NAME=VALUE".into()) }
}

impl ExecArgs {
    /// Runs it; returns the exit status.
    ///
    /// # Errors
    /// Whatever kept the program from starting.
    pub fn run(self) -> miette::Result<u8> {
        self.stats.as_deref().map_or(Ok(()), |path| run::STATS.check(path))?;
        let archive = program::archive(&self.program, self.root.as_deref(), self.start())?;
        let mut file = tempfile::NamedTempFile::new().map_err(IoError::at("make a file in", std::env::temp_dir()))?;
        file.write_all(&archive).map_err(IoError::at("write", file.path()))?;
        let show = ShowSpec {
            is_verbose: self.verbose,
            stats: self.stats.clone(),
            timeout: self.timeout.map(Duration::from_secs),
            gdb: None,
            reach: Reach::As(None),
            is_unconfined: self.no_sandbox,
            background: None,
        };
        let prepared = run::prepare(&self.spec(file.path().into(), archive.len() as u64)?, None)?;
        // It is in the bundle.
        drop(file);
        run::program::run(&prepared, &show)
    }

    fn start(&self) -> Start {
        let mut start = Start::new(b"");
        let words = self.arguments.iter().map(|word| word.as_bytes().to_vec());
        start.arguments = words.collect();
        if let Some(terminal) = std::env::var_os("TERM") {
            let own = [b"TERM=".to_vec(), terminal.into_vec()].concat();
            start.environment.retain(|variable| !variable.starts_with(b"TERM="));
            start.environment.push(own);
        }
        for variable in &self.env {
            let name = variable.split_inclusive('=').next().unwrap_or_default();
            start.environment.retain(|known| !known.starts_with(name.as_bytes()));
            start.environment.push(variable.clone().into_bytes());
        }
        start.directory.clone_from(&self.directory);
        start.io = run::program::io();
        start
    }

    fn spec(&self, archive: PathBuf, bytes: u64) -> miette::Result<RunSpec> {
        let name: String = self.program.file_name().and_then(|name| name.to_str()).unwrap_or("program").into();
        let name = if crate::vm::spec::is_name(&name) { name } else { "program".into() };
        let memory = self.memory.unwrap_or(Size((MEMORY.0 + bytes).next_multiple_of(2 * MIB)));
        let file = VmFile {
            name: Some(name),
            kernel: Some(Kernel::File(parts::vkernel()?)),
            initrd: Some(Initrd::File(archive)),
            memory: Some(memory),
            vcpus: Some(self.vcpus),
            mmu: self.mmu.map(Mmu::mode),
            vmspace: self.vmspace,
            ports: Some(vec![PORT.into()]),
            net: self.net.then_some(true),
            // The run's only VM has the first card.
            append: (self.net || !self.forward.is_empty()).then(|| Card::of(0, None, Vec::new()).ip()),
            forward: Some(self.forward.clone()).filter(|forwards| !forwards.is_empty()),
            shares: Some(self.share.clone()).filter(|shares| !shares.is_empty()),
            ..VmFile::default()
        };
        Ok(RunSpec {
            h: if self.no_h { HExtension::Absent } else { HExtension::Present },
            seat: self.seat,
            clock: if self.icount { Clock::Instructions } else { Clock::Real },
            ..RunSpec::of(vec![file])
        })
    }
}
