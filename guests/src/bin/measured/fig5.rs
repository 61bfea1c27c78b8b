//! The benchmark of figure 5 in *Lazy Shadow Paging under the RISC-V Architecture*: operations on 1024
//! pages in order, some of which change the page's entry (to another frame, with a fence of the
//! address), while the rest read the page. Each read has to find the frame that the entry names now.
//!
//! Boot arguments: `PERCENT OPERATIONS`: how many of a hundred operations are changes, and how many
//! operations there are.
#![no_std]
#![no_main]

use guests::window::{PAGES, Random, Window, address};
use guests::{Check, access, board, console, ensure, ensure_eq, paging, region, run};

guests::entry_point!(main);

fn main() {
    run("fig5/reads-are-fresh", || {
        let mut numbers = board().bootargs.split_whitespace().map(str::parse);
        let (Some(Ok(percent)), Some(Ok(operations)), None) = (numbers.next(), numbers.next(), numbers.next()) else {
            guests::fail!("boot arguments: PERCENT OPERATIONS");
        };
        ensure!(percent <= 100, "{percent} %");
        operate(percent, operations)
    });
}

fn operate(percent: u64, operations: u64) -> Check {
    let (window, mut random) = (Window::enter(2), Random::default());
    let mut sides = [0; PAGES as usize];
    let mut modifications = 0_u64;
    region::begin(0);
    for operation in 0..operations {
        let page = operation % PAGES;
        let side = &mut sides[page as usize];
        if random.below(100) < percent {
            *side ^= 1;
            window.turn(page, *side);
            modifications += 1;
        } else {
            ensure_eq!(access::peek(address(page)), window.frame(page, *side), "page {page}, operation {operation}");
        }
    }
    region::end(0);
    paging::leave();
    console::figure("operations", operations);
    console::figure("modifications", modifications);
    Ok(())
}
