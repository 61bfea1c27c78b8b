//! The guest that a subject of the benchmarks boots, and its machine.

use crate::host::size::Size;
use crate::subject::kvm::KvmKernel;
use crate::subject::workload::Devices;
use abi::bundle::L2Tables;
use serde::Serialize;
use std::path::PathBuf;

/// On how many harts a guest runs, and by how many vCPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Processors {
    /// Harts of the machine.
    pub harts: u32,
    /// vCPUs of the guest, under a hypervisor.
    pub vcpus: u32,
}

impl Processors {
    /// One of each.
    pub const ONE: Self = Self { harts: 1, vcpus: 1 };

    /// The meter cannot tell several harts in one thread of QEMU's apart.
    pub(in crate::bench) const fn is_metered(self) -> bool {
        self.harts == 1
    }
}

/// The way in which Gnomon keeps a guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub enum Keeping {
    /// By demand; A and D only where memory is short.
    #[default]
    Demand,
    /// All of it is there from the start.
    Wired,
    /// By demand, with D by faults for all of it.
    Faults,
    /// By demand, with A and D by the hardware, where that walks the G-stage.
    Hardware,
}

impl Keeping {
    pub(in crate::bench) fn settings(self) -> Vec<String> {
        match self {
            Self::Demand | Self::Wired => vec![],
            Self::Faults => vec!["fault-d=on".into()],
            Self::Hardware => vec!["hardware-ad=on".into()],
        }
    }
}

/// The guest that a subject boots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    /// A Linux Image, or the ELF file of a test guest.
    pub kernel: PathBuf,
    /// The initrd.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line.
    pub append: String,
    /// RAM of the guest.
    pub memory: Size,
    /// Set if a guest of Gnomon's is promised hardware updates of A and D.
    pub svadu: bool,
    /// The way in which Gnomon keeps the guest's memory.
    pub keeping: Keeping,
    /// Set if the bare machine is described without the devices that guests do not have.
    pub has_few_devices: bool,
    /// The harts and vCPUs. The hosts of KVM have one hart.
    pub processors: Processors,
    /// Its devices. Waiting for one is waiting for the host.
    pub devices: Devices,
    /// The hypervisor in a guest of Gnomon's.
    pub nesting: Nesting,
}

/// The hypervisor in a guest of Gnomon's.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub enum Nesting {
    /// None.
    #[default]
    None,
    /// The guest itself, with a balloon, and these tables of Gnomon's for its guests.
    Itself(L2Tables),
    /// KVM, which runs the guest in a VM of its own, on these tables of Gnomon's.
    UnderKvm(KvmKernel, L2Tables),
    /// Gnomon, which runs the guest by a G-stage.
    UnderGnomon,
}

impl Nesting {
    /// The kernel whose KVM runs the guest.
    #[must_use]
    pub const fn kvm(self) -> Option<KvmKernel> {
        if let Self::UnderKvm(kernel, _) = self { Some(kernel) } else { None }
    }
}
