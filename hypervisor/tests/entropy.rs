//! A VM's source of random bytes, in each mode.

use crate::fake::entropy::come;
use crate::fake::{self, World, depart, park, printed, start_due, vm_config};
use abi::bundle::{GUEST_RAM_BASE, MmuMode, VmConfig};
use hypervisor::device::Answer;
use hypervisor::offer::GuestTimer;
use hypervisor::serial::{Output, Reach, attend_entropy};
use hypervisor::vm::Departure;
use rv::Addr;

const DEVICE: u64 = 0x1000_e000;
const SOURCE: u64 = 16;
const DRIVER: u64 = GUEST_RAM_BASE + 0x800;
const USED: u64 = GUEST_RAM_BASE + 0xa00;
const DATA: u64 = GUEST_RAM_BASE + 0x1ff0;

fn config() -> VmConfig {
    VmConfig { rng: true, ..vm_config("vm", 2) }
}

fn set(w: &mut World, register: u64, value: u64) {
    let vm = w.run.vm.clone();
    let (target, offset, _) = vm.device_at(DEVICE + register).expect("it is there");
    let outside = &mut Reach { g: &w.g, vm: &vm, env: &mut w.hart, output: Output::Print };
    assert_eq!(vm.devices.lock().store(target, (offset, 4), value, outside), Answer::Done(()), "nobody waits");
}

fn write(w: &mut World, gpa: u64, bytes: &[u8]) {
    fake::write(&w.g, &w.run.vm, Addr::new(gpa), bytes, &mut w.hart).unwrap();
}

/// The driver starts, and asks for 32 bytes.
fn ask(w: &mut World) {
    for (register, value) in [(0x070, 0), (0x070, 3), (0x024, 1), (0x020, 1), (0x070, 11), (0x038, 4)] {
        set(w, register, value);
    }
    for (register, address) in [(0x080, GUEST_RAM_BASE), (0x090, DRIVER), (0x0a0, USED)] {
        set(w, register, address & 0xffff_ffff);
        set(w, register + 4, address >> 32);
    }
    set(w, 0x044, 1);
    set(w, 0x070, 15);
    write(w, DATA, &[0xee; 33]);
    write(w, GUEST_RAM_BASE, [DATA, 32 | 2 << 32].map(u64::to_le_bytes).as_flattened());
    write(w, USED, &[0; 16]);
    write(w, DRIVER, &[0, 0, 1, 0, 0, 0]);
    set(w, 0x050, 0);
}

fn data(w: &mut World) -> [u8; 33] {
    let mut bytes = [0; 33];
    fake::read(&w.g, &w.run.vm, Addr::new(DATA), &mut bytes, &mut w.hart).unwrap();
    bytes
}

#[test]
fn bytes_come_by_themselves_and_those_of_an_earlier_life_do_not() {
    for mmu in MmuMode::ALL {
        let mut w = fake::world_of(VmConfig { mmu: Some(mmu), ..config() }, GuestTimer::Sstc);
        let translation = w.run.vm.translation;
        assert_eq!(translation.load(&w.g, &mut w.run, &mut w.hart), Ok(()));
        ask(&mut w);
        assert_eq!(data(&mut w), [0xee; 33], "{mmu}: they are under way");
        assert!(come());
        attend_entropy(&w.g, &mut w.hart);
        let mut expected = [1; 33];
        expected[32] = 0xee;
        assert_eq!(data(&mut w), expected, "{mmu}");
        assert!(w.run.vm.devices.lock().plic.is_high(SOURCE as u32), "{mmu}: the guest is interrupted");
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
