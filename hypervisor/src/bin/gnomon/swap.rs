//! The host's block device that Gnomon pages to.

use crate::block::BlockDevice;
use hypervisor::backend::disks::{IoError, NotBegun, Operation, SECTOR, Token};
use hypervisor::pager::{Disk, Way};
use mmu::frames::Piece;
use mmu::gstage::SwapSlot;
use rv::{Hpa, PAGE_BYTES, Pfn};

/// Sectors of a page.
const SECTORS: u64 = PAGE_BYTES / SECTOR;
/// Most requests at a time: a vCPU that needs a page waits for those before it.
const MOST_FLYING: usize = 16;

/// The device.
pub struct SwapDisk {
    device: BlockDevice,
    flying: usize,
}

impl SwapDisk {
    /// Makes a swap disk of that device.
    pub const fn new(device: BlockDevice) -> Self {
        Self { device, flying: 0 }
    }
}

impl Disk for SwapDisk {
    fn pages(&self) -> u64 {
        self.device.sectors() / SECTORS
    }

    fn begin(&mut self, way: Way, slot: SwapSlot, frame: Pfn<Hpa>) -> Result<Token, NotBegun> {
        if self.flying == MOST_FLYING {
            return Err(NotBegun::Busy);
        }
        let operation = match way {
            Way::In => Operation::Read,
            Way::Out => Operation::Write,
        };
        let data = Piece { start: frame.base(), bytes: PAGE_BYTES as usize };
        let token = self.device.begin(operation, slot.0 * SECTORS, data)?;
        self.flying += 1;
        Ok(token)
    }

    fn finished(&mut self) -> Option<(Token, Result<(), IoError>)> {
        // Before it is looked at: what is finished after that interrupts anew.
        self.device.acknowledge();
        let finished = self.device.finished()?;
        self.flying -= 1;
        Some(finished)
    }
}
