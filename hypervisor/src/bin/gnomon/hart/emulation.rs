//! [`Emulation`] made of instructions.

use super::Hart;
use hypervisor::hart::emulation::Emulation;
use hypervisor::vm::vcpu::VcpuRun;
use metal::fence;

impl Emulation for Hart {
    fn begin_accesses(&mut self, run: &VcpuRun) -> bool {
        self.announce(run)
    }

    fn begin_emulation(&mut self, run: &VcpuRun) -> bool {
        let begins = self.announce(run);
        if begins {
            self.guest.act_as_supervisor();
        }
        begins
    }

    fn end_emulation(&mut self) {
        self.shared.left();
    }

    #[inline(always)]
    fn fetch_code(&mut self, at: u64) -> Option<u32> {
        self.guest.fetch(at)
    }

    #[inline(always)]
    fn load_data(&mut self, at: u64, width: u8) -> Option<u64> {
        self.guest.load(at, width)
    }

    #[inline(always)]
    fn store_data(&mut self, at: u64, width: u8, value: u64) -> bool {
        self.guest.store(at, width, value)
    }

    fn supervisor_csr(&self, csr: u16) -> Option<u64> {
        self.guest.supervisor_csr(csr)
    }

    fn set_supervisor_csr(&mut self, csr: u16, value: u64) {
        self.guest.set_supervisor_csr(csr, value);
    }

    fn fence_memory(&self) {
        fence::memory_and_devices();
    }
}
