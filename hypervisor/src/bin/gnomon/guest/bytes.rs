//! A guest's memory, floating-point registers and rights, for instructions that Gnomon executes in its place.

use super::GuestHart;
use crate::seat::Seat;
use ::lane::FloatState;
use hypervisor::device::offer::GuestMode;
use metal::guest_byte::{self, Fault};
use metal::{csr, float};
use mmu::two_stage::{TINST_PTE_READ, TINST_PTE_WRITE};
use rv::Exit;
use rv::csr::status;

impl GuestHart {
    /// Loads a byte as the guest that trapped would. Firmware seat only.
    pub fn load_byte(&self, at: u64) -> Result<u8, Exit> {
        assert!(self.seat == Seat::Firmware, "misaligned accesses are the firmware's");
        // SAFETY: the firmware seat, in an exit, whose trap the vector has saved.
        unsafe { guest_byte::load(at) }.map_err(|fault| self.exit_of(fault))
    }

    /// Stores a byte as the guest that trapped would. Firmware seat only.
    pub fn store_byte(&self, at: u64, byte: u8) -> Result<(), Exit> {
        assert!(self.seat == Seat::Firmware, "misaligned accesses are the firmware's");
        // SAFETY: as for loads.
        unsafe { guest_byte::store(at, byte) }.map_err(|fault| self.exit_of(fault))
    }

    /// Returns the exit that the guest would have made by the last such fault.
    fn exit_of(&self, Fault { cause, tval }: Fault) -> Exit {
        let (tval2, tinst) = match self.mode {
            GuestMode::Virtual => (csr::mtval2::read(), csr::mtinst::read()),
            GuestMode::Supervisor => (0, 0),
        };
        // Otherwise it tells of Gnomon's instruction.
        let tinst = if matches!(tinst, TINST_PTE_READ | TINST_PTE_WRITE) { tinst } else { 0 };
        Exit { cause, tval, tval2, tinst }
    }

    /// Returns the guest's `scounteren`. On harts without `time` its bit may be read-only zero: user mode may read it there, as with
    /// OpenSBI, because a kernel could not allow it.
    pub fn user_counters(&self) -> u64 {
        csr::scounteren::read() | self.unset_counters
    }

    /// Returns a floating-point register of the loaded vCPU. The hart has D.
    pub fn float_register(&self, number: u8) -> u64 {
        let state = self.status() & status::FS;
        self.set_status(status::FS, status::FS);
        let mut all = FloatState::ZERO;
        // SAFETY: FS is on, and the hart has D.
        unsafe { float::save(&mut all) };
        self.set_status(status::FS, state);
        all.f[usize::from(number & 31)]
    }

    /// Writes a floating-point register of the loaded vCPU, for the guest and for Gnomon dirty then. The hart has D.
    pub fn set_float_register(&self, number: u8, value: u64) {
        self.set_status(status::FS, status::FS);
        let mut all = FloatState::ZERO;
        // SAFETY: FS is on, and the hart has D.
        unsafe { float::save(&mut all) };
        all.f[usize::from(number & 31)] = value;
        // SAFETY: as above.
        unsafe { float::restore(&all) };
        if self.mode == GuestMode::Virtual {
            // SAFETY: the guest's own, which it had on: it has executed such an instruction.
            unsafe { csr::vsstatus::set(status::FS) };
        }
    }
}
