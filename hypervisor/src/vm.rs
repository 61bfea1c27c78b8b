//! A VM: its memory, its devices, its vCPUs.

use crate::board::UART_SOURCE;
use crate::device::{Plic, Uart};
use crate::offer::Offer;
use crate::vcpu::Vcpu;
use abi::bundle::{MmuMode, VmConfig};
use abi::record::EndReason;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64};
use mmu::frames::AllocError;
use mmu::gstage::{AddressSpace, ResolveError};
use mmu::shadow::{Shadow, Upkeep};
use spin::Mutex;

/// Where a VM is in its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Phase {
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
    /// The console.
    pub uart: Uart,
    /// The interrupt controller.
    pub plic: Plic,
    /// The level of the UART's line, as the PLIC was last told.
    uart_line: bool,
}

impl Devices {
    /// The devices as they are after reset.
    #[must_use]
    pub fn new(vcpus: u32) -> Self {
        Self { uart: Uart::default(), plic: Plic::new(vcpus), uart_line: false }
    }

    /// Resets them.
    pub fn reset(&mut self, vcpus: u32) {
        *self = Self { uart: self.uart.after_reset(), ..Self::new(vcpus) };
    }

    /// Reads a register of the PLIC; a claim that names the UART is told to it.
    pub fn read_plic(&mut self, offset: u64) -> u32 {
        let value = self.plic.read(offset);
        if value == UART_SOURCE && Plic::claims(offset) {
            self.uart.claimed();
        }
        value
    }

    /// Writes a register of the PLIC; a completion of the UART's interrupt is told to it first.
    pub fn write_plic(&mut self, offset: u64, value: u32) {
        if value == UART_SOURCE && Plic::claims(offset) {
            self.uart.completed();
            self.pass_line();
        }
        self.plic.write(offset, value);
    }

    /// Passes the UART's line on to the PLIC; says whether it has changed.
    pub fn pass_line(&mut self) -> bool {
        let high = self.uart.interrupt();
        let changed = high != self.uart_line;
        if changed {
            self.uart_line = high;
            self.plic.set_level(UART_SOURCE, high);
        }
        changed
    }
}

/// How a VM's memory is virtualized. [`crate::translation`] says what follows from it; nothing else asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translation {
    /// In two stages: the guest's own tables, behind a G-stage.
    TwoStage,
    /// In one: shadow tables, kept in step with the guest's in this way.
    Shadow(Upkeep),
}

impl From<MmuMode> for Translation {
    fn from(mode: MmuMode) -> Self {
        match mode {
            MmuMode::Nested => Translation::TwoStage,
            MmuMode::Shadow => Translation::Shadow(Upkeep::Shadow),
            MmuMode::Unsync => Translation::Shadow(Upkeep::Unsync),
            MmuMode::Lazy => Translation::Shadow(Upkeep::Lazy),
        }
    }
}

/// A VM's memory.
pub struct Memory {
    /// Guest physical memory.
    pub space: AddressSpace,
    /// The tables that take the guest from virtual to host addresses, if it is shadowed.
    pub shadow: Option<Shadow>,
}

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
    /// Its number: index into [`crate::gnomon::Gnomon::vms`], and its owner number for frames.
    pub index: usize,
    /// What it was asked to be.
    pub config: VmConfig,
    /// How its memory is virtualized.
    pub translation: Translation,
    /// Its memory; `None` before the start and after the end.
    pub memory: Mutex<Option<Memory>>,
    /// What its memory's engines did in the lives before the present one.
    pub past: Mutex<Past>,
    /// The devices.
    pub devices: Mutex<Devices>,
    /// The UART has something to send, or to say, and some hart looks after it soon.
    pub is_sending: AtomicBool,
    /// Its vCPUs, by hart id.
    pub vcpus: Vec<Arc<Vcpu>>,
    /// Where it is in its life.
    pub phase: Mutex<Phase>,
    /// Counts changes of the G-stage table that harts must fence for; each hart remembers what it
    /// has fenced for (after bhyve's `pm_eptgen`, architecture.md chapter 5).
    pub tlb_generation: AtomicU64,
    /// Harts (by bit) whose TLBs may hold translations of this VM.
    pub live_on: AtomicU64,
    /// Host time at which guest time is 0.
    pub time_zero: AtomicU64,
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
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreachable::Hole => f.write_str("no memory there"),
            Unreachable::Denied => f.write_str("the memory there is protected"),
            Unreachable::OutOfFrames(e) => e.fmt(f),
            Unreachable::Gone => f.write_str("the VM has ended"),
        }
    }
}

impl From<ResolveError> for Unreachable {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Denied => Unreachable::Denied,
            ResolveError::OutOfFrames(e) => Unreachable::OutOfFrames(e),
        }
    }
}

impl Vm {
    /// A VM with all its vCPUs still to be parked.
    #[must_use]
    pub fn new(index: usize, config: VmConfig, offer: &Offer) -> Self {
        let vcpus = (0..config.vcpus).map(|id| Arc::new(Vcpu::new(index, id))).collect();
        Self {
            index,
            translation: offer.mode(config.mmu).into(),
            memory: Mutex::new(None),
            past: Mutex::new(Past::default()),
            devices: Mutex::new(Devices::new(config.vcpus)),
            is_sending: AtomicBool::new(false),
            vcpus,
            phase: Mutex::new(Phase::Leaving(Departure::Reboot)),
            tlb_generation: AtomicU64::new(0),
            live_on: AtomicU64::new(0),
            time_zero: AtomicU64::new(0),
            config,
        }
    }

    /// Whether `[gpa, gpa + bytes)` lies within the VM's RAM.
    #[must_use]
    pub fn in_ram(&self, gpa: u64, bytes: u64) -> bool {
        let Some(offset) = gpa.checked_sub(abi::bundle::GUEST_RAM_BASE) else { return false };
        offset.checked_add(bytes).is_some_and(|end| end <= self.config.memory_bytes)
    }
}
