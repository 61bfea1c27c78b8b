//! No guest of the models is a hypervisor, or runs programs by call.

use crate::hart::Hart;
use hypervisor::hart::emulation::Emulation;
use hypervisor::hart::programs::Programs;
use hypervisor::hart::worlds::Worlds;
use hypervisor::vm::vcpu::{Nested, VcpuRun};
use rv::{Addr, L2Gpa};

const NO_HYPERVISOR: &str = "no guest of the models is a hypervisor";
const NO_PROGRAMS: &str = "no guest of the models runs programs by call";

impl Worlds for Hart {
    fn load_nested(&mut self, _: &mut VcpuRun) {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn fence_nested(&mut self, _: &mut Nested, _: Option<Addr<L2Gpa>>) {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn forget_nested(&mut self, _: &mut Nested) {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn load_collapsed(&mut self, _: &mut VcpuRun) {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn leave_root(&mut self) {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn change_world(&mut self, _: &mut VcpuRun) {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn set_world(&mut self, _: &VcpuRun) {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn watches_l2(&self) -> bool {
        false
    }
    fn watched_comparator(&self) -> u64 {
        unreachable!("the hart has L2's comparator")
    }
    fn set_watched_comparator(&mut self, _: u64) {
        unreachable!("the hart has L2's comparator")
    }
    fn set_timer_of_l2(&mut self, _: bool) {
        unreachable!("the hart has L2's comparator")
    }
    fn held_interrupts(&self) -> u64 {
        0
    }
    fn undelegated_interrupts(&self) -> u64 {
        0
    }
}

impl Programs for Hart {
    fn begin_program(&mut self) -> u64 {
        unreachable!("{NO_PROGRAMS}");
    }
    fn end_program(&mut self) {
        unreachable!("{NO_PROGRAMS}");
    }
    fn program_interrupts(&self) -> u64 {
        unreachable!("{NO_PROGRAMS}");
    }
    fn guest_deadline(&self) -> u64 {
        unreachable!("{NO_PROGRAMS}");
    }
    fn set_guest_root(&mut self, _: u64) {
        unreachable!("{NO_PROGRAMS}");
    }
}

impl Emulation for Hart {
    fn begin_accesses(&mut self, _: &VcpuRun) -> bool {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn begin_emulation(&mut self, _: &VcpuRun) -> bool {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn end_emulation(&mut self) {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn fetch_code(&mut self, _: u64) -> Option<u32> {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn load_data(&mut self, _: u64, _: u8) -> Option<u64> {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn store_data(&mut self, _: u64, _: u8, _: u64) -> bool {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn supervisor_csr(&self, _: u16) -> Option<u64> {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn set_supervisor_csr(&mut self, _: u16, _: u64) {
        unreachable!("{NO_HYPERVISOR}");
    }
    fn fence_memory(&self) {
        unreachable!("{NO_HYPERVISOR}");
    }
}
