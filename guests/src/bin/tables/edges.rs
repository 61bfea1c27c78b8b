//! Stores over the border of a table, fences of user mode, and MMIO from code whose page is being aged.
#![no_std]
#![no_main]
use core::sync::atomic::Ordering::Relaxed;
use guests::expect::ILLEGAL;
use guests::paging::{self, RW, RWX, Space, TEST_VA, leaf, page};
use guests::user::User;
use guests::{Check, access, board, ensure, ensure_eq, fail, run};
use rv::format::SV39;
use rv::{Level, PteFlags};

guests::entry_point!(main);

fn main() {
    run("edges/store-across-into-a-table", store_across_into_a_table);
    run("edges/fence-in-user-mode", fence_in_user_mode);
    run("edges/mmio-from-aged-code", mmio_from_aged_code);
    if board().has("zicbom") {
        run("edges/flush-of-a-read-only-page", flush_of_a_read_only_page);
    }
}

/// The first half goes to data, the second to a table that is in use.
fn store_across_into_a_table() -> Check {
    let space = Space::new(&SV39, 3);
    let target = page();
    let slot = space.slot(TEST_VA + 0x5000, Level::PAGE);
    slot.store(leaf(target.address(), RW), Relaxed);
    let table = core::ptr::from_ref(slot).expose_provenance() as u64 & !0xfff;
    let data = page();
    let va = TEST_VA + (1 << 30);
    space.map(va, data.address(), RW);
    space.map(va + 0x1000, table, RW);
    space.enter();
    let _ = access::ld(TEST_VA + 0x5000).map_err(|_| ()).expect("mapped");
    let _ = access::ld(va).map_err(|_| ()).expect("mapped");
    let _ = access::ld(va + 0x1000).map_err(|_| ()).expect("mapped");
    let done = access::sd(va + 4092, 0x1111_2222_3333_4440);
    ensure!(done.is_ok(), "traps: {done:x?}");
    let (low, high) = (access::peek(data.address() + 4088), access::peek(table));
    paging::leave();
    ensure_eq!((low, high), (0x3333_4440_0000_0000, 0x1111_2222), "the two halves");
    Ok(())
}

/// Illegal, also where a kernel could have it done on the fast path.
fn fence_in_user_mode() -> Check {
    let space = Space::new(&SV39, 4);
    let (code, data) = (page(), page());
    let at = TEST_VA + (2 << 30);
    // sfence.vma a1, x0; ecall
    code.fill([0x1205_8073_u32, 0x73].map(u32::to_le_bytes).as_flattened());
    space.map(at, code.address(), RWX | PteFlags::U);
    space.map(at + 0x1000, data.address(), RW);
    space.enter();
    let _ = access::ld(at + 0x1000).map_err(|_| ()).expect("mapped");
    let mut user = User::at(at);
    user.x[11] = at + 0x1000;
    let trap = user.run();
    paging::leave();
    ensure_eq!((trap.cause, trap.epc), (ILLEGAL, at), "sfence.vma in user mode");
    Ok(())
}

/// A cache block may be flushed where it may be read; where not, the fault is a store's.
fn flush_of_a_read_only_page() -> Check {
    let space = Space::new(&SV39, 6);
    let (code, data) = (page(), page());
    let at = TEST_VA + (4 << 30);
    // cbo.flush (a0); ret
    code.fill([0x0025_200f_u32, 0x8067].map(u32::to_le_bytes).as_flattened());
    space.map(at, code.address(), RWX);
    space.map(at + 0x1000, data.address(), PteFlags::R | PteFlags::A);
    space.map(at + 0x2000, data.address(), PteFlags::X | PteFlags::A);
    space.enter();
    let first = access::call(at, at + 0x1000);
    let loaded = access::ld(at + 0x1000);
    let second = access::call(at, at + 0x1000);
    let refused = [0x2000, 0x3000].map(|offset| access::call(at, at + offset).map_err(|trap| trap.cause));
    paging::leave();
    ensure!(first.is_ok() && loaded.is_ok() && second.is_ok(), "{first:x?}, {loaded:x?}, {second:x?}");
    ensure_eq!(refused, [Err(15), Err(15)], "where nothing can be read");
    Ok(())
}

/// A kernel may clear A of the page that runs, without a fence.
fn mmio_from_aged_code() -> Check {
    let space = Space::new(&SV39, 5);
    let code = page();
    let at = TEST_VA + (3 << 30);
    // lbu a0, 5(a0); ret
    code.fill([0x0055_4503_u32, 0x8067].map(u32::to_le_bytes).as_flattened());
    space.map(at, code.address(), RWX);
    space.enter();
    let first = access::call(at, 0x1000_0000);
    ensure!(first.is_ok(), "first: {first:x?}");
    space.map(at, code.address(), RWX.difference(PteFlags::A));
    let second = access::call(at, 0x1000_0000);
    paging::leave();
    match second {
        Ok(_) => Ok(()),
        Err(trap) if trap.cause == 12 => Ok(()),
        Err(trap) => fail!("a load from the UART by aged code: {trap:x?}"),
    }
}
