//! A snapshot of a VM: its state ([`State`]) and the pages of its RAM that are not zero, in a [`file`].
//!
//! Nothing here says how the VM's memory was virtualized, or on how many harts: so it goes on in any mode, on any number.
//! Times are the guest's own, in ticks of `time`.

pub mod bytes;
pub mod device;
pub mod file;

use crate::mac::Mac;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use device::{DeviceState, PlicState};
use serde::{Deserialize, Serialize};

/// Most bytes of an encoded [`State`]: enough for 32 vCPUs with vector registers of 2048 bits. Who lets one go on has little memory.
pub const MOST_STATE_BYTES: usize = 512 << 10;
/// RAM is less than this: no format of tables reaches further.
pub const MOST_RAM_BYTES: u64 = 1 << 59;
/// Guest times are below this: at 10 MHz, 3600 years.
pub const MOST_TIME: u64 = 1 << 60;
/// A timer that is not set.
pub const NEVER: u64 = u64::MAX;

/// All of a paused VM but its RAM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct State {
    /// The VM, and the promises to its guest.
    pub told: Told,
    /// Its vCPUs, in the order of their numbers.
    pub vcpus: Vec<VcpuState>,
    /// Its software events.
    pub events: EventsState,
    /// Its interrupt controller.
    pub plic: PlicState,
    /// Its other devices, in the order of the board.
    pub devices: Vec<Placed>,
    /// Its address spaces ([`crate::vmspace`]), by slot.
    pub spaces: Vec<SpaceState>,
}

impl State {
    /// Returns whether one of its kernels was told [`crate::root_cache::TAGGED`].
    #[must_use]
    pub fn is_tagged(&self) -> bool {
        self.vcpus.iter().any(|vcpu| vcpu.root_cache.is_some_and(|cache| cache.is_tagged))
    }
}

/// A device, and where on the board it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Placed {
    /// GPA of its first register.
    pub at: u64,
    /// The device's state.
    pub device: DeviceState,
}

/// The VM, and the promises to its guest. A machine that continues it has to offer as much.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Told {
    /// Its name.
    pub name: String,
    /// RAM in bytes.
    pub memory_bytes: u64,
    /// Ticks of `time` in a second.
    pub timebase: u64,
    /// The guest's `time` when it was paused; below [`MOST_TIME`].
    pub time: u64,
    /// Extensions of its harts.
    pub isa: Vec<String>,
    /// Bytes of the blocks of `cbo.inval` and `cbo.zero`, and of prefetches; 0 where it was not told.
    pub blocks: [u32; 3],
    /// Formats of tables that its root register takes: the modes in `satp`.
    pub formats: Vec<u8>,
    /// Bytes in a vector register, 0 without V.
    pub vlenb: u32,
    /// True if updates of A and D bits are promised (Svadu).
    pub svadu: bool,
    /// True if it has a memory balloon.
    pub has_balloon: bool,
    /// Its disks. What is on them is not in the snapshot.
    pub disks: Vec<DiskState>,
    /// The address of its network card, if it has one.
    pub mac: Option<Mac>,
    /// The tags by which it mounts its shared folders. Their contents are not in the snapshot.
    pub shares: Vec<String>,
    /// True if it has a source of random bytes.
    pub has_rng: bool,
    /// True if it has a virtio console.
    pub has_virtio_console: bool,
    /// The names of its ports. Connections to them are not in the snapshot.
    pub ports: Vec<String>,
    /// True if it has SBI PMU.
    pub has_pmu: bool,
}

/// The properties of a disk that must match.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskState {
    /// The number of sectors of 512 bytes.
    pub sectors: u64,
    /// True if nothing can be written.
    pub is_read_only: bool,
}

/// A vCPU.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VcpuState {
    /// True if it is started (SBI HSM). If not, nothing else of it matters.
    pub is_started: bool,
    /// True if it is in supervisor mode, or else in user mode.
    pub is_supervisor: bool,
    /// x0 to x31.
    pub x: [u64; 32],
    /// The program counter.
    pub pc: u64,
    /// f0 to f31.
    pub f: [u64; 32],
    /// `fcsr`.
    pub fcsr: u64,
    /// v0 to v31; empty without V.
    pub v: Bytes,
    /// `vstart`, `vl`, `vtype`, `vcsr`.
    pub vector: [u64; 4],
    /// Its control and status registers.
    pub csrs: Csrs,
    /// True if its software interrupt is pending.
    pub is_software_pending: bool,
    /// The time of its timer interrupt, in guest time, or [`NEVER`]. One of the past is pending.
    pub timer: u64,
    /// SBI FWFT: misaligned accesses' exceptions are the kernel's own.
    pub delegates_misaligned: bool,
    /// True if that is locked.
    pub is_locked: bool,
    /// The page that it shares ([`crate::root_cache`]), if it does.
    pub root_cache: Option<RootCacheState>,
    /// Its counters of SBI PMU that have an event or a value.
    pub counters: Vec<CounterState>,
    /// Its hypervisor extension, if its guest was told of that.
    pub nested: Option<NestedState>,
    /// Its kernel, while that waits for a program that it runs ([`crate::vmspace::RUN`]). Then the registers and the mode of the vCPU are the
    /// program's.
    pub kernel: Option<KernelState>,
}

/// A kernel that waits for a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelState {
    /// Its x0 to x31.
    pub x: [u64; 32],
    /// Its program counter, behind the call.
    pub pc: u64,
    /// Its `satp`.
    pub satp: u64,
    /// Its `sie`.
    pub sie: u64,
    /// GPA of the context page.
    pub page: u64,
}

/// A slot for an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SpaceState {
    /// The space's root; `None` if the slot is free.
    pub root: Option<u64>,
    /// The generation of the slot's handles.
    pub generation: u64,
    /// vCPUs (by bit) that run it.
    pub running: u32,
}

/// A vCPU's hypervisor extension. Everything is as its kernel (L1) knows it, as if its own guest (L2) had just made an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NestedState {
    /// The CSRs.
    pub csrs: NestedCsrs,
    /// True if L2 runs. Then the registers and the mode of the vCPU are L2's; its [`Csrs`], its timer and its software interrupt are L1's in
    /// any case.
    pub runs_l2: bool,
    /// GPA of the memory that L1 shares by SBI NACL.
    pub shared: Option<u64>,
    /// True if L1 has not been told there of L2's last exit.
    pub owes: bool,
    /// True if `hstatus` is still to be swapped there.
    pub swaps: bool,
}

/// The hypervisor CSRs and the VS-level CSRs, as L1 reads them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are those of the privileged specification")]
pub struct NestedCsrs {
    pub hstatus: u64,
    pub hedeleg: u64,
    pub hideleg: u64,
    pub hie: u64,
    pub hcounteren: u64,
    pub htimedelta: u64,
    pub htval: u64,
    pub htinst: u64,
    pub hgatp: u64,
    pub henvcfg: u64,
    pub hvip: u64,
    pub vsstatus: u64,
    pub vstvec: u64,
    pub vsscratch: u64,
    pub vsepc: u64,
    pub vscause: u64,
    pub vstval: u64,
    pub vsatp: u64,
    pub vstimecmp: u64,
}

/// A counter of SBI PMU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CounterState {
    /// Its number.
    pub number: u8,
    /// Its event (`event_idx`), if it has one.
    pub event: Option<u32>,
    /// The event's `event_data`.
    pub data: u64,
    /// The worlds in which it counts: bit 0 for the vCPU's guest, bit 1 for the guests of that.
    pub worlds: u8,
    /// Its value.
    pub value: u64,
    /// True if it runs.
    pub is_running: bool,
}

/// The page that a vCPU's kernel shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RootCacheState {
    /// GPA of the page.
    pub at: u64,
    /// Places in it.
    pub places: u32,
    /// True if the kernel was told [`crate::root_cache::TAGGED`].
    pub is_tagged: bool,
}

/// A vCPU's supervisor state, by the names that the guest knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are those of the privileged specification")]
pub struct Csrs {
    pub sstatus: u64,
    pub sie: u64,
    pub stvec: u64,
    pub sscratch: u64,
    pub sepc: u64,
    pub scause: u64,
    pub stval: u64,
    pub satp: u64,
    pub scounteren: u64,
    pub senvcfg: u64,
}

/// A VM's software events (SBI SSE).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventsState {
    /// By vCPU.
    pub local: Vec<EventState>,
    /// The one of all.
    pub global: EventState,
    /// vCPUs (by bit) to which events may come.
    pub unmasked: u64,
}

/// A software event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventState {
    /// 0 unused, 1 registered, 2 enabled, 3 running.
    pub state: u8,
    /// True if it is pending.
    pub is_pending: bool,
    /// Its attributes, by the specification's numbers; the status (0) has no meaning.
    pub attributes: [u64; 10],
}

impl State {
    /// Encodes the state.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // Serializing plain data into memory cannot fail.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Decodes a state from all of the bytes. `None` if they are no state, or one with longer lists than a VM has: of a
    /// byte, a list makes many. Nothing else in it is checked: the user of a value checks it.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MOST_STATE_BYTES {
            return None;
        }
        match postcard::take_from_bytes(bytes) {
            Ok((state, [])) => Some(state).filter(|state: &Self| state.is_proportionate(bytes.len())),
            _ => None,
        }
    }

    /// Returns whether so many bytes are no more than it needs. All parts but lists of bytes and the state of each vCPU are short.
    fn is_proportionate(&self, bytes: usize) -> bool {
        const FIXED: usize = 16 << 10;
        const OF_A_VCPU: usize = 3 << 10;
        let uart = |placed: &Placed| match &placed.device {
            DeviceState::Uart(uart) => uart.sending.0.len() + uart.received.0.len() + uart.looped.0.len(),
            DeviceState::Rtc(_) | DeviceState::Virtio(_) => 0,
        };
        let vectors = self.vcpus.iter().map(|vcpu| vcpu.v.0.len());
        let plain: usize = vectors.chain(self.devices.iter().map(uart)).sum();
        // Events name them by a bit.
        let vcpus = self.vcpus.len().min(u64::BITS as usize);
        bytes - plain <= FIXED + OF_A_VCPU * vcpus
    }
}

#[cfg(test)]
mod tests;
