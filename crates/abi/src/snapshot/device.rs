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

/// A UART 16550.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "registers have the names of the data sheet")]
pub struct UartState {
    pub ier: u8,
    pub lcr: u8,
    pub mcr: u8,
    pub scratch: u8,
    pub divisor: u16,
    /// Whether the FIFOs are on.
    pub fifo: bool,
    /// LSR's overrun.
    pub overrun: bool,
    /// The interrupt of an empty transmitter is pending.
    pub thre: bool,
    /// And will be, soon.
    pub draining: bool,
    /// The guest has claimed an interrupt since that one was raised.
    pub thre_seen: bool,
    /// Reads of LSR until what was received is there.
    pub quiet: u8,
    /// What was written, and has not left.
    pub sending: Bytes,
    /// What has come, and was not read.
    pub received: Bytes,
    /// What loopback has sent to itself.
    pub looped: Bytes,
}

/// A Goldfish RTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RtcState {
    /// What the guest's clock is ahead of the host's, in nanoseconds modulo 2^64.
    pub ahead: u64,
    /// The latched upper half of the time.
    pub high: u32,
    /// The alarm, in nanoseconds of the guest's clock.
    pub alarm: u64,
    /// Whether it is set.
    pub is_set: bool,
    /// Whether its interrupt is pending.
    pub is_pending: bool,
    /// Whether that is enabled.
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
    /// What the driver has accepted.
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
    /// What else there is.
    pub own: OwnState,
}

/// What a virtio device has beside its transport and queues.
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
        /// How many bytes were printed of what is to be printed next.
        sent: u32,
        /// Whether the driver has printed something.
        has_sent: bool,
        /// By number, the console's first. Those that there are not are as after a reset.
        ports: [PortState; 1 + MAX_PORTS],
    },
}

/// What a driver knows of a port, and what it is still to be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortState {
    /// What it is to be told, a bit for each.
    pub owed: u8,
    /// It says that it can use the port.
    pub is_ready: bool,
    /// It knows that somebody is connected.
    pub is_told: bool,
    /// It has opened the port.
    pub is_open: bool,
}

/// A virtqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QueueState {
    /// How many entries it has.
    pub size: u16,
    /// GPA of the descriptors.
    pub descriptors: u64,
    /// GPA of the driver's ring.
    pub driver: u64,
    /// GPA of the device's ring.
    pub device: u64,
    /// If it is ready: how many chains were taken, given back, and told of, modulo 2^16.
    pub ready: Option<[u16; 3]>,
}
