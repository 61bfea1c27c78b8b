//! A VM's source of random bytes, in each mode.

use crate::fake::driver::{self, read, write};
use crate::fake::entropy::come;
use crate::fake::{self, World, depart, park, printed, start_due, vm_config};
use abi::bundle::{GUEST_RAM_BASE, MmuMode, VmConfig};
use hypervisor::device::offer::GuestTimer;
use hypervisor::io::host_events::attend_entropy;
use hypervisor::vm::Departure;

const DEVICE: u64 = 0x1000_e000;
const SOURCE: u64 = 16;
const DATA: u64 = GUEST_RAM_BASE + 0x1ff0;

fn config() -> VmConfig {
    VmConfig { rng: true, ..vm_config("vm", 2) }
}

/// Starts the driver, and asks for 32 bytes.
fn ask(w: &mut World) {
    write(w, DATA, &[0xee; 33]);
    driver::ask(w, DEVICE, &[(DATA, 32, 2)]);
}

fn data(w: &mut World) -> [u8; 33] {
    read(w, DATA)
}

#[test]
fn bytes_come_by_themselves_and_those_of_an_earlier_life_do_not() {
    for mmu in MmuMode::ALL {
        let mut w = driver::world(VmConfig { mmu: Some(mmu), ..config() });
        ask(&mut w);
        assert_eq!(data(&mut w), [0xee; 33], "{mmu}: they are under way");
        assert!(come());
        attend_entropy(&w.g, &mut w.hart);
        let mut expected = [1; 33];
        expected[32] = 0xee;
        assert_eq!(data(&mut w), expected, "{mmu}");
        assert!(w.run.vm.devices.plic.lock().is_high(SOURCE as u32), "{mmu}: the guest is interrupted");
        // It starts over in between.
        ask(&mut w);
        let vm = w.run.vm.clone();
        depart(&w.g, &vm, Departure::Reboot, &mut w.hart);
        park(&w.g, w.run, &mut w.hart);
        w.run = w.g.sched.take(0).expect("it has started over");
        write(&mut w, DATA, &[7; 33]);
        assert!(come());
        attend_entropy(&w.g, &mut w.hart);
        assert_eq!(data(&mut w), [7; 33], "{mmu}");
    }
    printed();
}

#[test]
fn a_vm_without_its_source_does_not_start() {
    let (g, mut hart) = fake::machine(vec![], 1, GuestTimer::Sstc);
    g.vms.wish(config(), &g.offer);
    start_due(&g, &mut hart);
    assert!(printed().contains("could not be started: the machine has no entropy device"));
}
