//! The bare machine: a kernel on OpenSBI in QEMU, without Gnomon. The reference that guests are
//! tested on and that Gnomon is measured against.

use crate::host::place::Unnamed;
use crate::host::sandbox::{self, Reach};
use crate::host::size::Size;
use crate::host::words::option_value;
use crate::machine::board::{Clock, HExtension};
use crate::machine::process::{Machine, MachineError, Next, Outcome};
use crate::machine::qemu::{Boot, MachineSpec};
use crate::machine::stream::Piece;
use dtoolkit::Node;
use dtoolkit::fdt::Fdt;
use dtoolkit::model::{DeviceTree, DeviceTreeNode};
use miette::{IntoDiagnostic, miette};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// QEMU writes a device tree sooner.
const DUMP_PATIENCE: Duration = Duration::from_secs(60);

/// The guest on the bare machine.
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
    /// The harts' H extension. A guest sees what a guest of Gnomon sees, which mostly has none.
    pub h: HExtension,
}

impl BareSpec {
    /// The machine.
    #[must_use]
    pub fn machine(&self) -> MachineSpec {
        let Self { kernel, initrd, append, harts, memory, clock, h } = self.clone();
        let boot = Boot::Bare { kernel, initrd, append };
        let (meter, swap, net) = (None, None, None);
        MachineSpec {
            boot,
            harts,
            h,
            memory,
            clock,
            meter,
            swap,
            disks: Vec::new(),
            shares: Vec::new(),
            sandbox: sandbox::is_possible(),
            rng: false,
            net,
            control: None,
            extra: Vec::new(),
            files: Vec::new(),
        }
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
        // The bare machine writes no records: a line that looks like one is a guest's, and not text.
        Piece::Record(_) | Piece::Trouble(_) => Next::Continue,
    })?;
    Ok((console, outcome))
}

/// Returns the same machine, described by QEMU's own device tree less the devices that guests have not; and the file
/// that must live as long as it.
///
/// # Errors
/// If QEMU does not say what its device tree is, or scratch files cannot be written.
pub fn few_devices(mut machine: MachineSpec) -> miette::Result<(MachineSpec, Unnamed)> {
    // QEMU writes another file and gives it this name.
    let dir = TempDir::new().into_diagnostic()?;
    let dumped = dir.path().join("dtb");
    let mut dump = machine.clone();
    dump.files.push((dir.path().to_owned(), Reach::Write));
    let path = option_value(&dumped);
    dump.extra.extend(["-machine".into(), format!("dumpdtb={}", path.display())]);
    let (running, _) = Machine::start(&dump)?;
    running.run(Some(Instant::now() + DUMP_PATIENCE), |_| Next::Continue)?;
    let blob = std::fs::read(&dumped).into_diagnostic()?;
    let fdt = Fdt::new(&blob).map_err(|why| miette!("QEMU's device tree: {why}"))?;
    let mut tree = DeviceTree::from_fdt(&fdt);
    remove_children(&mut tree.root, &["flash@", "fw-cfg@", "platform-bus@", "pmu"]);
    if let Some(soc) = tree.root.child_mut("soc") {
        remove_children(soc, &["pci@", "virtio_mmio@"]);
    }
    let file = Unnamed::new()?;
    std::fs::write(file.path(), tree.to_dtb()).into_diagnostic()?;
    machine.extra.extend(["-dtb".into(), file.path().display().to_string()]);
    machine.files.push((file.path().to_owned(), Reach::Read));
    Ok((machine, file))
}

fn remove_children(node: &mut DeviceTreeNode, prefixes: &[&str]) {
    let names: Vec<String> = node.children().map(|child| child.name().to_owned()).collect();
    for name in names.iter().filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix))) {
        node.remove_child(name);
    }
}
