//! Memory of the machine, or of no owner, that is not this guest's: reached by each kind of access, by leaves of each
//! size, across the border of a page, and again after an entry has led to RAM.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "sstatus")]

use core::sync::atomic::Ordering::Relaxed;
use guests::expect::{FETCH_ACCESS, LOAD_ACCESS, STORE_ACCESS, ensure_trap};
use guests::paging::{self, RWX, Space, TEST_VA, fence_page, fence_page_asid, leaf, page};
use guests::trap::Trap;
use guests::user::User;
use guests::{Check, Named, access, board, ensure, ensure_eq, run};
use metal::csr;
use rv::csr::status;
use rv::{Level, PteFlags};

guests::entry_point!(main);

/// A check in an address space.
type InSpace = fn(&Space) -> Check;

/// The ASID of the space.
const ASID: u64 = 7;
/// `amoadd.d a0, a0, (a0)`, `lr.d a0, (a0)`, `ld a0, 0(a0)`, `sd a0, 0(a0)`; and what comes of them. (`sc.d` without a reservation fails,
/// and need not trap.)
const USERS: [(u32, u64); 4] =
    [(0x00a5_352f, STORE_ACCESS), (0x1005_352f, LOAD_ACCESS), (0x0005_3503, LOAD_ACCESS), (0x00a5_3023, STORE_ACCESS)];

fn main() {
    run("denied/without-paging", without_paging);
    for format in Space::formats() {
        let checks: [Named<InSpace>; 5] = [
            ("by-leaves-of-each-size", by_leaves_of_each_size),
            ("by-user-mode", by_user_mode),
            ("across-pages", across_pages),
            ("code-across-pages", code_across_pages),
            ("and-given-again", and_given_again),
        ];
        let vectors: [Named<InSpace>; 1] = [("by-vectors", by_vectors)];
        let vectors = vectors.into_iter().filter(|_| board().has("v"));
        for (name, check) in checks.into_iter().chain(vectors) {
            let name = guests::Text::of(format_args!("denied/{}-{name}", format.name));
            run(name.as_str(), || {
                let space = Space::new(format, ASID);
                space.enter();
                let outcome = check(&space);
                paging::leave();
                outcome
            });
        }
    }
}

/// Behind the guest's RAM is the machine's, as a rule; then what an entry can name, by its halves, and the last of it.
fn places() -> [u64; 6] {
    let end = board().ram_end();
    [end, end + (1 << 30), 1 << 40, 1 << 41, 1 << 55, (1 << 56) - (1 << 30)]
}

fn all_accesses(at: u64, what: &str) -> Check {
    ensure_trap(access::ld(at), LOAD_ACCESS, at, what)?;
    ensure_trap(access::lb(at + 7), LOAD_ACCESS, at + 7, what)?;
    ensure_trap(access::sd(at, 1), STORE_ACCESS, at, what)?;
    ensure_trap(access::amoadd(at, 1), STORE_ACCESS, at, what)?;
    ensure_trap(access::lr(at), LOAD_ACCESS, at, what)?;
    ensure_trap(access::call(at, 0), FETCH_ACCESS, at, what)
}

fn without_paging() -> Check {
    for at in places() {
        all_accesses(at, "without paging")?;
        all_accesses(at + 0xff8, "without paging")?;
    }
    // What the guest has at the start of its RAM is its own.
    let at = board().free_ram().next().map_or(0, |(start, _)| start.next_multiple_of(4096));
    access::poke(at, 0x1234_5678);
    ensure_eq!(access::peek(at), 0x1234_5678, "its own RAM");
    Ok(())
}

fn by_leaves_of_each_size(space: &Space) -> Check {
    for (number, to) in places().into_iter().enumerate() {
        let va = TEST_VA + ((number as u64) << 32);
        let sizes = [(Level::PAGE, 0), (Level::MEGA, 1 << 30), (Level::GIGA, 2 << 30)];
        for (level, offset) in sizes {
            let to = to & !(level.bytes() - 1);
            // The first of it may be RAM of the guest's, whose end lies within.
            let inside = if to < board().ram_end() { board().ram_end() - to } else { 0 };
            space.slot(va + offset, level).store(leaf(to, RWX), Relaxed);
            paging::fence_page(va + offset);
            for at in [inside, level.bytes() - 4096, inside] {
                all_accesses(va + offset + at, "by a leaf")?;
            }
        }
    }
    Ok(())
}

fn by_user_mode(space: &Space) -> Check {
    let code = page();
    let (at, data) = (TEST_VA, TEST_VA + 0x1000);
    space.map(at, code.address(), RWX | PteFlags::U);
    for to in places() {
        space.map(data, to, RWX | PteFlags::U);
        fence_page_asid(data, ASID);
        for (instruction, cause) in USERS {
            code.fill(&instruction.to_le_bytes());
            let mut user = User::at(at);
            user.x[10] = data + 8;
            let trap = user.run();
            ensure_eq!((trap.cause, trap.tval, trap.epc), (cause, data + 8, at), "{instruction:#x}");
            ensure_eq!(trap.status & status::SPP, 0, "SPP");
        }
        let trap = User::at(data + 0x100).run();
        ensure_eq!((trap.cause, trap.tval), (FETCH_ACCESS, data + 0x100), "user mode jumps there");
    }
    Ok(())
}

/// The trap names the access, or its part behind the border.
fn is_across(found: Result<(), Trap>, cause: u64, at: u64, border: u64) -> Check {
    let Err(trap) = found else { return Err(guests::Text::of(format_args!("{at:#x} does not trap"))) };
    ensure_eq!(trap.cause, cause, "cause at {at:#x}");
    ensure!(trap.tval == at || trap.tval == border, "tval {:#x} at {at:#x}", trap.tval);
    Ok(())
}

fn across_pages(space: &Space) -> Check {
    let data = page();
    let border = TEST_VA + 0x1000;
    space.map(TEST_VA, data.address(), RWX);
    space.map(border + 0x1000, data.address(), RWX);
    for to in places() {
        space.map(border, to, RWX);
        fence_page(border);
        for back in 1..8 {
            // Into it, and out of it.
            for (at, inside) in [(border - back, border), (border + 0x1000 - back, border + 0x1000)] {
                match access::ld(at) {
                    // Where harts leave misaligned accesses to others.
                    Err(Trap { cause: 4, .. }) => {}
                    loaded => is_across(loaded.map(|_| ()), LOAD_ACCESS, at, inside)?,
                }
                match access::sd(at, 0) {
                    Err(Trap { cause: 6, .. }) => {}
                    stored => is_across(stored, STORE_ACCESS, at, inside)?,
                }
            }
        }
    }
    Ok(())
}

fn code_across_pages(space: &Space) -> Check {
    let code = page();
    let border = TEST_VA + 0x1000;
    space.map(TEST_VA, code.address(), RWX);
    // The first half of `lui a0, 0`.
    code.0[511].store(0x0537 << 48, Relaxed);
    metal::fence::instruction();
    for to in places() {
        space.map(border, to, RWX);
        fence_page(border);
        let trap = access::call(border - 2, 0).err();
        ensure_eq!(trap.map(|trap| (trap.cause, trap.tval)), Some((FETCH_ACCESS, border)), "half an instruction");
    }
    Ok(())
}

/// A vector's elements, in what is denied and across the border to it.
fn by_vectors(space: &Space) -> Check {
    // vsetivli x0, 2, e64, m1, ta, ma; vle64.v v0, (a0) or vse64.v v0, (a0); ret
    const SET: u32 = 0xcd81_7057;
    const RETURN: u32 = 0x8067;
    let data = page();
    let [loads, stores] = [0x0205_7007, 0x0205_7027_u32].map(|access| {
        let code = page();
        code.fill([SET, access, RETURN].map(u32::to_le_bytes).as_flattened());
        code.address()
    });
    let border = TEST_VA + 0x1000;
    space.map(TEST_VA, data.address(), RWX);
    // SAFETY: compiled code uses no vectors.
    unsafe { csr::sstatus::set(status::VS) };
    for to in places() {
        space.map(border, to, RWX);
        fence_page(border);
        for at in [border, border + 8, border - 8] {
            let inside = at.max(border);
            is_across(access::call(loads, at).map(|_| ()), LOAD_ACCESS, at, inside)?;
            is_across(access::call(stores, at).map(|_| ()), STORE_ACCESS, at, inside)?;
        }
        ensure!(access::call(loads, border - 16).is_ok(), "RAM before it");
    }
    Ok(())
}

/// An entry leads to RAM and to what is denied in turns. Each fence is one that a hypervisor may carry out on a fast path.
fn and_given_again(space: &Space) -> Check {
    let data = page();
    for (turn, to) in places().into_iter().cycle().take(60).enumerate() {
        let value = turn as u64 + 1;
        space.map(TEST_VA, data.address(), RWX);
        if turn % 2 == 0 {
            fence_page(TEST_VA)
        } else {
            fence_page_asid(TEST_VA, ASID)
        }
        ensure!(access::sd(TEST_VA + 8, value).is_ok(), "RAM traps");
        ensure_eq!(access::ld(TEST_VA + 8).ok(), Some(value), "RAM");
        space.map(TEST_VA, to, RWX);
        if turn % 3 == 0 {
            fence_page(TEST_VA)
        } else {
            fence_page_asid(TEST_VA, ASID)
        }
        all_accesses(TEST_VA + 8, "after RAM was there")?;
        ensure_eq!(access::peek(data.address() + 8), value, "RAM that is no longer mapped there");
    }
    Ok(())
}
