//! The memory and the CSRs of a guest in VS mode, for code of its kernel that Gnomon executes.

use super::GuestHart;
use crate::seat::Seat;
use hypervisor::device::offer::GuestMode;
use metal::guest_memory::{self, Own};
use metal::{csr, csr::vs};
use rv::csr::hstatus;
use rv::system::number;

impl GuestHart {
    /// Makes the accesses that follow those of the guest's supervisor mode. VS mode only.
    pub fn act_as_supervisor(&self) {
        assert!(self.mode == GuestMode::Virtual, "guests in S mode are no hypervisors");
        // SAFETY: concerns HLV, HLVX and HSV only.
        unsafe { csr::hstatus::set(hstatus::SPVP) };
    }

    /// Returns the mode that Gnomon runs in.
    #[inline(always)]
    const fn own(&self) -> Own {
        match self.seat {
            Seat::Firmware => Own::Machine,
            Seat::Payload => Own::Supervisor,
        }
    }

    /// Reads 4 bytes of the guest's code. The entry to the guest is announced.
    #[inline(always)]
    pub fn fetch(&self, at: u64) -> Option<u32> {
        // SAFETY: in an exit, whose trap the vector has saved; the caller has announced an entry, so its conditions hold.
        unsafe { guest_memory::fetch(self.own(), at) }
    }

    /// Loads bytes as the guest would. The entry to the guest is announced.
    #[inline(always)]
    pub fn load(&self, at: u64, width: u8) -> Option<u64> {
        // SAFETY: as for fetches.
        unsafe { guest_memory::load(self.own(), at, width) }
    }

    /// Stores bytes as the guest would. The entry to the guest is announced.
    #[inline(always)]
    pub fn store(&self, at: u64, width: u8, value: u64) -> bool {
        // SAFETY: as for fetches.
        unsafe { guest_memory::store(self.own(), at, width, value) }
    }

    /// Returns a supervisor CSR of the guest, if it is one of those that [`GuestHart::set_supervisor_csr`] writes.
    pub fn supervisor_csr(&self, csr: u16) -> Option<u64> {
        Some(match csr {
            number::SSTATUS => vs::sstatus::read(),
            number::STVEC => vs::stvec::read(),
            number::SSCRATCH => vs::sscratch::read(),
            number::SEPC => vs::sepc::read(),
            number::SCAUSE => vs::scause::read(),
            number::STVAL => vs::stval::read(),
            number::SCOUNTEREN => csr::scounteren::read(),
            number::SENVCFG => csr::senvcfg::read(),
            _ => return None,
        })
    }

    /// Writes a supervisor CSR of the guest.
    pub fn set_supervisor_csr(&self, csr: u16, value: u64) {
        // SAFETY: the guest's own. `scounteren` and `senvcfg` govern U and VU mode, where Gnomon never is.
        unsafe {
            match csr {
                number::SSTATUS => vs::sstatus::write(value),
                number::STVEC => vs::stvec::write(value),
                number::SSCRATCH => vs::sscratch::write(value),
                number::SEPC => vs::sepc::write(value),
                number::SCAUSE => vs::scause::write(value),
                number::STVAL => vs::stval::write(value),
                number::SCOUNTEREN => csr::scounteren::write(value),
                number::SENVCFG => csr::senvcfg::write(value),
                _ => unreachable!("CSR {csr:#x} is not one that is emulated"),
            }
        }
    }
}
