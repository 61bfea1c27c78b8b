//! Runs benchmarks: a guest on a subject, under QEMU's `-icount` and the meter. The cache keeps the result of each run,
//! keyed by everything that it depends on, so that a benchmark that was stopped continues where it was, and no run is
//! repeated for nothing.

mod copies;
pub mod counts;
mod load;
pub mod longest;
pub mod progress;
pub mod subject;

use crate::host::parts;
use crate::host::place::{IoError, Unnamed, cache, prune, write_whole};
use crate::host::sandbox::Reach;
use crate::host::sources;
use crate::host::words::{option_value, sha256};
use crate::machine::board::{Clock, HExtension, Seat};
use crate::machine::disk::{Disk, DiskSpec, Use};
use crate::machine::meter::{MeterSpec, Metered};
use crate::machine::net::Network;
use crate::machine::process::{Machine, Next, Outcome, Stopped};
use crate::machine::qemu::{self, Boot, MachineSpec};
use crate::machine::share::ShareSpec;
use crate::machine::stream::Piece;
use crate::run::{self, RunSpec};
use crate::subject::bare::{self, BareSpec};
use crate::subject::kvm::{KvmGuest, KvmHost, KvmKernel, Thp};
use crate::subject::workload::{Devices, SHARE, Services};
use crate::vm::file::{Balloon, Console, Initrd, Kernel, VmFile};
use abi::record::EndReason;
use abi::report::{self, Line};
use copies::Copies;
use counts::Counts;
pub use load::{Keeping, Load, Nesting, Processors};
use longest::{Longest, Longests};
use meter::args::Level;
use meter::core::Core;
use miette::{IntoDiagnostic, miette};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use subject::{Gnomon, Subject};
use tempfile::{NamedTempFile, TempDir};

/// No run takes longer.
const PATIENCE: Duration = Duration::from_secs(60 * 60);
/// The time for which results are kept.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Lines of the console that an error shows.
const LINES_SHOWN: usize = 20;

/// QEMU's own 9P server, for the bare machine, up to the path of the directory that it serves.
const QEMU_SHARE: &str = "local,id=share,security_model=none,path=";

/// The files and services that must live as long as a machine.
#[derive(Default)]
struct Kept {
    files: Vec<Unnamed>,
    share: Option<TempDir>,
    services: Option<Services>,
}

/// The result of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// QEMU's command line, files by their role.
    pub command_line: String,
    /// SHA-256 of those files.
    pub inputs: BTreeMap<String, String>,
    /// The figures that the guest printed.
    pub figures: BTreeMap<String, u64>,
    /// The counters of the VM, on Gnomon.
    pub counters: BTreeMap<String, u64>,
    /// The meter's counts between markers, for each pair of labels; nothing on several harts.
    pub regions: Vec<Region>,
    /// The counts from the start to the end; nothing on several harts.
    pub whole: Value,
    /// The longest exit, from the start to the end.
    pub longest: Longest,
}

/// The meter's counts between two markers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Region {
    /// The labels of the markers; there is no second one if the machine ended before it.
    pub labels: (u64, Option<u64>),
    /// The counts, as the meter reports them.
    pub total: Value,
}

impl Region {
    /// Checks that the meter knows for which exit each instruction of the host's was executed: guests set markers,
    /// so regions begin and end in one.
    fn checked(self, subject: Subject) -> miette::Result<Self> {
        let counts = Counts::read(&self.total).into_diagnostic()?;
        let (host, handling) = (counts.host_instructions(subject), counts.handling_instructions(subject));
        let (begin, end) = self.labels;
        match end {
            Some(_) if host != handling => Err(miette!(
                "in region {begin} the host executed {host} instructions, {handling} of them to handle exits: the meter is in error"
            )),
            Some(_) => Ok(self),
            None => Err(miette!("region {begin} lasted until the machine ended")),
        }
    }
}

impl Run {
    /// The counts of the region, or the regions together, that began and ended with a label.
    ///
    /// # Errors
    /// If there is none.
    pub fn counts(&self, label: u64) -> miette::Result<Counts> {
        match self.regions.iter().find(|region| region.labels == (label, Some(label))) {
            Some(region) => Counts::read(&region.total).into_diagnostic(),
            None => Err(miette!("the guest did not set the marker {label} at the begin and the end of its region")),
        }
    }
}

/// The instruments.
#[derive(Debug)]
pub struct Lab {
    hypervisor: PathBuf,
    plugin: PathBuf,
    firmware: PathBuf,
    cores: Vec<Core>,
    core_names: Vec<String>,
    qemu: String,
    /// The commit of the sources, and its date.
    commit: String,
    /// SHA-256 of this program: it makes the machines.
    command: String,
    is_fresh: bool,
    kvm: Mutex<BTreeMap<KvmKernel, KvmHost>>,
    vkernel: Mutex<Option<PathBuf>>,
    digests: Mutex<BTreeMap<PathBuf, String>>,
    copies: Copies,
    longests: Mutex<Longests>,
}

impl Lab {
    /// Builds what is needed. With `is_fresh`, what the cache keeps of earlier runs does not count.
    ///
    /// # Errors
    /// If something cannot be built, or there is no such core.
    pub fn open(cores: &[String], is_fresh: bool) -> miette::Result<Self> {
        let found =
            Core::find_all(cores.iter().map(String::as_str)).map_err(crate::machine::meter::MeterError::from)?;
        prune(&cache("bench")?, KEPT);
        let copies = Copies::new().into_diagnostic()?;
        let core_name = |name: &String| match Core::names().find(|known| known == name) {
            Some(built_in) => Ok(built_in.to_owned()),
            None => Ok(copies.of(Path::new(name))?.to_string_lossy().into_owned()),
        };
        // By whatever name it was started, and if it was replaced since.
        let command = Path::new("/proc/self/exe");
        Ok(Self {
            hypervisor: copies.of(&parts::hypervisor()?)?,
            plugin: copies.of(&parts::meter()?)?,
            firmware: qemu::firmware()?,
            cores: found,
            core_names: cores.iter().map(core_name).collect::<Result<_, IoError>>()?,
            qemu: qemu::version()?,
            commit: sources::commit(),
            command: sha256(&std::fs::read(command).map_err(IoError::at("read", command))?),
            is_fresh,
            kvm: Mutex::default(),
            vkernel: Mutex::default(),
            digests: Mutex::default(),
            copies,
            longests: Mutex::default(),
        })
    }

    /// The longest exits of all runs since it was asked last.
    pub fn longests(&self) -> Longests {
        std::mem::take(&mut self.longests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The names of the modelled cores, as the meter's report has them.
    pub fn cores(&self) -> impl Iterator<Item = &str> {
        self.cores.iter().map(|core| core.name.as_str())
    }

    /// The software measured; KVM's, once it was.
    #[must_use]
    pub fn versions(&self) -> String {
        let hosts = self.kvm.lock().unwrap_or_else(PoisonError::into_inner);
        let kvm: String = hosts.values().map(|host| format!("; KVM: {}", host.versions().join(", "))).collect();
        format!("gnomon {} ({}), QEMU {}{kvm}", env!("CARGO_PKG_VERSION"), self.commit, self.qemu)
    }

    /// Runs a guest on a subject, or looks up what that came to before.
    ///
    /// # Errors
    /// If the guest does not come to its end, or says that something went wrong.
    pub fn run(&self, subject: Subject, load: &Load) -> miette::Result<Run> {
        let run = self.known_or_new(subject, load)?;
        // Where vCPUs share a hart, one that waits is away for as long as no other can run.
        if load.processors == Processors::ONE {
            self.longests.lock().unwrap_or_else(PoisonError::into_inner).add(subject, &run.longest);
        }
        Ok(run)
    }

    fn known_or_new(&self, subject: Subject, load: &Load) -> miette::Result<Run> {
        let load = &Load { kernel: self.copies.of(&load.kernel)?, ..load.clone() };
        let key = self.key(subject, load)?;
        let path = cache("bench")?.join(format!("{key}.json"));
        if !self.is_fresh
            && let Ok(text) = std::fs::read(&path)
            && let Ok(run) = serde_json::from_slice(&text)
        {
            return Ok(run);
        }
        let run = self.run_now(subject, load)?;
        write_whole(&path, &serde_json::to_vec(&run).into_diagnostic()?)?;
        Ok(run)
    }

    /// Everything that a run depends on, as text.
    fn key(&self, subject: Subject, load: &Load) -> miette::Result<String> {
        let Load { initrd, append, memory, svadu, keeping, has_few_devices, processors, devices, nesting, .. } = load;
        let (is_gnomon, is_native) = (matches!(subject, Subject::Gnomon(_)), subject == Subject::Native);
        let kvm = match subject {
            Subject::Kvm { .. } => Some(KvmKernel::Newest),
            Subject::Native | Subject::Gnomon(_) => nesting.kvm(),
        };
        let kvm = kvm.map(|kernel| {
            let host = self.kvm(kernel)?;
            let files = host.files().map(|file| self.digest(file)).collect::<Result<Vec<_>, _>>()?;
            Ok::<_, miette::Report>((host.versions(), files))
        });
        let kvm = kvm.transpose()?.unwrap_or_default();
        let initrd = initrd.as_deref().map(|file| self.digest(file)).transpose()?;
        let all = json!({
            "subject": subject, "append": append, "memory": memory.0, "initrd": initrd, "kvm": kvm,
            "processors": processors, "svadu": *svadu && is_gnomon, "keeping": if is_gnomon { *keeping } else { Keeping::Demand }, "few": *has_few_devices && is_native,
            "kernel": self.digest(&self.kernel(subject, load)?)?, "hypervisor": self.digest(&self.hypervisor)?, "meter": self.digest(&self.plugin)?,
            "qemu": self.qemu, "firmware": self.digest(&self.firmware)?, "cores": format!("{:?}", self.cores),
            "command": self.command, "devices": devices, "nesting": nesting,
        });
        Ok(sha256(all.to_string().as_bytes()))
    }

    fn digest(&self, file: &Path) -> Result<String, IoError> {
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = digests.get(file) {
            return Ok(known.clone());
        }
        let digest = sha256(&std::fs::read(file).map_err(IoError::at("read", file))?);
        digests.insert(file.to_owned(), digest.clone());
        Ok(digest)
    }

    /// The kernel that the subject boots.
    fn kernel(&self, subject: Subject, load: &Load) -> miette::Result<PathBuf> {
        if !matches!(subject, Subject::Gnomon(Gnomon { vkernel: Some(_), .. })) {
            return Ok(load.kernel.clone());
        }
        let mut vkernel = self.vkernel.lock().unwrap_or_else(PoisonError::into_inner);
        if vkernel.is_none() {
            *vkernel = Some(self.copies.of(&parts::vkernel()?)?);
        }
        vkernel.clone().ok_or_else(|| miette!("there is no vkernel"))
    }

    fn kvm(&self, kernel: KvmKernel) -> miette::Result<KvmHost> {
        let mut hosts = self.kvm.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = hosts.get(&kernel) {
            return Ok(host.clone());
        }
        let host = KvmHost::provide(kernel)?;
        hosts.insert(kernel, host.clone());
        Ok(host)
    }

    fn run_now(&self, subject: Subject, load: &Load) -> miette::Result<Run> {
        let (mut machine, _kept) = self.machine(subject, load)?;
        let out = NamedTempFile::new().into_diagnostic()?;
        let (out_path, cores) = (out.path().to_owned(), self.core_names.clone());
        let spec = MeterSpec { out: out_path, level: Level::Tlb, cores, traps: None };
        let is_metered = load.processors.is_metered();
        machine.meter = is_metered.then(|| Metered { plugin: self.plugin.clone(), spec });
        let (console, outcome) = watch(&machine)?;
        judge(subject, &console, &outcome)?;
        let counters = outcome.stats.and_then(|stats| stats.vms.into_iter().next()).map(|vm| vm.counters);
        let counters = counters.unwrap_or_default();
        let figures =
            console.lines().filter_map(report::figure).map(|(name, value)| (name.to_owned(), value)).collect();
        let (command_line, inputs) = self.described(machine, (self.kernel(subject, load)?, load))?;
        let run = Run { command_line, inputs, figures, counters, ..Run::default() };
        if !is_metered {
            return Ok(run);
        }
        let report = crate::machine::meter::Report::read(out.path())?;
        if report.lost_markers() > 0 {
            return Err(miette!("the guest set {} markers more than are kept", report.lost_markers()));
        }
        let regions = report.sums().map(|(labels, total)| Region { labels, total: total.clone() });
        let regions = regions.map(|region| region.checked(subject)).collect::<miette::Result<Vec<_>>>()?;
        let whole = report.whole().clone();
        let longest = Longest::of(&Counts::read(&whole).into_diagnostic()?, subject);
        Ok(Run { regions, whole, longest, ..run })
    }

    /// The machine, with what must live as long as it.
    fn machine(&self, subject: Subject, load: &Load) -> miette::Result<(MachineSpec, Kept)> {
        let Load { initrd, append, memory, svadu, keeping, has_few_devices, processors, devices, nesting, .. } =
            load.clone();
        let kernel = self.kernel(subject, load)?;
        let clock = Clock::counted(devices.are_there());
        let Devices { disk_bytes, services, has_share } = devices;
        let mut kept = Kept::default();
        let disk = disk_bytes.map(|bytes| blank_disk(bytes, &mut kept)).transpose()?;
        kept.share = has_share.then(TempDir::new).transpose().into_diagnostic()?;
        let share = kept.share.as_ref().map(TempDir::path);
        let has_net = !services.is_empty();
        let append = if has_net {
            let services = Services::start(&services).into_diagnostic()?;
            let words = services.words();
            kept.services = Some(services);
            format!("{append} {words}")
        } else {
            append
        };
        match subject {
            Subject::Native => {
                let (harts, h) = (processors.harts, HExtension::Absent);
                let mut machine = BareSpec { kernel, initrd, append, harts, memory, clock, h }.machine();
                machine.disks.extend(disk);
                machine.net = has_net.then(Network::of_one_guest);
                if let Some(dir) = share {
                    let fsdev = format!("{QEMU_SHARE}{}", option_value(dir).display());
                    let device = format!("virtio-9p-device,fsdev=share,mount_tag={SHARE}");
                    machine.extra.extend(["-fsdev".into(), fsdev, "-device".into(), device]);
                    machine.files.push((dir.to_owned(), Reach::Write));
                    // QEMU's filter of system calls forbids what its own 9P server does.
                    machine.sandbox = false;
                }
                if has_few_devices {
                    let (few, tree) = bare::few_devices(machine)?;
                    kept.files.push(tree);
                    machine = few;
                }
                Ok((machine, kept))
            }
            Subject::Gnomon(gnomon) => {
                let vm = |kernel, initrd: Option<PathBuf>, append| VmFile {
                    memory: Some(memory),
                    kernel: Some(Kernel::File(kernel)),
                    initrd: Some(initrd.map_or(Initrd::None, Initrd::File)),
                    append: Some(append),
                    vcpus: Some(processors.vcpus),
                    console: Some(Console::None),
                    ..VmFile::default()
                };
                let boot = match nesting {
                    Nesting::None => vm(kernel, initrd, append),
                    Nesting::Itself(l2) => {
                        VmFile { l2: Some(l2), balloon: Some(Balloon::Is(true)), ..vm(kernel, initrd, append) }
                    }
                    Nesting::UnderKvm(host, l2) => {
                        let vcpus = processors.vcpus;
                        let guest = KvmGuest { kernel, initrd, append, memory, vcpus, disk: None, net: None };
                        let (vm, initramfs) = self.kvm(host)?.vm(&guest)?;
                        kept.files.push(initramfs);
                        VmFile { l2: Some(l2), ..vm }
                    }
                    Nesting::UnderGnomon => {
                        let inner = Gnomon { seat: Seat::Payload, ..gnomon };
                        let spec = run_spec(inner, (vm(kernel, initrd, append), keeping), processors.harts);
                        let (machine, bundle) = run::prepare(&spec, Some(&self.hypervisor))?.machine_and_bundle();
                        kept.files.push(bundle);
                        run::nested(&machine).ok_or_else(|| miette!("the machine has no Gnomon"))?
                    }
                };
                let share = share.map(|dir| ShareSpec { dir: dir.into(), readonly: false, name: Some(SHARE.into()) });
                let vm = VmFile {
                    vcpus: Some(processors.vcpus),
                    shares: Some(share.into_iter().collect()),
                    svadu: Some(svadu),
                    wired: Some(keeping == Keeping::Wired),
                    console: Some(Console::None),
                    net: Some(has_net),
                    disks: Some(disk.into_iter().map(DiskSpec::from).collect()),
                    nested: Some(nesting != Nesting::None),
                    ..boot
                };
                let spec = RunSpec { clock, ..run_spec(gnomon, (vm, keeping), processors.harts) };
                let (machine, bundle) = run::prepare(&spec, Some(&self.hypervisor))?.machine_and_bundle();
                kept.files.push(bundle);
                Ok((machine, kept))
            }
            Subject::Kvm { superpages } => {
                let net = has_net.then(Network::of_one_guest);
                let guest = KvmGuest { kernel, initrd, append, memory, vcpus: processors.vcpus, disk, net };
                let thp = if superpages { Thp::Always } else { Thp::Never };
                let (machine, initramfs) = self.kvm(KvmKernel::Newest)?.machine(&guest, thp)?;
                kept.files.push(initramfs);
                Ok((machine, kept))
            }
        }
    }

    /// QEMU's command line with files by their role, and what those were.
    fn described(
        &self,
        mut machine: MachineSpec,
        (kernel, load): (PathBuf, &Load),
    ) -> miette::Result<(String, BTreeMap<String, String>)> {
        let mut inputs = BTreeMap::new();
        let mut name = |path: &mut PathBuf, role: &str| -> miette::Result<()> {
            inputs.insert(role.to_owned(), self.digest(path)?);
            *path = role.into();
            Ok(())
        };
        name(&mut kernel.clone(), "guest-kernel")?;
        load.initrd.clone().map_or(Ok(()), |mut initrd| name(&mut initrd, "guest-initrd"))?;
        match &mut machine.boot {
            Boot::Gnomon { seat, hypervisor, bundle } => {
                name(hypervisor, "gnomon")?;
                if *seat == Seat::Payload {
                    name(&mut self.firmware.clone(), "firmware")?;
                }
                // It holds the guest's files, named above.
                *bundle = "bundle".into();
            }
            Boot::Bare { kernel, initrd, .. } => {
                name(&mut self.firmware.clone(), "firmware")?;
                name(kernel, "kernel")?;
                initrd.as_mut().map_or(Ok(()), |initrd| name(initrd, "initrd"))?;
            }
        }
        // It is blank.
        machine.disks.iter_mut().for_each(|disk| disk.file = "disk".into());
        let shares = machine.extra.iter_mut().filter(|word| word.starts_with(QEMU_SHARE));
        shares.for_each(|word| *word = format!("{QEMU_SHARE}share"));
        if let Some(meter) = &mut machine.meter {
            name(&mut meter.plugin, "meter")?;
            meter.spec.out = "report".into();
            for (core, path) in self.cores.iter().zip(&mut meter.spec.cores) {
                path.clone_from(&core.name);
            }
        }
        Ok((machine.command_line(), inputs))
    }
}

/// A disk of zeroes, whose file is kept.
fn blank_disk(bytes: u64, kept: &mut Kept) -> Result<Disk, IoError> {
    let mut blank = Unnamed::new()?;
    blank.as_file_mut().set_len(bytes).map_err(IoError::at("write", blank.path()))?;
    let disk = Disk::raw(blank.path().to_owned(), Use::Write);
    kept.files.push(blank);
    Ok(disk)
}

/// A run of one VM.
fn run_spec(gnomon: Gnomon, (vm, keeping): (VmFile, Keeping), harts: u32) -> RunSpec {
    let vm = VmFile { superpages: Some(gnomon.superpages), vmspace: gnomon.vkernel, ..vm };
    RunSpec {
        settings: keeping
            .settings()
            .into_iter()
            .chain(gnomon.without.map(|part| format!("{}=off", part.name())))
            .collect(),
        harts: Some(harts),
        h: gnomon.variant.h,
        seat: gnomon.seat,
        clock: Clock::Instructions,
        ..RunSpec::of(vec![gnomon.variant.applied_to(vm)])
    }
}

/// Runs a machine to its end; returns what it printed, and how it ended.
fn watch(spec: &MachineSpec) -> miette::Result<(String, Outcome)> {
    let (machine, _) = Machine::start(spec)?;
    let mut console = Vec::new();
    let outcome = machine.run(Some(Instant::now() + PATIENCE), |piece| {
        if let Piece::Text(bytes) = piece {
            console.extend_from_slice(bytes);
        }
        Next::Continue
    })?;
    let console = String::from_utf8_lossy(&console).into_owned();
    match (outcome.stopped, &outcome.failed) {
        (Some(Stopped::Timeout), _) => Err(miette!(
            "the machine did not power off within {} s; it ended with\n{}",
            PATIENCE.as_secs(),
            tail(&console)
        )),
        (_, Some(why)) => Err(miette!("Gnomon failed: {why}")),
        _ if !outcome.status.is_some_and(|status| status.success()) && !outcome.has_halted => {
            Err(miette!("QEMU ended with an error: {}", outcome.stderr.trim()))
        }
        _ => Ok((console, outcome)),
    }
}

/// The prefix of the message by which a KVM host reports a failure.
const KVM_GAVE_UP: &str = "gnomon-kvm: ";

/// Returns the failure, of the machine or in the guest. A guest that completed its work has reported that.
fn judge(subject: Subject, console: &str, outcome: &Outcome) -> miette::Result<()> {
    if matches!(subject, Subject::Gnomon(_))
        && !(outcome.has_halted && outcome.ends.len() == 1 && outcome.stats.is_some())
    {
        return Err(miette!("QEMU ended before Gnomon was done:\n{}", tail(console)));
    }
    match outcome.ends.first().map(|end| &end.reason) {
        Some(EndReason::NotStarted { message } | EndReason::Killed { message }) => return Err(miette!("{message}")),
        Some(EndReason::Poweroff) | None => {}
        other => return Err(miette!("the guest was interrupted: {other:?}")),
    }
    let mut is_done = false;
    for line in console.lines().map(str::trim_end) {
        match Line::parse(line) {
            Some(Line::Fail(why)) => return Err(miette!("the guest found a fault: {why}")),
            Some(Line::Done(_)) => is_done = true,
            Some(Line::Pass(_)) | None => {}
        }
        match line.strip_prefix("gnomon-exec: end ") {
            Some("0") => is_done = true,
            Some(status) => {
                return Err(miette!("the guest's commands ended with status {status}:\n{}", tail(console)));
            }
            None => {}
        }
        if let Some((_, why)) = line.split_once(KVM_GAVE_UP) {
            return Err(miette!("the host under KVM gave up: {why}\n{}", tail(console)));
        }
    }
    match is_done {
        _ if console.contains("Kernel panic") => Err(miette!("the guest's kernel panicked:\n{}", tail(console))),
        false => Err(miette!("the guest did not report its end:\n{}", tail(console))),
        true => Ok(()),
    }
}

/// The end of a console's text.
fn tail(console: &str) -> String {
    let lines: Vec<_> = console.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
}
