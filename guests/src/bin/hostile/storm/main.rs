//! A neighbour that does what costs the machine most, by the schedule that `rounds` knows, on all its harts. With the argument
//! `reboot` it starts over again and again instead; with `disk`, `share`, `net` or `rng` each of its storms consists of requests to that device.
//! With `pages`, on one hart and with less memory than it has RAM, each consists of accesses to pages that are out.
#![no_std]
#![no_main]

mod device;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use device::Flood;
use guests::console::{UART, line};
use guests::schedule::{self, Moment, PAGES, STORMS, Storm};
use guests::trap::{disable, enable, on_interrupt, with_interrupts};
use guests::{Check, access, board, ensure, ensure_eq, hart, run, sbi};
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

/// The requests of which storms consist, if they do.
static FLOOD: Once<Flood> = Once::new();

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
    if let Some(flood) = Flood::of(board().bootargs) {
        run("storm/requests", || {
            FLOOD.call_once(|| flood).start()?;
            blow(0);
            flood.check()
        });
        return;
    }
    if board().bootargs == PAGES {
        run("storm/pages", thrash);
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

/// Stores to one page of RAM after another, again and again, while the schedule says storm. Before, to each once: from then on the next
/// page is always the one that was used longest ago, and so is out.
fn thrash() -> Check {
    let (from, to) = board().largest_free();
    let mut pages = (from.next_multiple_of(PAGE)..to - PAGE + 1).step_by(PAGE as usize).cycle();
    let count = (to - from.next_multiple_of(PAGE)) / PAGE;
    pages.by_ref().take(count as usize).for_each(|page| access::poke(page, page));
    ensure!(
        matches!(schedule::at(metal::time()), (Moment::Calm(0), _)),
        "the first storm has begun before all pages were touched"
    );
    let (mut touched, mut wrong) = (0_u64, 0_u64);
    for page in pages {
        while matches!(schedule::at(metal::time()).0, Moment::Calm(_)) {
            core::hint::spin_loop();
        }
        if schedule::at(metal::time()).0 == Moment::Over {
            break;
        }
        wrong += u64::from(access::peek(page) != page);
        access::poke(page, page);
        touched += 1;
    }
    line(format_args!("guest: {touched} pages were touched"));
    ensure!(touched > 300, "only {touched} pages were touched");
    ensure_eq!(wrong, 0, "pages with other content");
    Ok(())
}

/// A short part of a storm.
fn gust(storm: Storm) {
    if let Some(flood) = FLOOD.get() {
        return flood.blow();
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
