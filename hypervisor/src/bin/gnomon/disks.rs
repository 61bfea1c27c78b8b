//! The host's virtio devices that have a use. Block devices are found by their serials.

use crate::block::BlockDevice;
use crate::buffer::Buffer;
use crate::control::ControlDevice;
use crate::net::NetDevice;
use crate::rng::EntropyDevice;
use crate::share::ShareDevice;
use crate::swap::SwapDisk;
use alloc::vec::Vec;
use hypervisor::backend::disks::{Asked, Clears, HostDisk, IoError, NotBegun, Token, Units};
use hypervisor::backend::port::HostDevice;
use hypervisor::machine::description::{Machine, VirtioSlot};
use mmu::frames::{Frames, Loan};

/// The host devices of the machine.
#[derive(Default)]
pub struct HostDevices {
    /// The one that Gnomon pages to, and its PLIC source.
    pub swap: Option<(SwapDisk, u32)>,
    /// The disks that guests have, by number, and their PLIC sources.
    pub guests: Vec<(u32, BlockDevice, u32)>,
    /// The devices by which guests reach folders of the host, by number, and their PLIC sources.
    pub shares: Vec<(u32, ShareDevice, u32)>,
    /// The one by which guests reach the world, and its PLIC source.
    pub net: Option<(NetDevice, u32)>,
    /// The one that has random bytes for guests, and its PLIC source.
    pub entropy: Option<(EntropyDevice, u32)>,
    /// The one by which the control channel comes, and its PLIC source.
    pub control: Option<(ControlDevice, u32)>,
}

impl HostDevices {
    /// Finds them.
    pub fn find(machine: &Machine) -> Self {
        let mut found = Self::default();
        for slot in &machine.virtio {
            match BlockDevice::open(slot) {
                Some((device, serial)) if serial == abi::SWAP_SERIAL && !device.is_read_only() => {
                    found.swap = Some((SwapDisk::new(device), slot.source));
                }
                Some((device, serial)) => {
                    let number = abi::disk_of_serial(&serial);
                    found.guests.extend(number.map(|number| (number, device, slot.source)));
                }
                // Asking a device for its kind resets it, so an open one is not asked.
                None => found.take_other(slot),
            }
        }
        found
    }

    /// Opens what is no block device.
    fn take_other(&mut self, slot: &VirtioSlot) {
        if let Some((device, number)) = ShareDevice::open(slot) {
            self.shares.push((number, device, slot.source));
        } else if let Some(device) = NetDevice::open(slot).filter(|_| self.net.is_none()) {
            self.net = Some((device, slot.source));
        } else if let Some(device) = EntropyDevice::open(slot).filter(|_| self.entropy.is_none()) {
            self.entropy = Some((device, slot.source));
        } else if self.control.is_none() {
            self.control = ControlDevice::open(slot).map(|device| (device, slot.source));
        }
    }
}

/// A guest's disk, with the buffer that data goes through.
pub struct GuestDisk {
    device: BlockDevice,
    buffer: Buffer,
}

impl GuestDisk {
    /// Makes a disk of that device, with a buffer that it has for ever; `None` if there is no memory for one.
    pub fn new(device: BlockDevice, frames: &Frames) -> Option<Self> {
        Some(Self { device, buffer: Buffer::new(frames)? })
    }
}

impl HostDisk for GuestDisk {
    fn sectors(&self) -> u64 {
        self.device.sectors()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn has_cache(&self) -> bool {
        self.device.has_cache()
    }

    fn clears(&self) -> Clears {
        self.device.clears()
    }

    fn most_pieces(&self) -> usize {
        self.device.most_pieces()
    }

    fn begin_lent(&mut self, sector: u64, loan: Loan) -> Result<Token, NotBegun> {
        self.device.begin_lent(sector, loan)
    }
}

impl HostDevice for GuestDisk {
    type Asked = Asked;
    type Outcome = Result<(), IoError>;

    fn buffer(&mut self, units: Units) -> &mut [u8] {
        // SAFETY: units that are not in flight, as the caller promises.
        unsafe { self.buffer.bytes(units) }
    }

    fn begin(&mut self, asked: &Asked) -> Result<Token, NotBegun> {
        assert!(!asked.operation.has_data() || asked.bytes <= asked.units.bytes(), "more than the units have");
        self.device.begin(asked.operation, asked.sector, self.buffer.piece(asked.units, 0, asked.bytes))
    }

    fn finished(&mut self) -> Option<(Token, Result<(), IoError>)> {
        self.device.finished()
    }

    fn acknowledge(&mut self) {
        self.device.acknowledge();
    }
}
