//! The board: QEMU's `virt`, in the seat, with the harts, the clock and the RAM that a run asks for.

use crate::host::size::{MIB, Size};
use clap::ValueEnum;
use miette::Diagnostic;
use serde::{Deserialize, Serialize};

/// RAM of the machine beside that of the VMs and the bundle: Gnomon, its tables, the firmware.
const GNOMON_RAM: u64 = 96 * MIB;
/// RAM that the boot loader needs besides the bundle in the upper half of RAM: the device tree, rounding.
const LOADER_RAM: u64 = 8 * MIB;

/// The privilege mode of Gnomon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Seat {
    /// M mode: Gnomon is the machine's firmware.
    Firmware,
    /// HS mode: started by OpenSBI.
    Payload,
}

impl Seat {
    /// The name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Firmware => "firmware",
            Self::Payload => "payload",
        }
    }
}

/// The presence of the H extension in the machine's harts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HExtension {
    /// The harts have it.
    Present,
    /// The harts do not have it.
    Absent,
}

/// The source of the machine's time, which decides whether a run takes the same course each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Time is the host's.
    Real,
    /// Time is counted in instructions, one nanosecond each; nothing depends on the host.
    Instructions,
    /// Like `Instructions` while a hart executes. While all wait, time is the host's: it passes at most until a disk has answered. So runs are
    /// nearly alike.
    InstructionsAndWaits,
}

impl Clock {
    /// Counted in instructions, of a machine that may wait for a device or not.
    #[must_use]
    pub const fn counted(may_wait: bool) -> Self {
        if may_wait { Self::InstructionsAndWaits } else { Self::Instructions }
    }

    /// The value of QEMU's `-icount`, if instructions are counted.
    pub(crate) const fn icount(self) -> Option<&'static str> {
        match self {
            Self::Real => None,
            Self::Instructions => Some("shift=0,sleep=off"),
            Self::InstructionsAndWaits => Some("shift=0,sleep=on"),
        }
    }
}

/// A machine that cannot have the RAM that it needs.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum RamError {
    /// Gnomon itself would not fit.
    #[error("a machine with {memory} is too small for Gnomon and this bundle: they need {need}")]
    #[diagnostic(help("give the machine more memory: --host-memory; VMs get what Gnomon does not need"))]
    TooLittleMemory {
        /// The request.
        memory: Size,
        /// The minimum.
        need: Size,
    },
    /// The VMs want more RAM than the host has.
    #[error("the machine would need {need} of memory, this host has {have} available")]
    #[diagnostic(help(
        "give the VMs less (`memory` in the VM file, or --memory), or fewer VMs, or free memory on this host"
    ))]
    TooMuchMemory {
        /// RAM of the machine.
        need: Size,
        /// RAM that is available.
        have: Size,
    },
}

/// The machine's RAM for VMs with so much RAM together, and a bundle.
#[must_use]
pub fn memory_for(vms: Size, bundle_bytes: u64) -> Size {
    let sum = vms.0.saturating_add(bundle_bytes).saturating_add(GNOMON_RAM);
    // In the payload seat the loader puts the bundle in the upper half of RAM.
    let with_bundle_above = bundle_bytes.saturating_add(LOADER_RAM).saturating_mul(2);
    // A multiple of 4 MiB: its half is a 2 MiB boundary.
    Size(sum.max(with_bundle_above).checked_next_multiple_of(4 * MIB).unwrap_or(u64::MAX))
}

/// The machine's RAM in the payload seat, whose loader wants more of it where there is much: with RAM beyond the place where it puts the
/// bundle, it takes the bundle's length only up to the RAM's less that address.
#[must_use]
pub fn with_initrd(memory: Size, bundle_bytes: u64) -> Size {
    /// 512 MiB behind the kernel.
    const PLACE: u64 = 0xa020_0000;
    let need = PLACE.saturating_add(bundle_bytes).saturating_add(LOADER_RAM);
    let need = need.checked_next_multiple_of(4 * MIB).unwrap_or(u64::MAX);
    if memory.0 <= PLACE { memory } else { Size(memory.0.max(need)) }
}

/// Checks that a machine with so much RAM has room for Gnomon and a bundle, with something left. Returns it in whole pages.
///
/// # Errors
/// [`RamError::TooLittleMemory`].
pub fn check_host_memory(memory: Size, bundle_bytes: u64) -> Result<Size, RamError> {
    let need = memory_for(Size(0), bundle_bytes);
    if memory < need {
        return Err(RamError::TooLittleMemory { memory, need });
    }
    Ok(Size(memory.0 / (4 * MIB) * (4 * MIB)))
}

/// Checks that the host has so much memory to give.
///
/// # Errors
/// [`RamError::TooMuchMemory`].
pub fn check_memory(need: Size) -> Result<(), RamError> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    match available(&text) {
        Some(have) if need > have => Err(RamError::TooMuchMemory { need, have }),
        _ => Ok(()),
    }
}

fn available(meminfo: &str) -> Option<Size> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| Size(kib << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_enough_for_both_seats() {
        let memory = memory_for(Size(512 * MIB), 40 * MIB + 4096);
        assert_eq!(memory, Size(652 * MIB));
        assert_eq!(with_initrd(memory, 40 * MIB), memory);
        assert_eq!(with_initrd(Size(3 << 30), 100 * MIB), Size(3 << 30));
        assert_eq!(with_initrd(Size(3 << 30), 1500 * MIB), Size(4072 * MIB));
        let tight = memory_for(Size(8 * MIB), 300 * MIB);
        assert!(tight.0 / 2 >= 300 * MIB + LOADER_RAM && tight.0.is_multiple_of(4 * MIB));
    }

    #[test]
    fn available_memory_is_read() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   1024 kB\n"), Some(Size(MIB)));
        assert_eq!(available(""), None);
    }
}
