//! A VM's balloon: what the guest gives back is free on the host, and what the console wishes comes to the guest.

use crate::fake::driver::{self, counters, write};
use crate::fake::{self, MEMORY, World, printed, vm_config};
use abi::bundle::{GUEST_RAM_BASE, MmuMode, VmConfig};
use hypervisor::backend::console::Step;
use hypervisor::control::ballooning;
use hypervisor::device::Answer;
use hypervisor::device::Target;
use hypervisor::device::offer::GuestTimer;
use hypervisor::io::outside::{Output, Reach};
use rv::Addr;

/// The address of the registers.
const DEVICE: u64 = 0x1000_1000;
const INFLATE: usize = 0;
const REPORT: usize = 2;

fn world_with_balloon(mmu: MmuMode) -> World {
    driver::world(VmConfig { mmu: Some(mmu), balloon_bytes: Some(0), ..vm_config("vm", 2) })
}

fn target(w: &World) -> Target {
    w.run.vm.device_at(DEVICE).expect("it is there").0
}

fn set(w: &mut World, register: u64, value: u64) -> Answer<()> {
    driver::set(w, DEVICE + register, value)
}

fn get(w: &mut World, register: u64) -> u64 {
    let (target, vm) = (target(w), w.run.vm.clone());
    let outside = &mut Reach::new(&w.g, &vm, &mut w.hart, Output::Print);
    let Answer::Done(value) = vm.devices.load(target, register, 4, outside) else { panic!("{register:#x}") };
    value
}

fn rings(queue: usize) -> [u64; 3] {
    [0, 0x800, 0xa00].map(|offset| GUEST_RAM_BASE + 0x1000 * queue as u64 + offset)
}

fn start(w: &mut World) {
    // What is counted later is there from now on.
    write(w, GUEST_RAM_BASE, &[0; 16]);
    for (register, value) in [(0x070, 0), (0x070, 3), (0x024, 0), (0x020, 1 << 5), (0x024, 1), (0x020, 1), (0x070, 11)]
    {
        set(w, register, value);
    }
    for queue in 0..3 {
        set(w, 0x030, queue as u64);
        set(w, 0x038, 4);
        for (register, address) in [0x080, 0x090, 0x0a0].into_iter().zip(rings(queue)) {
            set(w, register, address & 0xffff_ffff);
            set(w, register + 4, address >> 32);
        }
        set(w, 0x044, 1);
    }
    set(w, 0x070, 15);
    assert_eq!(get(w, 0x070), 15);
}

/// Makes the first chain of a queue available, of one buffer, and waits for it.
fn give(w: &mut World, queue: usize, (gpa, bytes): (u64, u64), is_written: bool) {
    let [table, driver, _] = rings(queue);
    let descriptor = [gpa, bytes | u64::from(is_written) << 33].map(u64::to_le_bytes).concat();
    write(w, table, &descriptor);
    write(w, driver + 2, &[1, 0, 0, 0]);
    w.hart.events.clear();
    while set(w, 0x050, queue as u64) == Answer::Again {}
    assert_eq!((get(w, 0x070), get(w, 0x060)), (15, 1), "it is well, and interrupts");
}

#[test]
fn what_is_given_back_is_free_in_each_mode() {
    for mmu in MmuMode::ALL {
        let mut w = world_with_balloon(mmu);
        start(&mut w);
        let block = GUEST_RAM_BASE + MEMORY - (4 << 20);
        write(&mut w, block, &[7; 16]);
        let full = w.frames_used();
        give(&mut w, REPORT, (block, 2 << 20), true);
        assert_eq!(w.frames_used(), full - 512, "{mmu}");
        let fences = |event: &fake::Event| matches!(event, fake::Event::Fence(_) | fake::Event::GuestFence(None, None));
        // Where both the G-stage and shadow tables may be walked, both are fenced.
        let most = if mmu == MmuMode::Adaptive { 2 } else { 1 };
        assert_eq!(w.hart.events.iter().filter(|event| fences(event)).count(), most, "{mmu}: one fence of each");
        let mut found = [1; 16];
        fake::read(&w.g, &w.run.vm, Addr::new(block), &mut found, &mut w.hart).unwrap();
        assert_eq!(found, [0; 16], "{mmu}");
        // A page of that, by a list that stands in another.
        write(&mut w, block + 0x3000, &((block >> 12) as u32 + 5).to_le_bytes());
        let full = w.frames_used();
        give(&mut w, INFLATE, (block + 0x3000, 4), false);
        // It is split: a table comes, a page goes.
        assert_eq!(w.frames_used(), full, "{mmu}");
        let counts = counters(&w, ["balloon.reported", "balloon.inflated", "balloon.freed", "balloon.refused"]);
        assert_eq!(counts, [Some(512), Some(1), Some(513), Some(0)], "{mmu}");
    }
}

#[test]
fn the_console_moves_the_target() {
    let mut w = world_with_balloon(MmuMode::TwoStage);
    start(&mut w);
    let vm = w.run.vm.clone();
    let eighth = MEMORY / 4096 / 8;
    ballooning::step(&w.g, &vm, Step::Less, &mut w.hart);
    assert_eq!((get(&mut w, 0x100), get(&mut w, 0x060)), (eighth, 2));
    (0..9).for_each(|_| ballooning::step(&w.g, &vm, Step::Less, &mut w.hart));
    assert_eq!(get(&mut w, 0x100), 7 * eighth, "an eighth stays");
    (0..9).for_each(|_| ballooning::step(&w.g, &vm, Step::More, &mut w.hart));
    assert_eq!(get(&mut w, 0x100), 0);
    let said = printed();
    assert!(said.contains("vm is to do without 7 of its 8 MiB; 0 MiB are in its balloon now"), "{said}");
}

#[test]
fn a_vm_without_a_balloon_says_how_to_have_one() {
    let mut w = fake::world(1, GuestTimer::Sstc);
    let vm = w.run.vm.clone();
    assert_eq!(vm.device_at(DEVICE), None);
    ballooning::step(&w.g, &vm, Step::Less, &mut w.hart);
    let said = printed();
    assert!(said.contains("vm has no balloon; set `balloon = true`"), "{said}");
}
