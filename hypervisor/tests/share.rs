//! A VM's share, in each mode: messages while the vCPU goes on, and what becomes of them when the VM ends or starts over.

use crate::fake::driver::{self, USED, counters, read, write};
use crate::fake::share::server;
use crate::fake::{self, World, depart, park, printed, start_due, vm_config};
use abi::bundle::{GUEST_RAM_BASE, MmuMode, ShareConfig, VmConfig};
use abi::record::EndReason;
use hypervisor::device::offer::GuestTimer;
use hypervisor::io::host_events::attend_share;
use hypervisor::vm::Departure;

/// Its number, and where its registers are.
const SHARE: u32 = 5;
const DEVICE: u64 = 0x1000_a000;
const SOURCE: u64 = 12;
const MESSAGE: u64 = GUEST_RAM_BASE + 0x1ffc;
const ANSWER: u64 = GUEST_RAM_BASE + 0x2ffe;

fn config(name: &str, vcpus: u32) -> VmConfig {
    VmConfig { shares: vec![ShareConfig { number: SHARE, tag: "src".into() }], ..vm_config(name, vcpus) }
}

fn world_with_share(mmu: MmuMode) -> World {
    driver::world(VmConfig { mmu: Some(mmu), ..config("vm", 2) })
}

/// Starts the driver, and sends a message of 11 bytes with that tag.
fn ask(w: &mut World, tag: u8) {
    write(w, MESSAGE, &[11, 0, 0, 0, 120, tag, 0, 1, 0, 0, 0]);
    write(w, ANSWER, &[0xee; 8]);
    driver::ask(w, DEVICE, &[(MESSAGE, 11, 1), (ANSWER, 64, 2)]);
}

/// Makes the host answer its messages, and interrupt.
fn interrupt(w: &mut World) {
    server(SHARE).lock().unwrap().answer();
    let port = w.g.offer.shares.get(SHARE).expect("the machine has it").clone();
    attend_share(&w.g, &port, &mut w.hart);
}

#[test]
fn an_answer_comes_by_itself() {
    for mmu in MmuMode::ALL {
        let mut w = world_with_share(mmu);
        ask(&mut w, 3);
        assert_eq!(read::<8>(&mut w, ANSWER), [0xee; 8], "{mmu}: it is under way");
        interrupt(&mut w);
        assert_eq!(read::<8>(&mut w, ANSWER), [7, 0, 0, 0, 121, 3, 0, 0xee], "{mmu}");
        assert_eq!(read::<2>(&mut w, USED + 2), [1, 0], "{mmu}");
        assert!(w.run.vm.devices.plic.lock().is_high(SOURCE as u32), "{mmu}: the guest is interrupted");
        let counts = counters(&w, ["share.messages", "share.bytes_out", "share.bytes_in", "share.malformed"]);
        assert_eq!(counts, [Some(1), Some(11), Some(7), Some(0)], "{mmu}");
    }
}

#[test]
fn what_is_under_way_when_a_vm_starts_over_does_not_reach_it() {
    for mmu in [MmuMode::TwoStage, MmuMode::Lazy] {
        let mut w = world_with_share(mmu);
        ask(&mut w, 3);
        let vm = w.run.vm.clone();
        depart(&w.g, &vm, Departure::Reboot, &mut w.hart);
        park(&w.g, w.run, &mut w.hart);
        w.run = w.g.sched.take(0).expect("it has started over");
        write(&mut w, ANSWER, &[1; 8]);
        // The new driver's first message waits for the old one's end.
        ask(&mut w, 4);
        assert_eq!(server(SHARE).lock().unwrap().begun.len(), 1, "{mmu}");
        interrupt(&mut w);
        assert_eq!(read::<8>(&mut w, ANSWER), [0xee; 8], "{mmu}: the answer was to another life");
        interrupt(&mut w);
        assert_eq!(read::<8>(&mut w, ANSWER), [7, 0, 0, 0, 121, 4, 0, 0xee], "{mmu}");
    }
    printed();
}

#[test]
fn what_is_under_way_when_a_vm_ends_harms_nobody() {
    let (g, mut hart) = fake::machine(vec![config("vm", 1), vm_config("other", 1)], 2, GuestTimer::Sstc);
    start_due(&g, &mut hart);
    let run = g.sched.take(0).expect("the first vCPU is ready");
    let mut w = World { g, hart, run };
    w.run.shared.hart.store(0, std::sync::atomic::Ordering::SeqCst);
    ask(&mut w, 3);
    let vm = w.run.vm.clone();
    depart(&w.g, &vm, Departure::End(EndReason::Poweroff), &mut w.hart);
    let World { g, mut hart, run } = w;
    park(&g, run, &mut hart);
    assert!(g.vms.get(vm.handle).is_none());
    let before = fake::ACCESSES.get();
    server(SHARE).lock().unwrap().answer();
    attend_share(&g, g.offer.shares.get(SHARE).expect("it is there"), &mut hart);
    assert_eq!(fake::ACCESSES.get(), before, "it has reached for memory");
    printed();
}

#[test]
fn a_vm_without_its_share_does_not_start() {
    let (mut g, mut hart) = fake::machine(vec![], 1, GuestTimer::Sstc);
    g.offer.shares = hypervisor::backend::shares::Shares::default();
    g.vms.wish(config("vm", 1), &g.offer);
    start_due(&g, &mut hart);
    assert!(printed().contains("could not be started: the machine has no device for share 5 (`src`)"));
}
