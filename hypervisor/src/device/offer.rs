//! The features that the machine offers to guests.

use crate::backend::disks::Disks;
use crate::backend::entropy::Source;
use crate::backend::network::Network;
use crate::backend::shares::Shares;
use crate::device::interface::Device;
use crate::machine::clock::Clock;
use crate::machine::isa::Isa;
use crate::sync::Mutex;
use abi::bundle::{MmuMode, VmConfig};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use rv::{Exception, Format, Hpa, Pfn};

/// The implementation of a guest's timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuestTimer {
    /// Sstc: the guest has a comparator of its own.
    Sstc,
    /// SBI calls, and Gnomon's timer.
    Sbi,
}

/// The mode that a guest's kernel runs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuestMode {
    /// VS mode, on harts with the H extension.
    Virtual,
    /// S mode itself, on harts without: in the firmware seat, with `mstatus.TVM` set.
    Supervisor,
}

impl GuestMode {
    /// Returns the exception by which a guest's kernel calls the SBI.
    #[must_use]
    pub const fn sbi_call(self) -> Exception {
        match self {
            Self::Virtual => Exception::EcallFromVs,
            Self::Supervisor => Exception::EcallFromS,
        }
    }

    /// Returns the exception of instructions that Gnomon makes trap. In S mode it is shared with instructions that are
    /// illegal.
    #[must_use]
    pub const fn privileged(self) -> Exception {
        match self {
            Self::Virtual => Exception::VirtualInstruction,
            Self::Supervisor => Exception::IllegalInstruction,
        }
    }
}

/// The mechanism that denies guests the frame that poison leads to, so that their accesses by it come to Gnomon (mode
/// `steered`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denial {
    /// PMP, which is Gnomon's: it is an access fault.
    Pmp,
    /// A G-stage of Gnomon's that maps RAM onto itself, and has a hole there ([`crate::machine::host_map::map_onto_itself`]): it is a guest-page
    /// fault.
    Hole {
        /// The root of its table.
        table: Pfn<Hpa>,
    },
    /// None, since RAM ends behind the range that the harts' G-stage maps.
    Nobody,
}

/// A kind of device: makes the devices of that kind that a VM of this configuration has.
pub type Kind = fn(&VmConfig, &Offer) -> Vec<Box<dyn Device>>;

/// The features that the machine offers to guests; the same on every hart.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The mode that guests' kernels run in.
    pub guest: GuestMode,
    /// The kinds of devices, in the order in which a VM has them ([`crate::device::KINDS`]).
    pub kinds: &'static [Kind],
    /// The G-stage format in use. Without the H extension no hart walks it: such tables are what
    /// shadow tables are made from.
    pub g_format: &'static Format,
    /// The formats that a guest's root register takes (`vsatp`; in S mode `satp`), the smallest first.
    pub formats: Vec<&'static Format>,
    /// Extensions that guests are told of, their own MMU's apart (`Translation::isa`).
    pub isa: Isa,
    /// Set if hardware can set A and D for guests behind a G-stage.
    pub two_stage_svadu: bool,
    /// Set if there is a swap device, so that memory can be taken from VMs and given back.
    pub has_swap: bool,
    /// The mechanism that denies guests frames, so that their faults can be steered.
    pub denial: Denial,
    /// `mmu-type` of guests' cpu nodes.
    pub mmu_type: String,
    /// Guests' timers.
    pub timer: GuestTimer,
    /// Set if the payload seat's firmware emulates `time` for guests, without `htimedelta`.
    pub firmware_emulates_time: bool,
    /// Set if misaligned accesses of guests that harts trap come to Gnomon: in the firmware seat, on harts without Zicclsm.
    pub emulates_misaligned: bool,
    /// Set if reads of `hpmcounter3` and those after it come to Gnomon, so that guests can be offered counters (SBI PMU).
    pub has_pmu: bool,
    /// Bytes in a vector register, 0 without V.
    pub vlenb: usize,
    /// Ticks of `time` in a second.
    pub timebase: u64,
    /// The time of day, if the host knows it.
    pub clock: Option<Clock>,
    /// The host's disks that are for guests.
    pub disks: Disks,
    /// Folders of the host that are for guests.
    pub shares: Shares,
    /// The source of guests' random bytes, if the host has a device for that.
    pub entropy: Option<Arc<Mutex<Source>>>,
    /// The network of guests.
    pub network: Network,
}

impl Offer {
    /// Returns whether guests' `time` is the host's.
    #[must_use]
    pub fn shows_host_time(&self) -> bool {
        self.guest == GuestMode::Supervisor || self.firmware_emulates_time
    }

    /// Returns the mode in which a VM's memory is virtualized: the one that it asks for, or else the one that suits the
    /// harts best.
    #[must_use]
    pub fn mode(&self, config: &VmConfig) -> MmuMode {
        config.mmu.unwrap_or(match self.guest {
            GuestMode::Virtual => MmuMode::TwoStage,
            GuestMode::Supervisor if config.nested => MmuMode::Lazy,
            // What the guest of a snapshot was told has to hold, and Svvptc does not where faults are steered.
            GuestMode::Supervisor if config.restore.is_some() && config.svvptc => MmuMode::Lazy,
            GuestMode::Supervisor if self.denial != Denial::Nobody && config.svadu != Some(true) => MmuMode::Steered,
            GuestMode::Supervisor => MmuMode::Lazy,
        })
    }

    /// Returns whether a VM is promised that A and D are updated for it (Svadu): as it asks for, or else behind a G-stage if
    /// the harts do it, which saves page faults of the guest's own. By default not where memory may be taken back: writes of
    /// the harts to guests' tables do not always show ([`mmu::gstage::Images::Private`]), so copies on the swap device are
    /// not kept.
    #[must_use]
    pub fn svadu(&self, config: &VmConfig) -> bool {
        let by_default = || self.two_stage_svadu && !self.has_swap && self.mode(config) == MmuMode::TwoStage;
        config.svadu.unwrap_or_else(by_default)
    }
}
