//! The services that the exit path needs from its hart to execute instructions of the loaded guest in software.

use crate::vm::vcpu::VcpuRun;

/// The hart that handles an exit, as far as it executes the guest's code itself, in VS mode's place. A part of [`crate::hart::env::Env`].
///
/// Accesses are made as the guest in supervisor mode would make them: its tables, `sstatus`, A and D bits and the G-stage decide.
pub trait Emulation {
    /// Prepares for accesses by the loaded vCPU's own translation, as an entry does (ANNOUNCED): the hart's TLB may hold what another hart is
    /// about to take away, and other harts then wait for [`Emulation::end_emulation`] as for an exit. So the caller takes no lock until then.
    /// Returns false if something is to be done before an entry: nothing has begun then.
    fn begin_accesses(&mut self, run: &VcpuRun) -> bool;
    /// Prepares likewise for executing code in the place of the loaded vCPU's guest, in supervisor mode.
    fn begin_emulation(&mut self, run: &VcpuRun) -> bool;
    /// Ends what [`Emulation::begin_accesses`] or [`Emulation::begin_emulation`] has begun.
    fn end_emulation(&mut self);
    /// Reads 4 bytes of code at the guest's address `at`, a multiple of 4. The guest's SUM is 0. `None` if the guest's fetch would trap.
    fn fetch_code(&mut self, at: u64) -> Option<u32>;
    /// Loads 1, 2, 4 or 8 bytes at the guest's address `at`, a multiple of `width`, extended by zeroes. `None` if the guest's load would trap.
    fn load_data(&mut self, at: u64, width: u8) -> Option<u64>;
    /// Stores the low 1, 2, 4 or 8 bytes of `value` at the guest's address `at`, a multiple of `width`. Returns false, with nothing stored, if the
    /// guest's store would trap.
    fn store_data(&mut self, at: u64, width: u8, value: u64) -> bool;
    /// Returns the value of the supervisor CSR `csr` of the loaded guest. `None` if it is not one of `sstatus`, `stvec`, `scounteren`,
    /// `senvcfg`, `sscratch`, `sepc`, `scause` and `stval`.
    fn supervisor_csr(&self, csr: u16) -> Option<u64>;
    /// Writes such a CSR.
    fn set_supervisor_csr(&mut self, csr: u16, value: u64);
    /// Orders all earlier accesses to memory, and to devices, before all later ones (FENCE).
    fn fence_memory(&self);
}
