//! A VM: its memory, its devices, its vCPUs.

pub mod breaks;
pub mod chores;
pub mod events;
pub mod fetch;
pub mod outcome;
pub mod savings;
pub mod sbi_error;
pub mod tenant;
pub mod vcpu;
pub mod vms;

use crate::device::board;
use crate::device::offer::Offer;
use crate::device::virtio::{Balloon, Block, Console, Mmio, Net, Rng, Share};
use crate::device::{Answer, Device, Outside, Place, Plic, Uart, Wild, plic, uart};
use crate::slots::Handle;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::vm::breaks::Breaks;
use crate::vm::events::Events;
use crate::vm::savings::Savings;
use crate::vm::vcpu::Vcpu;
use abi::bundle::{MmuMode, VmConfig};
use abi::record::EndReason;
use abi::snapshot::{Placed, State};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::iter;
use mmu::frames::{AllocError, Owner};
use mmu::gstage::{AddressSpace, ResolveError, SwapSlot};
use mmu::shadow::{Shadow, Upkeep};
use rv::{Gpa, Hpa, Pfn};

/// Where a VM is in its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It has not started yet.
    Created,
    /// Running.
    Running,
    /// Its vCPUs are being collected, or it is being built anew; then this happens. A restart may
    /// still become an end.
    Leaving(Departure),
    /// Over.
    Ended,
}

/// Why a VM's vCPUs are collected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Departure {
    /// It ends.
    End(EndReason),
    /// It starts over.
    Reboot,
}

/// The devices of the guest's board.
#[derive(Debug)]
pub struct Devices {
    /// The console, or the first of two. What is typed comes here, whoever reads it.
    pub uart: Uart,
    /// The interrupt controller.
    pub plic: Plic,
    /// The memory balloon, if it has one.
    pub balloon: Option<Box<Mmio<Balloon>>>,
    /// Its disks.
    pub disks: Vec<Mmio<Block>>,
    /// Its network card, if it has one.
    pub net: Option<Box<Mmio<Net>>>,
    /// The folders of the host that it reaches.
    pub shares: Vec<Mmio<Share>>,
    /// Its source of random bytes, if it has one.
    pub rng: Option<Box<Mmio<Rng>>>,
    /// Its virtio console, if it has one.
    pub console: Option<Box<Mmio<Console>>>,
    others: Vec<Box<dyn Device>>,
}

/// What is at a guest physical address where there is no RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The interrupt controller.
    Plic,
    /// That one of the devices; 0 is the UART.
    Device(usize),
}

impl Devices {
    /// All go on from where a snapshot has left them. They have just been reset.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn restore(&mut self, state: &State) -> Result<(), Wild> {
        self.plic.restore(&state.plic)?;
        let mut saved = state.devices.iter();
        for device in self.iter_mut() {
            let Placed { at, device: state } = saved.next().ok_or(Wild::OTHER)?;
            if *at != device.place().start {
                return Err(Wild::OTHER);
            }
            device.restore(state)?;
        }
        if saved.next().is_some() { Err(Wild::OTHER) } else { Ok(()) }
    }

    /// The devices as they are after reset.
    #[must_use]
    pub fn new(config: &VmConfig, offer: &Offer) -> Self {
        let (plic, balloon) = (Plic::new(config.vcpus), board::balloon(config).map(Box::new));
        let (disks, net) = (board::disks(config, offer).collect(), board::net(config, offer).map(Box::new));
        let (shares, rng) = (board::shares(config, offer).collect(), board::rng(config, offer).map(Box::new));
        let (console, others) = (board::console(config, offer).map(Box::new), board::devices(offer));
        Self { uart: Uart::default(), plic, balloon, disks, net, shares, rng, console, others }
    }

    /// All but the interrupt controller, the UART first.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Device> {
        let others = self.others.iter().map(|device| &**device);
        let balloon = self.balloon.iter().map(|balloon| &**balloon as &dyn Device);
        let disks = self.disks.iter().map(|disk| disk as &dyn Device);
        let net = self.net.iter().map(|net| &**net as &dyn Device);
        let shares = self.shares.iter().map(|share| share as &dyn Device);
        let rng = self.rng.iter().map(|rng| &**rng as &dyn Device);
        let console = self.console.iter().map(|console| &**console as &dyn Device);
        let first = iter::once(&self.uart as &dyn Device).chain(others).chain(balloon);
        first.chain(disks).chain(net).chain(shares).chain(rng).chain(console)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut (dyn Device + 'static)> {
        let others = self.others.iter_mut().map(|device| &mut **device);
        let balloon = self.balloon.iter_mut().map(|balloon| &mut **balloon as &mut dyn Device);
        let disks = self.disks.iter_mut().map(|disk| disk as &mut dyn Device);
        let net = self.net.iter_mut().map(|net| &mut **net as &mut dyn Device);
        let shares = self.shares.iter_mut().map(|share| share as &mut dyn Device);
        let rng = self.rng.iter_mut().map(|rng| &mut **rng as &mut dyn Device);
        let console = self.console.iter_mut().map(|console| &mut **console as &mut dyn Device);
        let first = iter::once(&mut self.uart as &mut dyn Device).chain(others).chain(balloon);
        first.chain(disks).chain(net).chain(shares).chain(rng).chain(console)
    }

    fn get(&mut self, at: usize) -> &mut (dyn Device + 'static) {
        match at {
            0 => &mut self.uart,
            _ => match self.iter_mut().nth(at) {
                Some(device) => device,
                None => unreachable!("there is no device {at}"),
            },
        }
    }

    /// Whether that one of them is the virtio console.
    pub(crate) fn is_console(&self, at: usize) -> bool {
        self.console.is_some() && at + 1 == self.iter().count()
    }

    /// The device of a PLIC source.
    fn of_source(&self, source: u64) -> Option<usize> {
        self.iter().position(|device| u64::from(device.source()) == source & 0xffff_ffff)
    }

    /// Resets them.
    pub fn reset(&mut self, vcpus: u32) {
        self.plic = Plic::new(vcpus);
        self.iter_mut().for_each(Device::reset);
    }

    /// A load of `width` bytes at `offset`. A claim is told to the device that it names.
    pub fn load(&mut self, target: Target, offset: u64, width: u8, outside: &mut dyn Outside) -> Answer<u64> {
        match target {
            // Most accesses by far: without a call through a table.
            Target::Device(0) => self.uart.load(offset, width, outside),
            Target::Device(at) => self.get(at).load(offset, width, outside),
            Target::Plic => {
                let answer = self.plic.load(offset, width);
                if let (Answer::Done(source), true) = (answer, Plic::claims(offset))
                    && let Some(at) = self.of_source(source)
                {
                    self.get(at).claimed();
                }
                answer
            }
        }
    }

    /// A store. A completion is told to the device first whose interrupt it was.
    pub fn store(
        &mut self,
        target: Target,
        (offset, width): (u64, u8),
        value: u64,
        outside: &mut dyn Outside,
    ) -> Answer<()> {
        match target {
            Target::Device(0) => self.uart.store(offset, width, value, outside),
            Target::Device(at) => {
                let answer = self.get(at).store(offset, width, value, outside);
                // It may have been a buffer for that. If it was not, nobody looks at the console's line.
                if self.is_console(at) {
                    self.pass_input(outside);
                }
                answer
            }
            Target::Plic => {
                if Plic::claims(offset)
                    && width == 4
                    && let Some(at) = self.of_source(value)
                {
                    self.get(at).completed();
                    self.pass_line(at);
                }
                self.plic.store(offset, width, value)
            }
        }
    }

    /// The time has come that one of them asked for.
    pub fn moment(&mut self, outside: &mut dyn Outside) {
        self.iter_mut().for_each(|device| device.moment(outside));
        self.pass_input(outside);
    }

    /// Passes what was typed on to the virtio console, if there is one whose driver has buffers. Lines of devices may change.
    pub fn pass_input(&mut self, outside: &mut dyn Outside) {
        if let Some(console) = &mut self.console
            && self.uart.has_received()
        {
            console.take_input(&mut self.uart, outside);
        }
    }

    /// Passes a device's line on to the PLIC; says whether it has changed.
    pub fn pass_line(&mut self, at: usize) -> bool {
        let (source, high) = match at {
            0 => (uart::SOURCE, self.uart.interrupt()),
            _ => (self.get(at).source(), self.get(at).interrupt()),
        };
        let has_changed = high != self.plic.is_high(source);
        if has_changed {
            self.plic.set_level(source, high);
        }
        has_changed
    }

    /// The same for all of them.
    pub fn pass_lines(&mut self) -> bool {
        let count = self.iter().count();
        (0..count).fold(false, |changed, at| self.pass_line(at) | changed)
    }
}

/// How a VM's memory is virtualized. [`crate::memory::translation`] says what follows from it; nothing else asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translation {
    /// In two stages: the guest's own tables, behind a G-stage.
    TwoStage,
    /// In one: shadow tables, kept in step with the guest's in this way.
    Shadow(Upkeep),
    /// In either way, by turns: behind the G-stage, or on shadow tables that steer.
    Adaptive,
}

impl From<MmuMode> for Translation {
    fn from(mode: MmuMode) -> Self {
        match mode {
            MmuMode::Nested => Translation::TwoStage,
            MmuMode::Shadow => Translation::Shadow(Upkeep::Shadow),
            MmuMode::Unsync => Translation::Shadow(Upkeep::Unsync),
            MmuMode::Lazy => Translation::Shadow(Upkeep::Lazy),
            MmuMode::Steered => Translation::Shadow(Upkeep::Steered),
            MmuMode::Adaptive => Translation::Adaptive,
        }
    }
}

/// The device tree of a VM that is to be.
#[must_use]
pub fn device_tree(config: &VmConfig, offer: &Offer) -> Vec<u8> {
    let isa = Translation::from(offer.mode(config)).isa(config, offer);
    board::device_tree(config, offer, &isa, Devices::new(config, offer).iter())
}

/// A VM's memory.
pub struct Memory {
    /// Guest physical memory.
    pub space: AddressSpace,
    /// The tables that take the guest from virtual to host addresses, if it is shadowed.
    pub shadow: Option<Shadow>,
}

/// A VM's memory, under its lock.
pub type Locked<'a> = MutexGuard<'a, Option<Memory>>;

/// What a VM's memory did in earlier lives.
#[derive(Clone, Copy, Default, Debug)]
pub struct Past {
    /// The address spaces.
    pub space: mmu::gstage::Counters,
    /// The shadow tables.
    pub shadow: mmu::shadow::Counters,
    /// Shadow roots: the next life's are numbered on.
    pub serials: u64,
}

/// One VM.
pub struct Vm {
    /// Its name to [`crate::vm::vms::Vms`].
    pub handle: Handle,
    /// What it was asked to be.
    pub config: Box<VmConfig>,
    /// Its device tree, as its memory has it at each start.
    pub tree: Vec<u8>,
    /// How its memory is virtualized.
    pub translation: Translation,
    /// Its memory; `None` before the start and after the end.
    pub memory: Mutex<Option<Memory>>,
    /// What its memory's engines did in the lives before the present one. Apart, so that one load reaches all that exits look at.
    pub past: Box<Mutex<Past>>,
    /// The devices.
    pub devices: Mutex<Devices>,
    /// Where they are, in the order of their numbers.
    places: Vec<Place>,
    /// A device, such as the UART with something to send, is to have its moment soon: some hart sees to that.
    pub has_moment: AtomicBool,
    /// The vCPUs (by bit) whose last exit is to be made again when a device, or the console, can go on.
    pub held: AtomicU64,
    /// Its software events. Nobody takes another lock with this one.
    pub events: Mutex<Events>,
    /// Its vCPUs, by hart id.
    pub vcpus: Vec<Arc<Vcpu>>,
    /// Where it is in its life.
    pub phase: Mutex<Phase>,
    /// Counts changes of the G-stage table that harts must fence for; each hart remembers what it
    /// has fenced for (after bhyve's `pm_eptgen`).
    pub tlb_generation: AtomicU64,
    /// Counts changes of its tables that TLBs must forget, those of the hart that makes them among them.
    pub edits: AtomicU64,
    /// Harts (by bit) whose TLBs may hold translations of this VM; but for those that have fenced for another generation than the
    /// present one, and will do so before they enter ([`crate::memory::shootdown`]).
    pub live_on: AtomicU64,
    /// Whether it has been said that it calls an SBI function that is not there.
    pub has_called_unknown: AtomicBool,
    /// Its breakpoints, while a debugger looks at it.
    pub breaks: Breaks,
    /// The snapshot that is taken of it. Nobody takes another lock with this one.
    pub savings: Mutex<Savings>,
    /// That is given out, so its devices stand still. Changed under the lock of [`Vm::savings`].
    pub is_frozen: AtomicBool,
    /// Host time at which guest time is 0.
    pub time_zero: AtomicU64,
    /// Host time at which its present life has begun; 0 before the first.
    pub since: AtomicU64,
}

/// Why guest memory cannot be reached.
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
    /// It takes long, and a part of it is done: the same once more goes on with it.
    Later,
    /// It has to be waited for: a page that is being brought in, or memory that is being taken back.
    Waits {
        /// Events of the pager's before ([`crate::pager::Pager::events`]).
        since: u64,
    },
    /// The page is on the swap device: it has to be brought in first.
    Out {
        /// Which page.
        page: Pfn<Gpa>,
        /// Where it is.
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
    /// Whether the same may come to something else when it is tried again.
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
    /// A VM that has not started, its vCPUs stopped.
    #[must_use]
    pub fn new(handle: Handle, (config, tree): (VmConfig, Vec<u8>), offer: &Offer) -> Self {
        let vcpus = (0..config.vcpus).map(|id| Arc::new(Vcpu::new(handle.number, id))).collect();
        let devices = Devices::new(&config, offer);
        let ports = config.disks.iter().filter_map(|number| offer.disks.get(*number));
        ports.for_each(|port| port.lock().set_user(handle));
        let ports = config.shares.iter().filter_map(|share| offer.shares.get(share.number));
        ports.for_each(|port| port.lock().set_user(handle));
        devices.net.iter().for_each(|net| net.backend().plug().set_user(handle));
        devices.rng.iter().for_each(|rng| rng.backend().place().set_user(handle));
        Self {
            handle,
            translation: offer.mode(&config).into(),
            memory: Mutex::new(None),
            past: Box::default(),
            places: devices.iter().map(Device::place).collect(),
            devices: Mutex::new(devices),
            has_moment: AtomicBool::new(false),
            held: AtomicU64::new(0),
            events: Mutex::new(Events::new(config.vcpus)),
            vcpus,
            phase: Mutex::new(Phase::Created),
            tlb_generation: AtomicU64::new(0),
            edits: AtomicU64::new(0),
            live_on: AtomicU64::new(0),
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

    /// Where it is while it is there: its console's number, and its account of frames.
    #[must_use]
    pub const fn slot(&self) -> usize {
        self.handle.slot
    }

    /// Who pays for its frames.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        Owner::Vm(self.slot() as u16)
    }

    /// RAM that is never taken from it once it has it, in bytes.
    #[must_use]
    pub const fn promised_bytes(&self) -> u64 {
        if self.config.wired { self.config.memory_bytes } else { self.config.reserve_bytes }
    }

    /// The device at `gpa`, if there is one, and where in its registers that is: offset and how many bytes are left.
    #[must_use]
    pub fn device_at(&self, gpa: u64) -> Option<(Target, u64, u64)> {
        let find = |(at, place): (usize, &Place)| Some((Target::Device(at), place.offset(gpa)?, place.bytes));
        let found = self.places.iter().enumerate().find_map(find);
        let found = found.or_else(|| Some((Target::Plic, plic::PLACE.offset(gpa)?, plic::PLACE.bytes)));
        found.map(|(target, offset, bytes)| (target, offset, bytes - offset))
    }

    /// The host's time when the guest's is `time`, or now if that has passed; `u64::MAX` is never.
    #[must_use]
    pub fn host_time(&self, time: u64, now: u64) -> u64 {
        if time == u64::MAX {
            return time;
        }
        // Of a VM that was restored, guest time may be ahead of the host's.
        let guest_now = now.wrapping_sub(self.time_zero.load(Ordering::Relaxed));
        now.saturating_add(time.saturating_sub(guest_now))
    }

    /// Says that the last exit of a vCPU is to be made again when a device, or the console, can go on.
    pub fn hold(&self, vcpu: u32) {
        self.held.fetch_or(1 << vcpu, Ordering::SeqCst);
    }

    /// Whether `[gpa, gpa + bytes)` lies within the VM's RAM.
    #[must_use]
    pub fn in_ram(&self, gpa: u64, bytes: u64) -> bool {
        self.config.has_ram(gpa, bytes)
    }
}
