//! The cost that a hypervisor adds to a boot: instructions retired from the kernel's first to the first command of the
//! shell, beside those of the same kernel, initramfs and command line on OpenSBI.
//!
//! An instruction, of whatever privilege mode, is a nanosecond of the `time` CSR. The `stamp` payload reads it
//! at a payload's entry, the `clock` program at the shell; the difference is the figure. Time in which a hart
//! waits would count too; the kernel's own account of it is printed beside.
//!
//! QEMU's board has devices that a guest's has not (a PCI bridge, flash, a clock, virtio slots), and
//! Linux spends instructions on looking for them. So the bare machine is measured twice: as it is, and
//! with a device tree that names only what guests have, too.
//!
//! A run repeats exactly, but Linux times loops of its own while it boots, and where a tick falls in them
//! moves the figure by up to three in a hundred. So each machine boots with command lines that differ in
//! an unused word, and the median counts; the range stands beside it.

use super::linux::{number, ratio};
use crate::bench::lab::counts::{Counts, Own};
use crate::bench::lab::progress::Progress;
use crate::bench::lab::subject::{Choice, ChoiceError, Extra, Gnomon, Subject};
use crate::bench::lab::{Keeping, Lab, Load, Nesting, Processors, Run};
use crate::bench::output::report::{Block, Chart, ChartKind, Report};
use crate::bench::output::table::Table;
use crate::bench::{INSTRUCTIONS_PER_TICK, in_parallel};
use crate::guest::debian::Software;
use crate::guest::initramfs;
use crate::host::parts;
use crate::host::place::IoError;
use crate::host::size::Size;
use crate::subject::workload::Devices;
use miette::{IntoDiagnostic, miette};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use tempfile::TempPath;

/// RAM of the guest.
const MEMORY: Size = Size(512 << 20);
/// The commands for the shell. Idle time is in hundredths of a second.
const SCRIPT: &str = "clock; echo gnomon-figure: idle $(cut -d' ' -f2 /proc/uptime | tr -d .)";

/// A command line to boot with, and what it is called. Sv39, since KVM's guests have no other here.
pub(super) const VARIANTS: [(&str, &str); 2] =
    [("quiet", "console=ttyS0 earlycon=sbi no4lvl quiet"), ("all messages", "console=ttyS0 earlycon=sbi no4lvl")];

/// Boots of each machine, with unused words of different length.
const BOOTS: usize = 5;

/// A machine that boots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Machine {
    /// The subject.
    pub subject: Subject,
    /// The bare machine described without the devices that guests have not.
    pub has_few_devices: bool,
    /// The place of the kernel that boots: the subject's guest, or a guest under KVM there.
    pub nesting: Nesting,
}

/// One machine's figures, in instructions.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Figures {
    /// From entry to shell: the median.
    instructions: u64,
    /// The least and the most.
    range: (u64, u64),
    /// Seconds that the kernel counts as idle, in the boot that is the median.
    idle: f64,
    /// The cost of address translation in that boot, from the guest's first instruction to its power-off, by core.
    cores: BTreeMap<String, Own>,
}

/// A machine's figures with a command line; or why there are none.
type Row = (&'static str, Machine, Result<Figures, String>);

/// Measures.
///
/// # Errors
/// If something is missing. What goes wrong with a machine stands in the report.
pub fn measure(lab: &Lab, choice: &Choice) -> miette::Result<Report> {
    let machines = machines(choice)?;
    let (loads, software) = Loads::provide()?;
    let jobs: Vec<_> =
        VARIANTS.iter().flat_map(|variant| machines.iter().map(move |machine| (variant, *machine))).collect();
    let step = Progress::begin("boot", jobs.len());
    let rows = in_parallel(&jobs, |((variant, append), machine)| {
        let figures = loads.figures(lab, *machine, (append, choice.svadu)).map_err(|why| why.to_string());
        step.done(&format!("{}, {variant}", machine.name()));
        (*variant, *machine, figures)
    });
    let versions = format!(
        "{}, {software}; 1 hart, 1 vCPU, {MEMORY}, -icount shift=0{}",
        lab.versions(),
        Choice::promise(choice.svadu)
    );
    Ok(report(&rows, &lab.cores().collect::<Vec<_>>(), &versions))
}

fn machines(choice: &Choice) -> Result<Vec<Machine>, ChoiceError> {
    // A boot has few fences of which the lane would be the difference.
    let has_lane = |subject: &Subject| !matches!(subject, Subject::Gnomon(Gnomon { variant, .. }) if !variant.lane);
    let subjects = choice.subjects("boot", Extra::None, has_lane)?.into_iter();
    let machines = subjects.flat_map(|subject| {
        let few: &[bool] = if subject == Subject::Native { &[false, true] } else { &[false] };
        few.iter().map(move |&has_few_devices| Machine { subject, has_few_devices, nesting: Nesting::None })
    });
    Ok(machines.collect())
}

impl Machine {
    fn name(self) -> String {
        format!("{}{}", self.subject, if self.has_few_devices { ", few devices" } else { "" })
    }
}

/// The files to boot.
pub(super) struct Loads {
    stamp: PathBuf,
    filler: TempPath,
    kernel: PathBuf,
    initrd: TempPath,
}

impl Loads {
    /// Makes them. Returns also which software they are.
    ///
    /// # Errors
    /// If something cannot be built or had.
    pub fn provide() -> miette::Result<(Self, String)> {
        let guests = parts::guests()?;
        let program = |name: &str| guests.get(name).cloned().ok_or_else(|| miette!("there is no program `{name}`"));
        let (stamp, clock) = (program("stamp")?, parts::program("clock")?);
        let clock = std::fs::read(&clock).map_err(IoError::at("read", &clock))?;
        let kernel = Software::Kernel.provide()?;
        let busybox = Software::Busybox.provide()?;
        let applets = std::fs::read(&busybox.file).map_err(IoError::at("read", &busybox.file))?;
        let archive = initramfs::build_with(&applets, Some(SCRIPT), &[("bin/clock", &clock)])?;
        let mut initrd = tempfile::NamedTempFile::new().into_diagnostic()?;
        initrd.write_all(&archive).into_diagnostic()?;
        // A VMM under KVM reads what it loads while the guest's clock already runs. So what is loaded with `stamp`
        // is as large as what is loaded with the kernel.
        let filler = tempfile::NamedTempFile::new().into_diagnostic()?;
        let image_bytes = std::fs::metadata(&kernel.file).map_err(IoError::at("read", &kernel.file))?.len();
        filler.as_file().set_len(image_bytes + archive.len() as u64).into_diagnostic()?;
        let (initrd, filler) = (initrd.into_temp_path(), filler.into_temp_path());
        let loads = Self { stamp, filler, kernel: kernel.file, initrd };
        let software = format!("{} {}, {} {}", kernel.name, kernel.version, busybox.name, busybox.version);
        Ok((loads, software))
    }

    /// A load of a machine.
    fn load(&self, machine: Machine, is_stamp: bool, (append, svadu): (&str, bool)) -> Load {
        let Machine { has_few_devices, nesting, .. } = machine;
        let (kernel, initrd) = if is_stamp { (&self.stamp, &self.filler) } else { (&self.kernel, &self.initrd) };
        Load {
            kernel: kernel.clone(),
            initrd: Some(initrd.to_path_buf()),
            append: append.to_owned(),
            memory: MEMORY,
            svadu,
            keeping: Keeping::Demand,
            has_few_devices,
            processors: Processors::ONE,
            devices: Devices::default(),
            nesting,
        }
    }

    /// The instructions of a boot up to the power-off, in all privilege modes, without those of a run on the same machine that ends at the kernel's
    /// entry; and the counters of the machine's VM, on Gnomon.
    ///
    /// # Errors
    /// If a run fails.
    pub fn whole(
        &self,
        lab: &Lab,
        machine: Machine,
        how: (&str, bool),
    ) -> miette::Result<(u64, BTreeMap<String, u64>)> {
        let [entry, end] = [true, false].map(|is_stamp| lab.run(machine.subject, &self.load(machine, is_stamp, how)));
        let (entry, end) = (entry?, end?);
        let count = |run: &Run| Counts::read(&run.whole).into_diagnostic().map(|counts| counts.instructions());
        Ok((count(&end)?.saturating_sub(count(&entry)?), end.counters))
    }

    fn figures(&self, lab: &Lab, machine: Machine, (append, svadu): (&str, bool)) -> miette::Result<Figures> {
        let subject = machine.subject;
        let figure = |load: &Load, name: &str| {
            let run = lab.run(subject, load)?;
            let value = run.figures.get(name).copied();
            value.map(|value| (value, run)).ok_or_else(|| miette!("the guest did not print `{name}`"))
        };
        let (entry, _) = figure(&self.load(machine, true, (append, svadu)), "entry")?;
        let mut boots = Vec::new();
        for length in 1..=BOOTS {
            let append = format!("{append} phase={}", "x".repeat(length));
            let (shell, run) = figure(&self.load(machine, false, (&append, svadu)), "shell")?;
            let idle = run.figures.get("idle").copied().ok_or_else(|| miette!("the guest did not print `idle`"))?;
            boots.push((shell.saturating_sub(entry) * INSTRUCTIONS_PER_TICK, idle, run));
        }
        boots.sort_by_key(|(instructions, idle, _)| (*instructions, *idle));
        let range = (boots[0].0, boots[BOOTS - 1].0);
        let (instructions, idle, run) = boots.swap_remove(BOOTS / 2);
        let cores = Counts::read(&run.whole).into_diagnostic()?.cores;
        let cores = cores.into_iter().map(|(name, core)| (name, core.own(subject))).collect();
        Ok(Figures { instructions, range, idle: idle as f64 / 100.0, cores })
    }
}

/// The modelled TLBs' and walker's work for the guest.
fn walks<'a>(core: &str, variant: &str, rows: impl Iterator<Item = &'a Row> + Clone) -> Block {
    let of = |row: &Row| row.2.as_ref().ok().and_then(|figures| figures.cores.get(core)).copied();
    let native = rows.clone().find(|row| row.1.subject == Subject::Native && !row.1.has_few_devices).and_then(of);
    let mut table = Table::new(["", "L1 misses", "/ native", "walks", "refs/walk", "walk refs", "/ native"]);
    for row in rows {
        let Some(Own { misses, walks, refs }) = of(row) else {
            table.row([row.1.name(), "-".into()]);
            continue;
        };
        table.row([
            row.1.name(),
            misses.to_string(),
            number(native.and_then(|native| ratio(misses, native.misses)), 3),
            walks.to_string(),
            number(ratio(refs, walks), 2),
            refs.to_string(),
            number(native.and_then(|native| ratio(refs, native.refs)), 3),
        ]);
    }
    Block::Table(format!("{variant}: TLBs and page walks of core {core}, the guest's own"), table)
}

fn report(rows: &[Row], cores: &[&str], versions: &str) -> Report {
    let mut blocks = Vec::new();
    for (variant, _) in VARIANTS {
        let rows = || rows.iter().filter(move |row| row.0 == variant);
        let native = |few: bool| {
            let is_it = |machine: &Machine| machine.subject == Subject::Native && machine.has_few_devices == few;
            rows().find(|row| is_it(&row.1)).and_then(|row| Some(row.2.as_ref().ok()?.instructions))
        };
        let over = |figures: &Figures, few| native(few).and_then(|native| ratio(figures.instructions, native));
        let mut table = Table::new(["", "instructions", "/ native", "/ few", "range", "idle s"]);
        let mut bars = Vec::new();
        for (_, machine, figures) in rows() {
            let figures = figures.as_ref().ok();
            let (of, range, idle) = figures.map_or_else(
                || ("-".into(), String::new(), String::new()),
                |f| (f.instructions.to_string(), format!("{}-{}", f.range.0, f.range.1), format!("{:.2}", f.idle)),
            );
            let to = |few| number(figures.and_then(|figures| over(figures, few)), 4);
            table.row([machine.name(), of, to(false), to(true), range, idle]);
            bars.push((machine.name(), figures.and_then(|figures| over(figures, false))));
        }
        blocks.push(Block::Table(format!("Command line: {variant}"), table));
        blocks.extend(cores.iter().map(|core| walks(core, variant, rows())));
        let title = format!("{variant}: instructions, native = 1");
        blocks.push(Block::Chart(Chart { title, kind: ChartKind::Bars { bars, reference: Some(1.0) } }));
    }
    let row = |(variant, machine, figures): &Row| json!({ "messages": variant, "machine": machine.name(), "figures": figures });
    let failure = |(variant, machine, figures): &Row| {
        Some(format!("boot, {variant} on {}: {}", machine.name(), figures.as_ref().err()?))
    };
    Report {
        name: "boot",
        title: "instructions from the kernel's entry to the shell, all privilege modes".into(),
        lead: vec![
            "Few devices: the device tree of the bare machine lacks the devices that a guest's board lacks.".into(),
            format!("The median of {BOOTS} boots with command lines that differ in an unused word."),
            versions.into(),
        ],
        blocks,
        misleads: "a boot prints, and each character is an exit to the emulator of the UART; QEMU's own board under KVM has more \
                   devices than Gnomon's"
            .into(),
        json: json!({ "experiment": "boot", "versions": versions, "rows": rows.iter().map(row).collect::<Vec<_>>() }),
        failures: rows.iter().filter_map(failure).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::counts::tests::subject;

    #[test]
    fn the_table_shows_ratios() {
        let own = Own { misses: 4, walks: 2, refs: 30 };
        let figures = |instructions| {
            let cores = [("plain".to_owned(), own)].into();
            Figures { instructions, range: (instructions, instructions), idle: 0.0, cores }
        };
        let of = |subject, few| Machine { subject, has_few_devices: few, nesting: Nesting::None };
        let rows = [
            ("quiet", of(Subject::Native, false), Ok(figures(1000))),
            ("quiet", of(Subject::Native, true), Ok(figures(960))),
            ("quiet", of(subject("firmware/two-stage"), false), Ok(figures(1020))),
            ("quiet", of(Subject::Kvm { superpages: true }, false), Err("no module".into())),
        ];
        let report = report(&rows, &["plain"], "v");
        let text = report.to_string();
        let row = |name: &str, at| {
            let rows = text.lines().filter(|line| line.starts_with(name));
            rows.map(|line| line.split_whitespace().collect::<Vec<_>>()).nth(at).expect(&text)
        };
        assert_eq!(row("firmware/two-stage", 0)[1..4], ["1020", "1.0200", "1.0625"]);
        assert_eq!(row("firmware/two-stage", 1)[1..], ["4", "1.000", "2", "15.00", "30", "1.000"]);
        assert_eq!(row("kvm", 0)[1..], ["-", "-", "-"]);
        assert_eq!(report.failures, ["boot, quiet on kvm: no module"]);
    }
}
