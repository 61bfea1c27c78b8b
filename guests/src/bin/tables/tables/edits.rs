//! Every way of storing to a table, through every kind of mapping of it.
#![expect(unsafe_code, reason = "stores of all kinds, sstatus")]

use super::{ASID, PAGE, ensure_gone, ensure_shows, far, mark, scratch};
use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;
use guests::paging::{self, RW, Space, leaf, pointer};
use guests::{Check, Named, access, board, ensure_eq};
use metal::{csr, fence};
use rv::csr::status;
use rv::{Format, Level, PteFlags};

/// Makes the doubleword at an address, which holds the second argument, the third.
type Edit = fn(u64, u64, u64);

macro_rules! amo {
    ($instruction:literal, $at:expr, $value:expr) => {
        // SAFETY: `at` is an entry of a table of this check, which no Rust object shares but atomics.
        unsafe {
            asm!(concat!($instruction, " x0, {value}, ({at})"), at = in(reg) $at, value = in(reg) $value, options(nostack));
        }
    };
}

/// Stores in pieces of so many bytes.
fn in_pieces(at: u64, new: u64, bytes: u64, store: access::Store) {
    for piece in 0..8 / bytes {
        store(at + piece * bytes, new >> (8 * bytes * piece)).expect("the table is mapped");
    }
}

const EDITS: [Named<Edit>; 15] = [
    ("sd", |at, _, new| access::sd(at, new).expect("the table is mapped")),
    ("sw", |at, _, new| in_pieces(at, new, 4, access::sw)),
    ("sh", |at, _, new| in_pieces(at, new, 2, access::sh)),
    ("sb", |at, _, new| in_pieces(at, new, 1, access::sb)),
    ("sb of what differs", |at, old, new| {
        for byte in (0..8).filter(|byte| (old ^ new) >> (8 * byte) & 0xff != 0) {
            access::sb(at + byte, new >> (8 * byte)).expect("the table is mapped");
        }
    }),
    ("amoswap.d", |at, _, new| amo!("amoswap.d", at, new)),
    ("amoadd.d", |at, old, new| amo!("amoadd.d", at, new.wrapping_sub(old))),
    ("amoxor.d", |at, old, new| amo!("amoxor.d", at, old ^ new)),
    ("amoand.d, amoor.d", |at, old, new| {
        amo!("amoand.d", at, old & new);
        amo!("amoor.d", at, new);
    }),
    ("amomaxu.d, amominu.d", |at, _, new| {
        amo!("amomaxu.d", at, u64::MAX);
        amo!("amominu.d", at, new);
    }),
    ("amoswap.w", |at, _, new| {
        amo!("amoswap.w", at, new);
        amo!("amoswap.w", at + 4, new >> 32);
    }),
    ("lr.d, sc.d", |at, _, new| access::lr_sc(at, new).expect("the table is mapped")),
    ("c.sd", |at, _, new| {
        // SAFETY: as for AMOs.
        unsafe { asm!("c.sd a1, 0(a0)", in("a0") at, in("a1") new, options(nostack)) };
    }),
    ("misaligned sd", |at, _, new| {
        // Each overlaps a neighbour, which it leaves as it is.
        access::sd(at - 4, access::peek(at - 8) >> 32 | new << 32).expect("the table is mapped");
        access::sd(at + 4, access::peek(at + 8) << 32 | new >> 32).expect("the table is mapped");
    }),
    ("misaligned sw", |at, _, new| {
        access::sh(at, new).expect("the table is mapped");
        access::sw(at + 2, new >> 16).expect("the table is mapped");
        access::sh(at + 6, new >> 48).expect("the table is mapped");
    }),
];

const FLOAT_EDITS: [Named<Edit>; 3] = [
    ("fsd", |at, _, new| {
        // SAFETY: as for AMOs; the guest's code has no use for floating-point registers.
        unsafe {
            asm!(".option push", ".option arch, +d", "fmv.d.x f8, {new}", "fsd f8, 0({at})", ".option pop",
                 new = in(reg) new, at = in(reg) at, options(nostack));
        }
    }),
    ("c.fsd", |at, _, new| {
        // SAFETY: as above.
        unsafe {
            asm!(".option push", ".option arch, +d", "fmv.d.x f8, {new}", "c.fsd f8, 0(a0)", ".option pop",
                 new = in(reg) new, in("a0") at, options(nostack));
        }
    }),
    ("fsw", |at, _, new| {
        // SAFETY: as above.
        unsafe {
            asm!(".option push", ".option arch, +d", "fmv.w.x f8, {low}", "fsw f8, 0({at})", "fmv.w.x f8, {high}",
                 "fsw f8, 4({at})", ".option pop",
                 low = in(reg) new, high = in(reg) new >> 32, at = in(reg) at, options(nostack));
        }
    }),
];

/// Each way, through: the machine's own address, two pages, a superpage, and a page of user mode's.
pub fn every_way(format: &'static Format) -> Check {
    let (space, pages) = (Space::new(format, ASID), scratch());
    let [table, first, second] = [&pages[7], &pages[600], &pages[601]];
    mark(first, 1);
    mark(second, 2);
    let base = far(format);
    space.slot(base, Level::MEGA).store(pointer(table.address()), Relaxed);
    let windows = base + (4 << 20);
    let superpage = base + (8 << 20);
    space.map(windows, table.address(), RW);
    space.map(windows + PAGE, table.address(), RW);
    space.map(windows + 2 * PAGE, table.address(), RW | PteFlags::U);
    space.slot(superpage, Level::MEGA).store(leaf(pages[0].address(), RW), Relaxed);
    let views = [
        ("its own address", table.address()),
        ("a page", windows),
        ("another page", windows + PAGE),
        ("a user page", windows + 2 * PAGE),
        ("a superpage", superpage + 7 * PAGE),
    ];
    let floats: &[Named<Edit>] = if board().has("d") { &FLOAT_EDITS } else { &[] };
    space.enter();
    // SAFETY: they only widen what this code may do.
    unsafe { csr::sstatus::set(status::SUM | status::FS) };
    let outcome = EDITS.iter().chain(floats).try_for_each(|(how, edit)| {
        for (view, (through, window)) in views.into_iter().enumerate() {
            let index = 100 + view as u64;
            let at = base + index * PAGE;
            let entry = window + 8 * index;
            let [on_first, on_second] = [first, second].map(|page| leaf(page.address(), RW));
            for (old, new, shown) in [(0, on_first, 1), (on_first, on_second, 2), (on_second, 0, 0)] {
                edit(entry, old, new);
                ensure_eq!(access::ld(entry), Ok(new), "the entry by {how} through {through}");
                paging::fence_page(at);
                if new == 0 {
                    ensure_gone(at, how)?
                } else {
                    ensure_shows(at, shown, how)?
                }
                for beside in [entry - 8, entry + 8] {
                    ensure_eq!(access::ld(beside), Ok(0), "the entry beside, by {how} through {through}");
                }
            }
        }
        Ok(())
    });
    // SAFETY: as above.
    unsafe { csr::sstatus::clear(status::SUM | status::FS) };
    outcome
}

/// Stores that lie half in a table and half in the page before or after it, which is data or another
/// table.
pub fn over_borders(format: &'static Format) -> Check {
    let (space, pages) = (Space::new(format, ASID), scratch());
    let [before, table, after] = [&pages[10], &pages[11], &pages[12]];
    let target = &pages[600];
    mark(target, 5);
    let new = leaf(target.address(), RW);
    let base = far(format);
    space.slot(base, Level::MEGA).store(pointer(table.address()), Relaxed);
    space.enter();
    for other_is_table in [false, true] {
        if other_is_table {
            space.slot(base + (2 << 20), Level::MEGA).store(pointer(before.address()), Relaxed);
            space.slot(base + (4 << 20), Level::MEGA).store(pointer(after.address()), Relaxed);
            fence::sfence_all();
            ensure_gone(base + (2 << 20) + 511 * PAGE, "the last page of the table before")?;
            ensure_gone(base + (4 << 20), "the first page of the table after")?;
        }
        // The low half of the first entry, with the high half of what stands before.
        table.0[0].store(new & !0xffff_ffff, Relaxed);
        before.0[511].store(0, Relaxed);
        fence::sfence_all();
        ensure_gone(base, "half an entry")?;
        ensure_eq!(access::sd(table.address() - 4, new << 32), Ok(()), "a store over the lower border");
        paging::fence_page(base);
        ensure_shows(base, 5, "after a store over the lower border")?;
        ensure_eq!(before.0[511].load(Relaxed), 0, "what stands before");
        // The high half of the last entry, with the low half of what stands after: a bit that is reserved.
        let last = base + 511 * PAGE;
        table.0[511].store(new | 1 << 54, Relaxed);
        after.0[0].store(0, Relaxed);
        fence::sfence_all();
        ensure_gone(last, "a reserved entry")?;
        ensure_eq!(access::sd(table.address() + PAGE - 4, new >> 32), Ok(()), "a store over the upper border");
        paging::fence_page(last);
        ensure_shows(last, 5, "after a store over the upper border")?;
        ensure_eq!(after.0[0].load(Relaxed), 0, "what stands after");
        table.0[0].store(0, Relaxed);
        table.0[511].store(0, Relaxed);
        fence::sfence_all();
    }
    Ok(())
}

/// `cbo.zero` unmaps all that a block of entries mapped, and nothing beside it.
pub fn cbo_zero(format: &'static Format) -> Check {
    let (space, pages) = (Space::new(format, ASID), scratch());
    let (table, target) = (&pages[20], &pages[600]);
    mark(target, 6);
    let base = far(format);
    space.slot(base, Level::MEGA).store(pointer(table.address()), Relaxed);
    let window = base + (2 << 20);
    space.map(window, table.address(), RW);
    space.enter();
    for at in [table.address(), window] {
        table.0.iter().for_each(|entry| entry.store(leaf(target.address(), RW), Relaxed));
        fence::sfence_all();
        for page in 0..512 {
            ensure_shows(base + page * PAGE, 6, "before")?;
        }
        // SAFETY: it zeroes entries of this check's table.
        unsafe {
            asm!(".option push", ".option arch, +zicboz", "cbo.zero ({})", ".option pop", in(reg) at + 256 * 8, options(nostack));
        }
        let zeroed = table.0.iter().filter(|entry| entry.load(Relaxed) == 0).count() as u64;
        ensure_eq!(zeroed.is_power_of_two() && table.0[256].load(Relaxed) == 0, true, "{zeroed} entries zeroed");
        fence::sfence_all();
        for page in 0..512 {
            let at = base + page * PAGE;
            if (256..256 + zeroed).contains(&page) {
                ensure_gone(at, "in the block")?;
            } else {
                ensure_shows(at, 6, "beside the block")?;
            }
        }
    }
    Ok(())
}
