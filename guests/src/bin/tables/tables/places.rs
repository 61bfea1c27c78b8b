//! Leaves and tables at the edges of RAM, leaves that reach past it, and devices.

use super::{ASID, ensure_cause, ensure_shows, far, mark, scratch};
use core::sync::atomic::Ordering::Relaxed;
use guests::console::UART;
use guests::expect::{ECALL_U, FETCH_ACCESS, LOAD_ACCESS, LOAD_PAGE, STORE_ACCESS, STORE_PAGE};
use guests::paging::{self, Page, RO, RW, RWX, Space, leaf, page, pointer};
use guests::user::User;
use guests::{Check, access, board, ensure_eq, ram};
use metal::fence;
use rv::{Format, Level, PteFlags};

const PAGE: u64 = rv::PAGE_BYTES;

/// One leaf of a gigabyte over all of RAM: writable, read-only, as superpages below it, and back.
pub fn gigapages(format: &'static Format) -> Check {
    let (space, pages) = (Space::new(format, ASID), scratch());
    let ram = board().ram_start & !(Level::GIGA.bytes() - 1);
    let at = far(format);
    let slot = space.slot(at, Level::GIGA);
    let table = page();
    for (block, entry) in table.0.iter().enumerate() {
        entry.store(leaf(ram + (block as u64) * Level::MEGA.bytes(), RW), Relaxed);
    }
    let inside = at + (pages[5].address() - ram);
    space.enter();
    for round in 0..3 {
        for (entry, is_writable) in [
            (leaf(ram, RW), true),
            (leaf(ram, RO), false),
            (pointer(table.address()), true),
            (leaf(ram, RO), false),
            (leaf(ram, RW), true),
            (pointer(table.address()), true),
        ] {
            slot.store(entry, Relaxed);
            fence::sfence_all();
            mark(&pages[5], 60 + round);
            ensure_shows(inside, 60 + round, "in a gigapage")?;
            let stored = access::sd(inside + 8, round).map_err(|trap| (trap.cause, trap.tval));
            let wanted = if is_writable { Ok(()) } else { Err((STORE_PAGE, inside + 8)) };
            ensure_eq!(stored, wanted, "a store in a gigapage, entry {entry:#x}");
        }
    }
    Ok(())
}

/// The first and the last page of free RAM as memory, as a table of leaves, and as a root.
pub fn first_and_last(format: &'static Format) -> Check {
    let (space, pages) = (Space::new(format, ASID), scratch());
    mark(&pages[600], 70);
    let (at, through) = (far(format), far(format) + (2 << 20));
    let free = board().free_ram();
    let (first, end) = free.fold((u64::MAX, 0), |(first, end), (from, to)| (first.min(from), end.max(to)));
    space.enter();
    for frame in [first, end - PAGE].map(ram::page_at) {
        frame.0.iter().for_each(|word| word.store(0, Relaxed));
        space.map(at, frame.address(), RW);
        fence::sfence_all();
        for offset in [0, 8, PAGE - 8] {
            ensure_eq!(access::sd(at + offset, offset + 1), Ok(()), "a store at {offset:#x} of {:#x}", frame.address());
            ensure_eq!(frame.0[offset as usize / 8].load(Relaxed), offset + 1, "what was stored");
        }
        as_table_and_root(&space, frame, through, &pages[600])?;
        frame.0.iter().for_each(|word| word.store(0, Relaxed));
    }
    Ok(())
}

fn as_table_and_root(space: &Space, frame: &'static Page, at: u64, target: &Page) -> Check {
    frame.0.iter().for_each(|word| word.store(0, Relaxed));
    for index in [0, 511] {
        frame.0[index].store(leaf(target.address(), RW), Relaxed);
    }
    let slot = space.slot(at, Level::MEGA);
    slot.store(pointer(frame.address()), Relaxed);
    fence::sfence_all();
    ensure_shows(at, 70, "through a table there")?;
    ensure_shows(at + 511 * PAGE, 70, "through a table there")?;
    slot.store(0, Relaxed);
    fence::sfence_all();
    frame.0.iter().zip(&space.root().0).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
    let other = Space::rooted(frame, space.format(), ASID + 1);
    space.map(at, target.address(), RW);
    frame.0.iter().zip(&space.root().0).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
    other.enter();
    let found = access::ld(at);
    space.enter();
    ensure_eq!(found, Ok(70), "under a root there");
    space.slot(at, Level::PAGE).store(0, Relaxed);
    space.slot(at, Level::MEGA).store(0, Relaxed);
    fence::sfence_all();
    Ok(())
}

/// Superpages over the end of RAM: good up to it, access faults beyond.
pub fn past_the_end(format: &'static Format) -> Check {
    let (space, end) = (Space::new(format, ASID), board().ram_end());
    let last = end - 8;
    let before = access::peek(last);
    space.enter();
    for level in format.levels_down().filter(|level| *level != Level::PAGE) {
        let base = last & !(level.bytes() - 1);
        if base + level.bytes() == end {
            continue; // it ends where RAM does
        }
        // A slot of its own that the mapping of the machine to itself does not use.
        let at = far(format).next_multiple_of(level.bytes());
        let slot = space.slot(at, level);
        slot.store(leaf(base, RWX), Relaxed);
        fence::sfence_all();
        ensure_eq!(access::ld(at + (last - base)), Ok(before), "the last word of RAM, level {}", level.number());
        ensure_eq!(access::sd(at + (last - base), before), Ok(()), "a store to it");
        for beyond in [end, end + PAGE - 8, end + 0x5128].map(|beyond| at + (beyond - base)) {
            if beyond >= at + level.bytes() {
                continue;
            }
            let what = "past the end of RAM";
            ensure_cause(access::ld(beyond), LOAD_ACCESS, beyond, what)?;
            ensure_cause(access::sd(beyond, 0).map(|()| 0), STORE_ACCESS, beyond, what)?;
            ensure_cause(access::amoadd(beyond, 0), STORE_ACCESS, beyond, what)?;
            ensure_cause(access::call(beyond, 0), FETCH_ACCESS, beyond, what)?;
        }
        // A page fault goes first.
        slot.store(leaf(base, PteFlags::empty() | paging::XO), Relaxed);
        fence::sfence_all();
        let beyond = at + (end - base);
        ensure_cause(access::ld(beyond), LOAD_PAGE, beyond, "execute-only past the end of RAM")?;
        slot.store(0, Relaxed);
        fence::sfence_all();
    }
    Ok(())
}

/// The UART through leaves of every level, from S and from U mode.
pub fn devices(format: &'static Format) -> Check {
    /// Its scratch register.
    const SCRATCH: u64 = 7;
    let (space, code) = (Space::new(format, ASID), page());
    let user_code = far(format) + (7 << 21);
    space.map(user_code, code.address(), RWX | PteFlags::U);
    // sb a2, 7(a1); lbu a0, 7(a1); ecall
    code.fill([0x00c5_83a3_u32, 0x0075_c503, 0x73].map(u32::to_le_bytes).as_flattened());
    space.enter();
    let levels = format.levels_down().filter(|level| *level != format.root_level() || *level == Level::GIGA);
    for (turn, level) in (1..).zip(levels) {
        let base = UART & !(level.bytes() - 1);
        let at = (far(format) + Level::GIGA.bytes()).next_multiple_of(level.bytes());
        let register = at + (UART - base) + SCRATCH;
        let slot = space.slot(at, level);
        slot.store(leaf(base, RW), Relaxed);
        fence::sfence_all();
        ensure_eq!(access::sb(register, 0x40 + turn), Ok(()), "a store from S mode, level {}", level.number());
        ensure_eq!(access::lbu(register), Ok(0x40 + turn), "a load from S mode, level {}", level.number());
        slot.store(leaf(base, RO), Relaxed);
        paging::fence_page(register);
        ensure_cause(access::sb(register, 0).map(|()| 0), STORE_PAGE, register, "a store to a read-only device")?;
        ensure_eq!(access::lbu(register), Ok(0x40 + turn), "a load from a read-only device");
        slot.store(leaf(base, RW | PteFlags::U), Relaxed);
        paging::fence_page(register);
        ensure_cause(access::lbu(register), LOAD_PAGE, register, "a device of user mode's")?;
        let mut user = User::at(user_code);
        (user.x[11], user.x[12]) = (register - SCRATCH, 0x50 + turn);
        let trap = user.run();
        ensure_eq!((trap.cause, user.x[10]), (ECALL_U, 0x50 + turn), "a store and a load from U mode: {trap:x?}");
        slot.store(0, Relaxed);
        fence::sfence_all();
    }
    Ok(())
}
