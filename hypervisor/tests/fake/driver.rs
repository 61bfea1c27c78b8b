//! A driver of one of a VM's virtio devices.

use super::{World, read as read_guest, world_of, write as write_guest};
use abi::bundle::{GUEST_RAM_BASE, VmConfig};
use hypervisor::device::Answer;
use hypervisor::device::offer::GuestTimer;
use hypervisor::io::outside::{Output, Reach};
use rv::Addr;

const TABLE: u64 = GUEST_RAM_BASE;
/// The address of the driver's ring: available chains.
pub const DRIVER: u64 = GUEST_RAM_BASE + 0x800;
/// The address of the device's ring: used chains.
pub const USED: u64 = GUEST_RAM_BASE + 0xa00;

/// Makes a world whose vCPU reaches its memory.
pub fn world(config: VmConfig) -> World {
    let mut w = world_of(config, GuestTimer::Sstc);
    let translation = w.run.vm.translation;
    assert_eq!(translation.load(&w.g, &mut w.run, &mut w.hart), Ok(()));
    w
}

/// Stores to a register, by its address.
pub fn set(w: &mut World, register: u64, value: u64) -> Answer<()> {
    let vm = w.run.vm.clone();
    let (target, offset, _) = vm.device_at(register).expect("it is there");
    let outside = &mut Reach::new(&w.g, &vm, &mut w.hart, Output::Print);
    vm.devices.store(target, (offset, 4), value, outside)
}

/// Writes guest memory.
pub fn write(w: &mut World, gpa: u64, bytes: &[u8]) {
    write_guest(&w.g, &w.run.vm, Addr::new(gpa), bytes, &mut w.hart).unwrap();
}

/// Reads guest memory.
pub fn read<const N: usize>(w: &mut World, gpa: u64) -> [u8; N] {
    let mut bytes = [0; N];
    read_guest(&w.g, &w.run.vm, Addr::new(gpa), &mut bytes, &mut w.hart).unwrap();
    bytes
}

/// Starts a device with one queue, and makes a chain of buffers available: where each is, how many bytes it has, and its flags (1: there is a
/// next one; 2: the device writes it).
pub fn ask(w: &mut World, device: u64, chain: &[(u64, u64, u64)]) {
    ask_by(w, (device, 0), chain);
}

/// Like `ask`, by that queue of a device, and no other.
pub fn ask_by(w: &mut World, (device, queue): (u64, u64), chain: &[(u64, u64, u64)]) {
    for (register, value) in [(0x070, 0), (0x070, 3), (0x024, 1), (0x020, 1), (0x070, 11), (0x030, queue), (0x038, 4)] {
        set(w, device + register, value);
    }
    for (register, address) in [(0x080, TABLE), (0x090, DRIVER), (0x0a0, USED)] {
        set(w, device + register, address & 0xffff_ffff);
        set(w, device + register + 4, address >> 32);
    }
    set(w, device + 0x044, 1);
    set(w, device + 0x070, 15);
    for (n, (gpa, bytes, flags)) in (0..).zip(chain) {
        let words: [u64; 2] = [*gpa, bytes | flags << 32 | (n + 1) << 48];
        write(w, TABLE + 16 * n, words.map(u64::to_le_bytes).as_flattened());
    }
    write(w, USED, &[0; 16]);
    write(w, DRIVER, &[0, 0, 1, 0, 0, 0]);
    assert_eq!(set(w, device + 0x050, queue), Answer::Done(()), "the driver does not wait for the host");
}

/// Returns counters of the VM's, by name.
pub fn counters<const N: usize>(w: &World, names: [&str; N]) -> [Option<u64>; N] {
    let report = w.g.report(&w.run.vm);
    names.map(|name| report.count(name))
}

/// Returns the addresses of the rings of that queue, if a device has several: the descriptors, the driver's ring, and
/// the device's ring.
pub const fn rings(queue: u64) -> [u64; 3] {
    [TABLE + 0x1000 * queue, DRIVER + 0x1000 * queue, USED + 0x1000 * queue]
}

/// Starts a device with so many queues of four entries, and these of its first 32 features.
pub fn start(w: &mut World, device: u64, features: u64, queues: u64) {
    for (register, value) in
        [(0x070, 0), (0x070, 3), (0x024, 0), (0x020, features), (0x024, 1), (0x020, 1), (0x070, 11)]
    {
        set(w, device + register, value);
    }
    for queue in 0..queues {
        set(w, device + 0x030, queue);
        set(w, device + 0x038, 4);
        for (register, address) in [0x080, 0x090, 0x0a0].into_iter().zip(rings(queue)) {
            set(w, device + register, address & 0xffff_ffff);
            set(w, device + register + 4, address >> 32);
            write(w, address, &[0; 40]);
        }
        set(w, device + 0x044, 1);
    }
    set(w, device + 0x070, 15);
}

/// Makes a chain available by one of them, the one after `made` others, all of which have come back.
pub fn offer(w: &mut World, (device, queue): (u64, u64), made: u16, chain: &[(u64, u64, u64)]) {
    let [table, driver, _] = rings(queue);
    for (n, (gpa, bytes, flags)) in (0..).zip(chain) {
        let words: [u64; 2] = [*gpa, bytes | flags << 32 | (n + 1) << 48];
        write(w, table + 16 * n, words.map(u64::to_le_bytes).as_flattened());
    }
    write(w, driver + 2, &(made + 1).to_le_bytes());
    assert_eq!(set(w, device + 0x050, queue), Answer::Done(()), "the driver does not wait for the host");
}
