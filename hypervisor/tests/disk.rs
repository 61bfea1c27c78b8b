//! A VM's disk, in each mode: requests while the vCPU goes on, and what becomes of them when the VM ends or starts over.

use crate::fake::disk::platters;
use crate::fake::driver::{self, USED, counters, read, write};
use crate::fake::{self, World, depart, park, printed, start_due, vm_config};
use abi::bundle::{GUEST_RAM_BASE, MmuMode, VmConfig};
use abi::record::EndReason;
use hypervisor::device::offer::GuestTimer;
use hypervisor::io::host_events::attend_disk;
use hypervisor::vm::Departure;
use rv::PhysMem;

/// Its number, and where its registers are.
const DISK: u32 = 3;
const DEVICE: u64 = 0x1000_2000;
const SOURCE: u64 = 2;
const HEADER: u64 = GUEST_RAM_BASE + 0x1000;
const DATA: u64 = GUEST_RAM_BASE + 0x2800;
const STATUS: u64 = GUEST_RAM_BASE + 0x1800;

fn world_with_disk(mmu: MmuMode) -> World {
    driver::world(VmConfig { mmu: Some(mmu), disks: vec![DISK], ..vm_config("vm", 2) })
}

/// Starts the driver, and asks for 8 KiB from the third sector on: to read them (type 0), or to write them (1).
fn ask(w: &mut World, kind: u64) {
    write(w, HEADER, [kind, 3].map(u64::to_le_bytes).as_flattened());
    write(w, STATUS, &[0xee]);
    let write_flag = if kind == 0 { 2 } else { 0 };
    driver::ask(w, DEVICE, &[(HEADER, 16, 1), (DATA, 8192, 1 | write_flag), (STATUS, 1, 2)]);
}

/// Makes the disk finish its requests, and interrupt.
fn interrupt(w: &mut World) {
    platters(DISK).lock().unwrap().finish();
    let port = w.g.offer.disks.get(DISK).expect("the machine has it").clone();
    attend_disk(&w.g, &port, &mut w.hart);
}

#[test]
fn what_is_written_is_there_and_what_is_read_comes_by_itself() {
    for mmu in MmuMode::ALL {
        let mut w = world_with_disk(mmu);
        let content: Vec<u8> = (0..8192u32).map(|n| ((n * 7) >> 3) as u8).collect();
        write(&mut w, DATA, &content);
        ask(&mut w, 1);
        assert_eq!(read::<1>(&mut w, STATUS), [0xee], "{mmu}: it is under way");
        interrupt(&mut w);
        assert_eq!((read::<1>(&mut w, STATUS), read::<2>(&mut w, USED + 2)), ([0], [1, 0]), "{mmu}");
        assert!(platters(DISK).lock().unwrap().sectors[3 * 512..][..8192] == content, "{mmu}");
        assert!(w.run.vm.devices.plic.lock().is_high(SOURCE as u32), "{mmu}: the guest is interrupted");
        ask(&mut w, 0);
        interrupt(&mut w);
        assert!(read::<8192>(&mut w, DATA) == *content, "{mmu}");
        let counts = counters(&w, ["disk.reads", "disk.writes", "disk.parts", "disk.malformed"]);
        assert_eq!(counts, [Some(1), Some(1), Some(2), Some(0)], "{mmu}");
    }
}

#[test]
fn what_is_under_way_when_a_vm_starts_over_does_not_reach_it() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut w = world_with_disk(mmu);
        platters(DISK).lock().unwrap().sectors.fill(9);
        ask(&mut w, 0);
        let vm = w.run.vm.clone();
        depart(&w.g, &vm, Departure::Reboot, &mut w.hart);
        park(&w.g, w.run, &mut w.hart);
        let run = w.g.sched.take(0).expect("it has started over");
        w.run = run;
        write(&mut w, DATA, &[1; 8192]);
        // Before the new driver looks for the device, and after.
        interrupt(&mut w);
        assert!(read::<8192>(&mut w, DATA) == [1; 8192], "{mmu}");
        ask(&mut w, 1);
        interrupt(&mut w);
        assert_eq!(read::<1>(&mut w, STATUS), [0], "{mmu}");
        assert!(platters(DISK).lock().unwrap().sectors[3 * 512..][..8192] == [1; 8192], "{mmu}");
    }
    printed();
}

#[test]
fn what_a_vm_has_lent_is_nobody_elses_though_the_vm_starts_over() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut w = world_with_disk(mmu);
        write(&mut w, DATA, &[7; 8192]);
        ask(&mut w, 1);
        let vm = w.run.vm.clone();
        depart(&w.g, &vm, Departure::Reboot, &mut w.hart);
        park(&w.g, w.run, &mut w.hart);
        // An owner that takes and fills all free memory does not get the lent frames.
        let mine = mmu::frames::Owner::Vm(9);
        let taken: Vec<_> = std::iter::from_fn(|| w.g.frames().alloc(mine, mmu::frames::Use::Guest, 0).ok()).collect();
        let mut mem = w.hart.mem.clone();
        taken.iter().for_each(|run| mem.write_bytes(run.first().base(), &[1; 4096]));
        assert!(w.g.frames().usage(mmu::frames::Owner::Host).other >= 2, "{mmu}");
        platters(DISK).lock().unwrap().finish();
        let port = w.g.offer.disks.get(DISK).expect("the machine has it").clone();
        let free = w.g.frames().free_count();
        attend_disk(&w.g, &port, &mut w.hart);
        assert!(platters(DISK).lock().unwrap().sectors[3 * 512..][..8192] == [7; 8192], "{mmu}");
        assert!(w.g.frames().free_count() >= free + 2, "{mmu}");
        taken.into_iter().for_each(|run| w.g.frames().free(run));
    }
    printed();
}

#[test]
fn what_is_under_way_when_a_vm_ends_harms_nobody() {
    let other = vm_config("other", 1);
    let config = VmConfig { disks: vec![DISK], ..vm_config("vm", 1) };
    let (g, mut hart) = fake::machine(vec![config, other], 2, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    let run = g.sched.take(0).expect("the first vCPU is ready");
    let mut w = World { g, hart, run };
    w.run.shared.hart.store(0, std::sync::atomic::Ordering::SeqCst);
    platters(DISK).lock().unwrap().sectors.fill(9);
    ask(&mut w, 0);
    let vm = w.run.vm.clone();
    depart(&w.g, &vm, Departure::End(EndReason::Poweroff), &mut w.hart);
    // Its memory is gone before it is.
    let World { g, mut hart, run } = w;
    park(&g, run, &mut hart);
    assert!(g.vms.get(vm.handle).is_none() && g.frames().usage(mmu::frames::Owner::Vm(0)).total() == 0);
    let before = fake::ACCESSES.get();
    platters(DISK).lock().unwrap().finish();
    attend_disk(&g, g.offer.disks.get(DISK).expect("it is there"), &mut hart);
    assert_eq!(fake::ACCESSES.get(), before, "it has reached for memory");
    printed();
}

#[test]
fn a_vm_without_its_disk_does_not_start() {
    let config = VmConfig { disks: vec![DISK], ..vm_config("vm", 1) };
    let (mut g, mut hart) = fake::machine(vec![], 1, GuestTimer::Sstc);
    g.offer.disks = hypervisor::backend::disks::Disks::default();
    g.vms.wish(config, &g.offer);
    start_due(&g, &mut hart);
    assert!(printed().contains("could not be started: the machine has no block device with the serial gnomon-disk-3"));
}
