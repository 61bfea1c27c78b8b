//! A VM: its memory, its devices, its vCPUs.

pub mod breaks;
pub mod chores;
pub mod events;
pub mod fetch;
pub mod lock;
pub mod mapper;
pub mod mappings;
pub mod outcome;
pub mod savings;
pub mod sbi_error;
pub mod spaces;
pub mod tenant;
pub mod vcpu;
pub mod vms;

use crate::device::board;
use crate::device::offer::Offer;
use crate::device::{Device, Devices, Place, Target, plic};
use crate::slots::Handle;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::vm::breaks::Breaks;
use crate::vm::events::Events;
use crate::vm::lock::{Exclusive, SharedLock};
use crate::vm::mappings::Mappings;
use crate::vm::savings::Savings;
use crate::vm::spaces::Spaces;
use crate::vm::vcpu::Vcpu;
use abi::bundle::{L2Tables, MmuMode, VmConfig};
use abi::record::EndReason;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use mmu::frames::{AllocError, Owner};
use mmu::gstage::{AddressSpace, ResolveError, SwapSlot};
use mmu::shadow::{Shadow, Upkeep};
use rv::{Gpa, Hpa, L2Gpa, L2Gva, Pfn};

/// The phase of a VM's life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The VM has not started yet.
    Created,
    /// Running.
    Running,
    /// Its vCPUs are being collected, or it is being built anew; then this happens. A restart may
    /// still become an end.
    Leaving(Departure),
    /// Over.
    Ended,
}

/// The reason why a VM's vCPUs are collected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Departure {
    /// The VM ends.
    End(EndReason),
    /// The VM starts over.
    Reboot,
}

/// The virtualization of a VM's memory. [`crate::memory::translation`] says what follows from it; no other module asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translation {
    /// In two stages: the guest's own tables, behind a G-stage.
    TwoStage,
    /// In one: shadow tables, synchronised with the guest's in this way.
    Shadow(Upkeep),
    /// In either way, by turns: behind the G-stage, or on shadow tables that steer.
    Adaptive,
}

impl From<MmuMode> for Translation {
    fn from(mode: MmuMode) -> Self {
        match mode {
            MmuMode::TwoStage => Translation::TwoStage,
            MmuMode::Shadow => Translation::Shadow(Upkeep::Shadow),
            MmuMode::Unsync => Translation::Shadow(Upkeep::Unsync),
            MmuMode::Lazy => Translation::Shadow(Upkeep::Lazy),
            MmuMode::Steered => Translation::Shadow(Upkeep::Steered),
            MmuMode::Adaptive => Translation::Adaptive,
        }
    }
}

/// Makes the device tree of a VM that is to be created.
#[must_use]
pub fn device_tree(config: &VmConfig, offer: &Offer) -> Vec<u8> {
    let isa = Translation::from(offer.mode(config)).isa(config, offer);
    board::device_tree(config, offer, &isa, Devices::new(config, offer).all().iter())
}

/// A VM's memory.
pub struct Memory {
    /// Guest physical memory.
    pub space: AddressSpace,
    /// The tables that take the guest from virtual to host addresses, if it is shadowed.
    pub shadow: Option<Shadow>,
    /// The tables that take its own guests from their physical to host addresses, if it may be a hypervisor.
    pub nested: Option<Shadow<L2Gpa>>,
    /// The tables that take its own guests from their virtual to host addresses, if they run by collapsed tables.
    pub collapsed: Option<Shadow<L2Gva>>,
}

/// A VM's memory, under its lock.
pub type Locked<'a> = Exclusive<'a, Option<Memory>>;

/// The counts of a VM's memory in earlier lives.
#[derive(Clone, Copy, Default, Debug)]
pub struct Past {
    /// The address spaces.
    pub space: mmu::gstage::Counters,
    /// The shadow tables.
    pub shadow: mmu::shadow::Counters,
    /// The tables of its own guests.
    pub nested: mmu::shadow::Counters,
    /// Shadow roots: the next life's are numbered on.
    pub serials: u64,
}

/// The translations of one VM outside of its tables: those in the harts' TLBs, and Gnomon's own ([`crate::memory::shootdown`]).
#[derive(Default, Debug)]
pub struct Tlb {
    /// Counts changes of the G-stage table that harts must fence for; each hart remembers the generation that it
    /// has fenced for (after bhyve's `pm_eptgen`).
    pub generation: AtomicU64,
    /// Counts the edits of the VM's memory ([`vcpu::Way`]).
    pub edits: Arc<AtomicU64>,
    /// Harts (by bit) whose TLBs may hold translations of the VM. A hart that has fenced for an older generation may be missing: it
    /// fences before it enters the guest.
    pub live_on: AtomicU64,
    /// Mappings that Gnomon itself keeps; `None` if the VM is no hypervisor, whose vCPUs share no page that is used often.
    pub mappings: Option<Arc<Mappings>>,
    /// The address spaces that its kernel has named. Held while fences are posted to vCPUs; no other lock is taken with this one but that of a
    /// vCPU's fences.
    pub spaces: Box<Mutex<Spaces>>,
    /// Set while Gnomon sets A and D in the guest's tables in place of hardware that would not tell the dirty log. vCPUs learn of it when they are
    /// loaded.
    pub sets_ad: AtomicBool,
}

/// One VM.
pub struct Vm {
    /// Its name to [`crate::vm::vms::Vms`].
    pub handle: Handle,
    /// The configuration that the VM was created with.
    pub config: Box<VmConfig>,
    /// Its device tree, as its memory has it at each start.
    pub tree: Vec<u8>,
    /// The virtualization of its memory.
    pub translation: Translation,
    /// Set if the guest is promised that A and D are updated for it ([`Offer::svadu`]).
    pub svadu: bool,
    /// Its memory; `None` before the start and after the end. Shared by vCPUs that fill the G-stage table.
    pub memory: SharedLock<Option<Memory>>,
    /// The counts of its memory's engines in the lives before the present one. In a box, so that one load reaches all
    /// fields that exits look at.
    pub past: Box<Mutex<Past>>,
    /// The devices.
    pub devices: Devices,
    /// The places of the devices, in the order of their numbers.
    places: Vec<Place>,
    /// The vCPUs (by bit) whose last exit is to be made again when a device, or the console, can go on.
    pub held: AtomicU64,
    /// Its software events. No other lock is taken with this one.
    pub events: Mutex<Events>,
    /// Its vCPUs, by hart id.
    pub vcpus: Vec<Arc<Vcpu>>,
    /// The phase of its life.
    pub phase: Mutex<Phase>,
    /// Its translations in the harts' TLBs.
    pub tlb: Tlb,
    /// Set once it was reported that the VM calls an SBI function that does not exist.
    pub has_called_unknown: AtomicBool,
    /// Its breakpoints, while a debugger looks at it.
    pub breaks: Breaks,
    /// The snapshot that is taken of it. No other lock is taken with this one.
    pub savings: Mutex<Savings>,
    /// Set while the snapshot is given out: the devices stand still. Changed under the lock of [`Vm::savings`].
    pub is_frozen: AtomicBool,
    /// Host time at which guest time is 0.
    pub time_zero: AtomicU64,
    /// Host time at which its present life has begun; 0 before the first.
    pub since: AtomicU64,
}

/// The reason why guest memory cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreachable {
    /// There is no memory at that address.
    Hole,
    /// The memory is there, but does not allow the access.
    Denied,
    /// The VM needs a frame and there is none.
    OutOfFrames(AllocError),
    /// The VM has no memory any more.
    Gone,
    /// The access takes long, and a part of it is done: another attempt continues it.
    Later,
    /// The memory has to be waited for: a page that is being brought in, or memory that is being taken back.
    Waits {
        /// Events of the pager's before ([`crate::pager::Pager::events`]).
        since: u64,
    },
    /// The page is on the swap device: it has to be brought in first.
    Out {
        /// Which page.
        page: Pfn<Gpa>,
        /// The page of the device.
        slot: SwapSlot,
    },
    /// The page is an image's, and on the swap device: it has to be brought in first.
    OriginalOut {
        /// Which page.
        page: Pfn<Gpa>,
        /// The original's home ([`mmu::frames::Originals`]).
        home: Pfn<Hpa>,
    },
    /// The page is on the swap device, which does not give it back.
    Lost(Pfn<Gpa>),
}

impl Unreachable {
    /// Returns whether another attempt may have another result.
    #[must_use]
    pub const fn is_for_now(self) -> bool {
        matches!(self, Unreachable::Later | Unreachable::Waits { .. })
    }
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreachable::Hole => f.write_str("no memory there"),
            Unreachable::Denied => f.write_str("the memory there is protected"),
            Unreachable::OutOfFrames(e) => e.fmt(f),
            Unreachable::Gone => f.write_str("the VM has ended"),
            Unreachable::Later => f.write_str("the memory is still being made ready"),
            Unreachable::Waits { .. } => f.write_str("the memory is not there yet"),
            Unreachable::Out { page, .. } | Unreachable::OriginalOut { page, .. } => {
                write!(f, "the page at {} is on the swap device", page.base())
            }
            Unreachable::Lost(page) => write!(f, "the swap device does not give back its page at {}", page.base()),
        }
    }
}

impl From<ResolveError> for Unreachable {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Denied => Unreachable::Denied,
            ResolveError::OutOfFrames(e) => Unreachable::OutOfFrames(e),
            ResolveError::Out { page, slot } => Unreachable::Out { page, slot },
            ResolveError::OriginalOut { page, home } => Unreachable::OriginalOut { page, home },
        }
    }
}

impl Vm {
    /// Returns whether its own guests run on collapsed tables.
    #[must_use]
    pub fn collapses(&self) -> bool {
        // On shadow tables itself, it has no G-stage that could stand behind its guests'.
        self.config.nested && (self.config.l2 == L2Tables::Collapsed || self.translation != Translation::TwoStage)
    }

    /// Makes a VM that has not started, its vCPUs stopped.
    #[must_use]
    pub fn new(handle: Handle, (config, tree): (VmConfig, Vec<u8>), offer: &Offer) -> Self {
        let vcpus = (0..config.vcpus).map(|id| Arc::new(Vcpu::new(handle.number, id, config.nested))).collect();
        let devices = Devices::new(&config, offer);
        let places = devices.all().iter().map(Device::place).collect();
        devices.attach(handle);
        let (translation, svadu) = (Translation::from(offer.mode(&config)), offer.svadu(&config));
        Self {
            handle,
            memory: SharedLock::new(None),
            translation,
            svadu,
            past: Box::default(),
            places,
            devices,
            held: AtomicU64::new(0),
            events: Mutex::new(Events::new(config.vcpus)),
            vcpus,
            phase: Mutex::new(Phase::Created),
            tlb: Tlb { mappings: config.nested.then(|| Arc::new(Mappings::new(config.vcpus))), ..Tlb::default() },
            has_called_unknown: AtomicBool::new(false),
            breaks: Breaks::default(),
            savings: Mutex::default(),
            is_frozen: AtomicBool::new(false),
            time_zero: AtomicU64::new(0),
            since: AtomicU64::new(0),
            tree,
            config: Box::new(config),
        }
    }

    /// Returns the VM's slot while it exists: its console's number, and its account of frames.
    #[must_use]
    pub const fn slot(&self) -> usize {
        self.handle.slot
    }

    /// Returns the owner that the VM's frames are charged to.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        Owner::Vm(self.slot() as u16)
    }

    /// Returns the RAM that is never taken from it once it has it, in bytes.
    #[must_use]
    pub const fn promised_bytes(&self) -> u64 {
        if self.config.wired { self.config.memory_bytes } else { self.config.reserve_bytes }
    }

    /// Returns the device at `gpa`, if there is one, the offset in its registers, and the number of bytes that are left
    /// there.
    #[must_use]
    pub fn device_at(&self, gpa: u64) -> Option<(Target, u64, u64)> {
        let find = |(at, place): (usize, &Place)| Some((Target::Device(at), place.offset(gpa)?, place.bytes));
        let found = self.places.iter().enumerate().find_map(find);
        let found = found.or_else(|| Some((Target::Plic, plic::PLACE.offset(gpa)?, plic::PLACE.bytes)));
        found.map(|(target, offset, bytes)| (target, offset, bytes - offset))
    }

    /// Returns the guest's time when the host's is `now`.
    #[must_use]
    pub fn guest_time(&self, now: u64) -> u64 {
        now.wrapping_sub(self.time_zero.load(Ordering::Relaxed))
    }

    /// Returns the host's time when the guest's is `time`, or now if that has passed; `u64::MAX` is never.
    #[must_use]
    pub fn host_time(&self, time: u64, now: u64) -> u64 {
        if time == u64::MAX {
            return time;
        }
        // Of a VM that was restored, guest time may be ahead of the host's.
        now.saturating_add(time.saturating_sub(self.guest_time(now)))
    }

    /// Marks the last exit of a vCPU as one that is to be made again when a device, or the console, can go on.
    pub fn hold(&self, vcpu: u32) {
        self.held.fetch_or(1 << vcpu, Ordering::SeqCst);
    }

    /// Returns whether `[gpa, gpa + bytes)` lies within the VM's RAM.
    #[must_use]
    pub fn in_ram(&self, gpa: u64, bytes: u64) -> bool {
        self.config.has_ram(gpa, bytes)
    }
}
