//! The benchmark of figure 6 in *Lazy Shadow Paging under the RISC-V Architecture*: a kernel samples which
//! of 1024 pages are in use. In each window it clears A and D in all their entries, each with a fence of the
//! address; then come SIZE x 1024 accesses, of which 80 in a hundred go to a fifth of the pages. The
//! paper does not say what the accesses are; here STORES in a hundred are stores.
//!
//! At the end of each window A and D have to say what was accessed and stored to. Where the machine does
//! not update them (Svade), this guest does so at its page faults, and counts those.
//!
//! Boot arguments: `WINDOWS SIZE STORES`.
#![no_std]
#![no_main]

use core::sync::atomic::Ordering::Relaxed;
use guests::window::{ASID, PAGES, Random, Window, address};
use guests::{Check, access, board, console, ensure, ensure_eq, paging, region, run};
use rv::PteFlags;

guests::entry_point!(main);

const A: u64 = PteFlags::A.bits();
const D: u64 = PteFlags::D.bits();
/// Pages that most accesses go to: every fifth.
const HOT_PAGES: u64 = PAGES.div_ceil(5);
/// Accesses in a hundred that go to those.
const HOT_PERCENT: u64 = 80;

fn main() {
    run("fig6/a-and-d-are-honest", || {
        let mut numbers = board().bootargs.split_whitespace().map(str::parse);
        let mut next = || numbers.next().and_then(Result::ok);
        let (Some(windows), Some(size), Some(stores)) = (next(), next(), next()) else {
            guests::fail!("boot arguments: WINDOWS SIZE STORES");
        };
        ensure!(stores <= 100, "{stores} % stores");
        sample(windows, size, stores)
    });
}

/// The expected bits of the entries.
type Bits = [u64; PAGES as usize];

fn sample(windows: u64, size: u64, stores: u64) -> Check {
    let (window, mut random) = (Window::enter(1), Random::default());
    let (mut touched, mut faults) = (0, 0);
    region::begin(0);
    for _ in 0..windows {
        let mut expected: Bits = [0; PAGES as usize];
        for page in 0..PAGES {
            window.slot(page).fetch_and(!(A | D), Relaxed);
            paging::fence_page_asid(address(page), ASID);
        }
        for _ in 0..size * PAGES {
            let page = any_page(&mut random);
            let used = if random.below(100) < stores { A | D } else { A };
            faults += use_page(&window, page, used)?;
            expected[page as usize] |= used;
        }
        for page in 0..PAGES {
            let (found, expected) = (window.slot(page).load(Relaxed) & (A | D), expected[page as usize]);
            ensure_eq!(found, expected, "A and D of page {page}");
            touched += u64::from(expected != 0);
        }
    }
    region::end(0);
    paging::leave();
    console::figure("clears", windows * PAGES);
    console::figure("accesses", windows * size * PAGES);
    console::figure("touched", touched);
    console::figure("faults", faults);
    Ok(())
}

/// One of the hot pages, or less often one of the others.
fn any_page(random: &mut Random) -> u64 {
    if random.below(100) < HOT_PERCENT {
        random.below(HOT_PAGES) * 5
    } else {
        let cold = random.below(PAGES - HOT_PAGES);
        cold / 4 * 5 + cold % 4 + 1
    }
}

/// Loads from a page, or stores to it if D is to be set. Returns the number of page faults for A and D.
fn use_page(window: &Window, page: u64, used: u64) -> Result<u64, guests::Text> {
    let (at, frame) = (address(page), window.frame(page, 0));
    for faults in 0..2 {
        let fault = if used & D != 0 {
            access::sd(at, frame).err()
        } else {
            let value = access::ld(at);
            ensure!(value.is_err() || value == Ok(frame), "page {page} holds {value:x?}, not {frame:#x}");
            value.err()
        };
        match fault {
            None => return Ok(faults),
            Some(trap) => {
                let missing = used & !window.slot(page).load(Relaxed);
                ensure!(matches!(trap.cause, 13 | 15) && missing != 0, "page {page}: {trap:x?}");
                window.slot(page).fetch_or(used, Relaxed);
            }
        }
    }
    guests::fail!("page {page} faults although its A and D are set")
}
