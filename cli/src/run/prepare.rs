//! Everything that a run needs before the machine starts.

use super::spec::RunSpec;
use crate::control::runs::{self, VmDisk};
use crate::guest::added;
use crate::guest::agent;
use crate::guest::debian::{Package, Software};
use crate::guest::initramfs::{self, First};
use crate::guest::modules::{self, Needs};
use crate::guest::program;
use crate::host::parts;
use crate::host::place::{self, IoError, Unnamed, cache, prune};
use crate::host::sandbox;
use crate::host::size::{MIB, Size};
use crate::host::tty::TerminalSize;
use crate::machine::board::{self, Clock, HExtension, Seat};
use crate::machine::disk::{self, DiskError, Disks, Format, Lock, Use};
use crate::machine::meter::Metered;
use crate::machine::net::{self, Card};
use crate::machine::qemu::{self, Boot, MachineSpec};
use crate::machine::share;
use crate::vm::file::{Console, Initrd, Kernel, VmFile};
use crate::vm::layout;
use crate::vm::pack::{Pack, Placed};
use crate::vm::payload::{Kind, Payload};
use crate::vm::restore::{self, Restored};
use crate::vm::spec::{self, SpecError, VmSpec};
use abi::bundle::{ConsoleMode, MmuMode, ShareConfig, VmConfig};
use abi::control::DiskUse;
use abi::exec::Start;
use abi::snapshot::bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const RNG_SEED_BYTES: usize = 32;
/// The size of Linux's command line, the final zero included (`COMMAND_LINE_SIZE` of arch/riscv).
const COMMAND_LINE_BYTES: usize = 1024;
/// U-Boot's command to boot from a disk: its default one. It comes back if there is no boot loader, or none that works.
const BOOT_COMMAND: &str = "run bootcmd; echo; echo \"gnomon: U-Boot found nothing to boot on the disks. This is its prompt: help lists its commands, poweroff ends the VM.\"";
/// The time for which bundles that `--dry-run` has left are kept.
const BUNDLES_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// A machine that can be started.
#[derive(Debug)]
pub struct Prepared {
    /// The machine.
    pub machine: MachineSpec,
    /// The VMs' names, in console order.
    pub vms: Vec<String>,
    /// The names of the ports of each.
    pub ports: Vec<Vec<String>>,
    /// The place of the one that each waits for.
    pub after: Vec<Option<u32>>,
    /// The way in which the guests share the console.
    pub console: ConsoleMode,
    /// The privilege mode of Gnomon.
    pub seat: Seat,
    /// The versions of the software in the run.
    pub versions: Versions,
    /// Additions to the VMs' command lines, a line each.
    pub added: Vec<String>,
    /// Warnings about settings without their full effect, a line each.
    pub warnings: Vec<String>,
    /// The VM of each disk, by the disk's number.
    pub disk_owners: Vec<String>,
    /// The VM of each share, by the share's number.
    pub share_owners: Vec<String>,
    /// Lives as long as the machine needs it.
    bundle: Unnamed,
    /// Keep other runs from the machine's files. Those of disks, each with the disk's number:
    locks: Vec<(usize, Arc<Lock>)>,
    _swap_lock: Option<Lock>,
}

/// A VM whose kernel is Gnomon in the payload seat, with the VMs of a machine: its kernel, its initrd, which is the machine's bundle, and its memory. `None`
/// if the machine has no Gnomon.
#[must_use]
pub fn nested(machine: &MachineSpec) -> Option<VmFile> {
    let Boot::Gnomon { hypervisor, bundle, .. } = &machine.boot else { return None };
    Some(VmFile {
        memory: Some(Size(machine.memory.0.next_multiple_of(2 * MIB))),
        kernel: Some(Kernel::File(hypervisor.clone())),
        initrd: Some(Initrd::File(bundle.clone())),
        nested: Some(true),
        ..VmFile::default()
    })
}

impl Prepared {
    /// Returns the disks that VMs write to.
    pub(super) fn written_disks(&self) -> Vec<VmDisk> {
        let written = self.machine.disks.iter().enumerate().filter(|(_, disk)| disk.use_ != Use::Read);
        let disks = written.map(|(number, disk)| {
            let own = self.locks.iter().filter(|(of, _)| *of == number);
            let locks: Vec<_> = own.map(|(_, lock)| lock).collect();
            // The first one is that of its own file.
            let identity = locks.first().and_then(|lock| lock.identity()).unwrap_or_default();
            let obstacle = match (disk.use_, disk.format) {
                (Use::Snapshot, _) => Some("what its guest has written is kept by this run alone (--snapshot)"),
                (_, Format::Qcow2) => Some("its format is qcow2, of which QEMU keeps a part in memory"),
                _ if !locks.iter().all(|lock| lock.is_noticed()) => {
                    Some("its file is on a network, whose locks do not tell one run from another")
                }
                _ => None,
            };
            let vm = self.vms.iter().position(|vm| *vm == self.disk_owners[number]).unwrap_or_default() as u64;
            let file = disk.file.display().to_string();
            VmDisk {
                described: DiskUse { vm, file, identity, obstacle: obstacle.map(Into::into) },
                locks: locks.into_iter().map(Arc::downgrade).collect(),
            }
        });
        disks.collect()
    }

    /// The machine, with the bundle that must live as long as it is run.
    #[must_use]
    pub fn machine_and_bundle(self) -> (MachineSpec, Unnamed) {
        (self.machine, self.bundle)
    }

    /// Leaves a copy of the bundle in the cache, for a machine that the user starts; returns that machine.
    ///
    /// # Errors
    /// If it cannot be kept.
    pub fn kept(mut self) -> Result<MachineSpec, IoError> {
        let dir = cache("run")?;
        let copy = || {
            let kept = tempfile::Builder::new().prefix("bundle-").tempfile_in(&dir)?;
            std::fs::copy(self.bundle.path(), kept.path())?;
            Ok(kept.keep()?.1)
        };
        let path = copy().map_err(IoError::at("keep the bundle in", &dir))?;
        if let Boot::Gnomon { bundle, .. } = &mut self.machine.boot {
            *bundle = path;
        }
        Ok(self.machine)
    }
}

/// The versions of what takes part in a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Versions {
    /// This program's.
    pub gnomon: String,
    /// QEMU's.
    pub qemu: String,
    /// Debian's packages in the guests: name and version.
    pub packages: Vec<String>,
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "gnomon {}, QEMU {}", self.gnomon, self.qemu)?;
        self.packages.iter().try_for_each(|package| write!(f, ", {package}"))
    }
}

/// A VM's payload and initrd, read.
struct Contents {
    payload: Payload,
    initrd: Option<Vec<u8>>,
    has_own_initramfs: bool,
}

/// Does all that can be done before the machine starts: reads kernels, fetches what is missing,
/// packs the bundle, builds the hypervisor unless it is given.
///
/// # Errors
/// Whatever stands in the way, with a remedy.
pub fn prepare(spec: &RunSpec, hypervisor: Option<&Path>) -> miette::Result<Prepared> {
    let mut vms = VmSpec::settle(spec.files.clone(), &spec.options, spec.exec.is_some())?;
    if spec.has_shells {
        vms.iter_mut().for_each(VmSpec::offer_shell);
    }
    spec::forward(&mut vms, &spec.forwards)?;
    spec::check_machine(&vms, spec.seat, spec.h)?;
    let most_vcpus = vms.iter().map(|vm| vm.vcpus).max().unwrap_or(1);
    if let Some(meter) = &spec.meter {
        meter.check(spec.harts_for(most_vcpus), spec.clock)?;
    }
    // The first that it has.
    for (vm, disk) in vms.iter_mut().zip(&spec.roots.disks) {
        vm.disks.splice(..0, disk.iter().cloned());
    }
    let total = spec::most_memory(&vms, spec.h);
    board::check_memory(spec.host_memory.unwrap_or(board::memory_for(total, 0)))?;
    let mut versions =
        Versions { gnomon: env!("CARGO_PKG_VERSION").into(), qemu: qemu::version()?, packages: Vec::new() };
    let mut pack = Pack::default();
    let swap_path = spec.swap.as_ref().map(|swap| swap.path.as_path());
    let disks = vms.iter().map(|vm| (vm.name.as_str(), vm.disks.as_slice()));
    let cards: Vec<_> = vms.iter().filter_map(|vm| Some((vm.name.as_str(), vm.net.as_ref()?))).collect();
    let net = net::provide(&cards)?;
    let shares = share::provide(vms.iter().map(|vm| (vm.name.as_str(), vm.shares.as_slice())))?;
    let wants_rng = vms.iter().find(|vm| vm.rng == Some(true));
    if let Some(vm) = wants_rng.filter(|_| spec.clock != Clock::Real) {
        Err(SpecError::NoEntropy(vm.name.clone()))?;
    }
    let others = shares.len() + usize::from(net.is_some()) + usize::from(wants_rng.is_some());
    let named = |why: DiskError| why.held_by(runs::holder);
    let Disks { all: disks, locks } =
        disk::provide(disks, spec.snapshot, swap_path, others, spec.incoming.as_deref()).map_err(named)?;
    // By default it must not take the last slot from another device, or from the control channel.
    let places = disks.len() + others + usize::from(swap_path.is_some());
    let has_rng = wants_rng.is_some() || spec.clock == Clock::Real && places + 2 <= disk::PLACES;
    vms.iter_mut().for_each(|vm| _ = vm.rng.get_or_insert(vm.has_system() && has_rng));
    let has_rng = vms.iter().any(|vm| vm.rng == Some(true));
    // They are numbered through.
    let (mut numbers, mut numbered_shares) = (0.., (0..).zip(&shares));
    let configs = vms
        .iter()
        .map(|vm| {
            let (mut config, placed) = match &vm.restore {
                Some(path) => restored(vm, (path, spec.incoming.is_some()), &mut pack)?,
                None => place(vm, contents(vm, spec, &mut versions)?, spec, &mut pack)?,
            };
            config.disks = numbers.by_ref().take(vm.disks.len()).collect();
            let own = numbered_shares.by_ref().take(vm.shares.len());
            config.shares = own.map(|(number, share)| ShareConfig { number, tag: share.name.clone() }).collect();
            Ok((config, placed))
        })
        .collect::<miette::Result<Vec<_>>>()?;
    let added = |(vm, (config, _)): (&VmSpec, &(VmConfig, Vec<Placed>))| {
        let own = config.bootargs.strip_suffix(&vm.append).unwrap_or_default().trim_end();
        (!own.is_empty()).then(|| format!("{}: added to the command line: {own}", vm.name))
    };
    let added = vms.iter().zip(&configs).filter_map(added).collect();
    let warnings =
        vms.iter().zip(&configs).flat_map(|(vm, (config, _))| warnings(vm, spec.h, &config.bootargs)).collect();
    let dir = cache("run")?;
    prune(&dir, BUNDLES_KEPT);
    let mut bundle = Unnamed::new_in(&dir)?;
    let bundle_bytes = pack
        .write(configs, (spec.console, &spec.settings), bundle.as_file_mut())
        .map_err(IoError::at("write a bundle in", &dir))?;
    let memory = match spec.host_memory {
        Some(memory) => board::check_host_memory(memory, bundle_bytes)?,
        None if spec.seat == Seat::Payload => board::with_initrd(board::memory_for(total, bundle_bytes), bundle_bytes),
        None => board::memory_for(total, bundle_bytes),
    };
    board::check_memory(memory)?;
    let all_memory = vms.iter().fold(0_u64, |sum, vm| sum.saturating_add(vm.memory.0));
    let swap = spec.swap.as_ref().map(|swap| swap.provide(Size(all_memory))).transpose()?;
    let swap_lock = swap.as_ref().map(|swap| Lock::take(swap, Use::Write)).transpose().map_err(named)?;
    let hypervisor = match hypervisor {
        Some(built) => built.to_owned(),
        None => parts::hypervisor()?,
    };
    let meter = match &spec.meter {
        Some(meter) => Some(Metered { plugin: parts::meter()?, spec: meter.clone() }),
        None => None,
    };
    let machine = MachineSpec {
        boot: Boot::Gnomon { seat: spec.seat, hypervisor, bundle: bundle.path().to_owned() },
        harts: spec.harts_for(most_vcpus),
        h: spec.h,
        memory,
        clock: spec.clock,
        meter,
        swap,
        disks,
        shares,
        sandbox: sandbox::is_possible(),
        rng: has_rng,
        net,
        control: None,
        extra: spec.qemu_args.clone(),
        files: Vec::new(),
    };
    Ok(Prepared {
        machine,
        after: vms.iter().map(|vm| vm.after).collect(),
        disk_owners: vms.iter().flat_map(|vm| vm.disks.iter().map(|_| vm.name.clone())).collect(),
        share_owners: vms.iter().flat_map(|vm| vm.shares.iter().map(|_| vm.name.clone())).collect(),
        ports: vms.iter().map(|vm| vm.ports.clone()).collect(),
        vms: vms.into_iter().map(|vm| vm.name).collect(),
        console: spec.console,
        seat: spec.seat,
        versions,
        added,
        warnings,
        bundle,
        locks,
        _swap_lock: swap_lock,
    })
}

fn provide(software: Software, versions: &mut Versions) -> miette::Result<PathBuf> {
    let Package { name, version, file } = software.provide()?;
    let name = format!("{name} {version}");
    if !versions.packages.contains(&name) {
        versions.packages.push(name);
    }
    Ok(file)
}

fn contents(vm: &VmSpec, spec: &RunSpec, versions: &mut Versions) -> miette::Result<Contents> {
    // First of all: they may come with another version of the kernel. Other kernels have their own drivers, or do without.
    let is_default = vm.kernel == Kernel::Debian && vm.initrd.as_ref().is_none_or(|initrd| *initrd == Initrd::Busybox);
    let needs = Needs {
        balloon: vm.balloon.is_some(),
        disks: !vm.disks.is_empty(),
        net: vm.net.is_some(),
        shares: !vm.shares.is_empty(),
        rng: vm.rng == Some(true),
        key: vm.has_power_key(),
        console: vm.console == Console::Virtio || !vm.ports.is_empty(),
    };
    let drivers = if is_default { modules::provide(needs)? } else { Vec::new() };
    let path = match &vm.kernel {
        Kernel::Debian => provide(Software::Kernel, versions)?,
        Kernel::Vkernel => parts::vkernel()?,
        Kernel::UBoot | Kernel::Disk => provide(Software::UBoot, versions)?,
        Kernel::File(path) => path.clone(),
    };
    let payload = Payload::read(&path)?;
    // The vkernel runs Linux's programs.
    let is_linux = payload.kind == Kind::Linux || vm.kernel == Kernel::Vkernel;
    if spec.exec.is_some() && !is_linux {
        Err(SpecError::Exec { vm: vm.name.clone(), why: "its kernel is not Linux" })?;
    }
    let lacks_driver = |config: String| !config.lines().any(|line| line == "CONFIG_HVC_RISCV_SBI=y");
    if vm.console == Console::Sbi && payload.kernel_config().is_some_and(lacks_driver) {
        Err(SpecError::NoSbiConsole(vm.name.clone()))?;
    }
    let initrd = match &vm.initrd {
        Some(initrd) => initrd.clone(),
        None if is_linux => Initrd::Busybox,
        None => Initrd::None,
    };
    // An initrd of its own may have them as modules.
    let has_modules = is_default || matches!(initrd, Initrd::File(_));
    let lacks_driver = |config: String| !has_modules && !has_virtio_console(&config);
    if vm.console == Console::Virtio && payload.kernel_config().is_some_and(lacks_driver) {
        Err(SpecError::NoVirtioConsole(vm.name.clone()))?;
    }
    if initrd != Initrd::Busybox && !vm.add.is_empty() {
        Err(SpecError::Add(vm.name.clone()))?;
    }
    let bytes = match (&vm.init, &initrd) {
        (Some(words), _) => Some(first_program(words)?),
        (None, Initrd::None) => None,
        (None, Initrd::File(path)) => Some(place::read(path).map_err(IoError::at("read the initrd", path))?),
        (None, Initrd::Busybox) => {
            let busybox = provide(Software::Busybox, versions)?;
            let busybox = std::fs::read(&busybox).map_err(IoError::at("read", &busybox))?;
            let mark = match spec.meter {
                Some(_) => Some(parts::mark()?),
                None => None,
            };
            let mark = mark.map(|file| std::fs::read(&file).map_err(IoError::at("read", &file))).transpose()?;
            let mut added = added::read(&vm.add)?;
            let first = match vm.root {
                Some(_) => First::Root,
                None => First::Shell,
            };
            if first == First::Root {
                added.insert(initramfs::NOW_PATH.into(), format!("{}\n", spec.roots.now).into_bytes());
                added.insert(initramfs::KEYS_PATH.into(), spec.roots.keys.clone().into_bytes());
            }
            if vm.has_shell() && vm.takes_agent() {
                added.insert(agent::PATH.into(), agent::provide()?);
                added.insert(agent::UNIT_PATH.into(), agent::UNIT.into());
            }
            let files = drivers.iter().map(|(path, content)| (path, content)).chain(&added);
            let files = files.map(|(path, content)| (path.as_str(), content.as_slice()));
            let files: Vec<_> = mark.iter().map(|mark| ("bin/mark", mark.as_slice())).chain(files).collect();
            Some(initramfs::build_for(first, &busybox, spec.exec.as_deref(), &files)?)
        }
    };
    // An empty file is no initrd: there is nothing to announce.
    let bytes = bytes.filter(|bytes| !bytes.is_empty());
    Ok(Contents { payload, initrd: bytes, has_own_initramfs: initrd == Initrd::Busybox })
}

/// Makes the archive of a program, with its arguments, for the vkernel to run on the VM's console.
fn first_program(words: &[String]) -> miette::Result<Vec<u8>> {
    let (program, arguments) = words.split_first().ok_or_else(|| miette::miette!("`init` names no program"))?;
    let mut start = Start::new(b"");
    start.arguments = arguments.iter().map(|word| word.as_bytes().into()).collect();
    Ok(program::archive(Path::new(program), None, start)?)
}

/// Returns whether a kernel of that configuration has everything built in that a virtio console needs.
fn has_virtio_console(config: &str) -> bool {
    ["CONFIG_VIRTIO_MMIO=y", "CONFIG_VIRTIO_CONSOLE=y"].iter().all(|wanted| config.lines().any(|line| line == *wanted))
}

fn place(vm: &VmSpec, contents: Contents, spec: &RunSpec, pack: &mut Pack) -> miette::Result<(VmConfig, Vec<Placed>)> {
    let Contents { payload, initrd, has_own_initramfs } = contents;
    let initrd_bytes = initrd.as_ref().map(|bytes| bytes.len() as u64);
    let layout = layout::place(&vm.name, vm.memory, &payload, initrd_bytes)?;
    let kind = payload.kind;
    let mut placed = vec![Placed { image: pack.add(payload.bytes), gpa: layout.payload_gpa, label: "kernel" }];
    if let (Some(bytes), Some(gpa)) = (initrd, layout.initrd_gpa) {
        placed.push(Placed { image: pack.add(bytes), gpa, label: "initrd" });
    }
    let config = VmConfig {
        entry_gpa: payload.entry_gpa,
        initrd: layout.initrd_gpa.zip(initrd_bytes),
        bootargs: bootargs(vm, kind, spec, has_own_initramfs),
        boot_command: (vm.kernel == Kernel::Disk).then(|| BOOT_COMMAND.into()),
        rng_seed: rng_seed(vm, spec.clock)?,
        ..config(vm)
    };
    Ok((config, placed))
}

/// Configures a VM that is restored from a snapshot. It boots no kernel.
fn restored(vm: &VmSpec, (path, incoming): (&Path, bool), pack: &mut Pack) -> miette::Result<(VmConfig, Vec<Placed>)> {
    let Restored { state, placed } = restore::load(path, pack)?;
    Ok((VmConfig { restore: Some(Bytes(state)), incoming, ..config(vm) }, placed))
}

/// A VM without anything in its memory.
fn config(vm: &VmSpec) -> VmConfig {
    VmConfig {
        name: vm.name.clone(),
        after: vm.after,
        memory_bytes: vm.memory.0,
        limit_bytes: vm.limit.map(|size| size.0),
        reserve_bytes: vm.reserve.0,
        wired: vm.wired,
        vcpus: vm.vcpus,
        mmu: vm.mmu,
        lane: vm.lane.unwrap_or(true),
        svvptc: vm.svvptc,
        svadu: vm.svadu,
        nested: vm.nested,
        l2: vm.l2,
        vmspace: vm.vmspace,
        shadow_bytes: vm.shadow.map(|size| size.0),
        superpages: vm.superpages,
        gigapages: vm.gigapages,
        balloon_bytes: vm.balloon.map(|size| size.0),
        disks: Vec::new(),
        shares: Vec::new(),
        mac: vm.net.as_ref().map(|card| card.mac),
        rng: vm.rng == Some(true),
        virtio_console: vm.console == Console::Virtio,
        power_key: vm.has_power_key(),
        ports: vm.ports.clone(),
        segments: Vec::new(),
        entry_gpa: 0,
        initrd: None,
        bootargs: String::new(),
        boot_command: None,
        rng_seed: Vec::new(),
        restore: None,
        incoming: false,
    }
}

/// The command line: for Linux a console, and early output through the firmware (far fewer exits
/// than printing everything again when the UART's driver starts); and what the user adds.
fn bootargs(vm: &VmSpec, kind: Kind, spec: &RunSpec, has_own_initramfs: bool) -> String {
    let mut words = match vm.console {
        _ if kind != Kind::Linux => vec![],
        Console::Uart => vec!["console=ttyS0".to_owned(), "earlycon=sbi".to_owned()],
        Console::Virtio | Console::Sbi => vec!["console=hvc0".to_owned(), "earlycon=sbi".to_owned()],
        Console::None => vec![],
    };
    if has_own_initramfs {
        words.push(format!("hostname={}", vm.name));
        words.extend(vm.net.iter().map(Card::ip));
        if let Some(TerminalSize { lines, columns }) = spec.terminal {
            words.push(format!("LINES={lines} COLUMNS={columns}"));
        }
    }
    if spec.exec.is_some() {
        words.push("quiet".into());
    }
    if !vm.append.is_empty() {
        words.push(vm.append.clone());
    }
    words.join(" ")
}

/// Warnings about settings of a VM without their full effect.
fn warnings(vm: &VmSpec, h: HExtension, bootargs: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    // Without H, Gnomon chooses one that has.
    let has_lane = vm.mmu.map_or(h == HExtension::Absent, MmuMode::has_lane);
    if vm.lane == Some(true) && !has_lane {
        warnings.push(format!("VM `{}` has no fast lane: only mmu `lazy` and `steered` have one", vm.name));
    }
    if bootargs.len() >= COMMAND_LINE_BYTES {
        let (name, bytes) = (&vm.name, bootargs.len());
        warnings.push(format!(
            "the command line of VM `{name}` has {bytes} bytes; Linux reads only the first {}",
            COMMAND_LINE_BYTES - 1
        ));
    }
    warnings
}

fn rng_seed(vm: &VmSpec, clock: Clock) -> miette::Result<Vec<u8>> {
    match clock {
        Clock::Instructions | Clock::InstructionsAndWaits => Ok(Sha256::digest(vm.name.as_bytes()).to_vec()),
        Clock::Real => {
            const SOURCE: &str = "/dev/urandom";
            let mut seed = vec![0; RNG_SEED_BYTES];
            let read = |seed: &mut Vec<u8>| std::io::Read::read_exact(&mut std::fs::File::open(SOURCE)?, seed);
            read(&mut seed).map_err(IoError::at("read", SOURCE))?;
            Ok(seed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::file::VmFile;

    fn vm(options: &VmFile) -> VmSpec {
        VmSpec::settle(vec![], options, false).expect("valid").remove(0)
    }

    fn spec() -> RunSpec {
        RunSpec::of(vec![])
    }

    #[test]
    fn the_command_line_suits_the_payload() {
        let options = VmFile { append: Some("a b".into()), ..VmFile::default() };
        let shell = RunSpec { terminal: Some(TerminalSize { lines: 40, columns: 132 }), ..spec() };
        let commands = RunSpec { exec: Some("true".into()), ..spec() };
        for other in [Kind::Elf, Kind::Image] {
            assert_eq!(bootargs(&vm(&options), other, &shell, false), "a b");
        }
        assert_eq!(
            bootargs(&vm(&options), Kind::Linux, &commands, true),
            "console=ttyS0 earlycon=sbi hostname=linux quiet a b"
        );
        assert_eq!(
            bootargs(&vm(&options), Kind::Linux, &shell, true),
            "console=ttyS0 earlycon=sbi hostname=linux LINES=40 COLUMNS=132 a b"
        );
        let of = |console| VmFile { console: Some(console), ..options.clone() };
        assert_eq!(bootargs(&vm(&of(Console::None)), Kind::Linux, &shell, false), "a b");
        let words = bootargs(&vm(&of(Console::Virtio)), Kind::Linux, &shell, false);
        assert_eq!(words, "console=hvc0 earlycon=sbi a b");
        assert!(config(&vm(&of(Console::Virtio))).virtio_console && !config(&vm(&of(Console::Uart))).virtio_console);
    }

    #[test]
    fn a_virtio_console_needs_two_drivers_built_in() {
        for (config, has_it) in [
            ("CONFIG_A=y\nCONFIG_VIRTIO_MMIO=y\nCONFIG_VIRTIO_CONSOLE=y\n", true),
            ("CONFIG_VIRTIO_MMIO=m\nCONFIG_VIRTIO_CONSOLE=y\n", false),
            ("CONFIG_VIRTIO_MMIO=y\n# CONFIG_VIRTIO_CONSOLE is not set\n", false),
            ("", false),
        ] {
            assert_eq!(has_virtio_console(config), has_it, "{config}");
        }
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let lane = |lane, mmu, h| warnings(&vm(&VmFile { lane, mmu, ..VmFile::default() }), h, "").len();
        assert_eq!(lane(Some(true), None, HExtension::Present), 1);
        assert_eq!(lane(Some(true), Some(MmuMode::Shadow), HExtension::Absent), 1);
        assert_eq!(lane(Some(true), Some(MmuMode::Lazy), HExtension::Present), 0);
        assert_eq!(lane(Some(true), None, HExtension::Absent), 0);
        assert_eq!(lane(Some(false), None, HExtension::Present) + lane(None, None, HExtension::Present), 0);
        let cut = |bytes: usize| warnings(&vm(&VmFile::default()), HExtension::Present, &"x".repeat(bytes));
        assert_eq!(cut(1023), [""; 0]);
        assert!(cut(1024)[0].contains("1024 bytes; Linux reads only the first 1023"), "{:?}", cut(1024));
    }

    #[test]
    fn seeds_repeat_only_with_counted_time() {
        let vm = vm(&VmFile::default());
        let seed = |clock| rng_seed(&vm, clock).expect("a seed");
        assert_eq!(seed(Clock::Instructions), seed(Clock::Instructions));
        assert_ne!(seed(Clock::Real), seed(Clock::Real));
        assert_eq!(seed(Clock::Real).len(), RNG_SEED_BYTES);
    }
}
