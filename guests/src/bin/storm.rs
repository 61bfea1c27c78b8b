//! A neighbour that does what costs the machine most, by the schedule that `rounds` knows, on all its harts. With the argument
//! `reboot` it starts over again and again instead; with `disk` each of its storms consists of reads of its disk.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use guests::console::{UART, line};
use guests::schedule::{self, Moment, STORMS, Storm};
use guests::trap::{disable, enable, on_interrupt, with_interrupts};
use guests::virtio::{Device, NEXT, Rings, WRITE, describe, get16};
use guests::{Check, access, board, ensure, ensure_eq, hart, ram, run, sbi};
use metal::csr;
use rv::Interrupt::{SSoft, STimer};
use sbi_spec::{rfnc, srst};
use spin::Once;

guests::entry_point!(main);

const PAGE: u64 = 4096;
/// An address without a device.
const HOLE: u64 = 0x5000_0000;
/// The time of a life, in milliseconds, if the storm consists of reboots.
const LIFE_MS: u64 = 2;

const DISK: Device = Device(0x1000_2000);
/// Reads of a page that are made at once.
const READS: u64 = 16;
/// The address of the disk's queue, and behind it the requests and their data, if storms consist of reads.
static READER: Once<u64> = Once::new();

/// The next untouched page of RAM.
static FRESH: AtomicU64 = AtomicU64::new(0);

fn main() {
    on_interrupt(Some(interrupt));
    if board().bootargs == "reboot" {
        schedule::tick();
        enable(STimer.bit());
        with_interrupts(|| spin_until(metal::time() + board().ticks(LIFE_MS)));
        sbi::reset(srst::RESET_TYPE_COLD_REBOOT, 0);
    }
    if board().bootargs == "disk" {
        run("storm/reads", || {
            let at = ram::pages(4 + READS as usize)[0].address();
            Rings::at(at).clear();
            DISK.set_up(0, &[Rings::at(at)])?;
            READER.call_once(|| at);
            blow(0);
            ensure!(get16(Rings::at(at).device + 2) > 1000, "only {} reads", get16(Rings::at(at).device + 2));
            ensure_eq!((0..READS).find(|n| access::peek(status(at, *n)) & 0xff != 0), None, "a read that failed");
            Ok(())
        });
        return;
    }
    FRESH.store(board().largest_free().0.next_multiple_of(PAGE), Relaxed);
    run("storm/blows", || {
        start_others()?;
        blow(0);
        line(format_args!("")); // the storm leaves an unfinished one
        board().other_harts().try_for_each(hart::join)
    });
    run("storm/touched-memory", || -> Check {
        ensure!(FRESH.load(Relaxed) > board().largest_free().0 + PAGE, "not a page was touched");
        Ok(())
    });
}

fn interrupt(code: u64) {
    if code == STimer as u64 {
        return schedule::tick();
    }
    #[expect(unsafe_code, reason = "a pending bit")]
    // SAFETY: nothing but the interrupt depends on it.
    unsafe {
        csr::sip::clear(SSoft.bit());
    }
}

fn spin_until(time: u64) {
    while metal::time() < time {
        core::hint::spin_loop();
    }
}

fn start_others() -> Check {
    board().other_harts().try_for_each(|other| hart::start(other, blow, 0))
}

fn is_hsm(moment: Moment) -> bool {
    matches!(moment, Moment::Storm(index) if STORMS[index].0 == Storm::Hsm)
}

/// Follows the schedule. While it says HSM the other harts are stopped, except for what the boot hart does to them.
fn blow(_: u64) {
    let is_boot_hart = hart::id() == board().boot_hart;
    schedule::tick();
    enable(SSoft.bit() | STimer.bit());
    with_interrupts(|| {
        loop {
            let moment = schedule::at(metal::time()).0;
            if is_hsm(moment) {
                if !is_boot_hart {
                    break;
                }
                while is_hsm(schedule::at(metal::time()).0) {
                    gust(Storm::Hsm);
                }
                assert!(board().other_harts().try_for_each(hart::join).and_then(|()| start_others()).is_ok());
                continue;
            }
            match moment {
                Moment::Calm(_) => core::hint::spin_loop(),
                Moment::Storm(index) => gust(STORMS[index].0),
                Moment::Over => break,
            }
        }
    });
    disable(SSoft.bit() | STimer.bit());
}

/// The address of the status of read `n`, behind its header.
const fn status(queue: u64, n: u64) -> u64 {
    queue + 0x3000 + 64 * n + 16
}

/// Reads pages of the disk, and waits for them.
fn read_disk(queue: u64) {
    let rings = Rings::at(queue);
    for n in 0..READS {
        let header = status(queue, n) - 16;
        access::poke(header, 0);
        access::poke(header + 8, 8 * n);
        describe(rings.table, 3 * n, (header, 16), NEXT, 3 * n + 1);
        describe(rings.table, 3 * n + 1, (queue + 0x4000 + PAGE * n, PAGE), NEXT | WRITE, 3 * n + 2);
        describe(rings.table, 3 * n + 2, (header + 16, 1), WRITE, 0);
        rings.offer(get16(rings.driver + 2), (3 * n) as u16);
    }
    DISK.set(0x050, 0);
    while get16(rings.device + 2) != get16(rings.driver + 2) {
        core::hint::spin_loop();
    }
}

/// A short part of a storm.
fn gust(storm: Storm) {
    if let Some(queue) = READER.get() {
        return read_disk(*queue);
    }
    match storm {
        Storm::Console => _ = sbi::console_write(&[b'~'; 256]),
        Storm::Uart => access::out8(UART, b'~'),
        Storm::Ipi => _ = sbi::send_ipi(0, sbi::ALL_HARTS),
        Storm::Rfence => _ = sbi::remote_fence(rfnc::REMOTE_SFENCE_VMA, 0, sbi::ALL_HARTS, 0, 0, 0),
        // They have nothing to do, and stop at once.
        Storm::Hsm => {
            for other in board().other_harts() {
                _ = sbi::hart_start(other, hart::entry_address(), 0);
            }
        }
        Storm::Faults => {
            let page = FRESH.fetch_add(PAGE, Relaxed);
            let is_ram = page + PAGE <= board().largest_free().1;
            if is_ram {
                access::poke(page, page);
            } else {
                _ = access::ld(HOLE);
            }
        }
    }
}
