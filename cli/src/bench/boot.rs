//! What Gnomon adds to a boot, in each mode: instructions retired from the kernel's first to the first command of
//! the shell, beside those of the same kernel, initramfs and command line on OpenSBI.
//!
//! One hart, one vCPU, QEMU's `-icount shift=0`: an instruction, of whatever privilege mode, is a
//! nanosecond of the `time` CSR. The `stamp` payload reads it at a payload's entry, the `clock`
//! program at the shell; the difference is the figure. Time in which a hart waits would count too;
//! the kernel's own account of it is printed beside.
//!
//! QEMU's board has devices that a guest's has not (a PCI bridge, flash, a clock, virtio slots), and
//! Linux spends instructions on looking for them. So the bare machine is measured twice: as it is, and
//! with a device tree that names only what guests have, too.
//!
//! A run repeats exactly, but Linux times loops of its own while it boots, and where a tick falls in them
//! moves the figure by up to three in a hundred. So each machine boots with command lines that differ in
//! an unused word, and the median counts; the range stands beside it.

use super::{Choice, INSTRUCTIONS_PER_TICK, PATIENCE, Report, Subject, watch};
use crate::bare::BareSpec;
use crate::debian::Software;
use crate::machine::{Machine, Next};
use crate::place::IoError;
use crate::qemu::{Clock, MachineSpec};
use crate::run::{self, RunSpec};
use crate::size::Size;
use crate::vmfile::{Console, Initrd, Kernel, VmFile};
use crate::{build, initramfs};
use abi::bundle::ConsoleMode;
use abi::record::EndReason;
use dtoolkit::Node;
use dtoolkit::fdt::Fdt;
use dtoolkit::model::{DeviceTree, DeviceTreeNode};
use miette::{IntoDiagnostic, miette};
use serde::Serialize;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// RAM of the VM and of the bare machine.
const MEMORY: Size = Size(512 << 20);
/// What runs in the shell.
const SCRIPT: &str = "clock; echo gnomon-idle: $(cut -d' ' -f2 /proc/uptime)";

/// A command line to boot with, and what it is called.
const VARIANTS: [(&str, &str); 2] =
    [("quiet", "console=ttyS0 earlycon=sbi quiet"), ("all messages", "console=ttyS0 earlycon=sbi")];

/// Boots of each machine, with unused words of different length.
const BOOTS: usize = 5;

/// One machine's figures, in instructions.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figures {
    /// From entry to shell: the median.
    pub instructions: u64,
    /// The least and the most.
    pub range: (u64, u64),
    /// Seconds that the kernel counts as idle.
    pub idle: String,
}

/// One variant, side by side.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The command line's name.
    pub variant: &'static str,
    /// On OpenSBI.
    pub bare: Figures,
    /// On OpenSBI, with the devices only that guests have.
    pub bare_few: Figures,
    /// On Gnomon; or why a subject did not come to its shell.
    pub gnomon: Vec<(Subject, Result<Figures, String>)>,
}

impl Row {
    /// The machines by name, with their figures.
    fn machines(&self) -> impl Iterator<Item = (String, &Figures)> {
        let bare = [("bare", &self.bare), ("bare, few devices", &self.bare_few)];
        let gnomon =
            self.gnomon.iter().filter_map(|(subject, figures)| Some((subject.to_string(), figures.as_ref().ok()?)));
        bare.into_iter().map(|(name, figures)| (name.to_owned(), figures)).chain(gnomon)
    }
}

impl Figures {
    /// This figure over another.
    #[must_use]
    pub fn over(&self, other: &Figures) -> f64 {
        self.instructions as f64 / other.instructions as f64
    }
}

/// The table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Table {
    /// A row for each command line.
    pub rows: Vec<Row>,
    /// The software measured.
    pub versions: String,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Boot: instructions from the kernel's entry to the shell, all privilege modes")?;
        writeln!(f, "{}; 1 hart, 1 vCPU, {MEMORY}, -icount shift=0", self.versions)?;
        writeln!(
            f,
            "{:13} {:24} {:>13} {:>8} {:>8}  {:20} {:>6}",
            "messages", "machine", "instructions", "/ bare", "/ few", "range", "idle s"
        )?;
        for row in &self.rows {
            for (name, figures) in row.machines() {
                let (bare, few) = (figures.over(&row.bare), figures.over(&row.bare_few));
                let Figures { instructions, range: (least, most), idle } = figures;
                let range = format!("{least}-{most}");
                let variant = row.variant;
                writeln!(f, "{variant:13} {name:24} {instructions:>13} {bare:>8.4} {few:>8.4}  {range:20} {idle:>6}")?;
            }
        }
        writeln!(f, "few devices: the bare machine, described without what a guest's board has not")?;
        Ok(())
    }
}

/// Measures.
///
/// # Errors
/// If something is missing, or a machine does not come to its shell.
pub fn measure(choice: &Choice) -> miette::Result<Report> {
    let table = measure_all(choice)?;
    let failed = |row: &Row| {
        let failed = |(subject, figures): &(Subject, Result<Figures, String>)| {
            Some(format!("{subject}, {}: {}", row.variant, figures.as_ref().err()?))
        };
        row.gnomon.iter().filter_map(failed).collect::<Vec<_>>()
    };
    let failures = table.rows.iter().flat_map(failed).collect();
    let json = serde_json::json!({ "experiment": "boot", "table": &table });
    Ok(Report { text: table.to_string(), json, failures })
}

fn measure_all(choice: &Choice) -> miette::Result<Table> {
    let guests = build::guests()?;
    let program = |name: &str| guests.get(name).cloned().ok_or_else(|| miette!("there is no program `{name}`"));
    let (stamp, clock) = (program("stamp")?, build::program("clock")?);
    let clock = std::fs::read(&clock).map_err(IoError::at("read", &clock))?;
    let kernel = Software::Kernel.provide()?;
    let busybox = Software::Busybox.provide()?;
    let applets = std::fs::read(&busybox.file).map_err(IoError::at("read", &busybox.file))?;
    let archive = initramfs::build_with(&applets, Some(SCRIPT), &[("bin/clock", &clock)])?;
    let mut initrd = tempfile::NamedTempFile::new().into_diagnostic()?;
    initrd.write_all(&archive).into_diagnostic()?;
    let hypervisor = build::hypervisor()?;
    let linux = Load { kernel: kernel.file, initrd: Some(initrd.path().to_owned()) };
    let stamp = Load { kernel: stamp, initrd: None };

    // A boot has few fences of which the lane would be the difference.
    let subjects = choice.subjects().into_iter().filter(|subject| subject.variant.lane).collect();
    let machines = Machines { stamp, linux, hypervisor, subjects };
    // Two at a time: the figures do not depend on how fast the host is.
    let rows = std::thread::scope(|scope| {
        let rows = VARIANTS.map(|(variant, append)| {
            let machines = &machines;
            scope.spawn(move || machines.row(variant, append))
        });
        let join =
            |row: std::thread::ScopedJoinHandle<'_, _>| row.join().map_err(|_| miette!("a benchmark panicked"))?;
        rows.into_iter().map(join).collect::<miette::Result<Vec<Row>>>()
    })?;
    let versions = format!(
        "gnomon {}, QEMU {}, {} {}, {} {}",
        env!("CARGO_PKG_VERSION"),
        crate::qemu::version()?,
        kernel.name,
        kernel.version,
        busybox.name,
        busybox.version
    );
    Ok(Table { rows, versions })
}

/// What is measured.
struct Machines {
    stamp: Load,
    linux: Load,
    hypervisor: PathBuf,
    subjects: Vec<Subject>,
}

impl Machines {
    fn row(&self, variant: &'static str, append: &str) -> miette::Result<Row> {
        let on_gnomon = |subject| {
            let (stamp, linux) = (&self.stamp, &self.linux);
            let start = stamp.on_gnomon(append, subject, &self.hypervisor)?.machine_and_bundle();
            figures(append, start, |append| {
                Ok(linux.on_gnomon(append, subject, &self.hypervisor)?.machine_and_bundle())
            })
        };
        Ok(Row {
            variant,
            bare: figures(append, (self.stamp.on_bare(append), ()), |append| Ok((self.linux.on_bare(append), ())))?,
            bare_few: figures(append, few_devices(self.stamp.on_bare(append))?, |append| {
                few_devices(self.linux.on_bare(append))
            })?,
            gnomon: self
                .subjects
                .iter()
                .map(|subject| (*subject, on_gnomon(*subject).map_err(|why| why.to_string())))
                .collect(),
        })
    }
}

/// What a machine boots.
struct Load {
    kernel: PathBuf,
    initrd: Option<PathBuf>,
}

impl Load {
    fn on_bare(&self, append: &str) -> MachineSpec {
        let (kernel, initrd) = (self.kernel.clone(), self.initrd.clone());
        BareSpec { kernel, initrd, append: append.into(), harts: 1, memory: MEMORY, clock: Clock::Instructions }
            .machine()
    }

    fn on_gnomon(&self, append: &str, subject: Subject, hypervisor: &Path) -> miette::Result<run::Prepared> {
        let file = VmFile {
            memory: Some(MEMORY),
            kernel: Some(Kernel::File(self.kernel.clone())),
            initrd: Some(self.initrd.clone().map_or(Initrd::None, Initrd::File)),
            append: Some(append.into()),
            console: Some(Console::None),
            ..VmFile::default()
        };
        let spec = RunSpec {
            files: vec![subject.variant.applied_to(file)],
            options: VmFile::default(),
            harts: Some(1),
            h: subject.variant.h,
            seat: subject.seat,
            exec: None,
            clock: Clock::Instructions,
            meter: None,
            qemu_args: Vec::new(),
            console: ConsoleMode::Lines,
        };
        run::prepare(&spec, Some(hypervisor))
    }
}

/// The same machine, described by QEMU's own device tree less the devices that guests have not.
fn few_devices(mut machine: MachineSpec) -> miette::Result<(MachineSpec, tempfile::NamedTempFile)> {
    let file = tempfile::NamedTempFile::new().into_diagnostic()?;
    let mut dump = machine.clone();
    dump.extra.extend(["-machine".into(), format!("dumpdtb={}", file.path().display())]);
    let (running, _) = Machine::start(&dump)?;
    running.run(Some(Instant::now() + PATIENCE), |_| Next::Continue)?;
    let blob = std::fs::read(file.path()).into_diagnostic()?;
    let fdt = Fdt::new(&blob).map_err(|why| miette!("QEMU's device tree: {why}"))?;
    let mut tree = DeviceTree::from_fdt(&fdt);
    remove_children(&mut tree.root, &["flash@", "fw-cfg@", "platform-bus@", "pmu"]);
    if let Some(soc) = tree.root.child_mut("soc") {
        remove_children(soc, &["pci@", "rtc@", "virtio_mmio@"]);
    }
    std::fs::write(file.path(), tree.to_dtb()).into_diagnostic()?;
    machine.extra.extend(["-dtb".into(), file.path().display().to_string()]);
    Ok((machine, file))
}

fn remove_children(node: &mut DeviceTreeNode, prefixes: &[&str]) {
    let names: Vec<String> = node.children().map(|child| child.name().to_owned()).collect();
    for name in names.iter().filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))) {
        node.remove_child(name);
    }
}

/// The difference between two machines' clocks: one that stops at the entry, one that goes on. With each
/// machine comes what must live as long as it.
fn figures<Kept>(
    append: &str,
    (start, _kept): (MachineSpec, Kept),
    boot: impl Fn(&str) -> miette::Result<(MachineSpec, Kept)>,
) -> miette::Result<Figures> {
    let entry = hexadecimal(&console_of(&start)?, "gnomon-stamp: ")?;
    let mut counts = Vec::new();
    let mut idle = String::new();
    for length in 1..=BOOTS {
        let (machine, _kept) = boot(&format!("{append} phase={}", "x".repeat(length)))?;
        let text = console_of(&machine)?;
        let shell = hexadecimal(&text, "gnomon-clock: ")?;
        counts.push(shell.saturating_sub(entry) * INSTRUCTIONS_PER_TICK);
        idle = after(&text, "gnomon-idle: ")?.to_owned();
    }
    counts.sort_unstable();
    Ok(Figures { instructions: counts[BOOTS / 2], range: (counts[0], counts[BOOTS - 1]), idle })
}

/// What a machine prints until it powers off.
fn console_of(spec: &MachineSpec) -> miette::Result<String> {
    let (console, outcome) = watch(spec)?;
    match outcome.ends.into_iter().next().map(|end| end.reason) {
        Some(EndReason::NotStarted { message } | EndReason::Killed { message }) => Err(miette!("{message}")),
        _ => Ok(console),
    }
}

fn after<'a>(text: &'a str, label: &str) -> miette::Result<&'a str> {
    let rest = text.split_once(label).map(|(_, rest)| rest);
    let word = rest.and_then(|rest| rest.split_whitespace().next());
    let last = || text.lines().rev().take(5).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n");
    word.ok_or_else(|| miette!("the machine did not print `{label}`; it ended with\n{}", last()))
}

fn hexadecimal(text: &str, label: &str) -> miette::Result<u64> {
    let word = after(text, label)?;
    u64::from_str_radix(word, 16).map_err(|_| miette!("`{label}{word}` is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qemu::Seat;
    use crate::variant::Variant;

    #[test]
    fn clocks_are_read_from_consoles() {
        let text = "noise\r\ngnomon-clock: 00000000000003e8\r\ngnomon-idle: 0.01\r\n";
        assert_eq!(hexadecimal(text, "gnomon-clock: ").ok(), Some(1000));
        assert_eq!(after(text, "gnomon-idle: ").ok(), Some("0.01"));
        assert!(hexadecimal(text, "gnomon-stamp: ").is_err());
    }

    #[test]
    fn the_table_shows_ratios() {
        let figures = |instructions| Figures { instructions, range: (instructions, instructions), idle: "0.00".into() };
        let subject = Subject { seat: Seat::Firmware, variant: Variant::DEFAULT };
        let gnomon = vec![(subject, Ok(figures(1020)))];
        let row = Row { variant: "quiet", bare: figures(1000), bare_few: figures(960), gnomon };
        let table = Table { rows: vec![row], versions: "v".into() }.to_string();
        assert!(table.contains("1.0200   1.0625"), "{table}");
    }
}
