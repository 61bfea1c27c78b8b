//! Boot tests under the meter: what it has to be told, and what must come of it.

use super::judge::Transcript;
use super::plan::BootTest;
use crate::machine::meter::{MeterSpec, Report};
use crate::machine::qemu::MachineSpec;
use miette::{IntoDiagnostic, miette};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// After powering off, a hart may take some more traps until QEMU stops it.
const TAIL: usize = 8;
/// Differences between two runs that are shown.
const MOST_SHOWN: usize = 12;

/// The meter's settings in a test, and the directory of its files.
pub struct Metering {
    /// The events to count.
    pub spec: MeterSpec,
    _dir: TempDir,
}

impl Metering {
    /// The metering of a test, if it uses the meter.
    pub fn of(test: &BootTest) -> miette::Result<Option<Self>> {
        let Some(level) = test.meter else { return Ok(None) };
        let dir = tempfile::tempdir().into_diagnostic()?;
        let file = |name: &str| dir.path().join(name);
        let traps = test.expect.traps.then(|| file("traps"));
        let spec = MeterSpec { out: file("meter.json"), level, cores: test.cores.clone(), traps };
        Ok(Some(Self { spec, _dir: dir }))
    }
}

/// Returns the path of QEMU's log of traps, beside the meter's log.
fn qemu_log(traps: &Path) -> PathBuf {
    traps.with_extension("qemu")
}

/// Runs a machine by `follow`, as often as the test says, and adds what the meter left to the transcript.
pub fn follow(
    test: &BootTest,
    machine: &MachineSpec,
    follow: impl Fn(&MachineSpec) -> miette::Result<Transcript>,
) -> miette::Result<Transcript> {
    let Some(spec) = machine.meter.as_ref().map(|meter| &meter.spec) else { return follow(machine) };
    let mut machine = machine.clone();
    if let Some(traps) = &spec.traps {
        let log = qemu_log(traps).to_string_lossy().into_owned();
        machine.extra.extend(["-d".into(), "int".into(), "-D".into(), log]);
    }
    let mut transcript = follow(&machine)?;
    // A run that went wrong otherwise may well have left none.
    transcript.meter = Report::read(&spec.out).ok();
    if let Some(traps) = &spec.traps {
        let read = |path: &Path| std::fs::read_to_string(path).map_err(|why| miette!("{}: {why}", path.display()));
        transcript.meter_complaint = same_traps(&read(&qemu_log(traps))?, &read(traps)?).err();
    }
    if let Some(report) = transcript.meter.as_ref().filter(|_| test.expect.repeats) {
        let first = std::fs::read(&spec.out).into_diagnostic()?;
        transcript.spent += follow(&machine)?.spent;
        if std::fs::read(&spec.out).into_diagnostic()? != first {
            transcript.meter_complaint = Some(other_counts(report, &Report::read(&spec.out)?));
        }
    }
    Ok(transcript)
}

/// In what the reports of two runs differ.
fn other_counts(first: &Report, second: &Report) -> String {
    let (first, second) = (first.numbers(), second.numbers());
    let names = first.keys().chain(second.keys().filter(|name| !first.contains_key(*name)));
    // Estimates follow from the other numbers.
    let names = names.filter(|name| !name.contains("cycles_estimated"));
    let differs = names.filter(|name| first.get(*name) != second.get(*name)).map(|name| {
        let number = |numbers: &BTreeMap<String, u64>| numbers.get(name).copied().unwrap_or(0);
        format!("{name} was {}, then {}", number(&first), number(&second))
    });
    let shown: Vec<_> = differs.take(MOST_SHOWN).collect();
    format!("a second run counted something else: {}", shown.join("; "))
}

/// A trap, as both logs have it: whether it is an interrupt, the cause, the program counter, the trap value.
type Trap = (bool, u64, u64, u64);

/// A line of QEMU's log, if it is about a trap.
fn of_qemu(line: &str) -> Option<Trap> {
    let fields = line.strip_prefix("riscv_cpu_do_interrupt: ")?;
    let number = |name: &str| {
        let field = fields.split(", ").find_map(|field| field.strip_prefix(name)?.strip_prefix(':'))?;
        u64::from_str_radix(field.trim_start_matches("0x"), 16).ok()
    };
    Some((number("async")? == 1, number("cause")?, number("epc")?, number("tval")?))
}

/// A line of the meter's log.
fn of_meter(line: &str) -> Option<Trap> {
    let [_, to, cause, epc, tval] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let (is_interrupt, code) = match cause.strip_prefix('i') {
        // VS mode gets its interrupts under the numbers of S mode; QEMU logs what they were before.
        Some(code) => (true, code.parse::<u64>().ok()? + u64::from(to == "VS")),
        None => (false, cause.parse().ok()?),
    };
    Some((is_interrupt, code, hex(epc)?, hex(tval)?))
}

/// Checks that the meter saw the traps that QEMU took, in the same order.
fn same_traps(qemu: &str, meter: &str) -> Result<(), String> {
    let taken: Vec<_> = qemu.lines().filter_map(of_qemu).collect();
    let seen: Vec<_> = meter.lines().map(|line| of_meter(line).ok_or(line)).collect();
    let differs = seen.iter().enumerate().find(|(place, trap)| taken.get(*place) != trap.as_ref().ok());
    if let Some((place, trap)) = differs {
        let was = taken.get(place);
        return Err(format!("trap {place} of {} was {was:x?} for QEMU, and {trap:x?} for the meter", taken.len()));
    }
    match (taken.len(), seen.len()) {
        (0, _) => Err("QEMU logged no trap".into()),
        (taken, seen) if taken - seen > TAIL => Err(format!("QEMU took {taken} traps, and the meter saw {seen}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(is_interrupt: u8, cause: u64, epc: u64) -> String {
        format!(
            "riscv_cpu_do_interrupt: hart:0, async:{is_interrupt}, cause:{cause:016x}, epc:{epc:#018x}, tval:0x00ff, desc=x\n"
        )
    }

    #[test]
    fn traps_are_compared() {
        let qemu = line(0, 9, 0x1000) + "something else\n" + &line(1, 6, 0x2000) + &line(1, 5, 0x3000);
        let meter = "S M 9 0x1000 0xff\nVU VS i5 0x2000 0xff\n";
        assert_eq!(same_traps(&qemu, &format!("{meter}U S i5 0x3000 0xff\n")), Ok(()));
        // The last ones may come after powering off.
        assert_eq!(same_traps(&qemu, meter), Ok(()));
        let rest: String = (0..8).map(|_| line(1, 7, 0x4000)).collect();
        let says = |qemu: &str, meter: &str| same_traps(qemu, meter).expect_err("they differ");
        assert!(says(&format!("{qemu}{rest}"), meter).contains("took 11 traps, and the meter saw 2"));
        assert!(says(&qemu, "S M 9 0x1000 0xff\nU S i5 0x3000 0xff\n").contains("trap 1 of 3"));
        assert!(says(&qemu, "S M 9 0x1000 0x0\n").contains("trap 0 of 3"));
        assert!(says(&qemu, "garbage\n").contains("garbage"));
        assert!(says(&line(0, 9, 0x1000), "S M 9 0x1000 0xff\nS M 9 0x1000 0xff\n").contains("trap 1 of 1"));
        assert!(says("", "").contains("no trap"));
    }
}
