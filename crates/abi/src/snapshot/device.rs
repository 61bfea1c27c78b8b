//! The state of a VM's devices. Lines of interrupts follow from it.

use super::bytes::Bytes;
use crate::bundle::MAX_PORTS;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DeviceState {
    /// The console.
    Uart(UartState),
    /// The clock.
    Rtc(RtcState),
    /// A virtio device, with its transport.
    Virtio(VirtioState),
}

/// The interrupt controller. Words have a bit for each source.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PlicState {
    /// By source, from 0.
    pub priority: Vec<u32>,
    /// Lines that are high.
    pub level: Vec<u32>,
    /// Sources that are pending.
    pub pending: Vec<u32>,
    /// Sources that are claimed, and not completed.
    pub claimed: Vec<u32>,
    /// By context: what is enabled there, and the threshold.
    pub contexts: Vec<(Vec<u32>, u32)>,
}

/// A UART's interrupt for an empty transmitter (THRE), from its rise until the driver reads IIR or writes a byte.
///
/// IIR shows it in all of these states but [`Thre::Idle`]. The interrupt controller is signalled until the guest completes
/// it: QEMU's board takes it for one event, there are kernels that never read IIR, and drivers with threaded handlers
/// read IIR long after they have completed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Thre {
    /// Not pending.
    #[default]
    Idle,
    /// Pending; the guest has not claimed it.
    Raised,
    /// Pending and claimed.
    Claimed,
    /// Pending in IIR; the guest has completed it, and it is signalled no more.
    Completed,
}

/// A UART 16550.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "registers have the names of the data sheet")]
pub struct UartState {
    pub ier: u8,
    pub lcr: u8,
    pub mcr: u8,
    pub scratch: u8,
    pub divisor: u16,
    /// True if the FIFOs are on.
    pub fifo: bool,
    /// LSR's overrun.
    pub overrun: bool,
    /// The interrupt of an empty transmitter.
    pub thre: Thre,
    /// True if the interrupt will be pending soon.
    pub draining: bool,
    /// Reads of LSR until what was received is there.
    pub quiet: u8,
    /// Bytes that were written and have not left.
    pub sending: Bytes,
    /// Bytes that have arrived and were not read.
    pub received: Bytes,
    /// Bytes that loopback has sent to itself.
    pub looped: Bytes,
}

/// A Goldfish RTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RtcState {
    /// The lead of the guest's clock over the host's, in nanoseconds modulo 2^64.
    pub ahead: u64,
    /// The latched upper half of the time.
    pub high: u32,
    /// The alarm, in nanoseconds of the guest's clock.
    pub alarm: u64,
    /// True if it is set.
    pub is_set: bool,
    /// True if its interrupt is pending.
    pub is_pending: bool,
    /// True if that is enabled.
    pub is_enabled: bool,
}

/// A virtio device. All that its driver had asked for was done, or is done anew.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VirtioState {
    /// Its device ID.
    pub id: u32,
    /// `DeviceFeaturesSel`.
    pub device_features_sel: u32,
    /// `DriverFeaturesSel`.
    pub driver_features_sel: u32,
    /// The features that the driver has accepted.
    pub driver_features: u64,
    /// `QueueSel`.
    pub queue_sel: u32,
    /// `Status`.
    pub status: u8,
    /// `InterruptStatus`.
    pub interrupts: u8,
    /// `ConfigGeneration`.
    pub generation: u32,
    /// The queues.
    pub queues: Vec<QueueState>,
    /// The state beside transport and queues.
    pub own: OwnState,
}

/// The state of a virtio device beside its transport and queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum OwnState {
    /// Nothing.
    #[default]
    Nothing,
    /// A balloon.
    Balloon {
        /// Pages that are to be in it.
        target: u32,
        /// Pages that are, as the driver says.
        actual: u32,
    },
    /// A console, and ports.
    Console {
        /// The number of bytes already printed of the chain that is printed next.
        sent: u32,
        /// True if the driver has printed something.
        has_sent: bool,
        /// By number, the console's first. Those that there are not are as after a reset.
        ports: [PortState; 1 + MAX_PORTS],
    },
}

/// The driver's knowledge of a port, and the messages that it still has to get.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortState {
    /// The messages that it has to get, a bit for each.
    pub owed: u8,
    /// True if the driver has said that it can use the port.
    pub is_ready: bool,
    /// True if the driver knows that a program is connected.
    pub is_told: bool,
    /// True if the driver has opened the port.
    pub is_open: bool,
}

/// A virtqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QueueState {
    /// The number of entries.
    pub size: u16,
    /// GPA of the descriptors.
    pub descriptors: u64,
    /// GPA of the driver's ring.
    pub driver: u64,
    /// GPA of the device's ring.
    pub device: u64,
    /// The numbers of chains that were taken, returned, and notified of, modulo 2^16, if the queue is ready.
    pub ready: Option<[u16; 3]>,
}
