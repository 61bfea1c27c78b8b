//! The bare machine: a kernel on OpenSBI in QEMU, without Gnomon. The reference that guests are
//! tested on and that Gnomon is measured against.

use crate::machine::{Machine, MachineError, Next, Outcome};
use crate::qemu::{Boot, Clock, HExtension, MachineSpec};
use crate::size::Size;
use crate::stream::Piece;
use std::path::PathBuf;
use std::time::Instant;

/// What the bare machine runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BareSpec {
    /// The kernel: a Linux Image or an ELF file.
    pub kernel: PathBuf,
    /// The initrd.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line.
    pub append: String,
    /// Number of harts.
    pub harts: u32,
    /// RAM.
    pub memory: Size,
    /// The machine's time.
    pub clock: Clock,
}

impl BareSpec {
    /// The machine.
    #[must_use]
    pub fn machine(&self) -> MachineSpec {
        let Self { kernel, initrd, append, harts, memory, clock } = self.clone();
        // A guest sees what a guest of Gnomon sees: harts without H.
        let h = HExtension::Absent;
        let boot = Boot::Bare { kernel, initrd, append };
        MachineSpec { boot, harts, h, memory, clock, meter: None, extra: Vec::new() }
    }
}

/// Runs it to its end; returns all console output and how it ended. `on_text` sees the output as it
/// comes, and may stop the machine.
///
/// # Errors
/// [`MachineError`] if QEMU cannot be run.
pub fn run(
    spec: &BareSpec,
    deadline: Option<Instant>,
    mut on_text: impl FnMut(&[u8]) -> Next,
) -> Result<(Vec<u8>, Outcome), MachineError> {
    let (machine, _) = Machine::start(&spec.machine())?;
    let mut console = Vec::new();
    let outcome = machine.run(deadline, |piece| match piece {
        Piece::Text(bytes) => {
            console.extend_from_slice(bytes);
            on_text(bytes)
        }
        // Nobody here writes records: what looks like one is a guest's, and no text either.
        Piece::Record(_) => Next::Continue,
    })?;
    Ok((console, outcome))
}
