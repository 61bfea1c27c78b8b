//! The rings of a virtio device, as no driver should write them: nothing panics, a notification comes to an end, and the VM has no
//! more frames than before and what the device itself has touched.

use crate::fake::disk::{SECTORS, platters};
use crate::fake::entropy::come;
use crate::fake::share::server;
use crate::fake::{MEMORY, World, printed, vm_config, world_of, write};
use abi::bundle::{GUEST_RAM_BASE, MmuMode, ShareConfig, VmConfig};
use abi::control::Answer as Told;
use abi::control::port::{Exchange, MOST_KEPT, Wish};
use abi::snapshot::bytes::Bytes;
use arbitrary::{Arbitrary, Result, Unstructured};
use hypervisor::control::connections::ask;
use hypervisor::device::Answer;
use hypervisor::device::offer::GuestTimer;
use hypervisor::io::host_events::{attend_disk, attend_entropy, attend_share, go_on};
use hypervisor::io::outside::{Output, Reach};
use hypervisor::io::serial::type_in;
use rv::Addr;

/// Devices: where the registers are, what they offer, and how many frames a notification may take: a page of each ring, a copy among them, and
/// tables for those and for what was split; of a share, the messages; of a disk, the data. The disk has a queue for each of three harts.
const BALLOON: (u64, u64, u64) = (0x1000_1000, 1 << 5, 32);
const SHARE: (u64, u64, u64) = (0x1000_a000, 1, 32 + 64 * 40);
const RNG: (u64, u64, u64) = (0x1000_e000, 0, 32);
const DISK: (u64, u64, u64) = (0x1000_2000, 1 << 12 | 1 << 9, 32 + 64 * 40);
const CONSOLE: (u64, u64, u64) = (0x1000_f000, 1 << 1, 32 + 64 * 40);
/// The share's number, and the disk's.
const NUMBER: u32 = 1;
const NOTIFY: u64 = 0x050;
const STATUS: u64 = 0x070;
/// A list, or a table of descriptors, of random bytes.
const OTHER: u64 = GUEST_RAM_BASE + 0x8000;
/// Places of buffers and tables: rings, lists, RAM's ends, the kernel's image, devices, and where nothing is.
const PLACES: [u64; 8] = [
    GUEST_RAM_BASE,
    OTHER,
    GUEST_RAM_BASE + MEMORY - 0x1000,
    GUEST_RAM_BASE + 0x20_0000,
    GUEST_RAM_BASE + 0x40_0000,
    BALLOON.0,
    0,
    u64::MAX - 0xff,
];

struct Machine {
    w: World,
    device: (u64, u64, u64),
    size: u16,
}

fn place(u: &mut Unstructured<'_>) -> Result<u64> {
    let offset = if u.arbitrary()? { 0 } else { u16::arbitrary(u)?.into() };
    Ok(u.choose(&PLACES)?.wrapping_add(offset))
}

fn rings(queue: u64) -> [u64; 3] {
    [0, 0x800, 0xa00].map(|offset| GUEST_RAM_BASE + 0x1000 * queue + offset)
}

impl Machine {
    fn set(&mut self, register: u64, width: u8, value: u64) -> Answer<()> {
        let vm = self.w.run.vm.clone();
        let Some((target, offset, _)) = vm.device_at(self.device.0 + register) else { panic!("the device is there") };
        let outside = &mut Reach::new(&self.w.g, &vm, &mut self.w.hart, Output::Print);
        vm.devices.store(target, (offset, width), value, outside)
    }

    fn write(&mut self, gpa: u64, bytes: &[u8]) {
        let vm = self.w.run.vm.clone();
        assert_eq!(write(&self.w.g, &vm, Addr::new(gpa), bytes, &mut self.w.hart), Ok(()));
    }

    /// The last queue that is used: the console's device has two of the console, two of what is said of ports, and two of each port.
    fn last(&self) -> u64 {
        if self.device == CONSOLE { 7 } else { 2 }
    }

    fn start(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        self.size = 1 << u.int_in_range(0..=6)?;
        let features = self.device.1 | u64::from(u8::arbitrary(u)? & 3) << 28;
        for (register, value) in
            [(STATUS, 0), (STATUS, 3), (0x024, 0), (0x020, features), (0x024, 1), (0x020, 1), (STATUS, 11)]
        {
            self.set(register, 4, value);
        }
        for queue in 0..=self.last() {
            self.set(0x030, 4, queue);
            self.set(0x038, 4, self.size.into());
            for (register, address) in [0x080, 0x090, 0x0a0].into_iter().zip(rings(queue)) {
                let address = if u.ratio(1, 16)? { place(u)? } else { address };
                self.set(register, 4, address & 0xffff_ffff);
                self.set(register + 4, 4, address >> 32);
            }
            self.set(0x044, 4, 1);
        }
        self.set(STATUS, 4, 15);
        Ok(())
    }

    fn descriptor(&self, u: &mut Unstructured<'_>) -> Result<[u8; 16]> {
        let bytes = if u.arbitrary()? { u64::from(u16::arbitrary(u)?) } else { u32::arbitrary(u)?.into() };
        let flags = u64::from(*u.choose(&[0, 1, 2, 3, 4, 5, 0x80])? as u8);
        let next = u64::from(u.int_in_range(0..=self.size)?);
        let words = [place(u)?, bytes | flags << 32 | next << 48];
        Ok(words.map(u64::to_le_bytes).as_flattened().try_into().expect("16 bytes"))
    }

    fn step(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let queue = u.int_in_range(0..=self.last())?;
        let [table, driver, _] = rings(queue);
        match u.int_in_range(0..=9)? {
            0 => self.start(u)?,
            1..=3 => {
                let (at, descriptor) = (u64::from(u.int_in_range(0..=self.size - 1)?), self.descriptor(u)?);
                self.write(table + 16 * at, &descriptor);
            }
            // A message of a share's, as far as its head and a count go.
            4 if self.device == SHARE && u.arbitrary()? => {
                let kind = if u.arbitrary()? { u8::arbitrary(u)? } else { *u.choose(&[100, 104, 110, 116, 118, 120])? };
                let length = if u.ratio(1, 8)? { u32::arbitrary(u)? } else { u.int_in_range(0..=64)? };
                let count = if u.arbitrary()? { u32::arbitrary(u)? } else { length.wrapping_sub(23) };
                self.write(OTHER, &[&length.to_le_bytes()[..], &[kind, 1, 0], &[0; 12], &count.to_le_bytes()].concat());
            }
            // A disk's request: its type, and a sector of those that it has or of those behind; where it clears, a segment as well.
            4 if self.device == DISK && u.arbitrary()? => {
                let kind = if u.ratio(1, 8)? { u32::arbitrary(u)? } else { *u.choose(&[0, 1, 4, 8, 11, 13])? };
                let sector = if u.ratio(1, 8)? { u64::arbitrary(u)? } else { u.int_in_range(0..=SECTORS + 64)? };
                let (sectors, flags) = (u.int_in_range(0..=80)?, u.int_in_range(0..=2)?);
                let words = [kind.into(), sector, sector, sectors | flags << 32];
                self.write(OTHER, words.map(u64::to_le_bytes).as_flattened());
            }
            // What is said of ports, as far as it means something.
            4 if self.device == CONSOLE && u.arbitrary()? => {
                let (port, kind, value) = (u.int_in_range(0..=3)?, u.int_in_range(0..=8)?, u.int_in_range(0..=1)?);
                self.write(OTHER, &u64::to_le_bytes(port | kind << 32 | value << 48));
            }
            // Its driver goes on without a queue, or with it again.
            4 if (self.device == DISK || self.device == CONSOLE) && u.ratio(1, 8)? => {
                self.set(0x030, 4, queue);
                self.set(0x044, 4, u.int_in_range(0..=1)?);
            }
            4 => {
                let (at, descriptor) = (u.int_in_range(0..=63)?, self.descriptor(u)?);
                self.write(OTHER + 16 * at, &descriptor);
            }
            5 => {
                let (at, page) = (u.int_in_range(0..=127)?, place(u)? >> 12);
                self.write(OTHER + 4 * at, &(page as u32).to_le_bytes());
            }
            6 => {
                let (at, head) = (u64::from(u.int_in_range(0..=self.size - 1)?), u.int_in_range(0..=self.size)?);
                self.write(driver + 4 + 2 * at, &head.to_le_bytes());
            }
            7 => {
                let (register, width) = (u.int_in_range(0..=0x1ff)?, *u.choose(&[1, 2, 4, 8])?);
                if register + u64::from(width) <= 0x200 && register != NOTIFY {
                    self.set(register, width, place(u)?);
                }
            }
            _ => {
                let index = if u.ratio(1, 8)? { u16::arbitrary(u)? } else { u.int_in_range(0..=self.size)? };
                self.write(driver + 2, &index.to_le_bytes());
                self.notify(queue);
            }
        }
        if u.ratio(1, 4)? {
            if self.device == CONSOLE {
                self.speak(u)?;
            }
            self.answer();
        }
        self.w.hart.events.clear();
        Ok(())
    }

    /// A program of the host that is connected to a port sends bytes, or disconnects.
    fn speak(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let (port, connection) = (u.int_in_range(0..=2)?, u.int_in_range(0..=2)?);
        let (at, from) = (u.int_in_range(0..=300)?, u.int_in_range(0..=300)?);
        let bytes = Bytes(vec![7; u.int_in_range(0..=200)?]);
        let exchange = Exchange { connection, at, bytes, from, most: u.arbitrary()? };
        let wish = if u.ratio(1, 4)? { Wish::Close(connection) } else { Wish::Exchange(exchange) };
        let vm = self.w.run.vm.clone();
        let answer = ask(&self.w.g, &vm, port, &wish, &mut self.w.hart);
        assert_eq!(answer.is_some(), port < 2);
        if let Some(Told::Heard(heard)) = answer {
            assert!(heard.bytes.0.len() <= MOST_KEPT && heard.waiting as usize <= MOST_KEPT);
        }
        Ok(())
    }

    /// The host's device has done what it was asked for, and interrupts.
    fn answer(&mut self) {
        if self.device == SHARE {
            server(NUMBER).lock().expect("no panic before").answer();
            let port = self.w.g.offer.shares.get(NUMBER).expect("it is there").clone();
            attend_share(&self.w.g, &port, &mut self.w.hart);
        } else if self.device == DISK {
            platters(NUMBER).lock().expect("no panic before").finish();
            let port = self.w.g.offer.disks.get(NUMBER).expect("it is there").clone();
            attend_disk(&self.w.g, &port, &mut self.w.hart);
        } else if self.device == CONSOLE {
            let vm = self.w.run.vm.clone();
            type_in(&self.w.g, &vm, b"what somebody types", &mut self.w.hart);
            go_on(&self.w.g, 1 << vm.slot(), &mut self.w.hart);
            printed();
        } else if self.device == RNG && come() {
            attend_entropy(&self.w.g, &mut self.w.hart);
        }
    }

    /// Notifies for some time: a list may be as long as 4 GiB.
    fn notify(&mut self, queue: u64) {
        for _ in 0..16 {
            let before = self.w.frames_used();
            let answer = self.set(NOTIFY, 4, queue);
            assert!(self.w.frames_used() <= before + self.device.2, "{} frames, {before} before", self.w.frames_used());
            if answer != Answer::Again {
                return;
            }
        }
    }
}

/// A life of a device's rings, of five devices, in one of two modes.
pub fn rings_of(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let choice = u.arbitrary().unwrap_or(0_u8);
    let mmu = if choice & 1 == 1 { MmuMode::Lazy } else { MmuMode::TwoStage };
    let device = [BALLOON, SHARE, RNG, DISK, CONSOLE, SHARE, DISK, CONSOLE][usize::from(choice >> 1 & 7)];
    let shares = vec![ShareConfig { number: NUMBER, tag: "src".into() }];
    let (disks, ports) = (vec![NUMBER], vec!["one".into(), "two".into()]);
    let (balloon_bytes, vm) = (Some(0), vm_config("vm", 3));
    let config =
        VmConfig { mmu: Some(mmu), balloon_bytes, disks, shares, rng: true, virtio_console: true, ports, ..vm };
    let mut w = world_of(config, GuestTimer::Sstc);
    let translation = w.run.vm.translation;
    assert_eq!(translation.load(&w.g, &mut w.run, &mut w.hart), Ok(()));
    let mut machine = Machine { w, device, size: 1 };
    if machine.start(&mut u).is_ok() {
        while !u.is_empty() && machine.step(&mut u).is_ok() {}
    }
    printed();
}
