//! What Gnomon adds to a boot: instructions retired from the kernel's first to the first command of
//! the shell, beside those of the same kernel, initramfs and command line on OpenSBI.
//!
//! One hart, one vCPU, QEMU's `-icount shift=0`: an instruction, of whatever privilege mode, is a
//! nanosecond of the `time` CSR. The `stamp` payload reads it at a payload's entry, the `clock`
//! program at the shell; the difference is the figure. Time in which a hart waits would count too;
//! the kernel's own account of it is printed beside.

use crate::bare::BareSpec;
use crate::debian::Software;
use crate::machine::{Machine, Next, Stopped};
use crate::place::IoError;
use crate::qemu::{Clock, MachineSpec, Seat};
use crate::run::{self, RunSpec};
use crate::size::Size;
use crate::stream::Piece;
use crate::vmfile::{Console, Initrd, Kernel, VmFile};
use crate::{build, initramfs};
use abi::bundle::ConsoleMode;
use miette::{IntoDiagnostic, miette};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// RAM of the VM and of the bare machine.
const MEMORY: Size = Size(512 << 20);
/// Instructions in a tick of QEMU's 10 MHz timebase, at one nanosecond each.
const INSTRUCTIONS_PER_TICK: u64 = 100;
/// No boot takes longer.
const PATIENCE: Duration = Duration::from_secs(300);
/// What runs in the shell.
const SCRIPT: &str = "clock; echo idle: $(cut -d' ' -f2 /proc/uptime)";

/// A command line to boot with, and what it is called.
const VARIANTS: [(&str, &str); 2] =
    [("quiet", "console=ttyS0 earlycon=sbi quiet"), ("all messages", "console=ttyS0 earlycon=sbi")];

/// One machine's figures, in instructions.
#[derive(Clone, PartialEq, Debug)]
pub struct Figures {
    /// From entry to shell.
    pub instructions: u64,
    /// Seconds that the kernel counts as idle.
    pub idle: String,
}

/// One variant, side by side.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The command line's name.
    pub variant: &'static str,
    /// On OpenSBI.
    pub bare: Figures,
    /// On Gnomon, in each seat.
    pub gnomon: Vec<(Seat, Figures)>,
}

impl Row {
    /// Gnomon's figure over the bare machine's.
    #[must_use]
    pub fn ratio(&self, figures: &Figures) -> f64 {
        figures.instructions as f64 / self.bare.instructions as f64
    }
}

/// The table.
#[derive(Clone, PartialEq, Debug)]
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
        writeln!(f, "{:14} {:18} {:>14} {:>8}  idle s", "messages", "machine", "instructions", "ratio")?;
        for row in &self.rows {
            let Figures { instructions, idle } = &row.bare;
            writeln!(f, "{:14} {:18} {instructions:>14} {:>8}  {idle}", row.variant, "bare, OpenSBI", "1.0000")?;
            for (seat, figures) in &row.gnomon {
                let machine = format!("Gnomon, {}", seat.name());
                let (instructions, ratio) = (figures.instructions, row.ratio(figures));
                writeln!(f, "{:14} {machine:18} {instructions:>14} {ratio:>8.4}  {}", row.variant, figures.idle)?;
            }
        }
        Ok(())
    }
}

/// Measures.
///
/// # Errors
/// If something is missing, or a machine does not come to its shell.
pub fn measure() -> miette::Result<Table> {
    let guests = build::guests()?;
    let program = |name: &str| guests.get(name).cloned().ok_or_else(|| miette!("there is no program `{name}`"));
    let (stamp, clock) = (program("stamp")?, program("clock")?);
    let clock = std::fs::read(&clock).map_err(IoError::at("read", &clock))?;
    let kernel = Software::Kernel.provide()?;
    let busybox = Software::Busybox.provide()?;
    let applets = std::fs::read(&busybox.file).map_err(IoError::at("read", &busybox.file))?;
    let archive = initramfs::build_with(&applets, Some(SCRIPT), &[("clock", &clock)])?;
    let mut initrd = tempfile::NamedTempFile::new().into_diagnostic()?;
    initrd.write_all(&archive).into_diagnostic()?;
    let hypervisor = build::hypervisor()?;
    let linux = Load { kernel: kernel.file, initrd: Some(initrd.path().to_owned()) };
    let stamp = Load { kernel: stamp, initrd: None };

    let rows = VARIANTS.map(|(variant, append)| -> miette::Result<Row> {
        let bare = figures(&stamp.on_bare(append), &linux.on_bare(append))?;
        let seats = [Seat::Firmware, Seat::Payload].map(|seat| -> miette::Result<(Seat, Figures)> {
            let (start, boot) =
                (stamp.on_gnomon(append, seat, &hypervisor)?, linux.on_gnomon(append, seat, &hypervisor)?);
            Ok((seat, figures(&start.machine, &boot.machine)?))
        });
        Ok(Row { variant, bare, gnomon: seats.into_iter().collect::<miette::Result<_>>()? })
    });
    let rows = rows.into_iter().collect::<miette::Result<_>>()?;
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

    fn on_gnomon(&self, append: &str, seat: Seat, hypervisor: &Path) -> miette::Result<run::Prepared> {
        let file = VmFile {
            memory: Some(MEMORY),
            kernel: Some(Kernel::File(self.kernel.clone())),
            initrd: Some(self.initrd.clone().map_or(Initrd::None, Initrd::File)),
            append: Some(append.into()),
            console: Some(Console::None),
            ..VmFile::default()
        };
        let spec = RunSpec {
            files: vec![file],
            options: VmFile::default(),
            harts: Some(1),
            seat,
            exec: None,
            clock: Clock::Instructions,
            qemu_args: Vec::new(),
            console: ConsoleMode::Lines,
        };
        run::prepare(&spec, Some(hypervisor))
    }
}

/// The difference between two machines' clocks: one that stops at the entry, one that goes on.
fn figures(start: &MachineSpec, boot: &MachineSpec) -> miette::Result<Figures> {
    let entry = hexadecimal(&console_of(start)?, "gnomon-stamp: ")?;
    let text = console_of(boot)?;
    let shell = hexadecimal(&text, "gnomon-clock: ")?;
    let idle = after(&text, "idle: ")?.to_owned();
    Ok(Figures { instructions: shell.saturating_sub(entry) * INSTRUCTIONS_PER_TICK, idle })
}

fn console_of(spec: &MachineSpec) -> miette::Result<String> {
    let (machine, _) = Machine::start(spec)?;
    let mut console = Vec::new();
    let outcome = machine.run(Some(Instant::now() + PATIENCE), |piece| {
        if let Piece::Text(bytes) = piece {
            console.extend_from_slice(bytes);
        }
        Next::Continue
    })?;
    match (outcome.stopped, outcome.failed) {
        (Some(Stopped::Timeout), _) => Err(miette!("the machine did not power off in time")),
        (_, Some(why)) => Err(miette!("Gnomon failed: {why}")),
        _ => Ok(String::from_utf8_lossy(&console).into_owned()),
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

    #[test]
    fn clocks_are_read_from_consoles() {
        let text = "noise\r\ngnomon-clock: 00000000000003e8\r\nidle: 0.01\r\n";
        assert_eq!(hexadecimal(text, "gnomon-clock: ").ok(), Some(1000));
        assert_eq!(after(text, "idle: ").ok(), Some("0.01"));
        assert!(hexadecimal(text, "gnomon-stamp: ").is_err());
    }

    #[test]
    fn the_table_shows_ratios() {
        let figures = |instructions| Figures { instructions, idle: "0.00".into() };
        let row = Row { variant: "quiet", bare: figures(1000), gnomon: vec![(Seat::Firmware, figures(1020))] };
        let table = Table { rows: vec![row], versions: "v".into() }.to_string();
        assert!(table.contains("1.0200"), "{table}");
    }
}
