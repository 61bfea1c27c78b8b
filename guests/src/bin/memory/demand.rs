//! Touching all of RAM, in every order and width: each first touch is a demand fault of the VM.
//! RAM that is touched first must read as zero, and keep what is written.
#![no_std]
#![no_main]

use guests::{Check, access, board, ensure, ensure_eq, fail, run};
use metal::fence;

guests::entry_point!(main);

const PAGE: u64 = 4096;
const BLOCK: u64 = 2 << 20;
/// Bytes of RAM that the checks by name use up; each takes a run of blocks of its own, from the end.
const EACH: u64 = 3 * BLOCK;

/// Whole 2 MiB blocks of free RAM, ascending.
fn blocks() -> (u64, u64) {
    let (from, to) = board().largest_free();
    (from.next_multiple_of(BLOCK), to & !(BLOCK - 1))
}

/// The `n`th run of three blocks from the end: untouched until its check.
fn fresh(n: u64) -> u64 {
    let (from, to) = blocks();
    let at = to - (n + 1) * EACH;
    assert!(at >= from, "not enough RAM");
    at
}

fn main() {
    run("demand/last-page-first", last_page_first);
    run("demand/first-page", first_page);
    run("demand/read-then-write", read_then_write);
    run("demand/write-then-read", write_then_read);
    run("demand/bytes", || widths(2, 1));
    run("demand/halfwords", || widths(3, 2));
    run("demand/words", || widths(4, 4));
    run("demand/doublewords", || widths(5, 8));
    run("demand/across-pages", across_pages);
    run("demand/atomics", atomics);
    run("demand/fetch", fetch);
    run("demand/random-order", random_order);
    run("demand/every-page", every_page);
    run("demand/contents-survive", contents_survive);
}

/// A value that depends on the address and nothing else.
fn pattern(at: u64) -> u64 {
    (at ^ 0x6a09_e667_f3bc_c908).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
}

fn last_page_first() -> Check {
    let last = board().ram_end() - 8;
    let is_free = board().free_ram().any(|(from, to)| (from..to).contains(&last));
    if is_free {
        ensure_eq!(access::peek(last), 0, "last doubleword of RAM");
        access::poke(last, 1);
        ensure_eq!(access::peek(last), 1, "last doubleword of RAM");
        access::poke(last, 0);
    } else {
        ensure!(access::ld(last).is_ok(), "the last doubleword traps");
    }
    Ok(())
}

/// The first free page of RAM; under Gnomon that is where firmware would be on a bare machine.
fn first_page() -> Check {
    let Some((first, _)) = board().free_ram().next() else { fail!("no free RAM") };
    ensure_eq!(access::peek(first), 0, "first free doubleword");
    access::poke(first, pattern(first));
    ensure_eq!(access::peek(first), pattern(first), "first free doubleword");
    access::poke(first, 0);
    Ok(())
}

fn read_then_write() -> Check {
    for at in (fresh(0)..fresh(0) + EACH).step_by(PAGE as usize) {
        ensure_eq!(access::peek(at + 0x128), 0, "first read at {at:#x}");
        access::poke(at + 0x128, pattern(at));
        ensure_eq!(access::peek(at + 0x128), pattern(at), "after the write at {at:#x}");
        ensure_eq!(access::peek(at + 0xff8), 0, "the rest of the page at {at:#x}");
    }
    Ok(())
}

fn write_then_read() -> Check {
    for page in (0..EACH / PAGE).rev() {
        let at = fresh(1) + page * PAGE;
        access::poke(at + 0xff8, pattern(at));
        ensure_eq!(access::peek(at), 0, "beside the write at {at:#x}");
        ensure_eq!(access::peek(at + 0xff8), pattern(at), "after the write at {at:#x}");
    }
    Ok(())
}

/// First touches by a store or a load of one width, alternately, at varying offsets.
fn widths(region: u64, width: u64) -> Check {
    let start = fresh(region);
    for page in 0..EACH / PAGE {
        let at = start + page * PAGE + page * width % PAGE;
        let written = pattern(at) & (u64::MAX >> (64 - 8 * width));
        let load = |at| match width {
            1 => access::lbu(at),
            2 => access::lhu(at),
            4 => access::lwu(at),
            _ => access::ld(at),
        };
        if page % 2 == 1 {
            ensure_eq!(load(at), Ok(0), "first load at {at:#x}");
        }
        let stored = match width {
            1 => access::sb(at, pattern(at)),
            2 => access::sh(at, pattern(at)),
            4 => access::sw(at, pattern(at)),
            _ => access::sd(at, pattern(at)),
        };
        ensure_eq!(stored, Ok(()), "store at {at:#x}");
        ensure_eq!(load(at), Ok(written), "load at {at:#x}");
        // Nothing but these bytes changed.
        let around = (at & !7).saturating_sub(8)..(at & !7) + 16;
        let sum: u32 = around.clone().filter(|b| b / PAGE == at / PAGE).map(|b| u32::from(access::in8(b) != 0)).sum();
        ensure!(u64::from(sum) <= width, "{sum} bytes around {at:#x} changed by a store of {width}");
    }
    Ok(())
}

/// Misaligned accesses whose halves lie in two untouched pages.
fn across_pages() -> Check {
    let start = fresh(6);
    for i in 1..8u64 {
        let at = start + i * 4 * PAGE - i;
        ensure_eq!(access::ld(at), Ok(0), "load at {at:#x}");
        let at = at + 2 * PAGE;
        ensure_eq!(access::sd(at, pattern(at)), Ok(()), "store at {at:#x}");
        ensure_eq!(access::ld(at), Ok(pattern(at)), "load at {at:#x}");
    }
    // And across two blocks.
    let at = start + BLOCK - 4;
    ensure_eq!(access::sd(at, pattern(at)), Ok(()), "store at {at:#x}");
    ensure_eq!(access::ld(at), Ok(pattern(at)), "load at {at:#x}");
    Ok(())
}

#[expect(unsafe_code, reason = "AMO and LR/SC by assembly, on free RAM")]
fn atomics() -> Check {
    let start = fresh(7);
    for page in 0..256 {
        let at = start + page * PAGE;
        let (old, loaded, failed): (u64, u64, u64);
        // SAFETY: free RAM; the first AMO and the first LR on their pages.
        unsafe {
            core::arch::asm!("amoadd.d {old}, {one}, ({at})", old = out(reg) old, one = in(reg) page + 1, at = in(reg) at);
            core::arch::asm!("lr.d {old}, ({at})", "sc.d {failed}, {new}, ({at})", old = out(reg) loaded,
                failed = out(reg) failed, new = in(reg) page + 2, at = in(reg) at + BLOCK);
        }
        ensure_eq!((old, access::peek(at)), (0, page + 1), "amoadd at {at:#x}");
        ensure_eq!(loaded, 0, "lr at {at:#x}");
        // The faulting LR is repeated after the page came; SC may fail, and then changes nothing.
        let after = if failed == 0 { page + 2 } else { 0 };
        ensure_eq!(access::peek(at + BLOCK), after, "after sc (failed: {failed}) at {at:#x}");
    }
    Ok(())
}

/// Code on pages of which nothing was touched but the code itself, entered at their far ends.
fn fetch() -> Check {
    // Zero is a defined illegal instruction: fetching from a fresh page reads zero.
    let start = fresh(8);
    for page in 0..64 {
        let at = start + page * PAGE;
        let trap = access::call(at, 0);
        ensure!(trap.is_err_and(|t| t.cause == 2), "fresh page at {at:#x}: {trap:x?}");
    }
    // addi a0, a0, 1; ret: the second instruction on the next page.
    const CODE: u64 = 0x8082 << 16 | 0x0505;
    for page in (64..256).step_by(2) {
        let at = start + page * PAGE + PAGE - 2;
        ensure_eq!(access::sh(at, CODE), Ok(()), "store at {at:#x}");
        ensure_eq!(access::sh(at + 2, CODE >> 16), Ok(()), "store at {at:#x}");
        fence::instruction();
        ensure_eq!(access::call(at, page), Ok(page + 1), "code across pages at {at:#x}");
    }
    Ok(())
}

/// A page of each block, in an order with no pattern, then the blocks' other ends.
fn random_order() -> Check {
    let (from, to) = blocks();
    let count = (to - from).saturating_sub(10 * EACH) / BLOCK;
    ensure!(count >= 4, "only {count} blocks of 2 MiB are free");
    let mut seed = 42_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    for _ in 0..4 * count {
        let page = next() % (count * (BLOCK / PAGE));
        let at = from + page * PAGE + next() % (PAGE / 8) * 8;
        let value = access::peek(at);
        ensure!(value == 0 || value == pattern(at), "at {at:#x}: {value:#x}");
        access::poke(at, pattern(at));
        ensure_eq!(access::peek(at), pattern(at), "after the write at {at:#x}");
    }
    Ok(())
}

/// Every page of every free range, a different doubleword in each.
fn every_page() -> Check {
    for (from, to) in board().free_ram() {
        for at in (from..to).step_by(PAGE as usize) {
            let slot = at + pattern(at) % 512 * 8;
            access::poke(slot, pattern(slot));
        }
    }
    Ok(())
}

/// The contents from `every_page` are kept; with it, no two pages share a frame.
fn contents_survive() -> Check {
    let (mut pages, mut sum) = (0, 0_u64);
    for (from, to) in board().free_ram() {
        for at in (from..to).step_by(PAGE as usize) {
            let slot = at + pattern(at) % 512 * 8;
            ensure_eq!(access::peek(slot), pattern(slot), "at {slot:#x}");
            pages += 1;
            sum = sum.wrapping_add(access::peek(slot).rotate_left((pages % 64) as u32));
        }
    }
    ensure!(pages * PAGE + (8 << 20) >= board().ram_bytes, "only {pages} pages were free");
    guests::console::line(format_args!("guest: {pages} pages, checksum {sum:#018x}"));
    Ok(())
}
