//! `gnomon run`.

use super::background;
use super::script::print;
use crate::api::verbs::no_tunable;
use crate::control::migrate::{Address, Incoming};
use crate::host::place::IoError;
use crate::host::size::Size;
use crate::host::tty::{self, TerminalSize};
use crate::machine::board::{Clock, HExtension, Seat};
use crate::machine::disk::{DiskSpec, Snapshot};
use crate::machine::meter::{MeterSpec, Report};
use crate::machine::net::ForwardTo;
use crate::machine::share::ShareSpec;
use crate::machine::swap::SwapSpec;
use crate::run::{self, Arrival, Reach, RunSpec, ShowSpec};
use crate::system;
use crate::vm::file::{Balloon, Console, Cpu, Initrd, Kernel, VmFile};
use crate::vm::mode;
use crate::vm::restore;
use crate::vm::root::{Root, Roots};
use crate::vm::spec::VmSpec;
use ::meter::args::Level;
use abi::bundle::{L2Tables, MmuMode};
use abi::vmspace::Way;
use clap::{Args, ValueEnum, builder::PossibleValue};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Run virtual machines.
///
/// Without a VM file, one VM boots Debian's kernel into a shell. Options that describe a VM apply
/// to all VM files given.
///
/// Exit status: 0 all VMs powered off or the user ended them; with --exec, the commands' status; 1 bad input; 2 wrong
/// usage; 3 a VM was stopped, failed, or never started; 4 Gnomon or QEMU failed; 128 + N signal N.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RunArgs {
    /// Run in the background: print the run's name when its VMs have started, and return (see docs/control.md)
    #[arg(long = "detach", short = 'd', conflicts_with_all = ["dry_run", "gdb"])]
    is_detached: bool,
    /// Be the run in the background, for the command that has started it
    #[arg(long = "supervised", hide = true)]
    is_supervised: bool,
    /// The name under which the run is kept, which is before that of --as
    #[arg(long = "kept-as", hide = true)]
    kept_as: Option<String>,
    /// VM files (see docs/vm-file.md), one VM each
    #[arg(value_name = "VM.toml")]
    files: Vec<PathBuf>,
    /// Restore a snapshot (gnomon snapshot), with its memory, vCPUs and devices (see docs/snapshots.md)
    #[arg(long, value_name = "FILE")]
    restore: Option<PathBuf>,
    /// Wait for a VM that comes from another run (gnomon migrate), at unix:PATH or tcp:HOST:PORT (see docs/migration.md)
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["restore", "files", "exec", "dry_run"])]
    incoming: Option<Address>,
    /// The VM's name
    #[arg(long)]
    name: Option<String>,
    /// The kernel to boot: `debian`, `vkernel` (see docs/vkernel.md), `u-boot`, `disk` (the system that a disk's boot loader starts), or a Linux Image, ELF file or raw binary
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// The initial RAM disk: `busybox`, `none`, or a file
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// A Debian system as the root, on a disk that keeps changes: FILE, or a file named after the VM (see docs/debian.md)
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    debian: Option<Option<PathBuf>>,
    /// Put a file or a directory into each guest's /root; can be given more than once
    #[arg(long, value_name = "FILE")]
    add: Vec<PathBuf>,
    /// Words to add to the kernel's command line
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    append: Option<String>,
    /// RAM of each VM, such as 512M or 1.5G; a number alone is in MiB
    #[arg(long, value_name = "SIZE", value_parser = Size::of_ram)]
    memory: Option<Size>,
    /// RAM of the machine; with --swap it may be less than that of all VMs [default: enough for all]
    #[arg(long, value_name = "SIZE", value_parser = Size::of_ram)]
    host_memory: Option<Size>,
    /// Page to this file, created if it does not exist (sparse; the default for SIZE is the memory of all VMs)
    #[arg(long, value_name = "FILE[:SIZE]")]
    swap: Option<SwapSpec>,
    /// Set a tunable, such as read-ahead=0; can be given more than once (see docs/tunables.md)
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<String>,
    /// vCPUs of each VM
    #[arg(long, value_name = "COUNT")]
    vcpus: Option<u32>,
    /// The console that Linux uses
    #[arg(long)]
    console: Option<Console>,
    /// The mode in which guest memory is virtualized [default: the best one that the harts support]
    #[arg(long)]
    mmu: Option<Mmu>,
    /// With --mmu lazy, steered or adaptive: whether the fast lane serves fences by address and switches of the address space
    #[arg(long, value_name = "on|off")]
    lane: Option<Switch>,
    /// The extensions that guests are told of: all that the mode and the harts offer, or those that every mode offers, so that guests can be
    /// restored in any mode and moved to it (see docs/snapshots.md)
    #[arg(long, value_name = "host|portable")]
    cpu: Option<Cpu>,
    /// Tell guests of Svvptc where the mode offers it; without it they can be restored in any mode (see
    /// docs/snapshots.md)
    #[arg(long, value_name = "on|off")]
    svvptc: Option<Switch>,
    /// Promise guests that A and D bits are updated for them (Svadu), where the mode can; by default with --mmu two-stage, on
    /// harts that do it and without --swap. Without it they can be restored in any mode (see docs/snapshots.md)
    #[arg(long, value_name = "on|off")]
    svadu: Option<Switch>,
    /// Give guests the H extension, so that they may be hypervisors, such as KVM (see docs/nested.md), whether or not the harts have it.
    /// Not with --mmu steered and adaptive
    #[arg(long)]
    nested: bool,
    /// The tables by which guests of guests run: two stages, or shadow tables that lead from their virtual addresses to the host's at once,
    /// which are the only ones but with --mmu two-stage. With --nested, or where a VM file or a snapshot says so
    #[arg(long, value_name = "nested|collapsed", value_parser = l2_tables)]
    l2: Option<L2Tables>,
    /// The way in which kernels that use the address-space calls run their programs (see docs/vmspace.md)
    #[arg(long, value_name = "direct|nested|soft", value_parser = way)]
    vmspace: Option<Way>,
    /// Allow mappings of guest memory by 2 MiB superpages
    #[arg(long, value_name = "on|off")]
    superpages: Option<Switch>,
    /// Give guests a memory balloon, to return memory that they do not use; or its size at the start
    #[arg(long, value_name = "on|off|SIZE")]
    balloon: Option<Balloon>,
    /// A disk for each VM: `:ro` for a read-only one, `:SIZE` to create it; can be given more than once (see docs/vm-file.md)
    #[arg(long, value_name = "FILE[:ro][:SIZE]")]
    disk: Vec<DiskSpec>,
    /// A directory of this host to share with each VM, in the guest /mnt/NAME: `:ro` for a read-only one; can be given more than once (see docs/vm-file.md)
    #[arg(long, value_name = "DIR[:ro]")]
    share: Vec<ShareSpec>,
    /// Discard what guests write to their disks
    #[arg(long)]
    snapshot: bool,
    /// Give VMs a network card, on one network with access to the Internet (see docs/vm-file.md)
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on")]
    net: Option<Switch>,
    /// Give each VM a source of random bytes, from this host [default: on with --debian and --kernel disk, if the board
    /// has a free slot]
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on")]
    rng: Option<Switch>,
    /// Give each VM a power key, by which `gnomon shutdown` asks its guest [default: on with --debian and --kernel disk]
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on")]
    powerkey: Option<Switch>,
    /// Let `gnomon shell` and `gnomon cp` reach each VM [default: on with Gnomon's own initrd or --debian, and without --exec]
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on")]
    shell: Option<Switch>,
    /// A port for each VM, to exchange bytes with programs of this host; in the guest /dev/virtio-ports/NAME; can be given more than once (see docs/vm-file.md)
    #[arg(long, value_name = "NAME")]
    port: Vec<String>,
    /// Forward a TCP port of this host (127.0.0.1) to a VM, which is named if there are several; can be given more than once
    #[arg(long, value_name = "[VM=]PORT:PORT")]
    forward: Vec<ForwardTo>,
    /// Number of harts of the machine [default: the most vCPUs of any VM, at most 8]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=512))]
    harts: Option<u32>,
    /// The privilege mode of Gnomon: M mode, as the firmware, or HS mode, started by OpenSBI
    #[arg(long, default_value = "firmware")]
    seat: Seat,
    /// Run on harts without the H extension (firmware seat only)
    #[arg(long)]
    no_h: bool,
    /// Run these commands in each guest's shell, print their output, exit with their status
    #[arg(long, value_name = "COMMANDS", allow_hyphen_values = true)]
    exec: Option<String>,
    /// Stop the machine if it has not ended by itself after this time
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Write all counters to a file at the end (JSON)
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Count events that hardware would see (TLB misses, page walks, traps), and write them to a file (JSON; see docs/meter.md)
    #[arg(long, value_name = "FILE")]
    meter: Option<PathBuf>,
    /// With --meter: the core to model, or a core file; can be given more than once
    #[arg(long, value_name = "NAME", requires = "meter")]
    core: Vec<String>,
    /// With --meter: how much is counted
    #[arg(long, default_value = "tlb", requires = "meter")]
    meter_level: MeterLevel,
    /// Deterministic: time counts instructions, nothing depends on the host
    #[arg(long)]
    icount: bool,
    /// With --exec: show everything the guests print, on standard error
    #[arg(long)]
    verbose: bool,
    /// Wait for gdb on this port of the host before the machine starts (see docs/debugging.md) [default: 1234]
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "1234")]
    gdb: Option<NonZeroU16>,
    /// Go on without the sandbox of processes that serve guests (see docs/machines.md)
    #[arg(long)]
    no_sandbox: bool,
    /// A further argument for QEMU; can be given more than once
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    qemu_arg: Vec<String>,
    /// The name of this run for other commands (gnomon ps; see docs/control.md) [default: that of its first VM]
    #[arg(long = "as", value_name = "NAME", conflicts_with = "dry_run")]
    called: Option<String>,
    /// Let other commands reach this run
    #[arg(long, value_name = "on|off", conflicts_with = "called")]
    control: Option<Switch>,
    /// Prepare everything and print QEMU's command line instead of running it
    #[arg(long)]
    dry_run: bool,
}

/// Reads a kind of tables for guests of guests.
fn l2_tables(text: &str) -> Result<L2Tables, String> {
    let found = [L2Tables::Nested, L2Tables::Collapsed].into_iter().find(|tables| tables.name() == text);
    found.ok_or_else(|| "it is nested or collapsed".into())
}

/// Reads a way to run programs.
pub(super) fn way(text: &str) -> Result<Way, String> {
    let found = Way::ALL.into_iter().find(|way| way.name() == text);
    found.ok_or_else(|| "it is direct, nested or soft".into())
}

/// Checks a setting.
fn setting(text: &str) -> Result<String, String> {
    use abi::tunable::{ALL, SettingError, parse};
    parse(text).map(|_| text.into()).map_err(|why| match why {
        SettingError::Unknown(name) => no_tunable(name, &ALL.iter().map(|known| known.name).collect::<Vec<_>>()),
        why => why.to_string(),
    })
}

/// A choice of yes and no.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// [`MmuMode`] as an option's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mmu {
    /// By its name.
    Present(MmuMode),
    /// By the former name of [`MmuMode::TwoStage`].
    Former,
}

impl Mmu {
    /// Returns the mode, and warns if it was given by its former name.
    pub(super) fn mode(self) -> MmuMode {
        match self {
            Self::Present(mode) => mode,
            Self::Former => {
                mode::warn_of_former_name();
                MmuMode::TwoStage
            }
        }
    }
}

impl ValueEnum for Mmu {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Present(MmuMode::TwoStage),
            Self::Present(MmuMode::Shadow),
            Self::Present(MmuMode::Unsync),
            Self::Present(MmuMode::Lazy),
            Self::Present(MmuMode::Steered),
            Self::Present(MmuMode::Adaptive),
            Self::Former,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Present(mode) => PossibleValue::new(mode.name()),
            Self::Former => PossibleValue::new(mode::FORMER).hide(true),
        })
    }
}

/// [`Level`] as an option's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MeterLevel(Level);

impl ValueEnum for MeterLevel {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self(Level::Counts), Self(Level::Tlb), Self(Level::Check)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

impl RunArgs {
    /// Runs it; returns the exit status.
    ///
    /// # Errors
    /// Whatever kept the machine from starting.
    pub fn run(mut self) -> miette::Result<u8> {
        if self.is_detached && !self.is_supervised {
            if matches!(self.control, Some(Switch::Off)) {
                return Err(miette::miette!(
                    help = "leave out one of the two: -d, or --control off",
                    "a run in the background must be reachable by other commands"
                ));
            }
            return background::start();
        }
        let background = self.is_supervised.then(run::Background::enter).transpose();
        let background = background.map_err(IoError::at("use", "standard input"))?;
        let Some(address) = self.incoming.take() else { return self.run_here(background, None) };
        if self.control == Some(Switch::Off) {
            return Err(miette::miette!(
                help = "leave out --control off",
                "a VM that comes from another run comes by the control channel"
            ));
        }
        let listening = || tty::say(&format!("gnomon: waiting for a VM at {address}"));
        let incoming = Incoming::wait(&address, listening)?;
        self.restore = Some(incoming.path().to_owned());
        let shared = Arc::new(Mutex::new(Some(incoming)));
        let result = self.run_here(background, Some(Arc::clone(&shared)));
        // Still there: no machine could be started for it.
        let left = shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(incoming), Err(why)) = (left, &result) {
            incoming.refuse(&why.to_string());
        }
        result
    }

    /// Runs it here, with a VM that comes if one does.
    fn run_here(self, background: Option<run::Background>, incoming: Option<Arrival>) -> miette::Result<u8> {
        let is_dry_run = self.dry_run;
        let timeout = self.timeout.map(Duration::from_secs);
        let reach = match self.control {
            Some(Switch::Off) => Reach::None,
            _ => Reach::As(self.kept_as.clone().or_else(|| self.called.clone())),
        };
        let show = ShowSpec {
            is_verbose: self.verbose,
            stats: self.stats.clone(),
            timeout,
            gdb: self.gdb,
            reach,
            is_unconfined: self.no_sandbox,
            background,
        };
        let mut spec = self.into_spec()?;
        if show.reach == Reach::None && spec.files.iter().any(|vm| vm.ports.iter().flatten().next().is_some()) {
            return Err(miette::miette!(
                help = "leave out one of the two: --control off, or the ports (`ports` in VM files, --port)",
                "VMs have ports, but without the control channel no program can connect to them"
            ));
        }
        show.stats.as_deref().map_or(Ok(()), |path| run::STATS.check(path))?;
        let provided = system::provide(&spec)?;
        spec.roots = provided.roots.clone();
        spec.incoming = incoming.as_ref().and_then(|arrival| {
            let arrival = arrival.lock().unwrap_or_else(PoisonError::into_inner);
            arrival.as_ref().map(|incoming| incoming.disks().to_vec())
        });
        let prepared = run::prepare(&spec, None)?;
        tty::say(&prepared.versions.to_string());
        provided.notes.iter().chain(&prepared.added).for_each(|line| tty::say(&format!("gnomon: {line}")));
        prepared.warnings.iter().for_each(|warning| tty::say(&format!("gnomon: warning: {warning}")));
        if is_dry_run && !prepared.machine.shares.is_empty() {
            tty::say("gnomon: warning: this command line lacks the shares' servers: QEMU ends without them");
        }
        if is_dry_run {
            if prepared.machine.net.is_some() {
                tty::say(
                    "gnomon: the network card in this command line leads nowhere: only `gnomon run` connects it with the world",
                );
            }
            print(&format!("{}\n", prepared.kept()?.command_line()))?;
            return Ok(0);
        }
        let end = run::run(&prepared, spec.exec.as_deref(), (&show, incoming))?;
        if let Some(meter) = &spec.meter {
            for remark in Report::read(&meter.out)?.remarks() {
                tty::say(&format!("gnomon: meter: {remark}"));
            }
        }
        Ok(end.status)
    }

    /// Checks what can be checked before a start, and returns the name under which the run is kept: the one of `--as`, or the first VM's.
    ///
    /// # Errors
    /// If VM files or options are wrong, or do not fit a run in the background that is started more than once.
    pub(super) fn kept_name(self) -> miette::Result<String> {
        let unfit = [
            (self.incoming.is_some(), "--incoming"),
            (self.dry_run, "--dry-run"),
            (self.gdb.is_some(), "--gdb"),
            (self.control == Some(Switch::Off), "--control off"),
        ];
        if let Some((_, option)) = unfit.into_iter().find(|(is_given, _)| *is_given) {
            return Err(miette::miette!(help = "leave it out", "a run that is kept by name cannot have {option}"));
        }
        let called = self.called.clone();
        let spec = self.into_spec()?;
        let vms = VmSpec::settle(spec.files, &spec.options, spec.exec.is_some())?;
        called.or_else(|| vms.into_iter().next().map(|vm| vm.name)).ok_or_else(|| miette::miette!("the run has no VM"))
    }

    fn into_spec(self) -> miette::Result<RunSpec> {
        let mut qemu_args = self.qemu_arg;
        if let Some(port) = self.gdb {
            qemu_args.extend(["-S".into(), "-gdb".into(), format!("tcp:127.0.0.1:{port}")]);
        }
        let files = self.files.iter().map(|path| VmFile::read(path)).collect::<Result<Vec<_>, _>>()?;
        let options = VmFile {
            name: self.name,
            after: None,
            memory: self.memory,
            vcpus: self.vcpus,
            kernel: self.kernel.map(Kernel::from),
            init: None,
            initrd: self.initrd.map(Initrd::from),
            root: self.debian.map(|file| Root { file }),
            add: Some(self.add).filter(|files| !files.is_empty()),
            append: self.append,
            console: self.console,
            mmu: self.mmu.map(Mmu::mode),
            lane: self.lane.map(|switch| switch == Switch::On),
            superpages: self.superpages.map(|switch| switch == Switch::On),
            balloon: self.balloon,
            disks: Some(self.disk).filter(|disks| !disks.is_empty()),
            shares: Some(self.share).filter(|shares| !shares.is_empty()),
            rng: self.rng.map(|switch| switch == Switch::On),
            powerkey: self.powerkey.map(|switch| switch == Switch::On),
            shell: self.shell.map(|switch| switch == Switch::On),
            ports: Some(self.port).filter(|ports| !ports.is_empty()),
            net: self.net.map(|switch| switch == Switch::On),
            // One VM's, and so by VM files, or by what names it.
            mac: None,
            forward: None,
            // Fine tuning: by VM files only.
            limit: None,
            reserve: None,
            wired: None,
            gigapages: None,
            cpu: self.cpu,
            svvptc: self.svvptc.map(|switch| switch == Switch::On),
            svadu: self.svadu.map(|switch| switch == Switch::On),
            nested: self.nested.then_some(true),
            l2: self.l2,
            vmspace: self.vmspace,
            restore: self.restore,
            shadow: None,
        };
        // What a snapshot says of a VM is as if its file said so.
        let files = if files.is_empty() { vec![VmFile::default()] } else { files };
        let described = files.into_iter().map(|file| restore::describe(file.overridden_by(&options)));
        let files = described.collect::<Result<_, _>>()?;
        // They have them by now, and some by the names that their guests know.
        let options = VmFile { shares: None, ports: None, ..options };
        let (level, cores) = (self.meter_level.0, self.core);
        // QEMU takes some names for more than names: `help`, for one.
        let out = self.meter.map(|out| std::path::absolute(&out).map_err(IoError::at("write", out))).transpose()?;
        let meter = out.map(|out| MeterSpec { out, level, cores, traps: None });
        Ok(RunSpec {
            files,
            options,
            host_memory: self.host_memory,
            swap: self.swap,
            snapshot: if self.snapshot { Snapshot::Yes } else { Snapshot::No },
            forwards: self.forward,
            roots: Roots::default(),
            settings: self.set,
            harts: self.harts,
            h: if self.no_h { HExtension::Absent } else { HExtension::Present },
            seat: self.seat,
            console: RunSpec::console_mode(self.exec.as_deref()),
            terminal: TerminalSize::of_output().filter(|_| self.exec.is_none()),
            has_shells: self.control != Some(Switch::Off) && self.exec.is_none(),
            incoming: None,
            exec: self.exec,
            clock: if self.icount { Clock::Instructions } else { Clock::Real },
            meter,
            qemu_args,
        })
    }
}
