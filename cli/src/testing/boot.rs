//! Runs a boot test.

use super::cases::{Case, Site};
use super::dialog::Dialog;
use super::image;
use super::judge::{self, Transcript};
use super::metered::{self, Metering};
use super::plan::{BootTest, End, L1};
use super::ports::Partner;
use super::selftests;
use super::serve::Server;
use super::shared::{self, run_dir};
use super::tally::{Spent, Verdict};
use crate::guest::debian::{Files, HostKernel, Software};
use crate::guest::initramfs;
use crate::guest::modules::{self, Needs};
use crate::host::build::BuildError;
use crate::host::parts;
use crate::host::place::Unnamed;
use crate::host::size::Size;
use crate::machine::board::{Clock, HExtension, Seat};
use crate::machine::disk::{DiskSpec, Snapshot};
use crate::machine::meter::Metered;
use crate::machine::process::{Machine, Next, Stopped};
use crate::machine::qemu::MachineSpec;
use crate::machine::stream::Piece;
use crate::machine::swap::SwapSpec;
use crate::run::console::{ExecDemux, ExecEvent, PanicWatch};
use crate::run::{self, RunSpec};
use crate::subject::bare::BareSpec;
use crate::subject::kvm::{KvmGuest, KvmHost, KvmKernel, Thp};
use crate::subject::variant::Variant;
use crate::subject::workload::{HugePages, Scale};
use crate::system;
use crate::vm::file::{Balloon, Console, Initrd, Kernel, VmFile};
use crate::vm::root::Root;
use abi::bundle::{ConsoleMode, MmuMode};
use abi::record::Record;
use miette::miette;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::{NamedTempFile, TempDir};

/// The time for which the output of a panicked kernel is read.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The programs of boot tests: built once, for the first test.
#[derive(Debug)]
pub struct Programs {
    /// The hypervisor.
    hypervisor: Result<PathBuf, BuildError>,
    /// The test guests by name.
    guests: Result<BTreeMap<String, PathBuf>, BuildError>,
}

impl Programs {
    /// Builds them.
    pub fn build() -> Self {
        Self { hypervisor: parts::hypervisor(), guests: parts::guests() }
    }
}

/// Runs a case and judges it: one verdict, or one for each check of a test guest; and what it took.
pub fn run(case: &Case, programs: &Programs) -> (Vec<Verdict>, Spent) {
    let mut all = Spent::default();
    let mut left = case.test.attempts.get();
    loop {
        let (verdicts, spent) = attempt(case, programs);
        all = [all, spent].into_iter().sum();
        left -= 1;
        if left == 0 || verdicts.iter().all(|verdict| verdict.result.is_ok()) {
            return (verdicts, all);
        }
    }
}

fn attempt(case: &Case, programs: &Programs) -> (Vec<Verdict>, Spent) {
    let result = match case.site {
        Site::Gnomon(seat) => over_baseline(case, seat, programs),
        Site::Bare => on_bare(case, programs),
        Site::Kvm(thp) => on_kvm(case, thp, programs),
    };
    match result {
        Ok(transcript) => (judge::judge(case, &transcript), transcript.spent),
        Err(report) => {
            let help = report.help().map_or_else(String::new, |help| format!(" ({help})"));
            (vec![Verdict::failed(case.name(), format!("{report}{help}"))], Spent::default())
        }
    }
}

fn clock(test: &BootTest) -> Clock {
    if test.icount { Clock::Instructions } else { Clock::Real }
}

/// The file of a test guest.
pub(super) fn guest(name: &str, programs: &Programs) -> miette::Result<PathBuf> {
    let guests = programs.guests.as_ref().map_err(|why| miette!("{why}"))?;
    guests.get(name).cloned().ok_or_else(|| miette!("there is no test guest `{name}`"))
}

/// The hypervisor's file.
pub(super) fn hypervisor(programs: &Programs) -> miette::Result<&Path> {
    programs.hypervisor.as_deref().map_err(|why| miette!("{why}"))
}

/// The case, after its baseline if it has one.
fn over_baseline(case: &Case, seat: Seat, programs: &Programs) -> miette::Result<Transcript> {
    let Some(before) = case.baseline() else { return on_gnomon(case, seat, programs) };
    let baseline = on_gnomon(&before, seat, programs)?;
    let verdicts = judge::judge(&before, &baseline);
    if let Some(why) = verdicts.into_iter().find_map(|verdict| verdict.result.err()) {
        return Err(miette!("in the baseline's run: {why}"));
    }
    let stats = baseline.outcome.stats.ok_or_else(|| miette!("the baseline's run ended without counters"))?;
    let mut transcript = on_gnomon(case, seat, programs)?;
    transcript.baseline = Some(stats);
    transcript.spent += baseline.spent;
    Ok(transcript)
}

/// An initramfs that Gnomon would not make by itself.
enum OwnInitrd {
    /// In the cache.
    Kept(PathBuf),
    /// For one run.
    Made(NamedTempFile),
}

impl OwnInitrd {
    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Made(file) => file.path(),
        }
    }
}

/// The initramfs of a test's workload, or for its commands, with the programs that they use.
fn initrd(test: &BootTest) -> miette::Result<OwnInitrd> {
    if let Some(workload) = test.workload {
        let workload = workload.provide(Scale::Quick, HugePages::Never)?;
        if test.memory < workload.memory {
            return Err(miette!("the workload needs `memory = \"{}\"`", workload.memory));
        }
        return Ok(OwnInitrd::Kept(workload.initrd));
    }
    let busybox = std::fs::read(Software::Busybox.provide()?.file).map_err(|why| miette!("{why}"))?;
    let mut files = Vec::new();
    if test.meter.is_some() {
        let mark = parts::mark()?;
        files.push(("bin/mark".to_owned(), std::fs::read(&mark).map_err(|why| miette!("{}: {why}", mark.display()))?));
    }
    if test.l1.and_then(L1::kvm).is_some() {
        let clock = parts::program("clock")?;
        files.push((
            "bin/clock".to_owned(),
            std::fs::read(&clock).map_err(|why| miette!("{}: {why}", clock.display()))?,
        ));
    }
    for name in &test.programs {
        for (path, file) in Files::program(name)?.files {
            files.push((path, std::fs::read(&file).map_err(|why| miette!("{}: {why}", file.display()))?));
        }
    }
    if !test.selftests.is_empty() {
        let read = |file: &Path| std::fs::read(file).map_err(|why| miette!("{}: {why}", file.display()));
        files.push((format!("{}kvm.ko.xz", modules::FOLDER), read(&HostKernel::newest()?.module)?));
        for (name, file) in test.selftests.iter().zip(selftests::provide(&test.selftests)?) {
            files.push((format!("bin/{name}"), read(&file)?));
        }
    }
    let needs = Needs {
        balloon: test.balloon.and_then(Balloon::target).is_some(),
        disks: test.disk.is_some(),
        net: test.net,
        shares: test.share,
        rng: test.rng,
        key: false,
        console: test.console == Some(Console::Virtio) || test.ports,
    };
    files.extend(modules::provide(needs)?);
    let files: Vec<_> = files.iter().map(|(path, bytes)| (path.as_str(), bytes.as_slice())).collect();
    let mut file = NamedTempFile::new().map_err(|why| miette!("{why}"))?;
    let archive = initramfs::build_with(&busybox, test.exec.as_deref(), &files)?;
    file.write_all(&archive).map_err(|why| miette!("{why}"))?;
    Ok(OwnInitrd::Made(file))
}

/// A VM on Gnomon, as a case has it: all but its name, and what is started in it beside the kernel.
pub(super) fn vm_file(case: &Case, kernel: Option<Kernel>, mmu: Option<MmuMode>) -> VmFile {
    let test = &case.test;
    Variant { mmu, ..case.variant }.applied_to(VmFile {
        memory: Some(test.memory),
        vcpus: Some(case.vcpus()),
        kernel,
        console: test.console,
        svvptc: test.svvptc,
        svadu: test.svadu,
        nested: Some(test.nested),
        l2: test.l2,
        vmspace: test.vmspace,
        shadow: test.shadow,
        limit: test.limit,
        reserve: test.reserve,
        wired: Some(test.wired),
        superpages: Some(test.superpages),
        gigapages: Some(test.gigapages),
        balloon: test.balloon,
        net: Some(test.net),
        rng: Some(test.rng),
        ..VmFile::default()
    })
}

/// The machine that a case has, with these VMs, each of whose lines says whose it is.
pub(super) fn machine(case: &Case, seat: Seat, files: Vec<VmFile>) -> RunSpec {
    RunSpec {
        host_memory: case.test.host_memory,
        settings: case.test.set.clone(),
        harts: Some(case.harts),
        h: case.variant.h,
        seat,
        // A run with random bytes is never the same, so `--icount` refuses it. Here it is for the shares of time.
        clock: if case.test.rng { Clock::Real } else { clock(&case.test) },
        qemu_args: case.test.qemu.clone(),
        ..RunSpec::of(files)
    }
}

fn on_gnomon(case: &Case, seat: Seat, programs: &Programs) -> miette::Result<Transcript> {
    let test = &case.test;
    let kernel = match &test.guest {
        Some(name) => Some(Kernel::File(guest(name, programs)?)),
        None if !test.selftests.is_empty() => Some(Kernel::File(HostKernel::newest()?.image)),
        None => test.kernel.clone(),
    };
    // The commands come with Gnomon's own initramfs; where they need programs, or not all VMs have them, with one made here.
    let has_programs = !test.programs.is_empty() || !test.selftests.is_empty();
    let is_own = has_programs || test.workload.is_some() || test.exec.is_some() && !test.beside.is_empty();
    let own_initrd = if is_own { Some(initrd(test)?) } else { None };
    let bare = |kernel, append: &String, mmu| VmFile { append: Some(append.clone()), ..vm_file(case, kernel, mmu) };
    let vm = |kernel, append: &String, mmu| match &own_initrd {
        Some(file) => VmFile {
            initrd: Some(Initrd::File(file.path().to_owned())),
            ..bare(kernel, &format!("quiet {append}"), mmu)
        },
        None => bare(kernel, append, mmu),
    };
    let modes = (0..test.vms).map(|number| test.vm_mmu.get(number).copied().or(case.variant.mmu));
    let mut files: Vec<_> = modes.map(|mmu| vm(kernel.clone(), &test.append, mmu)).collect();
    for companion in test.beside.iter().chain(&test.then) {
        let kernel = Kernel::File(guest(&companion.guest, programs)?);
        let file = bare(Some(kernel), &companion.append, companion.mmu.or(case.variant.mmu));
        files.push(VmFile {
            memory: companion.memory.or(file.memory),
            limit: companion.limit.or(file.limit),
            vcpus: companion.vcpus.or(file.vcpus),
            ..file
        });
    }
    for (file, name) in files.iter_mut().zip(case.vms()) {
        file.name = Some(name);
    }
    // Each after the one before; the first of them after the VM that the test is about.
    let at_once = test.vms + test.beside.len();
    for place in at_once..files.len() {
        files[place].after = files[if place == at_once { 0 } else { place - 1 }].name.clone();
    }
    let kvm = test.l1.and_then(L1::kvm).map(|kernel| under_kvm(case, kernel, programs)).transpose()?;
    if let Some((file, _)) = &kvm {
        files = vec![VmFile { name: files[0].name.clone(), ..file.clone() }];
    }
    let metering = Metering::of(test)?;
    let swap = test.swap.map(swap_file).transpose()?;
    let disks = test.disk.map(|_| run_dir()).transpose()?;
    if let Some(dir) = &disks {
        for (number, file) in files.iter_mut().take(at_once).enumerate() {
            let path = dir.path().join(format!("disk{number}"));
            file.disks = Some(vec![DiskSpec { file: path, size: test.disk, ..DiskSpec::default() }]);
        }
    }
    if let Some(loader) = test.image {
        files[0].disks = Some(vec![image::disk(loader)?]);
    }
    let sharing = if test.guest.is_some() { files.len() } else { test.vms };
    let shares = if test.share { Some(shared::Folders::make(sharing)?) } else { None };
    if let Some(shares) = &shares {
        files.iter_mut().take(sharing).enumerate().for_each(|(vm, file)| file.shares = Some(shares.of(vm)));
    }
    let server = test.serve.map(Server::start).transpose().map_err(|why| miette!("a server for the guests: {why}"))?;
    if let Some(server) = &server {
        for file in &mut files[..test.vms] {
            let append = file.append.take().unwrap_or_default();
            file.append = Some(format!("{append} {}", server.words()).trim_start().into());
        }
        files[0].forward = Some(vec![server.forward]);
    }
    let partner = if test.ports { Some(Partner::start(&case.vms(), test.guest.is_some())?) } else { None };
    files[0].ports = partner.as_ref().map(|_| Partner::names());
    // A disk that is not there, and so a new one.
    let roots = test.root.as_ref().map(|_| run_dir()).transpose()?;
    if let Some(dir) = &roots {
        for (number, file) in files.iter_mut().take(test.vms).enumerate() {
            file.root = Some(Root { file: Some(dir.path().join(format!("root{number}"))) });
        }
    }
    let mut spec = RunSpec {
        snapshot: if roots.is_some() || test.image.is_some() { Snapshot::Yes } else { Snapshot::No },
        swap: swap.as_ref().map(|(spec, _)| spec.clone()),
        exec: test.exec.clone().filter(|_| own_initrd.is_none() && kvm.is_none()),
        meter: metering.as_ref().map(|metering| metering.spec.clone()),
        console: if test.dialog.is_empty() { ConsoleMode::Lines } else { ConsoleMode::Attached },
        ..machine(case, seat, files)
    };
    let provided = system::provide(&spec)?;
    spec.roots = provided.roots.clone();
    let prepare = |spec: &RunSpec| run::prepare(spec, Some(hypervisor(programs)?));
    let inner = match test.l1 {
        Some(L1::Gnomon) => {
            // To it, its harts have the H extension, whatever the machine's have. The swap device is the outer one's.
            let unbounded = |file: &VmFile| VmFile { limit: None, reserve: None, l2: None, ..file.clone() };
            Some(prepare(&RunSpec {
                seat: Seat::Payload,
                h: HExtension::Present,
                files: spec.files.iter().map(unbounded).collect(),
                swap: None,
                ..spec.clone()
            })?)
        }
        Some(L1::Kvm | L1::KvmOfGuests) | None => None,
    };
    if let Some(inner) = &inner {
        let vm = run::nested(&inner.machine).ok_or_else(|| miette!("the machine has no Gnomon"))?;
        let VmFile { memory, kernel, initrd, nested, .. } = vm;
        let name = case.vms().into_iter().next();
        let outer = vm_file(case, None, None);
        spec.files = vec![VmFile { name, memory, kernel, initrd, nested, ..outer }];
        spec.exec = None;
    }
    let mut prepared = prepare(&spec)?;
    prepared.machine.clock = clock(test);
    prepared.machine.control = partner.as_ref().map(|partner| partner.machine_path().to_owned());
    let transcript = metered::follow(test, &prepared.machine, |machine| follow(case, machine))?;
    // A test guest leaves no files.
    shares.filter(|_| test.guest.is_none()).map_or(Ok(()), shared::Folders::check)?;
    Ok(transcript)
}

/// A VM on Gnomon that is a hypervisor: Linux with KVM, which runs the test's guest. The file has to live as long as the VM is prepared.
fn under_kvm(case: &Case, host: KvmKernel, programs: &Programs) -> miette::Result<(VmFile, Unnamed)> {
    let test = &case.test;
    let Load { kernel, initrd, append } = load(test, programs)?;
    let initrd_path = initrd.as_ref().map(|file| file.path().to_owned());
    let (memory, vcpus) = (test.memory, case.vcpus());
    let host = KvmHost::provide(host)?;
    let kernel = if test.newest { host.kernel().to_owned() } else { kernel };
    let guest = KvmGuest { kernel, initrd: initrd_path, append, memory, vcpus, disk: None, net: None };
    let (boot, file) = host.vm(&guest)?;
    let VmFile { memory, kernel, initrd, append, nested, .. } = boot;
    Ok((VmFile { memory, kernel, initrd, append, nested, ..vm_file(case, None, case.variant.mmu) }, file))
}

/// A file to page to, which is there until its directory is dropped.
fn swap_file(size: Size) -> miette::Result<(SwapSpec, TempDir)> {
    let dir = run_dir()?;
    Ok((SwapSpec { path: dir.path().join("swap"), size: Some(size) }, dir))
}

/// The files to boot without Gnomon.
struct Load {
    kernel: PathBuf,
    /// Lives until the machine has ended.
    initrd: Option<OwnInitrd>,
    append: String,
}

fn load(test: &BootTest, programs: &Programs) -> miette::Result<Load> {
    let mut append = vec![];
    let mut own_initrd = None;
    let kernel = match (&test.guest, &test.kernel) {
        (Some(name), _) => guest(name, programs)?,
        (None, Some(Kernel::File(file))) => file.clone(),
        (None, Some(Kernel::UBoot | Kernel::Disk)) => Software::UBoot.provide()?.file,
        (None, _) => {
            own_initrd = Some(initrd(test)?);
            append.extend(["console=ttyS0", "earlycon=sbi", "quiet"]);
            if test.selftests.is_empty() { Software::Kernel.provide()?.file } else { HostKernel::newest()?.image }
        }
    };
    append.extend((!test.append.is_empty()).then_some(test.append.as_str()));
    Ok(Load { kernel, initrd: own_initrd, append: append.join(" ") })
}

fn on_bare(case: &Case, programs: &Programs) -> miette::Result<Transcript> {
    let test = &case.test;
    let Load { kernel, initrd, append } = load(test, programs)?;
    let initrd_path = initrd.as_ref().map(|file| file.path().to_owned());
    let (harts, memory, clock) = (case.harts, test.memory, clock(test));
    let h = if test.nested { HExtension::Present } else { HExtension::Absent };
    follow_elsewhere(case, BareSpec { kernel, initrd: initrd_path, append, harts, memory, clock, h }.machine())
}

fn on_kvm(case: &Case, thp: Thp, programs: &Programs) -> miette::Result<Transcript> {
    let test = &case.test;
    let Load { kernel, initrd, append } = load(test, programs)?;
    let initrd_path = initrd.as_ref().map(|file| file.path().to_owned());
    let guest = KvmGuest { kernel, initrd: initrd_path, append, memory: test.memory, vcpus: 1, disk: None, net: None };
    let (machine, _initramfs) = KvmHost::provide(KvmKernel::Newest)?.machine(&guest, thp)?;
    follow_elsewhere(case, MachineSpec { clock: clock(test), ..machine })
}

/// [`follow`] for a machine without Gnomon, with what the test adds to it.
fn follow_elsewhere(case: &Case, mut machine: MachineSpec) -> miette::Result<Transcript> {
    machine.extra.extend(case.test.qemu.iter().cloned());
    let metering = Metering::of(&case.test)?;
    if let Some(Metering { spec, .. }) = &metering {
        spec.check(machine.harts, machine.clock)?;
        machine.meter = Some(Metered { plugin: parts::meter()?, spec: spec.clone() });
    }
    metered::follow(&case.test, &machine, |machine| follow(case, machine))
}

/// Runs the machine, types what the test says, and writes down what comes.
fn follow(case: &Case, spec: &MachineSpec) -> miette::Result<Transcript> {
    let test = &case.test;
    let started = Instant::now();
    let (machine, _) = Machine::start(spec)?;
    let (input, vms) = (machine.input(), case.vms());
    let mut dialog = Dialog::new(&test.dialog);
    let mut demux = case.has_commands().then(|| ExecDemux::new(vms.iter().map(String::as_str)));
    let mut watch = PanicWatch::new(vms.iter().map(|vm| (vm.as_str(), None)));
    // Those beside, as long as they run.
    let mut running = vms[test.vms..].to_vec();
    let mut transcript = Transcript::default();
    let outcome = machine.run(Some(started + case.timeout()), |piece| {
        let bytes = match piece {
            Piece::Text(bytes) => bytes,
            Piece::Record(Record::VmEnd(end)) if test.expect.end == End::Never => {
                running.retain(|vm| *vm != end.vm);
                if running.is_empty() {
                    transcript.has_seen_enough = true;
                    return Next::Stop(Stopped::Enough);
                }
                return Next::Continue;
            }
            Piece::Record(_) | Piece::Trouble(_) => return Next::Continue,
        };
        transcript.console.extend_from_slice(bytes);
        for answer in dialog.push(bytes) {
            // A machine that is gone shows in the outcome.
            let _ = input.write(answer.as_bytes());
        }
        let mut next = Next::Continue;
        for event in demux.iter_mut().flat_map(|demux| demux.push(bytes)) {
            if let ExecEvent::Output(bytes) = event {
                transcript.exec_output.extend_from_slice(&bytes);
            }
        }
        watch.push(bytes);
        if case.has_commands() && transcript.panic.is_none() {
            transcript.panic = watch.panicked().next().map(|(_, message)| message.to_owned());
            if transcript.panic.is_some() {
                next = Next::StopAt(Instant::now() + LAST_WORDS, Stopped::Enough);
            }
        }
        match &test.expect.until {
            Some(until) if count(&transcript.console, until.text.as_bytes()) >= until.count => {
                transcript.has_seen_enough = true;
                Next::Stop(Stopped::Enough)
            }
            _ => next,
        }
    })?;
    // Those beside have no commands.
    let is_own = |(vm, _): &(&str, _)| vms[..test.vms].iter().any(|own| own == vm);
    transcript.statuses =
        demux.iter().flat_map(ExecDemux::statuses).filter(is_own).map(|(vm, status)| (vm.into(), status)).collect();
    transcript.unanswered = dialog.waits_for().map(str::to_owned);
    transcript.spent = Spent { wall: started.elapsed(), cpu: outcome.cpu, machines: 1 };
    transcript.outcome = outcome;
    Ok(transcript)
}

fn count(text: &[u8], wanted: &[u8]) -> usize {
    text.windows(wanted.len().max(1)).filter(|window| *window == wanted).count()
}
