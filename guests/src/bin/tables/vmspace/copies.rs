//! Copies between spaces and the kernel's RAM.

use super::{CODE, DATA, LOAD, World};
use guests::access::{peek, poke};
use guests::paging::{AdBits, RO, RW, page};
use guests::sbi::{DENIED, INVALID_ADDRESS, INVALID_PARAM, SUCCESS};
use guests::{Check, board, ensure_eq, run};
use rv::{PAGE_BYTES, PteFlags};

pub fn all() {
    run("vmspace/copies", copies);
}

fn copies() -> Check {
    const NEXT: u64 = DATA + PAGE_BYTES;
    let ad = AdBits::of_this_machine();
    let (w, next, buffer) = (World::new(&[LOAD])?, page(), page());
    let own = buffer.address();
    w.space.map(NEXT, next.address(), RO | PteFlags::U);
    (0..512).for_each(|n| poke(w.data.address() + 8 * n, n));
    (0..512).for_each(|n| poke(next.address() + 8 * n, 1000 + n));
    ensure_eq!(w.handle.read(DATA, own, PAGE_BYTES), (SUCCESS, PAGE_BYTES), "READ of a page");
    ensure_eq!([peek(own), peek(own + 4088)], [0, 511], "the page");
    // Over the end of a page, at odd addresses.
    ensure_eq!(w.handle.read(NEXT - 1600 + 3, own + 5, 3200), (SUCCESS, 3200), "READ of two pages");
    let byte = |at: u64| (peek(at & !7) >> (8 * (at & 7))) as u8;
    for n in [0, 1, 1596, 1597, 1598, 3199] {
        let at = NEXT - 1600 + 3 + n;
        let there = if at < NEXT { w.data.address() + at - DATA } else { next.address() + at - NEXT };
        ensure_eq!(byte(own + 5 + n), byte(there), "byte {n}");
    }
    poke(own, 77);
    ensure_eq!(w.handle.write(DATA + 64, own, 8), (SUCCESS, 8), "WRITE");
    ensure_eq!(peek(w.data.address() + 64), 77, "what was written");
    ensure_eq!(w.handle.write(NEXT - 16, own, 24), (DENIED, 16), "WRITE to a read-only page");
    ensure_eq!(peek(next.address()), 1000, "the read-only page");
    ensure_eq!(w.handle.read(NEXT + PAGE_BYTES - 8, own, 100), (DENIED, 8), "READ of an unmapped page");
    for (va, what) in
        [(NEXT + PAGE_BYTES, "unmapped"), (own, "the kernel's"), (1 << 40, "beyond Sv39"), (u64::MAX, "the last")]
    {
        ensure_eq!(w.handle.read(va, own, 1), (DENIED, 0), "READ, {what}");
        ensure_eq!(w.handle.write(va, own, 1), (DENIED, 0), "WRITE, {what}");
    }
    ensure_eq!(w.handle.write(CODE, own, 0), (SUCCESS, 0), "nothing");
    // Rights of A and D as for a program's access.
    let (clear, dirty) = (PteFlags::R | PteFlags::W | PteFlags::U, RW | PteFlags::U);
    w.space.map(NEXT, next.address(), clear);
    let expected = if ad == AdBits::Hardware { (SUCCESS, 8) } else { (DENIED, 0) };
    ensure_eq!(w.handle.write(NEXT, own, 8), expected, "WRITE with A and D clear");
    if ad == AdBits::Hardware {
        let entry = w.space.slot(NEXT, rv::Level::PAGE).load(core::sync::atomic::Ordering::Relaxed);
        ensure_eq!(entry, guests::paging::leaf(next.address(), dirty), "A and D");
    }
    for (length, at, error) in [
        (4097, own, INVALID_PARAM),
        (u64::MAX, own, INVALID_PARAM),
        (8, board().ram_end() - 4, INVALID_ADDRESS),
        (8, 0, INVALID_ADDRESS),
        (1, u64::MAX, INVALID_ADDRESS),
    ] {
        ensure_eq!(w.handle.read(DATA, at, length).0, error, "READ of {length} bytes to {at:#x}");
        ensure_eq!(w.handle.write(DATA, at, length).0, error, "WRITE of {length} bytes from {at:#x}");
    }
    // A page that is no memory.
    w.space.map(NEXT, guests::console::UART, dirty);
    ensure_eq!(w.handle.read(NEXT, own, 8), (DENIED, 0), "READ of a device");
    w.space.map(NEXT, board().ram_end(), dirty);
    ensure_eq!(w.handle.write(NEXT, own, 8), (DENIED, 0), "WRITE beyond RAM");
    w.end()
}
